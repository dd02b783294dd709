"""A table of PostgreSQL, in which each batch is replaced in one transaction.

Executors write the rows into a table aside, `jms_<digest>_<fence>`, in the schema of the target. The driver
then does all the rest in one transaction: rows of the batch out, rows from aside in, table aside away.

A task of Spark's commits its partition as one transaction. A task that is run again, although its rows are
there, writes them once more: its executor died, or lost the database, before it could report. So each row
aside has the partition and the transaction it came by, and of each partition the newest transaction counts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.spark.tables import BATCH_COLUMN, TableAttempt
from airflow_provider_jmsjca.spark.tables.columns import stored_rows
from airflow_provider_jmsjca.spool.attempts import check_fence, committing_as

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MODES: Final = ("append",)
_DRIVER: Final = "org.postgresql.Driver"
_SCHEME: Final = "jdbc:postgresql:"
_PACKAGES: Final = "org.postgresql:postgresql:42.7.8"
_PARTITION: Final = "_jms_partition"
_TRANSACTION: Final = "_jms_transaction"
# What takes every value of the first and loses nothing.
_WIDER: Final = frozenset(
    {
        ("smallint", "integer"),
        ("smallint", "bigint"),
        ("integer", "bigint"),
        ("real", "double precision"),
    }
)
_log = safe_logger(__name__)


def replace_in_one_transaction(
    df: DataFrame,
    table: str,
    attempt: TableAttempt,
    options: Mapping[str, str],
    partition_by: Sequence[str] = (),
) -> int:
    """Replace the rows of the batch by these.

    Guarantee: the table has all of these rows once or is as before, whenever a process or the connection
    dies. A task of Spark's that is run again replaces what it wrote before. Of two attempts that commit at
    the same moment the older one commits nothing: they wait for each other with a lock of the database, and
    the fence is checked right at the commit.

    Args:
        df: The rows.
        table: Name of the table, `orders` or `sales.orders`, as the database spells it; created if missing,
            with an index on `jms_batch_id`. Columns that it lacks are added.
        attempt: Who writes.
        options: Spark's for JDBC: `url`, `user`, `password` and so on; `isolationLevel` can't be `NONE`.
        partition_by: Must be empty.

    Returns:
        How many rows of the batch the table has.

    Raises:
        ConfigurationError: The URL is missing or not PostgreSQL's, the driver isn't there, the name is no
            table's, tasks would write without transactions, or a column has a type that doesn't take the
            rows' without loss. Nothing was changed.
        FencedError: A newer attempt has begun. Nothing was changed.
    """
    from pyspark.sql import functions as sql  # noqa: PLC0415 - only jobs have pyspark

    schema, name = _checked(table, options, partition_by)
    digest = hashlib.sha256(json.dumps([table, attempt.batch_id]).encode()).hexdigest()
    prefix = f"jms_{digest[:16]}_"
    within = f"{_quoted(schema)}." if schema else ""
    target, aside = within + _quoted(name), f"{within}{_quoted(f'{prefix}{attempt.fence}')}"
    given = {"driver": _DRIVER, **options, "dbtable": aside}
    rows = stored_rows(table, df).withColumn(BATCH_COLUMN, sql.lit(attempt.batch_id))
    rows = rows.withColumn(_PARTITION, sql.spark_partition_id())
    with _Connection(df, given) as connection:
        _remove_aside(connection, schema, prefix)
        check_fence(attempt.folder, attempt.fence)
        rows.limit(0).write.format("jdbc").options(**given).mode("errorifexists").save()
        connection.execute(
            f"ALTER TABLE {aside} ADD COLUMN {_TRANSACTION} bigint NOT NULL DEFAULT txid_current()"
        )
        connection.commit()
        rows.write.format("jdbc").options(**given).mode("append").save()
        connection.rows("SELECT pg_advisory_xact_lock(hashtextextended(?, 0))", target)
        columns = _columns(connection, aside)
        del columns[_PARTITION], columns[_TRANSACTION]
        _fit(connection, table, target, columns)
        listed = ", ".join(map(_quoted, columns))
        connection.execute(f"DELETE FROM {target} WHERE {_quoted(BATCH_COLUMN)} = ?", attempt.batch_id)  # noqa: S608 - quoted
        count = connection.execute(
            f"INSERT INTO {target} ({listed}) SELECT {listed} FROM {aside} "  # noqa: S608 - quoted
            f"WHERE ({_PARTITION}, {_TRANSACTION}) IN "
            f"(SELECT {_PARTITION}, max({_TRANSACTION}) FROM {aside} GROUP BY {_PARTITION})"
        )
        connection.execute(f"DROP TABLE {aside}")
        with committing_as(attempt.folder, attempt.fence):
            connection.commit()
    return count


def _checked(table: str, options: Mapping[str, str], partition_by: Sequence[str]) -> tuple[str | None, str]:
    """Return schema and name of a table."""
    url = options.get("url", "")
    if not url.startswith(_SCHEME):
        shown = f"{url.partition('//')[0]}..." if url else "none"
        raise ConfigurationError(
            f"format jdbc: expected options with a url such as {_SCHEME}//host:5432/database, found {shown}; "
            "other databases aren't supported"
        )
    if partition_by:
        raise ConfigurationError(
            "format jdbc: partition_by: a table of a database isn't partitioned by Spark"
        )
    if any(name.lower() == "isolationlevel" and options[name].upper() == "NONE" for name in options):
        raise ConfigurationError(
            "format jdbc: isolationLevel: got NONE, expected a level with transactions, or no such option"
        )
    schema, _, name = table.rpartition(".")
    if not name or "." in schema or "/" in table or (not schema and "." in table):
        raise ConfigurationError(f"table {table!r}: expected a name such as orders or sales.orders")
    return schema or None, name


def _fit(connection: _Connection, table: str, target: str, columns: Mapping[str, str]) -> None:
    """Create the table or give it the columns it lacks; refuse what it can't take without loss."""
    if connection.rows("SELECT to_regclass(?)::text", target)[0][0] is None:
        listed = ", ".join(f"{_quoted(name)} {kind}" for name, kind in columns.items())
        connection.execute(f"CREATE TABLE {target} ({listed})")
        connection.execute(f"CREATE INDEX ON {target} ({_quoted(BATCH_COLUMN)})")
        return
    known = _columns(connection, target)
    faults = [
        f"column {name!r} is {known[name]} in the table, and {kind} in what this batch would write"
        for name, kind in columns.items()
        if name in known and not _takes(known[name], kind)
    ]
    if faults:
        raise ConfigurationError(
            f"table {table}: {'; '.join(faults)}. Nothing was written: cast the column to the table's type, "
            "give it another name, or write to another table"
        )
    for name, kind in columns.items():
        if name not in known:
            connection.execute(f"ALTER TABLE {target} ADD COLUMN {_quoted(name)} {kind}")


