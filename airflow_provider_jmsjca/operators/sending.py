"""Makes messages from the arguments of operators and notifiers, and sends them."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

from airflow_provider_jmsjca.core.copies.delivery_date import chosen_delay, time_left
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage, PropertyValue
from airflow_provider_jmsjca.core.message.checks import HIGHEST_PRIORITY
from airflow_provider_jmsjca.core.quantities import number_of, seconds_faults
from airflow_provider_jmsjca.engine.session.connection import JmsConnection
from airflow_provider_jmsjca.engine.session.tracing import with_current_trace
from airflow_provider_jmsjca.errors import CapabilityError, ConfigurationError
from airflow_provider_jmsjca.hooks.destinations import find_destination
from airflow_provider_jmsjca.hooks.store import installed_store
from airflow_provider_jmsjca.store.base import LimboEntry
from airflow_provider_jmsjca.transports.base import Outgoing

SENDING_FIELDS: Final = (
    "destination",
    "messages",
    "jms_conn_id",
    "properties",
    "message_type",
    "correlation_id",
    "reply_to",
    "priority",
    "time_to_live",
    "delay",
)
"""Templated fields of an operator or notifier that sends."""


class SendArguments(Protocol):
    """An operator or notifier that sends, with its arguments as attributes; see `JmsPublishOperator`."""

    destination: str
    properties: Mapping[str, PropertyValue] | None
    message_type: str | None
    correlation_id: str | None
    reply_to: str | None
    priority: int | str | None
    time_to_live: float | str | None
    delay: float | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """The arguments of a send. A number may be text, because it may come from a rendered template.

    The attributes are the arguments of `JmsPublishOperator`, and `find`, which returns the destination for a
    name in `reply_to`.
    """

    destination: Destination
    messages: Any
    properties: Mapping[str, PropertyValue] | None = None
    message_type: str | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    priority: int | str | None = None
    time_to_live: float | str | None = None
    delay: float | str | None = None
    deliver_at: datetime | str | None = None
    find: Callable[[str], Destination] = find_destination

    @classmethod
    def of(
        cls,
        given: SendArguments,
        find: Callable[[str], Destination],
        *,
        messages: Any,
        deliver_at: datetime | str | None = None,
    ) -> Sending:
        """Return the send of an operator or notifier.

        Args:
            given: The operator or notifier, with rendered templates.
            find: Returns the destination that a text names, such as `queue://orders`.
            messages: The messages to send.
            deliver_at: Delivery time, instead of the delay.

        Raises:
            ConfigurationError: The destination can't be found.
        """
        return cls(
            destination=find(given.destination),
            messages=messages,
            properties=given.properties,
            message_type=given.message_type,
            correlation_id=given.correlation_id,
            reply_to=given.reply_to,
            priority=given.priority,
            time_to_live=given.time_to_live,
            delay=given.delay,
            deliver_at=deliver_at,
            find=find,
        )

    def outgoing(self, deduplication: str | None = None) -> list[Outgoing]:
        """Return the messages, each with its headers and its delay.

        Args:
            deduplication: Prefix of the messages' deduplication ids; `None` gives them no such id.

        Raises:
            ConfigurationError: Names every invalid argument, or every invalid message.
        """
        changes, delay = self._arguments()
        return [
            Outgoing(
                destination=self.destination,
                message=replace(message, **changes) if changes else message,
                delay=delay,
                deduplication_id=None if deduplication is None else f"{deduplication}/{number}",
            )
            for number, message in enumerate(self._read())
        ]

    def _arguments(self) -> tuple[dict[str, Any], timedelta | None]:
        """Return the headers to set on each message, and the delay."""
        faults: list[str] = []
        priority, lives = map(number_of, (self.priority, self.time_to_live))
        delay: timedelta | None = None
        try:
            delay = chosen_delay(self.delay, self.deliver_at, datetime.now(UTC))
        except ConfigurationError as error:
            faults.extend(error.faults)
        if lives is not None:
            faults += seconds_faults("time_to_live", lives, otherwise="None for messages that never expire")
        if priority is not None and not (type(priority) is int and 0 <= priority <= HIGHEST_PRIORITY):
            faults.append(f"priority is {priority!r}; expected a whole number from 0 to {HIGHEST_PRIORITY}")
        properties: object = self.properties
        if properties is not None and not isinstance(properties, Mapping):
            faults.append(
                f"properties is a {type(properties).__name__}; expected a mapping of names to values, "
                "such as {'region': 'eu'}"
            )
        correlation_id: str | None = None
        try:
            correlation_id = argument_text("correlation_id", self.correlation_id)
        except ConfigurationError as error:
            faults.extend(error.faults)
        reply_to: Destination | None = None
        try:
            reply_to = self.find(self.reply_to) if self.reply_to else None
        except ConfigurationError as error:
            faults.extend(f"reply_to is {self.reply_to!r}: {fault}" for fault in error.faults)
        if faults:
            raise ConfigurationError(faults)
        changes: dict[str, Any] = {
            "correlation_id": correlation_id,
            "reply_to": reply_to,
            "priority": priority,
            "expiration": None if lives is None else int((time.time() + lives) * 1000),
        }
        given = {name: value for name, value in changes.items() if value is not None}
        return given, delay

    def _read(self) -> Iterator[JmsMessage]:
        given = self.messages
        many = isinstance(given, Sequence) and not isinstance(given, str | bytes)
        faults: list[str] = []
        for place, item in enumerate(given if many else [given]):
            try:
                yield self._message(item)
            except ConfigurationError as error:
                where = f"messages[{place}]" if many else "messages"
                faults.extend(f"{where}: {fault}" for fault in error.faults)
        if faults:
            raise ConfigurationError(faults)

    def _message(self, item: object) -> JmsMessage:
        match item:
            case JmsMessage():
                return item
            case Mapping() if "body_kind" in item:
                return JmsMessage.from_json(item)
            case bytes():
                return JmsMessage.bytes(item, self.properties or {}, type=self.message_type)
            case str():
                text = item
            case None:
                raise ConfigurationError(
                    "None is not a message; does the upstream task return its value? "
                    "(for JSON's null send the text 'null')"
                )
            case _:
                text = json_text(item)
        return JmsMessage.text(text, self.properties or {}, type=self.message_type)


def argument_text(name: str, given: object) -> str | None:
    """Return a text argument; `None` if it is empty. An integer, as a template may render it, is converted.

    Raises:
        ConfigurationError: The argument is neither text nor an integer.
    """
    if type(given) is int:
        return str(given)
    if given is None or isinstance(given, str):
        return given or None
    raise ConfigurationError(f"{name} is {given!r}, of type {type(given).__name__}; expected text")


def with_delivery_dates(outgoing: Sequence[Outgoing]) -> list[Outgoing]:
    """Return messages with the delay of their property `DELIVERY_DATE`, unless they have another delay.

    Raises:
        ConfigurationError: Names every message with an unreadable property.

    Source: P18.
    """
    now, faults, found = datetime.now(UTC), [], []
    for place, item in enumerate(outgoing):
        try:
            said = item.delay is not None
            found.append(item if said else replace(item, delay=time_left(item.message, now)))
        except ConfigurationError as error:
            faults.append(f"messages[{place}]: {error}")
    if faults:
        raise ConfigurationError(faults)
    return found


def send(
    connection: JmsConnection,
    outgoing: Sequence[Outgoing],
    *,
    transacted: bool = False,
    limbo: str | None = None,
) -> list[int]:
    """Send messages, and wait until the broker has confirmed them.

    Guarantee: the same as that of `JmsPublishOperator`.

    Args:
        connection: The connection.
        outgoing: The messages.
        transacted: Send all messages or none.
        limbo: Name of the connection. If a message has a delay and the broker can't delay, all messages are
            put in limbo under this name. `None` raises `CapabilityError` in this case.

    Returns:
        Numbers of the messages in limbo; an empty list if they were sent.

    Raises:
        CapabilityError: The broker lacks a capability; nothing was sent.
        PermanentBrokerError: The broker refused a message; it may have stored other messages.
        InDoubtError: The connection was lost; the broker may have stored some of the messages.
    """
    outgoing = with_current_trace(
        outgoing
    )  # before messages are put in limbo, which must contain the trace, too
    shelved = limbo is not None and not connection.capabilities.delayed_delivery
    _check(connection, outgoing, transacted=transacted, shelved=shelved)
    if limbo is not None and shelved and any(item.delay for item in outgoing):
        with contextlib.closing(installed_store()) as store:
            now = store.limbo.now()
            return store.limbo.put([_entry(limbo, item, now) for item in outgoing], now)
    with connection.session(transacted=transacted) as session:
        session.send_all(outgoing)
        if session.transacted:
            session.commit()
    return []


def _entry(jms_conn_id: str, outgoing: Outgoing, now: datetime) -> LimboEntry:
    return LimboEntry(
        jms_conn_id=jms_conn_id,
        destination=str(outgoing.destination),
        message=outgoing.message,
        due_at=now + (outgoing.delay or timedelta()),
    )


def _check(
    connection: JmsConnection, outgoing: Sequence[Outgoing], *, transacted: bool, shelved: bool
) -> None:
    capabilities, broker = connection.capabilities, connection.broker
    if not shelved and any(item.delay for item in outgoing):
        capabilities.require(broker, "delayed_delivery", purpose="delay")
    if any(item.deduplication_id is not None for item in outgoing):
        capabilities.require(broker, "deduplicating_send", purpose="deduplicate=True")
    if transacted and len(outgoing) > 1:
        capabilities.require(broker, "atomic_commit", purpose="transacted=True")
    kinds = {item.message.body_kind for item in outgoing} - capabilities.body_kinds
    if kinds:
        raise CapabilityError(
            f"messages with a {kind} body can't be sent to {broker}: the body would be lost"
            for kind in sorted(kinds)
        )


def json_text(value: object) -> str:
    """Return a value as JSON text.

    Raises:
        ConfigurationError: The value can't be represented in JSON.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"a {type(value).__name__} can't be sent as a message ({error}); expected text, bytes, a "
            "JmsMessage, its JSON form, or a value that JSON can represent"
        ) from None
