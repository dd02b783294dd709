"""The writer's side of a batch: segments sealed one after the other, then the manifest.

Guarantee: after a kill at any point, a batch consists of whole sealed segments; anything else in its folder
is ignored. When it is opened again, writing continues after the last segment. Two writers can't write it at
the same time.

The names `segment-000000.parquet`, `segment-000001.parquet`, ... are consecutive places. Each place is taken
once, by exclusive creation, by one of three kinds of file:

- A segment with messages.
- A fence, without rows. A writer that continues a batch seals a fence to shut out the previous writer. The
  previous writer finds its next place taken, and acknowledges nothing more.
- The end, without rows. No segment is added after it.

So the manifest lists every segment, even if `flock` doesn't exclude other writers, as over some NFS mounts.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Self

from airflow_provider_jmsjca.core.message.message import Identity
from airflow_provider_jmsjca.errors import BatchInUseError, SpoolError
from airflow_provider_jmsjca.spool.arrow import layout, pa, pq
from airflow_provider_jmsjca.spool.batch_id import TaskKey, check_batch_id
from airflow_provider_jmsjca.spool.files import (
    SpoolPath,
    create_marker,
    digest_of,
    exists,
    has_renames,
    is_folder,
    is_link,
    is_locked,
    lock,
    make_folder,
    names_in,
    numbered,
    open_file,
    read_document,
    remove_if_unused,
    remove_temporary,
    require_exclusive_creation,
    seal,
    stage,
    synchronize_folder,
)
from airflow_provider_jmsjca.spool.id_index import IdIndex
from airflow_provider_jmsjca.spool.known_ids import (
    BATCH,
    SEGMENT_STEM,
    DeduplicationWindow,
    count_rows,
    read_identities,
    table_keys,
)
from airflow_provider_jmsjca.spool.manifest import MANIFEST, Manifest, Segment, remedy, segment_faults
from airflow_provider_jmsjca.spool.rows import Row, rows_to_table
from airflow_provider_jmsjca.spool.schema import FORMAT_VERSION, SCHEMA_VERSION

LOCK: Final = "lock"
_END: Final = b"jmsjca.end"
_ADOPTS: Final = "adopts"
_SETTLED: Final = "settled"
# Columns with repeated values, for which Parquet's dictionaries save space.
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


class SealedElsewhereError(SpoolError):
    """Another batch has sealed some of the messages already; these must be received again."""


class SpoolBatch:
    """One batch, held by one writer at a time. Use it in a `with` statement.

    Only one thread at a time may use an instance, except that `may_contain` may be called while `seal` runs.

    Attributes:
        manifest: The manifest of the finished batch; `None` while it is being written.
        segments: The sealed segments with messages, in order. Sealed files without rows, which shut out other
            writers or end the batch, are left out.
        rows: Number of messages in the sealed segments.
    """

    def __init__(
        self,
        spool: SpoolPath,
        batch_id: str,
        *,
        source: str,
        activation: str,
        horizon: DeduplicationWindow | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open a batch, or create it.

        A finished batch isn't changed. The sealed segments of an unfinished batch are verified and kept, the
        ids in them are recognised, and temporary files are removed.

        Args:
            spool: The folder of all batches; created if missing.
            batch_id: The batch's name, see `TaskKey.batch_id`.
            source: Destination from which the messages come, such as `queue://orders`.
            activation: Name of the activation. Its batches share their known message ids.
            horizon: How far back in earlier batches messages are recognised; `None` means the default.
            clock: Returns the current time in seconds since the epoch.

        Raises:
            BatchInUseError: Another writer holds the batch.
            SpoolError: The batch is damaged, belongs to another source or activation, or can't be written.
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
        # Hashes take a third of the memory of the keys. A false match does no harm: the segment is read then.
        self._sealed_in: dict[int, tuple[SpoolPath, ...]] = {}
        self._id_index = IdIndex(self.folder.parent, activation, batch_id, horizon, clock)
        self._identity_cache: dict[SpoolPath, Counter[Identity]] = {}
        self._lock: ExitStack | None = None
        self._writing = threading.Lock()
        self._open: _SegmentFile | None = None
        self._place = 0
        self._ended: str | None = None
        if self._find_manifest():
            return
        try:
            require_exclusive_creation(self.folder.parent)
            make_folder(self.folder)
            self._lock = lock(self.folder / LOCK)
        except OSError as error:
            raise SpoolError(
                f"{self.folder}: can't be opened: {error.strerror or error}; expected a spool_path that this "
                "process can write"
            ) from error
        try:
            if not self._find_manifest():
                synchronize_folder(self.folder.parent)
                remove_temporary(self.folder)
                is_new = self._write_or_check_header()
                self._id_index.register()
                self._recover(fence=not is_new)
        except BaseException:
            self.close()
            raise

    def _find_manifest(self) -> bool:
        path = self.folder / MANIFEST
        if exists(path):
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

    def _write_or_check_header(self) -> bool:
        """Write the batch's header, or check the existing one; return whether this writer is the first."""
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
            return True
        try:
            found = read_document(path)
        except (OSError, ValueError) as error:
            raise SpoolError(f"{path}: can't be read: {error}") from error
        faults = [
            f"{name}: expected {expected!r}, found {found.get(name) if isinstance(found, dict) else found!r}"
            for name, expected in fields.items()
            if not isinstance(found, dict) or found.get(name) != expected
        ]
        if faults:
            raise SpoolError(f"{path}: {'; '.join(faults)}")
        return False

    def _recover(self, *, fence: bool) -> None:
        found = sorted(name for name in names_in(self.folder) if name.startswith(SEGMENT_STEM))
        for number, name in enumerate(found):
            expected = segment_file(number)
            if name != expected:
                raise SpoolError(f"{self.folder}: expected {expected}, found {name}; {remedy(self.folder)}")
            self._keep()
        while fence and self._ended is None and not self._claim_number():
            self._keep()  # the previous writer has just sealed a segment under this number
        if self._ended is not None:
            self._seal_manifest(self._ended)

    def _claim_number(self, ended: str | None = None) -> bool:
        """Seal a fence under the next number, or the end of the batch if `ended` is given.

        Returns:
            `False` if another writer has sealed a file under this number.
        """
        if not seal_number(self.folder, self.batch_id, self._place, ended):
            return False
        self._place += 1
        return True

    def _keep(self) -> None:
        """Verify the sealed file with the next number, and add it to the batch's segments in memory."""
        number = self._place
        path = self.folder / segment_file(number)
        if self._ended is not None:
            raise SpoolError(f"{path}: comes after the end of the batch")
        try:
            read = read_segment(path, self.batch_id, number)
        except SpoolError as error:
            raise SpoolError(f"{error}; {remedy(self.folder)}") from error
        self._ended = read.ended
        self._place += 1
        if read.segment.rows:
            self._list(read.segment, read.keys)

    def _list(self, segment: Segment, keys: Iterable[str]) -> Segment:
        self._remember(self.folder / segment.file, keys)
        self.segments.append(segment)
        self.rows += segment.rows
        return segment

    def may_contain(self, key: str) -> bool:
        """Return whether a sealed segment of this or another batch may hold a message with this key.

        `False` is certain. `True` is rarely wrong, because hashes of keys are compared.

        Args:
            key: The message's `known_ids.message_key`.
        """
        return bool(self._sealed_in.get(hash(key)) or self._id_index.find(key))

    def segments_with(self, key: str) -> list[SpoolPath]:
        """Return the sealed segments of this batch and others that may hold a message with this key.

        Args:
            key: The message's `known_ids.message_key`.

        Raises:
            SpoolError: The index of other batches can't be read.
        """
        others = [path for path in self._id_index.find(key) if exists(path)]
        return [*self._sealed_in.get(hash(key), ()), *others]

    def identities(self, segment: SpoolPath) -> Mapping[Identity, int]:
        """Return the identities in a segment, each with its number of messages.

        Raises:
            SpoolError: The segment can't be read.
        """
        return self._identities_in(segment)

    @staticmethod
    def is_settled(segment: SpoolPath) -> bool:
        """Return whether `note_settled` was called for a segment."""
        return exists(_settled_mark(segment))

    @staticmethod
    def note_settled(segment: SpoolPath) -> None:
        """Durably record that the broker has confirmed the acknowledgement of each message in a segment.

        Args:
            segment: Path of the segment, of this batch or another. A removed batch is ignored.

        Raises:
            SpoolError: The record can't be written.
        """
        mark = _settled_mark(segment)
        try:
            with suppress(FileExistsError, FileNotFoundError):
                create_marker(mark)
        except OSError as error:
            raise SpoolError(f"{mark}: can't be written: {error.strerror or error}") from error

    def _remember(self, path: SpoolPath, keys: Iterable[str]) -> None:
        here = (path,)
        for each in map(hash, keys):
            before = self._sealed_in.get(each)
            self._sealed_in[each] = here if before is None else before + here

    def _identities_in(self, path: SpoolPath) -> Counter[Identity]:
        if path not in self._identity_cache:
            self._identity_cache[path] = Counter(read_identities(path))
        return self._identity_cache[path]

    def add(self, rows: Sequence[Row]) -> None:
        """Write rows to the next segment, which becomes part of the batch by `seal`.

        Written rows are not kept in memory, so a segment can be larger than memory.

        Args:
            rows: The rows to write, at least one.

        Raises:
            SpoolError: The file can't be written; all unsealed rows are dropped. Or the batch is finished.
        """
        with self._writing:
            self._add(rows)

    def _add(self, rows: Sequence[Row]) -> _SegmentFile:
        if self._lock is None or self._ended is not None:
            raise SpoolError(f"{self.folder}: the batch is finished or closed, nothing can be added to it")
        if not rows:
            raise ValueError("a segment needs at least one row")
        if self._open is None:
            self._open = _SegmentFile(self.folder, self.batch_id, self._place)
        try:
            self._open.write(rows)
        except BaseException:
            self._give_up()
            raise
        return self._open

    def seal(self, rows: Sequence[Row] = (), *, only_if_new: Collection[str] = ()) -> Segment:
        """Seal the rows of earlier `add` calls and further rows as the next segment.

        Guarantee: after the return the rows survive any crash, and their messages may be acknowledged. If the
        call raises or the process dies, either all of the rows are sealed or none.

        Args:
            rows: Further rows for the segment; at least one, unless `add` has added some.
            only_if_new: Keys of messages among the rows that another batch may have received too, after a
                lost connection. If another batch has sealed one of them, the call is refused. In an object
                store, both batches may seal such a message if they do so at the same time.

        Raises:
            BatchInUseError: Another writer has taken the batch over; the segment's rows are not in it.
            SealedElsewhereError: Another batch has sealed a message of `only_if_new`; the segment's rows are
                not in this batch.
            SpoolError: The file can't be written, or the batch is finished.
        """
        with self._writing:
            file = self._add(rows) if rows or self._open is None else self._open
            self._open = None
            with file, self._id_index.exclusive_sealing() if only_if_new else nullcontext():
                if self._id_index.has_new(only_if_new):
                    raise SealedElsewhereError(
                        f"{self.folder}: another batch has already stored messages that this one was about "
                        "to store"
                    )
                if not file.seal():
                    raise self._overtaken()
                self._place += 1
                return self._list(file.segment, file.keys)

    def drop_unsealed(self) -> None:
        """Drop the unsealed rows; do nothing while another thread is writing or sealing them."""
        if self._writing.acquire(blocking=False):
            try:
                self._give_up()
            finally:
                self._writing.release()

    def _give_up(self) -> None:
        file, self._open = self._open, None
        if file is not None:
            file.close()

    def _overtaken(self) -> BatchInUseError:
        return BatchInUseError(
            f"{self.folder / segment_file(self._place)}: another process has taken over the batch; "
            "messages that this one had not sealed are not in it"
        )

    def complete(self) -> Manifest:
        """Seal the manifest, which finishes the batch: it never changes again.

        In an object store, the manifest of a batch without messages is returned but not sealed. Otherwise
        `discard` could not remove the batch.

        Returns:
            The manifest, also if the batch was finished before.

        Raises:
            BatchInUseError: Another writer has taken the batch over.
            SpoolError: The manifest can't be written, or the batch is closed.
        """
        if self.manifest is None:
            if self._lock is None:
                raise SpoolError(f"{self.folder}: the batch is closed")
            if not self.rows and not has_renames(self.folder):
                return self._listed(self._now())
            if self._ended is None:
                now = self._now()
                if not self._claim_number(now):
                    raise self._overtaken()
                self._ended = now
            return self._seal_manifest(self._ended)
        return self.manifest

    def _seal_manifest(self, created: str) -> Manifest:
        """Seal the manifest of an ended batch, and return it.

        Every process that finds the end computes the same manifest, so it doesn't matter which one seals it.
        """
        manifest = self._listed(created)
        if not seal(manifest.path, manifest.document()) and Manifest.read(manifest.path) != manifest:
            raise SpoolError(f"{manifest.path}: doesn't list the segments of the batch")
        self.manifest = manifest
        return manifest

    def _listed(self, created: str) -> Manifest:
        return Manifest(
            folder=self.folder,
            batch_id=self.batch_id,
            source=self.source,
            activation=self.activation,
            created=created,
            rows=self.rows,
            segments=tuple(self.segments),
        )

    def note_adopted(self, names: Sequence[str]) -> tuple[str, ...]:
        """Durably record the unfinished batches that the writer of this batch finishes and submits too.

        Args:
            names: Names of those batches; names that are recorded already are skipped.

        Returns:
            All recorded names, those of earlier calls and attempts included.

        Raises:
            SpoolError: The record can't be read or written.
        """
        try:
            notes = numbered(self.folder, _ADOPTS)
            noted = [name for _, path in notes for name in read_document(path)]
        except (OSError, ValueError, TypeError) as error:
            raise SpoolError(f"{self.folder}: the batches that it adopted can't be read: {error}") from error
        fresh = [check_batch_id(name) for name in names if name not in noted]
        if fresh:
            seal(self.folder / f"{_ADOPTS}-{len(notes):06d}.json", json.dumps(fresh).encode() + b"\n")
        return (*map(check_batch_id, noted), *fresh)

    def discard(self) -> None:
        """Remove the folder of a batch that ended without messages, so that the next attempt begins again.

        Guarantee: a folder with messages is never removed, even if other processes write to it at the same
        time. On a file system the folder is first renamed, and checked again under the new name.

        Raises:
            SpoolError: The folder can't be removed, or another writer is using it.
        """
        try:
            if not self._is_empty(self.folder):
                return
            if remove_if_unused(self.folder, may_remove=self._is_empty, kept_prefix=SEGMENT_STEM):
                self._id_index.unregister()
            elif is_folder(self.folder):
                raise SpoolError(f"{self.folder}: another process is writing to the batch")
        except OSError as error:
            raise SpoolError(f"{self.folder}: can't be removed: {error.strerror or error}") from error

    def _is_empty(self, folder: SpoolPath) -> bool:
        """Return whether the batch in a folder has no messages, and no writer adds messages any more."""
        path = folder / MANIFEST
        if exists(path):
            return Manifest.read(path).rows == 0
        return not has_renames(folder) and not any(
            count_rows(each) for _, each in numbered(folder, SEGMENT_STEM)
        )

    def _now(self) -> str:
        return datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")

    def close(self) -> None:
        """Release the batch, finished or not, for other writers; closing twice is harmless."""
        self.drop_unsealed()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSegment:
    """A sealed file of a batch: a segment with messages, a fence against the previous writer, or the end.

    Attributes:
        segment: The file as a manifest lists it; a fence and the end have no rows.
        keys: Keys of the messages in it.
        ended: When the batch ended, ISO 8601; `None` unless the file is the end.
    """

    segment: Segment
    keys: Sequence[str]
    ended: str | None


