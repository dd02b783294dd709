"""Which attempt at a batch may commit, and that it did.

An attempt takes a fence number before it submits its job. A job may commit only while its number is the
highest: when the task was retried, an older driver that still runs (killing the JVM doesn't kill a Python
driver) finds a higher one and stops.

Files in the batch's folder: `fence-000001`, `fence-000002`, ... one for each attempt; `_DONE`, created once.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from airflow_provider_jmsjca.errors import FencedError, SpoolError
from airflow_provider_jmsjca.spark.sealing import numbered, seal

DONE: Final = "_DONE"
_FENCE: Final = "fence"


def take_fence(folder: Path) -> int:
    """Begin an attempt: return a number higher than any before, which shuts out the attempts before.

    Args:
        folder: The batch's folder.

    Raises:
        SpoolError: The folder can't be written.
    """
    while True:
        number = current_fence(folder) + 1
        if seal(folder / f"{_FENCE}-{number:06d}", b""):
            return number


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
