"""Batches from real brokers, in the order of the queue."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq

from airflow_provider_jmsjca import (
    ConfigurationError,
    Connection,
    ConnectionSettings,
    Destination,
    JmsError,
    JmsMessage,
    Manifest,
    Outgoing,
    Segment,
    Subscription,
    connect,
)
from tests.internals.collecting import BatchSpec, CollectResult, EndReason, collect
from tests.internals.engine import open_connection
from tests.internals.spool import Row, SpoolBatch, SpoolPath
from tests.internals.transports import Received
from tests.servers.broker import Broker
from tests.servers.proxy import TcpProxy

COUNT, SEGMENT, LIMIT = 700, 250, 600
FEW = 20


def test_a_queue_goes_into_batches_in_its_order_and_is_empty_then(broker: Broker, tmp_path: Path) -> None:
    source = Destination.queue(f"collect.{uuid.uuid4().hex[:8]}")
    connection = connect(broker.settings())
    connection.send(Outgoing(destination=source, message=JmsMessage.bytes(b"%d" % n)) for n in range(COUNT))
    connection.close()

    def run(batch_id: str) -> CollectResult:
        spec = BatchSpec(
            subscription=Subscription(destination=source),
            max_messages=LIMIT,
            idle_time=timedelta(seconds=3),
            segment_messages=SEGMENT,
        )
        with SpoolBatch(tmp_path, batch_id, source=str(source), activation="a") as batch:
            return collect(partial(open_connection, broker.settings()), batch, spec, stop=threading.Event())

    def numbers(result: CollectResult) -> list[int]:
        manifest = Manifest.read(str(result.manifest))
        manifest.verify()
        return [
            int(body)
            for path in manifest.segment_paths()
            for body in pq.ParquetFile(path).read(columns=["body"]).column(0).to_pylist()
        ]

    first, second, third = run("b1"), run("b2"), run("b3")
    assert (first.reason, first.rows, first.duplicates) == (EndReason.COUNT, LIMIT, 0)
    assert numbers(first) == list(range(LIMIT))
    assert (second.reason, second.rows, second.duplicates) == (EndReason.IDLE, COUNT - LIMIT, 0)
    assert numbers(second) == list(range(LIMIT, COUNT))
    assert third.received == 0


def few_on(broker: Broker, idle_time: timedelta) -> BatchSpec:
    """Send a few messages to a queue of their own; return a batch of them, in segments of six."""
    source = Destination.queue(f"few.{uuid.uuid4().hex[:8]}")
    connection = connect(broker.settings())
    connection.send(Outgoing(destination=source, message=JmsMessage.text(str(n))) for n in range(FEW))
    connection.close()
    return BatchSpec(
        subscription=Subscription(destination=source), idle_time=idle_time, segment_messages=6,
        max_time=timedelta(minutes=2),
    )  # fmt: skip


class Spoiling:
    """A connection where one message can neither be decoded nor copied."""

    def __init__(self, connection: Connection, body: str) -> None:
        self._connection = connection
        self._body = body

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)

    def consume(self, subscription: Subscription, on_received: Callable[[Received], None]) -> object:
        def fail() -> JmsMessage:
            raise ConfigurationError("its body can't be read")

        def spoil(received: Received) -> None:
            if received.message.body == self._body:
                received = Received(received.consumer, received.token, received.generation, fail)
            on_received(received)

        return self._connection.consume(subscription, spoil)


def test_a_message_that_stays_holds_up_no_other(broker: Broker, tmp_path: Path) -> None:
    """Also where one acknowledgement counts for all before it: what stays isn't acknowledged with them."""
    spec = few_on(broker, idle_time=timedelta(seconds=3))
    source = str(spec.subscription.destination)

    def spoiling(*, stop: threading.Event, on_failure: Callable[[JmsError], None]) -> Connection | None:
        made = open_connection(broker.settings(), stop=stop, on_failure=on_failure)
        return None if made is None else Spoiling(made, "8")  # type: ignore[return-value]

    with SpoolBatch(tmp_path, "b", source=source, activation="a") as batch:
        result = collect(spoiling, batch, spec, stop=threading.Event())
    assert (result.rows, result.left) == (FEW - 1, 1)
    with SpoolBatch(tmp_path, "b2", source=source, activation="a") as batch:
        rest = collect(partial(open_connection, broker.settings()), batch, spec, stop=threading.Event())
    assert (rest.rows, rest.duplicates) == (1, 0)


class Slow(SpoolBatch):
    """A batch whose segments take longer to seal than its collector waits for messages."""

    def seal(self, rows: Sequence[Row] = (), *, only_if_new: Collection[str] = ()) -> Segment:
        time.sleep(2)
        return super().seal(rows, only_if_new=only_if_new)


