"""Reads Avro schemas in their JSON form: a record, an array with several types, or a protocol.

A logical type is ignored if Spark doesn't have it, or if it is invalid for the underlying type. Then the
underlying type is used, as Avro's specification requires.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from airflow_provider_jmsjca.spark.schemas.reader import (
    LEVELS,
    Allowance,
    Found,
    MalformedError,
    SchemaReader,
    UntypedError,
    short,
)

_SIMPLE: Final[Mapping[str, DataType]] = {
    "boolean": BooleanType(), "int": IntegerType(), "long": LongType(), "float": FloatType(),
    "double": DoubleType(), "bytes": BinaryType(), "fixed": BinaryType(), "string": StringType(),
    "enum": StringType(),
}  # fmt: skip
_LOGICAL: Final[Mapping[tuple[str, str], DataType]] = {
    ("int", "date"): DateType(),
    ("long", "timestamp-millis"): TimestampType(), ("long", "timestamp-micros"): TimestampType(),
    ("long", "local-timestamp-millis"): TimestampNTZType(),
    ("long", "local-timestamp-micros"): TimestampNTZType(),
}  # fmt: skip
_RECORDS: Final = ("record", "error")
_NAMED: Final = (*_RECORDS, "enum", "fixed")
# Maximum precision of a DECIMAL.
_MOST_DIGITS: Final = 38


def is_avro(document: Any) -> bool:
    """Return whether the content of a file is an Avro schema or protocol."""
    if isinstance(document, list):
        return True
    return isinstance(document, Mapping) and (document.get("type") in _RECORDS or "protocol" in document)


class AvroSchema(SchemaReader):
    """Reads an Avro schema; see `SchemaReader`.

    Args:
        allowed: Kinds of parts that aren't refused.
        levels: Maximum number of nested types; a deeper part is untyped.
        is_writers: Whether the bodies are in Avro's encoding, written with this schema. Then each body has
            all fields, and defaults and aliases are ignored.
    """

    def __init__(
        self, allowed: Collection[Allowance], levels: int = LEVELS, *, is_writers: bool = False
    ) -> None:
        super().__init__(allowed, levels)
        self._is_writers = is_writers
        self._types: dict[str, tuple[Mapping[str, Any], str]] = {}
        self._names: dict[int, str] = {}
        self._namespace = ""
        self._nested_in: list[str] = []

    def columns(self, document: Any, wanted: str | None) -> StructType | None:
        """See `SchemaReader.columns`; `wanted` is the name of a record."""
        declared: Any = [document]
        if isinstance(document, list):
            declared = document
        elif "protocol" in document:
            declared, self._namespace = document.get("types"), str(document.get("namespace", ""))
        try:
            self._learn(declared, self._namespace)
            name = self._chosen(declared if isinstance(declared, list) else [], wanted)
        except MalformedError as error:
            self._refuse("", str(error))
            return None
        kind, _ = self.read(name, "")
        return kind if isinstance(kind, StructType) and not self.faults else None

    def _chosen(self, declared: list[Any], wanted: str | None) -> str:
        """Return the full name of the record type of the bodies: the wanted one, or else the only one.

        Args:
            declared: The schemas at the top level of the file.
            wanted: Name of the record; `None` if the file must have only one at the top level.
        """
        records = [name for name, (schema, _) in self._types.items() if schema["type"] in _RECORDS]
        if wanted is None:
            top = [schema for schema in declared if isinstance(schema, Mapping)]
            found = [name for name in records if any(self._types[name][0] is schema for schema in top)]
        else:
            found = [name for name in records if wanted in {name, name.rpartition(".")[2]}]
            if wanted in found:
                found = [wanted]
        if len(found) == 1:
            return found[0]
        listed = ", ".join(short(name) for name in sorted(found or records)[:20]) or "no record"
        if wanted is not None:
            raise MalformedError(f"expected one record {short(wanted)}, found {listed}")
        raise MalformedError(f"expected one record, found {listed}; name the one that a body is")

    def _learn(self, schema: Any, namespace: str) -> None:
        """Collect the named types, for references to them."""
        pending: list[tuple[Any, str]] = [(schema, namespace)]
        while pending:
            part, around = pending.pop()
            if isinstance(part, list):
                pending += [(each, around) for each in reversed(part)]
            if not isinstance(part, Mapping):
                continue
            if isinstance(kind := part.get("type"), str) and kind in _NAMED:
                full = self._full_name(part, around)
                if full in self._types:
                    raise MalformedError(f"the type {short(full)} is defined twice")
                around = full.rpartition(".")[0]
                self._types[full] = part, around
                self._names[id(part)] = full
                pending += [(each, around) for each in reversed(_fields(part))]
            else:
                pending += [(part.get(name), around) for name in ("values", "items", "type")]

    def _full_name(self, schema: Mapping[str, Any], around: str) -> str:
        name, namespace = schema.get("name"), schema.get("namespace", around)
        if not isinstance(name, str) or not name:
            raise MalformedError(f"expected a type with a name, found {short(name)}")
        namespace = namespace if isinstance(namespace, str) else ""
        return name if "." in name or not namespace else f"{namespace}.{name}"

    def _type(self, schema: Any, path: str) -> Found:
        match schema:
            case str():
                return self._by_name(schema, path)
            case list():
                return self._union(schema, path)
            case Mapping() if "type" in schema:
                return self._declared(schema, path)
        raise MalformedError(f"expected a type, found {short(schema)}")

    def _declared(self, schema: Mapping[str, Any], path: str) -> Found:
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.read(kind, path)
        if kind in _RECORDS:
            return self._record(schema, path)
        if kind == "array":
            return self._array(schema.get("items"), path), False
        if kind == "map":
            return self._map(schema.get("values"), path), False
        logical = schema.get("logicalType")
        if logical == "decimal" and kind in {"bytes", "fixed"}:
            return _decimal(schema), False
        if isinstance(logical, str) and (kind, logical) in _LOGICAL:
            return _LOGICAL[kind, logical], False
        return self._by_name(kind, path)

    def _by_name(self, name: str, path: str) -> Found:
        if name in _SIMPLE:
            return _SIMPLE[name], False
        if name == "null":
            raise UntypedError("Spark has no type for null alone")
        within = f"{self._namespace}.{name}" if self._namespace and "." not in name else name
        full = within if within in self._types else name
        if full not in self._types:
            raise UntypedError(f"there is no type {short(name)} in the file")
        schema, namespace = self._types[full]
        before, self._namespace = self._namespace, namespace
        try:
            return self._declared(schema, path)
        finally:
            self._namespace = before

    def _union(self, schema: list[Any], path: str) -> Found:
        others = [each for each in schema if each not in ("null", {"type": "null"})]
        if len(others) > 1:
            raise UntypedError("a union of several types; expected one type, or null and one type")
        if not others:
            raise UntypedError("Spark has no type for null alone")
        kind, is_nullable = self.read(others[0], path)
        return kind, is_nullable or len(others) < len(schema)

    def _record(self, schema: Mapping[str, Any], path: str) -> Found:
        full = self._names[id(schema)]
        if full in self._nested_in:
            raise UntypedError(f"{short(full)} contains itself, and Spark has no recursive types")
        fields = _fields(schema)
        if not fields:
            raise UntypedError("a record without fields")
        before, self._namespace = self._namespace, self._types[full][1]
        self._nested_in.append(full)
        try:
            return self._struct(self._read_fields(fields, path)), False
        finally:
            self._nested_in.pop()
            self._namespace = before

    def _read_fields(self, fields: list[Any], path: str) -> Iterator[StructField]:
        for field in fields:
            name = field.get("name") if isinstance(field, Mapping) else None
            if not isinstance(name, str) or not name:
                raise MalformedError(f"expected a field with a name, found {short(field)}")
            place = f"{path}.{name}" if path else name
            kind, is_nullable = self.read(field.get("type"), place)
            if self._is_writers:
                yield StructField(name, kind, is_nullable)
                continue
            if field.get("default") is not None:
                is_nullable = True
                if Allowance.DEFAULTS not in self._allowed:
                    self._refuse(
                        place,
                        "a default isn't filled in; expected none, or a union with null; allow "
                        f"{Allowance.DEFAULTS} to make the field nullable",
                    )
            if field.get("aliases") and Allowance.ALIASES not in self._allowed:
                self._refuse(
                    place,
                    "aliases aren't looked for; expected the one name that the bodies have; allow "
                    f"{Allowance.ALIASES} to ignore them",
                )
            yield StructField(name, kind, is_nullable)


def _fields(schema: Mapping[str, Any]) -> list[Any]:
    fields = schema.get("fields")
    return fields if isinstance(fields, list) else []


def _decimal(schema: Mapping[str, Any]) -> DecimalType:
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if (
        type(precision) is not int
        or type(scale) is not int
        or not (0 <= scale <= precision and 1 <= precision <= _MOST_DIGITS)
    ):
        raise UntypedError(
            f"a decimal of precision {short(precision)} and scale {short(scale)}; expected a precision of 1 "
            f"to {_MOST_DIGITS}, and a scale up to that"
        )
    return DecimalType(precision, scale)
