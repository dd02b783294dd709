"""Compares the columns of a batch with those of its table.

A new column is added to the table, and is NULL in older batches. A column that the batch lacks is NULL in
this batch. A column with another type is refused: readers could no longer read the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.spark.tables import BATCH_COLUMN, TableWrite

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

ORIGIN: Final = "_jms"
"""Column that identifies the message of a row: a struct of `batch_id`, `segment` and `position`."""
_STORED: Final = {"jms_segment": "segment", "jms_position": "position"}
CONTROL: Final = r"\p{Cntrl}"
_FAMILIES: Final = (("tinyint", "smallint", "int", "bigint"), ("float", "double"))
_MOST_DIGITS: Final = 38
# A reason shows at most this many characters of a value.
SHOWN: Final = 40


class ColumnTypesError(ConfigurationError):
    """Columns of the rows have other types than those of the table."""


def reserved(names: Iterable[str]) -> list[str]:
    """Return those of the names that are reserved for columns of this package, in upper or lower case."""
    ours = {BATCH_COLUMN, *_STORED}
    return [name for name in names if name.lower() in ours or name.lower().startswith(ORIGIN)]


def stored_rows(table: str, df: DataFrame, batch_id: str | None = None) -> DataFrame:
    """Return the rows as a table stores them.

    The column `ORIGIN`, if there is one, is replaced by `jms_segment` and `jms_position`.

    Args:
        table: The table's name, for the error.
        df: The rows.
        batch_id: The value of the column `BATCH_COLUMN`, which is added; `None`: no column is added.

    Raises:
        ConfigurationError: A column has a reserved name.
    """
    names = df.schema.names
    taken = reserved(name for name in names if name != ORIGIN)
    if taken:
        raise ConfigurationError(
            f"table {table}: column {taken[0]!r}: the name is reserved for columns that write adds; drop the "
            "column, or give it another name"
        )
    columns = ["*"]
    if ORIGIN in names:
        check_origin("write", df)
        columns = [quoted_name(name) for name in names if name != ORIGIN]
        columns += [f"{ORIGIN}.{part} AS {name}" for name, part in _STORED.items()]
    if batch_id is not None:
        columns.append(f"{quoted_text(batch_id)} AS {BATCH_COLUMN}")
    return df.selectExpr(*columns)


def check_upsert(table: str, df: DataFrame, write: TableWrite) -> None:
    """Refuse an upsert if the rows lack its columns or don't name their messages.

    Args:
        table: The table's name, for the error.
        df: The rows.
        write: The upsert.

    Raises:
        ConfigurationError: The first column that is missing.
    """
    if ORIGIN not in df.columns:
        raise ConfigurationError(
            f"table {table}: mode 'upsert': the rows have no column {ORIGIN}, which identifies the "
            "newer message"
        )
    for name in (*write.keys, *([write.order_by] if write.order_by else [])):
        if name not in df.columns:
            raise ConfigurationError(
                f"table {table}: mode 'upsert': the rows have no column {name!r}; found "
                f"{', '.join(each for each in df.columns if each != ORIGIN)}"
            )


def missing_keys(keys: Sequence[str]) -> list[str]:
    """Return an expression for each key: a reason to refuse the row if the key is NULL, otherwise NULL."""
    return [
        f"CASE WHEN {quoted_name(name)} IS NULL THEN "
        f"{quoted_text(f'column {name!r} is a key of the upsert, found null')} END"
        for name in keys
    ]


def check_origin(what: str, df: DataFrame) -> None:
    """Refuse rows whose column `ORIGIN` doesn't identify their messages.

    Args:
        what: Name of the caller, for the error.
        df: The rows, which must have the column.

    Raises:
        ConfigurationError: The column has another type.
    """
    kind = df.schema[ORIGIN].dataType
    if not set(_STORED.values()) <= set(getattr(kind, "names", ())):
        raise ConfigurationError(
            f"{what}: column {ORIGIN}: expected a struct with segment and position, found {type_name(kind)}"
        )


def quoted_name(name: str) -> str:
    """Return the name of a column, quoted for Spark's SQL."""
    return f"`{name.replace('`', '``')}`"


