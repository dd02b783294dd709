"""Messages that can't be decoded, among others that can: they are poison of nobody but themselves."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_jmsjca import Destination, JmsConnection, PoisonMessageError, Subscription, connect
from tests.broker.listening import activation, drained, idle
from tests.broker.test_stomp_traps import raw_send
from tests.broker.test_stream import streaming
from tests.dead_letters import original_of
from tests.internals.collecting import BatchSpec, collect
from tests.internals.engine import open_connection
from tests.internals.spool import SpoolBatch
from tests.servers.broker import Broker

MODES = ["serial", "cc", "sync"]
# What a broker passes on and we can't read; it refuses or mends the rest of its kind.
MALFORMED = {
    "activemq": [
        ("reply-to:", "forged"),
        ("reply-to:queue:", "forged"),
        ("timestamp:-5", "forged"),
        # The broker makes a Java map of this one.
        ("transformation:jms-map-json", '{"map":{"entry":{"string":"a","int":1}}}'),
        ("type:no body", ""),
    ],
    "artemis": [("reply-to:", "forged"), ("reply-to:/topic/", "forged"), ("type:no body", "")],
    "rabbitmq": [("x-delivery-count:often", "forged"), ("JMS_JMSJCA_Expiration:x", "forged")],
}


@pytest.fixture
def sent(broker: Broker, queue_name: str) -> int:
    """Malformed messages, each among good ones; returns how many are malformed."""
    with contextlib.closing(connect(broker.settings())) as connection:
        product = connection.broker.product
    name = queue_name if product == "artemis" else f"/queue/{queue_name}"
    usual = (f"destination:{name}", "destination-type:ANYCAST", "persistent:true")
    raw_send(broker, *usual)
    for header, body in MALFORMED[product]:
        raw_send(broker, *usual, header, body=body)
        raw_send(broker, *usual)
    return len(MALFORMED[product])


@pytest.mark.parametrize("mode", MODES)
def test_a_listener_moves_them_and_handles_the_others(
    broker: Broker, queue_name: str, sent: int, mode: str
) -> None:
    settings = broker.settings()
    got: list[Any] = []
    listener = activation(
        settings, queue_name, got.append, redelivery_handling="5:move(queue:$.dlq)", concurrency_mode=mode
    )
    counts = listener.run(idle_for=idle())
    assert (counts.committed, counts.moved, len(got)) == (sent + 1, sent, sent + 1)
    letters = drained(settings, f"{queue_name}.dlq")
    assert len(letters) == sent
    for message in letters:
        letter = original_of(message)
        assert letter is not None
        assert letter.message.body == (b"" if "without a body" in str(letter.state.failure) else b"forged")
        assert letter.state.failure is not None
        assert letter.state.failure.class_name.endswith("PoisonMessageError")


def test_a_collector_stores_them(broker: Broker, queue_name: str, sent: int, tmp_path: Path) -> None:
    spec = BatchSpec(
        subscription=Subscription(destination=Destination.queue(queue_name)),
        max_messages=2 * sent + 1,
        max_time=timedelta(seconds=20),
    )
    with SpoolBatch(tmp_path, "b", source=queue_name, activation="a") as batch:
        opened = functools.partial(open_connection, broker.settings())
        result = collect(opened, batch, spec, stop=threading.Event())
    assert (result.rows, result.undecodable, result.left) == (2 * sent + 1, sent, 0)


def test_a_stream_moves_them_and_hands_out_the_others(broker: Broker, queue_name: str, sent: int) -> None:
    settings = broker.settings()

    async def work() -> None:
        async with streaming(settings, queue_name, redelivery_handling="5:move(queue:$.dlq)") as stream:
            for _ in range(sent + 1):
                (await asyncio.wait_for(anext(stream), 20)).returned()

    asyncio.run(work())
    assert len(drained(settings, f"{queue_name}.dlq")) == sent


def test_a_session_says_so_and_goes_on(broker: Broker, queue_name: str, sent: int) -> None:
    with (
        JmsConnection(connect(broker.settings())) as connection,
        connection.session(transacted=True) as session,
    ):
        if connection.capabilities.browse:
            assert len(list(session.browse(f"queue://{queue_name}"))) == 2 * sent + 1
        good = bad = 0
        while good + bad < 2 * sent + 1:
            try:
                good += session.receive(f"queue://{queue_name}", timeout=20) is not None
            except PoisonMessageError:
                bad += 1
        session.commit()
        assert (good, bad) == (sent + 1, sent)
        assert session.receive(f"queue://{queue_name}", timeout=0) is None
