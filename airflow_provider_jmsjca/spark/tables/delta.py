"""A Delta Lake table, by its path or by its name in Spark's catalog.

Each batch is one commit with the batch's id as Delta's transaction id. Delta skips a commit if the table has
one with the same id. The rows get the column `jms_batch_id`.
"""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from airflow_provider_jmsjca.errors import ConfigurationError, PoisonMessageError
from airflow_provider_jmsjca.spark.tables import BATCH_COLUMN, UPSERT, TableAttempt, TableWrite
from airflow_provider_jmsjca.spark.tables.columns import (
    ORIGIN,
    cast_like,
    check_partitions,
    check_upsert,
    misfit,
    missing_keys,
    quoted_name,
    quoted_text,
    shown,
    stored_rows,
    type_changes,
    type_name,
    widened,
    without,
)
from airflow_provider_jmsjca.spool.attempts import RejectsFile, check_fence

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

PACKAGES: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
SESSION: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""Settings of a Spark session that Delta needs."""
_NAME: Final = re.compile(r"(?:(?:\w+|`[^`]+`)\.){0,2}(?:\w+|`[^`]+`)")
_ABSENT: Final = ("DELTA_TABLE_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE", "DELTA_PATH_DOES_NOT_EXIST")
_CHECK: Final = "delta.constraints."
_LENGTH: Final = re.compile(r"(?:var)?char\(([0-9]+)\)")
_LENGTH_KEY: Final = "__CHAR_VARCHAR_TYPE_STRING"
_SHOWN_VALUES: Final = 100
_MAPPING: Final = "delta.columnMapping.mode"
_WIDENING: Final = "delta.enableTypeWidening"
# Errors after another commit has changed the table; a compaction, for example, replaces files that were read.
_OUTPACED: Final = (
    "DELTA_CONCURRENT_",
    "DELTA_FAILED_TO_MERGE_FIELDS",
    "DELTA_METADATA_CHANGED",
    "DELTA_PROTOCOL_CHANGED",
    "MetadataChangedException",
    "ProtocolChangedException",
)
_TRIES: Final = 5
_RECORD: Final = "jmsjca"
# Where Delta puts the version of the last commit in a session, to any table.
_LAST_COMMIT: Final = "spark.databricks.delta.lastCommitVersionInSession"
# Version of the only transaction of a batch with a table.
_VERSION: Final = "0"
# Numbers of the newest commits that are searched for the batch's commit, one after the other; `None`: all.
_LOOKED_AT: Final = (1, 100, None)
# A MERGE takes its transaction id from the session's settings, which threads share.
_MERGING: Final = threading.Lock()
_DELETES: Final = "_jms_deletes"
_RANK: Final = "_jms_rank"
# Metrics of a commit that count the batch's rows; the key tells whether the write is an upsert.
_METRICS: Final = {False: ("numOutputRows",), True: ("numTargetRowsInserted", "numTargetRowsUpdated")}


class DeltaSink:
    """A Delta Lake table.

    The rows of a batch are one commit. With `attempt.rejects_rows`, a message is rejected if a constraint
    refuses one of its rows: `CHECK`, `NOT NULL`, or the length of `VARCHAR` and `CHAR`. Testing constraints
    needs one more pass over the rows. With `overwrite`, only `CHECK` is tested before the write.

    Guarantee: the table has all rows of a batch once or none of them, even if a process dies at any point. If
    two attempts commit at the same time, Delta refuses one. Unless `write.replaces`, the first commit of a
    batch stands, even that of an attempt that has just been superseded. A later attempt writes nothing and
    takes over the rejects of the attempt that committed, which are recorded in the commit's `userMetadata`.
    An upsert is one `MERGE` with the same guarantee.
    """

    modes: Final = ("append", "overwrite", UPSERT)
    writes_once: Final = True
    arguments: Final = (
        "partition_by", "options", "cluster_by", "properties", "keys", "order_by", "delete_when", "widens",
    )  # fmt: skip
    reserved: Final = (
        "txnappid", "txnversion", "usermetadata", "mergeschema", "overwriteschema", "replacewhere",
        "partitionoverwritemode", "path",
    )  # fmt: skip

    def columns(self, df: DataFrame, write: TableWrite, attempt: TableAttempt) -> Mapping[str, str]:
        """See `TableSink.columns`."""
        from pyspark.errors import PySparkException  # noqa: PLC0415 - only jobs have pyspark

        try:
            return _DeltaWrite(df, write, attempt).columns()
        except PySparkException as error:
            _explain(error)
            raise

    def write(self, df: DataFrame, write: TableWrite, attempt: TableAttempt) -> int:
        """Write the rows in one commit, unless the table has this batch already; see `TableSink.write`.

        `write.table` is an absolute path, a URI, or a name in the catalog. `overwrite` keeps the rows of the
        newest batch only. `cluster_by` and `properties` apply only to a table that is created.

        Returns:
            The number of rows of the batch in the table; for an upsert, the number inserted or updated.

        Raises:
            ConfigurationError: Delta Lake isn't installed in Spark. Or the table has another format, a column
                of another type, or other partitions. Or a column's name needs Delta's column mapping.
            FencedError: A newer attempt has begun.
            PoisonMessageError: A row of an upsert lacks a key, and its message can't be rejected.
        """
        from pyspark.errors import PySparkException  # noqa: PLC0415 - only jobs have pyspark

        try:
            return _DeltaWrite(df, write, attempt).run()
        except PySparkException as error:
            _explain(error)
            raise


class _DeltaWrite:
    """One write of a batch to a Delta table."""

    def __init__(self, df: DataFrame, write: TableWrite, attempt: TableAttempt) -> None:
        self._spark = df.sparkSession
        self._table = write.table
        self._write = write
        self._attempt = attempt
        self._is_name = _is_name(write.table)
        self._in_sql = write.table if self._is_name else f"delta.`{write.table}`"
        self._is_upsert = write.mode == UPSERT
        self._deletes = f"coalesce({write.delete_when or 'false'}, false)"
        self._is_new = False
        self._given = df
        self._rows = stored_rows(write.table, df, attempt.batch_id)

    def columns(self) -> dict[str, str]:
        """Return the types of the table's columns."""
        if _describe(self._spark, self._in_sql) is None:
            return {}
        return {field.name: type_name(field.dataType) for field in self._read().schema.fields}

    def run(self) -> int:
        """Commit the rows and return the number of rows of the batch in the table."""
        if self._is_upsert:
            check_upsert(self._table, self._given, self._write)
        checks = self._checks()
        if checks and self._attempt.rejects_rows and self._attempt.rejects is not None:
            refused = _refused(self._table, self._rows, checks)
            if refused is not None:
                self._rows = without(self._rows, refused)
                self._attempt.rejects.refuse(refused)
        elif self._is_upsert and _refused(self._table, self._rows, missing_keys(self._write.keys)):
            raise PoisonMessageError(f"table {self._table}: a row has no value for a key of the upsert")
        check_fence(self._attempt.folder, self._attempt.fence)
        if self._is_new and (self._is_upsert or self._write.cluster_by or self._write.properties):
            self._create()
        self._commit_rows()
        check_fence(self._attempt.folder, self._attempt.fence)
        return self._outcome()

    def _commit_rows(self) -> None:
        """Commit the rows; retry if another job has just changed the table. Delta skips a repeated commit.

        Raises:
            ColumnTypesError: The other job has changed the type of a column.
        """
        from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with pyspark
        from pyspark.errors import PySparkException  # noqa: PLC0415 - only jobs have pyspark

        for number in range(_TRIES):
            try:
                return self._merge() if self._is_upsert else self._append()
            except (PySparkException, Py4JJavaError) as error:
                is_outpaced = any(name in str(error) for name in _OUTPACED)
                if not is_outpaced or number == _TRIES - 1:
                    raise
            if self._write.widens:
                self._widen()
            else:
                widened(self._table, self._read().schema, self._rows.schema)
        return None

    def _checks(self) -> list[str]:
        """Compare the columns of the rows with the table's, and return expressions to test the rows.

        For each constraint, the expression is the reason to refuse a row, or NULL.
        """
        keys = missing_keys(self._write.keys)
        found = _describe(self._spark, self._in_sql)
        self._is_new = found is None
        if found is None:
            return keys
        if found.format != "delta":
            raise ConfigurationError(f"table {self._table}: expected a Delta table, found {found.format}")
        checks: list[str] = []
        if found.has_constraints:
            checks += _constraints(self._rows, self._properties())
        if self._write.mode != "overwrite":
            if not self._is_upsert or self._write.partition_by:
                check_partitions(self._table, found.partitions, self._write.partition_by)
            columns = self._read().schema
            if self._write.widens:
                columns = self._widen()
            else:
                widened(self._table, columns, self._rows.schema)
            checks += _column_rules(columns, self._rows.schema)
        if self._write.delete_when:  # of a row that deletes, only the keys are used
            checks = [f"CASE WHEN NOT {self._deletes} THEN {check} END" for check in checks]
        return [*keys, *checks]

    def _widen(self) -> StructType:
        """Widen the table's columns that are too narrow for the rows, and return the table's columns.

        Rows of a narrower type are cast to the types of the table.

        Guarantee: after a kill during the changes, the next attempt makes the missing ones. The table's
        values don't change. If two batches do this at the same time, each makes the changes that are still
        missing.
        """
        for _ in range(_TRIES):
            found = self._read().schema
            wanted = widened(self._table, found, self._rows.schema, widens=True)
            changes = {
                f"ALTER COLUMN {'.'.join(map(quoted_name, path))} TYPE {new.simpleString()}": (
                    f"column {'.'.join(path)!r}: {type_name(old)} to {type_name(new)}"
                )
                for path, old, new in type_changes(found, wanted)
            }
            if changes and self._properties().get(_WIDENING) != "true":
                raise ConfigurationError(
                    f"table {self._table}: {'; '.join(changes.values())}: Delta's type widening is off, and "
                    f"readers older than Delta 3.2 can't read a table that has it. Nothing was written: "
                    f"ALTER TABLE {self._in_sql} SET TBLPROPERTIES ('{_WIDENING}' = 'true')"
                )
            for name in self._lacking(found):
                changes[f"ALTER COLUMN {quoted_name(name)} DROP NOT NULL"] = f"column {name!r}: may be NULL"
            if not changes:
                self._rows = cast_like(self._rows, wanted)
                return found
            check_fence(self._attempt.folder, self._attempt.fence)
            for change, said in changes.items():
                self._attempt.note_change(f"table {self._table}: {said}")
                if not self._change(change):
                    break  # look again: another batch has changed the table
        raise ConfigurationError(f"table {self._table}: other jobs keep changing it; try again later")

    def _change(self, change: str) -> bool:
        """Change a column; return `False` if another commit has just changed the table.

        Raises:
            ConfigurationError: Delta refuses, for example because a constraint names the column.
        """
        from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with pyspark
        from pyspark.errors import PySparkException  # noqa: PLC0415 - only jobs have pyspark

        try:
            self._spark.sql(f"ALTER TABLE {self._in_sql} {change}")
        except (PySparkException, Py4JJavaError) as error:
            if any(name in str(error) for name in _OUTPACED):
                return False
            (said, *_) = str(error).strip().splitlines()
            raise ConfigurationError(f"table {self._table}: {change}: refused: {said}") from error
        return True

    def _lacking(self, found: StructType) -> list[str]:
        """Return the table's NOT NULL columns for which some row has no value."""
        strict = [
            field.name for field in found.fields if not field.nullable and field.name not in self._write.keys
        ]
        if not strict:
            return []
        values = (quoted_name(name) if name in self._rows.columns else "NULL" for name in strict)
        tests = (f"max({value} IS NULL)" for value in values)
        row = self._rows.selectExpr(*tests).collect()[0]
        return [name for name, lacks in zip(strict, row, strict=True) if lacks]

    def _properties(self) -> dict[str, str]:
        return {
            row["key"]: row["value"]
            for row in self._spark.sql(f"SHOW TBLPROPERTIES {self._in_sql}").collect()
        }

    def _read(self) -> DataFrame:
        if self._is_name:
            return self._spark.read.table(self._table)
        return self._spark.read.format("delta").load(self._table)

    def _append(self) -> None:
        commit = {
            "txnAppId": f"jmsjca/{self._attempt.batch_id}",
            "txnVersion": _VERSION,
            "userMetadata": self._record(),
        }
        if self._write.replaces:
            # A later attempt has a higher version. So Delta commits it, and then skips an earlier attempt.
            commit["txnVersion"] = str(self._attempt.fence)
        replaces = self._write.replaces or (self._attempt.replaced and self._write.mode == "append")
        if replaces and not self._is_new and BATCH_COLUMN in self._read().columns:
            names = ", ".join(map(quoted_text, self._attempt.batch_ids))
            self._save(self._rows, "overwrite", commit | {"replaceWhere": f"{BATCH_COLUMN} IN ({names})"})
            return
        self._save(self._rows, self._write.mode, commit)

    def _save(self, rows: DataFrame, mode: str, options: Mapping[str, str]) -> None:
        writer = rows.write.format("delta").mode(mode).partitionBy(*self._write.partition_by)
        replaces_all = mode == "overwrite" and "replaceWhere" not in options
        writer = writer.option("overwriteSchema" if replaces_all else "mergeSchema", "true")
        writer = writer.options(**self._write.options, **options)
        if self._is_name:
            writer.saveAsTable(self._table)
        else:
            writer.save(self._table)

    def _create(self) -> None:
        """Create the table without rows; a crash after this leaves an empty table."""
        write, parts = self._write, []
        if write.partition_by:
            parts.append(f"PARTITIONED BY ({', '.join(map(quoted_name, write.partition_by))})")
        if write.cluster_by:
            parts.append(f"CLUSTER BY ({', '.join(map(quoted_name, write.cluster_by))})")
        if write.properties:
            listed = (
                f"{quoted_text(name)} = {quoted_text(value)}" for name, value in write.properties.items()
            )
            parts.append(f"TBLPROPERTIES ({', '.join(listed)})")
        with _view(self._rows) as view:
            self._spark.sql(
                f"CREATE TABLE IF NOT EXISTS {self._in_sql} USING delta {' '.join(parts)} "  # noqa: S608 - quoted
                f"AS SELECT * FROM {view} WHERE false"
            )

    def _merge(self) -> None:
        """Add missing columns to the table, then commit the newest row of each key by MERGE."""
        columns = [quoted_name(name) for name in self._rows.columns]
        if set(self._rows.columns) - set(self._read().columns):
            # Without rows, so that a crash before the MERGE only leaves additional columns.
            self._save(self._rows.limit(0), "append", {})
        order = f"{quoted_name(self._write.order_by)} DESC NULLS LAST, " if self._write.order_by else ""
        keys = [quoted_name(name) for name in self._write.keys]
        rank = (
            f"row_number() OVER (PARTITION BY {', '.join(keys)} "
            f"ORDER BY {order}jms_segment DESC, jms_position DESC)"
        )
        newest = self._rows.selectExpr("*", f"{self._deletes} AS {_DELETES}", f"{rank} AS {_RANK}")
        same = " AND ".join(f"t.{key} = s.{key}" for key in keys)
        newer = "true"
        if self._write.order_by:
            at = quoted_name(self._write.order_by)
            newer = f"(t.{at} IS NULL OR coalesce(s.{at} >= t.{at}, false))"
        updates = ", ".join(f"t.{name} = s.{name}" for name in columns)
        values = ", ".join(f"s.{name}" for name in columns)
        settings = {
            "spark.databricks.delta.write.txnAppId": f"jmsjca/{self._attempt.batch_id}",
            "spark.databricks.delta.write.txnVersion": _VERSION,
            "spark.databricks.delta.commitInfo.userMetadata": self._record(),
        }
        newest = newest.where(f"{_RANK} = 1").drop(_RANK)
        with _view(newest) as view, _MERGING, _settings(self._spark, settings):
            self._spark.sql(
                f"MERGE INTO {self._in_sql} AS t USING {view} AS s ON {same} "  # noqa: S608 - quoted
                f"WHEN MATCHED AND {newer} AND s.{_DELETES} THEN DELETE "
                f"WHEN MATCHED AND {newer} THEN UPDATE SET {updates} "
                f"WHEN NOT MATCHED AND NOT s.{_DELETES} THEN INSERT ({', '.join(columns)}) "
                f"VALUES ({values})"
            )

    def _record(self) -> str:
        """Return the commit's `userMetadata`: the attempt, and its rejects at the time of the commit."""
        rejects = self._attempt.rejects.files if self._attempt.rejects is not None else ()
        said = {"batch_id": self._attempt.batch_id, "fence": self._attempt.fence}
        return json.dumps({_RECORD: said | {"rejects": [asdict(file) for file in rejects]}})

    def _outcome(self) -> int:
        """Return the batch's number of rows; if an earlier attempt committed, take over its rejects."""
        record, rows = self._own_commit()
        for newest in () if record is not None else _LOOKED_AT:
            record, rows = self._commit(newest)
            if record is not None:
                break
        if record is not None and record.fence == self._attempt.fence and rows is not None:
            return rows
        if self._is_upsert and (record is None or rows is not None):
            # Without a record the MERGE changed nothing, so Delta made no commit.
            if record is not None and self._attempt.rejects is not None:
                self._attempt.rejects.adopt(record.rejects, self._given, None)
            return rows or 0
        return self._committed_before(record)

    def _own_commit(self) -> tuple[_Record | None, int | None]:
        """Return the record and the number of rows of this attempt's commit, each `None` if not found.

        Only the file of the session's last commit is read, which costs much less than Delta's history. The
        session's last commit may be another one: Delta has skipped this write, or another thread has
        committed to some table. Then this attempt's commit isn't found.

        It isn't found for a catalog table either. Its folder isn't read, because a catalog may forbid jobs to
        read a table's files.
        """
        from pyspark.errors import AnalysisException  # noqa: PLC0415 - only jobs have pyspark

        version = self._spark.conf.get(_LAST_COMMIT, None)
        if version is None or self._is_name:
            return None, None
        try:
            lines = self._spark.read.text(f"{self._table}/_delta_log/{int(version):020}.json").head(1)
            commit = json.loads(lines[0][0])["commitInfo"]
        except (AnalysisException, IndexError, KeyError, ValueError):
            return None, None  # the history has it
        record, rows = self._found(commit.get("userMetadata"), commit.get("operationMetrics"))
        is_own = record is not None and record.fence == self._attempt.fence
        return (record, rows) if is_own else (None, None)

    def _commit(self, newest: int | None) -> tuple[_Record | None, int | None]:
        """Return the record and the number of rows of the batch's commit, each `None` if not found.

        Args:
            newest: How many commits to search, the newest first; `None`: all.
        """
        limit = "" if newest is None else f" LIMIT {newest}"
        history = self._spark.sql(f"DESCRIBE HISTORY {self._in_sql}{limit}")
        if newest is None:
            history = history.where(history["userMetadata"].contains(json.dumps(self._attempt.batch_id)))
        # Without a further selection, Spark returns the rows of the command without starting a job.
        for row in history.collect():
            record, rows = self._found(row["userMetadata"], row["operationMetrics"])
            if record is not None:
                return record, rows
        return None, None

    def _found(
        self, said: str | None, metrics: Mapping[str, str] | None
    ) -> tuple[_Record | None, int | None]:
        """Return the record and the number of rows of a commit, each `None` if it isn't of the batch.

        Args:
            said: The commit's `userMetadata`.
            metrics: The commit's metrics.
        """
        record = _Record.parsed(said)
        if record is None or record.batch_id != self._attempt.batch_id:
            return None, None
        metrics = metrics or {}
        counts = [metrics[name] for name in _METRICS[self._is_upsert] if name in metrics]
        # If rows replaced by a replay share files with other batches, Delta copies the others' rows.
        copied = int(metrics.get("numCopiedRows", 0))
        return record, sum(map(int, counts)) - copied if counts else None

    def _committed_before(self, record: _Record | None) -> int:
        from pyspark.sql import functions as sql  # noqa: PLC0415 - only jobs have pyspark

        stored = self._read().where(sql.col(BATCH_COLUMN) == self._attempt.batch_id)
        if self._attempt.rejects is not None and ORIGIN in self._given.columns:
            names = None
            # An upsert stores only some of the rows, so stored messages can't be found by rows.
            if not self._is_upsert and "jms_segment" in stored.columns:
                origin = f"struct(jms_segment AS segment, jms_position AS position) AS {ORIGIN}"
                names = stored.selectExpr(origin).distinct()
            self._attempt.rejects.adopt(() if record is None else record.rejects, self._given, names)
        return stored.count()


