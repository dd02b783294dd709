"""The columns of a segment as an Arrow schema, and the reading of segments.

Import this module from `arrow`, which loads it on first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BufferedIOBase

import pyarrow as pa
import pyarrow.parquet as pq

TIMESTAMP = pa.timestamp("us", tz="UTC")
TEXT_MAP = pa.map_(pa.string(), pa.string())

MESSAGE_SCHEMA = pa.schema(
    [
        pa.field("message_id", pa.string()),
        pa.field("destination", pa.string()),
        pa.field("correlation_id", pa.string()),
        pa.field("reply_to", pa.string()),
        pa.field("type", pa.string()),
        pa.field("timestamp", TIMESTAMP),
        pa.field("expiration", TIMESTAMP),
        pa.field("received_at", TIMESTAMP),
        pa.field("priority", pa.int8()),
        pa.field("persistent", pa.bool_()),
        pa.field("redelivered", pa.bool_()),
        pa.field("delivery_count", pa.int32()),
        pa.field("group_id", pa.string()),
        pa.field("group_seq", pa.int32()),
        pa.field("body_type", pa.string()),
        pa.field("body", pa.binary()),
        pa.field("content_type", pa.string()),
        pa.field("properties", TEXT_MAP),
        pa.field("property_types", TEXT_MAP),
        pa.field("batch_id", pa.string()),
        pa.field("segment", pa.int32()),
        pa.field("position", pa.int32()),
    ]
)

INDEX_SCHEMA = pa.schema([("key", pa.uint64()), ("segment", pa.int32())])
"""Columns of the index of ids (`id_index`)."""


class SegmentReader(pq.ParquetFile):  # type: ignore[misc] # pyarrow has no types
    """Reads a Parquet file of the spool, such as a segment, in the calling thread only.

    Arrow's own threads are not used, because they release the Python file some time after the reading. If the
    interpreter shuts down before they do so, the process aborts or hangs.

    Args:
        file: The file, opened for reading and seekable.

    Raises:
        ArrowException, OSError: The file is damaged or can't be read. The methods raise it too.
    """

    def __init__(self, file: BufferedIOBase) -> None:
        super().__init__(file, pre_buffer=False, page_checksum_verification=True)

    def read_row_group(self, i: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the row group with the number `i`, or only the given columns of it."""
        return super().read_row_group(i, columns, use_threads=False)

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the whole file, or only the given columns."""
        return super().read(columns, use_threads=False)
