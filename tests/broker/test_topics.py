"""Topics over each broker: durable and plain subscriptions, and distributed durable subscribers."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_jmsjca import (
    Activation,
    ActivationSpec,
    Delivery,
    Destination,
    JmsMessage,
    LimboSelection,
    Outgoing,
    Subscription,
    connect,
    open_store,
)
from tests.broker.listening import idle
from tests.internals.core import ActivationState, Backoff
from tests.internals.engine import (
    Handler,
    Listener,
    ListenerContext,
    ListenerRun,
    ListenerSettings,
    listener_settings,
    load_balancing,
    one_connection,
    shared_subscription,
)
from tests.servers.broker import Broker

SOON = timedelta(seconds=20)


def until(condition: Callable[[], object], *, within: float = 30) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it didn't happen in time"
        time.sleep(0.001)


def mover(node: Listener) -> ListenerRun:
    """Return the run that moves messages from the subscription to the queue."""
    return node.runs[1]


def is_active(node: Listener) -> bool:
    """Return whether the node has the subscription."""
    return mover(node).state is ActivationState.UP


def quick(settings: ListenerSettings) -> ListenerSettings:
    outage = replace(settings.delivery.outage, backoff=Backoff(steps=(timedelta(seconds=0.1),)))
    return replace(settings, delivery=replace(settings.delivery, outage=outage))


class Topic:
    """A topic of a broker, and who publishes to it."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.settings = broker.settings()
        self.name = name
        self.got: list[str] = []
        self._lock = threading.Lock()
        self._publisher = connect(self.settings)
        self.product = self._publisher.broker.product

    def publish(self, *messages: JmsMessage | str) -> None:
        self.publish_to(self.name, *messages)

    def publish_to(self, name: str, *messages: JmsMessage | str) -> None:
        self._publisher.send(
            Outgoing(
                destination=Destination.topic(name),
                message=each if isinstance(each, JmsMessage) else JmsMessage.text(each),
            )
            for each in messages
        )

    def note(self, delivery: Delivery) -> None:
        with self._lock:
            self.got.append(delivery.body)

    def subscribed(self, name: str = "s1", client_id: str | None = None) -> None:
        """Make the durable subscription: from now on it keeps what is published."""
        connection = connect(replace(self.settings, client_id=client_id or self.name))
        subscription = Subscription(destination=Destination.topic(self.name), durable_name=name)
        connection.consume(subscription, lambda _: None).close()
        connection.close()

    def subscriber(self, handler: Handler | None = None, *, instance: str = "", **fields: Any) -> Listener:
        """Return a durable subscriber with the client id the spec leads to."""
        given = {
            "destination": f"topic://{self.name}",
            "subscription_durability": "durable",
            "subscription_name": "s1",
            "client_id": self.name,
        }
        spec = ActivationSpec(**given | fields)
        client_id = spec.client_id_for(instance=instance)
        return Listener(
            one_connection(
                quick(listener_settings(spec, ListenerContext(client_id=client_id))),
                functools.partial(connect, replace(self.settings, client_id=client_id)),
            ),
            handler or self.note,
        )

    def node(self, handler: Handler | None = None, **fields: Any) -> Listener:
        """Return a node of a distributed durable subscriber."""
        given = {
            "name": "node",
            "destination": f"topic://{self.name}",
            "subscription_durability": "durable",
            "subscription_name": f"jmsjca://?distribution=1&subscribername=s&queue={self.name}.q",
        }
        made = load_balancing(ActivationSpec(**given | fields), ListenerContext(client_id=self.name))
        assert made is not None
        made = replace(made, topic_side=quick(made.topic_side), queue_side=quick(made.queue_side))
        return Listener(
            shared_subscription(
                made,
                functools.partial(connect, replace(self.settings, client_id=self.name)),
                functools.partial(connect, self.settings),
            ),
            handler or self.note,
        )

    def kept(self, **fields: Any) -> list[str]:
        """Return what the durable subscription holds, and settle it."""
        self.got.clear()
        self.subscriber(**fields).run(idle_for=idle(1))
        return self.got

    def close(self) -> None:
        self._publisher.close()


