"""Messages that a job turned away, and why: written by the job, read by whoever dead-letters them.

A file `rejects-<fence>-<number>.jsonl` has one JSON object for each message:
`{"segment": 0, "position": 17, "exception_class": "...", "exception_message": "..."}`.
Only the files named in `_DONE` count.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import SpoolError
from airflow_provider_jmsjca.spark.attempts import Done, RejectsFile
from airflow_provider_jmsjca.spark.manifest import Manifest
from airflow_provider_jmsjca.spark.row_reader import table_to_messages
from airflow_provider_jmsjca.spark.sealing import seal


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """One message turned away.

    Attributes:
        segment: Number of the segment it is in.
        position: Its row in the segment.
        exception_class: Qualified name, for the property of J162.
        exception_message: For the property of J163.
    """

    segment: int
    position: int
    exception_class: str
    exception_message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedMessage:
    """A message turned away, as it was received, and why."""

    message: JmsMessage
    exception_class: str
    exception_message: str


def write_rejects(folder: Path, fence: int, number: int, rejects: Iterable[Reject]) -> RejectsFile:
    """Seal a file of rejects.

    Args:
        folder: The batch's folder.
        fence: The attempt.
        number: Which file of this attempt it is, from 0.
        rejects: In any order.

    Raises:
        SpoolError: It can't be written, or this attempt wrote this number before.
    """
    lines = [json.dumps(asdict(reject), ensure_ascii=True).encode() + b"\n" for reject in rejects]
    content = b"".join(lines)
    path = folder / f"rejects-{fence:06d}-{number:06d}.jsonl"
    if not seal(path, content):
        raise SpoolError(f"{path}: attempt {fence} has written it before: two jobs run as one attempt")
    return RejectsFile(file=path.name, rows=len(lines), sha256=hashlib.sha256(content).hexdigest())


def rejected_messages(manifest: Manifest) -> Iterator[RejectedMessage]:
    """Yield the messages that a finished batch turned away, in the order they were received.

    It reads files and changes nothing, so it can be repeated until every message has been dead-lettered.

    Raises:
        SpoolError: The batch isn't finished, or a file is missing or damaged.
    """
    done = Done.read(manifest.folder)
    if done is None:
        raise SpoolError(f"{manifest.folder}: no _DONE: the job hasn't finished, its rejects don't count yet")
    wanted: dict[int, dict[int, Reject]] = defaultdict(dict)
    for file in done.rejects:
        for reject in _read(manifest.folder, file):
            wanted[reject.segment].setdefault(reject.position, reject)
    for segment in sorted(wanted):
        yield from _messages(manifest, segment, wanted[segment])


def _read(folder: Path, file: RejectsFile) -> list[Reject]:
    path = folder / file.file
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SpoolError(f"{path}: can't be read: {error.strerror or error}") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != file.sha256:
        raise SpoolError(f"{path}: expected sha256 {file.sha256}, found {digest}")
    return [Reject(**json.loads(line)) for line in content.splitlines()]


def _messages(manifest: Manifest, number: int, wanted: dict[int, Reject]) -> Iterator[RejectedMessage]:
    if not 0 <= number < len(manifest.segments):
        raise SpoolError(f"{manifest.folder}: a reject names segment {number}, which the batch doesn't have")
    segment = manifest.segments[number]
    rows = segment.rows
    outside = [position for position in wanted if not 0 <= position < rows]
    if outside:
        raise SpoolError(f"{segment.file}: a reject names row {outside[0]}, the segment has {rows}")
    positions = sorted(wanted)
    try:
        with pq.ParquetFile(manifest.folder / segment.file, page_checksum_verification=True) as file:
            table = file.read().take(pa.array(positions, pa.int64()))
    except (pa.ArrowException, OSError) as error:
        raise SpoolError(f"{manifest.folder / segment.file}: can't be read: {error}") from error
    for stored in table_to_messages(table):
        reject = wanted[stored.position]
        yield RejectedMessage(
            message=stored.message,
            exception_class=reject.exception_class,
            exception_message=reject.exception_message,
        )
