"""The stream of deliveries over each transport: what the unit tests show in memory must hold here too."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_jmsjca import (
    ActivationSpec,
    Connection,
    ConnectionSettings,
    Destination,
    PermanentBrokerError,
    PoisonMessageError,
    StreamDelivery,
)
from tests.broker import listening
from tests.broker.listening import drained, send
from tests.dead_letters import original_of
from tests.internals.core import Backoff
from tests.internals.engine import AsyncConnection, ConnectionPool, DeliveryStream, listener_settings
from tests.pace import at_most
from tests.servers.broker import Broker
from tests.servers.catalogue import BROKERS
from tests.servers.proxy import TcpProxy

BEAT = timedelta(seconds=1)


@pytest.fixture(params=["memory", *sorted(BROKERS)])
def settings(request: pytest.FixtureRequest, queue_name: str) -> ConnectionSettings:
    if request.param == "memory":
        return ConnectionSettings(scheme="vm", hosts=((queue_name, None),))
    found: Broker = request.getfixturevalue(request.param)
    return found.settings()


@contextlib.asynccontextmanager
async def streaming(
    settings: ConnectionSettings, queue: str, *, concurrency: int = 10, **spec: Any
) -> AsyncIterator[DeliveryStream]:
    rules = listener_settings(
        ActivationSpec(
            concurrency_mode="cc",
            endpoint_pool_max_size=concurrency,
            transaction_timeout=0,
            **{"destination": f"queue://{queue}", **spec},
        )
    )
    quick = replace(rules.delivery.outage, backoff=Backoff(steps=(timedelta(seconds=0.1),)))
    rules = replace(rules, delivery=replace(rules.delivery, outage=quick, transaction_timeout=None))
    with ConnectionPool() as pool:
        async with DeliveryStream(rules, AsyncConnection(settings, pool=pool)) as stream:
            yield stream


async def take(stream: DeliveryStream, count: int) -> list[StreamDelivery]:
    return [await asyncio.wait_for(anext(stream), 20) for _ in range(count)]


async def bodies(settings: ConnectionSettings, queue: str) -> list[Any]:
    """Take everything out of a queue."""
    return sorted(str(body) for body in await asyncio.to_thread(listening.bodies, settings, queue))


async def until(condition: Callable[[], object], *, within: float = 20) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it didn't happen in time"
        await asyncio.sleep(0.01)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 120))


def test_commit_and_rollback_in_any_order(settings: ConnectionSettings, queue_name: str) -> None:
    """J82, J123, J129, J130."""

    async def work() -> None:
        send(settings, queue_name, *map(str, range(60)))
        attempts: list[tuple[str, int]] = []
        async with streaming(settings, queue_name) as stream:
            held: list[StreamDelivery] = []
            while len(attempts) < 72:
                (delivery,) = await take(stream, 1)
                body = str(delivery.message.body)
                attempts.append((body, delivery.seen))
                if int(body) % 10 == 5 and delivery.seen < 2:
                    delivery.raised(ValueError("not yet"))
                    continue
                held.append(delivery)
                if len(held) > 4 or len(attempts) > 64:
                    held.pop().returned()
            for delivery in held:
                delivery.returned()
            await until(lambda: stream.counts.committed == 60)
            counts = stream.counts
        assert (counts.rolled_back, counts.delivered) == (12, 72)
        assert sorted(attempts) == sorted(
            [(str(number), 0) for number in range(60)]
            + [(str(number), count) for number in range(5, 60, 10) for count in (1, 2)]
        )
        assert await bodies(settings, queue_name) == []

    run(work())


def test_published_vector_of_delays_j137b(settings: ConnectionSettings, queue_name: str) -> None:
    """J137b: 1 x 10 + 4 x 15 + 5 x 30 ms, then the move at 15; one that is done with isn't touched by it."""

    async def work() -> None:
        send(settings, queue_name, "bad", "good", region="eu")
        began: list[float] = []
        seen: list[int] = []
        handling = "5:10; 6:15; 10:30; 15:move(queue:$.dlq)"
        async with streaming(settings, queue_name, redelivery_handling=handling) as stream:
            while len(began) < 15:
                (delivery,) = await take(stream, 1)
                if delivery.message.body == "good":
                    delivery.returned()
                    continue
                began.append(time.monotonic())
                seen.append(delivery.seen)
                delivery.raised(ValueError("no stock"))
            await until(lambda: stream.counts.moved == 1)
            await until(lambda: stream.counts.committed == 1)
        assert seen == list(range(15))
        assert began[-1] - began[4] >= 0.215
        (message,) = await asyncio.to_thread(drained, settings, f"{queue_name}.dlq")
        letter = original_of(message)
        assert letter is not None
        assert (letter.message.body, letter.message.properties["region"]) == ("bad", "eu")
        assert letter.origin.destination == Destination.queue(queue_name)
        assert letter.state.seen == 15
        assert letter.state.failure is not None
        assert (letter.state.failure.class_name, letter.state.failure.message) == ("ValueError", "no stock")
        assert await bodies(settings, queue_name) == []

    run(work())


