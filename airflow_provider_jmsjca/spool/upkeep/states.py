"""The batches of a spool: their states, their faults, and which may be pruned.

| state | meaning | removed by `prune` |
|---|---|---|
| `collecting` | a writer holds the batch | no |
| `unfinished` | acknowledged messages without a manifest; the task was never retried | no |
| `empty` | no message was acknowledged for it | yes |
| `collected` | finished, and no job was ever submitted for it | if requested |
| `undone` | submitted, and no job has finished it | no |
| `rejects` | done, but not all of its rejects have been sent to the dead-letter destination | no |
| `done` | done, with all rejects sent | yes |
| `pruned` | its messages have been removed, its report is kept | if requested |
| `damaged` | a document in it can't be read | no |
"""

from __future__ import annotations

import contextlib
import enum
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from airflow_provider_jmsjca.errors import SpoolError
from airflow_provider_jmsjca.spool.attempts import DEAD_LETTERED, DONE, Done, current_fence, dead_lettered
from airflow_provider_jmsjca.spool.batch_id import check_batch_id, is_replay
from airflow_provider_jmsjca.spool.files import (
    ASIDE,
    Entry,
    SpoolPath,
    digest_of,
    entries,
    entry_of,
    exists,
    is_folder,
    is_locked,
    names_in,
    numbered,
    open_file,
    read_document,
    remove,
    remove_folder,
    remove_if_unused,
    restore_folder,
    seal,
    synchronize_folder,
    walk,
)
from airflow_provider_jmsjca.spool.known_ids import (
    BATCH,
    SEGMENT_STEM,
    DeduplicationWindow,
    count_rows,
    read_identities,
)
from airflow_provider_jmsjca.spool.manifest import MANIFEST, PRUNED, Manifest
from airflow_provider_jmsjca.spool.splits import PARTS, keep_part_names, parts
from airflow_provider_jmsjca.spool.spool import LOCK, SpoolBatch
from airflow_provider_jmsjca.spool.upkeep.ages import CARE_AFTER

_NANOSECONDS: Final = 1_000_000_000
REPLAY: Final = "replay.json"
"""File that marks a batch as a replay; see `replays`."""
# The files that a pruned batch keeps. They show a later submission that the batch is done.
_RECEIPT: Final = frozenset({BATCH, MANIFEST, PRUNED, DONE, REPLAY, PARTS})


class State(enum.StrEnum):
    """The state of a batch; see the module's table."""

    COLLECTING = "collecting"
    UNFINISHED = "unfinished"
    EMPTY = "empty"
    COLLECTED = "collected"
    UNDONE = "undone"
    REJECTS = "rejects"
    DONE = "done"
    PRUNED = "pruned"
    DAMAGED = "damaged"


NEEDS_CARE: Final = frozenset({State.UNFINISHED, State.UNDONE, State.REJECTS, State.DAMAGED})
"""States in which messages exist only in the spool, and may never be processed without intervention."""
_UNPRUNED: Final = frozenset({State.COLLECTED, State.UNDONE, State.REJECTS, State.DONE})


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchState:
    """The state of a batch by its files.

    Attributes:
        rows: Number of messages in sealed segments; `None` if that can't be read.
        bytes: Size of all its files in bytes.
        changed: Time of the last change of a file, in seconds since the epoch.
        attempts: Number of attempts to process it in a job.
        stored: Tables, each with the number of rows stored in it.
        rejected: Number of messages that the job rejected.
        dead_lettered: Number of rejects sent to the dead-letter destination.
        fault: Error that names the damaged file; `None` if the batch isn't damaged.
    """

    batch_id: str
    folder: SpoolPath
    state: State
    rows: int | None = None
    segments: int = 0
    bytes: int = 0
    changed: float = 0.0
    source: str | None = None
    activation: str | None = None
    attempts: int = 0
    stored: tuple[tuple[str, int], ...] = ()
    rejected: int = 0
    dead_lettered: int = 0
    fault: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedBatch:
    """A batch with removed files, or in a dry run with files to remove.

    Attributes:
        whole: Whether the whole folder was removed; `False` if the report was kept.
        bytes: Size of the removed files in bytes.
    """

    batch_id: str
    whole: bool
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBatch:
    """A batch that keeps its files.

    Attributes:
        why: Reason as a text, such as `a writer holds it`.
    """

    batch_id: str
    state: State
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneResult:
    """The outcome of `prune` or of its dry run, by batch."""

    removed: tuple[RemovedBatch, ...]
    kept: tuple[KeptBatch, ...]

    def kept_summary(self) -> tuple[str, ...]:
        """Return a line for each state and reason, such as `kept 2 done batches: a writer holds it`."""
        counts = Counter((each.state, each.why) for each in self.kept)
        return tuple(
            f"kept {count} {state} {'batch' if count == 1 else 'batches'}: {why}"
            for (state, why), count in sorted(counts.items())
        )


