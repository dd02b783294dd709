"""Reads text bodies into typed columns and separates the messages that don't fit.

Spark parses each JSON body twice, independent of the number of columns. Parsing it as typed fields gives the
values. Parsing it as one VARIANT detects invalid JSON, a second value, and duplicate names. A few cheap
comparisons recognise ordinary rows. For the other rows, the kind of every value is compared with its field.
JSON needs no Python on executors. XML, CSV and Avro are first converted to JSON there, by `bodies`.
"""

from __future__ import annotations

import json
import re
import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypedDict

from airflow_provider_jmsjca.core.message import BodyKind
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.spark.bodies.formats import Avro, BodyFormat, Kind, Shape, Xml, read_body
from airflow_provider_jmsjca.spark.failing import Attempt
from airflow_provider_jmsjca.spark.rejects import EXCEPTION_CLASS
from airflow_provider_jmsjca.spark.tables.columns import (
    ORIGIN,
    quoted_name,
    quoted_text,
    reserved,
    shown,
    type_name,
)
from airflow_provider_jmsjca.spark.timestamps import END, WRITTEN, TimestampForms, is_written
from airflow_provider_jmsjca.spool.schema import REASON_PROPERTY, UNDECODABLE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField, StructType

_JSON_KINDS: Final = (BodyKind.TEXT, BodyKind.BYTES, BodyKind.MAP)
_PLACE: Final = ("batch_id", "segment", "position")
_TEXT, _PARSED, _WHOLE, _FAULT, _TRIED, _REASON, _VALUES, _CONVERTED, _KEPT, _UNDECODABLE = (
    f"_jms_{name}"
    for name in (
        "text",
        "parsed",
        "whole",
        "unreadable",
        "tried",
        "reason",
        "values",
        "converted",
        "kept",
        "undecodable",
    )
)
_UNPARSED, _READ, _RESCUED = (f"_jms_{name}" for name in ("unparsed", "read", "rescued"))
_BASE64: Final = "[A-Za-z0-9+/]*+={0,2}"
_OBJECT: Final = "^[ \t\r\n]*+[{]"
_OPENS: Final = "^[ \t\r\n]*+[\\[{]"
_BLANK: Final = f"^[ \t\r\n]*+{END}"
_BITS: Final = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}
_FLOATS: Final = ("float", "double")
# First characters of a number, an object, an array or a value in quotation marks. Spark would compute BETWEEN
# separately, in a copy of each row.
_FIRST_OF_OTHERS: Final = ", ".join(str(ord(each)) for each in '"-0123456789[{')
_SIMPLE: Final = frozenset({"string", "boolean", "binary", "variant", *_BITS, *_FLOATS, *WRITTEN})
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# The variable of the innermost lambda, with which a value begins.
_NUMBERED: Final = re.compile("_jms_([0-9]+)")
# Limits of Spark's JSON reader, by the option of from_json that lifts them.
_LIMITS: Final = {
    "maxNumLen": "a number of more than 1,000 digits",
    "maxNestingDepth": "more than 999 levels of objects and arrays",
}
# Extensions of JSON that other languages write, by the option of from_json that reads them.
_NOT_OF_JSON: Final = {
    "allowNonNumericNumbers": "NaN or Infinity as a number",
    "allowSingleQuotes": "single quotes in place of double ones",
    "allowUnquotedFieldNames": "a name without quotes",
    "allowComments": "a comment",
    "allowNumericLeadingZeros": "a number that begins with 0",
    "allowUnquotedControlChars": "an unescaped control character in a string",
    "allowBackslashEscapingAnyCharacter": "an escape that JSON doesn't define",
}
_BYTE_ORDER_MARK: Final = "\ufeff"
_TRAILING_COMMA: Final = ",([ \t\r\n]*[}\\]])"
_LONG: Final = "a string of more than 20,000,000 characters"
_EMPTY: Final = "the body is empty"
_TWICE: Final = "the body has an object with a name twice"
_HALF: Final = "the body has an escape such as \\ud800, which is half a character"
_MORE: Final = "the body has more than one JSON value"
_CUT: Final = (
    "the body is not JSON: it begins with { or [ and ends with neither } nor ], so it may be cut off"
)
_NOT_JSON: Final = "the body is not JSON"
# Halves of a character without the other half, as JSON escapes them.
_HALVES: Final = (
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)
# Numbers that may be beyond DOUBLE, and their form in the JSON of a VARIANT.
_VAST: Final = "[0-9]{309,}|[eE][+]?[0-9]{3,}"
_INFINITE: Final = '"-?Infinity"'
# Appended to a body to find its end; no producer can guess it.
_MARK: Final = secrets.token_hex(8)
_NO_FAULT: Final = "CAST(NULL AS STRUCT<reason: STRING, value: VARIANT>)"
_AGAIN: Final = "failed when it was evaluated again; it may depend on more than the message"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """Rows of the messages that fit, and rejects for the others.

    Attributes:
        rows: The requested columns, then the kept columns, then `_jms`: a struct of `batch_id`, `segment` and
            `position` that identifies the row's message.
        rejects: Columns `_jms`, `exception_class` and `exception_message`, a row for each message that
            doesn't fit.
    """

    rows: DataFrame
    rejects: DataFrame


def map_json(
    messages: DataFrame,
    schema: StructType | str,
    keep: Sequence[str] = (),
    *,
    timestamp_formats: Sequence[str] = (),
) -> Mapped:
    """Read each body as one JSON object with these fields, see `sort_json`.

    The bodies are parsed once for the rows, and once more for the rejects. `Batch.json` parses them once.

    Args:
        messages: Messages with the columns of the message schema.
        schema: Fields of the body, see `sort_json`.
        keep: Columns of the message to add, see `sort_json`.
        timestamp_formats: Further forms of `TIMESTAMP`, see `sort_json`.

    Raises:
        ConfigurationError: The schema, `keep` or a format of timestamps is invalid.
    """
    return split(sort_json(messages, schema, keep, timestamp_formats=timestamp_formats))


def split(sorted_messages: DataFrame, *, has_rejects: bool = True) -> Mapped:
    """Split sorted messages into rows and rejects.

    Args:
        sorted_messages: The result of `sort_json` or `sort_tried`.
        has_rejects: `False` if `failed_columns` has found no message to reject.
    """
    from pyspark.sql import functions as sql  # noqa: PLC0415 - only jobs have pyspark

    def names_in(part: str) -> list[str]:
        return sorted_messages.select(f"{part}.*").columns if part in sorted_messages.columns else []

    converted = set(names_in(_CONVERTED))
    places = {
        name: _CONVERTED if name in converted else _VALUES for name in names_in(_VALUES) if name != _UNPARSED
    }
    for part in (_KEPT, _RESCUED):
        places |= dict.fromkeys(names_in(part), part)
    values = [sql.expr(_member(place, name)).alias(name) for name, place in places.items()]
    origin = sql.struct(*_PLACE).alias(ORIGIN)
    fits = sql.col(_REASON).isNull() if has_rejects else sql.lit(True)
    return Mapped(
        rows=sorted_messages.where(fits).select(*values, origin),
        rejects=sorted_messages.where(~fits).select(
            origin,
            sql.lit(EXCEPTION_CLASS).alias("exception_class"),
            sql.col(_REASON).alias("exception_message"),
        ),
    )


