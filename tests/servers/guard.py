"""Ends servers whose owner is gone: `python guard.py OWNER_PID`, told on standard input whom to watch.

Lines are `+PID STARTED` and `-PID`; a PID leads a process group. When the owner has died, by whatever means,
every group still watched is killed.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys

import psutil


def kill_group(leader: int, started: float) -> None:
    """Kill a process group, unless its leader's number belongs to another process by now."""
    with contextlib.suppress(psutil.NoSuchProcess):
        if abs(psutil.Process(leader).create_time() - started) > 1:
            return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def main(owner: int) -> None:
    """Watch until the owner is gone."""
    watched: dict[int, float] = {}
    rest = b""
    while True:
        # A fork of the owner may hold the pipe open, so the end of input alone would not tell. What the owner
        # said last is heard all the same.
        orphaned = os.getppid() != owner
        if not select.select([0], [], [], 0 if orphaned else 0.5)[0]:
            if orphaned:
                break
            continue
        data = os.read(0, 65536)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            number, _, since = line[1:].partition(b" ")
            if line.startswith(b"+"):
                watched[int(number)] = float(since)
            else:
                watched.pop(int(number), None)
    for leader, started in watched.items():
        kill_group(leader, started)


if __name__ == "__main__":
    main(int(sys.argv[1]))
