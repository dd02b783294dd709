"""Hostile producers: whatever they send, each good message among it is handled once and nothing is forged.

A bad one is refused by the broker when it is sent, handled as what it says, dead-lettered, stored as
undecodable, or left on the queue by a session that raised for it: none is lost or holds up those behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from airflow_provider_jmsjca import (
    Destination,
    JmsConnection,
    JmsMessage,
    Manifest,
    PoisonMessageError,
    Subscription,
    connect,
    message_from_event,
)
from tests.airflow.triggers.test_activation import triggerer
from tests.airflow.triggers.waiting import run
from tests.broker.listening import activation
from tests.hostile.producers import GOOD, Bad, Producer, flood, kinds, kinds_in, numbers_in
from tests.internals.collecting import BatchSpec, EndReason, collect
from tests.internals.engine import open_connection
from tests.internals.spool import SpoolBatch
from tests.pace import at_most
from tests.servers.broker import Broker

LONG = timedelta(seconds=90)
MOVING = "3:move(queue:$.dlq)"
# The three giants are 3 MB each; they may be there several times at once, and as text, bytes and frames.
MIB_MORE = 200


def idle() -> timedelta:
    """Return how long nothing comes once all is there."""
    return timedelta(seconds=at_most(0.7))


class Accounts:
    """What became of the messages of one flood."""

    def __init__(self) -> None:
        self.good: Counter[int] = Counter()
        self.bad: Counter[str] = Counter()
        self.forged: list[str] = []

    def note(self, body: Any, properties: Any) -> None:
        """Note a message that somebody got; one that nobody sent is forged."""
        data = body if isinstance(body, bytes) else str(body).encode("utf-8", "surrogatepass")
        number = properties.get("number")
        if number is not None and data == f"good-{number}".encode():
            self.good[int(number)] += 1
        elif kind := properties.get("kind") or next(iter(kinds_in(data)), None):
            self.bad[str(kind)] += 1
        else:
            self.forged.append(f"{data[:80]!r} {dict(properties)!r:.200}")

    def balance(self, taken: dict[str, Bad], left: bytes) -> None:
        """Assert that everything is accounted for.

        Args:
            taken: What the broker took of the bad ones.
            left: What is on other queues, as it stands on the wire.
        """
        assert self.forged == []
        missing = set(range(GOOD)) - set(self.good)
        twice = {number: count for number, count in self.good.items() if count > 1}
        assert (missing, twice, numbers_in(left)) == (set(), {}, set())
        lost = {name for name, each in taken.items() if not each.may_vanish}
        lost -= set(self.bad) | kinds_in(left)
        assert lost == set()


@contextlib.contextmanager
def bounded_memory() -> Iterator[None]:
    """Assert that the process doesn't grow by more than `MIB_MORE` meanwhile."""
    process, over = psutil.Process(), threading.Event()
    before = highest = process.memory_info().rss

    def watch() -> None:
        nonlocal highest
        while not over.wait(0.02):
            highest = max(highest, process.memory_info().rss)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()
    assert (highest - before) >> 20 < MIB_MORE


def left_on(broker: Broker, *queues: str) -> bytes:
    found = b""
    for queue in queues:
        with Producer(broker, queue) as producer:
            found += producer.drain()
    return found


@pytest.mark.parametrize("mode", ["serial", "cc", "sync"])
def test_a_listener(broker: Broker, queue_name: str, mode: str) -> None:
    taken, accounts, lock = flood(broker, queue_name), Accounts(), threading.Lock()

    def handle(delivery: Any) -> None:
        with lock:
            accounts.note(delivery.body, delivery.message.properties)

    pool = {} if mode == "serial" else {"endpoint_pool_max_size": 4}
    listener = activation(
        broker.settings(), queue_name, handle, redelivery_handling=MOVING, concurrency_mode=mode, **pool
    )
    with bounded_memory():
        listener.run(idle_for=idle(), run_for=LONG)
    assert left_on(broker, queue_name) == b""
    accounts.balance(taken, left_on(broker, f"{queue_name}.dlq"))


