"""The writer's side of a batch: segments sealed one after the other, then the manifest.

Guarantee: killed at any point, a batch holds sealed segments in full and nothing else that counts; opened
again it goes on after the last one. Two writers can't both write it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_jmsjca.errors import BatchInUseError, SpoolError
from airflow_provider_jmsjca.spark.batch_id import check_batch_id
from airflow_provider_jmsjca.spark.known_ids import (
    BATCH,
    SEGMENT_STEM,
    Horizon,
    Saying,
    read_sayings,
    recent_segments,
    table_keys,
)
from airflow_provider_jmsjca.spark.manifest import MANIFEST, Manifest, Segment, segment_faults
from airflow_provider_jmsjca.spark.row_writer import Row, rows_to_table
from airflow_provider_jmsjca.spark.schema import FORMAT_VERSION, SCHEMA_VERSION
from airflow_provider_jmsjca.spark.sealing import remove_temporary, seal, synchronize_folder

LOCK: Final = "lock"
# Worth a dictionary; ids and bodies are not.
_REPEATED: Final = [
    "destination",
    "reply_to",
    "type",
    "group_id",
    "body_type",
    "content_type",
    "properties.key_value.key",
    "properties.key_value.value",
    "property_types.key_value.key",
    "property_types.key_value.value",
    "batch_id",
]


class SpoolBatch:
    """One batch, held by one writer at a time. Use it in a `with` statement.

    Not for several threads at once, except that `knows` may be called while `seal` runs.

    Attributes:
        manifest: The finished batch; `None` while it is being written.
        segments: What is sealed, in order.
        rows: How many messages that is.
    """

    def __init__(
        self,
        spool: Path,
        batch_id: str,
        *,
        source: str,
        activation: str,
        horizon: Horizon | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open a batch, or create it.

        A finished one is returned as it is. Of an unfinished one what is sealed is verified and kept, its ids
        are known, and temporary files are removed.

        Args:
            spool: The folder of all batches; created if missing.
            batch_id: As `TaskKey.batch_id` makes it.
            source: Where the messages come from, such as `queue://orders`.
            activation: Which batches share the ids they have seen: those with the same text.
            horizon: How far back in earlier batches messages are recognised; `None` means the default.
            clock: Seconds since the epoch.

        Raises:
            BatchInUseError: Another writer holds it.
            SpoolError: It is damaged, belongs to another source or activation, or can't be written.
            ConfigurationError: The batch id can't name a folder.
        """
        self.batch_id = check_batch_id(batch_id)
        self.folder = spool.absolute() / batch_id
        self.source = source
        self.activation = activation
        self.manifest: Manifest | None = None
        self.segments: list[Segment] = []
        self.rows = 0
        self._clock = clock
        self._known: dict[str, list[int]] = {}
        self._known_from: list[Path] = []
        self._said: dict[int, frozenset[Saying]] = {}
        self._lock: int | None = None
        if self._find_manifest():
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(self.folder / LOCK)
        except OSError as error:
            raise SpoolError(
                f"{self.folder}: can't be opened: {error.strerror or error}; expected a spool_path that this "
                "process can write"
            ) from error
        try:
            if not self._find_manifest():
                synchronize_folder(self.folder.parent)
                remove_temporary(self.folder)
                self._write_or_check_header()
                for path, ids in recent_segments(
                    spool, batch_id, activation, horizon or Horizon(), now=clock()
                ):
                    self._know(path, ids)
                self._recover()
        except BaseException:
            self.close()
            raise

    def _find_manifest(self) -> bool:
        path = self.folder / MANIFEST
        if path.exists():
            manifest = Manifest.read(path)
            for name, found, expected in (
                ("batch_id", manifest.batch_id, self.batch_id),
                ("source", manifest.source, self.source),
                ("activation", manifest.activation, self.activation),
            ):
                if found != expected:
                    raise SpoolError(f"{path}: {name}: expected {expected!r}, found {found!r}")
            self.manifest = manifest
            self.segments = list(manifest.segments)
            self.rows = manifest.rows
        return self.manifest is not None

    def _write_or_check_header(self) -> None:
        path = self.folder / BATCH
        fields = {
            "format_version": FORMAT_VERSION,
            "schema_version": SCHEMA_VERSION,
            "batch_id": self.batch_id,
            "source": self.source,
            "activation": self.activation,
        }
        document = {**fields, "created": self._now()}
        if seal(path, json.dumps(document, indent=2, sort_keys=True).encode() + b"\n"):
            return
        try:
            found = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise SpoolError(f"{path}: can't be read: {error}") from error
        faults = [
            f"{name}: expected {expected!r}, found {found.get(name) if isinstance(found, dict) else found!r}"
            for name, expected in fields.items()
            if not isinstance(found, dict) or found.get(name) != expected
        ]
        if faults:
            raise SpoolError(f"{path}: {'; '.join(faults)}")

    def _recover(self) -> None:
        names = sorted(path.name for path in self.folder.glob(f"{SEGMENT_STEM}*"))
        for number, name in enumerate(names):
            expected = _file_name(number)
            if name != expected:
                raise SpoolError(f"{self.folder}: expected {expected}, found {name}")
            self._keep(self.folder / name, number)

    def _keep(self, path: Path, number: int) -> None:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise SpoolError(f"{path}: can't be read: {error.strerror or error}") from error
        faults = segment_faults(path, content)
        if faults:
            raise SpoolError("; ".join(faults))
        try:
            table = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True).read()
        except (pa.ArrowException, OSError) as error:
            raise SpoolError(f"{path}: damaged: {error}") from error
        found = table.schema.metadata or {}
        for name, expected in _metadata(self.batch_id, number).items():
            if found.get(name) != expected:
                raise SpoolError(
                    f"{path}: {name.decode()}: expected {expected.decode()!r}, "
                    f"found {found.get(name, b'nothing').decode(errors='replace')!r}"
                )
        self._add(path.name, table, content)

    def _add(self, name: str, table: pa.Table, content: bytes | memoryview) -> Segment:
        digest = hashlib.sha256(content).hexdigest()
        segment = Segment(file=name, rows=table.num_rows, bytes=len(content), sha256=digest)
        self._know(self.folder / name, table_keys(table))
        self.segments.append(segment)
        self.rows += segment.rows
        return segment

    def knows(self, key: str, body: bytes | None = None) -> bool:
        """Tell whether a message is in a sealed segment.

        Args:
            key: What `known_ids.message_key` makes of it.
            body: Where its id is the producer's word, which may give several messages the same: its body, as
                the column holds it. The bodies of each segment that has the key are read once.

        Raises:
            SpoolError: A segment can't be read.
        """
        numbers = self._known.get(key, ())
        if body is None:
            return bool(numbers)
        return any((key, hash(body)) in self._said_in(number) for number in numbers)

    def _know(self, path: Path, keys: Iterable[str]) -> None:
        number = len(self._known_from)
        self._known_from.append(path)
        for key in keys:
            self._known.setdefault(key, []).append(number)

    def _said_in(self, number: int) -> frozenset[Saying]:
        if number not in self._said:
            self._said[number] = frozenset(read_sayings(self._known_from[number]))
        return self._said[number]

    def seal(self, rows: Sequence[Row]) -> Segment:
        """Make rows durable as the next segment.

        Guarantee: when it returns they survive any crash, and may be acknowledged; when it raises or the
        process dies, either they do, or nothing of them is there.

        Args:
            rows: At least one.

        Raises:
            BatchInUseError: Somebody else sealed this segment: these rows are not in the batch.
            SpoolError: The operating system refused.
        """
        if self._lock is None:
            raise SpoolError(f"{self.folder}: the batch is finished or closed, nothing can be added to it")
        if not rows:
            raise ValueError("a segment needs at least one row")
        number = len(self.segments)
        table = rows_to_table(rows, self.batch_id, number)
        table = table.replace_schema_metadata(_metadata(self.batch_id, number))
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd", use_dictionary=_REPEATED, write_page_checksum=True)
        content = memoryview(sink.getvalue())
        name = _file_name(number)
        if not seal(self.folder / name, content):
            raise BatchInUseError(f"{self.folder / name}: another writer has sealed this segment")
        return self._add(name, table, content)

    def complete(self) -> Manifest:
        """Seal the manifest: the batch is finished and never changes again.

        Returns:
            The manifest; the one that is there if the batch was finished before.

        Raises:
            BatchInUseError: Another writer finished it.
            SpoolError: The operating system refused.
        """
        if self.manifest is None:
            if self._lock is None:
                raise SpoolError(f"{self.folder}: the batch is closed")
            manifest = Manifest(
                folder=self.folder,
                batch_id=self.batch_id,
                source=self.source,
                activation=self.activation,
                created=self._now(),
                rows=self.rows,
                segments=tuple(self.segments),
            )
            manifest.create()
            self.manifest = manifest
        return self.manifest

    def _now(self) -> str:
        return datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")

    def close(self) -> None:
        """Let go of the batch, finished or not; closing twice is harmless."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _file_name(number: int) -> str:
    return f"{SEGMENT_STEM}-{number:06d}.parquet"


def _metadata(batch_id: str, number: int) -> dict[bytes, bytes]:
    return {
        b"jmsjca.format_version": str(FORMAT_VERSION).encode(),
        b"jmsjca.schema_version": str(SCHEMA_VERSION).encode(),
        b"jmsjca.batch_id": batch_id.encode(),
        b"jmsjca.segment": str(number).encode(),
    }


def _lock(path: Path) -> int:
    """Take the lock of a folder; the system lets go of it when the process ends, however it ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 200, 0).decode(errors="replace") or "another process"
        os.close(descriptor)
        raise BatchInUseError(f"{path}: the batch is being written by {holder}") from None
    except BaseException:
        os.close(descriptor)
        raise
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
    return descriptor
