"""Flights, one JSON message each, into a Parquet table: submitted by the DAG `flights_to_spark`.

A flight that lacks one of its required values is turned away: it ends in the dead-letter queue, with the
reason in its properties, and doesn't hold up the others.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from airflow_provider_jmsjca import Batch

FLIGHT = """
    number INT NOT NULL, year INT NOT NULL, month INT NOT NULL, day INT NOT NULL,
    carrier STRING NOT NULL, flight INT NOT NULL, origin STRING NOT NULL, dest STRING NOT NULL,
    dep_delay DOUBLE NOT NULL, arr_delay DOUBLE NOT NULL,
    air_time DOUBLE, distance DOUBLE, tailnum STRING, time_hour TIMESTAMP
"""


def main() -> None:
    """Run the job."""
    with Batch.from_args() as batch:
        spark = SparkSession.builder.appName(f"flights {batch.batch_id}").getOrCreate()
        try:
            (table,) = batch.arguments
            flights = batch.json(batch.messages(spark), FLIGHT)
            batch.write(flights.rows, table)
            batch.reject(flights.rejects)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
