"""What becomes of messages whose events Airflow doesn't store; Airflow's part is played by the test."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from airflow.triggers.shared_stream import AdvanceItem, AdvanceOutcome, SharedStreamProducer

from airflow_provider_jmsjca import (
    ConfigurationError,
    ConnectionSettings,
    Destination,
    JmsActivationTrigger,
    JmsMessage,
    MemoryBroker,
    Outgoing,
    SpoolError,
    connect,
)
from tests.airflow.conftest import Publish
from tests.airflow.triggers.waiting import run, until
from tests.dead_letters import original_of
from tests.internals.core import Backoff
from tests.internals.triggers import ActivationOptions, MessageProducer, producers

STORED = AdvanceOutcome(acked=1, failed=0)
NOT_STORED = AdvanceOutcome(acked=0, failed=1)
REFUSED = AdvanceOutcome(acked=0, failed=0, rejected=1)


class Events:
    """A producer, and what it has yielded and nobody has settled."""

    def __init__(self, producer: SharedStreamProducer) -> None:
        self.producer = producer
        self.bodies: list[Any] = []
        self.seen: list[int] = []
        self.count = 0
        self._payloads: list[tuple[Any, Any]] = []

    async def collect(self) -> None:
        async for raw, payload in self.producer.open_stream():
            self.count += 1
            if isinstance(raw, Destination):
                continue
            body = raw.deliveries[0].message.body
            self.bodies.append(body)
            self.seen.append(raw.deliveries[0].seen)
            self._payloads.append((body, payload))

    async def settle(self, body: str, outcome: AdvanceOutcome, fault: SpoolError | None = None) -> None:
        """Settle the oldest unsettled event with this body, which a trigger could not create for a fault."""
        index = next(number for number, (each, _) in enumerate(self._payloads) if each == body)
        _, payload = self._payloads.pop(index)
        payload.fault = fault
        await self.producer.advance([AdvanceItem(payload, outcome)])


@contextlib.asynccontextmanager
async def events(**arguments: Any) -> AsyncIterator[Events]:
    _, kwargs = JmsActivationTrigger("jms_test", "queue://orders", **arguments).serialize()
    found = Events(JmsActivationTrigger.create_shared_stream_producer(kwargs))
    task = asyncio.create_task(found.collect())
    try:
        yield found
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await found.producer.aclose()


def test_a_message_whose_event_is_never_stored_is_moved_when_the_handling_says_so_j133(
    server: MemoryBroker, publish: Publish
) -> None:
    """J130, J133, J149: those stored in between are not touched by it."""

    async def work() -> None:
        async with events(redelivery_handling="2:move(queue:$.dead)") as found:
            publish("bad", "good")
            await until(lambda: len(found.bodies) == 2)
            await found.settle("bad", NOT_STORED)
            await found.settle("good", STORED)
            await until(lambda: len(found.bodies) == 3)
            await found.settle("bad", NOT_STORED)
            await until(lambda: server.depth("orders.dead") == 1)
            await until(lambda: server.depth("orders") == 0)
            assert found.bodies == ["bad", "good", "bad"]
        (message,) = server.messages("orders.dead")
        letter = original_of(message)
        assert letter is not None
        assert (letter.message.body, letter.state.seen) == ("bad", 2)
        assert letter.origin.destination == Destination.queue("orders")
        assert letter.state.failure is not None
        assert "did not store its event" in letter.state.failure.message

    run(work())


def test_the_default_waits_a_second_then_two_and_neither_moves_nor_deletes(
    server: MemoryBroker, publish: Publish
) -> None:
    async def work() -> None:
        async with events() as found:
            publish("a")
            moments = []
            for attempt in range(1, 4):
                await until(lambda attempt=attempt: len(found.bodies) == attempt)
                moments.append(time.monotonic())
                if attempt < 3:
                    await found.settle("a", NOT_STORED)
            assert moments[1] - moments[0] >= 0.95
            assert moments[2] - moments[1] >= 1.95
            assert server.depth("orders") == 1
            await found.settle("a", STORED)
            await until(lambda: server.depth("orders") == 0)

    run(work())


def test_what_is_given_back_while_another_waits_comes_again_too(
    server: MemoryBroker, publish: Publish
) -> None:
    async def work() -> None:
        async with events(redelivery_handling="1:300") as found:
            publish("a", "b", "c")
            await until(lambda: len(found.bodies) == 3)
            for body in ("a", "b", "c"):
                await found.settle(body, NOT_STORED)
                await asyncio.sleep(0.1)
            await until(lambda: found.bodies == ["a", "b", "c", "a", "b", "c"])
            for body in ("c", "a", "b"):
                await found.settle(body, STORED)
            await until(lambda: server.depth("orders") == 0)

    run(work())


def test_a_refused_message_goes_where_the_handling_ends_if_nothing_else_is_said(
    server: MemoryBroker, publish: Publish
) -> None:
    async def work() -> None:
        async with events(redelivery_handling="10:move(queue:$.dead)") as found:
            publish("a")
            await until(lambda: len(found.bodies) == 1)
            await found.settle("a", REFUSED)
            await until(lambda: server.depth("orders.dead") == 1)
            await until(lambda: server.depth("orders") == 0)

    run(work())


def test_events_of_a_group_wait_for_each_other(server: MemoryBroker) -> None:
    connection = connect(ConnectionSettings(scheme="vm", hosts=((server.name, None),)))
    connection.send(
        Outgoing(
            destination=Destination.queue("orders"),
            message=JmsMessage.text(body, {} if group is None else {"JMSXGroupID": group}),
        )
        for body, group in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("x", None))
    )
    connection.close()

    async def work() -> None:
        async with events() as found:
            await until(lambda: found.bodies == ["a1", "b1", "x"])
            await asyncio.sleep(0.1)
            assert len(found.bodies) == 3
            await found.settle("a1", STORED)
            await until(lambda: found.bodies == ["a1", "b1", "x", "a2"])

    run(work())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"redelivery_handling": 5}, "redelivery_handling is 5, of type int; expected a string"),
        ({"redelivery_handling": "3:explode"}, "redelivery_handling: "),
        ({"redelivery_handling": "3:move(queue:orders)"}, "moves to the destination itself, queue://orders"),
        (
            {"redelivery_handling": "3:move(queue:lookup://x)"},
            "lookup://x: there is no such administered object",
        ),
        (
            {"redelivery_handling": "3:delete", "event": "ready"},
            "redelivery_handling: only for event='message'",
        ),
    ],
)
@pytest.mark.usefixtures("server")
def test_a_wrong_handling_is_said(
    caplog: pytest.LogCaptureFixture, arguments: dict[str, Any], said: str
) -> None:
    async def work() -> None:
        async with events(**arguments):
            await until(lambda: any(said in record.getMessage() for record in caplog.records))

    with caplog.at_level(logging.ERROR):
        run(work())


def test_triggers_that_differ_in_their_handling_share_no_stream() -> None:
    one, other = (
        JmsActivationTrigger("jms_test", "orders", redelivery_handling=handling)
        for handling in ("3:delete", "4:delete")
    )
    assert one.shared_stream_key() != other.shared_stream_key()


def test_an_event_that_the_spool_fails_after_its_stream_has_ended(
    server: MemoryBroker, publish: Publish, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is lost, no later stream ends for it, and no attempt counts: nothing was handed over."""
    monkeypatch.setattr(producers, "_STORING_SECONDS", 0.05)
    _, kwargs = JmsActivationTrigger(
        "jms_test", "queue://orders", redelivery_handling="2:move(queue:$.dead)"
    ).serialize()
    faults: list[ConfigurationError | None] = [None]
    full = SpoolError("spool: can't be written: No space left on device")

    def parse() -> ActivationOptions:
        if faults[-1] is not None:
            raise faults[-1]
        return ActivationOptions.parse(kwargs)

    async def work() -> None:
        producer = MessageProducer(parse, backoff=Backoff(steps=(timedelta(milliseconds=10),), jitter=0))
        found = Events(producer)
        task = asyncio.create_task(found.collect())
        publish("early", "late")
        await until(lambda: found.bodies == ["early", "late"])
        faults.append(ConfigurationError("no stream may begin"))
        await found.settle("early", STORED, full)
        await until(lambda: "no stream may begin" in caplog.text)
        assert caplog.text.count("No events for") == 2
        await found.settle("late", STORED, full)
        faults.append(None)
        await until(lambda: len(found.bodies) == 4)
        assert dict(zip(found.bodies[2:], found.seen[2:], strict=True)) == {"early": 0, "late": 0}
        await found.settle("early", STORED)
        await found.settle("late", STORED)
        await until(lambda: server.depth("orders") == 0)
        producer._interrupt()  # as an operator's request does; the stream is opened again
        publish("other")
        await until(lambda: found.bodies[4:] == ["other"])
        await found.settle("other", STORED)
        await until(lambda: server.depth("orders") == 0)
        assert caplog.text.count("No events for") == 2
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await producer.aclose()

    run(work())
    assert server.depth("orders.dead") == 0


def test_an_event_of_an_earlier_stream_does_not_end_the_one_after_it(
    server: MemoryBroker, publish: Publish, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(producers, "_STORING_SECONDS", 0.05)
    _, kwargs = JmsActivationTrigger("jms_test", "queue://orders").serialize()
    full = SpoolError("spool: can't be written: No space left on device")

    async def work() -> None:
        producer = MessageProducer(
            lambda: ActivationOptions.parse(kwargs),
            backoff=Backoff(steps=(timedelta(milliseconds=10),), jitter=0),
        )
        found = Events(producer)
        task = asyncio.create_task(found.collect())
        publish("early", "late")
        await until(lambda: found.bodies == ["early", "late"])
        await found.settle("early", STORED, full)
        await until(lambda: found.bodies[2:] == ["early"])
        await found.settle("late", STORED, full)
        await until(lambda: found.bodies[3:] == ["late"])
        await found.settle("early", STORED)
        await found.settle("late", STORED)
        publish("other")
        await until(lambda: found.bodies[4:] == ["other"])
        await found.settle("other", STORED)
        await until(lambda: server.depth("orders") == 0)
        assert "works again, after 1 failed attempts" in caplog.text
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await producer.aclose()

    run(work())