def failed_columns(sorted_messages: DataFrame) -> frozenset[int] | None:
    """Return the numbers of the expressions that failed for a message; `None` if all messages fit.

    Args:
        sorted_messages: The result of `sort_json` or `sort_tried` with `finds_reasons=False`. The driver must
            be able to hold a short text for each message.
    """
    # A count would need a second stage, which takes longer than collecting texts for a small batch.
    found = {
        reason for (reason,) in sorted_messages.where(f"{_REASON} IS NOT NULL").select(_REASON).collect()
    }
    return frozenset(int(number) for text in found for number in text.split()) if found else None


def sort_tried(
    messages: DataFrame,
    columns: Mapping[str, Column | str],
    *,
    finds_reasons: bool = True,
    failed: Collection[int] | None = None,
) -> DataFrame:
    """Evaluate expressions for each message, and find the messages for which an expression fails.

    A message is rejected if it is undecodable or an expression raises an error for it. NULL is a value, not a
    failure. Each expression is evaluated once.

    Args:
        messages: Messages with `batch_id`, `segment`, `position` and the columns that the expressions use.
        columns: Expressions in SQL, or columns, by the name of the resulting column. An exception in a Python
            function fails the job. Names that begin with `_jms`, and `jms_batch_id`, `jms_segment` and
            `jms_position`, are reserved.
        finds_reasons: See `sort_json`.
        failed: See `sort_json`.

    Returns:
        The argument of `split`: each message with its values, its reason, or both.

    Raises:
        ConfigurationError: There are no columns, two names differ only in case, or a name is reserved. Or the
            messages lack `batch_id`, `segment` or `position`.
    """
    from pyspark.sql import functions as sql  # noqa: PLC0415 - only jobs have pyspark

    missing = [name for name in _PLACE if name not in messages.columns]
    if missing or not columns:
        lack = f"the messages have no {', '.join(missing)}" if missing else "there are no columns"
        raise ConfigurationError(f"try_map: {lack}; expected messages and expressions by name")
    faults = _name_faults(columns)
    if faults:
        raise ConfigurationError(f"try_map: {'; '.join(faults)}")
    attempts = {
        name: Attempt(messages, sql.expr(each) if isinstance(each, str) else each)
        for name, each in columns.items()
    }
    undecodable = "CAST(NULL AS STRING)"
    if {"body_type", "properties"} <= set(messages.columns):
        undecodable = _undecodable()
    # Without the generator, Spark might evaluate a part that two expressions share before it tries them.
    tried = sql.struct(*(each.tried().alias(name) for name, each in attempts.items()))
    apart = messages.select(
        "*", sql.expr(undecodable).alias(_UNDECODABLE), sql.explode(sql.array(tried)).alias(_TRIED)
    )
    fits = f"{_UNDECODABLE} IS NULL"
    if finds_reasons:
        why = sql.when(~sql.expr(fits), sql.expr(_undecodable_reason())).otherwise(
            _failure_reasons(attempts, failed)
        )
    else:
        why = sql.expr(_doubt(fits, attempts))
    return apart.select(*_PLACE, why.alias(_REASON), sql.expr(_tried_values(columns)).alias(_VALUES))


def _doubt(fits: str, attempts: Iterable[str]) -> str:
    """Return an expression for the numbers of the expressions that failed, see `failed_columns`.

    The expression is NULL for a message that fits.

    Args:
        fits: An expression that is true for a message that fits, except for failed expressions.
        attempts: Names of the expressions.
    """
    numbers = (
        f", CASE WHEN {_member(_TRIED, name)} IS NULL THEN '{number}' END"
        for number, name in enumerate(attempts)
    )
    failed = f"concat_ws(' '{''.join(numbers)})"
    return f"CASE WHEN {fits} THEN nullif({failed}, '') ELSE {failed} END"


def _failure_reasons(attempts: Mapping[str, Attempt], failed: Collection[int] | None) -> Column:
    """Return an expression for the reasons of the failed expressions as one text; NULL if none has failed.

    Args:
        attempts: The expressions by name.
        failed: Numbers of the expressions to examine; `None`: all.
    """
    from pyspark.sql import functions as sql  # noqa: PLC0415 - only jobs have pyspark

    faults = [
        sql.when(
            sql.expr(f"{_member(_TRIED, name)} IS NULL"),
            sql.concat(
                sql.lit(f"column '{name}': "),
                attempt.reason() if failed is None or number in failed else sql.lit(_AGAIN),
            ),
        )
        for number, (name, attempt) in enumerate(attempts.items())
    ]
    return sql.nullif(sql.concat_ws("; ", *faults), sql.lit(""))


def _tried_values(columns: Iterable[str]) -> str:
    values = ", ".join(f"{quoted_text(name)}, {_member(_TRIED, name)}.value" for name in columns)
    return f"named_struct({values})"


def _undecodable() -> str:
    """Return an expression for the reason that a message is undecodable; NULL for others."""
    reason = f"coalesce(properties[{quoted_text(REASON_PROPERTY)}], 'no reason was stored')"
    return f"CASE WHEN body_type = '{UNDECODABLE}' THEN {reason} END"


def _undecodable_reason() -> str:
    return f"concat('the message can\\'t be decoded: ', {_UNDECODABLE})"


