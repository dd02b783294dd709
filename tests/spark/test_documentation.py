"""The Spark jobs of the pages do what their pages say, in a real Spark."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_jmsjca import (
    Batch,
    Destination,
    JmsMessage,
    Manifest,
    Outgoing,
    connect,
    rejected_messages,
)
from tests.docs.blocks import Block, blocks
from tests.internals.spark import EXIT_CONFIGURATION
from tests.internals.spool import take_fence
from tests.servers.broker import Broker
from tests.spark.conftest import ORDERS, MakeBatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
JOBS = [
    block
    for page in ("docs/how-to/spark-jobs.md", "docs/how-to/spark-tables.md")
    for block in blocks(ROOT, page)
    if block.language == "python" and "DAG(" not in block.text
]


def job(name: str) -> Block:
    """Return the block of the page that defines a function, by the beginning of its definition."""
    (found,) = (block for block in JOBS if f"def {name}" in block.text)
    return found


def order(number: int, body: str, **properties: object) -> JmsMessage:
    return JmsMessage.text(
        body,
        message_id=f"ID:{number}",
        destination=ORDERS,
        timestamp=1_600_000_000_000,
        properties=properties,
    )


def run(block: Block, table: Path) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "documented"}
    # The path that the page writes to stands for one of the reader's.
    text = block.text.replace("/data/orders", str(table)).replace("/data/weights", str(table))
    text = text.replace("/data/prices", str(table)).replace("/data/payments", str(table))
    exec(compile(text, str(block), "exec"), names)  # noqa: S102
    return names


def rows(spark: SparkSession, table: Path, *columns: str) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in spark.read.parquet(str(table)).selectExpr(*columns).collect())


def rejected(manifest: Manifest) -> list[tuple[str | None, str]]:
    return [(item.message.message_id, item.exception_message) for item in rejected_messages(manifest)]


def test_every_job_of_the_page_is_run_here() -> None:
    assert len(JOBS) == 13


def test_a_job_of_ones_own(
    spark: SparkSession, make_batch: MakeBatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = make_batch(
        [
            order(1, '{"id": 1, "amount": 9.5}'),
            order(2, '{"id": 2, "amount": -1.0}'),
            order(3, '{"amount": 3.0}'),
        ]
    )
    table = tmp_path / "table"
    fence = str(take_fence(manifest.folder))
    command = ["orders_job.py", "--manifest", manifest.uri, "--batch-id", manifest.batch_id, "--fence", fence]
    monkeypatch.setattr(sys, "argv", [*command, str(table)])
    monkeypatch.setattr(type(spark), "stop", lambda _: None)  # other tests go on with it

    run(job("main()"), table)["main"]()

    assert rows(spark, table, "id", "amount") == [(1, 9.5)]
    assert rejected(manifest) == [("ID:2", "the amount is negative"), ("ID:3", "required but missing: 'id'")]


def test_headers_and_properties_as_columns(
    spark: SparkSession, make_batch: MakeBatch, tmp_path: Path
) -> None:
    manifest = make_batch([order(1, '{"id": 1}', region="eu"), order(2, '{"id": "x"}')])
    table = tmp_path / "table"

    with Batch(manifest, take_fence(manifest.folder)) as batch:
        run(job("orders(batch: Batch, spark: SparkSession) -> None:\n    keep"), table)["orders"](
            batch, spark
        )

    assert rows(spark, table, "id", "message_id", "region") == [(1, "ID:1", "eu")]
    assert [name for name, _ in rejected(manifest)] == ["ID:2"]


def test_a_preview(spark: SparkSession, tmp_path: Path) -> None:
    found, rejected = run(job("look("), tmp_path)["look"](
        [order(1, '{"id": 1}'), order(2, '{"id": "x"}')], spark
    )
    assert [row["id"] for row in found.collect()] == [1]
    assert rejected == {(0, 1): "field 'id': the value is no BIGINT, found the string \"x\""}


def test_expectations_partitions_and_upserts(
    spark: SparkSession, make_batch: MakeBatch, tmp_path: Path
) -> None:
    bodies = ('{"id": 1, "amount": 1, "op": "x"}', '{"id": 1, "amount": 2}', '{"id": 2, "op": "delete"}')
    manifest = make_batch([order(number, body) for number, body in enumerate(bodies)])
    table = tmp_path / "table"
    settings = ("spark.sql.shuffle.partitions", "spark.databricks.delta.snapshotPartitions")
    before = [spark.conf.get(name) for name in settings]

    with Batch(manifest, take_fence(manifest.folder)) as batch:
        run(job("session("), table)["session"](batch)
        assert [spark.conf.get(name) for name in settings] == ["1", "1"]
        rows = batch.json(batch.messages(spark), "id LONG, amount DOUBLE").rows
        assert run(job("good("), table)["good"](batch, rows).count() == 2
        upsert = run(
            job("orders(batch: Batch, spark: SparkSession) -> None:\n    mapped = batch.json("), table
        )
        upsert["orders"](batch, spark)
    for name, value in zip(settings, before, strict=True):
        spark.conf.set(name, str(value))

    found = spark.read.format("delta").load(str(table)).select("id", "amount").collect()
    assert [tuple(row) for row in found] == [(1, 2.0)]


def test_xml_and_csv_bodies(spark: SparkSession, make_batch: MakeBatch, tmp_path: Path) -> None:
    good = '<order><id>1</id><amount>9.50</amount><items unit="kg"><sku>a</sku></items></order>'
    table, prices = tmp_path / "table", tmp_path / "prices"

    manifest = make_batch([order(1, good), order(2, "<order><id>one</id></order>")])
    with Batch(manifest, take_fence(manifest.folder)) as batch:
        run(job("prices("), table)["orders"](batch, spark)
    assert rows(spark, table, "id", "CAST(amount AS STRING)", "items[0]._unit", "message_id") == [
        (1, "9.50", "kg", "ID:1")
    ]
    assert [name for name, _ in rejected(manifest)] == ["ID:2"]

    manifest = make_batch([order(1, "a;9.50"), order(2, "a;9,50")], batch_id="prices")
    with Batch(manifest, take_fence(manifest.folder)) as batch:
        run(job("prices("), prices)["prices"](batch, spark)
    assert rows(spark, prices, "sku", "CAST(price AS STRING)") == [("a", "9.50")]
    assert [name for name, _ in rejected(manifest)] == ["ID:2"]


def test_avro_bodies(spark: SparkSession, make_batch: MakeBatch, tmp_path: Path) -> None:
    table = tmp_path / "table"
    good = JmsMessage.bytes(b"\x02\x02\x00\x00\x00\x00\x00\x00\xf8?", message_id="ID:1", destination=ORDERS)
    manifest = make_batch([good, order(2, "\x02\x00")])

    with Batch(manifest, take_fence(manifest.folder)) as batch:
        run(job("payments("), table)["payments"](batch, spark)

    assert rows(spark, table, "id", "amount", "message_id") == [(1, 1.5, "ID:1")]
    assert rejected(manifest) == [("ID:2", "expected an Avro body, found kind text")]


def test_expressions_for_each_message(spark: SparkSession, make_batch: MakeBatch, tmp_path: Path) -> None:
    manifest = make_batch([order(1, "one", weight="1.5"), order(2, "two", weight="heavy")])
    table = tmp_path / "table"

    with Batch(manifest, take_fence(manifest.folder)) as batch:
        run(job("weights("), table)["weights"](batch, spark)

    assert rows(spark, table, "text", "weight") == [("one", 1.5)]
    assert [name for name, _ in rejected(manifest)] == ["ID:2"]


def test_a_column_that_was_added_is_seen_outside_spark(
    spark: SparkSession, make_batch: MakeBatch, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    for number, columns in enumerate(("id LONG", "id LONG, channel STRING")):
        manifest = make_batch([order(number, f'{{"id": {number}, "channel": "web"}}')], batch_id=f"b{number}")
        with Batch(manifest, take_fence(manifest.folder)) as batch:
            batch.write(batch.json(batch.messages(spark), columns).rows, str(table))

    found = run(job("orders(folder"), table)["orders"](str(table)).to_table(
        columns=["id", "channel", "jms_batch_id"]
    )

    assert sorted(found.to_pylist(), key=lambda row: row["id"]) == [
        {"id": 0, "channel": None, "jms_batch_id": "b0"},
        {"id": 1, "channel": "web", "jms_batch_id": "b1"},
    ]


def test_the_type_of_a_column_is_changed(spark: SparkSession, make_batch: MakeBatch, tmp_path: Path) -> None:
    table, new = tmp_path / "table", tmp_path / "new"

    def store(manifest: Manifest, kind: str) -> None:
        with Batch(manifest, take_fence(manifest.folder)) as batch:
            batch.write(batch.json(batch.messages(spark), f"id LONG, amount {kind}").rows, str(table))

    store(make_batch([order(1, '{"id": 1, "amount": 9.5}')]), "DOUBLE")
    waiting = make_batch([order(2, '{"id": 2, "amount": 12.25}')], batch_id="d~~r2~~t~~-1")
    with pytest.raises(SystemExit) as refused:
        store(waiting, "DECIMAL(12,2)")
    assert refused.value.code == EXIT_CONFIGURATION
    run(job("change_type("), table)["change_type"](str(table), str(new), "amount", "DECIMAL(12,2)")
    table.rename(tmp_path / "old")
    new.rename(table)
    store(waiting, "DECIMAL(12,2)")
    spark.catalog.clearCache()
    assert rows(spark, table, "id", "CAST(amount AS STRING)") == [(1, "9.50"), (2, "12.25")]


def test_a_delta_table_is_tidied_while_batches_are_stored(
    spark: SparkSession, make_batch: MakeBatch, tmp_path: Path
) -> None:
    # How many tasks look through the table's folder, which has a dozen files here.
    looking = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
    spark.conf.set(looking, "2")
    table = tmp_path / "table"
    tidy = run(job("tidy("), table)["tidy"]
    made = [make_batch([order(number, f'{{"id": {number}}}')], batch_id=f"b{number}") for number in range(6)]

    def store(manifest: Manifest) -> None:
        batch = Batch(manifest, take_fence(manifest.folder))  # whose job dies before it says that it is done
        batch.write(batch.json(batch.messages(spark), "id LONG").rows, str(table), format="delta")

    def files() -> int:
        return len(spark.read.format("delta").load(str(table)).inputFiles())

    for manifest in made[:3]:
        store(manifest)
    before = files()
    with ThreadPoolExecutor(1) as beside:
        tidying = beside.submit(tidy, str(table))
        for manifest in made[3:]:
            store(manifest)
        tidying.result()
    tidy(str(table))
    store(made[0])
    spark.conf.unset(looking)

    assert before == 3
    assert files() == 1
    stored = spark.read.format("delta").load(str(table)).select("id").collect()
    assert sorted(row.id for row in stored) == [0, 1, 2, 3, 4, 5]


def test_a_spool_and_a_broker_in_spark(
    spark: SparkSession, activemq: Broker, queue_name: str, make_batch: MakeBatch, tmp_path: Path
) -> None:
    make_batch([order(1, "one"), order(2, "two")])
    (tmp_path / "password").write_text(activemq.password)
    there = Destination.queue(queue_name)
    connection = connect(activemq.settings())
    connection.send([Outgoing(destination=there, message=JmsMessage.text("three"))])
    stands_for = {
        "/data/jms-spool": str(tmp_path / "spool"),
        "/data/jms-wal/orders": str(tmp_path / "wal"),
        "stomp+ssl://broker:61614": "stomp://{}:{}".format(*activemq.address()),
        '"spark"': f'"{activemq.username}"',
        "/run/secrets/broker": str(tmp_path / "password"),
        "queue://orders": f"queue://{queue_name}",
        "/data/orders": str(tmp_path / "orders"),
        "/data/checkpoint": str(tmp_path / "foreach"),
        "queue://seen": f"queue://{queue_name}-seen",
    }
    names: dict[str, Any] = {"spark": spark}
    shown = [each for each in blocks(ROOT, "docs/how-to/spark-sources.md") if each.language == "python"]

    for block in shown:
        text = block.text
        for said, here in stands_for.items():
            text = text.replace(said, here)
        exec(compile(text, str(block), "exec"), names)  # noqa: S102
        if "stream" in names:
            assert names["stream"].isStreaming

    assert len(shown) == 5
    query = names["stream"].writeStream.format("noop").trigger(availableNow=True)
    run_out = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    run_out.awaitTermination()
    assert run_out.lastProgress["numInputRows"] == 1
    seen = connection.browse(Destination.queue(f"{queue_name}-seen"))
    assert sorted(json.loads(str(each.body))["message_id"] for each in seen) == ["ID:1", "ID:2"]
    names["query"].trigger(availableNow=True).start().awaitTermination()
    letters = connection.browse(Destination.queue(f"{queue_name}.rejected"))
    assert sorted(str(each.body) for each in letters) == ["one", "two"]
    assert spark.read.format("delta").load(str(tmp_path / "orders")).count() == 0
    connection.close()
