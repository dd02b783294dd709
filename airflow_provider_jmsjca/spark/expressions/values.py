"""SQL expressions for the values of a JSON body: how they are read, tested and converted.

Spark parses each body into two columns. `PARSED` has the typed fields, and `WHOLE` the body as one VARIANT.
"""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Final

from airflow_provider_jmsjca.core.message import BodyKind
from airflow_provider_jmsjca.spark.bodies.formats import BodyFormat
from airflow_provider_jmsjca.spark.tables.columns import quoted_name, quoted_text
from airflow_provider_jmsjca.spark.timestamps import END, WRITTEN, TimestampForms, is_written

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

TEXT, PARSED, WHOLE, UNREADABLE, UNDECODABLE_COLUMN = (
    f"_jms_{name}" for name in ("text", "parsed", "whole", "unreadable", "undecodable")
)
"""Columns of a body: its text, both results of parsing it, and why it can't be read or decoded."""
UNPARSED: Final = "_jms_unparsed"
"""Field of `PARSED` with the text of a body that Spark can't parse."""
_JSON_KINDS: Final = (BodyKind.TEXT, BodyKind.BYTES, BodyKind.MAP)
_BASE64: Final = "[A-Za-z0-9+/]*+={0,2}"
_OBJECT: Final = "^[ \t\r\n]*+[{]"
BITS: Final = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}
FLOATS: Final = ("float", "double")
# Codes of the first characters of numbers, objects, arrays and values in quotation marks, for IN. With
# BETWEEN, Spark would compute the character separately, in a copy of each row.
_FIRST_OF_OTHERS: Final = ", ".join(str(ord(each)) for each in '"-0123456789[{')
SIMPLE_TYPES: Final = frozenset({"string", "boolean", "binary", "variant", *BITS, *FLOATS, *WRITTEN})
PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Matches the lambda variable at the beginning of a value: the variable of the innermost lambda.
_NUMBERED: Final = re.compile("_jms_([0-9]+)")
# Numbers that may be beyond DOUBLE, and their form in the JSON of a VARIANT.
VAST: Final = "[0-9]{309,}|[eE][+]?[0-9]{3,}"
# Random text appended to a body. No producer can guess it, so it shows where the body ends.
MARK: Final = secrets.token_hex(8)


def undecodable_reason() -> str:
    """Return an expression for the reason that a message is undecodable."""
    return f"concat('the message can\\'t be decoded: ', {UNDECODABLE_COLUMN})"


def _read_as(kind: DataType) -> str:
    """Return the Spark type with which `from_json` reads the values of a field of type `kind`.

    It differs from `kind` where `from_json` would change a value: by rounding, by overflow, or by guessing
    the format of a text. Other expressions then convert the value to `kind`.
    """
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType  # noqa: PLC0415 - only jobs have it

    match kind:
        case StructType():
            return f"STRUCT<{members_ddl(kind)}>"
        case ArrayType():
            return f"ARRAY<{_read_as(kind.elementType)}>"
        case MapType():
            return f"MAP<STRING, {_read_as(kind.valueType)}>"
        case DecimalType():
            return "VARIANT"  # from_json rounds a DECIMAL, and makes a STRING of a number by way of DOUBLE
    name = kind.simpleString()
    if name in {"tinyint", "smallint"}:
        return "INT"  # from_json would read 200 as the TINYINT -56
    return "STRING" if name in WRITTEN or name == "binary" else name


def converted_value(forms: TimestampForms, kind: DataType, found: str) -> str:
    """Return an expression that converts a value of from_json (see `_read_as`) to its field's type."""
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType  # noqa: PLC0415 - only jobs have it

    match kind:
        case StructType():
            members = ((field, member_of(found, field.name)) for field in kind.fields)
            pairs = ", ".join(
                f"{quoted_text(field.name)}, {converted_value(forms, field.dataType, member)}"
                for field, member in members
            )
            return f"CASE WHEN {found} IS NOT NULL THEN named_struct({pairs}) END"
        case ArrayType():
            each = lambda_variable(found)
            inner = converted_value(forms, kind.elementType, each)
            return found if inner == each else f"transform({found}, {each} -> {inner})"
        case MapType():
            each = lambda_variable(found)
            inner = converted_value(forms, kind.valueType, each)
            return found if inner == each else f"transform_values({found}, ({each}_key, {each}) -> {inner})"
        case DecimalType():
            return from_variant(found, kind.simpleString())
    name = kind.simpleString()
    if name == "binary":
        return f"try_to_binary({found}, 'base64')"
    if name == "timestamp":
        return forms.value(found)
    if name in WRITTEN or name in {"tinyint", "smallint"}:
        return f"try_cast({found} AS {name})"
    return found


