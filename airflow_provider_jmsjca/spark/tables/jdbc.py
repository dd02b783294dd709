"""A table of PostgreSQL, in which each batch is replaced in one transaction.

Executors write the rows into a staging table, `jms_<digest>_<fence>`, in the schema of the target. The driver
then does the rest in one transaction: it deletes the rows of the batch, inserts the staged rows, and drops
the staging table.

A Spark task commits its partition as one transaction. If its executor dies or loses the database before it
reports the commit, Spark runs the task again, and the rows are staged twice. So each staged row records its
partition and transaction, and only the newest transaction of each partition is used.

An upsert keeps the newest staged row of each key, then inserts or updates with one statement. The table
`jms_upserts`, in the same schema as the target, records the batches with a committed upsert and their
rejects.

All rows are inserted with one statement. If the database refuses a row, a block of PL/pgSQL inserts the rows
message by message instead, and records the reason for each refused message in the staging table.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, Self

from airflow_provider_jmsjca.errors import ConfigurationError, PoisonMessageError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.spark.tables import BATCH_COLUMN, UPSERT, TableAttempt, TableWrite
from airflow_provider_jmsjca.spark.tables.columns import (
    ORIGIN,
    SHOWN,
    ColumnTypesError,
    check_upsert,
    missing_keys,
    quoted_name,
    quoted_text,
    shown,
    stored_rows,
    type_name,
)
from airflow_provider_jmsjca.spool.attempts import RejectsFile, check_fence, committing_as

if TYPE_CHECKING:
    from py4j.protocol import Py4JJavaError
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

_DRIVER: Final = "org.postgresql.Driver"
_SCHEME: Final = "jdbc:postgresql:"
_PACKAGES: Final = "org.postgresql:postgresql:42.7.8"
_PARTITION: Final = "_jms_partition"
_TRANSACTION: Final = "_jms_transaction"
_REASON: Final = "_jms_reason"
_DELETES: Final = "_jms_deletes"
_UPSERTS: Final = "jms_upserts"
# The SQLSTATE by which the block rolls back a row that was inserted only as a test.
_TRIED: Final = "JMS00"
# Types of the table to which texts are cast; the database may refuse a text.
_FROM_TEXT: Final = ("uuid", "json", "jsonb")
_SHOWN_VALUES: Final = 100
_SHOWN_SAID: Final = 300
# Data exceptions and violated constraints.
_ROW_STATES: Final = ("22", "23")
# Pairs of types: the second can hold every value of the first without loss.
_WIDER: Final = frozenset(
    {
        ("smallint", "integer"),
        ("smallint", "bigint"),
        ("integer", "bigint"),
        ("real", "double precision"),
    }
)
_FAMILIES: Final = (("smallint", "integer", "bigint"), ("real", "double precision"))
_SPARK_TYPES: Final = {
    "text": "STRING",
    "boolean": "BOOLEAN",
    "bigint": "BIGINT",
    "double precision": "DOUBLE",
}
_NUMERIC: Final = re.compile(r"numeric[(]([0-9]+),([0-9]+)[)]")
_log = safe_logger(__name__)


class JdbcSink:
    """A table of PostgreSQL; see `write_in_one_transaction`."""

    modes: Final = ("append", UPSERT)
    writes_once: Final = False
    arguments: Final = ("options", "keys", "order_by", "delete_when", "widens")
    reserved: Final = ("dbtable",)

    def columns(self, df: DataFrame, write: TableWrite, attempt: TableAttempt) -> Mapping[str, str]:
        """See `TableSink.columns`."""
        del attempt
        schema, name = _checked(write.table, write.options)
        target = (f"{_quoted(schema)}." if schema else "") + _quoted(name)
        with _Connection(df, {"driver": _DRIVER, **write.options, "dbtable": target}) as connection:
            found = _columns(connection, target)
        return {name: _SPARK_TYPES.get(kind, kind) for name, kind in found.items()}

    def write(self, df: DataFrame, write: TableWrite, attempt: TableAttempt) -> int:
        """See `TableSink.write`."""
        return write_in_one_transaction(df, write, attempt)


def write_in_one_transaction(df: DataFrame, write: TableWrite, attempt: TableAttempt) -> int:
    """Replace the rows of the batch in the table by these rows, or upsert them.

    Texts also fit columns of type `uuid`, `json` and `jsonb`. With `attempt.rejects_rows`, a message is
    rejected if the database refuses one of its rows because of the data (SQLSTATE classes 22 and 23). If a
    unique key makes the database refuse one of two messages, the first one in the order of receipt is stored.

    Guarantee: the table has all of these rows once or is unchanged, even if a process or the connection fails
    at any point. A Spark task that runs again replaces its earlier rows. Of two attempts that commit at the
    same time, the older one commits nothing: a lock of the database serializes them, and the fence is checked
    directly before the commit. A failed attempt removes its staging table, unless the connection is lost. A
    committed upsert is not repeated: a later attempt takes over its rejects.

    Args:
        df: The rows.
        write: The arguments. `table` is `orders` or `sales.orders`, as the database spells it. A missing
            table is created, with an index on `jms_batch_id` and, for an upsert, a unique index on its keys.
            Missing columns are added. `options` are Spark's for JDBC: `url`, `user`, `password` and so on;
            `isolationLevel` can't be `NONE`.
        attempt: The attempt that writes.

    Returns:
        The number of rows of the batch in the table; for an upsert, the number inserted or updated.

    Raises:
        ConfigurationError: The URL is missing or not PostgreSQL's, the driver is missing, or the table's name
            or `isolationLevel` is invalid. Or the database has no type for a column, or the table's type
            can't hold the rows' values without loss. Or an upsert's keys have no unique index. Nothing was
            changed.
        FencedError: A newer attempt has begun. Nothing was changed.
        PoisonMessageError: The database refuses a row, and `attempt.rejects_rows` is `False`. Nothing was
            changed.
    """
    from pyspark.sql import functions as sql  # noqa: PLC0415 - only jobs have pyspark

    table, options, is_upsert = write.table, write.options, write.mode == UPSERT
    schema, name = _checked(table, options)
    if is_upsert:
        check_upsert(table, df, write)
    digest = hashlib.sha256(json.dumps([table, attempt.batch_id]).encode()).hexdigest()
    prefix = f"jms_{digest[:16]}_"
    within = f"{_quoted(schema)}." if schema else ""
    target, aside = within + _quoted(name), f"{within}{_quoted(f'{prefix}{attempt.fence}')}"
    given = {"driver": _DRIVER, **options, "dbtable": aside}
    rows = stored_rows(table, df, attempt.batch_id)
    _check_types(table, rows)
    rows = _storable(rows, missing_keys(write.keys)).withColumn(_PARTITION, sql.spark_partition_id())
    if is_upsert:
        rows = rows.withColumn(_DELETES, sql.expr(f"coalesce({write.delete_when or 'false'}, false)"))
    with _Connection(df, given) as connection:
        _remove_aside(connection, schema, prefix)
        check_fence(attempt.folder, attempt.fence)
        try:
            rows.limit(0).write.format("jdbc").options(**given).mode("errorifexists").save()
            connection.execute(
                f"ALTER TABLE {aside} ADD COLUMN {_TRANSACTION} bigint NOT NULL DEFAULT txid_current()"
            )
            connection.commit()
            rows.write.format("jdbc").options(**given).mode("append").save()
            connection.rows("SELECT pg_advisory_xact_lock(hashtextextended(?, 0))", target)
            columns = _columns(connection, aside)
            for name in (_PARTITION, _TRANSACTION, _REASON, *([_DELETES] if is_upsert else [])):
                del columns[name]
            widening = _Widening(connection, table, target, aside, attempt) if write.widens else None
            known = _fit(connection, table, target, columns, keys=write.keys, widening=widening)
            upserts = _Upserts(connection, within, table, attempt) if is_upsert else None
            if upserts is not None and (done := upserts.found()) is not None:
                count, files = done
                _drop_aside(connection, aside)
                if attempt.rejects is not None:
                    attempt.rejects.adopt(files, df, None)
                return count
            for replaced in attempt.batch_ids if upserts is None else ():
                connection.execute(
                    f"DELETE FROM {target} WHERE {_quoted(BATCH_COLUMN)} = ?",  # noqa: S608 - quoted
                    replaced,
                )
            filling = _RowWriter(
                connection,
                table=table,
                target=target,
                aside=aside,
                columns=columns,
                known=known,
                attempt=attempt,
                write=write,
            )
            count, refused = filling.run()
            connection.execute(f"DROP TABLE {aside}")
            if refused and attempt.rejects is not None:
                said = [((segment, position), reason) for segment, position, reason in refused]
                kind = f"{ORIGIN} STRUCT<segment: INT, position: INT>, exception_message STRING"
                attempt.rejects.refuse(df.sparkSession.createDataFrame(said, kind))
            if upserts is not None:
                upserts.record(count)
            with committing_as(attempt.folder, attempt.fence):
                connection.commit()
        except BaseException:
            _drop_aside(connection, aside)
            raise
    return count


def _check_types(table: str, rows: DataFrame) -> None:
    """Refuse columns for which the database has no type."""
    faults = [
        f"column {field.name!r}: PostgreSQL has no type for {type_name(field.dataType)}"
        for field in rows.schema.fields
        if _has_parts(field.dataType)
    ]
    if faults:
        raise ConfigurationError(
            f"table {table}: {'; '.join(faults)}. Nothing was written. Convert the column to JSON text, for "
            "the types text, json and jsonb: with to_json in a job of your own. With the ready-made job use "
            "--keep \"get_json_object(CAST(body AS STRING), '$.name') AS name\""
        )


def _has_parts(kind: DataType) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType, VariantType  # noqa: PLC0415 - only jobs have it

    if isinstance(kind, ArrayType):
        return _has_parts(kind.elementType)
    return isinstance(kind, StructType | MapType | VariantType)


class _Upserts:
    """Access to the table `jms_upserts`, which records committed upserts by table and batch."""

    def __init__(self, connection: _Connection, within: str, table: str, attempt: TableAttempt) -> None:
        self._connection = connection
        self._upserts = f"{within}{_quoted(_UPSERTS)}"
        self._table = table
        self._attempt = attempt

    def found(self) -> tuple[int, list[RejectsFile]] | None:
        """Return number of rows and rejects files of this batch's upsert; `None` if it wasn't committed."""
        if self._connection.rows("SELECT to_regclass(?)::text", self._upserts)[0][0] is None:
            # Two transactions that create the table at the same moment would collide.
            self._connection.rows("SELECT pg_advisory_xact_lock(hashtextextended(?, 0))", _UPSERTS)
            self._connection.execute(
                f"CREATE TABLE IF NOT EXISTS {self._upserts} (table_name text, jms_batch_id text, "
                "fence integer, rows bigint, rejects json, committed timestamptz DEFAULT now(), "
                "PRIMARY KEY (table_name, jms_batch_id))"
            )
        found = self._connection.rows(
            f"SELECT rows, rejects FROM {self._upserts} WHERE table_name = ? AND jms_batch_id = ?",  # noqa: S608 - quoted
            self._table,
            self._attempt.batch_id,
        )
        if not found:
            return None
        ((rows, rejects),) = found
        return int(str(rows)), [RejectsFile.checked(file) for file in json.loads(str(rejects))]

    def record(self, rows: int) -> None:
        """Record the batch as committed, in the same transaction as its rows."""
        files = self._attempt.rejects.files if self._attempt.rejects is not None else ()
        self._connection.execute(
            f"INSERT INTO {self._upserts} (table_name, jms_batch_id, fence, rows, rejects) "  # noqa: S608 - quoted
            "VALUES (?, ?, ?::integer, ?::bigint, ?::json)",
            self._table,
            self._attempt.batch_id,
            str(self._attempt.fence),
            str(rows),
            json.dumps([asdict(file) for file in files]),
        )


def _storable(rows: DataFrame, rules: Sequence[str]) -> DataFrame:
    """Return the rows with another column, which has the reason to refuse the row, or NULL.

    A text that PostgreSQL can't store is a reason. In the result such a text is NULL.

    Args:
        rows: The rows.
        rules: Expressions for further reasons to refuse a row; NULL for a row that isn't refused.
    """
    from pyspark.sql import functions as sql  # noqa: PLC0415 - only jobs have pyspark
    from pyspark.sql.types import ArrayType, StringType  # noqa: PLC0415 - as above

    def found(name: str, part: str) -> str:
        said = quoted_text(
            f'column {name!r}: PostgreSQL cannot store the character U+0000, found the string "'
        )
        return f"concat({said}, {shown(part)}, '\"')"

    reasons = {}
    for field in rows.schema.fields:
        column, zero = quoted_name(field.name), "char(0)"
        if isinstance(field.dataType, StringType):
            reasons[field.name] = f"CASE WHEN contains({column}, {zero}) THEN {found(field.name, column)} END"
        elif isinstance(field.dataType, ArrayType) and isinstance(field.dataType.elementType, StringType):
            first = f"get(filter({column}, _jms_part -> contains(_jms_part, {zero})), 0)"
            reasons[field.name] = f"CASE WHEN {first} IS NOT NULL THEN {found(field.name, first)} END"
    return rows.select(
        *(
            sql.expr(f"CASE WHEN ({reasons[name]}) IS NULL THEN {quoted_name(name)} END").alias(name)
            if name in reasons
            else quoted_name(name)
            for name in rows.columns
        ),
        sql.expr(f"coalesce({', '.join([*rules, *reasons.values(), 'CAST(NULL AS STRING)', 'NULL'])})").alias(
            _REASON
        ),
    )


class _RowRefusedError(PoisonMessageError):
    """The database refuses a row.

    Attributes:
        column: The column that the database's error names; empty if it names none.
    """

    def __init__(self, said: str, column: str) -> None:
        super().__init__(said)
        self.column = column


class _RowWriter:
    """Moves the rows from the staging table to the target table.

    Args:
        connection: The connection, in the transaction of the whole write.
        table: Name of the target table, for errors.
        target: Quoted name of the target table.
        aside: Quoted name of the staging table.
        columns: Columns of the rows, with their types in the staging table.
        known: Columns of the target table with their types.
        attempt: The attempt that writes.
        write: The arguments of the write.
    """

    def __init__(
        self,
        connection: _Connection,
        *,
        write: TableWrite,
        table: str,
        target: str,
        aside: str,
        columns: Mapping[str, str],
        known: Mapping[str, str],
        attempt: TableAttempt,
    ) -> None:
        self._connection = connection
        self._table = table
        self._target = target
        self._aside = aside
        self._columns = columns
        self._known = known
        self._attempt = attempt
        self._write = write
        self._is_upsert = write.mode == UPSERT

    def run(self) -> tuple[int, list[tuple[int, int, str]]]:
        """Insert or upsert the rows.

        Returns:
            The number of rows of the batch in the table, for an upsert the number inserted or updated. And
            segment, position and reason of each refused message.

        Raises:
            ConfigurationError: The rows lack a column that the table requires.
            PoisonMessageError: A row is refused, and its message must not be rejected.
        """
        try:
            return self._insert()
        except _RowRefusedError as error:
            if error.column and error.column not in self._columns:
                raise ConfigurationError(
                    f"table {self._table}: {error}. The rows have no column {error.column!r}: add it to "
                    "them, or give it a default in the table"
                ) from error
            raise

    def _insert(self) -> tuple[int, list[tuple[int, int, str]]]:
        why = self._connection.rows(f"SELECT min({_REASON}) FROM {self._aside}")[0][0]  # noqa: S608 - quoted
        if why is not None and not self._attempt.rejects_rows:
            raise PoisonMessageError(f"table {self._table}: {why}")
        if why is None:
            self._connection.execute("SAVEPOINT jms_rows")
            try:
                return self._insert_all(), []
            except _RowRefusedError:
                if not self._attempt.rejects_rows:
                    raise
            self._connection.execute("ROLLBACK TO SAVEPOINT jms_rows")
        return self._insert_each()

    def _insert_all(self) -> int:
        if self._is_upsert:
            return self._upsert()
        count = self._connection.execute(
            f"INSERT INTO {self._target} ({self._listed()}) SELECT {self._values('')} FROM {self._aside} "  # noqa: S608 - quoted
            f"WHERE ({_PARTITION}, {_TRANSACTION}) IN ({self._newest()})",
            of_rows=True,
        )
        self._connection.execute("SET CONSTRAINTS ALL IMMEDIATE", of_rows=True)
        return count

    def _upsert(self) -> int:
        """Upsert the newest row of each key, except for rows that have a reason to be refused."""
        keys = ", ".join(map(_quoted, self._write.keys))
        order = f"{_quoted(self._write.order_by)} DESC NULLS LAST, " if self._write.order_by else ""
        self._connection.execute(
            f"DELETE FROM {self._aside} WHERE ctid NOT IN (SELECT DISTINCT ON ({keys}) ctid "  # noqa: S608 - quoted
            f"FROM {self._aside} WHERE {_REASON} IS NULL "
            f"AND ({_PARTITION}, {_TRANSACTION}) IN ({self._newest()}) "
            f"ORDER BY {keys}, {order}jms_segment DESC, jms_position DESC)"
        )
        same = " AND ".join(f"t.{_quoted(name)} = {self._value('s.', name)}" for name in self._write.keys)
        self._connection.execute(
            f"DELETE FROM {self._target} AS t USING {self._aside} AS s "  # noqa: S608 - quoted
            f"WHERE s.{_DELETES} AND {same} AND {self._newer('s')}"
        )
        count = self._connection.execute(
            f"INSERT INTO {self._target} AS t ({self._listed()}) SELECT {self._values('')} "  # noqa: S608 - quoted
            f"FROM {self._aside} WHERE NOT {_DELETES} {self._on_conflict()}",
            of_rows=True,
        )
        self._connection.execute("SET CONSTRAINTS ALL IMMEDIATE", of_rows=True)
        return count

    def _newer(self, row: str) -> str:
        """Return a condition in SQL that is true unless a row is older than the table's row `t`.

        Args:
            row: Alias of the row in SQL.
        """
        if self._write.order_by is None:
            return "true"
        at = _quoted(self._write.order_by)
        return f"(t.{at} IS NULL OR coalesce({row}.{at} >= t.{at}, false))"

    def _on_conflict(self) -> str:
        keys = ", ".join(map(_quoted, self._write.keys))
        updates = ", ".join(f"{_quoted(name)} = EXCLUDED.{_quoted(name)}" for name in self._columns)
        return f"ON CONFLICT ({keys}) DO UPDATE SET {updates} WHERE {self._newer('EXCLUDED')}"

    def _insert_each(self) -> tuple[int, list[tuple[int, int, str]]]:
        """Find the messages that the database refuses, and insert the others."""
        self._connection.execute(
            f"DELETE FROM {self._aside} WHERE ({_PARTITION}, {_TRANSACTION}) NOT IN ({self._newest()})"  # noqa: S608 - quoted
        )
        self._connection.execute(f"CREATE INDEX ON {self._aside} (jms_segment, jms_position)")
        self._connection.execute(f"DO {_literal(self._block())}", of_rows=True)
        self._connection.execute("SET CONSTRAINTS ALL IMMEDIATE", of_rows=True)
        ((found,),) = self._connection.rows(
            "SELECT json_agg(json_build_array(jms_segment, jms_position, why)) FROM (SELECT jms_segment, "  # noqa: S608 - quoted
            f"jms_position, min({_REASON}) AS why FROM {self._aside} WHERE {_REASON} IS NOT NULL "
            "GROUP BY 1, 2) AS refused"
        )
        if self._is_upsert:
            count = self._upsert()
        else:
            ((stored,),) = self._connection.rows(
                f"SELECT count(*) FROM {self._target} WHERE {_quoted(BATCH_COLUMN)} = ?",  # noqa: S608 - quoted
                self._attempt.batch_id,
            )
            count = int(str(stored))
        refused = json.loads(str(found)) if found is not None else []
        return count, [(at, row, f"table {self._table}: {why}") for at, row, why in refused]

    def _listed(self) -> str:
        return ", ".join(map(_quoted, self._columns))

    def _values(self, row: str) -> str:
        return ", ".join(self._value(row, name) for name in self._columns)

    def _value(self, row: str, name: str) -> str:
        kind = self._known[name]
        return f"{row}{_quoted(name)}" + (f"::{kind}" if kind in _FROM_TEXT else "")

    def _newest(self) -> str:
        return f"SELECT {_PARTITION}, max({_TRANSACTION}) FROM {self._aside} GROUP BY {_PARTITION}"  # noqa: S608 - quoted

    def _block(self) -> str:
        """Return a PL/pgSQL block that inserts the rows of each message.

        If the database refuses a row, the block records the reason and inserts no row of that message. For an
        upsert, the block only tests the rows: it rolls back each message's rows at once.
        """
        conflict, rows, end = "", "", ""
        if self._is_upsert:
            rows = f" AND NOT {_DELETES}"
            conflict = f" {self._on_conflict()}"
            end = f"RAISE EXCEPTION USING ERRCODE = {_literal(_TRIED)};"
        own = ", ".join(map(_literal, self._columns))
        return f"""
        DECLARE
            _jms_row {self._aside}%ROWTYPE;
            _jms_message record;
            _jms_state text; _jms_said text; _jms_constraint text; _jms_column text;
            _jms_why text; _jms_names text[]; _jms_values text;
        BEGIN
            FOR _jms_message IN
                SELECT jms_segment AS at, jms_position AS number FROM {self._aside}
                GROUP BY 1, 2 HAVING min({_REASON}) IS NULL ORDER BY 1, 2
            LOOP
            BEGIN
                FOR _jms_row IN SELECT * FROM {self._aside}
                    WHERE jms_segment = _jms_message.at AND jms_position = _jms_message.number{rows}
                LOOP
                    INSERT INTO {self._target} AS t ({self._listed()})
                    VALUES ({self._values("_jms_row.")}){conflict};
                END LOOP;
                {end}
            EXCEPTION WHEN SQLSTATE '{_TRIED}' THEN
                NULL;
            WHEN data_exception OR integrity_constraint_violation THEN
                GET STACKED DIAGNOSTICS _jms_state = RETURNED_SQLSTATE, _jms_said = MESSAGE_TEXT,
                    _jms_constraint = CONSTRAINT_NAME, _jms_column = COLUMN_NAME;
                _jms_why := NULL;
                -- A column that no row has is a fault of the job, not of a message.
                IF _jms_column <> '' AND _jms_column <> ALL (ARRAY[{own}]) THEN
                    RAISE;
                END IF;
                IF _jms_state LIKE '22%' THEN
                    {self._misfits()}
                END IF;
                IF _jms_why IS NULL THEN
                    SELECT array_agg(attname::text) INTO _jms_names FROM pg_attribute
                    WHERE attrelid = to_regclass({_literal(self._target)}) AND (
                        attname = _jms_column
                        OR attnum IN (SELECT unnest(conkey) FROM pg_constraint
                            WHERE conrelid = attrelid AND conname = _jms_constraint)
                        OR attnum IN (SELECT unnest(indkey) FROM pg_index JOIN pg_class ON oid = indexrelid
                            WHERE indrelid = attrelid AND relname = _jms_constraint));
                    SELECT json_object_agg(key, value)::text INTO _jms_values
                    FROM json_each(row_to_json(_jms_row)) WHERE key = ANY (_jms_names);
                    _jms_why := {_beginning("_jms_said", _SHOWN_SAID)}
                        || coalesce(', found the values ' || {_beginning("_jms_values")}, '');
                END IF;
                UPDATE {self._aside} SET {_REASON} = _jms_why
                WHERE jms_segment = _jms_message.at AND jms_position = _jms_message.number;
            END;
            END LOOP;
        END"""  # noqa: S608 - quoted

    def _misfits(self) -> str:
        """Return statements that record the reason if a text doesn't fit its column's type."""
        found = []
        for name, kind in self._columns.items():
            known = self._known[name]
            if kind == "text" and known != kind:
                value = f"_jms_row.{_quoted(name)}"
                said = _literal(f"column '{name}': the value is no {known}, found the string \"")
                reason = f"{said} || {_beginning(value, SHOWN)} || '\"'"
                found.append(f"""
                    DECLARE _jms_value {known};
                    BEGIN
                        _jms_value := {value};
                    EXCEPTION WHEN data_exception THEN _jms_why := coalesce(_jms_why, {reason});
                    END;""")
        return "".join(found) or "NULL;"


def _beginning(text: str, most: int = _SHOWN_VALUES) -> str:
    """Return an expression for the beginning of a text on one line, of at most `most` characters."""
    return (
        f"regexp_replace(left({text}, {most}), '[[:cntrl:]]', ' ', 'g') "
        f"|| CASE WHEN length({text}) > {most} THEN '…' ELSE '' END"
    )


def _checked(table: str, options: Mapping[str, str]) -> tuple[str | None, str]:
    """Check the options and the name of a table; return its schema, or `None`, and its name."""
    url = options.get("url", "")
    if not url.startswith(_SCHEME):
        shown = f"{url.partition('//')[0]}..." if url else "none"
        raise ConfigurationError(
            f"format jdbc: expected options with a url such as {_SCHEME}//host:5432/database, found {shown}; "
            "other databases aren't supported"
        )
    if any(name.lower() == "isolationlevel" and options[name].upper() == "NONE" for name in options):
        raise ConfigurationError(
            "format jdbc: isolationLevel: got NONE, expected a level with transactions, or no such option"
        )
    schema, _, name = table.rpartition(".")
    if not name or "." in schema or "/" in table or (not schema and "." in table):
        raise ConfigurationError(f"table {table!r}: expected a name such as orders or sales.orders")
    return schema or None, name


class _Widening:
    """Changes columns that are too narrow for the staged rows, in the same transaction as the rows."""

    def __init__(
        self, connection: _Connection, table: str, target: str, aside: str, attempt: TableAttempt
    ) -> None:
        self._connection = connection
        self._table = table
        self._target = target
        self._aside = aside
        self._attempt = attempt

    def run(self, known: dict[str, str], columns: Mapping[str, str], keys: Sequence[str]) -> None:
        """Change the table's columns, and update their types in `known`."""
        for name, kind in columns.items():
            common = _common_type(known[name], kind) if name in known else None
            if common is not None and common != known[name]:
                self._change(name, f"TYPE {common}", f"{known[name]} to {common}")
                known[name] = common
        strict = self._connection.rows(
            "SELECT attname::text FROM pg_attribute WHERE attrelid = to_regclass(?) AND attnum > 0 "
            "AND NOT attisdropped AND attnotnull AND NOT atthasdef AND attidentity = '' AND NOT EXISTS ("
            "SELECT FROM pg_index WHERE indrelid = attrelid AND indisprimary AND attnum = ANY (indkey))",
            self._target,
        )
        for name in (str(name) for (name,) in strict):
            if name not in keys and self._lacks(name if name in columns else None):
                self._change(name, "DROP NOT NULL", "may be NULL")

    def _lacks(self, name: str | None) -> bool:
        lacks = "true" if name is None else f"{_quoted(name)} IS NULL"
        ((found,),) = self._connection.rows(
            f"SELECT EXISTS (SELECT FROM {self._aside} WHERE {_REASON} IS NULL AND {lacks})::text"  # noqa: S608 - quoted
        )
        return found == "true"

    def _change(self, name: str, change: str, said: str) -> None:
        self._attempt.note_change(f"table {self._table}: column {name!r}: {said}")
        self._connection.execute(f"ALTER TABLE {self._target} ALTER COLUMN {_quoted(name)} {change}")


