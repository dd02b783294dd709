"""A schema in a file: as DDL text, in Spark's JSON form, as an Avro schema or as a JSON Schema.

An Avro schema or a JSON Schema defines the types of the fields of JSON bodies. A type without a counterpart
in Spark is refused with an error that names its path in the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_jmsjca.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

_AVRO: Final = {
    "boolean": "boolean", "int": "integer", "long": "long", "float": "float", "double": "double",
    "bytes": "binary", "fixed": "binary", "string": "string", "enum": "string",
}  # fmt: skip
_AVRO_LOGICAL: Final = {
    "date": "date", "timestamp-millis": "timestamp", "timestamp-micros": "timestamp",
    "local-timestamp-millis": "timestamp_ntz", "local-timestamp-micros": "timestamp_ntz", "uuid": "string",
}  # fmt: skip
_JSON: Final = {"string": "string", "integer": "long", "number": "double", "boolean": "boolean"}
_JSON_FORMATS: Final = {"date": "date", "date-time": "timestamp"}
# These change the types; other keywords only restrict the values of a type.
_JSON_UNSUPPORTED: Final = (
    "$dynamicRef", "$recursiveRef", "allOf", "dependencies", "dependentSchemas", "else", "if", "not",
    "patternProperties", "prefixItems", "then", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
# Of a DECIMAL.
_MOST_DIGITS: Final = 38
# Maximum number of characters of a faulty part in an error.
_SHOWN: Final = 40


def read_schema(path: Path) -> StructType | str:
    """Return the schema in a file.

    Returns:
        For a file of DDL text this text, as accepted by `sort_json`; otherwise the fields.

    Raises:
        ConfigurationError: The file can't be read, is JSON of another form, or has something that is no type
            of Spark: all of it is named.
    """
    from pyspark.sql.types import StructType  # noqa: PLC0415 - only jobs have pyspark

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"schema file {path}: can't be read: {error}") from error
    if not text.lstrip().startswith("{"):
        return " ".join(text.split())
    try:
        found = json.loads(text)
        if found.get("type") == "struct":
            return StructType.fromJson(found)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigurationError(
            f"schema file {path}: expected fields in words, or JSON: Spark's form, as df.schema.json() "
            f"returns it, an Avro schema or a JSON Schema ({error})"
        ) from error
    reader: _AvroSchema | _JsonSchema = _AvroSchema() if found.get("type") == "record" else _JsonSchema(found)
    kind, _ = reader.read(found, "")
    faults = reader.faults
    if not faults and (not isinstance(kind, StructType) or not kind.fields):
        faults.append("expected a record or an object with fields, for a body is an object")
    if faults:
        raise ConfigurationError([f"schema file {path}: {fault}" for fault in faults])
    assert isinstance(kind, StructType)  # noqa: S101 - for the type checker
    return kind


class _Schema:
    """Reads a schema of another kind, and collects the faults.

    Attributes:
        faults: Unsupported parts, each with the path of the field.
    """

    def __init__(self) -> None:
        self.faults: list[str] = []
        self._within: list[str] = []

    def read(self, said: Any, path: str) -> tuple[DataType, bool]:
        """Return the type, and whether it may be NULL."""
        raise NotImplementedError

    def _refuse(self, path: str, fault: str) -> tuple[DataType, bool]:
        self.faults.append(f"{f'field {path!r}' if path else 'the whole'}: {fault}")
        return _spark("string"), True

    def _named(self, name: str, said: Any, path: str) -> tuple[DataType, bool]:
        """Read a named type, unless it contains itself."""
        if name in self._within:
            return self._refuse(path, f"{name!r} is within itself, and Spark has no such type")
        self._within.append(name)
        found = self.read(said, path)
        self._within.pop()
        return found

    def _array(self, said: Any, path: str) -> DataType:
        from pyspark.sql.types import ArrayType  # noqa: PLC0415 - only jobs have pyspark

        return ArrayType(*self.read(said, f"{path}[]"))

    def _map(self, said: Any, path: str) -> DataType:
        from pyspark.sql.types import MapType, StringType  # noqa: PLC0415 - only jobs have pyspark

        return MapType(StringType(), *self.read(said, f"{path}[]"))


class _AvroSchema(_Schema):
    """An Avro schema, in its JSON form."""

    def __init__(self) -> None:
        super().__init__()
        self._types: dict[str, tuple[Mapping[str, Any], str]] = {}
        self._namespace = ""

    def read(self, said: Any, path: str) -> tuple[DataType, bool]:
        if isinstance(said, list):
            return self._union(said, path)
        if isinstance(said, str):
            return self._simple(said, path)
        if not isinstance(said, Mapping) or "type" not in said:
            return self._refuse(path, f"expected a type, found {_short(said)}")
        kind = said["type"]
        if "logicalType" in said:
            return self._logical(said, path)
        match kind:
            case "record":
                return self._record(said, path)
            case "array":
                return self._array(said.get("items"), path), False
            case "map":
                return self._map(said.get("values"), path), False
            case "enum" | "fixed":
                self._know(said)
        return self.read(kind, path)

    def _simple(self, name: str, path: str) -> tuple[DataType, bool]:
        if name in _AVRO:
            return _spark(_AVRO[name]), False
        full = name if "." in name or not self._namespace else f"{self._namespace}.{name}"
        if full in self._types:
            known, namespace = self._types[full]
            before, self._namespace = self._namespace, namespace
            found = self._named(full, known, path) if known["type"] == "record" else self.read(known, path)
            self._namespace = before
            return found
        return self._refuse(path, f"there is no type {name!r}")

    def _union(self, said: list[Any], path: str) -> tuple[DataType, bool]:
        others = [each for each in said if each != "null"]
        if len(others) != 1:
            return self._refuse(path, "a union of several types; expected one type, or null and one type")
        kind, is_nullable = self.read(others[0], path)
        return kind, is_nullable or len(others) < len(said)

    def _logical(self, said: Mapping[str, Any], path: str) -> tuple[DataType, bool]:
        name = said["logicalType"]
        if said["type"] == "fixed":
            self._know(said)
        if name == "decimal":
            return self._decimal(said, path)
        if name in _AVRO_LOGICAL:
            return _spark(_AVRO_LOGICAL[name]), False
        expected = ", ".join(sorted([*_AVRO_LOGICAL, "decimal"]))
        return self._refuse(path, f"Spark has no type for logicalType {name!r}; expected {expected}, or none")

    def _decimal(self, said: Mapping[str, Any], path: str) -> tuple[DataType, bool]:
        from pyspark.sql.types import DecimalType  # noqa: PLC0415 - only jobs have pyspark

        precision, scale = said.get("precision"), said.get("scale", 0)
        if (
            not isinstance(precision, int)
            or not isinstance(scale, int)
            or not 0 <= scale <= precision
            or not 1 <= precision <= _MOST_DIGITS
        ):
            return self._refuse(
                path,
                f"a decimal of precision {precision} and scale {scale}; expected a precision of 1 to "
                f"{_MOST_DIGITS}, and a scale up to that",
            )
        return DecimalType(precision, scale), False

    def _record(self, said: Mapping[str, Any], path: str) -> tuple[DataType, bool]:
        from pyspark.sql.types import StructType  # noqa: PLC0415 - only jobs have pyspark

        before = self._namespace
        full = self._know(said)
        self._namespace = full.rpartition(".")[0]
        self._within.append(full)
        fields = said.get("fields")
        kind = StructType([self._field(each, path) for each in fields] if isinstance(fields, list) else [])
        if not kind.fields:
            self._refuse(path, "a record without fields")
        if full in self._within:
            self._within.remove(full)
        self._namespace = before
        return kind, False

    def _field(self, said: Any, path: str) -> StructField:
        if not isinstance(said, Mapping) or not isinstance(said.get("name"), str):
            self._refuse(path, f"expected a field with a name, found {_short(said)}")
            return _struct_field("?", _spark("string"), nullable=True)
        place = f"{path}.{said['name']}" if path else said["name"]
        kind, is_nullable = self.read(said.get("type"), place)
        if said.get("default") is not None:
            self._refuse(place, "a default isn't filled in; expected none, or a union with null")
        if said.get("aliases"):
            self._refuse(place, "aliases aren't looked for; expected the one name that the bodies have")
        return _struct_field(said["name"], kind, nullable=is_nullable)

    def _know(self, said: Mapping[str, Any]) -> str:
        """Keep a type that later ones may refer to, and return its full name."""
        name, namespace = str(said.get("name", "")), str(said.get("namespace", self._namespace))
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        self._types[full] = said, full.rpartition(".")[0]
        return full


class _JsonSchema(_Schema):
    """A JSON Schema. Constraints on values, such as `minimum`, make no other type and are left out."""

    def __init__(self, whole: Mapping[str, Any]) -> None:
        super().__init__()
        self._within.append("#")
        self._whole = whole

    def read(self, said: Any, path: str) -> tuple[DataType, bool]:
        if said is True:
            return _spark("variant"), True
        if not isinstance(said, Mapping):
            return self._refuse(path, f"expected a schema, found {_short(said)}")
        found = [name for name in _JSON_UNSUPPORTED if name in said]
        if found:
            return self._refuse(path, f"{', '.join(found)}: can't be said by a type of Spark")
        if "$ref" in said:
            return self._reference(said["$ref"], path)
        for name in ("anyOf", "oneOf"):
            if name in said:
                return self._either(name, said, path)
        kinds = said.get("type", [])
        kinds = kinds if isinstance(kinds, list) else [kinds]
        others = [kind for kind in kinds if kind != "null"]
        if not kinds and not {"const", "enum", "items", "properties"} & set(said):
            return _spark("variant"), True
        if not kinds and "properties" in said:
            others = ["object"]
        if len(others) != 1:
            return self._refuse(
                path, f"type is {_short(said.get('type'))}; expected one type, or it and null"
            )
        return self._one(others[0], said, path), len(others) < len(kinds)

    def _one(self, kind: Any, said: Mapping[str, Any], path: str) -> DataType:
        if kind == "object":
            return self._object(said, path)
        if kind == "array":
            return self._array(said.get("items", True), path)
        if kind == "string" and said.get("contentEncoding") == "base64":
            return _spark("binary")
        if kind == "string" and said.get("format") in _JSON_FORMATS:
            return _spark(_JSON_FORMATS[said["format"]])
        if kind in _JSON:
            return _spark(_JSON[kind])
        return self._refuse(path, f"there is no type {_short(kind)}")[0]

    def _either(self, name: str, said: Mapping[str, Any], path: str) -> tuple[DataType, bool]:
        choices = said[name] if isinstance(said[name], list) else []
        others = [choice for choice in choices if choice != {"type": "null"}]
        if len(others) != 1 or "type" in said or "properties" in said:
            return self._refuse(path, f"{name} of several types; expected one schema, or it and null")
        kind, is_nullable = self.read(others[0], path)
        return kind, is_nullable or len(others) < len(choices)

    def _reference(self, name: Any, path: str) -> tuple[DataType, bool]:
        if not isinstance(name, str) or not name.startswith("#"):
            return self._refuse(
                path, f"$ref {_short(name)}: expected a place in this file, such as #/$defs/x"
            )
        found: Any = self._whole
        for step in name.removeprefix("#").split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or key not in found:
                return self._refuse(path, f"$ref {name!r}: there is no such place in this file")
            found = found[key]
        return self._named(name, found, path)

    def _object(self, said: Mapping[str, Any], path: str) -> DataType:
        from pyspark.sql.types import StructType  # noqa: PLC0415 - only jobs have pyspark

        properties, more = said.get("properties"), said.get("additionalProperties", True)
        if not properties and more is not False:
            return self._map(more, path)
        if isinstance(more, Mapping) and more:
            return self._refuse(
                path, "properties beside a schema of additionalProperties; expected one of them"
            )[0]
        if not isinstance(properties, Mapping) or not properties:
            return self._refuse(path, "an object without properties")[0]
        required = said.get("required", [])
        fields = []
        for name, each in properties.items():
            kind, is_nullable = self.read(each, f"{path}.{name}" if path else name)
            fields.append(_struct_field(name, kind, nullable=is_nullable or name not in required))
        for name in required:
            if name not in properties:
                self._refuse(path, f"{name!r} is required and not among the properties")
        return StructType(fields)


def _spark(name: str) -> DataType:
    from pyspark.sql.types import StructField  # noqa: PLC0415 - only jobs have pyspark

    return StructField.fromJson({"name": "x", "type": name, "nullable": True, "metadata": {}}).dataType


def _struct_field(name: str, kind: DataType, *, nullable: bool) -> StructField:
    from pyspark.sql.types import StructField  # noqa: PLC0415 - only jobs have pyspark

    return StructField(name, kind, nullable)


def _short(said: Any) -> str:
    """Return a piece of the file as an error shows it."""
    text = json.dumps(said)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
