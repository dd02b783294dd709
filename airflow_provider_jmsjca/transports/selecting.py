"""Moves, copies and deletes chosen messages through a consumer with a selector.

For brokers with selectors, browsing and atomic units of work. A message keeps its body, headers and
properties; the broker gives it a new id on the target queue.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from airflow_provider_jmsjca.core.copies.dead_letter import redirect_of
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import (
    CapabilityError,
    ConfigurationError,
    ConnectionLostError,
    PermanentBrokerError,
    PoisonMessageError,
)
from airflow_provider_jmsjca.transports.administration import MessageSelection
from airflow_provider_jmsjca.transports.base import Connection, Outgoing, Subscription
from airflow_provider_jmsjca.transports.receiving import BufferedConsumer, ReceivedUnit

IDS_PER_SELECTOR: Final = 50
"""Maximum number of ids in one selector: a broker may limit its length."""
_MESSAGES_PER_COMMIT: Final = 100
_SILENCE_SECONDS: Final = 1.0
"""A consumer that received nothing for this long has received every matching message."""

Hides: TypeAlias = Callable[[str | None, int], bool]
"""Called with a selector and the number of messages that a browse returned.

Returns whether the broker hid further matching messages from that browse.
"""


def refuse_same_queue(source: str, target: str) -> None:
    """Raise `ConfigurationError` if messages would be moved or copied to the queue they are on."""
    if source == target:
        raise ConfigurationError(f"queue {source!r} is both source and target; expected two different queues")


def refuse_patterns(connection: Connection, *queues: str) -> None:
    """Raise `ConfigurationError` if the broker reads a queue name as a pattern or as a name with options."""
    syntax = connection.broker.names
    for each in queues:
        if (meaning := syntax.meaning(Destination.queue(each))) is not None:
            raise ConfigurationError(f"queue {each!r}: {meaning}; expected the name of one queue")


def _hides_nothing(_: str | None, __: int) -> bool:
    return False


def move_selected(
    connection: Connection,
    source: str,
    target: str,
    selection: MessageSelection,
    *,
    hides: Hides = _hides_nothing,
) -> int:
    """Move messages in units of work of 100; return their number.

    If the broker hid messages from a browse, as `hides` reports, browses again and moves these, too. A
    message with a body that this transport cannot read stays on its queue.

    Raises:
        ConfigurationError: Source and target are the same queue, or a name means more than one queue.
        PermanentBrokerError: Some messages cannot be read and stay; all others were moved.

    Guarantee: a crash leaves each message on exactly one of the two queues.
    """
    refuse_same_queue(source, target)
    refuse_patterns(connection, source, target)
    return _consume(connection, source, selection, Destination.queue(target), hides)


def delete_selected(
    connection: Connection, source: str, selection: MessageSelection, *, hides: Hides = _hides_nothing
) -> int:
    """Delete messages in units of work of 100; return their number.

    If the broker hid messages from a browse, as `hides` reports, browses again and deletes these, too.

    Raises:
        ConfigurationError: The name means more than one queue.
    """
    refuse_patterns(connection, source)
    return _consume(connection, source, selection, None, hides)


def copy_selected(
    connection: Connection,
    source: str,
    target: str,
    selection: MessageSelection,
    *,
    hides: Hides = _hides_nothing,
) -> int:
    """Copy messages and return their number. A crash leaves the copies made so far.

    Raises:
        ConfigurationError: As for `move_selected`.
        CapabilityError: The broker hid messages from the browse, as `hides` reports; nothing was copied.
    """
    refuse_same_queue(source, target)
    refuse_patterns(connection, source, target)
    destination, queue = Destination.queue(target), Destination.queue(source)
    if selection.ids:
        found = list(browse_ids(connection, source, selection))
    else:
        found = list(connection.browse(queue, selection.selector))
        if hides(selection.selector, len(found)):
            raise CapabilityError(
                f"nothing was copied: the broker shows the first {len(found)} of these messages of "
                f"{source!r}, and has more; choose fewer with a selector"
            )
    return connection.send(Outgoing(destination=destination, message=redirect_of(each)) for each in found)


def browse_ids(connection: Connection, source: str, selection: MessageSelection) -> Iterator[JmsMessage]:
    """Yield the messages with the ids of a selection, and leave them on the queue.

    A browse may show only some of the matching messages, so the function browses again until a browse finds
    no further message.
    """
    queue = Destination.queue(source)
    missing = dict.fromkeys(selection.ids)
    was = -1
    while missing and len(missing) != was:
        was = len(missing)
        for selector in _selectors(replace(selection, ids=tuple(missing))):
            for message in connection.browse(queue, selector):
                if message.message_id in missing:
                    del missing[message.message_id]
                    yield message


def ids_selector(ids: Sequence[str], operator: str = "IN") -> str:
    """Return a selector for messages with any of the given ids, or with `NOT IN` for all others."""
    listed = ", ".join("'" + each.replace("'", "''") + "'" for each in ids)
    return f"JMSMessageID {operator} ({listed})"


def both(one: str | None, other: str) -> str:
    """Return a selector for messages that match both selectors; an empty or missing `one` matches all."""
    return f"{other} AND ({one})" if one else other


def _selectors(selection: MessageSelection) -> Iterator[str | None]:
    """Yield selectors for the messages of a selection, each with at most 50 ids.

    Each includes the selection's own selector, if it has one. Without ids, yield only that selector.
    """
    if not selection.ids:
        yield selection.selector
        return
    for begin in range(0, len(selection.ids), IDS_PER_SELECTOR):
        yield both(selection.selector, ids_selector(selection.ids[begin : begin + IDS_PER_SELECTOR]))


def _consume(
    connection: Connection,
    source: str,
    selection: MessageSelection,
    target: Destination | None,
    hides: Hides,
) -> int:
    """Consume the messages now on the queue: send each to `target`, or delete it if `target` is `None`.

    If the broker hid messages from a browse, browses again and consumes these, too.
    """
    destination = Destination.queue(source)
    done = unreadable = 0
    for selector in _selectors(selection):
        again = True
        while again:
            expected = sum(1 for _ in connection.browse(destination, selector))
            hidden = expected > 0 and hides(selector, expected)
            before = done
            try:
                with contextlib.closing(_units(connection, destination, selector, expected)) as units:
                    for unit in units:
                        settled = _settle(unit, target)
                        done += settled
                        unreadable += len(unit.messages) - settled
            except ConnectionLostError as lost:
                raise ConnectionLostError(
                    f"the connection was lost after {done} messages; the rest is unchanged"
                ) from lost
            # No further round if some messages can't be read: they stay, and each browse would return them.
            again = hidden and done > before and not unreadable
    if unreadable:
        raise PermanentBrokerError(
            f"{unreadable} messages on {destination} cannot be read over this transport and stay there; "
            f"{done} messages were moved"
        )
    return done


def _units(
    connection: Connection, source: Destination, selector: str | None, expected: int
) -> Generator[ReceivedUnit]:
    """Yield units of work with the first `expected` matching messages.

    Messages that arrive after the start stay on the queue, because the caller has not seen them.
    """
    if not expected:
        return
    consumer = BufferedConsumer(
        connection, Subscription(destination=source, selector=selector, prefetch=_MESSAGES_PER_COMMIT)
    )
    try:
        while expected:
            at_most = min(expected, _MESSAGES_PER_COMMIT)
            unit = consumer.next_unit(at_most, within=_SILENCE_SECONDS, each_within=_SILENCE_SECONDS)
            if unit is None:
                return
            expected -= len(unit.messages)
            yield unit
    finally:
        consumer.close()


def _settle(unit: ReceivedUnit, target: Destination | None) -> int:
    """Send each message to `target`, or delete it if `target` is `None`; return the number settled.

    With a target, a message that can't be decoded stays unsettled.
    """
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
