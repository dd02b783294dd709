"""CPU time of a batch into a table, beside Spark's own reader and writer in the same session."""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.spark.job import Batch
from airflow_provider_jmsjca.spark.tables import delta
from airflow_provider_jmsjca.spool.attempts import take_fence
from airflow_provider_jmsjca.spool.rows import Row
from airflow_provider_jmsjca.spool.spool import SpoolBatch
from tests.servers.ports import HOST
from tests.spark.conftest import table_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FIELDS: Final = (
    "id BIGINT NOT NULL, carrier STRING NOT NULL, flight INT, origin STRING, dest STRING, "
    "delay DOUBLE, distance INT, cancelled BOOLEAN, departed TIMESTAMP, price DECIMAL(9,2)"
)
_ROUNDS: Final = 7
_SEGMENT: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """One comparison.

    Attributes:
        rows: Messages of the batch.
        format: Format of the table.
        most: The ratio of CPU times that meets the goal.
    """

    rows: int
    format: str
    most: float


_CASES: Final = (
    _Case(rows=20_000, format="parquet", most=2.5),
    _Case(rows=20_000, format="delta", most=2.5),
    _Case(rows=200, format="delta", most=2.0),
)


def report() -> Iterator[str]:
    """Yield a line for each case: the CPU times of both, their ratio, and the goal."""
    with tempfile.TemporaryDirectory(prefix="jms-tables-") as folder, _session() as spark:
        for number, case in enumerate(_CASES):
            yield _line(spark, case, Path(folder) / str(number))


@contextmanager
def _session() -> Iterator[SparkSession]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pyspark's own
        from pyspark.sql import SparkSession  # noqa: PLC0415 - slow to import

        os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": HOST}
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "ERROR")
            .config("spark.jars", table_jars())
            .config(map=delta.SESSION)
            .config("spark.databricks.delta.snapshotPartitions", "2")
            .config("spark.sql.shuffle.partitions", "2")
            .getOrCreate()
        )
        try:
            yield spark
        finally:
            spark.stop()


def _line(spark: SparkSession, case: _Case, folder: Path) -> str:
    lines = folder / "lines"
    lines.mkdir(parents=True)
    bodies = list(_bodies(case.rows))
    (lines / "bodies.json").write_text("\n".join(bodies), encoding="utf-8")
    messages = [Row(JmsMessage.text(body), 1_700_000_000_000_000) for body in bodies]

    def plain(_: int) -> None:
        rows = spark.read.schema(_FIELDS).json(str(lines))
        rows.write.format(case.format).mode("append").save(str(folder / "plain"))

    def ours(number: int) -> None:
        with Batch(manifests[number], take_fence(manifests[number].folder)) as batch:
            mapped = batch.json(batch.messages(spark), _FIELDS)
            assert batch.reject(mapped.rejects) == 0
            assert batch.write(mapped.rows, str(folder / "ours"), format=case.format) == case.rows

    manifests = []
    for number in range(_ROUNDS + 2):
        with SpoolBatch(
            folder / "spool", f"b{number}", source="queue://q", activation=f"a{number}"
        ) as sealing:
            for first in range(0, case.rows, _SEGMENT):
                sealing.seal(messages[first : first + _SEGMENT])
            manifests.append(sealing.complete())
    pairs = [(_seconds(plain, number), _seconds(ours, number)) for number in range(_ROUNDS + 2)]
    theirs, own = (statistics.median(each) for each in zip(*pairs[2:], strict=True))
    verdict = "met" if own <= case.most * theirs else "NOT MET"
    return (
        f"  {verdict:<12}  {case.rows:,} rows to {case.format}: {own:.2f} s of CPU, Spark alone "
        f"{theirs:.2f} s, {own / theirs:.2f} x; goal at most {case.most:g} x"
    )


def _seconds(work: Callable[[int], None], number: int) -> float:
    before = _cpu()
    work(number)
    return _cpu() - before


def _cpu() -> float:
    """Return the CPU time of this process and of Spark's, in seconds."""
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def _bodies(count: int) -> Iterator[str]:
    """Yield JSON objects of ten fields."""
    for number in range(count):
        yield json.dumps(
            {
                "id": number,
                "carrier": "UA",
                "flight": number % 9_000,
                "origin": "EWR",
                "dest": "IAH",
                "delay": number % 400 / 4,
                "distance": 1_400,
                "cancelled": number % 50 == 0,
                "departed": "2013-01-01T05:15:00Z",
                "price": number % 1_000 + 0.25,
            }
        )
