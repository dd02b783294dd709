"""Text bodies to typed columns, and apart from them the messages that don't fit.

Spark's own readers read each body twice, whatever the number of columns: as typed fields, which gives the
values, and as one VARIANT, which shows what is no JSON, is more than one value or has a name twice. A few
comparisons tell the ordinary row from one that must be looked at closely; only in the latter is the kind of
every value compared with its field. No Python runs on executors.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_jmsjca.core.message import BodyKind
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.spark.rejects import EXCEPTION_CLASS
from airflow_provider_jmsjca.spark.tables.columns import ORIGIN, reserved, shown, type_name
from airflow_provider_jmsjca.spool.schema import REASON_PROPERTY, UNDECODABLE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField, StructType

_JSON_KINDS: Final = (BodyKind.TEXT, BodyKind.BYTES, BodyKind.MAP)
_PLACE: Final = ("batch_id", "segment", "position")
_BODY, _REASON, _VALUES, _CONVERTED, _KEPT, _UNDECODABLE, _UNPARSED = (
    f"_jms_{name}" for name in ("body", "reason", "values", "converted", "kept", "undecodable", "unparsed")
)
_DATE: Final = "(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME: Final = "T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,6})?"
_ZONE: Final = "(Z|[+-][0-9]{2}:[0-9]{2})?"
_ZONED: Final = "(Z|[+-][0-9]{2}:[0-9]{2})$"
# How values are written whose types JSON doesn't have.
_WRITTEN: Final = {"date": _DATE, "timestamp": _DATE + _TIME + _ZONE, "timestamp_ntz": _DATE + _TIME}
_BASE64: Final = "[A-Za-z0-9+/]*+={0,2}"
_END: Final = "(?s:(?!.))"  # `$` would also match before a last line feed
_OBJECT: Final = "^[ \t\r\n]*+[{]"
_OPENS: Final = "^[ \t\r\n]*+[\\[{]"
_BLANK: Final = f"^[ \t\r\n]*+{_END}"
_BITS: Final = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}
_FLOATS: Final = ("float", "double")
# How a number, an object, an array or a value in quotation marks begins. BETWEEN would be computed apart, in
# a copy of each row.
_FIRST_OF_OTHERS: Final = ", ".join(str(ord(each)) for each in '"-0123456789[{')
_SIMPLE: Final = frozenset({"string", "boolean", "binary", "variant", *_BITS, *_FLOATS, *_WRITTEN})
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# By the option of from_json that lifts it.
_LIMITS: Final = {
    "maxNumLen": "a number of more than 1,000 digits",
    "maxNestingDepth": "more than 999 levels of objects and arrays",
}
# What other languages' writers put into JSON, by the option of from_json that reads it.
_NOT_OF_JSON: Final = {
    "allowNonNumericNumbers": "NaN or Infinity as a number",
    "allowSingleQuotes": "single quotes in place of double ones",
    "allowUnquotedFieldNames": "a name without quotes",
    "allowComments": "a comment",
    "allowNumericLeadingZeros": "a number that begins with 0",
    "allowUnquotedControlChars": "an unescaped control character in a string",
    "allowBackslashEscapingAnyCharacter": "an escape that JSON does not know",
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
# Numbers that may be beyond DOUBLE, and how a VARIANT's JSON shows what one has become.
_VAST: Final = "[0-9]{309,}|[eE][+]?[0-9]{3,}"
_INFINITE: Final = '"-?Infinity"'
_NO_FAULT: Final = "CAST(NULL AS STRUCT<reason: STRING, value: VARIANT>)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """Messages that fit the mapping, and those that don't.

    Attributes:
        rows: The columns asked for, then those that were kept, then `_jms`: a struct of `batch_id`, `segment`
            and `position`, which say from which message a row is.
        rejects: For the others `_jms`, `exception_class`, `exception_message`.
    """

    rows: DataFrame
    rejects: DataFrame


def map_json(messages: DataFrame, schema: StructType | str, keep: Sequence[str] = ()) -> Mapped:
    """Read each body as one JSON object with these fields; see `sort_json`, and `split` for the two halves.

    Each half reads the bodies by itself: `Batch.json` spares that.

    Raises:
        ConfigurationError: As `sort_json`.
    """
    return split(sort_json(messages, schema, keep))


def split(sorted_messages: DataFrame) -> Mapped:
    """Return the two halves of what `sort_json` returned."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - only jobs have pyspark

    def names_in(part: str) -> list[str]:
        return sorted_messages.select(f"{part}.*").columns if part in sorted_messages.columns else []

    converted, kept = set(names_in(_CONVERTED)), names_in(_KEPT)
    places = {
        name: _CONVERTED if name in converted else _VALUES for name in names_in(_VALUES) if name != _UNPARSED
    } | dict.fromkeys(kept, _KEPT)
    values = [sql.expr(_member(place, name)).alias(name) for name, place in places.items()]
    origin = sql.struct(*_PLACE).alias(ORIGIN)
    return Mapped(
        rows=sorted_messages.where(sql.col(_REASON).isNull()).select(*values, origin),
        rejects=sorted_messages.where(sql.col(_REASON).isNotNull()).select(
            origin,
            sql.lit(EXCEPTION_CLASS).alias("exception_class"),
            sql.col(_REASON).alias("exception_message"),
        ),
    )


