"""A consuming sensor is killed around seal and acknowledgement: each message is one run's, and none is lost.

`JMSJCA_CHAOS=full` kills it 20 times on each broker, otherwise twice on ActiveMQ and once on the others.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_jmsjca import Destination, JmsMessage, Outgoing, connect
from tests.chaos.conftest import Report
from tests.internals.engine import peek
from tests.servers.activemq import ActiveMQClassic
from tests.servers.broker import Broker

ROOT = Path(__file__).parents[2]
FULL = os.environ.get("JMSJCA_CHAOS") == "full"
RUNS, EACH = (60, 5) if FULL else (5, 4)


def connection_of(broker: Broker) -> dict[str, Any]:
    host, port = broker.address()
    return {
        "conn_type": "jms", "host": f"stomp://{host}", "port": port,
        "login": broker.username, "password": broker.password,
    }  # fmt: skip


class SensorProcess:
    """`tests.chaos.sensing` from one run on; what it reports is read as it comes."""

    def __init__(self, broker: Broker, queue: str, spool: Path, first: int) -> None:
        self.reports: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.sensing"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        assert self._process.stdin is not None
        asked = {
            "connection": connection_of(broker), "queue": queue, "spool": str(spool),
            "max_messages": EACH, "first": first, "runs": RUNS,
        }  # fmt: skip
        # The password travels where no list of processes shows it.
        json.dump(asked, self._process.stdin)
        self._process.stdin.close()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                if line.startswith("{") and line.endswith("}\n"):
                    self.reports.append(json.loads(line))

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def end(self, *, kill: bool) -> None:
        """Kill -9 it, or wait until it has ended well."""
        if kill:
            self._process.kill()
        code = self._process.wait(timeout=120)
        self._reader.join(30)
        assert kill or code == 0


@contextmanager
def sensing(broker: Broker, queue: str, spool: Path, first: int) -> Iterator[SensorProcess]:
    process = SensorProcess(broker, queue, spool, first)
    try:
        yield process
    finally:
        if process.alive:
            process.end(kill=True)


def sealed(spool: Path) -> int:
    return sum(1 for _ in spool.glob("*/segment-000000.parquet"))


@pytest.mark.timeout(900)
def test_killed_around_seal_and_acknowledgement_each_message_is_of_one_run(
    broker: Broker, queue_name: str, tmp_path: Path, report: Report
) -> None:
    kills = 20 if FULL else 2 if isinstance(broker, ActiveMQClassic) else 1
    chance = random.Random(7)  # noqa: S311  # when to kill
    source = Destination.queue(queue_name)
    with closing(connect(broker.settings())) as connection:
        connection.send(
            Outgoing(destination=source, message=JmsMessage.text(str(n))) for n in range(RUNS * EACH)
        )
    returned: dict[int, list[str]] = {}
    killed = unfinished = 0

    def note(process: SensorProcess) -> None:
        for each in process.reports:
            # A retry returns what was returned before.
            assert returned.setdefault(each["run"], each["bodies"]) == each["bodies"]

    for _ in range(kills):
        before = sealed(tmp_path)
        # The run before the first without a report is tried again too: as a task whose report was lost.
        with sensing(broker, queue_name, tmp_path, max(0, len(returned) - 1)) as process:
            deadline = time.monotonic() + 120
            while sealed(tmp_path) == before and process.alive:
                assert time.monotonic() < deadline, "nothing was claimed"
                time.sleep(0.001)
            time.sleep(chance.choice([0, 0, 0.002, 0.01, 0.05]))
            killed += process.alive
            process.end(kill=True)
            note(process)
        unfinished += sum(
            not (path.parent / "manifest.json").exists() for path in tmp_path.glob("*/segment-000000.parquet")
        )
    with sensing(broker, queue_name, tmp_path, max(0, len(returned) - 1)) as process:
        process.end(kill=False)
        note(process)
    numbers = sorted(int(body) for bodies in returned.values() for body in bodies)
    assert numbers == sorted(set(numbers)), "a message was returned to two runs"
    with closing(connect(broker.settings())) as connection:
        left = peek(connection, source, None)
    # A run may have had fewer than it asked for; then later ones had the rest, and the last found nothing.
    assert numbers == list(range(RUNS * EACH)) or left
    assert set(returned) == set(range(RUNS))
    report(f"consuming sensor: {killed} kills, {unfinished} of them between seal and acknowledgement")
