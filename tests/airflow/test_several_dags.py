"""DAGs on one asset, or on references to it, some paused; real scheduler, triggerer and broker."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from airflow_provider_jmsjca import Connection, Destination, JmsMessage, Outgoing, connect
from tests.airflow.test_triggerer import airflow_connection
from tests.airflow.triggerer import TriggererProcess
from tests.servers.broker import Broker

DAGS = """
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, AssetWatcher
from airflow_provider_jmsjca import JmsActivationTrigger

trigger = JmsActivationTrigger(**{arguments!r})
arrived = Asset("arrived", watchers=[AssetWatcher(name="watcher", trigger=trigger)])
name, uri = Asset.ref(name=arrived.name), Asset.ref(uri=arrived.uri)
dags = [("bill", arrived, 16), ("ship", arrived, 1), ("count", name, 16), ("audit", uri, 1)]
for dag_id, asset, most in dags:
    with DAG(dag_id, schedule=[asset], catchup=False, max_active_runs=most):
        EmptyOperator(task_id="nothing")
"""
SEEN = """
select event.extra from dagrun_asset_event link join asset_event event on event.id = link.event_id
join dag_run run on run.id = link.dag_run_id where run.dag_id = '{dag_id}' order by event.id
"""


class Home(TriggererProcess):
    """Two DAGs with the asset, and two that refer to it by its name and its URI."""

    def seen(self, dag_id: str) -> list[str]:
        """Return the messages whose events the runs of a DAG have got, each as often as it is there."""
        rows = self.query(SEEN.format(dag_id=dag_id))
        return [json.loads(extra)["payload"]["message"]["body"] for (extra,) in rows]


@pytest.fixture
def queue() -> Destination:
    return Destination.queue(f"several.{uuid.uuid4().hex}")


@pytest.fixture
def connection(activemq: Broker) -> Iterator[Connection]:
    with closing(connect(activemq.settings())) as connection:
        yield connection


@pytest.mark.timeout(900)
def test_two_dags_get_every_message_and_what_comes_while_both_are_paused_waits(
    activemq: Broker, connection: Connection, queue: Destination, tmp_path: Path, migrated_database: Path
) -> None:
    home = Home(
        tmp_path / "home",
        airflow_connection(activemq),
        {"jms_conn_id": "jms_test", "destination": str(queue)},
        DAGS,
    )

    def send(*numbers: int) -> list[str]:
        bodies = [str(number) for number in numbers]
        connection.send(Outgoing(destination=queue, message=JmsMessage.text(body)) for body in bodies)
        return bodies

    def acknowledged() -> None:
        home.until(lambda: not list(connection.browse(queue)), 150, "the acknowledgements")

    def have(wanted: list[str], *dag_ids: str) -> None:
        for dag_id in dag_ids:
            # A busy machine starts few runs in a second: only a standstill is a fault.
            while not has(dag_id, wanted):
                seen = len(home.seen(dag_id))
                home.until(partial(has_more, dag_id, seen), 120, f"more of {wanted} than {seen} in {dag_id}")

    def has(dag_id: str, wanted: list[str]) -> bool:
        return sorted(home.seen(dag_id)) == sorted(wanted)

    def has_more(dag_id: str, seen: int) -> bool:
        return len(home.seen(dag_id)) > seen

    home.prepare(migrated_database)
    home.start()
    home.start_scheduler()
    try:
        # Each gets each message once, the last of a burst too, and the one with max_active_runs=1.
        sent = send(*range(9))
        have(sent, "bill", "ship", "count", "audit")
        acknowledged()

        # While one is paused the other gets what comes; the next event brings it to the one that was paused.
        home.pause("ship", paused=True)
        sent += send(9)
        have(sent, "bill")
        assert len(home.seen("ship")) == 9
        home.pause("ship", paused=False)
        sent += send(10)
        have(sent, "bill", "ship")

        # While both are paused nobody consumes: the messages stay, for days if need be.
        home.pause("bill", paused=True)
        home.pause("ship", paused=True)
        home.read_dags()
        home.until(lambda: home.query("select count(*) from trigger") == [(0,)], 60, "the end of the watcher")
        home.until(lambda: "0 watchers currently running" in home.log(), 120, "the triggerer's word about it")
        sent += send(11, 12)
        assert len(list(connection.browse(queue))) == 2
        assert len(home.payloads()) == 11
        home.pause("bill", paused=False)
        home.pause("ship", paused=False)
        home.read_dags()
        have(sent, "bill", "ship", "count", "audit")
        acknowledged()
    finally:
        home.stop()
