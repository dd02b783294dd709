"""Values read as another Java type (JMS 2.0 sections 3.5.4 and 3.11.3)."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_jmsjca.core.message import ItemType, JmsMessage, PropertyType
from airflow_provider_jmsjca.core.message.property_reader import convert
from airflow_provider_jmsjca.errors import PoisonMessageError

SAMPLES: dict[str, Any] = {
    "boolean": True,
    "byte": 1,
    "short": 1,
    "char": "c",
    "int": 1,
    "long": 1,
    "float": 1.5,
    "double": 1.5,
    "string": "1",
    "bytes": b"1",
}
# The two tables of the specification, a row for what was stored.
READABLE = {
    "boolean": "boolean string",
    "byte": "byte short int long string",
    "short": "short int long string",
    "char": "char string",
    "int": "int long string",
    "long": "long string",
    "float": "float double string",
    "double": "double string",
    "string": "boolean byte short int long float double string",
    "bytes": "bytes",
}


@pytest.mark.parametrize("stored", SAMPLES)
@pytest.mark.parametrize("wanted", SAMPLES)
def test_the_table_of_conversions(stored: str, wanted: str) -> None:
    if wanted in READABLE[stored].split():
        convert(SAMPLES[stored], stored, ItemType(wanted))
    else:
        with pytest.raises(PoisonMessageError, match=f"a {stored} can't be read as {wanted}"):
            convert(SAMPLES[stored], stored, ItemType(wanted))


@pytest.mark.parametrize(
    ("value", "stored", "wanted", "expected"),
    [
        (True, None, "string", "true"),
        (False, None, "string", "false"),
        (5, None, "string", "5"),
        (-(2**63), None, "string", "-9223372036854775808"),
        (1.0, None, "string", "1.0"),
        (1e7, None, "string", "1.0E7"),
        (0.001, None, "string", "0.001"),
        (0.00099, None, "string", "9.9E-4"),
        (5e-324, None, "string", "4.9E-324"),
        (float("inf"), None, "string", "Infinity"),
        (float("nan"), None, "string", "NaN"),
        (-0.0, None, "string", "-0.0"),
        (0.10000000149011612, "float", "string", "0.1"),
        (0.10000000149011612, "float", "double", 0.10000000149011612),
        ("TRUE", None, "boolean", True),
        ("yes", None, "boolean", False),
        ("-128", None, "byte", -128),
        ("+5", None, "short", 5),
        ("9223372036854775807", None, "long", 2**63 - 1),
        ("1e3", None, "double", 1000.0),
        ("0.1", None, "float", 0.10000000149011612),
        ("1e39", None, "float", float("inf")),
        (" 1.5d ", None, "double", 1.5),
        ("-Infinity", None, "double", float("-inf")),
        ("c", "char", "string", "c"),
        (None, None, "string", None),
        (None, None, "bytes", None),
        (None, None, "boolean", False),
    ],
)
def test_converted_values(value: Any, stored: str | None, wanted: str, expected: Any) -> None:
    result = convert(value, stored, ItemType(wanted))
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("128", "byte"),
        ("2147483648", "int"),
        ("9223372036854775808", "long"),
        ("1.0", "int"),
        (" 1", "int"),
        ("", "int"),
        ("1_000", "int"),
        ("9" * 5000, "long"),
        ("x", "double"),
        ("", "float"),
        (None, "int"),
        (None, "double"),
        (None, "char"),
        (2**40, "int"),
    ],
)
def test_values_that_do_not_convert(value: Any, wanted: str) -> None:
    with pytest.raises(PoisonMessageError, match="can't be read as"):
        convert(value, None, ItemType(wanted))


def test_getters_read_properties() -> None:
    message = JmsMessage.empty(
        {"n": 5, "s": "7", "d": 2.5, "b": True, "y": 1}, property_types={"y": PropertyType.BYTE}
    )
    assert (message.get_int("n"), message.get_long("n"), message.get_string("n")) == (5, 5, "5")
    assert (message.get_byte("s"), message.get_short("s"), message.get_float("s")) == (7, 7, 7.0)
    assert (message.get_double("d"), message.get_boolean("b"), message.get_byte("y")) == (2.5, True, 1)
    assert (message.get_object("d"), message.get_object("none"), message.get_string("none")) == (
        2.5,
        None,
        None,
    )
    assert message.get_boolean("none") is False
    for read in (message.get_int, message.get_double, message.get_byte):
        with pytest.raises(PoisonMessageError, match="property 'none': None can't be read"):
            read("none")
    with pytest.raises(PoisonMessageError, match="property 'n': a int can't be read as byte"):
        message.get_byte("n")


def test_getters_read_items() -> None:
    message = JmsMessage.map({"c": "x", "b": b"1", "n": 5}, item_types={"c": ItemType.CHAR})
    assert message.get_item("c", ItemType.CHAR) == "x"
    assert message.get_item("n", ItemType.STRING) == "5"
    assert message.get_item("b", ItemType.BYTES) == b"1"
    assert message.get_item("none", ItemType.STRING) is None
    with pytest.raises(PoisonMessageError, match="item 'b': a bytes can't be read as string"):
        message.get_item("b", ItemType.STRING)
    stream = JmsMessage.stream([1, "2"], item_types={0: ItemType.SHORT})
    assert (stream.get_item(0, ItemType.SHORT), stream.get_item(1, ItemType.LONG)) == (1, 2)
    for key in (2, -1):
        with pytest.raises(PoisonMessageError, match="the body has 2"):
            stream.get_item(key, ItemType.INT)
    with pytest.raises(PoisonMessageError, match="without such items"):
        JmsMessage.text("x").get_item(0, ItemType.STRING)
