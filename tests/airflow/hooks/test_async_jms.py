"""`AsyncJmsHook`, as the authors of own triggers use it, on real brokers."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.triggers.base import BaseTrigger

from airflow_provider_jmsjca import (
    AsyncJmsConnection,
    AsyncJmsHook,
    ConfigurationError,
    JmsHook,
    JmsMessage,
    TransientBrokerError,
)
from tests.pace import at_most
from tests.servers.broker import Broker

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "own-triggers.md"


@pytest.fixture(params=["activemq", "artemis", "rabbitmq"])
def real(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker: Broker = request.getfixturevalue(request.param)
    set_connection(monkeypatch, broker)
    return broker


@pytest.fixture
def activemq_only(activemq: Broker, monkeypatch: pytest.MonkeyPatch) -> Broker:
    set_connection(monkeypatch, activemq)
    return activemq


def set_connection(monkeypatch: pytest.MonkeyPatch, broker: Broker) -> None:
    host, port = broker.address()
    fields = {"conn_type": "jms", "host": host, "port": port, "login": broker.username}
    monkeypatch.setenv("AIRFLOW_CONN_JMS_REAL", json.dumps(fields | {"password": broker.password}))


def connected(use: Callable[[AsyncJmsConnection], Awaitable[Any]]) -> Any:
    """Use a connection in an event loop of its own; fail if anything holds the loop up."""

    async def run() -> Any:
        longest, done = 0.0, asyncio.Event()

        async def watch() -> None:
            nonlocal longest
            while not done.is_set():
                before = time.monotonic()
                await asyncio.sleep(0.01)
                longest = max(longest, time.monotonic() - before)

        watching = asyncio.create_task(watch())
        try:
            async with AsyncJmsHook("jms_real").get_conn() as connection:
                return await asyncio.wait_for(use(connection), 60)
        finally:
            done.set()
            await watching
            assert longest < at_most(1.5)  # what blocks here would last 2 s, or for ever

    return asyncio.run(run())


def bodies_left(queue: str) -> list[object]:
    with JmsHook("jms_real").get_conn() as connection, connection.session() as session:
        found = []
        while (message := session.receive(queue, timeout=1)) is not None:
            found.append(message.body)
        return found


@pytest.mark.usefixtures("real")
def test_what_is_sent_is_received_and_settled_and_the_rest_goes_back(queue_name: str) -> None:
    queue = f"queue://{queue_name}"

    async def use(connection: AsyncJmsConnection) -> None:
        for number in range(3):
            await connection.send(
                queue, JmsMessage.text(str(number), {"n": number}), priority=4, time_to_live=600
            )
        first = await connection.receive(queue, timeout=20)
        assert first is not None
        assert (first.message.body, first.message.properties["n"], first.seen) == ("0", "0", 0)
        assert str(first.destination) == queue
        first.returned()
        second = await connection.receive(queue, timeout=20)
        assert second is not None
        assert second.message.body == "1"
        with pytest.raises(ConfigurationError, match=r"expected returned\(\) or raised\(\) before"):
            await connection.receive(queue, timeout=20)

    connected(use)
    assert bodies_left(queue) == ["1", "2"]


@pytest.mark.usefixtures("activemq_only")
def test_nothing_is_lost_when_a_wait_ends(queue_name: str) -> None:
    queue = f"queue://{queue_name}"

    async def use(connection: AsyncJmsConnection) -> list[object]:
        assert await connection.receive(queue, timeout=2, message_selector="n = 2") is None
        waiting = asyncio.create_task(connection.receive(queue, message_selector="n = 2"))
        await asyncio.sleep(0)
        waiting.cancel()
        for number in (1, 2):
            await connection.send(queue, JmsMessage.text(str(number), {"n": number}))
        delivery = await connection.receive(queue, timeout=20, message_selector="n = 2")
        assert delivery is not None
        delivery.returned()
        return [delivery.message.body]

    assert connected(use) == ["2"]
    assert bodies_left(queue) == ["1"]


@pytest.mark.usefixtures("activemq_only")
def test_a_stream_follows_the_rules_of_a_listener(queue_name: str) -> None:
    queue = f"queue://{queue_name}"

    async def use(connection: AsyncJmsConnection) -> list[object]:
        for body in ("good", "bad", "last"):
            await connection.send(queue, JmsMessage.text(body))
        seen: list[object] = []
        spec = {"destination": queue, "redelivery_handling": "1:0; 2:move(queue:$.dead)"}
        async for delivery in await connection.consume(spec):
            seen.append(delivery.message.body)
            if delivery.message.body == "bad":
                delivery.raised(ValueError("no"))
                continue
            delivery.returned()
            if delivery.message.body == "last":
                return seen
        return seen

    seen = connected(use)
    assert [body for body in seen if body != "bad"] == ["good", "last"]
    assert seen.count("bad") == 2
    assert bodies_left(queue) == []
    assert bodies_left(f"{queue}.dead") == ["bad"]


def test_a_broker_that_is_away_is_said_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        extra = json.dumps({"connect_timeout": 2, "reply_timeout": 2})
        fields = {"conn_type": "jms", "host": "127.0.0.1", "port": mute.getsockname()[1], "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_JMS_REAL", json.dumps(fields))

        async def use(connection: AsyncJmsConnection) -> None:
            with pytest.raises(TransientBrokerError, match=r"127\.0\.0\.1"):
                await connection.send("queue://q", JmsMessage.text("m"))
            with pytest.raises(TransientBrokerError, match="couldn't be reached within 1 s"):
                await connection.receive("queue://q", timeout=1)

        connected(use)


def test_what_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_JMS_REAL", json.dumps({"conn_type": "jms", "host": "vm://nobody"}))

    async def use(connection: AsyncJmsConnection) -> None:
        with pytest.raises(ConfigurationError, match="no destination type 'quue'"):
            await connection.send("quue://q", JmsMessage.text("m"))
        with pytest.raises(ConfigurationError, match="message_selector"):
            await connection.receive("queue://q", message_selector="n = ")
        with pytest.raises(ConfigurationError, match="redelivery_handling"):
            await connection.consume("queue://q", redelivery_handling="nonsense")
        await connection.aclose()
        with pytest.raises(ConfigurationError, match="the connection is closed"):
            await connection.receive("queue://q")

    connected(use)
    with pytest.raises(ConfigurationError, match="'nowhere' is not defined"):
        asyncio.run(AsyncJmsHook("nowhere").get_conn().send("queue://q", JmsMessage.text("m")))


def test_a_close_that_is_cancelled_before_it_begins_gives_messages_back(
    monkeypatch: pytest.MonkeyPatch, queue_name: str
) -> None:
    """As Airflow does: it cancels a trigger anew at each of its rounds until that has ended."""
    fields = {"conn_type": "jms", "host": f"vm://{uuid.uuid4().hex}"}
    monkeypatch.setenv("AIRFLOW_CONN_JMS_REAL", json.dumps(fields))
    queue = f"queue://{queue_name}"

    async def use(other: AsyncJmsConnection) -> object:
        connection = AsyncJmsHook("jms_real").get_conn()
        await connection.send(queue, JmsMessage.text("m"))
        assert await connection.receive(queue, timeout=20) is not None
        closing = asyncio.create_task(connection.aclose())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        again = await other.receive(queue, timeout=5)
        return None if again is None else again.message.body

    assert connected(use) == "m"


@pytest.mark.usefixtures("activemq_only")
def test_the_trigger_of_the_page_asks_and_gets_its_answer(queue_name: str) -> None:
    """What the how-to page shows, run as the triggerer runs it."""
    block = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[0]
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102  # our own page
    trigger: BaseTrigger = names["AskTrigger"]("jms_real", f"queue://{queue_name}", "how many?", within=30)
    _, arguments = trigger.serialize()
    assert arguments["question"] == "how many?"

    async def answer(connection: AsyncJmsConnection) -> Any:
        events = asyncio.create_task(anext(trigger.run()))  # type: ignore[arg-type]
        asked = await connection.receive(f"queue://{queue_name}", timeout=20)
        assert asked is not None
        assert asked.message.body == "how many?"
        assert asked.message.reply_to is not None
        reply = JmsMessage.text("42", correlation_id=asked.message.correlation_id)
        await connection.send(asked.message.reply_to, reply)
        asked.returned()
        return (await events).payload

    assert connected(answer) == {"answer": "42"}
    assert uuid.UUID(arguments["correlation_id"])
