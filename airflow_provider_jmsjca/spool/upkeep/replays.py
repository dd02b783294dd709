"""Replays: batches with copies of earlier batches' messages, to process these again.

A replay is a batch like any other, with a manifest, the fences of its attempts and, once stored, a `_DONE`.
Because its messages are copies, removing the earlier batches doesn't affect it. Streams skip replays, because
they have read the messages before.

| file | content |
|---|---|
| `replay.json` | names of the earlier batches and their parts; whether only rejects are replayed |
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Self

from airflow_provider_jmsjca.errors import ConfigurationError, SpoolError
from airflow_provider_jmsjca.spool.arrow import layout, pa, pq
from airflow_provider_jmsjca.spool.attempts import Done
from airflow_provider_jmsjca.spool.batch_id import check_batch_id, is_replay
from airflow_provider_jmsjca.spool.files import (
    SpoolPath,
    build_folder,
    digest_of,
    exists,
    names_in,
    open_file,
    read_document,
    require_exclusive_creation,
    seal,
    stage,
)
from airflow_provider_jmsjca.spool.known_ids import BATCH
from airflow_provider_jmsjca.spool.manifest import MANIFEST, Manifest, Segment
from airflow_provider_jmsjca.spool.schema import FORMAT_VERSION, SCHEMA_VERSION
from airflow_provider_jmsjca.spool.splits import part_names, with_batch_id
from airflow_provider_jmsjca.spool.spool import segment_file, segment_metadata
from airflow_provider_jmsjca.spool.upkeep.states import REPLAY, BatchState, State, batches

ACTIVATION: Final = "replay"
"""The activation of every replay. Received messages are never taken for duplicates of a replay's messages."""
_SEGMENT_ROWS: Final = 10_000
_SEGMENT_BYTES: Final = 64 * 1024 * 1024
_NAMED: Final = 5

