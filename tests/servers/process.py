"""A server's process with all its descendants, started or adopted."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import psutil

from tests.servers import guard


class ServerProcess:
    """The leader of a process group of its own, and everything it started."""

    def __init__(self, process: psutil.Process, started: subprocess.Popen[bytes] | None = None) -> None:
        self._process = process
        self._popen = started

    @classmethod
    def start(
        cls,
        command: Sequence[str | Path],
        *,
        folder: Path,
        environment: Mapping[str, str],
        log: Path,
        guarded: bool,
        user: tuple[int, int] | None = None,
    ) -> Self:
        """Start a process in a session of its own, its output appended to the log.

        Args:
            command: Program and arguments.
            folder: Its working folder.
            environment: Its whole environment.
            log: File for standard output and error.
            guarded: Whether it is killed when this process ends without stopping it.
            user: User and group number to run as, without further groups; `None` means ours.
        """
        with log.open("ab") as output:
            popen = subprocess.Popen(
                [str(part) for part in command],
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                user=user[0] if user else None,
                group=user[1] if user else None,
                extra_groups=() if user else None,
            )
        process = cls(psutil.Process(popen.pid), popen)
        if guarded:
            _Guard.watch(process.pid, process.started)
        return process

    @classmethod
    def adopt(cls, pid: int, started: float) -> Self | None:
        """Return a process started earlier, or `None` if it is gone or its number is another's by now."""
        try:
            process = psutil.Process(pid)
            if abs(process.create_time() - started) > 0.05 or process.status() == psutil.STATUS_ZOMBIE:
                return None
        except psutil.NoSuchProcess:
            return None
        return cls(process)

    @property
    def pid(self) -> int:
        """Process number of the leader."""
        return self._process.pid

    @property
    def started(self) -> float:
        """When it started, in seconds since 1970; with the number it names a process for good."""
        return self._process.create_time()

    @property
    def alive(self) -> bool:
        """Whether the leader runs, be it suspended."""
        if self._popen is not None:
            return self._popen.poll() is None
        return _lives(self._process)

    @property
    def exit_code(self) -> int | None:
        """Exit code of a process we started; `None` while it runs."""
        return self._popen.poll() if self._popen is not None else None

    def terminate(self, *, how: signal.Signals, deadline: float) -> bool:
        """Ask the leader to end, kill the whole tree if it hasn't by the deadline.

        Args:
            how: Signal that asks.
            deadline: Seconds to wait.

        Returns:
            Whether it ended by itself.
        """
        tree = self._tree()
        self.resume()
        if self.alive:
            self._process.send_signal(how)
        in_time = self._wait(deadline)
        self._kill(tree)
        return in_time

    def kill(self) -> None:
        """Kill -9 the whole tree, and wait until it is gone."""
        self._kill(self._tree())

    def release(self) -> None:
        """No longer kill it when this process ends."""
        _Guard.forget(self.pid)

    def suspend(self) -> None:
        """SIGSTOP the whole tree."""
        for process in self._tree():
            process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT the whole tree."""
        for process in self._tree():
            process.send_signal(signal.SIGCONT)

    def _tree(self) -> list[psutil.Process]:
        try:
            return [self._process, *self._process.children(recursive=True)] if self.alive else []
        except psutil.NoSuchProcess:
            return []

    def _kill(self, tree: list[psutil.Process]) -> None:
        for process in tree:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self._wait(10)
        end = time.monotonic() + 10
        while any(_lives(process) for process in tree[1:]) and time.monotonic() < end:
            time.sleep(0.01)
        # Whoever outlived the leader; the start time fits nobody, so a new owner of the number is spared.
        guard.kill_group(self.pid, 0.0)
        _Guard.forget(self.pid)

    def _wait(self, deadline: float) -> bool:
        try:
            if self._popen is not None:
                self._popen.wait(deadline)
            else:
                self._process.wait(deadline)
        except (subprocess.TimeoutExpired, psutil.TimeoutExpired):
            return False
        return True


def _lives(process: psutil.Process) -> bool:
    """Return whether a process runs; one that is dead but not yet collected by its parent doesn't."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class _Guard:
    """The one guard of this process; see `guard.py`."""

    _lock = threading.Lock()
    _process: subprocess.Popen[bytes] | None = None
    _owner = 0

    @classmethod
    def watch(cls, pid: int, started: float) -> None:
        cls._tell(f"+{pid} {started}\n")

    @classmethod
    def forget(cls, pid: int) -> None:
        if cls._process is not None and cls._owner == os.getpid():
            cls._tell(f"-{pid}\n")

    @classmethod
    def _tell(cls, line: str) -> None:
        with cls._lock:
            if cls._process is None or cls._owner != os.getpid() or cls._process.poll() is not None:
                cls._owner = os.getpid()
                cls._process = subprocess.Popen(
                    [sys.executable, guard.__file__, str(cls._owner)],
                    stdin=subprocess.PIPE,
                    start_new_session=True,
                    bufsize=0,
                )
                atexit.register(cls._end, cls._process, cls._owner)
            assert cls._process.stdin is not None
            cls._process.stdin.write(line.encode())

    @staticmethod
    def _end(process: subprocess.Popen[bytes], owner: int) -> None:
        if os.getpid() == owner and process.stdin is not None:
            process.stdin.close()
            process.wait(10)
