"""Parts of a batch, made after its job failed because of its data.

A part is named by its range of rows in the batch, counted from 0 over all segments. Its folder is, for
example, `splits/0-99` in the batch's folder. A part is a batch like any other, with a manifest, the fences of
its attempts and, once stored, a `_DONE`; its messages are copies. If the job of a part fails too, the part is
split in two halves. A half's name shows which part it was split from: its range is within that part's range.

| file | where | content |
|---|---|---|
| `split.json` | in a part | the batch and the rows of the part |
| `failed-000001.json` | in a batch or part | the data failure of attempt 1 |
| `parts.json` | in a pruned batch | the batch ids of its parts, by which tables identify rows |
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from typing import Any, Final, NamedTuple

from airflow_provider_jmsjca.errors import SpoolError
from airflow_provider_jmsjca.spool.arrow import layout, pa, pq
from airflow_provider_jmsjca.spool.attempts import Done, committing_as
from airflow_provider_jmsjca.spool.batch_id import MAX_LENGTH, check_batch_id
from airflow_provider_jmsjca.spool.files import (
    SpoolPath,
    build_folder,
    digest_of,
    exists,
    is_folder,
    names_in,
    numbered,
    open_file,
    read_document,
    seal,
    stage,
)
from airflow_provider_jmsjca.spool.manifest import MANIFEST, Manifest, Segment
from airflow_provider_jmsjca.spool.spool import segment_metadata

SPLITS: Final = "splits"
PARTS: Final = "parts.json"
"""File with the batch ids of a pruned batch's parts."""
_FAILED: Final = "failed"
_SPLIT: Final = "split.json"
_LONGEST_REASON: Final = 4_000


class RowRange(NamedTuple):
    """Rows of a batch, the last one included."""

    first: int
    last: int

    def halves(self) -> tuple[RowRange, RowRange]:
        """Return the two halves of a range with at least two rows."""
        middle = (self.first + self.last) // 2
        return RowRange(self.first, middle), RowRange(middle + 1, self.last)

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFailure:
    """A failure of a job that was caused by its messages.

    Attributes:
        exception_class: Qualified name of the exception's class, which a dead letter carries.
        exception_message: The exception's message, which a dead letter carries.
        stored: Tables to which the attempt had committed rows before it failed.
    """

    exception_class: str
    exception_message: str
    stored: tuple[str, ...] = ()

    def record(self, folder: SpoolPath, fence: int) -> None:
        """Durably record the failure of an attempt, unless a failure of this attempt is recorded already.

        Args:
            folder: The folder of the batch or part.
            fence: Fence number of the attempt.

        Raises:
            SpoolError: The file can't be written.
        """
        content = asdict(self) | {"exception_message": self.exception_message[:_LONGEST_REASON]}
        seal(folder / f"{_FAILED}-{fence:06d}.json", json.dumps(content).encode() + b"\n")

    @classmethod
    def read(cls, folder: SpoolPath) -> dict[int, DataFailure]:
        """Return the failures of a batch's attempts by fence number.

        Raises:
            SpoolError: A failure can't be read.
        """
        found = {}
        try:
            for fence, path in numbered(folder, _FAILED):
                content: Any = read_document(path)
                found[fence] = cls(
                    exception_class=str(content["exception_class"]),
                    exception_message=str(content["exception_message"]),
                    stored=tuple(map(str, content["stored"])),
                )
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SpoolError(f"{folder}: why an attempt failed can't be read: {error}") from error
        return found


def all_rows(manifest: Manifest) -> RowRange:
    """Return the range of all rows of a batch."""
    return RowRange(0, manifest.rows - 1)


def part_folder(manifest: Manifest, rows: RowRange) -> SpoolPath:
    """Return the folder of a part; if the rows are all rows of the batch, the folder of the batch."""
    return manifest.folder if rows == all_rows(manifest) else manifest.folder / SPLITS / str(rows)


def was_split(manifest: Manifest, rows: RowRange) -> bool:
    """Return whether a part, or the whole batch, was split: one of its halves exists."""
    return any(exists(part_folder(manifest, half) / MANIFEST) for half in rows.halves())


def parts(folder: SpoolPath) -> list[tuple[RowRange, SpoolPath]]:
    """Return rows and folder of each part of the batch in a folder, sorted by first row.

    Of parts with the same first row, the larger part comes first.
    """
    found = []
    if is_folder(folder / SPLITS):
        for name in names_in(folder / SPLITS):
            first, dash, last = name.partition("-")
            if dash and first.isdecimal() and last.isdecimal() and exists(folder / SPLITS / name / MANIFEST):
                found.append((RowRange(int(first), int(last)), folder / SPLITS / name))
    return sorted(found, key=lambda part: (part[0].first, -part[0].last))


def part_names(folder: SpoolPath) -> list[str]:
    """Return the batch ids of a batch's parts, also if the batch was pruned.

    Raises:
        SpoolError: A document can't be read.
    """
    kept = folder / PARTS
    if not exists(kept):
        return [Manifest.read(part / MANIFEST).batch_id for _, part in parts(folder)]
    try:
        found: Any = read_document(kept)
        return [check_batch_id(name) for name in found]
    except (OSError, ValueError, TypeError) as error:
        raise SpoolError(f"{kept}: can't be read: {error}") from error


def keep_part_names(folder: SpoolPath) -> None:
    """Write `parts.json` for a batch whose parts are about to be removed, unless the file exists.

    Raises:
        SpoolError: The file can't be written, or the manifest of a part can't be read.
    """
    if names := part_names(folder):
        seal(folder / PARTS, json.dumps(names).encode() + b"\n")


