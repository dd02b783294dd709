"""The commands of `airflow jms queues`."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType
from typing import Final

from airflow.sdk.exceptions import AirflowException
from airflow.utils import yaml

from airflow_provider_jmsjca.cli.commands import (
    check_choice,
    echo,
    one_line_errors,
    print_page,
    print_rows,
)
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.selector import selector_text
from airflow_provider_jmsjca.errors import ConfigurationError, JmsError
from airflow_provider_jmsjca.escaping import escaped
from airflow_provider_jmsjca.hooks.jms import JmsHook
from airflow_provider_jmsjca.hooks.metadata import destination_uses, jms_connections
from airflow_provider_jmsjca.hooks.store import installed_store, store_in_use
from airflow_provider_jmsjca.operating.messages import body_preview, message_view, moment
from airflow_provider_jmsjca.operating.queues import (
    DestinationUse,
    QueueChange,
    QueueEntry,
    browse_by_consuming,
    browse_queue,
    change_messages,
    find_message,
    incomplete_count_reason,
    list_queues_of_brokers,
    matching,
    open_administration,
    open_connection,
    queue_name,
    registered_uses,
)
from airflow_provider_jmsjca.transports.administration import (
    MessageSelection,
    QueueAdministration,
    QueueOperation,
)
from airflow_provider_jmsjca.transports.base import Connection, ConnectionSettings

_DEFAULT: Final = "jms_default"
_OPTIONAL: Final = ("dequeued", "enqueued", "in_flight", "oldest")
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@contextlib.contextmanager
def broker_connection(conn_id: str) -> Iterator[Connection]:
    """Open a separate connection to the broker of an Airflow connection.

    The client id of the Airflow connection isn't used, because a running consumer may be using it.
    """
    with open_connection(JmsHook(conn_id).settings()) as connection:
        yield connection


@contextlib.contextmanager
def administration_of(conn_id: str) -> Iterator[QueueAdministration]:
    """Open the administration of a broker's queues."""
    with open_administration(JmsHook(conn_id).settings()) as found:
        yield found


@one_line_errors
def list_command(args: argparse.Namespace) -> None:
    """Print a broker's queues with their counts; with `--used`, only queues that this installation uses.

    Without `--conn-id`, print the queues of all JMS connections in Airflow. Exit with code 1 if a connection
    fails.
    """
    brokers: dict[str, ConnectionSettings] = {}
    errors: dict[str, JmsError] = {}
    for conn_id in _all_connections() if args.conn_id is None else [args.conn_id]:
        try:
            brokers[conn_id] = JmsHook(conn_id).settings()
        except JmsError as error:
            errors[conn_id] = error
    found = list_queues_of_brokers(
        brokers,
        list(_uses()) if args.used else (),
        only_used=args.used,
        rate_over=None if args.rate is None else timedelta(seconds=args.rate),
    )
    rows: list[dict[str, str]] = []
    notes: list[str] = []
    for conn_id, queues in found.items():
        if isinstance(queues, JmsError):
            errors[conn_id] = queues
            continue
        notes += [f"connection {conn_id!r}: {queues.note}"] if queues.note else []
        rows += [
            ({"connection": conn_id} if args.conn_id is None else {})
            | _figures(each, used=args.used, rate=args.rate is not None)
            for each in matching(queues.queues, pattern=args.match, filled=args.filled)
        ]
    if args.conn_id in errors:
        raise errors[args.conn_id]
    print_page(args, rows[args.after : args.after + args.limit + 1], optional=_OPTIONAL)
    for note in notes:
        echo(f"note: {note}")
    for conn_id, failed in sorted(errors.items()):
        named = f"connection {conn_id!r}"
        echo(f"error: {failed}" if str(failed).startswith(named) else f"error: {named}: {failed}")
    if errors:
        raise SystemExit(1)


@one_line_errors
def browse_command(args: argparse.Namespace) -> None:
    """Print a page of messages, and leave them on the queue; `--by-consuming` receives and returns them."""
    page = {"selector": args.selector, "skip": args.after, "limit": args.limit}
    with broker_connection(args.conn_id) as connection:
        if args.by_consuming:
            found = browse_by_consuming(connection, queue_name(args.queue), **page)
        else:
            with contextlib.closing(connection.administration()) as administration:
                warn_before_browsing(administration)
                found = browse_queue(administration, queue_name(args.queue), **page)
                found = replace(found, note=note_without_warning(administration, found.note))
    if args.messages:
        for each in found.messages:
            sys.stdout.write(json.dumps(each.to_json()) + "\n")
    else:
        print_page(args, [_row(each) for each in found.messages], more=found.more)
    if found.note:
        echo(f"note: {found.note}")
    elif not found.messages and not args.after:
        echo(f"note: {no_message_note(args.queue, args.selector)}")


def warn_before_browsing(administration: QueueAdministration) -> None:
    """Print the side effect that browsing has on this broker, if it has one, before it happens."""
    if administration.browse_note and QueueOperation.BROWSE in administration.operations:
        echo(f"note: {administration.browse_note}")


def note_without_warning(administration: QueueAdministration, note: str) -> str:
    """Return the note on browsed messages without the part that `warn_before_browsing` has printed."""
    return note.removeprefix(administration.browse_note).lstrip()


def no_message_note(queue: str, selector: str | None) -> str:
    """Return a note that no message was found on a queue."""
    if selector is not None:
        return f"no message on queue {queue!r} matches the selector"
    return (
        f"queue {queue!r} is empty or does not exist; airflow jms queues list --filled shows the queues with "
        "messages"
    )


