"""The adapter's guaranteed event delivery, over each broker: I15-I17, I39."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_jmsjca import Delivery, Destination, JmsMessage, Outgoing, connect
from tests.broker.listening import bodies, drained, idle, send
from tests.broker.test_listener_destinations import activation
from tests.internals.core import with_origin
from tests.servers.broker import Broker


def nothing(_: Delivery) -> None:
    """Handle a message by doing nothing."""


def test_container_managed_events(broker: Broker, queue_name: str) -> None:
    """I15, I16: what was handled stands in the source queue, and nowhere else."""
    settings = broker.settings()
    send(settings, queue_name, "a", "bad", "b")

    def fail_bad(delivery: Delivery) -> None:
        if delivery.body == "bad":
            raise ValueError("no stock")

    counts = activation(
        settings,
        fail_bad,
        destination=f"queue://{queue_name}",
        container_managed_events="jms",
        source_queue=f"queue://{queue_name}.source",
        redelivery_handling="1:move(queue:$.dlq)",
    ).run(idle_for=idle())
    assert (counts.committed, counts.moved) == (2, 1)
    assert [message.body for message in drained(settings, f"{queue_name}.source")] == ["a", "b"]
    assert [message.body for message in drained(settings, f"{queue_name}.dlq")] == ["bad"]
    assert bodies(settings, queue_name) == []


def test_duplicates_are_acknowledged(broker: Broker, queue_name: str) -> None:
    """I17: ten messages with two ids; the queue is empty afterwards."""
    settings, queue = broker.settings(), Destination.queue(queue_name)
    connection = connect(settings)
    for number in range(10):
        original = replace(JmsMessage.text(str(number)), message_id=f"ID:{number % 2}")
        connection.send([Outgoing(destination=queue, message=with_origin(original, original, queue))])
    connection.close()
    got: list[str] = []
    counts = activation(
        settings,
        lambda delivery: got.append(delivery.body),
        destination=str(queue),
        balanced=True,
        duplicate_event_elimination=True,
    ).run(idle_for=idle())
    assert got == ["0", "1"]
    assert (counts.committed, counts.repeated) == (2, 8)
    assert bodies(settings, queue_name) == []


def test_answers_find_their_way(broker: Broker, queue_name: str) -> None:
    """I39: whoever gets the request knows where its answer goes."""
    settings = broker.settings()
    send(settings, queue_name, "a")
    activation(
        settings,
        lambda delivery: delivery.send(f"queue://{queue_name}.stock", JmsMessage.text("how many?")),
        destination=f"queue://{queue_name}",
        reply_to_destination=f"queue://{queue_name}.answers",
    ).run(max_messages=1)
    (request,) = drained(settings, f"{queue_name}.stock")
    assert request.reply_to == Destination.queue(f"{queue_name}.answers")
