"""Large messages that wait: in memory up to a limit, beyond it on disk.

Brokers bound what they send ahead by the number of messages, not by their size, and stopping to read would
hold up receipts and heart-beats. So what comes while `MEMORY_LIMIT` bytes of large messages are in memory is
written to a temporary file that has no name any more, and read back when its turn comes. Nothing else
changes: order, redelivery and acknowledgements are those of a message in memory. The space on disk is bounded
by the prefetch and the largest message that the broker takes.
"""

from __future__ import annotations

import os
import tempfile
import threading
from typing import Final

from airflow_provider_jmsjca.errors import ConnectionLostError
from airflow_provider_jmsjca.transports.stomp.wire.frames import Frame

LARGE: Final = 16 * 1024
"""Bytes from which on a frame is counted: smaller ones are bounded well enough by the prefetch."""
MEMORY_LIMIT: Final = 8 * 1024 * 1024
"""Bytes of large frames that a process keeps in memory, for all its consumers."""
_FILE_LIMIT: Final = 64 * 1024 * 1024


class _File:
    """A temporary file without a name, of mode 0600; its space is free when the last frame in it is gone."""

    __slots__ = ("_descriptor", "end")

    def __init__(self) -> None:
        with tempfile.TemporaryFile(prefix="jms-") as file:
            self._descriptor = os.dup(file.fileno())
        self.end = 0

    def write(self, piece: bytes) -> int:
        """Append bytes, and return where they begin."""
        at, rest = self.end, memoryview(piece)
        while rest:
            written = os.pwrite(self._descriptor, rest, self.end)
            self.end += written
            rest = rest[written:]
        return at

    def read(self, at: int, size: int) -> bytes:
        """Return a piece.

        Raises:
            OSError: The piece can't be read.
        """
        pieces = []
        while size:
            piece = os.pread(self._descriptor, size, at)
            if not piece:
                raise OSError("the temporary file is shorter than what was written")
            pieces.append(piece)
            at += len(piece)
            size -= len(piece)
        return b"".join(pieces)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


class SpilledFrame(Frame):
    """A frame whose head and body are on disk; each look at one of them reads the file."""

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
        """How many bytes head and body have."""
        return self._head_size + self._body_size

    def loaded(self) -> Frame:
        """Return the frame as it came.

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
    """A frame that is counted as long as anybody holds it."""

    __slots__ = ("_memory", "_size")

    def __init__(self, frame: Frame, memory: FrameMemory, size: int) -> None:
        super().__init__(frame.command, frame.head, frame.body, frame.key)
        self.fault = frame.fault
        self._memory = memory
        self._size = size

    def __del__(self) -> None:
        self._memory.give_back(self._size)


class FrameMemory:
    """What large frames take of memory, and where the rest of them goes.

    Args:
        limit: Bytes, heads included.
    """

    def __init__(self, limit: int = MEMORY_LIMIT) -> None:
        self._limit = limit
        self._lock = threading.RLock()  # a frame may be collected while the same thread is in here
        self._used = 0
        self._file: _File | None = None

    def hold(self, frame: Frame) -> Frame:
        """Return the frame to keep instead of this large one.

        Raises:
            ConnectionLostError: Memory is used up, and the disk doesn't take it.
        """
        size = len(frame.head) + len(frame.body)
        with self._lock:
            # One that is larger than the limit would never find room: it is let in alone.
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
        """A counted frame is gone."""
        with self._lock:
            self._used -= size
            if not self._used:
                self._file = None  # its space is free when the frames in it are gone


MEMORY: Final = FrameMemory()
