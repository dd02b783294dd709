"""A schema in a file: as DDL text, in Spark's JSON form, as an Avro schema or as a JSON Schema.

An Avro schema or a JSON Schema defines the types of the bodies' fields. A part without a Spark type is
refused with an error that names the path of the field, unless an `Allowance` permits reading it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.sql.types import StructType

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.spark.schemas.avro import AvroSchema, is_avro
from airflow_provider_jmsjca.spark.schemas.json_schema import JsonSchema
from airflow_provider_jmsjca.spark.schemas.reader import LEVELS, Allowance, SchemaReader, TooLargeError

_MOST_BYTES: Final = 16 * 1024 * 1024
_MOST_FAULTS: Final = 50
# Numbers of typed levels that are tried in turn for a large schema, whose deeper levels are then VARIANT. If
# the schema is still too large with the last number, it is refused.
_FEWER_LEVELS: Final = (LEVELS, 24, 12, 8, 6, 4)
_PARTS: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"|//[^\n]*+|/\*(?:[^*]++|\*(?!/))*+(?:\*/|\Z)', re.DOTALL)
_EXPECTED: Final = (
    "expected fields in words, or JSON: Spark's form, as df.schema.json() returns it, an Avro schema or a "
    "JSON Schema"
)


def read_schema(
    path: Path, *, allow: Iterable[Allowance | str] = (), type_name: str | None = None
) -> StructType | str:
    """Return the schema in a file. Nothing else is read, and nothing is fetched.

    Args:
        path: The file, of at most 16 MiB.
        allow: Parts of an Avro schema or a JSON Schema that aren't refused: `variants`, `defaults`,
            `aliases`.
        type_name: Name of the bodies' type, for a file with several types. In Avro it is the name of a
            record. In a JSON Schema it is a name in `$defs` or `definitions`, or a reference such as
            `#/$defs/order`.

    Returns:
        For a file of DDL text this text, as accepted by `Batch.json`; otherwise the fields.

    Raises:
        ConfigurationError: The file can't be read, is JSON of another form, or has parts without a Spark
            type. The error names each part.
    """
    allowed = _allowed(allow)
    text = schema_text(path)
    if not text.startswith(("{", "[")):
        return " ".join(text.split())
    try:
        found = json.loads(text, object_pairs_hook=_object, parse_constant=_no_number)
        if isinstance(found, Mapping) and found.get("type") == "struct":
            return StructType.fromJson(dict(found))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigurationError(f"schema file {path}: {_EXPECTED} ({error})") from error
    try:
        columns, faults = _read(found, allowed, type_name)
    except RecursionError as error:
        raise ConfigurationError(f"schema file {path}: has too many nested parts") from error
    return _checked(columns, faults, f"schema file {path}")


def columns_of_writer(schema: str, *, allow: Iterable[Allowance | str] = ()) -> StructType:
    """Return the columns for bodies that were written with an Avro schema.

    Args:
        schema: The Avro schema, a record as JSON.
        allow: With `variants`, parts without a Spark type are read as `VARIANT`. Defaults and aliases are
            irrelevant, because a body contains each field of its schema.

    Raises:
        ConfigurationError: The schema is no record, or has parts without a Spark type. The error names each
            part.
    """
    what = "avro: the writer's schema"
    try:
        document = json.loads(schema, object_pairs_hook=_object, parse_constant=_no_number)
    except ValueError as error:
        raise ConfigurationError(f"{what}: {error}") from error
    return _checked(*_read(document, _allowed(allow), None, is_writers=True), what)


def _allowed(allow: Iterable[Allowance | str]) -> list[Allowance]:
    try:
        return [Allowance(each) for each in allow]
    except ValueError as error:
        raise ConfigurationError(f"schema file: {error}; expected {', '.join(Allowance)}") from error


def _checked(columns: StructType | None, faults: list[str], what: str) -> StructType:
    if columns is None or not columns.fields:
        shown = faults[:_MOST_FAULTS]
        if len(faults) > len(shown):
            shown.append(f"and {len(faults) - len(shown)} more")
        if not faults:
            shown.append("expected a record or an object with fields, because a body is an object")
        raise ConfigurationError([f"{what}: {fault}" for fault in shown])
    return columns


def _read(
    document: Any, allowed: list[Allowance], type_name: str | None, *, is_writers: bool = False
) -> tuple[StructType | None, list[str]]:
    """Return the columns, or `None` and the faults. Deep levels of a large schema are read as `VARIANT`."""
    for levels in _FEWER_LEVELS:
        reader: SchemaReader
        reader = JsonSchema(allowed, levels)
        if is_avro(document):
            reader = AvroSchema(allowed, levels, is_writers=is_writers)
        try:
            return reader.columns(document, type_name), reader.faults
        except TooLargeError as error:
            fault = str(error)
            if Allowance.VARIANTS not in allowed:
                fault += f"; allow {Allowance.VARIANTS} to read the lower levels as VARIANT"
                break
    return None, [f"the whole: {fault}"]


def schema_text(path: Path) -> str:
    """Return the text of a file; comments in JSON are removed.

    Raises:
        ConfigurationError: The file can't be read, or is larger than 16 MiB.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        text = content.decode("utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"schema file {path}: can't be read: {error}") from error
    if len(content) > _MOST_BYTES:
        raise ConfigurationError(f"schema file {path}: has more than {_MOST_BYTES:,} bytes")
    if text.startswith(("{", "[", "/*", "//")):
        text = _PARTS.sub(lambda part: part[0] if part[0].startswith('"') else " ", text).strip()
    return text


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has the name {twice[:40]!r} twice")
    return found


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no JSON")
