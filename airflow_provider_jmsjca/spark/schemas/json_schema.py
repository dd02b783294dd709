"""Reads JSON Schemas. Constraints on values, such as `minimum`, don't affect types and are ignored.

`$ref` within the file and `allOf` are resolved. Nothing is ever fetched from outside the file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urljoin

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
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
    "string": StringType(), "integer": LongType(), "number": DoubleType(), "boolean": BooleanType(),
    "any": VariantType(),
}  # fmt: skip
_FORMATS: Final[Mapping[str, DataType]] = {"date": DateType(), "date-time": TimestampType()}
# Keywords that determine a type. Others only restrict its values.
_TYPING: Final = frozenset(
    {
        "$dynamicRef", "$recursiveRef", "$ref", "additionalProperties", "allOf", "anyOf", "const",
        "contentEncoding", "enum", "format", "items", "oneOf", "patternProperties", "prefixItems",
        "properties", "type",
    }
)  # fmt: skip
_CHOICES: Final = ("anyOf", "oneOf")
_CONDITIONAL: Final = ("then", "else", "dependencies", "dependentSchemas")
_DYNAMIC: Final = ("$dynamicRef", "$recursiveRef")
_KINDS: Final = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
_NULLS: Final = ({"type": "null"}, {"const": None}, {"enum": [None]})


@dataclass(slots=True, kw_only=True)
class _Flat:
    """A schema without references and `allOf`.

    Attributes:
        keywords: The merged keywords of its parts.
        choices: Each `anyOf` and `oneOf`, as name and alternatives.
        conditional: Schemas that only apply under a condition.
        passed: Identities (`id()`) of the schemas to which references led.
    """

    keywords: dict[str, Any] = field(default_factory=dict)
    choices: list[tuple[str, list[Any]]] = field(default_factory=list)
    conditional: list[Any] = field(default_factory=list)
    passed: list[int] = field(default_factory=list)


class JsonSchema(SchemaReader):
    """Reads a JSON Schema; see `SchemaReader`."""

    def __init__(self, allowed: Collection[Allowance], levels: int = LEVELS) -> None:
        super().__init__(allowed, levels)
        self._document: Any = {}
        self._address = ""
        self._anchors: dict[str, Any] = {}
        self._within: list[int] = []

    def columns(self, document: Any, wanted: str | None) -> StructType | None:
        """See `SchemaReader.columns`; `wanted` is a reference in the file, or a name in `$defs`."""
        self._document = document
        address = document.get("$id", document.get("id"))
        self._address = address.rstrip("#") if isinstance(address, str) else ""
        self._find_anchors()
        try:
            schema = document if wanted is None else self._place(wanted)
            self._within.append(id(schema))
            if Allowance.VARIANTS not in self._allowed:
                kind, _ = self.read(schema, "")
            else:
                kind = self._struct(self._columns(schema).values())
        except (MalformedError, UntypedError) as error:
            self._refuse("", str(error))
            return None
        return kind if isinstance(kind, StructType) and not self.faults else None

    def _place(self, wanted: str) -> Any:
        if wanted.startswith("#"):
            return self._referred(wanted)
        for name in ("$defs", "definitions"):
            definitions = self._document.get(name)
            if isinstance(definitions, Mapping) and wanted in definitions:
                return definitions[wanted]
        raise MalformedError(f"there is no type {short(wanted)} in $defs or definitions")

    def _columns(self, schema: Any) -> dict[str, StructField]:
        """Return the columns of an object, with nullable columns for the fields of all alternatives.

        Fields that another file defines are left out.
        """
        self._count()
        flat = self._flat(schema, is_partial=True)
        kinds = _listed(flat.keywords.get("type", "object"))
        if self._level >= self._levels or "object" not in kinds:
            return {}
        others = [*flat.conditional, *(choice for _, choices in flat.choices for choice in choices)]
        self._level += 1
        with self._inside(flat):
            found = {each.name: each for each in self._fields(flat.keywords, "")}
            always = set(found)
            for other in others:
                for each in self._columns(other).values():
                    known = found.get(each.name)
                    if known is None:
                        found[each.name] = StructField(each.name, each.dataType, nullable=True)
                    elif known.dataType != each.dataType and not (
                        each.name in always and isinstance(each.dataType, VariantType)
                    ):
                        found[each.name] = StructField(each.name, VariantType(), nullable=True)
        self._level -= 1
        return found

    def _type(self, schema: Any, path: str) -> Found:
        if schema is True:
            return VariantType(), True
        flat = self._flat(schema)
        with self._inside(flat):
            kind, is_nullable = self._typed(flat, path)
        return kind, is_nullable or flat.keywords.get("nullable") is True

    @contextmanager
    def _inside(self, flat: _Flat) -> Iterator[None]:
        before = len(self._within)
        self._within += flat.passed
        try:
            yield
        finally:
            del self._within[before:]

    def _typed(self, flat: _Flat, path: str) -> Found:
        keywords = flat.keywords
        if any(map(_makes_type, flat.conditional)):
            raise UntypedError(f"{', '.join(_CONDITIONAL)}: has no equivalent Spark type")
        typing = [(name, choices) for name, choices in flat.choices if any(map(_makes_type, choices))]
        if len(typing) > 1:
            raise UntypedError(f"{' and '.join(name for name, _ in typing)} together")
        if typing:
            return self._choice(*typing[0], keywords, path)
        kinds = _kinds(keywords)
        if kinds is None:
            return VariantType(), True
        others = {kind for kind in kinds if kind != "null"}
        if others == {"integer", "number"}:
            others = {"number"}
        if len(others) != 1:
            found = keywords.get("type", keywords.get("enum", keywords.get("const")))
            raise UntypedError(f"type is {short(found)}; expected one type, or it and null")
        kind = self._one(others.pop(), keywords, path)
        return kind, "null" in kinds or isinstance(kind, VariantType)

    def _choice(self, name: str, choices: list[Any], keywords: Mapping[str, Any], path: str) -> Found:
        others = [choice for choice in choices if choice not in _NULLS]
        found = [self.read({"allOf": [keywords, choice]}, path) for choice in others]
        kinds = [kind for kind, _ in found]
        if not kinds or any(kind != kinds[0] for kind in kinds):
            raise UntypedError(f"{name} of several types; expected one type, or it and null")
        return kinds[0], len(others) < len(choices) or any(is_nullable for _, is_nullable in found)

    def _one(self, kind: str, keywords: Mapping[str, Any], path: str) -> DataType:
        if kind == "object":
            return self._object(keywords, path)
        if kind == "array":
            return self._items(keywords, path)
        if kind == "string" and keywords.get("contentEncoding") == "base64":
            return BinaryType()
        if kind == "string" and isinstance(form := keywords.get("format"), str) and form in _FORMATS:
            return _FORMATS[form]
        if kind in _SIMPLE:
            return _SIMPLE[kind]
        raise MalformedError(f"there is no type {short(kind)}")

    def _items(self, keywords: Mapping[str, Any], path: str) -> ArrayType:
        items = keywords.get("items", True)
        if isinstance(items, list) or "prefixItems" in keywords:
            return ArrayType(*self._variant(f"{path}[]", "items of several types; expected one schema"))
        return self._array(items, path)

    def _object(self, keywords: Mapping[str, Any], path: str) -> DataType:
        more, patterns = keywords.get("additionalProperties", True), keywords.get("patternProperties")
        values = list(patterns.values()) if isinstance(patterns, Mapping) else []
        values += [] if more is False else [more]
        if keywords.get("properties"):
            if any(value is not True and value != {} for value in values):
                raise UntypedError(
                    "properties beside a schema of additionalProperties or patternProperties; expected one "
                    "of them"
                )
            return self._struct(self._fields(keywords, path))
        if not values:
            raise UntypedError("an object without properties")
        return self._map(values[0] if all(value == values[0] for value in values) else True, path)

    def _fields(self, keywords: Mapping[str, Any], path: str) -> Iterator[StructField]:
        properties, required = keywords.get("properties", {}), keywords.get("required", [])
        if not isinstance(properties, Mapping):
            raise MalformedError(f"properties: expected an object, found {short(properties)}")
        required = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
        needed = set(required)
        for name, schema in properties.items():
            if schema is False:  # no body may have this property
                continue
            kind, is_nullable = self.read(schema, f"{path}.{name}" if path else name)
            # In the oldest drafts, `required` is a keyword of the property itself.
            is_needed = name in needed or (isinstance(schema, Mapping) and schema.get("required") is True)
            yield StructField(name, kind, is_nullable or not is_needed)
        for name in dict.fromkeys(required):
            if name in properties:
                continue
            if Allowance.VARIANTS in self._allowed:
                yield StructField(name, VariantType(), nullable=True)
            else:
                self._refuse(path, f"{short(name)} is required and not among the properties")

    def _flat(self, schema: Any, *, is_partial: bool = False) -> _Flat:
        """Resolve the references and `allOf` of a schema.

        Args:
            schema: The schema.
            is_partial: Ignore references that are recursive or lead out of the file.

        Raises:
            UntypedError: A reference is recursive or leads out of the file, or the parts contradict each
                other.
            MalformedError: A part isn't a schema, or the target of a reference doesn't exist.
        """
        flat, pending = _Flat(), [schema]
        while pending:
            self._count()
            part = pending.pop(0)
            if part is False:
                raise UntypedError("no value is valid")
            if part is True:
                continue
            if not isinstance(part, Mapping):
                raise MalformedError(f"expected a schema, found {short(part)}")
            if "$ref" in part:
                target = self._target(part["$ref"], is_partial=is_partial)
                if target is not None and id(target) not in flat.passed:
                    flat.passed.append(id(target))
                    pending.append(target)
            pending += _schemas("allOf", part.get("allOf", []))
            flat.choices += [(name, _schemas(name, part[name])) for name in _CHOICES if name in part]
            flat.conditional += _conditional(part)
            for name, value in part.items():
                if name not in {"$ref", "allOf", *_CHOICES, *_CONDITIONAL}:
                    flat.keywords[name] = (
                        _both(name, flat.keywords[name], value) if name in flat.keywords else value
                    )
        return flat

    def _target(self, name: Any, *, is_partial: bool) -> Any:
        """Return the schema to which a reference leads; `None` if the reference must be ignored."""
        try:
            target = self._referred(name)
        except UntypedError:
            if is_partial:
                return None
            raise
        if id(target) not in self._within:
            return target
        if is_partial:
            return None
        raise UntypedError(f"{short(name)} contains itself, and Spark has no recursive types")

    def _referred(self, name: Any) -> Any:
        if not isinstance(name, str):
            raise MalformedError(f"$ref {short(name)}: expected a text")
        base, _, fragment = name.partition("#")
        try:
            is_here = not base or (self._address and urljoin(self._address, base) == self._address)
        except ValueError:
            is_here = False
        if not is_here:
            raise UntypedError(f"$ref {short(name)}: expected a place in this file, such as #/$defs/x")
        if fragment and not fragment.startswith("/"):
            if fragment not in self._anchors:
                raise MalformedError(f"$ref {short(name)}: no such place in this file")
            return self._anchors[fragment]
        found = self._document
        for step in fragment.split("/")[1:]:
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and key in found:
                found = found[key]
            elif isinstance(found, list) and key.isdecimal() and int(key[:9]) < len(found):
                found = found[int(key[:9])]
            else:
                raise MalformedError(f"$ref {short(name)}: no such place in this file")
        return found

    def _find_anchors(self) -> None:
        pending = [self._document]
        while pending:
            part = pending.pop()
            if isinstance(part, list):
                pending += part
            elif isinstance(part, Mapping):
                pending += part.values()
                named = [part.get("$anchor")]
                named += [
                    each[1:]
                    for each in (part.get("$id"), part.get("id"))
                    if isinstance(each, str) and each[:1] == "#"
                ]
                self._anchors |= {each: part for each in named if isinstance(each, str) and each}


def _conditional(schema: Mapping[str, Any]) -> list[Any]:
    """Return the schemas in a schema that only apply under a condition.

    Raises:
        UntypedError: The schema has a dynamic reference, whose target depends on the referring schema.
    """
    found: list[Any] = []
    for name in _CONDITIONAL:
        value = schema.get(name, True)
        if name.startswith("dependen") and isinstance(value, Mapping):
            found += [each for each in value.values() if not isinstance(each, list)]
        elif value is not True:
            found.append(value)
    if dynamic := [name for name in _DYNAMIC if name in schema]:
        raise UntypedError(f"{dynamic[0]}: has no equivalent Spark type")
    return found


def _schemas(name: str, found: Any) -> list[Any]:
    if not isinstance(found, list):
        raise MalformedError(f"{name}: expected an array of schemas, found {short(found)}")
    return found


def _makes_type(schema: Any) -> bool:
    return not isinstance(schema, Mapping) or not _TYPING.isdisjoint(schema)


def _listed(kinds: Any) -> list[str]:
    found = kinds if isinstance(kinds, list) else [kinds]
    if not all(isinstance(kind, str) for kind in found):
        raise UntypedError(f"type is {short(kinds)}; expected one type, or it and null")
    return found


def _kinds(keywords: Mapping[str, Any]) -> list[str] | None:
    """Return the types that a value may have; `None` if it may have any."""
    if "type" in keywords:
        return _listed(keywords["type"])
    if keywords.get("properties"):
        return ["object"]
    if "enum" in keywords or "const" in keywords:
        values = keywords.get("enum", [keywords.get("const")])
        if not isinstance(values, list):
            raise MalformedError(f"enum: expected an array, found {short(values)}")
        return list({_KINDS.get(type(value), "object or array") for value in values})
    return ["array"] if "items" in keywords else None


def _both(name: str, one: Any, other: Any) -> Any:
    """Merge two values of a keyword, so that the result describes values that satisfy both schemas."""
    if one == other:
        return one
    match name:
        case "properties" | "patternProperties" if isinstance(one, Mapping) and isinstance(other, Mapping):
            shared = {key: {"allOf": [one[key], other[key]]} for key in one if key in other}
            return {**one, **other, **shared}
        case "required" if isinstance(one, list) and isinstance(other, list):
            return [*one, *other]
        case "type":
            kinds = [kind for kind in _listed(one) if kind in _listed(other)]
            if {"integer", "number"} <= {*_listed(one), *_listed(other)}:
                kinds = list({*kinds, "integer"})
            if not kinds:
                raise UntypedError(f"the types {short(one)} and {short(other)} together")
            return kinds
        case "items" | "additionalProperties":
            if one is True or other is True:
                return other if one is True else one
            if one is False or other is False:
                return False
            return {"allOf": [one, other]}
    return one
