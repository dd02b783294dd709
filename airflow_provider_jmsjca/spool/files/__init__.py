"""The spool's files: created once, whole and durable, then read, listed and removed.

A `SpoolPath` is a path on a POSIX file system, or a name in an object store or in HDFS. The rest of `spool`
accesses files only through these functions. This folder may import `errors`.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import Any, Final

from airflow_provider_jmsjca.spool.files import objects, posix
from airflow_provider_jmsjca.spool.files.objects import ObjectEntry, ObjectPath
from airflow_provider_jmsjca.spool.files.posix import PosixEntry, digest_of
from airflow_provider_jmsjca.spool.files.staged import Buffer, StagedFile

__all__ = ["Buffer", "Entry", "ObjectPath", "digest_of"]

SpoolPath = Path | ObjectPath
"""A file or folder of the spool."""
Entry = PosixEntry | ObjectEntry
LARGEST_DOCUMENT: Final = 16 * 1024 * 1024
"""Maximum size of a JSON document in the spool, in bytes."""
ASIDE: Final = ".removed-"
"""Prefix of the names of folders that were renamed to be removed."""
_NUMBERED = re.compile(r"(?P<stem>.+)-(?P<number>\d{6,})(?P<suffix>\.[a-z]+)?")
_MAKING: Final = ".making-"


def seal(path: SpoolPath, content: Sequence[Buffer] | Buffer) -> bool:
    """Durably create a file with this content, unless the name exists.

    Guarantee: after the return, the file and its name survive a crash of the machine.

    Args:
        path: The file's final name; the folder must exist.
        content: The whole content, in one piece or several.

    Returns:
        `False` if the name was taken: nothing was changed.

    Raises:
        SpoolError: The file can't be written, for example because the disk is full.
    """
    with stage(path) as staged:
        for piece in [content] if isinstance(content, bytes | memoryview) else content:
            staged.write(piece)
        return staged.seal()


def stage(path: SpoolPath) -> StagedFile:
    """Open a file to write piece by piece. Other processes see it only after `StagedFile.seal`.

    Raises:
        SpoolError: The file can't be written. The file's methods raise it too.
    """
    return objects.ObjectStaged(path) if isinstance(path, ObjectPath) else posix.PosixStaged(path)


def open_file(path: SpoolPath) -> BufferedIOBase:
    """Open an ordinary file for reading; the result is seekable.

    Raises:
        OSError: The file can't be read, or is a symbolic link, a pipe, a folder or the like.
    """
    if isinstance(path, ObjectPath):
        return objects.open_file(path)
    return os.fdopen(posix.open_plain(path), "rb")


def read_file(path: SpoolPath) -> bytes:
    """Return the content of an ordinary file.

    Raises:
        OSError: The file can't be read, or is a symbolic link, a pipe, a folder or the like.
    """
    with open_file(path) as file:
        return file.read()


def read_document(path: SpoolPath) -> Any:
    """Return the content of a JSON file.

    Raises:
        OSError: The file can't be read, or is a symbolic link, a pipe, a folder or the like.
        ValueError: The file is larger than `LARGEST_DOCUMENT`, or not JSON.
    """
    with open_file(path) as file:
        content = file.read(LARGEST_DOCUMENT + 1)
    if len(content) > LARGEST_DOCUMENT:
        raise ValueError(f"larger than {LARGEST_DOCUMENT} bytes")
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def exists(path: SpoolPath) -> bool:
    """Return whether a file, link or folder has this name; in an object store, whether an object has it."""
    return objects.exists(path) if isinstance(path, ObjectPath) else os.path.lexists(path)


def is_folder(path: SpoolPath) -> bool:
    """Return whether this is a folder; `False` for a symbolic link to a folder."""
    if isinstance(path, ObjectPath):
        return objects.is_folder(path)
    return path.is_dir() and not path.is_symlink()


def is_link(path: SpoolPath) -> bool:
    """Return whether this is a symbolic link."""
    return isinstance(path, Path) and path.is_symlink()


def entry_of(path: SpoolPath) -> Entry:
    """Return the size and modification time of a file.

    Raises:
        OSError: The file doesn't exist.
    """
    return objects.entry_of(path) if isinstance(path, ObjectPath) else posix.entry_of(path)


def entries(folder: SpoolPath) -> Sequence[Entry]:
    """Return the entries of a folder, sorted by name.

    Raises:
        OSError: The folder can't be read, or a file system has no such folder. In an object store, a missing
            folder has no entries.
    """
    return objects.entries(folder) if isinstance(folder, ObjectPath) else posix.entries(folder)


def walk(folder: SpoolPath) -> Sequence[Entry]:
    """Return the entries of a folder and its subfolders; object stores have no entries for folders."""
    return objects.walk(folder) if isinstance(folder, ObjectPath) else posix.walk(folder)


def names_in(folder: SpoolPath) -> list[str]:
    """Return the names in a folder.

    Raises:
        OSError: The folder can't be read, or a file system has no such folder. In an object store, a missing
            folder has no names.
    """
    if isinstance(folder, ObjectPath):
        return [entry.path.name for entry in objects.entries(folder)]
    return [path.name for path in folder.iterdir()]


def numbered(folder: SpoolPath, stem: str) -> list[tuple[int, SpoolPath]]:
    """Return the files `<stem>-<number>` of a folder, with any suffix, sorted by number.

    Returns:
        Number and path of each file.

    Raises:
        OSError: The folder can't be read, or a file system has no such folder. In an object store, a missing
            folder has no files.
    """
    found = []
    for name in names_in(folder):
        match = _NUMBERED.fullmatch(name)
        if match and match["stem"] == stem:
            found.append((int(match["number"]), folder / name))
    return sorted(found, key=lambda each: each[0])


def require_exclusive_creation(spool: SpoolPath) -> None:
    """Refuse an object store that can't create an object exclusively.

    A file system isn't tested here: if it can't create a file exclusively, `seal` raises `SpoolError`.

    Raises:
        ConfigurationError: The store can't create an object exclusively.
        SpoolError: The store can't be reached.
    """
    if isinstance(spool, ObjectPath):
        spool.bucket.require_conditional_put(spool)


def make_folder(folder: SpoolPath) -> None:
    """Create a folder and its missing parents, and restrict access to the owner, also if the folder exists.

    Raises:
        OSError: The folder can't be created or belongs to another user, or something else has the name, such
            as a symbolic link.
    """
    if isinstance(folder, ObjectPath):
        objects.make_folder(folder)
    else:
        posix.make_folder(folder)


def synchronize_folder(folder: SpoolPath) -> None:
    """Make the names in a folder survive a crash of the machine."""
    if isinstance(folder, Path):
        posix.synchronize_folder(folder)


def lock(path: SpoolPath) -> ExitStack:
    """Lock out other writers until the returned stack is closed or the process ends, even by a crash.

    An object store has no locks: there only a fence file (`spool.spool`) shuts out the previous writer.

    Args:
        path: The lock's file; created if it doesn't exist.

    Raises:
        BatchInUseError: Another writer holds the lock.
        OSError: The file can't be created.
    """
    return ExitStack() if isinstance(path, ObjectPath) else posix.lock(path)


def is_locked(path: SpoolPath) -> bool:
    """Return whether a writer holds the lock of this file; always `False` in an object store."""
    return isinstance(path, Path) and posix.is_locked(path)


@contextmanager
def locked(path: SpoolPath, timeout: float) -> Iterator[None]:
    """Hold the lock of a file within the context; an object store has no locks.

    Args:
        path: The file; created if it is missing.
        timeout: How long to wait for the lock, in seconds.

    Raises:
        SpoolError: Another process held the lock until the timeout.
        OSError: The file can't be created.
    """
    if isinstance(path, ObjectPath):
        yield
        return
    with posix.locked(posix.open_plain(path, os.O_RDWR | os.O_CREAT), path, timeout):
        yield


def create_marker(path: SpoolPath) -> None:
    """Durably create an empty file. An existing file stays unchanged.

    Raises:
        FileExistsError: The name exists on a file system. In an object store, nothing is raised then.
    """
    if isinstance(path, ObjectPath):
        objects.create_object(path, b"")
    else:
        posix.create_marker(path)


def renew(path: SpoolPath, content: bytes) -> None:
    """Set a file's modification time to now.

    Args:
        path: The file.
        content: The file's content, which an object store needs to write the object again.
    """
    if isinstance(path, ObjectPath):
        objects.renew(path, content)
    else:
        os.utime(path, follow_symlinks=False)


def remove(path: SpoolPath) -> None:
    """Remove a file, if it exists."""
    if isinstance(path, ObjectPath):
        objects.remove(path)
    else:
        path.unlink(missing_ok=True)


def remove_folder(folder: SpoolPath) -> None:
    """Remove a folder with everything in it, if it exists."""
    if isinstance(folder, ObjectPath):
        objects.remove_folder(folder)
    else:
        posix.remove_folder(folder)


def remove_by_prefix(folder: SpoolPath, prefix: str) -> None:
    """Remove subfolders whose names have this prefix: leftovers of a crash."""
    for name in names_in(folder):
        if name.startswith(prefix):
            remove_folder(folder / name)


def remove_temporary(folder: SpoolPath) -> None:
    """Remove leftovers of crashed writers; only the folder's writer may call this."""
    if isinstance(folder, ObjectPath):
        objects.remove_temporary(folder)
    else:
        posix.remove_temporary(folder)


