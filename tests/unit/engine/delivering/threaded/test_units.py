"""Batches and hold-until-ack."""

from __future__ import annotations

import queue
import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_jmsjca.core.copies.load_balancing import with_origin
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.delivering.delivery import Delivery
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Outgoing, Received, Subscription
from airflow_provider_jmsjca.transports.memory.connection import (
    CAPABILITIES,
    MemoryConnection,
    MemoryConsumer,
)
from tests.unit.engine.listening import ORDERS, QUICK, Site, nothing, until

POOLED: tuple[dict[str, Any], ...] = (
    {"concurrency_mode": "cc", "endpoint_pool_max_size": 2},
    {"concurrency_mode": "sync", "endpoint_pool_max_size": 2},
)
every_mode = pytest.mark.parametrize("mode", POOLED, ids=lambda mode: mode["concurrency_mode"])
ONE_UNIT = {"concurrency_mode": "sync", "endpoint_pool_max_size": 1}


# -- batches ----------------------------------------------------------------------------------------------


def test_batches_end_with_end_of_batch(site: Site) -> None:
    """J23, J183, J185, J186, J187, J188, J191: full ones, and the last when nothing more comes."""
    site.send(*"abcdefg")
    places: list[tuple[Any, int | None, int | None]] = []

    def place(delivery: Delivery) -> None:
        end = delivery.get_object("JMSJCA.EndOfBatch") is True
        body = "END" if end else delivery.body
        places.append((body, delivery.batch_index, delivery.batch_size))

    counts = site.activation(place, batch_size=3, batch_idle_timeout=1, **ONE_UNIT).run(idle_for=QUICK)
    assert places == [
        ("a", 0, 3), ("b", 1, 3), ("c", 2, 3), ("END", 3, 3),
        ("d", 0, 3), ("e", 1, 3), ("f", 2, 3), ("END", 3, 3),
        ("g", 0, 3), ("END", 1, 3),
    ]  # fmt: skip
    assert (counts.delivered, counts.committed) == (7, 7)
    assert site.broker.depth("orders") == 0


@every_mode
def test_a_batch_keeps_its_thread(site: Site, mode: dict[str, Any]) -> None:
    """J190, J203."""
    site.send(*map(str, range(40)))
    units: dict[int, set[int]] = {}
    lock = threading.Lock()

    def where(delivery: Delivery) -> None:
        with lock:
            units.setdefault(delivery.unit, set()).add(threading.get_ident())

    counts = site.activation(where, batch_size=4, **mode).run(idle_for=timedelta(seconds=0.3))
    assert counts.committed == 40
    assert all(len(threads) == 1 for threads in units.values())


def test_an_exception_rolls_the_whole_batch_back(site: Site) -> None:
    """J185, J188, J189: EndOfBatch comes all the same, and says what becomes of the batch."""
    site.send(*"abc")
    ends: list[bool] = []

    def fail_once(delivery: Delivery) -> None:
        if delivery.end_of_batch:
            ends.append(delivery.rollback_only)
        else:
            delivery.send("queue://out", JmsMessage.text(delivery.body))
            if delivery.body == "b" and delivery.redelivery_count == 0:
                raise ValueError("b")

    counts = site.activation(fail_once, batch_size=3, **ONE_UNIT).run(idle_for=QUICK)
    assert site.got == ["a", "b", "END", "a", "b", "c", "END"]
    assert ends == [True, False]
    assert site.bodies("out") == ["a", "b", "c"]
    assert (counts.rolled_back, counts.committed) == (2, 3)
    assert site.broker.depth("orders") == 0


def test_rollback_in_end_of_batch(site: Site) -> None:
    """J189."""
    site.send(*"ab")
    rounds: list[int] = []

    def refuse_first(delivery: Delivery) -> None:
        if delivery.end_of_batch:
            rounds.append(delivery.batch_index or 0)
            if len(rounds) == 1:
                delivery.set_rollback_only()

    site.activation(refuse_first, batch_size=2, **ONE_UNIT).run(idle_for=QUICK)
    assert site.attempts == [("a", 0), ("b", 0), ("END", 0), ("a", 1), ("b", 1), ("END", 0)]
    assert rounds == [2, 2]


