"""The listener over each broker: what the unit tests show in memory must hold here too."""

from __future__ import annotations

import contextlib
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import stomp

from airflow_provider_jmsjca import CapabilityError, Delivery, Destination, JmsMessage, connect
from tests.broker.listening import activation, bodies, drained, send, until
from tests.dead_letters import original_of
from tests.memory_store import MemoryStore
from tests.pace import at_most
from tests.servers.broker import Broker
from tests.servers.proxy import TcpProxy

BEAT = timedelta(seconds=1)


def fail_always(_: Delivery) -> None:
    raise ValueError("no stock")


@pytest.mark.parametrize("mode", ["serial", "cc", "sync"])
def test_commit_rollback_and_what_is_sent(broker: Broker, queue_name: str, mode: str) -> None:
    """J1, J81, J82, J83, J123, J129, J130, P3, I1, I2."""
    settings = broker.settings()
    send(settings, queue_name, *map(str, range(60)))
    attempts: list[tuple[str, int]] = []

    def forward(delivery: Delivery) -> None:
        attempts.append((delivery.body, delivery.redelivery_count))
        delivery.send(f"queue://{queue_name}.out", JmsMessage.text(delivery.body))
        if int(delivery.body) % 10 == 5 and delivery.redelivery_count < 2:
            raise ValueError("not yet")

    counts = activation(settings, queue_name, forward, concurrency_mode=mode, endpoint_pool_max_size=3).run(
        max_messages=60
    )
    assert (counts.committed, counts.rolled_back, counts.delivered) == (60, 12, 72)
    assert sorted(attempts) == sorted(
        [(str(number), 0) for number in range(60)]
        + [(str(number), count) for number in range(5, 60, 10) for count in (1, 2)]
    )
    assert sorted(bodies(settings, f"{queue_name}.out"), key=int) == [str(number) for number in range(60)]
    assert bodies(settings, queue_name) == []


def test_a_dead_letter_says_where_it_comes_from(broker: Broker, queue_name: str) -> None:
    """J149, J154, J155, J156, J162, J163."""
    settings = broker.settings()
    send(settings, queue_name, "a", region="eu")

    def fail(_: Delivery) -> None:
        raise ValueError("no stock")

    counts = activation(settings, queue_name, fail, redelivery_handling="2:20; 3:move(queue:$.dlq)").run(
        max_messages=1
    )
    assert (counts.delivered, counts.moved) == (3, 1)
    (message,) = drained(settings, f"{queue_name}.dlq")
    letter = original_of(message)
    assert letter is not None
    assert (letter.message.body, letter.message.properties["region"]) == ("a", "eu")
    assert letter.origin.destination == Destination.queue(queue_name)
    assert letter.state.seen == 3
    assert letter.state.failure is not None
    assert (letter.state.failure.class_name, letter.state.failure.message) == ("ValueError", "no stock")
    assert bodies(settings, queue_name) == []


def test_a_long_delay_is_the_brokers_or_is_refused(broker: Broker, queue_name: str) -> None:
    """Each delay is really waited for: 5.5 s, of which nothing is held."""
    settings = broker.settings()
    send(settings, queue_name, "a", "b")
    got: list[tuple[str, int]] = []
    times: list[float] = []

    def fail_a_twice(delivery: Delivery) -> None:
        got.append((delivery.body, delivery.redelivery_count))
        times.append(time.monotonic())
        if delivery.body == "a" and delivery.redelivery_count < 2:
            raise ValueError("later")

    listener = activation(
        settings, queue_name, fail_a_twice, non_blocking_redelivery=True, redelivery_handling="1:5500"
    )
    connection = connect(settings)
    can = connection.capabilities.delayed_delivery
    connection.close()
    if not can:
        with pytest.raises(CapabilityError, match="delayed_delivery"):
            listener.run(run_for=timedelta(seconds=20))
        assert sorted(bodies(settings, queue_name)) == ["a", "b"]
        return
    counts = listener.run(max_messages=2)
    assert got == [("a", 0), ("b", 0), ("a", 1), ("a", 2)]
    assert times[2] - times[0] >= 5
    assert times[3] - times[2] >= 5
    assert (counts.parked, counts.committed) == (2, 2)


