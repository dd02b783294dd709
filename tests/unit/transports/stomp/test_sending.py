"""Bulks of messages on the wire: what is on its way while the broker works, and what a failure leaves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import ClassVar

import pytest

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import (
    CapabilityError,
    ConnectionLostError,
    InDoubtError,
    JmsError,
    PermanentBrokerError,
    TransientBrokerError,
)
from airflow_provider_jmsjca.transports.base import Outgoing, Subscription
from airflow_provider_jmsjca.transports.stomp.connection import StompConnection
from airflow_provider_jmsjca.transports.stomp.link.link import Link
from tests.servers.stomp_peer import Peer
from tests.unit.transports.stomp.test_connection import (
    QUEUE,
    Pair,
    pair,  # noqa: F401 - a fixture
)

ACTIVEMQ = b"ActiveMQ/6.3.1"
RABBITMQ = b"RabbitMQ/3.10.8"
PART = 1000


def texts(count: int) -> list[Outgoing]:
    return [Outgoing(destination=QUEUE, message=JmsMessage.text(str(number))) for number in range(count)]


class Heard:
    """What one of the two connections says, transaction by transaction."""

    _begun: ClassVar[dict[Peer, str]] = {}

    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    def part(self) -> tuple[str, int, dict[str, str]]:
        """Take a transaction up to the question whether all went well."""
        transaction, count = self._begun.pop(self.peer, None), 0
        if transaction is None:
            command, headers = self.peer.hear()
            assert command == "BEGIN"
            transaction = headers["transaction"]
        while (found := self.peer.hear())[0] == "SEND":
            assert found[1]["transaction"] == transaction
            count += 1
        assert found[0] == "BEGIN"
        self._begun[self.peer] = found[1]["transaction"]
        return transaction, count, found[1]

    def commit(self, transaction: str) -> dict[str, str]:
        command, headers = self.peer.hear()
        assert (command, headers["transaction"]) == ("COMMIT", transaction)
        return headers

    def abort(self, transaction: str) -> None:
        assert self.peer.hear() == ("ABORT", {"transaction": transaction})

    def nothing(self) -> None:
        with pytest.raises(TimeoutError):
            self.peer.hear(within=0.2)

    def good_bye(self) -> None:
        command, headers = self.peer.hear()
        assert command == "DISCONNECT"
        self.peer.receipt(headers)


class Sending:
    """A send in a thread, and what comes of it."""

    def __init__(self, connection: StompConnection, messages: Callable[[], Iterable[Outgoing]]) -> None:
        self.sent: int | None = None
        self.error: Exception | None = None

        def run() -> None:
            try:
                self.sent = connection.send(messages())
            except (JmsError, LookupError) as error:
                self.error = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def ended(self) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive()


def test_one_transaction_is_taken_in_while_the_one_before_is_committed(pair: Pair) -> None:  # noqa: F811
    heard = Heard(pair.peer)
    sending = Sending(pair.up(ACTIVEMQ), lambda: texts(2 * PART + 200))
    first, count, asked = heard.part()
    assert count == PART
    pair.peer.receipt(asked)
    committed = heard.commit(first)
    second, count, asked = heard.part()  # though the first isn't committed yet
    assert count == PART
    pair.peer.receipt(asked)
    pair.peer.receipt(committed)
    committed = heard.commit(second)
    third, count, asked = heard.part()
    assert count == 200
    pair.peer.receipt(committed)
    assert sending.sent is None
    pair.peer.receipt(asked)
    pair.peer.receipt(heard.commit(third))
    sending.ended()
    assert sending.sent == 2 * PART + 200


def test_no_transaction_is_committed_before_all_of_it_went_well(pair: Pair) -> None:  # noqa: F811
    """What the broker refused as a whole goes one by one, up to the message that it refuses."""
    heard = Heard(pair.peer)
    sending = Sending(pair.up(ACTIVEMQ), lambda: texts(PART + 4))
    first, _, asked = heard.part()
    pair.peer.receipt(asked)
    committed = heard.commit(first)
    second, count, asked = heard.part()
    assert count == 4
    pair.peer.receipt(committed)
    pair.peer.say(b"ERROR\nmessage:no room\n\n\0\n")
    pair.peer.receipt(asked)
    heard.abort(second)
    for _ in range(2):
        command, headers = pair.peer.hear()
        assert command == "SEND"
        assert "transaction" not in headers
        pair.peer.receipt(headers)
    _, headers = pair.peer.hear()
    pair.peer.say(f"ERROR\nreceipt-id:{headers['receipt']}\nmessage:no room\n\n\0\n".encode())
    sending.ended()
    assert isinstance(sending.error, PermanentBrokerError)
    assert f"message {PART + 3} to queue://orders was refused" in str(sending.error)


def test_a_refused_transaction_goes_one_by_one_and_so_does_what_waited_for_it(pair: Pair) -> None:  # noqa: F811
    """The second one is encoded by then, and not sent."""
    heard = Heard(pair.peer)
    sending = Sending(pair.up(ACTIVEMQ), lambda: texts(PART + 2))
    first, _, asked = heard.part()
    pair.peer.say(b"ERROR\nmessage:something else\n\n\0\n")
    pair.peer.receipt(asked)
    heard.abort(first)
    for _ in range(PART + 2):
        command, headers = pair.peer.hear()
        assert (command, "transaction" in headers) == ("SEND", False)
        pair.peer.receipt(headers)
    sending.ended()
    assert (sending.sent, sending.error) == (PART + 2, None)


def test_a_refused_commit_goes_one_by_one(pair: Pair) -> None:  # noqa: F811
    """The broker has undone all of it then, and knows no transaction that could be aborted."""
    heard = Heard(pair.peer)
    sending = Sending(pair.up(ACTIVEMQ), lambda: texts(PART + 2))
    first, _, asked = heard.part()
    pair.peer.receipt(asked)
    committed = heard.commit(first)
    second, _, _ = heard.part()
    pair.peer.say(f"ERROR\nreceipt-id:{committed['receipt']}\nmessage:the store\n\n\0\n".encode())
    heard.abort(second)
    for _ in range(PART + 2):
        pair.peer.receipt(pair.peer.hear()[1])
    sending.ended()
    assert (sending.sent, sending.error) == (PART + 2, None)


@pytest.fixture
def second() -> Iterator[Pair]:
    """The second connection."""
    made = Pair()
    yield made
    made.peer.close()
    made.connection.close()


def _three_parts_under_way(
    pair: Pair,  # noqa: F811
    second: Pair,
    messages: Callable[[], Iterable[Outgoing]],
) -> tuple[Sending, str, dict[str, str], str, dict[str, str]]:
    """Let a send come to where the second transaction is being committed, and the third one elsewhere."""
    heard, there = Heard(pair.peer), Heard(second.peer)
    sending = Sending(pair.up(ACTIVEMQ, another=lambda: second.up(ACTIVEMQ).link), messages)
    first, _, asked = heard.part()
    pair.peer.receipt(asked)
    committed = heard.commit(first)
    own, _, asked = heard.part()
    pair.peer.receipt(committed)
    pair.peer.receipt(asked)
    committed = heard.commit(own)
    other, _, asked = there.part()
    return sending, own, committed, other, asked


def test_the_third_transaction_goes_over_a_second_connection(pair: Pair, second: Pair) -> None:  # noqa: F811
    """The broker works on both at a time, yet the order stays: no COMMIT before the one before is done."""
    heard, there = Heard(pair.peer), Heard(second.peer)
    sending, _, committed, third, asked = _three_parts_under_way(pair, second, lambda: texts(4 * PART))
    second.peer.receipt(asked)
    there.nothing()
    pair.peer.receipt(committed)
    committed = there.commit(third)
    fourth, _, asked = heard.part()
    pair.peer.receipt(asked)
    heard.nothing()
    second.peer.receipt(committed)
    pair.peer.receipt(heard.commit(fourth))
    there.good_bye()
    sending.ended()
    assert sending.sent == 4 * PART
    assert pair.connection.link.is_up


def _all_on_the_first(pair: Pair, connection: StompConnection) -> None:  # noqa: F811
    heard = Heard(pair.peer)
    sending = Sending(connection, lambda: texts(4 * PART))
    for _ in range(4):
        transaction, _, asked = heard.part()
        pair.peer.receipt(asked)
        pair.peer.receipt(heard.commit(transaction))
    sending.ended()
    assert sending.sent == 4 * PART


def test_without_a_second_connection_the_first_does_all(
    pair: Pair,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse() -> Link:
        raise TransientBrokerError("no more connections")

    with caplog.at_level("INFO"):
        _all_on_the_first(pair, pair.up(ACTIVEMQ, another=refuse))
    assert "no more connections" in caplog.text


def test_a_second_connection_to_another_broker_is_not_used(
    pair: Pair,  # noqa: F811
    second: Pair,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Behind one name there may be several brokers; their messages would have no order."""

    def other() -> Link:
        connection = second.up(ACTIVEMQ, session=b"ID:broker-33001-1795296999999-6:1")
        second.in_background(Heard(second.peer).good_bye)
        return connection.link

    with caplog.at_level("INFO"):
        _all_on_the_first(pair, pair.up(ACTIVEMQ, another=other))
    assert "a different broker now answers" in caplog.text


