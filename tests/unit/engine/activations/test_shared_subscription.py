"""Distributed durable subscribers: J204-J211."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.backoff import Backoff
from airflow_provider_jmsjca.core.delivery.outage import ActivationState
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.redelivery import MoveKind, MoveTarget
from airflow_provider_jmsjca.engine.activations.listener import Listener
from airflow_provider_jmsjca.engine.activations.run import ListenerRun
from airflow_provider_jmsjca.engine.activations.shared_subscription import (
    LoadBalancing,
    load_balancing,
    shared_subscription,
)
from airflow_provider_jmsjca.engine.collecting.batch_spec import EndReason
from airflow_provider_jmsjca.engine.delivering.delivery import Delivery
from airflow_provider_jmsjca.engine.delivering.settings import ListenerContext, ListenerSettings
from airflow_provider_jmsjca.errors import AuthenticationError, CapabilityError
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import (
    Capabilities,
    Connection,
    ConnectionSettings,
    Outgoing,
    Subscription,
)
from airflow_provider_jmsjca.transports.memory import MemoryBroker as Broker
from airflow_provider_jmsjca.transports.memory import memory_broker as broker
from airflow_provider_jmsjca.transports.memory.connection import MemoryConnection
from tests.dead_letters import original_of
from tests.pace import at_most
from tests.unit.engine.brokers import LesserConnection
from tests.unit.engine.listening import until

TOPIC = Destination.topic("T1")
QUEUE = "LOADBALQ_T1_s"
SOON = timedelta(seconds=5)
AT_ONCE = Backoff(steps=(timedelta(milliseconds=20),))


def balancing(**fields: Any) -> LoadBalancing:
    given = {
        "name": "orders",
        "destination": "topic://T1",
        "subscription_durability": "durable",
        "subscription_name": "jmsjca://?distribution=1&subscribername=s",
    }
    made = load_balancing(ActivationSpec(**given | fields), ListenerContext(client_id="c1", principal="bob"))
    assert made is not None
    return LoadBalancing(
        topic_side=quick(made.topic_side), queue_side=quick(made.queue_side), queue=made.queue
    )


def mover(node: Listener) -> ListenerRun:
    """Return the run that moves messages from the subscription to the queue."""
    return node.runs[1]


def is_active(node: Listener) -> bool:
    """Return whether the node has the subscription."""
    return mover(node).state is ActivationState.UP


def quick(settings: ListenerSettings) -> ListenerSettings:
    outage = replace(settings.delivery.outage, backoff=AT_ONCE)
    return replace(settings, delivery=replace(settings.delivery, outage=outage))


class Cluster:
    """A broker, and the nodes around it."""

    def __init__(self, name: str) -> None:
        self.broker: Broker = broker(name)
        self.settings = ConnectionSettings(scheme="vm", hosts=((name, None),))
        self.got: list[str] = []
        self.nodes: list[Listener] = []

    def node(
        self,
        handler: Callable[[Delivery], object] = lambda _: None,
        *,
        connect_topic: Callable[[], Connection] | None = None,
        **fields: Any,
    ) -> Listener:
        def noting(delivery: Delivery) -> None:
            self.got.append(delivery.body)
            handler(delivery)

        made = Listener(
            shared_subscription(
                balancing(**fields),
                connect_topic or functools.partial(connect, replace(self.settings, client_id="c1")),
                functools.partial(connect, self.settings),
            ),
            noting,
        )
        self.nodes.append(made)
        return made

    def subscribed(self, selector: str | None = None) -> None:
        """Make the durable subscription: from now on it keeps what is published."""
        connection = connect(replace(self.settings, client_id="c1"))
        subscription = Subscription(destination=TOPIC, durable_name="s", selector=selector)
        connection.consume(subscription, lambda _: None)
        connection.close()

    def publish(self, *bodies: str, **properties: Any) -> None:
        connection = connect(self.settings)
        connection.send(
            Outgoing(destination=TOPIC, message=JmsMessage.text(body, properties, priority=7))
            for body in bodies
        )
        connection.close()


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    made = Cluster(f"cluster-{request.node.name}")
    yield made
    for node in made.nodes:
        node.stop(timedelta(seconds=1))


def test_the_two_sides_j207_j209_j211() -> None:
    made = balancing(
        concurrency_mode="cc", endpoint_pool_max_size=7, hold_until_ack=True, prefetch=3,
        message_selector="region = 'eu' AND who = '${subscribername}'", context_name="ctx",
        redelivery_handling="2:move(queue:$.dead)", jms_client_id="j",
    )  # fmt: skip
    topic, queue = made.topic_side, made.queue_side
    assert made.queue == Destination.queue(QUEUE)

    assert (topic.name, topic.client_id, topic.receivers, topic.transacted) == (
        "orders-LOADBALQ",
        "c1",
        1,
        True,
    )
    assert topic.subscription.destination == TOPIC
    assert topic.subscription.durable_name == "s"
    assert topic.subscription.selector == "region = 'eu' AND who = 's'"
    assert (topic.delivery.batch_size, topic.delivery.concurrency) == (10, 1)
    assert not topic.delivery.hold_until_ack
    assert topic.subscription.prefetch is not None
    assert topic.subscription.prefetch >= 10
    assert not [action for action in topic.delivery.handling.actions if "move" in str(action)]
    assert topic.delivery.dead_letter == (MoveTarget(MoveKind.QUEUE, "$.dead"),)

    assert (queue.name, queue.client_id, queue.context_name) == ("orders", None, "ctx")
    assert queue.subscription.destination == Destination.queue(QUEUE)
    assert (queue.subscription.durable_name, queue.subscription.selector) == (None, None)
    assert (queue.delivery.concurrency, queue.delivery.hold_until_ack) == (7, True)
    assert str(queue.delivery.handling) == "2:move(queue:$.dead)"
    assert queue.principal == topic.principal == "bob"


def test_a_durable_subscription_is_not_said_to_be_non_durable(caplog: pytest.LogCaptureFixture) -> None:
    balancing(name="prices that nobody else consumes")
    assert "no effect" not in caplog.text


def test_what_the_name_says_j206_j207() -> None:
    name = "jmsjca://?distribution=1&subscribername=s&queue=q&mbeanname=mover&batchsize=25"
    made = balancing(subscription_name=name)
    assert made.queue == made.queue_side.delivery.destination == Destination.queue("q")
    assert (made.topic_side.name, made.topic_side.delivery.batch_size) == ("mover", 25)


def test_archive_and_unsubscribed_are_the_queue_sides() -> None:
    """I26, I30: a message is archived once, and rejected where it would be handled."""
    made = balancing(
        archive_destination="done", unsubscribed_destination="others", message_selector="region = 'eu'"
    )
    topic, queue = made.topic_side, made.queue_side
    assert (topic.archive, topic.subscribes, topic.delivery.unsubscribed) == (None, None, None)
    assert topic.subscription.selector is None
    assert queue.archive == Destination.queue("done")
    assert queue.subscribes is not None
    assert queue.delivery.unsubscribed == Destination.queue("others")


def test_a_plain_name_is_not_balanced_j211() -> None:
    for name in ("s", "jmsjca://?distribution=0&subscribername=s"):
        spec = ActivationSpec(
            destination="topic://T1", subscription_durability="durable", subscription_name=name
        )
        assert load_balancing(spec) is None


def test_every_message_reaches_one_of_the_nodes_j204_j205(cluster: Cluster) -> None:
    """J25."""
    cluster.subscribed()
    first, second = cluster.node(), cluster.node()
    first.start()
    until(lambda: is_active(first))
    second.start()
    cluster.publish(*map(str, range(95)))
    until(lambda: len(cluster.got) == 95)
    until(lambda: first.counts.committed + second.counts.committed == 95)
    assert sorted(cluster.got, key=int) == [str(number) for number in range(95)]
    assert not is_active(second)
    assert (mover(first).counts.committed, mover(second).counts.committed) == (95, 0)
    statistics = first.statistics_by_part()
    assert list(statistics) == ["orders", "orders-LOADBALQ"]
    assert statistics["orders-LOADBALQ"].as_map()["DC"] == 95
    assert statistics["orders"].as_map()["DC"] == first.counts.committed


def test_the_other_node_takes_over_j204(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """It waits quietly, and consumes the queue meanwhile."""
    caplog.set_level(logging.INFO)
    cluster.subscribed()
    first, second = cluster.node(), cluster.node()
    first.start()
    until(lambda: is_active(first))
    second.start()
    until(lambda: "orders-LOADBALQ: vm://" in caplog.text)
    until(lambda: second.runs[0].state == "Up")
    assert mover(second).state == "Connecting"
    assert [each.statistics().holds_subscription for each in (first, second)] == [True, False]
    assert first.stop(SOON)
    until(lambda: is_active(second))
    cluster.publish("1", "2")
    until(lambda: second.counts.committed == 2)
    assert caplog.text.count("standing by") == 1
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_the_handler_sees_what_was_published_j211(cluster: Cluster) -> None:
    """The first attempt on the queue is attempt 1, however often the move was tried."""
    seen: list[tuple[JmsMessage, int]] = []
    cluster.subscribed()
    cluster.publish("a", n=5, region="eu")
    node = cluster.node(lambda delivery: seen.append((delivery.message, delivery.context.attempt)))
    node.run(max_messages=1)
    ((message, attempt),) = seen
    assert (message.body, message.properties, message.priority) == ("a", {"n": 5, "region": "eu"}, 7)
    assert (message.destination, message.redelivered, attempt) == (TOPIC, False, 1)
    assert message.message_id is not None
    assert message.timestamp is not None


def test_the_queue_sides_rules_are_the_specs(cluster: Cluster) -> None:
    """J128, J134, J149, J155, J159: attempts, and a dead letter that keeps its own id."""
    ids: list[str | None] = []

    def fail(delivery: Delivery) -> None:
        ids.append(delivery.message.message_id)
        raise ValueError("no stock")

    cluster.subscribed()
    cluster.publish("a")
    counts = cluster.node(fail, redelivery_handling="2:move(queue:$.dead)").run(max_messages=1)
    assert (counts.delivered, counts.moved) == (2, 1)
    (dead,) = cluster.broker.messages(f"{QUEUE}.dead")
    letter = original_of(dead)
    assert letter is not None
    assert [letter.message.message_id, letter.message.message_id] == ids
    assert letter.origin.destination == Destination.queue(QUEUE)


def test_a_parked_message_keeps_its_origin(cluster: Cluster) -> None:
    seen: list[tuple[Destination | None, str | None, int | None, int]] = []

    def fail_once(delivery: Delivery) -> None:
        message = delivery.message
        seen.append((message.destination, message.message_id, message.timestamp, delivery.redelivery_count))
        if not delivery.redelivery_count:
            raise ValueError("later")

    made = load_balancing(
        ActivationSpec(
            destination="topic://T1",
            subscription_durability="durable",
            subscription_name="jmsjca://?distribution=1&subscribername=s",
            redelivery_handling="1:60000",
        ),
        ListenerContext(client_id="c1", non_blocking_redelivery=True),
    )
    assert made is not None
    cluster.subscribed()
    cluster.publish("a")
    node = Listener(
        shared_subscription(
            made,
            functools.partial(connect, replace(cluster.settings, client_id="c1")),
            functools.partial(connect, cluster.settings),
        ),
        fail_once,
    )
    cluster.nodes.append(node)
    node.start()
    until(lambda: node.counts.parked == 1)
    cluster.broker.advance(timedelta(seconds=61))
    until(lambda: node.counts.committed == 1)
    first, again = seen
    assert first[:3] == again[:3]
    assert (first[0], first[3], again[3]) == (TOPIC, 0, 1)


def test_the_selector_is_applied_once(cluster: Cluster) -> None:
    """It may name what a copy doesn't keep."""
    selector = "JMSTimestamp < 9000000000000 AND region = 'eu'"
    cluster.subscribed(selector)
    node = cluster.node(message_selector=selector)
    node.start()
    until(lambda: is_active(node))
    cluster.publish("us", region="us")
    cluster.publish("eu", region="eu")
    until(lambda: node.counts.committed == 1)
    assert cluster.got == ["eu"]


