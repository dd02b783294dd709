"""The interface of a file store that is reached over the network."""

from __future__ import annotations

import mmap
from datetime import timedelta
from io import BufferedIOBase
from typing import Final, NamedTuple, Protocol

from airflow_provider_jmsjca.errors import SpoolError

RETRIED_FOR: Final = timedelta(minutes=2)
"""How long a request is retried while the store is unreachable or busy."""
LONGEST_PAUSE: Final = timedelta(seconds=3)
LONGEST_REQUEST: Final = timedelta(minutes=2)
LONGEST_CONNECT: Final = timedelta(seconds=5)
IN_MEMORY: Final = 1024 * 1024
"""Maximum size in bytes of a fetched file that is kept in memory; a larger one goes to a temporary file."""
CHUNK: Final = 8 * 1024 * 1024


class StoreError(SpoolError, OSError):
    """The store refused a request, or couldn't be reached."""


class FoundFile(NamedTuple):
    """A file or folder of a store.

    Attributes:
        key: Path of the file or folder from the root, without a slash at either end.
        size: Size in bytes; 0 for a folder.
        modified: Time of the last change, in nanoseconds since the epoch.
    """

    key: str
    size: int
    modified: int
    is_folder: bool


class StoreClient(Protocol):
    """Client of a cloud store or HDFS. A call may take two minutes or longer if the store is unreachable.

    Every method raises `StoreError` if the store refuses the request or is unreachable. Some also raise
    `FileNotFoundError`, as their docstrings say.
    """

    def create(self, key: str, content: bytes | mmap.mmap) -> bool:
        """Create a file unless the name exists.

        Guarantee: after the return, the file exists in full, with the store's durability. `True` means that
        this call created it, even if the store's response was lost and the request was repeated. After an
        error the whole file may exist, or appear later.

        Raises:
            NotImplementedError: The store can't create a file exclusively.
        """

    def renew(self, key: str, content: bytes) -> None:
        """Set a file's modification time to now; `content` is the file's unchanged content."""

    def fetch(self, key: str) -> BufferedIOBase:
        """Fetch a file and return it open and seekable; raise `FileNotFoundError` if it doesn't exist."""

    def status(self, key: str) -> FoundFile:
        """Return size and modification time of a file; raise `FileNotFoundError` if it doesn't exist."""

    def is_folder(self, key: str) -> bool:
        """Return whether a folder of this name exists."""

    def entries(self, key: str) -> list[FoundFile]:
        """Return the entries of a folder; an empty list if the folder doesn't exist."""

    def walk(self, key: str) -> list[FoundFile]:
        """Return the entries of a folder and its subfolders; an empty list if the folder doesn't exist."""

    def remove(self, key: str) -> None:
        """Remove a file, if it exists."""

    def make_folder(self, key: str) -> None:
        """Create a folder that only its owner can access; do nothing if the store has no folders."""

    def remove_empty(self, key: str) -> None:
        """Remove a folder, if it exists and is empty."""

    def remove_temporary(self, key: str) -> None:
        """Remove leftovers of crashed writers from a folder."""
