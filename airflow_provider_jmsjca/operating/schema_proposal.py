"""Proposes a schema for JSON bodies from example messages.

A proposal is a list of fields in Spark's DDL, for `Batch.json` and the ready-made job. Fields that all
messages have are `NOT NULL`. If at least 95 % of the messages with a field have values of one type, the field
gets this type. The other messages are reported as disagreements. Otherwise the field is a `VARIANT`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Final

from airflow_provider_jmsjca.core.message import BodyKind, JmsMessage
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.spark.tables.columns import quoted_name, reserved
from airflow_provider_jmsjca.spark.timestamps import WRITTEN
from airflow_provider_jmsjca.spool.rows import encode_body

_KINDS: Final = (BodyKind.TEXT, BodyKind.BYTES, BodyKind.MAP)
# A field keeps its type if at most this share of its values have another type.
_MINORITY: Final = 0.05
_MOST_LEVELS: Final = 20
# An object with more field names than this is taken for a map, whose keys are data.
_MOST_FIELDS: Final = 200
_MOST_COLUMNS: Final = 2_000
_SHOWN: Final = 40
_DATE: Final = re.compile(WRITTEN["date"])
_LOCAL: Final = re.compile(WRITTEN["timestamp_ntz"])
_TIMESTAMP: Final = re.compile(WRITTEN["timestamp"])
_BIGINT: Final = range(-(2**63), 2**63)
_DECIMAL: Final = range(-(10**38) + 1, 10**38)
# Descriptions of values in reasons, by the family of their type.
_CALLED: Final = {
    "BOOLEAN": "true or false",
    "NUMBER": "a number",
    "STRING": "a string",
    "STRUCT": "an object",
    "ARRAY": "an array",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """A message that the proposed schema would reject, or whose field the schema lacks.

    Attributes:
        message: Name of the message, as passed to `propose_schema`.
        reason: Why the message doesn't fit, with the path of the field. May contain text of the producer.
    """

    message: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A proposed schema.

    Attributes:
        fields: The fields, each as in `CREATE TABLE`.
        messages: Number of messages that were read.
        disagreements: The messages that don't fit, in their order, each with one reason.
    """

    fields: tuple[str, ...]
    messages: int
    disagreements: tuple[Disagreement, ...]


def propose_schema(messages: Iterable[tuple[str, JmsMessage]]) -> Proposal:
    """Return a schema for the JSON bodies of messages.

    Args:
        messages: Pairs of a name, for `Disagreement.message`, and a message.

    Raises:
        ConfigurationError: No body is a JSON object with fields, or the bodies have too many fields.
    """
    names, faults, top = list[str](), dict[int, str](), _Seen()
    for number, (name, message) in enumerate(messages):
        names.append(name)
        found = _parsed(message)
        if isinstance(found, str):
            faults[number] = found
        else:
            top.add(found, number, 0)
    top.judge("", faults)
    columns = tuple(top.columns())
    if not columns:
        first = f"; the first: {names[min(faults)]}: {faults[min(faults)]}" if faults else ""
        if not names:
            raise ConfigurationError("there are no messages, so no schema can be proposed")
        raise ConfigurationError(f"none of {len(names)} messages has a JSON object with fields{first}")
    disagreements = (Disagreement(message=names[at], reason=faults[at]) for at in sorted(faults))
    return Proposal(fields=columns, messages=len(names), disagreements=tuple(disagreements))


