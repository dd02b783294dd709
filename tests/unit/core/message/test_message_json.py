"""The JSON form of messages: plain, stable, exact on the way back."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.message import BodyKind, ItemType, JmsMessage, PropertyType
from airflow_provider_jmsjca.errors import ConfigurationError

EXAMPLES = int(os.environ.get("JMSJCA_EXAMPLES", "300"))


def test_the_form_is_written_down() -> None:
    message = JmsMessage.text(
        "hello",
        {"region": "eu", "n": 1},
        property_types={"n": PropertyType.BYTE},
        reply_to=Destination.topic("a"),
        message_id="ID:1",
    )
    assert message.to_json() == {
        "version": 1,
        "body_kind": "text",
        "body": "hello",
        "properties": {"region": "eu", "n": 1},
        "property_types": {"n": "byte"},
        "item_types": {},
        "message_id": "ID:1",
        "correlation_id": None,
        "reply_to": "topic://a",
        "type": None,
        "destination": None,
        "timestamp": None,
        "expiration": 0,
        "priority": 4,
        "persistent": True,
        "redelivered": False,
        "delivery_count": None,
    }


@pytest.mark.parametrize(
    ("message", "body"),
    [
        (JmsMessage.bytes(b"\x00\xff"), {"base64": "AP8="}),
        (JmsMessage.object(b""), {"base64": ""}),
        (JmsMessage.empty(), None),
        (JmsMessage.map({"a": 1, "b": b"x", "c": None}), {"a": 1, "b": {"base64": "eA=="}, "c": None}),
        (JmsMessage.stream([1.5, True, math.inf]), [1.5, True, {"number": "Infinity"}]),
        (JmsMessage.text("a\x00"), {"utf8": "YQA="}),
        (JmsMessage.map({"\x00": 1}), [[{"utf8": "AA=="}, 1]]),
    ],
)
def test_bodies(message: JmsMessage, body: object) -> None:
    data = message.to_json()
    assert data["body"] == body
    assert JmsMessage.from_json(data) == message


def test_names_of_a_map_that_no_json_text_can_hold_survive_with_their_types() -> None:
    message = JmsMessage(
        body_kind=BodyKind.MAP, body={"\ud800": True}, item_types={"\ud800": ItemType.BOOLEAN}
    )
    data = json.loads(json.dumps(message.to_json(), ensure_ascii=False).encode())
    assert data["item_types"] == [[{"utf8": "7aCA"}, "boolean"]]
    assert JmsMessage.from_json(data) == message


def test_not_a_number_survives() -> None:
    message = JmsMessage.from_json(JmsMessage.empty({"n": math.nan, "m": -math.inf}).to_json())
    assert math.isnan(message.properties["n"])  # type: ignore[arg-type]  # a float
    assert message.properties["m"] == -math.inf


def test_a_priority_that_only_rabbitmq_knows_survives() -> None:
    message = replace(JmsMessage.text("x"), priority=255)
    assert JmsMessage.from_json(message.to_json()) == message


def test_huge_text_survives() -> None:
    message = JmsMessage.text("é" * 5_000_000)
    assert JmsMessage.from_json(json.loads(json.dumps(message.to_json()))) == message


texts = st.text(st.characters(codec=None), max_size=10)  # lone surrogates too: brokers send them
names = st.text(max_size=5)
values = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | texts
items = values | st.binary(max_size=10)
destinations = st.none() | st.builds(Destination, st.sampled_from(DestinationKind), st.text(min_size=1))
bodies = st.one_of(
    st.tuples(st.just(BodyKind.TEXT), texts),
    st.tuples(st.sampled_from([BodyKind.BYTES, BodyKind.OBJECT]), st.binary()),
    st.tuples(st.just(BodyKind.MAP), st.dictionaries(texts, items)),
    st.tuples(st.just(BodyKind.STREAM), st.lists(items).map(tuple)),
    st.just((BodyKind.EMPTY, None)),
)


@st.composite
def messages(draw: Any) -> JmsMessage:
    kind, body = draw(bodies)
    keys = list(body) if kind is BodyKind.MAP else range(len(body)) if kind is BodyKind.STREAM else []
    return JmsMessage(
        body_kind=kind,
        body=body,
        properties=draw(st.dictionaries(names, values)),
        property_types=draw(st.dictionaries(names, st.sampled_from(PropertyType))),
        item_types={key: draw(st.sampled_from(ItemType)) for key in keys if draw(st.booleans())},
        message_id=draw(st.none() | texts),
        correlation_id=draw(st.none() | texts),
        reply_to=draw(destinations),
        type=draw(st.none() | texts),
        destination=draw(destinations),
        timestamp=draw(st.none() | st.integers(0, 2**63 - 1)),
        expiration=draw(st.integers(0, 2**63 - 1)),
        priority=draw(st.integers(0, 255)),
        persistent=draw(st.booleans()),
        redelivered=draw(st.booleans()),
        delivery_count=draw(st.none() | st.integers(0, 2**31)),
    )


def types_of(message: JmsMessage) -> list[type]:
    body = message.body
    inside: list[Any] = [*message.properties.values()]
    inside += body.values() if isinstance(body, dict) else body if isinstance(body, tuple) else [body]
    return [type(value) for value in inside]


@given(messages())
@settings(max_examples=EXAMPLES, deadline=None)
def test_every_message_survives_a_round_trip_through_strict_json(message: JmsMessage) -> None:
    text = json.dumps(message.to_json(), allow_nan=False, ensure_ascii=False)
    text.encode()
    restored = JmsMessage.from_json(json.loads(text))
    assert restored == message
    assert types_of(restored) == types_of(message)
    assert restored.to_json() == message.to_json()


VALID = JmsMessage.text("x").to_json()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ([], "expected a JSON object, not list"),
        ({}, "version: value None: expected 1"),
        ({**VALID, "version": 2}, "version: value 2: expected 1"),
        ({**VALID, "colour": 1}, "unknown key 'colour'"),
        ({**VALID, "body_kind": "song"}, "body_kind: value 'song': expected one of text, bytes"),
        ({**VALID, "body_kind": []}, "body_kind"),
        ({**VALID, "body": 5}, "body: value 5: expected text"),
        ({**VALID, "body_kind": "bytes"}, "body: value 'x': expected the form of a body of kind 'bytes'"),
        ({**VALID, "body_kind": "bytes", "body": {"base64": "?"}}, "body: value '\\?': expected base64"),
        ({**VALID, "body_kind": "map", "body": [1]}, "form of a body of kind 'map'"),
        ({**VALID, "body_kind": "stream", "body": {}}, "form of a body of kind 'stream'"),
        ({**VALID, "body_kind": "empty"}, "form of a body of kind 'empty'"),
        ({**VALID, "properties": []}, "properties: value \\[\\]: expected a JSON object"),
        ({**VALID, "properties": {"a": []}}, "properties.a"),
        ({**VALID, "properties": {"a": {"base64": "AA=="}}}, "properties.a"),
        ({**VALID, "properties": {"a": math.nan}}, "properties.a"),
        (
            {**VALID, "property_types": {"a": "char"}},
            "property_types.a: value 'char': expected one of boolean",
        ),
        ({**VALID, "body_kind": "stream", "body": [], "item_types": {"x": "int"}}, "index of an item"),
        ({**VALID, "reply_to": "answers"}, "reply_to: value 'answers': expected queue://name"),
        ({**VALID, "priority": 256}, "priority: value 256: expected 0"),
        ({**VALID, "timestamp": "now"}, "timestamp"),
        ({**VALID, "type": 5}, "type: value 5"),
    ],
)
def test_what_is_no_message_is_refused(data: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        JmsMessage.from_json(data)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from(["base64", "map"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["base64", "utf8", "number", "a", "0"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(
    st.dictionaries(st.sampled_from(sorted(VALID)), json_values), st.sampled_from([*map(str, BodyKind), None])
)
@settings(max_examples=EXAMPLES, deadline=None)
def test_any_json_is_a_message_or_a_configuration_error(changes: dict[str, Any], kind: str | None) -> None:
    data = {**VALID, **changes, **({"body_kind": kind} if kind else {})}
    try:
        message = JmsMessage.from_json(data)
    except ConfigurationError:
        return
    assert JmsMessage.from_json(message.to_json()).to_json() == message.to_json()
