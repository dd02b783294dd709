"""Messages that stay on a queue of Artemis are noticed."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

from airflow_provider_jmsjca import ActivationSpec, Destination, JmsMessage, Outgoing, Subscription, connect
from tests.internals.engine import (
    AsyncConnection,
    ConnectionPool,
    DeliveryStream,
    Listener,
    ListenerContext,
    listener_settings,
    one_connection,
)
from tests.internals.engine import backlog as backlog_watch
from tests.internals.transports import ManagementControl, Received, StompConnection, queue_resource
from tests.servers.broker import Broker

PATIENCE = timedelta(seconds=2)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog_watch, "HELD_LONG", PATIENCE)
    monkeypatch.setattr(backlog_watch, "CHECK_INTERVAL", PATIENCE)


@pytest.fixture
def listener(artemis: Broker, queue_name: str) -> Iterator[Listener]:
    """A listener that settles whatever comes."""
    settings = listener_settings(ActivationSpec(destination=f"queue://{queue_name}"))
    made = Listener(one_connection(settings, functools.partial(connect, artemis.settings())), lambda _: None)
    yield made
    made.stop(timedelta(seconds=10))


def wait_for_record(caplog: pytest.LogCaptureFixture, part: str) -> logging.LogRecord:
    deadline = time.monotonic() + 30
    while True:
        for record in list(caplog.records):
            if part in record.getMessage():
                return record
        assert time.monotonic() < deadline, f"nobody said {part!r}: {caplog.text}"
        time.sleep(0.05)


@pytest.fixture
def held(artemis: Broker, queue_name: str) -> Iterator[Received]:
    """A message that another consumer has, until the test is over."""
    holder = connect(artemis.settings())
    queue = Destination.queue(queue_name)
    found: list[Received] = []
    holder.consume(Subscription(destination=queue, prefetch=1), found.append)
    holder.send([Outgoing(destination=queue, message=JmsMessage.text("kept"))])
    while not found:
        time.sleep(0.01)
    yield found[0]
    holder.close()


def test_a_message_that_another_consumer_keeps_is_named(
    held: Received, listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    listener.start()
    record = wait_for_record(caplog, "another consumer, or one that is gone, has had 1 message of queue://")
    assert record.levelno == logging.WARNING
    assert f"({held.message.message_id})" in record.getMessage()
    held.consumer.close()
    deadline = time.monotonic() + 20
    while listener.counts.committed < 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_stream_names_it_too(
    artemis: Broker, queue_name: str, held: Received, caplog: pytest.LogCaptureFixture
) -> None:
    settings = listener_settings(
        ActivationSpec(destination=f"queue://{queue_name}", transaction_timeout=0),
        ListenerContext(non_blocking_redelivery=False),
    )

    async def work() -> None:
        with ConnectionPool() as pool:
            async with DeliveryStream(settings, AsyncConnection(artemis.settings(), pool=pool)) as stream:
                waiting = asyncio.create_task(anext(stream))
                record = await asyncio.to_thread(wait_for_record, caplog, "has had 1 message of queue://")
                assert f"({held.message.message_id})" in record.getMessage()
                held.consumer.close()
                (await asyncio.wait_for(waiting, 20)).returned()

    asyncio.run(work())


def test_messages_on_a_paused_queue_are_noticed(
    artemis: Broker, queue_name: str, listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    control = connect(artemis.settings())
    assert isinstance(control, StompConnection)
    queue = Destination.queue(queue_name)
    control.send([Outgoing(destination=queue, message=JmsMessage.text("waits"))])
    with ManagementControl(control.link, queue_resource(queue_name), 10) as queue_control:
        queue_control.call("pause")
        listener.start()
        record = wait_for_record(caplog, f"messages wait on queue://{queue_name}")
        assert record.levelno == logging.WARNING
        queue_control.call("resume")
    deadline = time.monotonic() + 20
    while listener.counts.committed < 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    control.close()