def sort_tried(messages: DataFrame, columns: Mapping[str, Column | str]) -> DataFrame:
    """Evaluate expressions for each message, and say which failed.

    A message is turned away if an expression raises an error for it, or if it is undecodable. An expression
    whose value is NULL hasn't failed. Each is evaluated once.

    Args:
        messages: With `batch_id`, `segment`, `position` and whatever the expressions use.
        columns: By the name of the column, an expression in SQL or a column. Functions written in Python
            can't be tried: what they raise fails the job. Names that begin with `_jms`, and `jms_batch_id`,
            `jms_segment` and `jms_position`, are reserved.

    Returns:
        For `split`: each message with its values and, or, what is wrong with it.

    Raises:
        ConfigurationError: There are no columns, two have one name but for upper and lower case, or one has a
            reserved name; or the messages lack `batch_id`, `segment` or `position`.
    """
    from pyspark.sql import functions as sql  # noqa: PLC0415 - only jobs have pyspark

    missing = [name for name in _PLACE if name not in messages.columns]
    if missing or not columns:
        lack = f"the messages have no {', '.join(missing)}" if missing else "there are no columns"
        raise ConfigurationError(f"try_map: {lack}; expected messages and expressions by name")
    faults = _name_faults(columns)
    if faults:
        raise ConfigurationError(f"try_map: {'; '.join(faults)}")
    given = {name: sql.expr(each) if isinstance(each, str) else each for name, each in columns.items()}
    undecodable = "CAST(NULL AS STRING)"
    if {"body_type", "properties"} <= set(messages.columns):
        undecodable = _undecodable()
    # Outside of a generator Spark might evaluate what two expressions share before they are tried.
    tried = sql.struct(*(_tried(messages, each).alias(name) for name, each in given.items()))
    apart = messages.select(
        *_PLACE, sql.expr(undecodable).alias(_UNDECODABLE), sql.explode(sql.array(tried)).alias(_BODY)
    )
    return apart.select(
        *_PLACE,
        sql.expr(
            f"CASE WHEN {_UNDECODABLE} IS NOT NULL THEN {_undecodable_reason()} "
            f"ELSE {_failed(_BODY, columns)} END"
        ).alias(_REASON),
        sql.expr(_tried_values(_BODY, columns)).alias(_VALUES),
    )


def _failed(tried: str, columns: Mapping[str, Column | str]) -> str:
    """Return an expression that names what failed of expressions that were tried, or NULL."""
    faults = []
    for name, column in columns.items():
        shown = f": {column}" if isinstance(column, str) else ""
        fault = _quoted(f"column '{name}': the expression failed{shown}")
        faults.append(f"CASE WHEN {_member(tried, name)} IS NULL THEN {fault} END")
    return f"nullif(concat_ws('; ', {', '.join(faults)}), '')"


def _tried_values(tried: str, columns: Mapping[str, Column | str]) -> str:
    values = ", ".join(f"{_quoted(name)}, {_member(tried, name)}.value" for name in columns)
    return f"named_struct({values})"