def has_renames(path: SpoolPath) -> bool:
    """Return whether a folder can be renamed away atomically."""
    return isinstance(path, Path)


def remove_if_unused(folder: SpoolPath, *, may_remove: Callable[[SpoolPath], bool], kept_prefix: str) -> bool:
    """Remove the folder of a batch, unless another process is using it.

    Guarantee: only files that `may_remove` has checked are removed. The folder is first renamed to a name
    that begins with `ASIDE`, and checked there. A crash may leave it under that name with all of its content.
    An object store has no renames: there, objects with the prefix `kept_prefix` are kept, because other
    writers rely on them.

    Args:
        folder: Folder of the batch.
        may_remove: Returns whether a folder may be removed. Its argument is the renamed folder, which no
            other process uses; in an object store the folder itself.
        kept_prefix: Name prefix of objects that stay in an object store, because writers compete for their
            names. A file system ignores it.

    Returns:
        Whether the folder was removed; `False` if it may not be removed, or doesn't exist.

    Raises:
        OSError: The folder can't be removed.
    """
    if isinstance(folder, ObjectPath):
        return objects.remove_if_unused(folder, may_remove=may_remove, kept_prefix=kept_prefix)
    aside = folder.with_name(f"{ASIDE}{uuid.uuid4().hex}")
    try:
        folder.rename(aside)
    except FileNotFoundError:
        return False  # another process has removed it
    if not may_remove(aside):
        restore_folder(aside, folder)
        return False
    remove_folder(aside)
    return True


