"""A file that is written piece by piece."""

from __future__ import annotations

import contextlib
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from types import TracebackType
from typing import BinaryIO, Self

from airflow_provider_jmsjca.errors import SpoolError

Buffer = bytes | memoryview


class StagedFile(ABC):
    """A file that is written piece by piece until it is sealed or discarded.

    Before `seal` the file doesn't exist for other processes. Every method raises `SpoolError` if the file
    can't be written.

    Attributes:
        name: The file's final name in its folder.
        size: Number of bytes written so far.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.size = 0
        self._digest = hashlib.sha256()
        with self._refusals():
            self._file = self._created()

    @abstractmethod
    def _created(self) -> BinaryIO:
        """Create the file for the content, and return it opened without a buffer."""

    @abstractmethod
    def _seal(self) -> bool:
        """Durably give the file its final name; return `False` if another file has that name."""

    @abstractmethod
    def _refusal(self, error: OSError) -> SpoolError:
        """Return the error that names the file that can't be written, and the spool's requirements."""

    @property
    def sha256(self) -> str:
        """The digest of the content so far, in hexadecimal digits."""
        return self._digest.hexdigest()

    @property
    def closed(self) -> bool:
        """Whether the file was sealed or discarded; Arrow reads this."""
        return self._file.closed

    def write(self, piece: Buffer) -> int:
        """Append bytes and return their number; a sealed or discarded file ignores them."""
        if not self._file.closed:
            rest = memoryview(piece)
            with self._refusals():
                while rest:
                    rest = rest[self._file.write(rest) :]
            self._digest.update(piece)
            self.size += len(piece)
        return len(piece)

    def flush(self) -> None:  # noqa: B027 - Arrow calls it
        """Do nothing: `seal` flushes."""

    def seal(self) -> bool:
        """Durably give the file its final name; return `False` and discard it if the name is taken."""
        with self._refusals():
            try:
                return self._seal()
            finally:
                self.close()

    def close(self) -> None:
        """Discard the file, unless it is sealed."""
        with self._refusals():
            self._file.close()

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._refusal(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
