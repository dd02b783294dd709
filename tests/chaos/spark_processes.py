"""The processes of a Spark driver that a task of this process submitted, or that a test starts by itself."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self, TypeVar

import psutil

from tests.internals.spool import COMMIT_LOCK
from tests.pace import at_most

T = TypeVar("T")
ROOT = Path(__file__).parents[2]


class Job:
    """A script that runs as a driver of its own, in a process group with its JVM.

    Args:
        module: The script's name.
        given: For its standard input, as JSON.
        log: Its standard error is appended to this file.
    """

    def __init__(self, module: str, given: Mapping[str, object], log: Path) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
                cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._output = self._process.stdout
        self._process.stdin.write(json.dumps(given).encode())
        self._process.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill all of its processes that are left."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._output.close()
        self._process.wait(at_most(30))

    def said(self, line: str, times: int = 1) -> None:
        """Wait until it has printed a line as often."""
        while times:
            found = self._output.readline()
            assert found, self._errors()
            times -= found.decode() == f"{line}\n"

    def ended(self) -> str:
        """Wait until it has ended without an error, and return what it has printed since."""
        said = self._output.read().decode()
        assert self._process.wait(at_most(60)) == 0, self._errors()
        return said

    def _errors(self) -> str:
        """Return the end of the log without Java's stack traces."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(line for line in lines if not line.startswith("\tat "))[-4_000:]


class Driver:
    """One attempt at a batch: the JVM, and the Python process it started.

    Args:
        fence: The number of the attempt.
    """

    def __init__(self, fence: int) -> None:
        self.fence = fence

    def _processes(self) -> list[tuple[psutil.Process, list[str]]]:
        found = []
        for process in psutil.Process().children(recursive=True):
            try:
                line = process.cmdline()
            except psutil.Error:
                continue
            if _follows(line, "--fence", str(self.fence)):
                found.append((process, line))
        return found

    def _named(self, name: str) -> psutil.Process | None:
        for process, line in self._processes():
            if Path(line[0]).name.startswith(name) and "org.apache.spark.launcher.Main" not in line:
                return process
        return None

    def jvm(self) -> psutil.Process | None:
        """Return the JVM that `spark-submit` became."""
        return self._named("java")

    def python(self) -> psutil.Process | None:
        """Return the process that runs the script."""
        return self._named("python")

    def groups(self) -> set[int]:
        """Return the process groups of the attempt."""
        return {os.getpgid(process.pid) for process, _ in self._processes()}


def _follows(line: list[str], option: str, value: str) -> bool:
    return any(pair == (option, value) for pair in itertools.pairwise(line))


def soon(look: Callable[[], T | None], what: str, seconds: float = 120) -> T:
    """Wait until `look` finds something, and return that.

    Raises:
        AssertionError: It didn't in time.
    """
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"window missed: no {what} within {seconds:g} s"
        time.sleep(0.005)
    return found


@contextmanager
def nothing_is_committed(folder: Path, look: Callable[[], object], what: str) -> Iterator[None]:
    """Keep a batch as it is meanwhile, once `look` has found something: no attempt gets any further.

    Raises:
        AssertionError: It found nothing in time.
    """
    lock = soon(lambda: _locked_when(folder / COMMIT_LOCK, look), what, seconds=300)
    try:
        yield
    finally:
        os.close(lock)


def _locked_when(path: Path, look: Callable[[], object]) -> int | None:
    if not path.exists():
        return None
    lock = os.open(path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)  # an attempt holds it while it commits
    if look():
        return lock
    os.close(lock)
    return None


def ended(process: psutil.Process) -> bool:
    """Tell whether a process has ended, collected by its parent or not."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def signal_groups(groups: set[int], number: signal.Signals) -> None:
    """Send a signal to whole process groups."""
    for group in groups:
        os.killpg(group, number)
