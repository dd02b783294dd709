"""Files that are either there in full or not at all, and that are created once.

Content is written under a temporary name, flushed to the disk, and given its final name by `link(2)`, which
fails where that name exists: unlike `rename(2)` it never replaces what somebody else sealed. A crash leaves
the sealed file, or a temporary file that nobody reads, or both.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from airflow_provider_jmsjca.errors import SpoolError

TEMPORARY_PREFIX: Final = ".tmp-"
_NUMBERED = re.compile(r"(?P<stem>.+)-(?P<number>\d{6,})(?P<suffix>\.[a-z]+)?")
Buffer = bytes | memoryview


def seal(path: Path, content: Sequence[Buffer] | Buffer) -> bool:
    """Create a file with this content, durably, unless one of that name exists.

    Guarantee: when it returns, the file and its name survive a crash of the machine.

    Args:
        path: Its final name; the folder must exist.
        content: All of it, in one piece or several.

    Returns:
        `False` if the name was taken: nothing was changed.

    Raises:
        SpoolError: The operating system refused, for example because the disk is full.
    """
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
    try:
        try:
            _write(temporary, [content] if isinstance(content, bytes | memoryview) else content)
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
            synchronize_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise SpoolError(
            f"{path}: can't be written: {error.strerror or error} (the spool needs a POSIX file system with "
            "hard links and free space)"
        ) from error
    return True


def _write(path: Path, pieces: Sequence[Buffer]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                rest = rest[file.write(rest) :]
        os.fsync(file.fileno())


def synchronize_folder(folder: Path) -> None:
    """Make the names in a folder survive a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_temporary(folder: Path) -> None:
    """Remove what crashed writers left; only the one writer of a folder may call it."""
    for leftover in folder.glob(f"{TEMPORARY_PREFIX}*"):
        leftover.unlink(missing_ok=True)


def numbered(folder: Path, stem: str) -> list[tuple[int, Path]]:
    """Return the files `<stem>-<number>` of a folder, whatever their suffix, by number."""
    found = []
    for path in folder.iterdir():
        match = _NUMBERED.fullmatch(path.name)
        if match and match["stem"] == stem:
            found.append((int(match["number"]), path))
    return sorted(found)
