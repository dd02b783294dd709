"""Bulks of messages on the wire: what is on its way while the broker works, and what a failure leaves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import (
    CapabilityError,
    ConnectionLostError,
    InDoubtError,
    JmsError,
    PermanentBrokerError,
)
from airflow_provider_jmsjca.transports.base import Outgoing
from airflow_provider_jmsjca.transports.stomp.connection import StompConnection
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


class Sending:
    """A send in a thread, and what comes of it."""

    def __init__(self, ends: Pair, server: bytes, messages: Callable[[], Iterator[Outgoing]]) -> None:
        self._peer = ends.peer
        self.connection: StompConnection = ends.up(server)
        self.sent: int | None = None
        self.error: Exception | None = None

        def run() -> None:
            try:
                self.sent = self.connection.send(messages())
            except (JmsError, LookupError) as error:
                self.error = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def ended(self) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive()

    def hear_part(self) -> tuple[str, int, dict[str, str]]:
        """Take a transaction up to the question whether all went well."""
        command, headers = self._peer.hear()
        assert command == "BEGIN"
        transaction, count = headers["transaction"], 0
        while (found := self._peer.hear())[0] == "SEND":
            assert found[1]["transaction"] == transaction
            count += 1
        assert found[0] == "BEGIN"
        command, asked = self._peer.hear()
        assert command == "ABORT"
        return transaction, count, asked

    def hear_commit(self, transaction: str) -> dict[str, str]:
        command, headers = self._peer.hear()
        assert (command, headers["transaction"]) == ("COMMIT", transaction)
        return headers

    def hear_abort(self, transaction: str) -> None:
        assert self._peer.hear() == ("ABORT", {"transaction": transaction})


def test_one_transaction_is_taken_in_while_the_one_before_is_committed(pair: Pair) -> None:  # noqa: F811
    sending = Sending(pair, ACTIVEMQ, lambda: iter(texts(2 * PART + 200)))
    first, count, asked = sending.hear_part()
    assert count == PART
    second, count, asked_again = sending.hear_part()  # though nothing was answered yet
    assert count == PART
    pair.peer.receipt(asked)
    committed = sending.hear_commit(first)
    third, count, asked_thirdly = sending.hear_part()
    assert count == 200
    pair.peer.receipt(committed)
    pair.peer.receipt(asked_again)
    committed = sending.hear_commit(second)
    pair.peer.receipt(committed)
    assert sending.sent is None
    pair.peer.receipt(asked_thirdly)
    pair.peer.receipt(sending.hear_commit(third))
    sending.ended()
    assert sending.sent == 2 * PART + 200


def test_no_transaction_is_committed_before_all_of_it_went_well(pair: Pair) -> None:  # noqa: F811
    """What the broker refused as a whole goes one by one, up to the message that it refuses."""
    sending = Sending(pair, ACTIVEMQ, lambda: iter(texts(PART + 4)))
    first, _, asked = sending.hear_part()
    second, count, asked_again = sending.hear_part()
    assert count == 4
    pair.peer.receipt(asked)
    pair.peer.receipt(sending.hear_commit(first))
    pair.peer.say(b"ERROR\nmessage:no room\n\n\0\n")
    pair.peer.receipt(asked_again)
    sending.hear_abort(second)
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


def test_a_fault_blamed_on_the_wrong_transaction_costs_time_and_no_message(pair: Pair) -> None:  # noqa: F811
    """The broker doesn't say which of two it means: both go one by one."""
    sending = Sending(pair, ACTIVEMQ, lambda: iter(texts(PART + 2)))
    first, _, asked = sending.hear_part()
    second, _, _ = sending.hear_part()
    pair.peer.say(b"ERROR\nmessage:something else\n\n\0\n")
    pair.peer.receipt(asked)
    sending.hear_abort(first)
    sending.hear_abort(second)
    for _ in range(PART + 2):
        command, headers = pair.peer.hear()
        assert (command, "transaction" in headers) == ("SEND", False)
        pair.peer.receipt(headers)
    sending.ended()
    assert (sending.sent, sending.error) == (PART + 2, None)


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
    sending = Sending(pair, ACTIVEMQ, messages)
    first, count, asked = sending.hear_part()
    assert count == PART
    pair.peer.receipt(asked)
    pair.peer.receipt(sending.hear_commit(first))
    sending.ended()
    assert isinstance(sending.error, error)


def test_a_connection_lost_in_between_leaves_doubt(pair: Pair) -> None:  # noqa: F811
    sending = Sending(pair, ACTIVEMQ, lambda: iter(texts(2 * PART)))
    first, _, asked = sending.hear_part()
    sending.hear_part()
    pair.peer.receipt(asked)
    sending.hear_commit(first)
    pair.peer.close()
    sending.ended()
    assert isinstance(sending.error, InDoubtError)


def test_a_large_message_travels_alone(pair: Pair) -> None:  # noqa: F811
    """If the broker closes the connection over it, nothing else is in doubt."""
    large = Outgoing(destination=QUEUE, message=JmsMessage.text("x" * 1_100_000))
    sending = Sending(pair, ACTIVEMQ, lambda: iter([*texts(2), large]))
    first, count, asked = sending.hear_part()
    assert count == 2
    pair.peer.receipt(asked)
    pair.peer.receipt(sending.hear_commit(first))
    command, headers = pair.peer.hear()
    assert (command, "transaction" in headers) == ("SEND", False)
    pair.peer.say(b"ERROR\nmessage:The maximum data length was exceeded\n\n\0\n")
    pair.peer.close()
    sending.ended()
    assert isinstance(sending.error, PermanentBrokerError)
    assert "a message was refused" in str(sending.error)


def test_a_small_one_refused_for_its_size_leaves_those_before_it_in_doubt(pair: Pair) -> None:  # noqa: F811
    """Where the broker's limit is set below what is taken for large here."""
    longer = Outgoing(destination=QUEUE, message=JmsMessage.text("x" * 10_000))
    sending = Sending(pair, ACTIVEMQ, lambda: iter([*texts(PART + 1), longer]))
    sending.hear_part()
    sending.hear_part()
    pair.peer.say(b"ERROR\nmessage:The maximum data length was exceeded\n\n\0\n")
    pair.peer.close()
    sending.ended()
    assert isinstance(sending.error, PermanentBrokerError)
    assert f"one of the messages {PART + 1} to {PART + 2} was refused, so none of them" in str(sending.error)
    assert f"whether 1 to {PART} were isn't known" in str(sending.error)


def test_a_broker_that_confirms_nothing_gets_so_many_and_no_more(pair: Pair) -> None:  # noqa: F811
    """Two parts of messages are under way at a time."""
    sending = Sending(pair, RABBITMQ, lambda: iter(texts(3 * PART)))
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
    connection.give_up(ConnectionLostError("tried"))
    with pytest.raises(ConnectionLostError, match="nothing was sent"):
        connection.send(texts(2))
