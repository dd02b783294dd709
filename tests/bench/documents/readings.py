"""What a body's values are, and why it doesn't fit: read with Python's `json`, `xml.etree`, `csv` and `avro`.

The rules are those of the pages `json.md` and `xml-csv.md`, written down once more.
"""

from __future__ import annotations

import base64
import binascii
import csv
import json
import math
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from xml.etree import ElementTree as ET

from tests.bench.documents.avro import Beyond
from tests.bench.documents.groups import Options

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_EXACT = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")
_MOMENT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.][0-9]{1,6})?)(Z|[+-][0-9]{2}:[0-9]{2})?"
)
_BITS = {"byte": 7, "short": 15, "integer": 31, "long": 63}
_BLANKS = " \t\r\n"
_NIL = "{http://www.w3.org/2001/XMLSchema-instance}nil"
_MISSING = object()


class Number(str):
    """The text of a number."""

    __slots__ = ()


@dataclass(slots=True)
class Reading:
    """Attributes:
    row: The values, if there is no fault.
    faults: Each true reason: the beginning of its text, and the value that doesn't fit.
    syntax: Why the body can't be read at all, in the words of the reader.
    """

    row: dict[str, Any] | None = None
    faults: list[tuple[str, Any]] = field(default_factory=list)
    syntax: str | None = None


def read_json(body: bytes, schema: dict[str, Any], _: Options) -> Reading:
    """Read a JSON body."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return Reading(faults=[("expected a JSON body, found bytes that are not UTF-8", _MISSING)])
    if not text.strip(_BLANKS):
        return Reading(faults=[("the body is empty", _MISSING)])
    twice: list[str] = []

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice.append("an object")
        return found

    try:
        value = json.loads(
            text, parse_int=Number, parse_float=Number, parse_constant=_no_constant, object_pairs_hook=members
        )
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return Reading(
            faults=[("the body has an escape such as \\ud800, which is half a character", _MISSING)]
        )
    except RecursionError:
        return Reading(syntax="too deep")
    except ValueError as error:
        return Reading(syntax=str(error))
    if twice:
        return Reading(faults=[("the body has an object with a name twice", _MISSING)])
    if not isinstance(value, dict):
        return Reading(faults=[("expected a JSON object", value)])
    return _fitted(schema, value)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} as a number")


def _fitted(schema: dict[str, Any], value: Any, faults: Iterable[tuple[str, Any]] = ()) -> Reading:
    found = list(faults)
    row = _value(schema, value, "", found)
    return Reading(faults=found) if found else Reading(row=row)


def _value(kind: Any, value: Any, path: str, faults: list[tuple[str, Any]]) -> Any:
    misfit = (f"field '{path}': the value is no ", value)
    if isinstance(kind, dict):
        match kind["type"]:
            case "struct" if isinstance(value, dict):
                return _struct(kind, value, path, faults)
            case "array" if isinstance(value, list):
                return [
                    _item(kind["elementType"], each, f"{path}[{at}]", faults, nullable=kind["containsNull"])
                    for at, each in enumerate(value)
                ]
            case "map" if isinstance(value, dict):
                return {
                    name: _item(
                        kind["valueType"],
                        each,
                        f"{path}['{name}']",
                        faults,
                        nullable=kind["valueContainsNull"],
                    )
                    for name, each in value.items()
                }
        faults.append(misfit)
        return None
    if kind == "variant":
        if _beyond(value):
            faults.append((f"field '{path}': the value has a number beyond DOUBLE", _MISSING))
        return _plain(value)
    found = _scalar(kind, value)
    if found is _MISSING:
        faults.append(misfit)
    return found


def _struct(kind: Any, value: dict[str, Any], path: str, faults: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    missing: list[str] = []
    for each in kind["fields"]:
        name = each["name"]
        place = f"{path}.{name}" if path else name
        if value.get(name) is not None:
            found[name] = _value(each["type"], value[name], place, faults)
        else:
            found[name] = None
            if not each["nullable"]:
                missing.append(f"'{place}'")
    if missing:
        faults.append((f"required but missing: {', '.join(missing)}", _MISSING))
    return found


def _item(kind: Any, value: Any, path: str, faults: list[tuple[str, Any]], *, nullable: bool) -> Any:
    if value is not None:
        return _value(kind, value, path, faults)
    if not nullable:
        faults.append((f"required but missing: '{path}'", _MISSING))
    return None


def _scalar(kind: str, value: Any) -> Any:  # noqa: C901 - a case for each type
    is_number, is_text = isinstance(value, Number), isinstance(value, str) and not isinstance(value, Number)
    if kind in _BITS:
        if is_number and _INTEGER.fullmatch(value) and len(value) < 30:
            number = int(value)
            if -(2 ** _BITS[kind]) <= number < 2 ** _BITS[kind]:
                return number
        return _MISSING
    if kind in {"float", "double"}:
        if not is_number:
            return _MISSING
        number = float(value)
        if kind == "float":
            try:
                (number,) = struct.unpack("f", struct.pack("f", number))
            except OverflowError:
                return _MISSING
        return number if math.isfinite(number) else _MISSING
    if kind.startswith("decimal"):
        digits, scale = map(int, kind[8:-1].split(","))
        if not is_number or not _EXACT.fullmatch(value):
            return _MISSING
        exact = Decimal(value)
        shifted = exact.scaleb(scale)
        fits = len(value) < 80 and shifted == int(shifted) and abs(int(shifted)) < 10**digits
        return exact if fits else _MISSING
    if kind == "boolean":
        return value if isinstance(value, bool) else _MISSING
    return _written(kind, str(value)) if is_text else _MISSING


def _written(kind: str, text: str) -> Any:
    try:
        match kind:
            case "string":
                return text
            case "date" if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
                return date.fromisoformat(text)
            case "timestamp" | "timestamp_ntz":
                found = _MOMENT.fullmatch(text)
                if found and (kind == "timestamp" or not found[2]):
                    moment = datetime.fromisoformat(found[1] + (found[2] or ""))
                    if kind == "timestamp_ntz":
                        return moment
                    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
            case "binary" if len(text) % 4 == 0:
                return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error, OverflowError):
        pass
    return _MISSING


def _plain(value: Any) -> Any:
    """Return the value that a VARIANT has."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, Number):
        if _EXACT.fullmatch(value) and len(value.replace(".", "").lstrip("-")) <= 38:
            return Decimal(value)
        return float(value)
    return value


