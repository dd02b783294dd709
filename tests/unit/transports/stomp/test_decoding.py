"""Whatever a producer writes is a message or an undecodable one: decoding harms nobody else."""

from __future__ import annotations

import json
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import BodyKind, JmsMessage
from airflow_provider_jmsjca.errors import ConfigurationError, PoisonMessageError
from airflow_provider_jmsjca.spool.rows import Row, rows_to_table
from airflow_provider_jmsjca.transports.base import Consumer, Received, Subscription
from airflow_provider_jmsjca.transports.stomp.decoding import Decoder
from airflow_provider_jmsjca.transports.stomp.dialects.activemq import ActiveMqDialect
from airflow_provider_jmsjca.transports.stomp.dialects.artemis import ArtemisDialect
from airflow_provider_jmsjca.transports.stomp.dialects.dialect import Dialect
from airflow_provider_jmsjca.transports.stomp.dialects.generic import GenericDialect
from airflow_provider_jmsjca.transports.stomp.dialects.rabbitmq import RabbitMqDialect
from airflow_provider_jmsjca.transports.stomp.wire.frames import Frame

ON_QUEUE = Subscription(destination=Destination.queue("orders"))
DIALECTS = [ActiveMqDialect(), ArtemisDialect(), RabbitMqDialect(), GenericDialect()]
NAMES = st.sampled_from(
    [
        "message-id",
        "amqp-message-id",
        "timestamp",
        "reply-to",
        "destination",
        "destination-type",
        "expires",
        "priority",
        "persistent",
        "redelivered",
        "correlation-id",
        "type",
        "content-type",
        "content-length",
        "amq-msg-type",
        "JMS_JMSJCA_BodyKind",
        "JMS_JMSJCA_Expiration",
        "x-delivery-count",
        "_AMQ_GROUP_ID",
        "JMSXGroupID",
    ]
).map(str.encode)
VALUES = st.sampled_from(
    [
        "",
        " /queue/",
        "/topic/",
        "queue://",
        "topic:",
        "/queue/a",
        "-1",
        "99",
        "1e3",
        "٣",
        "99999999999999999999",
        "1_0",
        "ANYCAST",
        "text",
        "empty",
        "bytes",
        "text/plain",
        "true",
        "\\q",
        "\\",
        "a,b",
    ]
).map(str.encode)
WILD = st.binary(max_size=6).map(lambda data: data.replace(b"\n", b""))
LINES = st.lists(st.tuples(NAMES | WILD, st.just(b":") | st.just(b""), VALUES | WILD), max_size=8)


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    lines = [(b"message-id", b":", b"1"), (b"amqp-message-id", b":", b"1"), (b"timestamp", b":", b"5")]
    head = b"".join(b"\n" + b"".join(line) for line in [*draw(LINES), *lines])
    return Frame(b"MESSAGE", head, draw(st.binary(max_size=8)))


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.product)
@given(came=st.lists(frames(), min_size=1, max_size=4))
def test_any_frame_is_a_message_or_an_undecodable_one(dialect: Dialect, came: list[Frame]) -> None:
    """And what can be kept of it can be sent through XCom and stored."""
    decoder = Decoder(dialect, ON_QUEUE)
    for frame in came * 2:  # the second time they may be like those before
        reason = None
        try:
            message = decoder.decode(frame, again=False)
        except PoisonMessageError as error:
            message, reason = decoder.salvage(frame), str(error)
            assert (message.body_kind, message.body) == (BodyKind.BYTES, frame.body)
        assert JmsMessage.from_json(json.loads(json.dumps(message.to_json()))) == message
        assert rows_to_table([Row(message, 0, reason)], "b", 0).num_rows == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [("reply-to", "/queue/"), ("timestamp", "soon"), ("timestamp", "-1"), ("priority", "1000")],
)
def test_a_header_that_cannot_be_read_is_named_and_kept(name: str, value: str) -> None:
    decoder = Decoder(RabbitMqDialect(), ON_QUEUE)
    frame = Frame(b"MESSAGE", f"\n{name}:{value}\namqp-message-id:m1\nregion:EU\ntype:order".encode(), b"x")
    with pytest.raises(PoisonMessageError, match=name):
        decoder.decode(frame, again=False)
    kept = decoder.salvage(frame)
    assert dict(kept.properties) == {name: value, "region": "EU"}
    assert (kept.message_id, kept.type, kept.body) == ("m1", "order", b"x")


def test_whatever_a_transport_raises_is_poison_of_that_message() -> None:
    """Over any transport; only what says nothing about the message passes."""

    def received(error: Exception) -> Received:
        def decode() -> JmsMessage:
            raise error

        return Received(cast("Consumer", None), None, 0, decode)

    for error in (ConfigurationError("a"), ValueError("b"), UnicodeError("c"), RecursionError("d")):
        with pytest.raises(PoisonMessageError, match=f"{type(error).__name__}: [abcd]") as caught:
            _ = received(error).message
        assert caught.value.__cause__ is error
        assert received(error).readable is None
    with pytest.raises(MemoryError):
        _ = received(MemoryError()).message
