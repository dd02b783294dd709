"""A Delta Lake table, by its path or by its name in Spark's catalog.

Each batch is one commit, which carries the batch's id as Delta's transaction id: Delta leaves out what it has
committed before. The rows get the column `jms_batch_id`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.spark.tables import BATCH_COLUMN, TableAttempt, Written
from airflow_provider_jmsjca.spark.tables.columns import (
    ORIGIN,
    check_partitions,
    misfit,
    quoted_name,
    quoted_text,
    shown,
    stored_rows,
    widened,
    without,
)
from airflow_provider_jmsjca.spool.attempts import check_fence

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType

PACKAGES: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
SESSION: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""What Delta wants of a Spark session."""
MODES: Final = ("append", "overwrite")
_NAME: Final = re.compile(r"(?:(?:\w+|`[^`]+`)\.){0,2}(?:\w+|`[^`]+`)")
_ABSENT: Final = ("DELTA_TABLE_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE", "DELTA_PATH_DOES_NOT_EXIST")
_CHECK: Final = "delta.constraints."
_LENGTH: Final = re.compile(r"(?:var)?char\(([0-9]+)\)")
_LENGTH_KEY: Final = "__CHAR_VARCHAR_TYPE_STRING"
_SHOWN_VALUES: Final = 100
_MAPPING: Final = "delta.columnMapping.mode"
# The number of the only transaction that a batch has with a table.
_VERSION: Final = 0


def write_once(
    df: DataFrame,
    table: str,
    attempt: TableAttempt,
    *,
    mode: str = "append",
    partition_by: Sequence[str] = (),
) -> Written:
    """Write the rows in one commit, unless the table has this batch.

    With `attempt.rejects_rows`, messages leave the batch whose rows the table's constraints refuse: `CHECK`,
    `NOT NULL`, and the length of `VARCHAR` and `CHAR`. A table with constraints costs one more pass over the
    rows. With `overwrite` only `CHECK` is looked at.

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
        How many rows of the batch the table has, and the refused messages.

    Raises:
        ConfigurationError: Spark has no Delta Lake; the table is of another format, has a column of this name
            and another type, or is partitioned otherwise; or a name needs Delta's column mapping.
        FencedError: A newer attempt has begun.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - only jobs have pyspark
    from pyspark.sql import functions as sql  # noqa: PLC0415 - as above

    is_name = _is_name(table)
    rows = stored_rows(table, df).withColumn(BATCH_COLUMN, sql.lit(attempt.batch_id))
    spark = df.sparkSession
    try:
        detail = _detail(spark, table if is_name else f"delta.`{table}`")
        checks: list[str] = []
        if detail is not None and detail["format"] == "delta":
            checks += _constraints(rows, detail)
        if detail is not None and mode == "append":
            if detail["format"] != "delta":
                raise ConfigurationError(f"table {table}: expected a Delta table, found {detail['format']}")
            check_partitions(table, detail["partitionColumns"], partition_by)
            found = (spark.read.table(table) if is_name else _load(spark, table)).schema
            widened(table, found, rows.schema)
            checks += _column_rules(found, rows.schema)
        refused = _refused(table, rows, checks) if checks and attempt.rejects_rows else None
        if refused is not None:
            rows = without(rows, refused)
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
        count = written.where(sql.col(BATCH_COLUMN) == attempt.batch_id).count()
        return Written(rows=count, refused=refused)
    except PySparkException as error:
        _explain(error)
        raise


def _refused(table: str, rows: DataFrame, checks: Sequence[str]) -> DataFrame | None:
    """Return the messages of which a row breaks a rule, kept in Spark's memory; `None` if there are none."""
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


def _constraints(rows: DataFrame, detail: Row) -> Iterator[str]:
    """Yield an expression for each CHECK constraint: the reason, or NULL for a row that satisfies it."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - only jobs have pyspark

    for key, condition in sorted(detail["properties"].items()):
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
        # Delta takes NULL for a violation.
        rule = f"CASE WHEN NOT coalesce({condition}, false) THEN {reason} END"
        try:
            rows.selectExpr(rule)
        except AnalysisException:
            continue  # about a column that the rows don't have: Delta decides
        yield rule


def _column_rules(found: StructType, rows: StructType, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield an expression for each NOT NULL column and each length; as `_constraints`."""
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
    if "DELTA_INVALID_CHARACTERS_IN_COLUMN_NAME" in said:
        raise ConfigurationError(
            "format delta: a column's name has a blank, a line break or one of ,;{}()=. Rename the column, "
            "or turn on Delta's column mapping. For a new table submit the job with --conf "
            f"spark.databricks.delta.properties.defaults.{_MAPPING.removeprefix('delta.')}=name. For another "
            f"table run ALTER TABLE ... SET TBLPROPERTIES ('{_MAPPING}' = 'name')"
        ) from error
    if "DELTA_CONFIGURE_SPARK_SESSION" in said:
        raise ConfigurationError(f"format delta: submit the job with {settings}") from error