def test_batches_larger_than_any_page(broker: Broker, queue_name: str) -> None:
    """J183, J187, J189: ActiveMQ pages in 200 messages; a batch of 500 must not stall there."""
    settings = broker.settings()
    send(settings, queue_name, *map(str, range(1100)))
    batches: list[int] = []
    rolled_back = threading.Event()

    def handle(delivery: Delivery) -> None:
        if delivery.end_of_batch:
            batches.append(delivery.batch_index or 0)
            if not rolled_back.is_set():
                rolled_back.set()
                delivery.set_rollback_only()

    spec = {"batch_size": 500, "concurrency_mode": "sync", "endpoint_pool_max_size": 1}
    listener = activation(settings, queue_name, handle, batch_idle_timeout=1, **spec)
    counts = listener.run(max_messages=1100)
    assert batches == [500, 500, 500, 100]
    assert (counts.committed, counts.rolled_back) == (1100, 500)
    assert bodies(settings, queue_name) == []


def test_held_until_acknowledged(broker: Broker, queue_name: str) -> None:
    """J192, J198, W35: what isn't acknowledged at the stop goes back."""
    settings = broker.settings()
    send(settings, queue_name, "a", "b")
    held: list[Delivery] = []
    listener = activation(
        settings,
        queue_name,
        held.append,
        hold_until_ack=True,
        concurrency_mode="cc",
        endpoint_pool_max_size=2,
    )
    listener.start()
    until(lambda: len(held) == 2)
    held[0].acknowledge()
    until(lambda: listener.counts.committed == 1)
    assert listener.stop(timedelta(seconds=10))
    assert bodies(settings, queue_name) == [held[1].body]


@pytest.mark.parametrize("damage", ["cut", "freeze"])
def test_outage_of_the_network(broker: Broker, queue_name: str, damage: str) -> None:
    """J13, W24: noticed within 3 heart-beats; nothing is lost and the flow resumes."""
    got: list[str] = []
    with TcpProxy(broker.address()) as proxy:
        settings = broker.settings(hosts=(proxy.address,), heart_beat=BEAT, connect_timeout=BEAT)

        def handle(delivery: Delivery) -> None:
            got.append(delivery.body)
            if len(got) == 20:
                getattr(proxy, damage)()

        listener = activation(settings, queue_name, handle)
        listener.start()
        until(listener.consuming.is_set)  # messages may come before the broker has confirmed that
        send(broker.settings(), queue_name, *map(str, range(40)))
        until(lambda: len(got) >= 20)
        if damage == "freeze":
            began = time.monotonic()
            until(lambda: listener.state != "Up")
            assert time.monotonic() - began < 3 * BEAT.total_seconds() + at_most(0.5 * BEAT.total_seconds())
            proxy.thaw()
        until(lambda: listener.statistics().connections >= 2)
        until(lambda: set(got) == {str(number) for number in range(40)})
        listener.stop(timedelta(seconds=5))
    # What came again and was not its turn yet at the stop is there, and nothing else.
    assert set(bodies(broker.settings(), queue_name)) <= set(got)
    assert bodies(broker.settings(), queue_name) == []


def test_stop_in_a_hung_broker(broker: Broker, queue_name: str) -> None:
    """The deadline holds whatever the broker does."""
    send(broker.settings(), queue_name, "a")
    with TcpProxy(broker.address()) as proxy:
        settings = broker.settings(hosts=(proxy.address,), heart_beat=timedelta(seconds=20))

        def freeze(delivery: Delivery) -> None:
            proxy.freeze()
            delivery.send(f"queue://{queue_name}.out", JmsMessage.text("x"))

        listener = activation(settings, queue_name, freeze)
        listener.start()
        until(lambda: listener.counts.delivered == 1)
        began = time.monotonic()
        assert not listener.stop(timedelta(seconds=1))
        assert time.monotonic() - began < 1 + at_most(0.5)
        proxy.cut()
    until(lambda: bodies(broker.settings(), queue_name) == ["a"], within=10)


