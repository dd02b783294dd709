"""Transactions begun ahead."""

from __future__ import annotations

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.transports.base import Outgoing
from tests.unit.transports.stomp.test_connection import (
    QUEUE,
    Pair,
    pair,  # noqa: F401 - a fixture
)

ACTIVEMQ = b"ActiveMQ/6.3.1"
SENT = Outgoing(destination=QUEUE, message=JmsMessage.text("x"))


def test_the_question_before_a_commit_begins_the_next_transaction(pair: Pair) -> None:  # noqa: F811
    """ABORT of an empty one would cost ActiveMQ as much as fifty messages or more."""
    connection = pair.up(ACTIVEMQ)
    unit = connection.unit()
    unit.send(SENT)
    thread, raised = pair.in_background(unit.commit)
    assert [pair.peer.hear()[0] for _ in range(2)] == ["BEGIN", "SEND"]
    command, asked = pair.peer.hear()
    assert command == "BEGIN"
    pair.peer.receipt(asked)
    command, commit = pair.peer.hear()
    assert command == "COMMIT"
    pair.peer.receipt(commit)
    thread.join(5)
    assert not raised
    for _ in range(2):  # one in which nothing happened is there for the next
        connection.unit().rollback()
    connection.unit().commit()
    unit = connection.unit()
    unit.send(SENT)
    unit.rollback()
    assert pair.peer.hear()[1]["transaction"] == asked["transaction"]
    assert pair.peer.hear() == ("ABORT", {"transaction": asked["transaction"]})
    unit = connection.unit()
    unit.send(SENT)
    unit.rollback()
    assert [pair.peer.hear()[0] for _ in range(3)] == ["BEGIN", "SEND", "ABORT"]


def test_questions_alone_leave_no_more_than_one_transaction(pair: Pair) -> None:  # noqa: F811
    connection = pair.up(ACTIVEMQ)
    begun = set[str]()
    for _ in range(4):
        thread, _ = pair.in_background(connection.synchronize)
        command, asked = pair.peer.hear()
        assert command == ("ABORT" if begun else "BEGIN")
        begun ^= {asked["transaction"]}
        pair.peer.receipt(asked)
        thread.join(5)
    assert not begun
