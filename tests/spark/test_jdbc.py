"""Tables of PostgreSQL: a batch is replaced in one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import ConfigurationError, FencedError
from airflow_provider_jmsjca.spark.job import Batch
from airflow_provider_jmsjca.spark.jobs.messages_to_table import main
from airflow_provider_jmsjca.spark.tables import jdbc
from airflow_provider_jmsjca.spool.attempts import take_fence
from airflow_provider_jmsjca.spool.manifest import Manifest
from tests.servers.broker import USER
from tests.servers.ports import HOST
from tests.servers.postgres import Postgres
from tests.spark.conftest import MakeBatch
from tests.spark.test_documentation import JOBS

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
        ("SELECT 1 AS n, CAST(2 AS BIGINT) AS i", "column 'i' is integer in the table, and bigint in what"),
        ("SELECT 1 AS n, 3 AS t", "column 't' is text in the table, and integer in what"),
    ):
        with pytest.raises(ConfigurationError, match=fault):
            writer.write(query, "two")
    writer.database.execute(f"ALTER TABLE {QUOTED} ALTER t TYPE varchar(2), ALTER i TYPE bigint")
    writer.write("SELECT 2 AS n, 5 AS i, 'ab' AS t", "two")
    with pytest.raises(ConfigurationError, match=r"the database refuses: .*value too long"):
        writer.write("SELECT 3 AS n, 5 AS i, 'abc' AS t", "two")
    assert writer.read("n, i, t") == [(1, 2, "a"), (2, 5, "ab")]


def test_an_attempt_that_was_overtaken_changes_nothing(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write("SELECT 1 AS n", "one")
    fit = jdbc._fit

    def overtaken(*arguments: Any) -> None:
        fit(*arguments)
        writer.open("one")

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

    def repeated(*arguments: Any) -> None:
        (aside,) = writer.aside()
        found = writer.database.execute(f"SELECT DISTINCT _jms_partition FROM sales.{aside}").fetchall()  # noqa: S608
        assert len(found) == 2
        writer.database.execute(
            f"INSERT INTO sales.{aside} (n, jms_batch_id, _jms_partition) "  # noqa: S608
            f"SELECT n + 100, jms_batch_id, _jms_partition FROM sales.{aside} "
            f"WHERE _jms_partition = (SELECT min(_jms_partition) FROM sales.{aside})"
        )
        fit(*arguments)

    monkeypatch.setattr(jdbc, "_fit", repeated)
    # Two partitions, 0 to 4 and 5 to 9.
    assert writer.write("SELECT CAST(id AS INT) AS n FROM range(0, 10, 1, 2)", "one") == 10
    assert [n for n, _ in writer.read()] == [*range(5, 10), *range(100, 105)]


def test_the_job_of_the_page(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {}
    text = JOBS[-1].text.replace("jdbc:postgresql://db:5432/sales", writer.options["url"])
    exec(compile(text.replace("loader", USER), str(JOBS[-1]), "exec"), names)  # noqa: S102
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
        batch = make_batch([JmsMessage.text('{"id": 7}')], batch_id=name)
        given = ["--manifest", batch.uri, "--batch-id", name, "--fence", str(take_fence(batch.folder))]
        main([*given, "--table", "sales.bodies", "--format", "jdbc", "--schema", "id INT", *more])
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
        ("orders", {"options": {}, "mode": "overwrite"}, "mode 'overwrite': format jdbc has append"),
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
