"""No move, copy or staging leads a message back to where it came from, however a broker spells names."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_jmsjca import (
    Activation,
    ActivationSpec,
    ConfigurationError,
    Delivery,
    Destination,
    JmsConnection,
    MoveTarget,
    Subscription,
    connect,
)
from tests.broker.listening import activation, bodies, idle, send, until
from tests.internals.collecting import ClaimSpec, claim
from tests.internals.engine import AsyncConnection, DeliveryStream, listener_settings
from tests.internals.spool import SpoolBatch
from tests.servers.broker import Broker

REFUSED = [
    ("activemq", "queue://{q}?consumer.exclusive=true", {"redelivery_handling": "3:move(queue:$.dlq)"}),
    ("activemq", "queue://{q}?consumer.exclusive=true", {"redelivery_handling": "3:move(same:dlq.$)"}),
    ("activemq", "queue://{q}?consumer.exclusive=true", {"redelivery_handling": "3:move(queue:{q})"}),
    ("activemq", "queue://{q},{q}.b", {"archive_destination": "queue://{q}.b"}),
    ("activemq", "queue://{q}", {"archive_destination": "queue://{q}.b,{q}"}),
    ("activemq", "queue://{q}.>", {"error_destination": "queue://{q}.errors"}),
    ("activemq", "queue://{q}.>", {"in_progress_destination": "queue://{q}.progress"}),
    (
        "activemq",
        "queue://Consumer.A.VirtualTopic.{q}",
        {"max_attempts": 2, "dead_letter_destination": "topic://VirtualTopic.{q}"},
    ),
    (
        "activemq",
        "queue://{q}?consumer.exclusive=true",
        {"message_selector": "a = 'b'", "unsubscribed_destination": "queue://{q}"},
    ),
    ("artemis", "queue://{q}::{q}.a", {"redelivery_handling": "3:move(queue:$.dlq)"}),
    ("artemis", "queue://{q}::{q}.a", {"archive_destination": "queue://{q}"}),
    ("artemis", "queue://{q}.#", {"redelivery_handling": "3:move(queue:{q}.dlq)"}),
    ("artemis", "queue://{q}.#", {"non_blocking_redelivery": True}),
    ("rabbitmq", "topic://{q}.#", {"redelivery_handling": "3:move(topic:$.dlq)"}),
]


def filled(spec: dict[str, Any], queue: str) -> dict[str, Any]:
    return {
        key: value.replace("{q}", queue) if isinstance(value, str) else value for key, value in spec.items()
    }


@pytest.mark.parametrize(("broker", "source", "spec"), REFUSED, indirect=["broker"])
def test_a_way_back_is_refused_at_the_start(
    broker: Broker, source: str, spec: dict[str, Any], queue_name: str
) -> None:
    calls: list[object] = []
    asked = ActivationSpec(destination=source.replace("{q}", queue_name), **filled(spec, queue_name))
    listener = Activation(asked, calls.append, connection=broker.settings())
    with pytest.raises(ConfigurationError, match=r"would be received from|can't be derived|is a wildcard"):
        listener.run(run_for=20, idle_for=5)
    assert calls == []


def test_an_event_loop_refuses_it_too(activemq: Broker, queue_name: str) -> None:
    rules = listener_settings(
        ActivationSpec(
            destination=f"queue://{queue_name}?consumer.exclusive=true",
            redelivery_handling="3:move(queue:$.dlq)",
        )
    )

    async def consume() -> None:
        async with DeliveryStream(rules, AsyncConnection(activemq.settings())) as stream:
            await asyncio.wait_for(anext(stream), 20)

    with pytest.raises(ConfigurationError, match=rf"jmsjca://\?name=queue://{queue_name}&OPTION=VALUE"):
        asyncio.run(consume())


def test_a_claim_refuses_it_too(activemq: Broker, queue_name: str, tmp_path: Path) -> None:
    spec = ClaimSpec(
        subscription=Subscription(destination=Destination.queue(f"{queue_name}?consumer.exclusive=true")),
        dead_letter=(MoveTarget.named("queue", "$.dlq"),),
    )
    batch = functools.partial(SpoolBatch, tmp_path, "b", source="s", activation="a")
    with (
        contextlib.closing(connect(activemq.settings())) as connection,
        pytest.raises(ConfigurationError, match="can't be derived from the name"),
    ):
        claim(connection, batch, spec)


def test_options_of_their_own_leave_the_name_as_it_is(activemq: Broker, queue_name: str) -> None:
    settings, calls = activemq.settings(), list[object]()

    def handle(delivery: Delivery) -> None:
        calls.append(delivery.body)
        raise ValueError("always")

    send(settings, queue_name, "m1")
    listener = activation(
        settings,
        queue_name,
        handle,
        destination=f"jmsjca://?name=queue://{queue_name}&activemq.exclusive=true",
        redelivery_handling="3:move(queue:$.dlq)",
    )
    assert listener.run(max_messages=1).moved == 1
    assert calls == ["m1", "m1", "m1"]
    assert bodies(settings, f"{queue_name}.dlq") == ["m1"]


def test_a_message_of_its_own_handling_stays_too(activemq: Broker, queue_name: str) -> None:
    settings, refusals = activemq.settings(), list[str]()

    def handle(delivery: Delivery) -> None:
        for target in (f"queue:{queue_name}", "queue:$.dlq"):
            with pytest.raises(ConfigurationError) as caught:
                delivery.redelivery_handling = f"1:move({target})"
            refusals.append(str(caught.value))

    send(settings, queue_name, "m1")
    source = f"queue://{queue_name}?consumer.exclusive=true"
    listener = activation(settings, queue_name, handle, destination=source)
    assert listener.run(max_messages=1).committed == 1
    assert ["would be received from" in refusals[0], "can't be derived" in refusals[1]] == [True, True]


def test_a_parked_message_of_several_queues_goes_back_to_its_own(activemq: Broker, queue_name: str) -> None:
    settings = activemq.settings()

    def fail(_: Delivery) -> None:
        raise ValueError("always")

    listener = activation(
        settings,
        queue_name,
        fail,
        non_blocking_redelivery=True,
        destination=f"queue://{queue_name}.a,{queue_name}.b",
        redelivery_handling="1:5001",
    )
    listener.start()  # before there is a message: it is sent to one of the two queues
    try:
        until(lambda: listener.ready)
        send(settings, f"{queue_name}.b", "m1")
        until(lambda: listener.counts.parked == 1)
    finally:
        listener.stop()
    with JmsConnection(connect(settings)) as connection, connection.session() as session:
        found = session.receive(f"queue://{queue_name}.b", timeout=30)
        assert found is not None
        assert found.body == "m1"
        assert session.receive(f"queue://{queue_name}.a", timeout=idle().total_seconds()) is None