def _must_not_open() -> Link:
    raise AssertionError("it was opened")


@pytest.mark.parametrize("client_id", [None, "ID:node:1"])
def test_with_a_client_id_or_no_session_there_is_no_second_connection(
    pair: Pair,  # noqa: F811
    client_id: str | None,
) -> None:
    """A broker that lets links be stolen would end the first one."""
    session = (client_id or "").encode()
    _all_on_the_first(pair, pair.up(ACTIVEMQ, session=session, client_id=client_id, another=_must_not_open))


def test_beside_a_consumer_that_wants_nothing_of_its_own_connection_there_is_no_second(
    pair: Pair,  # noqa: F811
) -> None:
    """It would be sent what comes over the other one."""
    connection = pair.up(ACTIVEMQ, another=_must_not_open)
    topic = replace(Destination.topic("news"), options=(("activemq.noLocal", "true"),))
    thread, raised = pair.in_background(connection.consume, Subscription(destination=topic), print)
    pair.peer.receipt(pair.peer.hear()[1])
    thread.join(5)
    assert not raised
    _all_on_the_first(pair, connection)


def test_an_idle_second_connection_that_is_lost_costs_nothing(pair: Pair, second: Pair) -> None:  # noqa: F811
    """Everything on it is confirmed: the first one goes on alone."""
    heard, there, go_on = Heard(pair.peer), Heard(second.peer), threading.Event()

    def slowly() -> Iterator[Outgoing]:
        yield from texts(4 * PART + 1)
        assert go_on.wait(5)
        yield from texts(PART - 1)

    sending, _, committed, third, asked = _three_parts_under_way(pair, second, slowly)
    second.peer.receipt(asked)
    pair.peer.receipt(committed)
    second.peer.receipt(there.commit(third))
    fourth, _, asked = heard.part()
    second.peer.close()
    second.connection.link.wire.join(5)
    go_on.set()
    pair.peer.receipt(asked)
    committed = heard.commit(fourth)
    fifth, _, asked = heard.part()
    pair.peer.receipt(committed)
    pair.peer.receipt(asked)
    pair.peer.receipt(heard.commit(fifth))
    sending.ended()
    assert (sending.sent, sending.error) == (5 * PART, None)