def lineage(manifest: Manifest) -> list[tuple[str, str]]:
    """Return the rows and the outcome of each part of a batch, such as `("0-99", "stored")`.

    The outcome is `stored`, `split`, `not run`, or `failed` with class and message of the exception.

    Raises:
        SpoolError: A document in a part can't be read.
    """
    said = []
    for rows, folder in parts(manifest.folder):
        failures = DataFailure.read(folder)
        if Done.read(folder) is not None:
            text = "stored"
        elif rows.first < rows.last and was_split(manifest, rows):
            text = "split"
        elif failures:
            last = failures[max(failures)]
            text = f"failed: {last.exception_class}: {last.exception_message}"
        else:
            text = "not run"
        said.append((str(rows), text))
    return said


def make_part(manifest: Manifest, rows: RowRange, fence: int) -> Manifest:
    """Return a part of a batch; create it if it doesn't exist.

    Guarantee: the part exists whole or not at all. A second call returns the same part.

    Args:
        manifest: Manifest of the whole batch.
        rows: Rows of the part.
        fence: Fence number of the attempt at the batch.

    Raises:
        FencedError: A newer attempt has begun.
        SpoolError: The part can't be written, or a segment of the batch is damaged.
    """
    folder = part_folder(manifest, rows)
    if not exists(folder / MANIFEST):
        try:
            build_folder(
                folder, partial(_fill, manifest, rows), partial(committing_as, manifest.folder, fence)
            )
        except (OSError, pa.ArrowException) as error:
            raise SpoolError(f"{folder}: can't be created: {error}") from error
    return Manifest.read(folder / MANIFEST)


def _fill(manifest: Manifest, rows: RowRange, folder: SpoolPath) -> None:
    batch_id = f"{manifest.batch_id}~~rows-{rows}"
    if len(batch_id) > MAX_LENGTH:
        batch_id = f"{sha256(manifest.batch_id.encode()).hexdigest()[:32]}~~rows-{rows}"
    segments: list[Segment] = []
    for source, start, stop in _places(manifest, rows):
        number = len(segments)
        path = folder / f"segment-{number:06d}.parquet"
        with open_file(manifest.folder / source.file) as plain, stage(path) as staged:
            schema = layout.MESSAGE_SCHEMA.with_metadata(segment_metadata(batch_id, number))
            with layout.SegmentReader(plain) as file:
                writer = pq.ParquetWriter(staged, schema, compression="zstd", write_page_checksum=True)
                at = written = 0
                for group in range(file.num_row_groups):
                    length = file.metadata.row_group(group).num_rows
                    begin, end = max(start, at), min(stop, at + length)
                    if begin < end:
                        table = file.read_row_group(group).slice(begin - at, end - begin)
                        writer.write_table(with_batch_id(table, batch_id, number, written))
                        written += end - begin
                    at += length
                writer.close()
            if staged.seal():
                size, digest = staged.size, staged.sha256
            else:  # an earlier attempt, which died, has sealed this file with the same rows
                with open_file(path) as file:
                    digest, size = digest_of(file), file.seek(0, os.SEEK_END)
            segments.append(Segment(file=path.name, rows=written, bytes=size, sha256=digest))
    part = Manifest(
        folder=folder,
        batch_id=batch_id,
        source=manifest.source,
        activation=manifest.activation,
        created=manifest.created,
        rows=sum(segment.rows for segment in segments),
        segments=tuple(segments),
    )
    lineage = {"of": manifest.batch_id, "first": rows.first, "last": rows.last}
    seal(folder / _SPLIT, json.dumps(lineage).encode() + b"\n")
    seal(part.path, part.document())


def with_batch_id(table: pa.Table, batch_id: str, segment: int, first: int) -> pa.Table:
    """Return copies of rows for another batch, with that batch's id and with their position in it.

    Args:
        table: Rows of `layout.MESSAGE_SCHEMA`.
        batch_id: Name of the new batch.
        segment: Number of the new segment.
        first: Position of the first row in the new segment.
    """
    count = table.num_rows
    for name, values in (
        ("batch_id", pa.repeat(pa.scalar(batch_id, pa.string()), count)),
        ("segment", pa.repeat(pa.scalar(segment, pa.int32()), count)),
        ("position", pa.array(range(first, first + count), pa.int32())),
    ):
        table = table.set_column(
            table.schema.get_field_index(name), layout.MESSAGE_SCHEMA.field(name), values
        )
    return table.cast(layout.MESSAGE_SCHEMA)


def _places(manifest: Manifest, rows: RowRange) -> Iterator[tuple[Segment, int, int]]:
    """Yield each segment of a batch that holds some of the rows, with the rows' positions in it.

    The second value is the position of the first row, the third the position after the last row.
    """
    at = 0
    for segment in manifest.segments:
        start, stop = max(rows.first - at, 0), min(rows.last + 1 - at, segment.rows)
        if start < stop:
            yield segment, start, stop
        at += segment.rows


def position_in_batch(manifest: Manifest, rows: RowRange, segment: int, position: int) -> tuple[int, int]:
    """Convert a message's segment and position in a part to its segment and position in the whole batch.

    Args:
        manifest: Manifest of the whole batch.
        rows: Rows of the part.
        segment: Number of the message's segment in the part.
        position: The message's position in that segment.
    """
    source, start, _ = list(_places(manifest, rows))[segment]
    return source.number, start + position