def sort_json(
    messages: DataFrame,
    schema: StructType | str,
    keep: Sequence[str] = (),
    *,
    body_format: BodyFormat | None = None,
    timestamp_formats: Sequence[str] = (),
    rescue: str | None = None,
    finds_reasons: bool = True,
    failed: Collection[int] | None = None,
) -> DataFrame:
    """Read each body as one JSON object with these fields, and find out why a message doesn't fit.

    Text, bytes (as UTF-8) and map bodies are read. A message is rejected in these cases, at any depth:

    - The body is of another kind, is undecodable, or is not exactly one JSON object.
    - An object has a duplicate name.
    - A value has the wrong type, also for a nullable field.
    - A `NOT NULL` field is missing or JSON `null`.

    The reason names the value by its path, such as `items[3].price`. Names that the schema doesn't have are
    ignored. Only these values are accepted:

    | type | JSON values |
    |---|---|
    | `STRING` | strings |
    | `BOOLEAN` | `true`, `false` |
    | `TINYINT`, `SMALLINT`, `INT`, `BIGINT` | numbers without fraction and exponent, within the range |
    | `FLOAT`, `DOUBLE` | numbers within the range |
    | `DECIMAL(p,s)` | numbers without exponent that fit exactly; nothing is rounded |
    | `DATE` | `"YYYY-MM-DD"` |
    | `TIMESTAMP` | `"YYYY-MM-DDThh:mm:ss[.ffffff][Z]"`, or `+hh:mm` for `Z`; without zone: the session's |
    | `TIMESTAMP_NTZ` | as `TIMESTAMP`, without a zone |
    | `BINARY` | strings that are base64, padded |
    | `STRUCT<...>`, `MAP<STRING, ...>` | objects with values that fit |
    | `ARRAY<...>` | arrays with elements that fit |
    | `VARIANT` | any value without a number beyond `DOUBLE` |

    A body beyond a limit of Spark's JSON reader is rejected with the limit as the reason. The limits are
    20,000,000 characters in a string, 1,000 digits in a number, and 999 levels of objects and arrays.

    Args:
        messages: Messages with the columns of the message schema.
        schema: Fields of the body, as a `StructType` or DDL: `"carrier STRING NOT NULL, delay DOUBLE"`. Names
            that begin with `_jms`, and `jms_batch_id`, `jms_segment` and `jms_position`, are reserved.
        keep: Columns to add to the fields: columns of the message, such as `message_id`, or expressions in
            SQL with a name, such as `properties['region'] AS region`. A message is rejected if an expression
            fails for it.
        body_format: Format of the bodies if they are XML, CSV or Avro. Their values follow the rules of JSON
            values with the same text.
        timestamp_formats: Further forms of `TIMESTAMP`; the first that fits is used. `usual` reads the forms
            of Java, .NET, Jackson and Python, without digits beyond microseconds. `epoch_seconds`,
            `epoch_millis` and `epoch_micros` read whole numbers. Others are Spark's patterns for dates.
        rescue: Column to add for names in the body that the schema doesn't have, at any depth. `_rescued` is
            added as `VARIANT`, and `_rescued STRING` as JSON text. The column is NULL for a body without such
            names. In an array, items are named by index: `{"items": {"3": {"colour": "red"}}}`.
        finds_reasons: Whether to find the reasons. If `False`, a message that may not fit gets a text for
            `failed_columns` as the reason, even if it does fit. For a small batch, planning the search for
            reasons takes longer than everything else.
        failed: Numbers of the expressions in `keep` for which to find reasons, from `failed_columns`; `None`:
            all. Another expression that fails nevertheless gets a general reason.

    Returns:
        The argument of `split`: each message with its values, its reason, or both.

    Raises:
        ConfigurationError: The schema has no fields, Spark can't read it, or a field has a reserved name or a
            type not listed here. Or a column in `keep` can't be evaluated, or its name is reserved or that of
            a field. Or Spark doesn't support a format of timestamps.
    """
    from pyspark.sql import functions as sql  # noqa: PLC0415 - only jobs have pyspark

    fields, forms = _fields(schema), TimestampForms(tuple(timestamp_formats))
    forms.check(messages.sparkSession)
    kept = _kept(messages, fields, keep)
    rescued = None if rescue is None else _rescue_column(rescue, [*fields.names, *kept], body_format)
    options = {
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": _UNPARSED,
        "allowNonNumericNumbers": "false",
    }
    text, more = sql.expr("CAST(body AS STRING)"), []
    if body_format is not None:
        shape = _shape(fields, body_format)
        read_bodies = sql.udf(
            partial(read_body, body_format, shape), "text STRING, fault STRING", useArrow=False
        )
        messages = messages.withColumn(_READ, read_bodies("body", "body_type"))
        text, more = sql.col(f"{_READ}.text"), [sql.col(f"{_READ}.fault").alias(_FAULT)]
    attempts = {name: Attempt(messages, sql.expr(each)) for name, each in kept.items()}
    if attempts:
        more.append(sql.struct(*(each.tried().alias(name) for name, each in attempts.items())).alias(_TRIED))
    read = sql.struct(
        text.alias(_TEXT),
        sql.from_json(text, f"STRUCT<{_members(fields)}, {_UNPARSED}: STRING>", options).alias(_PARSED),
        # Spark ignores text after the first value. In an array with the mark, such text is an error, or the
        # mark isn't the second item.
        sql.try_parse_json(sql.concat(sql.lit("["), text, sql.lit(f',"{_MARK}"]'))).alias(_WHOLE),
        *more,
    )
    # Spark's optimizer would repeat an expression for each use of its result, and so parse a body once for
    # each column. It never replaces the output of a generator by the expression. To find unused parts of a
    # column, it compares each use of a part with each other, which takes long for hundreds of fields. It
    # doesn't if the column is also used as a whole: so the parsed fields are a column of their own.
    apart = messages.select(
        *(["*"] if attempts else [*_PLACE, "body_type"]),  # reasons of attempts need the other columns
        sql.expr(_undecodable()).alias(_UNDECODABLE),
        sql.inline(sql.array(read)),
    )
    ordinary = _ordinary(fields, body_format, forms)
    if finds_reasons:
        complaint = _complaint(fields, body_format, forms)
        why = sql.expr(f"CASE WHEN coalesce({ordinary}, false) THEN NULL ELSE {complaint} END")
        if attempts:
            why = sql.coalesce(why, _failure_reasons(attempts, failed))
    else:
        why = sql.expr(_doubt(f"coalesce({ordinary}, false)", attempts))
    # The parsed struct is copied as a whole, at the cost of one value. Converted values have another struct.
    values = [sql.col(_PARSED).alias(_VALUES)]
    found = {field.name: _member(_PARSED, field.name) for field in fields.fields}
    converted = {field.name: _value(forms, field.dataType, found[field.name]) for field in fields.fields}
    if pairs := [
        f"{quoted_text(name)}, {value}" for name, value in converted.items() if value != found[name]
    ]:
        values.append(sql.expr(f"named_struct({', '.join(pairs)})").alias(_CONVERTED))
    if attempts:
        values.append(sql.expr(_tried_values(attempts)).alias(_KEPT))
    if rescued is not None:
        values.append(sql.expr(_rescued_struct(fields, rescued)).alias(_RESCUED))
    return apart.select(*_PLACE, why.alias(_REASON), *values)


def rescue_name(rescue: str) -> str:
    """Return the name of the column for rescued fields."""
    return rescue.split(" ", maxsplit=1)[0]


def _rescue_column(rescue: str, taken: Iterable[str], body_format: BodyFormat | None) -> tuple[str, str]:
    """Return name and type of the column for rescued fields.

    Raises:
        ConfigurationError: The bodies have no fields to rescue, or the column can't have this name or type.
    """
    name, _, kind = rescue.partition(" ")
    kind = kind.strip().upper() or "VARIANT"
    if body_format is not None:
        raise ConfigurationError(
            f"rescue: only with JSON, not with {body_format.name}; add the names to the schema"
        )
    if not _PLAIN_NAME.fullmatch(name) or kind not in {"VARIANT", "STRING"}:
        raise ConfigurationError(
            f"rescue: {rescue!r}: expected a name such as _rescued, and STRING for JSON text"
        )
    if reserved([name]):
        raise ConfigurationError(f"rescue: {_reserved_fault(name)}")
    if name.lower() in {each.lower() for each in taken}:
        raise ConfigurationError(f"rescue: there is a column {name!r} already; give it another name")
    return name, kind


def _rescued_struct(fields: StructType, column: tuple[str, str]) -> str:
    name, kind = column
    whole = f"try_variant_get({_WHOLE}, '$[0]', 'variant')"
    found = _rescued(fields, whole)
    return f"named_struct({quoted_text(name)}, {f'to_json({found})' if kind == 'STRING' else found})"


