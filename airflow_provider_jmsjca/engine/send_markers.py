"""Send markers: they show which messages of limbo a broker has received.

A send marker is a message on a queue of the broker. It contains the numbers of messages in limbo, and is sent
in the same transaction as those messages. So the send marker exists exactly if the broker has the messages.
If a sender is killed before it has recorded its sends in the store, another sender reads its send markers.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.session.connection import JmsConnection
from airflow_provider_jmsjca.errors import PoisonMessageError, TransientBrokerError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.transports.base import Outgoing

SEND_MARKERS: Final = Destination.queue("jmsjca.limbo.send_markers")
"""The queue of send markers; limbo senders empty it."""

KEPT_FOR: Final = timedelta(days=7)
"""Retention period of send markers that nobody reads, because their sender recorded all sends."""

_OWNER: Final = "owner"
_END: Final = "end"
_SECONDS: Final = 30.0
_PREFETCH: Final = 200
_log = safe_logger(__name__)


def supports_markers(connection: JmsConnection) -> bool:
    """Return whether the broker supports send markers: transactions and selectors.

    A broker that drops duplicates needs none, so this returns `False` for it.
    """
    able = connection.capabilities
    return able.atomic_commit and able.selector and not able.deduplicating_send


def send_marker(owner: str, numbers: Sequence[int]) -> Outgoing:
    """Return the send marker for messages; send it in their transaction.

    Args:
        owner: Owner of the messages' leases: unguessable letters and digits.
        numbers: Numbers of the messages in limbo.
    """
    return Outgoing(
        destination=SEND_MARKERS, message=JmsMessage.text(json.dumps(list(numbers)), {_OWNER: owner})
    )


def apply_markers(connection: JmsConnection, owner: str, note: Callable[[list[int]], object]) -> None:
    """Read an owner's send markers, record their contents, then remove them from the broker.

    The call sends an end message behind the send markers. When this message arrives, all send markers have
    been received.

    Guarantee: after a crash, the send markers are still at the broker or `note` has returned. Both may be
    true: the next call of `apply_markers` then passes the same numbers to `note` again.

    Args:
        connection: A connection to the owner's broker.
        owner: Owner of the leases, as in `send_marker`. The owner must send nothing during this call.
        note: Records the numbers of the messages that the broker has. Each `apply_markers` calls it at most
            once.

    Raises:
        TransientBrokerError: The broker doesn't deliver the send markers in time; they are still there.
        PermanentBrokerError: The broker denies reading or writing the queue.
    """
    numbers: list[int] = []
    end = uuid.uuid4().hex
    with connection.session(transacted=True, prefetch=_PREFETCH) as session:
        session.send(SEND_MARKERS, JmsMessage.text(_END, {_OWNER: owner, _END: end}))
        session.commit()
        while True:
            try:
                message = session.receive(SEND_MARKERS, _SECONDS, f"{_OWNER} = '{owner}'")
            except PoisonMessageError as error:
                _log.warning("Ignoring a message on %s that is not a send marker: %s", SEND_MARKERS, error)
                continue
            if message is None:
                raise TransientBrokerError(f"no answer from {SEND_MARKERS} within {_SECONDS:g} s")
            if message.properties.get(_END) == end:
                break
            if _END not in message.properties:
                numbers += _numbers(message)
        note(numbers)
        session.commit()


def remove_expired(connection: JmsConnection, now: datetime) -> None:
    """Remove expired send markers from the broker.

    Raises:
        PermanentBrokerError: The broker denies reading the queue.
    """
    oldest = round((now - KEPT_FOR).timestamp() * 1000)
    with connection.session(transacted=True, prefetch=_PREFETCH) as session:
        there = True
        while there:
            # Messages that can't be decoded are removed too: any client with write access may send them.
            with contextlib.suppress(PoisonMessageError):
                there = session.receive(SEND_MARKERS, 0, f"JMSTimestamp < {oldest}") is not None
            session.commit()


def _numbers(message: JmsMessage) -> list[int]:
    try:
        found = json.loads(str(message.body))
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, list) and all(type(each) is int for each in found):
        return found
    _log.warning("Ignoring a message on %s that is not a send marker: %.80r", SEND_MARKERS, message.body)
    return []
