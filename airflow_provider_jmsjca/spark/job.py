"""The class `Batch`, with which a PySpark script works on a batch.

    from pyspark.sql import SparkSession
    from airflow_provider_jmsjca.spark.job import Batch

    with Batch.from_args() as batch:
        spark = SparkSession.builder.getOrCreate()
        flights = batch.json(batch.messages(spark), "carrier STRING NOT NULL, dep_delay DOUBLE NOT NULL")
        batch.write(flights.rows, "/data/flights")
        batch.reject(flights.rejects)

The contract with the submitter (`JmsToSparkSubmitOperator`):

| argument | meaning |
|---|---|
| `--manifest` | `file:` URI or absolute path of `manifest.json`, on storage that driver and executors see |
| `--batch-id` | the batch's name; an error if the manifest has another one |
| `--fence` | fence number of this attempt, from `attempts.take_fence` |

Other arguments belong to the script, which gets them in `Batch.arguments`. The submitter calls
`take_fence(manifest.folder)` right before each submission. After exit code 0, it reads the counts from
`Done.read(manifest.folder)`, and sends the messages of `rejects.rejected_messages(manifest)` to the
dead-letter destination.

| exit code | meaning |
|---|---|
| 0 | the batch is done, by this attempt or an earlier one |
| 65 | a file of the batch is missing, damaged or of another batch |
| 75 | a newer attempt has taken over |
| 78 | the configuration is invalid |
| any other | the script failed |

If a script leaves the `with` block by an exception or by `sys.exit`, the batch isn't done. Because the exit
code may be 0 then, the submitter also checks that `_DONE` exists. One line on standard error names the fault.
`spark-submit` in client mode repeats it on its standard output, among the other output of the driver.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, NoReturn, Self

from airflow_provider_jmsjca.errors import ConfigurationError, FencedError, SpoolError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.spark.bodies.formats import MOST_JSON, Avro, Csv, Xml
from airflow_provider_jmsjca.spark.data_failure import data_failure
from airflow_provider_jmsjca.spark.evolution import add_columns
from airflow_provider_jmsjca.spark.expectations import OnViolation, check_expectations
from airflow_provider_jmsjca.spark.mapping import (
    Mapped,
    avro_fields,
    failed_columns,
    rescue_name,
    sort_json,
    sort_tried,
    split,
)
from airflow_provider_jmsjca.spark.progress import ProgressLines
from airflow_provider_jmsjca.spark.rejects import BatchRejects, rejected_rows
from airflow_provider_jmsjca.spark.replays import ReplacedBatches, make_replay
from airflow_provider_jmsjca.spark.tables import UPSERT, TableAttempt, TableSink, TableWrite, check_write
from airflow_provider_jmsjca.spark.tables.columns import ORIGIN, ColumnTypesError, without
from airflow_provider_jmsjca.spark.tables.delta import DeltaSink
from airflow_provider_jmsjca.spark.tables.jdbc import JdbcSink
from airflow_provider_jmsjca.spark.tables.parquet import ParquetSink
from airflow_provider_jmsjca.spool.attempts import (
    Done,
    check_fence,
    committing,
    evolutions,
    note_evolution,
    take_fence,
)
from airflow_provider_jmsjca.spool.batch_id import replay_id
from airflow_provider_jmsjca.spool.files import SpoolPath
from airflow_provider_jmsjca.spool.manifest import Manifest, pattern_for_spark, uri_to_path
from airflow_provider_jmsjca.spool.schema import MESSAGE_DDL
from airflow_provider_jmsjca.spool.splits import parts
from airflow_provider_jmsjca.spool.upkeep.replays import Selection

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

EXIT_SPOOL: Final = 65
EXIT_FENCED: Final = 75
EXIT_CONFIGURATION: Final = 78
_PARTITION_BYTES: Final = 8 * 1024 * 1024
_MOST_PARTITIONS: Final = 200
# Up to this number of messages, planning the search for reasons costs more than reading the bodies again.
_SMALL_ROWS: Final = 25_000
_SINKS: Final[Mapping[str, TableSink]] = {
    "parquet": ParquetSink(),
    "delta": DeltaSink(),
    "jdbc": JdbcSink(),
}

_log = safe_logger(__name__)


class Batch:
    """A verified batch, for one attempt at it. If the `with` block ends without exception, the batch is done.

    Guarantee: a job that dies at any point leaves no `_DONE`. After another run, each table has the batch's
    rows once. A job that was superseded by a newer attempt commits nothing.

    Attributes:
        manifest: The batch.
        fence: Fence number of this attempt.
        arguments: The script's own arguments.
    """

    def __init__(
        self,
        manifest: Manifest,
        fence: int,
        arguments: Sequence[str] = (),
        *,
        shows_progress: bool = True,
    ) -> None:
        """Verify the batch.

        Args:
            manifest: The batch.
            fence: Fence number of this attempt.
            arguments: The script's own arguments.
            shows_progress: Write Spark's progress to standard error.

        Raises:
            SpoolError: A file is missing, damaged or of another batch; the text names it.
            FencedError: The attempt is not the newest.
        """
        self._check(manifest, fence)
        self.manifest = manifest
        self.fence = fence
        self.arguments = tuple(arguments)
        self._stored: dict[str, int] = {}
        self._rejects = BatchRejects(manifest, fence)
        self._replaced = ReplacedBatches.of(manifest.folder)
        self._kept: list[DataFrame] = []
        self._mapped: list[Mapped] = []
        self._sealed: list[DataFrame] = []
        self._empty: list[DataFrame] = []
        self._violations: dict[str, int] = {}
        self._rescued = 0
        self._rescue: str | None = None
        self._shows_progress = shows_progress
        self._progress: ProgressLines | None = None
        self._rejects_in_table = 0

    def _check(self, manifest: Manifest, fence: int) -> None:
        """Refuse to process a batch that is damaged, was split by a bisection, or has a newer attempt.

        Raises:
            FencedError: A newer attempt has begun.
            SpoolError: The batch was split, or a segment is missing or damaged.
        """
        check_fence(manifest.folder, fence)
        if parts(manifest.folder):
            raise SpoolError(
                f"{manifest.folder}: the batch was split, and parts of it may be stored: submit it with "
                "bisect=True"
            )
        manifest.verify()

    @classmethod
    def from_args(cls, arguments: Sequence[str] | None = None) -> Self:
        """Return the batch that the command line names.

        If the batch can't or need not be processed, this writes one line to standard error and ends the
        process (`SystemExit`). The exit code is 0 if the batch is done already, and 65 if a file is missing,
        damaged or of another batch. It is 75 if a newer attempt has begun.

        Args:
            arguments: Arguments without the script's name; `None` means those of the command line.
        """
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--manifest", required=True)
        parser.add_argument("--batch-id", required=True)
        parser.add_argument("--fence", required=True, type=int)
        known, rest = parser.parse_known_args(arguments)
        try:
            manifest = Manifest.read(known.manifest)
            check_batch_name(manifest, known.batch_id)
            if Done.read(manifest.folder) is not None:
                sys.stderr.write(f"batch {manifest.batch_id} is done already\n")
                raise SystemExit(0)
            return cls(manifest, known.fence, rest)
        except SpoolError as error:
            leave(error)

    @classmethod
    def replay(
        cls,
        spool: str | SpoolPath,
        batches: Sequence[str] = (),
        *,
        name: str,
        rejects: bool = False,
        since: datetime | None = None,
        until: datetime | None = None,
        source: str | None = None,
        arguments: Sequence[str] = (),
    ) -> Self | None:
        """Create a batch of messages from earlier batches, to process them again.

        Guarantee: under one name, messages are selected once and stored once. If a job dies, starting it
        again with the same name continues the replay. `write` describes the effect on rows of these messages
        that the table has already.

        Args:
            spool: Folder of all batches, as an absolute path or URI.
            batches: Names of the earlier batches.
            name: Name of the replay.
            rejects: Only replay the messages that the jobs of these batches rejected.
            since: Instead of `batches`: replay batches finished at this time or later.
            until: Instead of `batches`: replay batches finished before this time.
            source: With a time range, only replay batches of this destination, such as `queue://orders`.
            arguments: The script's own arguments, for `Batch.arguments`.

        Returns:
            The replay, with a new attempt that shuts out earlier ones. `None` if the replay is done already,
            or no message is selected.

        Raises:
            ConfigurationError: The selection is empty or ambiguous, or another replay has this name.
            SpoolError: A batch doesn't exist, isn't finished or was pruned; or a file is damaged.
        """
        selection = Selection(
            batches=tuple(batches), since=since, until=until, source=source, rejects=rejects
        )
        place = uri_to_path(spool) if isinstance(spool, str) else spool
        manifest = make_replay(place, replay_id(name), selection)
        if manifest is None or Done.read(manifest.folder) is not None:
            return None
        return cls(manifest, take_fence(manifest.folder), arguments)

    @property
    def batch_id(self) -> str:
        """The batch's name."""
        return self.manifest.batch_id

    @property
    def partitions(self) -> int:
        """Suitable number of partitions for the batch: one for each 8 MiB of its segments, from 1 to 200.

        Use it as `spark.sql.shuffle.partitions` and `spark.databricks.delta.snapshotPartitions`. With Spark's
        and Delta's defaults, 200 and 50, a small batch takes many times longer than necessary.
        """
        size = sum(segment.bytes for segment in self.manifest.segments)
        return min(max(1, math.ceil(size / _PARTITION_BYTES)), _MOST_PARTITIONS)

    def messages(self, spark: SparkSession) -> DataFrame:
        """Return the messages, with the columns of the message schema (`schema.MESSAGE_DDL`) and `_jms`.

        `_jms` identifies the message of a row, also in the rows of `json` and `try_map`; `reject` needs it.

        From the first call until the `with` block ends, Spark's progress is written to standard error.
        """
        if self._progress is None and self._shows_progress:
            self._progress = ProgressLines(spark)
        paths = [pattern_for_spark(path) for path in self.manifest.segment_paths()]
        if paths:
            found = spark.read.schema(MESSAGE_DDL).parquet(*paths)
        else:
            found = spark.createDataFrame([], MESSAGE_DDL)
        return found.selectExpr("*", f"struct(batch_id, segment, position) AS {ORIGIN}")

    def json(
        self,
        messages: DataFrame,
        schema: StructType | str,
        *,
        keep: Sequence[str] = (),
        timestamp_formats: Sequence[str] = (),
        rescue: str | None = None,
    ) -> Mapped:
        """Read the bodies as JSON objects, see `mapping.sort_json`. Pass the `rejects` to `reject`.

        Each body is read once for rows and rejects together. In a batch of up to 25,000 messages, this call
        already reads the bodies. If a message may not fit, all bodies are read once more to find reasons.
        Until the `with` block ends, the result is cached in Spark's memory, and on its disks if the memory is
        too small.

        With `rescue="_rescued"`, a column `_rescued` contains the fields that the schema doesn't name. The
        number of rows with such fields is in the batch's report, the task's XCom and OpenLineage's facet.
        """
        sort = partial(sort_json, messages, schema, keep, timestamp_formats=timestamp_formats, rescue=rescue)
        mapped = self._read(sort)
        if rescue is not None:
            self._rescue = rescue_name(rescue)
            self._rescued += mapped.rows.where(f"{self._rescue} IS NOT NULL").count()
        return mapped

    def xml(
        self,
        messages: DataFrame,
        schema: StructType | str,
        *,
        root: str,
        empty_as_null: bool = False,
        keep: Sequence[str] = (),
        timestamp_formats: Sequence[str] = (),
    ) -> Mapped:
        """Read the bodies as XML documents, as strictly as `json`. Pass the `rejects` to `reject`.

        A field reads the element of the same name, without regard to namespaces. A field `_name` reads the
        attribute `name`, and `_VALUE` the text of an element that is a `STRUCT`. An `ARRAY` reads an element
        that may be repeated. A document with a `DOCTYPE` is rejected. Executors read the bodies in Python.

        Args:
            messages: Messages with the columns of the message schema.
            schema: Fields of the body, see `mapping.sort_json`, without `MAP` and `VARIANT`.
            root: Name of the root element, or with its namespace: `{http://example.com/orders}order`. A
                document with another root is rejected.
            empty_as_null: An element without content is NULL. Otherwise it is an empty text, which only fits
                `STRING`. `xsi:nil="true"` is always NULL.
            keep: Columns of the message to add, see `mapping.sort_json`.
            timestamp_formats: Further forms of `TIMESTAMP`, see `mapping.sort_json`.

        Raises:
            ConfigurationError: The schema, `keep` or a format of timestamps is invalid, or `root` is empty.
        """
        body_format = Xml(root=root, empty_as_null=empty_as_null)
        sort = partial(
            sort_json, messages, schema, keep, body_format=body_format, timestamp_formats=timestamp_formats
        )
        return self._read(sort)

    def csv(
        self,
        messages: DataFrame,
        schema: StructType | str,
        *,
        delimiter: str = ",",
        quote: str = '"',
        header: bool = False,
        null: str = "",
        keep: Sequence[str] = (),
        timestamp_formats: Sequence[str] = (),
    ) -> Mapped:
        """Read each body as one CSV record, as strictly as `json`. Pass the `rejects` to `reject`.

        Quotes are interpreted as in RFC 4180. A body with a second record is rejected. Executors read the
        bodies in Python.

        Args:
            messages: Messages with the columns of the message schema.
            schema: Fields of the body, see `mapping.sort_json`. `STRUCT`, `ARRAY`, `MAP` and `VARIANT` are
                refused.
            delimiter: The character between values.
            quote: The character around values; within them it is doubled. Empty: values have no quotes.
            header: The first line names the values. Values whose names the schema lacks are ignored. Without
                a header, the values are the fields of the schema in their order.
            null: A value without quotes and with this text is NULL.
            keep: Columns of the message to add, see `mapping.sort_json`.
            timestamp_formats: Further forms of `TIMESTAMP`, see `mapping.sort_json`.

        Raises:
            ConfigurationError: The schema, `keep`, a format of timestamps or an option of CSV is invalid.
        """
        body_format = Csv(delimiter=delimiter, quote=quote, header=header, null=null)
        sort = partial(
            sort_json, messages, schema, keep, body_format=body_format, timestamp_formats=timestamp_formats
        )
        return self._read(sort)

    def avro(
        self,
        messages: DataFrame,
        schema: StructType | str | None = None,
        *,
        writer_schema: str,
        schema_id: int | None = None,
        max_json: int = MOST_JSON,
        allow: Sequence[str] = (),
        keep: Sequence[str] = (),
        timestamp_formats: Sequence[str] = (),
    ) -> Mapped:
        """Read each body as one Avro record, as strictly as `json`. Pass the `rejects` to `reject`.

        Bodies are bytes in Avro's binary encoding, which doesn't name its schema. A body that was written
        with another schema than `writer_schema` is usually rejected. But if its bytes happen to be a valid
        record of `writer_schema`, the message fits, and its values are wrong. Executors read the bodies in
        Python.

        Args:
            messages: Messages with the columns of the message schema.
            schema: The fields to read, see `mapping.sort_json`. `None`: all fields of `writer_schema`.
            writer_schema: The schema with which the bodies were written: an Avro record as JSON.
            schema_id: Number of the schema in the prefix of Confluent's serializers, with which each body
                must begin. A body with another prefix or none is rejected. `None`: the bodies have no prefix.
            max_json: Maximum number of characters of a record as JSON. A longer record is rejected. In Avro,
                one byte can stand for a long text, such as the names of all fields of a record.
            allow: Only without `schema`. With `variants`, a union of several types, or a type that contains
                itself, is read as `VARIANT`. Otherwise such a schema is refused.
            keep: Columns of the message to add, see `mapping.sort_json`.
            timestamp_formats: Further forms of `TIMESTAMP`, see `mapping.sort_json`.

        Raises:
            ConfigurationError: The schema, `keep`, `max_json` or a format of timestamps is invalid. Or the
                writer's schema is no record, or has a part without a Spark type.
        """
        body_format = Avro(schema=writer_schema, schema_id=schema_id, max_json=max_json)
        fields = avro_fields(schema, writer_schema, allow)
        sort = partial(
            sort_json, messages, fields, keep, body_format=body_format, timestamp_formats=timestamp_formats
        )
        return self._read(sort)

    def _read(self, sort: Callable[..., DataFrame]) -> Mapped:
        """Read the messages and find the reasons for rejects.

        A small batch is first read without reasons, which is faster if all messages fit.

        Args:
            sort: Function that calls `sort_json` or `sort_tried` for these messages; takes `finds_reasons`
                and `failed`.
        """
        if self.manifest.rows <= _SMALL_ROWS:
            quick = sort(finds_reasons=False).persist()
            self._kept.append(quick)
            failed = failed_columns(quick)
            if failed is None:
                self._mapped.append(split(quick, has_rejects=False))
                self._empty.append(self._mapped[-1].rejects)
                return self._mapped[-1]
            self._kept.pop().unpersist()
            return self._split(sort(failed=failed))
        return self._split(sort())

    def try_map(self, messages: DataFrame, columns: Mapping[str, Column | str]) -> Mapped:
        """Evaluate expressions for each message, see `mapping.sort_tried`. Pass the `rejects` to `reject`.

        One bad message never fails the batch: a message for which an expression raises an error is a reject.
        In a batch of up to 25,000 messages, this call already evaluates the expressions. If one fails, all
        are evaluated once more, to find the reasons. Otherwise each is evaluated once. The result is cached,
        as with `json`.
        """
        return self._read(partial(sort_tried, messages, columns))

    def _split(self, sorted_messages: DataFrame) -> Mapped:
        self._kept.append(sorted_messages.persist())
        self._mapped.append(split(sorted_messages))
        return self._mapped[-1]

    def expect(
        self, rows: DataFrame, expectations: Mapping[str, str], action: OnViolation | str = OnViolation.REJECT
    ) -> DataFrame:
        """Test rows, and return those that satisfy every expectation.

        The counts are in the batch's report, the task's XCom and OpenLineage's facet.

        Args:
            rows: The rows; to reject messages they need the column `_jms`.
            expectations: Conditions in SQL on a row, by name: `{"positive": "amount > 0"}`. A row violates a
                condition that is false or NULL for it.
            action: The action for a row that violates a condition. `reject` rejects its message, with all of
                the message's rows. `drop` leaves out the row. `fail` fails the job.

        Raises:
            ConfigurationError: A condition can't be evaluated. Or a row violates a condition, and the action
                is `fail`.
        """
        try:
            checked = check_expectations(rows, expectations, OnViolation(action))
        except ValueError as error:
            if isinstance(error, ConfigurationError):
                raise
            raise ConfigurationError(
                f"expect: action {action!r}: expected one of {', '.join(OnViolation)}"
            ) from error
        for name, failed in checked.failed.items():
            self._violations[name] = self._violations.get(name, 0) + failed
        if checked.rejects is not None:
            self.reject(checked.rejects)
        return checked.rows

    def write(
        self,
        df: DataFrame,
        table: str,
        *,
        format: str = "parquet",  # noqa: A002 - as Spark's writer has it
        mode: str = "append",
        partition_by: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        cluster_by: Sequence[str] = (),
        table_properties: Mapping[str, str] | None = None,
        keys: Sequence[str] = (),
        order_by: str | None = None,
        delete_when: str | None = None,
        evolve: str | Sequence[str] = (),
    ) -> int:
        """Store rows in a table, once for each batch.

        Columns missing in the table are added, and are NULL in older batches. Columns missing in the rows are
        NULL in this batch. The table also gets the column `jms_batch_id`. If the rows have the column `_jms`,
        the table gets the columns `jms_segment` and `jms_position` instead.

        If the table refuses a row, its message is rejected, with the constraint and the value as the reason.
        None of the message's rows is stored, here and in tables written later. That needs the column `_jms`.
        Without it, or if the batch was written to another table before, a refused row fails the write. Then
        `bisect=True` of the operator finds the message. So write to the table with constraints first.

        A column of another type than the table's is refused, unless `evolve="widen"` finds a type for both.
        Each change of the table is made before the rows are written, and is in the batch's report.

        With `append`, the rows of a replay replace earlier rows of its messages; see `spark.replays`.

        Guarantee: if the write is repeated after a crash, the table has the rows of the batch once. The
        details depend on the format:

        - `parquet` on file systems of this machine (absolute path or `file:` URI): see
          `tables.parquet.replace_by_rename`; elsewhere see `replace_by_overwrite`. A second call for the same
          table replaces the first.
        - `delta`: see `tables.delta.DeltaSink`.
        - `jdbc`, on PostgreSQL: see `tables.jdbc.write_in_one_transaction`.

        Args:
            df: The rows.
            table: Absolute path or URI of the table's folder; with `delta` also its name in Spark's catalog;
                with `jdbc` its name in the database.
            format: `parquet`, `delta` or `jdbc`.
            mode: `append`. With `delta` also `overwrite`, which keeps the rows of the newest batch only. With
                `delta` and `jdbc` also `upsert`, by which a row replaces the row with the same `keys`. An
                upsert needs the column `_jms`. It calls `reject` for the rejects of `json` and `try_map`. If
                you reject other messages, call `reject` before the upsert: after its commit, a retry takes
                over the rejects known at the commit.
            partition_by: Further columns to partition by.
            options: Options of Spark's writer, such as `compression` or `maxRecordsPerFile`. With `jdbc`
                Spark's options for JDBC: `url`, `user`, `password`.
            cluster_by: With `delta`, columns by which a new table is clustered (liquid clustering).
            table_properties: With `delta`, properties of a new table, such as `delta.enableChangeDataFeed`. A
                table that exists keeps its clustering and properties.
            keys: With `upsert`, the columns that identify a row. A message with NULL in a key is rejected. A
                table of a database needs a unique index on them, which `write` creates with a new table.
            order_by: With `upsert`, the column by which the newer of two rows with the same keys is found. A
                row that is older than the table's row changes nothing. NULL is the oldest value. With equal
                values, and if `order_by` is `None`, the row of the later batch is newer. Within a batch it
                is the row of the later message.
            delete_when: With `upsert`, a condition in SQL. A row for which it is true deletes the table's row
                with its keys. The deletion isn't remembered, so an older row may insert the keys again.
            evolve: `widen`: change columns of the table that are too narrow for the rows. This covers whole
                numbers up to `BIGINT`, `FLOAT` to `DOUBLE`, `DECIMAL` to more digits, and `NOT NULL` columns
                for which a row has NULL. Rows of a narrower type are converted to the table's. `delta` needs
                the table property `delta.enableTypeWidening`; `parquet` doesn't support `widen`. `add`: move
                rescued fields, from the column `rescue` of `json`, into their own columns; see
                `evolution.add_columns`.

        Returns:
            The number of rows of the batch in the table. With `upsert`, the number of rows that the batch
            inserted or updated.

        Raises:
            FencedError: A newer attempt has begun.
            SpoolError: A file can't be written.
            PoisonMessageError: The table refuses a row, and the message can't be rejected (see above).
            ConfigurationError: Nothing was written, because format, mode, path or another argument is
                invalid. Or a column has a reserved name: `jms_batch_id`, `jms_segment`, `jms_position` or
                `_jms...`. Or a column has another type than the table's, or the table is partitioned by other
                columns. Or, with `delta`, the batch has written to this table before.
        """
        # A row of a refused message must not stay in another table.
        rejects_rows = ORIGIN in df.columns and not self._stored.keys() - {table}
        asked = {evolve} if isinstance(evolve, str) else set(evolve)
        if unknown := sorted(asked - {"add", "widen"}):
            raise ConfigurationError(f"write: evolve {unknown[0]!r}: expected 'add' or 'widen'")
        write = TableWrite(
            table=table,
            mode=mode,
            partition_by=tuple(partition_by),
            options=options or {},
            cluster_by=tuple(cluster_by),
            properties=table_properties or {},
            keys=tuple(keys),
            order_by=order_by,
            delete_when=delete_when,
            widens="widen" in asked,
        )
        for refused in self._rejects.refused if ORIGIN in df.columns else ():
            df = without(df, refused)
        replaced: tuple[str, ...] = ()
        if self._replaced is not None and mode == "append":
            replaced = self._replaced.rows_in(table)
        return self._write(
            df, write, format, rejects_rows=rejects_rows, replaced=replaced, adds="add" in asked
        )

    def _write(
        self,
        df: DataFrame,
        write: TableWrite,
        format: str,  # noqa: A002 - as Spark's writer has it
        *,
        rejects_rows: bool,
        replaced: tuple[str, ...],
        adds: bool = False,
    ) -> int:
        sink, table = _SINKS.get(format), write.table
        if sink is None:
            raise ConfigurationError(f"write: format {format!r}: expected one of {', '.join(_SINKS)}")
        check_write(format, sink, write)
        if sink.writes_once and table in self._stored:
            raise ConfigurationError(
                f"write: batch {self.batch_id} has already written to {table}; write once, the union of "
                "the rows"
            )
        if write.mode == UPSERT:
            # The table doesn't show a retry which messages were stored, so all rejects must be known before.
            for mapped in self._mapped:
                self.reject(mapped.rejects)
        attempt = TableAttempt(
            batch_id=self.batch_id,
            folder=self.manifest.folder,
            fence=self.fence,
            rejects=self._rejects,
            rejects_rows=rejects_rows,
            replaced=replaced,
            note_change=partial(note_evolution, self.manifest.folder),
        )
        noted: Mapping[str, str] = {}
        given, is_first = df, True
        while True:
            if adds:
                known = sink.columns(given, write, attempt)
                df, noted = self._with_rescued(given, known, attempt, table, noted)
            try:
                self._stored[table] = sink.write(df, write, attempt)
            except ColumnTypesError:
                # Another batch may just have added a column of the same name with another type.
                if not adds or not is_first:
                    raise
                is_first = False
            else:
                return self._stored[table]

    def _with_rescued(
        self,
        df: DataFrame,
        known: Mapping[str, str],
        attempt: TableAttempt,
        table: str,
        noted: Mapping[str, str],
    ) -> tuple[DataFrame, Mapping[str, str]]:
        """Return the rows with columns for rescued fields, and the types of columns that the table lacks.

        Args:
            df: The rows.
            known: The table's columns with their types.
            attempt: The attempt at the table, which records the new columns for the report.
            table: The table's name.
            noted: Columns, with their types, that the previous try of this write intended to add.
        """
        if self._rescue not in df.columns:
            raise ConfigurationError(
                "write: evolve='add': the rows have no column of rescued fields; pass rescue to json, and "
                "keep that column"
            )
        for name in noted.keys() & known.keys():
            attempt.note_change(
                f"table {table}: column {name!r}: not added as {noted[name]}, another batch was faster"
            )
        added = add_columns(df, str(self._rescue), known)
        for name, kind in added.columns.items():
            attempt.note_change(f"table {table}: column {name!r}: added as {kind}")
        return added.rows, added.columns

    def reject(self, df: DataFrame) -> int:
        """Reject messages, which are sent to the dead-letter destination once the batch is done.

        The executors write the rejects into the spool, and need write access to it. The driver's memory
        doesn't depend on their number.

        Args:
            df: Columns `_jms` (the message), `exception_class` and `exception_message` (the reason). A
                message that is named twice is rejected once, with the reason of the first call. Within one
                call the first reason in alphabetical order is used.

        Returns:
            Number of messages rejected so far.

        Raises:
            ConfigurationError: A column is missing, or a row names no message of the batch.
            FencedError: A newer attempt has begun.
            SpoolError: A file can't be written.
        """
        if any(df is empty for empty in self._empty):
            self.check_fence()
        elif not any(df is sealed for sealed in self._sealed):
            self._rejects.add(df)
            self._sealed.append(df)
        return self._rejects.count

    def store_rejects(
        self,
        spark: SparkSession,
        table: str,
        *,
        format: str = "parquet",  # noqa: A002 - as Spark's writer has it
        options: Mapping[str, str] | None = None,
    ) -> int:
        """Store the rejected messages in a table, in addition to the dead-letter destination.

        Each rejected message is a row with its columns of the message schema, `exception_class` and
        `exception_message`. As in each table, `jms_batch_id`, `jms_segment` and `jms_position` identify the
        message. In a database, properties are JSON text. Call this last: messages that are rejected later
        aren't in the table.

        Guarantee: if the call is repeated after a crash, the table has the rejects of the batch once. A later
        attempt replaces the rejects of an earlier attempt. A replay replaces the rejects of the batches that
        it replays.

        Args:
            spark: The session.
            table: Absolute path, URI or name of the table, see `write`.
            format: `parquet`, `delta` or `jdbc`.
            options: Options of Spark's writer, or with `jdbc` of its connection, see `write`.

        Returns:
            The number of rejected messages in the table.

        Raises:
            FencedError: A newer attempt has begun.
            SpoolError: A file can't be written.
            ConfigurationError: An argument is invalid, or the table has other columns. Nothing was written.
        """
        rows = rejected_rows(
            self.messages(spark), self.manifest, self._rejects.files, as_text=format == "jdbc"
        )
        write = TableWrite(table=table, options=options or {}, replaces=True)
        replaced = () if self._replaced is None else self._replaced.rejects_in()
        stored = self._write(rows, write, format, rejects_rows=False, replaced=replaced)
        self._rejects_in_table = self._rejects.count
        return stored

    def check_fence(self) -> None:
        """Raise an error if a newer attempt has begun. Call this before you commit data elsewhere.

        Raises:
            FencedError: A newer attempt has begun.
        """
        check_fence(self.manifest.folder, self.fence)

    def finish(self) -> Done:
        """Seal `_DONE` with the counts, which marks the batch as done for every later attempt too.

        Raises:
            FencedError: A newer attempt has begun, or another attempt has finished the batch.
            SpoolError: The file can't be written.
        """
        folder = self.manifest.folder
        done = Done(
            batch_id=self.batch_id,
            fence=self.fence,
            rows=self.manifest.rows,
            stored=dict(self._stored),
            rejected=self._rejects.count,
            rejects=self._rejects.files,
            violations=dict(self._violations),
            rescued=self._rescued,
            evolved=tuple(evolutions(folder)),
            rejects_stored=0 < self._rejects.count == self._rejects_in_table,
            finished=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
        with committing(folder):
            check_fence(folder, self.fence)
            if not done.create(folder):
                raise FencedError(f"{folder}: another attempt has finished this batch")
        _log.info(
            "Batch %s: %d rows, stored %s, rejected %d", done.batch_id, done.rows, done.stored, done.rejected
        )
        return done

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish the batch; after an error of spool, fence or configuration, end the process with one line.

        An exception that the data caused is recorded in the batch's folder, for a bisection of the batch.
        """
        self.close()
        try:
            if isinstance(error, SpoolError | ConfigurationError):
                raise error
            if error is None:
                self.finish()
            elif (failure := data_failure(error, tuple(self._stored))) is not None:
                failure.record(self.manifest.folder, self.fence)
        except (SpoolError, ConfigurationError) as fault:
            leave(fault)

    def close(self) -> None:
        """Release cached DataFrames, unless the script has stopped the session, and stop the progress lines.

        The end of the `with` block does this too.
        """
        from pyspark.errors import PySparkException  # noqa: PLC0415 - only jobs have pyspark
        from pyspark.sql import SparkSession  # noqa: PLC0415 - only jobs have pyspark

        if self._progress is not None:
            self._progress.stop()
        kept = [*self._kept, *self._rejects.refused]
        self._kept.clear()
        try:
            SparkSession.active()
        except PySparkException:
            return
        for df in kept:
            df.unpersist()


def check_batch_name(manifest: Manifest, batch_id: str) -> None:
    """Refuse a manifest of another batch.

    Raises:
        SpoolError: The manifest is of another batch.
    """
    if manifest.batch_id != batch_id:
        raise SpoolError(f"{manifest.path}: expected batch {batch_id!r}, found {manifest.batch_id!r}")


def leave(error: SpoolError | ConfigurationError) -> NoReturn:
    """End the process with one line on standard error, and the exit code for this error."""
    sys.stderr.write(f"{type(error).__name__}: {error}\n")
    match error:
        case ConfigurationError():
            code = EXIT_CONFIGURATION
        case FencedError():
            code = EXIT_FENCED
        case _:
            code = EXIT_SPOOL
    raise SystemExit(code) from error
