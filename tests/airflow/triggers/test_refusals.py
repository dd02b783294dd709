"""A broker that closes the connection with each refusal: who shares it isn't disturbed again and again."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import defaultdict
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_jmsjca import (
    ConnectionLostError,
    ConnectionSettings,
    Destination,
    JmsActivationTrigger,
    JmsMessage,
    MemoryBroker,
    Outgoing,
    PermanentBrokerError,
    Subscription,
    connect,
    memory_broker,
)
from tests.airflow.triggers.waiting import run, until
from tests.internals.core import Backoff, RefusedDestinations
from tests.internals.transports import ConnectionState, MemoryConnection, OnReceived
from tests.internals.transports import connection as memory
from tests.internals.triggers import (
    ActivationOptions,
    JmsListenTrigger,
    MessageProducer,
    ReadyProducer,
    listen,
)

SOON = Backoff(steps=(timedelta(milliseconds=20),), jitter=0)
GOOD, BAD, WORSE = (Destination.queue(name) for name in ("good", "bad", "worse"))


class Slamming:
    """Closes a connection with each refusal, and knows who was on it."""

    def __init__(self, server: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = server
        self.refusals = 0
        self.disturbed = 0
        """How often `GOOD` was consumed over a connection that was closed so."""
        self._last: dict[Destination, MemoryConnection] = {}
        consume, users = MemoryConnection.consume, defaultdict(set)

        def slamming(connection: MemoryConnection, subscription: Subscription, on: OnReceived) -> Any:
            users[connection].add(subscription.destination)
            try:
                consumer = consume(connection, subscription, on)
            except PermanentBrokerError:
                with server.lock:
                    server.detach(connection)
                    connection.connection_lost(ConnectionLostError("closed with the refusal"))
                self.refusals += 1
                self.disturbed += GOOD in users[connection]
                raise
            self._last[subscription.destination] = connection
            return consumer

        monkeypatch.setattr(MemoryConnection, "consume", slamming)

    def consumed(self, *queues: Destination) -> bool:
        """Whether each is."""
        found = [self._last.get(queue) for queue in queues]
        return all(each is not None and each.state is ConnectionState.UP for each in found)

    async def several_refusals(self) -> None:
        """Wait for the first ones, which may disturb who shares the connection, and for further ones."""
        await until(lambda: self.refusals >= 2 and self.consumed(GOOD))
        before, disturbed = self.refusals, self.disturbed
        await until(lambda: self.refusals >= before + 4)
        assert (self.disturbed, self.consumed(GOOD)) == (disturbed, True)

    def send(self, queue: Destination) -> None:
        connection = connect(ConnectionSettings(scheme="vm", hosts=((self.server.name, None),)))
        connection.send([Outgoing(destination=queue, message=JmsMessage.text(queue.name))])
        connection.close()


@pytest.fixture
def slamming(monkeypatch: pytest.MonkeyPatch) -> Slamming:
    """A broker like RabbitMQ: it can't be browsed, and refuses two queues."""
    server = memory_broker(uuid.uuid4().hex)
    for queue in (BAD, WORSE):
        server.forbid(queue)
    monkeypatch.setattr(MemoryConnection, "capabilities", replace(memory.CAPABILITIES, browse=False))
    monkeypatch.setattr(listen, "RETRY", SOON)
    say = json.dumps({"conn_type": "jms", "host": f"vm://{server.name}"})
    monkeypatch.setenv("AIRFLOW_CONN_JMS_REFUSING", say)
    return Slamming(server, monkeypatch)


def producer(*queues: Destination, ready: bool = False, **more: Any) -> Any:
    event = "ready" if ready else "message"
    trigger = JmsActivationTrigger("jms_refusing", ";".join(map(str, queues)), event=event, **more)
    kind = ReadyProducer if ready else MessageProducer
    return kind(lambda: ActivationOptions.parse(trigger.serialize()[1]), backoff=SOON)


@pytest.mark.parametrize("kind", ["message", "ready", "listener"])
def test_who_is_refused_tries_again_over_a_connection_of_its_own(kind: str, slamming: Slamming) -> None:
    server = slamming.server

    async def work() -> None:
        staying = producer(GOOD)
        good = asyncio.ensure_future(anext(staying.open_stream()))
        await until(lambda: slamming.consumed(GOOD))
        refused = producer(BAD, ready=kind == "ready")
        events: Any = refused.open_stream()
        if kind == "listener":
            trigger = JmsListenTrigger(
                jms_conn_id="jms_refusing", destination="bad", further=["worse"], retry_permanent_errors=True
            )
            trigger.task_instance = SimpleNamespace(dag_id="d", task_id="t")
            events = trigger.run()
        bad = asyncio.ensure_future(anext(events))
        await slamming.several_refusals()
        assert not good.done()
        assert not bad.done()
        server.permit(BAD)
        slamming.send(BAD)
        slamming.send(GOOD)
        await asyncio.wait_for(asyncio.gather(good, bad), 10)
        await events.aclose()
        for each in (refused, staying):
            await each.aclose()

    run(work())


def test_who_is_refused_no_more_shares_the_next_connection(slamming: Slamming) -> None:
    server = slamming.server

    async def work() -> None:
        both = [producer(GOOD), producer(BAD)]
        first = [asyncio.ensure_future(anext(each.open_stream())) for each in both]
        await until(lambda: slamming.refusals >= 3)
        server.permit(BAD)
        await until(lambda: slamming.consumed(GOOD, BAD))
        assert server.connections == 2
        server.restart()
        await until(lambda: slamming.consumed(GOOD, BAD))
        assert server.connections == 1
        for each in (GOOD, BAD):
            slamming.send(each)
        await asyncio.wait_for(asyncio.gather(*first), 10)
        for each in both:
            await each.aclose()

    run(work())


def test_of_several_destinations_one_is_refused(slamming: Slamming, monkeypatch: pytest.MonkeyPatch) -> None:
    """I5: the retries disturb its own activation alone."""
    monkeypatch.setattr(RefusedDestinations.__init__, "__defaults__", (SOON,))

    async def work() -> None:
        staying = producer(GOOD)
        good = asyncio.ensure_future(anext(staying.open_stream()))
        await until(lambda: slamming.consumed(GOOD))
        several = producer(BAD, Destination.queue("beside"), polling_interval=0.05)
        events = asyncio.ensure_future(anext(several.open_stream()))
        await slamming.several_refusals()
        assert not good.done()
        slamming.server.permit(BAD)
        slamming.send(GOOD)
        slamming.send(Destination.queue("beside"))
        await asyncio.wait_for(asyncio.gather(good, events), 10)
        for each in (several, staying):
            await each.aclose()

    run(work())
