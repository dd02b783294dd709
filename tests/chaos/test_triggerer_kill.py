"""Triggerers and their broker die by kill -9 in the middle of messages, in a whole Airflow.

Nothing is lost. Where messages aren't held a crash may repeat an event; where they are held until their DAG
runs have succeeded, each message has one run that succeeds.

`JMSJCA_CHAOS=full` kills 20 triggerers of each kind, otherwise two of two kinds.
"""

from __future__ import annotations

import json
import os
import random
import time
import uuid
from collections import Counter
from pathlib import Path

import pytest

from airflow_provider_jmsjca import Destination, JmsMessage, Outgoing, connect
from tests.airflow.triggerer import TriggererProcess
from tests.chaos.conftest import Report
from tests.servers.broker import Broker
from tests.servers.fixtures import PrivateBroker

FULL = os.environ.get("JMSJCA_CHAOS") == "full"
MESSAGES = 5_000 if FULL else 60
TRIGGERER_KILLS = 20 if FULL else 2
BROKER_KILLS = 2 if FULL else 1
PREFETCH = 200 if FULL else 10
HELD_MESSAGES = 1_000 if FULL else 36
"""Each held message has a DAG run of its own, and the scheduler starts about one a second."""
KINDS = [("sqlite", True), ("postgresql", False)]
if FULL:
    KINDS += [("sqlite", False), ("postgresql", True)]
KIND_NAMES = {False: "stored", True: "held"}
# Airflow stores some dozens of events in a second, on a busy machine a dozen: only a standstill is a fault.
STANDSTILL = 120.0

RUNS = """
select event.extra, run.id, run.state from asset_event event
join dagrun_asset_event link on link.event_id = event.id
join dag_run run on run.id = link.dag_run_id
"""


class Killed(TriggererProcess):
    """An Airflow whose triggerers die."""

    def stored(self) -> int:
        """Return how many events are stored."""
        return int(self.query("select count(*) from asset_event")[0][0])

    def ended(self) -> int:
        """Return how many DAG runs have ended."""
        return int(self.query("select count(*) from dag_run where state in ('success', 'failed')")[0][0])

    def until_stored(self, goal: int) -> int:
        """Wait until so many events are stored, as long as more are stored or more runs end; return how many.

        A triggerer with all its prefetch held stores nothing until runs end.
        """
        found, since = (-1, -1), time.monotonic()
        while (stored := self.stored()) < goal:
            if (progress := (stored, self.ended())) != found:
                found, since = progress, time.monotonic()
            assert time.monotonic() < since + STANDSTILL, f"{stored} of {goal} events, no more\n{self.log()}"
            time.sleep(0.1)
        return stored

    def runs(self) -> dict[str, Counter[str]]:
        """Return of each message that has a run in how many runs of which state its events are."""
        found: dict[str, set[tuple[int, str]]] = {}
        for extra, run, state in self.query(RUNS):
            event = json.loads(extra) if isinstance(extra, str) else extra
            found.setdefault(event["payload"]["message"]["body"], set()).add((run, str(state)))
        return {body: Counter(state for _, state in runs) for body, runs in found.items()}


def left_on(broker: Broker, queue: Destination) -> int:
    """Return how many messages are still there."""
    connection = connect(broker.settings())
    try:
        return sum(1 for _ in connection.browse(queue))
    finally:
        connection.close()


def send(broker: Broker, queue: Destination, bodies: list[str]) -> None:
    connection = connect(broker.settings())
    connection.send(Outgoing(destination=queue, message=JmsMessage.text(body)) for body in bodies)
    connection.close()


@pytest.mark.parametrize(("database", "hold"), KINDS, ids=lambda value: KIND_NAMES.get(value, value))
@pytest.mark.timeout(3600)
def test_nothing_is_lost_when_triggerers_and_the_broker_are_killed(  # noqa: PLR0917 - fixtures
    private_broker: PrivateBroker,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    migrated_database: Path,
    report: Report,
    database: str,
    hold: bool,
) -> None:
    """On PostgreSQL there are two triggerers: when one dies the other takes over its trigger."""
    activemq = private_broker("activemq")
    messages = HELD_MESSAGES if hold else MESSAGES
    queue = Destination.queue(f"killed.{uuid.uuid4().hex}")
    host, port = activemq.address()
    login = {"login": activemq.username, "password": activemq.password}
    home = Killed(
        tmp_path / "home",
        {"conn_type": "jms", "host": host, "port": port, **login},
        {"jms_conn_id": "jms_test", "destination": str(queue), "prefetch": PREFETCH, "hold_until_ack": hold},
        database_url=request.getfixturevalue("postgres").new_database() if database == "postgresql" else None,
    )
    home.prepare(None if database == "postgresql" else migrated_database)
    bodies = [str(number) for number in range(messages)]
    send(activemq, queue, bodies)
    chance = random.Random(20)  # noqa: S311 - which dies, and when
    began = time.monotonic()
    stored = 0
    try:
        home.start_service("dag-processor")
        home.start_scheduler()
        for _ in range(2 if database == "postgresql" else 1):
            home.start()
        for number in range(1, TRIGGERER_KILLS + 1):
            stored = home.until_stored(stored + messages // (TRIGGERER_KILLS + 1))
            time.sleep(chance.random())  # the moment of the kill
            home.kill(chance.randrange(len(home.triggerers)))
            if number % (TRIGGERER_KILLS // BROKER_KILLS) == 0:
                activemq.kill()
                activemq.start()
            home.start()
        home.until_stored(messages)
        home.until(lambda: left_on(activemq, queue) == 0, 600, "an empty queue")
        home.until(lambda: all(map(home.runs().get, bodies)), 60, "the runs")
        payloads, runs = home.payloads(), home.runs()
    finally:
        home.stop()
    seen = Counter(payload["message"]["body"] for payload in payloads)
    succeeded = Counter(runs[body]["success"] for body in bodies)
    report(
        f"{database}, messages {'held until their runs succeed' if hold else 'acknowledged when stored'}: "
        f"{messages} messages, {TRIGGERER_KILLS} kills of a triggerer, {BROKER_KILLS} of the broker: "
        f"{len(seen)} stored, {sum(seen.values()) - len(seen)} repeated; runs that succeeded for a message: "
        f"{dict(sorted(succeeded.items()))}, {time.monotonic() - began:.0f} s"
    )
    assert set(seen) == set(bodies)
    ids = {(each["message"]["body"], each["message"]["message_id"]) for each in payloads}
    assert len(ids) == messages, "a repetition has the id of the first, by which a DAG can know it"
    # What had been delivered and not acknowledged at a kill, and no more. After a kill of the broker a lone
    # triggerer knows its messages; of two, the other one may get them.
    kills = TRIGGERER_KILLS + (BROKER_KILLS if database == "postgresql" else 0)
    assert sum(seen.values()) - len(seen) <= kills * PREFETCH
    if hold:
        assert succeeded == {1: messages}
