"""An index of the messages in an activation's batches, so that a new batch need not read the other batches.

Folder `.known/<digest of the activation>` of the spool:

| file | content |
|---|---|
| `open-<random>-<batch id>` | empty; the batch may grow, or the index lacks some of its segments |
| `lock` | held during `exclusive_sealing`; not in an object store |
| `ids-000001.arrow` | a SHA-256, then sorted hashes of keys; the highest number is valid |

The index is derived from the batches: a missing or damaged one is rebuilt. A batch is registered durably, by
its `open-` file, before its messages can be acknowledged. The registration is removed once the newest index
covers all segments of the batch's manifest. So the index and the registered batches together always cover the
deduplication window (the horizon), even if a process dies at any point.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, Literal, NamedTuple

from airflow_provider_jmsjca.errors import SpoolError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.spool.arrow import layout, pa, pc
from airflow_provider_jmsjca.spool.files import (
    SpoolPath,
    create_marker,
    entries,
    entry_of,
    exists,
    is_link,
    locked,
    make_folder,
    names_in,
    numbered,
    read_file,
    remove,
    seal,
    synchronize_folder,
)
from airflow_provider_jmsjca.spool.known_ids import SEGMENT_STEM, DeduplicationWindow, activation_in, read_ids
from airflow_provider_jmsjca.spool.manifest import MANIFEST

INDEX_FOLDER: Final = ".known"
_log = safe_logger(__name__)
_FORMAT: Final = 1
_STEM: Final = "ids"
_OPEN: Final = "open-"
_RANDOM_DIGITS: Final = 32
_DIGEST_BYTES: Final = 32
# With more registered batches than this, `register` merges them into the index; else the first `find` does.
_MANY: Final = 8
# The index covers at least this window, also if a batch needs a smaller one.
_LEAST: Final = DeduplicationWindow()
_READ_TRIES: Final = 10
_NANOSECONDS: Final = 1_000_000_000
_LOCK: Final = "lock"
_LOCK_SECONDS: Final = 30.0


class _Indexed(NamedTuple):
    """A segment with keys in the index.

    Attributes:
        name: `<batch id>/<file>`.
        sealed: Time at which it was sealed, in nanoseconds since the epoch.
        keys: Number of its keys; -1 while they haven't been read.
    """

    name: str
    sealed: int
    keys: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Index:
    """One state of the index.

    Attributes:
        number: Number of its file; a new index takes the next one.
        names: Names of the segments as `<batch id>/<file>`, the oldest first.
        sealed: Time at which each segment was sealed, in nanoseconds since the epoch.
        keys: Number of keys of each segment.
        table: Columns `key`, sorted, and `segment`, a position in `names`.
        horizon: Deduplication window that the index covers.
        dropped: Time in nanoseconds since the epoch. Segments sealed then or earlier aren't in the index,
            because their keys would exceed the window's count. 0 if no segment was left out.
    """

    number: int
    names: Sequence[str]
    sealed: Sequence[int]
    keys: Sequence[int]
    table: pa.Table
    horizon: DeduplicationWindow
    dropped: int

    def document(self, activation: str) -> list[bytes | memoryview]:
        """Return the content of the index file."""
        metadata = {
            "format": _FORMAT,
            "activation": activation,
            "count": self.horizon.count,
            "age": self.horizon.age.total_seconds(),
            "dropped": self.dropped,
            "names": self.names,
            "sealed": self.sealed,
            "keys": self.keys,
        }
        sink = pa.BufferOutputStream()
        schema = layout.INDEX_SCHEMA.with_metadata({"index": json.dumps(metadata)})
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_table(self.table.replace_schema_metadata(schema.metadata))
        content = memoryview(sink.getvalue())
        return [hashlib.sha256(content).digest(), content]


class IdIndex:
    """Finds the segments that hold a message, in the other batches of an activation.

    Only one thread at a time may use an instance.

    Args:
        spool: The folder of all batches.
        activation: The activation of the batches.
        batch_id: The batch that looks up ids; its own messages are not looked up here.
        horizon: How far back messages are found; `None` means the default.
        clock: Returns the current time in seconds since the epoch.

    Raises:
        SpoolError: From every method: the index can't be read or written, or a segment can't be read.
    """

    def __init__(
        self,
        spool: SpoolPath,
        activation: str,
        batch_id: str,
        horizon: DeduplicationWindow | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._spool = spool
        self._activation = activation
        self._batch_id = batch_id
        self._horizon = horizon or DeduplicationWindow()
        self._now = clock
        digest = hashlib.sha256(activation.encode("utf-8", "surrogatepass")).hexdigest()
        self._folder = spool / INDEX_FOLDER / digest[:32]
        self._marker: SpoolPath | None = None
        self._found: _Lookup | None = None

    def register(self) -> None:
        """Durably register the batch, so that other batches find the messages sealed in it from now on.

        Once the activation has an index, this takes the same time for any number of earlier batches.
        """
        try:
            make_folder(self._folder.parent)
            make_folder(self._folder)
            synchronize_folder(self._folder.parent)
            self._marker = self._register(self._batch_id)
            if not numbered(self._folder, _STEM) or len(self._registered()) > _MANY:
                self._lookup()
        except OSError as error:
            raise self._refusal(error) from error

    def unregister(self) -> None:
        """Undo `register`, for a batch that is removed without messages."""
        if self._marker is not None:
            remove(self._marker)

    def batches(self) -> list[str]:
        """Return the other registered batches: unfinished ones, and finished ones not yet in the index."""
        try:
            return sorted({batch_id for _, batch_id in self._registered()} - {self._batch_id})
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._refusal(error) from error

    def find(self, key: str) -> Sequence[SpoolPath]:
        """Return the segments that hold a message with this key (`known_ids.message_key`).

        False positives are possible but rare, because hashes are compared. A returned segment may have been
        removed already.
        """
        if self._found is None:
            try:
                self._lookup()
            except OSError as error:
                raise self._refusal(error) from error
        assert self._found is not None  # noqa: S101 - for the type checker
        names = self._found.names(_hash(key)) if self._found.index.names else ()
        return [self._spool / name for name in names] if names else ()

    @contextmanager
    def exclusive_sealing(self) -> Iterator[None]:
        """Keep other writers of the activation out of this context; no effect in an object store.

        A writer that seals outside of the context isn't kept from it.

        Raises:
            SpoolError: Another writer has been sealing for half a minute.
        """
        try:
            with locked(self._folder / _LOCK, _LOCK_SECONDS):
                yield
        except OSError as error:
            raise self._refusal(error) from error

    def has_new(self, keys: Collection[str]) -> bool:
        """Return whether another batch has newly sealed a message with one of these keys.

        "Newly" means since the last call of this method, or else since the first `find`. The newly sealed
        segments are added to the index in memory. Before the first `find`, the method returns `False`.
        """
        if not keys or self._found is None:
            return False
        try:
            new_segments = self._refresh()
        except OSError as error:
            raise self._refusal(error) from error
        return (
            any(not new_segments.isdisjoint(self._found.names(_hash(key))) for key in keys)
            if new_segments
            else False
        )

    def _refresh(self) -> set[str]:
        """Add newly sealed segments to the index in memory, and return their names."""
        assert self._found is not None  # noqa: S101 - for the type checker
        before = self._found.index
        there = numbered(self._folder, _STEM)
        index = before
        if there and there[-1][0] != before.number:
            index = self._newest() or before
        new_segments = self._unindexed(index, [])
        if index is before and not new_segments:
            return set()
        if new_segments:
            index = replace(self._extended(index, new_segments, index.horizon), number=index.number)
        self._found = _Lookup(index, self._horizon, self._now())
        return set(index.names).difference(before.names)

    def _refusal(self, error: OSError) -> SpoolError:
        return SpoolError(f"{self._folder}: the index of known ids: {error}")

    # --- Registered batches -----------------------------------------------------------------------------

    def _register(self, batch_id: str) -> SpoolPath:
        # Each writer that opens a batch creates its own file, and removes only that one.
        path = self._folder / f"{_OPEN}{uuid.uuid4().hex}-{batch_id}"
        create_marker(path)
        return path

    def _registered(self) -> list[tuple[SpoolPath, str]]:
        start = len(_OPEN) + _RANDOM_DIGITS + 1
        return [
            (self._folder / name, name[start:])
            for name in names_in(self._folder)
            if name.startswith(_OPEN) and len(name) > start
        ]

    # --- The index --------------------------------------------------------------------------------------

    def _lookup(self) -> None:
        """Load the index, add the segments of registered batches, and keep the index in memory.

        A missing or damaged index is rebuilt. The extended index is sealed too.
        """
        index = self._newest()
        if index is None or not _covers(index.horizon, self._horizon):
            index = self._from_all_batches(index)
        finished: list[SpoolPath] = []
        new_segments = self._unindexed(index, finished)
        if new_segments or finished:
            index = self._extended(index, new_segments, index.horizon)
            self._seal(index, finished)
        self._found = _Lookup(index, self._horizon, self._now())

    def _unindexed(self, index: _Index, finished: list[SpoolPath]) -> list[_Indexed]:
        """Return the segments of registered batches that are missing in the index.

        Args:
            index: The index.
            finished: List to which the method appends registrations of finished batches. They are obsolete
                once the index has the returned segments.
        """
        known = set(index.names)
        oldest = max(index.dropped + 1, _oldest(index.horizon, self._now()))
        found = []
        for marker, batch_id in self._registered():
            if batch_id == self._batch_id:
                continue
            folder = self._spool / batch_id
            complete = exists(folder / MANIFEST)  # checked before listing: a finished batch gets no segments
            try:
                segments = [] if is_link(folder) else numbered(folder, SEGMENT_STEM)
            except (FileNotFoundError, NotADirectoryError):
                complete, segments = True, []
            new = [_unread(path) for _, path in segments if _name(path) not in known]
            found += [segment for segment in new if segment.sealed >= oldest]
            known.update(segment.name for segment in new)
            if complete:
                finished.append(marker)
        return found

    def _newest(self) -> _Index | None:
        """Return the newest index on disk; `None` if none exists or, after a warning, if it can't be read."""
        for _ in range(_READ_TRIES):
            there = numbered(self._folder, _STEM)
            if not there:
                return None
            number, path = there[-1]
            try:
                return _parsed(number, read_file(path), self._activation)
            except FileNotFoundError:
                continue  # a newer index has replaced it
            except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
                _log.warning("%s can't be read (%s): rebuilding it from the batches", path, error)
                return None
        return None

    def _from_all_batches(self, before: _Index | None) -> _Index:
        """Build the index from all batches of the spool, and register the batches that may still grow."""
        there = numbered(self._folder, _STEM)
        number = before.number if before else there[-1][0] if there else 0
        registered = {batch_id for _, batch_id in self._registered()}
        segments: list[_Indexed] = []
        for folder, *_, is_folder in entries(self._spool):
            if not is_folder or folder.name == self._batch_id or folder.name.startswith("."):
                continue
            if activation_in(folder) != self._activation:
                continue
            if not exists(folder / MANIFEST) and folder.name not in registered:
                self._register(folder.name)
            segments += [_unread(path) for _, path in numbered(folder, SEGMENT_STEM)]
        horizon = _wider(_LEAST, self._horizon)
        empty = _Index(
            number=number,
            names=(),
            sealed=(),
            keys=(),
            table=layout.INDEX_SCHEMA.empty_table(),
            horizon=horizon,
            dropped=0,
        )
        index = self._extended(empty, segments, horizon)
        self._seal(index, [])
        return index

    def _extended(
        self, index: _Index, new_segments: Iterable[_Indexed], horizon: DeduplicationWindow
    ) -> _Index:
        """Return the index with further segments, without segments outside the deduplication window."""
        candidates = [*map(_Indexed, index.names, index.sealed, index.keys), *new_segments]
        kept: list[_Indexed] = []
        keys: list[int] = []
        owners: list[int] = []
        dropped, left = index.dropped, horizon.count
        moved: list[int | None] = [None] * len(index.names)
        oldest = _oldest(horizon, self._now())
        for place in sorted(range(len(candidates)), key=lambda n: candidates[n].sealed, reverse=True):
            segment = candidates[place]
            if segment.sealed < oldest:
                break
            if left <= 0:
                dropped = max(dropped, segment.sealed)
                break
            if segment.keys < 0:
                hashes = [_hash(key) for key in read_ids(self._spool / segment.name)]
                segment = segment._replace(keys=len(hashes))
                keys += hashes
                owners += [len(kept)] * len(hashes)
            else:
                moved[place] = len(kept)
            left -= segment.keys
            kept.append(segment)
        last = len(kept) - 1
        table = index.table
        if moved:
            places = pc.take(pa.array(moved, pa.int32()), table["segment"])
            table = pa.table([table["key"], places], schema=layout.INDEX_SCHEMA)
            if None in moved:
                table = table.filter(pc.is_valid(table["segment"]))
        added = pa.table(
            [pa.array(keys, pa.uint64()), pa.array(owners, pa.int32())], schema=layout.INDEX_SCHEMA
        )
        table = pa.concat_tables([table, added])
        backwards = pc.subtract(pa.scalar(last, pa.int32()), table["segment"])
        table = (
            pa.table([table["key"], backwards], schema=layout.INDEX_SCHEMA).sort_by("key").combine_chunks()
        )
        return _Index(
            number=index.number + 1,
            names=[segment.name for segment in reversed(kept)],
            sealed=[segment.sealed for segment in reversed(kept)],
            keys=[segment.keys for segment in reversed(kept)],
            table=table,
            horizon=horizon,
            dropped=dropped,
        )

    def _seal(self, index: _Index, finished: Iterable[SpoolPath]) -> None:
        """Seal the index as the newest one, and remove the registrations of the batches that it covers.

        If another process was faster, the batches stay registered.
        """
        path = self._folder / f"{_STEM}-{index.number:06d}.arrow"
        if not seal(path, index.document(self._activation)):
            return
        there = numbered(self._folder, _STEM)
        if there[-1][0] != index.number:
            return  # a newer index, which lacks these segments, had already replaced and removed this number
        for marker in finished:
            remove(marker)
        for number, old in there:
            if number < index.number:
                remove(old)