def read_segment(path: SpoolPath, batch_id: str, number: int) -> ReadSegment:
    """Read a sealed file in full, which detects any damage.

    Raises:
        SpoolError: The file is missing or damaged, or belongs to another batch, or has another number.
    """
    keys: list[str] = []
    try:
        with open_file(path) as file:
            faults = segment_faults(path, file)
            if faults:
                raise SpoolError("; ".join(faults))
            digest, size = digest_of(file), file.seek(0, os.SEEK_END)
            try:
                with layout.SegmentReader(file) as parquet:
                    found, rows = parquet.schema_arrow.metadata or {}, parquet.metadata.num_rows
                    for group in range(parquet.num_row_groups):
                        keys += table_keys(parquet.read_row_group(group))
            except (pa.ArrowException, OSError) as error:
                raise SpoolError(f"{path}: damaged: {error}") from error
    except OSError as error:
        raise SpoolError(f"{path}: can't be read: {error.strerror or error}") from error
    for name, expected in segment_metadata(batch_id, number).items():
        if found.get(name) != expected:
            raise SpoolError(
                f"{path}: {name.decode()}: expected {expected.decode()!r}, "
                f"found {found.get(name, b'nothing').decode(errors='replace')!r}"
            )
    end = found.get(_END)
    return ReadSegment(
        segment=Segment(file=path.name, rows=rows, bytes=size, sha256=digest),
        keys=keys,
        ended=None if end is None else end.decode(errors="replace"),
    )


