"""What may block, in a thread, for a loop that must not."""

from __future__ import annotations

import asyncio
import queue
from typing import Any

import pytest

from airflow_provider_jmsjca.engine import threads
from airflow_provider_jmsjca.engine.threads import in_thread


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
