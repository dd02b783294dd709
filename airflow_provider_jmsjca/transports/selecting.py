"""Moves, copies and deletes chosen messages through a consumer with a selector.

For brokers with selectors, browsing and atomic units of work. A message keeps its body, headers and
properties; the broker gives it a new id on the target queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from airflow_provider_jmsjca.core.copies.dead_letter import redirect_of
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.errors import (
    ConfigurationError,
    ConnectionLostError,
    PermanentBrokerError,
    PoisonMessageError,
)
from airflow_provider_jmsjca.transports.administration import MessageSelection
from airflow_provider_jmsjca.transports.base import Connection, Outgoing, Subscription
from airflow_provider_jmsjca.transports.receiving import BufferedConsumer, ReceivedUnit

_IDS_PER_SELECTOR: Final = 50
_MESSAGES_PER_COMMIT: Final = 100
_SILENCE_SECONDS: Final = 1.0
"""A consumer that received nothing for this long has received every matching message."""


def refuse_same_queue(source: str, target: str) -> None:
    """Raise `ConfigurationError` if messages would be moved or copied to the queue they are on."""
    if source == target:
        raise ConfigurationError(f"queue {source!r} is source and target; expected two different queues")


def refuse_patterns(connection: Connection, *queues: str) -> None:
    """Raise `ConfigurationError` if the broker reads a name as several queues or with options."""
    syntax = connection.broker.names
    for each in queues:
        if (meaning := syntax.meaning(Destination.queue(each))) is not None:
            raise ConfigurationError(f"queue {each!r}: {meaning}; expected the name of one queue")


def move_selected(connection: Connection, source: str, target: str, selection: MessageSelection) -> int:
    """Move messages in units of work of 100; return their number.

    A message with a body that this transport cannot read stays on its queue.

    Raises:
        ConfigurationError: Source and target are the same queue, or a name means more than one queue.
        PermanentBrokerError: Some messages cannot be read and stay; all others were moved.

    Guarantee: a crash leaves each message on exactly one of the two queues.
    """
    refuse_same_queue(source, target)
    refuse_patterns(connection, source, target)
    return _consume(connection, source, selection, Destination.queue(target))


def delete_selected(connection: Connection, source: str, selection: MessageSelection) -> int:
    """Delete messages in units of work of 100; return their number; `ConfigurationError` as for moving."""
    refuse_patterns(connection, source)
    return _consume(connection, source, selection, None)


def copy_selected(connection: Connection, source: str, target: str, selection: MessageSelection) -> int:
    """Copy messages and return their number. A crash leaves the copies made so far."""
    refuse_same_queue(source, target)
    refuse_patterns(connection, source, target)
    destination = Destination.queue(target)
    return connection.send(
        Outgoing(destination=destination, message=redirect_of(message))
        for selector in _selectors(selection)
        for message in list(connection.browse(Destination.queue(source), selector))
    )


def _selectors(selection: MessageSelection) -> Iterator[str | None]:
    """Yield one selector for each group of ids, combined with the selection's own."""
    if not selection.ids:
        yield selection.selector
        return
    for begin in range(0, len(selection.ids), _IDS_PER_SELECTOR):
        some = selection.ids[begin : begin + _IDS_PER_SELECTOR]
        listed = ", ".join("'" + each.replace("'", "''") + "'" for each in some)
        own = f" AND ({selection.selector})" if selection.selector else ""
        yield f"JMSMessageID IN ({listed}){own}"


def _consume(
    connection: Connection, source: str, selection: MessageSelection, target: Destination | None
) -> int:
    """Consume the messages that are on the queue now; send each to `target`, without one delete it."""
    destination = Destination.queue(source)
    done = unreadable = 0
    for selector in _selectors(selection):
        expected = sum(1 for _ in connection.browse(destination, selector))
        consumer = BufferedConsumer(
            connection,
            Subscription(destination=destination, selector=selector, prefetch=_MESSAGES_PER_COMMIT),
        )
        try:
            # Messages that arrive after the start stay: the caller has not seen them.
            while expected and (unit := _next_unit(consumer, expected, done)) is not None:
                expected -= len(unit.messages)
                settled = _settle(unit, target)
                done += settled
                unreadable += len(unit.messages) - settled
        finally:
            consumer.close()
    if unreadable:
        raise PermanentBrokerError(
            f"{unreadable} messages on {destination} cannot be read over this transport and stay there; "
            f"{done} messages were moved"
        )
    return done


def _next_unit(consumer: BufferedConsumer, most: int, done: int) -> ReceivedUnit | None:
    at_most = min(most, _MESSAGES_PER_COMMIT)
    try:
        return consumer.next_unit(at_most, within=_SILENCE_SECONDS, each_within=_SILENCE_SECONDS)
    except ConnectionLostError as lost:
        raise ConnectionLostError(
            f"the connection was lost after {done} messages; the rest is unchanged"
        ) from lost


def _settle(unit: ReceivedUnit, target: Destination | None) -> int:
    """Send each message to `target`, without one delete it; return the number of the readable messages."""
    settled = 0
    for received in unit.messages:
        if target is not None:
            try:
                message = redirect_of(received.message)
            except PoisonMessageError:
                continue
            unit.work.send(Outgoing(destination=target, message=message))
        unit.work.acknowledge(received)
        settled += 1
    unit.work.commit()
    return settled
