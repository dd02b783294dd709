"""Which attempt at a batch may commit, and that it did.

An attempt takes a fence number before it submits its job. A job may commit only while its number is the
highest: when the task was retried, an older driver that still runs (killing the JVM doesn't kill a Python
driver) finds a higher one and stops.

Files in the batch's folder: `fence-000001`, `fence-000002`, ... one for each attempt; `commit.lock`, held
while an attempt looks at the fence and commits, so that no newer one can begin in between; `_DONE`, created
once.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from airflow_provider_jmsjca.errors import FencedError, SpoolError
from airflow_provider_jmsjca.spark.sealing import numbered, seal

DONE: Final = "_DONE"
COMMIT_LOCK: Final = "commit.lock"
_FENCE: Final = "fence"
_POLL_SECONDS = 0.05


def take_fence(folder: Path) -> int:
    """Begin an attempt: return a number higher than any before, which shuts out the attempts before.

    Guarantee: once it has returned, no older attempt puts anything into a table by renaming (see `tables`).

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
def committing(folder: Path, timeout: float = 60.0) -> Iterator[None]:
    """Keep other attempts from committing or beginning meanwhile; for renames, not for long work.

    Args:
        folder: The batch's folder.
        timeout: How long to wait for another attempt's commit, in seconds.

    Raises:
        SpoolError: The other attempt didn't end, or the lock can't be had.
    """
    path = folder / COMMIT_LOCK
    deadline = time.monotonic() + timeout
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        raise SpoolError(
                            f"{path}: another attempt has held it for {timeout:.0f} s; end that process"
                        ) from None
                    time.sleep(_POLL_SECONDS)
            yield
        finally:
            os.close(descriptor)
    except OSError as error:
        raise SpoolError(f"{path}: {error.strerror or error}") from error


def current_fence(folder: Path) -> int:
    """Return the number of the newest attempt; 0 if there was none.

    Raises:
        SpoolError: The folder can't be read.
    """
    try:
        fences = numbered(folder, _FENCE)
    except OSError as error:
        raise SpoolError(f"{folder}: can't be read: {error.strerror or error}") from error
    return fences[-1][0] if fences else 0


def check_fence(folder: Path, fence: int) -> None:
    """Refuse to go on if this isn't the newest attempt.

    Raises:
        FencedError: A newer attempt has begun, or this one never did.
    """
    current = current_fence(folder)
    if fence != current:
        raise FencedError(f"{folder}: this is attempt {fence}, but attempt {current} may commit: stopping")


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectsFile:
    """A file of rejects that counts: those of attempts that didn't finish don't.

    Attributes:
        file: Its name in the batch's folder.
        sha256: The digest of the whole file.
    """

    file: str
    rows: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a job reports when it has finished: the content of `_DONE`.

    Attributes:
        fence: The attempt that did it.
        rows: Messages in the batch.
        stored: Rows written by table path.
        rejected: Messages the job turned away.
        finished: When, ISO 8601 in UTC.
    """

    batch_id: str
    fence: int
    rows: int
    stored: dict[str, int]
    rejected: int
    rejects: tuple[RejectsFile, ...]
    finished: str

    def create(self, folder: Path) -> bool:
        """Seal the report; `False` if another attempt did it first."""
        return seal(folder / DONE, json.dumps(asdict(self), indent=2, sort_keys=True).encode() + b"\n")

    @classmethod
    def read(cls, folder: Path) -> Done | None:
        """Return the report of a batch, or `None` if it isn't done.

        Raises:
            SpoolError: There is one, but not of this form.
        """
        path = folder / DONE
        try:
            document: Any = json.loads(path.read_bytes())
            document["rejects"] = tuple(RejectsFile(**item) for item in document["rejects"])
            return cls(**document)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SpoolError(f"{path}: can't be read: {error.strerror or error}") from error
        except (ValueError, TypeError, KeyError) as error:
            raise SpoolError(f"{path}: not the report of a finished batch: {error!r}") from error