def quoted_text(text: str) -> str:
    """Return a text as a literal of Spark's SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def shown(text: str, most: int = SHOWN) -> str:
    """Return an expression for the beginning of a text on one line, of at most `most` characters."""
    beginning = f"regexp_replace(left({text}, {most}), {quoted_text(CONTROL)}, ' ')"
    return f"concat({beginning}, CASE WHEN length({text}) > {most} THEN '…' ELSE '' END)"


def misfit(name: str, kind: str, value: str) -> str:
    """Return an expression for a reason: the text isn't a value of the column's type.

    Args:
        name: Name of the column.
        kind: Name of its type.
        value: An expression for the text.
    """
    beginning = quoted_text(f"column '{name}': the value is no {kind}, found the string \"")
    return f"concat({beginning}, {shown(value)}, '\"')"


def without(df: DataFrame, refused: DataFrame) -> DataFrame:
    """Return the rows, except for rows of refused messages.

    Args:
        df: Rows with the column `ORIGIN`, or rows from `stored_rows`.
        refused: The refused messages, in a column `ORIGIN`.
    """
    from pyspark.sql import functions as sql  # noqa: PLC0415 - only jobs have pyspark

    out = refused.select(*(sql.col(ORIGIN)[part].alias(f"{ORIGIN}_{part}") for part in _STORED.values()))
    same = " AND ".join(
        f"{f'{ORIGIN}.{part}' if ORIGIN in df.columns else name} = {ORIGIN}_{part}"
        for name, part in _STORED.items()
    )
    return df.join(sql.broadcast(out), sql.expr(same), "left_anti")


def widened(table: str, found: StructType | None, rows: StructType, *, widens: bool = False) -> StructType:
    """Return the columns that a table has after rows with other columns were written; all are nullable.

    Args:
        table: The table's name, for the error.
        found: The table's columns; `None` for a table that has no rows yet.
        rows: The columns of the rows to write.
        widens: If the two types of a column differ, use the type that can hold both, see `common_type`.

    Raises:
        ColumnTypesError: The two types of a column, or of a part of it, differ. The error names both.
    """
    faults: list[str] = []
    columns = _merged(found if found is not None else rows, rows, "", faults, widens=widens)
    if faults:
        raise ColumnTypesError(
            f"table {table}: {'; '.join(faults)}. Nothing was written: cast the column to the table's type, "
            "give it another name, or write to another table"
        )
    return columns  # type: ignore[return-value]  # of two structs it makes a struct


def common_type(one: DataType, other: DataType) -> DataType | None:
    """Return the type that can hold every value of two types of the same family; otherwise `None`.

    The families are the whole numbers from `TINYINT` to `BIGINT`, `FLOAT` and `DOUBLE`, and `DECIMAL` with up
    to 38 digits.
    """
    from pyspark.sql.types import DecimalType  # noqa: PLC0415 - only jobs have pyspark

    if isinstance(one, DecimalType) and isinstance(other, DecimalType):
        scale = max(one.scale, other.scale)
        digits = max(one.precision - one.scale, other.precision - other.scale) + scale
        return DecimalType(digits, scale) if digits <= _MOST_DIGITS else None
    for family in _FAMILIES:
        if one.simpleString() in family and other.simpleString() in family:
            return max(one, other, key=lambda each: family.index(each.simpleString()))
    return None


def type_changes(
    found: DataType, wanted: DataType, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], DataType, DataType]]:
    """Yield path, old and new type of each column, and each part of a column, whose type changes.

    Args:
        found: The table's columns.
        wanted: The columns that the table shall have, from `widened`.
        path: Path to these columns. Items of an `ARRAY` are called `element`, parts of a `MAP` `key` and
            `value`.
    """
    from pyspark.sql.types import ArrayType, MapType, StructType  # noqa: PLC0415 - only jobs have pyspark

    match found, wanted:
        case StructType(), StructType():
            for field in found.fields:
                yield from type_changes(field.dataType, wanted[field.name].dataType, (*path, field.name))
        case ArrayType(), ArrayType():
            yield from type_changes(found.elementType, wanted.elementType, (*path, "element"))
        case MapType(), MapType():
            yield from type_changes(found.keyType, wanted.keyType, (*path, "key"))
            yield from type_changes(found.valueType, wanted.valueType, (*path, "value"))
        case _ if found != wanted:
            yield path, found, wanted


def cast_like(rows: DataFrame, wanted: StructType) -> DataFrame:
    """Return the rows, converted without loss to the types of a table.

    Args:
        rows: The rows.
        wanted: The table's columns, from `widened` for these rows.
    """
    columns = []
    for field in rows.schema.fields:
        kind = _typed_like(field.dataType, wanted[field.name].dataType)
        column = rows[quoted_name(field.name)]
        columns.append(column if kind == field.dataType else column.cast(kind).alias(field.name))
    return rows.select(*columns)


def _typed_like(rows: DataType, wanted: DataType) -> DataType:
    """Return a type with the structure of the rows' type, and the table's types for its parts."""
    from pyspark.sql.types import (  # noqa: PLC0415 - only jobs have pyspark
        ArrayType,
        MapType,
        StructField,
        StructType,
    )

    match rows, wanted:
        case StructType(), StructType():
            return StructType(
                [
                    StructField(
                        each.name, _typed_like(each.dataType, wanted[each.name].dataType), each.nullable
                    )
                    for each in rows.fields
                ]
            )
        case ArrayType(), ArrayType():
            return ArrayType(_typed_like(rows.elementType, wanted.elementType), rows.containsNull)
        case MapType(), MapType():
            key, value = (
                _typed_like(rows.keyType, wanted.keyType),
                _typed_like(rows.valueType, wanted.valueType),
            )
            return MapType(key, value, rows.valueContainsNull)
    return wanted


def check_partitions(table: str, found: Sequence[str] | None, asked: Sequence[str]) -> None:
    """Refuse to partition a table by other columns than before: readers couldn't determine its columns.

    Args:
        table: The table's name, for the error.
        found: The columns by which the table is partitioned; `None` for a table without rows.
        asked: The columns by which the rows would be partitioned.

    Raises:
        ConfigurationError: The columns differ, or are in another order.
    """
    if found is not None and list(found) != list(asked):
        raise ConfigurationError(
            f"table {table}: is partitioned by {', '.join(found) or 'nothing else than the batch'}, and this "
            f"batch would be by {', '.join(asked) or 'nothing else'}. Nothing was written: set "
            f"partition_by to {list(found)}, or write to another table"
        )


def type_name(kind: DataType) -> str:
    """Return a type in DDL, such as `ARRAY<BIGINT>`."""
    from pyspark.sql.types import ArrayType, MapType, StructType  # noqa: PLC0415 - only jobs have pyspark

    match kind:
        case StructType():
            inner = (
                f"{field.name}: {type_name(field.dataType)}{'' if field.nullable else ' NOT NULL'}"
                for field in kind.fields
            )
            return f"STRUCT<{', '.join(inner)}>"
        case ArrayType():
            return f"ARRAY<{type_name(kind.elementType)}>"
        case MapType():
            return f"MAP<{type_name(kind.keyType)}, {type_name(kind.valueType)}>"
    return kind.simpleString().upper()


def _merged(found: DataType, rows: DataType, path: str, faults: list[str], *, widens: bool) -> DataType:
    from pyspark.sql.types import (  # noqa: PLC0415 - only jobs have pyspark
        ArrayType,
        MapType,
        StructField,
        StructType,
    )

    match found, rows:
        case StructType(), StructType():
            types = {field.name: field.dataType for field in found.fields}
            spelled = {name.lower(): name for name in types}
            for field in rows.fields:
                place = f"{path}{field.name}"
                known = spelled.setdefault(field.name.lower(), field.name)
                if known != field.name:
                    faults.append(
                        f"column {place!r} differs from {path}{known!r} in the table only in upper and "
                        "lower case"
                    )
                else:
                    kind = types.get(field.name, field.dataType)
                    types[field.name] = _merged(kind, field.dataType, f"{place}.", faults, widens=widens)
            return StructType([StructField(name, kind) for name, kind in types.items()])
        case ArrayType(), ArrayType():
            place = f"{path[:-1]}[]."
            return ArrayType(_merged(found.elementType, rows.elementType, place, faults, widens=widens))
        case MapType(), MapType():
            place = f"{path[:-1]}[]."
            key = _merged(found.keyType, rows.keyType, f"{path[:-1]}[key].", faults, widens=widens)
            return MapType(key, _merged(found.valueType, rows.valueType, place, faults, widens=widens))
    if found != rows:
        if widens and (common := common_type(found, rows)) is not None:
            return common
        faults.append(
            f"column {path[:-1]!r} is {type_name(found)} in the table, and {type_name(rows)} in the rows "
            "of this batch"
        )
    return found
