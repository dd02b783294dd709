"""Messages that are held until their DAG runs have ended, in an Airflow that runs tasks."""

from __future__ import annotations

import functools
import json
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_provider_jmsjca import (
    Destination,
    JmsConnection,
    JmsMessage,
    Outgoing,
    connect,
)
from tests.airflow.test_triggerer import airflow_connection
from tests.airflow.triggerer import TriggererProcess
from tests.dead_letters import original_of
from tests.internals.triggers import HELD_KEY, OUTCOME_LIST_KEY, STARTED_KEY
from tests.servers.broker import Broker

# A run that succeeds, one that fails, one whose task is retried, one that never ends, and six messages of
# which one makes its run fail.
CASES = {
    "good": "activemq", "failed": "activemq", "retried": "artemis", "silent": "artemis", "burst": "rabbitmq",
}  # fmt: skip
BURST = ("a", "b", "poison", "c", "d", "e")
WITHIN = 600  # for a machine on which nothing goes on at its pace

DAGS = """
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, Asset, AssetWatcher, get_current_context, task
from airflow.sdk.exceptions import AirflowFailException
from airflow_provider_jmsjca import JmsActivationTrigger, message_from_event

given = {arguments!r}


@task(retries=1, retry_delay=timedelta(seconds=1))
def book(case, triggering_asset_events=None):
    tries = get_current_context()["ti"].try_number
    for events in triggering_asset_events.values():
        if any(message_from_event(event).body == "poison" for event in events):
            raise AirflowFailException("poison")
    if case == "retried" and tries == 1:
        raise RuntimeError("the first try fails")
    if case == "failed" and not Path(given["mended"]).exists():
        raise RuntimeError("every try fails")


def consumer(case, broker):
    trigger = JmsActivationTrigger(
        jms_conn_id=f"jms_{{broker}}",
        destination=f"queue://{{given['queue']}}.{{case}}",
        hold_until_ack=True,
        hold_timeout=5 if case == "silent" else 3600,
        redelivery_handling=("1:1000; 2:" if case == "failed" else "1:") + "move(queue:$.dead)",
    )
    name = case
    asset = Asset(name, watchers=[AssetWatcher(name="watcher", trigger=trigger)])
    with DAG(name, schedule=[asset], catchup=False):
        # A pool that isn't there: the task waits, and the run with it.
        book.override(pool="nowhere" if case == "silent" else "default_pool")(case)


for each in given["cases"].items():
    consumer(*each)
"""
EVENTS = """
select event.extra from asset_event event join asset on asset.id = event.asset_id
where asset.name = '{name}' order by event.id
"""


class Home(TriggererProcess):
    """An Airflow with a DAG for each case."""

    def ids(self, name: str) -> list[str]:
        """Return the ids of the messages in the events of a DAG."""
        rows = self.query(EVENTS.format(name=name))
        return [json.loads(extra)["payload"]["message"]["message_id"] for (extra,) in rows]

    def runs(self, name: str) -> Counter[str]:
        """Return how many runs of a DAG are in which state."""
        rows = self.query("select dag_id, state from dag_run")
        return Counter(str(state) for dag_id, state in rows if dag_id == name)

    def kept(self) -> list[str]:
        """Return the keys of what is remembered of messages."""
        rows = self.query("select key from asset_state_store")
        return [key for (key,) in rows if key not in (HELD_KEY, OUTCOME_LIST_KEY, STARTED_KEY)]


@pytest.mark.timeout(3600)
def test_messages_are_settled_as_their_runs_end(
    request: pytest.FixtureRequest, tmp_path: Path, migrated_database: Path
) -> None:
    """Over a kill -9 of the triggerer while all wait, with tasks that are retried, fail, and are cleared."""
    brokers: dict[str, Broker] = {name: request.getfixturevalue(name) for name in set(CASES.values())}
    queue, mended = f"held.{uuid.uuid4().hex}", tmp_path / "mended"
    given = {"queue": queue, "mended": str(mended), "cases": CASES}
    home = Home(tmp_path / "home", {}, given, DAGS)
    for name, broker in brokers.items():
        home.environment[f"AIRFLOW_CONN_JMS_{name.upper()}"] = json.dumps(airflow_connection(broker))
    home.prepare(migrated_database, triggers=len(CASES))
    for case, broker_name in CASES.items():
        _send(brokers[broker_name], f"{queue}.{case}", BURST if case == "burst" else ["hello"])

    def are(case: str, runs: dict[str, int]) -> bool:
        return home.runs(case) == Counter(runs)

    try:
        home.start()
        home.until(
            lambda: len(home.kept()) == len(CASES) + len(BURST) - 1, WITHIN, "a record of each message"
        )
        home.kill()
        home.start()
        home.start_tasks()

        home.until(functools.partial(are, "good", {"success": 1}), WITHIN, "runs that succeed")
        home.until(functools.partial(are, "retried", {"success": 1}), WITHIN, "runs after a retry")
        home.until(
            functools.partial(are, "burst", {"success": 5, "failed": 1}), WITHIN, "a run for each message"
        )
        # The first failure is delivered again, the second is moved.
        home.until(functools.partial(are, "failed", {"failed": 2}), WITHIN, "two runs that fail")
        home.until(lambda: not home.kept(), WITHIN, "the end of the records")

        # To clear what has failed, and have it succeed, changes nothing: the messages are dead letters.
        mended.touch()
        home.clear("failed")
        home.until(functools.partial(are, "failed", {"success": 2}), WITHIN, "runs that were cleared")
        assert home.kept() == []
        for case in CASES:
            ids = home.ids(case)
            assert len(ids) == {"failed": 2, "burst": len(BURST)}.get(case, 1), case
            assert len(set(ids)) == (len(BURST) if case == "burst" else 1), "a repetition has the same id"
    finally:
        home.stop()
    asked = [(case, end) for case in CASES for end in ("", ".dead")]
    with ThreadPoolExecutor(len(asked)) as pool:  # each waits for what doesn't come
        found = pool.map(lambda one: _found(brokers[CASES[one[0]]], f"{queue}.{one[0]}{one[1]}"), asked)
        left = {one: bodies for one, bodies in zip(asked, found, strict=True) if bodies}
    dead = {"failed": ["hello"], "silent": ["hello"], "burst": ["poison"]}
    assert left == {(case, ".dead"): bodies for case, bodies in dead.items()}


def _send(broker: Broker, queue: str, bodies: Sequence[str]) -> None:
    connection = connect(broker.settings())
    target = Destination.queue(queue)
    connection.send(Outgoing(destination=target, message=JmsMessage.text(body)) for body in bodies)
    connection.close()


def _received(broker: Broker, queue: str) -> list[JmsMessage]:
    found = []
    with JmsConnection(connect(broker.settings())) as connection, connection.session() as session:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            message = session.receive(f"queue://{queue}", timeout=2)
            if message is None:
                break
            found.append(message)
    return found


def _found(broker: Broker, queue: str) -> list[object]:
    """Return the bodies of what is in a queue; of dead letters what they say was sent."""
    messages = _received(broker, queue)
    if not queue.endswith(".dead"):
        return [message.body for message in messages]
    letters = [original_of(message) for message in messages]
    return [letter and letter.message.body for letter in letters]
