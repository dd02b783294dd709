"""What the provider of OpenLineage writes of real runs: a real broker, a real Spark, events in a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from airflow.configuration import conf

from tests.servers.broker import Broker

ROOT = Path(__file__).parents[3]


@pytest.mark.timeout(900)  # Airflow, Spark and a broker start for it
def test_datasets_and_batches_of_real_runs(activemq: Broker, tmp_path: Path, migrated_database: Path) -> None:
    queue = f"queue://lineage.{uuid.uuid4().hex}"
    host, port = activemq.address()
    written = tmp_path / "events.jsonl"
    fields = {"conn_type": "jms", "host": host, "port": port, "login": activemq.username}
    transport = {"type": "file", "log_file_path": str(written), "append": True}
    database = tmp_path / "airflow.db"
    database.write_bytes(migrated_database.read_bytes())
    environment = os.environ | {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{database}",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport),
        "AIRFLOW__OPENLINEAGE__SPARK_INJECT_PARENT_JOB_INFO": "True",
        "AIRFLOW_CONN_JMS_REAL": json.dumps(fields | {"password": activemq.password}),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[1]"}),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.airflow.assets.traced_runs", queue, str(tmp_path)],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=540, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    outcomes = (tmp_path / "outcomes").read_text()
    assert outcomes == "publish success\ncollect success\nspark success\n", said[-6000:]
    events = [json.loads(line) for line in written.read_text().splitlines()]
    complete = {
        each["job"]["name"]: each
        for each in events
        if each["eventType"] == "COMPLETE" and each["job"]["name"].endswith(".task")
    }
    broker, name = f"jms://{host}:{port}", queue.replace("://", "/")

    publish = complete["publish.task"]
    assert (datasets(publish, "inputs"), datasets(publish, "outputs")) == ([], [(broker, name)])

    collect = complete["collect.task"]
    assert (datasets(collect, "inputs"), datasets(collect, "outputs")) == ([(broker, name)], [])
    batch = collect["run"]["facets"]["jms_batch"]
    assert (batch["rows"], batch["stored"]) == (1, {})
    assert batch["manifest"].endswith("/manifest.json")
    assert "collect" in batch["batchId"]

    spark = complete["spark.task"]
    assert datasets(spark, "inputs") == [(broker, name)]
    table = str(tmp_path / "a table")
    assert datasets(spark, "outputs") == [("file", table), (broker, f"{name}.dlq")]
    batch = spark["run"]["facets"]["jms_batch"]
    assert (batch["rows"], batch["stored"], batch["rejected"]) == (2, {table: 1}, 1)
    assert "spark" in batch["batchId"]
    # The listener of OpenLineage within Spark would name this task as the parent of the job.
    assert "spark.openlineage.parentJobName=spark.task" in said
    assert f"spark.openlineage.parentRunId={spark['run']['runId']}" in said
    assert not conf.getboolean("openlineage", "spark_inject_parent_job_info", fallback=False)


def datasets(event: dict[str, Any], side: str) -> list[tuple[str, str]]:
    return sorted((each["namespace"], each["name"]) for each in event[side])
