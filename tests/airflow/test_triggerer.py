"""The event path in a real triggerer on a real broker."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_jmsjca import (
    Connection,
    Destination,
    JmsMessage,
    Outgoing,
    connect,
    message_from_event,
    open_store,
)
from tests.airflow.triggerer import TriggererProcess
from tests.internals.store import LimboEntry
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


def put_in_limbo(home: Path, queue: Destination, message: JmsMessage) -> None:
    """Put a message in the limbo of an installation, due now: the triggerer sends it."""
    store, now = open_store(f"sqlite:///{home / 'jms-store.db'}"), datetime.now(UTC)
    entry = LimboEntry(jms_conn_id="jms_test", destination=str(queue), message=message, due_at=now)
    store.limbo.put([entry], now)
    store.close()


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
    put_in_limbo(home.home, queue, JmsMessage.text("hello", {"n": 1}))
    home.start()
    try:
        home.until(lambda: len(home.payloads()) == 1, 90, "one asset event")
        (payload,) = home.payloads()
        assert payload["destination"] == str(queue)
        message = JmsMessage.from_json(payload["message"])
        assert (message.body, message.properties["n"]) == ("hello", "1")
        home.until(lambda: not list(connection.browse(queue)), 150, "the acknowledgement")
        bodies = [str(number) for number in range(300)]
        connection.send(Outgoing(destination=queue, message=JmsMessage.text(body)) for body in bodies)
        home.until(lambda: len(home.payloads()) == 301, 60, "301 asset events")
        home.until(lambda: not list(connection.browse(queue)), 150, "the acknowledgements")
        assert [payload["message"]["body"] for payload in home.payloads()] == ["hello", *bodies]
    finally:
        home.stop()


@pytest.mark.timeout(900)
def test_a_message_is_held_until_its_run_has_succeeded(
    activemq: Broker, connection: Connection, tmp_path: Path, migrated_database: Path
) -> None:
    """Over a kill -9 of the triggerer, and with the word that the scheduler's listener stores."""
    queue = Destination.queue(f"held.{uuid.uuid4().hex}")
    home = TriggererProcess(
        tmp_path / "home",
        airflow_connection(activemq),
        {"jms_conn_id": "jms_test", "destination": str(queue), "hold_until_ack": True},
    )
    home.prepare(migrated_database)

    def kept() -> list[str]:
        found = home.query("select key from asset_state_store where key like 'jms-hold.%'")
        return [key for (key,) in found]

    try:
        connection.send([Outgoing(destination=queue, message=JmsMessage.text("hello"))])
        home.start()
        home.until(lambda: len(kept()) == 1, 120, "the record of a message that waits")
        assert (len(home.payloads()), len(list(connection.browse(queue)))) == (1, 1)
        home.kill()
        home.start()
        home.start_scheduler()
        home.until(lambda: not list(connection.browse(queue)), 240, "the acknowledgement")
        assert home.query("select distinct state from dag_run") == [("success",)]
        home.until(lambda: not kept(), 60, "the end of the records")
        assert [message_from_event(each).body for each in home.payloads()] == ["hello"]
    finally:
        home.stop()