def batches(spool: SpoolPath, only: Iterable[str] = ()) -> Iterator[BatchState]:
    """Yield the batches of a spool in the order of their names; other folders are left out.

    Args:
        spool: The folder of all batches.
        only: Names of the batches to yield; all batches if empty.

    Raises:
        SpoolError: The spool doesn't exist or can't be read, or a batch in `only` doesn't exist.
    """
    try:
        names = sorted(only) or sorted(names_in(spool))
        for name in names:
            folder = spool / (check_batch_id(name) if only else name)
            is_batch = not name.startswith(".") and (exists(folder / BATCH) or exists(folder / MANIFEST))
            if is_batch and is_folder(folder):
                yield describe(folder)
            elif only:
                raise SpoolError(f"{spool}: there is no batch {name!r}")
    except FileNotFoundError as error:
        raise SpoolError(
            f"{spool}: no such spool; the first batch creates it, or spool_path names another"
        ) from error
    except OSError as error:
        raise SpoolError(f"{spool}: can't be read: {error.strerror or error}") from error


def describe(folder: SpoolPath) -> BatchState:
    """Return the state of the batch in a folder; damage is a state, not an error."""
    found = BatchState(batch_id=folder.name, folder=folder, state=State.EMPTY)
    try:
        files = walk(folder)
        found = replace(
            found,
            bytes=sum(file.size for file in files),
            changed=max(file.modified for file in files or [entry_of(folder)]) / _NANOSECONDS,
        )
        return _finished(found) if exists(folder / MANIFEST) else _unfinished(found)
    except (SpoolError, OSError, ValueError) as error:
        return replace(found, state=State.DAMAGED, fault=str(error))


def _unfinished(found: BatchState) -> BatchState:
    header = read_document(found.folder / BATCH)
    if not isinstance(header, dict):
        raise SpoolError(f"{found.folder / BATCH}: expected a JSON object")
    segments = [path for _, path in numbered(found.folder, SEGMENT_STEM)]
    rows = sum(count_rows(path) for path in segments)
    state = State.UNFINISHED if rows else State.EMPTY
    return replace(
        found,
        state=State.COLLECTING if is_locked(found.folder / LOCK) else state,
        rows=rows,
        segments=len(segments),
        source=header.get("source"),
        activation=header.get("activation"),
    )


def _finished(found: BatchState) -> BatchState:
    manifest = Manifest.read(found.folder / MANIFEST)
    done = Done.read(found.folder)
    attempts = current_fence(found.folder)
    sent = dead_lettered(found.folder)
    if exists(found.folder / PRUNED):
        state = State.PRUNED
    elif done is not None:
        state = State.DONE if sent >= done.rejected else State.REJECTS
    elif manifest.rows == 0:
        state = State.DONE
    else:
        state = State.UNDONE if attempts else State.COLLECTED
    return replace(
        found,
        state=state,
        rows=manifest.rows,
        segments=len(manifest.segments),
        source=manifest.source,
        activation=manifest.activation,
        attempts=attempts,
        stored=() if done is None else tuple(sorted(done.stored.items())),
        rejected=0 if done is None else done.rejected,
        dead_lettered=sent,
    )


def verify(batch: BatchState) -> str | None:
    """Read all files of a batch and return the first fault; `None` if all are sound, or it was pruned."""
    if batch.fault is not None or batch.state is State.PRUNED:
        return batch.fault
    try:
        if not exists(batch.folder / MANIFEST):
            for _, path in numbered(batch.folder, SEGMENT_STEM):
                for _identity in read_identities(path):
                    pass
            return None
        for folder in (batch.folder, *(folder for _, folder in parts(batch.folder))):
            Manifest.read(folder / MANIFEST).verify()
        done = Done.read(batch.folder)
        for file in () if done is None else done.rejects:
            path = batch.folder / file.file
            with open_file(path) as content:
                digest = digest_of(content)
            if digest != file.sha256:
                return f"{path}: expected sha256 {file.sha256}, found {digest}"
    except (SpoolError, OSError) as error:
        return str(error)
    return None


