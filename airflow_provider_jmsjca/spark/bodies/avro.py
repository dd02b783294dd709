"""A strict reader of Avro's binary encoding, which converts each record to JSON text.

A function for each type is created once for each schema. Its arguments are the bytes, a position in them, and
the output. It appends a value as JSON to the output, and returns the position after the value. If each value
were a text of its own, an array would take up to 60 times the memory of its bytes.

The functions run in Python workers on the executors.
"""

from __future__ import annotations

import binascii
import io
import json
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from airflow_provider_jmsjca.errors import ConfigurationError

Read = Callable[[bytes, int, "Output"], int]

RECORDS: Final = ("record", "error")
_PREFIX: Final = 5
"""Length of the prefix of Confluent's serializers: a zero byte, and the schema's number in four bytes."""
_FINGERPRINTED: Final = 10
"""Length of the header of the single-object encoding: two bytes, and the schema's fingerprint in eight."""
_BITS: Final = {"int": 32, "long": 64}
_MORE_FOLLOW: Final = 128
"""Bit that is set in a byte of a number if further bytes follow."""
_MOST_DIGITS: Final = 38
_SHOWN: Final = 40
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - its text gets the zone
_written: Final = json.JSONEncoder(ensure_ascii=False).encode


class EncodingError(Exception):
    """The bytes aren't a record of the schema.

    Attributes:
        why: The fault, without the field.
        path: Parts of the field's path, the innermost first.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
        self.path: list[str] = []

    def __str__(self) -> str:
        path = "".join(reversed(self.path)).removeprefix(".")
        return f"field '{path}': {self.why}" if path else self.why


class Output(io.StringIO):
    """The JSON text of one record, of limited length.

    Attributes:
        limit: Maximum number of characters.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def check(self) -> None:
        """Check the length.

        Raises:
            TooLongError: The text is longer than the maximum.
        """
        if self.tell() > self.limit:
            raise TooLongError


class TooLongError(Exception):
    """The record has more characters as JSON than permitted."""


class _EndError(EncodingError):
    """The bytes end too early."""

    def __init__(self) -> None:
        super().__init__("the body ends here, so it may be cut off, or another schema wrote it")


def read_record(schema: str, body: bytes, schema_id: int | None, limit: int) -> str:
    """Decode a body that consists of exactly one Avro record, and return the record as JSON text.

    Args:
        schema: The schema with which the body was written: an Avro record as JSON.
        body: The whole body, including a prefix.
        schema_id: Number of the schema in the prefix of Confluent's serializers, with which the body must
            begin; `None`: the body has no prefix.
        limit: Maximum number of characters of the JSON text.

    Raises:
        EncodingError: The bytes aren't exactly one record, or the prefix isn't the expected one.
        TooLongError: The JSON text would be longer than the maximum.
    """
    read = reader_of(schema)
    start = 0
    if schema_id is not None:
        found = _prefix(body)
        if found != schema_id:
            what = "no such prefix" if found is None else f"schema id {found}"
            raise EncodingError(
                f"expected the prefix of Confluent's serializers with schema id {schema_id}, found {what}"
            )
        start = _PREFIX
    try:
        return _exactly(read, body, start, limit)
    except EncodingError:
        hint = None if start else _other_encoding(read, body, limit)
        if hint is None:
            raise
        raise EncodingError(hint) from None


@lru_cache(maxsize=32)
def reader_of(schema: str) -> Read:
    """Return the function that reads a record of a schema.

    Raises:
        ConfigurationError: The schema is no record, or is invalid.
    """
    try:
        found = json.loads(schema)
        _written(found).encode()  # raises for half a surrogate pair, which no column can contain
        if not isinstance(found, Mapping) or found.get("type") not in RECORDS:
            raise ConfigurationError(
                "avro: the writer's schema is no record; expected an object of the type 'record'"
            )
        return _Kinds().of(found, "").read
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(f"avro: the writer's schema can't be read: {error}") from error


def _exactly(read: Read, body: bytes, start: int, limit: int) -> str:
    output = Output(limit)
    try:
        end = read(body, start, output)
    except RecursionError:
        raise EncodingError("the body has too many records within each other") from None
    output.check()
    if end < len(body):
        more = len(body) - end
        raise EncodingError(
            f"the body is longer than an Avro record of this schema, by {more} byte{'s' if more > 1 else ''}"
        )
    return output.getvalue()


def _prefix(body: bytes) -> int | None:
    return int.from_bytes(body[1:_PREFIX], "big") if len(body) >= _PREFIX and body[0] == 0 else None


