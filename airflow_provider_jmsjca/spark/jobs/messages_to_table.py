"""Messages to a Parquet table: `spark-submit messages_to_table.py --manifest ... --table ... [--schema ...]`.

Without `--schema` the table has the columns of the message schema. With it (`"carrier STRING NOT NULL, delay
DOUBLE"`) each body is read as a JSON object with these fields, and messages that don't fit are turned away.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pyspark.sql import SparkSession

from airflow_provider_jmsjca.spark.job import Batch


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job.

    Args:
        arguments: Without the script's name; `None` means the command line's.
    """
    with Batch.from_args(arguments) as batch:
        parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
        parser.add_argument("--table", required=True, help="absolute path or URI of the table's folder")
        parser.add_argument("--schema", help="fields of the JSON bodies, as in CREATE TABLE")
        parser.add_argument("--partition-by", nargs="*", default=[], help="columns to partition by")
        asked = parser.parse_args(batch.arguments)
        spark = SparkSession.builder.appName(f"jms {batch.batch_id}").getOrCreate()
        try:
            rows = batch.messages(spark)
            if asked.schema is not None:
                mapped = batch.json(rows, asked.schema)
                batch.reject(mapped.rejects)
                rows = mapped.rows
            batch.write(rows, asked.table, partition_by=asked.partition_by)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
