"""The ids of messages that are in sealed segments already."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_jmsjca.errors import SpoolError
from airflow_provider_jmsjca.spark.sealing import numbered

Saying: TypeAlias = tuple[str, int]

BATCH = "batch.json"
SEGMENT_STEM = "segment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """How far back messages of an activation's earlier batches are recognised.

    A batch always knows all of its own ids; this bounds what it reads of others. A broker delivers the
    messages of a unit that wasn't committed as soon as somebody receives again, so they are among the last.

    Attributes:
        count: At most this many ids of earlier batches, counted in whole segments.
        age: Only segments sealed within this time.
    """

    count: int = 200_000
    age: timedelta = timedelta(days=7)


def recent_segments(
    spool: Path, batch_id: str, activation: str, horizon: Horizon, *, now: float
) -> Iterator[tuple[Path, list[str]]]:
    """Yield the newest segments of an activation's other batches with the ids in them, the newest first.

    Args:
        spool: The folder of the batches.
        batch_id: The batch that asks, which is left out.
        activation: The activation whose batches are read.
        horizon: How far back.
        now: Seconds since the epoch.
    """
    oldest = now - horizon.age.total_seconds()
    left = horizon.count
    for folder in _by_time(spool, batch_id, oldest):
        if _activation_of(folder) != activation:
            continue
        for _, segment in reversed(numbered(folder, SEGMENT_STEM)):
            if left <= 0:
                return
            if segment.stat().st_mtime < oldest:
                break
            ids = read_ids(segment)
            left -= len(ids)
            yield segment, ids


def read_ids(segment: Path) -> list[str]:
    """Return the keys (see `message_key`) of the messages in a segment; messages without id have none.

    Raises:
        SpoolError: It can't be read.
    """
    try:
        with pq.ParquetFile(segment, page_checksum_verification=True) as file:
            return table_keys(file.read(columns=["message_id", "destination"]))
    except (pa.ArrowException, OSError) as error:
        raise SpoolError(f"{segment}: the ids can't be read: {error}") from error


def read_sayings(segment: Path) -> Iterator[Saying]:
    """Yield the keys of the messages in a segment, each with what tells the message's body from others.

    Raises:
        SpoolError: It can't be read.
    """
    try:
        with pq.ParquetFile(segment, page_checksum_verification=True) as file:
            yield from table_sayings(file.read(columns=["message_id", "destination", "body"]))
    except (pa.ArrowException, OSError) as error:
        raise SpoolError(f"{segment}: the bodies can't be read: {error}") from error


def table_sayings(table: pa.Table) -> Iterator[Saying]:
    """Yield the same of a table."""
    columns = (table.column(name).to_pylist() for name in ("message_id", "destination", "body"))
    for message_id, destination, body in zip(*columns, strict=True):
        if message_id is not None:
            yield message_key(message_id, destination), hash(body or b"")


def table_keys(table: pa.Table) -> list[str]:
    """Return the keys of the messages in a table that has them."""
    ids, places = table.column("message_id").to_pylist(), table.column("destination").to_pylist()
    return [message_key(*pair) for pair in zip(ids, places, strict=True) if pair[0] is not None]


def message_key(message_id: str, destination: str | None) -> str:
    """Return what a message is recognised by.

    The id alone won't do: a broker that copies a message to several queues gives the copies one id.
    """
    return f"{message_id} {destination or ''}"


def _by_time(spool: Path, batch_id: str, oldest: float) -> list[Path]:
    with os.scandir(spool) as entries:
        found = [
            (entry.stat().st_mtime, entry.path)
            for entry in entries
            if entry.name != batch_id and entry.is_dir(follow_symlinks=False)
        ]
    return [Path(path) for modified, path in sorted(found, reverse=True) if modified >= oldest]


def _activation_of(folder: Path) -> str | None:
    try:
        document = json.loads((folder / BATCH).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise SpoolError(f"{folder / BATCH}: can't be read: {error}") from error
    activation = document.get("activation") if isinstance(document, dict) else None
    return activation if isinstance(activation, str) else None
