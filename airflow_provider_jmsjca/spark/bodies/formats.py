"""Strict readers of XML, CSV and Avro bodies.

Each reader turns a body into JSON text with the fields of a schema, or names the fault. The rules of
`mapping.sort_json` then decide whether the values have the types of the fields. So a text that isn't written
as a number reaches a number's field as a string, and is rejected with the reason that JSON has for it.

The readers run in Python workers on the executors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Final
from xml.parsers import expat

from airflow_provider_jmsjca.core.message import BodyKind
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.spark.bodies.avro import EncodingError, read_record, reader_of

_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_LINE_ENDS: Final = "\r\n"
_BYTE_ORDER_MARK: Final = "\ufeff"
_EMPTY: Final = "the body is empty"
_SHOWN: Final = 40
_XML_BLANKS: Final = " \t\r\n"
_SCHEMA_INSTANCE: Final = "http://www.w3.org/2001/XMLSchema-instance"
# No character of an XML document, so no part of a name or a namespace.
_SEPARATOR: Final = "\f"
_ATTRIBUTE: Final = "_"
_CONTENT: Final = "_VALUE"


class Kind(StrEnum):
    """How the values of a field are written in JSON."""

    STRING = "string"
    NUMBER = "number"
    BOOLEAN = "boolean"
    WRITTEN = "written"
    """As a string, without the blanks around it: dates, timestamps, base64."""
    STRUCT = "struct"
    ARRAY = "array"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The fields of a body, without their exact types.

    Attributes:
        kind: How a value is written in JSON.
        fields: Of a `STRUCT`, by name.
        items: Of an `ARRAY`.
    """

    kind: Kind
    fields: Mapping[str, Shape] = field(default_factory=dict)
    items: Shape | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Csv:
    """Bodies of one CSV record each, as defined by RFC 4180.

    Attributes:
        delimiter: The character between values.
        quote: The character around values; doubled it is a literal. Empty text: there are no quotes.
        header: A first line names the values. Without it the values are the schema's fields in their order.
        null: A value without quotes and with this text is NULL.

    Raises:
        ConfigurationError: An option has a value that can't be used.
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
            found, start = self._record(text, 0, "the header")
            names = [name for name, _ in found]
            for number, name in enumerate(names):
                if name in names[:number]:
                    raise _FaultyError(f"the header has a name twice, found the string {_shown(name)}")
            if start == len(text):
                raise _FaultyError("the body has a header and no record")
        values, end = self._record(text, start, "the record")
        if end < len(text):
            raise _FaultyError("the body has more than one CSV record")
        if len(values) != len(names):
            expected = f"{len(names)} value{'s' if len(names) > 1 else ''}"
            raise _FaultyError(f"expected {expected}, found {len(values)}")
        members = (
            f"{_quoted(name)}:{_literal(shape.fields[name].kind, value)}"
            for name, (value, is_quoted) in zip(names, values, strict=True)
            if name in shape.fields and (is_quoted or value != self.null)
        )
        return f"{{{','.join(members)}}}"

    def _record(self, text: str, start: int, part: str) -> tuple[list[tuple[str, bool]], int]:
        """Return the values of the record at a place in the text, and the place behind its line end.

        With each value it says whether the value was in quotes.
        """
        quote, delimiter = re.escape(self.quote), re.escape(self.delimiter)
        plain = re.compile(f"[^{delimiter}{quote}\r\n]*+")
        quoted = re.compile(f"{quote}((?:[^{quote}]++|{quote}{quote})*+){quote}") if quote else None
        values: list[tuple[str, bool]] = []
        while True:
            place = f"{part}, value {len(values) + 1}: "
            if quoted is not None and text.startswith(self.quote, start):
                match = quoted.match(text, start)
                if match is None:
                    raise _FaultyError(f"{place}the closing quote is missing")
                values.append((match[1].replace(self.quote * 2, self.quote), True))
            else:
                match = plain.match(text, start)
                assert match is not None  # noqa: S101 - it also matches nothing
                values.append((match[0], False))
            start = match.end()
            if start == len(text):
                return values, start
            if text.startswith(("\r\n", "\n"), start):
                return values, start + (2 if text[start] == "\r" else 1)
            if text[start] == self.delimiter:
                start += 1
            elif text[start] == "\r":
                raise _FaultyError(f"{place}a carriage return without a line feed")
            elif match.re is quoted:
                raise _FaultyError(f"{place}something follows the closing quote")
            else:
                raise _FaultyError(f"{place}a quote within a value without quotes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Xml:
    """Bodies that are one XML document each.

    Fields are the elements within the root. `_name` is the attribute `name` of the element around it, and
    `_VALUE` is the text of an element that is a `STRUCT`. An `ARRAY` is an element that may be there several
    times. Names are compared without namespaces.

    Attributes:
        root: Name of the root element, or with its namespace `{http://example.com/orders}order`.
        empty_as_null: An element without content is NULL. Otherwise it is an empty text, which is a `STRING`
            and no other type.

    Raises:
        ConfigurationError: There is no name of the root element.
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
        # Bytes are in the encoding that they declare; a text was decoded when it was received.
        parser = expat.ParserCreate("utf-8" if is_text else None, _SEPARATOR)
        parser.buffer_text = True
        document = _Document(self, shape)
        parser.StartElementHandler = document.start
        parser.EndElementHandler = document.end
        parser.CharacterDataHandler = document.text
        parser.StartDoctypeDeclHandler = _refuse_doctype
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
        schema: The schema with which the records were written, a record as JSON.
        schema_id: Bodies begin with the prefix of Confluent's serializers: a zero byte, and this number in
            four bytes. `None`: they have no prefix.

    Raises:
        ConfigurationError: The schema is no record or has a fault, or the number has more than 32 bits.
    """

    name: ClassVar[str] = "Avro"
    with_article: ClassVar[str] = "an Avro"
    kinds: ClassVar[tuple[BodyKind, ...]] = (BodyKind.BYTES,)
    schema: str
    schema_id: int | None = None

    def __post_init__(self) -> None:
        reader_of(self.schema)
        if self.schema_id is not None and not 0 <= self.schema_id < 2**32:
            raise ConfigurationError(
                f"avro: schema_id: expected a number of 32 bits, from 0 on, found {self.schema_id}"
            )

    def to_json(self, body: bytes, shape: Shape, *, is_text: bool) -> str:
        """Return a body as a JSON object, with all fields; see `read_body`."""
        del shape, is_text  # the bytes are only readable by their own schema
        if not body:
            raise _FaultyError(_EMPTY)
        try:
            return read_record(self.schema, body, self.schema_id)
        except EncodingError as error:
            raise _FaultyError(str(error)) from None


BodyFormat = Csv | Xml | Avro


def read_body(
    body_format: BodyFormat, shape: Shape, body: bytes | None, body_type: str | None
) -> tuple[str | None, str | None]:
    """Return a body as JSON text, or the reason that it can't be read; neither for a body of another kind.

    Args:
        body_format: How bodies are written.
        shape: The fields that are read; others are left out.
        body: UTF-8 of a text; bytes as they came.
        body_type: As in the message schema.
    """
    if body_type not in body_format.kinds:
        return None, None
    try:
        return body_format.to_json(bytes(body or b""), shape, is_text=body_type == BodyKind.TEXT), None
    except _FaultyError as fault:
        return None, str(fault)


class _FaultyError(Exception):
    """The body can't be read; the text is the reason."""


