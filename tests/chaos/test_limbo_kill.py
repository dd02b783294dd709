"""Processes that send what is due in limbo are killed: nothing lost, nothing early, nothing twice.

`JMSJCA_CHAOS=full` puts 20,000 messages and kills ten times, otherwise 2,000 and three times.

Source: P12-P18.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_provider_jmsjca import Destination, JmsConnection, JmsMessage, Store, connect, open_store
from tests.chaos.conftest import Report
from tests.contract.store.conftest import new_store, url_of
from tests.internals.engine import SEND_MARKERS, LimboSender
from tests.internals.store import LimboEntry
from tests.pace import at_most
from tests.servers.broker import Broker

FULL = os.environ.get("JMSJCA_CHAOS") == "full"
MESSAGES, KILLS, SECONDS = (20_000, 10, 20) if FULL else (2_000, 3, 5)
LEASE = 5
SENDERS = 2
# A sender removes its send markers when it has 50; while it does so, it may have some more.
MOST_MARKERS = SENDERS * 75


def start(url: str, broker: Broker, module: str = "limbo_sender", **besides: object) -> subprocess.Popen[str]:
    host, port = broker.address()
    process = subprocess.Popen(
        [sys.executable, "-m", f"tests.chaos.{module}"],
        stdin=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdin is not None
    login = {"username": broker.username, "password": broker.password}
    json.dump({"store": url, "host": host, "port": port, "lease": LEASE, **login, **besides}, process.stdin)
    process.stdin.close()
    return process


def put(store: Store, queue: Destination) -> None:
    now = datetime.now(UTC)
    entries = []
    for number in range(MESSAGES):
        due_at = now + timedelta(seconds=2 + SECONDS * number / MESSAGES)
        body = f"{number} {due_at.timestamp() * 1000:.0f}"
        entries.append(
            LimboEntry(
                jms_conn_id="broker",
                destination=str(queue),
                message=JmsMessage.text(body),
                due_at=due_at,
            )
        )
    store.limbo.put(entries, now)


def received(broker: Broker, queue: Destination) -> list[JmsMessage]:
    """Return what is on the queue; a longer silence is waited for while something is missing."""
    found: list[JmsMessage] = []
    with JmsConnection(connect(broker.settings())) as connection, connection.session() as session:
        while (message := session.receive(queue, timeout=30 if len(found) < MESSAGES else 2)) is not None:
            found.append(message)
    return found


def left(broker: Broker, queue: Destination) -> int:
    with JmsConnection(connect(broker.settings())) as connection, connection.session() as session:
        return sum(1 for _ in session.browse(queue))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_killed_senders_lose_nothing_and_send_nothing_early_or_twice(
    database: str, activemq: Broker, tmp_path: Path, request: pytest.FixtureRequest, report: Report
) -> None:
    queue = Destination.queue(f"limbo.killed.{database}")
    url = url_of(database, tmp_path, request)
    store = new_store(url)
    put(store, queue)
    before = left(activemq, SEND_MARKERS)
    senders = [start(url, activemq) for _ in range(SENDERS)]
    try:
        for number in range(KILLS):
            time.sleep(2 + SECONDS / KILLS * (number % 3) / 2)
            victim = senders[number % SENDERS]
            victim.kill()
            victim.wait()
            senders[number % SENDERS] = start(url, activemq)
        deadline = time.monotonic() + SECONDS + 60
        while store.limbo.page(limit=1):
            assert time.monotonic() < deadline, "messages stay in limbo"
            time.sleep(0.2)
    finally:
        for each in senders:
            each.kill()
            each.wait()
        store.close()
    messages = received(activemq, queue)
    early = [each for each in messages if (each.timestamp or 0) < int(str(each.body).split()[1])]
    times = Counter(int(str(each.body).split()[0]) for each in messages)
    twice = sum(times.values()) - len(times)
    report(f"limbo, {database}: {MESSAGES} messages, {KILLS} kills of senders, {twice} sent twice")
    assert set(times) == set(range(MESSAGES))
    assert early == []
    assert twice == 0
    assert left(activemq, SEND_MARKERS) - before <= MOST_MARKERS


UNNOTED = [str(number) for number in range(150)]


def send_and_die(url: str, broker: Broker, queue: Destination) -> None:
    """Let senders kill themselves when the broker has confirmed messages, and another one send the rest."""
    store, now = new_store(url), datetime.now(UTC)
    store.limbo.put(
        [
            LimboEntry(
                jms_conn_id="broker", destination=str(queue), message=JmsMessage.text(body), due_at=now
            )
            for body in UNNOTED
        ],
        now,
    )
    for _ in range(2):
        assert start(url, broker, dies=True).wait(at_most(60)) == -signal.SIGKILL
    living = start(url, broker)
    try:
        deadline = time.monotonic() + at_most(60)
        while store.limbo.page(limit=1):
            assert time.monotonic() < deadline, "messages stay in limbo"
            time.sleep(0.2)
    finally:
        living.kill()
        living.wait()
        store.close()


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_what_a_sender_has_sent_that_was_killed_before_it_noted_that_is_sent_once(
    database: str, activemq: Broker, queue_name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    queue = Destination.queue(queue_name)
    send_and_die(url_of(database, tmp_path, request), activemq, queue)
    with JmsConnection(connect(activemq.settings())) as connection, connection.session() as session:
        found = [str(each.body) for each in session.browse(queue)]
    assert sorted(found, key=int) == UNNOTED


def test_on_rabbitmq_what_is_sent_again_has_the_same_id(
    rabbitmq: Broker, queue_name: str, tmp_path: Path
) -> None:
    """There are no transactions, and so no witnesses."""
    queue = Destination.queue(queue_name)
    send_and_die(f"sqlite:///{tmp_path / 'store.db'}", rabbitmq, queue)
    ids: dict[str, set[str | None]] = {body: set() for body in UNNOTED}
    with JmsConnection(connect(rabbitmq.settings())) as connection, connection.session() as session:
        while (message := session.receive(queue, timeout=1)) is not None:
            ids[str(message.body)].add(message.message_id)
    assert {len(each) for each in ids.values()} == {1}
    assert len(set.union(*ids.values())) == len(UNNOTED)


@pytest.mark.parametrize("sent_meanwhile", [True, False])
def test_what_a_killed_listener_has_parked_is_sent_once(
    rabbitmq: Broker, queue_name: str, tmp_path: Path, *, sent_meanwhile: bool
) -> None:
    """P18: it is killed between parking and acknowledging, and the next one handles the message again."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    store = open_store(url)
    sender = LimboSender(store.limbo, lambda _: JmsConnection(connect(rabbitmq.settings())))
    with JmsConnection(connect(rabbitmq.settings())) as connection, connection.session() as session:
        session.send(Destination.queue(queue_name), JmsMessage.text("x"))

    def send_all() -> int:
        sent, deadline = 0, time.monotonic() + at_most(30)
        while store.limbo.page(limit=1):
            assert time.monotonic() < deadline, "messages stay in limbo"
            sent += sender.send_due().sent
        return sent

    dead = start(url, rabbitmq, "limbo_parking", queue=queue_name, dies=True)
    assert dead.wait(at_most(60)) == -signal.SIGKILL
    sent = send_all() if sent_meanwhile else 0
    assert start(url, rabbitmq, "limbo_parking", queue=queue_name, dies=False).wait(at_most(90)) == 0
    assert sent + send_all() == 2
    with JmsConnection(connect(rabbitmq.settings())) as connection, connection.session() as session:
        later = Destination.queue(f"{queue_name}.later")
        found = [session.receive(later, timeout=10 if number < 2 else 0) for number in range(3)]
        assert [None if each is None else each.body for each in found] == ["x 0", "x 1", None]
        assert session.receive(Destination.queue(queue_name), timeout=0) is None
    store.close()