def test_what_is_decided_is_concluded_when_the_second_connection_refuses_a_size(
    pair: Pair,  # noqa: F811
    second: Pair,
) -> None:
    """So it is known that those before are there."""
    longer = Outgoing(destination=QUEUE, message=JmsMessage.text("x" * 10_000))
    sending, _, committed, _, _ = _three_parts_under_way(pair, second, lambda: [*texts(2 * PART + 1), longer])
    second.peer.say(b"ERROR\nmessage:The maximum data length was exceeded\n\n\0\n")
    second.peer.close()
    pair.peer.receipt(committed)
    sending.ended()
    assert isinstance(sending.error, PermanentBrokerError)
    numbers = f"{2 * PART + 1} to {2 * PART + 2}"
    assert f"one of the messages {numbers} was refused, so none of them was sent" in str(sending.error)
    assert "isn't known" not in str(sending.error)
    assert pair.connection.link.is_up


def test_a_lost_second_connection_leaves_doubt_and_the_first_one(pair: Pair, second: Pair) -> None:  # noqa: F811
    heard, there = Heard(pair.peer), Heard(second.peer)
    sending, _, committed, third, asked = _three_parts_under_way(pair, second, lambda: texts(4 * PART))
    second.peer.receipt(asked)
    pair.peer.receipt(committed)
    there.commit(third)
    fourth, _, _ = heard.part()
    second.peer.close()
    heard.abort(fourth)
    sending.ended()
    assert isinstance(sending.error, InDoubtError)
    assert pair.connection.link.is_up


