"""The commands of `airflow jms limbo`, and `airflow jms store run`."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from airflow_provider_jmsjca.cli.commands import (
    check_choice,
    echo,
    one_line_errors,
    print_page,
)
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.engine.limbo import EVERY, StoreUpkeep
from airflow_provider_jmsjca.errors import ConfigurationError, TransientStoreError
from airflow_provider_jmsjca.escaping import escaped_json
from airflow_provider_jmsjca.hooks.jms import JmsHook
from airflow_provider_jmsjca.hooks.store import installed_store
from airflow_provider_jmsjca.operating.activations import as_listed
from airflow_provider_jmsjca.store.base import (
    Limbo,
    LimboMessage,
    LimboSelection,
    LimboState,
    Store,
)


@one_line_errors
def list_command(args: argparse.Namespace) -> None:
    """Print messages in limbo, one a line."""
    with contextlib.closing(installed_store()) as store:
        found = store.limbo.page(_selection(args, store), limit=args.limit + 1, after=args.after)
    print_page(args, [_row(each) for each in found], number="number")


@one_line_errors
def show_command(args: argparse.Namespace) -> None:
    """Print one message with its content, as JSON."""
    with contextlib.closing(installed_store()) as store:
        found = store.limbo.page(LimboSelection(numbers=frozenset({args.number})))
        message = store.limbo.contents([args.number]).get(args.number)
    if not found or message is None:
        raise ConfigurationError(f"no message {args.number} is in limbo; see airflow jms limbo list")
    if isinstance(message, ConfigurationError):
        raise message
    shown = {**_row(found[0]), "message": message.to_json()}
    sys.stdout.write(escaped_json(json.dumps(shown, indent=2, ensure_ascii=False)) + "\n")


@one_line_errors
def revive_command(args: argparse.Namespace) -> None:
    """Let failed messages be sent again."""
    _change(args, "revived", lambda limbo, chosen, now: limbo.revive(chosen, now))


@one_line_errors
def release_command(args: argparse.Namespace) -> None:
    """Let waiting messages be sent now."""

    def release(limbo: Limbo, chosen: LimboSelection, now: datetime) -> int:
        count = limbo.release(chosen, now)
        waiting = replace(chosen, state=LimboState.WAITING)
        if not count and chosen.state is not LimboState.FAILED and limbo.page(waiting, limit=1):
            echo(
                "note: these are due already; a triggerer with one of our triggers sends them, or airflow "
                "jms store run"
            )
        return count

    _change(args, "released", release)


@one_line_errors
def purge_command(args: argparse.Namespace) -> None:
    """Drop messages from limbo."""
    _change(args, "purged", lambda limbo, chosen, now: limbo.purge(chosen, now))


@one_line_errors
def run_command(args: argparse.Namespace) -> None:
    """Send due messages of limbo, each second, until SIGTERM or Ctrl-C; with `--once` once."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    with contextlib.closing(installed_store()) as store:
        upkeep = StoreUpkeep(store, JmsHook.connect_for_limbo)
        while not stopped.is_set():
            try:
                done = upkeep.round()
            except TransientStoreError as error:
                if args.once:
                    raise
                echo(f"error: {error}; it is tried again")
            else:
                if done.sent or done.failed or args.once:
                    sys.stdout.write(f"{done.sent} messages sent, {done.failed} failed\n")
                    sys.stdout.flush()
            if args.once:
                break
            stopped.wait(EVERY.total_seconds())


def _selection(args: argparse.Namespace, store: Store) -> LimboSelection:
    return LimboSelection(
        numbers=frozenset(args.numbers) if args.numbers else None,
        state=None if args.state is None else LimboState(args.state),
        activation=as_listed(args.activation, store.limbo.activations()),
        jms_conn_id=args.conn_id,
        destination=None if args.destination is None else _destination(args.destination),
    )


def _destination(text: str) -> str:
    """Return how limbo writes a destination; the name of a queue will do."""
    try:
        return str(Destination.parse(text))
    except ConfigurationError:  # a message for one that can't be read is there too
        return text


def _change(
    args: argparse.Namespace, done: str, change: Callable[[Limbo, LimboSelection, datetime], int]
) -> None:
    filters = (args.state, args.activation, args.conn_id, args.destination)
    check_choice(
        args,
        chosen=bool(args.numbers) or any(each is not None for each in filters),
        ids=args.numbers,
        ways="their numbers, a filter such as --destination",
    )
    with contextlib.closing(installed_store()) as store:
        count = change(store.limbo, _selection(args, store), store.limbo.now())
    sys.stdout.write(f"{count} messages {done}\n")


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
