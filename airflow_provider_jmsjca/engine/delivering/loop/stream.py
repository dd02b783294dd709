"""Deliveries for an event loop: the delivery machine, driven without a thread or a connection of its own.

| event | outcome for the message |
|---|---|
| `returned()` | settled |
| `raised(error)` | kept in flight; the redelivery handling delays, moves or deletes it |
| `raised(PoisonMessageError(...))` | moved to the dead-letter destination |
| the connection is lost before the end of the attempt | redelivered; the new delivery waits for that end |
| the connection is lost after `returned()` | redelivered, settled and not delivered again |
| the stream is closed or its task cancelled | handed back to the broker, unless `returned()` was called |
| the process is killed | redelivered, to this or another process |
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from types import TracebackType
from typing import Self

from airflow_provider_jmsjca.core.message.delivery_memory import DeliveryMemory
from airflow_provider_jmsjca.core.redelivery import RedeliveryTracker
from airflow_provider_jmsjca.engine.connecting.async_connection import AsyncConnection
from airflow_provider_jmsjca.engine.delivering.loop.driver import (
    LoopDriver,
    refuse_unsupported,
    shared,
)
from airflow_provider_jmsjca.engine.delivering.loop.outstanding import StreamDelivery
from airflow_provider_jmsjca.engine.delivering.loop.signal import Signal
from airflow_provider_jmsjca.engine.delivering.settings import ListenerSettings
from airflow_provider_jmsjca.engine.delivering.statistics import Counts
from airflow_provider_jmsjca.transports.base import Received

__all__ = ["DeliveryStream", "StreamDelivery"]

# Deliveries in a row without waiting before other tasks of the loop get a turn.
_DELIVERIES_PER_TURN = 64

# Seconds to wait for the close, and for settlements during it. A cancelled trigger must end soon.
_CLOSE_SECONDS = 0.4
_COMMIT_SECONDS = 0.25


class DeliveryStream:
    """An endless asynchronous iterator over deliveries, with the redelivery handling of a listener.

    At most `concurrency` deliveries are in flight at once; they may end in any order. Messages of a group
    (JMSXGroupID) are delivered one by one, in order. The stream reconnects by itself.

    Use deliveries in the event loop in which one task iterates the stream. No method blocks the loop.

    A message that the broker redelivers after a lost connection is recognised by its `identity`
    (`DeliveryMemory`). If `returned` was called for it, it is settled and not delivered.

    Guarantee: no message is settled before `StreamDelivery.returned`, unless the redelivery handling moves or
    deletes it. A crash between `returned` and the broker's confirmation delivers the message once more. After
    a cancellation call `aclose`, or use the stream as a context manager.

    Args:
        settings: Settings of the stream; `listener_settings` reads them from a spec.
        connection: Lends connections; used by this stream only.
        memory: Delivery memory of an earlier stream, if there was one.
        tracker: Attempt counts of an earlier stream, if there was one.
        chance: Returns a random number, 0 up to but not including 1.

    Attributes:
        consuming: An event to wait for. It is set while the broker has confirmed the subscriptions, so that
            messages published from then on arrive. It is cleared when the connection is lost and by `aclose`.
            Read-only.

    Raises:
        ConfigurationError: The settings need a listener: batches, hold-until-ack, an in-progress queue, or
            deletion of the durable subscription. Or attempts are to be recorded, and there is no store.

    Source: J81-J84, J128-J148, J167.
    """

    def __init__(
        self,
        settings: ListenerSettings,
        connection: AsyncConnection,
        *,
        memory: DeliveryMemory[Received] | None = None,
        tracker: RedeliveryTracker | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        refuse_unsupported(settings)
        self._settings = shared(settings)
        self._connection = connection
        self._memory: DeliveryMemory[Received] = DeliveryMemory() if memory is None else memory
        self._tracker = RedeliveryTracker() if tracker is None else tracker
        self._chance = chance
        self.consuming = Signal()
        self._driver: LoopDriver | None = None
        self._closed = self._finished = False
        self._turn = 0

    def __aiter__(self) -> Self:
        """Return the stream."""
        return self

    async def __aenter__(self) -> Self:
        """Return the stream, which connects when the first delivery is requested."""
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the stream."""
        await self.aclose()

    @property
    def counts(self) -> Counts:
        """Counts of messages so far."""
        return Counts() if self._driver is None else self._driver.counters.counts()

    @property
    def outages(self) -> int:
        """Number of connections lost so far."""
        return 0 if self._driver is None else self._driver.counters.outages

    @property
    def dead_lettered(self) -> int:
        """Number of messages moved so far because they failed."""
        return 0 if self._driver is None else self._driver.counters.dead_lettered

    @property
    def last_failure(self) -> str:
        """Class and text of the last failure of a delivery, without secrets; empty if there was none."""
        return "" if self._driver is None else self._driver.counters.last_failure

    @property
    def in_flight(self) -> int:
        """Number of messages received and not settled."""
        return 0 if self._driver is None else self._driver.machine.in_flight

    def finish(self) -> None:
        """End the iteration; deliveries under way can still be ended, and are settled.

        `aclose` hands undelivered messages back to the broker.
        """
        self._finished = True
        if self._driver is not None:
            self._driver.changed.set()

    async def __anext__(self) -> StreamDelivery:
        """Wait for the next delivery, without a time limit; connect first if necessary.

        Raises:
            PermanentBrokerError: The broker refuses the connection or the subscription.
            ConfigurationError: The settings or the subscription can't work on this broker.
            StopAsyncIteration: The stream is closed or finished.
        """
        driver = self._driver
        if driver is None and not (self._closed or self._finished):
            driver = self._driver = LoopDriver(
                self._settings,
                self._connection,
                memory=self._memory,
                tracker=self._tracker,
                chance=self._chance,
                consuming=self.consuming,
            )
            driver.start()
        while driver is not None and not (self._closed or self._finished):
            self._turn += 1
            if self._turn % _DELIVERIES_PER_TURN == 0:
                await asyncio.sleep(0)
            if (delivery := driver.handed_out.next()) is not None:
                return delivery
            if driver.fault is not None:
                raise driver.fault
            if driver.stopped:
                break
            driver.changed.clear()
            await driver.changed.wait()
        raise StopAsyncIteration

    async def aclose(self, *, within: float = _CLOSE_SECONDS) -> None:
        """End the stream: settle messages for which `returned` was called, hand back all others.

        Guarantee: the call returns within the given time, with the default within half a second. If the
        broker doesn't answer in that time, a thread continues the close.

        Args:
            within: Seconds to wait, mostly for settlements under way.
        """
        if self._closed:
            return
        self._closed = True
        if self._driver is not None:
            await self._driver.close(commit_within=within - (_CLOSE_SECONDS - _COMMIT_SECONDS), within=within)
