"""Names of destinations come back from real brokers as they were given."""

from __future__ import annotations

import contextlib
import threading
import unicodedata
import uuid
from collections.abc import Iterator

import pytest

from airflow_provider_jmsjca import (
    ConfigurationError,
    Connection,
    Destination,
    DestinationKind,
    JmsConnection,
    JmsMessage,
    Outgoing,
    Subscription,
    connect,
)
from tests.internals.transports import Received
from tests.servers.broker import Broker

LATIN = [chr(code) for code in range(32, 0x180) if unicodedata.category(chr(code))[0] != "C"]
FURTHER = [
    "€",
    "😀",
    "漢字",
    "שלום",
    "\u0301",
    "%41",
    "%25",
    "%2f",
    "%%2",
    "//",
    "queue://",
    "topic:",
    "o%41rd",
]
MEANT = {"activemq": {"?", ","}, "artemis": {"*", "#"}, "rabbitmq": set[str]()}
PLACES = ("{mark}{text}x", "{text}{mark}", "{mark}{text}")


def names(product: str) -> Iterator[str]:
    """Yield names with every character that is no syntax of the broker, in different places."""
    run = uuid.uuid4().hex[:6]
    for number, text in enumerate([*LATIN, *FURTHER]):
        if MEANT[product].isdisjoint(text):
            amid = text == " " and product == "activemq"  # which drops blanks at the ends
            yield PLACES[0 if amid else number % 3].format(mark=f"{run}{number}", text=text)


def there_and_back(connection: Connection, destination: Destination) -> JmsMessage:
    """Send a message over the connection, and return it as it comes back."""
    came, found = threading.Event(), list[Received]()

    def take(received: Received) -> None:
        found.append(received)
        came.set()

    consumer = connection.consume(Subscription(destination=destination), take)
    message = JmsMessage.text("x", reply_to=destination)
    connection.send([Outgoing(destination=destination, message=message)])
    assert came.wait(20), f"nothing came from {destination}"
    consumer.acknowledge(found)
    consumer.close()
    return found[0].message


@pytest.mark.parametrize("kind", DestinationKind)
def test_every_printable_name_comes_back(broker: Broker, kind: DestinationKind) -> None:
    with contextlib.closing(connect(broker.settings())) as connection:
        given = [Destination(kind, name) for name in names(connection.broker.product)]
        messages = [there_and_back(connection, each) for each in given]
    assert [message.destination for message in messages] == given
    assert [message.reply_to for message in messages] == given


def test_a_name_that_would_be_another_queue_is_refused(rabbitmq: Broker, queue_name: str) -> None:
    with JmsConnection(connect(rabbitmq.settings())) as connection, connection.session() as session:
        with pytest.raises(ConfigurationError, match="reads %2F in a name as a slash"):
            session.send(f"queue://{queue_name}%2Fb", JmsMessage.text("m1"))
        with pytest.raises(ConfigurationError, match="reads %2F in a name as a slash"):
            session.receive(f"queue://{queue_name}%2Fb", timeout=5)


def test_a_stream_is_refused_as_a_queue(rabbitmq: Broker, queue_name: str) -> None:
    stream = f"jmsjca://?name=queue://{queue_name}&x-queue-type=stream"
    with JmsConnection(connect(rabbitmq.settings())) as connection, connection.session() as session:
        with pytest.raises(ConfigurationError, match="expected one of: classic, quorum"):
            session.send(stream, JmsMessage.text("m1"))
        with pytest.raises(ConfigurationError, match="expected one of: classic, quorum"):
            session.receive(stream, timeout=5)


def test_a_full_queue_of_rabbitmq_drops_messages_whatever_x_overflow_says(
    rabbitmq: Broker, queue_name: str
) -> None:
    """So the option is refused; a header of its name reaches the plugin and changes nothing."""
    bounded = f"jmsjca://?name=queue://{queue_name}&x-max-length=1"
    with JmsConnection(connect(rabbitmq.settings())) as connection, connection.session() as session:
        for body in ("m1", "m2"):
            session.send(bounded, JmsMessage.text(body))
        with pytest.raises(ConfigurationError, match="the STOMP plugin ignores it"):
            session.send(f"{bounded}&x-overflow=reject-publish", JmsMessage.text("m3"))
        found = session.receive(bounded, timeout=10)
        assert found is not None
        assert found.body == "m2"
