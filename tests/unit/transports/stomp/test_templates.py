"""Messages decoded by what they have in common are the same as decoded one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import BodyKind, JmsMessage
from airflow_provider_jmsjca.errors import PoisonMessageError
from airflow_provider_jmsjca.transports.base import Subscription
from airflow_provider_jmsjca.transports.stomp.decoding import Decoder, TemplateLearner
from airflow_provider_jmsjca.transports.stomp.dialects.activemq import ActiveMqDialect
from airflow_provider_jmsjca.transports.stomp.dialects.artemis import ArtemisDialect
from airflow_provider_jmsjca.transports.stomp.dialects.dialect import Dialect
from airflow_provider_jmsjca.transports.stomp.dialects.generic import GenericDialect
from airflow_provider_jmsjca.transports.stomp.dialects.rabbitmq import RabbitMqDialect
from airflow_provider_jmsjca.transports.stomp.wire.frames import Frame

ON_QUEUE = Subscription(destination=Destination.queue("orders"))
HEADERS = {
    "destination": ["/queue/orders", "/topic/a\\cb"],
    "message-id": ["ID\\c1", "ID:2", "a,b"],
    "amqp-message-id": ["ID\\c1", "2", "\\\\n", "x\\t"],
    "timestamp": ["1", "99", "soon", ""],
    "redelivered": ["true", "false"],
    "content-length": ["1", "20"],
    "content-type": ["text/plain", "text/plain;charset=utf-8", "TEXT/xml", "application/octet-stream"],
    "amq-msg-type": ["text"],
    "JMS_JMSJCA_BodyKind": ["text", "empty", "bytes", "none"],
    "expires": ["0", "5"],
    "priority": ["4", "9", "high"],
    "persistent": ["true", "false"],
    "correlation-id": ["a", "b"],
    "reply-to": ["/queue/a", "/queue/b"],
    "x-delivery-count": ["1", "2"],
    "_AMQ_GROUP_ID": ["a", "b"],
    "JMSXGroupID": ["c", "d"],
    "JMS_JMSJCA_Property_id": ["e", "f"],
    "JMS_JMSJCA_Property_content-type": ["c", "d"],
    "region": ["EU", "U\\cS", "\\\\", "", "\\q", "a:b"],
    "size": ["1", "2"],
    "a\\cb": ["1", "2"],
}
USUAL = ["message-id", "amqp-message-id", "timestamp"]


@st.composite
def rows(draw: st.DrawFn) -> list[Frame]:
    """A few kinds of messages in turns, which differ in a few headers."""
    kinds = []
    for _ in range(draw(st.integers(1, 3))):
        names = draw(st.permutations([*USUAL, *draw(st.lists(st.sampled_from(sorted(HEADERS)), max_size=5))]))
        kinds.append([(name, HEADERS[name][0]) for name in names])
    frames = []
    for number in range(draw(st.integers(3, 12))):
        changed = draw(st.lists(st.sampled_from(sorted(HEADERS)), max_size=2))
        lines = [
            f"\n{name}:{draw(st.sampled_from(HEADERS[name])) if name in changed else value}"
            for name, value in draw(st.sampled_from(kinds))
        ]
        head = "".join(lines).replace("timestamp:1\n", f"timestamp:{number}\n").encode()
        head += draw(st.sampled_from([b""] * 20 + [b"\nno colon", b"\nu:\xff"]))
        frames.append(Frame(b"MESSAGE", head, draw(st.sampled_from([b"text", b"x", b"", b"\xff"]))))
    return frames


def outcome(decode: Decoder, frame: Frame) -> object:
    try:
        message = decode.decode(frame, again=False)
    except PoisonMessageError:  # which of two faults it names may differ
        return "poison"
    return message, list(message.properties.items())


@pytest.mark.parametrize(
    "dialect",
    [ActiveMqDialect(), ArtemisDialect(), RabbitMqDialect(), GenericDialect()],
    ids=lambda dialect: dialect.product,
)
@settings(max_examples=200)
@given(row=rows())
def test_a_row_of_messages_is_decoded_as_each_by_itself(dialect: Dialect, row: list[Frame]) -> None:
    decoder = Decoder(dialect, ON_QUEUE)
    for frame in [*row, *row]:  # once more, with what was learned
        got, wanted = outcome(decoder, frame), outcome(Decoder(dialect, ON_QUEUE), frame)
        assert got == wanted, (frame.head, frame.body)


def rabbit(number: int, **others: str) -> Frame:
    headers = {
        "subscription": "s1",
        "message-id": f"T_s1@@session@@{number}",
        "redelivered": "false",
        "timestamp": str(number),
        "amqp-message-id": f"ID\\c{number}",
        "content-type": "text/plain;charset=utf-8",
        **others,
    }
    return Frame(b"MESSAGE", "".join(f"\n{k}:{v}" for k, v in headers.items()).encode(), b"body")


def templates() -> TemplateLearner:
    return TemplateLearner(RabbitMqDialect())


def learn(learned: TemplateLearner, frame: Frame) -> None:
    learned.learn(frame, frame.headers(), JmsMessage.text("body"))


def knows(learned: TemplateLearner, frame: Frame) -> bool:
    return learned.template is not None and learned.template.match(frame.head.decode()) is not None


def test_the_third_message_is_known_and_so_is_its_redelivery() -> None:
    learned = templates()
    for number in (1, 2):
        assert not knows(learned, rabbit(number))
        learn(learned, rabbit(number))
    assert knows(learned, rabbit(3))
    assert knows(learned, rabbit(4, redelivered="true"))


def test_a_property_that_differs_is_learned_later_too() -> None:
    learned = templates()
    for number in (1, 2):
        learn(learned, rabbit(number, region="EU", size="1"))
    assert not knows(learned, rabbit(3, region="US", size="1"))
    learn(learned, rabbit(3, region="US", size="1"))
    assert knows(learned, rabbit(4, region="CH", size="1"))
    learn(learned, rabbit(5, region="CH", size="2"))
    assert knows(learned, rabbit(6, region="FR", size="3"))


def test_messages_that_differ_in_more_are_not_learned() -> None:
    learned = templates()
    for number in range(5):
        learn(learned, rabbit(number, **{"correlation-id": str(number)}))
    assert not knows(learned, rabbit(5, **{"correlation-id": "4"}))


def test_two_kinds_of_messages_in_turns_are_both_learned() -> None:
    learned = templates()
    for number in range(12):
        frame = rabbit(number, region="EU") if number % 4 < 2 else rabbit(number)
        if not knows(learned, frame):
            learn(learned, frame)
    assert knows(learned, rabbit(20))
    learn(learned, rabbit(21, region="EU"))
    assert knows(learned, rabbit(22, region="EU"))


def test_no_more_than_a_few_kinds_are_learned() -> None:
    learned = templates()
    for number in range(100):
        for _ in range(3):
            learn(learned, rabbit(number, **{f"p{number}": "x"}))
        assert knows(learned, rabbit(number, **{f"p{number}": "x"})) is (number < 16)


def test_ascii_and_other_text_in_turns_are_alike() -> None:
    learned = templates()
    for number in (1, 2):
        learn(learned, rabbit(number))
    assert knows(learned, rabbit(3, **{"content-type": "text/plain"}))
    assert not knows(learned, rabbit(4, **{"content-type": "text/html"}))


def test_two_headers_that_are_the_same_property_are_not_learned() -> None:
    learned = templates()
    for number in range(5):
        learn(learned, rabbit(number, region=str(number), JMS_JMSJCA_Property_region="EU"))
    assert not knows(learned, rabbit(5, region="4", JMS_JMSJCA_Property_region="EU"))


def test_a_header_that_comes_twice_spoils_nothing() -> None:
    learned = templates()
    for number in (1, 2):
        learn(learned, rabbit(number))
    twice = rabbit(3)
    twice.head += b"\ntimestamp:4"
    assert not knows(learned, twice)
    learn(learned, twice)
    assert knows(learned, rabbit(5))


def test_nothing_large_is_kept() -> None:
    learned = templates()
    for number in (1, 2):
        learn(learned, rabbit(number))
        learn(learned, rabbit(number, long="x" * 9_000))
    assert knows(learned, rabbit(3))
    assert learned.template is not None
    assert learned.template.message.body is None
    assert not knows(learned, rabbit(4, long="x" * 9_000))


def test_a_message_has_properties_of_its_own() -> None:
    decoder = Decoder(RabbitMqDialect(), ON_QUEUE)
    messages = [decoder.decode(rabbit(number, region="EU"), again=False) for number in range(4)]
    properties = messages[2].properties
    assert isinstance(properties, dict)
    properties["region"] = "changed"
    assert messages[3].properties == {"region": "EU"}
    assert messages[3].body_kind is BodyKind.TEXT
    assert decoder.decode(rabbit(5, region="EU"), again=False).properties == {"region": "EU"}


@pytest.mark.parametrize("usual", ["text/plain", "application/octet-stream"])
def test_what_an_unknown_server_calls_the_content_decides_each_time(usual: str) -> None:
    """There is nothing else to tell text from bytes by."""
    other = "application/octet-stream" if usual == "text/plain" else "text/plain"
    heads = [
        f"\nmessage-id:m{number}\ntimestamp:{number}\ncontent-type:{content}".encode()
        for number, content in enumerate([usual, usual, other, usual, other])
    ]
    decoder = Decoder(GenericDialect(), ON_QUEUE)
    kinds = [decoder.decode(Frame(b"MESSAGE", head, b"a"), again=False).body_kind for head in heads]
    text, octets = BodyKind.TEXT, BodyKind.BYTES
    first, second = (text, octets) if usual == "text/plain" else (octets, text)
    assert kinds == [first, first, second, first, second]