class _Lookup:
    """Finds the segments that hold a key's hash, among the index's segments within a deduplication window."""

    def __init__(self, index: _Index, horizon: DeduplicationWindow, now: float) -> None:
        self.index = index
        self._names = index.names
        table = index.table
        self._keys, self._owners = _view(table["key"], "Q"), _view(table["segment"], "i")
        oldest, left = _oldest(horizon, now), horizon.count
        # `_first` is the position of the oldest segment within the horizon.
        self._first = len(index.names)
        for sealed, count in zip(reversed(index.sealed), reversed(index.keys), strict=True):
            if left <= 0 or sealed < oldest:
                break
            left -= count
            self._first -= 1

    def names(self, key_hash: int) -> list[str]:
        keys = self._keys
        place, end = bisect_left(keys, key_hash), len(keys)
        found = []
        while place < end and keys[place] == key_hash:
            owner = self._owners[place]
            if owner >= self._first:
                found.append(self._names[owner])
            place += 1
        return found


def _view(column: pa.ChunkedArray, kind: Literal["Q", "i"]) -> Sequence[int]:
    if not len(column):
        return ()
    [chunk] = column.chunks
    view: memoryview[int] = memoryview(chunk.buffers()[1]).cast("B").cast(kind)
    return view[chunk.offset : chunk.offset + len(chunk)]


