"""What is corrected in an Airflow connection reaches what runs already, and is asked for once for all."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import uuid
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Connection

from airflow_provider_jmsjca import (
    ConnectionSettings,
    Destination,
    JmsActivationTrigger,
    JmsHook,
    JmsMessage,
    MemoryBroker,
    Outgoing,
    connect,
    memory_broker,
)
from tests.airflow.triggers.waiting import run, until
from tests.internals.engine import async_connection
from tests.internals.transports import connection as memory
from tests.internals.triggers import ActivationOptions, JmsListenTrigger, JmsReadyTrigger


def say(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_JMS_MOVED", json.dumps({"conn_type": "jms", **fields}))


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@pytest.fixture
def right() -> MemoryBroker:
    """A broker with a message."""
    found = memory_broker(uuid.uuid4().hex)
    connection = connect(ConnectionSettings(scheme="vm", hosts=((found.name, None),)))
    connection.send([Outgoing(destination=Destination.queue("orders"), message=JmsMessage.text("a"))])
    connection.close()
    return found


def activation(event: str) -> Any:
    trigger = JmsActivationTrigger("jms_moved", "queue://orders", event=event)
    return JmsActivationTrigger.create_shared_stream_producer(trigger.serialize()[1])


@pytest.mark.parametrize("kind", ["message", "ready", "sensor", "listener"])
def test_a_corrected_port_is_picked_up_by_what_runs(
    kind: str, right: MemoryBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    say(monkeypatch, host="127.0.0.1", port=closed_port())

    async def work() -> None:
        if kind in {"message", "ready"}:
            producer = activation(kind)
            events: Any = producer.open_stream()
        else:
            kinds = {"sensor": JmsReadyTrigger, "listener": JmsListenTrigger}
            trigger = kinds[kind](jms_conn_id="jms_moved", destination="orders")
            trigger.task_instance = SimpleNamespace(dag_id="d", task_id="t")
            events = trigger.run()
        first = asyncio.ensure_future(anext(events))
        await until(lambda: "Attempt 1 to connect failed" in caplog.text)
        assert not first.done()
        say(monkeypatch, host=f"vm://{right.name}")
        await asyncio.wait_for(first, 10)
        await events.aclose()
        if kind in {"message", "ready"}:
            await producer.aclose()

    run(work())
    attempt = next(line for line in caplog.messages if line.startswith("Attempt 1"))
    assert "queue://orders over connection 'jms_moved'" in attempt
    assert ("for task d.t" in attempt) is (kind in {"sensor", "listener"})


@pytest.mark.parametrize("kind", ["message", "ready", "unbrowsable"])
def test_what_runs_moves_when_its_connection_has_changed(
    kind: str, right: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_connection, "_CHECKED_EVERY_SECONDS", 0.3)
    monkeypatch.setattr(async_connection, "_SPREAD_SECONDS", 0.0)
    if kind == "unbrowsable":
        lesser = replace(memory.CAPABILITIES, browse=False)
        monkeypatch.setattr(memory.MemoryConnection, "capabilities", lesser)
    before = memory_broker(uuid.uuid4().hex)
    say(monkeypatch, host=f"vm://{before.name}")

    async def work() -> None:
        producer = activation("message" if kind == "message" else "ready")
        first = asyncio.ensure_future(anext(producer.open_stream()))
        await until(lambda: before.connections == 1)
        await asyncio.sleep(0.5)  # an unchanged connection is looked at, and kept
        assert before.connections == 1
        assert not first.done()
        say(monkeypatch, host=f"vm://{right.name}")
        await asyncio.wait_for(first, 10)
        await producer.aclose()

    run(work())


@pytest.mark.parametrize(
    "edited",
    [
        {"host": "elsewhere"},
        {"port": 7},
        {"login": "somebody"},
        {"password": "another"},
        {"extra": {"connect_timeout": 7}},
    ],
)
def test_settings_are_worked_out_again_when_a_connection_was_edited_and_only_then(
    edited: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand activations ask each minute."""
    monkeypatch.setattr("airflow_provider_jmsjca.hooks.jms._ANSWER_HOLDS_SECONDS", 0.0)
    usual = {"host": "here", "port": 1, "login": "me", "password": "mine"}
    say(monkeypatch, **usual)
    worked_out: list[object] = []
    aresolved = JmsHook.aresolved

    async def counting(self: JmsHook, activation: Any) -> Any:
        worked_out.append(activation)
        return await aresolved(self, activation)

    monkeypatch.setattr(JmsHook, "aresolved", counting)

    async def work() -> None:
        options = ActivationOptions.parse(JmsActivationTrigger("jms_moved", "queue://orders").serialize()[1])
        effective, first = await options.settings()
        now = options.settings_finder(effective)
        worked_out.clear()
        for _ in range(3):
            assert await now() == first
            await asyncio.sleep(0.01)
        assert len(worked_out) == 1
        say(monkeypatch, **usual | edited)
        await asyncio.sleep(0.01)
        assert await now() != first
        assert len(worked_out) == 2

    run(work())


def test_a_hundred_activations_ask_for_a_connection_once_and_say_an_outage_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    say(monkeypatch, host="127.0.0.1", port=closed_port())
    asked: list[str] = []
    ask = JmsHook.aget_connection

    async def counting(_: JmsHook, conn_id: str) -> Connection:
        asked.append(conn_id)
        return await ask(conn_id)

    monkeypatch.setattr(JmsHook, "aget_connection", counting)
    caplog.set_level(logging.INFO)
    most = 0

    async def work() -> None:
        nonlocal most
        producers = [
            JmsActivationTrigger.create_shared_stream_producer(
                JmsActivationTrigger("jms_moved", f"queue://q{number}", event=event).serialize()[1]
            )
            for number in range(50)
            for event in ("message", "ready")
        ]
        waiting = [asyncio.ensure_future(anext(each.open_stream())) for each in producers]
        await until(lambda: "Attempt 1 to connect failed" in caplog.text)
        assert asked == ["jms_moved"]
        await until(lambda: "Attempt 2 to connect failed" in caplog.text)
        most = threading.active_count()
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for each in producers:
            await each.aclose()

    before = threading.active_count()
    run(work())
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert [line.partition(" for ")[0] for line in lines] == [
        f"Attempt {number} to connect failed" for number in (1, 2)
    ]
    assert "from queue://q0 over connection 'jms_moved'" in lines[0]
    assert "and 47 more, another follows" in lines[0]
    assert len(asked) <= 3
    assert most - before <= 10