Positions = Callable[[Manifest], Mapping[int, Sequence[int]]]
"""Function that returns the sorted positions of a finished batch's rejected messages by segment number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The messages to replay: those of named batches, or of the batches finished within a time range.

    Attributes:
        batches: Names of batches.
        since: Select batches finished at this time or later, except for replays; `None` means no limit.
        until: Select batches finished before this time, except for replays; `None` means no limit.
        source: With a time range, only select batches of this destination, such as `queue://orders`.
        rejects: Only select the messages that the jobs of these batches rejected.
    """

    batches: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    source: str | None = None
    rejects: bool = False

    def check(self) -> None:
        """Refuse a selection that is empty or ambiguous.

        Raises:
            ConfigurationError: Neither batches nor a time range are given, or both. Or a time has no offset
                from UTC, or the range is empty. Or `source` is given without a range.
        """
        is_range = self.since is not None or self.until is not None
        if bool(self.batches) == is_range:
            found = "both" if is_range else "neither"
            raise ConfigurationError(
                f"replay: expected names of batches, or a time range (since, until); {found} given"
            )
        if self.source is not None and not is_range:
            raise ConfigurationError(
                "replay: source works only with a time range; leave it out for named batches"
            )
        for name, time in (("since", self.since), ("until", self.until)):
            if time is not None and time.tzinfo is None:
                raise ConfigurationError(
                    f"replay: {name} {time.isoformat()} has no offset from UTC; expected a time such as "
                    "2026-05-01T00:00:00Z"
                )
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise ConfigurationError(f"replay: since {self.since} is not before until {self.until}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedBatch:
    """A batch with messages to replay.

    Attributes:
        rows: Number of messages to replay.
        of: Number of all messages in the batch.
    """

    batch_id: str
    source: str
    rows: int
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The content of `replay.json`.

    Attributes:
        of: Names of the batches whose messages are replayed.
        rejects: Whether only their rejected messages are replayed.
        parts: By batch, the names of the parts that it had when the replay was created.
    """

    of: tuple[str, ...]
    rejects: bool
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def document(self) -> bytes:
        """Return the document as it is stored."""
        content = {"of": self.of, "rejects": self.rejects} | (
            {"parts": dict(self.parts)} if self.parts else {}
        )
        return json.dumps(content, indent=2).encode() + b"\n"

    @classmethod
    def read(cls, folder: SpoolPath) -> Self:
        """Return the record of the replay in a folder.

        Raises:
            SpoolError: The record doesn't exist, or is damaged.
        """
        path = folder / REPLAY
        try:
            found: Any = read_document(path)
            of, rejects = tuple(check_batch_id(str(name)) for name in found["of"]), found["rejects"]
            parts = {
                check_batch_id(name): tuple(check_batch_id(str(part)) for part in names)
                for name, names in found.get("parts", {}).items()
            }
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise SpoolError(f"{path}: can't be read: {error}") from error
        if not of or not isinstance(rejects, bool):
            raise SpoolError(f"{path}: expected of and rejects, found {found!r:.200}")
        return cls(of=of, rejects=rejects, parts=parts)


def replays(spool: SpoolPath) -> dict[str, Replay]:
    """Return all replays of a spool by name.

    Raises:
        SpoolError: The spool or a record can't be read.
    """
    try:
        names = [name for name in names_in(spool) if is_replay(name) and exists(spool / name / MANIFEST)]
    except OSError as error:
        raise SpoolError(f"{spool}: can't be read: {error.strerror or error}") from error
    return {name: Replay.read(spool / name) for name in names}


def selected_batches(spool: SpoolPath, selection: Selection, rejected: Positions) -> list[SelectedBatch]:
    """Return the batches with messages to replay, in the order in which they were finished.

    Args:
        spool: The folder of all batches.
        selection: The messages to replay.
        rejected: Returns the positions of a batch's rejects.

    Raises:
        ConfigurationError: The selection is ambiguous, or has messages of several destinations.
        SpoolError: A batch doesn't exist, isn't finished, is damaged or was pruned. Or a job was submitted
            for it and hasn't finished it.
    """
    selection.check()
    found = []
    for manifest in _manifests(spool, selection):
        if not selection.rejects:
            rows = manifest.rows
        elif Done.read(manifest.folder) is None:
            continue
        else:
            rows = sum(len(positions) for positions in rejected(manifest).values())
        if rows:
            found.append(
                SelectedBatch(batch_id=manifest.batch_id, source=manifest.source, rows=rows, of=manifest.rows)
            )
    sources = sorted({each.source for each in found})
    if len(sources) > 1:
        raise ConfigurationError(
            f"replay: the batches come from several destinations: {', '.join(sources)}; choose one by "
            "source, or name the batches"
        )
    return found


def make_replay(
    spool: SpoolPath, batch_id: str, selection: Selection, rejected: Positions
) -> Manifest | None:
    """Return the replay of this name; create it if it doesn't exist.

    Guarantee: the replay exists whole or not at all, and never changes. After a kill at any point, a second
    call with the same name and selection completes or finds it.

    Args:
        spool: The folder of all batches.
        batch_id: The replay's name, from `batch_id.replay_id`.
        selection: The messages to replay.
        rejected: Returns the positions of a batch's rejects.

    Returns:
        The manifest; `None` if no message is selected.

    Raises:
        ConfigurationError: `selected_batches` raised it, or a replay of other messages has this name.
        SpoolError: `selected_batches` raised it, a segment is damaged, or the replay can't be written.
    """
    folder = spool.absolute() / check_batch_id(batch_id)
    if exists(folder / MANIFEST):
        selection.check()
        found = Replay.read(folder)
        if found.rejects != selection.rejects or (
            selection.batches and set(found.of) != set(selection.batches)
        ):
            raise ConfigurationError(
                f"replay {batch_id} already exists, with "
                f"{'the rejects' if found.rejects else 'the messages'} of "
                f"{', '.join(found.of)}; choose another name"
            )
        return Manifest.read(folder / MANIFEST)
    chosen = selected_batches(spool, selection, rejected)
    if not chosen:
        return None
    of = tuple(each.batch_id for each in chosen)
    parts = {name: tuple(names) for name in of if (names := part_names(spool / name))}
    replay = Replay(of=of, rejects=selection.rejects, parts=parts)
    try:
        require_exclusive_creation(spool)
        build_folder(folder, partial(_fill, spool, batch_id, replay, rejected), nullcontext)
    except (OSError, pa.ArrowException) as error:
        raise SpoolError(f"{folder}: the replay can't be created: {error}") from error
    return Manifest.read(folder / MANIFEST)


def _manifests(spool: SpoolPath, selection: Selection) -> list[Manifest]:
    """Return the manifests of the selected batches, in the order in which the batches were finished.

    Raises:
        SpoolError: A batch can't be replayed; the error names all such batches.
    """
    chosen, unusable = [], []
    for state in batches(spool, selection.batches):
        if not selection.batches and not _is_within(state, selection):
            continue
        fault = _unusable(state, rejects=selection.rejects and bool(selection.batches))
        if fault is not None:
            unusable.append(f"batch {state.batch_id} {fault}")
            continue
        manifest = Manifest.read(state.folder / MANIFEST)
        manifest.verify()
        chosen.append(manifest)
    if unusable:
        more = len(unusable) - _NAMED
        raise SpoolError(
            f"{spool}: can't be replayed: {'; '.join(unusable[:_NAMED])}"
            f"{f'; and {more} more' if more > 0 else ''}"
        )
    return sorted(chosen, key=lambda each: (each.created, each.batch_id))


def _is_within(state: BatchState, selection: Selection) -> bool:
    if is_replay(state.batch_id) or not exists(state.folder / MANIFEST):
        return False
    try:
        manifest = Manifest.read(state.folder / MANIFEST)
        finished = datetime.fromisoformat(manifest.created)
    except (SpoolError, ValueError):
        return True  # a damaged batch may be within the selection; the caller reports the damage
    return (
        manifest.rows > 0
        and (selection.source is None or manifest.source == selection.source)
        and (selection.since is None or finished >= selection.since)
        and (selection.until is None or finished < selection.until)
    )


def _unusable(state: BatchState, *, rejects: bool) -> str | None:
    """Return why a batch can't be replayed; `None` if it can."""
    match state.state:
        case State.PRUNED:
            return "was pruned, its messages are gone"
        case State.DAMAGED:
            return f"is damaged: {state.fault}"
        case State.COLLECTING | State.UNFINISHED | State.EMPTY:
            return f"is {state.state}: only finished batches have a fixed content"
        case State.UNDONE:
            return "was submitted and isn't done: clear its task, which submits it again"
        case State.COLLECTED if rejects:
            return "was never submitted to a job, so it has no rejects"
    return None


def _fill(spool: SpoolPath, batch_id: str, replay: Replay, rejected: Positions, folder: SpoolPath) -> None:
    # In an object store, an earlier attempt may have died after it recorded the batches of the time range.
    # Then that record counts, even if the range has other batches now.
    seal(folder / REPLAY, replay.document())
    replay = Replay.read(folder)
    sources = [Manifest.read(spool / name / MANIFEST) for name in replay.of]
    segments: list[Segment] = []
    tables = (
        table
        for source in sources
        for table in _selected_rows(source, rejected(source) if replay.rejects else None)
    )
    for pieces in _in_segments(tables):
        segments.append(_write_segment(folder, batch_id, len(segments), pieces))
    created = datetime.now(UTC).isoformat(timespec="milliseconds")
    manifest = Manifest(
        folder=folder,
        batch_id=batch_id,
        source=sources[0].source,
        activation=ACTIVATION,
        created=created,
        rows=sum(segment.rows for segment in segments),
        segments=tuple(segments),
    )
    header = {
        "format_version": FORMAT_VERSION,
        "schema_version": SCHEMA_VERSION,
        "batch_id": batch_id,
        "source": manifest.source,
        "activation": ACTIVATION,
        "created": created,
    }
    seal(folder / BATCH, json.dumps(header, indent=2, sort_keys=True).encode() + b"\n")
    seal(manifest.path, manifest.document())


def _selected_rows(manifest: Manifest, wanted: Mapping[int, Sequence[int]] | None) -> Iterator[pa.Table]:
    """Yield the rows of a batch, or those at the wanted positions, one table for each row group."""
    for segment in manifest.segments:
        positions = None if wanted is None else wanted.get(segment.number, ())
        if positions is not None and not positions:
            continue
        with open_file(manifest.folder / segment.file) as plain, layout.SegmentReader(plain) as file:
            at = 0
            for group in range(file.num_row_groups):
                length = file.metadata.row_group(group).num_rows
                if positions is None:
                    yield file.read_row_group(group)
                else:
                    here = [position - at for position in positions if at <= position < at + length]
                    if here:
                        yield file.read_row_group(group).take(pa.array(here, pa.int64()))
                at += length


def _in_segments(tables: Iterator[pa.Table]) -> Iterator[Iterator[pa.Table]]:
    """Yield groups of tables; each group makes one segment of the replay.

    The caller must consume a group before it requests the next one.
    """
    pending = next(tables, None)

    def group() -> Iterator[pa.Table]:
        nonlocal pending
        rows = size = 0
        while pending is not None:
            table, pending = pending, None
            rows, size = rows + table.num_rows, size + table.nbytes
            yield table
            pending = next(tables, None)
            if rows >= _SEGMENT_ROWS or size >= _SEGMENT_BYTES:
                return

    while pending is not None:
        yield group()


def _write_segment(folder: SpoolPath, batch_id: str, number: int, pieces: Iterator[pa.Table]) -> Segment:
    path = folder / segment_file(number)
    schema = layout.MESSAGE_SCHEMA.with_metadata(segment_metadata(batch_id, number))
    written = 0
    with stage(path) as staged:
        with pq.ParquetWriter(staged, schema, compression="zstd", write_page_checksum=True) as writer:
            for table in pieces:
                writer.write_table(with_batch_id(table, batch_id, number, written))
                written += table.num_rows
        if staged.seal():
            size, digest = staged.size, staged.sha256
        else:  # an earlier attempt, which died, has sealed this file with the same rows
            with open_file(path) as file:
                digest, size = digest_of(file), file.seek(0, os.SEEK_END)
    return Segment(file=path.name, rows=written, bytes=size, sha256=digest)
