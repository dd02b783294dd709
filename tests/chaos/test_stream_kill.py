"""A queue is streamed into a Delta table; driver and executors are killed in turn.

Drivers are killed at each phase of a micro-batch, executors of the cluster while they write. Nothing is lost,
and nothing is in the table twice. `JMSJCA_CHAOS=full` sends 200,000 messages and kills ten of each. Otherwise
it is left out, for each driver takes seconds to start: `tests/spark/test_broker_source.py` builds what a kill
leaves, and `test_executor_kill.py` kills executors.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from airflow_provider_jmsjca import Destination, JmsMessage, Outgoing, connect
from tests.chaos.conftest import Report
from tests.chaos.spark_processes import soon
from tests.chaos.test_delta_kill import live_files
from tests.servers.broker import Broker
from tests.servers.spark_cluster import SparkCluster

FULL = os.environ.get("JMSJCA_CHAOS") == "full"
MESSAGES = int(os.environ.get("JMSJCA_STREAM_MESSAGES", "200000"))
KILLS = int(os.environ.get("JMSJCA_STREAM_KILLS", "20"))
PORTION = MESSAGES // (2 * KILLS)
ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not FULL, reason="each driver takes seconds to start: JMSJCA_CHAOS=full runs it"),
]


class Stream:
    """A queue, the driver that streams it, and the files by which its phases are told."""

    def __init__(self, broker: Broker, queue: str, folder: Path, master: str) -> None:
        self.folder = folder
        self._master = master
        self.wal, self.table, self.checkpoint = folder / "wal", folder / "table", folder / "checkpoint"
        password = folder / "password"
        password.write_text(broker.password)
        self._options = {
            "path": str(self.wal),
            "url": "stomp://{}:{}".format(*broker.address()),
            "username": broker.username,
            "passwordFile": str(password),
            "destination": f"queue://{queue}",
            "maxMessagesPerTrigger": str(PORTION),
        }

    def start(self) -> subprocess.Popen[bytes]:
        line = [sys.executable, "-m", "tests.chaos.spark_stream", self._master, json.dumps(self._options)]
        with (self.folder / "driver.log").open("ab") as log:
            return subprocess.Popen(
                [*line, str(self.table), str(self.checkpoint)],
                cwd=ROOT, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            )  # fmt: skip

    def said(self) -> str:
        return (self.folder / "driver.log").read_text(errors="replace")

    def segments(self) -> int:
        return len(list(self.wal.glob("[!.]*/segment-*.parquet")))

    def manifests(self) -> int:
        return len(list(self.wal.glob("[!.]*/manifest.json")))

    def planned(self) -> int:
        return len(list(self.checkpoint.glob("offsets/[0-9]*")))

    def written(self) -> int:
        return len(list(self.table.glob("*.parquet")))

    def stored(self) -> int:
        return len(list(self.table.glob("_delta_log/*.json")))

    def noted(self) -> int:
        return len(list(self.checkpoint.glob("commits/[0-9]*")))


def test_drivers_and_executors_that_are_killed_lose_nothing_and_repeat_nothing(
    activemq: Broker, spark_cluster: SparkCluster, queue_name: str, tmp_path: Path, report: Report
) -> None:
    bodies = [f"{number:06}" for number in range(MESSAGES)]
    connection = connect(activemq.settings())
    queue = Destination.queue(queue_name)
    connection.send(Outgoing(destination=queue, message=JmsMessage.text(body)) for body in bodies)
    stream = Stream(activemq, queue_name, tmp_path, spark_cluster.url)
    phases = [stream.segments, stream.manifests, stream.planned, stream.stored, stream.noted]
    driver, restarts = stream.start(), 0

    def until_more(what: Callable[[], int]) -> None:
        nonlocal driver, restarts
        before = what()
        while soon(lambda: what() > before or driver.poll() is not None, f"change of {what.__name__}", 300):  # noqa: B023 - called here
            if what() > before:
                break
            # A query that ends by an error of Spark's, on a busy machine, is started again like a killed one.
            assert driver.poll() != 0, f"window missed: the stream ended before a change of {what.__name__}"
            restarts += 1
            assert restarts < KILLS, stream.said()[-2000:]
            driver = stream.start()

    try:
        for kill in range(KILLS):
            if kill % 2:
                until_more(stream.written)
                spark_cluster.executors()[0].kill()
                until_more(stream.stored)
                continue
            until_more(phases[kill // 2 % len(phases)])
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
            driver = stream.start()
        while driver.wait(timeout=2400) != 0:
            restarts += 1
            assert restarts < KILLS, stream.said()[-2000:]
            driver = stream.start()
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    files = live_files(stream.table)
    found = sorted(body for file in files for body in pq.read_table(file)["body"].to_pylist())
    assert found == bodies
    assert list(connection.browse(queue)) == []
    connection.close()
    said = stream.said()
    executors, tasks = said.count("Lost executor "), said.count("Lost task ")
    report(
        f"stream: {MESSAGES} messages, {KILLS - KILLS // 2} drivers and {KILLS // 2} executors killed "
        f"({executors} noticed, {tasks} tasks lost, {restarts} restarts besides); 0 lost, 0 twice"
    )
