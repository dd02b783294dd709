"""Threads that come and go: work never lies where nobody looks."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_jmsjca.core.delivery.decisions import Leave
from airflow_provider_jmsjca.engine.delivering.threaded.workers import Work, Workers
from tests.unit.engine.listening import Site, until


class Pool:
    """One thread at first, two at most; work is a number."""

    def __init__(self) -> None:
        settings = Site.listener_settings(
            concurrency_mode="cc", endpoint_pool_max_size=2, endpoint_pool_steady_size=1
        )
        settings = replace(settings, pool_idle_timeout=timedelta(seconds=0.05))
        self.begun: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.release = threading.Event()
        self.workers = Workers(settings, lambda _: None, self._perform)

    def post(self, number: int) -> None:
        intake: Any = None  # nothing of it is needed
        self.workers.post((intake, Leave(delivery=number)))

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
    """Both were idle for long; one has to stay, and to see it."""
    ending, go_on = threading.Semaphore(0), threading.Event()

    class Slow(set[int]):
        def discard(self, own: int) -> None:
            ending.release()
            go_on.wait(5)
            super().discard(own)

    pool.workers._own = Slow()
    pool.workers.start()
    for number in (1, 2):
        pool.post(number)
    assert {pool.begun.get(timeout=5), pool.begun.get(timeout=5)} == {1, 2}
    pool.release.set()
    assert ending.acquire(timeout=5)
    ending.acquire(timeout=0.2)  # the other one, if it may end too
    pool.post(3)
    go_on.set()
    assert pool.begun.get(timeout=2) == 3
    until(lambda: pool.workers.size == 1)


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