def _takes(known: str, kind: str) -> bool:
    # A text that is too long for its column is an error, and isn't cut.
    return known == kind or (kind, known) in _WIDER or (kind == "text" and known.startswith("character v"))


def _columns(connection: _Connection, table: str) -> dict[str, str]:
    """Return the columns of a table with their types, as the database writes them."""
    found = connection.rows(
        "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        table,
    )
    return {str(name): str(kind) for name, kind in found}


def _remove_aside(connection: _Connection, schema: str | None, prefix: str) -> None:
    """Remove what earlier attempts left; a table that one of them still writes to stays for the next."""
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
            _log.warning("%s: an older attempt still writes to it: %s", name, error)
            connection.roll_back()
    connection.commit()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class _Connection:
    """A connection of the driver's JVM to the database, in a transaction; closing rolls back.

    Args:
        df: Whose Spark it is.
        options: Spark's for JDBC.
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
                    "format jdbc: Spark has no driver for PostgreSQL; submit the job with --packages "
                    f"{_PACKAGES}"
                ) from error
            raise
        self._connection.setAutoCommit(False)
        return self

    def __exit__(self, *_: object) -> None:
        from py4j.protocol import Py4JError  # noqa: PLC0415 - comes with pyspark

        with suppress(Py4JError):  # the database rolls back what a lost connection leaves
            self._connection.rollback()
            self._connection.close()

    def commit(self) -> None:
        self._connection.commit()

    def roll_back(self) -> None:
        self._connection.rollback()

    def execute(self, statement: str, *values: str | None) -> int:
        """Run a statement and return how many rows it changed.

        Raises:
            ConfigurationError: The database refuses it.
        """
        prepared = self._prepared(statement, values)
        try:
            return int(self._run(prepared.executeLargeUpdate))
        finally:
            prepared.close()

    def rows(self, query: str, *values: str | None) -> list[tuple[object, ...]]:
        """Return what a query finds.

        Raises:
            ConfigurationError: The database refuses it.
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

    def _run(self, call: Any) -> Any:
        """Call the database; what it refuses for good is a fault of the configuration."""
        from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with pyspark

        try:
            return call()
        except Py4JJavaError as error:
            state = str(getattr(error.java_exception, "getSQLState", lambda: "")())
            # Data, constraints, names and rights, a lock that others hold.
            if state.startswith(("22", "23", "42", "55")):
                raise ConfigurationError(
                    f"the database refuses: {error.java_exception.getMessage()}"
                ) from error
            raise
