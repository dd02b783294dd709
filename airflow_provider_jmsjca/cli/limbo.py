"""The commands of `airflow jms limbo`."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys

from airflow_provider_jmsjca.cli.commands import (
    check_choice,
    echo,
    one_line_errors,
    print_page,
)
from airflow_provider_jmsjca.escaping import escaped_json
from airflow_provider_jmsjca.hooks.store import installed_store
from airflow_provider_jmsjca.operating.limbo import (
    LimboChange,
    change_limbo,
    limbo_selection,
    list_limbo,
    show_limbo,
)
from airflow_provider_jmsjca.store.base import LimboMessage, LimboSelection, LimboState, Store


@one_line_errors
def list_command(args: argparse.Namespace) -> None:
    """Print messages in limbo, one on each line."""
    with contextlib.closing(installed_store()) as store:
        found = list_limbo(store, _selection(args, store), limit=args.limit + 1, after=args.after)
    print_page(args, [_row(each) for each in found], number="number")


@one_line_errors
def show_command(args: argparse.Namespace) -> None:
    """Print one message with its content, as JSON."""
    with contextlib.closing(installed_store()) as store:
        found = show_limbo(store, args.number)
    shown = {**_row(found.entry), "message": found.message.to_json()}
    sys.stdout.write(escaped_json(json.dumps(shown, indent=2, ensure_ascii=False)) + "\n")


@one_line_errors
def revive_command(args: argparse.Namespace) -> None:
    """Make failed messages due now, with the full number of tries."""
    _change(args, "revived", LimboChange.REVIVE)


@one_line_errors
def release_command(args: argparse.Namespace) -> None:
    """Make waiting messages due now; a triggerer or `airflow jms store run` then sends them."""
    _change(args, "released", LimboChange.RELEASE)


@one_line_errors
def purge_command(args: argparse.Namespace) -> None:
    """Permanently delete messages from limbo, except messages that are being sent."""
    _change(args, "purged", LimboChange.PURGE)


def _selection(args: argparse.Namespace, store: Store) -> LimboSelection:
    return limbo_selection(
        store,
        numbers=args.numbers or None,
        state=None if args.state is None else LimboState(args.state),
        activation=args.activation,
        jms_conn_id=args.conn_id,
        destination=args.destination,
    )


def _change(args: argparse.Namespace, done: str, change: LimboChange) -> None:
    filters = (args.state, args.activation, args.conn_id, args.destination)
    check_choice(
        args,
        chosen=bool(args.numbers) or any(each is not None for each in filters),
        ids=args.numbers,
        ways="their numbers, a filter such as --destination",
    )
    with contextlib.closing(installed_store()) as store:
        result = change_limbo(store, change, _selection(args, store))
    if result.due_already:
        echo(
            "note: these are due already; a triggerer with a JMS trigger sends them, or airflow jms store run"
        )
    sys.stdout.write(f"{result.count} messages {done}\n")


def _row(message: LimboMessage) -> dict[str, str]:
    return {
        "number": str(message.number),
        "state": str(message.state),
        "destination": message.destination,
        "conn_id": message.jms_conn_id,
        "activation": message.activation,
        "put_at": message.put_at.isoformat(timespec="seconds"),
        "due_at": message.due_at.isoformat(timespec="seconds"),
        "tries": str(message.tries),
        "exception": ": ".join(filter(None, (message.exception_class, message.exception_message))),
    }
