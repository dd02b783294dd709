"""What is sent arrives as it was."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

import pytest

from airflow_provider_jmsjca import (
    BodyKind,
    CapabilityError,
    ConfigurationError,
    Connection,
    Destination,
    JmsError,
    JmsMessage,
    Outgoing,
    Subscription,
)
from tests.contract.transport.collector import Collector
from tests.contract.transport.traffic import Connect

RoundTrip: TypeAlias = Callable[[JmsMessage], JmsMessage]

TEXTS = {
    "ascii": "hello",
    "emoji": "Grüße 🎉 ✓ 𝄞",
    "line ends": "one\r\ntwo\nthree\rfour\r\n",
    "controls": "tab\there \\ back \\n not a line end : colon",
    "blank": " \n ",
}


@pytest.fixture
def round_trip(connection: Connection, queue: Destination) -> RoundTrip:
    def there_and_back(message: JmsMessage) -> JmsMessage:
        connection.send([Outgoing(destination=queue, message=message)])
        collector = Collector()
        consumer = connection.consume(Subscription(destination=queue), collector)
        (received,) = collector.wait(1)
        consumer.acknowledge([received])
        connection.synchronize()
        consumer.close()
        return received.message

    return there_and_back


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_text(round_trip: RoundTrip, text: str) -> None:
    message = round_trip(JmsMessage.text(text))
    assert (message.body_kind, message.body) == (BodyKind.TEXT, text)


def test_text_with_nul(round_trip: RoundTrip) -> None:
    assert round_trip(JmsMessage.text("a\0b")).body == "a\0b"


@pytest.mark.parametrize(
    "data",
    [b"\0", bytes(range(256)), b"\r\n\0\n", b"\xff\xfe", bytes(range(256)) * 4096],
    ids=["nul", "every byte", "line ends", "no unicode", "1 MiB"],
)
def test_bytes(round_trip: RoundTrip, data: bytes) -> None:
    message = round_trip(JmsMessage.bytes(data))
    assert message.body_kind is BodyKind.BYTES
    assert message.body == data


def test_empty_text(round_trip: RoundTrip) -> None:
    assert round_trip(JmsMessage.text("")).body in ("", None)


def test_no_body(round_trip: RoundTrip) -> None:
    message = round_trip(JmsMessage.empty({"k": "v"}))
    assert message.body in (None, "", b"")
    assert message.properties["k"] == "v"


@pytest.mark.parametrize(
    "message",
    [
        JmsMessage.map({"n": 1, "s": "x", "b": b"\0"}),
        JmsMessage.stream([1, "x", True]),
        JmsMessage.object(b"\xac\xed\0\5"),
    ],
    ids=lambda message: message.body_kind.value,
)
def test_other_bodies_arrive_whole_or_are_refused(
    connection: Connection, queue: Destination, round_trip: RoundTrip, message: JmsMessage
) -> None:
    if message.body_kind in connection.capabilities.body_kinds:
        came = round_trip(message)
        assert came.body_kind is message.body_kind
        assert came.body == (tuple(message.body) if isinstance(message.body, list) else message.body)
    else:
        with pytest.raises(CapabilityError, match=message.body_kind.value):
            connection.send([Outgoing(destination=queue, message=message)])


def test_headers(round_trip: RoundTrip) -> None:
    """I34."""
    later = int((time.time() + 3600) * 1000)
    came = round_trip(
        JmsMessage.text(
            "x",
            correlation_id="corr:1 \\ ü",
            reply_to=Destination.queue("answers"),
            type="order.v1",
            priority=7,
            expiration=later,
            persistent=True,
        )
    )
    assert came.correlation_id == "corr:1 \\ ü"
    assert came.reply_to == Destination.queue("answers")
    assert came.type == "order.v1"
    assert came.priority == 7
    assert abs(came.expiration - later) < 2000
    assert came.persistent is True


def test_headers_left_out(round_trip: RoundTrip, queue: Destination) -> None:
    """I34."""
    before = int(time.time() * 1000)
    came = round_trip(JmsMessage.text("x"))
    assert (came.correlation_id, came.reply_to, came.type) == (None, None, None)
    assert came.expiration == 0
    assert came.destination == queue
    assert came.message_id
    assert came.timestamp is None or abs(came.timestamp - before) < 10_000


def test_reply_to_a_topic(round_trip: RoundTrip) -> None:
    assert round_trip(JmsMessage.text("x", reply_to=Destination.topic("news"))).reply_to == Destination.topic(
        "news"
    )


def test_a_name_with_a_slash(connection: Connection, queue: Destination) -> None:
    named = Destination.queue(f"{queue.name}/eu")
    message = JmsMessage.text("x", reply_to=named)
    connection.send([Outgoing(destination=named, message=message)])
    collector = Collector()
    consumer = connection.consume(Subscription(destination=named), collector)
    (received,) = collector.wait(1)
    assert (received.message.destination, received.message.reply_to) == (named, named)
    consumer.acknowledge([received])
    connection.synchronize()


def test_not_persistent(round_trip: RoundTrip) -> None:
    """I35."""
    assert round_trip(JmsMessage.text("x", persistent=False)).persistent is False


@pytest.mark.parametrize("first", [None, JmsMessage.text("persistent")], ids=["new queue", "old queue"])
def test_not_persistent_it_outlives_the_connection_of_its_sender(
    connect: Connect, queue: Destination, first: JmsMessage | None
) -> None:
    if first is not None:
        sender = connect()
        sender.send([Outgoing(destination=queue, message=first)])
        sender.close()
    sender = connect()
    sender.send([Outgoing(destination=queue, message=JmsMessage.text("x", persistent=False))])
    sender.close()
    collector = Collector()
    connect().consume(Subscription(destination=queue), collector)
    wanted = ["x"] if first is None else [first.body, "x"]
    assert [received.message.body for received in collector.wait(len(wanted))] == wanted


def test_property_values(round_trip: RoundTrip) -> None:
    properties = {
        "colon": "a:b",
        "backslash": "a\\b",
        "escapes": "\\n \\c \\\\",
        "lines": "one\ntwo\r\nthree",
        "unicode": "Grüße",
        "blank": " both ends ",
        "empty": "",
        "JMSXGroupID": "g1",
        "_under": "score",
    }
    came = round_trip(JmsMessage.text("x", properties)).properties
    assert {key: came.get(key) for key in properties} == properties


def test_only_the_users_properties_arrive(round_trip: RoundTrip) -> None:
    assert dict(round_trip(JmsMessage.text("x", {"region": "eu"})).properties) == {"region": "eu"}


def test_property_types(connection: Connection, round_trip: RoundTrip) -> None:
    came = round_trip(JmsMessage.text("x", {"i": 5, "b": True, "f": 1.5, "s": "5"})).properties
    if connection.capabilities.typed_properties:
        assert dict(came) == {"i": 5, "b": True, "f": 1.5, "s": "5"}
        assert [type(came[key]) for key in ("i", "b", "f", "s")] == [int, bool, float, str]
    else:
        assert dict(came) == {"i": "5", "b": "true", "f": "1.5", "s": "5"}


def test_reserved_words_as_properties(round_trip: RoundTrip) -> None:
    # Words a wire protocol may use itself: the user's value must not be mistaken for the protocol's.
    words = ("ack", "subscription", "receipt", "transaction", "id", "destination", "redelivered", "CC", "BCC")
    for word in words:
        try:
            came = round_trip(JmsMessage.text("x", {word: "mine"}))
        except ConfigurationError as refusal:
            assert word in str(refusal)  # noqa: PT017  # either is right, silence is not
        else:
            assert came.properties == {word: "mine"}


def test_long_property(connection: Connection, round_trip: RoundTrip) -> None:
    longest = "x" * (connection.capabilities.max_property_characters or 20_000)
    assert round_trip(JmsMessage.text("x", {"long": longest})).properties["long"] == longest


def test_a_property_that_is_too_long_is_not_lost_without_a_word(round_trip: RoundTrip) -> None:
    far_too_long = "x" * 2_000_000
    try:
        came = round_trip(JmsMessage.text("x", {"long": far_too_long}))
    except JmsError as refusal:
        assert len(str(refusal)) < 10_000  # noqa: PT017  # either is right, silence is not
    else:
        assert came.properties["long"] == far_too_long


def test_message_id_is_stable_where_it_says_so(connection: Connection, queue: Destination) -> None:
    connection.send([Outgoing(destination=queue, message=JmsMessage.text("x"))])
    collector = Collector()
    consumer = connection.consume(Subscription(destination=queue), collector)
    collector.wait(1)
    consumer.recover()
    first, second = collector.wait(2)
    if connection.capabilities.stable_message_id:
        assert first.message.message_id == second.message.message_id
    consumer.acknowledge([second])
    connection.synchronize()
