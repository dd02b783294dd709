from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_jmsjca.core.backoff import Backoff
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.connecting.async_connection import AsyncConnection
from airflow_provider_jmsjca.engine.connecting.pool import ConnectionPool
from airflow_provider_jmsjca.engine.watching.peek import peek
from airflow_provider_jmsjca.engine.watching.queue_watch import QueueWatch
from airflow_provider_jmsjca.engine.watching.shared_probes import SharedProbes, probes_of
from airflow_provider_jmsjca.errors import (
    AuthenticationError,
    ConfigurationError,
    ConnectionLostError,
    TransientBrokerError,
)
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import (
    Capabilities,
    Connection,
    ConnectionSettings,
    ConnectionState,
    Outgoing,
)
from airflow_provider_jmsjca.transports.memory import MemoryBroker as Broker
from airflow_provider_jmsjca.transports.memory import memory_broker as broker
from airflow_provider_jmsjca.transports.memory.connection import MemoryConsumer
from tests.pace import at_most

ORDERS = Destination.queue("orders")
SECOND = timedelta(seconds=1)
Connect = Callable[[ConnectionSettings], Connection]


class Unbrowsable:
    """A connection to a broker that can't be browsed, like Artemis and RabbitMQ over STOMP."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def capabilities(self) -> Capabilities:
        return replace(self._connection.capabilities, browse=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def unbrowsable(settings: ConnectionSettings) -> Connection:
    return Unbrowsable(connect(settings))  # type: ignore[return-value]  # it passes everything on


@pytest.fixture
def server() -> Broker:
    return broker(uuid.uuid4().hex)


def settings(server: Broker) -> ConnectionSettings:
    return ConnectionSettings(scheme="vm", hosts=((server.name, None),))


def publish(server: Broker, body: str) -> None:
    connection = connect(settings(server))
    connection.send([Outgoing(destination=ORDERS, message=JmsMessage.text(body))])
    connection.close()


def watching(server: Broker, how: Connect) -> QueueWatch:
    quick = Backoff(steps=(timedelta(milliseconds=20),))
    pool = ConnectionPool(connect=how, idle_timeout=timedelta(0))
    link = AsyncConnection(settings(server), pool=pool, backoff=quick)
    return QueueWatch(link, ORDERS, poll=timedelta(milliseconds=20))


async def until(condition: Callable[[], bool], seconds: float = 5) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.005)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 20))


@pytest.mark.parametrize("how", [connect, unbrowsable])
def test_it_waits_for_a_message_and_leaves_it(server: Broker, how: Connect) -> None:
    async def work() -> None:
        watch = watching(server, how)
        waiting = asyncio.create_task(watch.wait())
        await asyncio.sleep(0.15)
        assert not waiting.done()
        publish(server, "a")
        ready = await waiting
        assert ready.message is not None
        assert ready.message.body == "a"
        again = await watch.wait()
        assert again.message is not None
        assert again.message.body == "a"
        watch.close()
        assert server.depth("orders") == 1

    run(work())


@pytest.mark.parametrize("how", [connect, unbrowsable])
def test_it_goes_on_after_the_broker_was_away(server: Broker, how: Connect) -> None:
    async def work() -> None:
        watch = watching(server, how)
        waiting = asyncio.create_task(watch.wait())
        await until(lambda: server.connections == 1)
        server.kill()
        await asyncio.sleep(0.1)
        assert not waiting.done()
        server.restart()
        publish(server, "a")
        assert (await waiting).message is not None
        watch.close()

    run(work())


@pytest.mark.parametrize("how", [connect, unbrowsable])
def test_cancelled_it_ends_at_once_and_holds_nothing(server: Broker, how: Connect) -> None:
    async def work() -> None:
        watch = watching(server, how)
        waiting = asyncio.create_task(watch.wait())
        await until(lambda: server.connections == 1)
        begin = time.monotonic()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        watch.close()
        assert time.monotonic() - begin < at_most(0.5)
        await until(lambda: server.connections == 0)

    run(work())


def test_a_refused_login_is_raised_and_not_tried_for_ever(server: Broker) -> None:
    async def work() -> None:
        server.require_login("app", "right")
        with pytest.raises(AuthenticationError):
            await asyncio.wait_for(watching(server, unbrowsable).wait(), 5)

    run(work())


def test_while_the_broker_hangs_a_cancelled_look_ends_and_the_late_connection_is_closed(
    server: Broker,
) -> None:
    hang = threading.Event()
    connecting = threading.Event()
    opened: list[Connection] = []

    def slow(to: ConnectionSettings) -> Connection:
        connecting.set()
        hang.wait(10)
        opened.append(unbrowsable(to))
        return opened[0]

    async def work() -> None:
        watch = watching(server, slow)
        waiting = asyncio.create_task(watch.wait())
        await until(connecting.is_set)
        begin = time.monotonic()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert time.monotonic() - begin < at_most(0.5)
        hang.set()
        await until(lambda: bool(opened))
        await until(lambda: opened[0].state is ConnectionState.CLOSED)

    run(work())


def test_while_handing_back_hangs_a_cancelled_look_ends_and_gives_the_connection_back(
    server: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at the end of `asyncio.run`, while the broker still owes its answer."""
    closing, go_on = threading.Event(), threading.Event()
    close = MemoryConsumer.close

    def slow(consumer: MemoryConsumer) -> None:
        closing.set()
        assert go_on.wait(5)
        close(consumer)

    monkeypatch.setattr(MemoryConsumer, "close", slow)

    async def work() -> None:
        publish(server, "a")
        waiting = asyncio.create_task(watching(server, unbrowsable).wait())
        await until(closing.is_set)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        go_on.set()
        await until(lambda: server.connections == 0)
        assert server.depth("orders") == 1

    run(work())


