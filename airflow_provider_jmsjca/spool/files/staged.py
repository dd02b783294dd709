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
    """A file that is written piece by piece until it is sealed or given up.

    Nothing of it is there for others before `seal`. Every method raises `SpoolError` where it can't be
    written.

    Attributes:
        name: The name that the file shall have in its folder.
        size: How many bytes were written.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.size = 0
        self._digest = hashlib.sha256()
        with self._refusals():
            self._file = self._created()

    @abstractmethod
    def _created(self) -> BinaryIO:
        """Return the file, new and without a buffer."""

    @abstractmethod
    def _seal(self) -> bool:
        """Give the file its name, durably; `False` if that is taken."""

    @abstractmethod
    def _refusal(self, error: OSError) -> SpoolError:
        """Return the error that names the file that can't be written, and the spool's requirements."""

    @property
    def sha256(self) -> str:
        """The digest of the content so far, in hexadecimal digits."""
        return self._digest.hexdigest()

    @property
    def closed(self) -> bool:
        """Whether the file was sealed or given up; Arrow asks for it."""
        return self._file.closed

    def write(self, piece: Buffer) -> int:
        """Append, and return the number of bytes; an abandoned file ignores them."""
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
        """Give the file its name, durably; `False` if that is taken: nothing was changed."""
        with self._refusals():
            try:
                return self._seal()
            finally:
                self.close()

    def close(self) -> None:
        """Give the file up, unless it is sealed."""
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
