"""The triggerer dies by kill -9 in the middle of its messages: no event is lost, repetitions are counted."""

from __future__ import annotations

import os
import time
import uuid
from collections import Counter
from pathlib import Path

import pytest

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Outgoing
from tests.airflow.triggerer import TriggererProcess
from tests.chaos.conftest import Report
from tests.servers.broker import Broker

MESSAGES = 20_000 if os.environ.get("JMSJCA_CHAOS") == "full" else 2_000
KILLS = 3
PREFETCH = 200
# Airflow stores some dozens of events in a second, on a busy machine a dozen: only a standstill is a fault.
STANDSTILL = 120.0


def until_stored(home: TriggererProcess, goal: int) -> int:
    """Wait until so many events are stored, as long as there are more now and then; return how many are."""
    found, since = -1, time.monotonic()
    while (stored := int(home.query("select count(*) from asset_event")[0][0])) < goal:
        if stored > found:
            found, since = stored, time.monotonic()
        assert time.monotonic() < since + STANDSTILL, f"{stored} of {goal} events, and no more\n{home.log()}"
        time.sleep(0.1)
    return stored


@pytest.mark.timeout(3600)
def test_no_event_is_lost_when_the_triggerer_is_killed(
    activemq: Broker, tmp_path: Path, report: Report
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

    began = time.monotonic()
    stored = 0
    try:
        for _ in range(KILLS):
            home.start()
            stored = until_stored(home, stored + MESSAGES // (KILLS + 1))
            home.kill()
        home.start()
        until_stored(home, MESSAGES)
        home.until(lambda: not any(True for _ in connection.browse(queue)), 60, "an empty queue")
    finally:
        home.stop()
        connection.close()
    seen = Counter(payload["message"]["body"] for payload in home.payloads())
    repeated = sum(seen.values()) - len(seen)
    report(
        f"triggerer: {MESSAGES} messages, {KILLS} kills: {len(seen)} stored, {repeated} repeated,"
        f" {time.monotonic() - began:.0f} s"
    )
    assert set(seen) == set(bodies)
    # What had been delivered and not acknowledged when it was killed, and no more.
    assert repeated <= KILLS * PREFETCH
    ids = {payload["message"]["message_id"] for payload in home.payloads()}
    assert len(ids) == MESSAGES, "a repetition has the id of the first, by which a DAG can know it"