def _other_encoding(read: Read, body: bytes, limit: int) -> str | None:
    """Return a fault that names the body's actual encoding; `None` if the encoding isn't recognised."""
    if body.startswith(b"Obj\x01"):
        return "the body is a file of Avro records, expected one record without a header"
    for start, is_there, what in (
        (
            _PREFIX,
            body[:1] == b"\0",
            f"the prefix of Confluent's serializers, with schema id {_prefix(body)}",
        ),
        (_FINGERPRINTED, body[:2] == b"\xc3\x01", "the header of Avro's single-object encoding"),
    ):
        try:
            if is_there and _exactly(read, body, start, limit):
                return f"the body begins with {what}; expected a record without it"
        except (EncodingError, TooLongError):
            continue
    return None


@dataclass(frozen=True, slots=True)
class _Kind:
    """A type of a schema.

    Attributes:
        read: Reads a value.
        is_bare: Whether values have no bytes, such as those of `null`.
    """

    read: Read
    is_bare: bool = False


class _Kinds:
    """Creates the readers for the types of a schema, and remembers the named types."""

    def __init__(self) -> None:
        self._named: dict[str, list[_Kind]] = {}

    def of(self, schema: Any, namespace: str) -> _Kind:
        """Return the reader for a type.

        Args:
            schema: The type, or its name.
            namespace: Namespace for names without a namespace.

        Raises:
            ValueError: The schema is invalid.
        """
        match schema:
            case str() if schema in _SIMPLE:
                return _SIMPLE[schema]
            case str():
                return self._by_name(schema, namespace)
            case list():
                return _Kind(_union([self.of(each, namespace).read for each in schema]))
            case Mapping() if "type" in schema:
                return self._declared(schema, namespace)
        raise ValueError(f"expected a type, found {_short(schema)}")

    def _declared(self, schema: Mapping[str, Any], namespace: str) -> _Kind:
        match schema["type"]:
            case "record" | "error" | "enum" | "fixed":
                return self._new(schema, namespace)
            case "array":
                items = self.of(schema.get("items"), namespace)
                if items.is_bare:
                    # Such items take no bytes, so a short body could claim any number of them.
                    raise ValueError("arrays of values that take no bytes aren't supported")
                return _Kind(_array(items.read))
            case "map":
                return _Kind(_map(self.of(schema.get("values"), namespace).read))
            case "bytes" | "int" | "long":
                read = _logical(schema)
                return _SIMPLE[schema["type"]] if read is None else _Kind(read)
        return self.of(schema["type"], namespace)

    def _new(self, schema: Mapping[str, Any], namespace: str) -> _Kind:
        """Return the reader for the definition of a named type, and remember the type."""
        name, given = schema.get("name"), schema.get("namespace", namespace)
        if not isinstance(name, str) or not name:
            raise ValueError(f"expected a type with a name, found {_short(name)}")
        full = name if "." in name or not given else f"{given}.{name}"
        if full in self._named:
            raise ValueError(f"the type {_short(full)} is defined twice")
        self._named[full] = made = []
        match schema["type"]:
            case "enum":
                made.append(_Kind(_enum(_list_of(schema, "symbols", str))))
            case "fixed":
                size = schema.get("size")
                if type(size) is not int or size < 0:
                    raise ValueError(f"expected the size of a fixed, found {_short(size)}")
                made.append(_Kind(_logical(schema) or _fixed(size), is_bare=not size))
            case _:
                made.append(self._record(_list_of(schema, "fields", dict), full.rpartition(".")[0]))
        return made[0]

    def _record(self, fields: list[Any], namespace: str) -> _Kind:
        names = [each.get("name") for each in fields]
        kinds = [self.of(each.get("type"), namespace) for each in fields]
        if not all(isinstance(name, str) for name in names):
            raise ValueError(f"expected fields with names, found {_short(names)}")
        reads = [
            (name, f"{'{,'[at > 0]}{_written(name)}:", kind.read)
            for at, (name, kind) in enumerate(zip(names, kinds, strict=True))
        ]
        return _Kind(_record(reads), is_bare=all(kind.is_bare for kind in kinds))

    def _by_name(self, name: str, namespace: str) -> _Kind:
        within = f"{namespace}.{name}"
        made = self._named.get(within if namespace and "." not in name and within in self._named else name)
        if made is None:
            raise ValueError(f"the type {_short(name)} is not defined before its use")
        # The list is empty if a type refers to itself: then its reader is looked up when it is called.
        return made[0] if made else _Kind(lambda data, at, output: made[0].read(data, at, output))  # noqa: PLW0108


