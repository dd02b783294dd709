"""Passes received messages to the machine, in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from airflow_provider_jmsjca.core.delivery.events import Event, MessageArrived
from airflow_provider_jmsjca.core.delivery.machine import DeliveryMachine
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message.message import Identity
from airflow_provider_jmsjca.engine.delivering.receiver import (
    DeliveryMemory,
    ReceiveBuffer,
    Receiver,
    Verdict,
)
from airflow_provider_jmsjca.engine.delivering.settings import ListenerSettings
from airflow_provider_jmsjca.engine.delivering.statistics import Counters
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.transports.base import Received

_log = safe_logger(__name__)
# Messages in a row before other tasks of the loop get a turn.
_MESSAGES_PER_TURN = 64


class LoopReceiver(Receiver):
    """Receiver for an event loop, which takes no message that already has an outcome (`DeliveryMemory`).

    The user may receive many deliveries at once, and be slow. So unsettled messages are limited to
    `MOST_BYTES`: no further message is taken above it.

    Args:
        settings: How to consume.
        machine: Reports the number of in-flight messages.
        counters: Counts repeated messages.
        buffer: The first, closed buffer.
        once: Remembers messages with an outcome.
        feed: Passes events to the machine.
        flush_log: Called after each check for messages; settles repeated ones.
    """

    def __init__(
        self,
        settings: ListenerSettings,
        machine: DeliveryMachine,
        counters: Counters,
        buffer: ReceiveBuffer,
        *,
        once: DeliveryMemory,
        feed: Callable[[Event], None],
        flush_log: Callable[[], None],
    ) -> None:
        super().__init__(settings, machine, counters, self, buffer, takes_all=bool(settings.delivery.further))
        self._once = once
        self._feed = feed
        self._speak = flush_log
        self._loop = asyncio.get_running_loop()
        self._looking = False

    def restart_with(self, buffer: ReceiveBuffer, returned: frozenset[int] = frozenset()) -> None:
        """Switch to the receive buffer of new consumers; unsettled messages return to the broker.

        Args:
            buffer: The buffer of the new consumers.
            returned: Numbers of unsettled messages that have an outcome.
        """
        old = self.buffer
        held = old.held.items()
        unsettled = {self.key(received) for number, (received, _) in held if number not in returned}
        unacknowledged = {self.key(received) for number, (received, _) in held if number in returned}
        # A broker that was killed may have lost the flag. Its consumers may not be closed yet, and append.
        for received in () if self.settled.stable else tuple(old.arrivals):
            message = received.readable
            if message is not None and not message.redelivered:
                unsettled.add(self.key(received))
        super().restart_with(buffer)
        self._once.begin(buffer, unsettled, self._recheck, unacknowledged)

    def key(self, received: Received) -> Identity | None:
        """Return the identity of a message."""
        return self.settled.identity(received)

    def leave(self, number: int) -> tuple[str | None, Destination]:
        """Release a message that stays; return its id and its destination."""
        origin = self.buffer.origin(number)
        received, _ = self.buffer.release(number)
        self._once.leave(self.key(received))
        message = received.readable
        return None if message is None else message.message_id, origin

    def arrived(self, buffer: ReceiveBuffer) -> None:
        """Schedule a check of the arrived messages."""
        if buffer is self.buffer and not self._looking:
            self._looking = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._looking = False
        buffer = self.buffer
        for _ in range(_MESSAGES_PER_TURN):
            if not self.may_take(buffer):
                break
            if (event := self._next(buffer)) is not None:
                self._feed(event)
        else:
            self.arrived(buffer)
        self._speak()

    def _next(self, buffer: ReceiveBuffer) -> MessageArrived | None:
        received = buffer.arrivals[0]
        try:
            verdict = self._verdict(received)
            if verdict is Verdict.TAKE:
                return self.take()
            if verdict is Verdict.SETTLE:
                self._counters.repeat()
                self.settled.keep(received)
        except Exception:  # noqa: BLE001 - an edge: those behind it must not wait for ever
            _log.exception("%s: a message can't be read: it stays until the connection ends", self._name)
        if buffer.arrivals and buffer.arrivals[0] is received:
            buffer.arrivals.popleft()
        return None

    def _verdict(self, received: Received) -> Verdict:
        if received.is_stale:
            return Verdict.TAKE  # it is found to be stale then
        return self._once.arrived(received, received.readable, self.key(received), stable=self.settled.stable)

    def _recheck(self, found: list[Received]) -> None:
        self.buffer.arrivals.extendleft(reversed(found))
        self.arrived(self.buffer)