@pytest.fixture
def topic(broker: Broker, queue_name: str) -> Iterator[Topic]:
    made = Topic(broker, queue_name)
    yield made
    made.close()


def test_a_listener_sends_its_delayed_messages_back_to_its_subscription_alone_p12(
    topic: Topic, tmp_path: Path
) -> None:
    """P12, P15: without Airflow; the message behind isn't held up, and the other subscriber gets no copy."""
    for client_id in (topic.name, f"{topic.name}-other"):
        topic.subscribed(client_id=client_id)
    seen: list[tuple[str, int, str]] = []

    def handle(delivery: Delivery) -> None:
        seen.append((str(delivery.body), delivery.redelivery_count, str(delivery.message.destination)))
        if delivery.body == "bad" and delivery.redelivery_count == 0:
            raise ValueError("no stock")

    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    spec = {
        "destination": f"topic://{topic.name}",
        "subscription_durability": "durable",
        "subscription_name": "s1",
        "client_id": topic.name,
        "redelivery_handling": "1:60000",
        "non_blocking_redelivery": True,
        "use_store": True,
    }
    topic.publish("bad", "good")
    with Activation(spec, handle, connection=topic.settings, store=store) as activation:
        until(lambda: activation.counts.parked == activation.counts.committed == 1)
        assert store.limbo.release(LimboSelection(), store.limbo.now()) == 1
        until(lambda: activation.counts.committed == 2)
    assert store.limbo.page() == store.attempts.page() == []
    store.close()
    name = f"topic://{topic.name}"
    assert sorted(seen) == [("bad", 0, name), ("bad", 1, name), ("good", 0, name)]
    assert topic.kept(client_id=f"{topic.name}-other") == ["bad", "good"]
    assert topic.kept() == []


def test_a_durable_subscription_keeps_a_plain_one_does_not(topic: Topic) -> None:
    """J52, J53."""
    topic.subscribed()
    topic.publish("1", "2")
    assert topic.kept() == ["1", "2"]
    assert topic.kept() == []
    plain = Listener(
        one_connection(
            listener_settings(ActivationSpec(destination=f"topic://{topic.name}")),
            functools.partial(connect, topic.settings),
        ),
        topic.note,
    )
    topic.publish("3")
    plain.run(idle_for=idle(1))
    assert topic.got == []
    plain.start()
    assert plain.consuming.wait(30)
    topic.publish("later")
    until(lambda: topic.got == ["later"])
    assert plain.stop(SOON)
    assert not plain.consuming.is_set()
    assert "3" not in topic.got


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "plain"])
def test_what_is_published_as_soon_as_it_is_up_comes(topic: Topic, durable: bool) -> None:
    for number in range(25):
        name = f"{topic.name}.{number}"
        fields: dict[str, Any] = {"destination": f"topic://{name}"}
        if durable:
            fields |= {
                "subscription_durability": "durable",
                "subscription_name": name,
                "client_id": name,
            }
        activation = Listener(
            one_connection(
                listener_settings(
                    ActivationSpec(**fields), ListenerContext(client_id=fields.get("client_id"))
                ),
                functools.partial(connect, replace(topic.settings, client_id=fields.get("client_id"))),
            ),
            topic.note,
        )
        activation.start()
        until(lambda activation=activation: activation.state is ActivationState.UP)
        topic.publish_to(name, str(number))
        until(lambda number=number: topic.got == list(map(str, range(number + 1))), within=10)
        assert activation.stop(SOON)
    topic.subscriber(durable_subscription_deletion=True).run(idle_for=idle(1))


def test_rolled_back_it_comes_again_with_its_count(topic: Topic) -> None:
    """J130, J204: some brokers don't flag what a durable subscription delivers again."""
    topic.subscribed()
    topic.publish("a")
    counts: list[int] = []

    def fail_twice(delivery: Delivery) -> None:
        counts.append(delivery.redelivery_count)
        if delivery.redelivery_count < 2:
            raise ValueError("not yet")

    topic.subscriber(fail_twice, durable_subscription_deletion=True).run(max_messages=1)
    assert counts == [0, 1, 2]


