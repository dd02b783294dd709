from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from airflow_provider_jmsjca.core.backoff import Backoff
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import BodyKind, JmsMessage
from airflow_provider_jmsjca.engine.collecting import batcher
from airflow_provider_jmsjca.engine.collecting.batch_spec import BatchSpec, CollectResult, EndReason
from airflow_provider_jmsjca.engine.collecting.batcher import CollectionControl, ConnectUnlessStopped, collect
from airflow_provider_jmsjca.engine.connecting.connector import RetryPolicy, open_connection
from airflow_provider_jmsjca.errors import (
    CapabilityError,
    ConfigurationError,
    ConnectionLostError,
    JmsError,
    SpoolError,
    TransientBrokerError,
)
from airflow_provider_jmsjca.spool.manifest import Manifest
from airflow_provider_jmsjca.spool.rows import Row, StoredMessage, table_to_messages
from airflow_provider_jmsjca.spool.spool import SpoolBatch
from airflow_provider_jmsjca.transports.base import (
    Connection,
    ConnectionSettings,
    Outgoing,
    Received,
    Subscription,
)
from airflow_provider_jmsjca.transports.memory import MemoryBroker as Broker
from airflow_provider_jmsjca.transports.memory import MemoryTransport
from airflow_provider_jmsjca.transports.memory import memory_broker as broker
from airflow_provider_jmsjca.transports.memory.connection import CAPABILITIES
from airflow_provider_jmsjca.transports.memory.message_queue import QueuedMessage
from tests.pace import at_most
from tests.unit.engine.brokers import LesserConnection

ORDERS = Destination.queue("orders")
QUICK = RetryPolicy(backoff=Backoff(steps=(timedelta(milliseconds=20),)))
SETTINGS = ConnectionSettings(scheme="vm", hosts=(("batcher", None),))
CONNECT = partial(open_connection, SETTINGS, policy=QUICK)


@pytest.fixture
def orders() -> Iterator[Broker]:
    server = broker("batcher")
    yield server
    server.restart()
    server.clear()


def send(numbers: range) -> None:
    connection = MemoryTransport().connect(SETTINGS)
    connection.send(Outgoing(destination=ORDERS, message=JmsMessage.text(str(n))) for n in numbers)
    connection.close()


def spec(**changes: object) -> BatchSpec:
    given: dict[str, object] = {
        "subscription": Subscription(destination=ORDERS),
        "max_time": timedelta(seconds=20),
        "idle_time": timedelta(milliseconds=300),
        "flush_time": timedelta(milliseconds=100),
        "segment_messages": 10,
    }
    return BatchSpec(**{**given, **changes})  # type: ignore[arg-type]  # by name


def open_batch(spool: Path, batch_id: str = "b1") -> SpoolBatch:
    return SpoolBatch(spool, batch_id, source=str(ORDERS), activation="a")


def run(
    spool: Path,
    what: BatchSpec,
    *,
    connect: ConnectUnlessStopped = CONNECT,
    stop: threading.Event | None = None,
    name: str = "b1",
) -> CollectResult:
    with open_batch(spool, name) as batch:
        return collect(connect, batch, what, stop=stop or threading.Event())


def stored(spool: Path, name: str = "b1") -> list[StoredMessage]:
    found: list[StoredMessage] = []
    for path in sorted((spool / name).glob("segment-*.parquet")):
        found += table_to_messages(pq.ParquetFile(path).read())
    return found


def bodies(spool: Path, name: str = "b1") -> list[int]:
    return [int(str(item.message.body)) for item in stored(spool, name)]


