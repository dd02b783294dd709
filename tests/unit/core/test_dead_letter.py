"""Moved messages: J149-J168, P15."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.dead_letter import (
    Origin,
    PropertyPrefix,
    copy_of,
    original_of,
    redirect_of,
)
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.message import JmsMessage, PropertyType
from airflow_provider_jmsjca.core.redelivery import MessageState
from airflow_provider_jmsjca.errors import PermanentBrokerError, PoisonMessageError

EXAMPLES = int(os.environ.get("JMSJCA_EXAMPLES", "200"))

ORIGIN = Origin(
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
            "JMS_Sun_JMSJCA_ExceptionClass": "shop.OutOfStock",
            "JMS_Sun_JMSJCA_ExceptionMessage": "no more",
            "JMS_Sun_JMSJCA_ExceptionStackTrace": "at x",
            "JMS_Sun_JMSJCA_UserRollbackData.mode": "permanent",
        },
        property_types={"weight": PropertyType.BYTE, "_JMSJCA_JMSXGroupSeq": PropertyType.INT},
        correlation_id="c-1",
        reply_to=Destination.queue("answers"),
        type="order",
        expiration=1_800_000_000_000,
        priority=7,
        persistent=False,
    )


def test_j166_later_prefix_and_absent_values() -> None:
    bare = JmsMessage.empty(message_id="ID:2")
    origin = Origin(destination=Destination.queue("orders"))
    copy = copy_of(bare, origin, MessageState(rollback_data={"k": "v"}), prefix=PropertyPrefix.LATER)
    assert copy.properties == {
        "_JMSJCA_RedeliveryCount": 0,
        "_JMSJCA_OriginalDestinationName": "orders",
        "_JMSJCA_OriginalDestinationType": "javax.jms.Queue",
        "_JMSJCA_OriginalJMSMessageID": "ID:2",
        "_JMSJCA_UserRollbackDatak": "v",
    }


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
    copy = copy_of(message, ORIGIN, STATE)
    assert (copy.body_kind, copy.body) == (message.body_kind, message.body)


def test_j168_headers_are_kept_without_user_properties() -> None:
    message = JmsMessage.text("t", correlation_id="c", reply_to=Destination.queue("r"), type="k")
    copy = copy_of(message, Origin(destination=Destination.queue("q")), MessageState())
    assert (copy.correlation_id, copy.reply_to, copy.type) == ("c", Destination.queue("r"), "k")


def test_j167_redirect_adds_nothing() -> None:
    message = replace(MESSAGE, properties={**MESSAGE.properties, "JMSXDeliveryCount": 9})
    assert redirect_of(message) == replace(
        MESSAGE, message_id=None, destination=None, timestamp=None, redelivered=False, delivery_count=None
    )
    assert original_of(redirect_of(message)) is None


def test_a_second_move_replaces_what_the_first_added() -> None:
    first = replace(copy_of(MESSAGE, ORIGIN, STATE), message_id="ID:9")
    origin = Origin(destination=Destination.queue("dlq"))
    second = copy_of(first, origin, MessageState(seen=1), prefix=PropertyPrefix.LATER)
    assert second.properties == {
        "region": "eu",
        "weight": 3,
        "_JMSJCA_JMSXGroupID": "g",
        "_JMSJCA_JMSXGroupSeq": 2,
        "_JMSJCA_RedeliveryCount": 1,
        "_JMSJCA_OriginalDestinationName": "dlq",
        "_JMSJCA_OriginalDestinationType": "javax.jms.Queue",
        "_JMSJCA_OriginalJMSMessageID": "ID:9",
        "_JMSJCA_OriginalJMSCorrelationID": "c-1",
    }


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
    origin = Origin(destination=Destination.queue("q"))
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


def test_original_of_reads_a_copy_back() -> None:
    arrived = replace(copy_of(MESSAGE, ORIGIN, STATE), message_id="ID:77", timestamp=5)
    letter = original_of(arrived)
    assert letter is not None
    assert letter.message == replace(MESSAGE, redelivered=False, delivery_count=None)
    assert letter.origin == ORIGIN
    assert letter.state == replace(
        STATE, failure=Failure(class_names=("shop.OutOfStock",), message="no more", stack_trace="at x")
    )


def test_original_of_reads_properties_that_became_strings() -> None:
    message = JmsMessage(
        body_kind=MESSAGE.body_kind,
        body="t",
        properties={
            "_JMSJCA_OriginalDestinationName": "q",
            "_JMSJCA_OriginalDestinationType": "jakarta.jms.Queue",
            "_JMSJCA_RedeliveryCount": "12",
            "_JMSJCA_OriginalTimestamp": "99",
            "_JMSJCA_UserRollbackData.old": "dotted",
        },
    )
    letter = original_of(message)
    assert letter is not None
    assert letter.state.seen == 12
    assert letter.message.timestamp == 99
    assert letter.origin.destination == Destination.queue("q")
    assert letter.state.rollback_data == {"old": "dotted"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RedeliveryCount", "many"),
        ("OriginalTimestamp", "x"),
        ("OriginalDestinationType", "Heap"),
        ("OriginalDestinationName", ""),
    ],
)
def test_original_of_refuses_forged_properties(name: str, value: str) -> None:
    copy = copy_of(MESSAGE, ORIGIN, STATE)
    forged = replace(copy, properties={**copy.properties, f"JMS_Sun_JMSJCA_{name}": value})
    with pytest.raises(PoisonMessageError, match=name):
        original_of(forged)


def test_original_of_ignores_ordinary_messages() -> None:
    assert original_of(MESSAGE) is None


PROPERTY_NAMES = st.from_regex(r"(JMSXGroup|[a-z])[A-Za-z0-9]{0,8}", fullmatch=True)


@given(
    properties=st.dictionaries(
        PROPERTY_NAMES, st.text(max_size=20) | st.integers() | st.booleans(), max_size=5
    ),
    seen=st.integers(0, 10**6),
    data=st.dictionaries(st.from_regex(r"[A-Za-z]{1,8}", fullmatch=True), st.text(max_size=10), max_size=3),
    prefix=st.sampled_from(list(PropertyPrefix)),
    timestamp=st.none() | st.integers(0, 2**41),
)
@settings(max_examples=EXAMPLES)
def test_copy_and_original_are_inverse(
    properties: dict[str, str | int | bool],
    seen: int,
    data: dict[str, str],
    prefix: PropertyPrefix,
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
    letter = original_of(copy_of(message, ORIGIN, state, prefix=prefix))
    assert letter is not None
    assert letter.message == message
    assert letter.origin == ORIGIN
    assert letter.state == state
