"""The formats in a session of Spark Connect, whose server is another process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_jmsjca import JmsMessage
from tests.spark.conftest import MakeBatch

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
from pyspark.sql import SparkSession
from airflow_provider_jmsjca import map_json, register_data_sources

spool, out, checkpoint = sys.argv[1:]
builder = SparkSession.builder.remote("local[1]").config("spark.connect.grpc.binding.address", "127.0.0.1")
spark = builder.config("spark.ui.enabled", "false").getOrCreate()
assert type(spark).__module__ == "pyspark.sql.connect.session"
register_data_sources(spark)
table = spark.read.format("jms-spool").load(spool)
stream = spark.readStream.format("jms-spool").load(spool).writeStream.format("parquet")
stream = stream.option("path", out).option("checkpointLocation", checkpoint).trigger(availableNow=True)
assert stream.start().awaitTermination(120)
mapped = map_json(spark.read.parquet(out), "id LONG NOT NULL")
print("found", table.count(), sorted(row.id for row in mapped.rows.collect()), mapped.rejects.count())
spark.stop()
"""


@pytest.mark.timeout(900)
def test_a_spool_is_a_table_and_a_stream_over_spark_connect(make_batch: MakeBatch, tmp_path: Path) -> None:
    for number in range(2):
        bodies = f'{{"id": {number}}}', "no JSON"
        make_batch([JmsMessage.text(body) for body in bodies], batch_id=f"b{number}")
    places = (tmp_path / name for name in ("spool", "out", "checkpoint"))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *places],
        capture_output=True, text=True, check=False, cwd=ROOT, timeout=240,
        # With this Spark chooses a free port.
        env={**os.environ, "SPARK_TESTING": "1", "PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4_000:]
    assert "found 4 [0, 1] 2" in done.stdout
