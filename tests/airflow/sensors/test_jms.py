"""`JmsSensor`, one look at a time."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowTaskTimeout, TaskDeferred

from airflow_provider_jmsjca import ConnectionSettings, JmsSensor, MemoryBroker, connect
from tests.internals.engine import peek
from tests.internals.triggers import JmsListenTrigger

Publish = Callable[..., None]
# Operators load half of Airflow, whose dependencies warn about each other.
pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]
CONTEXT: Any = {}


def sensor() -> JmsSensor:
    return JmsSensor(task_id="wait", jms_conn_id="jms_test", destination="orders")


def test_a_consumer_with_the_client_id_does_not_blind_it(
    server: MemoryBroker, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = {"conn_type": "jms", "host": f"vm://{server.name}", "extra": {"client_id": "risk"}}
    monkeypatch.setenv("AIRFLOW_CONN_JMS_TEST", json.dumps(document))
    publish("a")
    consumer = connect(ConnectionSettings(scheme="vm", hosts=((server.name, None),), client_id="risk"))
    assert sensor().poke(CONTEXT)
    consumer.close()


def test_a_connection_lost_during_the_look_is_no_failure(
    server: MemoryBroker, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker restarts: as when it can't be reached at all."""
    publish("a")

    def lost(*arguments: Any) -> bool:
        server.kill()
        return peek(*arguments)

    monkeypatch.setattr("airflow_provider_jmsjca.sensors.jms.peek", lost)
    assert not sensor().poke(CONTEXT)


def test_execution_timeout_ends_it_while_it_is_deferred(
    server: MemoryBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(JmsSensor, "log", logging.getLogger("sensor"))
    caplog.set_level(logging.INFO, "sensor")
    waiting = JmsSensor(
        task_id="wait",
        jms_conn_id="jms_test",
        destination="orders",
        deferrable=True,
        execution_timeout=timedelta(seconds=0.3),
    )
    with pytest.raises(TaskDeferred) as found:
        waiting.execute(CONTEXT)
    assert "Deferred until a message is on queue://orders, over connection 'jms_test'" in caplog.text
    assert found.value.timeout is not None
    assert found.value.timeout < timedelta(minutes=1)
    _, arguments = json.loads(json.dumps(found.value.trigger.serialize()))

    async def run() -> list[dict[str, Any]]:
        return [event.payload async for event in JmsListenTrigger(**arguments).run()]

    (event,) = asyncio.run(asyncio.wait_for(run(), 10))
    with pytest.raises(AirflowTaskTimeout, match="including the time deferred"):
        waiting.resume(CONTEXT, event)
    assert server.depth("orders") == 0