def _list_of(schema: Mapping[str, Any], part: str, kind: type) -> list[Any]:
    found = schema.get(part)
    if not isinstance(found, list) or not all(isinstance(each, kind) for each in found):
        raise ValueError(f"expected the {part} of {_short(schema.get('name'))}, found {_short(found)}")
    return found


def _record(fields: list[tuple[str, str, Read]]) -> Read:
    """Return the function that reads a record.

    Args:
        fields: For each field its name, the text in front of its value, and the function that reads it.
    """

    def read(data: bytes, at: int, output: Output) -> int:
        count = 0
        try:
            for _, key, field in fields:
                output.write(key)
                at = field(data, at, output)
                count += 1
        except EncodingError as error:
            error.path.append(f".{fields[count][0]}")
            raise
        output.write("}" if fields else "{}")
        return at

    return read


def _union(branches: list[Read]) -> Read:
    def read(data: bytes, at: int, output: Output) -> int:
        chosen, at = _whole(data, at, "long")
        if not 0 <= chosen < len(branches):
            raise EncodingError(f"the union has no branch {chosen}")
        return branches[chosen](data, at, output)

    return read


def _enum(symbols: list[str]) -> Read:
    texts = [_written(each) for each in symbols]

    def read(data: bytes, at: int, output: Output) -> int:
        chosen, at = _whole(data, at, "int")
        if not 0 <= chosen < len(texts):
            raise EncodingError(f"the enum has no symbol {chosen}")
        output.write(texts[chosen])
        return at

    return read


def _array(item: Read) -> Read:
    def read(data: bytes, at: int, output: Output) -> int:
        count = 0

        def add(at: int) -> int:
            nonlocal count
            if count:
                output.write(",")
            at = item(data, at, output)
            count += 1
            output.check()
            return at

        output.write("[")
        try:
            at = _blocks(data, at, add)
        except EncodingError as error:
            error.path.append(f"[{count}]")
            raise
        output.write("]")
        return at

    return read


def _map(value: Read) -> Read:
    def read(data: bytes, at: int, output: Output) -> int:
        found: set[bytes] = set()

        def add(at: int) -> int:
            raw, at = _raw(data, at)
            key = _text(raw)
            if raw in found:
                raise EncodingError(f"the map has a key twice, found the string {shown(key)}")
            output.write(f"{',' if found else ''}{_written(key)}:")
            found.add(raw)
            try:
                at = value(data, at, output)
            except EncodingError as error:
                error.path.append(f"[{_short(key)}]")
                raise
            output.check()
            return at

        output.write("{")
        at = _blocks(data, at, add)
        output.write("}")
        return at

    return read


def _blocks(data: bytes, at: int, add: Callable[[int], int]) -> int:
    """Read the items of all blocks of an array or map, and return the position after them.

    Args:
        data: The bytes.
        at: Position of the first block.
        add: Reads the item at a position, and appends it to the output; returns the position after it.
    """
    while True:
        count, at = _whole(data, at, "long")
        if not count:
            return at
        end = None
        if count < 0:
            size, at = _whole(data, at, "long")
            end = at + size
        for _ in range(abs(count)):
            at = add(at)
        if end is not None and at != end:
            raise EncodingError("a block of items has another size than it names")


def _logical(schema: Mapping[str, Any]) -> Read | None:
    """Return the function that reads a logical type; `None` if the logical type is ignored."""
    match schema["type"], schema.get("logicalType"):
        case "bytes" | "fixed", "decimal":
            precision, scale = schema.get("precision"), schema.get("scale", 0)
            if (
                type(precision) is int
                and type(scale) is int
                and 1 <= precision <= _MOST_DIGITS
                and 0 <= scale <= precision
            ):
                return _decimal(precision, scale, schema.get("size"))
        case "int", "date":
            return _moment("int", timedelta(days=1), "days", 10, "")
        case "long", "timestamp-millis":
            return _moment("long", timedelta(milliseconds=1), "ms", None, "Z")
        case "long", "timestamp-micros":
            return _moment("long", timedelta(microseconds=1), "µs", None, "Z")
        case "long", "local-timestamp-millis":
            return _moment("long", timedelta(milliseconds=1), "ms", None, "")
        case "long", "local-timestamp-micros":
            return _moment("long", timedelta(microseconds=1), "µs", None, "")
    return None


def _moment(kind: str, unit: timedelta, name: str, length: int | None, zone: str) -> Read:
    """Return the function that reads dates or timestamps.

    Args:
        kind: Type of the number: `int` or `long`.
        unit: Unit of the number.
        name: Name of the unit, for values out of range.
        length: Maximum number of characters of the text; `None`: no limit.
        zone: Suffix of the text, `Z` or empty.
    """

    def read(data: bytes, at: int, output: Output) -> int:
        value, at = _whole(data, at, kind)
        try:
            text = f"{(_EPOCH + value * unit).isoformat()[:length]}{zone}"
        except OverflowError:  # the written text is no valid date or timestamp, so the message is rejected
            text = f"{value} {name} since 1970"
        output.write(f'"{text}"')
        return at

    return read


