"""Options of a destination, as real brokers take them: J91."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from airflow_provider_jmsjca import (
    ActivationSpec,
    ConfigurationError,
    Delivery,
    Destination,
    DestinationKind,
    JmsConnection,
    JmsMessage,
    Outgoing,
    connect,
)
from tests.internals.engine import DelayedMessages, LimboSender, Listener, listener_settings, one_connection
from tests.memory_store import MemoryLimbo
from tests.servers.broker import Broker


def test_a_queue_of_rabbitmq_is_declared_as_the_destination_says_j91(
    rabbitmq: Broker, queue_name: str
) -> None:
    quorum = Destination(DestinationKind.QUEUE, queue_name, (("x-queue-type", "quorum"),))
    with JmsConnection(connect(rabbitmq.settings())) as connection:
        with connection.session() as session:
            session.send(quorum, JmsMessage.text("x"))
        with connection.session(transacted=True) as session:
            assert session.receive(quorum, timeout=10) is not None
            session.rollback()
            again = session.receive(quorum, timeout=10)
            assert again is not None
            assert again.delivery_count == 2  # only quorum queues count
            session.commit()


@pytest.mark.parametrize(
    "spec",
    [
        {"redelivery_handling": "1:move(queue:jmsjca://?name=$.dlq&x-queue-type=quorum)"},
        {"max_attempts": 1, "dead_letter_destination": "jmsjca://?name=queue://$.dlq&x-queue-type=quorum"},
        {
            "non_retryable": ["ValueError"],
            "dead_letter_destination": "jmsjca://?name=$.dlq&x-queue-type=quorum",
        },
    ],
    ids=["handling", "attempts", "poison"],
)
def test_dead_letters_go_to_a_quorum_queue_of_rabbitmq_j91(
    rabbitmq: Broker, queue_name: str, spec: dict[str, Any]
) -> None:
    connect_again = functools.partial(connect, rabbitmq.settings())
    dead = Destination(DestinationKind.QUEUE, f"{queue_name}.dlq", (("x-queue-type", "quorum"),))
    done = Destination(DestinationKind.QUEUE, f"{queue_name}.done", (("x-queue-type", "quorum"),))

    def handle(delivery: Delivery) -> None:
        if delivery.body == "bad":
            raise ValueError(delivery.body)

    with JmsConnection(connect_again()) as connection, connection.session() as session:
        for queue in (dead, done):  # they are there before, as the page on listening says
            session.send(queue, JmsMessage.text("first"))
        for body in ("bad", "good"):
            session.send(queue_name, JmsMessage.text(body))
        listener = Listener(
            one_connection(
                listener_settings(
                    ActivationSpec(
                        destination=f"queue://{queue_name}",
                        archive_destination=f"jmsjca://?name={queue_name}.done&x-queue-type=quorum",
                        **spec,
                    )
                ),
                connect_again,
            ),
            handle,
        )
        counts = listener.run(max_messages=2)
        assert (counts.committed, counts.moved) == (1, 1)
        for queue, body in ((dead, "bad"), (done, "good")):
            taken = [session.receive(queue, timeout=10) for _ in range(2)]
            assert [message and message.body for message in taken] == ["first", body]


def test_an_exclusive_consumer_of_activemq_takes_all_j91(activemq: Broker, queue_name: str) -> None:
    exclusive = Destination(DestinationKind.QUEUE, queue_name, (("activemq.exclusive", "true"),))
    with JmsConnection(connect(activemq.settings())) as connection:
        first, second = connection.session(prefetch=1), connection.session(prefetch=1)
        assert first.receive(exclusive, timeout=0) is None
        assert second.receive(exclusive, timeout=0) is None
        for number in range(6):
            first.send(exclusive, JmsMessage.text(str(number)))
        taken = [first.receive(exclusive, timeout=10) for _ in range(6)]
        assert [message and message.body for message in taken] == [str(number) for number in range(6)]
        assert "activemq.exclusive" not in (taken[0].properties if taken[0] else {})
        assert second.receive(exclusive, timeout=0) is None


@pytest.mark.parametrize("broker", ["activemq", "artemis", "rabbitmq"], indirect=True)
def test_an_option_the_broker_does_not_know_is_refused_j91(broker: Broker, queue_name: str) -> None:
    strange = Destination(DestinationKind.QUEUE, queue_name, (("colour", "red"),))
    with JmsConnection(connect(broker.settings())) as connection, connection.session() as session:
        with pytest.raises(ConfigurationError, match="colour is not an option of a destination on"):
            session.receive(strange, timeout=0)
        with pytest.raises(ConfigurationError, match="colour is not an option of a destination on"):
            session.send(strange, JmsMessage.text("x"))


def test_a_delayed_message_goes_to_the_queue_as_its_destination_declares_it_j91(
    rabbitmq: Broker, queue_name: str
) -> None:
    """RabbitMQ refuses a send that declares an existing queue in another way."""
    quorum = Destination(DestinationKind.QUEUE, queue_name, (("x-queue-type", "quorum"),))
    limbo, connects = MemoryLimbo(), functools.partial(connect, rabbitmq.settings())
    with JmsConnection(connects()) as connection, connection.session() as session:
        assert session.receive(quorum, timeout=0.1) is None  # it declares the queue
        shelf = DelayedMessages(limbo=limbo, activation="a", jms_conn_id="b", most_tries=1)
        shelf.put([shelf.entry_of(Outgoing(destination=quorum, message=JmsMessage.text("x")))])
        done = LimboSender(limbo, lambda _: JmsConnection(connects())).send_due()
        assert (done.sent, done.failed) == (1, 0)
        found = session.receive(quorum, timeout=20)
    assert found is not None
    assert found.body == "x"
