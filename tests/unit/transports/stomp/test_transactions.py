"""Transactions begun ahead."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.transports.base import Outgoing, Received, Subscription
from airflow_provider_jmsjca.transports.stomp.consumer import StompConsumer
from airflow_provider_jmsjca.transports.stomp.wire.wire import Wire
from tests.unit.transports.stomp.test_connection import (
    QUEUE,
    Pair,
    pair,  # noqa: F401 - a fixture
    until,
)

ACTIVEMQ = b"ActiveMQ/6.3.1"
SENT = Outgoing(destination=QUEUE, message=JmsMessage.text("x"))


def _meanwhile(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, step: Callable[[], object]
) -> list[threading.Thread]:
    """Begin a step in another thread when the method is called next, before it does anything."""
    original, threads = getattr(owner, name), list[threading.Thread]()

    def method(*args: Any) -> Any:
        monkeypatch.setattr(owner, name, original)
        threads.append(threading.Thread(target=step))
        threads[0].start()
        threads[0].join(0.3)  # by then it is over, or waits
        return original(*args)

    monkeypatch.setattr(owner, name, method)
    return threads


def _agree_to_commit(ends: Pair) -> dict[str, str]:
    """Answer the question and COMMIT; return the headers of the question."""
    command, asked = ends.peer.hear()
    assert command == "BEGIN"
    ends.peer.receipt(asked)
    command, commit = ends.peer.hear()
    assert command == "COMMIT"
    ends.peer.receipt(commit)
    return asked


def test_the_question_before_a_commit_begins_the_next_transaction(pair: Pair) -> None:  # noqa: F811
    """ABORT of an empty one would cost ActiveMQ as much as fifty messages or more."""
    connection = pair.up(ACTIVEMQ)
    unit = connection.unit()
    unit.send(SENT)
    thread, raised = pair.in_background(unit.commit)
    assert [pair.peer.hear()[0] for _ in range(2)] == ["BEGIN", "SEND"]
    asked = _agree_to_commit(pair)
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


def test_a_commit_does_not_overtake_what_another_thread_is_sending(
    pair: Pair,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind COMMIT it would be lost, though `send` said nothing."""
    connection = pair.up(ACTIVEMQ)
    unit = connection.unit()
    unit.send(SENT)
    threads = _meanwhile(monkeypatch, Wire, "append", unit.commit)
    unit.send(SENT)
    assert [pair.peer.hear()[0] for _ in range(3)] == ["BEGIN", "SEND", "SEND"]
    _agree_to_commit(pair)
    threads[0].join(5)
    assert not threads[0].is_alive()


def test_a_rollback_gives_back_what_another_thread_is_acknowledging(
    pair: Pair,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it would stay reserved for a unit that is over, and no other could settle it."""
    connection, inbox = pair.up(ACTIVEMQ), list[Received]()
    thread, _ = pair.in_background(
        lambda: connection.consume(Subscription(destination=QUEUE, prefetch=10), inbox.append)
    )
    _, headers = pair.peer.hear()
    pair.peer.receipt(headers)
    thread.join(5)
    pair.peer.say(f"MESSAGE\nsubscription:{headers['id']}\nack:a1\n\nx\0\n".encode())
    until(lambda: len(inbox) == 1)
    unit = connection.unit()
    threads = _meanwhile(monkeypatch, StompConsumer, "claim", unit.rollback)
    unit.acknowledge(inbox[0])
    threads[0].join(5)
    another = connection.unit()
    another.acknowledge(inbox[0])
    assert list(another._received.values()) == [[inbox[0]]]


def _moved_under(ends: Pair, subscription: Subscription, number: str) -> str | None:
    """Move a message with Artemis; return the id that the copy is told from others by."""
    connection, inbox = ends.connection, list[Received]()
    thread, _ = ends.in_background(connection.consume, subscription, inbox.append)
    _, headers = ends.peer.hear()
    ends.peer.receipt(headers)
    thread.join(5)
    ends.peer.say(
        f"MESSAGE\nsubscription:{headers['id']}\nmessage-id:{number}\nack:{number}\n\nx\0\n".encode()
    )
    until(lambda: inbox)
    unit = connection.unit()
    unit.acknowledge(inbox[0])
    unit.send(SENT)
    thread, raised = ends.in_background(unit.commit)
    command, sent = ends.peer.hear()
    assert command == "SEND"
    ends.peer.receipt(sent)
    command, headers = ends.peer.hear()
    assert command == "ACK"
    ends.peer.receipt(headers)
    thread.join(5)
    assert not raised
    return sent.get("_AMQ_DUPL_ID")


def test_one_id_in_several_places_is_several_messages_for_artemis(pair: Pair) -> None:  # noqa: F811
    """It drops a send under an id it knows: that must be the same message come again, and none beside it."""
    pair.up(b"ActiveMQ-Artemis/2.44.0 ActiveMQ Artemis Messaging Engine", client_id="c1")
    news, other = Destination.topic("news"), Destination.queue("other")
    queue = Subscription(destination=QUEUE)
    durable = [Subscription(destination=news, durable_name=name) for name in ("a", "b")]
    identifiers = [
        _moved_under(pair, each, "7") for each in (queue, Subscription(destination=other), *durable)
    ]
    assert None not in identifiers
    assert len(set(identifiers)) == 4
    assert _moved_under(pair, queue, "7") == identifiers[0]
    assert _moved_under(pair, Subscription(destination=news), "7") is None  # it never comes again