def test_while_a_segment_is_sealed_the_broker_is_not_silent(broker: Broker, tmp_path: Path) -> None:
    """Where all of the prefetch waits for the commit, nothing more can come before it."""
    spec = few_on(broker, idle_time=timedelta(seconds=1))
    with Slow(tmp_path, "b", source=str(spec.subscription.destination), activation="a") as batch:
        result = collect(partial(open_connection, broker.settings()), batch, spec, stop=threading.Event())
    assert (result.reason, result.rows) == (EndReason.IDLE, FEW)


def test_messages_larger_than_is_sent_ahead_fill_segments(broker: Broker, tmp_path: Path) -> None:
    """Artemis sends no more once it has sent the bytes asked for, however few messages these are."""
    source = Destination.queue(f"collect.{uuid.uuid4().hex[:8]}")
    body = JmsMessage.bytes(bytes(1_000_000))
    connection = connect(broker.settings())
    connection.send(Outgoing(destination=source, message=body) for _ in range(40))
    connection.close()
    spec = BatchSpec(
        subscription=Subscription(destination=source),
        max_messages=40,
        max_time=timedelta(seconds=50),
        flush_time=timedelta(minutes=1),
    )
    with SpoolBatch(tmp_path, "b", source=str(source), activation="a") as batch:
        result = collect(partial(open_connection, broker.settings()), batch, spec, stop=threading.Event())
    assert (result.reason, result.rows) == (EndReason.COUNT, 40)
    assert result.segments <= 2


class Interrupted(SpoolBatch):
    """A batch whose collector loses the broker once, right before or right after it seals a segment."""

    proxy: TcpProxy
    is_cut_first = False

    def __init__(self, folder: Path, batch_id: str, **given: str) -> None:
        super().__init__(folder, batch_id, source=given["source"], activation="a")
        self.is_cut, self.may_go_on = threading.Event(), threading.Event()

    def seal(self, rows: Sequence[Row] = (), *, only_if_new: Collection[str] = ()) -> Segment:
        if self.is_cut_first:
            self._lose()
        sealed = super().seal(rows, only_if_new=only_if_new)
        self._lose()
        return sealed

    def _lose(self) -> None:
        if not self.is_cut.is_set():
            self.proxy.freeze()
            self.proxy.cut()
            self.is_cut.set()
            self.may_go_on.wait(60)


class Knowing(SpoolBatch):
    """A batch whose collector ends once it has recognised so many messages."""

    def __init__(self, folder: Path, batch_id: str, **given: str) -> None:
        super().__init__(folder, batch_id, source=given["source"], activation="a")
        self.stop, self.left = threading.Event(), FEW

    def segments_with(self, key: str) -> list[SpoolPath]:
        found = super().segments_with(key)
        self.left -= bool(found)
        if self.left == 0:
            self.stop.set()
        return found


def two_collectors(broker: Broker, folder: Path, *, is_cut_first: bool) -> tuple[int, int]:
    """Return how many messages each stores: slots of a stream, or parallel tasks, of one queue.

    The first loses its connection with all messages in hand, so the broker gives them to the second.
    """
    queue = Destination.queue(f"collect.{uuid.uuid4().hex[:8]}")
    connection = connect(broker.settings())
    connection.send(Outgoing(destination=queue, message=JmsMessage.bytes(b"%d" % n)) for n in range(FEW))
    connection.close()

    def collected(batch: SpoolBatch, settings: ConnectionSettings, stop: threading.Event) -> CollectResult:
        asked = Subscription(destination=queue)
        spec = BatchSpec(subscription=asked, max_messages=FEW, idle_time=timedelta(seconds=1))
        spec = spec if batch is first else replace(spec, idle_time=None)
        return collect(partial(open_connection, settings), batch, spec, stop=stop)

    with (
        TcpProxy(broker.address()) as proxy,
        Interrupted(folder, "b1", source=str(queue)) as first,
        Knowing(folder, "b2", source=str(queue)) as second,
        ThreadPoolExecutor(1) as thread,
    ):
        second.may_contain("nothing yet")  # from now on it has the ids of other batches in memory
        first.proxy, first.is_cut_first = proxy, is_cut_first
        through = replace(broker.settings(), hosts=(proxy.address,))
        running = thread.submit(collected, first, through, threading.Event())
        try:
            assert first.is_cut.wait(60)
            there = collected(second, broker.settings(), second.stop)
        finally:
            proxy.thaw()
            first.may_go_on.set()
        return running.result(60).rows, there.rows


def test_what_another_collector_has_sealed_meanwhile_is_stored_once(broker: Broker, tmp_path: Path) -> None:
    assert two_collectors(broker, tmp_path, is_cut_first=False) == (FEW, 0)


def test_of_two_collectors_with_a_message_in_hand_one_stores_it(activemq: Broker, tmp_path: Path) -> None:
    assert two_collectors(activemq, tmp_path, is_cut_first=True) == (0, FEW)