def test_a_timed_flush_ends_a_batch(site: Site) -> None:
    """Messages trickle in faster than the idle time."""
    stop = threading.Event()

    def trickle() -> None:
        while not stop.wait(0.03):
            site.send("x")

    sender = threading.Thread(target=trickle)
    sender.start()
    try:
        activation = site.activation(
            nothing, batch_size=1000, batch_timeout=0.2, batch_idle_timeout=5, **ONE_UNIT
        )
        activation.start()
        until(lambda: activation.counts.committed > 0)
    finally:
        stop.set()
        sender.join()


def test_poison_leaves_a_batch_alone(site: Site) -> None:
    """J189: what the handling moves doesn't travel with the batch again."""
    site.send(*"abc")

    def fail_b(delivery: Delivery) -> None:
        if not delivery.end_of_batch and delivery.body == "b":
            raise KeyError("b")

    counts = site.activation(
        fail_b, batch_size=3, non_retryable=["KeyError"], dead_letter_destination="queue://dead", **ONE_UNIT
    ).run(idle_for=QUICK)
    assert site.bodies("dead") == ["b"]
    assert (counts.moved, counts.committed) == (1, 2)
    assert site.broker.depth("orders") == 0


@pytest.fixture
def cumulative(monkeypatch: pytest.MonkeyPatch) -> list[Subscription]:
    """Let the broker acknowledge cumulatively, and fail whoever settles out of order; return what is open."""
    opened: list[Subscription] = []
    settle, start = MemoryConsumer.settle, MemoryConsumer.__init__

    def noting(self: MemoryConsumer, *args: Any, **named: Any) -> None:
        start(self, *args, **named)
        opened.append(self.subscription)

    def in_order(self: MemoryConsumer, received: Received) -> None:
        delivery = self._find(received)
        if self.subscription.in_order and delivery is not None and delivery.unit is not None:
            first = min(self._unsettled, key=lambda each: each.entry.position)
            assert delivery is first, "settled out of order"
        settle(self, received)

    monkeypatch.setattr(MemoryConsumer, "__init__", noting)
    monkeypatch.setattr(MemoryConsumer, "settle", in_order)
    monkeypatch.setattr(MemoryConsumer, "settles_in_order", property(lambda self: self.subscription.in_order))
    cumulates = replace(CAPABILITIES, cumulative_acknowledgement=True)
    monkeypatch.setattr(MemoryConnection, "capabilities", cumulates)
    return opened


@pytest.mark.parametrize("mode", [*POOLED, ONE_UNIT], ids=["cc", "sync", "one"])
def test_each_unit_settles_the_messages_of_a_consumer_in_order(
    site: Site, cumulative: list[Subscription], mode: dict[str, Any]
) -> None:
    """With rollbacks, dead letters out of the middle of batches, and messages that are dropped as handled."""
    repeated = [replace(JmsMessage.text("again"), message_id=f"ID:{each}") for each in (1, 1, 2, 1)]
    fresh = [replace(JmsMessage.text(str(each)), message_id=f"ID:new {each}") for each in range(40)]
    failed: set[Any] = set()

    def handle(delivery: Delivery) -> None:
        if delivery.end_of_batch:
            return
        if delivery.body in {"7", "8", "31"}:
            raise KeyError(delivery.body)
        if delivery.body == "20" and not failed:
            failed.add("20")
            raise ValueError("20")

    activation = site.activation(
        handle,
        batch_size=5,
        batch_idle_timeout=0.02,
        non_retryable=["KeyError"],
        dead_letter_destination="queue://dead",
        duplicate_event_elimination=True,
        balanced=True,
        **mode,
    )
    connection = connect(site.settings)
    for one in (*fresh[:10], *repeated[:2], *fresh[10:20], *repeated[2:], *fresh[20:]):
        connection.send([Outgoing(destination=ORDERS, message=with_origin(one, one, ORDERS))])
    connection.close()
    counts = activation.run(idle_for=QUICK, run_for=timedelta(seconds=20))
    units, size = mode["endpoint_pool_max_size"], 5
    assert [(each.in_order, each.prefetch) for each in cumulative] == [
        (True, size if units > 1 else 10)
    ] * units
    assert sorted(site.bodies("dead")) == ["31", "7", "8"]
    assert (counts.committed, counts.moved, counts.failed) == (39, 3, 0)
    assert site.broker.depth("orders") == 0


