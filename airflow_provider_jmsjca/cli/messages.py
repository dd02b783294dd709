"""The commands `airflow jms send` and `airflow jms check`."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from airflow_provider_jmsjca.cli.commands import one_line_errors, print_rows
from airflow_provider_jmsjca.cli.configuration import activation_layer
from airflow_provider_jmsjca.cli.queues import broker_connection
from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage, PropertyValue
from airflow_provider_jmsjca.core.message.message import MessageHeaders
from airflow_provider_jmsjca.engine.activations.activation import activation_of
from airflow_provider_jmsjca.engine.delivering.settings import ListenerContext
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.escaping import escaped
from airflow_provider_jmsjca.hooks.destinations import cached_find_destination, with_lookups
from airflow_provider_jmsjca.hooks.jms import JmsHook, resolve_levels
from airflow_provider_jmsjca.hooks.store import store_for
from airflow_provider_jmsjca.operating.checking import check_connection
from airflow_provider_jmsjca.operating.queues import queue_name
from airflow_provider_jmsjca.transports.base import Outgoing

_STDIN = "-"
_OF_ONE_VALUE = (
    *("--property", "--correlation-id", "--reply-to", "--type"),
    *("--priority", "--expires", "--non-persistent"),
)
"""Options that set headers and properties of a message that is given as a value."""


@one_line_errors
def send_command(args: argparse.Namespace) -> None:
    """Send one message from an argument, a file or standard input, or one message for each line.

    The broker confirms every message before the command ends.
    """
    _refuse_contradictions(args)
    destination = Destination.parse(args.destination)
    messages = list(_messages(args))
    with broker_connection(args.conn_id) as connection:
        count = connection.send(Outgoing(destination=destination, message=each) for each in messages)
    sys.stdout.write(f"{count} message{'' if count == 1 else 's'} sent to {escaped(destination)}\n")


@one_line_errors
def check_command(args: argparse.Namespace) -> None:
    """Check a connection step by step; exit with code 1 if a step fails.

    With `--spec`, also check whether an activation spec works on this broker.
    """
    settings = JmsHook(args.conn_id).settings()
    queue = None if args.queue is None else Destination.queue(queue_name(args.queue))
    with contextlib.ExitStack() as opened:
        listener = None
        if args.spec is not None:
            activation = activation_layer(Path(args.spec), args.name)
            spec = with_lookups(
                ActivationSpec.from_resolved(resolve_levels(JmsHook(args.conn_id), activation))
            )
            store = opened.enter_context(store_for(spec))
            context = ListenerContext(find=cached_find_destination(), store=store, jms_conn_id=args.conn_id)
            listener = activation_of(spec, settings, lambda _: None, context).settings
        checks = list(check_connection(settings, queue, listener=listener))
    print_rows(
        [
            {"check": each.name, "result": "ok" if each.passed else "failed", "detail": each.detail}
            for each in checks
        ],
        args.output,
    )
    if not all(each.passed for each in checks):
        raise SystemExit(1)


def _refuse_contradictions(args: argparse.Namespace) -> None:
    """Raise an error if one of the given options would be ignored because of another one.

    Raises:
        ConfigurationError: Names each contradiction.
    """
    faults = [
        f"{' and '.join(given)} are both given; expected one of them"
        for names in (("--body", "--file"), ("--bytes", "--lines", "--messages"))
        if len(given := _given(args, names)) > 1
    ]
    if args.messages and (given := _given(args, _OF_ONE_VALUE)):
        faults.append(f"{', '.join(given)}: not allowed with --messages; set it in the JSON of each message")
    if faults:
        raise ConfigurationError(faults)


def _given(args: argparse.Namespace, names: Sequence[str]) -> list[str]:
    values = {name: getattr(args, name.removeprefix("--").replace("-", "_")) for name in names}
    return [name for name, value in values.items() if value is not None and value is not False]


def _messages(args: argparse.Namespace) -> Iterator[JmsMessage]:
    if args.body is not None:
        given = args.body.encode(errors="surrogateescape")  # the bytes as they were typed
    else:
        given = _content(_STDIN if args.file is None else args.file)
    if args.bytes:
        yield JmsMessage.bytes(given, _properties(args), **_headers(args))
        return
    try:
        text = given.decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"the body is not valid UTF-8: invalid byte at offset {error.start}; give "
            "--bytes to send it as it is"
        ) from error
    if args.messages:
        for number, line in enumerate(_lines(text), 1):
            if line.strip():
                yield _from_json(line, number)
    elif args.lines:
        for line in _lines(text):
            yield JmsMessage.text(line, _properties(args), **_headers(args))
    else:
        yield JmsMessage.text(text, _properties(args), **_headers(args))


def _lines(text: str) -> Iterator[str]:
    r"""Yield the lines of a file, which end with `\n`, `\r\n` or `\r`.

    `str.splitlines` would also split at characters such as U+2028, which JSON and texts may contain.
    """
    return (line.removesuffix("\n") for line in io.StringIO(text, newline=None))


def _from_json(line: str, number: int) -> JmsMessage:
    try:
        return JmsMessage.from_json(json.loads(line))
    except ConfigurationError as error:
        raise ConfigurationError(f"line {number}: {fault}" for fault in error.faults) from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"line {number}: not valid JSON: {error}") from error


def _content(file: str) -> bytes:
    if file == _STDIN:
        return sys.stdin.buffer.read()
    if not file:  # as from an empty variable
        raise ConfigurationError("--file is empty; expected the name of a file, or - for standard input")
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error.strerror or error}") from error


def _properties(args: argparse.Namespace) -> dict[str, PropertyValue]:
    found: dict[str, PropertyValue] = {}
    for each in args.property or ():
        name, separator, value = each.partition("=")
        if not separator:
            raise ConfigurationError(f"--property {each!r}: expected NAME=VALUE")
        found[name] = value
    return found


def _headers(args: argparse.Namespace) -> MessageHeaders:
    headers: MessageHeaders = {"persistent": not args.non_persistent}
    if args.correlation_id is not None:
        headers["correlation_id"] = args.correlation_id
    if args.type is not None:
        headers["type"] = args.type
    if args.reply_to is not None:
        headers["reply_to"] = Destination.parse(args.reply_to)
    if args.priority is not None:
        headers["priority"] = args.priority
    if args.expires is not None:
        headers["expiration"] = int((time.time() + args.expires) * 1000)
    return headers