def _rescued(kind: DataType, value: str) -> str:
    """Return an expression for those members of a value that aren't in the value's type, at any depth.

    The expression is a VARIANT; NULL if the type has all members of the value.

    Args:
        kind: Type of the value, with a STRUCT in it.
        value: An expression for the value, a VARIANT.
    """
    from pyspark.sql.types import ArrayType, MapType, StructType  # noqa: PLC0415 - only jobs have pyspark

    each = _variable(value)
    members = _from_variant(value, "MAP<STRING, VARIANT>")
    match kind:
        case StructType():
            names = ", ".join(quoted_text(name) for name in kind.names)
            found = f"map_filter({each}, ({each}_key, {each}_value) -> {each}_key NOT IN ({names}))"
            inner = ", ".join(
                f"{quoted_text(field.name)}, {_rescued(field.dataType, f'{each}[{quoted_text(field.name)}]')}"
                for field in kind.fields
                if _has_struct(field.dataType)
            )
            if inner:
                found = f"map_concat({found}, {_without_null(f'map({inner})', each)})"
            found = f"get(transform(array({members}), {each} -> {found}), 0)"
        case ArrayType():
            items = _from_variant(value, "ARRAY<VARIANT>")
            inside = _rescued(kind.elementType, each)
            pairs = f"transform({items}, ({each}, {each}_index) -> struct(string({each}_index), {inside}))"
            found = _without_null(f"map_from_entries({pairs})", each)
        case MapType():
            inside = _rescued(kind.valueType, each)
            found = _without_null(f"transform_values({members}, ({each}_key, {each}) -> {inside})", each)
        case _:
            raise AssertionError(kind)
    return (
        f"get(transform(array({found}), {each}_all -> "
        f"CASE WHEN size({each}_all) > 0 THEN to_variant_object({each}_all) END), 0)"
    )


def _without_null(found: str, each: str) -> str:
    return f"map_filter({found}, ({each}_key, {each}_value) -> {each}_value IS NOT NULL)"


def _has_struct(kind: DataType) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType  # noqa: PLC0415 - only jobs have pyspark

    match kind:
        case ArrayType():
            return _has_struct(kind.elementType)
        case MapType():
            return _has_struct(kind.valueType)
    return isinstance(kind, StructType)


def _kept(messages: DataFrame, fields: StructType, keep: Sequence[str]) -> dict[str, str]:
    """Return the expressions for kept columns, by the name of the column."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - only jobs have pyspark

    taken = {name.lower() for name in fields.names}
    kept: dict[str, str] = {}
    for column in keep:
        try:
            (name,) = messages.selectExpr(column).columns
        except PySparkException as error:
            (said, *_) = str(error).strip().splitlines()
            raise ConfigurationError(f"keep: {column!r}: {said}") from error
        if reserved([name]):
            raise ConfigurationError(f"keep: {column!r}: {_reserved_fault(name)}")
        if name.lower() in taken:
            raise ConfigurationError(
                f"keep: {column!r}: there is a column {name!r} already; give it another name: "
                f"{column.split(' AS ')[0]} AS message_{name}"
            )
        taken.add(name.lower())
        kept[name] = column
    return kept


def _fields(schema: StructType | str) -> StructType:
    """Return the fields of a schema after checking that `sort_json` has a rule for every type in it.

    Raises:
        ConfigurationError: The schema has no fields, a reserved name, or a type without a rule. Or Spark
            can't parse its DDL.
    """
    from pyspark.errors import ParseException  # noqa: PLC0415 - only jobs have pyspark
    from pyspark.sql.types import StructType  # noqa: PLC0415 - as above

    expected = "expected fields, such as 'carrier STRING NOT NULL, delay DOUBLE'"
    try:
        fields = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    except ParseException as error:
        (said, *_) = str(error).strip().splitlines()
        raise ConfigurationError(f"schema {schema!r}: {said}; {expected}") from error
    if not isinstance(fields, StructType) or not fields.fields:
        raise ConfigurationError(f"schema {schema!r}: {expected}")
    faults = [*map(_reserved_fault, reserved(fields.names)), *_unknown(fields, "")]
    if faults:
        raise ConfigurationError(f"schema: {'; '.join(faults)}")
    return fields


def avro_fields(schema: StructType | str | None, writer_schema: str, allow: Sequence[str] = ()) -> StructType:
    """Return the fields of Avro bodies.

    Args:
        schema: The fields to read; `None` means those of the writer's schema.
        writer_schema: The schema with which the bodies were written, as JSON.
        allow: With `variants`, parts of the writer's schema without a Spark type are read as `VARIANT`.

    Raises:
        ConfigurationError: A field to read has an invalid type. Or the writer's schema has a part without a
            Spark type.
    """
    from airflow_provider_jmsjca.spark.schemas.schema_file import columns_of_writer  # noqa: PLC0415 - pyspark

    if schema is None:
        return columns_of_writer(writer_schema, allow=allow)
    if allow:
        raise ConfigurationError("avro: allow: only without fields of your own; leave out one of the two")
    fields = _fields(schema)
    faults = list(_misread_bytes(fields, columns_of_writer(writer_schema, allow=["variants"]), ""))
    if faults:
        raise ConfigurationError(f"schema: {'; '.join(faults)}")
    return fields


def _misread_bytes(wanted: DataType, written: DataType, path: str) -> Iterator[str]:
    """Yield a fault for each field of bytes that would be read as another type, or the other way round."""
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType, VariantType  # noqa: PLC0415 - pyspark

    match wanted, written:
        case StructType(), StructType():
            kinds = {field.name: field.dataType for field in written.fields}
            for field in wanted.fields:
                if field.name in kinds:
                    yield from _misread_bytes(field.dataType, kinds[field.name], f"{path}{field.name}.")
        case ArrayType(), ArrayType():
            yield from _misread_bytes(wanted.elementType, written.elementType, f"{path[:-1]}[].")
        case MapType(), MapType():
            yield from _misread_bytes(wanted.valueType, written.valueType, f"{path[:-1]}[].")
        case (VariantType(), _) | (_, VariantType()):
            return
        case _ if isinstance(wanted, BinaryType) != isinstance(written, BinaryType):
            yield (
                f"field {path[:-1]!r}: the bodies have {type_name(written)}, which isn't read as "
                f"{type_name(wanted)}; expected {type_name(written)} or VARIANT"
            )


def _reserved_fault(name: str) -> str:
    return f"the name {name!r} is reserved for columns of this package"


def _name_faults(names: Iterable[str]) -> list[str]:
    """Return a fault for each reserved name, and for names that differ in case only."""
    lowered = Counter(name.lower() for name in names)
    twice = [name for name, count in lowered.items() if count > 1]
    return [
        *map(_reserved_fault, reserved(names)),
        *(f"{name}: two columns have this name, but for upper and lower case" for name in twice),
    ]


def _unknown(kind: DataType, path: str) -> list[str]:
    """Return a fault for each part of a type that has no rule."""
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType  # noqa: PLC0415 - only jobs have it

    match kind:
        case StructType():
            names = [name.lower() for name in kind.names]
            twice = sorted({name for name in names if names.count(name) > 1})
            inner = [_unknown(field.dataType, f"{path}{field.name}.") for field in kind.fields]
            faults = [
                f"{path}{name}: two fields have this name, but for upper and lower case" for name in twice
            ]
            return [*faults, *(fault for found in inner for fault in found)]
        case ArrayType():
            return _unknown(kind.elementType, f"{path[:-1]}[].")
        case MapType() if kind.keyType.simpleString() == "string":
            return _unknown(kind.valueType, f"{path[:-1]}[].")
        case DecimalType():
            return []
    if kind.simpleString() in _SIMPLE:
        return []
    expected = ", ".join(sorted(name.upper() for name in _SIMPLE))
    fault = f"field {path[:-1]!r}: no JSON value is read as {type_name(kind)}; expected {expected}, DECIMAL"
    return [f"{fault}, STRUCT, ARRAY or MAP<STRING, ...>"]


def _shape(fields: StructType, body_format: BodyFormat) -> Shape:
    """Return the shape of a body.

    Raises:
        ConfigurationError: Bodies of this format have no values of a type.
    """
    if isinstance(body_format, Avro):
        return Shape(kind=Kind.STRUCT)  # values are written by the types of their own schema
    faults: list[str] = []
    shape = _shape_of(fields, body_format, "", faults)
    if faults:
        raise ConfigurationError(f"schema: {'; '.join(faults)}")
    return shape


def _shape_of(kind: DataType, body_format: BodyFormat, path: str, faults: list[str]) -> Shape:
    from pyspark.sql.types import ArrayType, StructType  # noqa: PLC0415 - only jobs have pyspark

    is_nested = isinstance(body_format, Xml) or not path
    if isinstance(kind, StructType) and is_nested:
        fields = {
            field.name: _shape_of(field.dataType, body_format, f"{path}{field.name}.", faults)
            for field in kind.fields
        }
        return Shape(kind=Kind.STRUCT, fields=fields)
    if isinstance(kind, ArrayType) and is_nested and not isinstance(kind.elementType, ArrayType):
        return Shape(
            kind=Kind.ARRAY, items=_shape_of(kind.elementType, body_format, f"{path[:-1]}[].", faults)
        )
    name = kind.simpleString()
    if name in {*_BITS, *_FLOATS} or name.startswith("decimal("):
        return Shape(kind=Kind.NUMBER)
    if name in {*WRITTEN, "string", "boolean", "binary"}:
        return Shape(kind=Kind(name) if name in {"string", "boolean"} else Kind.WRITTEN)
    faults.append(
        f"field {path[:-1]!r}: no {body_format.name} value is read as {type_name(kind)}; expected a type "
        f"without parts{', STRUCT or ARRAY' if isinstance(body_format, Xml) else ''}"
    )
    return Shape(kind=Kind.STRING)


def _read_as(kind: DataType) -> str:
    """Return the type as which from_json must read a field to avoid rounding, overflow and guessing."""
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType  # noqa: PLC0415 - only jobs have it

    match kind:
        case StructType():
            return f"STRUCT<{_members(kind)}>"
        case ArrayType():
            return f"ARRAY<{_read_as(kind.elementType)}>"
        case MapType():
            return f"MAP<STRING, {_read_as(kind.valueType)}>"
        case DecimalType():
            return "VARIANT"  # as DECIMAL it would be rounded, as STRING it would have been a DOUBLE before
    name = kind.simpleString()
    if name in {"tinyint", "smallint"}:
        return "INT"  # as TINYINT, 200 would become -56
    return "STRING" if name in WRITTEN or name == "binary" else name


def _value(forms: TimestampForms, kind: DataType, found: str) -> str:
    """Return an expression that converts a value of from_json (see `_read_as`) to its field's type."""
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType  # noqa: PLC0415 - only jobs have it

    match kind:
        case StructType():
            pairs = ", ".join(
                f"{quoted_text(field.name)}, {_value(forms, field.dataType, _member(found, field.name))}"
                for field in kind.fields
            )
            return f"CASE WHEN {found} IS NOT NULL THEN named_struct({pairs}) END"
        case ArrayType():
            each = _variable(found)
            inner = _value(forms, kind.elementType, each)
            return found if inner == each else f"transform({found}, {each} -> {inner})"
        case MapType():
            each = _variable(found)
            inner = _value(forms, kind.valueType, each)
            return found if inner == each else f"transform_values({found}, ({each}_key, {each}) -> {inner})"
        case DecimalType():
            return _from_variant(found, kind.simpleString())
    name = kind.simpleString()
    if name == "binary":
        return f"try_to_binary({found}, 'base64')"
    if name == "timestamp":
        return forms.value(found)
    if name in WRITTEN or name in {"tinyint", "smallint"}:
        return f"try_cast({found} AS {name})"
    return found


