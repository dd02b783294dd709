"""`evolve`: columns of a table follow the batches, without loss, whatever is killed or runs at once."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_jmsjca import Batch, ConfigurationError, JmsMessage, Manifest
from tests.internals.spark import delta, jdbc, main, parquet
from tests.internals.spool import Done, take_fence
from tests.servers.postgres import Postgres
from tests.spark.conftest import MakeBatch
from tests.spark.test_jdbc import options_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NARROW = "k STRING, n INT, f FLOAT, d DECIMAL(6,2)"
WIDE = "k STRING, n LONG, f DOUBLE, d DECIMAL(10,3)"
NESTED = ", s STRUCT<x: {0}>, l ARRAY<{0}>"


class Writer:
    """Writes batches of one message each into a table."""

    def __init__(self, spark: SparkSession, make_batch: MakeBatch, table: str, **arguments: Any) -> None:
        self._spark, self._make_batch = spark, make_batch
        self._table, self._arguments = table, arguments
        self._batches: dict[str, Manifest] = {}

    def manifest(self, batch_id: str, body: dict[str, object]) -> Manifest:
        if batch_id not in self._batches:
            self._batches[batch_id] = self._make_batch([JmsMessage.text(json.dumps(body))], batch_id=batch_id)
        return self._batches[batch_id]

    def write(
        self, batch_id: str, schema: str, body: dict[str, object], *, dies: bool = False, **arguments: Any
    ) -> Done:
        manifest = self.manifest(batch_id, body)
        batch = Batch(manifest, take_fence(manifest.folder), shows_progress=False)
        try:
            rows = batch.json(batch.messages(self._spark), schema).rows
            if dies:
                rows = rows.selectExpr(
                    *(name for name in rows.columns if name != "n"),
                    "CASE WHEN n IS NOT NULL THEN raise_error('it dies') ELSE n END AS n",
                )
            batch.write(rows, self._table, **{**self._arguments, **arguments})
            return batch.finish()
        finally:
            batch.close()


def body(k: str | None, n: int, f: float, d: float, item: int | None = None) -> dict[str, object]:
    found: dict[str, object] = {"k": k, "n": n, "f": f, "d": d}
    return found if item is None else found | {"s": {"x": item}, "l": [item]}


def test_delta_columns_are_widened_once(spark: SparkSession, make_batch: MakeBatch, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    narrow, wide = NARROW + NESTED.format("INT"), WIDE + NESTED.format("LONG")
    spark.sql(f"CREATE TABLE delta.`{table}` ({narrow.replace('k STRING', 'k STRING NOT NULL')}) USING delta")
    writer = Writer(spark, make_batch, table, format="delta")
    writer.write("one", narrow, body("a", 1, 0.5, 1.25, 1))
    big = body(None, 5_000_000_000, 0.1, 1234567.125, 6_000_000_000)

    with pytest.raises(ConfigurationError, match="'n' is INT in the table, and BIGINT in the rows"):
        writer.write("two", wide, big)
    with pytest.raises(ConfigurationError, match=r"SET TBLPROPERTIES .'delta\.enableTypeWidening' = 'true'"):
        writer.write("two", wide, big, evolve="widen")
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    with pytest.raises(Exception, match="it dies"):
        writer.write("two", wide, big, evolve="widen", dies=True)
    done = writer.write("two", wide, big, evolve="widen")
    assert done.evolved == tuple(
        f"table {table}: column {change}"
        for change in (
            "'n': INT to BIGINT",
            "'f': FLOAT to DOUBLE",
            "'d': DECIMAL(6,2) to DECIMAL(10,3)",
            "'s.x': INT to BIGINT",
            "'l.element': INT to BIGINT",
            "'k': may be NULL",
        )
    )
    # A job with the old schema goes on, and changes nothing.
    assert writer.write("three", narrow, body("c", 3, 0.25, 3.5, 3), evolve="widen").evolved == ()
    found = spark.read.format("delta").load(table).selectExpr("k", "n", "f", "string(d)", "s.x", "l[0]")
    assert sorted(map(tuple, found.collect()), key=lambda row: row[1]) == [
        ("a", 1, 0.5, "1.250", 1, 1),
        ("c", 3, 0.25, "3.500", 3, 3),
        (None, 5_000_000_000, 0.1, "1234567.125", 6_000_000_000, 6_000_000_000),
    ]
    with pytest.raises(ConfigurationError, match="'n' is BIGINT in the table, and STRING"):
        writer.write("four", "n STRING", {"n": "x"}, evolve="widen")
    with pytest.raises(ConfigurationError, match="evolve 'narrow': expected 'add' or 'widen'"):
        writer.write("five", narrow, body("c", 3, 0.25, 3.5, 3), evolve="narrow")


def test_two_batches_widen_a_delta_table_at_once(
    spark: SparkSession, make_batch: MakeBatch, tmp_path: Path
) -> None:
    table = str(tmp_path / "table")
    properties = {"delta.enableTypeWidening": "true"}
    writer = Writer(spark, make_batch, table, format="delta", evolve=["widen"], table_properties=properties)
    writer.write("zero", "n INT, f FLOAT", {"n": 0, "f": 0.5})
    bodies = {"one": {"n": 5_000_000_000}, "two": {"f": 0.1}, "three": {"n": 6_000_000_000}}
    for batch_id, said in bodies.items():
        writer.manifest(batch_id, said)
    with ThreadPoolExecutor(3) as threads:
        schemas = ("n LONG", "f DOUBLE", "n LONG")
        list(threads.map(lambda each: writer.write(each[1], each[0], {}), zip(schemas, bodies, strict=True)))
    found = spark.read.format("delta").load(table).select("jms_batch_id", "n", "f")
    assert sorted(map(tuple, found.collect())) == [
        ("one", 5_000_000_000, None),
        ("three", 6_000_000_000, None),
        ("two", None, 0.1),
        ("zero", 0, 0.5),
    ]


def test_postgresql_columns_are_widened_with_the_rows(
    spark: SparkSession, make_batch: MakeBatch, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(spark), "stop", lambda _: None)  # other tests go on with it
    with psycopg.connect(postgres.url(driver="postgresql"), autocommit=True) as database:
        database.execute("DROP TABLE IF EXISTS widening")
        database.execute(
            "CREATE TABLE widening "
            "(id serial PRIMARY KEY, k text NOT NULL, n integer, f real, d numeric(6,2))"
        )
        writer = Writer(spark, make_batch, "widening", format="jdbc", options=options_of(postgres))
        writer.write("one", NARROW, body("a", 1, 0.5, 1.25))
        big = body(None, 5_000_000_000, 0.1, 1234567.125)

        def columns() -> list[tuple[object, ...]]:
            return database.execute(
                "SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute "
                "WHERE attrelid = 'widening'::regclass AND attname IN ('k', 'n', 'f', 'd') ORDER BY attnum"
            ).fetchall()

        before = columns()
        with pytest.raises(ConfigurationError, match="'n' is integer in the table, and bigint in the rows"):
            writer.write("two", WIDE, big)
        with pytest.raises(Exception, match="it dies"):
            writer.write("two", WIDE, big, evolve="widen", dies=True)
        assert columns() == before

        manifest = writer.manifest("two", big)
        given = options_of(postgres)
        for name in ("url", "user", "password"):
            monkeypatch.setenv(f"JMSJCA_JDBC_{name.upper()}", given[name])
        main(
            [
                *("--manifest", manifest.uri, "--batch-id", "two", "--schema", WIDE),
                *("--fence", str(take_fence(manifest.folder)), "--table", "widening", "--format", "jdbc"),
                *("--evolve", "widen"),
            ]
        )
        done = Done.read(manifest.folder)
        assert done is not None
        assert done.evolved == (
            "table widening: column 'n': integer to bigint",
            "table widening: column 'f': real to double precision",
            "table widening: column 'd': numeric(6,2) to numeric(10,3)",
            "table widening: column 'k': may be NULL",
        )
        writer.write("three", NARROW, body("c", 3, 0.25, 3.5), evolve="widen")
        assert columns() == [
            ("k", "text", False),
            ("n", "bigint", False),
            ("f", "double precision", False),
            ("d", "numeric(10,3)", False),
        ]
        stored = database.execute("SELECT k, n, f, d::text FROM widening ORDER BY n").fetchall()
    assert stored == [
        ("a", 1, 0.5, "1.250"),
        ("c", 3, 0.25, "3.500"),
        (None, 5_000_000_000, 0.1, "1234567.125"),
    ]


@pytest.mark.parametrize("kind", ["parquet", "delta", "jdbc"])
def test_rescued_fields_get_columns(
    spark: SparkSession,
    make_batch: MakeBatch,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    kind: str,
) -> None:
    """A value whose type isn't the column's stays rescued, and so does what no column can have."""
    table = "rescuing" if kind == "jdbc" else str(tmp_path / "table")
    arguments: dict[str, Any] = {"format": kind, "evolve": "add"}
    if kind == "jdbc":
        postgres: Postgres = request.getfixturevalue("postgres")
        arguments["options"] = options_of(postgres)
        with psycopg.connect(postgres.url(driver="postgresql"), autocommit=True) as database:
            database.execute("DROP TABLE IF EXISTS rescuing")

    def attempt(manifest: Manifest) -> Batch:
        batch = Batch(manifest, take_fence(manifest.folder), shows_progress=False)
        rescue = "_rescued" if kind == "delta" else "_rescued STRING"
        batch.write(batch.json(batch.messages(spark), "id INT", rescue=rescue).rows, table, **arguments)
        return batch

    bodies = [
        {"id": 1, "note": "a", "n": 5, "mixed": 1, "o": {"x": 1}},
        {"id": 2, "note": None, "n": 7, "mixed": "x", "bad name": 1, "ID": 3, "jms_x": True},
    ]
    one = make_batch([JmsMessage.text(json.dumps(each)) for each in bodies], batch_id="one")
    assert attempt(one).finish().evolved == (
        f"table {table}: column 'jms_x': added as BOOLEAN",
        f"table {table}: column 'n': added as BIGINT",
        f"table {table}: column 'note': added as STRING",
    )
    two = make_batch([JmsMessage.text('{"id": 3, "n": 1.5, "note": "b", "f": 2.5}')], batch_id="two")
    attempt(two).close()  # killed before its report
    assert attempt(two).finish().evolved == (f"table {table}: column 'f': added as DOUBLE",)

    if kind == "jdbc":
        found = (
            spark.read.format("jdbc")
            .options(**arguments["options"], dbtable=table, driver="org.postgresql.Driver")
            .load()
        )
    else:
        found = spark.read.format(kind).load(table)
    rescued = "to_json(_rescued)" if kind == "delta" else "_rescued"
    stored = found.selectExpr("id", "note", "n", "f", "jms_x", rescued).sort("id").collect()
    assert [(*row[:5], row[5] and json.loads(row[5])) for row in stored] == [
        (1, "a", 5, None, None, {"mixed": 1, "o": {"x": 1}}),
        (2, None, 7, None, True, {"mixed": "x", "bad name": 1, "ID": 3}),
        (3, "b", None, 2.5, None, {"n": 1.5}),
    ]


@pytest.mark.parametrize("kind", ["parquet", "delta", "delta, at the commit", "jdbc"])
def test_two_batches_that_add_a_field_with_two_types_agree_on_one(  # noqa: PLR0917 - fixtures
    spark: SparkSession,
    make_batch: MakeBatch,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """The faster batch decides the type; the value of the other stays rescued."""
    format_, _, is_late = kind.partition(", ")
    table = "racing" if kind == "jdbc" else str(tmp_path / "table")
    arguments: dict[str, Any] = {"format": format_, "evolve": "add"}
    if kind == "jdbc":
        postgres: Postgres = request.getfixturevalue("postgres")
        arguments["options"] = options_of(postgres)
        with psycopg.connect(postgres.url(driver="postgresql"), autocommit=True) as database:
            database.execute("DROP TABLE IF EXISTS racing")
    bodies = {"zero": {"id": 0}, "slow": {"id": 1, "n": "x"}, "fast": {"id": 2, "n": 5}}
    manifests = {
        name: make_batch([JmsMessage.text(json.dumps(each))], batch_id=name) for name, each in bodies.items()
    }

    def store(name: str) -> Done:
        batch = Batch(manifests[name], take_fence(manifests[name].folder), shows_progress=False)
        rows = batch.json(batch.messages(spark), "id INT", rescue="_rescued STRING").rows
        batch.write(rows, table, **arguments)
        batch.close()
        return batch.finish()

    store("zero")
    overtaken = iter([True])

    def overtake() -> None:
        if next(overtaken, False):
            assert store("fast").evolved == (f"table {table}: column 'n': added as BIGINT",)

    module: Any = delta
    sink: Any = {"parquet": parquet.ParquetSink, "delta": delta.DeltaSink, "jdbc": jdbc.JdbcSink}[format_]
    columns, check_fence = sink.columns, module.check_fence

    def looked_at(self: Any, *given: Any) -> Any:
        found = columns(self, *given)
        overtake()
        return found

    def checked(*given: Any) -> None:
        check_fence(*given)
        overtake()

    if is_late:
        monkeypatch.setattr(module, "check_fence", checked)
    else:
        monkeypatch.setattr(sink, "columns", looked_at)
    assert store("slow").evolved == (
        f"table {table}: column 'n': added as STRING",
        f"table {table}: column 'n': not added as STRING, another batch was faster",
    )

    if kind == "jdbc":
        found = (
            spark.read.format("jdbc")
            .options(**arguments["options"], dbtable=table, driver="org.postgresql.Driver")
            .load()
        )
    else:
        found = spark.read.format(format_).load(table)
    assert [tuple(row) for row in found.select("id", "n", "_rescued").sort("id").collect()] == [
        (0, None, None),
        (1, None, '{"n":"x"}'),
        (2, 5, None),
    ]


def test_parquet_columns_keep_their_type(spark: SparkSession, make_batch: MakeBatch, tmp_path: Path) -> None:
    writer = Writer(spark, make_batch, str(tmp_path / "table"))
    with pytest.raises(ConfigurationError, match="not with format parquet: the files of earlier batches"):
        writer.write("one", NARROW, body("a", 1, 0.5, 1.25), evolve="widen")
    with pytest.raises(ConfigurationError, match="evolve='add': the rows have no column of rescued fields"):
        writer.write("one", NARROW, body("a", 1, 0.5, 1.25), evolve="add")
