"""Drivers are killed around the commit to a Delta table: the table has the batch once.

`JMSJCA_CHAOS=full` kills six attempts, otherwise two.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import psutil
import pyarrow.parquet as pq
import pytest

from airflow_provider_jmsjca import JmsMessage, Manifest, rejected_messages
from tests.chaos.spark_processes import Driver, ended, nothing_is_committed, soon
from tests.internals.spark import messages_to_table
from tests.internals.spool import Done, Row, SpoolBatch, take_fence
from tests.spark.conftest import table_jars

FULL = os.environ.get("JMSJCA_CHAOS") == "full"
MESSAGES = 5_000
BAD_EVERY = 100
ROOT = Path(__file__).parents[2]
Find = Callable[[Driver], psutil.Process | None]


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    with SpoolBatch(tmp_path / "spool", "b1", source="queue://orders", activation="a") as batch:
        for first in range(0, MESSAGES, 1_000):
            bodies = (
                "no JSON" if number % BAD_EVERY == 0 else json.dumps({"id": number})
                for number in range(first, first + 1_000)
            )
            batch.seal([Row(JmsMessage.text(body), 1_700_000_000_000_000) for body in bodies])
        return batch.complete()


def submit(manifest: Manifest, table: Path) -> subprocess.Popen[bytes]:
    fence = take_fence(manifest.folder)
    with (manifest.folder / f"log-{fence}").open("wb") as log:
        return subprocess.Popen(
            [
                Path(sys.executable).parent / "spark-submit",
                "--master", "local[1]",
                "--jars", table_jars(),
                "--conf", "spark.ui.enabled=false",
                "--conf", "spark.databricks.delta.snapshotPartitions=2",
                str(messages_to_table.__file__),
                "--manifest", manifest.uri,
                "--batch-id", manifest.batch_id,
                "--fence", str(fence),
                "--table", str(table),
                "--format", "delta",
                "--schema", "id LONG NOT NULL",
            ],
            stdout=log, stderr=log, start_new_session=True, cwd=manifest.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
        )  # fmt: skip


def kill(manifest: Manifest, table: Path, find: Find, look: Callable[[], object], what: str) -> None:
    """Kill a process of a new attempt, once `look` finds something; what is left of the attempt ends too."""
    started = submit(manifest, table)
    driver = Driver(len(list(manifest.folder.glob("fence-*"))))
    try:
        with nothing_is_committed(manifest.folder, lambda: look() or started.poll() is not None, what):
            victim = find(driver)
            python = driver.python()
            assert victim is not None, f"window missed: attempt {driver.fence} had ended before {what}"
            victim.kill()
            assert Done.read(manifest.folder) is None, "window missed: the batch was done"
        started.wait(120)
        soon(lambda: python is None or ended(python), "end of the old driver")
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait(10)
    assert Done.read(manifest.folder) is None


def commits(table: Path) -> list[list[dict[str, dict[str, object]]]]:
    """Return the actions of each commit."""
    return [
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted((table / "_delta_log").glob("*.json"))
    ]


def transactions(table: Path) -> list[str]:
    """Return the id of each transaction, in order."""
    return [str(action["txn"]["appId"]) for commit in commits(table) for action in commit if "txn" in action]


def live_files(table: Path) -> list[Path]:
    """Return the table's files, by Delta's log."""
    actions = [action for commit in commits(table) for action in commit]
    removed = {action["remove"]["path"] for action in actions if "remove" in action}
    added = [str(action["add"]["path"]) for action in actions if "add" in action]
    return [table / unquote(path) for path in added if path not in removed]


def stored(table: Path) -> list[int]:
    """Return the ids that the table's files hold."""
    return sorted(number for file in live_files(table) for number in pq.read_table(file)["id"].to_pylist())


@pytest.mark.timeout(900)
def test_killed_around_the_commit_a_batch_is_in_a_delta_table_once(
    manifest: Manifest, tmp_path: Path
) -> None:
    table = tmp_path / "table"

    def written() -> bool:
        return any(table.glob("*.parquet"))

    def committed() -> bool:
        return bool(commits(table))

    # The JVM while it writes; the driver between the commit and the report, which is all it has to repeat.
    kill(manifest, table, Driver.jvm, written, "rows of the first attempt")
    kill(manifest, table, Driver.python, committed, "commit")
    for find in (Driver.jvm, Driver.python) * 2 if FULL else ():
        rejects = set(manifest.folder.glob("rejects-*"))
        kill(manifest, table, find, lambda r=rejects: set(manifest.folder.glob("rejects-*")) != r, "rejects")
    last = submit(manifest, table)
    assert last.wait(300) == 0

    good = [number for number in range(MESSAGES) if number % BAD_EVERY]
    assert stored(table) == good
    assert transactions(table) == ["jmsjca/b1"]
    done = Done.read(manifest.folder)
    assert done is not None
    assert (done.stored, done.rejected) == ({str(table): len(good)}, MESSAGES - len(good))
    assert sum(1 for _ in rejected_messages(manifest)) == done.rejected