def _tried(messages: DataFrame, column: Column) -> Column:
    """Return a struct with the value of a column, or NULL where the column raises an error."""
    from pyspark.sql import Column  # noqa: PLC0415 - only jobs have pyspark
    from pyspark.sql import functions as sql  # noqa: PLC0415 - as above

    # SQL has this for single functions only (try_cast, try_divide); the expression behind them takes any.
    jvm: Any = messages.sparkSession.sparkContext._jvm  # noqa: SLF001
    columns = jvm.org.apache.spark.sql.classic.ExpressionUtils
    inner: Any = sql.struct(column.alias("value"))
    tried = jvm.org.apache.spark.sql.catalyst.expressions.TryEval(columns.expression(inner._jc))  # noqa: SLF001
    return Column(columns.column(tried))


def _undecodable() -> str:
    """Return an expression for why a message couldn't be decoded, NULL for a sound one."""
    reason = f"coalesce(properties[{_quoted(REASON_PROPERTY)}], 'no reason was stored')"
    return f"CASE WHEN body_type = '{UNDECODABLE}' THEN {reason} END"


def _undecodable_reason() -> str:
    return f"concat('the message can\\'t be decoded: ', {_UNDECODABLE})"


def sort_json(messages: DataFrame, schema: StructType | str, keep: Sequence[str] = ()) -> DataFrame:
    """Read each body as one JSON object with these fields, and say what is wrong with those that don't fit.

    Text, bytes (as UTF-8) and map bodies are read. A message is turned away if its body is of another kind or
    undecodable, is not one JSON object, has a name twice, has a value that isn't of its field's type (a
    nullable field's too), or lacks a field that the schema says is `NOT NULL` (JSON `null` lacks it too), at
    any depth. The reason names the value by its path, such as `items[3].price`. Names the schema doesn't have
    are left out. What fits, and nothing else:

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
    | `STRUCT<...>`, `MAP<STRING, ...>` | objects whose values fit |
    | `ARRAY<...>` | arrays whose values fit |
    | `VARIANT` | any without a number beyond `DOUBLE` |

    Spark's JSON reader has limits: a body with a string of more than 20,000,000 characters, a number of more
    than 1,000 digits or more than 999 levels of objects and arrays is turned away with the limit as the
    reason.

    Args:
        messages: With the columns of the message schema.
        schema: Of the body, as a `StructType` or in words: `"carrier STRING NOT NULL, delay DOUBLE"`. Names
            that begin with `_jms`, and `jms_batch_id`, `jms_segment` and `jms_position`, are reserved.
        keep: Columns of the message, or expressions in SQL with a name, that stand beside the fields:
            `message_id`, `properties['region'] AS region`. A message for which one fails is turned away.

    Returns:
        For `split`: each message with its values and, or, what is wrong with it.

    Raises:
        ConfigurationError: The schema has no fields, Spark can't read it, or one has a reserved name or a
            type not listed here; a column that is kept can't be had, or has a reserved name or that of a
            field.
    """
    from pyspark.sql import functions as sql  # noqa: PLC0415 - only jobs have pyspark

    fields = _fields(schema)
    kept = _kept(messages, fields, keep)
    options = {
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": _UNPARSED,
        "allowNonNumericNumbers": "false",
    }
    text = sql.expr("CAST(body AS STRING)")
    kept_values = []
    if kept:
        tried = (_tried(messages, sql.expr(each)).alias(name) for name, each in kept.items())
        kept_values.append(sql.struct(*tried).alias("kept"))
    read = sql.struct(
        text.alias("text"),
        sql.from_json(text, f"STRUCT<{_members(fields)}, {_UNPARSED}: STRING>", options).alias("parsed"),
        # Spark's from_json ignores what follows the first value; inside brackets nothing can follow unseen.
        sql.try_parse_json(sql.concat(sql.lit("["), text, sql.lit("]"))).alias("whole"),
        *kept_values,
    )
    # Left to itself Spark repeats an expression wherever its result is used, and would read a body once for
    # each column. A generator's output is never replaced by the expression that made it.
    apart = messages.select(
        *_PLACE,
        "body_type",
        sql.expr(_undecodable()).alias(_UNDECODABLE),
        sql.explode(sql.array(read)).alias(_BODY),
    )
    reason = f"CASE WHEN coalesce({_ordinary(fields)}, false) THEN NULL ELSE {_complaint(fields)} END"
    # Copied as a whole, at the cost of one value; what is no value yet stands beside it.
    values = [sql.col(f"{_BODY}.parsed").alias(_VALUES)]
    found = {field.name: _member(f"{_BODY}.parsed", field.name) for field in fields.fields}
    converted = {field.name: _value(field.dataType, found[field.name]) for field in fields.fields}
    if pairs := [f"{_quoted(name)}, {value}" for name, value in converted.items() if value != found[name]]:
        values.append(sql.expr(f"named_struct({', '.join(pairs)})").alias(_CONVERTED))
    if kept:
        reason = f"coalesce({reason}, {_failed(f'{_BODY}.kept', kept)})"
        values.append(sql.expr(_tried_values(f"{_BODY}.kept", kept)).alias(_KEPT))
    return apart.select(*_PLACE, sql.expr(reason).alias(_REASON), *values)