@pytest.mark.parametrize("suspended", [False, True])
def test_deleted_by_a_stop_in_good_order_only(topic: Topic, suspended: bool) -> None:
    """W33."""
    topic.subscribed()
    topic.publish("1", "2")
    broken_off = threading.Event()
    asked = topic.subscriber(lambda _: broken_off.set(), durable_subscription_deletion=True)
    asked.run(run_for=SOON, stop=broken_off)
    topic.publish("3")
    assert topic.kept()[-1] == "3", "broken off, it stays"
    asked = topic.subscriber(durable_subscription_deletion=True)
    asked.start()
    until(lambda: asked.state == "Up")
    if suspended:
        assert asked.drain()
    assert asked.stop(SOON)
    topic.publish("4")
    assert topic.kept() == []
    topic.subscriber(durable_subscription_deletion=True).run(idle_for=idle(1))


@pytest.mark.parametrize("by_a_stop", [True, False])
def test_a_deletion_waits_until_the_broker_has_heard_of_the_end_of_a_consumer(
    artemis: Broker, queue_name: str, *, by_a_stop: bool
) -> None:
    """Artemis refuses to delete what still has a consumer, and hears late of the end of one."""
    topic = Topic(artemis, queue_name)
    topic.subscribed()
    late = connect(replace(topic.settings, client_id=topic.name))
    late.consume(Subscription(destination=Destination.topic(topic.name), durable_name="s1"), lambda _: None)
    asked = topic.subscriber(durable_subscription_deletion=by_a_stop)
    hears = threading.Timer(0.5, late.close)
    if by_a_stop:
        asked.start()
        assert asked.consuming.wait(30)
        hears.start()
        assert asked.stop(SOON)
    else:
        hears.start()
        asked.delete_subscription()
    hears.join()
    topic.publish("1")
    assert topic.kept() == []
    topic.subscriber(durable_subscription_deletion=True).run(idle_for=idle(1))
    topic.close()


@pytest.mark.parametrize(
    ("fields", "client_id"),
    [
        ({"client_id": None}, "s1"),
        ({"client_id": None, "ejb_name": "Bean"}, "Bean"),
        ({"client_id": None, "ejb_name": "Bean", "jms_client_id": "jms"}, "jms"),
    ],
)
def test_the_client_id_names_the_subscription(topic: Topic, fields: dict[str, Any], client_id: str) -> None:
    """J49, W30: without one in the spec the other names are it."""
    topic.subscribed(client_id=client_id)
    topic.publish("1")
    assert topic.kept(durable_subscription_deletion=True, **fields) == ["1"]


def test_unique_client_ids_give_each_instance_a_copy(topic: Topic) -> None:
    """W31."""
    unique: dict[str, Any] = {"generate_unique_client_id": True, "durable_subscription_deletion": True}
    for instance in ("dag.task.0", "dag.task.1"):
        topic.subscribed(client_id=f"{topic.name}-{instance}")
    topic.publish("1")
    for instance in ("dag.task.0", "dag.task.1"):
        topic.subscriber(instance=instance, **unique).run(idle_for=idle(1))
    assert topic.got == ["1", "1"]


