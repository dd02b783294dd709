"""Every body with every option: the JSON that is read from it, or the reason that it can't be read."""

from __future__ import annotations

import csv
import io
import json
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.spark.bodies.formats import Csv, Kind, Shape, Xml, read_body


def struct(**fields: Shape) -> Shape:
    return Shape(kind=Kind.STRUCT, fields=fields)


STRING, NUMBER, BOOLEAN = (Shape(kind=kind) for kind in (Kind.STRING, Kind.NUMBER, Kind.BOOLEAN))
RECORD = struct(id=NUMBER, name=STRING)
MORE = "! the body has more than one CSV record"
EMPTY = "! the body is empty"


def count(expected: int, found: int) -> str:
    return f"! expected {expected} value{'s' if expected > 1 else ''}, found {found}"


OPTIONS = {
    "default": Csv(),
    "semicolon": Csv(delimiter=";"),
    "header": Csv(header=True),
    "no quotes": Csv(quote=""),
    "single quotes": Csv(quote="'"),
    "NULL": Csv(null="NULL"),
}
TWICE = '! the header has a name twice, found the string "%s"'
UNQUOTED = "! the record, value %d: a quote within a value without quotes"
RECORDLESS = "! the body has a header and no record"
# In the order of OPTIONS. `!` begins a reason.
CSV_BODIES = {
    "1,a": ('{"id":1,"name":"a"}', count(2, 1), RECORDLESS, '{"id":1,"name":"a"}', '{"id":1,"name":"a"}',
            '{"id":1,"name":"a"}'),
    "1,a\r\n": ('{"id":1,"name":"a"}', count(2, 1), RECORDLESS, '{"id":1,"name":"a"}',
                '{"id":1,"name":"a"}', '{"id":1,"name":"a"}'),
    "\ufeff1;a\n": (count(2, 1), '{"id":1,"name":"a"}', RECORDLESS, count(2, 1), count(2, 1), count(2, 1)),
    "3,50;x": ('{"id":3,"name":"50;x"}', '{"id":"3,50","name":"x"}', RECORDLESS, '{"id":3,"name":"50;x"}',
               '{"id":3,"name":"50;x"}', '{"id":3,"name":"50;x"}'),
    "1,": ('{"id":1}', count(2, 1), RECORDLESS, '{"id":1}', '{"id":1}', '{"id":1,"name":""}'),
    '1,""': ('{"id":1,"name":""}', UNQUOTED % 1, RECORDLESS,
             '{"id":1,"name":"\\"\\""}', '{"id":1,"name":"\\"\\""}', '{"id":1,"name":""}'),
    "NULL,'NULL'": ('{"id":"NULL","name":"\'NULL\'"}', count(2, 1), RECORDLESS,
                    '{"id":"NULL","name":"\'NULL\'"}', '{"id":"NULL","name":"NULL"}', '{"name":"\'NULL\'"}'),
    '1,"a ""b"", c\n"': ('{"id":1,"name":"a \\"b\\", c\\n"}', UNQUOTED % 1, RECORDLESS, MORE, MORE,
                         '{"id":1,"name":"a \\"b\\", c\\n"}'),
    "1,a\0\u2028": ('{"id":1,"name":"a\\u0000\u2028"}', count(2, 1), RECORDLESS,
                    '{"id":1,"name":"a\\u0000\u2028"}', '{"id":1,"name":"a\\u0000\u2028"}',
                    '{"id":1,"name":"a\\u0000\u2028"}'),
    "name,id\nx,5": (MORE, MORE, '{"name":"x","id":5}', MORE, MORE, MORE),
    "other,id\r\nx,1e2\r\n": (MORE, MORE, '{"id":1e2}', MORE, MORE, MORE),
    "id,id\n1,2": (MORE, MORE, TWICE % "id", MORE, MORE, MORE),
    "id,name\n1": (MORE, MORE, count(2, 1), MORE, MORE, MORE),
    "id\n1\n2\n": (MORE, MORE, MORE, MORE, MORE, MORE),
    "": (EMPTY,) * 6,
    "\r\n": (EMPTY,) * 6,
    " ": (count(2, 1), count(2, 1), RECORDLESS, count(2, 1), count(2, 1), count(2, 1)),
}  # fmt: skip
AT = "! the record, value 2: "
CSV_FAULTS = {
    '1,a"b': f"{AT}a quote within a value without quotes",
    '1,"a"b': f"{AT}something follows the closing quote",
    '1,"a': f"{AT}the closing quote is missing",
    "1,a\r2,b": f"{AT}a carriage return without a line feed",
    '1,"a""': f"{AT}the closing quote is missing",
}


