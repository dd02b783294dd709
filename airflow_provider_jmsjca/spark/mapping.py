"""Reads text bodies into typed columns and separates the messages that don't fit.

Spark parses each JSON body twice, independent of the number of columns. Parsing it as typed fields gives the
values. Parsing it as one VARIANT detects invalid JSON, a second value, and duplicate names. A few cheap
comparisons recognise ordinary rows. For the other rows, the kind of every value is compared with its field.
JSON needs no Python on executors. XML, CSV and Avro are first converted to JSON there, by `bodies`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.spark.bodies.formats import Avro, BodyFormat, Kind, Shape, Xml, read_body
from airflow_provider_jmsjca.spark.expressions.reasons import rejection_reason
from airflow_provider_jmsjca.spark.expressions.values import (
    BITS,
    FLOATS,
    MARK,
    PARSED,
    PLAIN_NAME,
    SIMPLE_TYPES,
    TEXT,
    UNDECODABLE_COLUMN,
    UNPARSED,
    UNREADABLE,
    WHOLE,
    converted_value,
    from_variant,
    is_ordinary,
    lambda_variable,
    member_of,
    members_ddl,
    undecodable_reason,
)
from airflow_provider_jmsjca.spark.failing import Attempt
from airflow_provider_jmsjca.spark.rejects import EXCEPTION_CLASS
from airflow_provider_jmsjca.spark.tables.columns import (
    ORIGIN,
    quoted_name,
    quoted_text,
    reserved,
    type_name,
)
from airflow_provider_jmsjca.spark.timestamps import WRITTEN, TimestampForms
from airflow_provider_jmsjca.spool.schema import REASON_PROPERTY, UNDECODABLE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

_PLACE: Final = ("batch_id", "segment", "position")
_TRIED, _REASON, _VALUES, _CONVERTED, _KEPT, _READ, _RESCUED = (
    f"_jms_{name}" for name in ("tried", "reason", "values", "converted", "kept", "read", "rescued")
)
_PARSING: Final = (
    f"'mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{UNPARSED}', 'allowNonNumericNumbers', 'false'"
)
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
    """Split the result of `sort_json` or `sort_tried` into the rows of messages that fit, and rejects.

    Args:
        sorted_messages: The result of `sort_json` or `sort_tried`.
        has_rejects: `False` if `failed_columns` has found no message to reject.
    """
    from pyspark.sql.types import StructType  # noqa: PLC0415 - only jobs have pyspark

    # Each DataFrame that Spark analyses and each call into its JVM costs time. So the columns are one schema,
    # and all expressions are SQL.
    kinds = {field.name: field.dataType for field in sorted_messages.schema.fields}
    names = {name: kind.names for name, kind in kinds.items() if isinstance(kind, StructType)}
    converted = set(names.get(_CONVERTED, ()))
    places = {
        name: _CONVERTED if name in converted else _VALUES for name in names[_VALUES] if name != UNPARSED
    }
    for part in (_KEPT, _RESCUED):
        places |= dict.fromkeys(names.get(part, ()), part)
    values = [f"{member_of(place, name)} AS {quoted_name(name)}" for name, place in places.items()]
    origin = f"struct({', '.join(_PLACE)}) AS {ORIGIN}"
    fits = f"{_REASON} IS NULL"
    rows = sorted_messages.where(fits) if has_rejects else sorted_messages
    return Mapped(
        rows=rows.selectExpr(*values, origin),
        rejects=sorted_messages.where(f"NOT ({fits})" if has_rejects else "false").selectExpr(
            origin,
            f"{quoted_text(EXCEPTION_CLASS)} AS exception_class",
            f"{_REASON} AS exception_message",
        ),
    )


def failed_columns(sorted_messages: DataFrame) -> frozenset[int] | None:
    """Return the numbers of the expressions that failed for at least one message; `None` if all messages fit.

    The set is empty if messages don't fit for other reasons only.

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
        "*", sql.expr(undecodable).alias(UNDECODABLE_COLUMN), sql.explode(sql.array(tried)).alias(_TRIED)
    )
    fits = f"{UNDECODABLE_COLUMN} IS NULL"
    if finds_reasons:
        why = sql.when(~sql.expr(fits), sql.expr(undecodable_reason())).otherwise(
            _failure_reasons(attempts, failed)
        )
    else:
        why = sql.expr(_doubt(fits, attempts))
    return apart.select(*_PLACE, why.alias(_REASON), sql.expr(_tried_values(columns)).alias(_VALUES))