def test_a_lost_first_connection_ends_the_second(pair: Pair, second: Pair) -> None:  # noqa: F811
    there = Heard(second.peer)
    sending, _, _, third, _ = _three_parts_under_way(pair, second, lambda: texts(4 * PART))
    pair.peer.close()
    there.abort(third)
    there.good_bye()
    sending.ended()
    assert isinstance(sending.error, InDoubtError)


def _failing() -> Iterator[Outgoing]:
    yield from texts(PART + 1)
    raise LookupError("the source is gone")


def _unfit() -> Iterator[Outgoing]:
    yield from texts(PART + 1)
    yield Outgoing(destination=QUEUE, message=JmsMessage.map({"a": 1}))


@pytest.mark.parametrize(("messages", "error"), [(_failing, LookupError), (_unfit, CapabilityError)])
def test_what_was_begun_before_a_message_that_cannot_be_had_is_committed(
    pair: Pair,  # noqa: F811
    messages: Callable[[], Iterator[Outgoing]],
    error: type[Exception],
) -> None:
    heard = Heard(pair.peer)
    sending = Sending(pair.up(ACTIVEMQ), messages)
    first, count, asked = heard.part()
    assert count == PART
    pair.peer.receipt(asked)
    pair.peer.receipt(heard.commit(first))
    sending.ended()
    assert isinstance(sending.error, error)


def test_a_connection_lost_in_between_leaves_doubt(pair: Pair) -> None:  # noqa: F811
    heard = Heard(pair.peer)
    sending = Sending(pair.up(ACTIVEMQ), lambda: texts(2 * PART))
    first, _, asked = heard.part()
    pair.peer.receipt(asked)
    heard.commit(first)
    heard.part()
    pair.peer.close()
    sending.ended()
    assert isinstance(sending.error, InDoubtError)


def test_a_large_message_travels_alone(pair: Pair) -> None:  # noqa: F811
    """If the broker closes the connection over it, nothing else is in doubt."""
    large = Outgoing(destination=QUEUE, message=JmsMessage.text("x" * 1_100_000))
    heard = Heard(pair.peer)
    sending = Sending(pair.up(ACTIVEMQ), lambda: [*texts(2), large])
    first, count, asked = heard.part()
    assert count == 2
    pair.peer.receipt(asked)
    pair.peer.receipt(heard.commit(first))
    command, headers = pair.peer.hear()
    assert (command, "transaction" in headers) == ("SEND", False)
    pair.peer.say(b"ERROR\nmessage:The maximum data length was exceeded\n\n\0\n")
    pair.peer.close()
    sending.ended()
    assert isinstance(sending.error, PermanentBrokerError)
    assert "a message was refused" in str(sending.error)


def test_properties_count_where_messages_are_put_together(pair: Pair) -> None:  # noqa: F811
    """A thousand messages of a megabyte each in one transaction would take all the memory of a broker."""
    heavy = JmsMessage.text("", {f"p{number}": "x" * 5_000 for number in range(60)})
    heard = Heard(pair.peer)
    sending = Sending(
        pair.up(ACTIVEMQ), lambda: [Outgoing(destination=QUEUE, message=heavy) for _ in range(20)]
    )
    first, count, asked = heard.part()
    assert count == 13  # 300,000 characters each, four mebibytes together
    pair.peer.receipt(asked)
    pair.peer.receipt(heard.commit(first))
    second, count, asked = heard.part()
    assert count == 7
    pair.peer.receipt(asked)
    pair.peer.receipt(heard.commit(second))
    sending.ended()
    assert sending.error is None


