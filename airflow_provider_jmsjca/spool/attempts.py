"""Fences and the report of a batch. Fences decide which attempt at the batch may commit.

An attempt takes a fence number before it submits its job. A job may commit only while its number is the
highest. After a retry of the task, an older Spark driver may still run, because killing the JVM doesn't kill
a Python driver. That driver finds a higher fence number and stops.

Files in the batch's folder:

- `fence-000001`, `fence-000002`, ...: one for each attempt.
- `commit.lock`: held while an attempt checks its fence and commits, so that no newer attempt begins then.
- `_DONE`: the report, created once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

from airflow_provider_jmsjca.errors import FencedError, SpoolError
from airflow_provider_jmsjca.spool.files import SpoolPath, locked, numbered, read_document, read_file, seal

DONE: Final = "_DONE"
COMMIT_LOCK: Final = "commit.lock"
DEAD_LETTERED: Final = "dead-lettered"
"""Stem of file names such as `dead-lettered-000012`; the number is the count of rejects sent so far."""
_FENCE: Final = "fence"
_EVOLVED: Final = "evolved"
_LATER_FIELDS: Final[Mapping[str, Any]] = {
    "violations": {},
    "rescued": 0,
    "rejects_stored": False,
    "evolved": [],
}
"""Fields that reports of earlier versions don't have."""
_REJECTS_FILE = re.compile(r"rejects-[0-9]{6,20}-[0-9]{6,20}\.jsonl")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def take_fence(folder: SpoolPath) -> int:
    """Begin an attempt at a batch, and return its fence number; older attempts may not commit any more.

    Guarantee: once the call has returned, no older attempt adds files to a table by renaming (see
    `spark.tables`).

    Args:
        folder: The batch's folder.

    Raises:
        SpoolError: The folder can't be written, or an older attempt has been committing for a minute.
    """
    with committing(folder):
        number = current_fence(folder) + 1
        if not seal(folder / f"{_FENCE}-{number:06d}", b""):
            raise SpoolError(f"{folder}: fence {number} appeared although {COMMIT_LOCK} was held")
        return number


@contextmanager
def committing(folder: SpoolPath, timeout: float = 60.0) -> Iterator[None]:
    """Prevent other attempts from committing or starting during a short operation, such as a rename.

    Args:
        folder: The batch's folder.
        timeout: How long to wait for another attempt's commit, in seconds.

    Raises:
        SpoolError: The other attempt's commit took longer than `timeout`, or the lock can't be taken.
    """
    path = folder / COMMIT_LOCK
    try:
        with locked(path, timeout):
            yield
    except OSError as error:
        raise SpoolError(f"{path}: {error.strerror or error}") from error


@contextmanager
def committing_as(folder: SpoolPath, fence: int) -> Iterator[None]:
    """Enter `committing` for an attempt that must be the newest.

    Args:
        folder: The batch's folder.
        fence: Fence number of the attempt.

    Raises:
        FencedError: A newer attempt has begun.
        SpoolError: Another attempt's commit took longer than a minute, or the lock can't be taken.
    """
    with committing(folder):
        check_fence(folder, fence)
        yield


def current_fence(folder: SpoolPath) -> int:
    """Return the number of the newest attempt; 0 if there was none.

    Raises:
        SpoolError: The folder can't be read.
    """
    try:
        fences = numbered(folder, _FENCE)
    except OSError as error:
        raise SpoolError(f"{folder}: can't be read: {error.strerror or error}") from error
    return fences[-1][0] if fences else 0


def dead_lettered(folder: SpoolPath) -> int:
    """Return how many of a batch's rejects have been sent to the dead-letter destination.

    Raises:
        OSError: The folder can't be read.
    """
    marks = numbered(folder, DEAD_LETTERED)
    return marks[-1][0] if marks else 0


def note_evolution(folder: SpoolPath, change: str) -> None:
    """Durably record that an attempt at a batch changes a column of a table.

    Args:
        folder: The batch's folder.
        change: Text that describes the change. A text that is recorded already isn't recorded again.

    Raises:
        SpoolError: The folder can't be written.
    """
    try:
        noted = evolutions(folder)
        while change not in noted:
            if seal(folder / f"{_EVOLVED}-{len(noted):06d}", change.encode()):
                return
            noted = evolutions(folder)
    except OSError as error:
        raise SpoolError(f"{folder}: can't be written: {error.strerror or error}") from error


def evolutions(folder: SpoolPath) -> list[str]:
    """Return the changes of columns that attempts at a batch have recorded.

    Raises:
        OSError: The folder can't be read.
    """
    return [read_file(path).decode(errors="replace") for _, path in numbered(folder, _EVOLVED)]


