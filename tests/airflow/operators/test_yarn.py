"""A real YARN: driver and executor in its containers, spool, table and staging in a real HDFS.

For minutes: with `JMSJCA_CHAOS=full` only. What the task does is tried in `test_spark_deferred.py`, with a
stand-in for the resource manager.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any

import certifi
import charset_normalizer
import idna
import pyarrow.parquet as pq
import pyspark
import pytest
import requests
import urllib3
from airflow.utils.state import TaskInstanceState

from airflow_provider_jmsjca import JmsToSparkSubmitOperator
from tests.airflow.conftest import Publish
from tests.airflow.task_runs import run_task
from tests.internals.spool import ObjectPath, open_file, walk
from tests.servers.hadoop import USER, Yarn
from tests.servers.java import spark_java_home
from tests.servers.ports import HOST
from tests.servers.spark_cluster import bare_python

FULL = os.environ.get("JMSJCA_CHAOS") == "full"
pytestmark = [
    pytest.mark.usefixtures("metadata"),
    # A task run loads half of Airflow, whose dependencies warn about each other.
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]


@pytest.mark.skipif(not FULL, reason="minutes: only with JMSJCA_CHAOS=full")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("deferrable", [True, False])
def test_a_driver_in_a_container_stores_a_batch_of_hdfs(
    deferrable: bool,
    yarn_cluster: Yarn,
    publish: Publish,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hdfs = yarn_cluster.hdfs
    for_webhdfs = (requests, urllib3, idna, certifi, charset_normalizer)
    bare = str(bare_python(tmp_path / "bare", *for_webhdfs))
    connections: dict[str, dict[str, Any]] = {
        "SPARK_TEST": {
            "conn_type": "spark",
            "host": "yarn",
            "extra": {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": yarn_cluster.web},
        },
        "HDFS_TEST": {"conn_type": "webhdfs", "host": HOST, "port": hdfs.ports["http"], "login": USER},
    }
    for name, fields in connections.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(fields))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(yarn_cluster.folder))
    monkeypatch.setenv("JAVA_HOME", str(spark_java_home()))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.delenv("SPARK_HOME", raising=False)  # YARN is sent the PySpark that the tests' own home lacks
    publish(*(json.dumps({"id": number}) for number in range(20)), "no JSON")
    root = f"127.0.0.1:{hdfs.ports['hdfs']}/{uuid.uuid4().hex}"
    table = f"hdfs://{root}/table"
    quickly = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

    def load(**arguments: Any) -> JmsToSparkSubmitOperator:
        return JmsToSparkSubmitOperator(
            task_id="load",
            jms_conn_id="jms_test",
            destination="queue://orders",
            spool_path=f"hdfs://hdfs_test@{root}/spool",
            idle_time=1,
            spark_conn_id="spark_test",
            deferrable=deferrable,
            poll_interval=0.5,
            application_args=["--table", table, "--schema", "id LONG NOT NULL"],
            conf={
                "spark.yarn.jars": f"local:{Path(pyspark.__file__).parent}/jars/*",
                "spark.pyspark.python": bare,
                "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": HOST,
                "spark.executorEnv.SPARK_LOCAL_IP": HOST,
                "spark.driver.memory": "512m",
                "spark.executor.memory": "512m",
                "spark.executor.instances": "1",
                "spark.sql.shuffle.partitions": "2",
                "spark.driver.extraJavaOptions": quickly,
                "spark.executor.extraJavaOptions": quickly,
            },
            **arguments,
        )

    outcome = run_task(load)
    assert outcome.state == TaskInstanceState.SUCCESS, yarn_cluster.containers
    report = outcome.value
    assert (report["stored"], report["rejected"], report["dead_lettered"]) == ({table: 20}, 1, 1)
    rows = 0
    for entry in walk(ObjectPath.parse(table, hdfs.options())):
        if entry.path.name.startswith("part-"):
            with open_file(entry.path) as file:
                rows += pq.read_metadata(file).num_rows
    assert rows == 20
