"""The commands of `airflow jms attempts` and `airflow jms indoubt`."""

from __future__ import annotations

import argparse
import contextlib
import sys
from datetime import datetime

from airflow_provider_jmsjca.cli.commands import (
    check_choice,
    one_line_errors,
    print_page,
    print_rows,
)
from airflow_provider_jmsjca.hooks.store import installed_store
from airflow_provider_jmsjca.operating.attempts import (
    UnsettledState,
    attempt_history,
    list_attempts,
    list_unsettled,
    reset_attempts,
    resolve_in_doubt,
)
from airflow_provider_jmsjca.store.base import MessageAttempts


@one_line_errors
def list_command(args: argparse.Namespace) -> None:
    """Print the messages with stored attempts, those with most attempts first."""
    with contextlib.closing(installed_store()) as store:
        found = list_attempts(
            store, args.activation, at_least=args.at_least, limit=args.limit + 1, after=args.after
        )
    print_page(args, [_row(each) for each in found])


@one_line_errors
def show_command(args: argparse.Namespace) -> None:
    """Print the attempts at one message, each with its time, process and exception."""
    with contextlib.closing(installed_store()) as store:
        entries = attempt_history(store, args.activation, args.message)
    rows = [
        {
            "attempt": str(each.attempt),
            "at": _moment(each.at),
            "where": each.where,
            "exception": ": ".join(filter(None, (each.exception_class, each.exception_message))),
        }
        for each in entries
    ]
    print_rows(rows, args.output)


@one_line_errors
def reset_command(args: argparse.Namespace) -> None:
    """Reset the attempts at messages, so that counting restarts."""
    _check_choice(args, chosen=_is_one(args) or args.at_least > 1)
    with contextlib.closing(installed_store()) as store:
        count = reset_attempts(
            store, activation=args.activation, message=args.message, at_least=args.at_least
        )
    sys.stdout.write(f"Reset the counts of {count} message{'' if count == 1 else 's'}\n")


@one_line_errors
def in_doubt_list_command(args: argparse.Namespace) -> None:
    """Print received, unsettled messages, each with whether the process that received it is alive."""
    state = None if args.state is None else UnsettledState(args.state)
    with contextlib.closing(installed_store()) as store:
        found = list_unsettled(store, args.activation, state=state)
    page = found[args.after : args.after + args.limit + 1]
    print_page(args, [{"state": str(each.state), **_row(each.attempts)} for each in page])


@one_line_errors
def in_doubt_reset_command(args: argparse.Namespace) -> None:
    """Mark messages in doubt as resolved, so that they can be delivered again."""
    _check_choice(args, chosen=_is_one(args))
    with contextlib.closing(installed_store()) as store:
        count = resolve_in_doubt(store, activation=args.activation, message=args.message)
    sys.stdout.write(f"{count} messages are no longer in doubt\n")


def _check_choice(args: argparse.Namespace, *, chosen: bool) -> None:
    ids = [] if args.message is None else [f"--message {args.message}"]
    check_choice(args, chosen=chosen, ids=ids, ways="a filter such as --activation")


def _is_one(args: argparse.Namespace) -> bool:
    return args.activation is not None or args.message is not None


def _row(attempts: MessageAttempts) -> dict[str, str]:
    return {
        "activation": attempts.activation,
        "message": attempts.message,
        "attempts": str(attempts.attempts),
        "first_at": _moment(attempts.first_at),
        "last_at": _moment(attempts.last_at),
        "where": attempts.where,
    }


def _moment(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")
