"""What `JmsPublishOperator` sets, as it arrives from real brokers."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_jmsjca import Destination, JmsHook, JmsPublishOperator
from tests.servers.broker import Broker

CONTEXT: Any = {"ti": SimpleNamespace(dag_id="d", run_id="r", task_id="publish", map_index=-1)}


@pytest.fixture(params=["activemq", "artemis", "rabbitmq"])
def real(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker: Broker = request.getfixturevalue(request.param)
    host, port = broker.address()
    fields = {
        "conn_type": "jms",
        "host": host,
        "port": port,
        "login": broker.username,
        "password": broker.password,
    }
    monkeypatch.setenv("AIRFLOW_CONN_JMS_REAL", json.dumps(fields))
    return broker


def send(queue: str, message: Any, **arguments: Any) -> dict[str, Any]:
    return JmsPublishOperator(
        task_id="publish", jms_conn_id="jms_real", destination=queue, messages=[message], **arguments
    ).execute(CONTEXT)


@pytest.mark.usefixtures("real")
def test_what_is_set_arrives() -> None:
    queue = f"queue://{uuid.uuid4().hex}"
    send(
        queue,
        {"id": 1, "name": "Zoë"},
        priority=8,
        time_to_live=600,
        reply_to="queue://answers",
        correlation_id="c1",
        message_type="order",
        properties={"region": "eu"},
    )
    with JmsHook("jms_real").get_conn() as connection, connection.session() as session:
        message = session.receive(queue, timeout=10)
        assert message is not None
        assert message.body == '{"id": 1, "name": "Zoë"}'
        assert message.priority == 8
        assert (message.correlation_id, message.type) == ("c1", "order")
        assert message.reply_to == Destination.queue("answers")
        assert message.properties["region"] == "eu"
        if connection.broker.product != "rabbitmq":  # which takes the header off
            assert 550_000 < message.expiration - time.time() * 1000 <= 600_000


@pytest.mark.usefixtures("real")
def test_a_message_whose_time_is_over_does_not_arrive() -> None:
    queue = f"queue://{uuid.uuid4().hex}"
    send(queue, "old", time_to_live=0.3)
    send(queue, "new")
    time.sleep(0.5)  # its time has to pass
    with JmsHook("jms_real").get_conn() as connection, connection.session() as session:
        message = session.receive(queue, timeout=10)
        assert message is not None
        assert message.body == "new"


@pytest.mark.usefixtures("real")
def test_a_delay_is_kept_by_the_broker_or_in_limbo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__JMSJCA__STORE_URL", f"sqlite:///{tmp_path / 'store.db'}")
    queue = f"queue://{uuid.uuid4().hex}"
    with JmsHook("jms_real").get_conn() as connection, connection.session() as session:
        began = time.monotonic()
        sent = send(queue, "late", delay="1.5")
        assert ("limbo" in sent) == (not connection.capabilities.delayed_delivery)
        if "limbo" in sent:
            return  # tests/airflow/test_limbo.py goes on from here
        message = session.receive(queue, timeout=20)
        assert message is not None
        assert message.body == "late"
        assert time.monotonic() - began >= 1.4  # brokers count from their own clock's tick
