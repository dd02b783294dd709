"""Passes received messages to the delivery machine, in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from airflow_provider_jmsjca.core.delivery.events import Event
from airflow_provider_jmsjca.core.delivery.machine import DeliveryMachine
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message.delivery_memory import DeliveryMemory
from airflow_provider_jmsjca.engine.delivering.receiver import ReceiveBuffer, Receiver
from airflow_provider_jmsjca.engine.delivering.settings import ListenerSettings
from airflow_provider_jmsjca.engine.delivering.statistics import Counters
from airflow_provider_jmsjca.transports.base import Received

# Messages in a row before other tasks of the loop get a turn.
_MESSAGES_PER_TURN = 64


class LoopReceiver(Receiver):
    """Receiver for an event loop, which takes no message that already has an outcome (`DeliveryMemory`).

    A slow user may receive many deliveries at once, so their memory is limited: while unsettled messages take
    `MOST_BYTES` or more, no further message is taken.

    Args:
        settings: Settings of the stream.
        machine: Reports the number of in-flight messages.
        counters: Counts repeated messages.
        buffer: A closed receive buffer, used until the first consumers are opened.
        memory: Remembers messages with an outcome.
        feed: Passes events to the machine.
        flush_log: Called after each check for messages; settles repeated messages.
    """

    def __init__(
        self,
        settings: ListenerSettings,
        machine: DeliveryMachine,
        counters: Counters,
        buffer: ReceiveBuffer,
        *,
        memory: DeliveryMemory[Received],
        feed: Callable[[Event], None],
        flush_log: Callable[[], None],
    ) -> None:
        super().__init__(
            settings,
            machine,
            counters,
            self.arrived,
            buffer,
            takes_all=bool(settings.delivery.further),
            memory=memory,
        )
        self._feed = feed
        self._speak = flush_log
        self._loop = asyncio.get_running_loop()
        self._looking = False

    def leave(self, number: int) -> tuple[str | None, Destination]:
        """Release a message that stays at the broker; return its id and its destination."""
        origin = self.buffer.origin(number)
        received, _ = self.buffer.release(number)
        self.memory.mark_left_unsettled(self.identity(received))
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
            if (event := self.take()) is not None:
                self._feed(event)
        else:
            self.arrived(buffer)
        self._speak()

    def _lane(self, received: Received) -> object:
        """Return the message group of a message; `None` without a group.

        While the message waits for an earlier delivery, later messages of its group wait, too.
        """
        message = received.readable
        group = None if message is None else message.properties.get("JMSXGroupID")
        return None if group is None or group == "" else str(group)
