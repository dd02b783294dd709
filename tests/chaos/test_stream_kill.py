"""A driver that streams a queue into a Delta table is killed, at each phase of a micro-batch.

Nothing is lost, and nothing is in the table twice. `JMSJCA_CHAOS=full` sends 200,000 messages and kills 20
drivers. Otherwise it is left out, for each driver takes seconds to start: `tests/spark/test_broker_source.py`
builds what a kill leaves.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Outgoing
from tests.chaos.spark_processes import soon
from tests.servers.broker import Broker

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

    def __init__(self, broker: Broker, queue: str, folder: Path) -> None:
        self.folder = folder
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
        line = [sys.executable, "-m", "tests.chaos.spark_stream", json.dumps(self._options)]
        with (self.folder / "driver.log").open("ab") as log:
            return subprocess.Popen(
                [*line, str(self.table), str(self.checkpoint)],
                cwd=ROOT, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            )  # fmt: skip

    def segments(self) -> int:
        return len(list(self.wal.glob("[!.]*/segment-*.parquet")))

    def manifests(self) -> int:
        return len(list(self.wal.glob("[!.]*/manifest.json")))

    def planned(self) -> int:
        return len(list(self.checkpoint.glob("offsets/[0-9]*")))

    def stored(self) -> int:
        return len(list(self.table.glob("_delta_log/*.json")))

    def noted(self) -> int:
        return len(list(self.checkpoint.glob("commits/[0-9]*")))


def test_drivers_that_are_killed_lose_nothing_and_repeat_nothing(
    activemq: Broker, queue_name: str, tmp_path: Path
) -> None:
    bodies = [f"{number:06}" for number in range(MESSAGES)]
    connection = connect(activemq.settings())
    queue = Destination.queue(queue_name)
    connection.send(Outgoing(destination=queue, message=JmsMessage.text(body)) for body in bodies)
    stream = Stream(activemq, queue_name, tmp_path)
    phases = [stream.segments, stream.manifests, stream.planned, stream.stored, stream.noted]
    for kill in range(KILLS):
        phase = phases[kill % len(phases)]
        before = phase()
        driver = stream.start()
        try:
            soon(lambda: phase() > before or driver.poll() is not None, f"change of {phase.__name__}")  # noqa: B023 - called here
            assert driver.poll() is None, (tmp_path / "driver.log").read_text()[-2000:]
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    last = stream.start()
    try:
        assert last.wait(timeout=2400) == 0, (tmp_path / "driver.log").read_text()[-2000:]
    finally:
        if last.poll() is None:
            os.killpg(last.pid, signal.SIGKILL)
    log = [
        json.loads(line)
        for path in stream.table.glob("_delta_log/*.json")
        for line in path.read_text().splitlines()
    ]
    files = [stream.table / action["add"]["path"] for action in log if "add" in action]
    found = sorted(body for file in files for body in pq.read_table(file)["body"].to_pylist())
    assert found == bodies
    assert list(connection.browse(queue)) == []
    connection.close()
