"""The kinds of bodies, and the Java types of property values and of the items in map and stream bodies."""

from __future__ import annotations

import enum
import math
import struct
from collections.abc import Container
from typing import TypeAlias

PropertyValue: TypeAlias = bool | int | float | str | None
ItemValue: TypeAlias = bool | int | float | str | bytes | None


class BodyKind(enum.StrEnum):
    """The six message types of JMS."""

    TEXT = "text"
    BYTES = "bytes"
    MAP = "map"
    STREAM = "stream"
    OBJECT = "object"
    EMPTY = "empty"


class PropertyType(enum.StrEnum):
    """The eight types of a JMS property. Source: JMS 2.0 section 3.5.2."""

    BOOLEAN = "boolean"
    BYTE = "byte"
    SHORT = "short"
    INT = "int"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    STRING = "string"


class ItemType(enum.StrEnum):
    """The ten types of an item in a map or stream body. Source: JMS 2.0 sections 3.11.2 and 3.11.3."""

    BOOLEAN = "boolean"
    BYTE = "byte"
    SHORT = "short"
    CHAR = "char"
    INT = "int"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    STRING = "string"
    BYTES = "bytes"


# Keyed by text, because the members of both enums are equal to their text.
INTEGER_BITS = {"byte": 8, "short": 16, "int": 32, "long": 64}
ONE_UTF16_UNIT = 0xFFFF


def fits_in(value: int, bits: int) -> bool:
    """Return whether a signed Java integer of that many bits can hold the value."""
    return -(1 << bits - 1) <= value < 1 << bits - 1


def inferred_type(value: object) -> ItemType | None:
    """Return the type as which a value is sent if no type is declared.

    `bool` is boolean, `float` is double, `str` is string, `bytes` is bytes. `int` is int, or long if the
    value needs more than 32 bits.

    Returns:
        The type; `None` for `None` and for values that no type can hold.
    """
    match value:
        case bool():
            return ItemType.BOOLEAN
        case int() if fits_in(value, 32):
            return ItemType.INT
        case int() if fits_in(value, 64):
            return ItemType.LONG
        case float():
            return ItemType.DOUBLE
        case str():
            return ItemType.STRING
        case bytes():
            return ItemType.BYTES
    return None


def as_float32(value: float) -> float:
    """Round to the nearest value of a Java float; too large values become infinite, as a Java cast does."""
    try:
        return float(struct.unpack(">f", struct.pack(">f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def checked(  # noqa: C901 - one case for each type
    value: object, declared: str | None, allowed: Container[str]
) -> ItemValue:
    """Return the value in the form to send: unchanged, or rounded if a float is declared.

    Args:
        value: The given value.
        declared: Spelling of the declared type; `None`: the type is inferred.
        allowed: Spellings of the types allowed here.

    Raises:
        ValueError: The value can't be sent as that type; the text names the expected form.
    """
    if value is None:
        return None
    if declared is None:
        return _checked_inferred(value, allowed)
    if declared not in allowed:
        raise ValueError(f"expected a type this place can hold, not {declared!r}")
    if declared in INTEGER_BITS:
        return _checked_integer(value, declared)
    match declared, value:
        case "boolean", bool():
            return value
        case "double", int() | float() if not isinstance(value, bool):
            return _as_double(value)
        case "float", int() | float() if not isinstance(value, bool):
            return _checked_float32(_as_double(value))
        case "string", str():
            return _checked_text(value)
        case "char", str() if len(value) == 1 and ord(value) <= ONE_UTF16_UNIT:
            return value
        case "bytes", bytes():
            return value
    raise ValueError(f"expected {_named(declared)}, not {type(value).__name__}")


def _named(declared: str) -> str:
    return "an int" if declared == "int" else f"a {declared}"


def _checked_integer(value: object, declared: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"expected {_named(declared)}, not {type(value).__name__}")  # noqa: TRY004 - one kind of fault
    if not fits_in(value, INTEGER_BITS[declared]):
        raise ValueError(f"expected {_named(declared)}: {INTEGER_BITS[declared]} bits with sign")
    return value


def _checked_inferred(value: object, allowed: Container[str]) -> ItemValue:
    kind = inferred_type(value)
    if kind is not None and kind in allowed and isinstance(value, (bool, int, float, str, bytes)):
        return _checked_text(value) if isinstance(value, str) else value
    if isinstance(value, int):
        raise ValueError("expected at most 64 bits with sign, as a Java long has")  # noqa: TRY004 - it is one
    names = "bool, int, float, str, bytes" if "bytes" in allowed else "bool, int, float, str"
    raise ValueError(f"expected one of {names} or None, not {type(value).__name__}")


def _checked_text(value: str) -> str:
    fault = surrogate_fault(value)
    if fault:
        raise ValueError(fault)
    return value


def surrogate_fault(text: str) -> str | None:
    """Return the fault of a text with a lone surrogate, which can't be encoded; `None` for other text."""
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"position {error.start + 1}: expected Unicode text, found a lone surrogate"
    return None


def _as_double(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ValueError("expected a number in the range of a Java double") from None


def _checked_float32(value: float) -> float:
    rounded = as_float32(value)
    if math.isinf(rounded) and not math.isinf(value):
        raise ValueError("expected a number in the range of a Java float")
    return rounded
