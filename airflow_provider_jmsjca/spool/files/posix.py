"""Files that are either there in full or not at all, and that are created once.

Content is written under a temporary name, flushed to the disk, and given its final name by `link(2)`. Unlike
`rename(2)`, `link(2)` fails if the name exists, so it never replaces a sealed file. A crash leaves the sealed
file, or a temporary file that is never read, or both.

Only the owner has access to files and folders of the spool, independent of the umask. Existing files are not
trusted: no symbolic link is followed, and only ordinary files are read.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import socket
import stat
import time
import uuid
from collections.abc import Iterable, Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, cast

from airflow_provider_jmsjca.errors import BatchInUseError, SpoolError
from airflow_provider_jmsjca.spool.files.staged import StagedFile

TEMPORARY_PREFIX: Final = ".tmp-"
FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
_LOCK_TRIES: Final = 5
_LOCK_PAUSE_SECONDS: Final = 0.02
_POLL_SECONDS: Final = 0.05


class PosixEntry(NamedTuple):
    """A file or folder.

    Attributes:
        size: Size in bytes.
        modified: Time of the last change, in nanoseconds since the epoch.
    """

    path: Path
    size: int
    modified: int
    is_folder: bool


class PosixStaged(StagedFile):
    """A staged file under a temporary name in its folder. A crash may leave the temporary file.

    Args:
        path: The file's final path; the folder must exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = path.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
        super().__init__(path.name)

    def _created(self) -> BinaryIO:
        descriptor = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        os.fchmod(descriptor, FILE_MODE)  # the umask may have removed permissions
        return cast("BinaryIO", os.fdopen(descriptor, "wb", buffering=0))

    def _seal(self) -> bool:
        os.fsync(self._file.fileno())
        self._file.close()
        try:
            os.link(self._temporary, self._path)
        except FileExistsError:
            # NFS repeats a request if its response is lost. The repeated request fails because the first one
            # has created the link. In that case the file has two links.
            if self._temporary.stat().st_nlink == 1:
                return False
        synchronize_folder(self._path.parent)
        return True

    def close(self) -> None:
        """Discard the file, unless it is sealed."""
        super().close()
        with self._refusals():
            self._temporary.unlink(missing_ok=True)

    def _refusal(self, error: OSError) -> SpoolError:
        return SpoolError(
            f"{self._path}: can't be written: {error.strerror or error} (the spool needs a POSIX file "
            "system with hard links and free space)"
        )


def synchronize_folder(folder: Path) -> None:
    """Make the names in a folder survive a crash of the machine."""
    _synchronize(folder, os.O_DIRECTORY)


def synchronize_tree(folder: Path) -> None:
    """Make a folder survive a crash of the machine, with every file and folder in it.

    Raises:
        OSError: A file or folder can't be read or flushed, or is a symbolic link.
    """
    for path, _, names in os.walk(folder, onerror=_raise):
        for name in names:
            _synchronize(Path(path, name), 0)
        synchronize_folder(Path(path))


def _synchronize(path: Path, flags: int) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _raise(error: OSError) -> None:
    raise error


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, and restrict access to the owner, also if the folder exists.

    Raises:
        OSError: The folder can't be created or belongs to another user, or something else has the name, such
            as a symbolic link.
    """
    if not folder.parent.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.parent.chmod(FOLDER_MODE)
    try:
        folder.mkdir(mode=FOLDER_MODE)
    except FileExistsError:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "is no folder", str(folder)) from None
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if stat.S_IMODE(os.fstat(descriptor).st_mode) != FOLDER_MODE:
            os.fchmod(descriptor, FOLDER_MODE)
    finally:
        os.close(descriptor)


def open_plain(path: Path, flags: int = os.O_RDONLY) -> int:
    """Return the descriptor of an ordinary file.

    Args:
        path: The file.
        flags: Flags of `os.open`; with `O_CREAT` a missing file is created.

    Raises:
        OSError: The file can't be opened, or is a symbolic link, a pipe, a folder or the like. With `O_CREAT`
            also: the file has a second name (hard link).
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, FILE_MODE)
    try:
        _check_plain(path, os.fstat(descriptor), may_have_names=not flags & os.O_CREAT)
        if flags & os.O_CREAT:
            os.fchmod(descriptor, FILE_MODE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_plain(path: Path, found: os.stat_result, *, may_have_names: bool) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "is no ordinary file", str(path))
    if found.st_nlink != 1 and not may_have_names:
        raise OSError(errno.EMLINK, "has a second name", str(path))