def seal_number(folder: SpoolPath, batch_id: str, number: int, ended: str | None = None) -> bool:
    """Seal a file without rows, a fence or the end of the batch; return `False` if its number is taken.

    Both shut out the previous writer of the batch.

    Args:
        folder: Folder of the batch.
        batch_id: Name of the batch.
        number: Number of the file among the files of the batch, from 0.
        ended: When the batch ended, ISO 8601; `None` for a fence.
    """
    with _SegmentFile(folder, batch_id, number, {} if ended is None else {_END: ended.encode()}) as file:
        file.write([])
        return file.seal()


def segment_file(number: int) -> str:
    """Return the name of a batch's file by its number, from 0: a segment, a fence or the batch's end."""
    return f"{SEGMENT_STEM}-{number:06d}.parquet"


def _settled_mark(segment: SpoolPath) -> SpoolPath:
    number = segment.name.removeprefix(f"{SEGMENT_STEM}-").partition(".")[0]
    return segment.parent / f"{_SETTLED}-{number}"


def segment_metadata(batch_id: str, number: int) -> dict[bytes, bytes]:
    """Return the metadata that the file of each segment contains."""
    return {
        b"jmsjca.format_version": str(FORMAT_VERSION).encode(),
        b"jmsjca.schema_version": str(SCHEMA_VERSION).encode(),
        b"jmsjca.batch_id": batch_id.encode(),
        b"jmsjca.segment": str(number).encode(),
    }