def test_a_queue_that_refuses_keeps_the_messages_in_the_subscription(cluster: Cluster) -> None:
    """Nothing leaves the topic's side, and all of it is moved when the queue takes messages again."""
    cluster.subscribed()
    cluster.broker.forbid(Destination.queue(QUEUE))
    cluster.publish("1", "2")
    node = cluster.node()
    mover(node).begin()
    until(lambda: mover(node).counts.failed >= 1)
    assert mover(node).counts.settled == 0
    cluster.broker.permit(Destination.queue(QUEUE))
    until(lambda: mover(node).counts.committed == 2)
    assert [message.body for message in cluster.broker.messages(QUEUE)] == ["1", "2"]


class Narrow(LesserConnection):
    """Takes no text from the mover that begins with an x."""

    def unit(self) -> Any:
        return NarrowUnit(super().unit())


class NarrowUnit:
    def __init__(self, inner: Any) -> None:
        self.acknowledge, self.commit, self.rollback = inner.acknowledge, inner.commit, inner.rollback
        self._send = inner.send

    def send(self, outgoing: Outgoing) -> None:
        if outgoing.destination.name == QUEUE and str(outgoing.message.body).startswith("x"):
            raise CapabilityError("no text with x")
        self._send(outgoing)


@pytest.mark.parametrize("dead_letter", [None, "queue://dead"])
def test_what_can_be_neither_sent_on_nor_moved_blocks_nothing(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, dead_letter: str | None
) -> None:
    """It stays in the subscription, named in the log with the reason, and comes over the next connection."""
    cluster.subscribed()
    cluster.broker.forbid(Destination.queue("dead"))
    cluster.publish("1", "x", *map(str, range(2, 40)))
    how: dict[str, Any] = {} if dead_letter is None else {"dead_letter_destination": dead_letter}
    node = cluster.node(connect_topic=lambda: Narrow(cluster.broker, client_id="c1"), **how)
    mover(node).begin()
    until(lambda: mover(node).counts.settled == 39)
    wanted = [str(number) for number in range(1, 40)]
    assert sorted((message.body for message in cluster.broker.messages(QUEUE)), key=int) == wanted
    assert "can't be delivered or moved; it stays on the queue" in caplog.text
    assert "no text with x" in caplog.text
    delivered = mover(node).counts.delivered
    cluster.publish("40")
    until(lambda: mover(node).counts.settled == 40)
    assert mover(node).counts.delivered == delivered + 1, "it isn't tried again and again"
    assert node.stop(SOON)
    mended = cluster.node()
    mended.start()
    until(lambda: mover(mended).counts.settled == 1)
    until(lambda: "x" in cluster.got)


