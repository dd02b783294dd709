"""A DAG is paused and unpaused while messages come: each becomes an event, or stays on the queue."""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections import Counter
from pathlib import Path

import pytest

from airflow_provider_jmsjca import Connection, Destination, JmsMessage, Outgoing, connect
from tests.airflow.triggerer import TriggererProcess
from tests.chaos.conftest import Report
from tests.servers.broker import Broker

FULL = os.environ.get("JMSJCA_CHAOS") == "full"
PAUSES = 6 if FULL else 2
PER_SECOND = 40
PATIENCE = 600  # Airflow writes events more slowly than they are sent where the machine is busy


@pytest.mark.timeout(1800)
def test_pausing_a_dag_under_load_loses_nothing(
    activemq: Broker, tmp_path: Path, migrated_database: Path, report: Report
) -> None:
    queue = Destination.queue(f"paused.{uuid.uuid4().hex}")
    host, port = activemq.address()
    login = {"login": activemq.username, "password": activemq.password}
    home = TriggererProcess(
        tmp_path / "home",
        {"conn_type": "jms", "host": host, "port": port, **login},
        {"jms_conn_id": "jms_test", "destination": str(queue)},
    )
    home.prepare(migrated_database)
    sent: list[str] = []
    ending = threading.Event()

    def send(connection: Connection) -> None:
        body = str(len(sent))
        connection.send([Outgoing(destination=queue, message=JmsMessage.text(body))])
        sent.append(body)

    def publish() -> None:
        with contextlib.closing(connect(activemq.settings())) as connection:
            while not ending.wait(1 / PER_SECOND):
                send(connection)

    def triggers() -> int:
        return int(home.query("select count(*) from trigger")[0][0])

    thread = threading.Thread(target=publish)
    try:
        home.start_service("dag-processor")
        home.start()
        # Airflow's first answer to a trigger takes half a minute on a busy machine.
        with contextlib.closing(connect(activemq.settings())) as connection:
            send(connection)
            home.until(lambda: not list(connection.browse(queue)), 240, "the first acknowledgement")
        thread.start()
        for _ in range(PAUSES):
            goal = len(home.payloads()) + 50
            home.until(lambda goal=goal: len(home.payloads()) > goal, 120, "more events")
            home.pause("on_arrival", paused=True)
            home.until(lambda: triggers() == 0, 60, "no trigger")
            home.pause("on_arrival", paused=False)
        ending.set()
        thread.join()

        home.until(lambda: set(sent) == set(bodies(home)), PATIENCE, "an event of each message")
        seen = Counter(bodies(home))
    finally:
        ending.set()
        home.stop()
    report(f"{len(sent)} messages, {PAUSES} pauses: 0 lost, {seen.total() - len(seen)} events repeated")
    assert seen.total() == len(seen)


def bodies(home: TriggererProcess) -> list[str]:
    return [each["message"]["body"] for each in home.payloads()]
