from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_jmsjca import message_from_event, messages_from_event
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.triggers.payload import (
    Fit,
    Payload,
    batch_event,
    failure,
    failure_of,
    fit,
    listed_outcomes,
    may_be_held,
    message_content,
    message_event,
    with_held_keys,
    with_listed_outcome,
)

ORDERS = Destination.queue("orders")


def test_the_whole_message_comes_back_from_the_event() -> None:
    message = JmsMessage.map({"n": 1, "b": b"\x00"}, {"region": "eu"}, correlation_id="c")
    event = message_event("jms_default", message_content(ORDERS, message, Payload.MESSAGE))
    event = json.loads(json.dumps(event))
    assert event["destination"] == "queue://orders"
    assert JmsMessage.from_json(event["message"]) == message
    assert message_from_event(event) == message
    assert message_from_event(SimpleNamespace(extra={"from_trigger": True, "payload": event})) == message
    assert messages_from_event({"payload": event}) == (message,)


def test_the_messages_of_a_batch_come_back_in_their_order() -> None:
    messages = [JmsMessage.text(text) for text in "abc"]
    event = batch_event("c", [message_content(ORDERS, each, Payload.MESSAGE) for each in messages])
    assert messages_from_event(json.loads(json.dumps(event))) == tuple(messages)
    assert [message_from_event(each) for each in event["messages"]] == messages
    with pytest.raises(ConfigurationError, match="it has several messages"):
        message_from_event(event)


@pytest.mark.parametrize(
    ("event", "fault"),
    [
        (None, "got NoneType, expected one of triggering_asset_events"),
        (SimpleNamespace(extra=3), "got SimpleNamespace, expected one of"),
        ({"event": "ready"}, "it carries no message"),
        ({"event": "message", "headers": {}}, "it carries no message"),
        ({"messages": 5}, "messages is not a list"),
        ({"message": {}}, "version"),
        ({"reference": {}}, "reference: expected uri, sha256 and bytes"),
        (
            {"reference": {"uri": "file:///etc/passwd", "sha256": "0" * 64, "bytes": 1}},
            "not a message in a spool",
        ),
    ],
)
def test_other_events_are_refused(event: Any, fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        messages_from_event(event)


def test_headers_alone_have_no_body() -> None:
    event = message_content(ORDERS, JmsMessage.text("secret", {"region": "eu"}), Payload.HEADERS)
    assert "secret" not in json.dumps(event)
    assert event["headers"]["properties"] == {"region": "eu"}


@pytest.mark.parametrize(
    ("message", "size"),
    [
        (JmsMessage.text("abc"), 5),  # "abc"
        (JmsMessage.text("é"), 8),  # "\u00e9"
        (JmsMessage.bytes(b"\x00\xff"), 18),  # {"base64": "AP8="}
        (JmsMessage.empty(), 4),  # null
        (JmsMessage.map({"a": "x"}), 10),  # {"a": "x"}
        (JmsMessage.text("abc", properties={"p": "x"}), 15),  # and {"p": "x"}
    ],
)
def test_a_body_is_measured_as_json(message: JmsMessage, size: int) -> None:
    assert fit(message, size, Payload.MESSAGE) is Fit.WHOLE
    assert fit(message, size - 1, Payload.MESSAGE) is Fit.SEALED


@pytest.mark.parametrize("body", ["", "x" * 1000])
@pytest.mark.parametrize(
    ("form", "fits"), [(Payload.HEADERS, Fit.WHOLE), (Payload.REFERENCE, Fit.SEALED), (Payload.MESSAGE, None)]
)
def test_properties_alone_may_be_too_large(body: str, form: Payload, fits: Fit | None) -> None:
    message = JmsMessage.text(body, properties={"p": "x" * 90})
    limit = len('{"p": ""}') + 90
    assert fit(message, limit, form) is (fits or Fit.SEALED)
    assert fit(message, limit - 1, form) is Fit.NOT


def test_the_list_of_held_messages_loses_keys_without_a_record_when_it_has_doubled() -> None:
    kept: Any = None
    assert may_be_held(kept, "a"), "without a list there may be a record"
    for number in range(257):
        kept = with_held_keys(kept, [str(number)], lambda key: int(key) >= 200)
    assert [key for key in map(str, range(257)) if may_be_held(kept, key)] == list(map(str, range(200, 257)))
    assert not may_be_held(with_held_keys(kept, ["a"], bool), "b")


@pytest.mark.parametrize("kept", [3, [], {"keys": 3}, {"keys": [3]}])
def test_a_list_that_a_task_has_overwritten_is_made_again(kept: Any) -> None:
    assert may_be_held(with_held_keys(kept, ["a"], bool), "a")


def test_the_last_words_are_listed() -> None:
    kept: Any = "a task wrote this"
    for number in range(600):
        kept = with_listed_outcome(kept, str(number), {"acknowledged": True})
    assert list(listed_outcomes(kept)) == list(map(str, range(100, 600)))
    assert listed_outcomes(kept)["599"] == {"acknowledged": True}


def test_the_exception_of_a_task_is_its_class_and_its_first_line() -> None:
    record = failure(ValueError("no secret\nsecond line"), 2, lambda text: text.replace("secret", "***"))
    assert failure_of(json.dumps(record), 2) == "ValueError: no ***"
    assert failure(KeyboardInterrupt(), 1, str)["error"] == "KeyboardInterrupt"
    assert len(failure(ValueError("x" * 9_000), 1, str)["error"]) == len("ValueError: ") + 300


def test_a_record_of_another_try_or_of_somebody_else_says_nothing() -> None:
    """The process of a later try may have been killed; tasks can write any value."""
    record = failure(ValueError("x"), 1, str)
    for found in (record, None, 3, [], {}, {"try": 2}, {"try": 2, "error": 5}):
        assert failure_of(json.dumps(found), 2) == ""
    for text in (None, "", "{", "ValueError"):
        assert failure_of(text, 2) == ""