def _kept(messages: DataFrame, fields: StructType, keep: Sequence[str]) -> dict[str, str]:
    """Return what is kept of a message: expressions by the name of their column."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - only jobs have pyspark

    taken = {name.lower() for name in fields.names}
    kept: dict[str, str] = {}
    for column in keep:
        try:
            (name,) = messages.selectExpr(column).columns
        except PySparkException as error:
            (what, *_) = str(error).strip().splitlines()
            raise ConfigurationError(f"keep: {column!r}: {what}") from error
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
    """Return a schema all of whose types have a rule in `sort_json`."""
    from pyspark.errors import ParseException  # noqa: PLC0415 - only jobs have pyspark
    from pyspark.sql.types import StructType  # noqa: PLC0415 - as above

    expected = "expected fields, such as 'carrier STRING NOT NULL, delay DOUBLE'"
    try:
        fields = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    except ParseException as error:
        (what, *_) = str(error).strip().splitlines()
        raise ConfigurationError(f"schema {schema!r}: {what}; {expected}") from error
    if not isinstance(fields, StructType) or not fields.fields:
        raise ConfigurationError(f"schema {schema!r}: {expected}")
    faults = [*map(_reserved_fault, reserved(fields.names)), *_unknown(fields, "")]
    if faults:
        raise ConfigurationError(f"schema: {'; '.join(faults)}")
    return fields


def _reserved_fault(name: str) -> str:
    return f"the name {name!r} is reserved for columns of this package"


def _name_faults(names: Iterable[str]) -> list[str]:
    """Say which names of columns are reserved, or are the same to Spark."""
    lowered = Counter(name.lower() for name in names)
    twice = [name for name, count in lowered.items() if count > 1]
    return [
        *map(_reserved_fault, reserved(names)),
        *(f"{name}: two columns have this name, but for upper and lower case" for name in twice),
    ]


def _unknown(kind: DataType, path: str) -> list[str]:
    """Say which parts of a type have no rule."""
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


def _read_as(kind: DataType) -> str:
    """Return the type that from_json reads a field as, so that nothing is rounded, wrapped or guessed."""
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType  # noqa: PLC0415 - only jobs have it

    match kind:
        case StructType():
            return f"STRUCT<{_members(kind)}>"
        case ArrayType():
            return f"ARRAY<{_read_as(kind.elementType)}>"
        case MapType():
            return f"MAP<STRING, {_read_as(kind.valueType)}>"
        case DecimalType():
            return "VARIANT"  # as DECIMAL it is rounded, as STRING it has been a double
    name = kind.simpleString()
    if name in {"tinyint", "smallint"}:
        return "INT"  # as TINYINT 200 is -56
    return "STRING" if name in _WRITTEN or name == "binary" else name


def _value(kind: DataType, found: str) -> str:
    """Return the value of a type, from what from_json found."""
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType  # noqa: PLC0415 - only jobs have it

    match kind:
        case StructType():
            pairs = ", ".join(
                f"{_quoted(field.name)}, {_value(field.dataType, _member(found, field.name))}"
                for field in kind.fields
            )
            return f"CASE WHEN {found} IS NOT NULL THEN named_struct({pairs}) END"
        case ArrayType():
            each = _variable(found)
            inner = _value(kind.elementType, each)
            return found if inner == each else f"transform({found}, {each} -> {inner})"
        case MapType():
            each = _variable(found)
            inner = _value(kind.valueType, each)
            return found if inner == each else f"transform_values({found}, ({each}_key, {each}) -> {inner})"
        case DecimalType():
            return _from_variant(found, kind.simpleString())
    name = kind.simpleString()
    if name == "binary":
        return f"try_to_binary({found}, 'base64')"
    if name in _WRITTEN or name in {"tinyint", "smallint"}:
        return f"try_cast({found} AS {name})"
    return found


def _ordinary(fields: StructType) -> str:
    """Tell at little cost that a message fits; one of which it can't be told is looked at closely."""
    body, kinds = f"{_BODY}.", ", ".join(f"'{kind}'" for kind in _JSON_KINDS)
    return " AND ".join(
        [
            f"body_type IN ({kinds}) AND {body}whole IS NOT NULL AND {body}parsed.{_UNPARSED} IS NULL",
            f"is_valid_utf8({body}text) AND (startswith({body}text, '{{') OR {_is_object()}) AND {_is_one()}",
            *(
                _ordinary_field(field, _member(f"{_BODY}.parsed", field.name), _probe(field))
                for field in fields.fields
            ),
        ]
    )


