"""A Spark job on a batch in S3 is killed again and again: the batch is stored once, its rejects come back.

For minutes: with `JMSJCA_CHAOS=full` only. That an attempt which was overtaken commits nothing is tried in
`tests/spark/test_object_store.py`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from airflow_provider_jmsjca import JmsMessage, Manifest, rejected_messages
from tests.chaos.conftest import Report
from tests.chaos.spark_processes import Driver, soon
from tests.internals.spark import messages_to_table
from tests.internals.spool import Done, ObjectPath, Row, SpoolBatch, current_fence, names_in, take_fence
from tests.servers.s3 import BUCKET, S3
from tests.spark.conftest import s3a_jars

FULL = os.environ.get("JMSJCA_CHAOS") == "full"
MESSAGES = 5_000
BAD_EVERY = 100
ROOT = Path(__file__).parents[2]


@pytest.fixture
def manifest(s3: S3, monkeypatch: pytest.MonkeyPatch) -> Manifest:
    for name, value in s3.options().items():
        monkeypatch.setenv(name.upper(), value)
    spool = ObjectPath.parse(f"s3://{BUCKET}/{uuid.uuid4().hex}/spool")
    with SpoolBatch(spool, "b1", source="queue://orders", activation="a") as batch:
        for first in range(0, MESSAGES, 1_000):
            bodies = (
                "no JSON" if number % BAD_EVERY == 0 else json.dumps({"id": number})
                for number in range(first, first + 1_000)
            )
            batch.seal([Row(JmsMessage.text(body), 1_700_000_000_000_000) for body in bodies])
        return batch.complete()


def submit(manifest: Manifest, table: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            Path(sys.executable).parent / "spark-submit",
            "--master", "local[1]",
            "--jars", s3a_jars(),
            "--conf", "spark.ui.enabled=false",
            "--conf", "spark.hadoop.fs.s3a.path.style.access=true",
            str(messages_to_table.__file__),
            "--manifest", manifest.uri,
            "--batch-id", manifest.batch_id,
            "--fence", str(take_fence(manifest.folder)),
            "--table", str(table),
            "--schema", "id LONG NOT NULL",
        ],
        start_new_session=True, cwd=table.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip


def kill_when(manifest: Manifest, table: Path, look: Callable[[], object], what: str) -> None:
    """Kill what a new attempt started, once `look` finds something."""
    started = submit(manifest, table)
    try:
        soon(lambda: look() or started.poll() is not None, what)
        assert started.poll() is None, f"window missed: the attempt had ended before {what}"
    finally:
        for group in {started.pid, *Driver(current_fence(manifest.folder)).groups()}:
            os.killpg(group, signal.SIGKILL)
        started.wait(10)


@pytest.mark.skipif(not FULL, reason="minutes: only with JMSJCA_CHAOS=full")
@pytest.mark.timeout(900)
def test_killed_again_and_again_a_batch_is_stored_once(
    manifest: Manifest, tmp_path: Path, report: Report
) -> None:
    table = tmp_path / "table"

    def begins(prefix: str) -> bool:
        return any(name.startswith(prefix) for name in names_in(manifest.folder))

    kill_when(manifest, table, lambda: begins("_rejects-"), "rejects of the executors")
    kill_when(manifest, table, lambda: begins("rejects-000002-"), "sealed rejects")
    kill_when(manifest, table, lambda: any(table.rglob("*.parquet")), "rows in the table")
    assert Done.read(manifest.folder) is None
    assert submit(manifest, table).wait(300) == 0
    done = Done.read(manifest.folder)
    assert done is not None
    assert (done.fence, done.rejected) == (4, MESSAGES // BAD_EVERY)
    found = ds.dataset(table, format="parquet", partitioning="hive").to_table(["id"])["id"].to_pylist()
    assert sorted(found) == [number for number in range(MESSAGES) if number % BAD_EVERY]
    assert sum(1 for _ in rejected_messages(manifest)) == MESSAGES // BAD_EVERY
    report(f"Spark job on S3: {MESSAGES} messages, 3 kills, stored {len(found)}, rejected {done.rejected}")
