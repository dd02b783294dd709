"""Writing a batch to a Parquet table so that doing it twice leaves one copy.

The table is a folder; each batch is its partition `batch_id=<id>`. On a file system of this machine the rows
are written to `_staging/` inside the table, which Spark doesn't read, and appear by one rename. Elsewhere
(HDFS, object stores) Spark itself overwrites the partition.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import pyarrow.parquet as pq

from airflow_provider_jmsjca.errors import ConfigurationError, SpoolError
from airflow_provider_jmsjca.spark.attempts import check_fence, committing
from airflow_provider_jmsjca.spark.manifest import uri_to_path
from airflow_provider_jmsjca.spark.sealing import synchronize_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BATCH_COLUMN: Final = "batch_id"
STAGING: Final = "_staging"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Who writes.

    Attributes:
        batch_id: Names the partition.
        folder: The batch's folder, for the fence.
        fence: This attempt's number.
    """

    batch_id: str
    folder: Path
    fence: int


def replace_by_rename(df: DataFrame, table: Path, attempt: Attempt, partition_by: Sequence[str]) -> int:
    """Write the rows aside and put them in the place of what the batch has in the table.

    Guarantee: the table has all of these rows or none of them, whenever the process dies; where an earlier
    attempt had put rows of this batch, those leave the moment before these appear. An attempt that was
    fenced off changes nothing in the table.

    Args:
        df: The rows.
        table: The table's folder; created if missing.
        attempt: Who writes.
        partition_by: Further columns to partition by, below the batch.

    Returns:
        How many rows were written.

    Raises:
        FencedError: A newer attempt has begun.
        SpoolError: The operating system refused.
    """
    aside = table / STAGING / attempt.batch_id
    staged, replaced = aside / f"new-{uuid.uuid4().hex}", aside / f"old-{uuid.uuid4().hex}"
    place = table / f"{BATCH_COLUMN}={attempt.batch_id}"
    try:
        with committing(attempt.folder):
            check_fence(attempt.folder, attempt.fence)
            if aside.exists():
                shutil.rmtree(aside)
        rows = df.drop(BATCH_COLUMN)
        rows.write.partitionBy(*partition_by).parquet(staged.absolute().as_uri())
        count = sum(int(pq.read_metadata(file).num_rows) for file in staged.rglob("*.parquet"))
        with committing(attempt.folder):
            check_fence(attempt.folder, attempt.fence)
            if place.exists():
                place.rename(replaced)
            staged.rename(place)
            synchronize_folder(table)
            shutil.rmtree(aside)
    except OSError as error:
        raise SpoolError(f"{place}: can't be written: {error.strerror or error}") from error
    return count


def replace_by_overwrite(df: DataFrame, table: str, attempt: Attempt, partition_by: Sequence[str]) -> int:
    """Let Spark overwrite the batch's partition; arguments, result and errors as `replace_by_rename`.

    Guarantee: written twice there is one copy. The fence is looked at before and after; an older attempt that
    is in the middle when a newer one begins may still finish, with the same rows. A batch without rows leaves
    what an earlier attempt wrote.
    """
    from pyspark.sql import Observation  # noqa: PLC0415 - only jobs have pyspark
    from pyspark.sql import functions as sql  # noqa: PLC0415 - as above

    check_fence(attempt.folder, attempt.fence)
    observation = Observation()
    rows = df.withColumn(BATCH_COLUMN, sql.lit(attempt.batch_id))
    rows = rows.observe(observation, sql.count("*").alias("rows"))
    (
        rows.write.mode("overwrite")
        .option("partitionOverwriteMode", "dynamic")
        .partitionBy(BATCH_COLUMN, *partition_by)
        .parquet(table)
    )
    check_fence(attempt.folder, attempt.fence)
    return int(observation.get["rows"])


def local_path(df: DataFrame, table: str) -> Path | None:
    """Return the table's folder if it is on a file system of this machine, else `None`.

    Raises:
        ConfigurationError: The path is neither absolute nor a URI.
    """
    scheme = urlsplit(table).scheme
    if scheme:
        return uri_to_path(table) if scheme == "file" else None
    if not table.startswith("/"):
        raise ConfigurationError(
            f"table path {table!r}: expected an absolute path or a URI such as file:///..."
        )
    # PySpark has no public way to ask what a path without scheme means.
    default = df.sparkSession.sparkContext._jsc.hadoopConfiguration().get("fs.defaultFS")  # noqa: SLF001
    return Path(table) if str(default).startswith("file:") else None