def _doubt(fits: str, attempts: Iterable[str]) -> str:
    """Return SQL for a text with the numbers of a message's failed expressions, as `failed_columns` reads it.

    The text is NULL for a message that fits.

    Args:
        fits: Condition in SQL that is true for a message that fits, apart from failed expressions.
        attempts: Names of the expressions.
    """
    numbers = (
        f", CASE WHEN {member_of(_TRIED, name)} IS NULL THEN '{number}' END"
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
            sql.expr(f"{member_of(_TRIED, name)} IS NULL"),
            sql.concat(
                sql.lit(f"column '{name}': "),
                attempt.reason() if failed is None or number in failed else sql.lit(_AGAIN),
            ),
        )
        for number, (name, attempt) in enumerate(attempts.items())
    ]
    return sql.nullif(sql.concat_ws("; ", *faults), sql.lit(""))


def _tried_values(columns: Iterable[str]) -> str:
    values = ", ".join(f"{quoted_text(name)}, {member_of(_TRIED, name)}.value" for name in columns)
    return f"named_struct({values})"


def _undecodable() -> str:
    """Return an expression for the reason that a message is undecodable; NULL for others."""
    reason = f"coalesce(properties[{quoted_text(REASON_PROPERTY)}], 'no reason was stored')"
    return f"CASE WHEN body_type = '{UNDECODABLE}' THEN {reason} END"


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
    text, more = "CAST(body AS STRING)", []
    if body_format is not None:
        shape = _shape(fields, body_format)
        read_bodies = sql.udf(
            partial(read_body, body_format, shape), "text STRING, fault STRING", useArrow=False
        )
        messages = messages.withColumn(_READ, read_bodies("body", "body_type"))
        text, more = f"{_READ}.text", [sql.expr(f"{_READ}.fault AS {UNREADABLE}")]
    attempts = {name: Attempt(messages, sql.expr(each)) for name, each in kept.items()}
    if attempts:
        more.append(sql.struct(*(each.tried().alias(name) for name, each in attempts.items())).alias(_TRIED))
    parsed = quoted_text(f"STRUCT<{members_ddl(fields)}, {UNPARSED}: STRING>")
    end = quoted_text(f',"{MARK}"]')
    read = sql.struct(
        sql.expr(f"{text} AS {TEXT}"),
        sql.expr(f"from_json({text}, {parsed}, map({_PARSING})) AS {PARSED}"),
        # Spark ignores text after the first value. In an array with the mark, such text is an error, or the
        # mark isn't the second item.
        sql.expr(f"try_parse_json(concat('[', {text}, {end})) AS {WHOLE}"),
        *more,
    )
    # Spark's optimizer would repeat an expression for each use of its result, and so parse a body once for
    # each column. It never replaces the output of a generator by the expression. To find unused parts of a
    # column, it compares each use of a part with each other, which takes long for hundreds of fields. It
    # doesn't if the column is also used as a whole: so the parsed fields are a column of their own.
    apart = messages.select(
        *(["*"] if attempts else [*_PLACE, "body_type"]),  # reasons of attempts need the other columns
        sql.expr(_undecodable()).alias(UNDECODABLE_COLUMN),
        sql.inline(sql.array(read)),
    )
    ordinary = is_ordinary(fields, body_format, forms)
    if finds_reasons:
        complaint = rejection_reason(fields, body_format, forms)
        why = sql.expr(f"CASE WHEN coalesce({ordinary}, false) THEN NULL ELSE {complaint} END")
        if attempts:
            why = sql.coalesce(why, _failure_reasons(attempts, failed))
    else:
        why = sql.expr(_doubt(f"coalesce({ordinary}, false)", attempts))
    # The parsed struct is copied as a whole, at the cost of one value. Converted values have another struct.
    values = [f"{PARSED} AS {_VALUES}"]
    found = {field.name: member_of(PARSED, field.name) for field in fields.fields}
    converted = {
        field.name: converted_value(forms, field.dataType, found[field.name]) for field in fields.fields
    }
    if pairs := [
        f"{quoted_text(name)}, {value}" for name, value in converted.items() if value != found[name]
    ]:
        values.append(f"named_struct({', '.join(pairs)}) AS {_CONVERTED}")
    if attempts:
        values.append(f"{_tried_values(attempts)} AS {_KEPT}")
    if rescued is not None:
        values.append(f"{_rescued_struct(fields, rescued)} AS {_RESCUED}")
    return apart.select(*_PLACE, why.alias(_REASON), *map(sql.expr, values))


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
    if not PLAIN_NAME.fullmatch(name) or kind not in {"VARIANT", "STRING"}:
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
    whole = f"try_variant_get({WHOLE}, '$[0]', 'variant')"
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

    each = lambda_variable(value)
    members = from_variant(value, "MAP<STRING, VARIANT>")
    match kind:
        case StructType():
            names = ", ".join(quoted_text(name) for name in kind.names)
            found = f"map_filter({each}, ({each}_key, {each}converted_value) -> {each}_key NOT IN ({names}))"
            inner = ", ".join(
                f"{quoted_text(field.name)}, {_rescued(field.dataType, f'{each}[{quoted_text(field.name)}]')}"
                for field in kind.fields
                if _has_struct(field.dataType)
            )
            if inner:
                found = f"map_concat({found}, {_without_null(f'map({inner})', each)})"
            found = f"get(transform(array({members}), {each} -> {found}), 0)"
        case ArrayType():
            items = from_variant(value, "ARRAY<VARIANT>")
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
    return f"map_filter({found}, ({each}_key, {each}converted_value) -> {each}converted_value IS NOT NULL)"


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
        raise ConfigurationError(
            "avro: allow can't be combined with fields of your own; leave out one of the two"
        )
    fields = _fields(schema)
    faults = list(_misread_bytes(fields, columns_of_writer(writer_schema, allow=["variants"]), ""))
    if faults:
        raise ConfigurationError(f"schema: {'; '.join(faults)}")
    return fields