def _is_one() -> str:
    return f"try_variant_get({_BODY}.whole, '$[1]', 'variant') IS NULL"


def _is_object() -> str:
    return f"{_BODY}.text RLIKE {_quoted(_OBJECT)}"


def _probe(field: StructField) -> str | None:
    """Return the kind of a field's value, where that can be asked for by name."""
    if not _PLAIN_NAME.fullmatch(field.name):
        return None
    return _kind(f"try_variant_get({_BODY}.whole, '$[0].{field.name}', 'variant')")


def _ordinary_field(field: StructField, found: str, probe: str | None = None) -> str:
    absent = _absent(found) if _read_as(field.dataType) == "VARIANT" else f"{found} IS NULL"
    fits = _ordinary_value(field.dataType, found, probe)
    return f"(NOT ({absent}) AND {fits})" if not field.nullable else f"({absent} OR {fits})"


def _ordinary_value(kind: DataType, found: str, probe: str | None = None) -> str:
    """Tell that a value that from_json found, which isn't NULL, fits."""
    from pyspark.sql.types import (  # noqa: PLC0415 - only jobs have pyspark
        ArrayType,
        DecimalType,
        MapType,
        StructField,
        StructType,
    )

    match kind:
        case StructType():
            inner = (_ordinary_field(field, _member(found, field.name)) for field in kind.fields)
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
            return f"forall({values}, {each} -> {_ordinary_field(field, each)})"
        case DecimalType():
            return _fits(kind, found)
    name = kind.simpleString()
    if name in {"string", "binary"}:
        # A field read as STRING takes any value as text: this could have been a number (1e400 is "Infinity"
        # in quotation marks), an object and so on.
        # Comparisons of texts cost less than to take the first character.
        letter = f"({found} >= 'A' AND {found} < '[' OR {found} >= 'a' AND {found} < '{{')"
        doubtful = f"NOT {letter} AND ascii({found}) IN ({_FIRST_OF_OTHERS}) OR {found} IN ('true', 'false')"
        text = f"(NOT ({doubtful}))"
        if probe is not None:
            text = f"({text} OR {probe} = 'STRING')"
        return text if name == "string" else f"({text} AND {_is_base64(found)})"
    if name in _WRITTEN:
        return _is_written(name, found)  # no other JSON value's text has this form
    if name in {"tinyint", "smallint"}:
        return _in_range(name, found)
    if name in _FLOATS:
        return _is_finite(found, name)
    return f"(NOT ({_BODY}.text RLIKE {_quoted(_VAST)}))" if name == "variant" else "true"