class _SegmentFile:
    """A segment that is being written. Each `write` adds a row group and keeps none of the rows in memory.

    Args:
        folder: Folder of the batch.
        batch_id: Name of the batch.
        number: Number in the segment's file name.
        metadata: Further metadata of the file.

    Attributes:
        keys: Keys of the messages written so far.
    """

    def __init__(
        self, folder: SpoolPath, batch_id: str, number: int, metadata: dict[bytes, bytes] | None = None
    ) -> None:
        self.keys: list[str] = []
        self._rows = 0
        self._batch_id = batch_id
        self._number = number
        self._staged = stage(folder / segment_file(number))
        self._parquet = pq.ParquetWriter(
            self._staged,
            layout.MESSAGE_SCHEMA.with_metadata(segment_metadata(batch_id, number) | (metadata or {})),
            compression="zstd",
            use_dictionary=_REPEATED,
            write_page_checksum=True,
        )

    def write(self, rows: Sequence[Row]) -> None:
        table = rows_to_table(rows, self._batch_id, self._number, first=self._rows)
        self._parquet.write_table(table)
        self._rows += len(rows)
        self.keys += table_keys(table)

    def seal(self) -> bool:
        self._parquet.close()
        return self._staged.seal()

    @property
    def segment(self) -> Segment:
        staged = self._staged
        return Segment(file=staged.name, rows=self._rows, bytes=staged.size, sha256=staged.sha256)

    def close(self) -> None:
        self._staged.close()
        self._parquet.close()  # writes a footer, which the discarded file ignores

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedBatch:
    """An earlier batch without a manifest and without an active writer; its messages are acknowledged.

    Attributes:
        batch_id: The batch's name.
        rows: Number of its messages; `None` if one of its files is damaged or can't be read.
    """

    batch_id: str
    rows: int | None

    def warning(self) -> str:
        """Return a line for a task's log: the number of messages, and the action that finishes the batch."""
        key = TaskKey.parse(self.batch_id)
        # The batch of a request that was sent again has a number after the task's name, such as `send#1`.
        task = (
            "its task instance"
            if key is None
            else f"task {key.task_id.partition('#')[0]!r} of run {key.run_id!r} of DAG {key.dag_id!r}"
            + (f", map index {key.map_index}" if key.map_index >= 0 else "")
        )
        rows = "an unknown number of" if self.rows is None else self.rows
        return (
            f"Batch {self.batch_id} was never finished: {rows} acknowledged messages are in it and nowhere "
            f"else. Unless a retry is still to come, clear {task}: it continues that batch"
        )


def unfinished_batches(spool: SpoolPath, batch_id: str, activation: str) -> list[UnfinishedBatch]:
    """Return an activation's unfinished batches that no writer holds, sorted by name.

    They come from tasks that failed and haven't been retried. An object store has no locks: there, batches
    that are still being written are returned too.

    Args:
        spool: The folder of all batches.
        batch_id: Name of the caller's own batch, which is left out.
        activation: The activation of the batches.

    Raises:
        SpoolError: The list of the activation's batches can't be read.
    """
    found = []
    for name in IdIndex(spool, activation, batch_id).batches():
        folder = spool / name
        if exists(folder / MANIFEST):
            continue
        try:
            segments = [] if is_link(folder) else numbered(folder, SEGMENT_STEM)
            if not segments or is_locked(folder / LOCK):
                continue
            rows = sum(count_rows(path) for _, path in segments)
        except (FileNotFoundError, NotADirectoryError):
            continue  # no folder, or it has just been removed
        except (SpoolError, OSError):
            rows = None
        if rows != 0:
            found.append(UnfinishedBatch(batch_id=folder.name, rows=rows))
    return found
