"""Acknowledgements that travel together with COMMIT, and what becomes of those that the broker refuses."""

from __future__ import annotations

import pytest

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import ConnectionLostError, InDoubtError, PermanentBrokerError
from airflow_provider_jmsjca.transports.base import Outgoing, Received, Subscription
from airflow_provider_jmsjca.transports.stomp.connection import StompConnection
from tests.unit.transports.stomp.test_connection import (
    QUEUE,
    Pair,
    pair,  # noqa: F401 - a fixture
    until,
)

ACTIVEMQ = b"ActiveMQ/6.3.1"
FORGOTTEN = b"ERROR\nmessage:Unexpected ACK received for message-id [a0]\n\n\0\n"
SENT = Outgoing(destination=QUEUE, message=JmsMessage.text("x"))


def _received(ends: Pair, count: int, prefetch: int = 100) -> tuple[StompConnection, list[Received]]:
    connection, inbox = ends.up(ACTIVEMQ), list[Received]()
    subscription = Subscription(destination=QUEUE, prefetch=prefetch)
    thread, _ = ends.in_background(lambda: connection.consume(subscription, inbox.append))
    _, headers = ends.peer.hear()
    ends.peer.receipt(headers)
    thread.join(5)
    for number in range(count):
        ends.peer.say(f"MESSAGE\nsubscription:{headers['id']}\nack:a{number}\n\nx\0\n".encode())
    until(lambda: len(inbox) == count)
    return connection, inbox


def _hear(ends: Pair, *commands: str) -> dict[str, str]:
    """Hear these frames; return the headers of the last."""
    heard = [ends.peer.hear() for _ in commands]
    assert [command for command, _ in heard] == list(commands)
    return heard[-1][1]


def test_a_message_that_is_forgotten_at_commit_leaves_the_unit_in_doubt(pair: Pair) -> None:  # noqa: F811
    """The broker reports the acknowledgement, and commits the rest all the same."""
    connection, inbox = _received(pair, 1)
    unit = connection.unit()
    unit.acknowledge(inbox[0])
    thread, raised = pair.in_background(unit.commit)
    commit = _hear(pair, "BEGIN", "ACK", "COMMIT")
    pair.peer.say(FORGOTTEN)
    pair.peer.receipt(commit)
    thread.join(5)
    assert [type(each) for each in raised] == [InDoubtError]
    assert not connection.link.is_up, "the broker holds the message until the connection ends"


def test_other_errors_during_a_commit_are_nothing_to_it(
    pair: Pair,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    connection, inbox = _received(pair, 1)
    unit = connection.unit()
    unit.acknowledge(inbox[0])
    thread, raised = pair.in_background(unit.commit)
    commit = _hear(pair, "BEGIN", "ACK", "COMMIT")
    pair.peer.say(b"ERROR\nmessage:something else\n\n\0\n")
    pair.peer.receipt(commit)
    thread.join(5)
    assert not raised
    assert connection.link.is_up
    assert "something else" in caplog.text


def test_after_a_refused_commit_acknowledgements_are_made_sure_of(pair: Pair) -> None:  # noqa: F811
    """ActiveMQ forgets what a COMMIT acknowledges also if it refuses that."""
    connection, inbox = _received(pair, 1)
    unit = connection.unit()
    unit.acknowledge(inbox[0])
    thread, raised = pair.in_background(unit.commit)
    commit = _hear(pair, "BEGIN", "ACK", "COMMIT")  # and no ABORT: ActiveMQ knows the transaction no more
    pair.peer.say(f"ERROR\nreceipt-id:{commit['receipt']}\nmessage:disk full\n\n\0\n".encode())
    thread.join(5)
    assert [type(each) for each in raised] == [PermanentBrokerError]
    again = connection.unit()
    again.acknowledge(inbox[0])
    again.send(SENT)
    thread, raised = pair.in_background(again.commit)
    asked = _hear(pair, "BEGIN", "ACK", "SEND", "BEGIN")
    pair.peer.say(FORGOTTEN)
    pair.peer.receipt(asked)
    thread.join(5)
    assert [type(each) for each in raised] == [ConnectionLostError], "nothing of it happened"
    assert not connection.link.is_up


def test_a_rollback_beside_a_commit_leaves_the_other_message_alone(pair: Pair) -> None:  # noqa: F811
    connection, inbox = _received(pair, 2)
    first, second = connection.unit(), connection.unit()
    first.acknowledge(inbox[0])
    second.acknowledge(inbox[1])
    first.rollback()
    thread, raised = pair.in_background(second.commit)
    heard = [pair.peer.hear() for _ in range(5)]
    assert [command for command, _ in heard] == ["BEGIN", "BEGIN", "ABORT", "ACK", "COMMIT"]
    assert heard[3][1]["id"] == "a1"
    pair.peer.receipt(heard[4][1])
    thread.join(5)
    assert not raised
    inbox[0].consumer.acknowledge([inbox[0]])
    assert pair.peer.hear() == ("ACK", {"id": "a0"})


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_room_for_late_ones_is_given_back(pair: Pair, ending: str) -> None:  # noqa: F811
    """All but one of the prefetch wait for COMMIT; the last goes out at once, or nothing would follow."""
    connection, inbox = _received(pair, 6, prefetch=3)
    unit = connection.unit()
    for each in inbox[:3]:
        unit.acknowledge(each)
    assert _hear(pair, "BEGIN", "ACK")["id"] == "a2"
    if ending == "commit":
        thread, raised = pair.in_background(unit.commit)
        pair.peer.receipt(_hear(pair, "BEGIN"))
        pair.peer.receipt(_hear(pair, "ACK", "ACK", "COMMIT"))
        thread.join(5)
        assert not raised
        unit = connection.unit()
        for each in inbox[3:5]:
            unit.acknowledge(each)
        unit.send(SENT)
        thread, _ = pair.in_background(unit.commit)
        _hear(pair, "SEND", "BEGIN")
        connection.link.give_up(ConnectionLostError("over"))
        thread.join(5)
    else:
        unit.rollback()
        _hear(pair, "ABORT")
        unit = connection.unit()
        unit.acknowledge(inbox[3])
        unit.send(SENT)
        unit.rollback()
        _hear(pair, "BEGIN", "ACK", "SEND", "ABORT")  # an early one was undone: from now on all are early