def test_what_cannot_be_sent_on_is_a_dead_letter(cluster: Cluster) -> None:
    """The rest of its batch is moved."""
    cluster.subscribed()
    cluster.publish("1", "x", "2")
    node = cluster.node(
        connect_topic=lambda: Narrow(cluster.broker, client_id="c1"),
        dead_letter_destination="queue://dead",
    )
    mover(node).begin()
    until(lambda: mover(node).counts.settled == 3)
    assert [message.body for message in cluster.broker.messages("dead")] == ["x"]
    assert [message.body for message in cluster.broker.messages(QUEUE)] == ["1", "2"]


def test_a_broker_that_dies_loses_nothing(cluster: Cluster) -> None:
    """J13."""
    cluster.subscribed()
    node = cluster.node()
    node.start()
    until(lambda: is_active(node))
    cluster.publish("1")
    until(lambda: node.counts.committed == 1)
    cluster.broker.kill()
    until(lambda: not is_active(node))
    cluster.broker.restart()
    until(lambda: is_active(node))
    until(lambda: mover(node).statistics().in_flight == 0)
    cluster.publish("2")
    until(lambda: node.counts.committed == 2)
    assert cluster.got == ["1", "2"]


def test_run_ends_and_says_why(cluster: Cluster) -> None:
    cluster.subscribed()
    cluster.publish("1", "2", "3")
    node = cluster.node()
    counts = node.run(max_messages=2)
    assert (counts.committed, node.ended_by) == (2, EndReason.COUNT)
    assert node.counts == counts
    assert mover(node).state == node.state == "Down"
    assert cluster.broker.connections == 0
    assert cluster.node().run(idle_for=timedelta(seconds=0.3)).committed == 1


