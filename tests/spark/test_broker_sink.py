"""Rows of a DataFrame as messages to a real broker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_jmsjca import Destination, JmsMessage, connect, register_data_sources
from tests.internals.spark import SpoolingReceiver
from tests.servers.broker import Broker
from tests.spark.conftest import MakeBatch, flight

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(autouse=True)
def registered(spark: SparkSession) -> None:
    register_data_sources(spark)


def options_of(broker: Broker, queue: str, folder: Path) -> dict[str, str]:
    password = folder / "password"
    password.write_text(broker.password)
    return {
        "url": "stomp://{}:{}".format(*broker.address()),
        "username": broker.username,
        "passwordFile": str(password),
        "destination": f"queue://{queue}",
    }


def on(broker: Broker, queue: str) -> list[JmsMessage]:
    connection = connect(broker.settings())
    try:
        return list(connection.browse(Destination.queue(queue)))
    finally:
        connection.close()


def test_rows_become_messages_or_none_of_a_partition_is_sent(
    spark: SparkSession, activemq: Broker, queue_name: str, tmp_path: Path
) -> None:
    options = options_of(activemq, queue_name, tmp_path)
    df = spark.createDataFrame(
        [("one", {"region": "eu"}, 7), ("two", None, None)],
        "body STRING, properties MAP<STRING, STRING>, priority INT",
    ).coalesce(1)
    df.write.format("jms").options(**options).mode("append").save()
    first, second = on(activemq, queue_name)
    assert (first.body, first.properties["region"], first.priority) == ("one", "eu", 7)
    assert (second.body, second.priority) == ("two", 4)

    bad = spark.createDataFrame([("good", None), ("bad", "map")], "body STRING, body_type STRING").coalesce(1)
    with pytest.raises(Exception, match=r"partition 0, row 1: no message: a map body can't be read back"):
        bad.write.format("jms").options(**options).mode("append").save()
    with pytest.raises(Exception, match="a message has no column 'colour'"):
        spark.sql("SELECT 'x' body, 'red' colour").write.format("jms").options(**options).mode(
            "append"
        ).save()
    with pytest.raises(Exception, match="overwrite"):
        df.write.format("jms").options(**options).mode("overwrite").save()
    assert len(on(activemq, queue_name)) == 2


def test_artemis_takes_a_write_once_and_a_micro_batch_once(
    spark: SparkSession, artemis: Broker, queue_name: str, tmp_path: Path, make_batch: MakeBatch
) -> None:
    options = options_of(artemis, queue_name, tmp_path)
    df = spark.createDataFrame([(f"{number}",) for number in range(20)], "body STRING").repartition(2)
    for _ in range(2):
        df.write.format("jms").options(**options, writeId="today").mode("append").save()
    received = SpoolingReceiver(options | {"path": str(tmp_path / "received")})
    received.make_spool()
    assert received.receive(1_000) == 20

    make_batch([flight(number, "UA", 1.0) for number in range(5)])
    for _ in range(2):
        query = (
            spark.readStream.format("jms-spool").load(str(tmp_path / "spool"))
            .writeStream.format("jms").options(**options)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )  # fmt: skip
        query.awaitTermination()
        for file in (tmp_path / "checkpoint" / "commits").glob("*0*"):
            file.unlink()  # as if Spark had been killed before it noted the micro-batch
    assert received.receive(1_000) == 5