def prune(
    spool: SpoolPath,
    *,
    older_than: timedelta,
    collected: bool = False,
    forget: timedelta | None = None,
    horizon: DeduplicationWindow | None = None,
    care_after: timedelta = CARE_AFTER,
    dry_run: bool = False,
    now: float | None = None,
) -> PruneResult:
    """Remove the messages of batches that are not needed any more; keep their reports of a few kilobytes.

    Guarantee: only batches in the states `done` and `empty`, with `collected` also `collected`, lose messages
    or ids. None does whose ids are within the deduplication window of its activation. After a kill at any
    point, another call continues.

    If a task is cleared later, the report shows that its batch is done. Without the report, the task collects
    again under the old batch's name, and the new rows replace the old batch's rows in the table.

    Args:
        spool: The folder of all batches.
        older_than: Only prune batches in which nothing has changed for this long.
        collected: Also prune batches that no job was submitted for. Their readers must have finished.
        forget: Also remove the reports of pruned batches unchanged for this long; `None` keeps them.
        horizon: Deduplication window, within which ids are needed; `None` means the default.
        care_after: Only affects the reason given for batches in a state of `NEEDS_CARE`. If such a batch has
            changed within this time, its job may be running or its retry pending; otherwise it needs
            intervention.
        dry_run: Change nothing, and return the batches that would be pruned.
        now: Current time in seconds since the epoch; `None` reads the clock.

    Returns:
        The pruned batches, and for each batch that stays the reason.

    Raises:
        SpoolError: The spool can't be read. A batch that can't be read or removed stays, with the fault as
            the reason.
    """
    now = time.time() if now is None else now
    found = list(batches(spool))
    horizon = horizon or DeduplicationWindow()
    removed: list[RemovedBatch] = []
    kept: list[KeptBatch] = []
    try:
        if not dry_run:
            kept += _finish_removals(spool)
        needed = _within_horizon(found, horizon, now)
        for batch in found:
            age = timedelta(seconds=now - batch.changed)
            whole = batch.state is State.EMPTY
            why: str | None = None
            try:
                if batch.state is State.PRUNED:
                    whole = forget is not None and age >= forget
                    if not whole and not _removable_files(batch.folder):
                        continue
                elif batch.state in NEEDS_CARE:
                    why = _care_reason(age, care_after)
                else:
                    why = _keep_reason(batch, age, older_than, horizon, collected=collected, needed=needed)
                if why is None:
                    size = batch.bytes if whole else sum(map(_size, _removable_files(batch.folder)))
                    if dry_run or (_remove(batch.folder) if whole else _reduce(batch.folder, now)):
                        removed.append(RemovedBatch(batch_id=batch.batch_id, whole=whole, bytes=size))
                        continue
                    why = "a writer holds it"
            except (SpoolError, OSError) as error:
                why = f"it can't be pruned: {error}"
            kept.append(KeptBatch(batch_id=batch.batch_id, state=batch.state, why=why))
    except OSError as error:
        raise SpoolError(f"{spool}: can't be pruned: {error}") from error
    return PruneResult(removed=tuple(removed), kept=tuple(kept))


def _finish_removals(spool: SpoolPath) -> list[KeptBatch]:
    """Finish removals of folders that killed processes began; give a folder with messages its name back.

    Returns:
        The folders that stay under their temporary names: damaged, or another batch has taken the name.
    """
    kept = []
    for folder in (spool / name for name in names_in(spool) if name.startswith(ASIDE)):
        try:
            why = _finish_removal(folder)
        except (SpoolError, OSError, ValueError) as error:
            why = str(error)
        if why is not None:
            kept.append(KeptBatch(batch_id=folder.name, state=describe(folder).state, why=why))
    return kept


def _finish_removal(folder: SpoolPath) -> str | None:
    if not any(count_rows(path) for _, path in numbered(folder, SEGMENT_STEM)):
        remove_folder(folder)
        return None
    header = read_document(folder / BATCH)
    batch_id = check_batch_id(header["batch_id"] if isinstance(header, dict) else "")
    if restore_folder(folder, folder.parent / batch_id):
        return None
    return f"it holds messages, and another batch {batch_id!r} was created since"


def _care_reason(age: timedelta, care_after: timedelta) -> str:
    if age < care_after:
        span = _minutes(care_after)
        return f"it changed within the last {span}, so its job may be running or its retry coming"
    return "it needs attention, see `airflow jms spool show`"


