"""The event path in a real triggerer on a real broker."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Connection, Outgoing
from tests.airflow.triggerer import TriggererProcess
from tests.servers.broker import Broker


@pytest.fixture
def connection(activemq: Broker) -> Iterator[Connection]:
    connection = connect(activemq.settings())
    yield connection
    connection.close()


def airflow_connection(broker: Broker) -> dict[str, Any]:
    host, port = broker.address()
    return {
        "conn_type": "jms", "host": host, "port": port, "login": broker.username, "password": broker.password,
    }  # fmt: skip


def test_messages_become_asset_events_and_are_acknowledged_then(
    activemq: Broker, connection: Connection, tmp_path: Path, migrated_database: Path
) -> None:
    queue = Destination.queue(f"events.{uuid.uuid4().hex}")
    home = TriggererProcess(
        tmp_path / "home",
        airflow_connection(activemq),
        {"jms_conn_id": "jms_test", "destination": str(queue)},
    )
    home.prepare(migrated_database)
    home.start()
    try:
        connection.send([Outgoing(destination=queue, message=JmsMessage.text("hello", {"n": 1}))])
        home.until(lambda: len(home.payloads()) == 1, 90, "one asset event")
        (payload,) = home.payloads()
        assert payload["destination"] == str(queue)
        message = JmsMessage.from_json(payload["message"])
        assert (message.body, message.properties["n"]) == ("hello", "1")
        home.until(lambda: not list(connection.browse(queue)), 30, "the acknowledgement")
        bodies = [str(number) for number in range(300)]
        connection.send(Outgoing(destination=queue, message=JmsMessage.text(body)) for body in bodies)
        home.until(lambda: len(home.payloads()) == 301, 60, "301 asset events")
        home.until(lambda: not list(connection.browse(queue)), 30, "the acknowledgements")
        assert [payload["message"]["body"] for payload in home.payloads()] == ["hello", *bodies]
    finally:
        home.stop()
