"""Runs what may block in a thread, for an event loop that must not; and what must not be broken off."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from airflow_provider_jmsjca.errors import TransientBrokerError
from airflow_provider_jmsjca.logs import safe_logger

log = safe_logger(__name__)
T = TypeVar("T")
_NO_THREAD_SECONDS = 1.0
_IDLE_THREAD_SECONDS = 2.0


async def in_thread(
    function: Callable[[], T],
    *,
    undo: Callable[[T], object] | None = None,
    start: Callable[[Callable[[], None]], object] | None = None,
) -> T:
    """Return what the function returns, or raise what it raises, without blocking the event loop.

    The threads are daemons of their own and not the loop's executor: a broker that hangs can neither use up
    the few threads other code of the same process waits for, nor hold up the exit of the process.

    Args:
        function: What may block.
        undo: Called, in a thread, with a result that came after the caller was cancelled.
        start: Sees to it that a function runs in a thread; `None`: in a thread of its own.

    Raises:
        TransientBrokerError: The process has no thread left; besides what the function raises.

    Guarantee: on cancellation it returns at once; the function runs on to its end.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def finish(result: T) -> None:
        if not future.done():
            future.set_result(result)
        elif undo is not None:
            leave_to_thread(lambda: undo(result))

    def fail(error: BaseException) -> None:
        if not future.done():
            future.set_exception(error)
        else:
            log.info("Failed after the caller was cancelled: %s", error)

    def work() -> None:
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - raised again where the result is awaited
            _in_loop(loop, fail, error)
            return
        if not _in_loop(loop, finish, result) and undo is not None:
            _run_out(lambda: undo(result))

    (start or _start)(work)
    try:
        return await future
    except asyncio.CancelledError:
        _undo_if_done(future, undo)
        raise


def _undo_if_done(future: asyncio.Future[T], undo: Callable[[T], object] | None) -> None:
    """Undo a result that came before its caller, who was cancelled, could take it."""
    if undo is not None and future.done() and not future.cancelled() and future.exception() is None:
        result = future.result()
        leave_to_thread(lambda: undo(result))


_left: set[asyncio.Task[Any]] = set()


def leave_to_task(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Return a task that runs to its end, whatever becomes of whoever waits for it with `asyncio.shield`.

    For closing in several steps. Airflow cancels a trigger anew at each of its rounds until that has ended:
    whatever closes in the trigger's own task is broken off between two steps.
    """
    task = asyncio.get_running_loop().create_task(work)
    _left.add(task)
    task.add_done_callback(_left.discard)
    return task


def leave_to_thread(function: Callable[[], object]) -> None:
    """Run the function in a thread; nobody waits for it, its errors are logged."""
    _start(lambda: _run_out(function))


class SerialExecutor:
    """Runs functions one after the other, in a thread that exists only while there are any.

    What a function raises is logged, and the next one runs. If no thread can be started, that is tried again
    every second.

    Args:
        later: Takes seconds and a function, and calls it when they are over, as `loop.call_later` does.
    """

    def __init__(self, later: Callable[[float, Callable[[], None]], object]) -> None:
        self._later = later
        self._lock = threading.Lock()
        # A list: it is short, and there are as many lanes as streams. An empty deque is ten times as large.
        self._waiting: list[Callable[[], object]] = []
        self._running = False

    def submit(self, function: Callable[[], object]) -> None:
        """Run the function after those submitted before. For the thread that `later` is for."""
        with self._lock:
            self._waiting.append(function)
            if self._running:
                return
            self._running = True
        self._begin()

    def _begin(self) -> None:
        try:
            _start(self._run)
        except TransientBrokerError as error:
            log.warning("It is tried again in %.0f s: %s", _NO_THREAD_SECONDS, error)
            self._later(_NO_THREAD_SECONDS, self._begin)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running = False
                    return
                function = self._waiting.pop(0)
            _run_out(function)


class ThreadPool:
    """A few threads for what may block, however much there is of it; they end when there is nothing.

    A function waits until one of the threads is free.

    Args:
        size: How many threads at most.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._condition = threading.Condition()
        self._waiting: deque[Callable[[], None]] = deque()
        self._threads = 0
        self._free = 0

    def submit(self, function: Callable[[], None]) -> None:
        """Run the function, which doesn't raise, in one of the threads. From any thread.

        Raises:
            TransientBrokerError: The process has no thread left for it.
        """
        with self._condition:
            self._waiting.append(function)
            if self._free >= len(self._waiting) or self._threads == self._size:
                self._condition.notify()
                return
            self._threads += 1
        try:
            _start(self._run)
        except TransientBrokerError:
            with self._condition:
                self._threads -= 1
                if self._threads or function not in self._waiting:
                    return  # it is another thread's
                self._waiting.remove(function)
            raise

    def leave(self, function: Callable[[], object]) -> None:
        """Run the function; nobody waits for it, its errors are logged."""
        self.submit(lambda: _run_out(function))

    def _run(self) -> None:
        while True:
            with self._condition:
                self._free += 1
                self._condition.wait_for(lambda: self._waiting, _IDLE_THREAD_SECONDS)
                self._free -= 1
                if not self._waiting:
                    self._threads -= 1
                    return
                function = self._waiting.popleft()
            function()


def _start(work: Callable[[], None]) -> None:
    try:
        threading.Thread(target=work, name="jms-engine", daemon=True).start()
    except RuntimeError as error:  # the process has no thread left
        raise TransientBrokerError(f"no thread could be started: {error}") from error


def _in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[T], None], value: T) -> bool:
    """Hand over to the loop; false if the loop is gone, and with it whoever waited."""
    try:
        loop.call_soon_threadsafe(callback, value)
    except RuntimeError:
        return False
    return True


def _run_out(function: Callable[[], object]) -> None:
    try:
        function()
    except Exception:  # the outermost edge of this thread: nobody waits for it any more
        log.exception("Work that nobody waits for failed")