def test_a_second_instance_stands_by_or_shares(topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    """J204, W31: ActiveMQ refuses it while the first is there, the others let both have their share."""
    caplog.set_level(logging.INFO)
    topic.subscribed()
    first, second = topic.subscriber(), topic.subscriber()
    first.start()
    until(lambda: first.state == "Up")
    second.start()
    if topic.product == "activemq":
        until(lambda: "standing by" in caplog.text)
        assert second.state == "Connecting"
    else:
        until(lambda: second.state == "Up")
    topic.publish(*map(str, range(50)))
    until(lambda: len(topic.got) == 50)
    assert first.stop(SOON)
    until(lambda: second.state == "Up")
    topic.publish("50")
    until(lambda: len(topic.got) == 51)
    assert sorted(topic.got, key=int) == [str(number) for number in range(51)]
    assert second.stop(SOON)
    assert "connecting again" not in caplog.text
    topic.subscriber(durable_subscription_deletion=True).run(idle_for=idle(1))


def test_the_nodes_share_a_distributed_subscription(topic: Topic) -> None:
    """J204, J205, J209, J211: each message reaches one of them, once."""
    topic.subscribed("s")
    nodes = [topic.node(concurrency_mode="cc", endpoint_pool_max_size=3) for _ in range(2)]
    nodes[0].start()
    until(lambda: is_active(nodes[0]))
    nodes[1].start()
    until(lambda: nodes[1].runs[0].state == "Up")
    topic.publish(*map(str, range(300)))
    until(lambda: len(topic.got) >= 300)
    until(lambda: sum(node.counts.committed for node in nodes) == 300)
    until(lambda: sum(mover(node).counts.committed for node in nodes) == 300)
    assert Counter(topic.got) == Counter(str(number) for number in range(300))
    assert all(node.counts.committed for node in nodes), "both had a share"
    assert is_active(nodes[1]) is (topic.product != "activemq")
    assert list(nodes[0].statistics_by_part()) == ["node", "node-LOADBALQ"]
    for node in nodes:
        assert node.stop(SOON)


def test_a_standby_takes_over(topic: Topic) -> None:
    """J204."""
    topic.subscribed("s")
    nodes = [topic.node() for _ in range(2)]
    for node in nodes:
        node.start()
        until(lambda: any(is_active(node) for node in nodes))
    active, standby = nodes if is_active(nodes[0]) else reversed(nodes)
    topic.publish("1")
    until(lambda: len(topic.got) == 1)
    assert active.stop(SOON)
    topic.publish("2")
    until(lambda: len(topic.got) == 2)
    assert is_active(standby)
    assert topic.got == ["1", "2"]
    assert standby.stop(SOON)


def test_the_move_keeps_the_message(topic: Topic) -> None:
    """J211: what the topic's subscriber would have seen, and a first attempt."""
    seen: list[tuple[JmsMessage, int]] = []
    topic.subscribed("s")
    expires = int(time.time() * 1000) + 600_000
    before = int(time.time() * 1000) - 60_000
    topic.publish(
        JmsMessage.text(
            "größe",
            {"region": "eu", "n": 5, "a_b": "x:y\n"},
            type="order",
            correlation_id="c1",
            reply_to=Destination.queue("answers"),
            priority=7,
            persistent=True,
            expiration=expires,
        ),
        JmsMessage.bytes(b"\0\1\xff"),
    )
    node = topic.node(lambda delivery: seen.append((delivery.message, delivery.context.attempt)))
    node.run(max_messages=2)
    (text, first), (octets, second) = seen
    assert (first, second) == (1, 1)
    assert (text.body, octets.body) == ("größe", b"\0\1\xff")
    assert {name: text.properties[name] for name in ("region", "n", "a_b")} == {
        "region": "eu", "n": "5", "a_b": "x:y\n",
    }  # fmt: skip
    assert not [name for name in text.properties if "JMSJCA" in name]
    assert (text.type, text.correlation_id, text.priority) == ("order", "c1", 7)
    assert text.reply_to == Destination.queue("answers")
    assert (text.persistent, text.redelivered) == (True, False)
    assert text.expiration == expires
    assert text.destination == Destination.topic(topic.name)
    assert text.message_id != octets.message_id
    assert text.timestamp is not None
    assert before < text.timestamp < before + 120_000


def test_two_subscriptions_may_share_a_queue(topic: Topic) -> None:
    """The deduplication of one doesn't swallow what the other moves."""
    names = [f"jmsjca://?distribution=1&subscribername={name}&queue={topic.name}.q" for name in "ab"]
    clients = [f"{topic.name}-{name}" for name in "ab"]
    for name, client in zip("ab", clients, strict=True):
        topic.subscribed(name, client)
    topic.publish("1", "2")
    for name, client in zip(names, clients, strict=True):
        spec = ActivationSpec(
            destination=f"topic://{topic.name}", subscription_durability="durable", subscription_name=name
        )
        made = load_balancing(spec, ListenerContext(client_id=client))
        assert made is not None
        node = Listener(
            shared_subscription(
                made,
                functools.partial(connect, replace(topic.settings, client_id=client)),
                functools.partial(connect, topic.settings),
            ),
            topic.note,
        )
        node.run(idle_for=idle(1))
    assert sorted(topic.got) == ["1", "1", "2", "2"]
