"""Schemas in files. The expected types are written by hand; `!` stands for NOT NULL."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies
from pyspark.sql.types import ArrayType, DataType, IntegerType, MapType, StructField, StructType

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.spark.schemas.reader import Allowance
from airflow_provider_jmsjca.spark.schemas.schema_file import read_schema

TEXT = {"type": "string"}
INTEGER = {"type": "integer"}
ADDRESS = {"type": "record", "name": "Address", "fields": [{"name": "city", "type": "string"}]}


def written(kind: DataType, *, nullable: bool = True) -> str:
    match kind:
        case StructType():
            fields = (f"{each.name} {written(each.dataType, nullable=each.nullable)}" for each in kind.fields)
            text = f"struct<{', '.join(fields)}>"
        case ArrayType():
            text = f"array<{written(kind.elementType, nullable=kind.containsNull)}>"
        case MapType():
            text = f"map<{written(kind.valueType, nullable=kind.valueContainsNull)}>"
        case _:
            text = kind.simpleString()
    return text if nullable else f"{text}!"


def read(folder: Path, said: Any, **options: Any) -> str:
    path = folder / "schema"
    path.write_text(said if isinstance(said, str) else json.dumps(said))
    found = read_schema(path, **options)
    return found if isinstance(found, str) else written(found)


def avro(kind: Any, **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "r", "namespace": "n", "fields": [{"name": "a", "type": kind, **more}]}


def logical(kind: str, logical_type: str, /, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical_type, **more}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("boolean", "boolean!"),
        ("int", "int!"),
        ("long", "bigint!"),
        ("float", "float!"),
        ("double", "double!"),
        ("bytes", "binary!"),
        ("string", "string!"),
        ({"type": "string"}, "string!"),
        (["null", "int"], "int"),
        (["int", "null"], "int"),
        (["int"], "int!"),
        ({"type": "enum", "name": "e", "symbols": ["x"]}, "string!"),
        ({"type": "fixed", "name": "f", "size": 4}, "binary!"),
        ({"type": "array", "items": "long"}, "array<bigint!>!"),
        ({"type": "array", "items": ["null", "long"]}, "array<bigint>!"),
        (["null", {"type": "map", "values": "string"}], "map<string!>"),
        (ADDRESS, "struct<city string!>!"),
        (logical("int", "date"), "date!"),
        (logical("long", "timestamp-millis"), "timestamp!"),
        (logical("long", "timestamp-micros"), "timestamp!"),
        (logical("long", "local-timestamp-micros"), "timestamp_ntz!"),
        (logical("string", "uuid"), "string!"),
        (logical("int", "time-millis"), "int!"),
        (logical("string", "date"), "string!"),
        ({"type": {"type": "array", "items": {"type": ["null", "int"]}}}, "array<int>!"),
        (logical("bytes", "decimal", precision=10, scale=2), "decimal(10,2)!"),
        (logical("fixed", "decimal", precision=4, name="d", size=8), "decimal(4,0)!"),
        (["null", logical("bytes", "decimal", precision=38)], "decimal(38,0)"),
    ],
    ids=str,
)
def test_avro(tmp_path: Path, said: Any, expected: str) -> None:
    assert read(tmp_path, avro(said)) == f"struct<a {expected}>"


def test_a_type_of_avro_is_referred_to_by_its_name(tmp_path: Path) -> None:
    fields = [{"name": "home", "type": ADDRESS}, {"name": "work", "type": ["null", "n.Address"]}]
    expected = "struct<home struct<city string!>!, work struct<city string!>>"
    assert read(tmp_path, {"type": "record", "name": "r", "namespace": "n", "fields": fields}) == expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"type": "string"}, "string"),
        ({"type": "string", "format": "email", "pattern": "@"}, "string"),
        ({"type": "string", "format": "date"}, "date"),
        ({"type": "string", "format": "date-time"}, "timestamp"),
        ({"type": "string", "contentEncoding": "base64"}, "binary"),
        ({"type": "string", "enum": ["x", "y"]}, "string"),
        ({"type": "integer", "minimum": 0}, "bigint"),
        ({"type": "number"}, "double"),
        ({"type": "boolean"}, "boolean"),
        ({"type": ["string", "null"]}, "string"),
        ({"anyOf": [{"type": "null"}, {"type": "number"}]}, "double"),
        ({"description": "whatever"}, "variant"),
        (True, "variant"),
        ({"type": "array", "items": {"type": "integer"}}, "array<bigint!>"),
        ({"type": "array", "items": {"type": ["integer", "null"]}}, "array<bigint>"),
        ({"type": "array"}, "array<variant>"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "map<double!>"),
        ({"type": "object"}, "map<variant>"),
        ({"properties": {"b": {"type": "string"}}, "additionalProperties": False}, "struct<b string>"),
        ({"type": "object", "properties": {"b": {}}, "required": ["b"]}, "struct<b variant>"),
        ({"$ref": "#/$defs/money"}, "struct<amount double!, currency string>"),
        (
            {"allOf": [{"$ref": "#/$defs/money"}, {"properties": {"b": TEXT}}]},
            "struct<b string, amount double!, currency string>",
        ),
        ({"allOf": [TEXT, {"maxLength": 3}]}, "string"),
        ({"oneOf": [{**TEXT, "pattern": "a"}, {**TEXT, "format": "email"}]}, "string"),
        ({**TEXT, "anyOf": [{"maxLength": 3}, {"minLength": 9}]}, "string"),
        ({"enum": ["x", "y"]}, "string"),
        ({"enum": [1, 2]}, "bigint"),
        ({"type": ["integer", "number"]}, "double"),
        (
            {"type": "object", "patternProperties": {"^x": TEXT}, "additionalProperties": False},
            "map<string!>",
        ),
        ({"if": {}, "then": {"minLength": 3}, **TEXT}, "string"),
        ({**TEXT, "not": {"const": "x"}}, "string"),
    ],
    ids=str,
)
def test_json_schema(tmp_path: Path, said: Any, expected: str) -> None:
    money = {
        "type": "object",
        "properties": {"amount": {"type": "number"}, "currency": {"type": "string"}},
        "required": ["amount"],
    }
    whole = {"type": "object", "properties": {"a": said}, "$defs": {"money": money}}
    assert read(tmp_path, whole) == f"struct<a {expected}>"
    if "null" not in json.dumps(said) and "variant" not in expected[:7]:
        assert read(tmp_path, {**whole, "required": ["a"]}) == f"struct<a {expected}!>"


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        (avro(["int", "string"]), "field 'a': a union of several types; expected one type, or null"),
        (avro({"type": "array", "items": ["int", "string"]}), "field 'a[]': a union of several types"),
        (avro("unheard-of"), "field 'a': there is no type \"unheard-of\" in the file; allow variants"),
        (avro("null"), "field 'a': Spark has no type for null alone"),
        (avro(logical("bytes", "decimal", precision=39)), "field 'a': a decimal of precision 39 and scale 0"),
        (avro("int", default=1), "field 'a': a default isn't filled in"),
        (avro("int", aliases=["b"]), "field 'a': aliases aren't looked for"),
        (avro(["null", "n.r"]), "field 'a': \"n.r\" contains itself, and Spark has no recursive types"),
        ({"type": "record", "name": "r", "fields": []}, "the whole: a record without fields"),
        (
            {"properties": {"a": {"properties": {"b": {"type": ["string", "integer"]}}}}},
            "field 'a.b': type is",
        ),
        ({"properties": {"a": {"allOf": [INTEGER, TEXT]}}}, "field 'a': the types"),
        ({"properties": {"a": {"allOf": TEXT}}}, "field 'a': allOf: expected an array of schemas, found {"),
        ({"properties": {"a": {"oneOf": "x"}}}, "field 'a': oneOf: expected an array of schemas, found"),
        ({"properties": {"a": 5}}, "field 'a': expected a schema, found 5"),
        ({"type": "object", "properties": [1]}, "the whole: properties: expected an object, found [1]"),
        ({"properties": {"a": {"$ref": "#x"}}}, "field 'a': $ref \"#x\": no such place in this"),
        ({"properties": {"a": {"then": TEXT, "if": {}}}}, "field 'a': then, else, dependencies"),
        (
            {"properties": {"a": {"$dynamicRef": "#x"}}},
            "field 'a': $dynamicRef: has no equivalent Spark type",
        ),
        ({"properties": {"a": TEXT, "A": TEXT}}, 'the whole: two fields have the name "a", apart from upper'),
        ({"properties": {"a": {"items": [TEXT, INTEGER]}}}, "field 'a[]': items of several types"),
        ([ADDRESS, {**ADDRESS, "name": "Place"}], 'expected one record, found "Address", "Place"; name the'),
        ([ADDRESS, ADDRESS], 'the type "Address" is defined twice'),
        (["string"], "expected one record, found no record"),
        (avro({"type": "record", "fields": []}), "the whole: expected a type with a name, found null"),
        (avro({"type": "array"}), "field 'a[]': expected a type, found null"),
        ({"type": "record", "name": "r", "fields": [5]}, "the whole: expected a field with a name, found 5"),
        ('{"type": "object", "type": "array"}', "an object has the name 'type' twice"),
        ('{"type": NaN}', "NaN is no JSON"),
        ({"properties": {"a": {"oneOf": [{}, {"type": "string"}]}}}, "field 'a': oneOf of several types"),
        ({"properties": {"a": {"enum": [1, "x"]}}}, "field 'a': type is [1, \"x\"]; expected one type"),
        (
            {"properties": {"a": {"$ref": "other.json"}}},
            "field 'a': $ref \"other.json\": expected a place in",
        ),
        (
            {"properties": {"a": {"$ref": "#/$defs/b"}}},
            "field 'a': $ref \"#/$defs/b\": no such place",
        ),
        (
            {"properties": {"a": {"$ref": "#"}}},
            "field 'a': \"#\" contains itself, and Spark has no recursive types",
        ),
        ({"properties": {"a": {"type": "text"}}}, "field 'a': there is no type \"text\""),
        ({"properties": {"a": {}}, "required": ["b"]}, 'the whole: "b" is required and not among'),
        (
            {"properties": {"a": {}}, "additionalProperties": {"type": "string"}},
            "the whole: properties beside",
        ),
        ({"type": "array", "items": {}}, "expected a record or an object with fields"),
        ({"a": "INT"}, "expected a record or an object with fields"),
        ('{"type": "record", ', "expected fields in words, or JSON: Spark's form"),
        ('{"type": "struct", "fields": [{}]}', "expected fields in words, or JSON: Spark's form"),
    ],
    ids=str,
)
def test_what_is_no_type_of_spark_is_named(tmp_path: Path, said: Any, fault: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read(tmp_path, said)
    assert fault in str(refused.value)


def test_words_and_sparks_own_form(tmp_path: Path) -> None:
    assert read(tmp_path, "a INT NOT NULL,\n  s STRUCT<b: DOUBLE>\n") == "a INT NOT NULL, s STRUCT<b: DOUBLE>"
    own = StructType([StructField("a", IntegerType(), nullable=False)])
    assert read(tmp_path, own.json()) == "struct<a int!>"
    with pytest.raises(ConfigurationError, match="can't be read"):
        read_schema(tmp_path / "none")


NODE = {
    "type": "record",
    "name": "Node",
    "namespace": "n",
    "fields": [{"name": "name", "type": "string"}, {"name": "next", "type": ["null", "Node"]}],
}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (avro(["int", "string"]), "struct<a variant>"),
        (avro({"type": "array", "items": ["int", "string"]}), "struct<a array<variant>!>"),
        (NODE, "struct<name string!, next variant>"),
        (avro("com.example.Elsewhere"), "struct<a variant>"),
        (avro("int", default=1), "struct<a int>"),
        (avro("int", aliases=["b"]), "struct<a int!>"),
        ({"properties": {"a": {"type": ["string", "integer"]}}}, "struct<a variant>"),
        ({"properties": {"a": {"oneOf": [TEXT, {"type": "array"}]}}, "required": ["a"]}, "struct<a variant>"),
        ({"properties": {"a": {"anyOf": [TEXT, INTEGER]}}}, "struct<a variant>"),
        ({"properties": {"a": {"allOf": [TEXT, INTEGER]}}}, "struct<a variant>"),
        ({"properties": {"a": {"$ref": "other.json"}}}, "struct<a variant>"),
        ({"properties": {"a": {"$ref": "#"}, "b": TEXT}}, "struct<a variant, b string>"),
        (
            {"$ref": "#/$defs/tree", "$defs": {"tree": {"properties": {"a": {"$ref": "#/$defs/tree"}}}}},
            "struct<a variant>",
        ),
        ({"properties": {"a": TEXT}, "additionalProperties": TEXT}, "struct<a string>"),
        ({"properties": {"a": {"properties": {"b": TEXT, "B": TEXT}}}}, "struct<a variant>"),
        ({"properties": {"a": {"items": [TEXT, INTEGER]}}}, "struct<a array<variant>>"),
        ({"properties": {"a": TEXT}, "required": ["a", "b"]}, "struct<a string!, b variant>"),
        (
            {"properties": {"a": TEXT}, "oneOf": [{"properties": {"b": kind}} for kind in (TEXT, INTEGER)]},
            "struct<a string, b variant>",
        ),
        (
            {"required": ["a"], "properties": {"a": TEXT}, "allOf": [{"then": {"properties": {"c": TEXT}}}]},
            "struct<a string!, c string>",
        ),
        (
            {"allOf": [{"$ref": "https://example.com/x"}, {"properties": {"a": TEXT}, "required": ["a"]}]},
            "struct<a string!>",
        ),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_allowed_is_read(tmp_path: Path, said: Any, expected: str) -> None:
    assert read(tmp_path, said, allow=["variants", "defaults", "aliases"]) == expected
    with pytest.raises(ConfigurationError):
        read(tmp_path, said, allow=[])


def test_one_of_several_types_is_named(tmp_path: Path) -> None:
    order = {"type": "record", "name": "Order", "fields": [{"name": "to", "type": "n.Address"}]}
    union = [{**ADDRESS, "namespace": "n"}, order]
    assert read(tmp_path, union, type_name="Order") == "struct<to struct<city string!>!>"
    assert read(tmp_path, union, type_name="n.Address") == "struct<city string!>"
    protocol = {"protocol": "P", "namespace": "n", "types": [ADDRESS], "messages": {}}
    assert read(tmp_path, protocol) == "struct<city string!>"
    definitions = {"$defs": {"order": {"properties": {"a": INTEGER}}}}
    assert read(tmp_path, definitions, type_name="order") == "struct<a bigint>"
    assert read(tmp_path, definitions, type_name="#/$defs/order") == "struct<a bigint>"
    with pytest.raises(
        ConfigurationError, match=r'expected one record "Nothing", found "Order", "n\.Address"'
    ):
        read(tmp_path, union, type_name="Nothing")
    with pytest.raises(ConfigurationError, match='there is no type "bill" in'):
        read(tmp_path, definitions, type_name="bill")


def test_comments_and_a_byte_order_mark_are_left_out(tmp_path: Path) -> None:
    text = "\ufeff/* https://example.com */ " + json.dumps(avro("int", doc="a // b /* c")) + " // end"
    assert read(tmp_path, text) == "struct<a int!>"


def test_an_allowance_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="expected variants, defaults, aliases"):
        read(tmp_path, avro("int"), allow=["everything"])


def doubling(levels: int) -> dict[str, Any]:
    """Return a small schema in which each level uses the next one twice."""
    definitions: dict[str, Any] = {
        f"d{level}": {"properties": {name: {"$ref": f"#/$defs/d{level + 1}"} for name in "ab"}}
        for level in range(levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": definitions | {f"d{levels}": TEXT}}


def test_hostile_files_cost_little(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"more than 20,000 types.*allow variants"):
        read(tmp_path, doubling(60))
    assert read(tmp_path, doubling(60), allow=["variants"]).startswith("struct<a struct<a ")
    deep: dict[str, Any] = TEXT
    for _ in range(80):
        deep = {"type": "array", "items": {"type": "array", "items": deep}}
    with pytest.raises(ConfigurationError, match="more than 100 nested types"):
        read(tmp_path, {"properties": {"a": deep}})
    assert "array<variant>" in read(tmp_path, {"properties": {"a": deep}}, allow=["variants"])
    for text in ('{"a":' * 100_000, "[" * 100_000, "[" + "/*" * 100_000, '{"type":"' + "\\" * 100_001):
        with pytest.raises(ConfigurationError):
            read(tmp_path, text)
    loop = {"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"$ref": "#/$defs/x"}}}
    assert read(tmp_path, loop) == "struct<a variant>"
    (tmp_path / "schema").write_bytes(b" " * (16 * 1024 * 1024 + 1))
    with pytest.raises(ConfigurationError, match="more than 16,777,216 bytes"):
        read_schema(tmp_path / "schema")


KEYWORDS = [
    "type", "properties", "items", "$ref", "anyOf", "allOf", "required", "additionalProperties", "enum",
    "then", "fields", "name", "logicalType", "precision", "$defs", "a",
]  # fmt: skip
JSON_VALUES = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.text(max_size=5),
    lambda inner: (
        strategies.lists(inner, max_size=3)
        | strategies.dictionaries(strategies.sampled_from(KEYWORDS), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(
    said=JSON_VALUES, is_avro=strategies.booleans(), allow=strategies.sets(strategies.sampled_from(Allowance))
)
def test_any_json_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, said: Any, is_avro: bool, allow: set[Allowance]
) -> None:
    document = avro(said) if is_avro else {"properties": {"a": said}, "$defs": said}
    path = tmp_path_factory.getbasetemp() / "any-schema"
    path.write_text(json.dumps(document))
    with contextlib.suppress(ConfigurationError):
        found = read_schema(path, allow=allow)
        assert isinstance(found, StructType)
        assert found.names == ["a"]