def wait_for(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition was never met"
        time.sleep(0.005)


def test_a_batch_ends_at_its_count_and_the_rest_stays(orders: Broker, tmp_path: Path) -> None:
    send(range(40))
    result = run(tmp_path, spec(max_messages=25))
    assert (result.reason, result.rows, result.stored, result.segments) == (EndReason.COUNT, 25, 25, 3)
    assert (result.received, result.duplicates, result.undecodable, result.left) == (25, 0, 0, 0)
    assert bodies(tmp_path) == list(range(25))
    assert orders.depth("orders") == 15
    manifest = Manifest.read(str(result.manifest))
    manifest.verify()
    assert [segment.rows for segment in manifest.segments] == [10, 10, 5]
    assert (manifest.source, manifest.activation) == ("queue://orders", "a")


def test_a_batch_ends_when_nothing_comes_any_more(orders: Broker, tmp_path: Path) -> None:
    send(range(12))
    result = run(tmp_path, spec())
    assert (result.reason, result.rows) == (EndReason.IDLE, 12)
    assert orders.depth("orders") == 0


def test_a_batch_ends_in_time(orders: Broker, tmp_path: Path) -> None:
    send(range(3))
    result = run(tmp_path, spec(max_time=timedelta(seconds=0.5), idle_time=None))
    assert (result.reason, result.rows) == (EndReason.TIME, 3)
    assert 0.5 <= result.seconds < 2
    assert orders.depth("orders") == 0


@pytest.mark.usefixtures("orders")
def test_an_empty_destination_makes_an_empty_batch(tmp_path: Path) -> None:
    result = run(tmp_path, spec())
    assert (result.reason, result.rows, result.segments) == (EndReason.IDLE, 0, 0)
    assert Manifest.read(str(result.manifest)).segments == ()


@pytest.mark.usefixtures("orders")
def test_large_bodies_make_smaller_segments(tmp_path: Path) -> None:
    send(range(100, 109))
    assert run(tmp_path, spec(segment_bytes=9)).segments == 3


@pytest.mark.usefixtures("orders")
def test_large_properties_make_smaller_segments(tmp_path: Path) -> None:
    connection = MemoryTransport().connect(SETTINGS)
    large = JmsMessage.text("", properties={"p": "x" * 999})
    connection.send(Outgoing(destination=ORDERS, message=large) for _ in range(9))
    connection.close()
    assert run(tmp_path, spec(segment_bytes=3000)).segments == 3


@pytest.fixture
def few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three messages of a digit are what fits in memory."""
    monkeypatch.setattr(batcher, "_GROUP_BYTES", 3)


@pytest.mark.usefixtures("few_bytes")
def test_a_segment_is_written_while_it_is_collected(orders: Broker, tmp_path: Path) -> None:
    send(range(10))
    seen: list[int] = []

    class Watching(SpoolBatch):
        def add(self, rows: Sequence[Row]) -> None:
            super().add(rows)
            seen.append(len(rows))
            assert orders.depth("orders") == 10, "acknowledged before it was sealed"
            assert not list(self.folder.glob("segment-*"))

    with Watching(tmp_path, "b1", source=str(ORDERS), activation="a") as batch:
        result = collect(CONNECT, batch, spec(max_messages=10), stop=threading.Event())
    assert seen == [3, 3, 3]
    assert (result.rows, result.segments) == (10, 1)
    assert [item.position for item in stored(tmp_path)] == list(range(10))
    assert bodies(tmp_path) == list(range(10))


@pytest.mark.usefixtures("few_bytes")
def test_what_was_written_of_a_segment_is_given_up_with_the_connection(
    orders: Broker, tmp_path: Path
) -> None:
    send(range(10))
    added: list[int] = []

    class Killing(SpoolBatch):
        def add(self, rows: Sequence[Row]) -> None:
            super().add(rows)
            added.append(len(rows))
            if len(added) == 2:
                orders.kill()
                orders.restart()

    with Killing(tmp_path, "b1", source=str(ORDERS), activation="a") as batch:
        result = collect(CONNECT, batch, spec(max_messages=10), stop=threading.Event())
        assert not list(batch.folder.glob(".tmp-*"))
    assert (result.rows, result.reconnects, result.duplicates) == (10, 1, 0)
    assert sorted(bodies(tmp_path)) == list(range(10))
    assert orders.depth("orders") == 0


def test_a_finished_batch_is_not_touched(orders: Broker, tmp_path: Path) -> None:
    send(range(5))
    first = run(tmp_path, spec())
    send(range(5, 9))
    again = run(tmp_path, spec())
    assert again == CollectResult(reason=EndReason.COMPLETE, manifest=first.manifest, rows=5, segments=1)
    assert orders.depth("orders") == 4


def test_a_partial_segment_is_sealed_and_acknowledged_when_nothing_comes(
    orders: Broker, tmp_path: Path
) -> None:
    send(range(3))
    stop = threading.Event()
    results: list[CollectResult] = []
    what = spec(idle_time=None)
    thread = threading.Thread(target=lambda: results.append(run(tmp_path, what, stop=stop)))
    thread.start()
    wait_for(lambda: orders.depth("orders") == 0)
    assert bodies(tmp_path) == [0, 1, 2]
    stop.set()
    thread.join()
    assert (results[0].reason, results[0].manifest, results[0].rows) == (EndReason.STOPPED, None, 3)


def test_stop_is_heeded_within_half_a_second_and_what_is_not_sealed_goes_back(
    orders: Broker, tmp_path: Path
) -> None:
    send(range(7))
    stop = threading.Event()
    results: list[CollectResult] = []
    what = spec(idle_time=None, flush_time=timedelta(seconds=60))
    thread = threading.Thread(target=lambda: results.append(run(tmp_path, what, stop=stop)))
    thread.start()
    wait_for(lambda: orders.connections == 1)
    stop.set()
    asked = time.monotonic()
    thread.join()
    assert time.monotonic() - asked < at_most(0.5)
    assert (results[0].reason, results[0].manifest, results[0].stored) == (EndReason.STOPPED, None, 0)
    assert orders.depth("orders") == 7
    assert run(tmp_path, spec()).rows == 7
    assert bodies(tmp_path) == list(range(7))


def test_stop_is_heeded_while_the_broker_is_down(orders: Broker, tmp_path: Path) -> None:
    orders.kill()
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    began = time.monotonic()
    result = run(tmp_path, spec(), stop=stop)
    assert result.reason is EndReason.STOPPED
    assert time.monotonic() - began < 0.2 + at_most(0.5)


def test_a_broker_that_never_answers_is_an_error_and_the_batch_can_go_on(
    orders: Broker, tmp_path: Path
) -> None:
    orders.kill()
    with pytest.raises(
        TransientBrokerError,
        match=r"within the batch's 0:00:00\.300000 for queue://orders: vm://batcher is down; batch ",
    ):
        run(tmp_path, spec(max_time=timedelta(seconds=0.3)))
    orders.restart()
    send(range(2))
    assert run(tmp_path, spec()).rows == 2


def test_a_lost_connection_loses_nothing_and_doubles_nothing(orders: Broker, tmp_path: Path) -> None:
    send(range(95))
    sealed: list[int] = []

    class Killing(SpoolBatch):
        def seal(self, rows: list[Row], **known: object) -> object:  # type: ignore[override]  # the same, and more
            segment = super().seal(rows, **known)  # type: ignore[arg-type]  # as they came
            sealed.append(len(rows))
            if len(sealed) in {2, 5}:
                # Between seal and commit: the worst moment.
                orders.kill()
                orders.restart()
            return segment

    with Killing(tmp_path, "b1", source=str(ORDERS), activation="a") as batch:
        result = collect(CONNECT, batch, spec(max_messages=95), stop=threading.Event())
    assert result.rows == 95
    assert result.reconnects == 2
    assert result.duplicates == 20
    assert sorted(bodies(tmp_path)) == list(range(95))
    assert orders.depth("orders") == 0


def test_the_time_that_sealing_takes_is_no_silence(orders: Broker, tmp_path: Path) -> None:
    """A slow disk, or a slow commit: nobody looked meanwhile whether something came."""
    send(range(1))

    class Slow(SpoolBatch):
        def seal(self, rows: list[Row], **known: object) -> object:  # type: ignore[override]  # the same, and more
            if not self.segments:
                send(range(1, 30))
                time.sleep(0.4)  # longer than the idle time
            return super().seal(rows, **known)  # type: ignore[arg-type]  # as they came

    with Slow(tmp_path, "b1", source=str(ORDERS), activation="a") as batch:
        result = collect(CONNECT, batch, spec(segment_messages=100), stop=threading.Event())
    assert (result.reason, result.rows) == (EndReason.IDLE, 30)
    assert orders.depth("orders") == 0


def test_a_loss_that_is_noticed_late_is_no_silence(orders: Broker, tmp_path: Path) -> None:
    """What is sealed is committed in vain; nobody can say since when nothing came."""
    send(range(3))

    class Breaking(SpoolBatch):
        def seal(self, rows: list[Row], **known: object) -> object:  # type: ignore[override]  # the same, and more
            segment = super().seal(rows, **known)  # type: ignore[arg-type]  # as they came
            if len(self.segments) == 1:
                orders.kill()
                orders.restart()
                send(range(3, 9))
                time.sleep(0.4)  # longer than the idle time
            return segment

    with Breaking(tmp_path, "b1", source=str(ORDERS), activation="a") as batch:
        result = collect(CONNECT, batch, spec(), stop=threading.Event())
    assert (result.reason, result.rows, result.reconnects) == (EndReason.IDLE, 9, 1)
    assert orders.depth("orders") == 0


def test_the_pause_after_a_fruitless_connection_is_no_silence(orders: Broker, tmp_path: Path) -> None:
    """It is longer than the idle time; what has come to the broker meanwhile is asked for."""

    class Breaking:
        def __init__(self, connection: Connection) -> None:
            self._connection = connection

        def __getattr__(self, name: str) -> object:
            return getattr(self._connection, name)

        def consume(self, *_: object) -> object:
            orders.restart()
            send(range(5))
            raise ConnectionLostError("it broke")

    first = iter([True])

    def connect(*, stop: threading.Event, on_failure: Callable[[JmsError], None]) -> Connection | None:
        connection = CONNECT(stop=stop, on_failure=on_failure)
        assert connection is not None
        return Breaking(connection) if next(first, False) else connection  # type: ignore[return-value]

    result = run(tmp_path, spec(), connect=connect)
    assert (result.rows, result.reconnects) == (5, 1)
    assert orders.depth("orders") == 0


def test_what_was_sealed_but_not_acknowledged_is_dropped_and_acknowledged_by_the_next_attempt(
    orders: Broker, tmp_path: Path
) -> None:
    send(range(12))
    connection = MemoryTransport().connect(SETTINGS)
    with open_batch(tmp_path) as batch:
        batch.seal([Row(message, 0) for message in list(connection.browse(ORDERS))[:8]])
    connection.close()
    result = run(tmp_path, spec())
    assert (result.received, result.stored, result.duplicates, result.rows) == (12, 4, 8, 12)
    assert bodies(tmp_path) == list(range(12))
    assert orders.depth("orders") == 0


def test_the_next_batch_of_the_activation_drops_them_too(orders: Broker, tmp_path: Path) -> None:
    send(range(5))
    connection = MemoryTransport().connect(SETTINGS)
    with open_batch(tmp_path, "b1") as batch:
        batch.seal([Row(message, 0) for message in connection.browse(ORDERS)])
        batch.complete()
    connection.close()
    result = run(tmp_path, spec(), name="b2")
    assert (result.duplicates, result.stored) == (5, 0)
    assert orders.depth("orders") == 0


def test_another_message_under_an_id_that_the_producer_repeats_is_stored(
    orders: Broker, tmp_path: Path
) -> None:
    """As on RabbitMQ, where a message that was handed back once is flagged ever after."""
    send(range(2))
    transport = MemoryTransport()
    connection = transport.connect(SETTINGS)
    first, second = connection.browse(ORDERS)
    seen: list[Received] = []
    consumer = connection.consume(Subscription(destination=ORDERS), seen.append)
    wait_for(lambda: len(seen) == 2)
    consumer.close()
    connection.close()
    with open_batch(tmp_path) as batch:
        batch.seal([Row(first, 0), Row(replace(second, body="another"), 0)])

    def open_one(**_: object) -> Connection:
        return LesserConnection(orders, replace(CAPABILITIES, stable_message_id=False))

    result = run(tmp_path, spec(), connect=open_one)
    assert (result.received, result.duplicates, result.stored) == (2, 1, 1)
    assert [item.message.body for item in stored(tmp_path)] == ["0", "another", "1"]


def test_equal_messages_of_a_producer_that_makes_the_ids_are_all_stored(
    orders: Broker, tmp_path: Path
) -> None:
    """A browse has flagged them all. Two batches collect the queue."""
    equal = replace(JmsMessage.text("paid"), message_id="order-7", destination=ORDERS)
    queue = orders.queue(ORDERS.name)
    for number in range(5):
        entry = QueuedMessage(equal, number)
        entry.deliveries = 1
        with orders.lock:
            queue.add(entry)

    def open_one(**_: object) -> Connection:
        return LesserConnection(orders, replace(CAPABILITIES, stable_message_id=False))

    first = run(tmp_path, spec(max_messages=3, segment_messages=2), connect=open_one)
    second = run(tmp_path, spec(), connect=open_one, name="b2")
    assert [(each.received, each.duplicates, each.stored) for each in (first, second)] == [
        (3, 0, 3),
        (2, 0, 2),
    ]
    assert orders.depth("orders") == 0


def test_nothing_is_acknowledged_when_sealing_fails(orders: Broker, tmp_path: Path) -> None:
    send(range(25))

    class Full(SpoolBatch):
        def seal(self, rows: list[Row], **known: object) -> object:  # type: ignore[override]  # the same, but refusing
            if self.segments:
                raise SpoolError("segment-000001.parquet: can't be written: No space left on device")
            return super().seal(rows, **known)  # type: ignore[arg-type]  # as they came

    with (
        Full(tmp_path, "b1", source=str(ORDERS), activation="a") as batch,
        pytest.raises(SpoolError, match="No space left"),
    ):
        collect(CONNECT, batch, spec(), stop=threading.Event())
    assert orders.depth("orders") == 15
    assert run(tmp_path, spec()).rows == 25
    assert bodies(tmp_path) == list(range(25))


class Spoiling:
    """A memory connection where every third message can't be decoded."""

    def __init__(self, connection: Connection, *, salvage: bool, stable_ids: bool = True) -> None:
        self._connection = connection
        self._salvage = salvage
        self._stable_ids = stable_ids

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)

    def consume(self, subscription: Subscription, on_received: Callable[[Received], None]) -> object:
        def spoil(received: Received) -> None:
            message = received.message
            if int(str(message.body)) % 3 == 0:
                body = b"\xff" + str(message.body).encode()
                raw = JmsMessage.bytes(body, message.properties, message_id=message.message_id)
                salvage = (lambda: raw) if self._salvage else None
                received = Received(received.consumer, received.token, received.generation, fail, salvage)
            on_received(received)

        def fail() -> JmsMessage:
            raise ConfigurationError("byte 0 is not UTF-8")

        return self._connection.consume(subscription, spoil)


