"""A folder of Parquet files, in which each batch is the partition `jms_batch_id=<id>`.

On a file system of this machine, the rows are written to `_staging/` inside the table, which Spark doesn't
read, and become visible by one rename. Elsewhere (HDFS, object stores) Spark overwrites the partition.

The table's columns are stored in `_common_metadata`, a Parquet file without rows. Spark reads a table's
columns from there, so that readers see every column of every batch.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pyarrow.parquet as pq

from airflow_provider_jmsjca.errors import ConfigurationError, SpoolError
from airflow_provider_jmsjca.spark.tables import BATCH_COLUMN, TableAttempt, TableWrite
from airflow_provider_jmsjca.spark.tables.columns import check_partitions, stored_rows, type_name, widened
from airflow_provider_jmsjca.spool.attempts import check_fence, committing
from airflow_provider_jmsjca.spool.files.posix import locked, synchronize_folder, synchronize_tree
from airflow_provider_jmsjca.spool.manifest import path_for_spark, uri_to_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

STAGING: Final = "_staging"
COLUMNS: Final = "_common_metadata"
_SPARK_COLUMNS: Final = b"org.apache.spark.sql.parquet.row.metadata"
# By default, Parquet's writer checks the size of pages and row groups only every 100 rows. If messages are
# large, that many rows can exceed a worker's memory.
_BY_SIZE: Final[Mapping[str, str]] = {
    "parquet.page.size.row.check.min": "1",
    "parquet.block.size.row.check.min": "1",
}
_LOCK_SECONDS: Final = 60.0


class ParquetSink:
    """A folder of Parquet files; see `replace_by_rename` and `replace_by_overwrite`."""

    modes: Final = ("append",)
    writes_once: Final = False
    arguments: Final = ("partition_by", "options", "widens")
    reserved: Final = ("path", "partitionoverwritemode")

    def columns(self, df: DataFrame, write: TableWrite, attempt: TableAttempt) -> Mapping[str, str]:
        """See `TableSink.columns`; columns that only this batch has are left out."""
        path, name = local_path(df, write.table), attempt.batch_id
        table: _LocalTable | _RemoteTable
        if path is None:
            table = _RemoteTable(write.table, df.sparkSession, without=name)
        else:
            table = _LocalTable(path, df.sparkSession, without=name)
        found = table.columns()
        return {} if found is None else {field.name: type_name(field.dataType) for field in found.fields}

    def write(self, df: DataFrame, write: TableWrite, attempt: TableAttempt) -> int:
        """See `TableSink.write`."""
        if write.widens:
            raise ConfigurationError(
                "write: evolve='widen': not with format parquet: the files of earlier batches keep their "
                "type, and a folder is read with one type. Its columns can be NULL anyway. Use a Delta "
                "table, or write to another folder"
            )
        path = local_path(df, write.table)
        if path is None:
            return replace_by_overwrite(df, write.table, attempt, write.partition_by, write.options)
        return replace_by_rename(df, path, attempt, write.partition_by, write.options)


def replace_by_rename(
    df: DataFrame,
    table: Path,
    attempt: TableAttempt,
    partition_by: Sequence[str],
    options: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Write the rows to a staging folder, then replace the batch's rows in the table by a rename.

    Guarantee: the table has all of these rows or none of them, even if the process dies at any point. After
    the return, they survive a crash of the machine. Rows of this batch from an earlier attempt, and the rows
    of `attempt.replaced`, are removed right before these rows become visible. A superseded attempt changes
    nothing in the table. Columns are added to the table right before the rows that have them.

    Args:
        df: The rows.
        table: The table's folder, which driver and executors must see under this path; created if missing.
        attempt: The attempt that writes.
        partition_by: Further columns to partition by, below the batch.
        options: Options of Spark's writer, such as `compression`.

    Returns:
        The number of rows written.

    Raises:
        ConfigurationError: A column has another type in the table, or the table is partitioned by other
            columns.
        FencedError: A newer attempt has begun.
        SpoolError: A file can't be written.
    """
    spark = df.sparkSession
    aside = table / STAGING / attempt.batch_id
    staged = aside / f"new-{uuid.uuid4().hex}"
    place, *replaced = (table / f"{BATCH_COLUMN}={name}" for name in attempt.batch_ids)
    rows = stored_rows(str(table), df)
    stored = rows.drop(*partition_by).schema
    others = _LocalTable(table, spark, without=attempt.batch_id)
    try:
        check_partitions(str(table), others.partitions(), partition_by)
        widened(str(table), others.columns(), stored)
        with committing(attempt.folder):
            check_fence(attempt.folder, attempt.fence)
            if aside.exists():
                shutil.rmtree(aside)
        writer = rows.write.options(**{**_BY_SIZE, **options}).partitionBy(*partition_by)
        writer.parquet(path_for_spark(staged))
        count = sum(int(pq.read_metadata(file).num_rows) for file in staged.rglob("*.parquet"))
        synchronize_tree(staged)
        for folder in (table, table.parent):  # they may be new
            synchronize_folder(folder)
        is_placed = False
        while not is_placed:
            found = others.columns()
            columns = widened(str(table), found, stored)
            document = None
            if columns != found or not (table / COLUMNS).exists():
                folder = aside / f"columns-{uuid.uuid4().hex}"
                _write_columns(spark, columns, path_for_spark(folder))
                (document,) = folder.glob("part-*.parquet")
            with committing(attempt.folder), _locked(table):
                check_fence(attempt.folder, attempt.fence)
                if others.columns() != found:
                    continue  # another batch has just added columns
                if document is not None:
                    document.replace(table / COLUMNS)
                for folder in (*replaced, place):
                    if folder.exists():
                        folder.rename(aside / f"old-{uuid.uuid4().hex}")
                staged.rename(place)
                synchronize_folder(table)
                shutil.rmtree(aside)
                is_placed = True
    except OSError as error:
        raise SpoolError(f"{place}: can't be written: {error.strerror or error}") from error
    return count


