from __future__ import annotations

import math
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import BodyKind, ItemType, JmsMessage, PropertyType
from airflow_provider_jmsjca.errors import SpoolError
from airflow_provider_jmsjca.spool.layout import MESSAGE_SCHEMA
from airflow_provider_jmsjca.spool.rows import Row, rows_to_table, table_to_messages

RECEIVED_AT = 1_700_000_000_123_456


def row(message: JmsMessage) -> Row:
    return Row(message=message, received_at=RECEIVED_AT)


def back(messages: list[JmsMessage]) -> list[JmsMessage]:
    table = rows_to_table([row(message) for message in messages], "b", 3)
    stored = list(table_to_messages(table))
    assert [item.undecodable for item in stored] == [None] * len(messages)
    assert [item.position for item in stored] == list(range(len(messages)))
    assert {item.segment for item in stored} <= {3}
    return [item.message for item in stored]


def test_columns_of_a_message_by_hand() -> None:
    message = JmsMessage.text(
        '{"a": "ü"}',
        {"region": "eu", "n": 5, "big": 2**40, "ok": True, "x": 1.5, "JMSXGroupID": "g", "JMSXGroupSeq": 7},
        property_types={"n": PropertyType.SHORT},
        message_id="ID:1",
        correlation_id="c",
        reply_to=Destination.topic("answers"),
        type="T",
        destination=Destination.queue("orders"),
        timestamp=1_600_000_000_001,
        expiration=1_600_000_060_001,
        priority=9,
        persistent=False,
        redelivered=True,
        delivery_count=2,
    )
    table = rows_to_table([row(message)], "d~~r~~t~~-1", 4)
    assert table.schema.equals(MESSAGE_SCHEMA)
    (found,) = table.to_pylist()
    assert found == {
        "message_id": "ID:1",
        "destination": "queue://orders",
        "correlation_id": "c",
        "reply_to": "topic://answers",
        "type": "T",
        "timestamp": datetime(2020, 9, 13, 12, 26, 40, 1000, tzinfo=UTC),
        "expiration": datetime(2020, 9, 13, 12, 27, 40, 1000, tzinfo=UTC),
        "received_at": datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC),
        "priority": 9,
        "persistent": False,
        "redelivered": True,
        "delivery_count": 2,
        "group_id": "g",
        "group_seq": 7,
        "body_type": "text",
        "body": b'{"a": "\xc3\xbc"}',
        "content_type": None,
        "properties": [
            ("region", "eu"),
            ("n", "5"),
            ("big", "1099511627776"),
            ("ok", "true"),
            ("x", "1.5"),
            ("JMSXGroupID", "g"),
            ("JMSXGroupSeq", "7"),
        ],
        "property_types": [
            ("n", "short"),
            ("big", "long"),
            ("ok", "boolean"),
            ("x", "double"),
            ("JMSXGroupSeq", "int"),
        ],
        "batch_id": "d~~r~~t~~-1",
        "segment": 4,
        "position": 0,
    }
    assert back([message]) == [message]


def test_a_message_that_never_expires_has_no_expiration() -> None:
    table = rows_to_table([row(JmsMessage.empty())], "b", 0)
    (found,) = table.to_pylist()
    assert found["expiration"] is None
    assert found["timestamp"] is None
    assert found["body"] is None
    assert found["body_type"] == "empty"


@pytest.mark.parametrize(
    ("message", "kind", "body"),
    [
        (JmsMessage.bytes(b"\x00\xff"), "bytes", b"\x00\xff"),
        (JmsMessage.object(b"\xac\xed"), "object", b"\xac\xed"),
        (
            JmsMessage.map({"a": 1, "b": b"\x01", "c": None, "d": 1.5, "e": "ü"}),
            "map",
            '{"a":1,"b":{"base64":"AQ=="},"c":null,"d":1.5,"e":"ü"}'.encode(),
        ),
        (
            JmsMessage.stream([True, math.inf, -math.inf]),
            "stream",
            b'[true,{"double":"Infinity"},{"double":"-Infinity"}]',
        ),
        (JmsMessage.text(""), "text", b""),
    ],
)
def test_bodies_by_hand(message: JmsMessage, kind: str, body: bytes) -> None:
    (found,) = rows_to_table([row(message)], "b", 0).to_pylist()
    assert (found["body_type"], found["body"]) == (kind, body)
    assert back([message]) == [message]


def test_not_a_number_comes_back() -> None:
    (found,) = back([JmsMessage.stream([math.nan])])
    assert isinstance(found.body, tuple)
    assert math.isnan(found.body[0])


def test_declared_item_types_come_back() -> None:
    messages = [
        JmsMessage.map({"a": 1, "c": "x"}, item_types={"a": ItemType.BYTE, "c": ItemType.CHAR}),
        JmsMessage.stream([7, 8], item_types={1: ItemType.LONG}),
    ]
    assert back(messages) == messages