def test_poison_is_moved_and_the_deleted_are_gone(settings: ConnectionSettings, queue_name: str) -> None:
    """J133; poison first."""

    async def work() -> None:
        send(settings, queue_name, "poison", "failing", "good")
        dead = f"{queue_name}.dead"
        async with streaming(
            settings,
            queue_name,
            redelivery_handling="1:delete",
            dead_letter_destination=f"queue://{dead}",
            non_retryable=["builtins.KeyError"],
        ) as stream:
            for delivery in await take(stream, 3):
                match delivery.message.body:
                    case "poison":
                        delivery.raised(PoisonMessageError("not for us"))
                    case "failing":
                        delivery.raised(ValueError())
                    case _:
                        delivery.returned()
            await until(lambda: stream.counts.settled == 3)
            assert (stream.counts.moved, stream.counts.deleted, stream.counts.committed) == (1, 1, 1)
        assert await bodies(settings, dead) == ["poison"]
        assert await bodies(settings, queue_name) == []

    run(work())


def test_what_is_not_returned_goes_back_within_half_a_second(
    settings: ConnectionSettings, queue_name: str
) -> None:
    async def work() -> None:
        send(settings, queue_name, *"abcdef")
        async with streaming(settings, queue_name, concurrency=4, redelivery_handling="1:60000") as stream:
            found = {str(delivery.message.body): delivery for delivery in await take(stream, 4)}
            found["a"].returned()
            found["b"].raised(ValueError())
            begin = time.monotonic()
            await stream.aclose()
            assert time.monotonic() - begin < at_most(0.5)
        assert await bodies(settings, queue_name) == list("bcdef")

    run(work())


@pytest.mark.parametrize("kind", sorted(BROKERS))
def test_a_cut_makes_no_second_delivery(request: pytest.FixtureRequest, kind: str, queue_name: str) -> None:
    """Some are under way when the connection is cut, some returned a moment before."""
    broker: Broker = request.getfixturevalue(kind)

    async def work() -> None:
        send(broker.settings(), queue_name, *map(str, range(200)))
        with TcpProxy(broker.address()) as proxy:
            through = replace(broker.settings(), hosts=(proxy.address,), heart_beat=BEAT)
            got: list[str] = []
            async with streaming(through, queue_name, concurrency=20) as stream:
                under_way: list[StreamDelivery] = []
                for number in range(200):
                    (delivery,) = await take(stream, 1)
                    got.append(str(delivery.message.body))
                    under_way.append(delivery)
                    if len(under_way) > 10:
                        under_way.pop(0).returned()
                    if number % 50 == 25:
                        proxy.cut()
                for delivery in under_way:
                    delivery.returned()
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(stream), 2)
            assert sorted(got, key=int) == [str(number) for number in range(200)]
        assert await bodies(broker.settings(), queue_name) == []

    run(work())


