"""`MessageQueueTrigger` of Airflow's provider `common.messaging`, for `jms`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from airflow.exceptions import AirflowProviderDeprecationWarning
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.providers_manager import ProvidersManager
from airflow.sdk import AssetWatcher

from airflow_provider_jmsjca import (
    ConfigurationError,
    Destination,
    JmsActivationTrigger,
    JmsMessage,
    Outgoing,
    connect,
)
from tests.airflow.conftest import Publish
from tests.airflow.triggerer import TriggererProcess
from tests.servers.broker import Broker

OURS = JmsActivationTrigger("jms_default", "queue://orders/eu", event="ready", interval=3).serialize()


def of_queue(queue: str, **arguments: Any) -> MessageQueueTrigger:
    """Return the trigger; Airflow calls `queue` deprecated in favour of `scheme`."""
    with pytest.warns(AirflowProviderDeprecationWarning):
        return MessageQueueTrigger(queue=queue, **arguments)


def test_the_scheme_leads_to_our_trigger() -> None:
    trigger = MessageQueueTrigger(
        scheme="jms", jms_conn_id="jms_default", destination="queue://orders/eu", event="ready", interval=3
    )
    assert trigger.serialize() == OURS
    name = "airflow_provider_jmsjca.queues.jms.JmsMessageQueueProvider"
    assert name in ProvidersManager().queue_class_names


@pytest.mark.parametrize(
    "queue", ["jms://jms_default/queue/orders/eu", "JMS://jms_default/Queue/orders%2Feu"]
)
def test_the_queue_leads_to_our_trigger(queue: str) -> None:
    trigger = of_queue(queue, event="ready", interval=3)
    assert trigger.serialize() == OURS
    AssetWatcher(name="w", trigger=trigger)


@pytest.mark.parametrize(
    ("queue", "arguments", "what"),
    [
        ("jms://jms_default", {}, "is neither 'queue' nor 'topic'"),
        ("jms://jms_default/queue/", {}, "the queue has no name"),
        ("jms://c/queue/q?selector=x", {}, "the query has 'selector'"),
        ("jms://c/queue/q?virtual_host=x", {}, "set it in the Airflow connection 'c'"),
        (
            "jms://c/queue/q",
            {"destination": "queue://other"},
            "destination is already part of queue='jms://c/queue/q'",
        ),
        ("jms://c/queue/q", {"jms_conn_id": "other"}, "jms_conn_id is already part of"),
    ],
)
def test_what_is_wrong_stops_the_dag_file_and_not_the_triggerer(
    queue: str, arguments: dict[str, Any], what: str
) -> None:
    """Airflow stores our trigger: a wrong queue is known when that is made."""
    trigger = of_queue(queue, **arguments)
    with pytest.raises(ConfigurationError, match=what):
        trigger.serialize()


@pytest.mark.usefixtures("metadata")
def test_in_a_dag_test_it_waits_for_a_message(publish: Publish) -> None:
    trigger = of_queue("jms://jms_test/queue/orders")
    publish("hello")

    async def first() -> Any:
        return (await anext(trigger.run())).payload

    payload = asyncio.run(asyncio.wait_for(first(), 30))
    assert payload["message"]["body"] == "hello"


WITHOUT_IT = """
import sys
from airflow.providers_manager import ProvidersManager

class Gone:
    def find_spec(self, name, *_):
        if name.startswith("airflow.providers.common.messaging.providers"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Gone())
print("found", [name for name in ProvidersManager().queue_class_names if "jmsjca" in name])
"""


def test_without_that_provider_airflow_takes_the_feature_for_disabled() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_IT], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.splitlines()[-1] == "found []"
    assert "jmsjca" not in done.stderr  # nothing to warn of


DAG_FILE = """
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, AssetWatcher

trigger = MessageQueueTrigger(**{arguments!r})
arrived = Asset("jms://broker/queue/arrived", watchers=[AssetWatcher(name="watcher", trigger=trigger)])
with DAG("on_arrival", schedule=[arrived], catchup=False):
    EmptyOperator(task_id="nothing")
"""


def test_in_a_triggerer_messages_become_events_and_are_acknowledged_then(
    activemq: Broker, tmp_path: Path, migrated_database: Path
) -> None:
    queue = Destination.queue(f"events.{uuid.uuid4().hex}")
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
        {"queue": f"jms://jms_test/queue/{queue.name}"},
    )
    (home.home / "dags" / "on_arrival.py").write_text(
        DAG_FILE.format(arguments={"queue": f"jms://jms_test/queue/{queue.name}"})
    )
    home.prepare(migrated_database)
    ((path,),) = home.query("select classpath from trigger")
    assert path == OURS[0]
    home.start()
    connection = connect(activemq.settings())
    try:
        connection.send(Outgoing(destination=queue, message=JmsMessage.text(body)) for body in "abc")
        home.until(lambda: len(home.payloads()) == 3, 90, "three asset events")
        home.until(lambda: not list(connection.browse(queue)), 150, "the acknowledgements")
    finally:
        home.stop()
        connection.close()
    assert [payload["message"]["body"] for payload in home.payloads()] == ["a", "b", "c"]
    assert home.query("select uri from asset") == [("jms://broker/queue/arrived",)]