def _parsed(number: int, content: bytes, activation: str) -> _Index:
    """Return the content of an index file.

    Raises:
        ValueError, KeyError, TypeError, pa.ArrowException: The file is damaged, or belongs to another
            activation.
    """
    body = memoryview(content)[_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != content[:_DIGEST_BYTES]:
        raise ValueError("its checksum is wrong")
    with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
        table = reader.read_all().combine_chunks()
    found: dict[str, Any] = json.loads(table.schema.metadata[b"index"])
    if (
        found["format"] != _FORMAT
        or found["activation"] != activation
        or not table.schema.equals(layout.INDEX_SCHEMA)
    ):
        raise ValueError("it has another format, or belongs to another activation")
    return _Index(
        number=number,
        names=found["names"],
        sealed=found["sealed"],
        keys=found["keys"],
        table=table,
        horizon=_horizon(found["count"], found["age"]),
        dropped=found["dropped"],
    )


def _unread(path: SpoolPath) -> _Indexed:
    return _Indexed(_name(path), entry_of(path).modified, -1)


def _name(path: SpoolPath) -> str:
    return f"{path.parent.name}/{path.name}"


def _horizon(count: int, seconds: float) -> DeduplicationWindow:
    return DeduplicationWindow(count=count, age=timedelta(seconds=seconds))


def _hash(key: str) -> int:
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _oldest(horizon: DeduplicationWindow, now: float) -> int:
    return int((now - horizon.age.total_seconds()) * _NANOSECONDS)


def _covers(index_window: DeduplicationWindow, requested: DeduplicationWindow) -> bool:
    return index_window.count >= requested.count and index_window.age >= requested.age


def _wider(one: DeduplicationWindow, other: DeduplicationWindow) -> DeduplicationWindow:
    return DeduplicationWindow(count=max(one.count, other.count), age=max(one.age, other.age))
