"""Finds the rows of other batches that the rows of a replay replace in a table.

A replay has messages that were processed before, so the table may have rows of these messages already. The
rows of the replay replace them:

| rows in the table | effect of the replay |
|---|---|
| of a batch that is replayed as a whole | replaced |
| of an earlier replay of the same messages | replaced |
| of the batch whose rejects are replayed | kept: they are of other messages |
| of a replay that has further messages | the write is refused |

This applies only to the mode `append`. With `upsert`, rows replace rows with the same keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.spark.rejects import rejected_positions
from airflow_provider_jmsjca.spool.attempts import Done, current_fence, take_fence
from airflow_provider_jmsjca.spool.batch_id import is_replay
from airflow_provider_jmsjca.spool.files import SpoolPath, is_folder
from airflow_provider_jmsjca.spool.manifest import Manifest
from airflow_provider_jmsjca.spool.splits import SPLITS, part_names
from airflow_provider_jmsjca.spool.upkeep import replays
from airflow_provider_jmsjca.spool.upkeep.replays import Replay, SelectedBatch, Selection

_FILE: Final = "file:"


@dataclass(frozen=True, slots=True)
class _Share:
    """All messages of a batch, or only those that it rejected."""

    batch_id: str
    rejects: bool


def make_replay(spool: SpoolPath, batch_id: str, selection: Selection) -> Manifest | None:
    """Return the replay of this name, created if necessary; see `spool.upkeep.replays.make_replay`."""
    return replays.make_replay(spool, batch_id, selection, rejected_positions)


def selected_batches(spool: SpoolPath, selection: Selection) -> list[SelectedBatch]:
    """Return the batches with messages to replay; see `spool.upkeep.replays.selected_batches`."""
    return replays.selected_batches(spool, selection, rejected_positions)


class ReplacedBatches:
    """The batches whose rows a replay replaces.

    Args:
        folder: Folder of the replay.
    """

    def __init__(self, folder: SpoolPath) -> None:
        self._spool, self._name = folder.parent, folder.name
        self._replays = replays.replays(self._spool)
        self._own = self._shares(self._name)

    @classmethod
    def of(cls, folder: SpoolPath) -> ReplacedBatches | None:
        """Return the instance for the replay, or part of a replay, in a folder; `None` for other batches."""
        whole = folder.parent.parent if folder.parent.name == SPLITS else folder
        return cls(whole) if is_replay(whole.name) else None

    def rows_in(self, table: str) -> tuple[str, ...]:
        """Return the batches whose rows in a table are replaced by those of the replay.

        If another replay of the same messages isn't done, its job is shut out, so that it commits nothing
        later.

        Raises:
            ConfigurationError: The table has rows of some of these messages, in a batch with further
                messages.
            SpoolError: The record of another batch can't be read.
        """
        found: list[str] = []
        for other in self._others():
            if self._has_all(other):
                if is_replay(other) and Done.read(self._spool / other) is None:
                    self._shut_out(other)
                found += self._names(other)
            elif self._is_stored(other, table) and not self._is_superseded(other, table):
                raise ConfigurationError(
                    f"table {table} may have rows of messages of replay {self._name}: batch {other} has some "
                    "of them, and further messages. Nothing was written: replay the same messages as that "
                    "batch, or write to another table, or use mode upsert"
                )
        return tuple(found)

    def rejects_in(self) -> tuple[str, ...]:
        """Return the batches whose rows in a table of rejects are replaced by those of the replay."""
        sources = self._replays[self._name].of
        known = dict.fromkeys([*sources, *(name for name in self._others() if self._has_all(name))])
        return tuple(name for each in known for name in self._names(each))

    def _others(self) -> Iterator[str]:
        """Yield other batches that may have rows of this replay's messages, the original batches first."""
        origins = self._origins(self._own)
        for name in [*sorted(origins), *self._replays]:
            if name == self._name:
                continue
            is_disjoint = all(
                not self._origins({share}) & self._origins(self._shares(name))
                or self._is_rejected_by(share, name)
                for share in self._own
            )
            if not is_disjoint:
                yield name

    def _shares(self, name: str) -> set[_Share]:
        """Return the shares that together are the messages of a batch.

        A share is all messages of one batch, or only those that the batch rejected. A received batch is one
        share. A replay of rejects has one share for each batch that it replays: the messages which that batch
        rejected. A replay of whole batches has the shares of those batches.
        """
        replay: Replay | None = self._replays.get(name)
        if replay is None:
            return {_Share(name, rejects=False)}
        if replay.rejects:
            return {_Share(source, rejects=True) for source in replay.of}
        return set().union(*map(self._shares, replay.of))

    def _origins(self, shares: set[_Share]) -> set[str]:
        """Return the names of the batches in which the messages of these shares were received."""
        found: set[str] = set()
        for share in shares:
            if share.batch_id in self._replays:
                found |= self._origins(self._shares(share.batch_id))
            else:
                found.add(share.batch_id)
        return found

    def _has_all(self, name: str) -> bool:
        return self._contains(self._own, self._shares(name))

    def _contains(self, whole: set[_Share], part: set[_Share]) -> bool:
        return all(
            share in whole or (share.rejects and self._contains(whole, self._shares(share.batch_id)))
            for share in part
        )

    def _is_rejected_by(self, share: _Share, name: str) -> bool:
        """Return whether a batch rejected all messages of a share, so that it has no rows of them."""
        if not share.rejects:
            return False
        return share.batch_id == name or (
            share.batch_id in self._replays
            and all(self._is_rejected_by(each, name) for each in self._shares(share.batch_id))
        )

    def _is_stored(self, name: str, table: str) -> bool:
        done = Done.read(self._spool / name)
        if done is None:
            return current_fence(self._spool / name) > 0
        return any(rows and _place(each) == _place(table) for each, rows in done.stored.items())

    def _is_superseded(self, name: str, table: str) -> bool:
        """Return whether a later replay has replaced the rows of a batch in a table."""
        done = Done.read(self._spool / name)
        if done is None:
            return False
        for other in self._replays:
            later = None if other in {name, self._name} else Done.read(self._spool / other)
            if (
                later is not None
                and later.finished > done.finished
                and any(_place(each) == _place(table) for each in later.stored)
                and self._contains(self._shares(other), self._shares(name))
            ):
                return True
        return False

    def _shut_out(self, name: str) -> None:
        if current_fence(self._spool / name):
            take_fence(self._spool / name)

    def _names(self, name: str) -> list[str]:
        """Return the batch ids that rows of a batch may have in a table: its own, and those of its parts."""
        folder = self._spool / name
        names = [name, *(part_names(folder) if is_folder(folder) else ())]
        for replay in self._replays.values():  # the batch's own report may have been removed already
            names += replay.parts.get(name, ())
        return list(dict.fromkeys(names))


def _place(table: str) -> str:
    """Return a table's path in a normalised spelling, for comparisons."""
    if table.startswith(_FILE):
        table = f"/{table.removeprefix(_FILE).lstrip('/')}"
    return table.rstrip("/")
