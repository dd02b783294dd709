"""Threads for an event loop: for blocking calls, and for work that a cancellation must not interrupt."""

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
_CANCELLATIONS = 50
_CANCEL_AGAIN_SECONDS = 0.1


async def in_thread(
    function: Callable[[], T],
    *,
    undo: Callable[[T], object] | None = None,
    start: Callable[[Callable[[], None]], object] | None = None,
) -> T:
    """Run a blocking function in a thread; return its result or raise its exception.

    The event loop is not blocked. The function runs in a daemon thread outside the loop's executor. So a
    broker that hangs neither exhausts the executor, on which other code depends, nor delays process exit.

    Args:
        function: The blocking call.
        undo: Called in a thread with the function's result if the caller was cancelled before the result
            arrived.
        start: Runs a function in a thread; `None`: a new thread is started.

    Raises:
        TransientBrokerError: The process can start no thread.
        BaseException: Any exception of the function.

    Guarantee: a cancellation takes effect at once; the function continues to its end in the thread.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def finish(result: T) -> None:
        if not future.done():
            future.set_result(result)
        elif undo is not None:
            start_in_thread(lambda: undo(result))

    def fail(error: BaseException) -> None:
        if not future.done():
            future.set_exception(error)
        else:
            log.info("Background work failed after its caller was cancelled: %s", error)

    def work() -> None:
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - raised again where the result is awaited
            _in_loop(loop, fail, error)
            return
        if not _in_loop(loop, finish, result) and undo is not None:
            _run_logged(lambda: undo(result))

    (start or _start)(work)
    try:
        return await future
    except asyncio.CancelledError:
        _undo_if_done(future, undo)
        raise


def _undo_if_done(future: asyncio.Future[T], undo: Callable[[T], object] | None) -> None:
    """Undo a result that arrived just before the caller was cancelled."""
    if undo is not None and future.done() and not future.cancelled() and future.exception() is None:
        result = future.result()
        start_in_thread(lambda: undo(result))


_left: set[asyncio.Task[Any]] = set()


def start_uncancelled(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task that continues if the waiting task is cancelled; await it with `asyncio.shield`.

    Use it to close something in several steps. Airflow cancels a trigger repeatedly until it has ended, which
    would interrupt a close in the trigger's own task between two steps.
    """
    task = asyncio.get_running_loop().create_task(work)
    _left.add(task)
    task.add_done_callback(_left.discard)
    return task


async def end_task(task: asyncio.Task[Any], name: str) -> None:
    """Cancel a task and wait until it has ended, for 5 seconds at most; its errors are logged.

    Third-party code inside the task may swallow a cancellation, so this cancels the task repeatedly.

    Args:
        task: The task; not the current one.
        name: Name of the task's purpose, for the log.
    """
    for _ in range(_CANCELLATIONS):  # a count, not a deadline: the loop may stall for longer than 5 seconds
        if task.done():
            break
        task.cancel()
        await asyncio.wait({task}, timeout=_CANCEL_AGAIN_SECONDS)
    if not task.done():
        log.error("%s did not stop after it was cancelled; it is left running", name)
    elif not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s failed", name, exc_info=error)


def start_in_thread(function: Callable[[], object]) -> None:
    """Run a function in a thread without waiting for it; its errors are logged."""
    _start(lambda: _run_logged(function))


class SerialExecutor:
    """Runs functions one after the other, in a thread that exists only while functions are queued.

    An exception of a function is logged, and the next function runs. If no thread can be started, the
    executor retries every second.

    Args:
        call_later: Calls a function after a number of seconds, as `loop.call_later` does; used to retry.
    """

    def __init__(self, call_later: Callable[[float, Callable[[], None]], object]) -> None:
        self._call_later = call_later
        self._lock = threading.Lock()
        # A list, because each stream has an executor, and an empty deque takes ten times as much memory.
        self._waiting: list[Callable[[], object]] = []
        self._running = False

    def submit(self, function: Callable[[], object]) -> None:
        """Run a function after those submitted before. Call it in the event loop of `call_later`."""
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
            log.warning("Could not start a thread; next attempt in %.0f s: %s", _NO_THREAD_SECONDS, error)
            self._call_later(_NO_THREAD_SECONDS, self._begin)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running = False
                    return
                function = self._waiting.pop(0)
            _run_logged(function)


class ThreadPool:
    """A bounded pool of threads for blocking calls; idle threads end after two seconds.

    While all threads are busy, further functions wait.

    Args:
        size: Maximum number of threads.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._condition = threading.Condition()
        self._waiting: deque[Callable[[], None]] = deque()
        self._threads = 0
        self._free = 0

    def submit(self, function: Callable[[], None]) -> None:
        """Run a function, which must not raise, in one of the threads. Call it from any thread.

        Raises:
            TransientBrokerError: The process can start no thread.
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
                    return  # another thread is running the function or will run it
                self._waiting.remove(function)
            raise

    def submit_logged(self, function: Callable[[], object]) -> None:
        """Run a function without waiting for it; its errors are logged."""
        self.submit(lambda: _run_logged(function))

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
    except RuntimeError as error:  # the process can start no thread
        raise TransientBrokerError(f"no thread could be started: {error}") from error


def _in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[T], None], value: T) -> bool:
    """Schedule `callback(value)` in the event loop, from any thread; return `False` if the loop is closed."""
    try:
        loop.call_soon_threadsafe(callback, value)
    except RuntimeError:
        return False
    return True


def _run_logged(function: Callable[[], object]) -> None:
    try:
        function()
    except Exception:  # the outermost edge of this thread: no caller is left to raise to
        log.exception("Background work failed")