def digest_of(file: BufferedIOBase) -> str:
    """Return the SHA-256 of an open file from its beginning, in hexadecimal digits."""
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()


def remove_temporary(folder: Path) -> None:
    """Remove leftovers of crashed writers; only the folder's writer may call this."""
    for leftover in folder.glob(f"{TEMPORARY_PREFIX}*"):
        leftover.unlink(missing_ok=True)


def entry_of(path: Path) -> PosixEntry:
    """Return the status of a file without following symbolic links."""
    found = path.lstat()
    return PosixEntry(path, found.st_size, found.st_mtime_ns, stat.S_ISDIR(found.st_mode))


def entries(folder: Path) -> list[PosixEntry]:
    """Return the entries of a folder, sorted by name; entries removed during the call are left out."""
    return _entries(sorted(folder.iterdir()))


def walk(folder: Path) -> list[PosixEntry]:
    """Return the entries of a folder and its subfolders; entries removed during the call are left out."""
    return _entries(folder.rglob("*"))


def _entries(paths: Iterable[Path]) -> list[PosixEntry]:
    found = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            found.append(entry_of(path))
    return found


def create_marker(path: Path) -> None:
    """Durably create an empty file that doesn't exist yet."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
    synchronize_folder(path.parent)


def remove_folder(folder: Path) -> None:
    """Remove a folder with everything in it, if it exists."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def add_name(source: Path, path: Path) -> bool:
    """Durably give a second name to a file that another process wrote; `False` if the name is taken."""
    descriptor = open_plain(source)
    try:
        os.fchmod(descriptor, FILE_MODE)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    try:
        os.link(source, path)
    except FileExistsError:
        return False
    synchronize_folder(path.parent)
    return True


def _wait_for_lock(descriptor: int) -> None:
    """Lock a file; wait briefly, because `is_locked` locks it for a moment."""
    for _ in range(_LOCK_TRIES - 1):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_LOCK_PAUSE_SECONDS)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(path: Path) -> bool:
    """Return whether a writer holds the lock of this file."""
    with contextlib.suppress(FileNotFoundError):
        descriptor = open_plain(path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


def lock(path: Path) -> contextlib.ExitStack:
    """Lock a file until the returned stack is closed; the system releases the lock if the process ends."""
    descriptor = open_plain(path, os.O_RDWR | os.O_CREAT)
    try:
        _wait_for_lock(descriptor)
    except BlockingIOError:
        holder = os.pread(descriptor, 200, 0).decode(errors="replace") or "another process"
        os.close(descriptor)
        raise BatchInUseError(f"{path}: the batch is being written by {holder}") from None
    except BaseException:
        os.close(descriptor)
        raise
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
    held = contextlib.ExitStack()
    held.callback(os.close, descriptor)
    return held


@contextlib.contextmanager
def locked(descriptor: int, path: Path, timeout: float) -> Iterator[None]:
    """Hold the `flock` of an open file within the context, then close the file.

    Args:
        descriptor: Descriptor of the file.
        path: The file's path, for the error message.
        timeout: How long to wait for the lock, in seconds.

    Raises:
        SpoolError: Another process held the lock until the timeout.
        OSError: The file system has no locks.
    """
    deadline = time.monotonic() + timeout
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise SpoolError(
                        f"{path}: another process has held its lock for {timeout:.0f} s; end that process"
                    ) from None
                time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)