@contextmanager
def _view(df: DataFrame) -> Iterator[str]:
    """Register rows as a temporary view within the context; yield its name."""
    name = f"jms_{uuid.uuid4().hex}"
    df.createOrReplaceTempView(name)
    try:
        yield name
    finally:
        df.sparkSession.catalog.dropTempView(name)


@contextmanager
def _settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change settings of the session within the context, and restore them at the end."""
    before: dict[str, str | None] = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """The attempt that made a commit and its rejects, from the commit's `userMetadata`."""

    batch_id: str
    fence: int
    rejects: tuple[RejectsFile, ...]

    @classmethod
    def parsed(cls, text: str | None) -> _Record | None:
        """Return the record, or `None` if the text is not a record."""
        try:
            said = json.loads(text or "")[_RECORD]
            rejects = tuple(RejectsFile.checked(file) for file in said["rejects"])
            return cls(batch_id=said["batch_id"], fence=said["fence"], rejects=rejects)
        except (ValueError, TypeError, KeyError):
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Described:
    """The description of a table in the catalog."""

    format: str
    partitions: tuple[str, ...]
    has_constraints: bool


def _describe(spark: SparkSession, table: str) -> _Described | None:
    """Return the description of a table, without reading its files; `None` if the table doesn't exist."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - only jobs have pyspark

    try:
        rows = spark.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()
    except AnalysisException as error:
        if error.getCondition() in {*_ABSENT, "TABLE_OR_VIEW_NOT_FOUND"} or any(
            name in str(error) for name in _ABSENT
        ):
            return None
        raise
    section, partitions, details = "", [], dict[str, str]()
    for name, said in ((row["col_name"], row["data_type"]) for row in rows):
        if name.startswith("# ") or not name:
            section = section if name == "# col_name" else name
        elif section == "# Partition Information":
            partitions.append(name)
        elif section == "# Detailed Table Information":
            details[name] = said
    return _Described(
        format=details.get("Provider", "").lower(),
        partitions=tuple(partitions),
        has_constraints=_CHECK in details.get("Table Properties", ""),
    )


def _refused(table: str, rows: DataFrame, checks: Sequence[str]) -> DataFrame | None:
    """Return the messages with a row that violates a rule, cached in Spark; `None` if there are none."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - only jobs have pyspark

    why = sql.concat(sql.lit(f"table {table}: "), sql.expr(f"coalesce({', '.join(checks)})"))
    judged = rows.select("jms_segment", "jms_position", why.alias("why")).where("why IS NOT NULL")
    found = judged.groupBy("jms_segment", "jms_position").agg(sql.min("why").alias("exception_message"))
    refused = found.selectExpr(
        f"struct(jms_segment AS segment, jms_position AS position) AS {ORIGIN}", "exception_message"
    ).persist()
    if refused.count():
        return refused
    refused.unpersist()
    return None


