"""Tables of PostgreSQL: a batch is replaced in one transaction."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_jmsjca import (
    Batch,
    ConfigurationError,
    FencedError,
    JmsMessage,
    Manifest,
    PoisonMessageError,
    rejected_messages,
)
from tests.internals.spark import jdbc, main, reject_reasons
from tests.internals.spool import take_fence
from tests.servers.broker import USER
from tests.servers.ports import HOST
from tests.servers.postgres import Postgres
from tests.spark.conftest import MakeBatch
from tests.spark.test_documentation import job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = 'sales.Or"ders'
QUOTED = 'sales."Or""ders"'


def options_of(postgres: Postgres) -> dict[str, str]:
    url = f"jdbc:postgresql://{HOST}:{postgres.ports['postgres']}/postgres"
    return {"url": url, "user": USER, "password": postgres.password}


class Writer:
    def __init__(self, spark: SparkSession, make_batch: MakeBatch, postgres: Postgres, database: Any) -> None:
        self.spark, self.database, self.options = spark, database, options_of(postgres)
        self._make_batch = make_batch
        self._batches: dict[str, Manifest] = {}

    def open(self, batch_id: str) -> Batch:
        if batch_id not in self._batches:
            self._batches[batch_id] = self._make_batch([JmsMessage.text("x")], batch_id=batch_id)
        manifest = self._batches[batch_id]
        return Batch(manifest, take_fence(manifest.folder))

    def write(self, query: str, batch_id: str, **arguments: Any) -> int:
        arguments = {"options": self.options, **arguments}
        return self.open(batch_id).write(self.spark.sql(query), TABLE, format="jdbc", **arguments)

    def read(self, columns: str = "n, jms_batch_id") -> list[tuple[Any, ...]]:
        found = self.database.execute(f"SELECT {columns} FROM {QUOTED} ORDER BY n, jms_batch_id").fetchall()  # noqa: S608
        return [tuple(row) for row in found]

    def aside(self) -> list[str]:
        found = self.database.execute("SELECT tablename FROM pg_tables WHERE starts_with(tablename, 'jms_')")
        return [name for (name,) in found.fetchall()]


@pytest.fixture
def writer(spark: SparkSession, make_batch: MakeBatch, postgres: Postgres) -> Iterator[Writer]:
    with psycopg.connect(postgres.url(driver="postgresql"), autocommit=True) as database:
        database.execute("CREATE SCHEMA sales")
        yield Writer(spark, make_batch, postgres, database)
        database.execute("DROP SCHEMA sales CASCADE")


def test_a_batch_is_there_once_however_often_it_is_written(writer: Writer) -> None:
    assert writer.write("SELECT explode(sequence(1, 40)) AS n, 'ü' AS `te xt`", "one") == 40
    assert writer.write("SELECT explode(sequence(1, 40)) AS n, 'ü' AS `te xt`", "one") == 40
    assert writer.write("SELECT 50 AS n, CAST(1.5 AS DECIMAL(5,2)) AS amount", "two") == 1
    assert writer.write("SELECT explode(sequence(1, 3)) AS n", "one") == 3
    assert writer.read() == [(1, "one"), (2, "one"), (3, "one"), (50, "two")]
    assert [str(row[0]) for row in writer.read("amount, n, jms_batch_id")] == ["None"] * 3 + ["1.50"]
    assert writer.write("SELECT 1 AS n WHERE false", "one") == 0
    assert writer.read() == [(50, "two")]
    assert writer.aside() == []


def test_what_a_table_cannot_take_without_loss_is_refused(writer: Writer) -> None:
    writer.write("SELECT 1 AS n, 2 AS i, 'a' AS t", "one")
    for query, fault in (
        (
            "SELECT 1 AS n, CAST(2 AS BIGINT) AS i",
            "column 'i' is integer in the table, and bigint in the rows",
        ),
        ("SELECT 1 AS n, 3 AS t", "column 't' is text in the table, and integer in the rows"),
    ):
        with pytest.raises(ConfigurationError, match=fault):
            writer.write(query, "two")
    writer.database.execute(f"ALTER TABLE {QUOTED} ALTER t TYPE varchar(2), ALTER i TYPE bigint")
    writer.write("SELECT 2 AS n, 5 AS i, 'ab' AS t", "two")
    # Rows that don't say which message they are from can't be rejected.
    for text, fault in (
        ("'abc'", r"the database refuses a row: .*value too long"),
        ("char(0)", "cannot store the character"),
    ):
        with pytest.raises(PoisonMessageError, match=fault):
            writer.write(f"SELECT 3 AS n, 5 AS i, {text} AS t", "two")
    assert (writer.read("n, i, t"), writer.aside()) == ([(1, 2, "a"), (2, 5, "ab")], [])


SCHEMA = "n INT, code STRING, amount DOUBLE, id STRING, more STRING, parts ARRAY<STRING>"
TABLE_OF_THE_USER = f"""
    CREATE TABLE {QUOTED} (
        n integer PRIMARY KEY, code varchar(3), amount double precision NOT NULL, id uuid, more jsonb,
        parts text[], CONSTRAINT positive CHECK (amount > 0)
    )"""
GOOD = {"amount": 1.5, "code": "abc", "id": "0f0e0d0c-0b0a-0908-0706-050403020100", "more": '{"a": [1]}'}
REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"code": "a\0b"},
        "column 'code': PostgreSQL cannot store the character U+0000, found the string \"a b\"",
    ),
    (
        {"parts": ["x", "\0"]},
        "column 'parts': PostgreSQL cannot store the character U+0000, found the string \" \"",
    ),
    ({"code": "abcd"}, "column 'code': the value is no character varying(3), found the string \"abcd\""),
    ({"code": "ä" * 99}, f'the value is no character varying(3), found the string "{"ä" * 40}…"'),
    ({"id": "x'\"y"}, "column 'id': the value is no uuid, found the string \"x'\"y\""),
    ({"more": "{"}, "column 'more': the value is no jsonb, found the string \"{\""),
    ({"n": 0}, 'duplicate key value violates unique constraint "Or"ders_pkey", found the values { "n" : 0 }'),
    ({"amount": -1}, 'violates check constraint "positive", found the values { "amount" : -1 }'),
    ({"amount": None}, 'violates not-null constraint, found the values { "amount" : null }'),
]


def test_a_message_that_the_table_refuses_is_a_reject_and_all_others_are_stored(
    writer: Writer, make_batch: MakeBatch
) -> None:
    writer.database.execute(TABLE_OF_THE_USER)
    bodies = [GOOD | {"n": 2 * number} for number in range(len(REFUSED) + 1)]
    for number, (values, _) in enumerate(REFUSED):
        bodies.insert(2 * number + 1, GOOD | {"n": 2 * number + 1} | values)
    manifest = make_batch([JmsMessage.text(json.dumps(body)) for body in bodies])
    for _ in range(2):  # the first attempt dies after the write
        batch = Batch(manifest, take_fence(manifest.folder))
        mapped = batch.json(batch.messages(writer.spark), SCHEMA)
        assert batch.write(mapped.rows, TABLE, format="jdbc", options=writer.options) == len(REFUSED) + 1
    assert (batch.finish().rejected, writer.aside()) == (len(REFUSED), [])
    stored = writer.read("n, jms_position")
    assert stored == [(2 * number, 2 * number) for number in range(len(REFUSED) + 1)]
    found = {each.number: each.exception_message for each in rejected_messages(manifest)}
    for number, (_, reason) in enumerate(REFUSED):
        assert reason in found[number]
        assert found[number].startswith(f"table {TABLE}: ")
    assert sum(reject_reasons(manifest).values()) == len(REFUSED)
    assert {each.partition(", found")[2] for each in reject_reasons(manifest)} == {
        ' the string "…"',
        " the values …",
    }


def test_a_message_with_several_rows_is_refused_as_a_whole_by_this_table_and_the_next(
    writer: Writer, make_batch: MakeBatch, tmp_path: Path
) -> None:
    writer.database.execute(f"CREATE TABLE {QUOTED} (n integer UNIQUE DEFERRABLE)")
    manifest = make_batch([JmsMessage.text("1,2"), JmsMessage.text("3,2"), JmsMessage.text("4")])
    with Batch(manifest, take_fence(manifest.folder)) as batch:
        messages = batch.messages(writer.spark)
        rows = messages.selectExpr("explode(split(CAST(body AS STRING), ',')) AS n", "_jms")
        rows = rows.selectExpr("CAST(n AS INT) AS n", "_jms")
        assert batch.write(rows, TABLE, format="jdbc", options=writer.options) == 3
        assert batch.write(rows, str(tmp_path / "copy")) == 3
    assert writer.read("n, jms_position") == [(1, 0), (2, 0), (4, 2)]
    (found,) = rejected_messages(manifest)
    assert found.message.body == "3,2"
    # A message that is in another table already can't leave the batch.
    again = make_batch([JmsMessage.text("1")], batch_id="again")
    batch = Batch(again, take_fence(again.folder))
    rows = batch.messages(writer.spark).selectExpr("1 AS n", "_jms")
    batch.write(rows, str(tmp_path / "copy"))
    with pytest.raises(PoisonMessageError, match=r"duplicate key .* Detail: Key \(n\)=\(1\) already exists"):
        batch.write(rows, TABLE, format="jdbc", options=writer.options)
    assert writer.aside() == []


def test_a_table_whose_column_the_rows_do_not_have_turns_nothing_away(
    writer: Writer, make_batch: MakeBatch
) -> None:
    writer.database.execute(f"CREATE TABLE {QUOTED} (n integer, more integer NOT NULL)")
    manifest = make_batch([JmsMessage.text("x"), JmsMessage.text("y")])
    for text in ("CAST(body AS STRING)", "if(position = 0, char(0), 'y')"):
        batch = Batch(manifest, take_fence(manifest.folder))
        rows = batch.messages(writer.spark).selectExpr("1 AS n", f"{text} AS t", "_jms")
        with pytest.raises(ConfigurationError, match="The rows have no column 'more': add it"):
            batch.write(rows, TABLE, format="jdbc", options=writer.options)
    count = writer.database.execute(f"SELECT count(*) FROM {QUOTED}").fetchone()  # noqa: S608
    assert (count, writer.aside()) == ((0,), [])


def test_types_that_the_database_does_not_have_are_refused_with_a_way_out(writer: Writer) -> None:
    with pytest.raises(ConfigurationError) as found:
        writer.write("SELECT struct(1 AS x) AS s, array(map('a', 1)) AS m, 1 AS n", "one")
    for fault in (
        "column 's': PostgreSQL has no type for STRUCT<x: INT NOT NULL>",
        "column 'm': PostgreSQL has no type for ARRAY<MAP<STRING, INT>>",
        "with to_json in a job of your own",
    ):
        assert fault in str(found.value)


def test_a_password_that_the_database_refuses_is_said(writer: Writer) -> None:
    with pytest.raises(ConfigurationError, match=r"the database refuses: .*password authentication failed"):
        writer.write("SELECT 1 AS n", "one", options=writer.options | {"password": "wrong"})


def test_an_attempt_that_was_overtaken_changes_nothing(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write("SELECT 1 AS n", "one")
    fit = jdbc._fit

    def overtaken(*arguments: Any, **named: Any) -> dict[str, str]:
        writer.open("one")
        return fit(*arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(jdbc, "_fit", overtaken)
        with pytest.raises(FencedError):
            writer.write("SELECT 2 AS n", "one")
    assert writer.read() == [(1, "one")]
    writer.write("SELECT 3 AS n", "one")
    assert (writer.read(), writer.aside()) == ([(3, "one")], [])


def test_a_task_that_spark_runs_again_replaces_what_it_wrote(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = jdbc._fit

    def repeated(*arguments: Any, **named: Any) -> dict[str, str]:
        (aside,) = writer.aside()
        found = writer.database.execute(f"SELECT DISTINCT _jms_partition FROM sales.{aside}").fetchall()  # noqa: S608
        assert len(found) == 2
        writer.database.execute(
            f"INSERT INTO sales.{aside} (n, jms_batch_id, _jms_partition) "  # noqa: S608
            f"SELECT n + 100, jms_batch_id, _jms_partition FROM sales.{aside} "
            f"WHERE _jms_partition = (SELECT min(_jms_partition) FROM sales.{aside})"
        )
        return fit(*arguments, **named)

    monkeypatch.setattr(jdbc, "_fit", repeated)
    # Two partitions, 0 to 4 and 5 to 9.
    assert writer.write("SELECT CAST(id AS INT) AS n FROM range(0, 10, 1, 2)", "one") == 10
    assert [n for n, _ in writer.read()] == [*range(5, 10), *range(100, 105)]


def test_the_job_of_the_page(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {}
    block = job("store(")
    text = block.text.replace("jdbc:postgresql://db:5432/sales", writer.options["url"])
    exec(compile(text.replace("loader", USER), str(block), "exec"), names)  # noqa: S102
    monkeypatch.setenv("SALES_PASSWORD", writer.options["password"])
    names["store"](writer.open("one"), writer.spark.sql("SELECT 1 AS n"))
    found = writer.database.execute("SELECT n, jms_batch_id FROM sales.orders").fetchall()
    assert found == [(1, "one")]


def test_the_ready_made_job_has_the_password_from_a_file_or_the_environment(
    writer: Writer, make_batch: MakeBatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(writer.spark), "stop", lambda _: None)  # other tests go on with it
    secret = tmp_path / "password"
    secret.write_text(f"{writer.options['password']}\n")
    monkeypatch.setenv("JMSJCA_JDBC_URL", writer.options["url"])
    monkeypatch.setenv("JMSJCA_JDBC_USER", USER)
    ways = [("one", ("--jdbc-user", USER, "--jdbc-password-file", str(secret))), ("two", ())]
    for name, more in ways:
        monkeypatch.setenv("JMSJCA_JDBC_PASSWORD", "wrong" if more else writer.options["password"])
        bodies = ['{"id": 7}'] if name == "two" else ['{"id": 7}', "x"]
        rejects = [] if name == "two" else ["--rejects-table", "sales.rejects"]
        batch = make_batch([JmsMessage.text(body) for body in bodies], batch_id=name)
        given = ["--manifest", batch.uri, "--batch-id", name, "--fence", str(take_fence(batch.folder))]
        main([*given, "--table", "sales.bodies", "--format", "jdbc", "--schema", "id INT", *more, *rejects])
    assert writer.database.execute("SELECT jms_batch_id, body FROM sales.rejects").fetchall() == [
        ("one", b"x")
    ]
    found = writer.database.execute("SELECT jms_batch_id, id FROM sales.bodies ORDER BY 1").fetchall()
    assert found == [("one", 7), ("two", 7)]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ([], "there is no address of the database; name an Airflow connection by jdbc_conn_id"),
        (["--jdbc-url", "jdbc:postgresql://h/d?Password=x"], "--jdbc-url holds a password"),
        (["--jdbc-url", "jdbc:postgresql://h/d", "--jdbc-password-file", "/none"], "/none: can't be read"),
    ],
)
def test_the_ready_made_job_says_what_it_misses_of_the_database(
    make_batch: MakeBatch, capsys: pytest.CaptureFixture[str], arguments: list[str], fault: str
) -> None:
    batch = make_batch([JmsMessage.text("x")])
    given = ["--manifest", batch.uri, "--batch-id", batch.batch_id, "--fence", str(take_fence(batch.folder))]
    with pytest.raises(SystemExit) as left:
        main([*given, "--table", "sales.bodies", "--format", "jdbc", *arguments])
    assert left.value.code == 78
    assert fault in capsys.readouterr().err


@pytest.mark.parametrize(
    ("table", "arguments", "fault"),
    [
        ("orders", {}, "expected options with a url such as jdbc:postgresql:"),
        ("orders", {"options": {"url": "jdbc:mysql://u:secret@h/d"}}, "found jdbc:mysql:..."),
        ("a.b.c", {"options": {"url": "jdbc:postgresql://h/d"}}, "table 'a.b.c': expected a name"),
        ("orders", {"options": {"url": "jdbc:postgresql://h/d"}, "partition_by": ["n"]}, "partition_by"),
        ("orders", {"options": {"url": "jdbc:postgresql://h/d", "isolationlevel": "none"}}, "got NONE"),
        (
            "orders",
            {"options": {}, "mode": "overwrite"},
            "mode 'overwrite': format jdbc supports append, upsert",
        ),
    ],
)
def test_what_can_not_be_is_refused_before_anything(
    spark: SparkSession, make_batch: MakeBatch, table: str, arguments: dict[str, Any], fault: str
) -> None:
    manifest = make_batch([JmsMessage.text("x")])
    batch = Batch(manifest, take_fence(manifest.folder))
    with pytest.raises(ConfigurationError) as found:
        batch.write(spark.sql("SELECT 1 AS n"), table, format="jdbc", **arguments)
    assert fault in str(found.value)
    assert "secret" not in str(found.value)
