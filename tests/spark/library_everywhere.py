"""The ready-made job, after a look at where the driver and each executor have the job library from.

Working folders and places are written as JSON into the file that `spark.jmsjca.places` names, the driver's
first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from pyspark import BarrierTaskContext
from pyspark.sql import SparkSession

from airflow_provider_jmsjca.spark.jobs.messages_to_table import main
from airflow_provider_jmsjca.spool import attempts

EXECUTORS = 2


def look(_: Iterator[int]) -> Iterator[tuple[str, str]]:
    """Yield where an executor has the library from; both look at the same time, so neither looks for both."""
    from airflow_provider_jmsjca.spool import rows  # noqa: PLC0415 - on the executor

    BarrierTaskContext.get().barrier()
    yield str(Path.cwd()), str(rows.__file__)


if __name__ == "__main__":
    spark = SparkSession.builder.getOrCreate()
    numbers = spark.sparkContext.parallelize(range(EXECUTORS), EXECUTORS)
    found = [(str(Path.cwd()), str(attempts.__file__)), *numbers.barrier().mapPartitions(look).collect()]
    Path(spark.conf.get("spark.jmsjca.places")).write_text(json.dumps(found))
    main()