def _complaint(fields: StructType) -> str:
    """Say what is wrong with a message, or NULL."""
    body, kinds = f"{_BODY}.", ", ".join(f"'{kind}'" for kind in _JSON_KINDS)
    whole = f"try_variant_get({body}whole, '$[0]', 'variant')"
    fault = f"_jms_fault -> concat(_jms_fault.reason, {_found('_jms_fault.value')})"
    return f"""CASE
        WHEN {_UNDECODABLE} IS NOT NULL THEN {_undecodable_reason()}
        WHEN body_type NOT IN ({kinds}) THEN concat('expected a JSON body, found kind ', body_type)
        WHEN {body}text IS NULL OR {body}text RLIKE {_quoted(_BLANK)} THEN {_quoted(_EMPTY)}
        WHEN NOT is_valid_utf8({body}text) THEN 'expected a JSON body, found bytes that are not UTF-8'
        WHEN {body}whole IS NULL THEN {_why_unreadable()}
        WHEN NOT ({_is_one()}) OR {whole} IS NULL THEN {_quoted(_MORE)}
        WHEN NOT ({_is_object()}) THEN get(transform(array({whole}),
            _jms_other -> concat('expected a JSON object', {_found("_jms_other")})), 0)
        ELSE coalesce(
            get(transform(array({_fault(fields, whole, "''")}), {fault}), 0),
            CASE WHEN {body}parsed.{_UNPARSED} IS NOT NULL
                THEN {_quoted(f"the body doesn't fit {type_name(fields)}")} END)
        END"""


def _found(value: str) -> str:
    """Show what a VARIANT is, in a few characters at most; empty text for NULL."""
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
    """Say why a body isn't one JSON value: the body itself, or a limit of the reader."""
    text = f"{_BODY}.text"
    named = _named(text)
    # The length of a string is looked at only where the string is copied.
    long = f"octet_length({text}) > 20000000 AND NOT ({_reads(named, as_fields='_: STRING, ')})"
    limits = [
        *((_reads(named, option), limit) for option, limit in _LIMITS.items()),
        (_reads(named, *_LIMITS), " and ".join(_LIMITS.values())),
    ]

    def beyond(limit: str) -> str:
        return _quoted(f"the body has {limit}: Spark cannot read it")

    opens = f"{text} RLIKE {_quoted(_OPENS)}"
    cases = [
        (f"{_reads(named)} AND {long}", beyond(_LONG)),
        (f"{_is_one_value(text)} AND {text} RLIKE {_quoted(_HALVES)}", _quoted(_HALF)),
        (_is_one_value(text), _quoted(_TWICE)),
        *((f"NOT ({_reads(named)}) AND {case}", beyond(limit)) for case, limit in limits),
        (f"{_foreign()} IS NOT NULL", f"concat({_quoted(_NOT_JSON)}, ': it has ', {_foreign()})"),
        # On its own only the first value of a text is read.
        (f"{_is_object()} AND {_reads(text)}", _quoted(_MORE)),
        (f"{opens} AND right(trim(TRAILING ' \t\r\n' FROM {text}), 1) NOT IN ('}}', ']')", _quoted(_CUT)),
    ]
    begins = f"concat({_quoted(_NOT_JSON)}, ', it begins with \"', {shown(text)}, '\"')"
    return f"CASE {' '.join(f'WHEN {case} THEN {reason}' for case, reason in cases)} ELSE {begins} END"


def _reads(text: str, *limits: str, foreign: Collection[str] = (), as_fields: str = "") -> str:
    """Tell whether from_json reads the first value of a text.

    Args:
        text: An expression.
        limits: Of `_LIMITS`, those that are lifted.
        foreign: Of `_NOT_OF_JSON`, what is read too.
        as_fields: Which fields of the value are read, in words.
    """
    options = {"columnNameOfCorruptRecord": _UNPARSED}
    options |= {name: str(name in foreign).lower() for name in _NOT_OF_JSON}
    options |= dict.fromkeys(limits, "1000000000")
    given = ", ".join(f"'{name}', '{value}'" for name, value in options.items())
    return f"from_json({text}, 'STRUCT<{as_fields}{_UNPARSED}: STRING>', map({given})).{_UNPARSED} IS NULL"


def _is_one_value(text: str, foreign: Collection[str] = ()) -> str:
    """Tell whether a text is one value and nothing else: arguments as those of `_reads`."""
    # What is one value stands behind a name, and in an array; what goes on after a value doesn't do both.
    return f"{_reads(_named(text), foreign=foreign)} AND {_reads(_listed(text), foreign=foreign)}"


