"""Strict readers of XML, CSV and Avro bodies.

Each reader converts a body to JSON text with the fields of a schema, or names the fault. The rules of
`mapping.sort_json` then check the types of the values. So if the text for a numeric field isn't a number, it
becomes a JSON string, which `sort_json` rejects with the same reason as for JSON bodies.

The readers run in Python workers on the executors.
"""

from __future__ import annotations

import io
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Final
from xml.parsers import expat

from airflow_provider_jmsjca.core.message import BodyKind
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.spark.bodies.avro import (
    EncodingError,
    TooLongError,
    read_record,
    reader_of,
    shown,
)

MOST_JSON: Final = 50_000_000
"""Default maximum number of characters of an Avro record as JSON."""
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_LINE_ENDS: Final = "\r\n"
_BYTE_ORDER_MARK: Final = "\ufeff"
_EMPTY: Final = "the body is empty"
_XML_BLANKS: Final = " \t\r\n"
_SCHEMA_INSTANCE: Final = "http://www.w3.org/2001/XMLSchema-instance"
# XML documents can't contain this character, so no name or namespace has it.
_SEPARATOR: Final = "\f"
_LONGEST_NAMESPACE: Final = 1_000
# The parser keeps 150 bytes for each element that is open, and a name in a CSV header takes as much.
_DEEPEST: Final = 200_000
_MOST_NAMES: Final = 1_000_000
_ITEMS_APART: Final = 1_000
_ATTRIBUTE: Final = "_"
_CONTENT: Final = "_VALUE"