@one_line_errors
def show_command(args: argparse.Namespace) -> None:
    """Print one message with the attempts at it, headers, properties and body."""
    with administration_of(args.conn_id) as administration:
        warn_before_browsing(administration)
        message = find_message(administration, queue_name(args.queue), args.message)
    print_message(message, args.output, _attempts(args.message))


@one_line_errors
def move_command(args: argparse.Namespace) -> None:
    """Move messages to another queue."""
    _change(args, "moved", QueueChange.MOVE)


@one_line_errors
def copy_command(args: argparse.Namespace) -> None:
    """Copy messages to another queue."""
    _change(args, "copied", QueueChange.COPY)


@one_line_errors
def delete_command(args: argparse.Namespace) -> None:
    """Permanently delete messages."""
    _change(args, "deleted", QueueChange.DELETE)


def print_message(message: JmsMessage, output: str, further: Mapping[str, str] = _NOTHING) -> None:
    """Print one message as lines, or as one line of JSON for `airflow jms send --messages`.

    Args:
        message: The message.
        output: The format: `table`, `plain`, `json` or `yaml`.
        further: Further names and values to print above the headers; not in JSON.
    """
    view = message_view(message)
    if output == "json":
        sys.stdout.write(json.dumps(message.to_json()) + "\n")
        return
    rows = [{"name": name, "value": value, "type": ""} for name, value in {**further, **view.headers}.items()]
    rows += [
        {"name": f"property {name}", "value": value, "type": kind}
        for name, (value, kind) in view.properties.items()
    ]
    body = {"name": "body", "value": f"{view.body_bytes} bytes", "type": str(view.body_kind)}
    if output == "yaml":
        # The body is an entry of the list here. As lines below the list it would break the YAML, or add
        # forged entries.
        sys.stdout.write(yaml.dump([*rows, body | {"value": view.body}]))
        return
    print_rows([*rows, body], output)
    for line in view.body.splitlines():
        sys.stdout.write(escaped(line) + "\n")


def _change(args: argparse.Namespace, done: str, change: QueueChange) -> None:
    check_choice(
        args,
        chosen=bool(args.message) or selector_text(args.selector) is not None,
        ids=args.message or (),
        ways="--message ID, --selector",
    )
    selection = MessageSelection(ids=tuple(args.message or ()), selector=args.selector)
    with administration_of(args.conn_id) as administration:
        count = change_messages(
            administration,
            change,
            queue_name(args.queue),
            selection,
            target="" if change is QueueChange.DELETE else queue_name(args.target),
            dry_run=args.dry_run,
        )
        more = (
            incomplete_count_reason(administration, queue_name(args.queue), selection, count)
            if args.dry_run
            else ""
        )
    sys.stdout.write(f"{count} messages {'would be ' if args.dry_run else ''}{done}\n")
    if more:
        echo(f"note: there are more: {more}")


def _attempts(message_id: str) -> dict[str, str]:
    """Return the attempts at a message from the store, as names and values to print."""
    if not store_in_use():
        return {}
    from airflow_provider_jmsjca.operating.attempts import (  # noqa: PLC0415 - other commands need no store
        attempts_at_message,
    )

    try:
        with contextlib.closing(installed_store()) as store:
            found = attempts_at_message(store, message_id)
    except JmsError as error:
        echo(f"note: the attempts at it are not known: {error}")
        return {}
    return {
        f"attempt {each.attempt} of {activation}": " ".join(
            filter(
                None,
                (
                    f"{each.at.isoformat(timespec='seconds')} on {each.where}",
                    each.exception_class,
                    each.exception_message,
                ),
            )
        )
        for activation, each in found
    }


def _all_connections() -> list[str]:
    """Return the ids of the JMS connections that Airflow lists.

    The default connection is included even if only a secrets backend has it, which Airflow can't list.
    """
    found = set(jms_connections())
    with contextlib.suppress(AirflowException, ValueError):
        JmsHook.get_connection(_DEFAULT)
        found.add(_DEFAULT)
    if not found:
        raise ConfigurationError(
            f"Airflow has no connection of type jms, and none called {_DEFAULT}; add one, or give --conn-id"
        )
    return sorted(found)


def _uses() -> Iterator[DestinationUse]:
    """Yield the destinations that DAGs and the activations in the store use."""
    yield from destination_uses()
    if store_in_use():
        with contextlib.closing(installed_store()) as store:
            yield from registered_uses(store)


def _figures(entry: QueueEntry, *, used: bool, rate: bool) -> dict[str, str]:
    queue = entry.statistics
    figures = {
        name: None if queue is None else getattr(queue, name)
        for name in ("messages", "in_flight", "consumers", "enqueued", "dequeued")
    }
    shown = {name: "" if value is None else str(value) for name, value in figures.items()}
    oldest = None if queue is None else queue.oldest
    rates = {"in_per_second": entry.enqueued_per_second, "out_per_second": entry.dequeued_per_second}
    return {
        "queue": entry.name,
        **shown,
        "oldest": "" if oldest is None else oldest.isoformat(timespec="seconds"),
        **({name: "" if value is None else f"{value:.1f}" for name, value in rates.items()} if rate else {}),
        **({"used_by": "; ".join(entry.used_by)} if used else {}),
    }


def _row(message: JmsMessage) -> dict[str, str]:
    return {
        "message": message.message_id or "",
        "sent": moment(message.timestamp),
        "redelivered": str(message.redelivered).lower(),
        "properties": str(len(message.properties)),
        "body": body_preview(message),
    }