def check_fence(folder: SpoolPath, fence: int) -> None:
    """Refuse to continue unless the fence number is that of the newest attempt.

    Raises:
        FencedError: A newer attempt has begun, or no attempt ever had this number.
    """
    current = current_fence(folder)
    if fence != current:
        raise FencedError(f"{folder}: this is attempt {fence}, but attempt {current} may commit: stopping")


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectsFile:
    """A file of rejects that a finished attempt has written. Other files of rejects are ignored.

    Attributes:
        file: The file's name in the batch's folder.
        rows: Number of rejected messages in it.
        sha256: The digest of the whole file.
    """

    file: str
    rows: int
    sha256: str

    @classmethod
    def checked(cls, found: Any) -> Self:
        """Validate an entry of the report's list of rejects files, and return it as an instance.

        Args:
            found: The entry, from the JSON document.

        Raises:
            ValueError: The entry has another form, or its file name can't come from a job: `../../file`,
                for example.
        """
        if not isinstance(found, dict) or set(found) != {"file", "rows", "sha256"}:
            raise ValueError(f"rejects: expected file, rows and sha256, found {found!r:.200}")
        for name, pattern in (("file", _REJECTS_FILE), ("sha256", _SHA256)):
            if not isinstance(found[name], str) or not pattern.fullmatch(found[name]):
                raise ValueError(f"rejects: {name}: expected {pattern.pattern}, found {found[name]!r:.200}")
        return cls(file=found["file"], rows=_count("rejects: rows", found["rows"]), sha256=found["sha256"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The report of a finished job: the content of `_DONE`.

    Attributes:
        fence: Fence number of the attempt whose job finished.
        rows: Messages in the batch.
        stored: Number of rows written to each table; the keys are the tables' paths.
        rejected: Messages that the job rejected.
        finished: Time at which the job finished, ISO 8601 in UTC.
        violations: Number of rows that violated each expectation; the keys are the expectations' names.
        rescued: Number of rows with fields that the schema doesn't name, if the job keeps such fields.
        rejects_stored: Whether every rejected message is also a row of a table; `False` without rejects.
        evolved: Changes that attempts at the batch made to columns of tables.
    """

    batch_id: str
    fence: int
    rows: int
    stored: dict[str, int]
    rejected: int
    rejects: tuple[RejectsFile, ...]
    finished: str
    violations: dict[str, int] = field(default_factory=dict)
    rescued: int = 0
    rejects_stored: bool = False
    evolved: tuple[str, ...] = ()

    def create(self, folder: SpoolPath) -> bool:
        """Seal the report; return `False` if another attempt has sealed its own first."""
        return seal(folder / DONE, json.dumps(asdict(self), indent=2, sort_keys=True).encode() + b"\n")

    @classmethod
    def read(cls, folder: SpoolPath) -> Done | None:
        """Return the report of a batch, or `None` if it isn't done.

        Raises:
            SpoolError: The file exists, but can't be read or is no such report.
        """
        path = folder / DONE
        try:
            return cls._checked(read_document(path))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SpoolError(f"{path}: can't be read: {error.strerror or error}") from error
        except ValueError as error:
            raise SpoolError(f"{path}: not the report of a finished batch: {error}") from error

    @classmethod
    def _checked(cls, found: Any) -> Self:
        names = {"batch_id", "fence", "rows", "stored", "rejected", "rejects", "finished"}
        if not isinstance(found, dict) or set(found) - _LATER_FIELDS.keys() != names:
            raise ValueError(f"expected an object with {', '.join(sorted(names))}")
        kinds = {
            "batch_id": str,
            "finished": str,
            "stored": dict,
            "rejects": list,
            "violations": dict,
            "rejects_stored": bool,
            "evolved": list,
        }
        found = {**_LATER_FIELDS, **found}
        for name, kind in kinds.items():
            if not isinstance(found[name], kind):
                raise ValueError(f"{name}: expected {kind.__name__}, found {found[name]!r:.200}")  # noqa: TRY004 - bad content
        return cls(
            batch_id=found["batch_id"],
            fence=_count("fence", found["fence"]),
            rows=_count("rows", found["rows"]),
            stored={table: _count(f"stored: {table}", rows) for table, rows in found["stored"].items()},
            rejected=_count("rejected", found["rejected"]),
            rejects=tuple(RejectsFile.checked(item) for item in found["rejects"]),
            finished=found["finished"],
            violations={
                name: _count(f"violations: {name}", rows) for name, rows in found["violations"].items()
            },
            rescued=_count("rescued", found["rescued"]),
            rejects_stored=found["rejects_stored"],
            evolved=tuple(str(each) for each in found["evolved"]),
        )


def _count(name: str, found: Any) -> int:
    if type(found) is not int or found < 0:
        raise ValueError(f"{name}: expected a whole number of at least 0, found {found!r:.200}")
    return found
