"""A Spark driver that streams a queue into a table; the chaos tests kill it.

Arguments: the master, the options of `jms` as JSON, the table's folder, the checkpoint's. It is a Delta
table; each micro-batch is written once, by its number.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame, SparkSession

from airflow_provider_jmsjca import register_data_sources
from tests.internals.spark import delta
from tests.spark.conftest import table_jars


def main(master: str, options: str, table: str, checkpoint: str) -> None:
    """Stream until the queue is empty."""
    spark = (
        SparkSession.builder.master(master)
        .config("spark.executor.memory", "512m")
        .config("spark.ui.enabled", "false")
        .config("spark.jars", table_jars())
        .config(map=delta.SESSION)
        .config("spark.databricks.delta.snapshotPartitions", "2")
        .getOrCreate()
    )
    register_data_sources(spark)

    def store(df: DataFrame, number: int) -> None:
        rows = df.selectExpr("CAST(body AS STRING) AS body")
        rows.write.format("delta").mode("append").options(txnAppId="stream", txnVersion=number).save(table)

    query = (
        spark.readStream.format("jms").options(**json.loads(options)).load()
        .writeStream.foreachBatch(store)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )  # fmt: skip
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
