"""Reading values as another type: the conversion tables of JMS for properties, map and stream items.

| value, read as | boolean | byte | short | char | int | long | float | double | string | bytes |
|---|---|---|---|---|---|---|---|---|---|---|
| boolean | x | | | | | | | | x | |
| byte | | x | x | | x | x | | | x | |
| short | | | x | | x | x | | | x | |
| char | | | | x | | | | | x | |
| int | | | | | x | x | | | x | |
| long | | | | | | x | | | x | |
| float | | | | | | | x | x | x | |
| double | | | | | | | | x | x | |
| string | x | x | x | | x | x | x | x | x | |
| bytes | | | | | | | | | | x |

Source: JMS 2.0 sections 3.5.4 and 3.11.3.
"""

from __future__ import annotations

from airflow_provider_jmsjca.core.java_numbers import java_double, java_float_text, java_integer
from airflow_provider_jmsjca.core.value_types import (
    INTEGER_BITS,
    ItemType,
    ItemValue,
    as_float32,
    inferred_type,
)
from airflow_provider_jmsjca.errors import PoisonMessageError

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
        stored: Its declared type; `None` infers it.
        wanted: The type to read it as.

    Raises:
        PoisonMessageError: JMS knows no such conversion, or the string says no number of that type.
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