def _kinds(body_format: BodyFormat | None) -> str:
    """Return the kinds of bodies that are read, as a list in SQL."""
    return ", ".join(f"'{kind}'" for kind in (_JSON_KINDS if body_format is None else body_format.kinds))


def _ordinary(fields: StructType, body_format: BodyFormat | None, forms: TimestampForms) -> str:
    """Return a cheap expression that is true only for messages that fit; the others need `_complaint`."""
    kinds = _kinds(body_format)
    return " AND ".join(
        [
            f"body_type IN ({kinds}) AND {_WHOLE} IS NOT NULL AND {_PARSED}.{_UNPARSED} IS NULL",
            f"is_valid_utf8({_TEXT}) AND (startswith({_TEXT}, '{{') OR {_is_object()}) AND {_is_one()}",
            *(
                _ordinary_field(forms, field, _member(_PARSED, field.name), _probe(field))
                for field in fields.fields
            ),
        ]
    )


def _is_one() -> str:
    return f"coalesce(try_variant_get({_WHOLE}, '$[1]', 'string') = '{_MARK}', false)"


def _is_object() -> str:
    return f"{_TEXT} RLIKE {quoted_text(_OBJECT)}"


def _probe(field: StructField) -> str | None:
    """Return an expression for the kind of a field's value; `None` if its name can't be part of a path."""
    if not _PLAIN_NAME.fullmatch(field.name):
        return None
    return _kind(f"try_variant_get({_WHOLE}, '$[0].{field.name}', 'variant')")


def _ordinary_field(forms: TimestampForms, field: StructField, found: str, probe: str | None = None) -> str:
    absent = _absent(found) if _read_as(field.dataType) == "VARIANT" else f"{found} IS NULL"
    fits = _ordinary_value(forms, field.dataType, found, probe)
    return f"(NOT ({absent}) AND {fits})" if not field.nullable else f"({absent} OR {fits})"