def replace_by_overwrite(
    df: DataFrame,
    table: str,
    attempt: TableAttempt,
    partition_by: Sequence[str],
    options: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Overwrite the batch's partition by Spark.

    Guarantee: if a batch is written twice, the table has its rows once. The fence is checked before and after
    the write. If a newer attempt begins during the write, the older one may still finish, with the same rows.
    If this attempt has no rows, the rows of an earlier attempt stay. The rows of `attempt.replaced` are
    removed after these rows have become visible. If two batches add columns at the same time, readers may not
    see the columns of one batch until that batch is written again.

    Args:
        df: The rows.
        table: URI of the table's folder; created if missing.
        attempt: The attempt that writes.
        partition_by: Further columns to partition by, below the batch.
        options: Options of Spark's writer, such as `compression`.

    Returns:
        The number of rows written.

    Raises:
        ConfigurationError: A column has another type in the table, or the table is partitioned by other
            columns.
        FencedError: A newer attempt has begun.
    """
    from pyspark.sql import Observation  # noqa: PLC0415 - only jobs have pyspark
    from pyspark.sql import functions as sql  # noqa: PLC0415 - as above

    check_fence(attempt.folder, attempt.fence)
    spark = df.sparkSession
    rows = stored_rows(table, df)
    others = _RemoteTable(table, spark, without=attempt.batch_id)
    check_partitions(table, others.partitions(), partition_by)
    found = others.columns()
    columns = widened(table, found, rows.drop(*partition_by).schema)
    if columns != found or not others.is_recorded():
        others.record(columns)
    observation = Observation()
    rows = rows.withColumn(BATCH_COLUMN, sql.lit(attempt.batch_id))
    rows = rows.observe(observation, sql.count("*").alias("rows"))
    (
        rows.write.mode("overwrite")
        .options(**{**_BY_SIZE, **options}, partitionOverwriteMode="dynamic")
        .partitionBy(BATCH_COLUMN, *partition_by)
        .parquet(table)
    )
    check_fence(attempt.folder, attempt.fence)
    others.remove(attempt.replaced)
    return int(observation.get["rows"])


class _LocalTable:
    """A table on this machine's file system.

    Args:
        table: The table's folder.
        spark: The session.
        without: Name of a batch whose files are ignored, because they are being replaced.
    """

    def __init__(self, table: Path, spark: SparkSession, *, without: str) -> None:
        self._table = table
        self._spark = spark
        self._own = f"{BATCH_COLUMN}={without}"

    def _a_file(self) -> Path | None:
        batches = (path for path in self._table.glob(f"{BATCH_COLUMN}=*") if path.name != self._own)
        return next(
            (file.relative_to(self._table) for path in batches for file in path.rglob("*.parquet")), None
        )

    def partitions(self) -> list[str] | None:
        """Return the partition columns without the batch column; `None` if the table has no rows."""
        file = self._a_file()
        return None if file is None else _partitions(file.parts)

    def columns(self) -> StructType | None:
        """Return the table's columns except for its partition columns; `None` if the table has no rows."""
        from pyspark.sql.types import StructType  # noqa: PLC0415 - only jobs have pyspark

        file = self._a_file()
        if file is None:
            return None
        try:
            found = (pq.read_metadata(self._table / COLUMNS).metadata or {}).get(_SPARK_COLUMNS)
        except FileNotFoundError:
            found = None
        if found is not None:
            return StructType.fromJson(json.loads(found))
        return _all_columns(self._spark, path_for_spark(self._table), _partitions(file.parts))


class _RemoteTable:
    """A table on one of Hadoop's file systems.

    Args:
        table: URI of the table's folder.
        spark: The session.
        without: Name of a batch whose files are ignored, because they are being replaced.
    """

    def __init__(self, table: str, spark: SparkSession, *, without: str) -> None:
        self._table = table
        self._spark = spark
        self._own = f"{BATCH_COLUMN}={without}"
        context: Any = spark.sparkContext
        # PySpark has no public way to a file system of Hadoop's.
        self._path: Any = context._jvm.org.apache.hadoop.fs.Path  # noqa: SLF001
        self._files: Any = self._path(table).getFileSystem(context._jsc.hadoopConfiguration())  # noqa: SLF001

    def _a_file(self) -> tuple[str, ...] | None:
        table = self._path(self._table)
        if not self._files.exists(table):
            return None
        root = self._files.resolvePath(table).toString()
        for folder in self._files.listStatus(table):
            name = folder.getPath().getName()
            if name.startswith(f"{BATCH_COLUMN}=") and name != self._own:
                found = self._files.listFiles(folder.getPath(), True)
                while found.hasNext():
                    path = found.next().getPath().toString()
                    if path.endswith(".parquet"):
                        return tuple(path.removeprefix(root).strip("/").split("/"))
        return None

    def partitions(self) -> list[str] | None:
        """Return the partition columns without the batch column; `None` if the table has no rows."""
        file = self._a_file()
        return None if file is None else _partitions(file)

    def columns(self) -> StructType | None:
        """Return the table's columns except for its partition columns; `None` if the table has no rows."""
        file = self._a_file()
        if file is None:
            return None
        if self.is_recorded():
            return self._spark.read.parquet(self._path(self._table, COLUMNS).toString()).schema
        return _all_columns(self._spark, self._table, _partitions(file))

    def is_recorded(self) -> bool:
        """Return whether the table's columns are recorded in `_common_metadata`."""
        return bool(self._files.exists(self._path(self._table, COLUMNS)))

    def record(self, columns: StructType) -> None:
        """Record the table's columns in `_common_metadata`."""
        staged = self._path(self._table, f"{STAGING}/columns-{uuid.uuid4().hex}")
        _write_columns(self._spark, columns, staged.toString())
        (file,) = (
            each for each in self._files.listStatus(staged) if each.getPath().getName().startswith("part-")
        )
        record = self._path(self._table, COLUMNS)
        self._files.delete(record, False)
        self._files.rename(file.getPath(), record)
        self._files.delete(staged, True)

    def remove(self, batch_ids: Sequence[str]) -> None:
        """Remove the rows of other batches."""
        for name in batch_ids:
            self._files.delete(self._path(self._table, f"{BATCH_COLUMN}={name}"), True)


def _partitions(file: Sequence[str]) -> list[str]:
    """Return the partition columns in the names of a file's folders, below the batch's folder."""
    return [folder.partition("=")[0] for folder in file[1:-1]]


def _all_columns(spark: SparkSession, table: str, partitions: Sequence[str]) -> StructType:
    """Return the columns of a table without `_common_metadata`, by reading the schemas of all of its files.

    Raises:
        ConfigurationError: A column has different types in the files.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - only jobs have pyspark

    try:
        found = spark.read.option("mergeSchema", "true").parquet(table)
    except PySparkException as error:
        (what, *_) = str(error).strip().splitlines()
        raise ConfigurationError(
            f"table {table}: its batches have columns of the same name and different types; write to another "
            f"table: {what}"
        ) from error
    return found.drop(BATCH_COLUMN, *partitions).schema


def _write_columns(spark: SparkSession, columns: StructType, place: str) -> None:
    """Write one file with these columns and without rows, by Spark."""
    spark.createDataFrame([], columns).coalesce(1).write.parquet(place)


@contextmanager
def _locked(table: Path) -> Iterator[None]:
    """Keep other batches from changing the table's columns within the context."""
    with locked(os.open(table, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), table, _LOCK_SECONDS):
        yield


def local_path(df: DataFrame, table: str) -> Path | None:
    """Return the table's folder if it is on a file system of this machine; otherwise `None`.

    Raises:
        ConfigurationError: The path is neither absolute nor a URI.
    """
    scheme = urlsplit(table).scheme
    if scheme:
        found = uri_to_path(table) if scheme == "file" else None
        return found if isinstance(found, Path) else None
    if not table.startswith("/"):
        raise ConfigurationError(
            f"table path {table!r}: expected an absolute path or a URI such as file:///..."
        )
    # PySpark has no public way to resolve a path without scheme.
    default = df.sparkSession.sparkContext._jsc.hadoopConfiguration().get("fs.defaultFS")  # noqa: SLF001
    return Path(table) if str(default).startswith("file:") else None
