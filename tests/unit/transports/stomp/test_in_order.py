"""Frames of a consumer that promises to settle in order."""

from __future__ import annotations

import threading

import pytest

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.transports.base import Consumer, Received, Subscription
from airflow_provider_jmsjca.transports.stomp.connection import StompConnection
from airflow_provider_jmsjca.transports.stomp.dialects.dialect import Cumulative
from airflow_provider_jmsjca.transports.stomp.dialects.generic import GenericDialect
from tests.unit.transports.stomp.test_connection import (
    QUEUE,
    Pair,
    pair,  # noqa: F401 - a fixture
    until,
)

RABBIT = b"RabbitMQ/3.10.8"


def _received(
    ends: Pair, server: bytes, count: int, *, alone: bool = False
) -> tuple[StompConnection, Consumer, list[Received]]:
    connection, inbox, consumers = ends.up(server), list[Received](), list[Consumer]()
    subscription = Subscription(destination=QUEUE, prefetch=100, in_order=True, alone=alone)
    thread, _ = ends.in_background(lambda: consumers.append(connection.consume(subscription, inbox.append)))
    _, headers = ends.peer.hear()
    assert headers["ack"] == ("client" if alone or server.startswith(b"ActiveMQ/") else "client-individual")
    ends.peer.receipt(headers)
    thread.join(5)
    for number in range(count):
        ends.peer.say(f"MESSAGE\nsubscription:{headers['id']}\nack:a{number}\n\nx\0\n".encode())
    until(lambda: len(inbox) == count)
    return connection, consumers[0], inbox


def _synchronize(ends: Pair) -> None:
    command, headers = ends.peer.hear()
    assert command == "BEGIN"
    ends.peer.receipt(headers)


def test_one_frame_acknowledges_all_up_to_a_message(pair: Pair) -> None:  # noqa: F811 - the fixture
    _, consumer, inbox = _received(pair, b"ActiveMQ/6.3.1", 3)
    consumer.acknowledge(inbox[:2])
    consumer.acknowledge(inbox[:2])
    assert pair.peer.hear() == ("ACK", {"id": "a1"})
    consumer.acknowledge(inbox[2:])
    assert pair.peer.hear() == ("ACK", {"id": "a2"})


@pytest.mark.parametrize("prefetch", [1, 2, 3])
def test_what_waits_for_a_place_is_handed_out_when_one_is_free(
    pair: Pair,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    prefetch: int,
) -> None:
    """A broker that bounds nothing and knows cumulative acknowledgements sends more than was asked for."""
    monkeypatch.setattr(GenericDialect, "cumulative", Cumulative.SUBSCRIPTION)
    connection, inbox, consumers = pair.up(b"Toy/1.0"), list[Received](), list[Consumer]()
    subscription = Subscription(destination=QUEUE, prefetch=prefetch, in_order=True)
    thread, _ = pair.in_background(lambda: consumers.append(connection.consume(subscription, inbox.append)))
    _, headers = pair.peer.hear()
    pair.peer.receipt(headers)
    thread.join(5)
    for number in range(8):
        pair.peer.say(f"MESSAGE\nsubscription:{headers['id']}\nack:a{number}\n\nx\0\n".encode())
    for settled in range(8):
        until(lambda settled=settled: len(inbox) == min(settled + prefetch, 8))  # type: ignore[misc]
        consumers[0].acknowledge(inbox[settled : settled + 1])


def test_each_is_acknowledged_where_the_broker_knows_no_more(pair: Pair) -> None:  # noqa: F811
    _, consumer, inbox = _received(pair, RABBIT, 2)
    consumer.acknowledge(inbox)
    assert [pair.peer.hear() for _ in inbox] == [("ACK", {"id": "a0"}), ("ACK", {"id": "a1"})]


def test_what_is_settled_early_waits_for_those_before_it(pair: Pair) -> None:  # noqa: F811
    connection, consumer, inbox = _received(pair, b"ActiveMQ/6.3.1", 3)
    consumer.acknowledge([inbox[1]])
    thread, _ = pair.in_background(connection.synchronize)
    _synchronize(pair)
    thread.join(5)
    consumer.acknowledge([inbox[0]])
    assert pair.peer.hear() == ("ACK", {"id": "a1"})


