"""Processes that collect batches, started and killed by the tests."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from airflow_provider_jmsjca import Manifest, manifest_messages
from tests.internals.spool import (
    BATCH,
    SEGMENT_STEM,
    TEMPORARY_PREFIX,
    ObjectPath,
    SpoolPath,
    count_rows,
    is_folder,
    names_in,
    numbered,
)
from tests.servers.broker import Broker
from tests.servers.s3 import S3

ROOT = Path(__file__).parents[2]
_LARGER_THAN_A_FENCE = 5_000


class CollectorProcess:
    """`tests.chaos.collector` on one batch."""

    def __init__(
        self,
        broker: Broker,
        queue: str,
        folder: SpoolPath,
        *,
        max_messages: int,
        segment_messages: int,
        idle_seconds: float = 5,
        store: S3 | None = None,
    ) -> None:
        """Start it.

        Args:
            broker: Where from.
            queue: Which queue.
            folder: The batch's folder, in the spool.
            max_messages: How many messages make the batch.
            segment_messages: Most messages in a segment.
            idle_seconds: How long nothing may come before the batch ends.
            store: Where the spool is, if it is in S3.
        """
        self.folder = folder
        self._store = store
        host, port = broker.address()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.collector"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        assert self._process.stdin is not None
        # The password travels where no list of processes shows it.
        json.dump(
            {
                "host": host,
                "port": port,
                "username": broker.username,
                "password": broker.password,
                "queue": queue,
                "spool": str(folder.parent),
                "options": folder.bucket.options if isinstance(folder, ObjectPath) else {},
                "batch_id": folder.name,
                "max_messages": max_messages,
                "segment_messages": segment_messages,
                "idle_seconds": idle_seconds,
            },
            self._process.stdin,
        )
        self._process.stdin.close()

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    @property
    def segments(self) -> int:
        """How many segments with messages the batch has; places that a fence or the end took don't count."""
        if not is_folder(self.folder):
            return 0
        return sum(count_rows(path) > 0 for _, path in numbered(self.folder, SEGMENT_STEM))

    @property
    def sealing(self) -> bool:
        """Whether a segment is being written; the batch's header and a fence, written alike, are smaller."""
        if self._store is not None:
            return bool(self._store.in_flight)
        if isinstance(self.folder, ObjectPath):  # HDFS says no size before the file is complete
            names = names_in(self.folder)
            return BATCH in names and any(name.startswith(TEMPORARY_PREFIX) for name in names)
        for path in self.folder.glob(f"{TEMPORARY_PREFIX}*"):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_size > _LARGER_THAN_A_FENCE:
                    return True
        return False

    def kill(self) -> None:
        """Kill -9 it; harmless if it has ended."""
        self._process.kill()
        self._process.wait(timeout=30)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def exit_code(self) -> int:
        """Wait until it has ended, however it did."""
        assert self._process.stdout is not None
        with self._process.stdout as output:
            output.read()
        return self._process.wait(timeout=300)

    def result(self) -> dict[str, Any]:
        """Wait until it has finished its batch, and return what it counted."""
        assert self._process.stdout is not None
        with self._process.stdout as output:
            text = output.read()
        assert self._process.wait(timeout=60) == 0
        found: dict[str, Any] = json.loads(text)
        return found


def stored_numbers(folders: Iterable[SpoolPath]) -> list[int]:
    """Return the numbers that the messages of finished batches hold, after checking their digests."""
    found = []
    for folder in folders:
        manifest = Manifest.read(folder / "manifest.json")
        found += [int(str(item.message.body)) for item in manifest_messages(manifest)]
    return found
