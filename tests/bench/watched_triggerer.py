"""`airflow triggerer` with a watch on its event loop: what it writes says how long the loop was blocked.

The thread's own processor time between two turns of the watch is what the loop was blocked for by work in it.
The time that passed may be longer, where others want the processor too.

    JMSJCA_WATCHED=/path/to/file.json python -m tests.bench.watched_triggerer
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from airflow.__main__ import main
from airflow.jobs.triggerer_job_runner import TriggerRunner

_TICK = 0.02
_WRITTEN_EVERY = 1.0


def _install(file: Path) -> None:
    """Watch the loop of the runner, which is forked from this process."""
    usual = TriggerRunner.arun

    async def arun(self: Any) -> None:
        count = _counter()
        watching = asyncio.get_running_loop().create_task(_watch(file, self, count))
        try:
            await usual(self)
        finally:
            watching.cancel()

    TriggerRunner.arun = arun  # type: ignore[method-assign]


def _counter() -> Callable[[], int]:
    """Return what counts the activations that consume, or have looked at their queue."""
    # As late as the triggerer itself: what is imported here would be missing in its measure.
    streams: weakref.WeakSet[Any] = weakref.WeakSet()
    looked: set[str] = set()

    def install() -> None:
        stream = sys.modules.get("airflow_provider_jmsjca.engine.delivering.loop.stream")
        readiness = sys.modules.get("airflow_provider_jmsjca.engine.watching.queue_watch")
        if stream is not None and not hasattr(stream.DeliveryStream, "watched"):
            made = stream.DeliveryStream.__init__

            def init(self: Any, *arguments: Any, **more: Any) -> None:
                made(self, *arguments, **more)
                streams.add(self)

            stream.DeliveryStream.__init__ = init
            stream.DeliveryStream.watched = True
        if readiness is not None and not hasattr(readiness, "watched"):
            look = readiness.QueueWatch._look

            async def looking(self: Any, *arguments: Any) -> Any:
                found = await look(self, *arguments)
                looked.add(str(self._queue))
                return found

            readiness.QueueWatch._look = looking
            readiness.watched = True

    def count() -> int:
        install()
        return sum(stream.consuming.is_set() for stream in list(streams)) + len(looked)

    return count


def _collector() -> Callable[[], float]:
    """Return what says how long the longest garbage collection took: it blocks the loop like work in it."""
    began = longest = 0.0

    def note(phase: str, _: dict[str, int]) -> None:
        nonlocal began, longest
        now = time.perf_counter()
        if phase == "start":
            began = now
        else:
            longest = max(longest, now - began)

    gc.callbacks.append(note)
    return lambda: longest


async def _watch(file: Path, runner: Any, count: Callable[[], int]) -> None:
    process = psutil.Process()
    blocked = worked = written = 0.0
    last, last_worked = time.perf_counter(), time.thread_time()
    at_first: int | None = None
    whole = 0.0
    collecting = _collector()
    while True:
        await asyncio.sleep(_TICK)
        now = time.perf_counter()
        blocked, last = max(blocked, now - last - _TICK), now
        so_far = time.thread_time()
        worked, last_worked = max(worked, so_far - last_worked), so_far
        if at_first is None and runner.triggers:
            at_first = process.memory_info().rss
            began = time.perf_counter()
            if os.environ.get("JMSJCA_COLLECTS"):
                gc.collect()
            whole = time.perf_counter() - began
            last, last_worked = time.perf_counter(), time.thread_time()
        if now - written < _WRITTEN_EVERY:
            continue
        report = {
            "pid": os.getpid(),
            "blocked": min(blocked, worked),
            "elapsed": blocked,
            "collected": collecting(),
            "own_collection": whole,
            "triggers": len(runner.triggers),
            "consuming": count(),
            "threads": threading.active_count(),
            "resident": process.memory_info().rss,
            "resident_at_first": at_first or process.memory_info().rss,
        }
        part = file.with_suffix(".part")
        part.write_text(json.dumps(report), encoding="utf-8")  # a page of a file in memory
        part.replace(file)
        # What writing takes is ours.
        written = last = time.perf_counter()
        last_worked = time.thread_time()


if __name__ == "__main__":
    _install(Path(os.environ["JMSJCA_WATCHED"]))
    sys.argv = ["airflow", "triggerer", "--skip-serve-logs"]
    main()