def test_a_unit_acknowledges_right_before_its_commit(pair: Pair) -> None:  # noqa: F811
    connection, consumer, inbox = _received(pair, b"ActiveMQ/6.3.1", 3)
    unit = connection.unit()
    unit.acknowledge(inbox[0])
    unit.acknowledge(inbox[1])
    thread, raised = pair.in_background(unit.commit)
    command, headers = pair.peer.hear()
    assert command == "BEGIN"
    assert pair.peer.hear() == ("ACK", {"id": "a1", "transaction": headers["transaction"]})
    command, commit = pair.peer.hear()
    assert (command, commit["transaction"]) == ("COMMIT", headers["transaction"])
    pair.peer.receipt(commit)
    thread.join(5)
    assert not raised
    consumer.acknowledge(inbox)
    assert pair.peer.hear() == ("ACK", {"id": "a2"})


def test_a_unit_never_takes_along_what_is_unsettled(pair: Pair) -> None:  # noqa: F811
    connection, consumer, inbox = _received(pair, b"ActiveMQ/6.3.1", 2)
    unit = connection.unit()
    unit.acknowledge(inbox[1])
    with pytest.raises(ConfigurationError, match="must settle in order"):
        unit.commit()
    assert [pair.peer.hear()[0] for _ in range(2)] == ["BEGIN", "ABORT"]
    consumer.acknowledge(inbox)
    assert pair.peer.hear() == ("ACK", {"id": "a1"})


def test_alone_on_its_connection_one_frame_is_enough_for_rabbitmq(pair: Pair) -> None:  # noqa: F811
    """Its cumulative acknowledgements count for a whole connection."""
    connection, consumer, inbox = _received(pair, RABBIT, 3, alone=True)
    consumer.acknowledge(inbox[:2])
    assert pair.peer.hear() == ("ACK", {"id": "a1"})
    with pytest.raises(ConfigurationError, match="one consumer"):
        connection.consume(Subscription(destination=QUEUE), inbox.append)


def test_a_unit_without_transaction_acknowledges_with_one_frame(pair: Pair) -> None:  # noqa: F811
    connection, _, inbox = _received(pair, RABBIT, 3, alone=True)
    unit = connection.unit()
    unit.acknowledge(inbox[1])
    unit.acknowledge(inbox[0])
    thread, raised = pair.in_background(unit.commit)
    command, headers = pair.peer.hear()
    assert (command, headers["id"]) == ("ACK", "a1")
    pair.peer.receipt(headers)
    thread.join(5)
    assert not raised


def test_a_unit_without_transaction_never_takes_along_what_is_unsettled(pair: Pair) -> None:  # noqa: F811
    connection, consumer, inbox = _received(pair, RABBIT, 2, alone=True)
    unit = connection.unit()
    unit.acknowledge(inbox[1])
    with pytest.raises(ConfigurationError, match="must settle in order"):
        unit.commit()
    consumer.acknowledge(inbox)
    assert pair.peer.hear() == ("ACK", {"id": "a1"})


@pytest.mark.parametrize(
    ("server", "alone", "acknowledgements"),
    [
        # Each names the last of those it stands for: in a transaction, a4 does for a3 too.
        (b"ActiveMQ/6.3.1", False, ["a0", "a1", "a4", "a5"]),
        (RABBIT, True, ["a0", "a1", "a3", "a4", "a5"]),
    ],
)
def test_what_is_settled_early_stands_in_the_way_of_no_unit(
    pair: Pair,  # noqa: F811
    server: bytes,
    acknowledgements: list[str],
    *,
    alone: bool,
) -> None:
    connection, consumer, inbox = _received(pair, server, 6, alone=alone)
    heard: list[str] = []

    def answer() -> None:
        while len(heard) < len(acknowledgements):
            command, headers = pair.peer.hear()
            if command == "ACK":
                heard.append(headers["id"])
            if "receipt" in headers:
                pair.peer.receipt(headers)

    answering = threading.Thread(target=answer, daemon=True)
    answering.start()
    consumer.acknowledge([inbox[1], inbox[3]])
    for numbers in ((0,), (2, 4)):
        unit = connection.unit()
        for number in numbers:
            unit.acknowledge(inbox[number])
        unit.commit()
    consumer.acknowledge([inbox[5]])
    answering.join(5)
    assert heard == acknowledgements
