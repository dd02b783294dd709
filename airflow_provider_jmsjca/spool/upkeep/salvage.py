"""Makes a batch with a damaged segment usable again, without the messages in that segment.

A damaged segment is kept as, for example, `damaged-000003.parquet`, which is never read. A fence, a file
without rows (`spool.spool`), replaces it. A finished batch gets a new manifest of the remaining segments. The
time at which it was finished is taken over from the end of the batch, so its position in streams stays.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Any, Final

from airflow_provider_jmsjca.errors import SpoolError
from airflow_provider_jmsjca.spool.attempts import Done
from airflow_provider_jmsjca.spool.batch_id import check_batch_id
from airflow_provider_jmsjca.spool.files import (
    SpoolPath,
    add_name,
    digest_of,
    exists,
    is_folder,
    lock,
    numbered,
    open_file,
    read_document,
    remove,
    seal,
)
from airflow_provider_jmsjca.spool.known_ids import BATCH, SEGMENT_STEM
from airflow_provider_jmsjca.spool.manifest import MANIFEST, PRUNED, Manifest, file_faults, given_up
from airflow_provider_jmsjca.spool.splits import parts
from airflow_provider_jmsjca.spool.spool import LOCK, SpoolBatch, read_segment, seal_number, segment_file

_OLD_MANIFEST: Final = "damaged-manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedSegment:
    """A segment that was given up with its messages.

    Attributes:
        file: The segment's file name.
        rows: Number of messages it held; `None` if unknown.
        fault: The segment's fault.
        kept: Path to which the damaged file was moved.
    """

    file: str
    rows: int | None
    fault: str
    kept: SpoolPath


def salvage(spool: SpoolPath, batch_id: str) -> tuple[SkippedSegment, ...]:
    """Give up the damaged segments of a batch, and keep all others.

    Guarantee: no message of a sound segment is lost, and the files of damaged segments are kept. After a kill
    at any point, another call continues. An unfinished batch stays unfinished, and its task continues it. A
    finished batch is submitted and streamed as before, without the messages given up. Redeliveries of its
    other messages are still dropped; a redelivered message of a damaged segment is stored once more.

    Args:
        spool: The folder of all batches.
        batch_id: The batch.

    Returns:
        The segments that were given up; none if all are sound.

    Raises:
        BatchInUseError: A writer holds the batch.
        SpoolError: The batch doesn't exist, or was pruned. Or the batch was split, and its job is not
            done: the parts need all rows of the batch. Or the folder can't be read or written at the moment,
            which doesn't show that a segment is damaged.
    """
    folder = spool / check_batch_id(batch_id)
    if not is_folder(folder):
        raise SpoolError(f"{spool}: there is no batch {batch_id!r}")
    if exists(folder / PRUNED):
        raise SpoolError(f"{folder}: the batch was pruned, its messages are gone")
    if parts(folder) and Done.read(folder) is None:
        raise SpoolError(
            f"{folder}: the batch was split, and its parts need all of its rows; restore the damaged file"
        )
    try:
        with lock(folder / LOCK):
            found = _salvaged(folder)
    except OSError as error:
        raise SpoolError(f"{folder}: can't be salvaged: {error.strerror or error}") from error
    if exists(folder / _OLD_MANIFEST) and not exists(folder / MANIFEST):
        source, activation = _named(folder)
        with SpoolBatch(spool, batch_id, source=source, activation=activation) as batch:
            batch.complete()
    return found


def _salvaged(folder: SpoolPath) -> tuple[SkippedSegment, ...]:
    manifest, unreadable = _manifest(folder)
    listed = {} if manifest is None else {segment.number: segment for segment in manifest.segments}
    there = {number for number, _ in numbered(folder, SEGMENT_STEM)}
    found, ended = [], False
    for number in range(max([*there, *listed], default=-1) + 1):
        path, segment = folder / segment_file(number), listed.get(number)
        fault = _unread(path)
        if fault is None and segment is not None:
            fault = "; ".join(file_faults(folder, segment)) or None
        if fault is None:
            try:
                read = read_segment(path, folder.name, number)
            except SpoolError as error:
                fault = str(error)
            else:
                ended = ended or read.ended is not None
                continue
        kept = given_up(folder, number)
        rows = segment.rows if segment is not None else None if manifest is None else 0
        _set_aside(path, kept)
        seal_number(folder, folder.name, number)
        found.append(SkippedSegment(file=path.name, rows=rows, fault=fault, kept=kept))
    if manifest is not None and found and not ended:
        seal_number(folder, folder.name, max(there | set(listed)) + 1, manifest.created)
    if unreadable or (found and manifest is not None):
        _set_aside(folder / MANIFEST, folder / _OLD_MANIFEST)
    return tuple(found)


def _manifest(folder: SpoolPath) -> tuple[Manifest | None, bool]:
    """Return the manifest, and whether its file exists but has invalid content.

    The manifest is `None` if its file doesn't exist or has invalid content.
    """
    if not exists(folder / MANIFEST):
        return None, False
    try:
        return Manifest.read(folder / MANIFEST), False
    except SpoolError:
        if _unread(folder / MANIFEST) is None:
            return None, True  # the file can be read, so its content is invalid
        raise


def _unread(path: SpoolPath) -> str | None:
    """Return the fault of a file that is missing or that its disk can't read; `None` if it can be read.

    Raises:
        SpoolError: The file can't be read for a reason that may be temporary.
    """
    try:
        with open_file(path) as file:
            digest_of(file)
    except FileNotFoundError:
        return f"{path}: missing"
    except OSError as error:
        if error.errno != errno.EIO:
            raise SpoolError(f"{path}: can't be read: {error.strerror or error}") from error
        return f"{path}: {error.strerror}"
    return None


def _set_aside(path: SpoolPath, kept: SpoolPath) -> None:
    """Rename a damaged file; if it doesn't exist, create an empty file under the new name."""
    try:
        add_name(path, kept)
    except FileNotFoundError:
        seal(kept, b"")
    remove(path)


def _named(folder: SpoolPath) -> tuple[str, str]:
    """Return source and activation of a batch."""
    try:
        header: Any = read_document(folder / BATCH)
        return str(header["source"]), str(header["activation"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SpoolError(f"{folder / BATCH}: can't be read: {error}; restore the file") from error
