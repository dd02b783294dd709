"""The direct way of a listener: what it leaves to the others."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import timedelta

import pytest

from airflow_provider_jmsjca.core.delivery.decisions import RollBackUnit
from airflow_provider_jmsjca.engine.delivering.delivery import Delivery
from airflow_provider_jmsjca.engine.delivering.threaded.dispatcher import FastPath
from airflow_provider_jmsjca.errors import PermanentBrokerError
from airflow_provider_jmsjca.transports.base import Received
from airflow_provider_jmsjca.transports.memory.connection import MemoryConsumer
from tests.unit.engine.listening import QUICK, Site, until


def test_an_acknowledgement_that_fails_delivers_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """J142: the message is still there, and is counted."""
    acknowledge = MemoryConsumer.acknowledge
    refused: list[Received] = []

    def refuse_once(self: MemoryConsumer, received: Iterable[Received]) -> None:
        if not refused:
            refused.extend(received)
            raise PermanentBrokerError("not now")
        acknowledge(self, received)

    monkeypatch.setattr(MemoryConsumer, "acknowledge", refuse_once)
    site.send("a", "b")
    counts = site.activation(lambda _: None).run(idle_for=QUICK)
    assert site.attempts == [("a", 0), ("a", 1), ("b", 0)]
    assert (counts.committed, counts.failed) == (2, 1)
    assert site.broker.depth("orders") == 0


def test_what_the_handler_sends_is_committed_with_its_message(site: Site) -> None:
    site.send("a", "b", "c")

    def forward(delivery: Delivery) -> None:
        if delivery.body == "b":
            delivery.send("queue://copies", delivery.message)

    counts = site.activation(forward).run(max_messages=3)
    assert (counts.committed, site.bodies("copies")) == (3, ["b"])


def test_a_failure_among_many_keeps_the_order(site: Site) -> None:
    site.send(*map(str, range(30)))

    def fail_once(delivery: Delivery) -> None:
        if delivery.body in {"7", "20"} and delivery.redelivery_count == 0:
            raise ValueError("not yet")

    counts = site.activation(fail_once).run(max_messages=30)
    expected = [str(number) for number in range(30) for _ in range(1 + (number in {7, 20}))]
    assert [body for body, _ in site.attempts] == expected
    assert (counts.delivered, counts.redelivered, counts.committed) == (32, 2, 30)


def test_it_never_takes_more_than_the_limit(site: Site) -> None:
    site.send(*map(str, range(30)))
    assert site.activation(lambda _: None).run(max_messages=11).committed == 11
    assert site.bodies("orders") == [str(number) for number in range(11, 30)]


def test_a_slow_handler_is_rolled_back_w22(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.send("a")

    def slow(delivery: Delivery) -> None:
        if delivery.redelivery_count == 0:
            until(lambda: "took longer than transaction_timeout (0.5 s)" in caplog.text)

    timeout = {"transaction_timeout": timedelta(milliseconds=500)}
    counts = site.activation(slow, changes=timeout).run(idle_for=QUICK)
    assert (counts.rolled_back, counts.committed) == (1, 1)


def test_the_dead_letter_of_a_slow_handler_says_so_w22(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.send("a")
    timeout = {"transaction_timeout": timedelta(milliseconds=200)}
    site.activation(
        lambda _: until(lambda: "took longer" in caplog.text),
        changes=timeout,
        redelivery_handling="1:move(queue:dlq)",
    ).run(idle_for=QUICK)
    (letter,) = site.broker.messages("dlq")
    assert letter.properties["JMS_Sun_JMSJCA_ExceptionMessage"] == (
        "its unit of work took longer than transaction_timeout (0.2 s)"
    )


def test_a_plain_listener_goes_this_way(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[object] = []
    take = FastPath.take
    monkeypatch.setattr(FastPath, "take", lambda self, buffer: taken.append(buffer) or take(self, buffer))
    site.send("a")
    site.activation(lambda _: None).run(max_messages=1)
    assert taken


@pytest.mark.parametrize("mode", ["cc", "sync"])
def test_several_go_this_way_side_by_side_and_failures_among_them_are_delivered_again(
    site: Site, mode: str
) -> None:
    """J82, J83: all threads are in a handler at once, and every message is settled once."""
    together = threading.Barrier(3)
    site.send(*map(str, range(60)))

    def handle(delivery: Delivery) -> None:
        body, first = str(delivery.body), delivery.redelivery_count == 0
        if int(body) < 3 and first:
            together.wait(5)
        if int(body) % 20 == 7 and first:
            raise ValueError("not yet")

    counts = site.activation(handle, concurrency_mode=mode, endpoint_pool_max_size=3).run(max_messages=60)
    assert sorted(site.attempts) == sorted(
        (str(number), seen) for number in range(60) for seen in range(1 + (number % 20 == 7))
    )
    assert (counts.delivered, counts.redelivered, counts.committed) == (63, 3, 60)
    assert site.broker.depth("orders") == 0


def test_what_was_posted_is_done_before_the_next_message(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.send("a", "b")
    ways: list[FastPath] = []
    left: list[int] = []
    take = FastPath.take
    monkeypatch.setattr(FastPath, "take", lambda self, buffer: ways.append(self) or take(self, buffer))

    def handle(delivery: Delivery) -> None:
        workers = ways[-1]._dispatcher.workers
        left.append(len(workers.posted))
        workers.posted.append((delivery.buffer, RollBackUnit(unit=0)))

    assert site.activation(handle).run(max_messages=2).committed == 2
    assert left == [0, 0]