def test_killed_and_started_again(any_private_broker: Broker, queue_name: str) -> None:
    """J12, J13: start succeeds while it is down; the flow resumes."""
    any_private_broker.kill()
    settings = any_private_broker.settings(connect_timeout=timedelta(seconds=2))
    got: list[str] = []
    listener = activation(settings, queue_name, lambda delivery: got.append(delivery.body))
    listener.start()
    assert listener.state == "Connecting"
    any_private_broker.start()
    send(settings, queue_name, "a")
    until(lambda: got == ["a"])
    any_private_broker.kill()
    any_private_broker.start()
    send(settings, queue_name, "b")
    until(lambda: "b" in got)
    assert listener.stop(timedelta(seconds=10))


@pytest.mark.parametrize("mode", ["serial", "sync"])
def test_a_group_of_another_client_keeps_its_order(broker: Broker, queue_name: str, mode: str) -> None:
    """J81, J83: ActiveMQ Classic doesn't show to which group a message of another client belongs."""
    settings = broker.settings()
    (host,) = settings.hosts
    other = stomp.Connection12([host], vhost=settings.virtual_host or "/", auto_content_length=False)
    confirmed = threading.Event()

    class Confirmations(stomp.ConnectionListener):  # type: ignore[misc]  # stomp.py has no types
        def on_receipt(self, _: object) -> None:
            confirmed.set()

    other.set_listener("", Confirmations())
    other.connect(settings.username, settings.password, wait=True)
    headers = {"persistent": "true", "JMSXGroupID": "g"}
    to = f"/queue/{queue_name}"
    with contextlib.closing(connect(settings)) as ours:
        product = ours.broker.product
    if product == "artemis":
        to, headers["destination-type"] = queue_name, "ANYCAST"
    for number in range(30):
        other.send(to, str(number), headers=headers)
    other.send(to, "30", headers={**headers, "receipt": "last"})
    assert confirmed.wait(10)
    other.disconnect()
    done: list[int] = []

    def handle(delivery: Delivery) -> None:
        number = int(delivery.body)
        time.sleep(0.02 if number % 2 == 0 else 0)
        done.append(number)

    activation(settings, queue_name, handle, concurrency_mode=mode, endpoint_pool_max_size=4).run(
        max_messages=31, run_for=timedelta(seconds=20)
    )
    assert done == list(range(31))


@pytest.mark.parametrize(
    ("missing", "counted"),
    [(None, 0), ("property:order", 1), ("property:other", 0), ("digest", 1)],
    ids=["nothing", "property", "no_such_property", "digest"],
)
def test_attempts_at_messages_without_an_id_outlive_a_process_where_something_stands_for_it(
    rabbitmq: Broker, queue_name: str, missing: str | None, counted: int
) -> None:
    """J131: RabbitMQ gives a message no id, and its sender may set none."""
    settings = rabbitmq.settings()
    other = stomp.Connection12(list(settings.hosts), vhost=settings.virtual_host or "/")
    other.connect(settings.username, settings.password, wait=True)
    other.send(f"/queue/{queue_name}", "x", headers={"persistent": "true", "order": "1"})
    other.disconnect()
    store = MemoryStore()
    spec: dict[str, Any] = {"use_store": True, "redelivery_handling": "100:50"}
    if missing is not None:
        spec["message_id_fallback"] = missing
    first = activation(settings, queue_name, fail_always, store=store, **spec)
    first.start()
    until(lambda: first.counts.rolled_back >= 4)
    first.stop()
    assert len(store.attempts.page()) == counted
    attempts: list[int] = []
    second = activation(
        settings, queue_name, lambda each: attempts.append(each.context.attempt), store=store, **spec
    )
    second.run(max_messages=1)
    assert [each > 2 for each in attempts] == [counted > 0]  # without, the broker's flag makes it 2
    assert store.attempts.page() == []
