"""The triggerer dies by kill -9 in the middle of its messages: no event is lost, repetitions are counted."""

from __future__ import annotations

import os
import random
import time
import uuid
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import NullPool, create_engine, text

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Outgoing
from tests.airflow.triggerer import TriggererProcess
from tests.chaos.conftest import Report
from tests.servers.broker import Broker
from tests.servers.fixtures import PrivateBroker
from tests.servers.postgres import Postgres

MESSAGES = 20_000 if os.environ.get("JMSJCA_CHAOS") == "full" else 2_000
KILLS = 3
PREFETCH = 200
NUMBERED = 5_000
TRIGGERER_KILLS = 20
BROKER_KILLS = 2
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


@pytest.mark.skipif(os.environ.get("JMSJCA_CHAOS") != "full", reason="takes many minutes: make chaos")
@pytest.mark.timeout(7200)
def test_two_triggerers_on_postgresql_lose_nothing_when_they_and_the_broker_are_killed(
    private_broker: PrivateBroker, postgres: Postgres, tmp_path: Path, report: Report
) -> None:
    """One of them has the activation; when it dies the other takes over."""
    activemq = private_broker("activemq")
    with create_engine(postgres.url(), isolation_level="AUTOCOMMIT", poolclass=NullPool).connect() as server:
        server.execute(text("create database killed"))
    queue = Destination.queue(f"killed.{uuid.uuid4().hex}")
    host, port = activemq.address()
    login = {"login": activemq.username, "password": activemq.password}
    home = TriggererProcess(
        tmp_path / "home",
        {"conn_type": "jms", "host": host, "port": port, **login},
        {"jms_conn_id": "jms_test", "destination": str(queue), "prefetch": PREFETCH},
        database_url=postgres.url().removesuffix("postgres") + "killed",
    )
    home.prepare(None)
    bodies = [str(number) for number in range(NUMBERED)]
    connection = connect(activemq.settings())
    connection.send(Outgoing(destination=queue, message=JmsMessage.text(body)) for body in bodies)
    connection.close()
    chance = random.Random(20)  # noqa: S311 - which dies, and when
    began = time.monotonic()
    stored = 0
    try:
        for _ in range(2):
            home.start()
        for number in range(1, TRIGGERER_KILLS + 1):
            stored = until_stored(home, stored + NUMBERED // (TRIGGERER_KILLS + 1))
            time.sleep(chance.random())  # the moment of the kill
            home.kill(chance.randrange(2))
            if number % (TRIGGERER_KILLS // BROKER_KILLS) == 0:
                activemq.kill()
                activemq.start()
            home.start()
        until_stored(home, NUMBERED)
        connection = connect(activemq.settings())
        home.until(lambda: next(iter(connection.browse(queue)), None) is None, 600, "an empty queue")
        connection.close()
        payloads = home.payloads()
    finally:
        home.stop()
    seen = Counter(payload["message"]["body"] for payload in payloads)
    report(
        f"two triggerers on PostgreSQL: {NUMBERED} messages, {TRIGGERER_KILLS} kills, {BROKER_KILLS} of the "
        f"broker: {len(seen)} stored, {sum(seen.values()) - len(seen)} repeated, "
        f"{time.monotonic() - began:.0f} s"
    )
    assert set(seen) == set(bodies)
    assert len({payload["message"]["message_id"] for payload in payloads}) == NUMBERED
    assert len(seen) <= sum(seen.values()) <= len(seen) + TRIGGERER_KILLS * PREFETCH
