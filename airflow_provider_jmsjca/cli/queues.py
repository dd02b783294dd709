"""The commands of `airflow jms queues`."""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import sys
from collections.abc import Iterator
from dataclasses import replace

from airflow.cli.simple_table import AirflowConsole

from airflow_provider_jmsjca.cli.commands import (
    cells,
    check_choice,
    echo,
    one_line_errors,
    print_page,
)
from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.selector import selector_text
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.escaping import escaped
from airflow_provider_jmsjca.hooks.jms import JmsHook
from airflow_provider_jmsjca.operating.messages import body_preview, message_view, moment
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.administration import (
    MessageSelection,
    QueueAdministration,
    QueueStatistics,
)
from airflow_provider_jmsjca.transports.base import Connection

_PAGE = 200


@contextlib.contextmanager
def broker_connection(conn_id: str) -> Iterator[Connection]:
    """Open a connection of its own to the broker of an Airflow connection, without its client id."""
    connection = connect(replace(JmsHook(conn_id).settings(), client_id=None))
    try:
        yield connection
    finally:
        connection.close()


@contextlib.contextmanager
def administration_of(conn_id: str) -> Iterator[QueueAdministration]:
    """Open the administration of a broker's queues."""
    with broker_connection(conn_id) as connection, contextlib.closing(connection.administration()) as found:
        yield found


def queue_named(text: str) -> str:
    """Return the name of a queue that was typed as `orders` or `queue://orders`.

    Raises:
        ConfigurationError: The text names a topic.
    """
    destination = Destination.parse(text)
    if destination.kind is not DestinationKind.QUEUE:
        raise ConfigurationError(f"{destination} is a topic; expected a queue, for example queue://orders")
    return destination.name


@one_line_errors
def list_command(args: argparse.Namespace) -> None:
    """Print the broker's queues with their figures."""
    with administration_of(args.conn_id) as administration:
        found = administration.queues()
    if args.match is not None:
        found = [each for each in found if fnmatch.fnmatchcase(each.name, args.match)]
    if args.filled:
        found = [each for each in found if each.messages]
    print_page(args, [_figures(each) for each in found[args.after : args.after + args.limit + 1]])


@one_line_errors
def browse_command(args: argparse.Namespace) -> None:
    """Print a page of messages, and leave them on the queue."""
    with administration_of(args.conn_id) as administration:
        found = administration.browse(
            queue_named(args.queue), selector=args.selector, skip=args.after, limit=args.limit + 1
        )
        note = administration.browse_note
    print_page(args, [_row(each) for each in found])
    if note:
        echo(f"note: {note}")


@one_line_errors
def show_command(args: argparse.Namespace) -> None:
    """Print one message with headers, properties and body."""
    with administration_of(args.conn_id) as administration:
        message = found_message(administration, queue_named(args.queue), args.message)
    print_message(message, args.output)


@one_line_errors
def move_command(args: argparse.Namespace) -> None:
    """Move messages to another queue."""
    _change(args, "moved", "move")


@one_line_errors
def copy_command(args: argparse.Namespace) -> None:
    """Copy messages to another queue."""
    _change(args, "copied", "copy")


@one_line_errors
def delete_command(args: argparse.Namespace) -> None:
    """Delete messages for good."""
    _change(args, "deleted", "delete")


def print_message(message: JmsMessage, output: str) -> None:
    """Print one message: as lines, or as one line of JSON that `airflow jms send --messages` takes."""
    view = message_view(message)
    if output == "json":
        sys.stdout.write(json.dumps(message.to_json()) + "\n")
        return
    rows = [{"name": name, "value": value, "type": ""} for name, value in view.headers.items()]
    rows += [
        {"name": f"property {name}", "value": value, "type": kind}
        for name, (value, kind) in view.properties.items()
    ]
    rows.append({"name": "body", "value": f"{view.body_bytes} bytes", "type": str(view.body_kind)})
    AirflowConsole().print_as(data=rows, output=output, mapper=lambda row: cells(row, output))
    for line in view.body.splitlines():
        sys.stdout.write(escaped(line) + "\n")


def _change(args: argparse.Namespace, done: str, operation: str) -> None:
    check_choice(
        args,
        chosen=bool(args.message) or selector_text(args.selector) is not None,
        ids=args.message or (),
        ways="--message ID, --selector",
    )
    source = queue_named(args.queue)
    selection = MessageSelection(ids=tuple(args.message or ()), selector=args.selector)
    with administration_of(args.conn_id) as administration:
        if args.dry_run:
            count = sum(
                1 for each in all_messages(administration, source, args.selector) if _is_chosen(each, args)
            )
            sys.stdout.write(f"{count} messages would be {done}\n")
            return
        match operation:
            case "move":
                count = administration.move(source, queue_named(args.target), selection)
            case "copy":
                count = administration.copy(source, queue_named(args.target), selection)
            case _:
                count = administration.delete(source, selection)
    sys.stdout.write(f"{count} messages {done}\n")


def _is_chosen(message: JmsMessage, args: argparse.Namespace) -> bool:
    return not args.message or message.message_id in args.message


def all_messages(
    administration: QueueAdministration, queue: str, selector: str | None
) -> Iterator[JmsMessage]:
    """Yield the messages of a queue, page by page."""
    skip = 0
    while page := administration.browse(queue, selector=selector, skip=skip, limit=_PAGE):
        yield from page
        if len(page) < _PAGE:
            return
        skip += len(page)


def found_message(administration: QueueAdministration, queue: str, message_id: str) -> JmsMessage:
    """Return the message with an id.

    Raises:
        ConfigurationError: No message on the queue has it.
    """
    for each in all_messages(administration, queue, None):
        if each.message_id == message_id:
            return each
    raise ConfigurationError(
        f"no message {message_id!r} is on queue {queue!r}; see airflow jms queues browse"
    )


def _figures(queue: QueueStatistics) -> dict[str, str]:
    figures = {
        "messages": queue.messages,
        "in_flight": queue.in_flight,
        "consumers": queue.consumers,
        "enqueued": queue.enqueued,
        "dequeued": queue.dequeued,
    }
    oldest = "" if queue.oldest is None else queue.oldest.isoformat(timespec="seconds")
    shown = {name: "" if value is None else str(value) for name, value in figures.items()}
    return {"queue": queue.name, **shown, "oldest": oldest}


def _row(message: JmsMessage) -> dict[str, str]:
    return {
        "message": message.message_id or "",
        "sent": moment(message.timestamp),
        "redelivered": str(message.redelivered).lower(),
        "properties": str(len(message.properties)),
        "body": body_preview(message),
    }
