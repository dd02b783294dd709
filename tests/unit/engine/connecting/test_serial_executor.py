from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from airflow_provider_jmsjca.engine.connecting.threads import SerialExecutor
from tests.unit.engine import streaming


def no_later(seconds: float, function: Callable[[], None]) -> None:
    raise AssertionError(f"{function} is put off by {seconds} s")


def test_functions_run_one_after_the_other_in_a_thread_that_ends() -> None:
    executor, found, over = SerialExecutor(no_later), [], threading.Event()
    before = threading.active_count()
    for number in range(200):
        executor.submit(lambda number=number: found.append((number, threading.get_ident())))
    executor.submit(over.set)
    assert over.wait(5)
    assert [number for number, _ in found] == list(range(200))
    assert threading.get_ident() not in {thread for _, thread in found}
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_one_that_raises_is_logged_and_the_next_one_runs(caplog: pytest.LogCaptureFixture) -> None:
    executor, over = SerialExecutor(no_later), threading.Event()

    def fail() -> None:
        raise ValueError("no")

    executor.submit(fail)
    executor.submit(over.set)
    assert over.wait(5)
    assert "Background work failed" in caplog.text


_start = threading.Thread.start


def refuse(thread: threading.Thread) -> None:
    if thread.name == "jms-engine":
        raise RuntimeError("can't start new thread")
    _start(thread)


def test_where_no_thread_can_be_started_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found: list[int] = []
    over = threading.Event()
    put_off: list[Callable[[], None]] = []
    executor = SerialExecutor(lambda _, function: put_off.append(function))
    with monkeypatch.context() as crowded:
        crowded.setattr(threading.Thread, "start", refuse)
        executor.submit(lambda: found.append(1))
        executor.submit(lambda: found.append(2))
        put_off.pop()()
    executor.submit(over.set)
    assert (found, len(put_off)) == ([], 1)
    assert "can't start new thread" in caplog.text
    put_off.pop()()
    assert over.wait(5)
    assert found == [1, 2]


def test_a_stream_goes_on_when_there_are_threads_again(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[str] = []

    def refuse_and_note(thread: threading.Thread) -> None:
        refused.extend(["no"] if thread.name == "jms-engine" else [])
        refuse(thread)

    def none_runs() -> bool:
        return all(thread.name != "jms-engine" for thread in threading.enumerate())

    async def work() -> None:
        site = streaming.Site()
        site.send("a")
        async with site.streaming() as stream:
            with monkeypatch.context() as crowded:
                crowded.setattr(threading.Thread, "start", refuse_and_note)
                waiting = asyncio.ensure_future(streaming.one(stream))
                await streaming.until(lambda: refused)
                assert not waiting.done()
            delivery = await waiting
            await streaming.until(none_runs)  # one that runs still would settle, without a new thread
            refused.clear()
            with monkeypatch.context() as crowded:
                crowded.setattr(threading.Thread, "start", refuse_and_note)
                delivery.returned()
                await streaming.until(lambda: refused)
                assert site.bodies() == ["a"]
            await streaming.until(lambda: not site.bodies())

    streaming.run(work())
