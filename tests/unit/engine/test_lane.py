from __future__ import annotations

import threading
import time

import pytest

from airflow_provider_jmsjca.engine.threads import Lane


def test_functions_run_one_after_the_other_in_a_thread_that_ends() -> None:
    lane, found, over = Lane(), [], threading.Event()
    before = threading.active_count()
    for number in range(200):
        lane.submit(lambda number=number: found.append((number, threading.get_ident())))
    lane.submit(over.set)
    assert over.wait(5)
    assert [number for number, _ in found] == list(range(200))
    assert threading.get_ident() not in {thread for _, thread in found}
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_one_that_raises_is_logged_and_the_next_one_runs(caplog: pytest.LogCaptureFixture) -> None:
    lane, over = Lane(), threading.Event()

    def fail() -> None:
        raise ValueError("no")

    lane.submit(fail)
    lane.submit(over.set)
    assert over.wait(5)
    assert "nobody waits for" in caplog.text