def _beyond(value: Any) -> bool:
    if isinstance(value, Number):
        return math.isinf(float(value))
    each = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(_beyond, each))


def read_avro(value: Any, schema: dict[str, Any]) -> Reading:
    """Return the row of a record that was read from Avro.

    Args:
        value: As `avro.read` returns it.
        schema: The columns.
    """
    faults: list[tuple[str, Any]] = []
    row = _of_avro(schema, value, "", faults)
    return Reading(faults=faults) if faults else Reading(row=row)


def _of_avro(kind: Any, value: Any, path: str, faults: list[tuple[str, Any]]) -> Any:
    if value is None:
        return None
    if isinstance(kind, dict):
        match kind["type"]:
            case "struct":
                return {
                    each["name"]: _of_avro(
                        each["type"], value[each["name"]], f"{path}.{each['name']}".lstrip("."), faults
                    )
                    for each in kind["fields"]
                }
            case "array":
                return [
                    _of_avro(kind["elementType"], each, f"{path}[{at}]", faults)
                    for at, each in enumerate(value)
                ]
            case "map":
                return {
                    name: _of_avro(kind["valueType"], each, f"{path}['{name}']", faults)
                    for name, each in value.items()
                }
    if kind == "variant":
        return _avro_variant(value)
    if isinstance(value, Beyond) or (isinstance(value, float) and not math.isfinite(value)):
        faults.append((f"field '{path}': the value is no ", _MISSING))
    elif isinstance(value, Decimal) and len(value.as_tuple().digits) > int(kind[8:].split(",")[0]):
        faults.append((f"field '{path}': the decimal has more than ", _MISSING))
    return value


def _avro_variant(value: Any) -> Any:
    match value:
        case dict():
            return {name: _avro_variant(each) for name, each in value.items()}
        case list():
            return [_avro_variant(each) for each in value]
        case bytes():
            return base64.b64encode(value).decode()
        case datetime():
            return value.replace(tzinfo=None).isoformat() + ("Z" if value.tzinfo else "")
        case date():
            return value.isoformat()
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case float() | Decimal():
            return _plain(Number(format(value, "f") if isinstance(value, Decimal) else repr(value)))
        case bool() | str() | None:
            return value
    return _plain(Number(value))


class _Builder(ET.TreeBuilder):
    has_doctype = False

    def doctype(self, *_: object) -> None:
        self.has_doctype = True


def read_xml(body: bytes, schema: dict[str, Any], options: Options, *, is_text: bool = False) -> Reading:
    """Read an XML body; a text is UTF-8 whatever the document declares."""
    if not body.strip():
        return Reading(faults=[("the body is empty", _MISSING)])
    builder = _Builder()
    parser = ET.XMLParser(target=builder, encoding="utf-8" if is_text else None)  # noqa: S314 - no entity is expanded
    try:
        parser.feed(body)
        root = parser.close()
    except (ET.ParseError, ValueError, LookupError) as error:
        if builder.has_doctype:
            return Reading(faults=[("the body has a document type declaration (<!DOCTYPE", _MISSING)])
        return Reading(syntax=str(error))
    if builder.has_doctype:
        return Reading(faults=[("the body has a document type declaration (<!DOCTYPE", _MISSING)])
    if _local(root.tag) != options.root:
        return Reading(faults=[(f"expected the root element '{options.root}'", _local(root.tag))])
    faults: list[tuple[str, Any]] = []
    if root.get(_NIL, "").strip() in {"true", "1"}:
        faults.append(("the root element is nil", _MISSING))
    value = _element(schema, root, "", options, faults)
    return _fitted(schema, value, faults)


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