def test_a_delivery_that_counts_is_reported(server: Broker) -> None:
    async def work() -> None:
        publish(server, "a")
        watch = watching(server, unbrowsable)
        assert (await watch.wait()).deliveries == 1
        assert (await watch.wait()).deliveries == 2
        watch.close()

    run(work())


def test_many_share_a_connection_and_few_threads_and_look_less_often(
    server: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten in each second: a thousand queues are looked at every 100 seconds. Later, few look often again."""
    many = 200
    turns: list[float] = []
    all_pause = asyncio.Event()

    usual = SharedProbes._turn

    def turn(self: SharedProbes, now: float, after: float) -> float:
        turns.append(usual(self, now, after))
        if len(turns) >= many:
            all_pause.set()
        return turns[-1]

    monkeypatch.setattr(SharedProbes, "_turn", turn)
    pool = ConnectionPool(connect=connect)
    before = threading.active_count()

    async def work() -> None:
        watches = [
            QueueWatch(
                AsyncConnection(settings(server), pool=pool), Destination.queue(f"q{number}"), poll=SECOND
            )
            for number in range(many)
        ]
        tasks = [asyncio.ensure_future(each.wait()) for each in watches]
        await all_pause.wait()
        assert server.connections == 1
        assert threading.active_count() - before <= 2
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        all_pause.clear()
        last = asyncio.ensure_future(watches[0].wait())
        await all_pause.wait()
        assert turns.pop() - asyncio.get_running_loop().time() <= SECOND.total_seconds()
        last.cancel()
        for each in watches:
            each.close()

    run(work())
    pool.close()
    seconds = Counter(round(turn, 3) for turn in turns)
    assert max(turns) - min(turns) == pytest.approx(many * 0.1, abs=1.5)
    assert seconds.most_common()[len(seconds) // 2][1] == 10


def test_who_cannot_look_is_told_and_the_others_look_on(server: Broker) -> None:
    async def work() -> None:
        publish(server, "a")
        connection = connect(settings(server))
        looks = probes_of(connection)
        assert looks is probes_of(connection)
        asked = [
            (ORDERS, None),
            (ORDERS, "= 1"),
            (Destination.topic("t"), None),
            (Destination.queue("x"), None),
        ]
        tasks = [asyncio.ensure_future(looks.probe(connection, *each)) for each in asked]
        gone = asyncio.ensure_future(looks.probe(connection, ORDERS, None))
        await asyncio.sleep(0)
        gone.cancel()
        there, selector, topic, nothing = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(there, JmsMessage)
        assert isinstance(selector, ConfigurationError)
        assert isinstance(topic, ConfigurationError)
        assert nothing is None
        assert gone.cancelled()
        connection.close()
        with pytest.raises(ConnectionLostError):
            await looks.probe(connection, ORDERS, None)

    run(work())


def test_without_a_thread_a_look_fails_for_a_while(server: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        connection = connect(settings(server))

        def start(_thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", start)
            with pytest.raises(TransientBrokerError, match="thread"):
                await probes_of(connection).probe(connection, ORDERS, None)
        assert await probes_of(connection).probe(connection, ORDERS, None) is None
        connection.close()

    run(work())


@pytest.mark.parametrize("how", [connect, unbrowsable])
def test_one_look(server: Broker, how: Connect) -> None:
    connection = how(settings(server))
    assert not peek(connection, ORDERS, None, timedelta(seconds=0.1))
    publish(server, "a")
    assert peek(connection, ORDERS, None, timedelta(seconds=5))
    assert not peek(connection, ORDERS, "region = 'eu'", timedelta(seconds=0.1))
    assert server.depth("orders") == 1
    connection.close()
