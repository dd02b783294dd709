"""Shows the rows and rejects that a job would produce, without writing anything.

with Preview(Manifest.read(uri)) as batch:
    mapped = batch.json(batch.messages(spark), "id LONG NOT NULL, amount DOUBLE")
    mapped.rows.show()
    batch.reject(mapped.rejects)
    print(batch.rejected())
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, NoReturn

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import ConfigurationError, SpoolError
from airflow_provider_jmsjca.spark.job import Batch, leave
from airflow_provider_jmsjca.spark.rejects import REJECT_COLUMNS
from airflow_provider_jmsjca.spark.tables.columns import ORIGIN, check_origin, without
from airflow_provider_jmsjca.spool.manifest import Manifest
from airflow_provider_jmsjca.spool.rows import Row, rows_to_table
from airflow_provider_jmsjca.spool.schema import MESSAGE_DDL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MESSAGES: Final = 100
"""Number of messages that are read by default."""
_NO_BATCH: Final = Manifest(
    folder=Path("preview"), batch_id="preview", source="", activation="", created="", rows=0, segments=()
)


class Preview(Batch):
    """A `Batch` without effects, of the first messages of a batch or of browsed messages.

    Guarantee: nothing is written or acknowledged. A preview is no attempt at the batch: it stops no job that
    runs at the same time, and the batch isn't done afterwards. Rejects are kept in memory. Rows that a table
    would refuse are not detected.

    Args:
        manifest: The batch; its files are verified. `None` for browsed messages.
        messages: Browsed messages, such as those of `JmsSession.browse`, instead of a batch.
        limit: Maximum number of messages to read, in the order of their receipt.

    Raises:
        ConfigurationError: Both a batch and messages are given, or neither, or the limit is below 1.
        SpoolError: A file of the batch is missing, damaged or of another batch.
    """

    def __init__(
        self,
        manifest: Manifest | None = None,
        *,
        messages: Iterable[JmsMessage] | None = None,
        limit: int = MESSAGES,
    ) -> None:
        if (manifest is None) == (messages is None):
            raise ConfigurationError("preview: expected a batch or messages, and not both")
        if limit < 1:
            raise ConfigurationError(f"preview: limit: expected at least 1, got {limit}")
        now = time.time_ns() // 1000
        rows = [Row(message=message, received_at=now) for message in islice(messages or (), limit)]
        self._browsed = None if messages is None else rows_to_table(rows, _NO_BATCH.batch_id, 0)
        self._limit = limit
        self._rejected: list[DataFrame] = []
        super().__init__(manifest or _NO_BATCH, 0)

    def _check(self, manifest: Manifest, fence: int) -> None:
        del fence
        manifest.verify()

    def messages(self, spark: SparkSession) -> DataFrame:
        """Return the first messages, with the same columns as `Batch.messages`."""
        if self._browsed is None:
            return super().messages(spark).orderBy("segment", "position").limit(self._limit)
        found = spark.createDataFrame(self._browsed, MESSAGE_DDL)
        return found.selectExpr("*", f"struct(batch_id, segment, position) AS {ORIGIN}")

    def reject(self, df: DataFrame) -> int:
        """Keep rejects in memory for `rejected`; return the number of messages rejected so far.

        Args:
            df: Columns `_jms` (the message), `exception_class` and `exception_message` (the reason).

        Raises:
            ConfigurationError: A column is missing, or `_jms` doesn't name messages.
        """
        missing = [name for name in REJECT_COLUMNS if name not in df.columns]
        if missing:
            raise ConfigurationError(f"reject: missing columns: {', '.join(missing)}")
        check_origin("reject", df)
        self._rejected.append(df.select(*REJECT_COLUMNS))
        return len(self.rejected())

    def rejected(self) -> dict[tuple[int, int], str]:
        """Return the reason of each rejected message, by its segment and position."""
        found: dict[tuple[int, int], str] = {}
        for df in self._rejected:
            rows = df.selectExpr(f"{ORIGIN}.segment", f"{ORIGIN}.position", "exception_message")
            for segment, position, reason in sorted(rows.collect()):
                found.setdefault((segment, position), reason)
        return dict(sorted(found.items()))

    def kept(self, rows: DataFrame) -> DataFrame:
        """Return the rows, except for rows of rejected messages."""
        for df in self._rejected:
            rows = without(rows, df)
        return rows

    def write(self, *_: object, **__: object) -> NoReturn:
        """Refuse to write.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError("preview: nothing is written; leave out write and store_rejects")

    def store_rejects(self, *_: object, **__: object) -> NoReturn:
        """Refuse to write.

        Raises:
            ConfigurationError: Always.
        """
        self.write()

    def finish(self) -> NoReturn:
        """Refuse to finish the batch.

        Raises:
            ConfigurationError: Always.
        """
        self.write()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release cached DataFrames; after an error of spool or configuration, exit like `Batch`."""
        self.close()
        if isinstance(error, SpoolError | ConfigurationError):
            leave(error)
