"""Moved messages: J149-J168, P15."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.copies.dead_letter import (
    ConsumedFrom,
    copy_of,
    redirect_of,
    send_letter,
)
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.message import JmsMessage, PropertyType
from airflow_provider_jmsjca.core.redelivery import MessageState
from airflow_provider_jmsjca.errors import ConfigurationError, PermanentBrokerError
from tests.dead_letters import original_of

EXAMPLES = int(os.environ.get("JMSJCA_EXAMPLES", "200"))

ORIGIN = ConsumedFrom(
    destination=Destination.topic("orders"),
    subscription_name="billing",
    context_name="nightly",
    client_id="node-1",
)
STATE = MessageState(
    seen=7,
    rollback_data={"mode": "permanent"},
    failure=Failure(
        class_names=("shop.OutOfStock", "builtins.Exception"), message="no more", stack_trace="at x"
    ),
)
MESSAGE = JmsMessage.text(
    "hello",
    {"region": "eu", "weight": 3, "JMSXGroupID": "g", "JMSXGroupSeq": 2},
    property_types={"weight": PropertyType.BYTE, "JMSXGroupSeq": PropertyType.INT},
    message_id="ID:1",
    correlation_id="c-1",
    reply_to=Destination.queue("answers"),
    type="order",
    destination=Destination.topic("orders"),
    timestamp=1_700_000_000_000,
    expiration=1_800_000_000_000,
    priority=7,
    persistent=False,
    redelivered=True,
    delivery_count=8,
)


def test_j152_j168_headers_and_properties_of_the_copy() -> None:
    """J153, J154, J155, J156, J157, J158, J159, J160, J161, J162, J163, J164, J165, J166."""
    assert copy_of(MESSAGE, ORIGIN, STATE) == JmsMessage(
        body_kind=MESSAGE.body_kind,
        body="hello",
        properties={
            "region": "eu",
            "weight": 3,
            "_JMSJCA_JMSXGroupID": "g",
            "_JMSJCA_JMSXGroupSeq": 2,
            "JMSJCATimestamp": 1_700_000_000_000,
            "JMS_Sun_JMSJCA_RedeliveryCount": 7,
            "JMS_Sun_JMSJCA_OriginalDestinationName": "orders",
            "JMS_Sun_JMSJCA_OriginalDestinationType": "javax.jms.Topic",
            "JMS_Sun_JMSJCA_SubscriberName": "billing",
            "JMS_Sun_JMSJCA_ContextName": "nightly",
            "JMS_Sun_JMSJCA_OriginalJMSMessageID": "ID:1",
            "JMS_Sun_JMSJCA_OriginalJMSCorrelationID": "c-1",
            "JMS_Sun_JMSJCA_OriginalClientID": "node-1",
            "JMS_Sun_JMSJCA_OriginalTimestamp": 1_700_000_000_000,
            "JMS_Sun_JMSJCA_OriginalJMSExpiration": 1_800_000_000_000,
            "JMS_Sun_JMSJCA_ExceptionClass": "shop.OutOfStock",
            "JMS_Sun_JMSJCA_ExceptionMessage": "no more",
            "JMS_Sun_JMSJCA_ExceptionStackTrace": "at x",
            "JMS_Sun_JMSJCA_UserRollbackData.mode": "permanent",
        },
        property_types={"weight": PropertyType.BYTE, "_JMSJCA_JMSXGroupSeq": PropertyType.INT},
        correlation_id="c-1",
        reply_to=Destination.queue("answers"),
        type="order",
        priority=7,
        persistent=False,
    )


@pytest.mark.parametrize(
    "message",
    [
        JmsMessage.text("t"),
        JmsMessage.bytes(b"\x00\xff"),
        JmsMessage.map({"a": 1, "b": None}),
        JmsMessage.stream([1, None, "after the null"]),
        JmsMessage.object(b"\xac\xed"),
        JmsMessage.empty(),
    ],
    ids=lambda message: str(message.body_kind),
)
def test_j150_j168_every_body_kind_arrives_whole(message: JmsMessage) -> None:
    """J149, J151."""
    copy = copy_of(message, ORIGIN, STATE)
    assert (copy.body_kind, copy.body) == (message.body_kind, message.body)


def test_j168_headers_are_kept_without_user_properties() -> None:
    message = JmsMessage.text("t", correlation_id="c", reply_to=Destination.queue("r"), type="k")
    copy = copy_of(message, ConsumedFrom(destination=Destination.queue("q")), MessageState())
    assert (copy.correlation_id, copy.reply_to, copy.type) == ("c", Destination.queue("r"), "k")


def test_j167_redirect_adds_nothing() -> None:
    message = replace(MESSAGE, properties={**MESSAGE.properties, "JMSXDeliveryCount": 9})
    message = replace(message, expiration=0)
    assert redirect_of(message) == replace(
        MESSAGE,
        message_id=None,
        destination=None,
        timestamp=None,
        expiration=0,
        redelivered=False,
        delivery_count=None,
    )
    assert original_of(redirect_of(message)) is None


def test_what_is_redirected_does_not_expire_and_says_when_it_would_have() -> None:
    copy = redirect_of(MESSAGE)
    assert copy.expiration == 0
    assert dict(copy.properties) == {
        **MESSAGE.properties,
        "JMS_Sun_JMSJCA_OriginalJMSExpiration": 1_800_000_000_000,
    }


def sent(message: JmsMessage, refused: Callable[[JmsMessage], bool], **given: Any) -> JmsMessage:
    """Return what arrives at a broker that refuses some messages."""
    found: list[JmsMessage] = []

    def send(letter: JmsMessage) -> None:
        if refused(letter):
            raise ConfigurationError("too much")
        found.append(letter)

    assert send_letter(send, message, ORIGIN, STATE, **given) is not None
    (letter,) = found
    read = original_of(letter)
    assert read is not None
    assert (read.origin.destination, read.message.message_id) == (ORIGIN.destination, "ID:1")
    assert letter.body == message.body
    return letter


@pytest.mark.parametrize("redirect", [False, True])
def test_what_is_too_long_is_shortened_and_what_nobody_takes_left_out(redirect: bool) -> None:
    message = replace(
        MESSAGE, properties={"huge": "x" * 10_100, "": "no name", "b\0": "1", "small": 5, "w": "\udc80"}
    )
    letter = sent(
        message, lambda letter: "" in letter.properties, redirect=redirect, max_property_characters=10_000
    )
    assert len(str(letter.properties["huge"])) <= 9_000
    assert (letter.properties["small"], letter.properties["w"]) == (5, "?")
    assert not {"", "b\0"} & set(letter.properties)
    assert letter.properties["JMS_Sun_JMSJCA_LeftOut"] == "shortened: 'huge', 'w'; left out: '', 'b\\x00'"
    assert letter.correlation_id == "c-1"


def test_of_many_properties_a_few_are_kept() -> None:
    message = replace(MESSAGE, properties={f"p{number}": "v" for number in range(985)})
    letter = sent(message, lambda letter: len(letter.properties) > 950)
    note = (
        "left out: 'p900', 'p901', 'p902', 'p903', 'p904', 'p905', 'p906', 'p907', 'p908', 'p909' and 75 more"
    )
    assert letter.properties["JMS_Sun_JMSJCA_LeftOut"] == note
    assert letter.properties["p899"] == "v"
    letter = sent(message, lambda letter: len(letter.properties) > 150)
    assert [name for name in letter.properties if name.startswith("p")] == [
        f"p{number}" for number in range(100)
    ]


def test_body_and_reason_are_what_is_left_at_last() -> None:
    """Also of a message whose headers nobody takes."""
    message = replace(MESSAGE, correlation_id="c" * 50_000, type="\0", properties={"a": "b"})
    assert sent(message, lambda letter: letter.type is not None).properties["JMS_Sun_JMSJCA_LeftOut"] == (
        "shortened: 'JMS_Sun_JMSJCA_OriginalJMSCorrelationID'; left out: 'correlation_id', 'type'"
    )
    letter = sent(message, lambda letter: "a" in letter.properties)
    assert letter.properties["JMS_Sun_JMSJCA_ExceptionMessage"] == "no more"
    assert letter.properties["JMS_Sun_JMSJCA_LeftOut"] == "everything but the body, and why it was moved"
    assert (letter.correlation_id, letter.reply_to) == (None, None)
    assert all(len(str(value)) <= 1_000 for value in letter.properties.values())


def test_what_cannot_be_sent_at_all_says_what_the_first_attempt_said() -> None:
    tried: list[int] = []

    def send(_: JmsMessage) -> None:
        tried.append(1)
        raise ConfigurationError(f"refused {len(tried)}")

    with pytest.raises(ConfigurationError, match="refused 1"):
        send_letter(send, MESSAGE, ORIGIN, STATE)
    assert len(tried) == 4


@pytest.mark.parametrize("prefix", ["JMS_Sun_JMSJCA_", "_JMSJCA_"])
def test_a_second_move_replaces_what_the_first_added_j166(prefix: str) -> None:
    """Also what the later software wrote, whose rollback data has no dot."""
    first = replace(copy_of(MESSAGE, ORIGIN, STATE), message_id="ID:9")
    written = {name.replace("JMS_Sun_JMSJCA_", prefix): value for name, value in first.properties.items()}
    if prefix == "_JMSJCA_":
        written["_JMSJCA_UserRollbackDatamode"] = written.pop("_JMSJCA_UserRollbackData.mode")
    first = replace(first, properties=written)
    origin = ConsumedFrom(destination=Destination.queue("dlq"))
    second = copy_of(first, origin, MessageState(seen=1))
    assert second.properties == {
        "region": "eu",
        "weight": 3,
        "_JMSJCA_JMSXGroupID": "g",
        "_JMSJCA_JMSXGroupSeq": 2,
        "JMS_Sun_JMSJCA_RedeliveryCount": 1,
        "JMS_Sun_JMSJCA_OriginalDestinationName": "dlq",
        "JMS_Sun_JMSJCA_OriginalDestinationType": "javax.jms.Queue",
        "JMS_Sun_JMSJCA_OriginalJMSMessageID": "ID:9",
        "JMS_Sun_JMSJCA_OriginalJMSCorrelationID": "c-1",
        "JMS_Sun_JMSJCA_OriginalJMSExpiration": 1_800_000_000_000,
    }


def test_passwords_in_an_exception_are_not_sent() -> None:
    """As in the URL of a database that a handler could not reach."""
    text = "no answer from postgresql://shop:s3cret@db/orders (password=s3cret)\nfor a//b and me@here"
    failure = Failure(class_names=("E",), message=text, stack_trace=f"line 1\n{text}")
    for limit in (None, 1000):
        letter = copy_of(MESSAGE, ORIGIN, MessageState(failure=failure), max_property_characters=limit)
        assert not any("s3cret" in str(value) for value in letter.properties.values())
        assert letter.properties["JMS_Sun_JMSJCA_ExceptionMessage"] == (
            "no answer from postgresql://***@db/orders (password=***\nfor a//***@here"
        )


def test_a_long_stack_trace_loses_its_middle() -> None:
    failure = Failure(class_names=("E",), message="m", stack_trace="begin" + "x" * 20_000 + "end")
    copy = copy_of(MESSAGE, ORIGIN, MessageState(failure=failure), max_property_characters=1000)
    trace = copy.properties["JMS_Sun_JMSJCA_ExceptionStackTrace"]
    assert isinstance(trace, str)
    assert len(trace) <= 1000
    assert trace.startswith("beginxxx")
    assert trace.endswith("xxxend")
    assert "... about 19008 of 20008 characters left out ..." in trace


@pytest.mark.parametrize("unit", ["\n", "é", "\N{GRINNING FACE}", ":", "\udc80", "\x00", "a"])
@pytest.mark.parametrize("limit", [10, 300])
def test_shortening_counts_what_the_wire_takes(unit: str, limit: int) -> None:
    failure = Failure(class_names=("E",), stack_trace=unit * 5000)
    properties = copy_of(
        MESSAGE, ORIGIN, MessageState(failure=failure), max_property_characters=None
    ).properties
    assert len(str(properties["JMS_Sun_JMSJCA_ExceptionStackTrace"])) == 5000
    origin = ConsumedFrom(destination=Destination.queue("q"))
    copy = copy_of(
        JmsMessage.empty(), origin, MessageState(failure=failure), max_property_characters=limit * 2
    )
    trace = str(copy.properties["JMS_Sun_JMSJCA_ExceptionStackTrace"])
    assert 0 < len(trace.encode()) + trace.count("\n") + trace.count(":") <= limit * 2


def test_user_properties_are_never_shortened() -> None:
    message = JmsMessage.text("t", {"mine": "x" * 1001})
    with pytest.raises(PermanentBrokerError, match=r"property 'mine' has 1001 characters.* at most 1000"):
        copy_of(message, ORIGIN, STATE, max_property_characters=1000)
    data = MessageState(rollback_data={"k": "x" * 1001})
    with pytest.raises(PermanentBrokerError, match=r"UserRollbackData\.k' has 1001"):
        copy_of(MESSAGE, ORIGIN, data, max_property_characters=1000)


def test_a_copy_can_be_read_back() -> None:
    arrived = replace(copy_of(MESSAGE, ORIGIN, STATE), message_id="ID:77", timestamp=5)
    letter = original_of(arrived)
    assert letter is not None
    assert letter.message == replace(MESSAGE, redelivered=False, delivery_count=None)
    assert letter.origin == ORIGIN
    assert letter.state == replace(
        STATE, failure=Failure(class_names=("shop.OutOfStock",), message="no more", stack_trace="at x")
    )


PROPERTY_NAMES = st.from_regex(r"(JMSXGroup|[a-z])[A-Za-z0-9]{0,8}", fullmatch=True)


@given(
    properties=st.dictionaries(
        PROPERTY_NAMES, st.text(max_size=20) | st.integers() | st.booleans(), max_size=5
    ),
    seen=st.integers(0, 10**6),
    data=st.dictionaries(st.from_regex(r"[A-Za-z]{1,8}", fullmatch=True), st.text(max_size=10), max_size=3),
    timestamp=st.none() | st.integers(0, 2**41),
)
@settings(max_examples=EXAMPLES)
def test_copy_and_original_are_inverse(
    properties: dict[str, str | int | bool],
    seen: int,
    data: dict[str, str],
    timestamp: int | None,
) -> None:
    message = JmsMessage(
        body_kind=MESSAGE.body_kind,
        body="t",
        properties=properties,
        message_id="ID:1",
        timestamp=timestamp,
        destination=ORIGIN.destination,
    )
    state = MessageState(seen=seen, rollback_data=data)
    letter = original_of(copy_of(message, ORIGIN, state))
    assert letter is not None
    assert letter.message == message
    assert letter.origin == ORIGIN
    assert letter.state == state
