"""The getters of a message: properties and items read as a Java type."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_jmsjca.core.message.value_types import (
    INTEGER_BITS,
    ItemType,
    ItemValue,
    PropertyType,
    PropertyValue,
    as_float32,
    fits_in,
    inferred_type,
)
from airflow_provider_jmsjca.errors import PoisonMessageError

_JAVA_INTEGER = re.compile(r"([+-]?)0*([0-9]{1,19})")
_JAVA_DOUBLE = re.compile(
    r"[\x00-\x20]*([+-]?)(?:(NaN)|(Infinity)|((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?)[\x00-\x20]*"
)


def java_integer(text: str, bits: int) -> int | None:
    """Parse like `Integer.valueOf` or `Long.valueOf`; return `None` where they raise an exception."""
    match = _JAVA_INTEGER.fullmatch(text)
    if match is None:
        return None
    value = int(match[1] + match[2])
    return value if fits_in(value, bits) else None


def java_double(text: str) -> float | None:
    """Parse like `Double.valueOf`; return `None` for invalid text and for hexadecimal forms."""
    match = _JAVA_DOUBLE.fullmatch(text)
    if match is None:
        return None
    sign = -1.0 if match[1] == "-" else 1.0
    if match[2]:
        return math.nan
    return math.copysign(math.inf if match[3] else float(match[4]), sign)


def java_float_text(value: float, *, single: bool = False) -> str:
    """Format like `Double.toString`, or `Float.toString` for a single (Java 19 and newer).

    The result has the shortest digits that are read back as the same number. It has an exponent below 0.001
    and from 10,000,000 on.
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0.0" if math.copysign(1, value) < 0 else "0.0"
    sign = "-" if value < 0 else ""
    digits, exponent = _shortest(abs(value), single=single)
    if -3 <= exponent < 7:  # noqa: PLR2004 - the limits the docstring names
        if exponent < 0:
            return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
        whole = digits[: exponent + 1].ljust(exponent + 1, "0")
        return f"{sign}{whole}.{digits[exponent + 1 :] or '0'}"
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent}"


def _shortest(value: float, *, single: bool) -> tuple[str, int]:
    narrow = as_float32 if single else float
    # The shortest text that is read back as the same number: Java writes at least two digits, and 17 digits
    # always suffice.
    texts = (f"{value:.{places}e}" for places in range(1, 17))
    text = next(text for text in texts if narrow(float(text)) == value)
    mantissa, _, exponent = text.partition("e")
    return mantissa.replace(".", "").rstrip("0") or "0", int(exponent)


_READABLE: dict[ItemType, frozenset[str]] = {
    ItemType.BOOLEAN: frozenset({"boolean", "string"}),
    ItemType.BYTE: frozenset({"byte", "short", "int", "long", "string"}),
    ItemType.SHORT: frozenset({"short", "int", "long", "string"}),
    ItemType.CHAR: frozenset({"char", "string"}),
    ItemType.INT: frozenset({"int", "long", "string"}),
    ItemType.LONG: frozenset({"long", "string"}),
    ItemType.FLOAT: frozenset({"float", "double", "string"}),
    ItemType.DOUBLE: frozenset({"double", "string"}),
    ItemType.STRING: frozenset({"boolean", "byte", "short", "int", "long", "float", "double", "string"}),
    ItemType.BYTES: frozenset({"bytes"}),
}


def convert(value: ItemValue, stored: str | None, wanted: ItemType) -> ItemValue:
    """Return the value read as another type.

    Args:
        value: The value; `None` reads as `None` for string and bytes and as `False` for boolean.
        stored: The value's declared type; `None`: the type is inferred.
        wanted: The type to read it as.

    Raises:
        PoisonMessageError: JMS has no such conversion, or the string is not a number of that type.
    """
    if value is None:
        return _converted_none(wanted)
    kind = ItemType(stored) if stored else inferred_type(value)
    if kind is None or wanted not in _READABLE[kind]:
        raise PoisonMessageError(f"a {kind or type(value).__name__} can't be read as {wanted}")
    if kind == wanted:
        return value
    if isinstance(value, str) and kind is ItemType.STRING:
        return _parsed(value, wanted)
    return _as_text(value, kind) if wanted is ItemType.STRING else value


def _converted_none(wanted: ItemType) -> bool | None:
    match wanted:
        case ItemType.STRING | ItemType.BYTES:
            return None
        case ItemType.BOOLEAN:
            return False
        case ItemType.CHAR:
            raise PoisonMessageError("None can't be read as char")
    raise PoisonMessageError(f"None can't be read as {wanted}")