def test_messages_that_cannot_be_decoded_are_stored_as_they_came(orders: Broker, tmp_path: Path) -> None:
    send(range(9))

    def connect(*, stop: threading.Event, on_failure: Callable[[JmsError], None]) -> Connection | None:
        connection = CONNECT(stop=stop, on_failure=on_failure)
        return None if connection is None else Spoiling(connection, salvage=True)  # type: ignore[return-value]

    result = run(tmp_path, spec(), connect=connect)
    assert (result.rows, result.undecodable, result.left) == (9, 3, 0)
    spoiled = [item for item in stored(tmp_path) if item.undecodable]
    assert [(item.message.body_kind, item.message.body, item.undecodable) for item in spoiled] == [
        (BodyKind.BYTES, body, "the message can't be decoded: ConfigurationError: byte 0 is not UTF-8")
        for body in (b"\xff0", b"\xff3", b"\xff6")
    ]
    assert orders.depth("orders") == 0


def test_messages_that_cannot_be_decoded_or_copied_stay_at_the_broker(orders: Broker, tmp_path: Path) -> None:
    send(range(9))

    def connect(*, stop: threading.Event, on_failure: Callable[[JmsError], None]) -> Connection | None:
        connection = CONNECT(stop=stop, on_failure=on_failure)
        return None if connection is None else Spoiling(connection, salvage=False)  # type: ignore[return-value]

    result = run(tmp_path, spec(), connect=connect)
    assert (result.rows, result.undecodable, result.left) == (6, 0, 3)
    assert orders.depth("orders") == 3