def _foreign() -> str:
    """Say what a body has that isn't JSON, if it is one value without that; else NULL."""
    marked, every = f"{_BODY}.text", tuple(_NOT_OF_JSON)
    begins = f"startswith({marked}, '{_BYTE_ORDER_MARK}')"
    text = f"ltrim('{_BYTE_ORDER_MARK}', {marked})"
    bare = f"regexp_replace({text}, {_quoted(_TRAILING_COMMA)}, '$1')"
    found = [
        f"CASE WHEN {begins} THEN 'a byte order mark' END",
        f"CASE WHEN NOT ({_is_one_value(text, every)}) THEN 'a comma behind the last item' END",
        *(
            f"CASE WHEN NOT ({_is_one_value(bare, [each for each in every if each != option])}) "
            f"THEN {_quoted(what)} END"
            for option, what in _NOT_OF_JSON.items()
        ),
    ]
    return (
        f"CASE WHEN {_is_one_value(bare, every)} THEN nullif(concat_ws(' and ', {', '.join(found)}), '') END"
    )


def _named(text: str) -> str:
    return f"concat('{{\"_\":', {text}, '\n}}')"  # a comment would take in what follows in its line


def _listed(text: str) -> str:
    return f"concat('{{\"_\":[', {text}, '\n]}}')"


def _fault(kind: DataType, value: str, path: str) -> str:
    """Say what is wrong with a value: a struct of the reason, by its path, and of the misfit; or NULL.

    Args:
        kind: The type it should have.
        value: A VARIANT that is neither NULL nor JSON `null`.
        path: An expression for its path; empty for the body itself.
    """
    from pyspark.sql.types import ArrayType, MapType, StructType  # noqa: PLC0415 - only jobs have pyspark

    why = f"concat('field \\'', {path}, '\\': the value is no ', {_quoted(type_name(kind))})"
    misfit = f"named_struct('reason', {why}, 'value', {value})"
    each = _variable(value)
    match kind:
        case StructType():
            inner = ", ".join(f"{_name(field.name)}: VARIANT" for field in kind.fields)
            faults, missing = [], []
            for field in kind.fields:
                member = _member(each, field.name)
                place = (
                    f"concat({path}, {_quoted(f'.{field.name}')})" if path != "''" else _quoted(field.name)
                )
                fault = _fault(field.dataType, member, place)
                faults.append(f"CASE WHEN NOT ({_absent(member)}) THEN {fault} END")
                if not field.nullable:
                    missing.append(f"CASE WHEN {_absent(member)} THEN concat('\\'', {place}, '\\'') END")
            if missing:
                all_missing = f"concat_ws(', ', {', '.join(missing)})"
                faults.append(f"CASE WHEN {all_missing} <> '' THEN {_missing(all_missing)} END")
            first = f"coalesce({', '.join([*faults, _NO_FAULT])})"
            found = _from_variant(value, f"STRUCT<{inner}>")
            within = f"get(transform(array({found}), {each} -> {first}), 0)"
            return f"CASE WHEN {_kind(value)} NOT LIKE 'OBJECT<%' THEN {misfit} ELSE {within} END"
        case ArrayType():
            place = f"concat({path}, '[', {each}_index, ']')"
            fault = _item_fault(kind.elementType, each, place, nullable=kind.containsNull)
            found = f"transform({_from_variant(value, 'ARRAY<VARIANT>')}, ({each}, {each}_index) -> {fault})"
            first = f"get(filter({found}, {each} -> {each} IS NOT NULL), 0)"
            return f"CASE WHEN {_kind(value)} NOT LIKE 'ARRAY<%' THEN {misfit} ELSE {first} END"
        case MapType():
            place = f"concat({path}, '[\\'', {each}.key, '\\']')"
            fault = _item_fault(kind.valueType, f"{each}.value", place, nullable=kind.valueContainsNull)
            entries = f"map_entries({_from_variant(value, 'MAP<STRING, VARIANT>')})"
            first = f"get(filter(transform({entries}, {each} -> {fault}), {each} -> {each} IS NOT NULL), 0)"
            return f"CASE WHEN {_kind(value)} NOT LIKE 'OBJECT<%' THEN {misfit} ELSE {first} END"
    if kind.simpleString() == "variant":
        why = f"concat('field \\'', {path}, '\\': the value has a number beyond DOUBLE')"
        reason = f"named_struct('reason', {why}, 'value', CAST(NULL AS VARIANT))"
        return f"CASE WHEN {_has_infinite(value)} THEN {reason} END"
    return f"CASE WHEN NOT coalesce({_fits(kind, value)}, false) THEN {misfit} END"


