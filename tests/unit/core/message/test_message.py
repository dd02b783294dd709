"""JMS messages as values: the constructors and what they refuse (JMS 2.0 chapter 3)."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import (
    BodyKind,
    ItemType,
    JmsMessage,
    PropertyType,
    unchecked_message,
)
from airflow_provider_jmsjca.core.message.message import with_stable_id
from airflow_provider_jmsjca.errors import ConfigurationError


@pytest.mark.parametrize(
    ("message", "kind", "body"),
    [
        (JmsMessage.text("hello"), BodyKind.TEXT, "hello"),
        (JmsMessage.bytes(bytearray(b"\x00\xff")), BodyKind.BYTES, b"\x00\xff"),
        (JmsMessage.map({"a": 1, "b": None}), BodyKind.MAP, {"a": 1, "b": None}),
        (JmsMessage.stream([1, b"x", "y"]), BodyKind.STREAM, (1, b"x", "y")),
        (JmsMessage.object(b"\xac\xed"), BodyKind.OBJECT, b"\xac\xed"),
        (JmsMessage.empty(), BodyKind.EMPTY, None),
    ],
)
def test_there_is_a_constructor_for_each_of_the_six_kinds(
    message: JmsMessage, kind: BodyKind, body: object
) -> None:
    assert (message.body_kind, message.body) == (kind, body)
    assert (message.priority, message.persistent, message.redelivered) == (4, True, False)


def test_headers_and_properties_are_taken_as_given() -> None:
    reply_to = Destination.queue("answers")
    message = JmsMessage.text(
        "x", {"region": "eu"}, type="order", correlation_id="c1", reply_to=reply_to, priority=9
    )
    assert message.properties == {"region": "eu"}
    assert (message.type, message.correlation_id, message.reply_to) == ("order", "c1", reply_to)
    assert message.priority == 9


def test_changing_what_was_handed_in_changes_no_message() -> None:
    properties: dict[str, Any] = {"a": 1}
    items: list[Any] = [1]
    message = JmsMessage.stream(items, properties)
    properties["a"] = 2
    items.append(2)
    assert (message.properties, message.body) == ({"a": 1}, (1,))


def test_a_message_can_be_pickled_copied_and_put_in_a_set() -> None:
    message = JmsMessage.map({"a": 1}, {"n": 2}, item_types={"a": ItemType.BYTE})
    assert pickle.loads(pickle.dumps(message)) == message  # noqa: S301 - our own bytes
    assert copy.deepcopy(message) == message
    assert {message, JmsMessage.map({"a": 1}, {"n": 2}, item_types={"a": ItemType.BYTE})} == {message}


@pytest.mark.parametrize(
    "name",
    ["region", "_x", "$x", "größe", "a1", "JMSXGroupID", "JMSXGroupSeq", "JMS_vendor", "JMSJCATimestamp"],
)
def test_property_names_that_jms_allows(name: str) -> None:
    assert JmsMessage.empty({name: "v"}).properties == {name: "v"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "position 1: expected a Java identifier"),
        ("1a", "position 1: expected a Java identifier"),
        ("a-b", "position 2: expected a Java identifier"),
        ("a b", "position 2"),
        ("JMSJCA.batchSize", "position 7"),
        ("null", "reserved word"),
        ("Between", "reserved word"),
        ("JMSXDeliveryCount", "only JMSXGroupID and JMSXGroupSeq"),
        ("JMSXAnything", "only JMSXGroupID and JMSXGroupSeq"),
        ("JMSType", "names beginning with JMS are reserved"),
        (7, "expected text, not int"),
    ],
)
def test_property_names_that_jms_refuses(name: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        JmsMessage.empty({name: "v"})


@pytest.mark.parametrize(
    ("value", "declared"),
    [
        (127, "byte"),
        (-128, "byte"),
        (32767, "short"),
        (-(2**31), "int"),
        (2**63 - 1, "long"),
        (1, "double"),
        (1.5, "float"),
        (True, "boolean"),
        ("x", "string"),
    ],
)
def test_values_that_fit_their_declared_type(value: Any, declared: str) -> None:
    message = JmsMessage.empty({"p": value}, property_types={"p": PropertyType(declared)})
    assert message.properties["p"] == value


@pytest.mark.parametrize(
    ("value", "declared", "text"),
    [
        (128, "byte", "expected a byte: 8 bits with sign"),
        (-32769, "short", "expected a short"),
        (2**31, "int", "expected an int"),
        (2**63, "long", "expected a long"),
        (2**63, None, "64 bits"),
        (True, "int", "expected an int, not bool"),
        (1.0, "long", "expected a long, not float"),
        ("1", "int", "expected an int, not str"),
        (1, "string", "expected a string, not int"),
        (1, "boolean", "expected a boolean, not int"),
        (1e39, "float", "range of a Java float"),
        (10**400, "double", "range of a Java double"),
        ("x", "char", "not 'char'"),
        (b"x", None, "expected one of bool, int, float, str or None, not bytes"),
        ([1], None, "not list"),
        ("\ud800", None, "position 1: expected Unicode text, found a lone surrogate"),
    ],
)
def test_values_that_no_property_can_hold(value: Any, declared: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        JmsMessage.empty({"p": value}, property_types={"p": declared} if declared else {})


def test_a_value_declared_float_is_rounded_as_java_would() -> None:
    message = JmsMessage.empty({"p": 0.1}, property_types={"p": PropertyType.FLOAT})
    assert message.properties["p"] == 0.10000000149011612


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({"priority": 10}, "header priority: value 10: expected 0"),
        ({"priority": -1}, "header priority"),
        ({"priority": True}, "header priority"),
        ({"priority": "4"}, "header priority"),
        ({"expiration": -1}, "header expiration"),
        ({"timestamp": 1.5}, "header timestamp"),
        ({"persistent": 1}, "header persistent"),
        ({"reply_to": "queue://q"}, "header reply_to.*a Destination or None"),
        ({"type": 1}, "header type"),
        ({"correlation_id": b"x"}, "header correlation_id"),
    ],
)
def test_headers_that_are_refused(headers: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        JmsMessage.text("x", **headers)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: JmsMessage.text(b"x"), "text body: expected str, not bytes"),  # type: ignore[arg-type]  # on purpose
        (lambda: JmsMessage.bytes("x"), "bytes body: expected bytes, not str"),  # type: ignore[arg-type]  # on purpose
        (lambda: JmsMessage.map([1]), "map body: expected a mapping"),  # type: ignore[arg-type]  # on purpose
        (lambda: JmsMessage.map({"": 1}), "map item ''"),
        (lambda: JmsMessage.map({"a": {}}), "map item 'a'"),  # type: ignore[dict-item]  # on purpose
        (lambda: JmsMessage.stream("x"), "stream body: expected a sequence"),
        (lambda: JmsMessage.stream([2**64]), "stream item 0"),
        (lambda: JmsMessage.stream([1], item_types={1: ItemType.INT}), "no such item"),
        (lambda: JmsMessage.text("a\udfff"), "text body: position 2"),
        (lambda: JmsMessage.empty(property_types={"a": PropertyType.INT}), "no such property"),
    ],
)
def test_bodies_that_are_refused(build: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        build()


def test_all_faults_are_reported_together() -> None:
    with pytest.raises(ConfigurationError) as caught:
        JmsMessage.map({"": 2**64}, {"a-b": 1, "c": []}, priority=11)  # type: ignore[dict-item]  # on purpose
    assert len(caught.value.faults) == 5


def test_an_unknown_header_is_a_programming_error() -> None:
    with pytest.raises(TypeError, match="colour"):
        JmsMessage.empty(colour="red")  # type: ignore[call-arg]  # on purpose


def test_a_message_made_unchecked_is_like_any_other() -> None:
    """It's made in another way, for speed."""
    values: dict[str, Any] = {
        "body_kind": BodyKind.TEXT,
        "body": "x",
        "properties": {"n": 1},
        "message_id": "ID:1",
        "correlation_id": "c",
        "reply_to": Destination.queue("answers"),
        "type": "t",
        "destination": Destination.queue("orders"),
        "timestamp": 1,
        "expiration": 2,
        "priority": 3,
        "persistent": False,
        "redelivered": True,
        "delivery_count": 4,
    }
    assert list(values) == [each.name for each in fields(JmsMessage)][: len(values)]
    message = unchecked_message(*values.values())
    assert type(message) is JmsMessage
    assert message == JmsMessage(**values)
    assert replace(message, priority=4) == JmsMessage(**(values | {"priority": 4}))
    with pytest.raises(FrozenInstanceError):
        message.priority = 5  # type: ignore[misc]  # that's what is tested
    assert pickle.loads(pickle.dumps(message)) == message  # noqa: S301 - our own


def test_what_stands_for_a_missing_id_is_the_same_at_each_delivery() -> None:
    message = JmsMessage.text("x", {"order": 7})
    again = replace(
        message, redelivered=True, delivery_count=2, properties={"order": 7, "JMSXDeliveryCount": 2}
    )
    digest = with_stable_id(message, "digest").message_id
    assert digest is not None
    assert digest.startswith("digest=")
    assert with_stable_id(again, "digest").message_id == digest
    assert with_stable_id(JmsMessage.text("x", {"order": 8}), "digest").message_id != digest
    assert with_stable_id(JmsMessage.bytes(b"x", {"order": 7}), "digest").message_id != digest
    assert with_stable_id(again, "property:order").message_id == "order=7"
    assert with_stable_id(JmsMessage.text("x", {"order": ""}), "property:order").message_id is None
    assert with_stable_id(message, "property:other").message_id is None
    known = replace(message, message_id="ID:1")
    assert with_stable_id(known, "digest") is known