def _ordinary_value(forms: TimestampForms, kind: DataType, found: str, probe: str | None = None) -> str:
    """Return a cheap expression that is true only if a value of from_json fits; the value isn't NULL."""
    from pyspark.sql.types import (  # noqa: PLC0415 - only jobs have pyspark
        ArrayType,
        DecimalType,
        MapType,
        StructField,
        StructType,
    )

    match kind:
        case StructType():
            inner = (_ordinary_field(forms, field, _member(found, field.name)) for field in kind.fields)
            return f"({' AND '.join(['true', *inner])})"
        case ArrayType() | MapType():
            each = _variable(found)
            if isinstance(kind, ArrayType):
                field, values = StructField("", kind.elementType, kind.containsNull), found
            else:
                field, values = (
                    StructField("", kind.valueType, kind.valueContainsNull),
                    f"map_values({found})",
                )
            return f"forall({values}, {each} -> {_ordinary_field(forms, field, each)})"
        case DecimalType():
            return _fits(forms, kind, found)
    name = kind.simpleString()
    if name in {"string", "binary"}:
        # from_json reads any value as STRING, so the text may come from a number (1e400 gives "Infinity" in
        # quotation marks), an object and so on.
        # Comparing texts costs less than extracting the first character.
        letter = f"({found} >= 'A' AND {found} < '[' OR {found} >= 'a' AND {found} < '{{')"
        doubtful = f"NOT {letter} AND ascii({found}) IN ({_FIRST_OF_OTHERS}) OR {found} IN ('true', 'false')"
        text = f"(NOT ({doubtful}))"
        if probe is not None:
            text = f"({text} OR {probe} = 'STRING')"
        return text if name == "string" else f"({text} AND {_is_base64(found)})"
    if name in WRITTEN:
        return is_written(name, found, forms)  # no other JSON value's text has this form
    if name in {"tinyint", "smallint"}:
        return _in_range(name, found)
    if name in _FLOATS:
        return _is_finite(found, name)
    return f"(NOT ({_TEXT} RLIKE {quoted_text(_VAST)}))" if name == "variant" else "true"


def _complaint(fields: StructType, body_format: BodyFormat | None, forms: TimestampForms) -> str:
    """Return an expression for the reason to reject a message, or NULL."""
    kinds = _kinds(body_format)
    expected = f"expected {'a JSON' if body_format is None else body_format.with_article} body, found kind "
    unread = f"WHEN {_FAULT} IS NOT NULL THEN {_FAULT}" if body_format is not None else ""
    whole = f"try_variant_get({_WHOLE}, '$[0]', 'variant')"
    fault = _bound(whole, "_jms_1", _fault(forms, fields, "_jms_1", "''"))
    other = f"concat('expected a JSON object', {_found('_jms_other')})"
    misfit = f"concat(_jms_fault.reason, {_found('_jms_fault.value')})"
    return f"""CASE
        WHEN {_UNDECODABLE} IS NOT NULL THEN {_undecodable_reason()}
        WHEN body_type NOT IN ({kinds}) THEN concat('{expected}', body_type)
        {unread}
        WHEN {_TEXT} IS NULL OR {_TEXT} RLIKE {quoted_text(_BLANK)} THEN {quoted_text(_EMPTY)}
        WHEN NOT is_valid_utf8({_TEXT}) THEN 'expected a JSON body, found bytes that are not UTF-8'
        WHEN {_WHOLE} IS NULL THEN {_why_unreadable()}
        WHEN NOT ({_is_one()}) OR {whole} IS NULL THEN {quoted_text(_MORE)}
        WHEN NOT ({_is_object()}) THEN {_bound(whole, "_jms_other", other)}
        ELSE coalesce(
            {_bound(fault, "_jms_fault", misfit)},
            CASE WHEN {_PARSED}.{_UNPARSED} IS NOT NULL
                THEN {quoted_text(f"the body doesn't fit {type_name(fields)}")} END)
        END"""


def _found(value: str) -> str:
    """Return an expression that briefly describes a VARIANT; an empty text for NULL."""
    text = _from_variant(value, "STRING")
    # 1.0 is shown as 1.
    pointed = (
        f"CASE WHEN {_kind(value)} LIKE 'DECIMAL%' AND try_cast({text} AS BIGINT) IS NOT NULL "
        f"AND {text} NOT LIKE '%.%' THEN ' with a decimal point' ELSE '' END"
    )
    return f"""CASE {_kind(value)}
        WHEN 'STRING' THEN concat(', found the string "', {shown(text)}, '"')
        WHEN 'BOOLEAN' THEN concat(', found ', {text})
        WHEN 'VOID' THEN ', found null'
        WHEN 'DOUBLE' THEN CASE WHEN {text} LIKE '%Infinity' THEN ', found a number beyond DOUBLE'
            ELSE concat(', found the number ', {text}) END
        ELSE CASE
            WHEN {value} IS NULL THEN ''
            WHEN {_kind(value)} LIKE 'OBJECT<%' THEN ', found an object'
            WHEN {_kind(value)} LIKE 'ARRAY<%' THEN ', found an array'
            ELSE concat(', found the number ', {shown(text)}, {pointed}) END
        END"""


def _why_unreadable() -> str:
    """Return an expression for the reason that a body isn't one JSON value, or is beyond a limit."""
    text = _TEXT
    named = _named(text)
    # Spark checks the length of a string only if it copies the string.
    long = f"octet_length({text}) > 20000000 AND NOT ({_reads(named, as_fields='_: STRING, ')})"
    limits = [
        *((_reads(named, option), limit) for option, limit in _LIMITS.items()),
        (_reads(named, *_LIMITS), " and ".join(_LIMITS.values())),
    ]

    def beyond(limit: str) -> str:
        return quoted_text(f"the body has {limit}: Spark cannot read it")

    opens = f"{text} RLIKE {quoted_text(_OPENS)}"
    certain = [
        (f"{_reads(named)} AND {long}", beyond(_LONG)),
        (f"{_is_one_value(text)} AND {text} RLIKE {quoted_text(_HALVES)}", quoted_text(_HALF)),
        (_is_one_value(text), quoted_text(_TWICE)),
        *((f"NOT ({_reads(named)}) AND {case}", beyond(limit)) for case, limit in limits),
    ]
    others = [
        # Without the brackets, only the first value of a text is read.
        (f"{_is_object()} AND {_reads(text)}", quoted_text(_MORE)),
        (f"{opens} AND right(trim(TRAILING ' \t\r\n' FROM {text}), 1) NOT IN ('}}', ']')", quoted_text(_CUT)),
    ]
    foreign = f"concat({quoted_text(f'{_NOT_JSON}: it has ')}, {_foreign()})"
    begins = f"concat({quoted_text(_NOT_JSON)}, ', it begins with \"', {shown(text)}, '\"')"

    def first(cases: Sequence[tuple[str, str]]) -> str:
        return " ".join(f"WHEN {case} THEN {reason}" for case, reason in cases)

    # Spark's parser needs seconds for this text, so nothing long is written twice.
    return f"coalesce(CASE {first(certain)} END, {foreign}, CASE {first(others)} ELSE {begins} END)"


def _reads(text: str, *limits: str, foreign: Collection[str] = (), as_fields: str = "") -> str:
    """Return an expression that tells whether from_json reads the first value of a text.

    Args:
        text: An expression for the text.
        limits: Keys of `_LIMITS`: the limits of Spark's JSON reader to lift.
        foreign: Keys of `_NOT_OF_JSON`: the extensions of JSON to permit.
        as_fields: Fields of the value to read, as DDL.
    """
    options = {"columnNameOfCorruptRecord": _UNPARSED}
    options |= {name: str(name in foreign).lower() for name in _NOT_OF_JSON}
    options |= dict.fromkeys(limits, "1000000000")
    given = ", ".join(f"'{name}', '{value}'" for name, value in options.items())
    return f"from_json({text}, 'STRUCT<{as_fields}{_UNPARSED}: STRING>', map({given})).{_UNPARSED} IS NULL"