def read(how: Csv | Xml, shape: Shape, body: str) -> str | None:
    found, fault = read_body(how, shape, body.encode(), "text")
    return found if fault is None else f"! {fault}"


@pytest.mark.parametrize("body", CSV_BODIES)
def test_every_csv_body_with_every_option(body: str) -> None:
    found = {name: read(how, RECORD, body) for name, how in OPTIONS.items()}
    assert found == dict(zip(OPTIONS, CSV_BODIES[body], strict=True))


def test_a_csv_body_of_many_columns() -> None:
    many = [f"c{number}" for number in range(100_000)]
    assert read(Csv(), RECORD, "," * 99_999) == count(2, 100_000)
    assert read(Csv(header=True), RECORD, f"{','.join(many)},id\n{',' * 100_000}5") == '{"id":5}'
    assert read(Csv(header=True), RECORD, f"{','.join(many)},c0\n") == TWICE % "c0"


@pytest.mark.parametrize("body", CSV_FAULTS)
def test_csv_that_is_not_that_of_rfc_4180(body: str) -> None:
    assert read(Csv(), RECORD, body) == CSV_FAULTS[body]


@given(
    values=st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=5),
    delimiter=st.sampled_from([",", ";", "\t", "|"]),
)
def test_what_another_writer_writes_is_read(values: list[str], delimiter: str) -> None:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, quoting=csv.QUOTE_ALL).writerow(values)
    names = [f"v{number}" for number in range(len(values))]
    shape = struct(**dict.fromkeys(names, STRING))
    found, fault = read_body(Csv(delimiter=delimiter), shape, text.getvalue().encode(), "bytes")
    assert fault is None
    assert json.loads(found or "") == dict(zip(names, values, strict=True))


ORDER = struct(
    id=NUMBER,
    name=STRING,
    paid=BOOLEAN,
    price=struct(_currency=STRING, _VALUE=NUMBER),
    items=Shape(kind=Kind.ARRAY, items=struct(sku=STRING, n=NUMBER)),
    _version=NUMBER,
)
NS = "urn:shop"
DIFFERENT = "! expected the root element '%s', found the string \"%s\""
XSI = 'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"'
XMLS = {
    "order": Xml(root="order"),
    "namespace": Xml(root=f"{{{NS}}}order"),
    "empty as null": Xml(root="order", empty_as_null=True),
}


def any_root(expected: str) -> tuple[str, str, str]:
    return expected, DIFFERENT % (f"{{{NS}}}order", "order"), expected