class Kind(StrEnum):
    """The JSON form of a field's values."""

    STRING = "string"
    NUMBER = "number"
    BOOLEAN = "boolean"
    WRITTEN = "written"
    """A string without surrounding blanks: a date, a timestamp or base64."""
    STRUCT = "struct"
    ARRAY = "array"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The fields of a body, without their exact types.

    Attributes:
        kind: The JSON form of a value.
        fields: Fields of a `STRUCT` by name.
        items: Shape of the items of an `ARRAY`; `None` for other kinds.
    """

    kind: Kind
    fields: Mapping[str, Shape] = field(default_factory=dict)
    items: Shape | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Csv:
    """Bodies of one CSV record each, as defined by RFC 4180.

    Attributes:
        delimiter: The character between values.
        quote: The character around values; within them it is doubled. Empty: values have no quotes.
        header: Whether the first line names the values. If not, they are the schema's fields in their order.
        null: A value without quotes and with this text is NULL.

    Raises:
        ConfigurationError: An option has an invalid value.
    """

    name: ClassVar[str] = "CSV"
    with_article: ClassVar[str] = "a CSV"
    kinds: ClassVar[tuple[BodyKind, ...]] = (BodyKind.TEXT, BodyKind.BYTES)
    delimiter: str = ","
    quote: str = '"'
    header: bool = False
    null: str = ""

    def __post_init__(self) -> None:
        if len(self.delimiter) != 1 or self.delimiter in _LINE_ENDS:
            raise ConfigurationError(f"csv: delimiter: expected one character, found {self.delimiter!r}")
        if len(self.quote) > 1 or (self.quote and self.quote in f"{_LINE_ENDS}{self.delimiter}"):
            raise ConfigurationError(
                f"csv: quote: expected one character other than the delimiter, or an empty text, found "
                f"{self.quote!r}"
            )
        if any(each in self.null for each in (self.delimiter, *_LINE_ENDS, *self.quote)):
            raise ConfigurationError(
                f"csv: null: expected a text without delimiter, quote and line end, found {self.null!r}"
            )

    def to_json(self, body: bytes, shape: Shape, *, is_text: bool) -> str:
        """Return a body as a JSON object; see `read_body`."""
        del is_text  # bytes are UTF-8 too
        try:
            text = body.decode("utf-8")
        except UnicodeDecodeError:
            raise _FaultyError("expected a CSV body, found bytes that are not UTF-8") from None
        text = text.removeprefix(_BYTE_ORDER_MARK)
        if not text.strip(_LINE_ENDS):
            raise _FaultyError(_EMPTY)
        names: Sequence[str] = list(shape.fields)
        start = 0
        if self.header:
            names, start = self._names(text)
            for name, times in Counter(names).items():
                if times > 1:
                    raise _FaultyError(f"the header has a name twice, found the string {shown(name)}")
            if start == len(text):
                raise _FaultyError("the body has a header and no record")
        values = self._record(text, start, len(names))
        members = (
            f"{_quoted(name)}:{_literal(shape.fields[name].kind, value)}"
            for name, value in zip(names, values, strict=True)
            if name in shape.fields and value is not None
        )
        return f"{{{','.join(members)}}}"

    def _names(self, text: str) -> tuple[list[str], int]:
        """Return the names in the header, and the position after its line end."""
        names: list[str] = []
        end = 0
        for name, _, position in self._values(text, 0, "the header"):
            if len(names) == _MOST_NAMES:
                raise _FaultyError(f"the header has more than {_MOST_NAMES:,} names")
            names.append(name)
            end = position
        return names, end

    def _record(self, text: str, start: int, expected: int) -> list[str | None]:
        """Return the values of the record at a position in the text, `None` for NULL."""
        values: list[str | None] = []
        count = end = 0
        for value, is_quoted, position in self._values(text, start, "the record"):
            count, end = count + 1, position
            if count <= expected:  # a text of its own for each value would take 65 times the body's memory
                values.append(value if is_quoted or value != self.null else None)
        if end < len(text):
            raise _FaultyError("the body has more than one CSV record")
        if count != expected:
            raise _FaultyError(f"expected {expected} value{'s' if expected > 1 else ''}, found {count}")
        return values

    def _values(self, text: str, start: int, part: str) -> Iterator[tuple[str, bool, int]]:
        """Yield each value of the record at a position in the text.

        Each item is the value, whether it was in quotes, and the position after the delimiter or line end
        behind it.
        """
        quote, delimiter = re.escape(self.quote), re.escape(self.delimiter)
        plain = re.compile(f"[^{delimiter}{quote}\r\n]*+")
        quoted = re.compile(f"{quote}((?:[^{quote}]++|{quote}{quote})*+){quote}") if quote else None
        for number in itertools.count(1):
            place = f"{part}, value {number}: "
            is_quoted = quoted is not None and text.startswith(self.quote, start)
            match = (quoted if quoted is not None and is_quoted else plain).match(text, start)
            if match is None:  # without quotes, nothing is a value too
                raise _FaultyError(f"{place}the closing quote is missing")
            value = match[1].replace(self.quote * 2, self.quote) if is_quoted else match[0]
            start = match.end()
            if start == len(text):
                yield value, is_quoted, start
                return
            if text.startswith(("\r\n", "\n"), start):
                yield value, is_quoted, start + (2 if text[start] == "\r" else 1)
                return
            if text[start] == self.delimiter:
                start += 1
                yield value, is_quoted, start
            elif text[start] == "\r":
                raise _FaultyError(f"{place}a carriage return without a line feed")
            elif is_quoted:
                raise _FaultyError(f"{place}something follows the closing quote")
            else:
                raise _FaultyError(f"{place}a quote within a value without quotes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Xml:
    """Bodies that are one XML document each.

    A field reads the element of the same name, without regard to namespaces. A field `_name` reads the
    attribute `name` of the enclosing element, and `_VALUE` the text of an element that is a `STRUCT`. An
    `ARRAY` reads an element that may be repeated.

    Attributes:
        root: Name of the root element: `order`, or `{http://example.com/orders}order` with the namespace.
        empty_as_null: Whether an element without content is NULL. Otherwise it is an empty text, which only
            fits `STRING`.

    Raises:
        ConfigurationError: The name of the root element is empty.
    """

    name: ClassVar[str] = "XML"
    with_article: ClassVar[str] = "an XML"
    kinds: ClassVar[tuple[BodyKind, ...]] = (BodyKind.TEXT, BodyKind.BYTES)
    root: str
    empty_as_null: bool = False

    def __post_init__(self) -> None:
        if not self.root.rpartition("}")[2].strip():
            raise ConfigurationError(f"xml: root: expected the name of the root element, found {self.root!r}")

    def to_json(self, body: bytes, shape: Shape, *, is_text: bool) -> str:
        """Return a body as a JSON object; see `read_body`."""
        if not body.strip():
            raise _FaultyError(_EMPTY)
        # Bytes have the encoding that the document declares. A text was decoded on receipt, and is UTF-8 now.
        # Without a dictionary as third argument, the parser would keep every name until the end.
        parser = expat.ParserCreate("utf-8" if is_text else None, _SEPARATOR, None)
        parser.buffer_text = True
        document = _Document(self, shape)
        parser.StartElementHandler = document.start
        parser.EndElementHandler = document.end
        parser.CharacterDataHandler = document.text
        parser.StartDoctypeDeclHandler = _refuse_doctype
        parser.StartNamespaceDeclHandler = _check_namespace
        try:
            parser.Parse(body, True)
        except expat.ExpatError as error:
            raise _FaultyError(_why_not_xml(error, body)) from None
        except (ValueError, LookupError):
            raise _FaultyError("the body is not XML: it declares an encoding that can't be read") from None
        if document.fault is not None:
            raise _FaultyError(document.fault)
        return document.found


@dataclass(frozen=True, slots=True, kw_only=True)
class Avro:
    """Bodies of one record each, in Avro's binary encoding.

    Attributes:
        schema: The schema with which the bodies were written: an Avro record as JSON.
        schema_id: Number in the prefix of Confluent's serializers, with which each body must begin: a zero
            byte, and this number in four bytes. `None`: the bodies have no prefix.
        max_json: Maximum number of characters of a record as JSON. A longer record is rejected: one byte can
            stand for a long text, such as the names of all fields of a record.

    Raises:
        ConfigurationError: The schema is no record or is invalid, the number has more than 32 bits, or the
            maximum is less than 1.
    """

    name: ClassVar[str] = "Avro"
    with_article: ClassVar[str] = "an Avro"
    kinds: ClassVar[tuple[BodyKind, ...]] = (BodyKind.BYTES,)
    schema: str
    schema_id: int | None = None
    max_json: int = MOST_JSON

    def __post_init__(self) -> None:
        reader_of(self.schema)
        if self.schema_id is not None and not 0 <= self.schema_id < 2**32:
            raise ConfigurationError(
                f"avro: schema_id: expected a number of 32 bits, from 0 on, found {self.schema_id}"
            )
        if self.max_json < 1:
            raise ConfigurationError(
                f"avro: max_json: expected a number of characters, from 1 on, found {self.max_json}"
            )

    def to_json(self, body: bytes, shape: Shape, *, is_text: bool) -> str:
        """Return a body as a JSON object, with all fields; see `read_body`."""
        del shape, is_text  # the bytes are only readable by their own schema
        try:
            return read_record(self.schema, body, self.schema_id, self.max_json)
        except TooLongError:
            raise _FaultyError(
                f"as JSON the record has more than {self.max_json:,} characters, the limit of max_json "
                "(--avro-max-json)"
            ) from None
        except EncodingError as error:
            # An empty body is a record if no field of the schema has bytes.
            raise _FaultyError(str(error) if body else _EMPTY) from None


BodyFormat = Csv | Xml | Avro


def read_body(
    body_format: BodyFormat, shape: Shape, body: bytes | None, body_type: str | None
) -> tuple[str | None, str | None]:
    """Return a body as JSON text, or the reason that it can't be read.

    Args:
        body_format: Format of the body.
        shape: The fields to read; others are ignored.
        body: The body: a text in UTF-8, or the bytes as received.
        body_type: Kind of the body, from the column `body_type`.

    Returns:
        The JSON text and `None`, or `None` and the reason. Both are `None` if the format doesn't read bodies
        of this kind.
    """
    if body_type not in body_format.kinds:
        return None, None
    try:
        return body_format.to_json(bytes(body or b""), shape, is_text=body_type == BodyKind.TEXT), None
    except _FaultyError as fault:
        return None, str(fault)


class _FaultyError(Exception):
    """The body can't be read; the text is the reason."""


