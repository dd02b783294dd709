"""Executors of a cluster are killed while they write: the job goes on, and the table has the batch once.

The job is submitted once, and nobody retries it. `JMSJCA_CHAOS=full` kills four executors for each kind of
table, and for a spool in S3; otherwise two, for a Delta table.
"""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from airflow_provider_jmsjca import Manifest
from tests.chaos.conftest import Report
from tests.chaos.sinks import (
    DeltaSink,
    JdbcSink,
    ParquetSink,
    Sink,
    check_stored_once,
    numbered_batch,
    submit,
)
from tests.chaos.spark_processes import ended, soon
from tests.internals.spool import Done, ObjectPath, SpoolPath, names_in
from tests.servers.s3 import BUCKET, S3
from tests.servers.spark_cluster import SparkCluster
from tests.spark.conftest import s3a_jars

FULL = os.environ.get("JMSJCA_CHAOS") == "full"
MESSAGES = 50_000 if FULL else 10_000
CASES = ["delta", "parquet", "jdbc", "parquet, spool in S3"] if FULL else ["delta"]


@pytest.fixture
def sink(case: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Sink]:
    if case.startswith("jdbc"):
        jdbc = JdbcSink(request.getfixturevalue("postgres"), f"executors_{uuid.uuid4().hex[:8]}")
        yield jdbc
        jdbc.drop()
        return
    yield DeltaSink(tmp_path / "table") if case.startswith("delta") else ParquetSink(tmp_path / "table")


@pytest.fixture
def manifest(
    case: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Manifest:
    spool: SpoolPath = tmp_path / "spool"
    if case.endswith("S3"):
        store: S3 = request.getfixturevalue("s3")
        for name, value in store.options().items():
            monkeypatch.setenv(name.upper(), value)
        spool = ObjectPath.parse(f"s3://{BUCKET}/{uuid.uuid4().hex}/spool")
    return numbered_batch(spool, MESSAGES)


def kill_an_executor(
    cluster: SparkCluster, job: subprocess.Popen[bytes], look: Callable[[], object], what: str
) -> None:
    """Kill the oldest executor once `look` finds something; another one takes its place."""
    soon(lambda: look() or job.poll() is not None, what, 300)
    victim, *_ = cluster.executors()
    victim.kill()
    assert job.poll() is None, f"window missed: the job had ended before {what}"
    soon(lambda: ended(victim), "end of the executor")

    def replaced() -> list[psutil.Process]:
        return [each for each in cluster.executors() if each.create_time() > victim.create_time()]

    soon(lambda: replaced() or job.poll() is not None, "executor in its place", 300)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", CASES)
def test_a_job_outlives_its_executors_and_stores_the_batch_once(  # noqa: PLR0917 - fixtures
    case: str, spark_cluster: SparkCluster, sink: Sink, manifest: Manifest, tmp_path: Path, report: Report
) -> None:
    log = tmp_path / "log"
    conf = {
        "spark.executor.memory": "512m",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    jars = [s3a_jars()] if case.endswith("S3") else []
    job = submit(manifest, sink, log, master=spark_cluster.url, jars=jars, conf=conf)

    def rejecting() -> bool:
        if isinstance(manifest.folder, Path):  # what an executor has begun
            return any(manifest.folder.glob("_rejects-*/**/part-*.json"))
        return any(name.startswith("_rejects-") for name in names_in(manifest.folder))

    def rejected() -> bool:
        return any(name.startswith("rejects-") for name in names_in(manifest.folder))

    windows: list[tuple[Callable[[], object], str]] = [(rejecting, "rejects"), (sink.begun, "rows")]
    if FULL:
        windows[1:1] = [(rejected, "sealed rejects")]
        windows.append((sink.begun, "rows again"))
    try:
        for look, what in windows:
            kill_an_executor(spark_cluster, job, look, what)
        assert job.wait(300) == 0, log.read_text(errors="replace")[-4_000:]
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait(10)
    check_stored_once(manifest, sink, MESSAGES)
    done = Done.read(manifest.folder)
    assert done is not None
    assert done.fence == 1
    said = log.read_text(errors="replace")
    lost, tasks = said.count("Lost executor "), said.count("Lost task ")
    assert lost == len(windows)
    assert tasks > 0, "no executor had anything to do when it was killed"
    report(f"{case}: {MESSAGES} messages, {lost} executors killed with {tasks} tasks, 0 lost, 0 twice")