# In the order of XMLS.
XML_BODIES = {
    "<order><id> 5 </id><name> a </name></order>": any_root('{"id":5,"name":" a "}'),
    f'<s:order xmlns:s="{NS}"><s:id>5</s:id></s:order>': ('{"id":5}',) * 3,
    f'<order xmlns="{NS}"><id>5</id></order>\n': ('{"id":5}',) * 3,
    '<s:order xmlns:s="urn:other"><s:id>5</s:id></s:order>': (
        '{"id":5}', DIFFERENT % (f"{{{NS}}}order", "{urn:other}order"), '{"id":5}'
    ),
    "<invoice><id>5</id></invoice>": (
        DIFFERENT % ("order", "invoice"), DIFFERENT % (f"{{{NS}}}order", "invoice"),
        DIFFERENT % ("order", "invoice"),
    ),
    "<order><id>3,50</id><paid>True</paid></order>": any_root('{"id":"3,50","paid":"True"}'),
    "<order><id/><name></name></order>": (
        '{"id":"","name":""}', DIFFERENT % (f"{{{NS}}}order", "order"), '{"id":null,"name":null}'
    ),
    f'<order {XSI}><id xsi:nil="true"/></order>': any_root('{"id":null}'),
    '<order version="2"><price currency="EUR">1.50</price></order>': any_root(
        '{"_version":2,"price":{"_currency":"EUR","_VALUE":1.50}}'
    ),
    f'<order {XSI} xsi:version="9" s:version="3" xmlns:s="{NS}"/>': any_root('{"_version":3}'),
    "<order><items><sku>a</sku></items>text<!-- c --><items><n>2</n></items><x><id>7</id></x></order>":
        any_root('{"items":[{"sku":"a"},{"n":2}]}'),
    "<order><name>a&amp;<![CDATA[<b>]]>&#252;</name></order>": any_root('{"name":"a&<b>ü"}'),
}  # fmt: skip
XML_FAULTS = {
    "": "the body is empty",
    " \n": "the body is empty",
    "5": 'the body is not XML, it begins with "5"',
    "<order><id>": "the body is not XML: it ends too early and may be cut off, line 1, column 12",
    "<order>\n</other>": "the body is not XML: mismatched tag, line 2, column 3",
    "<order/><order/>": "text follows the root element of the body, line 1, column 9",
    "<order/> x": "text follows the root element of the body, line 1, column 10",
    "<order><id>1</id><id>2</id></order>": "field 'id': the element is there more than once",
    "<order><id><x>1</x></id></order>": "field 'id': the value is no text, found the element \"x\"",
    "<order><items><n>1</n></items><items><n>1<n/></n></items></order>":
        "field 'items[1].n': the value is no text, found the element \"n\"",
    "<order><price>1<b>2</b></price></order>":
        "field 'price': the value is no text, found the element \"b\"",
    '<order xmlns:a="urn:a" xmlns:b="urn:b" a:version="1" b:version="2"/>':
        "field '_version': the attribute is there in more than one namespace",
    f'<order {XSI} xsi:nil="1"/>': "the root element is nil",
}  # fmt: skip
DOCTYPE = "the body has a document type declaration (<!DOCTYPE ...>), which is not read"
HOSTILE = {
    '<!DOCTYPE o [<!ENTITY a SYSTEM "file:///etc/passwd">]><order><name>&a;</name></order>': DOCTYPE,
    '<!DOCTYPE o [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><order><name>&b;</name></order>': DOCTYPE,
    '<!DOCTYPE o SYSTEM "http://127.0.0.1:1/o.dtd"><order/>': DOCTYPE,
    "<order><name>&a;</name></order>": "the body is not XML: undefined entity, line 1, column 14",
    "<order><name>&#0;</name></order>":
        "the body is not XML: reference to invalid character number, line 1, column 14",
    "<order><name>\0</name></order>":
        "the body is not XML: not well-formed (invalid token), line 1, column 14",
    '<order xmlns:x="http://www.w3.org/2001/XInclude"><name><x:include href="/etc/passwd" parse="text"/>'
    "</name></order>": "field 'name': the value is no text, found the element \"include\"",
    f'<order xmlns="{"u" * 1_001}"/>': "the body has a namespace of more than 1,000 characters",
    f'<order xmlns:p="{"u" * 1_001}"/>': "the body has a namespace of more than 1,000 characters",
}  # fmt: skip


@pytest.mark.parametrize("body", XML_BODIES)
def test_every_xml_body_with_every_option(body: str) -> None:
    found = {name: read(how, ORDER, body) for name, how in XMLS.items()}
    assert found == dict(zip(XMLS, XML_BODIES[body], strict=True))


@pytest.mark.parametrize("body", [*XML_FAULTS, *HOSTILE])
def test_xml_that_is_not_read(body: str) -> None:
    assert read(Xml(root="order"), ORDER, body) == f"! {(XML_FAULTS | HOSTILE)[body]}"


def test_deep_xml_is_read() -> None:
    body = f"<order>{'<x>' * 100_000}{'</x>' * 100_000}<id>1</id></order>"
    assert read(Xml(root="order"), ORDER, body) == '{"id":1}'


