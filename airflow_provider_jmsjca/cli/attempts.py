"""The commands of `airflow jms attempts` and `airflow jms indoubt`."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from airflow.cli.simple_table import AirflowConsole

from airflow_provider_jmsjca.cli.commands import (
    cells,
    check_choice,
    one_line_errors,
    print_page,
)
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.hooks.store import installed_store
from airflow_provider_jmsjca.operating.activations import as_listed
from airflow_provider_jmsjca.store.base import AttemptSelection, MessageAttempts, Store, listed_name

_PAGE = 1_000
_IN_HAND, _IN_DOUBT = "in hand", "in doubt"


@one_line_errors
def list_command(args: argparse.Namespace) -> None:
    """Print the messages with counted attempts, those with most attempts first."""
    with contextlib.closing(installed_store()) as store:
        found = store.attempts.page(
            _activation(args, store), at_least=args.at_least, limit=args.limit + 1, after=args.after
        )
    _print(args, [(each, {}) for each in found])


@one_line_errors
def show_command(args: argparse.Namespace) -> None:
    """Print the attempts at one message: when, where, and the exception each ended with."""
    with contextlib.closing(installed_store()) as store:
        entries = store.attempts.history(_activation(args, store) or "", args.message)
    if not entries:
        raise ConfigurationError(
            f"no attempt at message {args.message!r} of {args.activation!r} is stored; see airflow jms "
            "attempts list"
        )
    rows = [
        {
            "attempt": str(each.attempt),
            "at": _moment(each.at),
            "where": each.where,
            "exception": ": ".join(filter(None, (each.exception_class, each.exception_message))),
        }
        for each in entries
    ]
    AirflowConsole().print_as(data=rows, output=args.output, mapper=lambda row: cells(row, args.output))


@one_line_errors
def reset_command(args: argparse.Namespace) -> None:
    """Reset the counts of messages."""
    _check_choice(args, chosen=_is_one(args) or args.at_least > 1)
    with contextlib.closing(installed_store()) as store:
        count = store.attempts.reset(replace(_chosen(args, store), at_least=args.at_least))
    sys.stdout.write(f"{count} messages are counted anew\n")


@one_line_errors
def in_doubt_list_command(args: argparse.Namespace) -> None:
    """Print received, unsettled messages, and whether the process that holds them is alive."""
    with contextlib.closing(installed_store()) as store:
        found = _unsettled(store, _activation(args, store))
    chosen = [each for each in found if args.state in {None, each[1]["state"]}]
    _print(args, chosen[args.after : args.after + args.limit + 1])


@one_line_errors
def in_doubt_reset_command(args: argparse.Namespace) -> None:
    """Let messages in doubt be delivered again; in-flight messages stay as they are."""
    _check_choice(args, chosen=_is_one(args))
    with contextlib.closing(installed_store()) as store:
        everywhere = store.attempts.open_at()
        dead = everywhere - store.owners.living(everywhere, store.owners.now())
        count = store.attempts.resolve(replace(_chosen(args, store), open_at=dead))
    sys.stdout.write(f"{count} messages are no longer in doubt\n")


def _unsettled(store: Store, activation: str | None) -> list[tuple[MessageAttempts, dict[str, str]]]:
    living = store.owners.living(store.attempts.open_at(), store.owners.now())
    found: list[MessageAttempts] = []
    while some := store.attempts.page(activation, open_only=True, after=len(found), limit=_PAGE):
        found += some
    return [(each, {"state": _IN_HAND if each.where in living else _IN_DOUBT}) for each in found]


def _check_choice(args: argparse.Namespace, *, chosen: bool) -> None:
    ids = [] if args.message is None else [f"--message {args.message}"]
    check_choice(args, chosen=chosen, ids=ids, ways="a filter such as --activation")


def _is_one(args: argparse.Namespace) -> bool:
    return args.activation is not None or args.message is not None


def _chosen(args: argparse.Namespace, store: Store) -> AttemptSelection:
    message = None if args.message is None else listed_name(args.message)
    return AttemptSelection(activation=_activation(args, store), message=message)


def _activation(args: argparse.Namespace, store: Store) -> str | None:
    return as_listed(args.activation, store.attempts.activations())


def _print(args: argparse.Namespace, found: Sequence[tuple[MessageAttempts, dict[str, str]]]) -> None:
    rows = [
        {
            **more,
            "activation": each.activation,
            "message": each.message,
            "attempts": str(each.attempts),
            "first_at": _moment(each.first_at),
            "last_at": _moment(each.last_at),
            "where": each.where,
        }
        for each, more in found
    ]
    print_page(args, rows)


def _moment(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")