def body_kinds(body_format: BodyFormat | None) -> str:
    """Return the kinds of bodies that are read, as a list in SQL."""
    return ", ".join(f"'{kind}'" for kind in (_JSON_KINDS if body_format is None else body_format.kinds))


def is_ordinary(fields: StructType, body_format: BodyFormat | None, forms: TimestampForms) -> str:
    """Return a cheap expression that is true only for messages that fit the schema.

    The expression may be false or NULL for a message that fits; the expensive expressions then decide.
    """
    kinds = body_kinds(body_format)
    return " AND ".join(
        [
            f"body_type IN ({kinds}) AND {WHOLE} IS NOT NULL AND {PARSED}.{UNPARSED} IS NULL",
            f"is_valid_utf8({TEXT}) AND (startswith({TEXT}, '{{') OR {is_object()}) AND {has_one_value()}",
            *(
                _ordinary_field(forms, field, member_of(PARSED, field.name), _probe(field))
                for field in fields.fields
            ),
        ]
    )


def has_one_value() -> str:
    """Return an expression that tells whether a body that was parsed as a VARIANT is one JSON value."""
    return f"coalesce(try_variant_get({WHOLE}, '$[1]', 'string') = '{MARK}', false)"


def is_object() -> str:
    """Return an expression that tells whether a body begins like a JSON object."""
    return f"{TEXT} RLIKE {quoted_text(_OBJECT)}"


def _probe(field: StructField) -> str | None:
    """Return an expression for the kind of a field's value; `None` if its name can't be part of a path."""
    if not PLAIN_NAME.fullmatch(field.name):
        return None
    return variant_kind(f"try_variant_get({WHOLE}, '$[0].{field.name}', 'variant')")


def _ordinary_field(forms: TimestampForms, field: StructField, found: str, probe: str | None = None) -> str:
    absent = is_absent(found) if _read_as(field.dataType) == "VARIANT" else f"{found} IS NULL"
    fits = _ordinary_value(forms, field.dataType, found, probe)
    return f"(NOT ({absent}) AND {fits})" if not field.nullable else f"({absent} OR {fits})"


def _ordinary_value(forms: TimestampForms, kind: DataType, found: str, probe: str | None = None) -> str:
    """Return a cheap expression that is true only if a value of from_json fits its type.

    The value must not be NULL. The expression may be false or NULL for a value that fits.
    """
    from pyspark.sql.types import (  # noqa: PLC0415 - only jobs have pyspark
        ArrayType,
        DecimalType,
        MapType,
        StructField,
        StructType,
    )

    match kind:
        case StructType():
            inner = (_ordinary_field(forms, field, member_of(found, field.name)) for field in kind.fields)
            return f"({' AND '.join(['true', *inner])})"
        case ArrayType() | MapType():
            each = lambda_variable(found)
            if isinstance(kind, ArrayType):
                field, values = StructField("", kind.elementType, kind.containsNull), found
            else:
                field, values = (
                    StructField("", kind.valueType, kind.valueContainsNull),
                    f"map_values({found})",
                )
            return f"forall({values}, {each} -> {_ordinary_field(forms, field, each)})"
        case DecimalType():
            return fits_type(forms, kind, found)
    name = kind.simpleString()
    if name in {"string", "binary"}:
        # from_json reads any value as STRING. So a text that begins like another value is doubtful: it may
        # come from a number (1e400 gives "Infinity" in quotation marks), an object and so on. Texts that
        # begin with a letter are tested first, because a comparison costs less than extracting the first
        # character.
        letter = f"({found} >= 'A' AND {found} < '[' OR {found} >= 'a' AND {found} < '{{')"
        doubtful = f"NOT {letter} AND ascii({found}) IN ({_FIRST_OF_OTHERS}) OR {found} IN ('true', 'false')"
        text = f"(NOT ({doubtful}))"
        if probe is not None:
            text = f"({text} OR {probe} = 'STRING')"
        return text if name == "string" else f"({text} AND {_is_base64(found)})"
    if name in WRITTEN:
        return is_written(name, found, forms)  # only a JSON string can have text of this form
    if name in {"tinyint", "smallint"}:
        return _in_range(name, found)
    if name in FLOATS:
        return _is_finite(found, name)
    return f"(NOT ({TEXT} RLIKE {quoted_text(VAST)}))" if name == "variant" else "true"


