"""Spark as a cluster: a master and two workers, whose Python has PySpark and PyArrow and nothing else."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from airflow.utils.state import TaskInstanceState

from airflow_provider_jmsjca import JmsToSparkSubmitOperator
from tests.airflow.conftest import Publish
from tests.airflow.task_runs import run_task
from tests.servers.spark_cluster import SparkCluster, bare_python
from tests.spark import library_everywhere

pytestmark = [
    pytest.mark.usefixtures("metadata"),
    # A task run loads half of Airflow, whose dependencies warn about each other.
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]


@pytest.mark.timeout(900)
def test_driver_and_executors_get_the_job_library_with_the_job(
    spark_cluster: SparkCluster, publish: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = str(bare_python(tmp_path / "bare"))
    fields = {"conn_type": "spark", "host": spark_cluster.url}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_TEST", json.dumps(fields))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    publish(*(json.dumps({"id": number}) for number in range(20)), "no JSON")
    table, places = tmp_path / "table", tmp_path / "places"
    outcome = run_task(
        lambda: JmsToSparkSubmitOperator(
            task_id="load",
            jms_conn_id="jms_test",
            destination="queue://orders",
            spool_path=str(tmp_path / "spool"),
            idle_time=1,
            spark_conn_id="spark_test",
            application=library_everywhere.__file__,
            application_args=["--table", str(table), "--schema", "id LONG NOT NULL"],
            conf={
                "spark.pyspark.python": bare,
                "spark.ui.port": "0",
                "spark.executor.memory": "512m",
                "spark.sql.shuffle.partitions": "2",
                "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
                "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
                "spark.jmsjca.places": str(places),
            },
        )
    )
    assert outcome.state == TaskInstanceState.SUCCESS
    report = outcome.value
    assert (report["stored"], report["rejected"]) == ({str(table): 20}, 1)
    assert pq.read_table(table).num_rows == 20
    page = outcome.run.get_task_instance("load").xcom_pull(task_ids="load", key="spark_ui")
    assert re.fullmatch(r"http://(localhost|127\.0\.0\.1):\d+", page)
    driver, *executors = json.loads(places.read_text())
    assert all("jms-job.zip" in place for _, place in (driver, *executors))
    assert len({folder for folder, _ in executors}) == 2
