"""A broker that is copied while it runs, and restored alone: spool, store and consumers have gone on."""

from __future__ import annotations

import contextlib
import functools
import shutil
import threading
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from airflow_provider_jmsjca import (
    AuthenticationError,
    Destination,
    Manifest,
    Subscription,
    connect,
    manifest_messages,
    open_store,
)
from tests.broker.listening import activation, bodies, idle, send
from tests.internals.collecting import BatchSpec, CollectResult, collect
from tests.internals.engine import open_connection
from tests.internals.spool import SpoolBatch
from tests.servers.broker import Broker
from tests.servers.fixtures import PrivateBroker

COLLECTED, HANDLED, WAITING = "collected", "handled", "waiting"
MANY = 20


def batch(broker: Broker, spool: Path, batch_id: str, most: int | None = None) -> CollectResult:
    spec = BatchSpec(
        subscription=Subscription(destination=Destination.queue(COLLECTED)),
        max_messages=most,
        max_time=timedelta(minutes=2),
        idle_time=idle(),
    )
    with SpoolBatch(spool, batch_id, source=COLLECTED, activation="a") as opened:
        connected = functools.partial(open_connection, broker.settings())
        return collect(connected, opened, spec, stop=threading.Event())


def stored(result: CollectResult) -> list[Any]:
    return [each.message.body for each in manifest_messages(Manifest.read(str(result.manifest)))]


def handled(broker: Broker, store_url: str, most: int | None = None, *, name: str = "booking") -> list[Any]:
    found: list[Any] = []
    with contextlib.closing(open_store(store_url)) as store:
        activation(
            broker.settings(),
            HANDLED,
            lambda delivery: found.append(delivery.body),
            store=store,
            name=name,
            use_store=True,
            duplicate_event_elimination=True,
        ).run(max_messages=most, idle_for=None if most else idle())
    return found


@pytest.mark.parametrize(
    ("kind", "running", "gives_new_ids"),
    [("activemq", True, True), ("artemis", False, False), ("rabbitmq", False, True)],
)
def test_a_broker_that_is_restored_alone(
    kind: str, running: bool, gives_new_ids: bool, private_broker: PrivateBroker, tmp_path: Path
) -> None:
    broker, spool, store_url = private_broker(kind), tmp_path / "spool", f"sqlite:///{tmp_path / 'store.db'}"
    data, copy = broker.folder / "data", tmp_path / "copy"

    def send_to_all(*texts: str, many: int = 1) -> None:
        for queue, count in ((COLLECTED, 1), (HANDLED, many), (WAITING, 1)):
            send(broker.settings(), queue, *texts * count)

    send_to_all("1", "2")
    assert stored(batch(broker, spool, "b1", 1)) == ["1"]
    assert handled(broker, store_url, 1) == ["1"]
    if not running:
        broker.stop()
    shutil.copytree(data, copy)
    if not running:
        broker.start()
    send_to_all("3", many=MANY)
    assert stored(batch(broker, spool, "b2")) == ["2", "3"]
    assert handled(broker, store_url) == ["2", *["3"] * MANY]
    broker.stop()
    shutil.rmtree(data)
    shutil.copytree(copy, data)
    broker.start()
    send_to_all("4", many=MANY)

    # Sent since the copy: lost if nobody had received it.
    assert bodies(broker.settings(), WAITING) == ["1", "2", "4"]
    # Received since the copy: recognised by the whole message, also where ids are given twice.
    repeated = batch(broker, spool, "b3")
    assert (stored(repeated), repeated.duplicates) == (["4"], 1)
    # An Artemis copied while it was stopped gives ids since the copy again. Elimination goes by the id: new
    # messages are dropped, unless the activation has another name.
    found = handled(broker, store_url)
    assert set(found) <= {"4"}
    assert (len(found) == MANY) is gives_new_ids
    send(broker.settings(), HANDLED, "5")
    assert handled(broker, store_url, name="booking after the restore") == ["5"]


def test_definitions_of_rabbitmq_have_users_and_queues_but_no_messages(
    rabbitmq: Broker, queue_name: str
) -> None:
    if "management" not in rabbitmq.ports:
        pytest.skip("only our own broker has a management plugin for certain")
    url = f"http://{rabbitmq.address()[0]}:{rabbitmq.ports['management']}/api"
    user = f"app-{uuid.uuid4().hex[:8]}"
    app = rabbitmq.settings(username=user, password="of-app")
    allowed = {"configure": ".*", "write": ".*", "read": ".*"}
    with httpx.Client(auth=(rabbitmq.username, rabbitmq.password), timeout=60) as api:
        api.put(f"{url}/users/{user}", json={"password": app.password, "tags": ""}).raise_for_status()
        api.put(f"{url}/permissions/%2F/{user}", json=allowed).raise_for_status()
        send(app, queue_name, "1")
        found = api.get(f"{url}/definitions").raise_for_status().json()
        rabbitmq.delete_queue(queue_name)
        api.delete(f"{url}/users/{user}").raise_for_status()
        with pytest.raises(AuthenticationError):
            connect(app)

        # Queues and users of other tests stay as they are.
        mine = {
            "users": [each for each in found["users"] if each["name"] == user],
            "permissions": [each for each in found["permissions"] if each["user"] == user],
            "queues": [each for each in found["queues"] if each["name"] == queue_name],
        }
        api.post(f"{url}/definitions", json=mine).raise_for_status()
        assert api.get(f"{url}/queues/%2F/{queue_name}").raise_for_status().json()["durable"] is True
    assert bodies(app, queue_name) == []