def fits_type(forms: TimestampForms, kind: DataType, value: str) -> str:
    """Return an expression that tells whether a VARIANT that isn't NULL fits a simple type."""
    from pyspark.sql.types import DecimalType  # noqa: PLC0415 - only jobs have pyspark

    name, text = kind.simpleString(), from_variant(value, "STRING")
    if isinstance(kind, DecimalType):
        scales = "|".join(str(scale) for scale in range(kind.scale + 1))
        exact = quoted_text(f"^(BIGINT|DECIMAL[(][0-9]+,({scales})[)])")
        return f"({variant_kind(value)} RLIKE {exact} AND {from_variant(value, name)} IS NOT NULL)"
    if name in BITS:
        return f"({variant_kind(value)} = 'BIGINT' AND {_in_range(name, from_variant(value, 'BIGINT'))})"
    if name in FLOATS:
        number = f"{variant_kind(value)} RLIKE '^(BIGINT|DOUBLE|DECIMAL)'"
        return f"({number} AND {_is_finite(from_variant(value, name), name)})"
    is_string = f"{variant_kind(value)} = 'STRING'"
    if name == "timestamp" and forms.names:
        is_string = f"{variant_kind(value)} IN ('STRING', 'BIGINT')"  # a BIGINT counts from the epoch
    if name in WRITTEN:
        return f"({is_string} AND {is_written(name, text, forms)})"
    match name:
        case "string":
            return is_string
        case "binary":
            return f"({is_string} AND {_is_base64(text)})"
        case "boolean":
            return f"{variant_kind(value)} = 'BOOLEAN'"
        case _:
            return "true"


def _in_range(name: str, value: str) -> str:
    limit = 2 ** BITS[name]
    return f"{value} IS NOT NULL" if name == "bigint" else f"{value} BETWEEN {-limit} AND {limit - 1}"


def _is_finite(value: str, name: str) -> str:
    return f"abs({value}) < CAST('Infinity' AS {name})"


def _is_base64(text: str) -> str:
    form = quoted_text(f"^{_BASE64}{END}")
    return f"(octet_length({text}) % 4 = 0 AND {text} RLIKE {form})"


def variant_kind(value: str) -> str:
    """Return an expression for the kind of a VARIANT, such as `STRING` or `ARRAY<BIGINT>`."""
    return f"schema_of_variant({value})"


def from_variant(value: str, name: str) -> str:
    """Return an expression for a VARIANT as the named type; NULL if it can't be converted."""
    return f"try_variant_get({value}, '$', {quoted_text(name)})"


def is_absent(value: str) -> str:
    """Return an expression that tells whether a VARIANT is NULL or JSON `null`, without parentheses."""
    return f"{value} IS NULL OR is_variant_null({value})"


def members_ddl(fields: StructType) -> str:
    """Return the fields as DDL, with the types of `_read_as`."""
    return ", ".join(f"{quoted_name(field.name)}: {_read_as(field.dataType)}" for field in fields.fields)


def member_of(value: str, name: str) -> str:
    """Return an expression for a field of a struct."""
    return f"{value}.{quoted_name(name)}"


def lambda_variable(value: str) -> str:
    """Return a name for a lambda variable over parts of a value; no enclosing lambda has the same name."""
    enclosing = _NUMBERED.match(value)
    return f"_jms_{int(enclosing[1]) + 1 if enclosing else 1}"