# -- hold-until-ack ---------------------------------------------------------------------------------------


@every_mode
def test_held_until_acknowledged_by_another_thread(site: Site, mode: dict[str, Any]) -> None:
    """J61, J24, J192, J195, J196, J199."""
    site.send(*"ab")
    held: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
    activation = site.activation(held.put, hold_until_ack="1", **mode)
    activation.start()
    first, second = held.get(timeout=5), held.get(timeout=5)
    assert activation.counts.committed == 0
    assert site.broker.depth("orders") == 2
    first.send("queue://out", JmsMessage.text("done"))
    first.acknowledge()
    until(lambda: site.bodies("out") == ["done"])
    assert site.broker.depth("orders") == 1
    second.acknowledge()
    until(lambda: activation.counts.committed == 2)


def test_rollback_while_held(site: Site) -> None:
    """J194: setRollbackOnly, then acknowledge()."""
    site.send("a")
    held: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
    activation = site.activation(held.put, hold_until_ack=True, **ONE_UNIT)
    activation.start()
    first = held.get(timeout=5)
    first.set_property("JMSJCA.setRollbackOnly", True)
    first.acknowledge()
    second = held.get(timeout=5)
    assert second.redelivery_count == 1
    second.acknowledge()
    until(lambda: activation.counts.committed == 1)


def test_an_exception_counts_as_rollback_and_acknowledgement(site: Site) -> None:
    """J197."""
    site.send("a")

    def fail_once(delivery: Delivery) -> None:
        if delivery.redelivery_count == 0:
            raise ValueError("once")
        delivery.acknowledge()

    counts = site.activation(fail_once, hold_until_ack=True, **ONE_UNIT).run(idle_for=QUICK)
    assert (counts.rolled_back, counts.committed) == (1, 1)


def test_stop_while_held_rolls_back(site: Site) -> None:
    """J198: later acknowledgements have no meaning."""
    site.send("a")
    held: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
    activation = site.activation(held.put, hold_until_ack=True, **ONE_UNIT)
    activation.start()
    delivery = held.get(timeout=5)
    delivery.send("queue://out", JmsMessage.text("never"))
    assert activation.stop(timedelta(seconds=5))
    delivery.acknowledge()
    assert site.bodies("orders") == ["a"]
    assert site.bodies("out") == []


def test_held_batches_wait_for_every_message(site: Site) -> None:
    """J193, J200: EndOfBatch too."""
    site.send(*"ab")
    held: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
    activation = site.activation(held.put, hold_until_ack=True, batch_size=2, **ONE_UNIT)
    activation.start()
    a, b, end = (held.get(timeout=5) for _ in range(3))
    assert end.end_of_batch
    end.acknowledge()
    b.acknowledge()
    assert activation.counts.committed == 0
    a.acknowledge()
    until(lambda: activation.counts.committed == 2)


def test_rollback_of_one_ends_a_held_batch_early(site: Site) -> None:
    """J201, J202."""
    site.send("a")
    held: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
    activation = site.activation(
        held.put, hold_until_ack=True, batch_size=100, batch_idle_timeout=60, **ONE_UNIT
    )
    activation.start()
    first = held.get(timeout=5)
    first.set_rollback_only()
    first.acknowledge()
    end = held.get(timeout=5)
    assert end.end_of_batch
    end.acknowledge()
    again = held.get(timeout=5)
    assert (again.body, again.redelivery_count) == ("a", 1)


@pytest.mark.parametrize("limit", [1, 3])
def test_no_more_units_than_the_pool_allows(site: Site, limit: int) -> None:
    """J192: a held delivery takes no thread, but its place in the pool."""
    site.send(*map(str, range(6)))
    held: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
    activation = site.activation(
        held.put, hold_until_ack=True, concurrency_mode="cc", endpoint_pool_max_size=limit
    )
    activation.start()
    until(lambda: held.qsize() == limit)
    assert activation.statistics().active == 0
    for _ in range(6):
        held.get(timeout=5).acknowledge()
    until(lambda: activation.counts.committed == 6)