def restore_folder(aside: SpoolPath, folder: SpoolPath) -> bool:
    """Restore the name of a folder that was renamed to be removed; `False` if the name is taken.

    Raises:
        OSError: The folder can't be renamed.
    """
    if not isinstance(aside, Path) or not isinstance(folder, Path):
        raise TypeError(f"{aside}: only folders of a file system are taken aside")
    try:
        aside.rename(folder)
    except FileNotFoundError:
        return True  # another process has restored it
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            raise
        return False
    synchronize_folder(folder.parent)
    return True


def build_folder(
    folder: SpoolPath, fill: Callable[[SpoolPath], None], guard: Callable[[], AbstractContextManager[None]]
) -> None:
    """Create a folder and its content atomically; an existing folder is not changed.

    In an object store the files are created one by one, under their final names. Then `fill` may find files
    of a writer that died, and the last file marks the folder as complete.

    Args:
        folder: The folder's name; missing parents are created.
        fill: Writes the files to the folder it is called with, the file that marks the folder as complete
            last.
        guard: Returns a context that is held while the folder gets its name. Entering the context raises an
            exception if the folder must not be created.

    Raises:
        OSError: The folder can't be created.
    """
    if isinstance(folder, ObjectPath):
        with guard():
            fill(folder)
        return
    aside = folder.with_name(f"{_MAKING}{uuid.uuid4().hex}")
    try:
        make_folder(folder.parent)
        make_folder(aside)
        fill(aside)
        posix.synchronize_tree(aside)
        with guard():
            if not exists(folder):
                aside.rename(folder)
                synchronize_folder(folder.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def add_name(source: SpoolPath, path: SpoolPath) -> bool:
    """Durably give a name in the spool to a file that another process wrote.

    Returns:
        `False` if the name was taken: nothing was changed.

    Raises:
        OSError: The name can't be given.
    """
    if isinstance(source, ObjectPath) and isinstance(path, ObjectPath):
        return objects.add_name(source, path)
    if isinstance(source, Path) and isinstance(path, Path):
        return posix.add_name(source, path)
    raise ValueError(f"{source} and {path} aren't in the same store")
