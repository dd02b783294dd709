"""Threads that come and go: work never lies where nobody looks."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_jmsjca.core.delivery.decisions import Leave
from airflow_provider_jmsjca.engine.delivering.delivery import Delivery
from airflow_provider_jmsjca.engine.delivering.threaded import workers
from airflow_provider_jmsjca.engine.delivering.threaded.workers import Work, Workers
from tests.unit.engine.listening import Site, nothing, until


class Pool:
    """One thread at first, two at most; work is a number."""

    def __init__(self) -> None:
        settings = Site.listener_settings(
            concurrency_mode="cc", endpoint_pool_max_size=2, endpoint_pool_steady_size=1
        )
        settings = replace(settings, pool_idle_timeout=timedelta(seconds=0.05))
        self.begun: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.release = threading.Event()
        self.workers = Workers(settings, self.admit, self._perform)

    @staticmethod
    def admit(buffer: Any) -> list[Work] | None:
        """Take one of the numbers that have come."""
        try:
            return [(buffer, Leave(delivery=buffer.arrivals.popleft()))]
        except IndexError:
            return None

    def post(self, number: int) -> None:
        buffer: Any = None  # nothing of it is needed
        self.workers.post((buffer, Leave(delivery=number)))

    def _perform(self, work: Work) -> list[Work]:
        assert isinstance(work[1], Leave)
        self.begun.put(work[1].delivery)
        assert self.release.wait(5)
        return []


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool()
    yield made
    made.release.set()
    made.workers.close()


def test_what_comes_while_threads_end_is_done(pool: Pool) -> None:
    """Both were idle for long; one of them stays, and also one that has something to take."""
    pool.workers.start()
    for number in (1, 2):
        pool.post(number)
    assert {pool.begun.get(timeout=5), pool.begun.get(timeout=5)} == {1, 2}
    pool.release.set()
    until(lambda: pool.workers._spare == 2)
    pool.workers._spare = 0  # as if something were queued for both
    time.sleep(0.2)
    assert pool.workers.size == 2
    pool.workers._spare = 2
    until(lambda: pool.workers.size == 1)
    pool.post(3)
    assert pool.begun.get(timeout=5) == 3


def test_what_comes_as_a_thread_takes_something_gets_a_thread_of_its_own(pool: Pool) -> None:
    """It must not wait behind a slow handler while the pool may grow."""
    taken, go_on = threading.Event(), threading.Event()

    class Slow:
        def __init__(self, inner: Any) -> None:
            self._inner, self.put, self.qsize = inner, inner.put, inner.qsize

        def get(self, timeout: float | None) -> Any:
            item = self._inner.get(timeout=timeout)
            taken.set()
            assert go_on.wait(5)
            return item

    waiting: Any = Slow(pool.workers._queue)
    pool.workers._queue = waiting
    pool.workers.start()
    pool.post(1)
    assert taken.wait(5)
    pool.post(2)
    go_on.set()
    assert {pool.begun.get(timeout=2), pool.begun.get(timeout=2)} == {1, 2}


def test_a_process_without_another_thread_goes_on_with_those_it_has(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It isn't the fault of who brings the work, which may be the connection; and it is tried again."""
    pool.workers.start()
    start = threading.Thread.start

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    for number in range(3):
        pool.post(number)
    assert pool.begun.get(timeout=5) == 0
    assert pool.workers.size == 1
    monkeypatch.setattr(threading.Thread, "start", start)
    pool.post(3)
    assert pool.begun.get(timeout=5) == 1
    assert pool.workers.size == 2


class Numbers:
    """What came in place of messages."""

    def __init__(self, *numbers: int) -> None:
        self.arrivals = deque(numbers)
        self.noticed = False


@pytest.fixture
def _as_intake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "ReceiveBuffer", Numbers)


@pytest.mark.usefixtures("_as_intake")
def test_of_many_that_come_at_once_one_thread_is_told_and_tells_the_next(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handlers that wait run side by side all the same."""
    came: Any = Numbers(1, 2, 3)
    with monkeypatch.context() as before_it_starts:
        before_it_starts.setattr(pool.workers, "_add", lambda: None)
        for _ in range(3):
            pool.workers.arrived(came)
    assert pool.workers._queue.qsize() == 1
    pool.workers.start()
    assert {pool.begun.get(timeout=5), pool.begun.get(timeout=5)} == {1, 2}
    pool.release.set()
    assert pool.begun.get(timeout=5) == 3


@pytest.mark.usefixtures("_as_intake")
def test_whoever_is_told_of_what_came_looks_there_first(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else is told of it meanwhile, and what was posted may take long."""
    came: Any = Numbers(1)
    with monkeypatch.context() as before_it_starts:
        before_it_starts.setattr(pool.workers, "_add", lambda: None)
        pool.workers.arrived(came)
        pool.post(2)
    pool.workers.start()
    assert {pool.begun.get(timeout=5), pool.begun.get(timeout=5)} == {1, 2}


@pytest.mark.usefixtures("_as_intake")
def test_what_is_posted_does_not_wait_until_nothing_comes_any_more(pool: Pool) -> None:
    came: Any = Numbers(1)
    pool.release.set()

    def endless(buffer: Any) -> list[Work] | None:
        return [] if buffer.arrivals else None

    pool.workers._admit = endless
    pool.workers._maximum = 1
    pool.workers.start()
    pool.workers.arrived(came)
    until(lambda: not pool.workers._queue.qsize())
    pool.post(2)
    try:
        assert pool.begun.get(timeout=5) == 2
    finally:
        came.arrivals.clear()


def test_the_thread_of_a_batch_takes_what_has_arrived(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It doesn't wait until another thread has taken it."""
    site.send("a")
    batches: list[int] = []
    alone = threading.Event()
    arrived, wake = Workers.arrived, Workers.wake
    monkeypatch.setattr(Workers, "arrived", lambda *given: alone.is_set() or arrived(*given))
    monkeypatch.setattr(Workers, "wake", lambda *given: alone.is_set() or wake(*given))

    def handle(delivery: Delivery) -> None:
        if delivery.end_of_batch:
            batches.append(listener.counts.delivered)
        if delivery.body == "a":
            alone.set()
            site.send("b", "c")
            until(lambda: len(delivery.buffer.arrivals) == 2)

    listener = site.activation(handle, concurrency_mode="cc", endpoint_pool_max_size=1, batch_size=3)
    listener.start()
    until(lambda: listener.counts.committed == 3)
    assert listener.stop()
    assert batches == [3]


def test_a_limited_run_of_batches_takes_no_more_than_its_limit(site: Site) -> None:
    site.send(*map(str, range(8)))
    listener = site.activation(nothing, concurrency_mode="cc", endpoint_pool_max_size=2, batch_size=3)
    assert listener.run(max_messages=5).delivered == 5
    assert site.broker.depth("orders") == 3
