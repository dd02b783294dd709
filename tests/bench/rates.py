"""What is measured: messages per second, and what they cost in processor time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import psutil

from tests.servers.broker import Broker

BODY: Final = "x" * 1024
TRANSACTION: Final = 100
PUBLISH_TRANSACTION: Final = 1000
SESSIONS: Final = 15
"""Of a client with several, as many as a listener in `cc` or `sync` has threads by default."""
PATIENCE: Final = 120.0
"""Seconds until messages that don't come count as stuck."""

PUBLISH: Final = f"publish text, transactions of {PUBLISH_TRANSACTION}"
PUBLISH_BULK: Final = "publish text, in bulk"
PUBLISH_BYTES: Final = f"publish bytes, transactions of {PUBLISH_TRANSACTION}"
PUBLISH_BYTES_BULK: Final = "publish bytes, in bulk"
INDIVIDUAL: Final = "receive, individual acknowledgements"
TRANSACTED: Final = f"receive, transactions of {TRANSACTION}"
INDIVIDUAL_SEVERAL: Final = f"receive, individual acknowledgements, {SESSIONS} sessions"
COMMITS_SEVERAL: Final = f"receive, a commit for each message, {SESSIONS} sessions"
LISTENER: Final = "listener with redelivery handling, serial"
LISTENER_CC: Final = "listener with redelivery handling, cc"
LISTENER_SYNC: Final = "listener with redelivery handling, sync"
LISTENER_BATCH: Final = f"listener, batches of {TRANSACTION}"
LISTENER_BATCH_FEW: Final = f"{LISTENER_BATCH}, 4 endpoints"
LISTENER_BATCH_SEVERAL: Final = f"{LISTENER_BATCH}, {SESSIONS} endpoints"
LISTENER_STORED: Final = f"listener, batches of {TRANSACTION}, attempts and ids stored in SQLite"
SEALED: Final = "receive into sealed segments"

OURS: Final = "ours"
PLAIN: Final = "stomp.py"
JAVA: Final = "Java client"
BARE: Final = "bare socket"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One measurement.

    Attributes:
        what: What was done, in words.
        who: By whom.
        per_second: Messages per second.
        client: Processor time of the client for each message, in microseconds.
        broker: That of the broker.
    """

    what: str
    who: str
    per_second: float
    client: float
    broker: float


@dataclass(frozen=True, slots=True)
class _Reading:
    time: float
    client: float
    broker: float


class Meter:
    """Reads the clock and the processor time of a client's process and of the broker's.

    Args:
        broker: It must run.
        client: Process number; `None` means this process.
    """

    def __init__(self, broker: Broker, client: int | None = None) -> None:
        pid = broker.pid
        assert pid is not None
        leader = psutil.Process(pid)
        self._broker = [leader, *leader.children(recursive=True)]
        self._client = [psutil.Process(client or os.getpid())]

    def start(self) -> None:
        """Begin."""
        self._began = self._read()

    def stop(self) -> None:
        """End."""
        self._ended = self._read()

    def result(self, what: str, who: str, messages: int, seconds: float | None = None) -> Measured:
        """Return what it measured.

        Args:
            what: What was done.
            who: By whom.
            messages: How many.
            seconds: If the client took the time itself.
        """
        began, ended = self._began, self._ended
        return Measured(
            what=what,
            who=who,
            per_second=messages / (seconds or ended.time - began.time),
            client=(ended.client - began.client) / messages * 1e6,
            broker=(ended.broker - began.broker) / messages * 1e6,
        )

    def _read(self) -> _Reading:
        return _Reading(time.perf_counter(), _processor(self._client), _processor(self._broker))


def _processor(processes: Iterable[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:  # one of the broker's short-lived children
            continue
        total += times.user + times.system
    return total
