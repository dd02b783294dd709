"""Upserts: the newest message of a key is in the table, whatever is repeated."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_jmsjca import Batch, ConfigurationError, JmsMessage, Manifest, rejected_messages
from tests.internals.spool import take_fence
from tests.servers.postgres import Postgres
from tests.spark.conftest import MakeBatch
from tests.spark.test_jdbc import options_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "id INT, v STRING, at INT, op STRING"


class Upserts:
    """Batches that are upserted into one table."""

    def __init__(
        self,
        spark: SparkSession,
        make_batch: MakeBatch,
        run: Callable[[str], list[Any]],
        **arguments: Any,
    ) -> None:
        self.spark, self.run = spark, run
        self._make_batch = make_batch
        self.arguments = arguments
        self._batches: dict[str, Manifest] = {}

    @property
    def table(self) -> str:
        return str(self.arguments["table"])

    def attempt(self, batch_id: str, *bodies: dict[str, object]) -> Batch:
        if batch_id not in self._batches:
            texts = [JmsMessage.text(json.dumps(body)) for body in bodies]
            self._batches[batch_id] = self._make_batch(texts, batch_id=batch_id)
        manifest = self._batches[batch_id]
        return Batch(manifest, take_fence(manifest.folder))

    def write(self, batch: Batch, schema: str = SCHEMA, **arguments: Any) -> int:
        mapped = batch.json(batch.messages(self.spark), schema)
        batch.reject(mapped.rejects)
        return batch.write(mapped.rows, mode="upsert", keys=["id"], **self.arguments, **arguments)

    def rows(self) -> list[tuple[object, ...]]:
        return sorted(tuple(row) for row in self.run("SELECT id, v FROM {table}"))


@pytest.fixture(params=["delta", "jdbc"])
def upserts(
    request: pytest.FixtureRequest, spark: SparkSession, make_batch: MakeBatch, tmp_path: Path
) -> Iterator[Upserts]:
    if request.param == "delta":
        name = f"delta.`{tmp_path / 'table'}`"
        yield Upserts(
            spark,
            make_batch,
            lambda query: spark.sql(query.format(table=name)).collect(),
            table=str(tmp_path / "table"),
            format="delta",
        )
        return
    postgres: Postgres = request.getfixturevalue("postgres")
    with psycopg.connect(postgres.url(driver="postgresql"), autocommit=True) as database:
        database.execute("CREATE SCHEMA upserts")

        def run(query: str) -> list[Any]:
            found = database.execute(query.format(table="upserts.orders").encode())
            return found.fetchall() if found.description else []

        options = options_of(postgres)
        yield Upserts(spark, make_batch, run, table="upserts.orders", format="jdbc", options=options)
        database.execute("DROP SCHEMA upserts CASCADE")


def test_the_newest_message_of_a_key_counts_and_a_batch_counts_once(upserts: Upserts) -> None:
    """By position within a batch, by batch, then by a column; a delete removes the row of its key."""
    one = upserts.attempt("one", {"id": 1, "v": "a"}, {"id": 1, "v": "b"}, {"id": 2, "v": "c"})
    assert upserts.write(one) == 2
    assert upserts.rows() == [(1, "b"), (2, "c")]

    two = [{"id": 1, "v": "z"}, {"id": 2, "op": "D"}, {"id": 3, "v": "n"}, {"id": 3, "op": "D"}]
    assert upserts.write(upserts.attempt("two", *two), delete_when="op = 'D'") == 1
    assert upserts.rows() == [(1, "z")]
    # The first batch died before its report: its retry must not bring back older rows.
    assert upserts.write(upserts.attempt("one")) == 2
    assert upserts.rows() == [(1, "z")]

    ordered = {"order_by": "at", "delete_when": "op = 'D'"}
    three = [{"id": 5, "v": "new", "at": 5}, {"id": 5, "v": "old", "at": 3}, {"id": 1, "v": "y", "at": 1}]
    assert upserts.write(upserts.attempt("three", *three), **ordered) == 2
    four = [{"id": 5, "v": "older", "at": 4}, {"id": 1, "op": "D", "at": 0}, {"id": 1, "v": "undated"}]
    assert upserts.write(upserts.attempt("four", *four), **ordered) == 0
    assert upserts.rows() == [(1, "y"), (5, "new")]
    five = [{"id": 5, "v": "same", "at": 5}, {"id": 1, "op": "D", "at": 2}]
    assert upserts.write(upserts.attempt("five", *five), **ordered) == 1
    assert upserts.rows() == [(5, "same")]


def test_upserts_in_threads_of_one_session_keep_their_ids_apart(
    spark: SparkSession, make_batch: MakeBatch, tmp_path: Path
) -> None:
    """Delta takes the id of a `MERGE` from the session; with that of another batch it would be left out."""
    names = ("left", "right")
    manifests = [make_batch([JmsMessage.text('{"id": 1}')], batch_id=name) for name in names]
    begin = threading.Barrier(len(names))

    def store(manifest: Manifest) -> int:
        with Batch(manifest, take_fence(manifest.folder), shows_progress=False) as batch:
            rows = batch.json(batch.messages(spark), "id INT NOT NULL").rows
            begin.wait(60)
            table = str(tmp_path / batch.batch_id)
            return batch.write(rows, table, format="delta", mode="upsert", keys=["id"])

    with ThreadPoolExecutor() as threads:
        assert list(threads.map(store, manifests)) == [1, 1]
    for name in names:
        logs = (tmp_path / name / "_delta_log").glob("*.json")
        actions = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
        assert [each["txn"]["appId"] for each in actions if "txn" in each] == [f"jmsjca/{name}"]
    assert spark.conf.get("spark.databricks.delta.write.txnAppId", None) is None


def test_rows_that_an_upsert_refuses_are_rejects_and_stay_so_in_a_retry(upserts: Upserts) -> None:
    upserts.write(upserts.attempt("first", {"id": 1, "v": "a"}), delete_when="op = 'D'")
    upserts.run("ALTER TABLE {table} ADD CONSTRAINT short CHECK (v IS NULL OR length(v) < 4)")
    bodies = [
        {"id": 2, "v": "b"},
        {"id": 2, "v": "long"},
        {"v": "x"},
        {"id": 3},
        {"id": 1, "v": "very", "op": "D"},
    ]
    dies = upserts.attempt("one", *bodies)
    strict = "id INT, v STRING, at INT NOT NULL, op STRING"
    assert upserts.write(dies, delete_when="op = 'D'") == 2
    assert upserts.rows() == [(2, "b"), (3, None)]

    batch = upserts.attempt("one")
    with batch:
        upserts.write(batch, strict, delete_when="op = 'D'")
    assert upserts.rows() == [(2, "b"), (3, None)]
    short, keyless = (each.exception_message for each in rejected_messages(batch.manifest))
    assert "short" in short
    assert "column 'id' is a key of the upsert, found null" in keyless


def test_rejects_are_rows_of_a_table_and_a_later_attempt_replaces_them(upserts: Upserts) -> None:
    """Each attempt dies before its report; the second has another schema."""
    for schema, expected in (
        ("id INT NOT NULL, v INT", ["field 'v': the value is no INT, found the string \"a\"", None]),
        ("id INT NOT NULL, v STRING", [None]),
    ):
        batch = upserts.attempt("one", {"id": 1, "v": "a"}, {"at": 1})
        batch.reject(batch.json(batch.messages(upserts.spark), schema).rejects)
        arguments = {**upserts.arguments, "table": upserts.table}
        assert batch.store_rejects(upserts.spark, **arguments) == len(expected)
        query = "SELECT jms_position, body, exception_message FROM {table} ORDER BY jms_position"
        rows = [tuple(row) for row in upserts.run(query)]
        bodies = ['{"id": 1, "v": "a"}', '{"at": 1}'][-len(expected) :]
        assert [bytes(body).decode() for _, body, _ in rows] == bodies
        assert rows[-1][2] == "required but missing: 'id'"
        assert expected[0] in {None, rows[0][2]}


def test_an_upsert_that_cannot_work_is_refused(upserts: Upserts) -> None:
    batch = upserts.attempt("one", {"id": 1})
    rows = batch.json(batch.messages(upserts.spark), SCHEMA).rows
    arguments = {name: value for name, value in upserts.arguments.items() if name != "table"}
    for given, fault in (
        ({"mode": "upsert"}, "expected keys"),
        ({"mode": "upsert", "keys": ["nr"]}, "the rows have no column 'nr'; found id, v, at, op"),
        ({"keys": ["id"]}, "belong to mode 'upsert', not to 'append'"),
    ):
        with pytest.raises(ConfigurationError, match=fault):
            batch.write(rows, upserts.table, **arguments, **given)
    with pytest.raises(ConfigurationError, match="the rows have no column _jms"):
        batch.write(rows.drop("_jms"), upserts.table, mode="upsert", keys=["id"], **arguments)
    if arguments["format"] == "jdbc":
        upserts.run("CREATE TABLE {table} (id integer)")
        with pytest.raises(ConfigurationError, match=r"CREATE UNIQUE INDEX ON .*orders.* \(\"id\"\)"):
            batch.write(rows, upserts.table, mode="upsert", keys=["id"], **arguments)