@dataclass(slots=True)
class _Items:
    """The items of a repeated element. A text for each would take up to 20 times the body's memory."""

    count: int = 0
    text: io.StringIO = field(default_factory=io.StringIO)
    last: list[str] = field(default_factory=list)

    def add(self, item: str) -> None:
        self.last.append(item)
        self.count += 1
        if len(self.last) == _ITEMS_APART:
            self._join()

    def as_json(self) -> str:
        self._join()
        return f"[{self.text.getvalue()}]"

    def _join(self) -> None:
        if self.last:
            self.text.write(f"{',' if self.text.tell() else ''}{','.join(self.last)}")
            self.last.clear()


@dataclass(slots=True, kw_only=True)
class _Element:
    """An XML element whose end tag hasn't been read yet."""

    name: str
    shape: Shape
    path: str
    is_null: bool
    members: dict[str, str | _Items] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)


class _Document:
    """Converts an XML document to JSON while it is parsed; keeps only the fields of the schema.

    Attributes:
        fault: The first fault; `None` if there is none.
        found: The document as JSON, valid once it has been parsed.
    """

    def __init__(self, xml: Xml, shape: Shape) -> None:
        self._xml = xml
        self._shape = shape
        self._open: list[_Element] = []
        self._left_out = 0  # number of open elements that the schema doesn't have
        self.fault: str | None = None
        self.found = "{}"

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if len(self._open) + self._left_out == _DEEPEST:
            raise _FaultyError(f"the body has more than {_DEEPEST:,} elements within each other")
        if self._left_out:
            self._left_out += 1
            return
        namespace, _, local = name.rpartition(_SEPARATOR)
        element = self._within(local) if self._open else self._root(namespace, local)
        if element is None:
            self._left_out = 1
            return
        element.is_null = attributes.get(f"{_SCHEMA_INSTANCE}{_SEPARATOR}nil", "").strip() in {"true", "1"}
        if element.shape.kind is Kind.STRUCT:
            self._read_attributes(element, attributes)
        self._open.append(element)

    def _root(self, namespace: str, local: str) -> _Element | None:
        wanted = self._xml.root
        found = f"{{{namespace}}}{local}" if wanted.startswith("{") and namespace else local
        if found != wanted:
            self._complain(f"expected the root element '{wanted}', found the string {shown(found)}")
            return None
        return _Element(name=local, shape=self._shape, path="", is_null=False)

    def _within(self, local: str) -> _Element | None:
        around = self._open[-1]
        if around.shape.kind is not Kind.STRUCT or _CONTENT in around.shape.fields:
            self._complain(f"field '{around.path}': the value is no text, found the element {shown(local)}")
            return None
        shape = None if local.startswith(_ATTRIBUTE) else around.shape.fields.get(local)
        if shape is None:
            return None
        path = f"{around.path}.{local}" if around.path else local
        if shape.items is not None:
            items = around.members.setdefault(local, _Items())
            number = items.count if isinstance(items, _Items) else 0
            return _Element(name=local, shape=shape.items, path=f"{path}[{number}]", is_null=False)
        if local in around.members:
            self._complain(f"field '{path}': the element is there more than once")
            return None
        return _Element(name=local, shape=shape, path=path, is_null=False)

    def _read_attributes(self, element: _Element, attributes: Mapping[str, str]) -> None:
        prefixed: dict[str, list[str]] = {}
        for name, value in attributes.items():
            namespace, _, local = name.rpartition(_SEPARATOR)
            if namespace and namespace != _SCHEMA_INSTANCE:
                prefixed.setdefault(local, []).append(value)
        for name, shape in element.shape.fields.items():
            if not name.startswith(_ATTRIBUTE) or name == _CONTENT:
                continue
            local = name.removeprefix(_ATTRIBUTE)
            values = [attributes[local]] if local in attributes else prefixed.get(local, [])
            if len(values) > 1:
                path = f"{element.path}.{name}" if element.path else name
                self._complain(f"field '{path}': the attribute is there in more than one namespace")
            elif values:
                element.members[name] = self._value(shape, values[0])

    def text(self, text: str) -> None:
        if self._left_out or not self._open:
            return
        shape = self._open[-1].shape
        if shape.kind is not Kind.STRUCT or _CONTENT in shape.fields:
            self._open[-1].texts.append(text)

    def end(self, name: str) -> None:
        del name  # the parser has compared it with the start tag
        if self._left_out:
            self._left_out -= 1
            return
        element = self._open.pop()
        found = "null" if element.is_null else self._finished(element)
        if not self._open:
            if element.is_null:
                self._complain("the root element is nil")
            self.found = found
            return
        around = self._open[-1].members
        items = around.get(element.name)
        if isinstance(items, _Items):
            items.add(found)
        else:
            around[element.name] = found

    def _finished(self, element: _Element) -> str:
        text = "".join(element.texts)
        if element.shape.kind is not Kind.STRUCT:
            return self._value(element.shape, text)
        members = element.members
        if _CONTENT in element.shape.fields:
            members = members | {_CONTENT: self._value(element.shape.fields[_CONTENT], text)}
        written = {
            name: value.as_json() if isinstance(value, _Items) else value for name, value in members.items()
        }
        return f"{{{','.join(f'{_quoted(name)}:{value}' for name, value in written.items())}}}"

    def _value(self, shape: Shape, text: str) -> str:
        text = text if shape.kind is Kind.STRING else text.strip(_XML_BLANKS)
        return "null" if not text and self._xml.empty_as_null else _literal(shape.kind, text)

    def _complain(self, fault: str) -> None:
        if self.fault is None:
            self.fault = fault


