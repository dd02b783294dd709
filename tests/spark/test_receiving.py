"""How a stream of `jms` receives: without Spark, whose calls are made here, and on the broker in memory."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_jmsjca import (
    Destination,
    JmsMessage,
    Outgoing,
    connect,
    connection_settings,
    memory_broker,
)
from tests.internals.spark import JmsStreamReader, SpoolingReceiver

Reader = Callable[..., JmsStreamReader]


@pytest.fixture
def server() -> str:
    return memory_broker(uuid.uuid4().hex).name


@pytest.fixture
def reader(server: str, tmp_path: Path) -> Iterator[Reader]:
    made: list[JmsStreamReader] = []

    def make(**options: str) -> JmsStreamReader:
        given = {"path": str(tmp_path / "wal"), "url": f"vm://{server}", "destination": "queue://orders"}
        made.append(JmsStreamReader(SpoolingReceiver(given | options)))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def send(server: str, *bodies: str) -> None:
    connection = connect(connection_settings(f"vm://{server}"))
    there = Destination.queue("orders")
    connection.send(Outgoing(destination=there, message=JmsMessage.text(body)) for body in bodies)
    connection.close()


def read(reader: JmsStreamReader, start: dict[str, object], end: dict[str, object]) -> list[str]:
    return [
        body.decode()
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for body in batch.column("body").to_pylist()
    ]


def test_the_next_micro_batch_is_received_while_the_last_one_is_written(server: str, reader: Reader) -> None:
    stream = reader(receiveAhead="true", maxMessagesPerTrigger="2", idleSeconds="60", maxReceiveSeconds="60")
    send(server, "a", "b", "c", "d")
    limit = stream.getDefaultReadLimit()
    start = stream.initialOffset()
    first = stream.latestOffset(start, limit)
    assert read(stream, start, first) == ["a", "b"]
    deadline = time.monotonic() + 30
    while memory_broker(server).messages("orders"):  # Spark works on a and b
        assert time.monotonic() < deadline
        time.sleep(0.01)
    second = stream.latestOffset(first, limit)
    assert read(stream, first, second) == ["c", "d"]

    # Killed while it received ahead, or after: what was received is planned by the next start, once.
    send(server, "e")
    while memory_broker(server).messages("orders"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    stream.stop()
    again = reader(maxMessagesPerTrigger="2")
    assert read(again, second, again.latestOffset(second, limit)) == ["e"]


def test_progress_has_the_backlog(server: str, reader: Reader) -> None:
    stream = reader(maxMessagesPerTrigger="2")
    send(server, "a", "b", "c", "d", "e")
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    assert stream.reportLatestOffset() == end | {"backlog": 3, "unplanned": 0}


def test_a_queue_that_is_never_quiet_has_micro_batches(server: str, reader: Reader) -> None:
    stream = reader(maxReceiveSeconds="1", idleSeconds="5")
    quiet = threading.Event()

    def keep_sending() -> None:
        while not quiet.wait(0.02):
            send(server, "x")

    sending = threading.Thread(target=keep_sending)
    sending.start()
    try:
        start = stream.initialOffset()
        end = stream.latestOffset(start, stream.getDefaultReadLimit())
        assert not quiet.is_set()
    finally:
        quiet.set()
        sending.join()
    assert set(read(stream, start, end)) == {"x"}
