"""Keeps large pending messages in memory up to a limit, and the rest on disk.

Brokers limit prefetched messages by number, not by size, and a reader that stops reading would delay receipts
and heart-beats. So once `MEMORY_LIMIT` bytes of large messages are in memory, further large messages are
written to an unlinked temporary file, and read back on access. Order, redelivery and acknowledgements are the
same as for a message in memory. The disk space is bounded by the prefetch and the largest message that the
broker accepts.
"""

from __future__ import annotations

import os
import tempfile
import threading
from typing import Final

from airflow_provider_jmsjca.errors import ConnectionLostError
from airflow_provider_jmsjca.transports.stomp.wire.frames import Frame

LARGE: Final = 16 * 1024
"""Size in bytes from which a frame counts against `MEMORY_LIMIT`. The prefetch bounds smaller frames."""
MEMORY_LIMIT: Final = 8 * 1024 * 1024
"""Bytes of large frames that a process keeps in memory, for all its consumers."""
_FILE_LIMIT: Final = 64 * 1024 * 1024


class _File:
    """An unlinked temporary file of mode 0600; deleting its last frame frees its disk space."""

    __slots__ = ("_descriptor", "end")

    def __init__(self) -> None:
        with tempfile.TemporaryFile(prefix="jms-") as file:
            self._descriptor = os.dup(file.fileno())
        self.end = 0

    def write(self, piece: bytes) -> int:
        """Append bytes and return their offset."""
        at, rest = self.end, memoryview(piece)
        while rest:
            written = os.pwrite(self._descriptor, rest, self.end)
            self.end += written
            rest = rest[written:]
        return at

    def read(self, at: int, size: int) -> bytes:
        """Return `size` bytes from offset `at`.

        Raises:
            OSError: The bytes can't be read.
        """
        pieces = []
        while size:
            piece = os.pread(self._descriptor, size, at)
            if not piece:
                raise OSError("the temporary file was truncated")
            pieces.append(piece)
            at += len(piece)
            size -= len(piece)
        return b"".join(pieces)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


class SpilledFrame(Frame):
    """A frame with head and body on disk; each access to one of them reads the file."""

    __slots__ = ("_at", "_body_size", "_file", "_head_size", "fault")

    def __init__(self, frame: Frame, file: _File) -> None:
        self.command = frame.command
        self.key = frame.key
        self.fault = frame.fault
        self._file = file
        self._head_size = len(frame.head)
        self._body_size = len(frame.body)
        self._at = file.write(frame.head)
        file.write(frame.body)

    @property
    def head(self) -> bytes:  # type: ignore[override]  # an attribute of the others
        """The header lines."""
        return self._read(self._at, self._head_size)

    @property
    def body(self) -> bytes:  # type: ignore[override]  # an attribute of the others
        """The body."""
        return self._read(self._at + self._head_size, self._body_size)

    @property
    def size(self) -> int:
        """Length of head and body in bytes."""
        return self._head_size + self._body_size

    def loaded(self) -> Frame:
        """Return the received frame, read back into memory.

        Raises:
            ConnectionLostError: The frame can't be read back.
        """
        frame = _FrameInMemory(self.command, self.head, self.body, self.key)
        frame.fault = self.fault
        return frame

    def _read(self, at: int, size: int) -> bytes:
        try:
            return self._file.read(at, size)
        except OSError as error:
            raise ConnectionLostError(f"a message kept on disk can't be read back: {error}") from error


class _FrameInMemory(Frame):
    __slots__ = ("fault",)


class _CountedFrame(_FrameInMemory):
    """A frame that counts against the limit as long as it is referenced."""

    __slots__ = ("_memory", "_size")

    def __init__(self, frame: Frame, memory: FrameMemory, size: int) -> None:
        super().__init__(frame.command, frame.head, frame.body, frame.key)
        self.fault = frame.fault
        self._memory = memory
        self._size = size

    def __del__(self) -> None:
        self._memory.give_back(self._size)


class FrameMemory:
    """Limits the memory for large frames, and spills further ones to disk.

    Args:
        limit: Maximum bytes in memory, heads included.
    """

    def __init__(self, limit: int = MEMORY_LIMIT) -> None:
        self._limit = limit
        self._lock = threading.RLock()  # `__del__` of a frame may run in a thread that holds the lock
        self._used = 0
        self._file: _File | None = None

    def hold(self, frame: Frame) -> Frame:
        """Return a replacement for a large received frame: one in memory or, over the limit, one on disk.

        The replacement is in memory if its size fits into the limit, or if no other large frame is in memory.
        It counts against the limit as long as it is referenced.

        Raises:
            ConnectionLostError: The memory limit is reached, and the frame can't be written to disk.
        """
        size = len(frame.head) + len(frame.body)
        with self._lock:
            # A single frame is always kept in memory, because it may be larger than the limit.
            if self._used + size <= self._limit or not self._used:
                self._used += size
                return _CountedFrame(frame, self, size)
            try:
                if self._file is None or self._file.end >= _FILE_LIMIT:
                    self._file = _File()
                return SpilledFrame(frame, self._file)
            except OSError as error:
                self._file = None
                raise ConnectionLostError(
                    f"large messages beyond {self._limit} bytes are kept in {tempfile.gettempdir()}, which "
                    f"can't be written: {error.strerror or error}; make room, set TMPDIR, or lower the "
                    "prefetch"
                ) from error

    def give_back(self, size: int) -> None:
        """Subtract the size of a deleted frame."""
        with self._lock:
            self._used -= size
            if not self._used:
                self._file = None  # deleting its frames frees its disk space


MEMORY: Final = FrameMemory()