def test_a_trigger(broker: Broker, queue_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each event is JSON, and the message is read back from the event or the spool."""
    taken, accounts = flood(broker, queue_name), Accounts()
    host, port = broker.address()
    login = {"login": broker.username, "password": broker.password}
    fields = {"conn_type": "jms", "host": host, "port": port, **login}
    monkeypatch.setenv("AIRFLOW_CONN_JMS_TEST", json.dumps(fields))
    monkeypatch.setenv("AIRFLOW__JMSJCA__SPOOL_PATH", str(tmp_path))

    async def work() -> None:
        async with triggerer() as running:
            watcher = running.watch(
                destination=f"queue://{queue_name}",
                redelivery_handling=MOVING,
                dead_letter_destination=f"queue://{queue_name}.dlq",
            )
            since, noted = time.monotonic(), 0
            while not noted or time.monotonic() - since < idle().total_seconds():
                await asyncio.sleep(0.02)
                for event in watcher.events[noted:]:
                    message = message_from_event(json.loads(json.dumps(event.payload)))
                    accounts.note(message.body, message.properties)
                    since, noted = time.monotonic(), noted + 1
            assert watcher.failure is None

    with bounded_memory():
        run(work())
    assert left_on(broker, queue_name) == b""
    accounts.balance(taken, left_on(broker, f"{queue_name}.dlq"))


def test_a_collector(broker: Broker, queue_name: str, tmp_path: Path) -> None:
    taken, accounts = flood(broker, queue_name), Accounts()
    spec = BatchSpec(
        subscription=Subscription(destination=Destination.queue(queue_name)),
        max_messages=10 * GOOD,
        idle_time=idle(),
        segment_messages=250,
    )
    with bounded_memory(), SpoolBatch(tmp_path, "b", source=queue_name, activation="a") as batch:
        result = collect(partial(open_connection, broker.settings()), batch, spec, stop=threading.Event())
    assert result.reason is EndReason.IDLE
    manifest = Manifest.read(str(result.manifest))
    manifest.verify()
    for path in manifest.segment_paths():
        for row in pq.ParquetFile(path).read(columns=["body", "properties"]).to_pylist():
            accounts.note(row["body"] or b"", dict(row["properties"]))
    assert left_on(broker, queue_name) == b""
    accounts.balance(taken, b"")


def test_a_look(activemq: Broker, queue_name: str) -> None:
    """Whatever stands first on a queue, who looks sees that something is there."""
    taken = []
    for each in kinds(f"/queue/{queue_name}"):
        with Producer(activemq, f"{queue_name}.{each.name}") as hostile:
            if hostile.send_bad(each) and not each.may_vanish:
                taken.append(each.name)
    assert len(taken) >= 50
    with bounded_memory(), contextlib.closing(connect(activemq.settings())) as connection:
        for begin in range(0, len(taken), 10):
            some = taken[begin : begin + 10]
            queues = [(Destination.queue(f"{queue_name}.{name}"), None) for name in some]
            found = connection.first_messages(queues)
            seen = [
                name for name, message in zip(some, found, strict=True) if isinstance(message, JmsMessage)
            ]
            # The broker keeps the one for later, and the other never comes here: it names a queue itself.
            assert set(some) - set(seen) <= {"delay_text", "duplicate_destination"}


def test_a_session(broker: Broker, queue_name: str) -> None:
    """It raises for what can't be decoded and leaves that on the queue."""
    taken, accounts, refused = flood(broker, queue_name), Accounts(), 0
    queue = Destination.queue(queue_name)
    with (
        bounded_memory(),
        JmsConnection(connect(broker.settings())) as connection,
        connection.session() as session,
    ):
        while True:
            try:
                message = session.receive(queue, timeout=idle().total_seconds())
            except PoisonMessageError:
                refused += 1
                assert refused < 10 * len(taken), "the same message is refused again and again"
                continue
            if message is None:
                break
            accounts.note(message.body, message.properties)
    accounts.balance(taken, left_on(broker, queue_name))