def _decimal(precision: int, scale: int, size: int | None) -> Read:
    def read(data: bytes, at: int, output: Output) -> int:
        raw, at = _raw(data, at) if size is None else _taken(data, at, size)
        value = int.from_bytes(raw, "big", signed=True)
        if not raw or abs(value) >= 10**precision:
            what = f"more than {precision} digits" if raw else "no bytes"
            raise EncodingError(f"the decimal has {what}")
        digits = str(abs(value)).rjust(scale + 1, "0")
        whole, part = (digits[:-scale], f".{digits[-scale:]}") if scale else (digits, "")
        output.write(f"{'-' if value < 0 else ''}{whole}{part}")
        return at

    return read


def _fixed(size: int) -> Read:
    def read(data: bytes, at: int, output: Output) -> int:
        value, at = _taken(data, at, size)
        output.write(_base64(value))
        return at

    return read


def _taken(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    if size < 0:
        raise EncodingError(f"the value has a length of {size} bytes")
    if at + size > len(data):
        raise _EndError
    return data[at : at + size], at + size


def _whole(data: bytes, at: int, kind: str) -> tuple[int, int]:
    """Return a number (zigzag, seven bits in each byte), and the position after it."""
    value = shift = 0
    bits = _BITS[kind]
    while True:
        if at >= len(data):
            raise _EndError
        byte = data[at]
        value |= (byte & ~_MORE_FOLLOW) << shift
        at += 1
        shift += 7
        if byte < _MORE_FOLLOW:
            break
        if shift >= bits:
            raise EncodingError(f"the number has more than {bits} bits")
    if value >> bits:
        raise EncodingError(f"the number has more than {bits} bits")
    return (value >> 1) ^ -(value & 1), at


def _raw(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _whole(data, at, "long")
    return _taken(data, at, size)


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise EncodingError("the text is not UTF-8") from None


def _string(data: bytes, at: int, output: Output) -> int:
    raw, at = _raw(data, at)
    output.write(_written(_text(raw)))
    return at


def _boolean(data: bytes, at: int, output: Output) -> int:
    raw, at = _taken(data, at, 1)
    if raw[0] > 1:
        raise EncodingError(f"expected a boolean, 0 or 1, found the byte {raw[0]}")
    output.write("true" if raw[0] else "false")
    return at


def _null(data: bytes, at: int, output: Output) -> int:
    del data
    output.write("null")
    return at


def _int(data: bytes, at: int, output: Output) -> int:
    value, at = _whole(data, at, "int")
    output.write(str(value))
    return at


def _long(data: bytes, at: int, output: Output) -> int:
    value, at = _whole(data, at, "long")
    output.write(str(value))
    return at


def _base64_bytes(data: bytes, at: int, output: Output) -> int:
    raw, at = _raw(data, at)
    output.write(_base64(raw))
    return at


def _float(form: str) -> Read:
    unpack, size = struct.Struct(form).unpack, struct.calcsize(form)

    def read(data: bytes, at: int, output: Output) -> int:
        raw, at = _taken(data, at, size)
        (value,) = unpack(raw)
        # JSON has no numbers for NaN and the infinities, so they become strings.
        others = '"NaN"' if math.isnan(value) else f'"{"-" if value < 0 else ""}Infinity"'
        output.write(repr(value) if math.isfinite(value) else others)
        return at

    return read


def _base64(raw: bytes) -> str:
    return f'"{binascii.b2a_base64(raw, newline=False).decode()}"'


def shown(text: str) -> str:
    """Return the beginning of a text in quotes, on one line."""
    beginning = "".join(each if each.isprintable() else " " for each in text[:_SHOWN])
    return f'"{beginning}{"…" if len(text) > _SHOWN else ""}"'


def _short(part: Any) -> str:
    """Return the beginning of a part on one line, for an error."""
    text = "".join(each if each.isprintable() else " " for each in repr(part)[: _SHOWN + 1])
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


_SIMPLE: Final[Mapping[str, _Kind]] = {
    "null": _Kind(_null, is_bare=True),
    "boolean": _Kind(_boolean),
    "int": _Kind(_int),
    "long": _Kind(_long),
    "float": _Kind(_float("<f")),
    "double": _Kind(_float("<d")),
    "bytes": _Kind(_base64_bytes),
    "string": _Kind(_string),
}