def _constraints(rows: DataFrame, properties: Mapping[str, str]) -> Iterator[str]:
    """Yield an expression for each CHECK constraint: a reason for a row that violates it, otherwise NULL."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - only jobs have pyspark

    for key, condition in sorted(properties.items()):
        if not key.startswith(_CHECK):
            continue
        used = [
            quoted_name(name)
            for name in rows.columns
            if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", condition, re.IGNORECASE)
        ]
        values = shown(f"to_json(struct({', '.join(used)}), map('ignoreNullFields', 'false'))", _SHOWN_VALUES)
        said = quoted_text(f"the CHECK constraint '{key.removeprefix(_CHECK)}' refuses the row")
        reason = f"concat({said}, ', found the values ', {values})" if used else said
        # For Delta, a condition that is NULL is violated.
        rule = f"CASE WHEN NOT coalesce({condition}, false) THEN {reason} END"
        try:
            rows.selectExpr(rule)
        except AnalysisException:
            continue  # the condition uses a column that the rows lack: Delta tests it
        yield rule


def _column_rules(found: StructType, rows: StructType, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield a SQL expression for each NOT NULL column and each length limit.

    For a row that breaks the rule, the expression evaluates to the reason as text, otherwise to NULL.

    Args:
        found: The table's columns.
        rows: The columns of the rows.
        path: Path to these columns; empty at the top level.
    """
    from pyspark.sql.types import StructType  # noqa: PLC0415 - only jobs have pyspark

    for field in found.fields:
        if field.name not in rows.names:
            continue
        place, kind = (*path, field.name), rows[field.name].dataType
        value, name = ".".join(map(quoted_name, place)), ".".join(place)
        if not field.nullable:
            said = quoted_text(f"column '{name}' is NOT NULL in the table, found null")
            yield f"CASE WHEN {value} IS NULL THEN {said} END"
        if isinstance(field.dataType, StructType) and isinstance(kind, StructType):
            yield from _column_rules(field.dataType, kind, place)
        declared = str(field.metadata.get(_LENGTH_KEY, ""))
        if length := _LENGTH.fullmatch(declared):
            reason = misfit(name, declared.upper(), value)
            yield f"CASE WHEN length({value}) > {length[1]} THEN {reason} END"


