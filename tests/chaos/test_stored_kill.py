"""Processes die in the middle of their messages: the attempts and ids that are stored outlive them.

`JMSJCA_CHAOS=full` parks 600 messages over six kills, otherwise 60 over one; and kills each of two processes
ten times over 20,000 messages, otherwise once over 400.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from airflow_provider_jmsjca import Destination, JmsMessage, Outgoing, connect
from tests.chaos.conftest import Report
from tests.chaos.listener_processes import ROOT
from tests.chaos.storing import EFFECTS, EXIT_OF_POISON
from tests.contract.store.conftest import new_store, url_of
from tests.servers.broker import Broker
from tests.unit.engine.listening import until

MESSAGES = 1_000
POISON = "500"
LIMIT = 3
SOME = 300
KILLS = 3
LAST_IDLE = 2.5
FULL = os.environ.get("JMSJCA_CHAOS") == "full"
PARKED, PARKING_KILLS = (600, 6) if FULL else (60, 1)
# No more of a process are unacknowledged than that, and so none more come again when it is killed.
PREFETCH = 10
ONCE, KILLS_OF_EACH = (20_000, 10) if FULL else (400, 1)


class Process:
    """`tests.chaos.storing` on one queue; one that is to die doesn't end because its broker is slow."""

    def __init__(  # noqa: PLR0917 - read in this order
        self,
        broker: Broker,
        queue: str,
        store: str,
        done: Path,
        spec: dict[str, Any],
        idle_for: float = 60,
        *,
        fails: bool = False,
        effects: bool = False,
    ) -> None:
        settings = broker.settings()
        (host, port) = settings.hosts[0]
        asked = {
            "host": host, "port": port, "username": settings.username, "password": settings.password,
            "queue": queue, "store": store, "done": str(done), "spec": spec, "idle_for": idle_for,
            "poison": POISON, "fails": fails, "effects": effects,
        }  # fmt: skip
        self.log = done.with_suffix(".log")
        with self.log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.storing"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT,
            )  # fmt: skip
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.close()

    def kill_after(self, deliveries: int) -> None:
        """Kill the process after so many deliveries, or later: as many must be there for it."""
        assert self._process.stdout is not None
        assert len(self._process.stdout.read(deliveries)) == deliveries, self.log.read_text()
        self.kill()

    def kill(self) -> None:
        self._process.kill()
        self.wait()

    def wait(self) -> int:
        assert self._process.stdout is not None
        self._process.stdout.read()
        self._process.stdout.close()
        return self._process.wait(60)


def shares(bodies: list[str], processes: int) -> list[list[str]]:
    """Return what each process finds that is to be killed, so that an earlier one can't have taken it all."""
    size = len(bodies) // processes
    return [bodies[at : at + size] for at in range(0, len(bodies), size)]


def fill(broker: Broker, queue: str, bodies: list[str]) -> None:
    connection = connect(broker.settings())
    connection.send(
        Outgoing(destination=Destination.queue(queue), message=JmsMessage.text(body)) for body in bodies
    )
    connection.close()


def left(broker: Broker, queue: str) -> list[object]:
    connection = connect(broker.settings())
    bodies = [message.body for message in connection.browse(Destination.queue(queue))]
    connection.close()
    return bodies


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    url = url_of(request.param, tmp_path, request)
    new_store(url).close()
    return url


def test_a_message_that_kills_its_process_is_dead_lettered_at_its_limit(
    activemq: Broker, queue_name: str, store_url: str, tmp_path: Path, report: Report
) -> None:
    """J129, J131: counted over crashes; the others are handled, and none of them is moved."""
    fill(activemq, queue_name, [str(number) for number in range(MESSAGES)])
    done = tmp_path / "done"
    spec = {"redelivery_handling": f"{LIMIT}:move(queue:$.dlq)", "name": "orders"}
    exits = []
    while not exits or exits[-1] == EXIT_OF_POISON:
        assert len(exits) <= LIMIT, "it comes back for ever"
        idle_for = 60 if len(exits) < LIMIT else LAST_IDLE
        exits.append(Process(activemq, queue_name, store_url, done, spec, idle_for).wait())
    assert exits == [*[EXIT_OF_POISON] * LIMIT, 0]
    handled = Counter(done.read_text().split())
    assert handled[POISON] == LIMIT
    assert set(handled) == set(map(str, range(MESSAGES)))
    assert left(activemq, f"{queue_name}.dlq") == [POISON]
    assert left(activemq, queue_name) == []
    report(f"poison: {LIMIT} crashes, {sum(handled.values()) - MESSAGES - LIMIT + 1} others handled again")


def test_what_a_process_was_handling_when_it_died_is_set_aside_i13(
    activemq: Broker, queue_name: str, tmp_path: Path
) -> None:
    """I9, I13: it is in doubt at once on the same host, and the others are handled."""
    fill(activemq, queue_name, ["1", POISON, "2"])
    done, url = tmp_path / "done", f"sqlite:///{tmp_path / 'store.db'}"
    store = new_store(url)
    spec = {"in_doubt_events": "ignore", "name": "orders"}
    assert Process(activemq, queue_name, url, done, spec).wait() == EXIT_OF_POISON
    assert store.owners.live(store.attempts.open_at(), datetime.now(UTC)) == frozenset()
    assert len(store.attempts.page(open_only=True)) >= 1
    assert Process(activemq, queue_name, url, done, spec, LAST_IDLE).wait() == 0
    contents = store.limbo.contents([each.number for each in store.limbo.page()]).values()
    set_aside = {each.body for each in contents if isinstance(each, JmsMessage)}
    # The acknowledgement of the first may have been under way.
    assert POISON in set_aside <= {"1", POISON}
    assert {*done.read_text().split(), *set_aside} == {"1", POISON, "2"}
    assert done.read_text().split().count(POISON) == 1
    assert left(activemq, queue_name) == []
    store.close()