def _parsed(text: str, wanted: ItemType) -> bool | int | float:
    if wanted is ItemType.BOOLEAN:
        return text.lower() == "true"
    number = java_integer(text, INTEGER_BITS[wanted]) if wanted in INTEGER_BITS else java_double(text)
    if number is None:
        raise PoisonMessageError(f"{text[:60]!r} can't be read as {wanted}")
    return as_float32(number) if wanted is ItemType.FLOAT else number


def _as_text(value: ItemValue, kind: ItemType) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return java_float_text(value, single=kind is ItemType.FLOAT)
    return str(value)


class PropertyReader:
    """Getters over the attributes `properties`, `property_types`, `body` and `item_types` of a message.

    Every getter raises `PoisonMessageError` if JMS has no conversion from the stored type, or if a string is
    not a number of that type. Getters of numbers also raise it for a missing value, because numbers have no
    null.

    Source: JMS 2.0 sections 3.5.4 and 3.11.3.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def properties(self) -> Mapping[str, PropertyValue]:
            """User properties by name."""

        @property
        def property_types(self) -> Mapping[str, PropertyType]:
            """Java types that can't be inferred from the property's value, by property name."""

        @property
        def body(self) -> Any:
            """The body: text, bytes, a map, a sequence of items, or `None`."""

        @property
        def item_types(self) -> Mapping[Any, ItemType]:
            """Declared types of the body's items: by name in a map, by index in a stream."""

    def get_object(self, name: str) -> PropertyValue:
        """Return a property without conversion; `None` if it doesn't exist."""
        return self.properties.get(name)

    def get_boolean(self, name: str) -> bool:
        """Return a property as boolean.

        The string `true` in any case is true; a missing property is false.
        """
        return bool(self._property(name, ItemType.BOOLEAN))

    def get_byte(self, name: str) -> int:
        """Return a property as a byte (8 bits with sign)."""
        return self._integer(name, ItemType.BYTE)

    def get_short(self, name: str) -> int:
        """Return a property as a short (16 bits with sign)."""
        return self._integer(name, ItemType.SHORT)

    def get_int(self, name: str) -> int:
        """Return a property as an int (32 bits with sign)."""
        return self._integer(name, ItemType.INT)

    def get_long(self, name: str) -> int:
        """Return a property as a long (64 bits with sign)."""
        return self._integer(name, ItemType.LONG)

    def get_float(self, name: str) -> float:
        """Return a property as a float (32 bits)."""
        return self._floating(name, ItemType.FLOAT)

    def get_double(self, name: str) -> float:
        """Return a property as a double (64 bits)."""
        return self._floating(name, ItemType.DOUBLE)

    def get_string(self, name: str) -> str | None:
        """Return a property as text, numbers as Java writes them; `None` if it doesn't exist."""
        value = self._property(name, ItemType.STRING)
        return None if value is None else str(value)

    def get_item(self, key: str | int, kind: ItemType) -> ItemValue:
        """Return an item of a map body (by name) or stream body (by index from 0) read as that type.

        A missing item of a map is read like `None`.

        Raises:
            PoisonMessageError: The item can't be read as that type, the body is no map or stream, or the
                stream has no such item.
        """
        body = self.body
        if isinstance(body, Mapping):
            value = body.get(key)
        elif isinstance(body, Sequence) and not isinstance(body, (str, bytes)) and isinstance(key, int):
            if not 0 <= key < len(body):
                raise PoisonMessageError(f"stream item {key}: the body has {len(body)}")
            value = body[key]
        else:
            raise PoisonMessageError(f"item {key!r}: the body is a {type(body).__name__} without such items")
        return _explained(f"item {key!r}", value, self.item_types.get(key), kind)

    def _property(self, name: str, kind: ItemType) -> ItemValue:
        value = self.properties.get(name)
        return _explained(f"property {name!r}", value, self.property_types.get(name), kind)

    def _integer(self, name: str, kind: ItemType) -> int:
        value = self._property(name, kind)
        if not isinstance(value, int):
            raise PoisonMessageError(f"property {name!r}: expected a {kind}, found {type(value).__name__}")
        return value

    def _floating(self, name: str, kind: ItemType) -> float:
        value = self._property(name, kind)
        if not isinstance(value, float):
            raise PoisonMessageError(f"property {name!r}: expected a {kind}, found {type(value).__name__}")
        return value


def _explained(place: str, value: ItemValue, stored: str | None, kind: ItemType) -> ItemValue:
    try:
        return convert(value, stored, kind)
    except PoisonMessageError as error:
        raise PoisonMessageError(f"{place}: {error}") from error