def _common_type(one: str, other: str) -> str | None:
    """Return the type that can hold every value of two types of the same family; otherwise `None`."""
    for family in _FAMILIES:
        if one in family and other in family:
            return max(one, other, key=family.index)
    numbers = [_NUMERIC.fullmatch(each) for each in (one, other)]
    if None in numbers:
        return None
    (left, left_scale), (right, right_scale) = ((int(each[1]), int(each[2])) for each in numbers if each)
    scale = max(left_scale, right_scale)
    return f"numeric({max(left - left_scale, right - right_scale) + scale},{scale})"


def _fit(
    connection: _Connection,
    table: str,
    target: str,
    columns: Mapping[str, str],
    *,
    keys: Sequence[str],
    widening: _Widening | None,
) -> dict[str, str]:
    """Create the table or add missing columns; return the columns with their types.

    Raises:
        ConfigurationError: A column's type can't hold the rows' values without loss, or the keys of an upsert
            have no unique index.
    """
    listed_keys = ", ".join(map(_quoted, keys))
    if connection.rows("SELECT to_regclass(?)::text", target)[0][0] is None:
        listed = ", ".join(f"{_quoted(name)} {kind}" for name, kind in columns.items())
        connection.execute(f"CREATE TABLE {target} ({listed})")
        connection.execute(f"CREATE INDEX ON {target} ({_quoted(BATCH_COLUMN)})")
        if keys:
            connection.execute(f"CREATE UNIQUE INDEX ON {target} ({listed_keys})")
        return dict(columns)
    known = _columns(connection, target)
    if keys and not _is_unique(connection, target, keys):
        raise ConfigurationError(
            f"table {table}: mode 'upsert': there is no unique index on the keys. Nothing was written: "
            f"CREATE UNIQUE INDEX ON {target} ({listed_keys})"
        )
    faults = [
        f"column {name!r} is {known[name]} in the table, and {kind} in the rows of this batch"
        for name, kind in columns.items()
        if name in known
        and not _takes(known[name], kind)
        and (widening is None or _common_type(known[name], kind) is None)
    ]
    if faults:
        raise ColumnTypesError(
            f"table {table}: {'; '.join(faults)}. Nothing was written: cast the column to the table's type, "
            "give it another name, or write to another table"
        )
    if widening is not None:
        widening.run(known, columns, keys)
    for name, kind in columns.items():
        if name not in known:
            connection.execute(f"ALTER TABLE {target} ADD COLUMN {_quoted(name)} {kind}")
    return {**columns, **known}


