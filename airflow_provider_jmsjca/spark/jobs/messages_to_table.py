"""Messages to a table: `spark-submit messages_to_table.py --manifest ... --table ... [--schema ...]`.

The table is a folder of Parquet files, or with `--format delta` a Delta Lake table.
Without `--schema` the table has the columns of the message schema. With it (`"carrier STRING NOT NULL, delay
DOUBLE"`) each body is read as a JSON object with these fields, and messages that don't fit are turned away.
`--schema-file` names a file that has the fields, in these words or as Spark's JSON form of a schema. `--keep`
adds columns of the message: `--keep message_id "properties['region'] AS region"`.
Spark says no more than warnings, unless `spark.log.level` says otherwise.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pyspark import SparkConf
from pyspark.sql import SparkSession

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.spark.job import Batch
from airflow_provider_jmsjca.spark.mapping import read_schema
from airflow_provider_jmsjca.spark.tables import delta


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job.

    Args:
        arguments: Without the script's name; `None` means the command line's.
    """
    with Batch.from_args(arguments) as batch:
        parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
        parser.add_argument("--table", required=True, help="path or URI of the table, or its name")
        parser.add_argument("--format", default="parquet", help="parquet or delta")
        parser.add_argument("--mode", default="append", help="append, or with delta also overwrite")
        fields = parser.add_mutually_exclusive_group()
        fields.add_argument("--schema", help="fields of the JSON bodies, as in CREATE TABLE")
        fields.add_argument("--schema-file", help="a file with the fields: words, or Spark's JSON form")
        parser.add_argument("--keep", nargs="*", default=[], help="columns of the message to keep")
        parser.add_argument("--partition-by", nargs="*", default=[], help="columns to partition by")
        asked = parser.parse_args(batch.arguments)
        conf = SparkConf().setAppName(f"jms {batch.batch_id}").setIfMissing("spark.log.level", "WARN")
        if asked.format == "delta":
            for name, value in delta.SESSION.items():
                conf.setIfMissing(name, value)
        spark = SparkSession.builder.config(conf=conf).getOrCreate()
        try:
            rows = batch.messages(spark)
            schema = asked.schema
            if asked.schema_file is not None:
                schema = read_schema(Path(asked.schema_file))
            if schema is None and asked.keep:
                raise ConfigurationError("--keep stands beside the fields of --schema or --schema-file")
            if schema is not None:
                mapped = batch.json(rows, schema, keep=asked.keep)
                batch.reject(mapped.rejects)
                rows = mapped.rows
            batch.write(
                rows, asked.table, format=asked.format, mode=asked.mode, partition_by=asked.partition_by
            )
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
