"""`jms-spool`: batches of a spool as a table and as a stream, with a real Spark."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_jmsjca import JmsMessage, Manifest, register_data_sources
from tests.internals.spool import MESSAGE_DDL, BatchSequence, DeduplicationWindow, prune, salvage
from tests.spark.conftest import MakeBatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW = timedelta(0)


def texts(*bodies: str) -> list[JmsMessage]:
    return [JmsMessage.text(body, message_id=f"ID:{body}", properties={"n": 1}) for body in bodies]


@pytest.fixture(autouse=True)
def registered(spark: SparkSession) -> None:
    register_data_sources(spark)


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Callable[..., list[list[str]]]:
    """Run a query until it has read what is there; return the bodies of its micro-batches."""

    def once(**options: Any) -> list[list[str]]:
        found: list[list[str]] = []

        def keep(df: Any, _number: int) -> None:
            found.append([row.body.decode() for row in df.select("body").collect()])

        reader = spark.readStream.format("jms-spool").options(**options)
        query = (
            reader.load(str(tmp_path / "spool"))
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return found

    return once


def drop(tmp_path: Path) -> None:
    """Prune all there is."""
    pruned = prune(tmp_path / "spool", older_than=NOW, collected=True, horizon=DeduplicationWindow(count=0))
    assert pruned.removed


def test_a_spool_is_a_table(spark: SparkSession, make_batch: MakeBatch, tmp_path: Path) -> None:
    make_batch(texts("a", "b"), texts("c"), batch_id="z")
    second = make_batch(texts("d"), batch_id="a")
    df = spark.read.format("jms-spool").load(str(tmp_path / "spool"))
    assert df.schema == spark.createDataFrame([], MESSAGE_DDL).schema
    assert df.rdd.getNumPartitions() == 3
    plain = spark.read.schema(MESSAGE_DDL).parquet(
        *(str(p) for p in (tmp_path / "spool").glob("*/*.parquet"))
    )
    assert sorted(df.collect()) == sorted(plain.collect())
    assert [row.body for row in df.collect()] == [b"a", b"b", b"c", b"d"]

    (second.folder / "segment-000000.parquet").write_bytes(b"cut")
    with pytest.raises(Exception, match=r"expected \d+ bytes, found 3; .*spool salvage a`"):
        df.collect()
    salvage(tmp_path / "spool", "a")
    left = spark.read.format("jms-spool").load(str(tmp_path / "spool"))
    assert [row.body for row in left.collect()] == [b"a", b"b", b"c"]


def test_a_stream_reads_each_batch_once_in_order(
    make_batch: MakeBatch, tmp_path: Path, run: Callable[..., list[list[str]]]
) -> None:
    make_batch(texts("a", "b"), texts("c"), batch_id="z")
    make_batch(texts("d"), batch_id="a")
    assert run(maxBatchesPerTrigger=1) == [["a", "b", "c"], ["d"]]
    assert run() == []
    make_batch(texts("e"), batch_id="m")
    make_batch(texts("f"), batch_id="b")
    assert run() == [["e", "f"]]

    # Spark died before it noted that the last micro-batch was done: the same messages again.
    for file in (tmp_path / "checkpoint" / "commits").glob("*2*"):
        file.unlink()
    make_batch(texts("g"), batch_id="n")
    assert run() == [["e", "f"], ["g"]]


def test_a_pruned_batch_is_an_error_unless_it_may_be_skipped(
    make_batch: MakeBatch, tmp_path: Path, run: Callable[..., list[list[str]]]
) -> None:
    make_batch(texts("a"), batch_id="one")
    assert run() == [["a"]]
    make_batch(texts("b"), batch_id="two")
    BatchSequence(tmp_path / "spool").refresh()
    drop(tmp_path)
    make_batch(texts("c"), batch_id="three")
    with pytest.raises(
        Exception, match="batch two at position 1 was pruned before this query read it: 1 mes"
    ):
        run()
    assert run(onPruned="skip") == [["c"]]

    # A new query begins with what is there.
    shutil.rmtree(tmp_path / "checkpoint")
    assert run() == [["c"]]
    # Another spool isn't mistaken for this one.
    shutil.rmtree(tmp_path / "spool" / ".sequence")
    with pytest.raises(Exception, match="the checkpoint belongs to another spool"):
        run()


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"maxBatchesPerTriger": "1"}, "did you mean 'maxBatchesPerTrigger'"),
        ({"maxBatchesPerTrigger": "none"}, "expected a whole number from 1 up"),
        ({"onPruned": "ignore"}, "expected one of fail, skip"),
        ({"path": "relative"}, "absolute path"),
    ],
)
def test_wrong_options_are_named(spark: SparkSession, options: dict[str, str], fault: str) -> None:
    given = {"path": "/nowhere"} | options
    with pytest.raises(Exception, match=fault):
        spark.read.format("jms-spool").options(**given).load().count()


def test_positions_are_given_once(make_batch: MakeBatch, tmp_path: Path) -> None:
    first: Manifest = make_batch(texts("a"), batch_id="one")
    mine, other = BatchSequence(tmp_path / "spool"), BatchSequence(tmp_path / "spool")
    assert mine.identity == other.identity
    assert mine.refresh() == 1
    make_batch(texts("b"), batch_id="two")
    assert (other.refresh(), mine.refresh()) == (2, 2)
    assert [each.batch_id for each in mine[0:2]] == [each.batch_id for each in other[0:2]] == ["one", "two"]
    assert [each.batch_id for each in mine[0:1]] == [first.batch_id]

    # A batch that is forgotten and collected anew is another one.
    shutil.rmtree(tmp_path / "spool" / "one")
    assert mine.refresh() == 2
    make_batch(texts("c"), batch_id="one")
    assert mine.refresh() == 3
    assert BatchSequence(tmp_path / "spool").refresh() == 3