def test_each_message_of_one_id_is_delivered(rabbitmq: Broker, queue_name: str) -> None:
    """On RabbitMQ the id is the producer's own word; here it names an order."""
    settings = rabbitmq.settings()
    states = ("created", "paid", "cancelled")

    def publish(state: str) -> None:
        login = f"login:{settings.username}\npasscode:{settings.password}"
        head = f"destination:/queue/{queue_name}\npersistent:true\namqp-message-id:order-7\nreceipt:1"
        frames = (
            f"CONNECT\naccept-version:1.2\nhost:/\n{login}\n\n\0",
            f"SEND\n{head}\ncontent-type:text/plain\n\n{state}\0",
        )
        with socket.create_connection(rabbitmq.address()) as wire:
            for frame in frames:
                wire.sendall(frame.encode())
                assert wire.recv(4096).startswith((b"CONNECTED", b"RECEIPT"))

    async def work() -> None:
        found = []
        async with streaming(settings, queue_name) as stream:
            for state in states:
                publish(state)
                (delivery,) = await take(stream, 1)
                found.append((delivery.message.message_id, delivery.message.body))
                if state != "paid":  # that one is under way while the next comes
                    delivery.returned()
                else:
                    paid = delivery
            paid.returned()
            await until(lambda: stream.counts.committed == 3)
        assert found == [("order-7", state) for state in states]
        assert await bodies(settings, queue_name) == []

    run(work())


class CountedConnection(AsyncConnection):
    """Counts the connections that it has got."""

    opened = 0

    async def attempt(self) -> Connection:
        """Count, too."""
        connection = await super().attempt()
        self.opened += 1
        return connection


@contextlib.asynccontextmanager
async def sharing(
    settings: ConnectionSettings, queue: str
) -> AsyncIterator[tuple[AsyncConnection, Callable[[], Coroutine[Any, Any, None]]]]:
    """Yield the connection of a refused user, and a function that waits until another user lost its own.

    At the end it has lost no further one.
    """
    expected = 1
    with ConnectionPool() as pool:
        staying, refused = CountedConnection(settings, pool=pool), AsyncConnection(settings, pool=pool)
        usual = listener_settings(ActivationSpec(destination=f"queue://{queue}"))
        async with DeliveryStream(usual, staying) as stream:
            first = asyncio.ensure_future(anext(stream))
            await until(stream.consuming.is_set)

            async def disturbed() -> None:
                nonlocal expected
                expected += 1
                await until(lambda: staying.opened == expected)
                await until(stream.consuming.is_set)

            yield refused, disturbed
            await asyncio.sleep(0.5)
            assert staying.opened == expected
            send(settings, queue, "y")
            assert (await asyncio.wait_for(first, 20)).message.body == "y"


def test_rabbitmq_closes_connections_with_refusals_but_a_shared_one_only_once(
    rabbitmq: Broker, queue_name: str
) -> None:
    """W15: who was refused tries again over a connection of its own."""
    settings = rabbitmq.settings()
    bad = f"{queue_name}.bad"
    send(settings, bad, "x")
    # It is there, and not as this option says.
    refused = listener_settings(ActivationSpec(destination=f"jmsjca://?name=queue://{bad}&x-max-length=5"))
    accepted = listener_settings(ActivationSpec(destination=f"queue://{bad}"))

    async def work() -> None:
        async with sharing(settings, queue_name) as (connection, disturbed):
            for number in range(3):
                async with DeliveryStream(refused, connection) as stream:
                    with pytest.raises(PermanentBrokerError, match="precondition_failed"):
                        await asyncio.wait_for(anext(stream), 20)
                if not number:
                    await disturbed()
            async with DeliveryStream(accepted, connection) as stream:
                (delivery,) = await take(stream, 1)
                delivery.returned()
                await until(lambda: stream.counts.committed == 1)

    run(work())


def test_rabbitmq_closes_connections_with_refused_dead_letters_but_a_shared_one_only_twice(
    rabbitmq: Broker, queue_name: str
) -> None:
    """J142, W15: the message stays. The first time may be an outage, after the second others have peace."""
    settings = rabbitmq.settings()
    bad, dead = (f"{queue_name}.{name}" for name in ("bad", "dead"))
    for name in (bad, dead):
        send(settings, name, "x")
    rules = listener_settings(
        ActivationSpec(
            destination=f"queue://{bad}",
            polling_interval=0.1,
            dead_letter_destination=f"jmsjca://?name=queue://{dead}&x-max-length=5",
        )
    )

    async def work() -> None:
        async with (
            sharing(settings, queue_name) as (connection, disturbed),
            DeliveryStream(rules, connection) as stream,
        ):
            for number in range(5):
                (delivery,) = await take(stream, 1)
                delivery.raised(PoisonMessageError("no order"))
                if number < 2:
                    await disturbed()
        assert [await bodies(settings, name) for name in (bad, dead)] == [["x"], ["x"]]

    run(work())
