"""Columns for rescued fields: `Batch.write(evolve="add")`.

Rescued fields are fields of the bodies that the schema doesn't name; `Batch.json(rescue=...)` keeps them. A
value moves from the column of rescued fields into its own column if that loses nothing. Other values stay in
the column of rescued fields. If the table already has a column for the field, that column's type is used. So
a field has the same type in all batches. A new column is added only if all values of the field in this batch
fit one type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.spark.tables.columns import quoted_name, quoted_text, reserved

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Names come from producers: only plain names, which every table accepts, and a limited number of them.
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
_MOST_FIELDS: Final = 100
_MOST_COLUMNS: Final = 1_000
_EXACT: Final = 2**53
# By type, the condition under which a VARIANT `v` with the kind `k` becomes a value of it without loss.
_FITS: Final[Mapping[str, str]] = {
    "STRING": "k = 'STRING'",
    "BOOLEAN": "k = 'BOOLEAN'",
    "BIGINT": "k = 'BIGINT'",
    "DOUBLE": (
        "(k = 'DOUBLE' OR k RLIKE '^DECIMAL[(]([0-9]|1[0-5]),' "
        f"OR (k = 'BIGINT' AND try_variant_get(v, '$', 'BIGINT') BETWEEN -{_EXACT} AND {_EXACT}))"
    ),
}
_INFERRED: Final[Mapping[frozenset[str], str]] = {
    frozenset({"STRING"}): "STRING",
    frozenset({"BOOLEAN"}): "BOOLEAN",
    frozenset({"BIGINT"}): "BIGINT",
    frozenset({"DOUBLE"}): "DOUBLE",
    frozenset({"BIGINT", "DOUBLE"}): "DOUBLE",
}
_log = safe_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """Rows with columns for rescued fields.

    Attributes:
        rows: The rows.
        columns: The types of those columns that the table lacks, by the name of the column.
    """

    rows: DataFrame
    columns: Mapping[str, str]


def add_columns(rows: DataFrame, rescue: str, known: Mapping[str, str]) -> Added:
    """Move rescued fields into columns of their own.

    Only top-level fields with texts, numbers or booleans move. Their names must consist of up to 63 ASCII
    letters, digits and `_`, and begin with a letter. At most the 100 most frequent fields move.

    Args:
        rows: Rows with the column of rescued fields.
        rescue: Name of that column, a `VARIANT` or JSON text.
        known: The table's columns with their types, such as `BIGINT`.
    """
    is_text = rows.schema[rescue].dataType.simpleString() == "string"
    column = quoted_name(rescue)
    whole = f"parse_json({column})" if is_text else column
    members = f"try_variant_get({whole}, '$', 'MAP<STRING, VARIANT>')"
    types = _types(rows, members, known)
    if not types:
        return Added(rows=rows, columns={})
    moves = " OR ".join(
        f"(name = {quoted_text(name)} AND {_fits(kind, 'v')})" for name, kind in types.items()
    )
    rest = f"map_filter({members}, (name, v) -> NOT coalesce(is_variant_null(v) AND {_is_one(types)}, false) "
    rest += f"AND NOT coalesce({moves}, false))"
    left = f"CASE WHEN size({rest}) > 0 THEN to_variant_object({rest}) END"
    left = f"to_json({left})" if is_text else left
    values = (
        f"get(transform(array({members}[{quoted_text(name)}]), v -> CASE WHEN {_fits(kind, 'v')} "
        f"THEN try_variant_get(v, '$', '{kind}') END), 0) AS {quoted_name(name)}"
        for name, kind in types.items()
    )
    kept = (quoted_name(name) if name != rescue else f"{left} AS {column}" for name in rows.columns)
    return Added(
        rows=rows.selectExpr(*kept, *values),
        columns={name: kind for name, kind in types.items() if name not in known},
    )


def _is_one(names: Mapping[str, str]) -> str:
    return f"name IN ({', '.join(map(quoted_text, names))})"


def _fits(kind: str, value: str) -> str:
    return re.sub(r"\bk\b", f"schema_of_variant({value})", _FITS[kind])


def _types(rows: DataFrame, members: str, known: Mapping[str, str]) -> dict[str, str]:
    """Return the types of the rescued fields that get a column, by the name of the field.

    Args:
        rows: The rows.
        members: An expression for a row's rescued fields, as a map of names to `VARIANT`.
        known: The table's columns with their types.
    """
    from pyspark.sql import functions as sql  # noqa: PLC0415 - only jobs have pyspark

    kind = (
        "CASE WHEN k IN ('STRING', 'BOOLEAN', 'BIGINT') THEN k WHEN k = 'DOUBLE' OR k LIKE 'DECIMAL%' "
        "THEN 'DOUBLE' WHEN k <> 'VOID' THEN 'OTHER' END"
    )
    fields = rows.selectExpr(f"explode({members}) AS (name, v)")
    kinds = fields.selectExpr("name", "schema_of_variant(v) AS k").selectExpr("name", f"{kind} AS kind")
    found = (
        kinds.where("kind IS NOT NULL")
        .groupBy("name")
        .agg(sql.count("*").alias("rows"), sql.collect_set("kind").alias("kinds"))
    )
    first = found.orderBy(sql.col("rows").desc(), "name").limit(_MOST_FIELDS + 1).collect()
    if len(first) > _MOST_FIELDS:
        _log.warning("More than %d rescued fields; only the most frequent ones are considered", _MOST_FIELDS)
    taken = {name.lower() for name in rows.columns}
    others = {name.lower() for name in known}
    room = _MOST_COLUMNS - len(known)
    types: dict[str, str] = {}
    for row in first[:_MOST_FIELDS]:
        name = row["name"]
        if not _NAME.fullmatch(name) or name.lower() in taken or reserved([name]):
            continue
        if name in known:
            asked = known[name] if known[name] in _FITS else None
        elif name.lower() in others or room <= 0:
            asked = None
        else:
            asked = _INFERRED.get(frozenset(row["kinds"]))
            room -= asked is not None
        if asked is not None:
            types[name] = asked
            taken.add(name.lower())
    return dict(sorted(types.items()))
