"""Text bodies to typed columns, and apart from them the messages that don't fit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final

from airflow_provider_jmsjca.core.message import BodyKind
from airflow_provider_jmsjca.errors import ConfigurationError, PoisonMessageError
from airflow_provider_jmsjca.spark.schema import REASON_PROPERTY, UNDECODABLE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

REJECT_COLUMNS: Final = ("segment", "position", "exception_class", "exception_message")
EXCEPTION_CLASS: Final = f"{PoisonMessageError.__module__}.{PoisonMessageError.__qualname__}"
_JSON_KINDS: Final = (BodyKind.TEXT, BodyKind.BYTES, BodyKind.MAP)
_PARSED, _UNPARSED, _VALUES, _GIVEN, _REASON = (
    f"_jms_{name}" for name in ("parsed", "unparsed", "values", "given", "reason")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """Messages sorted by whether they fit.

    Attributes:
        rows: The fields of the schema, then the columns `batch_id`, `segment`, `position`.
        rejects: For the others `segment`, `position`, `exception_class`, `exception_message`.
    """

    rows: DataFrame
    rejects: DataFrame


def map_json(messages: DataFrame, schema: StructType | str) -> Mapped:
    """Read each body as one JSON object with these fields.

    Text, bytes (as UTF-8) and map bodies are read. A message is turned away if its body is of another kind or
    undecodable, is not one JSON object, has a name twice, has a value that isn't of its field's type, or
    lacks a field that the schema says is `NOT NULL` (JSON `null` lacks it too). Names the schema doesn't have
    are left out.

    Args:
        messages: With the columns of the message schema.
        schema: Of the body, as a `StructType` or in words: `"carrier STRING NOT NULL, delay DOUBLE"`.

    Raises:
        ConfigurationError: The schema has no fields, or Spark can't read it.
    """
    from pyspark.errors import ParseException  # noqa: PLC0415 - only jobs have pyspark
    from pyspark.sql import functions as sql  # noqa: PLC0415 - as above
    from pyspark.sql.types import StringType, StructField, StructType  # noqa: PLC0415 - as above

    expected = "expected fields, such as 'carrier STRING NOT NULL, delay DOUBLE'"
    try:
        fields = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    except ParseException as error:
        (what, *_) = str(error).strip().splitlines()
        raise ConfigurationError(f"schema {schema!r}: {what}; {expected}") from error
    if not isinstance(fields, StructType):
        raise ConfigurationError(f"schema {schema!r}: {expected}")
    asked = StructType([*fields.fields, StructField(_UNPARSED, StringType())])
    text = sql.col("body").cast("string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _UNPARSED}
    # Spark's from_json ignores what follows the first value; inside brackets nothing can follow unseen.
    values = sql.try_variant_get(
        sql.try_parse_json(sql.concat(sql.lit("["), text, sql.lit("]"))), "$", "array<variant>"
    )
    given = sql.try_variant_get(sql.get(_VALUES, sql.lit(0)), "$", "map<string,variant>")
    parsed = (
        messages.withColumns({_PARSED: sql.from_json(text, asked, options), _VALUES: values})
        .withColumn(_GIVEN, given)
        .withColumn(_REASON, _reason(fields))
    )
    place = ["batch_id", "segment", "position"]
    names = [field.name for field in fields.fields]
    own = [column for column in place if column not in names]
    return Mapped(
        rows=parsed.where(sql.col(_REASON).isNull()).select(
            *[sql.col(_PARSED).getField(name).alias(name) for name in names], *own
        ),
        rejects=parsed.where(sql.col(_REASON).isNotNull()).select(
            "segment",
            "position",
            sql.lit(EXCEPTION_CLASS).alias("exception_class"),
            sql.col(_REASON).alias("exception_message"),
        ),
    )


def _reason(fields: StructType) -> Column:
    """The first thing that is wrong with a message, or NULL."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - only jobs have pyspark

    kind, value = sql.col("body_type"), sql.col(_PARSED)
    one = sql.size(_VALUES) == 1
    unparsed = value.isNull() | value.getField(_UNPARSED).isNotNull()
    empty = {field.name: value.getField(field.name).isNull() for field in fields.fields}
    absent = [
        (field, empty[field.name] & ~_is_given(field.name)) for field in fields.fields if not field.nullable
    ]
    misfits = [(field, empty[field.name] & _is_given(field.name)) for field in fields.fields]
    reason = (
        sql.when(
            kind == UNDECODABLE,
            sql.concat(
                sql.lit("the message can't be decoded: "),
                sql.coalesce(sql.col("properties")[REASON_PROPERTY], sql.lit("no reason was stored")),
            ),
        )
        .when(~kind.isin(*_JSON_KINDS), sql.concat(sql.lit("expected a JSON body, found kind "), kind))
        .when(sql.col("body").isNull(), sql.lit("expected a JSON body, found none"))
        .when(
            sql.coalesce(~one, sql.lit(True)),
            sql.lit("the body is not JSON, not just one value, or has a name twice"),
        )
        .when(sql.col(_GIVEN).isNull(), sql.lit("expected a JSON object, found another value"))
    )
    for field, misfit in misfits:
        expected = field.dataType.simpleString().upper()
        reason = reason.when(unparsed & misfit, sql.lit(f"field {field.name!r}: the value is no {expected}"))
    reason = reason.when(unparsed, sql.lit(f"the body doesn't fit {fields.simpleString()}"))
    if absent:
        missing = sql.concat_ws(
            ", ", *[sql.when(condition, sql.lit(repr(field.name))) for field, condition in absent]
        )
        reason = reason.when(
            reduce(or_, [condition for _, condition in absent]),
            sql.concat(sql.lit("required but missing: "), missing),
        )
    return reason


def _is_given(name: str) -> Column:
    """Whether the body has a value other than `null` for a name."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - only jobs have pyspark

    value = sql.col(_GIVEN)[name]
    return value.isNotNull() & ~sql.is_variant_null(value)