def _is_one_value(text: str, foreign: Collection[str] = ()) -> str:
    """Return an expression that tells whether a text is exactly one JSON value.

    Args:
        text: An expression for the text.
        foreign: Keys of `_NOT_OF_JSON`: the extensions of JSON to permit.
    """
    # Only a single value can be both the value of a name and the item of an array.
    return f"{_reads(_named(text), foreign=foreign)} AND {_reads(_listed(text), foreign=foreign)}"


def _foreign() -> str:
    """Return an expression that names the extensions of JSON that a body uses.

    The expression is NULL if the body uses none, or isn't one value even with the extensions.
    """
    marked, every = _TEXT, tuple(_NOT_OF_JSON)
    begins = f"startswith({marked}, '{_BYTE_ORDER_MARK}')"
    text = f"ltrim('{_BYTE_ORDER_MARK}', {marked})"
    bare = f"regexp_replace({text}, {quoted_text(_TRAILING_COMMA)}, '$1')"
    found = [
        f"CASE WHEN {begins} THEN 'a byte order mark' END",
        f"CASE WHEN NOT ({_is_one_value(text, every)}) THEN 'a comma behind the last item' END",
        *(
            f"CASE WHEN NOT ({_is_one_value(bare, [each for each in every if each != option])}) "
            f"THEN {quoted_text(shown_as)} END"
            for option, shown_as in _NOT_OF_JSON.items()
        ),
    ]
    return (
        f"CASE WHEN {_is_one_value(bare, every)} THEN nullif(concat_ws(' and ', {', '.join(found)}), '') END"
    )


def _named(text: str) -> str:
    return f"concat('{{\"_\":', {text}, '\n}}')"  # a comment ends with its line


def _listed(text: str) -> str:
    return f"concat('{{\"_\":[', {text}, '\n]}}')"


def _fault(forms: TimestampForms, kind: DataType, value: str, path: str) -> str:
    """Return an expression for a struct with a reason and the value that doesn't fit; NULL if the value fits.

    Args:
        forms: Further forms of a `TIMESTAMP`.
        kind: Type of the field.
        value: An expression for the value, a VARIANT that is neither NULL nor JSON `null`.
        path: An expression for the field's path; `''` for the body itself.
    """
    from pyspark.sql.types import ArrayType, MapType, StructType  # noqa: PLC0415 - only jobs have pyspark

    misfit = _misfit(path, quoted_text(type_name(kind)), value)
    each = _variable(value)
    match kind:
        case StructType():
            return _record_fault(forms, kind, value, path)
        case ArrayType():
            place = f"concat({path}, '[', {each}_index, ']')"
            fault = _item_fault(forms, kind.elementType, each, place, nullable=kind.containsNull)
            found = f"transform({_from_variant(value, 'ARRAY<VARIANT>')}, ({each}, {each}_index) -> {fault})"
            return f"CASE WHEN {_kind(value)} NOT LIKE 'ARRAY<%' THEN {misfit} ELSE {_first(found, each)} END"
        case MapType():
            place = f"concat({path}, '[\\'', {each}.key, '\\']')"
            fault = _item_fault(
                forms, kind.valueType, f"{each}.value", place, nullable=kind.valueContainsNull
            )
            entries = f"map_entries({_from_variant(value, 'MAP<STRING, VARIANT>')})"
            found = f"transform({entries}, {each} -> {fault})"
            return (
                f"CASE WHEN {_kind(value)} NOT LIKE 'OBJECT<%' THEN {misfit} ELSE {_first(found, each)} END"
            )
    if kind.simpleString() == "variant":
        why = f"concat('field \\'', {path}, '\\': the value has a number beyond DOUBLE')"
        reason = f"named_struct('reason', {why}, 'value', CAST(NULL AS VARIANT))"
        return f"CASE WHEN {_has_infinite(value)} THEN {reason} END"
    return f"CASE WHEN NOT coalesce({_fits(forms, kind, value)}, false) THEN {misfit} END"


def _misfit(path: str, expected: str, value: str) -> str:
    """Return an expression for the fault of a value that doesn't fit, see `_fault`.

    Args:
        path: An expression for the field's path.
        expected: An expression for the name of the field's type.
        value: An expression for the value.
    """
    why = f"concat('field \\'', {path}, '\\': the value is no ', {expected})"
    return f"named_struct('reason', {why}, 'value', {value})"


def _first(faults: str, each: str) -> str:
    """Return an expression for the first item of an array that isn't NULL; NULL if there is none."""
    return f"get(filter({faults}, {each} -> {each} IS NOT NULL), 0)"


class _Rule(TypedDict):
    """What is tested for one value of a record.

    Attributes:
        place: Path of the value within the record, such as `.address.city`.
        expected: Name of the value's type.
        test: `_IS_OBJECT`, `_HAS_REQUIRED`, or the number of another test.
        required: Whether the field is NOT NULL.
        inside: Index of the rule for the object that contains the field; for `_HAS_REQUIRED`: of the object.
        members: For `_HAS_REQUIRED`: the number of rules for the object's members, at any depth.
    """

    place: str
    expected: str
    test: int
    required: bool
    inside: int
    members: int


_RULES: Final = (
    "ARRAY<STRUCT<place: STRING, expected: STRING, test: INT, required: BOOLEAN, inside: INT, members: INT>>"
)
_IS_OBJECT, _HAS_REQUIRED, _OTHER_TESTS = range(3)


class _Record:
    """The rules for an object and for the objects directly inside it, in the order of the fields.

    An expression for each field would make Spark's plan grow with the number of fields: planning would take
    longer than reading the bodies. So the plan has a test for each type, and the rules are one literal. Each
    value is tested by the rule with the same index.

    Attributes:
        rules: The rules.
        tests: The number of the test for each type.
        values: An expression for the values, an array of VARIANT.
    """

    def __init__(self, kind: StructType, value: str, prefix: str) -> None:
        """Collect the rules of an object.

        Args:
            kind: Type of the object.
            value: An expression for the object, a VARIANT.
            prefix: Text in front of the name of a direct member.
        """
        self.rules: list[_Rule] = []
        self.tests: dict[DataType, int] = {}
        self._prefix = prefix
        self.values = self._object(kind, value, "", required=False, inside=0)

    def _object(self, kind: StructType, value: str, place: str, *, required: bool, inside: int) -> str:
        from pyspark.sql.types import StructType  # noqa: PLC0415 - only jobs have pyspark

        own, each = len(self.rules), _variable(value)
        self._add(kind, place, _IS_OBJECT, required=required, inside=inside)
        arrays: list[str] = []
        members: list[str] = []
        for field in kind.fields:
            inner = f"{place}.{field.name}" if place else f"{self._prefix}{field.name}"
            member, of = _member(each, field.name), field.dataType
            if isinstance(of, StructType):
                arrays += [
                    *_array_of(members),
                    self._object(of, member, inner, required=not field.nullable, inside=own),
                ]
                members = []
            else:
                test = self.tests.setdefault(of, _OTHER_TESTS + len(self.tests))
                self._add(of, inner, test, required=not field.nullable, inside=own)
                members.append(member)
        parts = [f"array({value})"]
        if kind.fields:
            read_as = ", ".join(f"{quoted_name(field.name)}: VARIANT" for field in kind.fields)
            found = f"concat({', '.join([*arrays, *_array_of(members)])})"
            parts.append(_bound(_from_variant(value, f"STRUCT<{read_as}>"), each, found))
        if not all(field.nullable for field in kind.fields):
            self._add(kind, place, _HAS_REQUIRED, required=False, inside=own)
            self.rules[-1]["members"] = len(self.rules) - own - 2
            parts.append(f"array({value})")
        return f"concat({', '.join(parts)})"

    def _add(self, kind: DataType, place: str, test: int, *, required: bool, inside: int) -> None:
        self.rules.append(
            _Rule(
                place=place, expected=type_name(kind), test=test, required=required, inside=inside, members=0
            )
        )