@dataclass(slots=True)
class _Seen:
    """The values of one field in all messages.

    Attributes:
        numbers: Indexes of messages by the family of their value's type: a number, a string, an object ...
        types: Types of the values.
        fields: Fields of those values that are objects.
        items: Items of those values that are arrays; `None` if no value is an array.
        objects: Number of values that are objects.
        present: Number of values that aren't null.
        family: The family chosen for the proposal; `None` for a `VARIANT`.
    """

    numbers: dict[str, set[int]] = field(default_factory=dict)
    types: set[str] = field(default_factory=set)
    fields: dict[str, _Seen] = field(default_factory=dict)
    items: _Seen | None = None
    objects: int = 0
    present: int = 0
    family: str | None = None

    def add(self, value: Any, number: int, level: int) -> None:
        """Record a value of the message with this number, at this level of nesting."""
        if value is None:
            return
        self.present += 1
        family, kind = _typed(value)
        self.numbers.setdefault(family, set()).add(number)
        self.types.add(kind)
        if level == _MOST_LEVELS:
            return
        if isinstance(value, dict):
            self.objects += 1
            for name, each in value.items():
                self.fields.setdefault(name, _Seen()).add(each, number, level + 1)
        elif isinstance(value, list):
            self.items = self.items or _Seen()
            for each in value:
                self.items.add(each, number, level + 1)

    def judge(self, path: str, faults: dict[int, str]) -> None:
        """Choose the family of most values' types, and add messages with other values to `faults`."""
        every = set[int]().union(*self.numbers.values())
        common = max(self.numbers, key=lambda each: len(self.numbers[each]), default=None)
        if common is None:
            return
        others = set[int]().union(*(found for name, found in self.numbers.items() if name != common))
        if len(others) > _MINORITY * len(every):
            return
        self.family = common
        for name, numbers in self.numbers.items():
            for number in numbers if name != common else ():
                _note(faults, number, path, f"{_CALLED[common]} in most messages, found {_CALLED[name]}")
        if common == "ARRAY" and self.items is not None:
            self.items.judge(f"{path}[]", faults)
        if common == "STRUCT":
            self._leave_out_names(path, faults)
            for name, found in self.fields.items():
                found.judge(f"{path}.{name}" if path else name, faults)

    def _leave_out_names(self, path: str, faults: dict[int, str]) -> None:
        """Remove fields whose names are invalid for columns, and add their messages to `faults`."""
        spelled: dict[str, str] = {}
        for name in sorted(self.fields, key=lambda each: (-self.fields[each].present, each)):
            place, reason = f"{path}.{name}" if path else name, None
            if not name or not name.isprintable() or " ".join(name.split()) != name:
                reason = "no column can have this name"
            elif not path and reserved([name]):
                reason = "the name is reserved for columns of this package"
            elif spelled.setdefault(name.lower(), name) != name:
                reason = f"most messages call it {spelled[name.lower()]!r}"
            if reason is not None:
                for number in sorted(set[int]().union(*self.fields[name].numbers.values())):
                    _note(faults, number, place, reason)
                del self.fields[name]

    def columns(self) -> Iterator[str]:
        """Yield the fields of an object as columns in DDL.

        Raises:
            ConfigurationError: The object has too many fields for a table.
        """
        if len(self.fields) > _MOST_COLUMNS:
            raise ConfigurationError(
                f"the bodies have more than {_MOST_COLUMNS:,} different field names, too many for columns"
            )
        for name, found in self.fields.items():
            kind = found.type_name()
            required = found.present == self.objects and kind != "VARIANT"
            yield f"{_name(name)} {kind}{' NOT NULL' if required else ''}"

    def type_name(self) -> str:
        """Return the type in DDL."""
        match self.family:
            case None:
                return "VARIANT"
            case "BOOLEAN":
                return "BOOLEAN"
            case "STRUCT":
                return self._object_type()
            case "ARRAY":
                return f"ARRAY<{'VARIANT' if self.items is None else self.items.type_name()}>"
            case "NUMBER":
                kinds = self.types & {"BIGINT", "DECIMAL(38,0)", "DOUBLE", "VARIANT"}
                if "VARIANT" in kinds or {"DECIMAL(38,0)", "DOUBLE"} <= kinds:  # no type takes both
                    return "VARIANT"
                return max(kinds)  # a DOUBLE takes a BIGINT, and so does the DECIMAL
        texts = self.types & {"STRING", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ"}
        if texts == {"TIMESTAMP", "TIMESTAMP_NTZ"}:
            return "TIMESTAMP"
        return texts.pop() if len(texts) == 1 else "STRING"

    def _object_type(self) -> str:
        if not self.fields or len(self.fields) > _MOST_FIELDS:
            return "MAP<STRING, VARIANT>"
        fields = (column.split(" ", 1) if column[0] != "`" else _parted(column) for column in self.columns())
        return f"STRUCT<{', '.join(f'{name}: {kind}' for name, kind in fields)}>"


def _parted(column: str) -> tuple[str, str]:
    """Split a column in DDL into its quoted name and its type."""
    end = re.match(r"`(?:[^`]|``)*`", column)
    assert end is not None  # noqa: S101 - the name is quoted
    return end[0], column[end.end() + 1 :]


def _typed(value: Any) -> tuple[str, str]:
    """Return the family of a value's type, and the type."""
    match value:
        case bool():
            return "BOOLEAN", "BOOLEAN"
        case dict():
            return "STRUCT", "STRUCT"
        case list():
            return "ARRAY", "ARRAY"
        case str():
            return "STRING", _written(value)
        case int():
            return (
                "NUMBER",
                "BIGINT" if value in _BIGINT else "DECIMAL(38,0)" if value in _DECIMAL else "VARIANT",
            )
    return "NUMBER", "DOUBLE"


def _written(text: str) -> str:
    """Return the type of a text: a date or a timestamp by its form, otherwise a string."""
    if len(text) > _SHOWN:
        return "STRING"
    try:
        if _DATE.fullmatch(text):
            date.fromisoformat(text)
            return "DATE"
        if _TIMESTAMP.fullmatch(text):
            datetime.fromisoformat(text)
            return "TIMESTAMP_NTZ" if _LOCAL.fullmatch(text) else "TIMESTAMP"
    except ValueError:
        pass
    return "STRING"


def _note(faults: dict[int, str], number: int, path: str, reason: str) -> None:
    """Record why a message disagrees, unless a reason is recorded already."""
    shown = path if len(path) <= 5 * _SHOWN else f"{path[: 5 * _SHOWN]}…"
    faults.setdefault(number, f"field {shown!r}: {reason}" if path else reason)


def _name(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) else quoted_name(name)


def _parsed(message: JmsMessage) -> Mapping[str, Any] | str:
    """Return the JSON object of a body; if the body is not a JSON object, return a text that says why."""
    if message.body_kind not in _KINDS:
        return f"expected a JSON body, found kind {message.body_kind}"
    try:
        text = (encode_body(message) or b"").decode()
    except ValueError:
        return "expected a JSON body, found bytes that are not UTF-8"
    if not text.strip(" \t\r\n"):
        return "the body is empty"
    try:
        found = json.loads(text, object_pairs_hook=_object, parse_constant=_no_number, parse_float=_finite)
        json.dumps(found, ensure_ascii=False).encode()
    except RecursionError:
        return "the body has too many levels of objects and arrays"
    except UnicodeEncodeError:
        return "the body has an escape such as \\ud800, which is half a character"
    except ValueError as error:
        said = str(error)
        return said if said.startswith("the body") else f"the body is not JSON: {said}"
    if isinstance(found, dict):
        return found
    return f"expected a JSON object, found {_CALLED[_typed(found)[0]] if found is not None else 'null'}"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("the body has an object with a name twice")
    return found


def _finite(text: str) -> float:
    number = float(text)
    if number in {float("inf"), float("-inf")}:
        raise ValueError("the body has a number beyond DOUBLE")
    return number


def _no_number(name: str) -> float:
    raise ValueError(f"it has {name} as a number")
