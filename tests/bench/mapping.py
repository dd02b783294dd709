"""Bodies to columns: the job's mapping, which checks every value, beside Spark's plain `from_json`."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider_jmsjca.spark.mapping import map_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS: Final = (10, 50, 100)
# So many that what Spark takes once for each query, to plan and compile it, counts little.
_FIELDS: Final = 20_000_000
_ROUNDS: Final = 3
_MOST: Final = 3.0
# In turn, so that each width has all of them.
_KINDS: Final = (
    ("BIGINT NOT NULL", "id * {n}"),
    ("DOUBLE", "id / {n}"),
    ("STRING", "concat('text ', id)"),
    ("BOOLEAN", "id % {n} = 0"),
)


def report() -> Iterator[str]:
    """Yield a line for each number of columns."""
    with warnings.catch_warnings(), tempfile.TemporaryDirectory(prefix="jms-mapping-") as folder:
        warnings.simplefilter("ignore")  # pyspark's own
        from pyspark.sql import SparkSession  # noqa: PLC0415 - slow to import

        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "ERROR")
            .getOrCreate()
        )
        try:
            for columns in _COLUMNS:
                yield _line(spark, columns, str(Path(folder) / str(columns)))
        finally:
            spark.stop()


def _line(spark: SparkSession, columns: int, path: str) -> str:
    fields = [(f"c{n}", *_KINDS[n % len(_KINDS)]) for n in range(columns)]
    rows = _FIELDS // columns
    values = ", ".join(f"{made.format(n=n + 1)} AS {name}" for n, (name, _, made) in enumerate(fields))
    spark.range(rows).selectExpr(
        "'b' AS batch_id",
        "0 AS segment",
        "CAST(id AS INT) AS position",
        "'text' AS body_type",
        f"CAST(to_json(struct({values})) AS BINARY) AS body",
        "CAST(map() AS MAP<STRING, STRING>) AS properties",
    ).write.parquet(path)
    messages, schema = spark.read.parquet(path), ", ".join(f"{name} {kind}" for name, kind, _ in fields)
    plain = messages.selectExpr(f"from_json(CAST(body AS STRING), '{schema}') AS found").select("found.*")
    ours = map_json(messages, schema).rows
    assert ours.count() == rows, "a body doesn't fit"
    pairs = [(_seconds(plain), _seconds(ours)) for _ in range(_ROUNDS)]
    least, own = (min(each) for each in zip(*pairs, strict=True))
    verdict = "met" if own <= _MOST * least else "MISSED"
    return (
        f"{columns:>4} columns, {rows:>7,} bodies: from_json {least:.2f} s, mapped {own:.2f} s, "
        f"{own / least:.2f} x; goal at most {_MOST:g} x: {verdict}"
    )


def _seconds(df: DataFrame) -> float:
    began = time.perf_counter()
    df.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began
