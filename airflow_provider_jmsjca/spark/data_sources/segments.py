"""Sealed segments as partitions of a DataFrame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from airflow_provider_jmsjca.errors import ConfigurationError, SpoolError
from airflow_provider_jmsjca.spool.files import open_file
from airflow_provider_jmsjca.spool.layout import MESSAGE_SCHEMA, SegmentReader
from airflow_provider_jmsjca.spool.manifest import (
    Manifest,
    Segment,
    file_faults,
    path_to_uri,
    remedy,
    uri_to_path,
)

_ROWS = 1_000


class SegmentPartition(InputPartition):
    """A partition with the rows of one segment; without rows if `segment` is `None`."""

    def __init__(self, folder: str, segment: Segment | None) -> None:
        super().__init__(None)
        self.folder = folder
        self.segment = segment


def partitions_of(manifests: Sequence[Manifest]) -> Sequence[SegmentPartition]:
    """Return a partition for each segment, in the order of batches and segments.

    If the batches have no segment, return one partition without rows.
    """
    found = [
        SegmentPartition(path_to_uri(manifest.folder), segment)
        for manifest in manifests
        for segment in manifest.segments
    ]
    return found or [SegmentPartition("", None)]


def read_partition(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a segment, after its size and digest have been checked.

    Raises:
        SpoolError: The segment is missing or damaged.
    """
    if not isinstance(partition, SegmentPartition) or partition.segment is None:
        return
    folder = uri_to_path(partition.folder)
    faults = file_faults(folder, partition.segment)
    if faults:
        raise SpoolError("; ".join([*faults, remedy(folder)]))
    path = folder / partition.segment.file
    try:
        with open_file(path) as plain, SegmentReader(plain) as file:
            for group in range(file.num_row_groups):
                yield from file.read_row_group(group).to_batches(max_chunksize=_ROWS)
    except (pa.ArrowException, OSError) as error:
        raise SpoolError(f"{path}: can't be read: {error}") from error


def check_schema(source: str, schema: StructType) -> None:
    """Refuse other columns than those of the message schema.

    Raises:
        ConfigurationError: The schema has other columns.
    """
    if schema.names != MESSAGE_SCHEMA.names:
        raise ConfigurationError(
            f"{source}: its columns are those of the message schema; expected no `schema(...)`, and `select` "
            "for fewer columns"
        )
