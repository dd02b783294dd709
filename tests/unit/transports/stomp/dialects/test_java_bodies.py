"""What ActiveMQ writes of Java's maps is read with its types; what only looks like it stays text."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.message import BodyKind, ItemType, JmsMessage
from airflow_provider_jmsjca.transports.stomp.dialects.java_bodies import with_map


def entry(name: str, value: str) -> str:
    return f"\n  <entry>\n    <string>{name}</string>\n    {value}\n  </entry>"


def document(*entries: str) -> str:
    return "<map>" + "".join(entries) + "\n</map>"


# As ActiveMQ 6.3.1 wrote a map of Java's client.
ALL_TYPES = document(
    entry("bool", "<boolean>true</boolean>"),
    entry("string", "<string>12</string>"),
    entry("byte", "<byte>-7</byte>"),
    entry("short", "<short>300</short>"),
    entry("char", "<char>x</char>"),
    entry("nul", "<char></char>"),
    entry("int", "<int>12</int>"),
    entry("long", "<long>1099511627776</long>"),
    entry("float", "<float>1.5</float>"),
    entry("double", "<double>-2.5E-10</double>"),
    entry("infinite", "<double>-Infinity</double>"),
    entry("bytes", "<byte-array>AQL9</byte-array>"),
    entry("empty", "<string></string>"),
    entry("null", "<null/>"),
    entry("a&lt;b&gt;", "<string> &amp;amp; &quot;q&apos; \n\t&#xd; é &#x1;</string>"),
)


def test_all_ten_types_and_null() -> None:
    message = with_map(JmsMessage.text(ALL_TYPES, {"transformation": "jms-map-xml", "region": "eu"}))
    assert message.body_kind is BodyKind.MAP
    assert message.body == {
        "bool": True,
        "string": "12",
        "byte": -7,
        "short": 300,
        "char": "x",
        "nul": "\0",
        "int": 12,
        "long": 2**40,
        "float": 1.5,
        "double": -2.5e-10,
        "infinite": -math.inf,
        "bytes": b"\x01\x02\xfd",
        "empty": "",
        "null": None,
        "a<b>": " &amp; \"q' \n\t\r é \x01",
    }
    assert message.item_types == {
        "byte": ItemType.BYTE,
        "short": ItemType.SHORT,
        "char": ItemType.CHAR,
        "nul": ItemType.CHAR,
        "long": ItemType.LONG,
        "float": ItemType.FLOAT,
    }
    assert message.properties == {"region": "eu"}
    assert JmsMessage.from_json(message.to_json()) == message


def test_an_empty_map() -> None:
    message = with_map(JmsMessage.text("<map/>"))
    assert (message.body_kind, message.body) == (BodyKind.MAP, {})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<map>",
        "<map></map>",
        "<map/> ",
        document(entry("a", "<int>1</int>")) + "\n",
        document(entry("a", "<int>1</int>"), entry("a", "<int>2</int>")),
        document(entry("a", "<int>4294967296</int>")),
        document(entry("a", "<int>1_0</int>")),
        document(entry("a", "<byte>128</byte>")),
        document(entry("a", "<char>ab</char>")),
        document(entry("a", "<boolean>True</boolean>")),
        document(entry("a", "<double>1e5</double>")),
        document(entry("a", "<byte-array>AQL</byte-array>")),
        document(entry("a", "<string>&nbsp;</string>")),
        document(entry("a", "<string>&#x110000;</string>")),
        document(entry("a", "<string>a</int>")),
        document(entry("a", "<list/>")),
        document(entry("a", "<java.util.Date>1</java.util.Date>")),
        "<!DOCTYPE map [<!ENTITY a 'b'>]>" + document(entry("a", "<string>&a;</string>")),
    ],
)
def test_any_other_text_is_text(text: str) -> None:
    message = with_map(JmsMessage.text(text))
    assert (message.body_kind, message.body) == (BodyKind.TEXT, text)


@given(st.text("<>/&;# \nmapentrysiglchx01", max_size=60).map(lambda text: document(entry("a", text))))
def test_any_text_is_read_or_left(text: str) -> None:
    message = with_map(JmsMessage.text(text))
    assert message.body_kind is BodyKind.MAP or (message.body_kind, message.body) == (BodyKind.TEXT, text)
