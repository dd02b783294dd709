"""A reader of Avro containers that shares nothing with the package: each record's bytes and its value.

The values are those of the columns that the page `xml-csv.md` names for each type.
"""

from __future__ import annotations

import bz2
import json
import lzma
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_DIGITS = 38
_LOCAL = _EPOCH.replace(tzinfo=None)
_Read = Callable[[bytes, int], tuple[Any, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """Attributes:
    schema: Of the writer, as JSON.
    bodies: Each record, as the binary encoding has it.
    values: The same, read.
    """

    schema: str
    bodies: list[bytes]
    values: list[object]

    @property
    def is_of_records(self) -> bool:
        """Whether a value is a record."""
        schema = json.loads(self.schema)
        return isinstance(schema, dict) and schema["type"] == "record"


def read(content: bytes) -> Container | str:
    """Return the records of a container, or why it can't be read."""
    if not content.startswith(b"Obj\x01"):
        return "no Avro container"
    try:
        meta: dict[str, bytes] = {}
        at = 4
        while True:
            count, at = _long(content, at)
            if not count:
                break
            if count < 0:
                _, at = _long(content, at)
            for _ in range(abs(count)):
                name, at = _string(content, at)
                meta[name], at = _bytes(content, at)
        marker, at = _taken(content, at, 16)
        schema = meta["avro.schema"].decode()
        record = _Reader(json.loads(schema)).read
        bodies: list[bytes] = []
        values: list[object] = []
        while at < len(content):
            count, at = _long(content, at)
            packed, at = _bytes(content, at)
            block = _unpacked(meta.get("avro.codec", b"null").decode(), packed)
            start = 0
            for _ in range(count):
                value, end = record(block, start)
                values.append(value)
                bodies.append(block[start:end])
                start = end
            found, at = _taken(content, at, 16)
            if start != len(block) or found != marker:
                return "a block doesn't end where it should"
    except (IndexError, KeyError, ValueError, TypeError, struct.error, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}"
    return Container(schema=schema, bodies=bodies, values=values)


def _unpacked(codec: str, data: bytes) -> bytes:
    match codec:
        case "null":
            return data
        case "deflate":
            return zlib.decompress(data, -15)
        case "bzip2":
            return bz2.decompress(data)
        case "xz":
            return lzma.decompress(data)
        case "snappy":
            size = shift = 0
            for byte in data:
                size |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
            return bytes(pa.decompress(data[:-4], decompressed_size=size, codec="snappy"))
    raise NotImplementedError(f"codec {codec}")


class _Reader:
    """Makes a function of each type: from bytes and a place to the value and the place behind it."""

    def __init__(self, schema: Any) -> None:
        self._named: dict[str, Any] = {}
        self._made: dict[int, _Read] = {}
        self._kept: list[Any] = []  # so that no two of them have one `id`
        self._note(schema, "")
        self.read = self._of(schema)

    def _note(self, schema: Any, space: str) -> None:
        if isinstance(schema, list):
            for each in schema:
                self._note(each, space)
        if not isinstance(schema, dict):
            return
        if schema["type"] in {"record", "error", "enum", "fixed"}:
            space = schema.get("namespace", space)
            name = schema["name"]
            self._named[name] = self._named[name.rpartition(".")[2]] = schema
            if space:
                self._named[f"{space}.{name}"] = schema
            for each in schema.get("fields", ()):
                self._note(each["type"], space)
        for part in ("items", "values", "type"):
            if part in schema and not isinstance(schema[part], str):
                self._note(schema[part], space)

    def _of(self, schema: Any) -> _Read:
        if isinstance(schema, str) and schema in _PRIMITIVES:
            return _PRIMITIVES[schema]
        if isinstance(schema, str):
            schema = self._named[schema]
        if id(schema) not in self._made:
            self._kept.append(schema)
            # A type may be within itself.
            self._made[id(schema)] = lambda data, at: self._made[id(schema)](data, at)  # noqa: PLW0108
            self._made[id(schema)] = self._make(schema)
        return self._made[id(schema)]

    def _make(self, schema: Any) -> _Read:
        if isinstance(schema, list):
            return self._union(schema)
        if logical := schema.get("logicalType"):
            plain = self._of({name: value for name, value in schema.items() if name != "logicalType"})
            return _logical(logical, schema, plain)
        match schema["type"]:
            case "record" | "error":
                return self._record([(each["name"], self._of(each["type"])) for each in schema["fields"]])
            case "enum":
                symbols = schema["symbols"]
                return lambda data, at: _mapped(_long(data, at), lambda number: symbols[number])
            case "fixed":
                size = schema["size"]
                return lambda data, at: _taken(data, at, size)
            case "array":
                return self._array(self._of(schema["items"]))
            case "map":
                return self._map(self._of(schema["values"]))
        return self._of(schema["type"])

    def _record(self, fields: list[tuple[str, _Read]]) -> _Read:
        def read(data: bytes, at: int) -> tuple[Any, int]:
            found = {}
            for name, each in fields:
                found[name], at = each(data, at)
            return found, at

        return read

    def _array(self, item: _Read) -> _Read:
        def read(data: bytes, at: int) -> tuple[Any, int]:
            found = []
            while True:
                count, at = _long(data, at)
                if not count:
                    return found, at
                if count < 0:
                    _, at = _long(data, at)
                for _ in range(abs(count)):
                    value, at = item(data, at)
                    found.append(value)

        return read

    def _map(self, item: _Read) -> _Read:
        pair = self._array(self._record([("key", _string), ("value", item)]))

        def read(data: bytes, at: int) -> tuple[Any, int]:
            found, at = pair(data, at)
            return {each["key"]: each["value"] for each in found}, at

        return read

    def _union(self, schema: list[Any]) -> _Read:
        kinds = [self._of(each) for each in schema]

        def read(data: bytes, at: int) -> tuple[Any, int]:
            chosen, at = _long(data, at)
            return kinds[chosen](data, at)

        return read


def _mapped(found: tuple[Any, int], function: Callable[[Any], Any]) -> tuple[Any, int]:
    return function(found[0]), found[1]


class Beyond(str):
    """The text of a date or timestamp outside the years 1 to 9999."""

    __slots__ = ()


def _logical(logical: str, schema: Any, plain: _Read) -> _Read:
    """Return a function for the values of a logical type; those that are ignored are plain."""
    functions: dict[tuple[str, str], Callable[[Any], Any]] = {
        ("date", "int"): lambda value: date(1970, 1, 1) + timedelta(days=value),
        ("timestamp-millis", "long"): lambda value: _EPOCH + timedelta(milliseconds=value),
        ("timestamp-micros", "long"): lambda value: _EPOCH + timedelta(microseconds=value),
        ("local-timestamp-millis", "long"): lambda value: _LOCAL + timedelta(milliseconds=value),
        ("local-timestamp-micros", "long"): lambda value: _LOCAL + timedelta(microseconds=value),
    }
    function = functions.get((logical, schema["type"]))
    if logical == "decimal" and schema["type"] in {"bytes", "fixed"}:
        scale, digits = schema.get("scale", 0), schema.get("precision", 0)
        if 0 <= scale <= digits <= _MOST_DIGITS:
            function = partial(_decimal, scale)
    if function is None:
        return plain

    def read(data: bytes, at: int) -> tuple[Any, int]:
        value, at = plain(data, at)
        try:
            return function(value), at
        except OverflowError:
            return Beyond(str(value)), at

    return read


def _decimal(scale: int, value: bytes) -> Decimal:
    number = int.from_bytes(value, "big", signed=True)
    # Arithmetic of decimals would round to the digits of a context.
    return Decimal((int(number < 0), tuple(int(each) for each in str(abs(number))), -scale))


def _taken(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    if size < 0 or at + size > len(data):
        raise IndexError("cut off")
    return data[at : at + size], at + size


def _long(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    found, shift = byte & 127, 7
    while byte > 127:
        at += 1
        byte = data[at]
        found |= (byte & 127) << shift
        shift += 7
    return (found >> 1) ^ -(found & 1), at + 1


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _long(data, at)
    return _taken(data, at, size)


def _string(data: bytes, at: int) -> tuple[str, int]:
    value, at = _bytes(data, at)
    return value.decode(), at


_PRIMITIVES: dict[str, _Read] = {
    "null": lambda _, at: (None, at),
    "boolean": lambda data, at: (data[at] == 1, at + 1),
    "int": _long,
    "long": _long,
    "float": lambda data, at: (struct.unpack_from("<f", data, at)[0], at + 4),
    "double": lambda data, at: (struct.unpack_from("<d", data, at)[0], at + 8),
    "bytes": _bytes,
    "string": _string,
}