def _is_unique(connection: _Connection, target: str, keys: Sequence[str]) -> bool:
    found = connection.rows(
        "SELECT json_agg(attname::text) FROM pg_index JOIN pg_attribute ON attrelid = indrelid "
        "AND attnum = ANY (indkey) WHERE indrelid = to_regclass(?) AND indisunique AND indpred IS NULL "
        "AND NOT 0 = ANY (indkey) GROUP BY indexrelid",
        target,
    )
    return any(set(json.loads(str(names))) == set(keys) for (names,) in found)


def _takes(known: str, kind: str) -> bool:
    # The database refuses a text that is too long for its column, and doesn't cut it.
    text = known.startswith("character v") or known in _FROM_TEXT
    return known == kind or (kind, known) in _WIDER or (kind == "text" and text)


def _columns(connection: _Connection, table: str) -> dict[str, str]:
    """Return the columns of a table with their types, in the database's spelling."""
    found = connection.rows(
        "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        table,
    )
    return {str(name): str(kind) for name, kind in found}


def _remove_aside(connection: _Connection, schema: str | None, prefix: str) -> None:
    """Remove the staging tables of earlier attempts, except for tables that are still being written."""
    for (name,) in connection.rows(
        "SELECT tablename::text FROM pg_tables "
        "WHERE schemaname = coalesce(?, current_schema()) AND starts_with(tablename, ?)",
        schema,
        prefix,
    ):
        within = f"{_quoted(schema)}." if schema else ""
        try:
            connection.execute("SET LOCAL lock_timeout = '1s'")
            connection.execute(f"DROP TABLE IF EXISTS {within}{_quoted(str(name))}")
            connection.commit()
        except ConfigurationError as error:
            _log.warning("%s: not removed, because an older attempt still writes to it: %s", name, error)
            connection.roll_back()
    connection.commit()


