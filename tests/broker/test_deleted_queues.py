"""An administrator deletes a queue that has consumers: each subscribes again, and goes on."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_jmsjca import (
    ActivationSpec,
    Connection,
    ConnectionLostError,
    Destination,
    JmsConnection,
    Subscription,
    connect,
)
from tests.broker.listening import activation, send, until
from tests.internals.collecting import BatchSpec, collect
from tests.internals.engine import (
    AsyncConnection,
    ConnectionPool,
    DeliveryStream,
    listener_settings,
    open_connection,
)
from tests.internals.spool import SpoolBatch
from tests.servers.broker import Broker
from tests.servers.ports import HOST

SECONDS = 30


@pytest.fixture(params=["artemis", "rabbitmq"])
def broker(request: pytest.FixtureRequest) -> Broker:
    """The brokers that end the consumers of such a queue; ActiveMQ keeps them for the next queue."""
    found: Broker = request.getfixturevalue(request.param)
    if not found.controllable:
        pytest.skip("only on a broker of our own can queues be deleted")
    return found


def test_a_listener(broker: Broker, queue_name: str, caplog: pytest.LogCaptureFixture) -> None:
    settings = broker.settings()
    got: list[str] = []
    listener = activation(settings, queue_name, lambda delivery: got.append(delivery.body), name="orders")
    listener.start()
    send(settings, queue_name, "before")
    until(lambda: got == ["before"])
    with caplog.at_level(logging.WARNING):
        broker.delete_queue(queue_name)
        until(lambda: listener.statistics().connections == 2)
    send(settings, queue_name, "after")
    until(lambda: got == ["before", "after"])
    assert listener.stop()
    said = [record.getMessage() for record in caplog.records]
    assert any("orders: " in line and queue_name in line and "connecting again" in line for line in said)


def test_a_stream_of_events(broker: Broker, queue_name: str) -> None:
    settings = broker.settings()

    async def work() -> None:
        rules = listener_settings(ActivationSpec(destination=f"queue://{queue_name}", concurrency_mode="cc"))
        with ConnectionPool() as pool:
            async with DeliveryStream(rules, AsyncConnection(settings, pool=pool)) as stream:
                for body in ("before", "after"):
                    await asyncio.to_thread(send, settings, queue_name, body)
                    delivery = await asyncio.wait_for(anext(stream), SECONDS)
                    assert delivery.message.body == body
                    delivery.returned()
                    if body == "before":
                        await asyncio.to_thread(broker.delete_queue, queue_name)

    asyncio.run(work())


def test_a_collector(broker: Broker, queue_name: str, tmp_path: Path) -> None:
    settings = broker.settings()
    spec = BatchSpec(
        subscription=Subscription(destination=Destination.queue(queue_name)),
        max_messages=2,
        max_time=timedelta(seconds=SECONDS),
        segment_messages=1,
    )
    with (
        SpoolBatch(tmp_path, "b", source=queue_name, activation="a") as batch,
        ThreadPoolExecutor() as pool,
    ):
        connections: list[Connection | None] = []

        def opened(**until_then: Any) -> Connection | None:
            connections.append(open_connection(settings, **until_then))
            return connections[-1]

        running = pool.submit(collect, opened, batch, spec, stop=threading.Event())
        send(settings, queue_name, "before")
        until(lambda: batch.rows == 1)
        broker.delete_queue(queue_name)
        until(lambda: len(connections) == 2)
        send(settings, queue_name, "after")
        result = running.result()
    assert (result.rows, result.reconnects) == (2, 1)


def test_a_session(broker: Broker, queue_name: str) -> None:
    """It has no way to connect again by itself: `receive` says so, in place of waiting for ever."""
    settings = broker.settings()
    with JmsConnection(connect(settings)) as connection, connection.session() as session:
        assert session.receive(queue_name, timeout=0) is None
        broker.delete_queue(queue_name)
        with pytest.raises(ConnectionLostError, match=queue_name):
            session.receive(queue_name, timeout=SECONDS)


def durable_queues(rabbitmq: Broker) -> set[str]:
    management = f"http://{HOST}:{rabbitmq.ports['management']}"
    with (
        closing(connect(rabbitmq.settings(management_url=management))) as connection,
        closing(connection.administration()) as administration,
    ):
        return {each.name for each in administration.queues() if each.name.startswith("stomp-subscription")}


def test_a_durable_subscription(rabbitmq: Broker, queue_name: str) -> None:
    """It is a queue of a name that the broker makes of its id."""
    if not rabbitmq.controllable:
        pytest.skip("only on a broker of our own can queues be deleted")
    topic = Destination.topic(queue_name)
    before = durable_queues(rabbitmq)
    lost: list[str] = []
    connection = connect(rabbitmq.settings(client_id=queue_name))
    connection.on_lost(lambda reason: lost.append(str(reason)))
    connection.consume(Subscription(destination=topic, durable_name="s1"), lambda _: None)
    (queue,) = durable_queues(rabbitmq) - before
    rabbitmq.delete_queue(queue)
    until(lambda: lost)
    assert f"the subscription to {topic}" in lost[0]
    connection.close()