def _item_fault(kind: DataType, value: str, place: str, *, nullable: bool) -> str:
    missing = _NO_FAULT if nullable else _missing(f"concat('\\'', {place}, '\\'')")
    return f"CASE WHEN {_absent(value)} THEN {missing} ELSE {_fault(kind, value, place)} END"


def _missing(names: str) -> str:
    reason = f"concat('required but missing: ', {names})"
    return f"named_struct('reason', {reason}, 'value', CAST(NULL AS VARIANT))"


def _fits(kind: DataType, value: str) -> str:
    """Tell whether a VARIANT that isn't NULL is a value of a type without parts."""
    from pyspark.sql.types import DecimalType  # noqa: PLC0415 - only jobs have pyspark

    name, text = kind.simpleString(), _from_variant(value, "STRING")
    if isinstance(kind, DecimalType):
        scales = "|".join(str(scale) for scale in range(kind.scale + 1))
        exact = _quoted(f"^(BIGINT|DECIMAL[(][0-9]+,({scales})[)])")
        return f"({_kind(value)} RLIKE {exact} AND {_from_variant(value, name)} IS NOT NULL)"
    if name in _BITS:
        return f"({_kind(value)} = 'BIGINT' AND {_in_range(name, _from_variant(value, 'BIGINT'))})"
    if name in _FLOATS:
        number = f"{_kind(value)} RLIKE '^(BIGINT|DOUBLE|DECIMAL)'"
        return f"({number} AND {_is_finite(_from_variant(value, name), name)})"
    is_string = f"{_kind(value)} = 'STRING'"
    if name in _WRITTEN:
        return f"({is_string} AND {_is_written(name, text)})"
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
    """Tell whether a VARIANT of the body has a number, anywhere in it, that was beyond DOUBLE."""
    text = f"{_BODY}.text"
    # The same body without such numbers has fewer, unless all of them are strings.
    without = f"regexp_replace(concat('[', {text}, ']'), {_quoted(_VAST)}, '1')"

    def count(variant: str) -> str:
        return f"regexp_count(to_json({variant}), {_quoted(_INFINITE)})"

    return (
        f"({text} RLIKE {_quoted(_VAST)} AND {count(value)} > 0 AND "
        f"coalesce({count(f'{_BODY}.whole')} > {count(f'try_parse_json({without})')}, true))"
    )


def _in_range(name: str, value: str) -> str:
    limit = 2 ** _BITS[name]
    return f"{value} IS NOT NULL" if name == "bigint" else f"{value} BETWEEN {-limit} AND {limit - 1}"


def _is_finite(value: str, name: str) -> str:
    return f"abs({value}) < CAST('Infinity' AS {name})"


def _is_written(name: str, text: str) -> str:
    form = _quoted(f"^{_WRITTEN[name]}{_END}")
    is_one = f"try_cast({text} AS {name}) IS NOT NULL"
    if name == "timestamp":
        # Where the clocks are put forward, Spark takes a time that is left out for a later one.
        local = f"CAST(try_cast({text} AS timestamp) AS timestamp_ntz) = try_cast({text} AS timestamp_ntz)"
        is_one = f"CASE WHEN {text} RLIKE {_quoted(_ZONED)} THEN {is_one} ELSE coalesce({local}, false) END"
    return f"(octet_length({text}) < 40 AND {text} RLIKE {form} AND {is_one})"


def _is_base64(text: str) -> str:
    form = _quoted(f"^{_BASE64}{_END}")
    return f"(octet_length({text}) % 4 = 0 AND {text} RLIKE {form})"


def _kind(value: str) -> str:
    return f"schema_of_variant({value})"


def _from_variant(value: str, name: str) -> str:
    return f"try_variant_get({value}, '$', {_quoted(name)})"


def _absent(value: str) -> str:
    return f"{value} IS NULL OR is_variant_null({value})"


def _members(fields: StructType) -> str:
    return ", ".join(f"{_name(field.name)}: {_read_as(field.dataType)}" for field in fields.fields)


def _member(value: str, name: str) -> str:
    return f"{value}.{_name(name)}"


def _variable(value: str) -> str:
    """Return a name for a part of a value, unlike the names within which it stands."""
    return f"_jms_{len(value)}"


def _name(text: str) -> str:
    return f"`{text.replace('`', '``')}`"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