def test_run_stops_when_told(cluster: Cluster) -> None:
    told = threading.Event()
    node = cluster.node(lambda _: told.set())
    cluster.subscribed()
    cluster.publish("1")
    node.run(run_for=timedelta(seconds=20), stop=told)
    assert (node.ended_by, node.stop_reason) == (EndReason.STOPPED, "told to stop")
    assert cluster.broker.connections == 0


def test_a_broker_without_durable_subscriptions_is_refused(cluster: Cluster) -> None:
    """J208: at the start, with the capability's name."""
    node = cluster.node(connect_topic=lambda: LesserConnection(cluster.broker, Capabilities(), "c1"))
    with pytest.raises(CapabilityError, match="'durable_subscription', which memory"):
        node.run(run_for=timedelta(seconds=20))
    assert cluster.broker.connections == 0


def test_a_topic_side_that_is_refused_ends_the_run(cluster: Cluster) -> None:
    def refuse() -> Connection:
        raise AuthenticationError("go away")

    with pytest.raises(AuthenticationError, match="go away"):
        cluster.node(connect_topic=refuse).run(run_for=timedelta(seconds=20))
    assert cluster.broker.connections == 0


@pytest.mark.parametrize("in_run", [False, True])
def test_both_sides_have_one_deadline(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, *, in_run: bool
) -> None:
    """A broker that doesn't take leave of them is left alone by both together, not one after the other."""
    leave, told = threading.Event(), threading.Event()
    close = MemoryConnection.close

    def frozen(connection: MemoryConnection) -> None:
        leave.wait(10)
        close(connection)

    cluster.subscribed()
    node = cluster.node()
    monkeypatch.setattr(MemoryConnection, "close", frozen)
    within = timedelta(seconds=0.5)
    running = threading.Thread(target=lambda: node.run(stop=told, within=within))
    (running if in_run else node).start()
    until(lambda: is_active(node) and node.runs[0].state == "Up")
    began = time.monotonic()
    if in_run:
        told.set()
        running.join()
    else:
        assert not node.stop(within)
    took = time.monotonic() - began
    leave.set()
    assert took < 0.5 + at_most(0.4)