def _array_of(members: Sequence[str]) -> list[str]:
    return [f"array({', '.join(members)})"] if members else []


def _bound(value: str, variable: str, result: str) -> str:
    """Return an expression for a result that uses a value several times, and evaluates it once."""
    return f"get(transform(array({value}), {variable} -> {result}), 0)"


def _record_fault(forms: TimestampForms, kind: StructType, value: str, path: str) -> str:
    """Return an expression for the first fault of an object and its members, see `_fault`."""
    each = _variable(value)
    every, other = f"{each}_all", f"{each}_other"
    is_body = path == "''"
    record = _Record(kind, value, "" if is_body else ".")

    def path_of(variable: str) -> str:
        return f"{variable}.rule.place" if is_body else f"concat({path}, {variable}.rule.place)"

    found, place, names = f"{each}.value", path_of(each), f"{each}_names"
    misfit = _misfit(place, f"{each}.rule.expected", found)
    members = f"slice({every}, {each}.rule.inside + 2, {each}.rule.members)"
    is_lacking = (
        f"{other}.rule.required AND {other}.rule.inside = {each}.rule.inside "
        f"AND ({_absent(f'{other}.value')})"
    )
    lacking = f"filter({members}, {other} -> {is_lacking})"
    quoted = f"transform({lacking}, {other} -> concat('\\'', {path_of(other)}, '\\''))"
    all_names = f"concat_ws(', ', {names})"
    tests = {
        _IS_OBJECT: f"CASE WHEN {_kind(found)} NOT LIKE 'OBJECT<%' THEN {misfit} END",
        _HAS_REQUIRED: _bound(quoted, names, f"CASE WHEN size({names}) > 0 THEN {_missing(all_names)} END"),
        **{test: _fault(forms, of, found, place) for of, test in record.tests.items()},
    }
    cases = " ".join(f"WHEN {each}.rule.test = {test} THEN {fault}" for test, fault in tests.items())
    fault = f"CASE WHEN {_absent(found)} THEN {_NO_FAULT} {cases} END"
    rules = f"from_json({quoted_text(json.dumps(record.rules, ensure_ascii=False))}, '{_RULES}')"
    pair = f"named_struct('rule', {each}, 'value', {other})"
    pairs = f"zip_with({rules}, {record.values}, ({each}, {other}) -> {pair})"
    return _bound(pairs, every, _first(f"transform({every}, {each} -> {fault})", each))


def _item_fault(forms: TimestampForms, kind: DataType, value: str, place: str, *, nullable: bool) -> str:
    missing = _NO_FAULT if nullable else _missing(f"concat('\\'', {place}, '\\'')")
    return f"CASE WHEN {_absent(value)} THEN {missing} ELSE {_fault(forms, kind, value, place)} END"


def _missing(names: str) -> str:
    reason = f"concat('required but missing: ', {names})"
    return f"named_struct('reason', {reason}, 'value', CAST(NULL AS VARIANT))"


def _fits(forms: TimestampForms, kind: DataType, value: str) -> str:
    """Return an expression that tells whether a VARIANT that isn't NULL fits a type without parts."""
    from pyspark.sql.types import DecimalType  # noqa: PLC0415 - only jobs have pyspark

    name, text = kind.simpleString(), _from_variant(value, "STRING")
    if isinstance(kind, DecimalType):
        scales = "|".join(str(scale) for scale in range(kind.scale + 1))
        exact = quoted_text(f"^(BIGINT|DECIMAL[(][0-9]+,({scales})[)])")
        return f"({_kind(value)} RLIKE {exact} AND {_from_variant(value, name)} IS NOT NULL)"
    if name in _BITS:
        return f"({_kind(value)} = 'BIGINT' AND {_in_range(name, _from_variant(value, 'BIGINT'))})"
    if name in _FLOATS:
        number = f"{_kind(value)} RLIKE '^(BIGINT|DOUBLE|DECIMAL)'"
        return f"({number} AND {_is_finite(_from_variant(value, name), name)})"
    is_string = f"{_kind(value)} = 'STRING'"
    if name == "timestamp" and forms.names:
        is_string = f"{_kind(value)} IN ('STRING', 'BIGINT')"  # a BIGINT is a moment since the epoch
    if name in WRITTEN:
        return f"({is_string} AND {is_written(name, text, forms)})"
    match name:
        case "string":
            return is_string
        case "binary":
            return f"({is_string} AND {_is_base64(text)})"
        case "boolean":
            return f"{_kind(value)} = 'BOOLEAN'"
        case _:
            return "true"


def _has_infinite(value: str) -> str:
    """Return an expression that tells whether a VARIANT has a number beyond DOUBLE at any depth."""
    text = _TEXT
    # If such numbers are replaced in the body, it has fewer infinities, unless all of them were strings.
    without = f"regexp_replace(concat('[', {text}, ']'), {quoted_text(_VAST)}, '1')"

    def count(variant: str) -> str:
        return f"regexp_count(to_json({variant}), {quoted_text(_INFINITE)})"

    return (
        f"({text} RLIKE {quoted_text(_VAST)} AND {count(value)} > 0 AND "
        f"coalesce({count(_WHOLE)} > {count(f'try_parse_json({without})')}, true))"
    )


def _in_range(name: str, value: str) -> str:
    limit = 2 ** _BITS[name]
    return f"{value} IS NOT NULL" if name == "bigint" else f"{value} BETWEEN {-limit} AND {limit - 1}"


def _is_finite(value: str, name: str) -> str:
    return f"abs({value}) < CAST('Infinity' AS {name})"


def _is_base64(text: str) -> str:
    form = quoted_text(f"^{_BASE64}{END}")
    return f"(octet_length({text}) % 4 = 0 AND {text} RLIKE {form})"


def _kind(value: str) -> str:
    return f"schema_of_variant({value})"


def _from_variant(value: str, name: str) -> str:
    return f"try_variant_get({value}, '$', {quoted_text(name)})"


def _absent(value: str) -> str:
    return f"{value} IS NULL OR is_variant_null({value})"


def _members(fields: StructType) -> str:
    return ", ".join(f"{quoted_name(field.name)}: {_read_as(field.dataType)}" for field in fields.fields)


def _member(value: str, name: str) -> str:
    return f"{value}.{quoted_name(name)}"


def _variable(value: str) -> str:
    """Return a name for a lambda variable over parts of a value; no enclosing lambda has the same name."""
    enclosing = _NUMBERED.match(value)
    return f"_jms_{int(enclosing[1]) + 1 if enclosing else 1}"
