"""Listening processes and what they leave behind."""

from __future__ import annotations

import enum
import json
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_jmsjca import Destination, Subscription, connect
from tests.internals.transports import Received
from tests.servers.broker import Broker

ROOT = Path(__file__).parents[2]
_PATIENCE = 120.0


class Work(enum.StrEnum):
    """What a process does with its messages."""

    FORWARD = "forward"
    BATCHES = "batches"
    HELD = "held until acknowledged"
    DELAYED = "delayed"
    PLAIN = "plain"
    CONFIRMED = "plain, confirmed"

    @property
    def is_plain(self) -> bool:
        """Its handler sends nothing."""
        return self in {Work.PLAIN, Work.CONFIRMED}

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes that have it."""
        return ("cc", "sync") if self in {Work.BATCHES, Work.HELD} else ("serial", "cc", "sync")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a process said when it had ended.

    Attributes:
        delivered: How often it called its handler.
        counts: The counts of a listener that ended by itself, otherwise `None`.
        log: Its warnings and errors.
    """

    delivered: int
    counts: dict[str, Any] | None
    log: str


class ListenerProcess:
    """`tests.chaos.listening` on one queue: it ends when nothing came for a while, or when it is told to.

    Args:
        broker: For user and password.
        address: Where to connect, which may be a proxy.
        source: The queue.
        work: What to do.
        done: File where a plain handler writes what it did.
        mode: `serial`, `cc` or `sync`.
        prefetch: At most so many unsettled.
        idle_for: When to end, in seconds.
        log: File for what it logs.
    """

    def __init__(
        self,
        broker: Broker,
        address: tuple[str, int],
        source: str,
        *,
        work: Work,
        done: Path,
        mode: str,
        prefetch: int,
        idle_for: float,
        log: Path,
    ) -> None:
        self._log = log
        self._seen = 0
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.listening"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT,
            )  # fmt: skip
        # The password travels where no list of processes shows it.
        asked = {
            "host": address[0], "port": address[1], "username": broker.username,
            "password": broker.password, "queue": source, "mode": mode, "prefetch": prefetch,
            "idle_for": idle_for, "work": work, "done": str(done), "deduplicates": broker.name == "artemis",
        }  # fmt: skip
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.close()

    def after(self, deliveries: int) -> None:
        """Return when the handler was called so often."""
        assert self._process.stdout is not None
        while self._seen < deliveries:
            assert self._process.stdout.read(1) == ".", f"it ended before: {self._log.read_text()}"
            self._seen += 1

    def tell_to_stop(self) -> None:
        """Have it stop; harmless if it has ended."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill -9 it; harmless if it has ended."""
        self._process.kill()

    def end(self) -> Ended:
        """Wait until it has ended, by itself or not; one that doesn't is killed."""
        assert self._process.stdout is not None
        patience = threading.Timer(_PATIENCE, self._process.kill)
        patience.start()
        with self._process.stdout as output:
            said = output.read()
        patience.cancel()
        self._process.wait(timeout=60)
        dots, brace, counts = said.partition("{")
        return Ended(
            delivered=self._seen + dots.count("."),
            counts=json.loads(brace + counts) if counts.endswith("}\n") else None,
            log=self._log.read_text(encoding="utf-8"),
        )


def take_all(broker: Broker, names: list[str], *, expected: int, quiet: float) -> dict[str, Counter[int]]:
    """Take out of queues whatever numbers they hold.

    Args:
        broker: Whose queues.
        names: Which ones.
        expected: From so many messages on, a shorter silence is enough.
        quiet: For how long nothing must have come, in seconds.

    Returns:
        How often each number was there, by queue.
    """
    connection = connect(broker.settings())
    found: dict[str, Counter[int]] = {name: Counter() for name in names}
    arrived: queue.SimpleQueue[tuple[str, Received]] = queue.SimpleQueue()
    for name in names:
        connection.consume(
            Subscription(destination=Destination.queue(name)),
            lambda received, name=name: arrived.put((name, received)),  # type: ignore[misc]  # a default
        )
    taken = 0
    since = time.monotonic()
    while (left := since + (quiet if taken < expected else min(quiet, 0.3)) - time.monotonic()) > 0:
        try:
            name, received = arrived.get(timeout=left)
        except queue.Empty:
            continue
        found[name][int(str(received.message.body))] += 1
        received.consumer.acknowledge((received,))
        taken += 1
        since = time.monotonic()
    connection.synchronize()
    connection.close()
    return found
