"""Puts messages of a listener or a stream in limbo, from where they are sent on later."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from airflow_provider_jmsjca.core.copies.load_balancing import with_origin
from airflow_provider_jmsjca.core.copies.parking import parked_copy
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.message.identity import lasting_digest
from airflow_provider_jmsjca.errors import TransientStoreError
from airflow_provider_jmsjca.store.base import Limbo, LimboEntry, LimboSelection

_log = logging.getLogger("airflow_provider_jmsjca.listener")


def parked(message: JmsMessage, origin: Destination, seen: int) -> JmsMessage:
    """Return the copy of a message that comes back to where the message was received.

    Args:
        message: As its listener has it.
        origin: Where it was received, as the activation names it.
        seen: How often it was seen with the redelivered flag.
    """
    copy = parked_copy(message, seen)
    if message.destination is not None and message.destination != origin:
        copy = with_origin(copy, message, origin)
    return copy


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """What one activation has in limbo.

    Guarantee: a message is put here before it is acknowledged. A crash in between brings it again: then it
    takes its own place here, and none is there twice.

    Attributes:
        limbo: Where.
        activation: Its name in the store.
        jms_conn_id: The Airflow connection over which its messages are sent on.
        clock: The time.

    Source: P12-P15.
    """

    limbo: Limbo
    activation: str
    jms_conn_id: str
    clock: Callable[[], datetime] = field(default=lambda: datetime.now(UTC), repr=False)

    def park(
        self, message: JmsMessage, origin: Destination, *, seen: int, pause: timedelta, again: bool
    ) -> list[int]:
        """Put a message here that comes back to its destination after a pause; return its number.

        Args:
            message: As its listener has it.
            origin: Where it was received, as the activation names it.
            seen: How often it was seen; it comes back with this count.
            pause: How long it stays.
            again: It was delivered before, and may be here already.

        Raises:
            TransientStoreError: The store can't be used; it isn't here.
        """
        now = self.clock()
        entry = LimboEntry(
            jms_conn_id=self.jms_conn_id,
            destination=str(origin),
            message=parked(message, origin, seen),
            due_at=now + pause,
            activation=self.activation,
            key=lasting_digest(message, origin) or "",
            again=again,
        )
        return self.limbo.put([entry], now)

    def withdraw(self, numbers: list[int]) -> None:
        """Take messages away that could not be acknowledged, and so are still in hand."""
        try:
            self.limbo.purge(LimboSelection(numbers=frozenset(numbers)), self.clock())
        except TransientStoreError as error:
            _log.warning("Message %s in limbo may be delivered twice: %s", numbers, error)
