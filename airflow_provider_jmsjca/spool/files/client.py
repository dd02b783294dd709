"""The interface of a file store that is reached over the network."""

from __future__ import annotations

import mmap
from datetime import timedelta
from io import BufferedIOBase
from typing import Final, NamedTuple, Protocol

from airflow_provider_jmsjca.errors import SpoolError

RETRIED_FOR: Final = timedelta(minutes=2)
"""How long a request is repeated while the store isn't reachable or is busy."""
LONGEST_PAUSE: Final = timedelta(seconds=3)
LONGEST_REQUEST: Final = timedelta(minutes=2)
LONGEST_CONNECT: Final = timedelta(seconds=5)
IN_MEMORY: Final = 1024 * 1024
"""Up to how many bytes of a file that was fetched are kept in memory."""
CHUNK: Final = 8 * 1024 * 1024


class StoreError(SpoolError, OSError):
    """The store refused, or couldn't be reached."""


class FoundFile(NamedTuple):
    """A file, or a folder.

    Attributes:
        key: The file's or folder's name from the root, without a slash at either end.
        modified: When it was written, in nanoseconds since the epoch.
    """

    key: str
    size: int
    modified: int
    is_folder: bool


class StoreClient(Protocol):
    """A store. Each call may last for two minutes while the store isn't reachable.

    Every method raises `FileNotFoundError` where it says so, and `StoreError` where the store refuses or
    isn't reachable.
    """

    def create(self, key: str, content: bytes | mmap.mmap) -> bool:
        """Create a file unless there is one.

        Guarantee: when it returns, the file is there in full, as durable as the store makes it. `True` means
        that this call created it, also if the store's answer was lost and the request was repeated. After an
        error the file may be there, or come to be there later, in full.

        Raises:
            NotImplementedError: The store can't do that.
        """

    def renew(self, key: str, content: bytes) -> None:
        """Set the time of a file's last change to now; `content` is the file's content."""

    def fetch(self, key: str) -> BufferedIOBase:
        """Fetch a file, to read anywhere in it; `FileNotFoundError` if there is none."""

    def status(self, key: str) -> FoundFile:
        """Return size and age of a file; `FileNotFoundError` if there is none."""

    def is_folder(self, key: str) -> bool:
        """Return whether there is a folder of this name."""

    def entries(self, key: str) -> list[FoundFile]:
        """Return the entries of a folder; none if it doesn't exist."""

    def walk(self, key: str) -> list[FoundFile]:
        """Return the entries of a folder and its subfolders; none if it doesn't exist."""

    def remove(self, key: str) -> None:
        """Remove a file, if it is there."""

    def make_folder(self, key: str) -> None:
        """Create a folder that is its owner's alone, where the store has such a thing."""

    def remove_empty(self, key: str) -> None:
        """Remove a folder, if it is there and has nothing in it."""

    def remove_temporary(self, key: str) -> None:
        """Remove leftovers of crashed writers from a folder."""