def _drop_aside(connection: _Connection, aside: str) -> None:
    """Drop the staging table of a failed attempt; if a task still writes to it, the next attempt drops it."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - comes with pyspark

    try:
        connection.roll_back()
        connection.execute("SET LOCAL lock_timeout = '1s'")
        connection.execute(f"DROP TABLE IF EXISTS {aside}")
        connection.commit()
    except (ConfigurationError, Py4JError, OSError) as error:
        _log.warning("%s: can't be removed; the next attempt removes it: %s", aside, error)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


class _Connection:
    """A connection of the Spark driver's JVM to the database, in a transaction; closing it rolls back.

    Args:
        df: A DataFrame of the Spark session.
        options: Spark's options for JDBC.
    """

    def __init__(self, df: DataFrame, options: Mapping[str, str]) -> None:
        self._jvm: Any = df.sparkSession.sparkContext._jvm  # noqa: SLF001 - the way to JDBC that Spark has
        self._options = options
        self._connection: Any = None

    def __enter__(self) -> Self:
        from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with pyspark

        spark = self._jvm.org.apache.spark.sql
        options = self._jvm.PythonUtils.toScalaMap(dict(self._options))
        try:
            made = spark.execution.datasources.jdbc.JDBCOptions(options)
            dialect = spark.jdbc.JdbcDialects.get(self._options["url"])
            self._connection = dialect.createConnectionFactory(made).apply(-1)
        except Py4JJavaError as error:
            if "ClassNotFoundException" in str(error):
                raise ConfigurationError(
                    "format jdbc: the PostgreSQL driver is not installed in Spark; submit the job "
                    "with --packages "
                    f"{_PACKAGES}"
                ) from error
            # User, password, database.
            if _sql_state(error).startswith(("28", "3D")):
                raise ConfigurationError(
                    f"the database refuses: {error.java_exception.getMessage()}"
                ) from error
            raise
        self._connection.setAutoCommit(False)
        return self

    def __exit__(self, *_: object) -> None:
        from py4j.protocol import Py4JError  # noqa: PLC0415 - comes with pyspark

        with suppress(Py4JError):  # the database rolls back a lost connection
            self._connection.rollback()
            self._connection.close()

    def commit(self) -> None:
        self._run(self._connection.commit)

    def roll_back(self) -> None:
        self._connection.rollback()

    def execute(self, statement: str, *values: str | None, of_rows: bool = False) -> int:
        """Run a statement and return the number of changed rows.

        Args:
            statement: The statement, with `?` for values.
            values: The values as texts, or `None` for NULL.
            of_rows: Whether the statement stores rows of the batch. Then an error of SQLSTATE classes 22 and
                23 means that a row is refused.

        Raises:
            ConfigurationError: The database refuses the statement.
            PoisonMessageError: The database refuses a row.
        """
        prepared = self._prepared(statement, values)
        try:
            return int(self._run(prepared.executeLargeUpdate, of_rows=of_rows))
        finally:
            prepared.close()

    def rows(self, query: str, *values: str | None) -> list[tuple[object, ...]]:
        """Return the rows of a query, with values as texts.

        Raises:
            ConfigurationError: The database refuses the query.
        """
        prepared = self._prepared(query, values)
        try:
            result = self._run(prepared.executeQuery)
            width = result.getMetaData().getColumnCount()
            found = []
            while result.next():
                found.append(tuple(result.getString(number + 1) for number in range(width)))
            return found
        finally:
            prepared.close()

    def _prepared(self, statement: str, values: Sequence[str | None]) -> Any:
        prepared = self._connection.prepareStatement(statement)
        for number, value in enumerate(values):
            prepared.setString(number + 1, value)
        return prepared

    def _run(self, call: Any, *, of_rows: bool = False) -> Any:
        """Call a function of the JDBC driver, and return its result.

        Raises:
            _RowRefusedError: The database refuses a row, and `of_rows` is `True`.
            ConfigurationError: The database refuses the call for another reason that a retry can't fix.
        """
        from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with pyspark

        try:
            return call()
        except Py4JJavaError as error:
            state, said = _sql_state(error), error.java_exception.getMessage()
            if of_rows and state.startswith(_ROW_STATES):
                server = error.java_exception.getServerErrorMessage()
                column = server.getColumn() if server is not None else None
                raise _RowRefusedError(f"the database refuses a row: {said}", column or "") from error
            # Unsupported features, names and permissions, locks held by others.
            if state.startswith((*_ROW_STATES, "0A", "42", "55")):
                raise ConfigurationError(f"the database refuses: {said}") from error
            raise


def _sql_state(error: Py4JJavaError) -> str:
    """Return the SQLSTATE of an exception of the JDBC driver; empty for other exceptions."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - comes with pyspark

    try:
        return str(error.java_exception.getSQLState() or "")
    except Py4JError:
        return ""