def _keep_reason(
    batch: BatchState,
    age: timedelta,
    older_than: timedelta,
    horizon: DeduplicationWindow,
    *,
    collected: bool,
    needed: set[str],
) -> str | None:
    """Return why a batch can't be pruned yet; `None` if it can."""
    match batch.state:
        case State.COLLECTING:
            return "a writer holds it"
        case State.COLLECTED if not collected:
            return "no job was submitted for it; it is removed only if you ask for `collected` ones"
    if batch.batch_id in needed:
        return (
            f"within the horizon (the newest {horizon.count:,} messages of the last "
            f"{_days(horizon.age)}), by which repetitions are recognised"
        )
    return f"it changed within the last {_days(older_than)}" if age < older_than else None


def _minutes(span: timedelta) -> str:
    minutes = span / timedelta(minutes=1)
    return "minute" if minutes == 1 else f"{minutes:g} minutes"


def _days(span: timedelta) -> str:
    days = span / timedelta(days=1)
    return "day" if days == 1 else f"{days:g} days"


def _size(found: Entry) -> int:
    inner = walk(found.path) if found.is_folder else []
    return found.size + sum(each.size for each in inner)


def _within_horizon(found: Sequence[BatchState], horizon: DeduplicationWindow, now: float) -> set[str]:
    """Return the finished batches with ids within the deduplication window of their activation.

    A batch that can't be read is included, a replay isn't.
    """
    sealed: defaultdict[str | None, list[tuple[float, int, str]]] = defaultdict(list)
    needed = set()
    for batch in found:
        if batch.state in _UNPRUNED and batch.rows and not is_replay(batch.batch_id):
            try:
                segments = Manifest.read(batch.folder / MANIFEST).segments
            except SpoolError:
                needed.add(batch.batch_id)
                continue
            for segment in segments:
                with contextlib.suppress(FileNotFoundError):
                    modified = entry_of(batch.folder / segment.file).modified / _NANOSECONDS
                    if now - modified <= horizon.age.total_seconds():
                        sealed[batch.activation].append((modified, segment.rows, batch.batch_id))
    for of_activation in sealed.values():
        left = horizon.count
        for _, rows, batch_id in sorted(of_activation, reverse=True):
            if left <= 0:
                break
            left -= rows
            needed.add(batch_id)
    return needed


def _removable_files(folder: SpoolPath) -> list[Entry]:
    """Return the files that a pruned batch doesn't need any more."""
    marks = [path for _, path in numbered(folder, DEAD_LETTERED)][-1:]
    return [each for each in entries(folder) if each.path.name not in _RECEIPT and each.path not in marks]


def _reduce(folder: SpoolPath, now: float) -> bool:
    """Remove the files of a batch except for its report; return `True`, as `_remove` does on success."""
    moment = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds")
    keep_part_names(folder)
    seal(folder / PRUNED, moment.encode() + b"\n")
    for each in _removable_files(folder):
        if each.is_folder:
            remove_folder(each.path)
        else:
            remove(each.path)
    synchronize_folder(folder)
    return True


def _remove(folder: SpoolPath) -> bool:
    """Remove the whole folder of an empty or pruned batch; return `False` if a writer uses it."""
    return remove_if_unused(
        folder,
        may_remove=lambda aside: describe(aside).state in {State.EMPTY, State.PRUNED},
        kept_prefix=SEGMENT_STEM,
    )


def adopt(spool: SpoolPath, batch_id: str) -> Manifest | None:
    """Finish a batch that its task left unfinished, so that its messages are in a manifest.

    Guarantee: after a kill at any point, another call continues. The batch keeps its name. So a retry of the
    task finds the batch finished, and if two jobs process it, its rows are stored once.

    Returns:
        The manifest, or `None` if no message had been acknowledged. In the latter case the batch is removed.

    Raises:
        BatchInUseError: A writer holds the batch.
        SpoolError: The batch doesn't exist, or is damaged.
    """
    [found] = batches(spool, [batch_id])
    if found.fault is not None or found.source is None or found.activation is None:
        raise SpoolError(found.fault or f"{found.folder / BATCH}: names no source or activation")
    with SpoolBatch(spool, batch_id, source=found.source, activation=found.activation) as batch:
        manifest = batch.complete()
    if manifest.rows:
        return manifest
    batch.discard()
    return None


def last_sealed(spool: SpoolPath, batch_id: str) -> float:
    """Return when a batch's last segment was sealed, in seconds since the epoch; 0 without a segment."""
    with contextlib.suppress(OSError):
        return max(
            (entry_of(path).modified / _NANOSECONDS for _, path in numbered(spool / batch_id, SEGMENT_STEM)),
            default=0.0,
        )
    return 0.0
