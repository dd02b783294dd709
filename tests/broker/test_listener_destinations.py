"""A listener on several destinations, over each broker."""

from __future__ import annotations

import functools
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_jmsjca import (
    ActivationSpec,
    CapabilityError,
    Connection,
    ConnectionSettings,
    Delivery,
    JmsMessage,
    PermanentBrokerError,
    Subscription,
    connect,
)
from tests.broker.listening import bodies, drained, idle, send, until
from tests.internals.core import RUN, SOURCE
from tests.internals.engine import Handler, Listener, listener_settings, one_connection
from tests.internals.transports import OnReceived, Received
from tests.servers.broker import Broker


class Counting:
    """A connection that knows how many messages have come over it."""

    def __init__(self, inner: Connection) -> None:
        self._inner = inner
        self.came = 0

    def consume(self, subscription: Subscription, on_received: OnReceived) -> Any:
        def counted(received: Received) -> None:
            on_received(received)
            self.came += 1

        return self._inner.consume(subscription, counted)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def activation(
    settings: ConnectionSettings, handler: Handler, *, balanced: bool = False, **spec: Any
) -> Listener:
    return Listener(
        one_connection(
            replace(listener_settings(ActivationSpec(**spec)), balanced=balanced),
            functools.partial(connect, settings),
        ),
        handler,
    )


def test_the_worked_example(broker: Broker, queue_name: str) -> None:
    """I4, I5, I6: A=2, B=1, C=5, PollQuantity=2: A, B, C, A, (B empty), C; C keeps 3."""
    settings = broker.settings()
    names = [f"{queue_name}.{letter}" for letter in "ABC"]
    for name, letter, count in zip(names, "ABC", (2, 1, 5), strict=True):
        send(settings, name, *(f"{letter}{number}" for number in range(1, count + 1)))
    got: list[str] = []
    connections: list[Counting] = []

    def counting() -> Any:
        connections.append(Counting(connect(settings)))
        return connections[-1]

    def handle(delivery: Delivery) -> None:
        until(lambda: connections[0].came == 8)
        got.append(delivery.body)

    spec = ActivationSpec(destination=[f"queue://{name}" for name in names], poll_quantity=2)
    Listener(one_connection(listener_settings(spec), counting), handle).run(max_messages=5)
    # The first message is whichever comes first: a broker may serve a later queue before the first one.
    assert " ".join(got) in {"A1 B1 C1 A2 C2", "B1 C1 A1 C2 A2", "C1 A1 B1 C2 A2"}
    assert [len(bodies(settings, name)) for name in names] == [0, 0, 3]


@pytest.mark.parametrize("mode", ["serial", "cc", "sync"])
def test_all_are_consumed_over_one_connection(broker: Broker, queue_name: str, mode: str) -> None:
    """I5, J81, J82, J83, W7: dead letters go to the queue beside their own."""
    settings = broker.settings()
    names = [f"{queue_name}.{letter}" for letter in "ABC"]
    for name, count in zip(names, (60, 5, 30), strict=True):
        send(settings, name, *(f"{name} {number}" for number in range(count)))

    def fail_some(delivery: Delivery) -> None:
        assert delivery.body.startswith(delivery.context.destination.name)
        if delivery.body.endswith("3"):
            raise ValueError("no stock")

    listener = activation(
        settings,
        fail_some,
        destination=[f"queue://{name}" for name in names],
        redelivery_handling="1:move(queue:$.dlq)",
        concurrency_mode=mode,
        endpoint_pool_max_size=3,
    )
    counts = listener.run(idle_for=idle())
    assert (counts.committed, counts.moved) == (95 - 10, 10)
    assert listener.statistics().connections == 1
    for name, count in zip(names, (6, 1, 3), strict=True):
        dead = drained(settings, f"{name}.dlq")
        assert len(dead) == count
        assert all(message.body.startswith(f"{name} ") for message in dead)
        assert bodies(settings, name) == []


@pytest.mark.parametrize("mode", ["serial", "cc", "sync"])
@pytest.mark.parametrize("name", ["@.>", "@.A,@.B"])
def test_what_waits_on_a_wildcard_or_a_list_is_delivered(
    activemq: Broker, queue_name: str, name: str, mode: str
) -> None:
    settings = activemq.settings()
    for letter in "AB":
        send(settings, f"{queue_name}.{letter}", letter)
    got: list[str] = []

    def handle(delivery: Delivery) -> None:
        if delivery.body == "A" and "A" not in got:
            got.append("A")
            raise ValueError("once more")
        got.append(delivery.body)

    counts = activation(
        settings,
        handle,
        destination=f"queue://{name.replace('@', queue_name)}",
        concurrency_mode=mode,
        endpoint_pool_max_size=2,
    ).run(idle_for=idle())
    assert (counts.committed, sorted(got)) == (2, ["A", "A", "B"])


