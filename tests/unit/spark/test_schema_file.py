"""Schemas in files. The expected types are written by hand; `!` stands for NOT NULL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import ArrayType, DataType, IntegerType, MapType, StructField, StructType

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.spark.schema_file import read_schema

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


def read(folder: Path, said: Any) -> str:
    path = folder / "schema"
    path.write_text(said if isinstance(said, str) else json.dumps(said))
    found = read_schema(path)
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
        (avro("unheard-of"), "field 'a': there is no type 'unheard-of'"),
        (avro("null"), "field 'a': there is no type 'null'"),
        (avro(logical("int", "time-millis")), "field 'a': Spark has no type for logicalType 'time-millis'"),
        (avro(logical("bytes", "decimal", precision=39)), "field 'a': a decimal of precision 39 and scale 0"),
        (avro("int", default=1), "field 'a': a default isn't filled in"),
        (avro("int", aliases=["b"]), "field 'a': aliases aren't looked for"),
        (avro(["null", "n.r"]), "field 'a': 'n.r' is within itself, and Spark has no such type"),
        ({"type": "record", "name": "r", "fields": []}, "the whole: a record without fields"),
        (
            {"properties": {"a": {"properties": {"b": {"type": ["string", "integer"]}}}}},
            "field 'a.b': type is",
        ),
        ({"properties": {"a": {"allOf": [{"type": "string"}]}}}, "field 'a': allOf: can't be said by a type"),
        ({"properties": {"a": {"oneOf": [{}, {"type": "string"}]}}}, "field 'a': oneOf of several types"),
        ({"properties": {"a": {"enum": [1, "x"]}}}, "field 'a': type is null; expected one type"),
        (
            {"properties": {"a": {"$ref": "other.json"}}},
            "field 'a': $ref \"other.json\": expected a place in",
        ),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}}, "field 'a': $ref '#/$defs/b': there is no such place"),
        ({"properties": {"a": {"$ref": "#"}}}, "field 'a': '#' is within itself, and Spark has no such type"),
        ({"properties": {"a": {"type": "text"}}}, "field 'a': there is no type \"text\""),
        ({"properties": {"a": {}}, "required": ["b"]}, "the whole: 'b' is required and not among"),
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