def test_thousands_of_xml_items_are_read() -> None:
    items = [f"<items><n>{number}</n></items>" for number in range(2_500)]
    expected = ",".join(f'{{"n":{number}}}' for number in range(2_500))
    assert read(Xml(root="order"), ORDER, f"<order>{''.join(items)}</order>") == f'{{"items":[{expected}]}}'


def test_xml_that_is_too_deep_is_rejected() -> None:
    """The parser keeps each open element: 10 MiB of them would take half a gigabyte."""
    why = "! the body has more than 200,000 elements within each other"
    assert read(Xml(root="order"), ORDER, f"<order>{'<x>' * 200_000}") == why


def test_a_csv_header_has_a_limit() -> None:
    why = "! the header has more than 1,000,000 names"
    assert read(Csv(header=True), RECORD, f"{',' * 1_000_000}\n1,a") == why


@pytest.mark.parametrize(
    ("how", "shape", "body"),
    [
        (Csv(), RECORD, "," * 100_000),
        (Xml(root="o"), struct(i=Shape(kind=Kind.ARRAY, items=STRING)), f"<o>{'<i/>' * 25_000}</o>"),
        (Xml(root="o"), struct(i=Shape(kind=Kind.ARRAY, items=RECORD)), f"<o>{'<i/>' * 25_000}</o>"),
    ],
    ids=["CSV", "XML texts", "XML structures"],
)
def test_a_body_of_many_small_values_takes_little_memory(how: Csv | Xml, shape: Shape, body: str) -> None:
    """A text for each value would take 65 times the body in CSV, and 15 times in XML."""
    tracemalloc.start()
    try:
        read(how, shape, body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 * len(body)


def test_a_long_attribute_is_read() -> None:
    assert (
        read(Xml(root="o"), struct(_a=STRING), f'<o a="{"x" * 1_000_000}"/>')
        == f'{{"_a":"{"x" * 1_000_000}"}}'
    )
    assert read(Xml(root="o"), struct(_a=STRING), f'<o xmlns:p="{"u" * 1_000}" p:a="1"/>') == '{"_a":"1"}'


def test_bytes_are_in_the_encoding_that_they_declare() -> None:
    text = '<?xml version="1.0" encoding="ISO-8859-1"?><order><name>ü</name></order>'
    how = Xml(root="order")
    expected = ('{"name":"ü"}', None)
    assert read_body(how, ORDER, text.encode("latin-1"), "bytes") == expected
    assert read_body(how, ORDER, text.encode(), "text") == expected
    assert read_body(how, ORDER, "<order><name>ü</name></order>".encode("utf-16"), "bytes") == expected
    unread = (None, "the body is not XML: it declares an encoding that can't be read")
    doctype = '<!DOCTYPE o [<!ENTITY a "a">]><order><name>&a;</name></order>'.encode("utf-16")
    assert read_body(how, ORDER, doctype, "bytes") == (None, DOCTYPE)
    for name in ("nonsense", "hex", "shift_jis", "zlib", "idna", "undefined"):
        assert read_body(how, ORDER, text.replace("ISO-8859-1", name).encode(), "bytes") == unread
    assert read_body(Csv(), RECORD, b"1,\xff", "bytes") == (
        None,
        "expected a CSV body, found bytes that are not UTF-8",
    )


def test_other_kinds_are_not_read() -> None:
    assert read_body(Csv(), RECORD, b"1,a", "map") == (None, None)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("delimiter", lambda: Csv(delimiter="")),
        ("delimiter", lambda: Csv(delimiter="\n")),
        ("quote", lambda: Csv(quote=",")),
        ("quote", lambda: Csv(quote="ab")),
        ("null", lambda: Csv(null="a,b")),
    ],
)
def test_options_of_csv_that_can_not_be_used(name: str, make: Callable[[], Csv]) -> None:
    with pytest.raises(ConfigurationError, match=f"csv: {name}: expected "):
        make()


def test_xml_needs_a_root() -> None:
    with pytest.raises(ConfigurationError, match="xml: root: expected the name of the root element"):
        Xml(root="")