@pytest.mark.parametrize("sequence", ["x", "-1", str(2**31), "", "1.0", True, 2**31])
def test_a_group_sequence_that_is_none_stays_a_property(sequence: object) -> None:
    message = JmsMessage(body_kind=BodyKind.EMPTY, properties={"JMSXGroupSeq": sequence})
    (found,) = rows_to_table([row(message)], "b", 0).to_pylist()
    assert found["group_seq"] is None
    assert back([message]) == [message]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"correlation_id": "a\ud800"}, "surrogates"),
        ({"properties": {"p": "\udfff"}}, "surrogates"),
        ({"timestamp": 253_402_300_800_000}, "not within the years 1 to 9999"),
        ({"priority": 1000}, "too large"),
        ({"delivery_count": 2**31}, "too large"),
        ({"properties": {"p": 2**64}}, "no JMS type can"),
        ({"body_kind": BodyKind.MAP, "body": {"a": object()}}, "not JSON serializable"),
    ],
)
def test_a_message_that_fits_no_row_is_kept_as_undecodable_and_holds_up_nobody(
    bad: dict[str, object], reason: str
) -> None:
    sound = JmsMessage.text("sound", message_id="ID:1")
    unfit = JmsMessage(**{"body_kind": BodyKind.TEXT, "body": "hello", "message_id": "ID:2", **bad})
    table = rows_to_table([row(sound), row(unfit), row(sound)], "b", 0)
    assert table.column("body_type").to_pylist() == ["text", "undecodable", "text"]
    first, second, third = table_to_messages(table)
    assert (first.message, third.message) == (sound, sound)
    assert second.message.message_id == "ID:2"
    assert second.message.body_kind is BodyKind.BYTES
    if "body" not in bad:
        assert second.message.body == b"hello"
    assert second.undecodable is not None
    assert reason in second.undecodable


def test_an_undecodable_message_keeps_its_bytes_and_its_properties() -> None:
    message = JmsMessage.bytes(b"\xff", {"a": "b"}, message_id="ID:1")
    table = rows_to_table([Row(message, RECEIVED_AT, "the text is not UTF-8")], "b", 0)
    (stored,) = table_to_messages(table)
    assert stored.message == message
    assert stored.undecodable == "the text is not UTF-8"
    assert table.column("properties").to_pylist() == [
        [("a", "b"), ("_JMSJCA_UndecodableReason", "the text is not UTF-8")]
    ]


def test_a_row_of_somebody_else_is_refused() -> None:
    table = rows_to_table([row(JmsMessage.text("x"))], "b", 0)
    index = table.schema.get_field_index("body_type")
    table = table.set_column(index, "body_type", pa.array(["video"]))
    with pytest.raises(
        SpoolError, match="segment 0 position 0: body_type 'video', expected one of text, bytes"
    ):
        list(table_to_messages(table))


NAMES = st.from_regex(r"[A-Za-z_$][A-Za-z0-9_$]{0,8}", fullmatch=True).filter(
    lambda name: (
        name.upper()
        not in {"NULL", "TRUE", "FALSE", "NOT", "AND", "OR", "BETWEEN", "LIKE", "IN", "IS", "ESCAPE"}
        and not name.startswith("JMS")
    )
)
NUMBERS = st.floats(allow_nan=False)
VALUES = st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), NUMBERS, st.text(max_size=8))
ITEMS = st.one_of(VALUES, st.binary(max_size=8))
HEADERS = {
    "properties": st.dictionaries(NAMES, VALUES, max_size=4),
    "message_id": st.none() | st.text(max_size=12),
    "correlation_id": st.none() | st.text(max_size=12),
    "type": st.none() | st.text(max_size=12),
    "reply_to": st.none() | st.text(min_size=1, max_size=8).map(Destination.topic),
    "destination": st.none() | st.text(min_size=1, max_size=8).map(Destination.queue),
    "timestamp": st.none() | st.integers(0, 4_000_000_000_000),
    "expiration": st.integers(0, 4_000_000_000_000),
    "priority": st.integers(0, 9),
    "persistent": st.booleans(),
    "redelivered": st.booleans(),
    "delivery_count": st.none() | st.integers(0, 2**31 - 1),
}
MESSAGES = st.one_of(
    st.builds(JmsMessage.text, st.text(max_size=30), **HEADERS),
    st.builds(JmsMessage.bytes, st.binary(max_size=30), **HEADERS),
    st.builds(JmsMessage.object, st.binary(max_size=30), **HEADERS),
    st.builds(JmsMessage.map, st.dictionaries(st.text(min_size=1, max_size=6), ITEMS, max_size=4), **HEADERS),
    st.builds(JmsMessage.stream, st.lists(ITEMS, max_size=4), **HEADERS),
    st.builds(JmsMessage.empty, **HEADERS),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(MESSAGES, max_size=6))
def test_messages_of_all_kinds_come_back_from_a_segment(messages: list[JmsMessage]) -> None:
    assert back(messages) == messages


def test_blanks_at_the_ends_of_a_destination_stay() -> None:
    messages = [
        JmsMessage.text("a", destination=Destination.queue(" a "), reply_to=Destination.topic("b\x85"))
    ]
    assert back(messages) == messages
