"""A replay of dead letters is killed again and again: every letter arrives, once wherever the broker can.

`JMSJCA_CHAOS=full` replays 10,000 letters and kills ten times on each broker, otherwise 600 and three times.
The moments are new each time; the seed is reported, and `JMSJCA_CHAOS_SEED` repeats them.
"""

from __future__ import annotations

import os
import random
import signal
from collections import defaultdict
from contextlib import closing

import pytest

from airflow_provider_jmsjca import Destination, JmsConnection, JmsMessage, Outgoing, connect
from tests.chaos.conftest import Report
from tests.chaos.test_limbo_kill import start
from tests.internals.operating import REPLAY_OF
from tests.pace import at_most
from tests.servers.broker import Broker

FULL = os.environ.get("JMSJCA_CHAOS") == "full"
LETTERS, KILLS, MOST_UNITS = (10_000, 10, 15) if FULL else (600, 3, 1)


@pytest.mark.timeout(900)
def test_a_killed_replay_loses_no_letter(broker: Broker, queue_name: str, report: Report) -> None:
    seed = int(os.environ.get("JMSJCA_CHAOS_SEED") or int.from_bytes(os.urandom(4)))
    chance = random.Random(seed)  # noqa: S311 - when to kill
    queue, dead_letters = Destination.queue(queue_name), Destination.queue(f"{queue_name}.dlq")
    origin = {
        "JMS_Sun_JMSJCA_OriginalDestinationName": queue_name,
        "JMS_Sun_JMSJCA_OriginalDestinationType": "javax.jms.Queue",
    }
    bodies = {str(number) for number in range(LETTERS)}
    with closing(connect(broker.settings())) as connection:
        connection.send(
            Outgoing(destination=dead_letters, message=JmsMessage.text(body, origin)) for body in bodies
        )
    for _ in range(KILLS):
        units, delay = chance.randint(1, MOST_UNITS), chance.uniform(0, 0.02)
        process = start("", broker, "replaying", queue=queue_name, units=units, delay=delay)
        assert process.wait(at_most(60)) == -signal.SIGKILL, f"seed {seed}"
    assert start("", broker, "replaying", queue=queue_name).wait(at_most(120)) == 0

    letters = defaultdict(list)
    with JmsConnection(connect(broker.settings())) as jms, jms.session() as session:
        while message := session.receive(queue, timeout=30 if len(letters) < LETTERS else 1):
            letters[message.body].append(message.properties[REPLAY_OF])
        assert session.receive(dead_letters, timeout=1) is None
    repeated = sum(map(len, letters.values())) - len(letters)
    report(f"replay, {broker.name}: {LETTERS} letters, {KILLS} kills, {repeated} sent twice; seed {seed}")
    assert letters.keys() == bodies
    assert all(len(set(each)) == 1 for each in letters.values()), f"seed {seed}"
    assert len({each[0] for each in letters.values()}) == LETTERS, "letters share an id"
    if broker.name != "rabbitmq":
        assert repeated == 0, f"seed {seed}"
