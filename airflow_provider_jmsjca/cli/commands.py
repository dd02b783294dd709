"""What the commands of `airflow jms` do."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from pathlib import Path

from airflow.cli.simple_table import AirflowConsole

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.explain import explain
from airflow_provider_jmsjca.errors import ConfigurationError, JmsError
from airflow_provider_jmsjca.hooks.jms import JmsHook, resolve_levels

Command = Callable[[argparse.Namespace], None]


def _one_line_errors(command: Command) -> Command:
    """Print errors of ours as lines, one for each fault, and leave with exit code 1."""

    @functools.wraps(command)
    def run(args: argparse.Namespace) -> None:
        try:
            command(args)
        except JmsError as error:
            faults = error.faults if isinstance(error, ConfigurationError) else (str(error),)
            for fault in faults:
                sys.stderr.write(f"error: {fault}\n")
            raise SystemExit(1) from error

    return run


@_one_line_errors
def explain_command(args: argparse.Namespace) -> None:
    """Print each effective option with its value (secrets masked), origin and default."""
    spec = None if args.activation is None else _read_spec([args.activation], args.name)
    connection = None if args.conn_id is None else JmsHook(args.conn_id)
    rows = explain(resolve_levels(connection, spec), only_set=args.only_set)
    AirflowConsole().print_as(
        data=rows,
        output=args.output,
        mapper=lambda row: {
            "option": row.option,
            "value": row.value,
            "origin": row.origin,
            "default": row.default,
            "status": row.status,
        },
    )


@_one_line_errors
def import_command(args: argparse.Namespace) -> None:
    """Print the activation spec of deployment descriptors as YAML."""
    sys.stdout.write(_read_spec(args.files, args.name, descriptor=True).to_yaml(secrets=args.secrets))


def _read_spec(files: list[str], name: str | None, *, descriptor: bool = False) -> ActivationSpec:
    texts = [_read(Path(file)) for file in files]
    if descriptor or Path(files[0]).suffix == ".xml":
        return ActivationSpec.from_xml(*texts, name=name)
    return ActivationSpec.from_yaml(texts[0])


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: not UTF-8 text, byte {error.start} is in the way") from error
    except OSError as error:
        raise ConfigurationError(f"{path}: can't be read: {error.strerror or error}") from error
