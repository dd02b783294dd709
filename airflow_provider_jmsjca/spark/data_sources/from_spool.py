"""`jms-spool`: the finished batches of a spool, as a table or as a stream.

An offset is a position in `spool.sequence`, so it refers to the same messages forever. So Spark can read the
messages between two offsets any number of times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from airflow_provider_jmsjca.errors import ConfigurationError, SpoolError
from airflow_provider_jmsjca.spark.data_sources.given_options import GivenOptions
from airflow_provider_jmsjca.spark.data_sources.segments import check_schema, partitions_of, read_partition
from airflow_provider_jmsjca.spool.batch_id import is_replay
from airflow_provider_jmsjca.spool.files import SpoolPath, exists
from airflow_provider_jmsjca.spool.manifest import MANIFEST, PRUNED, Manifest, uri_to_path
from airflow_provider_jmsjca.spool.schema import MESSAGE_DDL
from airflow_provider_jmsjca.spool.sequence import BatchSequence
from airflow_provider_jmsjca.spool.upkeep.states import batches

NAME = "jms-spool"
_FAIL, _SKIP = "fail", "skip"


class SpoolDataSource(DataSource):
    """The format `jms-spool`. Its options are `path`, `maxBatchesPerTrigger` and `onPruned`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return NAME

    def schema(self) -> str:
        """Return the columns of the message schema."""
        return MESSAGE_DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of all finished batches that haven't been pruned, without replays."""
        check_schema(NAME, schema)
        return SpoolReader(_Settings(self.options).spool)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return a reader of batches for a stream, which includes batches finished while the query runs."""
        check_schema(NAME, schema)
        settings = _Settings(self.options)
        return SpoolStreamReader(settings.spool, settings.max_batches, skip=settings.skip)


class _Settings:
    def __init__(self, given: Any) -> None:
        options = GivenOptions(NAME, given, ("path", "maxBatchesPerTrigger", "onPruned"))
        self.spool = uri_to_path(options.required("path", "/data/jms-spool"))
        self.max_batches = options.count("maxBatchesPerTrigger")
        self.skip = options.choice("onPruned", (_FAIL, _SKIP)) == _SKIP


class SpoolReader(DataSourceReader):
    """Reads the finished batches of a spool, the oldest first, without pruned ones and replays."""

    def __init__(self, spool: SpoolPath) -> None:
        self._spool = spool

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition for each segment.

        Raises:
            SpoolError: The spool can't be read, or a manifest is damaged.
        """
        found = [
            Manifest.read(batch.folder / MANIFEST)
            for batch in batches(self._spool)
            if exists(batch.folder / MANIFEST)
            and not exists(batch.folder / PRUNED)
            and not is_replay(batch.batch_id)
        ]
        return partitions_of(sorted(found, key=lambda each: (each.created, each.batch_id)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a segment."""
        return read_partition(partition)


class SpoolStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the batches of a spool as a stream, in the order of their sequence.

    Args:
        spool: The folder of all batches.
        max_batches: Maximum number of batches in a micro-batch; `None`: no limit.
        skip: Whether batches that were pruned before they were read are left out. Otherwise they are an
            error.
    """

    def __init__(self, spool: SpoolPath, max_batches: int | None, *, skip: bool) -> None:
        self._spool = spool
        self._max_batches = max_batches
        self._skip = skip
        self._target: int | None = None
        self._opened: BatchSequence | None = None

    @property
    def _sequence(self) -> BatchSequence:
        # Not in the constructor: executors create a reader only to read segments.
        if self._opened is None:
            self._opened = BatchSequence(self._spool)
        return self._opened

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of a micro-batch."""
        return ReadAllAvailable() if self._max_batches is None else ReadMaxFiles(self._max_batches)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the position of the first batch that hasn't been pruned."""
        length = self._sequence.refresh()
        for position, each in enumerate(self._sequence[0:length]):
            if each.manifest(self._spool) is not None:
                return self._offset(position)
        return self._offset(length)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Limit the query to the batches that are finished now."""
        self._target = self._sequence.refresh()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the end offset of the next micro-batch."""
        first = self._position(start)
        end = self._sequence.refresh() if self._target is None else self._target
        if isinstance(limit, ReadMaxFiles):
            end = min(end, first + limit.max_files)
        return self._offset(max(first, end))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return one partition for each segment of the batches from one offset to the other.

        Raises:
            SpoolError: A batch was pruned, and `onPruned` isn't `skip`. Or the checkpoint belongs to another
                spool, or a manifest is damaged.
        """
        first, last = self._position(start), self._position(end)
        found = []
        for position, each in enumerate(self._sequence[first:last], first):
            manifest = each.manifest(self._spool)
            if manifest is not None:
                found.append(manifest)
            elif not self._skip:
                raise SpoolError(
                    f"{self._spool}: batch {each.batch_id} at position {position} was pruned before this "
                    f"query read it: {each.rows} messages are gone from the spool. Set onPruned=skip to "
                    "continue without them"
                )
        return partitions_of(found)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a segment."""
        return read_partition(partition)

    def _offset(self, position: int) -> dict[str, Any]:
        return {"sequence": self._sequence.identity, "position": position}

    def _position(self, offset: dict[str, Any]) -> int:
        """Return the position in an offset of Spark's checkpoint."""
        sequence, position = offset.get("sequence"), offset.get("position")
        if not isinstance(position, int) or position < 0:
            raise ConfigurationError(f"{NAME}: {offset!r} is not an offset of this source")
        if sequence != self._sequence.identity:
            raise SpoolError(
                f"{self._spool}: the checkpoint belongs to another spool ({sequence}, this one is "
                f"{self._sequence.identity}); expected the spool's own checkpoint, or a new one"
            )
        if position > len(self._sequence) and position > self._sequence.load():
            raise SpoolError(
                f"{self._spool}: the checkpoint is at position {position}, the spool has "
                f"{len(self._sequence)}: files of the folder .sequence are missing. Restore them, or begin "
                "with a new checkpoint"
            )
        return position