def test_rabbitmq_closes_the_connection_with_each_refusal(rabbitmq: Broker, queue_name: str) -> None:
    """I5, W15: the others go on; if there are none, that is a fault at last."""
    settings = rabbitmq.settings()
    good, *bad = (f"{queue_name}.{letter}" for letter in "ABC")
    for name in (good, *bad):
        send(settings, name, "x")
    # They are there, and not as these options say.
    refused = [f"jmsjca://?name=queue://{name}&x-max-length=5" for name in bad]
    got: list[str] = []
    listener = activation(
        settings, lambda delivery: got.append(delivery.body), destination=[refused[0], f"queue://{good}"]
    )
    listener.start()
    until(lambda: got == ["x"])
    # With the next refusal the connection ends again, and is itself what is out of order, for a second.
    until(lambda: [why.partition(": ")[0] for why in listener.statistics().refused] == [f"queue://{bad[0]}"])
    assert listener.running
    assert listener.stop()
    with pytest.raises(PermanentBrokerError, match="precondition_failed"):
        activation(settings, lambda _: None, destination=refused).run(run_for=timedelta(seconds=30))


def test_archive_error_and_unsubscribed(broker: Broker, queue_name: str) -> None:
    """I26, I28, I30: each message is in one place and the successes also in the archive."""
    settings = broker.settings()
    send(settings, queue_name, *(f"good {number}" for number in range(20)), region="eu")
    send(settings, queue_name, "bad", region="eu")
    send(settings, queue_name, "other", region="us")

    def handle(delivery: Delivery) -> None:
        delivery.send(f"queue://{queue_name}.out", JmsMessage.text(delivery.body))
        if delivery.body == "bad":
            raise ValueError("no stock")

    listener = activation(
        settings,
        handle,
        destination=f"queue://{queue_name}",
        message_selector="region = 'eu'",
        archive_destination=f"queue://{queue_name}.done",
        error_destination=f"queue://{queue_name}.errors",
        unsubscribed_destination=f"queue://{queue_name}.others",
    )
    counts = listener.run(max_messages=22)
    assert (counts.committed, counts.moved) == (20, 2)
    good = [f"good {number}" for number in range(20)]
    assert bodies(settings, f"{queue_name}.done") == good
    assert bodies(settings, f"{queue_name}.out") == good
    assert bodies(settings, f"{queue_name}.errors") == ["bad"]
    assert bodies(settings, f"{queue_name}.others") == ["other"]
    assert bodies(settings, queue_name) == []


@pytest.mark.parametrize("mode", ["serial", "cc"])
def test_in_progress(broker: Broker, queue_name: str, mode: str) -> None:
    """I9, I11: each message stands there while it is handled; what a killed run left is handled too."""
    settings = broker.settings()
    work = f"{queue_name}.work"
    send(settings, work, "left", **{RUN: "killed", SOURCE: f"queue://{queue_name}"})
    send(settings, queue_name, *map(str, range(30)), region="eu")
    doubts: dict[str, bool] = {}

    def handle(delivery: Delivery) -> None:
        doubts[delivery.body] = delivery.context.in_doubt
        assert delivery.context.destination.name == queue_name
        assert RUN not in delivery.properties
        if delivery.body == "7":
            raise ValueError("no stock")

    counts = activation(
        settings,
        handle,
        destination=f"queue://{queue_name}",
        in_progress_destination=f"queue://{work}",
        redelivery_handling="1:move(queue:$.dlq)",
        concurrency_mode=mode,
        endpoint_pool_max_size=3,
    ).run(max_messages=31)
    assert (counts.committed, counts.moved) == (30, 1)
    assert doubts == {str(number): False for number in range(30)} | {"left": True}
    assert bodies(settings, f"{queue_name}.dlq") == ["7"]
    assert bodies(settings, work) == []
    assert bodies(settings, queue_name) == []


@pytest.mark.parametrize("events", ["fail_on_startup", "log_error", "ignore"])
def test_in_doubt(broker: Broker, queue_name: str, events: str) -> None:
    """I10, I12, I13: it fails, or leaves them; where a broker can't select that is refused."""
    settings = broker.settings()
    work = f"{queue_name}.work"
    send(settings, work, "left", **{RUN: "killed", SOURCE: f"queue://{queue_name}"})
    send(settings, queue_name, "new")
    got: list[str] = []
    listener = activation(
        settings,
        lambda delivery: got.append(delivery.body),
        destination=f"queue://{queue_name}",
        in_progress_destination=f"queue://{work}",
        in_doubt_events=events,
    )
    connection = connect(settings)
    selects = connection.capabilities.selector
    connection.close()
    if events == "fail_on_startup" or not selects:
        with pytest.raises((PermanentBrokerError, CapabilityError)):
            listener.run(run_for=timedelta(seconds=20))
        assert (got, bodies(settings, queue_name)) == ([], ["new"])
    else:
        listener.run(max_messages=1)
        assert got == ["new"]
    assert bodies(settings, work) == ["left"]