def _element(  # noqa: C901, PLR0912 - a case for each kind of field
    kind: Any, element: ET.Element, path: str, options: Options, faults: list[tuple[str, Any]]
) -> Any:
    """Return an element as a JSON value."""
    if path and element.get(_NIL, "").strip() in {"true", "1"}:
        return None
    is_struct = isinstance(kind, dict) and kind["type"] == "struct"
    names = {each["name"]: each["type"] for each in kind["fields"]} if is_struct else {}
    if (not is_struct or "_VALUE" in names) and len(element):
        faults.append((f"field '{path}': the value is no text", _local(element[0].tag)))
        return None
    if not is_struct:
        return _text(kind, element.text or "", options)
    found: dict[str, Any] = {}
    for name, each in names.items():
        place = f"{path}.{name}" if path else name
        if name == "_VALUE":
            found[name] = _text(each, element.text or "", options)
        elif name.startswith("_"):
            plain = element.get(name[1:])
            others = [
                value
                for tag, value in element.items()
                if tag.startswith("{") and "XMLSchema-instance}" not in tag and _local(tag) == name[1:]
            ]
            if plain is None and len(others) > 1:
                faults.append(
                    (f"field '{place}': the attribute is there in more than one namespace", _MISSING)
                )
            if plain is not None or others:
                found[name] = _text(each, others[0] if plain is None else plain, options)
        else:
            children = [child for child in element if _local(child.tag) == name]
            if isinstance(each, dict) and each["type"] == "array":
                if children:
                    found[name] = [
                        _element(each["elementType"], child, f"{place}[{at}]", options, faults)
                        for at, child in enumerate(children)
                    ]
                continue
            if len(children) > 1:
                faults.append((f"field '{place}': the element is there more than once", _MISSING))
            for child in children:
                found[name] = _element(each, child, place, options, faults)
    return found


def _text(kind: Any, text: str, options: Options) -> Any:
    if kind != "string":
        text = text.strip(_BLANKS)
    if not text and options.empty_as_null:
        return None
    return _literal(kind, text)


def _literal(kind: Any, text: str) -> Any:
    if kind == "boolean":
        return {"true": True, "false": False}.get(text, text)
    is_number = kind in _BITS or kind in {"float", "double"} or str(kind).startswith("decimal")
    return Number(text) if is_number and _NUMBER.fullmatch(text) else text


def read_csv(body: bytes, schema: dict[str, Any], options: Options) -> Reading:
    """Read a CSV body."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return Reading(faults=[("expected a CSV body, found bytes that are not UTF-8", _MISSING)])
    text = text.removeprefix("\ufeff")
    if not text.strip("\r\n"):
        return Reading(faults=[("the body is empty", _MISSING)])
    try:
        records = list(_csv_records(text, options))
    except csv.Error as error:
        return Reading(syntax=str(error))
    names = [(each["name"]) for each in schema["fields"]]
    if options.header:
        header, *records = records
        names = [name for name, _ in header]
        for at, name in enumerate(names):
            if name in names[:at]:
                return Reading(faults=[("the header has a name twice", name)])
        if not records:
            return Reading(faults=[("the body has a header and no record", _MISSING)])
    if len(records) > 1:
        return Reading(faults=[("the body has more than one CSV record", _MISSING)])
    values = records[0]
    if len(values) != len(names):
        expected = f"expected {len(names)} value{'s' if len(names) > 1 else ''}, found {len(values)}"
        return Reading(faults=[(expected, _MISSING)])
    kinds = {each["name"]: each["type"] for each in schema["fields"]}
    found = {
        name: _literal(kinds[name], value)
        for name, (value, is_quoted) in zip(names, values, strict=True)
        if name in kinds and (is_quoted or value != options.null)
    }
    return _fitted(schema, found)


def _csv_records(  # noqa: C901, PLR0912 - a machine with a few states
    text: str, options: Options
) -> Iterable[list[tuple[str, bool]]]:
    """Yield records of RFC 4180, character by character: each value, and whether it is in quotes."""
    record: list[tuple[str, bool]] = []
    at, size = 0, len(text)
    while at < size:
        value: list[str] = []
        is_quoted = bool(options.quote) and text[at] == options.quote
        if is_quoted:
            at += 1
            while True:
                if at >= size:
                    raise csv.Error("open quote")
                if text[at] == options.quote:
                    if text[at + 1 : at + 2] != options.quote:
                        at += 1
                        break
                    at += 1
                value.append(text[at])
                at += 1
        while at < size and text[at] not in f"\r\n{options.delimiter}":
            if is_quoted or (options.quote and text[at] == options.quote):
                raise csv.Error("something after a quote" if is_quoted else "a quote within a value")
            value.append(text[at])
            at += 1
        record.append(("".join(value), is_quoted))
        if at < size and text[at] == options.delimiter:
            at += 1
            if at < size and text[at] not in "\r\n":
                continue
            record.append(("", False))
        if text[at : at + 2] == "\r\n":
            at += 2
        elif text[at : at + 1] == "\n":
            at += 1
        elif at < size:
            raise csv.Error("a carriage return alone")
        yield record
        record = []
