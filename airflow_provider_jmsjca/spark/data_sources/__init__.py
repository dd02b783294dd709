"""JMS as data sources of Spark: `jms-spool` reads batches, `jms` a broker.

from airflow_provider_jmsjca import register_data_sources

register_data_sources(spark)
messages = spark.readStream.format("jms-spool").load("/data/jms-spool")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register_data_sources(spark: SparkSession) -> None:
    """Register the formats `jms-spool` and `jms` in a session. Driver and executors need this package."""
    from airflow_provider_jmsjca.spark.data_sources.from_broker import JmsDataSource  # noqa: PLC0415 - needs pyspark
    from airflow_provider_jmsjca.spark.data_sources.from_spool import SpoolDataSource  # noqa: PLC0415 - needs pyspark

    for source in (SpoolDataSource, JmsDataSource):
        spark.dataSource.register(source)
