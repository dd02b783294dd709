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


def seal(place: SpoolPath, content: Sequence[Buffer] | Buffer) -> bool:
    """Durably create a file with this content, unless the name exists.

    Guarantee: after the return, the file and its name survive a crash of the machine.

    Args:
        place: The file's final name; the folder must exist.
        content: The whole content, in one piece or several.

    Returns:
        `False` if the name was taken: nothing was changed.

    Raises:
        SpoolError: The file can't be written, for example because the disk is full.
    """
    with stage(place) as staged:
        for piece in [content] if isinstance(content, bytes | memoryview) else content:
            staged.write(piece)
        return staged.seal()


def stage(place: SpoolPath) -> StagedFile:
    """Open a file to write piece by piece. Other processes see it only after `StagedFile.seal`.

    Raises:
        SpoolError: The file can't be written. The file's methods raise it too.
    """
    return objects.ObjectStaged(place) if isinstance(place, ObjectPath) else posix.PosixStaged(place)


def open_file(place: SpoolPath) -> BufferedIOBase:
    """Open an ordinary file for reading; the result is seekable.

    Raises:
        OSError: The file can't be read, or is a symbolic link, a pipe, a folder or the like.
    """
    if isinstance(place, ObjectPath):
        return objects.open_file(place)
    return os.fdopen(posix.open_plain(place), "rb")


def read_file(place: SpoolPath) -> bytes:
    """Return the content of an ordinary file.

    Raises:
        OSError: The file can't be read, or is a symbolic link, a pipe, a folder or the like.
    """
    with open_file(place) as file:
        return file.read()


def read_document(place: SpoolPath) -> Any:
    """Return the content of a JSON file.

    Raises:
        OSError: The file can't be read, or is a symbolic link, a pipe, a folder or the like.
        ValueError: The file is larger than `LARGEST_DOCUMENT`, or not JSON.
    """
    with open_file(place) as file:
        content = file.read(LARGEST_DOCUMENT + 1)
    if len(content) > LARGEST_DOCUMENT:
        raise ValueError(f"larger than {LARGEST_DOCUMENT} bytes")
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def exists(place: SpoolPath) -> bool:
    """Return whether a file, link or folder has this name; in an object store, whether an object has it."""
    return objects.exists(place) if isinstance(place, ObjectPath) else os.path.lexists(place)


def is_folder(place: SpoolPath) -> bool:
    """Return whether this is a folder; `False` for a symbolic link to a folder."""
    if isinstance(place, ObjectPath):
        return objects.is_folder(place)
    return place.is_dir() and not place.is_symlink()


def is_link(place: SpoolPath) -> bool:
    """Return whether this is a symbolic link."""
    return isinstance(place, Path) and place.is_symlink()


def entry_of(place: SpoolPath) -> Entry:
    """Return the size and modification time of a file.

    Raises:
        OSError: The file doesn't exist.
    """
    return objects.entry_of(place) if isinstance(place, ObjectPath) else posix.entry_of(place)


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
        return [entry.place.name for entry in objects.entries(folder)]
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


def hold(place: SpoolPath) -> ExitStack:
    """Lock out other writers until the returned stack is closed or the process ends, even by a crash.

    An object store has no locks: there the fence alone shuts out the previous writer.

    Args:
        place: The lock's file; created if it doesn't exist.

    Raises:
        BatchInUseError: Another writer holds the lock.
        OSError: The file can't be created.
    """
    return ExitStack() if isinstance(place, ObjectPath) else posix.hold(place)


def is_held(place: SpoolPath) -> bool:
    """Return whether a writer holds the lock of this file; always `False` in an object store."""
    return isinstance(place, Path) and posix.is_held(place)


@contextmanager
def locked(place: SpoolPath, timeout: float) -> Iterator[None]:
    """Hold the lock of a file within the context; an object store has no locks.

    Args:
        place: The file; created if it is missing.
        timeout: How long to wait for the lock, in seconds.

    Raises:
        SpoolError: Another process held the lock until the timeout.
        OSError: The file can't be created.
    """
    if isinstance(place, ObjectPath):
        yield
        return
    with posix.locked(posix.open_plain(place, os.O_RDWR | os.O_CREAT), place, timeout):
        yield


def add_mark(place: SpoolPath) -> None:
    """Durably create an empty file. An existing file stays unchanged.

    Raises:
        FileExistsError: The name exists on a file system. In an object store, nothing is raised then.
    """
    if isinstance(place, ObjectPath):
        objects.put_new(place, b"")
    else:
        posix.add_mark(place)


def renew(place: SpoolPath, content: bytes) -> None:
    """Set a file's modification time to now.

    Args:
        place: The file.
        content: The file's content, which an object store needs to write the object again.
    """
    if isinstance(place, ObjectPath):
        objects.renew(place, content)
    else:
        os.utime(place, follow_symlinks=False)


def remove(place: SpoolPath) -> None:
    """Remove a file, if it exists."""
    if isinstance(place, ObjectPath):
        objects.remove(place)
    else:
        place.unlink(missing_ok=True)


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


def has_renames(place: SpoolPath) -> bool:
    """Return whether a folder can be renamed away atomically."""
    return isinstance(place, Path)


def take_away(folder: SpoolPath, *, may_go: Callable[[SpoolPath], bool], taken: str) -> bool:
    """Remove the folder of a batch, unless another process is using it.

    Guarantee: only files that `may_go` has checked are removed. The folder is first renamed to a name that
    begins with `ASIDE`, and checked there. A crash may leave it under that name with all of its content. An
    object store has no renames: there, objects with the prefix `taken` are kept, because other writers
    rely on them.

    Args:
        folder: Folder of the batch.
        may_go: Returns whether a folder may be removed. Its argument is the renamed folder, which no other
            process uses; in an object store the folder itself.
        taken: Name prefix of objects that stay in an object store, because writers compete for their names.
            A file system ignores it.

    Returns:
        Whether the folder was removed; `False` if it may not be removed, or doesn't exist.

    Raises:
        OSError: The folder can't be removed.
    """
    if isinstance(folder, ObjectPath):
        return objects.take_away(folder, may_go=may_go, taken=taken)
    aside = folder.with_name(f"{ASIDE}{uuid.uuid4().hex}")
    try:
        folder.rename(aside)
    except FileNotFoundError:
        return False  # another process has removed it
    if not may_go(aside):
        put_back(aside, folder)
        return False
    remove_folder(aside)
    return True


def put_back(aside: SpoolPath, folder: SpoolPath) -> bool:
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


def give_name(source: SpoolPath, place: SpoolPath) -> bool:
    """Durably give a name in the spool to a file that another process wrote.

    Returns:
        `False` if the name was taken: nothing was changed.

    Raises:
        OSError: The name can't be given.
    """
    if isinstance(source, ObjectPath) and isinstance(place, ObjectPath):
        return objects.give_name(source, place)
    if isinstance(source, Path) and isinstance(place, Path):
        return posix.give_name(source, place)
    raise ValueError(f"{source} and {place} aren't in the same store")
