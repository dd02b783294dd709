"""Messages turned away: written by executors, read back in their order."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_jmsjca import Batch, FencedError, JmsMessage, Manifest, rejected_messages
from tests.internals.spool import Done, take_fence
from tests.spark import many_rejects
from tests.spark.conftest import MakeBatch, flight

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).parents[2]
SCHEMA = "carrier STRING NOT NULL, dep_delay DOUBLE NOT NULL"


@pytest.fixture
def manifest(make_batch: MakeBatch) -> Manifest:
    return make_batch(*([flight(10 * segment + row, "UA", None) for row in range(4)] for segment in range(3)))


def reasons(spark: SparkSession, *rows: tuple[int, int, str | None]) -> DataFrame:
    columns = "segment INT, position INT, exception_message STRING"
    found = spark.createDataFrame(list(rows), columns)
    return found.selectExpr(
        "struct(segment, position) AS _jms", "exception_message", "'x.Y' AS exception_class"
    )


def test_each_message_is_turned_away_once_for_the_reason_of_the_first_call(
    spark: SparkSession, manifest: Manifest
) -> None:
    with Batch(manifest, take_fence(manifest.folder)) as batch:
        assert batch.reject(reasons(spark)) == 0
        assert batch.reject(reasons(spark, (2, 3, "b"), (0, 1, None), (2, 3, "a"), (0, 0, "c"))) == 3
        assert batch.reject(reasons(spark, (2, 3, "0"), (1, 0, "d"), (2, 0, "e"))) == 5
        assert batch.reject(reasons(spark, (0, 0, "again"))) == 5
    found = [(each.message.message_id, each.exception_message) for each in rejected_messages(manifest)]
    assert found == [
        ("ID:0", "c"),
        ("ID:1", "no reason given"),
        ("ID:10", "d"),
        ("ID:20", "e"),
        ("ID:23", "a"),
    ]
    done = Done.read(manifest.folder)
    assert done is not None
    assert (done.rejected, [file.rows for file in done.rejects]) == (5, [2, 1, 1, 1])
    files = list(manifest.folder.glob("*rejects-*"))
    assert {file.name for file in files} == {file.file for file in done.rejects}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_an_attempt_that_was_overtaken_turns_nothing_away(spark: SparkSession, manifest: Manifest) -> None:
    old = Batch(manifest, take_fence(manifest.folder))
    aside = manifest.folder / "_rejects-left"
    aside.mkdir()
    take_fence(manifest.folder)
    with pytest.raises(FencedError):
        old.reject(reasons(spark, (0, 0, "a")))
    assert [path.name for path in manifest.folder.glob("*rejects-*")] == ["_rejects-left"]
    Batch(manifest, take_fence(manifest.folder)).reject(reasons(spark, (0, 0, "a")))
    assert [path.name for path in manifest.folder.glob("*rejects-*")] == ["rejects-000003-000000.jsonl"]


def test_bodies_are_read_once_for_rows_and_rejects(
    spark: SparkSession, make_batch: MakeBatch, tmp_path: Path
) -> None:
    manifest = make_batch([JmsMessage.text("no JSON"), flight(1, "UA", 1.0)])
    kept = set(spark.sparkContext._jsc.getPersistentRDDs())  # by tests before
    with Batch(manifest, take_fence(manifest.folder)) as batch:
        mapped = batch.json(batch.messages(spark), SCHEMA)
        batch.reject(mapped.rejects)
        assert set(spark.sparkContext._jsc.getPersistentRDDs()) > kept
        # The segment can't be read a second time: what is written was kept.
        manifest.segment_paths()[0].rename(tmp_path / "hidden")
        assert batch.write(mapped.rows, str(tmp_path / "table")) == 1
    assert set(spark.sparkContext._jsc.getPersistentRDDs()) == kept


def test_the_memory_of_the_driver_does_not_grow_with_the_rejects(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, many_rejects.__file__, str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=280,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    (few, little), (many, much) = (map(int, line.split()) for line in done.stdout.splitlines())
    assert (few, many) == many_rejects.COUNTS
    assert much - little < 16, "MiB"
