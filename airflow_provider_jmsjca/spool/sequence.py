"""The order in which the finished batches of a spool are read as a stream.

Folder `.sequence` of the spool:

| file | content |
|---|---|
| `identity` | 32 random hexadecimal digits that identify the sequence |
| `batches-000000.json` | further finished batches, in the order in which they were finished |

Each file is created exclusively by the first reader that sees the batches, and never changes. So a batch has
the same position for every reader, independent of when the reader saw its manifest.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from airflow_provider_jmsjca.errors import SpoolError
from airflow_provider_jmsjca.spool.batch_id import is_replay
from airflow_provider_jmsjca.spool.files import (
    SpoolPath,
    exists,
    is_folder,
    make_folder,
    names_in,
    numbered,
    read_document,
    read_file,
    require_exclusive_creation,
    seal,
)
from airflow_provider_jmsjca.spool.manifest import MANIFEST, PRUNED, Manifest

FOLDER: Final = ".sequence"
_IDENTITY: Final = "identity"
_STEM: Final = "batches"


class SequencedBatch(NamedTuple):
    """A batch that has a position in the sequence.

    Attributes:
        created: Time the batch was finished, from its manifest. If a removed batch had the same name, this
            time distinguishes the two.
    """

    batch_id: str
    created: str
    rows: int

    def manifest(self, spool: SpoolPath) -> Manifest | None:
        """Return the batch's manifest; `None` if its messages were removed.

        Raises:
            SpoolError: The manifest is damaged.
        """
        folder = spool / self.batch_id
        found = _manifest(folder)
        if found is None or found.created != self.created or exists(folder / PRUNED):
            return None
        return found


class BatchSequence:
    """The finished batches of a spool, each at its position. Only one thread at a time may use an instance.

    Args:
        spool: The folder of all batches.

    Raises:
        SpoolError: From every method: the spool doesn't exist, can't be read or written, or a file of the
            sequence or a manifest is damaged.
        ConfigurationError: The spool is in a store that can't create an object exclusively.
    """

    def __init__(self, spool: SpoolPath) -> None:
        self._spool = spool
        self._folder = spool / FOLDER
        self._files = 0
        self._positions: list[SequencedBatch] = []
        self._listed: set[tuple[str, str]] = set()
        self._present: set[str] = set()
        if not is_folder(spool):
            raise SpoolError(f"{spool}: no such folder; expected the folder of a spool")
        try:
            require_exclusive_creation(spool)
            make_folder(self._folder)
            seal(self._folder / _IDENTITY, uuid.uuid4().hex.encode())
            self.identity = read_file(self._folder / _IDENTITY).decode("ascii")
        except OSError as error:
            raise self._refusal(error) from error

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, positions: slice) -> Sequence[SequencedBatch]:
        return self._positions[positions]

    def refresh(self) -> int:
        """Durably assign positions to newly finished batches, and return the number of all positions.

        Batches without messages, pruned batches and replays get no position.
        """
        try:
            while True:
                self._load()
                fresh = sorted(self._unlisted(), key=lambda each: (each.created, each.batch_id))
                if not fresh:
                    return len(self._positions)
                # If another reader has created this file first, the next round loads its content.
                seal(
                    self._folder / f"{_STEM}-{self._files:06d}.json",
                    json.dumps([each._asdict() for each in fresh], indent=2).encode() + b"\n",
                )
        except OSError as error:
            raise self._refusal(error) from error

    def load(self) -> int:
        """Read the positions that readers have assigned, and return their number. No position is assigned."""
        try:
            self._load()
        except OSError as error:
            raise self._refusal(error) from error
        return len(self._positions)

    def _load(self) -> None:
        for number, path in numbered(self._folder, _STEM):
            if number < self._files:
                continue
            if number != self._files:
                raise SpoolError(
                    f"{self._folder}: expected {_STEM}-{self._files:06d}.json, found {path.name}"
                )
            try:
                found = [_position(each) for each in read_document(path)]
            except (ValueError, TypeError, KeyError) as error:
                raise SpoolError(
                    f"{path}: damaged: {error}; restore the file from a copy. Or move the folder "
                    "away, and begin the query with a new checkpoint: it reads all batches that are there"
                ) from error
            self._positions += found
            self._listed.update((each.batch_id, each.created) for each in found)
            self._files += 1

    def _unlisted(self) -> Iterator[SequencedBatch]:
        names = {name for name in names_in(self._spool) if not name.startswith(".") and not is_replay(name)}
        self._present &= names  # forgets removed batches, because a new batch may get the same name
        for name in names - self._present:
            manifest = _manifest(self._spool / name)
            if manifest is None:
                continue
            self._present.add(name)
            is_listed = (manifest.batch_id, manifest.created) in self._listed
            if not is_listed and manifest.rows and not exists(manifest.folder / PRUNED):
                yield SequencedBatch(manifest.batch_id, manifest.created, manifest.rows)

    def _refusal(self, error: OSError) -> SpoolError:
        return SpoolError(
            f"{self._folder}: {error.strerror or error}; expected a spool in which this process can write"
        )


def _manifest(folder: SpoolPath) -> Manifest | None:
    path = folder / MANIFEST
    if not exists(path):
        return None
    try:
        manifest = Manifest.read(path)
    except SpoolError:
        if exists(path):
            raise
        return None  # removed since the check above
    if manifest.batch_id != folder.name:
        raise SpoolError(f"{path}: expected batch {folder.name!r}, found {manifest.batch_id!r}")
    return manifest


def _position(found: Any) -> SequencedBatch:
    position = SequencedBatch(found["batch_id"], found["created"], found["rows"])
    if [type(value) for value in position] != [str, str, int]:
        raise TypeError(f"expected batch_id, created and rows, found {found!r:.200}")
    return position
