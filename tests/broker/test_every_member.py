"""A listener on each member: ActiveMQ, and beside it each broker, which is killed and started again."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any, Self

import pytest

from airflow_provider_jmsjca import (
    ActivationSpec,
    Connection,
    ConnectionSettings,
    Delivery,
    Destination,
    JmsMessage,
    Outgoing,
    connect,
)
from tests.broker.listening import bodies, idle, send, until
from tests.internals.core import ActivationState
from tests.internals.engine import Listener, every_member
from tests.servers.broker import Broker

EACH = 400
PAUSE = 0.02


class Feeder:
    """Sends to a queue, steadily."""

    def __init__(self, settings: ConnectionSettings, queue: str) -> None:
        self.sent = 0
        self._connection = connect(settings)
        self._queue = Destination.queue(queue)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._feed)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._connection.close()

    def _feed(self) -> None:
        while not self._over.wait(PAUSE):
            message = JmsMessage.text(f"a{self.sent}")
            self._connection.send((Outgoing(destination=self._queue, message=message),))
            self.sent += 1


def listener(brokers: list[Broker], handler: Callable[[Delivery], object], **spec: Any) -> Listener:
    """Return a listener on each; every broker of ours has a password of its own."""
    logins = {each.address(): each.settings() for each in brokers}

    def connect_to(settings: ConnectionSettings) -> Connection:
        return connect(replace(logins[settings.hosts[0]], client_id=settings.client_id))  # type: ignore[index]  # with ports

    found = every_member(
        ActivationSpec(distributed_destination_connection="every_member", polling_interval=1, **spec),
        ConnectionSettings(scheme="stomp", hosts=tuple(logins), client_id=spec.get("client_id")),
        connect=connect_to,
    )
    assert found is not None
    return Listener(found, handler)


@pytest.mark.parametrize("mode", ["serial", "cc"])
def test_a_member_is_killed_and_started_again(
    activemq: Broker, any_private_broker: Broker, queue_name: str, mode: str
) -> None:
    """W12: every message is handled, none is settled twice, and the other member's flow never stops."""
    brokers = [activemq, any_private_broker]
    steady, killed = (each.settings() for each in brokers)
    out = f"{queue_name}.out"
    any_private_broker.put_on_disk(queue_name, out)
    handled: list[tuple[float, str]] = []

    def handle(delivery: Delivery) -> None:
        handled.append((time.monotonic(), delivery.body))
        delivery.send(f"queue://{out}", JmsMessage.text(delivery.body))
        time.sleep(PAUSE / 4)

    activation = listener(
        brokers,
        handle,
        destination=f"queue://{queue_name}",
        concurrency_mode=mode,
        endpoint_pool_max_size=4,
    )
    wanted = [f"b{number}" for number in range(EACH)]
    send(killed, queue_name, *wanted)
    activation.start()
    first, second = activation.runs
    with Feeder(steady, queue_name) as feeder:
        until(lambda: second.counts.committed >= EACH // 4)
        any_private_broker.kill()
        lost_at = time.monotonic()
        until(lambda: activation.down == (activation.member_names[1],))
        assert activation.state is ActivationState.UP
        any_private_broker.start()
        until(lambda: not activation.down)
        back_at = time.monotonic()
        until(lambda: second.counts.committed + second.counts.in_doubt >= EACH, within=60)
    sent = feeder.sent
    until(lambda: first.counts.committed == sent)
    until(lambda: activation.statistics().in_flight == 0)
    assert activation.stop()

    counts = activation.counts
    assert counts == first.counts + second.counts
    assert (first.counts.delivered, first.counts.redelivered, first.counts.in_doubt) == (sent, 0, 0)
    assert EACH - second.counts.in_doubt <= second.counts.committed <= EACH
    assert activation.statistics().connections == 3
    moments = [lost_at, *(at for at, body in handled if body[0] == "a" and lost_at < at < back_at), back_at]
    # On a busy machine the moments are further apart; a flow that stops is at rest for the whole outage.
    assert max(later - earlier for earlier, later in pairwise(moments)) < max(2, (back_at - lost_at) / 2)
    answers = bodies(steady, out)
    assert answers == [f"a{number}" for number in range(sent)] or mode == "cc"
    assert len(answers) == len(set(answers)) == sent
    got = Counter(bodies(killed, out))
    assert set(got) == set(wanted)
    if any_private_broker.name != "rabbitmq":
        # RabbitMQ has no transaction around the answer and the acknowledgement.
        assert set(got.values()) == {1}
    assert bodies(steady, queue_name) == bodies(killed, queue_name) == []


def test_a_topic_reaches_a_durable_subscriber_on_each_member(
    activemq: Broker, artemis: Broker, rabbitmq: Broker, queue_name: str
) -> None:
    """W32, W30, W46: each member keeps what is published there while nobody listens."""
    brokers = [activemq, artemis, rabbitmq]
    got: list[str] = []
    fields: dict[str, Any] = {
        "destination": f"topic://{queue_name}",
        "subscription_durability": "durable",
        "subscription_name": "s",
        "client_id": queue_name,
        "durable_subscription_deletion": True,
    }
    activation = listener(brokers, lambda delivery: got.append(delivery.body), **fields)
    publishers = [connect(each.settings()) for each in brokers]

    def publish(what: str) -> None:
        for number, each in enumerate(publishers):
            message = JmsMessage.text(f"{what} {number}")
            each.send((Outgoing(destination=Destination.topic(queue_name), message=message),))

    def is_subscribed() -> bool:
        publish("probe")
        return set(got) == {"probe 0", "probe 1", "probe 2"}

    activation.start()
    until(is_subscribed)
    assert activation.drain()
    activation.request_stop(reason="away", delete_durable=False)
    until(lambda: not activation.running)
    got.clear()
    publish("M1")
    for each in publishers:
        each.close()
    activation.run(idle_for=idle())
    assert sorted(body for body in got if body.startswith("M1")) == ["M1 0", "M1 1", "M1 2"]
    assert activation.missing == ()