def test_a_small_one_refused_for_its_size_leaves_those_before_it_in_doubt(pair: Pair) -> None:  # noqa: F811
    """Where the broker's limit is set below what is taken for large here."""
    longer = Outgoing(destination=QUEUE, message=JmsMessage.text("x" * 10_000))
    heard = Heard(pair.peer)
    sending = Sending(pair.up(ACTIVEMQ), lambda: [*texts(PART + 1), longer])
    first, _, asked = heard.part()
    pair.peer.receipt(asked)
    heard.commit(first)
    heard.part()
    pair.peer.say(b"ERROR\nmessage:The maximum data length was exceeded\n\n\0\n")
    pair.peer.close()
    sending.ended()
    assert isinstance(sending.error, PermanentBrokerError)
    assert f"one of the messages {PART + 1} to {PART + 2} was refused, so none of them" in str(sending.error)
    assert f"whether 1 to {PART} were isn't known" in str(sending.error)


def test_what_is_decided_is_never_blamed_for_the_end_of_a_connection(pair: Pair) -> None:  # noqa: F811
    """It was taken in before its COMMIT; whether that was carried out isn't known."""
    longer = Outgoing(destination=QUEUE, message=JmsMessage.text("x" * 10_000))
    heard = Heard(pair.peer)
    sending = Sending(pair.up(ACTIVEMQ), lambda: [longer, *texts(PART + 1)])
    first, _, asked = heard.part()
    pair.peer.receipt(asked)
    heard.commit(first)
    heard.part()
    pair.peer.say(b"ERROR\nmessage:Java heap space\n\n\0\n")
    pair.peer.close()
    sending.ended()
    assert isinstance(sending.error, InDoubtError)


def test_an_error_without_a_name_is_not_put_down_to_a_subscription_alone(pair: Pair) -> None:  # noqa: F811
    """The transaction may be what it is about: committed, it would lack a message."""
    connection, heard = pair.up(ACTIVEMQ), Heard(pair.peer)
    go_on = threading.Event()

    def slowly() -> Iterator[Outgoing]:
        yield from texts(PART + 1)
        assert go_on.wait(5)
        yield from texts(1)

    sending = Sending(connection, slowly)
    first, _, asked = heard.part()
    thread, _ = pair.in_background(connection.consume, Subscription(destination=QUEUE), print)
    command, subscribed = pair.peer.hear()
    assert command == "SUBSCRIBE"
    pair.peer.say(b"ERROR\nmessage:no room\n\n\0\n")
    pair.peer.receipt(asked)
    pair.peer.receipt(subscribed)
    thread.join(5)
    go_on.set()
    heard.abort(first)
    pair.peer.close()
    sending.ended()


def test_a_broker_that_confirms_nothing_gets_so_many_and_no_more(pair: Pair) -> None:  # noqa: F811
    """Two parts of messages are under way at a time."""
    sending = Sending(pair.up(RABBITMQ), lambda: texts(3 * PART))
    heard = [pair.peer.hear()[1] for _ in range(2 * PART)]
    pair.peer.receipt(heard[0])
    with pytest.raises(TimeoutError):
        pair.peer.hear(within=0.2)
    for headers in heard[1:]:
        pair.peer.receipt(headers)
    for _ in range(PART):
        pair.peer.receipt(pair.peer.hear()[1])
    sending.ended()
    assert sending.sent == 3 * PART


def test_nothing_is_sent_over_a_connection_that_is_gone(pair: Pair) -> None:  # noqa: F811
    connection = pair.up(RABBITMQ)
    connection.link.give_up(ConnectionLostError("tried"))
    with pytest.raises(ConnectionLostError, match="nothing was sent"):
        connection.send(texts(2))