def test_what_is_put_in_limbo_while_processes_are_killed_is_there_once(
    activemq: Broker, queue_name: str, tmp_path: Path
) -> None:
    """P12: put there, killed before the acknowledgement, and put there again: nothing lost, nothing twice."""
    bodies = [f"m{number}" for number in range(PARKED)]
    done, url = tmp_path / "done", f"sqlite:///{tmp_path / 'store.db'}"
    store = new_store(url)
    spec = {"redelivery_handling": "1:3600000", "non_blocking_redelivery": True, "name": "orders"}
    for share in shares(bodies, PARKING_KILLS):
        fill(activemq, queue_name, share)
        Process(activemq, queue_name, url, done, spec, fails=True).kill_after(PARKED // (PARKING_KILLS + 2))
    assert Process(activemq, queue_name, url, done, spec, LAST_IDLE, fails=True).wait() == 0
    numbers = [each.number for each in store.limbo.page(limit=2 * PARKED)]
    contents = store.limbo.contents(numbers).values()
    kept = Counter(each.body for each in contents if isinstance(each, JmsMessage))
    assert kept == Counter(bodies)
    assert left(activemq, queue_name) == []
    store.close()


def test_ids_that_were_handled_are_known_after_a_kill_i17(
    activemq: Broker, queue_name: str, store_url: str, tmp_path: Path, report: Report
) -> None:
    """I17: of the messages handled, only the one in the handler when it is killed may be handled again."""
    bodies = [f"m{number}" for number in range(SOME)]
    done = tmp_path / "done"
    spec = {"duplicate_event_elimination": True, "name": "orders"}
    for share in shares(bodies, KILLS):
        fill(activemq, queue_name, share)
        Process(activemq, queue_name, store_url, done, spec).kill_after(SOME // (KILLS + 2))
    assert Process(activemq, queue_name, store_url, done, spec, LAST_IDLE).wait() == 0
    handled = Counter(done.read_text().split())
    assert set(handled) == set(bodies)
    again = sum(handled.values()) - SOME
    report(f"ids: {KILLS} kills, {again} of {SOME} handled again")
    assert again <= KILLS
    assert left(activemq, queue_name) == []


@pytest.mark.timeout(900)
def test_an_effect_in_the_database_of_the_store_happens_once_whatever_is_killed(
    activemq: Broker, queue_name: str, store_url: str, tmp_path: Path, report: Report
) -> None:
    """The handler stores the message's id together with its effect; no attempt that it broke off is lost."""
    bodies = [f"m{number}" for number in range(ONCE)]
    fill(activemq, queue_name, bodies)
    engine = create_engine(store_url)
    with engine.begin() as connection:
        connection.execute(text(EFFECTS))
    done = tmp_path / "done"

    def start(idle_for: float) -> Process:
        spec = {"name": "orders", "redelivery_handling": "", "prefetch": PREFETCH}
        return Process(activemq, queue_name, store_url, done, spec, idle_for, effects=True)

    began = time.monotonic()
    processes = [start(60), start(60)]
    for kill in range(2 * KILLS_OF_EACH):
        wanted = 2 * (kill + 1) * ONCE // (2 * KILLS_OF_EACH + 1)
        until(lambda least=wanted: done.exists() and done.read_bytes().count(b"\n") >= least, within=120)
        processes[kill % 2].kill()
        processes[kill % 2] = start(60 if kill < 2 * (KILLS_OF_EACH - 1) else LAST_IDLE)
    assert [each.wait() for each in processes] == [0, 0]
    while left(activemq, queue_name):  # on a slow machine they may have ended early
        assert start(LAST_IDLE).wait() == 0
    seconds = time.monotonic() - began
    with engine.connect() as connection:
        effects = Counter(connection.execute(text("SELECT body FROM effect")).scalars())
    engine.dispose()
    assert effects == Counter(bodies)
    again = 0
    said: dict[str, list[str]] = {body: [] for body in bodies}
    for line in done.read_text().splitlines():
        body, what = line.split()
        said[body].append(what)
    for body, each in said.items():
        again += sum(what != "end" for what in each) - 1
        for what, following in itertools.pairwise(each):
            # One that had come to its end was settled, and is counted anew if its broker didn't hear of that.
            lost = "end" not in {what, following} and int(following) <= int(what)
            assert not lost, f"an attempt at {body} was lost: {each}"
    report(
        f"once, {store_url.partition(':')[0]}: {ONCE} messages, {2 * KILLS_OF_EACH} kills, "
        f"{again} handed over again, {seconds:.0f} s"
    )
    assert again <= 2 * KILLS_OF_EACH * PREFETCH
