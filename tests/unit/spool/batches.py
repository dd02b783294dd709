"""Batches small enough to look at."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

import pytest

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.message.message import Identity
from airflow_provider_jmsjca.spark.rejects import Reject
from airflow_provider_jmsjca.spool.attempts import RejectsFile
from airflow_provider_jmsjca.spool.manifest import Manifest
from airflow_provider_jmsjca.spool.rows import Row
from airflow_provider_jmsjca.spool.spool import SpoolBatch

NOW = 1_700_000_000.0
ORDERS = Destination.queue("orders")

OpenBatch = Callable[..., SpoolBatch]
MakeRows = Callable[[Iterable[int]], list[Row]]


@pytest.fixture
def rows() -> MakeRows:
    def make(numbers: Iterable[int]) -> list[Row]:
        return [
            Row(
                JmsMessage.text(f"body {number}", message_id=f"ID:{number}", destination=ORDERS),
                1_700_000_000_000_000 + number,
            )
            for number in numbers
        ]

    return make


@pytest.fixture
def open_batch(tmp_path: Path) -> OpenBatch:
    def open_it(batch_id: str = "b1", **changes: object) -> SpoolBatch:
        given: dict[str, object] = {"source": "queue://orders", "activation": "a", "clock": lambda: NOW}
        return SpoolBatch(tmp_path, batch_id, **{**given, **changes})  # type: ignore[arg-type]  # by name

    return open_it


@pytest.fixture
def finished(open_batch: OpenBatch, rows: MakeRows) -> Manifest:
    """Two segments: messages 0 to 2, and 3 and 4."""
    with open_batch() as batch:
        batch.seal(rows(range(3)))
        batch.seal(rows(range(3, 5)))
        return batch.complete()


def write_rejects(folder: Path, fence: int, number: int, rejects: Iterable[Reject]) -> RejectsFile:
    """Write a file of rejects as a job leaves it."""
    lines = [json.dumps(asdict(reject)) + "\n" for reject in rejects]
    path = folder / f"rejects-{fence:06d}-{number:06d}.jsonl"
    path.write_text("".join(lines))
    return RejectsFile(file=path.name, rows=len(lines), sha256=hashlib.sha256(path.read_bytes()).hexdigest())


def is_sealed(batch: SpoolBatch, key: str, identity: Identity) -> bool:
    """Return whether a sealed segment, of this batch or another one, has a message with this identity."""
    return any(identity in batch.identities(segment) for segment in batch.segments_with(key))
