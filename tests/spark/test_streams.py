"""`ForeachBatch`: a stream with rejects and dead letters, in which each batch counts once."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_jmsjca import (
    Batch,
    ConfigurationError,
    ForeachBatch,
    JmsMessage,
    SpoolError,
    memory_broker,
    register_data_sources,
)
from tests.internals.spool import State, batches
from tests.spark.conftest import ORDERS, MakeBatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Run = Callable[..., None]


class Job:
    """Stores orders and a table of rejects; it can die before its report.

    Args:
        folder: Of the tables.
        rejects_table: Whether there is a table of rejects.
    """

    def __init__(self, folder: Path, *, rejects_table: bool) -> None:
        self.table, self.rejects_table = str(folder / "orders"), str(folder / "rejects")
        self._has_rejects_table = rejects_table
        self.calls: list[str] = []
        self.dies = False

    def __call__(self, batch: Batch, spark: SparkSession) -> None:
        self.calls.append(batch.batch_id)
        mapped = batch.json(batch.messages(spark), "id INT NOT NULL, amount INT")
        batch.reject(mapped.rejects)
        rows = batch.expect(mapped.rows, {"positive": "amount > 0"})
        batch.write(rows, self.table, format="delta")
        if self._has_rejects_table:
            batch.store_rejects(spark, self.rejects_table, format="delta")
        if self.dies:
            raise KeyError("killed before its report")


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Run:
    """Run a query until it has read what is there."""
    register_data_sources(spark)

    def once(
        function: ForeachBatch,
        change: Callable[[DataFrame], DataFrame] = lambda df: df,
        name: str = "checkpoint",
    ) -> None:
        stream = spark.readStream.format("jms-spool").load(str(tmp_path / "spool"))
        query = (
            change(stream)
            .writeStream.foreachBatch(function)
            .option("checkpointLocation", str(tmp_path / name))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    return once


def orders(*bodies: dict[str, Any] | str) -> list[JmsMessage]:
    texts = [each if isinstance(each, str) else json.dumps(each) for each in bodies]
    return [JmsMessage.text(text, message_id=f"ID:{text}", destination=ORDERS) for text in texts]


def test_each_batch_counts_once_and_its_rejects_are_rows_or_dead_letters(
    spark: SparkSession, make_batch: MakeBatch, tmp_path: Path, run: Run
) -> None:
    make_batch(orders({"id": 1, "amount": 5}, "no JSON"), orders({"id": 2, "amount": -1}), batch_id="one")
    make_batch(orders({"id": 3, "amount": 7}), batch_id="two")
    job = Job(tmp_path, rejects_table=True)
    function = ForeachBatch(str(tmp_path / "spool"), job, name="orders")
    job.dies = True
    with pytest.raises(Exception, match="killed before its report"):
        run(function)
    job.dies = False
    run(function)
    assert job.calls == ["one", "one", "two"]

    def stored() -> list[tuple[Any, ...]]:
        found = spark.read.format("delta").load(job.table).select("id", "amount", "jms_batch_id")
        return sorted(tuple(row) for row in found.collect())

    assert stored() == [(1, 5, "one"), (3, 7, "two")]
    rejects = spark.read.format("delta").load(job.rejects_table).select("message_id", "jms_batch_id")
    assert sorted(tuple(row) for row in rejects.collect()) == [
        ("ID:no JSON", "one"),
        ('ID:{"id": 2, "amount": -1}', "one"),
    ]
    # Rejects that are rows of a table need not be sent.
    assert [each.state for each in batches(tmp_path / "spool")] == [State.DONE, State.DONE]

    # Killed before Spark noted the micro-batch: the same batches again, which are done.
    shutil.rmtree(tmp_path / "checkpoint" / "commits")
    server = memory_broker(uuid.uuid4().hex)
    late = Job(tmp_path, rejects_table=False)
    letters = ForeachBatch(tmp_path / "spool", late, name="orders", broker={"url": f"vm://{server.name}"})
    make_batch(orders({"id": 4, "amount": 0}), batch_id="zero")
    run(letters)
    assert late.calls == ["zero"]
    assert stored() == [(1, 5, "one"), (3, 7, "two")]
    assert [message.body for message in server.messages("orders.dlq")] == ['{"id": 4, "amount": 0}']
    assert [each.state for each in batches(tmp_path / "spool")] == [State.DONE] * 3


def test_another_job_or_a_part_of_the_stream_is_refused(
    make_batch: MakeBatch, tmp_path: Path, run: Run
) -> None:
    make_batch(orders({"id": 1, "amount": 5}, {"id": 2, "amount": 5}), batch_id="one")
    job = Job(tmp_path, rejects_table=False)
    function = ForeachBatch(str(tmp_path / "spool"), job, name="orders")
    with pytest.raises(Exception, match="the micro-batch has 1 of the 2 messages of batch one"):
        run(function, lambda df: df.where("position = 0"))
    with pytest.raises(Exception, match="has no column batch_id"):
        run(function, lambda df: df.select("body"), "another")
    other = ForeachBatch(str(tmp_path / "spool"), job, name="other")
    with pytest.raises(Exception, match="are processed by the job 'orders'"):
        run(other, name="third")
    assert job.calls == []


def test_wrong_options_are_named(tmp_path: Path) -> None:
    job = Job(tmp_path, rejects_table=False)
    with pytest.raises(SpoolError, match="relative"):
        ForeachBatch("relative", job, name="x")
    for options, fault in (
        ({"url": "vm://x", "user": "a"}, "unknown option 'user'"),
        ({}, "'url' is missing"),
    ):
        with pytest.raises(ConfigurationError, match=fault):
            ForeachBatch(tmp_path, job, name="x", broker=options)
