"""Where the spool's files are: created once, whole and durable, then read, listed and removed.

Everything else in the spool goes through these functions. May import `errors`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from io import BufferedIOBase
from pathlib import Path
from typing import Any, Final

from airflow_provider_jmsjca.spool.files import posix
from airflow_provider_jmsjca.spool.files.posix import Buffer, Entry, Staged, digest_of

__all__ = ["Buffer", "Entry", "Place", "Staged", "digest_of"]

Place = Path
"""A file or folder of the spool."""
LARGEST_DOCUMENT: Final = 16 * 1024 * 1024
"""Bytes of a JSON document in the spool."""
_NUMBERED = re.compile(r"(?P<stem>.+)-(?P<number>\d{6,})(?P<suffix>\.[a-z]+)?")
_MAKING: Final = ".making-"


def seal(place: Place, content: Sequence[Buffer] | Buffer) -> bool:
    """Create a file with this content, durably, unless one of that name exists.

    Guarantee: when it returns, the file and its name survive a crash of the machine.

    Args:
        place: Its final name; the folder must exist.
        content: All of it, in one piece or several.

    Returns:
        `False` if the name was taken: nothing was changed.

    Raises:
        SpoolError: It can't be written, for example because the disk is full.
    """
    with stage(place) as staged:
        for piece in [content] if isinstance(content, bytes | memoryview) else content:
            staged.write(piece)
        return staged.seal()


def stage(place: Place) -> Staged:
    """Return a file that is written piece by piece, and is there for others once it is sealed.

    Raises:
        SpoolError: It can't be written; so does every method.
    """
    return Staged(place)


def open_file(place: Place) -> BufferedIOBase:
    """Open an ordinary file, for reading anywhere in it.

    Raises:
        OSError: It can't be read, or is a symbolic link, a pipe, a folder or the like.
    """
    return os.fdopen(posix.open_plain(place), "rb")


def read_file(place: Place) -> bytes:
    """Return the content of an ordinary file.

    Raises:
        OSError: As `open_file`.
    """
    with open_file(place) as file:
        return file.read()


def read_document(place: Place) -> Any:
    """Return what a JSON file holds.

    Raises:
        OSError: As `open_file`.
        ValueError: It is larger than `LARGEST_DOCUMENT`, or not JSON.
    """
    with open_file(place) as file:
        content = file.read(LARGEST_DOCUMENT + 1)
    if len(content) > LARGEST_DOCUMENT:
        raise ValueError(f"larger than {LARGEST_DOCUMENT} bytes")
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def exists(place: Place) -> bool:
    """Tell whether there is a file of this name, whatever kind of file that is."""
    return os.path.lexists(place)


def is_folder(place: Place) -> bool:
    """Tell whether there is a folder of this name; a symbolic link is none."""
    return place.is_dir() and not place.is_symlink()


def entry_of(place: Place) -> Entry:
    """Return size and age of a file.

    Raises:
        OSError: It isn't there.
    """
    return posix.entry_of(place)


def entries(folder: Place) -> list[Entry]:
    """Return what is in a folder, by name.

    Raises:
        OSError: It isn't there, or can't be read.
    """
    return posix.entries(folder)


def walk(folder: Place) -> list[Entry]:
    """Return the files in a folder and in those below it."""
    return posix.walk(folder)


def names_in(folder: Place) -> list[str]:
    """Return the names in a folder.

    Raises:
        OSError: It isn't there, or can't be read.
    """
    return [path.name for path in folder.iterdir()]


def numbered(folder: Place, stem: str) -> list[tuple[int, Place]]:
    """Return the files `<stem>-<number>` of a folder, whatever their suffix, by number.

    Raises:
        OSError: As `names_in`.
    """
    found = []
    for name in names_in(folder):
        match = _NUMBERED.fullmatch(name)
        if match and match["stem"] == stem:
            found.append((int(match["number"]), folder / name))
    return sorted(found)


def make_folder(folder: Place) -> None:
    """Create a folder that is its owner's alone, and what is missing above it; make an older one so.

    Raises:
        OSError: It can't be made or isn't ours, or there is something else, such as a symbolic link.
    """
    posix.make_folder(folder)


def synchronize_folder(folder: Place) -> None:
    """Make the names in a folder survive a crash of the machine."""
    posix.synchronize_folder(folder)


def add_mark(place: Place) -> None:
    """Create an empty file, durably, whose name nobody else uses."""
    posix.add_mark(place)


def renew(place: Place, content: bytes) -> None:
    """Let the age of a file begin anew.

    Args:
        place: The file.
        content: What it holds.
    """
    del content
    os.utime(place, follow_symlinks=False)


def remove(place: Place) -> None:
    """Remove a file, if it is there."""
    place.unlink(missing_ok=True)


def remove_folder(folder: Place) -> None:
    """Remove a folder with everything in it, if it is there."""
    posix.remove_folder(folder)


def remove_folders(folder: Place, prefix: str) -> None:
    """Remove what a crash left: the folders in this one whose names begin so."""
    for name in names_in(folder):
        if name.startswith(prefix):
            remove_folder(folder / name)


def remove_temporary(folder: Place) -> None:
    """Remove what crashed writers left; only the one writer of a folder may call it."""
    posix.remove_temporary(folder)


def take_away(folder: Place, prefix: str, *, may_go: Callable[[Place], bool]) -> bool:
    """Remove the folder of a batch, unless somebody works on it meanwhile.

    Guarantee: nothing is removed but what `may_go` has looked at: the folder is taken aside by one rename
    first, and looked into there.

    Args:
        folder: The batch's.
        prefix: How the name begins that it has meanwhile, beside the batches; a crash leaves it there.
        may_go: Whether a folder may go; asked where nobody else looks.

    Returns:
        Whether it was done; `False` if it may not go, or is gone.

    Raises:
        OSError: It can't be removed.
    """
    aside = folder.with_name(f"{prefix}{uuid.uuid4().hex}")
    try:
        folder.rename(aside)
    except FileNotFoundError:
        return False  # somebody else did
    if not may_go(aside):
        aside.rename(folder)
        return False
    remove_folder(aside)
    return True


def build_folder(
    folder: Place, fill: Callable[[Place], None], guard: Callable[[], AbstractContextManager[None]]
) -> None:
    """Create a folder with what is put into it, whole or not at all; one that is there stays as it is.

    Args:
        folder: Its name; the folder above may be missing.
        fill: Writes the files; what the folder doesn't count without is the last one.
        guard: Entered while the folder gets its name; raises an exception if it must not.

    Raises:
        OSError: It can't be made.
    """
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


def give_name(source: Place, place: Place) -> bool:
    """Give a file that another process wrote its name in the spool, durably.

    Returns:
        `False` if the name was taken: nothing was changed.

    Raises:
        OSError: It can't be done.
    """
    return posix.give_name(source, place)