def _refuse_doctype(*_: object) -> None:
    # It may refer to files and URLs, and define entities of unbounded size.
    raise _FaultyError("the body has a document type declaration (<!DOCTYPE ...>), which is not read")


def _check_namespace(_: object, namespace: str | None) -> None:
    # The parser copies it for each element and attribute.
    if namespace is not None and len(namespace) > _LONGEST_NAMESPACE:
        raise _FaultyError(f"the body has a namespace of more than {_LONGEST_NAMESPACE:,} characters")


def _why_not_xml(error: expat.ExpatError, body: bytes) -> str:
    begins = body.removeprefix(_BYTE_ORDER_MARK.encode()).strip()
    codes = expat.errors.codes
    place = f"line {error.lineno}, column {error.offset + 1}"
    if error.code == codes[expat.errors.XML_ERROR_JUNK_AFTER_DOC_ELEMENT]:
        return f"text follows the root element of the body, {place}"
    if not begins.startswith((b"<", b"\xff\xfe", b"\xfe\xff", b"\0<")):
        return f"the body is not XML, it begins with {shown(begins[:200].decode('utf-8', 'replace'))}"
    if error.code in {
        codes[expat.errors.XML_ERROR_NO_ELEMENTS],
        codes[expat.errors.XML_ERROR_UNCLOSED_TOKEN],
        codes[expat.errors.XML_ERROR_UNCLOSED_CDATA_SECTION],
        codes[expat.errors.XML_ERROR_PARTIAL_CHAR],
    }:
        return f"the body is not XML: it ends too early and may be cut off, {place}"
    return f"the body is not XML: {expat.ErrorString(error.code)}, {place}"


def _literal(kind: Kind, text: str) -> str:
    """Return a value as JSON: a number or boolean if it is written as one, otherwise a string."""
    is_number = kind is Kind.NUMBER and _NUMBER.fullmatch(text)
    return text if is_number or (kind is Kind.BOOLEAN and text in {"true", "false"}) else _quoted(text)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