@dataclass(slots=True, kw_only=True)
class _Element:
    """An element that has begun and not ended."""

    name: str
    shape: Shape
    path: str
    is_null: bool
    members: dict[str, str | list[str]] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)


class _Document:
    """Makes JSON of an XML document while it is parsed; keeps only the fields of the schema.

    Attributes:
        fault: The first fault, if there is one.
        found: The document as JSON, once it has ended.
    """

    def __init__(self, xml: Xml, shape: Shape) -> None:
        self._xml = xml
        self._shape = shape
        self._open: list[_Element] = []
        self._left_out = 0  # how many elements are open that the schema doesn't have
        self.fault: str | None = None
        self.found = "{}"

    def start(self, name: str, attributes: dict[str, str]) -> None:
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
            self._complain(f"expected the root element '{wanted}', found the string {_shown(found)}")
            return None
        return _Element(name=local, shape=self._shape, path="", is_null=False)

    def _within(self, local: str) -> _Element | None:
        around = self._open[-1]
        if around.shape.kind is not Kind.STRUCT or _CONTENT in around.shape.fields:
            self._complain(f"field '{around.path}': the value is no text, found the element {_shown(local)}")
            return None
        shape = None if local.startswith(_ATTRIBUTE) else around.shape.fields.get(local)
        if shape is None:
            return None
        path = f"{around.path}.{local}" if around.path else local
        if shape.items is not None:
            items = around.members.setdefault(local, [])
            return _Element(name=local, shape=shape.items, path=f"{path}[{len(items)}]", is_null=False)
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
        del name  # the parser compares it
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
        if isinstance(items, list):
            items.append(found)
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
            name: f"[{','.join(value)}]" if isinstance(value, list) else value
            for name, value in members.items()
        }
        return f"{{{','.join(f'{_quoted(name)}:{value}' for name, value in written.items())}}}"

    def _value(self, shape: Shape, text: str) -> str:
        text = text if shape.kind is Kind.STRING else text.strip(_XML_BLANKS)
        return "null" if not text and self._xml.empty_as_null else _literal(shape.kind, text)

    def _complain(self, fault: str) -> None:
        if self.fault is None:
            self.fault = fault


def _refuse_doctype(*_: object) -> None:
    # It may name files and addresses, and define entities that grow without bound.
    raise _FaultyError("the body has a document type declaration (<!DOCTYPE ...>), which is not read")


def _why_not_xml(error: expat.ExpatError, body: bytes) -> str:
    begins = body.removeprefix(_BYTE_ORDER_MARK.encode()).strip()
    codes = expat.errors.codes
    place = f"line {error.lineno}, column {error.offset + 1}"
    if error.code == codes[expat.errors.XML_ERROR_JUNK_AFTER_DOC_ELEMENT]:
        return f"text follows the root element of the body, {place}"
    if not begins.startswith((b"<", b"\xff\xfe", b"\xfe\xff", b"\0<")):
        return f"the body is not XML, it begins with {_shown(begins[:200].decode('utf-8', 'replace'))}"
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


def _shown(text: str) -> str:
    """Return the beginning of a text in quotes, in one line."""
    beginning = "".join(each if each.isprintable() else " " for each in text[:_SHOWN])
    return f'"{beginning}{"…" if len(text) > _SHOWN else ""}"'
