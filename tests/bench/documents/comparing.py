"""Compares what a table and the rejects have with what a document says."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from tests.bench.documents.readings import Number, Reading
from tests.bench.documents.tables import variant

_FOUND = re.compile(r", found (?:the (?P<what>string|number|element) )?(?P<value>.*)", re.DOTALL)
_CALLED = {dict: "an object", list: "an array"}
_BLANKS = " \t\r\n"
_SHOWN = 40
_CLAIMS = {
    "NaN or Infinity as a number": r"NaN|Infinity|\bINF\b",
    "single quotes in place of double ones": r"'",
    "a name without quotes": r"[{,]\s*(?:/\*.*?\*/|//[^\n]*\n|\s)*[A-Za-z0-9_$\u0080-\uffff]",
    "a comment": r"/\*|//",
    "a comma behind the last item": r",\s*(?:/\*.*?\*/\s*|//[^\n]*\n\s*)*[}\]]",
    "a byte order mark": r"^\ufeff",
    "a number that begins with 0": r"(?<![0-9.eE+])-?0[0-9]",
    "an unescaped control character in a string": r"[\x00-\x1f]",
    "an escape that JSON doesn't define": r"\\[^\"\\/bfnrtu]",
}


def differences(kind: Any, expected: Any, found: Any, path: str = "") -> Iterator[str]:
    """Yield where a value differs from the expected one."""
    if kind == "variant":
        found = variant(found) if isinstance(found, dict) else json.loads(found) if found else found
        is_same = _same(expected, found)
    elif isinstance(kind, dict) and expected is not None and found is not None:
        yield from _differences_within(kind, expected, found, path)
        return
    else:
        is_same = _is_value(kind, expected, found)
    if not is_same:
        yield f"{path}: expected {expected!r:.200}, found {found!r:.200}"


def _differences_within(kind: dict[str, Any], expected: Any, found: Any, path: str) -> Iterator[str]:
    match kind["type"]:
        case "struct":
            for each in kind["fields"]:
                name = each["name"]
                yield from differences(each["type"], expected[name], found[name], f"{path}.{name}")
        case "array":
            if len(expected) != len(found):
                yield f"{path}: expected {len(expected)} items, found {len(found)}"
            for at, (one, other) in enumerate(zip(expected, found, strict=False)):
                yield from differences(kind["elementType"], one, other, f"{path}[{at}]")
        case _ if expected.keys() != found.keys():
            yield f"{path}: expected the keys {list(expected)!r:.200}, found {list(found)!r:.200}"
        case _:
            for name, value in expected.items():
                yield from differences(kind["valueType"], value, found[name], f"{path}[{name!r}]")


def _is_value(kind: Any, expected: Any, found: Any) -> bool:
    if expected is None or found is None:
        return expected is found
    if hasattr(found, "to_pydatetime"):
        found = found.to_pydatetime()  # of nanoseconds
    if isinstance(found, datetime) and kind == "timestamp":
        found = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    if type(expected) is not type(found) and not isinstance(expected, Decimal):
        return False
    is_nan = isinstance(expected, float) and math.isnan(expected) and math.isnan(found)
    return is_nan or bool(expected == found)


def _same(expected: Any, found: Any) -> bool:
    if isinstance(expected, dict):
        return (
            isinstance(found, dict)
            and expected.keys() == found.keys()
            and all(_same(value, found[name]) for name, value in expected.items())
        )
    if isinstance(expected, list):
        return isinstance(found, list) and len(expected) == len(found) and all(map(_same, expected, found))
    if isinstance(expected, bool | str) or expected is None:
        return expected is found or (isinstance(expected, str) and expected == found)
    return (
        not isinstance(found, bool | str)
        and found is not None
        and float(expected) == float(found)
        and (isinstance(found, float) or Decimal(expected) == Decimal(found))
    )


def is_true(reason: str, body: bytes, reading: Reading) -> bool:
    """Return whether a reason is true for a body."""
    if reading.syntax is not None:
        return _explains(reason, body)
    return any(_is_fault(reason, beginning, value) for beginning, value in reading.faults)


def _is_fault(reason: str, beginning: str, value: Any) -> bool:
    if not reason.startswith(beginning):
        return False
    rest = reason[len(beginning) :]
    if not isinstance(value, str | dict | list | bool) and value is not None:
        return True
    found = _FOUND.search(rest)
    if found is None:
        return False
    shown = found["value"]
    if isinstance(value, Number):
        return _is_number(shown, value)
    if isinstance(value, str):
        return shown == _as_shown(value)
    return shown == (json.dumps(value) if isinstance(value, bool | None) else _CALLED[type(value)])


def _is_number(shown: str, value: Number) -> bool:
    if shown == "a number beyond DOUBLE":
        return math.isinf(float(value))
    if shown.endswith("…"):
        return value.startswith(shown[:-1])
    number = shown.removesuffix(" with a decimal point")
    is_whole = "." in value and "e" not in value.lower() and Decimal(value) == int(Decimal(value))
    if (number != shown) != is_whole:
        return False
    return Decimal(number) == Decimal(value) or float(number) == float(value)


def _as_shown(text: str) -> str:
    beginning = "".join(" " if ord(each) < 32 or 127 <= ord(each) < 160 else each for each in text[:_SHOWN])
    return f'"{beginning}{"…" if len(text) > _SHOWN else ""}"'


def _explains(reason: str, body: bytes) -> bool:
    """Return whether a reason is true for a body that isn't well-formed; XML's faults have a place."""
    text = body.decode("utf-8", "replace")
    bare = text.strip(_BLANKS)
    if reason == "the body has more than one JSON value":
        try:
            _, end = json.JSONDecoder().raw_decode(bare)
        except ValueError:
            return False
        return bool(bare[end:].strip(_BLANKS))
    if reason.startswith("the body is not JSON: it has "):
        claims = reason.removeprefix("the body is not JSON: it has ").split(" and ")
        return all(re.search(_CLAIMS[each], text, re.DOTALL) for each in claims)
    if reason.startswith("the body is not JSON: it begins with { or ["):
        return bare[0] in "{[" and bare[-1] not in "}]"
    if reason.startswith(("the body is not JSON, it begins with ", "the body is not XML, it begins with ")):
        return True
    return reason.startswith(
        ("the body is not XML: ", "text follows the root element", "the header, value", "the record, value")
    ) or ("Spark cannot read it" in reason)