def _misread_bytes(wanted: DataType, written: DataType, path: str) -> Iterator[str]:
    """Yield a fault for each field for which only one of the two schemas has bytes.

    If one of the two has `VARIANT`, that is no fault.
    """
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
        *(f"{name}: two columns have this name, apart from upper and lower case" for name in twice),
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
                f"{path}{name}: two fields have this name, apart from upper and lower case" for name in twice
            ]
            return [*faults, *(fault for found in inner for fault in found)]
        case ArrayType():
            return _unknown(kind.elementType, f"{path[:-1]}[].")
        case MapType() if kind.keyType.simpleString() == "string":
            return _unknown(kind.valueType, f"{path[:-1]}[].")
        case DecimalType():
            return []
    if kind.simpleString() in SIMPLE_TYPES:
        return []
    expected = ", ".join(sorted(name.upper() for name in SIMPLE_TYPES))
    fault = f"field {path[:-1]!r}: no JSON value is read as {type_name(kind)}; expected {expected}, DECIMAL"
    return [f"{fault}, STRUCT, ARRAY or MAP<STRING, ...>"]


def _shape(fields: StructType, body_format: BodyFormat) -> Shape:
    """Return the shape of a body: its fields, each with the kind of JSON value to which it is converted.

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
    if name in {*BITS, *FLOATS} or name.startswith("decimal("):
        return Shape(kind=Kind.NUMBER)
    if name in {*WRITTEN, "string", "boolean", "binary"}:
        return Shape(kind=Kind(name) if name in {"string", "boolean"} else Kind.WRITTEN)
    faults.append(
        f"field {path[:-1]!r}: no {body_format.name} value is read as {type_name(kind)}; expected a type "
        f"without parts{', STRUCT or ARRAY' if isinstance(body_format, Xml) else ''}"
    )
    return Shape(kind=Kind.STRING)
