"""Drivers are killed around the commit to a table of PostgreSQL: the table has the batch once.

`JMSJCA_CHAOS=full` kills six attempts, otherwise one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from airflow_provider_jmsjca import JmsMessage, Manifest
from tests.chaos.spark_processes import Driver, ended, soon
from tests.internals.spool import Done, Row, SpoolBatch, take_fence
from tests.servers.broker import USER
from tests.servers.ports import HOST
from tests.servers.postgres import Postgres
from tests.spark.conftest import table_jars

FULL = os.environ.get("JMSJCA_CHAOS") == "full"
MESSAGES = 5_000
ROOT = Path(__file__).parents[2]
JOB = """
import os, signal
from pyspark.sql import SparkSession
from airflow_provider_jmsjca import Batch

with Batch.from_args() as batch:
    spark = SparkSession.builder.getOrCreate()
    rows = batch.json(batch.messages(spark), "id LONG NOT NULL").rows
    options = {"url": os.environ["TEST_URL"], "user": os.environ["TEST_USER"], "batchsize": "100"}
    options["password"] = os.environ["TEST_PASSWORD"]
    batch.write(rows, "orders", format="jdbc", options=options)
    # The window between the commit and the report, until this process is killed.
    if "--wait" in batch.arguments:
        signal.pause()
"""


@pytest.fixture
def database(postgres: Postgres) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres.url(driver="postgresql"), autocommit=True) as connection:
        yield connection
        connection.execute("DROP TABLE IF EXISTS orders")


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    (tmp_path / "job.py").write_text(JOB, encoding="utf-8")
    with SpoolBatch(tmp_path / "spool", "b1", source="queue://orders", activation="a") as batch:
        for first in range(0, MESSAGES, 1_000):
            bodies = (json.dumps({"id": number}) for number in range(first, first + 1_000))
            batch.seal([Row(JmsMessage.text(body), 1_700_000_000_000_000) for body in bodies])
        return batch.complete()


def submit(manifest: Manifest, postgres: Postgres, *arguments: str) -> subprocess.Popen[bytes]:
    fence = take_fence(manifest.folder)
    url = f"jdbc:postgresql://{HOST}:{postgres.ports['postgres']}/postgres"
    with (manifest.folder.parent.parent / f"log-{fence}").open("wb") as log:
        return subprocess.Popen(
            [
                Path(sys.executable).parent / "spark-submit",
                "--master", "local[1]",
                "--jars", table_jars(),
                "--conf", "spark.ui.enabled=false",
                str(manifest.folder.parent.parent / "job.py"),
                "--manifest", manifest.uri,
                "--batch-id", manifest.batch_id,
                "--fence", str(fence),
                *arguments,
            ],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=manifest.folder,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "PYSPARK_PYTHON": sys.executable,
                "TEST_URL": url,
                "TEST_USER": USER,
                "TEST_PASSWORD": postgres.password,
            },
        )  # fmt: skip


def kill(manifest: Manifest, postgres: Postgres, look: Callable[[], object], what: str, *waits: str) -> None:
    """Kill both processes of a new attempt, once `look` finds something."""
    started = submit(manifest, postgres, *waits)
    driver = Driver(len(list(manifest.folder.glob("fence-*"))))
    try:
        soon(lambda: look() or started.poll() is not None, what)
        python = driver.python()
        assert python is not None, f"window missed: attempt {driver.fence} had ended before {what}"
        python.kill()
        os.killpg(started.pid, signal.SIGKILL)
        started.wait(120)
        soon(lambda: ended(python), "end of the old driver")
    except psutil.NoSuchProcess:
        pytest.fail(f"window missed: the driver ended by itself after {what}")
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait(10)
    assert Done.read(manifest.folder) is None


@pytest.mark.timeout(900)
def test_killed_around_the_commit_a_batch_is_in_a_table_once(
    manifest: Manifest, postgres: Postgres, database: psycopg.Connection
) -> None:
    def asides() -> set[str]:
        found = database.execute("SELECT tablename FROM pg_tables WHERE starts_with(tablename, 'jms_')")
        return {name for (name,) in found.fetchall()}

    def stored() -> list[tuple[int, str]]:
        if database.execute("SELECT to_regclass('orders')").fetchone() == (None,):
            return []
        return database.execute("SELECT id, jms_batch_id FROM orders ORDER BY id").fetchall()

    expected = [(number, "b1") for number in range(MESSAGES)]
    if FULL:
        kill(manifest, postgres, asides, "table aside")
        assert stored() in ([], expected)
    kill(manifest, postgres, stored, "commit", "--wait")
    assert stored() == expected
    for _ in range(4 if FULL else 0):
        before = asides()
        kill(manifest, postgres, lambda b=before: asides() - b, "table aside")
        assert stored() == expected
    last = submit(manifest, postgres)
    assert last.wait(300) == 0
    assert (stored(), asides()) == (expected, set())
    done = Done.read(manifest.folder)
    assert done is not None
    assert done.stored == {"orders": MESSAGES}
