"""What may block, in a thread, for a loop that must not."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from typing import Any

import pytest

from airflow_provider_jmsjca.engine.connecting import threads
from airflow_provider_jmsjca.engine.connecting.threads import ThreadPool, end_task, in_thread
from airflow_provider_jmsjca.errors import TransientBrokerError


def test_a_result_that_comes_as_its_caller_is_cancelled_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the turn of the loop after it was handed over and before the caller has it."""
    undone: queue.SimpleQueue[str] = queue.SimpleQueue()
    hand_over = threads._in_loop

    async def work() -> None:
        task = asyncio.ensure_future(in_thread(lambda: "opened", undo=undone.put))

        def and_cancel(loop: asyncio.AbstractEventLoop, callback: Any, value: Any) -> bool:
            def both(result: Any) -> None:
                callback(result)
                task.cancel()

            return hand_over(loop, both, value)

        monkeypatch.setattr(threads, "_in_loop", and_cancel)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(work())
    assert undone.get(timeout=5) == "opened"
    assert undone.empty()


def test_a_crew_is_no_more_threads_than_it_says_and_does_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_IDLE_THREAD_SECONDS", 0.05)
    thread_pool = ThreadPool(2)
    go, done = threading.Event(), threading.Semaphore(0)
    workers: set[threading.Thread] = set()

    def work() -> None:
        workers.add(threading.current_thread())
        assert go.wait(5)
        done.release()

    for _ in range(100):
        thread_pool.submit(work)
    go.set()
    assert all(done.acquire(timeout=5) for _ in range(100))
    assert len(workers) <= 2
    for each in workers:
        each.join(5)
        assert not each.is_alive()
    thread_pool.submit(work)
    assert done.acquire(timeout=5)


def test_a_crew_without_threads_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(_: object) -> None:
        raise TransientBrokerError("no thread could be started")

    thread_pool = ThreadPool(2)
    with monkeypatch.context() as patched:
        patched.setattr(threads, "_start", none_left)
        with pytest.raises(TransientBrokerError):
            thread_pool.submit(lambda: None)
    done = threading.Event()
    thread_pool.submit_logged(done.set)
    assert done.wait(5)


def test_a_task_that_loses_a_cancellation_is_cancelled_again() -> None:
    async def work() -> None:
        lost = 0

        async def endless() -> None:
            nonlocal lost
            while True:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    lost += 1
                    if lost == 3:
                        raise

        task = asyncio.create_task(endless())
        await asyncio.sleep(0)
        await end_task(task, "Looking")
        assert (task.cancelled(), lost) == (True, 3)

    asyncio.run(work())


def test_a_task_that_does_not_end_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(threads, "_CANCELLATIONS", 2)
    stop = False

    async def work() -> None:
        nonlocal stop

        async def endless() -> None:
            while not stop:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(60)

        task = asyncio.create_task(endless())
        await asyncio.sleep(0)
        await end_task(task, "Looking")
        assert not task.done()
        stop = True
        task.cancel()
        await task

    asyncio.run(work())
    assert caplog.messages == ["Looking did not stop after it was cancelled; it is left running"]


def test_the_error_of_an_ended_task_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async def failing() -> None:
            raise ValueError("no such row")

        task = asyncio.create_task(failing())
        await asyncio.sleep(0)
        await end_task(task, "Looking")

    asyncio.run(work())
    assert caplog.messages == ["Looking failed"]
    assert "no such row" in caplog.text
