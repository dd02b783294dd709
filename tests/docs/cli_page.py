"""The page of `airflow jms`, from the declarations that the command line itself is made of."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tests.servers.folders import run_folder

if TYPE_CHECKING:
    from airflow.cli.cli_config import Arg, CLICommand

HEAD = """# The command line

Made by `python -m tests.docs` from the declarations of the commands.

The commands belong to Airflow's own command line, and read its configuration. They run wherever the package
is installed beside Airflow. `--help` says the same as this page.
"""


def render_cli_page() -> str:
    """Return the page."""
    os.environ.setdefault("AIRFLOW_HOME", str(run_folder() / "site-airflow"))  # importing Airflow makes one
    from airflow_provider_jmsjca.cli.definition import get_jms_cli_commands  # noqa: PLC0415 - it needs a home

    return "\n".join([HEAD, *(line for each in get_jms_cli_commands() for line in _lines(each, "airflow"))])


def _lines(command: CLICommand, path: str) -> Iterator[str]:
    """Yield what the page says of a command and of those below it."""
    path = f"{path} {command.name}"
    below: Sequence[CLICommand] = getattr(command, "subcommands", ())
    depth = path.count(" ")
    if depth > 1:
        yield from (f"{'#' * min(depth, 3)} `{path}`", "")
    if depth > 1 or not below:
        yield from (f"{_sentence(command.help)} {_sentence(command.description)}".strip(), "")
    arguments = [found for each in getattr(command, "args", ()) if (found := _argument(each))]
    if arguments:
        yield from (*arguments, "")
    for each in below:
        yield from _lines(each, path)


def _argument(argument: Arg) -> str:
    """Return the line about an argument; none about those that every command of Airflow has."""
    if "--verbose" in argument.flags:
        return ""
    given, name = argument.kwargs, argument.flags[-1]
    if name == "--output":  # Airflow's own
        return "- `--output FORMAT`: `table` (the default), `json`, `yaml` or `plain`"
    value = given.get("metavar") or "|".join(given.get("choices") or ())
    takes = name.startswith("-") and given.get("action") not in {"store_true", "store_false"}
    shown = f"{name} {value or name.lstrip('-').replace('-', '_').upper()}" if takes else name
    return f"- `{shown}`: {_clean(given.get('help'))}"


def _sentence(text: str | None) -> str:
    return f"{_clean(text).rstrip('.')}." if text else ""


def _clean(text: str | None) -> str:
    """Return a text as a terminal shows it: there a bracket is marked, lest it be taken for a style."""
    return " ".join((text or "").replace("\\[", "[").split())
