"""Messages of earlier batches are processed again, and each has its rows once in a table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_jmsjca import Batch, ConfigurationError, JmsMessage, Manifest, rejected_messages
from tests.internals.spool import Done, replay_id, take_fence
from tests.servers.postgres import Postgres
from tests.spark.conftest import MakeBatch
from tests.spark.test_jdbc import options_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NARROW, WIDE = "id INT NOT NULL, v INT NOT NULL", "id INT NOT NULL, v INT NOT NULL, w STRING"


class Replays:
    """A table, batches for it, and replays.

    Args:
        spark: The session.
        make_batch: Makes batches.
        read: Runs a query on `{table}`.
        writing: Arguments of `write` about the table.
        folder: For further tables, if they are folders.
    """

    def __init__(
        self,
        spark: SparkSession,
        make_batch: MakeBatch,
        read: Callable[[str, str], Sequence[Any]],
        tables: tuple[str, str],
        **writing: Any,
    ) -> None:
        self.spark, self._make_batch, self._read = spark, make_batch, read
        self.table, self.rejects_table = tables
        self._writing = writing

    def make(self, name: str, *bodies: object) -> Manifest:
        texts = [each if isinstance(each, str) else json.dumps(each) for each in bodies]
        messages = [JmsMessage.text(text, message_id=f"{name}-{n}") for n, text in enumerate(texts)]
        return self._make_batch(messages, batch_id=name)

    def store(self, batch: Batch, schema: str, **changes: Any) -> None:
        """Do all of a job except for its report."""
        mapped = batch.json(batch.messages(self.spark), schema)
        batch.reject(mapped.rejects)
        batch.write(mapped.rows, self.table, **{**self._writing, **changes})
        batch.store_rejects(self.spark, self.rejects_table, **self._writing)

    def process(self, manifest: Manifest, schema: str = NARROW) -> None:
        with Batch(manifest, take_fence(manifest.folder)) as batch:
            self.store(batch, schema)

    def open(self, manifest: Manifest, name: str, *batches: str, rejects: bool = False) -> Batch:
        batch = Batch.replay(manifest.folder.parent, batches, name=name, rejects=rejects)
        assert batch is not None
        return batch

    def rows(self, columns: str = "id, v, jms_batch_id") -> list[tuple[Any, ...]]:
        found = self._read(f"SELECT {columns} FROM {{table}} ORDER BY id", self.table)  # noqa: S608 - of the test
        return [tuple(row) for row in found]

    def rejects(self) -> list[tuple[Any, ...]]:
        query = "SELECT message_id, jms_batch_id FROM {table} ORDER BY message_id"
        return [tuple(row) for row in self._read(query, self.rejects_table)]


@pytest.fixture(params=["parquet", "delta", "jdbc"])
def replays(
    request: pytest.FixtureRequest, spark: SparkSession, make_batch: MakeBatch, tmp_path: Path
) -> Iterator[Replays]:
    if request.param == "jdbc":
        postgres: Postgres = request.getfixturevalue("postgres")
        with psycopg.connect(postgres.url(driver="postgresql"), autocommit=True) as database:
            database.execute("CREATE SCHEMA replays")

            def rows(query: str, table: str) -> Sequence[Any]:
                return database.execute(query.format(table=table).encode()).fetchall()

            names = ("replays.orders", "replays.rejects")
            yield Replays(spark, make_batch, rows, names, format="jdbc", options=options_of(postgres))
            database.execute("DROP SCHEMA replays CASCADE")
        return

    def query(query: str, table: str) -> Sequence[Any]:
        return spark.sql(query.format(table=f"{request.param}.`{table}`")).collect()

    tables = (str(tmp_path / "table"), str(tmp_path / "rejects"))
    yield Replays(spark, make_batch, query, tables, format=request.param)


def test_each_message_has_its_rows_once_after_replays_of_all_and_of_rejects(replays: Replays) -> None:
    first = replays.make(
        "b1", {"id": 1, "v": 10}, {"id": 2}, {"id": 3, "v": "no"}, {"id": 4, "v": 40, "w": "x"}
    )
    replays.process(first)
    replays.process(replays.make("b2", {"id": 5, "v": 50}))
    whole, rejects = replay_id("whole"), replay_id("rejects")
    assert replays.rows() == [(1, 10, "b1"), (4, 40, "b1"), (5, 50, "b2")]
    assert replays.rejects() == [("b1-1", "b1"), ("b1-2", "b1")]

    # The first attempt at the replay dies after it has written, the second one does it again.
    schema = "id INT NOT NULL, v INT, w STRING"
    replays.store(replays.open(first, "whole", "b1"), schema)
    with replays.open(first, "whole", "b1") as batch:
        replays.store(batch, schema)
    assert replays.rows("id, v, w, jms_batch_id") == [
        (1, 10, None, whole),
        (2, None, None, whole),
        (4, 40, "x", whole),
        (5, 50, None, "b2"),
    ]
    assert replays.rejects() == [("b1-2", whole)]
    assert Batch.replay(first.folder.parent, ["b1"], name="whole") is None, "it is done"

    # Its reject fits another schema, which the table has room for: v stays as it is.
    with replays.open(first, "rejects", whole, rejects=True) as batch:
        assert batch.manifest.rows == 1
        replays.store(batch, "id INT NOT NULL, w STRING")
    assert replays.rows("id, v, jms_batch_id") == [
        (1, 10, whole),
        (2, None, whole),
        (3, None, rejects),
        (4, 40, whole),
        (5, 50, "b2"),
    ]
    assert replays.rejects() == []
    done = Done.read(first.folder.parent / rejects)
    assert done is not None
    assert (done.rows, done.stored[replays.table], done.rejected) == (1, 1, 0)
    assert [each.message.message_id for each in rejected_messages(first)] == ["b1-1", "b1-2"]


@pytest.mark.parametrize("replays", ["parquet"], indirect=True)
def test_a_replay_of_more_messages_than_its_table_can_tell_is_refused(replays: Replays) -> None:
    first = replays.make("b1", {"id": 1, "v": 10})
    replays.process(first)
    replays.process(replays.make("b2", {"id": 2, "v": 20}))
    with replays.open(first, "both", "b1", "b2") as batch:
        replays.store(batch, WIDE)
    batch = replays.open(first, "one", "b1")
    with pytest.raises(ConfigurationError, match=r"and further messages\. Nothing was written"):
        replays.store(batch, WIDE)
    both = replay_id("both")
    assert replays.rows() == [(1, 10, both), (2, 20, both)]