def _is_name(table: str) -> bool:
    if urlsplit(table).scheme or table.startswith("/"):
        return False
    if _NAME.fullmatch(table):
        return True
    raise ConfigurationError(
        f"table {table!r}: expected an absolute path, a URI such as s3a://... or a name such as sales.orders"
    )


def _explain(error: PySparkException) -> None:
    """Raise an error with the remedy if Spark isn't configured for Delta."""
    said = str(error)
    settings = " ".join(f"--conf {name}={value}" for name, value in SESSION.items())
    if "DATA_SOURCE_NOT_FOUND" in said or "DescribeDelta" in said or "PARSE_SYNTAX_ERROR" in said:
        raise ConfigurationError(
            f"format delta: Delta Lake is not installed in Spark; submit the job with --packages "
            f"{PACKAGES} {settings}"
        ) from error
    if "DELTA_INVALID_CHARACTERS_IN_COLUMN_NAME" in said:
        raise ConfigurationError(
            "format delta: a column's name has a blank, a line break or one of ,;{}()=. Rename the column, "
            "or turn on Delta's column mapping. For a new table submit the job with --conf "
            f"spark.databricks.delta.properties.defaults.{_MAPPING.removeprefix('delta.')}=name. For another "
            f"table run ALTER TABLE ... SET TBLPROPERTIES ('{_MAPPING}' = 'name')"
        ) from error
    if "DELTA_CONFIGURE_SPARK_SESSION" in said:
        raise ConfigurationError(f"format delta: submit the job with {settings}") from error
