"""Batches small enough to look at."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.spark.manifest import Manifest
from airflow_provider_jmsjca.spark.row_writer import Row
from airflow_provider_jmsjca.spark.spool import SpoolBatch

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
