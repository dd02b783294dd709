"""Every Avro body with every option: the JSON that is read from it, or the reason that it can't be read."""

from __future__ import annotations

import json
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.spark.bodies.formats import Avro, Kind, Shape, read_body


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": each, "type": kind} for each, kind in fields.items()],
    }


def text_of(schema: object) -> str:
    return json.dumps(schema)


def whole(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


ORDER = record(
    "Order",
    id="long",
    note=["null", "string"],
    state={"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]},
    lines={"type": "array", "items": record("Line", sku="string", n="int")},
)
OPTIONS = {
    "no prefix": Avro(schema=text_of(ORDER)),
    "schema id 7": Avro(schema=text_of(ORDER), schema_id=7),
}
# id 5; no note; PAID; no lines.
SMALL = b"\x0a\x00\x02\x00"
# id -1; "ü"; NEW; two lines: "a", 1 and "", -64; the second in a block that names its 2 bytes.
LARGE = b"\x01\x02\x04\xc3\xbc\x00\x02\x02a\x02\x01\x04\x00\x7f\x00"
SMALL_JSON = '{"id":5,"note":null,"state":"PAID","lines":[]}'
LARGE_JSON = '{"id":-1,"note":"ü","state":"NEW","lines":[{"sku":"a","n":1},{"sku":"","n":-64}]}'
ENDS = "the body ends here, so it may be cut off, or another schema wrote it"
UNPREFIXED = "! expected the prefix of Confluent's serializers with schema id 7, found no such prefix"
LONGER = "! the body is longer than an Avro record of this schema, by %s"
PREFIXED = (
    "! the body begins with the prefix of Confluent's serializers, with schema id %d; expected a record "
    "without it"
)
EMPTY = "! the body is empty"
PREFIX = b"\0\0\0\0\x07"
# In the order of OPTIONS. `!` begins a reason.
BODIES = {
    SMALL: (SMALL_JSON, UNPREFIXED),
    LARGE: (LARGE_JSON, UNPREFIXED),
    PREFIX + SMALL: (
        PREFIXED % 7,
        SMALL_JSON,
    ),
    b"\0\0\0\x01\x02" + SMALL: (
        PREFIXED % 258,
        "! expected the prefix of Confluent's serializers with schema id 7, found schema id 258",
    ),
    PREFIX: (LONGER % "1 byte", f"! field 'id': {ENDS}"),  # id 0, no note, NEW, no lines, and more
    b"\xc3\x01" + b"\xff" * 8 + SMALL: (
        "! the body begins with the header of Avro's single-object encoding; expected a record without it",
        UNPREFIXED,
    ),
    b"Obj\x01\x04\x14avro.codec": (
        "! the body is a file of Avro records, expected one record without a header",
        UNPREFIXED,
    ),
    SMALL + b"\0": (LONGER % "1 byte", UNPREFIXED),
    PREFIX + SMALL + SMALL: (LONGER % "9 bytes", LONGER % "4 bytes"),
    b"": (EMPTY, EMPTY),
}  # fmt: skip
FAULTS = {
    b"\x0a": f"field 'note': {ENDS}",
    b"\x8a": f"field 'id': {ENDS}",
    LARGE[:-1]: f"field 'lines[2]': {ENDS}",
    LARGE[:4]: f"field 'note': {ENDS}",
    b"\x0a\x04": "field 'note': the union has no branch 2",
    b"\x0a\x01": "field 'note': the union has no branch -1",
    b"\x0a\x02\x01": "field 'note': the value has a length of -1 bytes",
    b"\x0a\x02\x02\xff\x00\x00": "field 'note': the text is not UTF-8",
    b"\x0a\x02\x06\xed\xa0\x80\x00\x00": "field 'note': the text is not UTF-8",  # half a character
    b"\x0a\x00\x04\x00": "field 'state': the enum has no symbol 2",
    b"\x0a\x00\x01\x00": "field 'state': the enum has no symbol -1",
    b"\xff" * 9 + b"\x01" + SMALL[1:]: None,  # the least number of 64 bits
    b"\xff" * 9 + b"\x02" + SMALL[1:]: "field 'id': the number has more than 64 bits",
    b"\xff" * 10 + b"\x01" + SMALL[1:]: "field 'id': the number has more than 64 bits",
    b"\x0a\x00\x02\x02\x02a" + b"\xff\xff\xff\xff\x1f" + b"\x00": (
        "field 'lines[0].n': the number has more than 32 bits"
    ),
    b"\x0a\x00\x02\x01\x04\x02a\x02\x00": "field 'lines[1]': a block of items has another size than it names",
    # 2 ** 61 lines
    b"\x0a\x00\x02" + b"\x80" * 8 + b"\x40" + b"\x02a\x02": f"field 'lines[1].sku': {ENDS}",
}  # fmt: skip


def read(how: Avro, body: bytes) -> str | None:
    found, fault = read_body(how, Shape(kind=Kind.STRUCT), body, "bytes")
    return found if fault is None else f"! {fault}"


@pytest.mark.parametrize("body", BODIES)
def test_every_body_with_every_option(body: bytes) -> None:
    found = {name: read(how, body) for name, how in OPTIONS.items()}
    assert found == dict(zip(OPTIONS, BODIES[body], strict=True))


@pytest.mark.parametrize("body", FAULTS)
def test_bytes_that_are_no_record(body: bytes) -> None:
    found, why = read(OPTIONS["no prefix"], body), FAULTS[body]
    expected = f"! {why}" if why else SMALL_JSON.replace("5", "-9223372036854775808")
    assert found == expected


def test_only_bytes_are_read() -> None:
    assert read_body(OPTIONS["no prefix"], Shape(kind=Kind.STRUCT), SMALL, "text") == (None, None)


def logical(kind: str, logical_type: str, /, **more: object) -> dict[str, object]:
    return {"type": kind, "logicalType": logical_type, **more}


DECIMAL = logical("bytes", "decimal", precision=4, scale=2)
# The type, the bytes of a value, and its JSON.
VALUES: list[tuple[Any, bytes, str]] = [
    ("boolean", b"\x01", "true"),
    ("boolean", b"\x02", "! field 'a': expected a boolean, 0 or 1, found the byte 2"),
    ("int", b"\x7f", "-64"),
    ("int", b"\xff\xff\xff\xff\x0f", "-2147483648"),
    ("int", b"\x82\x80\x80\x80\x00", "1"),  # longer than need be, which the specification permits
    ("int", b"\x80\x80\x80\x80\x10", "! field 'a': the number has more than 32 bits"),
    ("int", b"\x82\x80\x80\x80\x80\x00", "! field 'a': the number has more than 32 bits"),
    ("long", b"\x82" + b"\x80" * 9 + b"\x00", "! field 'a': the number has more than 64 bits"),
    ("float", b"\x00\x00\xc0\x7f", '"NaN"'),
    ("float", b"\x00\x00\xc0\x3f", "1.5"),
    ("float", b"\x00\x00\x80\x7f", '"Infinity"'),
    ("double", b"\x9a\x99\x99\x99\x99\x99\xb9\x3f", "0.1"),
    ("double", b"\x00" * 7 + b"\x80", "-0.0"),
    ("double", b"\x00\x00\x00\x00\x00\x00\xf8\x7f", '"NaN"'),
    ("double", b"\x00\x00\x00\x00\x00\x00\xf0\xff", '"-Infinity"'),
    ("double", b"\x00" * 7, f"! field 'a': {ENDS}"),
    ("bytes", b"\x04\x00\xff", '"AP8="'),
    ("string", b'\x0a"\\\n\x00/', '"\\"\\\\\\n\\u0000/"'),
    ("string", b"\x04\xc0\x80", "! field 'a': the text is not UTF-8"),  # Java's own form of a NUL
    ("string", b"\x08\xf4\x90\x80\x80", "! field 'a': the text is not UTF-8"),  # beyond U+10FFFF
    ("string", b"\xfe" + b"\xff" * 8 + b"\x01a", f"! field 'a': {ENDS}"),  # 2 ** 63 - 1 bytes
    ({"type": "fixed", "name": "F", "size": 2}, b"\x00\xff", '"AP8="'),
    ({"type": "map", "values": "int"}, b"\x04\x02x\x02\x02y\x04\x00", '{"x":1,"y":2}'),
    ({"type": "map", "values": "null"}, b"\x02\x00\x00", '{"":null}'),
    # In two blocks.
    ({"type": "map", "values": "int"}, b"\x02\x02x\x02\x02\x02x\x04\x00",
     "! field 'a': the map has a key twice, found the string \"x\""),
    ({"type": "array", "items": "int"}, b"\xff" * 9 + b"\x01\x00", f"! field 'a[0]': {ENDS}"),  # -(2 ** 63)
    ({"type": "array", "items": "int"}, b"\x01\x01\x02\x00",
     "! field 'a[1]': a block of items has another size than it names"),
    ({"type": "map", "values": "boolean"}, b"\x02\x02x\x03\x00",
     "! field 'a['x']': expected a boolean, 0 or 1, found the byte 3"),
    (logical("int", "date"), b"\x00", '"1970-01-01"'),
    (logical("int", "date"), b"\x01", '"1969-12-31"'),
    (logical("int", "date"), b"\xff\xff\xff\xff\x0f", '"-2147483648 days since 1970"'),
    (logical("long", "timestamp-millis"), b"\xd2\x0f", '"1970-01-01T00:00:01.001000Z"'),
    (logical("long", "timestamp-micros"), b"\x01", '"1969-12-31T23:59:59.999999Z"'),
    (logical("long", "local-timestamp-millis"), b"\xd0\x0f", '"1970-01-01T00:00:01"'),
    (logical("long", "local-timestamp-micros"), b"\x02", '"1970-01-01T00:00:00.000001"'),
    (logical("long", "timestamp-millis"), b"\xff" * 9 + b"\x01", '"-9223372036854775808 ms since 1970"'),
    (logical("long", "timestamp-nanos"), b"\x02", "1"),
    (logical("int", "time-millis"), b"\x02", "1"),
    (logical("string", "uuid"), b"\x02u", '"u"'),
    (logical("string", "date"), b"\x02u", '"u"'),
    (logical("int", "timestamp-millis"), b"\x02", "1"),
    (logical("long", "date"), b"\x02", "1"),
    ({"type": {"type": "int"}, "logicalType": "date"}, b"\x02", "1"),
    (DECIMAL, b"\x02\x05", "0.05"),
    (DECIMAL, b"\x04\xd8\xf1", "-99.99"),
    (DECIMAL, b"\x06\x00\x27\x0f", "99.99"),
    (DECIMAL, b"\x04\x27\x10", "! field 'a': the decimal has more than 4 digits"),
    (DECIMAL, b"\x00", "! field 'a': the decimal has no bytes"),
    (logical("fixed", "decimal", precision=3, name="D", size=2), b"\xff\xff", "-1"),
    (logical("bytes", "decimal", precision=50), b"\x02\x05", '"BQ=="'),
    (logical("bytes", "decimal", precision=0), b"\x02\x05", '"BQ=="'),
    (logical("bytes", "decimal", precision=2, scale=3), b"\x02\x05", '"BQ=="'),
    (logical("bytes", "decimal", precision=2, scale=-1), b"\x02\x05", '"BQ=="'),
    (logical("bytes", "decimal", precision="2"), b"\x02\x05", '"BQ=="'),
    (["null", "int"], b"\xfe\xff\xff\xff\x0f", "! field 'a': the union has no branch 2147483647"),
    ([{"type": "null"}, record("R", x="int"), "string"], b"\x02\x02", '{"x":1}'),
    ({"type": {"type": "array", "items": ["null", "int"]}}, b"\x04\x00\x02\x02\x00", "[null,1]"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "body", "expected"), VALUES, ids=str)
def test_the_value_of_every_type(kind: Any, body: bytes, expected: str) -> None:
    found = read(Avro(schema=text_of(record("A", a=kind))), body)
    assert found == (expected if expected.startswith("!") else f'{{"a":{expected}}}')


def test_types_are_found_by_their_names() -> None:
    fields = [
        {"name": "a", "type": record("Inner", x="int") | {"namespace": "other"}},
        {"name": "b", "type": "other.Inner"},
        {"name": "c", "type": {"type": "enum", "name": "E", "symbols": ["S"]}},
        {"name": "d", "type": ["E", "shop.E"]},
    ]
    schema = {"type": "record", "name": "Order", "namespace": "shop", "fields": fields}
    expected = '{"a":{"x":1},"b":{"x":2},"c":"S","d":"S"}'
    assert read(Avro(schema=text_of(schema)), b"\x02\x04\x00\x02\x00") == expected


def test_a_name_with_dots_has_its_own_namespace() -> None:
    inner = {"type": "enum", "name": "E", "symbols": ["S"]}
    fields = [
        {"name": "a", "type": record("x.y.R", e=inner, f="x.y.E", g="E") | {"namespace": "ignored"}},
        {"name": "b", "type": "x.y.E"},
        {"name": "c", "type": {"type": "fixed", "name": "F", "namespace": "", "size": 1}},
        {"name": "d", "type": "F"},
    ]
    schema = {"type": "record", "name": "Order", "namespace": "shop", "fields": fields}
    expected = '{"a":{"e":"S","f":"S","g":"S"},"b":"S","c":"Bw==","d":"CA=="}'
    assert read(Avro(schema=text_of(schema)), b"\x00\x00\x00\x00\x07\x08") == expected


def test_a_record_of_values_without_bytes_is_an_empty_body() -> None:
    how = Avro(
        schema=text_of(record("A", a="null", b={"type": "fixed", "name": "F", "size": 0}, c=record("C")))
    )
    assert read(how, b"") == '{"a":null,"b":"","c":{}}'
    assert read(how, b"\0") == LONGER % "1 byte"


def test_a_type_within_itself() -> None:
    how = Avro(schema=text_of(record("Node", next=["null", "Node"])))
    assert read(how, b"\x02\x02\x00") == '{"next":{"next":{"next":null}}}'
    assert read(how, b"\x02" * 100_000 + b"\x00") == "! the body has too many records within each other"


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ("{", "avro: the writer's schema can't be read: "),
        ('"long"', "avro: the writer's schema is no record"),
        ("[]", "avro: the writer's schema is no record"),
        (text_of(record("A", a="no")), "the type 'no' is not defined before its use"),
        (text_of(record("A", a={"type": "fixed", "name": "F", "size": 1, "aliases": ["G"]}, b="G")),
         "the type 'G' is not defined before its use"),
        (text_of(record("A", a={"type": "enum", "name": "E", "symbols": ["\ud800"]})), "surrogates not"),
        (text_of(record("A", a=record("A", x="int"))), "the type 'A' is defined twice"),
        (text_of(record("A", a={"type": "enum", "name": "E"})), "expected the symbols of 'E', found None"),
        (text_of(record("A", a={"type": "fixed", "name": "F", "size": -1})), "expected the size of a fixed"),
        (text_of(record("A", a={"type": "array", "items": "null"})), "arrays of values that take no bytes"),
        (text_of(record("A", a={"type": "array", "items": record("B", x="null")})), "take no bytes"),
        (text_of(record("A", a={"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}})),
         "take no bytes"),
        (text_of({"type": "record", "name": "A", "fields": ["a"]}), "expected the fields of 'A'"),
        (text_of({"type": "record", "name": "A", "fields": [{"type": "int"}]}), "fields with names"),
        (text_of({"type": "record", "fields": []}), "expected a type with a name, found None"),
        ('{"type": "record", "name": "A", "fields": ' + "[" * 100_000, "can't be read"),
    ],
)  # fmt: skip
def test_schemas_that_can_not_be_used(schema: str, fault: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        Avro(schema=schema)
    assert fault in str(error.value)


ONES = record("A", a={"type": "array", "items": record("B", x="int", n="null")})
# Three items of a byte each, as 58 characters.
THREE, THREE_JSON = b"\x06\0\0\0\0", '{"a":[{"x":0,"n":null},{"x":0,"n":null},{"x":0,"n":null}]}'


@pytest.mark.parametrize("most", [58, 57, 30, 1])
def test_a_record_with_too_much_json_is_rejected(most: int) -> None:
    found = read(Avro(schema=text_of(ONES), max_json=most), THREE)
    why = f"! as JSON the record has more than {most} characters, the limit of max_json (--avro-max-json)"
    assert found == (THREE_JSON if most == 58 else why)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ({"type": "array", "items": record("B", x="int")}, whole(100_000) + b"\0" * 100_001),
        ({"type": "array", "items": ["null", "int"]}, whole(100_000) + b"\0" * 100_001),
        ({"type": "array", "items": {"type": "array", "items": "int"}}, whole(100_000) + b"\0" * 100_001),
    ],
    ids=["records", "unions", "arrays"],
)
def test_a_body_of_many_small_values_takes_little_memory(kind: Any, body: bytes) -> None:
    """A text for each value would take 65 times the body."""
    how = Avro(schema=text_of(record("A", a=kind)))
    tracemalloc.start()
    try:
        found, _ = read_body(how, Shape(kind=Kind.STRUCT), body, "bytes")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found is not None
    assert peak < 4 * len(found)


def test_the_most_json_is_a_number_of_characters() -> None:
    with pytest.raises(ConfigurationError, match="avro: max_json: expected a number of characters"):
        Avro(schema=text_of(ORDER), max_json=0)


@pytest.mark.parametrize("number", [-1, 2**32])
def test_a_schema_id_has_32_bits(number: int) -> None:
    with pytest.raises(ConfigurationError, match="avro: schema_id: expected a number of 32 bits"):
        Avro(schema=text_of(ORDER), schema_id=number)


def sized(raw: bytes) -> bytes:
    return whole(len(raw)) + raw


Sample = tuple[Any, bytes, object]
"""A type, the bytes of a value, and the value."""
LONGS, TEXTS = st.integers(-(2**63), 2**63 - 1), st.text(st.characters(exclude_categories=["Cs"]))
DOUBLES = st.floats(allow_nan=False, allow_infinity=False)
LEAVES: st.SearchStrategy[Sample] = st.one_of(
    LONGS.map(lambda value: ("long", whole(value), value)),
    TEXTS.map(lambda value: ("string", sized(value.encode()), value)),
    DOUBLES.map(lambda value: ("double", struct.pack("<d", value), value)),
    st.booleans().map(lambda value: ("boolean", bytes([value]), value)),
)


def joined(samples: list[Sample]) -> Sample:
    kinds = {f"v{at}": kind for at, (kind, _, _) in enumerate(samples)}
    values = {f"v{at}": value for at, (_, _, value) in enumerate(samples)}
    name = f"R{abs(hash(text_of(kinds)))}_{len(samples)}"
    return record(name, **kinds), b"".join(raw for _, raw, _ in samples), values


def listed(sample: Sample, count: int, *, names_size: bool) -> Sample:
    kind, raw, value = sample
    block = whole(-count) + sized(raw * count) if names_size else whole(count) + raw * count
    return {"type": "array", "items": kind}, (block if count else b"") + b"\0", [value] * count


def more(inner: st.SearchStrategy[Sample]) -> st.SearchStrategy[Sample]:
    return st.one_of(
        st.builds(listed, inner, st.integers(0, 3), names_size=st.booleans()),
        inner.map(lambda each: (["null", each[0]], b"\x02" + each[1], each[2])),
        st.builds(
            lambda each, key: ({"type": "map", "values": each[0]}, b"\x02" + sized(key.encode()) + each[1]
                               + b"\0", {key: each[2]}), inner, TEXTS
        ),
    )  # fmt: skip


@given(sample=st.lists(st.recursive(LEAVES, more, max_leaves=4), min_size=1, max_size=4).map(joined))
def test_what_another_writer_writes_is_read(sample: Sample) -> None:
    schema, raw, value = sample
    how = Avro(schema=text_of(schema))
    found, fault = read_body(how, Shape(kind=Kind.STRUCT), raw, "bytes")
    assert fault is None
    assert json.loads(found or "") == value
    assert read_body(how, Shape(kind=Kind.STRUCT), raw + b"\0", "bytes")[0] is None


@given(raw=st.binary(max_size=40))
def test_any_bytes_are_a_record_or_have_a_reason(raw: bytes) -> None:
    found, fault = read_body(OPTIONS["no prefix"], Shape(kind=Kind.STRUCT), raw, "bytes")
    assert (found is None) != (fault is None)
    if found is not None:
        assert json.loads(found).keys() == {"id", "note", "state", "lines"}
