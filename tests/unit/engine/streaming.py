"""Runs streams of deliveries over a broker of this process, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import timedelta
from typing import Any

from airflow_provider_jmsjca.core.backoff import Backoff
from airflow_provider_jmsjca.core.delivery.settings import DeliverySettings, OutageSettings
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.message.delivery_memory import DeliveryMemory
from airflow_provider_jmsjca.core.redelivery import MoveTarget, RedeliveryHandling, RedeliveryTracker
from airflow_provider_jmsjca.engine.connecting.async_connection import AsyncConnection
from airflow_provider_jmsjca.engine.connecting.pool import ConnectionPool
from airflow_provider_jmsjca.engine.delivering.loop.stream import DeliveryStream, StreamDelivery
from airflow_provider_jmsjca.engine.delivering.settings import ListenerSettings
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Connection, ConnectionSettings, Outgoing, Subscription
from airflow_provider_jmsjca.transports.memory import MemoryBroker as Broker
from airflow_provider_jmsjca.transports.memory import memory_broker as broker

ORDERS = Destination.queue("orders")
DEAD = Destination.queue("dead")
_AT_ONCE = OutageSettings(backoff=Backoff(steps=(timedelta(milliseconds=20),)))


def settings(
    handling: str = "",
    *,
    dead_letter: Destination | None = None,
    prefetch: int | None = None,
    **delivery: Any,
) -> ListenerSettings:
    rules = {"concurrency": 10, "transaction_timeout": None} | delivery
    return ListenerSettings(
        delivery=DeliverySettings(
            destination=ORDERS,
            handling=RedeliveryHandling.parse(handling),
            dead_letter=() if dead_letter is None else (MoveTarget.of(dead_letter),),
            outage=_AT_ONCE,
            **rules,
        ),
        subscription=Subscription(destination=ORDERS, prefetch=prefetch),
        name="stream",
    )


class Site:
    """A broker, and streams over it."""

    def __init__(self) -> None:
        self.broker: Broker = broker(f"stream-{uuid.uuid4().hex[:8]}")
        self.settings = ConnectionSettings(scheme="vm", hosts=((self.broker.name, None),))

    def send(self, *bodies: str, to: Destination = ORDERS, **properties: Any) -> None:
        connection = connect(self.settings)
        connection.send(
            Outgoing(destination=to, message=JmsMessage.text(body, properties)) for body in bodies
        )
        connection.close()

    def stream(
        self,
        rules: ListenerSettings | None = None,
        *,
        opens: Callable[[ConnectionSettings], Connection] = connect,
        memory: DeliveryMemory[Any] | None = None,
        tracker: RedeliveryTracker | None = None,
    ) -> DeliveryStream:
        pool = ConnectionPool(idle_timeout=timedelta(0), connect=opens)
        source = AsyncConnection(self.settings, pool=pool)
        return DeliveryStream(rules or settings(), source, memory=memory, tracker=tracker, chance=lambda: 0.0)

    @contextlib.asynccontextmanager
    async def streaming(
        self, rules: ListenerSettings | None = None, **more: Any
    ) -> AsyncIterator[DeliveryStream]:
        async with self.stream(rules, **more) as stream:
            yield stream
        # What a broker still has to do with it is over before the next one begins.
        await until(lambda: self.broker.connections == 0)

    def bodies(self, queue: str = "orders") -> list[Any]:
        return [message.body for message in self.broker.messages(queue)]


async def take(stream: DeliveryStream, count: int, within: float = 5) -> list[StreamDelivery]:
    return [await asyncio.wait_for(anext(stream), within) for _ in range(count)]


async def one(stream: DeliveryStream) -> StreamDelivery:
    (found,) = await take(stream, 1)
    return found


async def nothing_comes(stream: DeliveryStream, seconds: float = 0.15) -> bool:
    try:
        await asyncio.wait_for(anext(stream), seconds)
    except TimeoutError:
        return True
    return False


async def until(condition: Callable[[], object], seconds: float = 5) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.005)


def in_flight(stream: DeliveryStream) -> int:
    """Return how many messages the stream has received and not settled."""
    return 0 if stream._driver is None else stream._driver.machine.in_flight


async def until_noticed(stream: DeliveryStream) -> None:
    """Wait until the stream knows that its connection is lost."""
    await until(lambda: stream._driver is not None and not stream._driver.receiver.buffer.open)


@contextlib.asynccontextmanager
async def watching_turns() -> AsyncIterator[list[float]]:
    """Yield the seconds of processor time that the loop's thread works before others get a turn, growing.

    What a busy machine takes from the thread is not in it; nor are waits: that nothing waits in the loop
    is for other tests.
    """
    turns: list[float] = []

    async def watch() -> None:
        while True:
            begin = time.thread_time()
            await asyncio.sleep(0.001)
            turns.append(time.thread_time() - begin)

    watching = asyncio.create_task(watch())
    try:
        yield turns
    finally:
        watching.cancel()


def run(work: Coroutine[object, object, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 30))
