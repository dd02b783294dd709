"""What says at the broker which messages of limbo it has: a sender may be killed before it notes that.

A send marker is a message on a queue of the broker. It names messages and is sent in their transaction, so it
exists exactly if they do.
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

SEND_MARKERS: Final = Destination.queue("jmsjca.limbo.witnesses")
"""Where send markers are; emptied by those who send from limbo."""

KEPT_FOR: Final = timedelta(days=7)
"""How long a send marker is kept that nobody asks for: its sender was killed after it had noted all."""

_OWNER: Final = "owner"
_END: Final = "end"
_SECONDS: Final = 30.0
_PREFETCH: Final = 200
_log = safe_logger(__name__)


def are_supported(connection: JmsConnection) -> bool:
    """Say whether send markers work there: in a transaction, and found by a selector.

    A broker that drops repeated messages needs none.
    """
    able = connection.capabilities
    return able.atomic_commit and able.selector and not able.deduplicating_send


def send_marker(owner: str, numbers: Sequence[int]) -> Outgoing:
    """Return the send marker for messages, to be sent in their transaction.

    Args:
        owner: Who leases them; letters and digits that nobody guesses.
        numbers: What they are called in limbo.
    """
    return Outgoing(
        destination=SEND_MARKERS, message=JmsMessage.text(json.dumps(list(numbers)), {_OWNER: owner})
    )


def take(connection: JmsConnection, owner: str, note: Callable[[list[int]], object]) -> None:
    """Take an owner's send markers from the broker, once it is noted what they say.

    A message that is sent behind them says when all of them have come: no time has to be guessed.

    Guarantee: a crash leaves send markers at the broker, or has what they say noted; that may be noted again.

    Args:
        connection: To the broker that the owner has sent to.
        owner: As of `send_marker`; nothing more is sent for it meanwhile.
        note: Called once, with the numbers of the messages that the broker has.

    Raises:
        TransientBrokerError: The broker doesn't hand them out in time; they are still there.
        PermanentBrokerError: The broker lets nobody write or read there.
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
                _log.warning("A message on %s is no witness: %s", SEND_MARKERS, error)
                continue
            if message is None:
                raise TransientBrokerError(f"{SEND_MARKERS} didn't give its witnesses within {_SECONDS:g} s")
            if message.properties.get(_END) == end:
                break
            if _END not in message.properties:
                numbers += _numbers(message)
        note(numbers)
        session.commit()


def drop_old(connection: JmsConnection, now: datetime) -> None:
    """Take send markers from the broker that nobody asks for any more.

    Raises:
        PermanentBrokerError: As of `take`.
    """
    oldest = round((now - KEPT_FOR).timestamp() * 1000)
    with connection.session(transacted=True, prefetch=_PREFETCH) as session:
        there = True
        while there:
            # Whoever may write there may send anything, with any time: that goes too.
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
    _log.warning("A message on %s is no witness: %.80r", SEND_MARKERS, message.body)
    return []
