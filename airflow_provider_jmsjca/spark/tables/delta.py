"""A Delta Lake table, by its path or by its name in Spark's catalog.

Each batch is one commit, which carries the batch's id as Delta's transaction id: Delta leaves out what it has
committed before. The rows get the column `jms_batch_id`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.spark.tables import BATCH_COLUMN, TableAttempt
from airflow_provider_jmsjca.spark.tables.columns import check_partitions, stored_rows, widened
from airflow_provider_jmsjca.spool.attempts import check_fence

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, Row, SparkSession

PACKAGES: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
SESSION: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""What Delta wants of a Spark session."""
MODES: Final = ("append", "overwrite")
_NAME: Final = re.compile(r"(?:(?:\w+|`[^`]+`)\.){0,2}(?:\w+|`[^`]+`)")
_ABSENT: Final = ("DELTA_TABLE_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE", "DELTA_PATH_DOES_NOT_EXIST")
# The number of the only transaction that a batch has with a table.
_VERSION: Final = 0


def write_once(
    df: DataFrame,
    table: str,
    attempt: TableAttempt,
    *,
    mode: str = "append",
    partition_by: Sequence[str] = (),
) -> int:
    """Write the rows in one commit, unless the table has this batch.

    Guarantee: the table has all of these rows once or none of them, whenever a process dies. Of two attempts
    that commit at the same moment Delta refuses one. What an attempt commits that is overtaken meanwhile
    counts; the newer attempt leaves it as it is.

    Args:
        df: The rows.
        table: Absolute path, URI, or name in the catalog; created if missing.
        attempt: Who writes.
        mode: `append`, or `overwrite` for a table that has the rows of the newest batch alone.
        partition_by: Columns to partition a new table by.

    Returns:
        How many rows of the batch the table has.

    Raises:
        ConfigurationError: Spark has no Delta Lake; the table is of another format, has a column of this name
            and another type, or is partitioned otherwise.
        FencedError: A newer attempt has begun.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - only jobs have pyspark
    from pyspark.sql import functions as sql  # noqa: PLC0415 - as above

    is_name = _is_name(table)
    rows = stored_rows(table, df).withColumn(BATCH_COLUMN, sql.lit(attempt.batch_id))
    spark = df.sparkSession
    try:
        detail = _detail(spark, table if is_name else f"delta.`{table}`")
        if detail is not None and mode == "append":
            if detail["format"] != "delta":
                raise ConfigurationError(f"table {table}: expected a Delta table, found {detail['format']}")
            check_partitions(table, detail["partitionColumns"], partition_by)
            widened(table, (spark.read.table(table) if is_name else _load(spark, table)).schema, rows.schema)
        check_fence(attempt.folder, attempt.fence)
        writer = rows.write.format("delta").mode(mode).partitionBy(*partition_by)
        writer = writer.option("txnAppId", f"jmsjca/{attempt.batch_id}").option("txnVersion", _VERSION)
        writer = writer.option("mergeSchema" if mode == "append" else "overwriteSchema", "true")
        if is_name:
            writer.saveAsTable(table)
        else:
            writer.save(table)
        check_fence(attempt.folder, attempt.fence)
        written = spark.read.table(table) if is_name else _load(spark, table)
        return written.where(sql.col(BATCH_COLUMN) == attempt.batch_id).count()
    except PySparkException as error:
        _explain(error)
        raise


def _is_name(table: str) -> bool:
    if urlsplit(table).scheme or table.startswith("/"):
        return False
    if _NAME.fullmatch(table):
        return True
    raise ConfigurationError(
        f"table {table!r}: expected an absolute path, a URI such as s3a://... or a name such as sales.orders"
    )


def _load(spark: SparkSession, table: str) -> DataFrame:
    return spark.read.format("delta").load(table)


def _detail(spark: SparkSession, table: str) -> Row | None:
    """Return what Delta says of a table, or `None` if there is none."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - only jobs have pyspark

    try:
        return spark.sql(f"DESCRIBE DETAIL {table}").first()
    except AnalysisException as error:
        if error.getCondition() in {*_ABSENT, "TABLE_OR_VIEW_NOT_FOUND"} or any(
            name in str(error) for name in _ABSENT
        ):
            return None
        raise


def _explain(error: PySparkException) -> None:
    """Say what to do where Spark isn't made ready for Delta."""
    said = str(error)
    settings = " ".join(f"--conf {name}={value}" for name, value in SESSION.items())
    if "DATA_SOURCE_NOT_FOUND" in said or "DescribeDelta" in said or "PARSE_SYNTAX_ERROR" in said:
        raise ConfigurationError(
            f"format delta: Spark has no Delta Lake; submit the job with --packages {PACKAGES} {settings}"
        ) from error
    if "DELTA_CONFIGURE_SPARK_SESSION" in said:
        raise ConfigurationError(f"format delta: submit the job with {settings}") from error
