"""The triggerer dies by kill -9 in the middle of its messages: no event is lost, repetitions are counted."""

from __future__ import annotations

import os
import uuid
from collections import Counter
from pathlib import Path

import pytest

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Outgoing
from tests.airflow.triggerer import TriggererProcess
from tests.servers.broker import Broker

MESSAGES = 20_000 if os.environ.get("JMSJCA_CHAOS") == "full" else 2_000
KILLS = 3
PREFETCH = 200


@pytest.mark.timeout(900)
def test_no_event_is_lost_when_the_triggerer_is_killed(
    activemq: Broker, tmp_path: Path, record_property: pytest.FixtureRequest
) -> None:
    queue = Destination.queue(f"killed.{uuid.uuid4().hex}")
    host, port = activemq.address()
    home = TriggererProcess(
        tmp_path / "home",
        {
            "conn_type": "jms",
            "host": host,
            "port": port,
            "login": activemq.username,
            "password": activemq.password,
        },
        {"jms_conn_id": "jms_test", "destination": str(queue), "prefetch": PREFETCH},
    )
    home.prepare(None)
    connection = connect(activemq.settings())
    bodies = [str(number) for number in range(MESSAGES)]
    connection.send(Outgoing(destination=queue, message=JmsMessage.text(body)) for body in bodies)

    def stored() -> int:
        return int(home.query("select count(*) from asset_event")[0][0])

    try:
        for kill in range(KILLS):
            home.start()
            before = stored()
            step = MESSAGES // (KILLS + 1)
            home.until(lambda goal=before + step: stored() >= goal, 180, f"events before kill {kill + 1}")
            home.kill()
        home.start()
        home.until(lambda: stored() >= MESSAGES, 180, "an event for each message")
        home.until(lambda: not any(True for _ in connection.browse(queue)), 60, "an empty queue")
    finally:
        home.stop()
        connection.close()
    seen = Counter(payload["message"]["body"] for payload in home.payloads())
    repeated = sum(seen.values()) - len(seen)
    record_property("repeated", repeated)  # type: ignore[operator]
    print(f"{MESSAGES} messages, {KILLS} kills: {len(seen)} stored, {repeated} repeated")  # a figure
    assert set(seen) == set(bodies)
    # What had been delivered and not acknowledged when it was killed, and no more.
    assert repeated <= KILLS * PREFETCH
    ids = {payload["message"]["message_id"] for payload in home.payloads()}
    assert len(ids) == MESSAGES, "a repetition has the id of the first, by which a DAG can know it"