@pytest.mark.usefixtures("orders")
def test_what_the_broker_cannot_do_is_an_error(tmp_path: Path) -> None:
    def connect(*, stop: threading.Event, on_failure: Callable[[JmsError], None]) -> Connection | None:
        connection = CONNECT(stop=stop, on_failure=on_failure)
        assert connection is not None

        def refuse(*_: object) -> object:
            raise CapabilityError("the selector needs the capability 'selector'")

        connection.consume = refuse  # type: ignore[method-assign,assignment]  # a broker without selectors
        return connection

    with pytest.raises(CapabilityError):
        run(tmp_path, spec(), connect=connect)


def test_a_spec_tells_all_its_faults() -> None:
    with pytest.raises(ConfigurationError) as caught:
        spec(max_time=None, segment_messages=0, segment_bytes=0, flush_time=timedelta(0))
    assert caught.value.faults == (
        "a batch needs max_messages or max_time, or it would never end",
        "segment_messages is 0; expected 1 to 10000",
        "segment_bytes is 0; expected at least 1",
        "flush_time is 0:00:00; expected more than 0",
    )


def test_a_suspended_collection_receives_nothing_and_idleness_does_not_end_it(
    orders: Broker, tmp_path: Path
) -> None:
    control, results = CollectionControl(), list[CollectResult]()
    send(range(5))

    def work() -> None:
        with open_batch(tmp_path) as batch:
            more = {"stop": threading.Event(), "control": control}
            results.append(collect(CONNECT, batch, spec(max_messages=8), **more))  # type: ignore[arg-type]

    thread = threading.Thread(target=work)
    thread.start()
    wait_for(lambda: control.received == 5)
    control.suspended.set()
    wait_for(lambda: not control.connected)
    assert orders.depth("orders") == 0, "what was received is sealed"
    send(range(5, 8))
    thread.join(0.5)  # longer than idle_time
    assert thread.is_alive()
    assert orders.depth("orders") == 3
    control.suspended.clear()
    thread.join(10)
    (result,) = results
    assert (result.reason, result.rows) == (EndReason.COUNT, 8)
    assert (control.received, control.stored) == (8, 8)


def test_a_collection_that_stays_suspended_ends_in_time_without_a_fault(
    orders: Broker, tmp_path: Path
) -> None:
    send(range(1))
    control = CollectionControl()
    control.suspended.set()
    with open_batch(tmp_path) as batch:
        what = spec(max_time=timedelta(seconds=0.3))
        result = collect(CONNECT, batch, what, stop=threading.Event(), control=control)
    assert (result.reason, result.rows, orders.depth("orders")) == (EndReason.TIME, 0, 1)


def test_a_drained_collection_finishes_its_batch(orders: Broker, tmp_path: Path) -> None:
    send(range(5))

    class Draining(CollectionControl):
        def count(self, *, received: int, stored: int, in_flight: int) -> None:
            super().count(received=received, stored=stored, in_flight=in_flight)
            if self.received == 5:
                self.drained.set()

    control = Draining()
    with open_batch(tmp_path) as batch:
        result = collect(CONNECT, batch, spec(idle_time=None), stop=threading.Event(), control=control)
    assert (result.reason, result.rows, orders.depth("orders")) == (EndReason.DRAINED, 5, 0)
    Manifest.read(str(result.manifest)).verify()
