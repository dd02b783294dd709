"""Delta Lake tables: each batch is one commit, and one only."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import functions as sql

from airflow_provider_jmsjca import (
    Batch,
    ConfigurationError,
    FencedError,
    JmsMessage,
    Manifest,
    rejected_messages,
)
from tests.internals.spark import data_failure
from tests.internals.spool import Done, take_fence
from tests.spark.conftest import MakeBatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(params=["by path", "by name"])
def table(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    if request.param == "by path":
        yield str(tmp_path / "ta ble")
        return
    spark.sql("CREATE SCHEMA IF NOT EXISTS sales")
    yield "sales.orders"
    spark.sql("DROP TABLE IF EXISTS sales.orders")


class Writer:
    """Batches with one row each, whose columns a query says."""

    def __init__(self, spark: SparkSession, make_batch: MakeBatch, table: str) -> None:
        self.spark = spark
        self.table = table
        self._make_batch = make_batch
        self._batches: dict[str, Manifest] = {}

    def open(self, batch_id: str) -> Batch:
        if batch_id not in self._batches:
            self._batches[batch_id] = self._make_batch([JmsMessage.text("x")], batch_id=batch_id)
        manifest = self._batches[batch_id]
        return Batch(manifest, take_fence(manifest.folder))

    def write(self, query: str, batch_id: str, **arguments: Any) -> int:
        batch = self.open(batch_id)
        return batch.write(self.spark.sql(query), self.table, format="delta", **arguments)

    def read(self, *columns: str) -> list[tuple[Any, ...]]:
        is_path = self.table.startswith("/")
        rows = self.spark.read.format("delta").load(self.table) if is_path else self.spark.table(self.table)
        return sorted((tuple(row) for row in rows.select(*columns).collect()), key=str)


@pytest.fixture
def writer(spark: SparkSession, make_batch: MakeBatch, table: str) -> Writer:
    return Writer(spark, make_batch, table)


def test_a_folder_of_parquet_files_goes_on_as_a_delta_table(
    spark: SparkSession, make_batch: MakeBatch, tmp_path: Path
) -> None:
    old, new = str(tmp_path / "orders"), str(tmp_path / "orders_delta")
    for batch_id, table, table_format in (("one", old, "parquet"), ("two", new, "delta")):
        manifest = make_batch([JmsMessage.text('{"id": 1}')], batch_id=batch_id)
        with Batch(manifest, take_fence(manifest.folder)) as batch:
            rows = batch.json(batch.messages(spark), "id LONG NOT NULL").rows
            batch.write(rows, table, format=table_format, partition_by=["id"])
        if table == old:
            # Spark guesses the types of these columns by the names of folders.
            copied = spark.read.parquet(old).withColumn("id", sql.col("id").cast("long"))
            copied.write.format("delta").partitionBy("id").save(new)

    found = spark.read.format("delta").load(new).select("id", "jms_batch_id", "jms_position").collect()
    assert sorted(map(tuple, found)) == [(1, "one", 0), (1, "two", 0)]


def test_a_batch_is_there_once_however_often_it_is_written(writer: Writer) -> None:
    assert writer.write("SELECT explode(array(1, 2)) AS n", "one") == 2
    assert writer.write("SELECT explode(array(1, 2)) AS n", "one") == 2
    assert writer.write("SELECT 3 AS n", "two") == 1
    assert writer.write("SELECT explode(array(1, 2)) AS n", "one") == 2
    assert writer.read("n", "jms_batch_id") == [(1, "one"), (2, "one"), (3, "two")]


@pytest.mark.parametrize("version", [0, 1, 99])
def test_a_retry_counts_its_own_rows_whichever_commit_was_the_last_in_the_session(
    writer: Writer, version: int
) -> None:
    """Delta skips the retry. The last commit may be of another batch, or to a table with more commits."""
    assert writer.write("SELECT explode(array(1, 2)) AS n", "one") == 2
    assert writer.write("SELECT 3 AS n", "two") == 1
    last = "spark.databricks.delta.lastCommitVersionInSession"
    writer.spark.conf.set(last, str(version))
    assert writer.write("SELECT explode(array(1, 2)) AS n", "one") == 2
    assert writer.spark.conf.get(last) == str(version)
    assert writer.read("n", "jms_batch_id") == [(1, "one"), (2, "one"), (3, "two")]


def test_the_rows_of_a_batch_are_counted_without_reading_the_table(
    spark: SparkSession, make_batch: MakeBatch, tmp_path: Path
) -> None:
    """Delta computes the table's state to look up a transaction; one job writes, one reads the commit."""
    writer = Writer(spark, make_batch, str(tmp_path / "table"))
    for batch_id in ("one", "two"):
        writer.write("SELECT 1 AS n", batch_id)
    spark.sparkContext.setJobGroup("third batch", "")
    assert writer.write("SELECT explode(array(1, 2)) AS n", "three") == 2
    spark.sparkContext.setJobGroup("other tests", "")
    assert len(spark.sparkContext.statusTracker().getJobIdsForGroup("third batch")) <= 5


def test_an_older_copy_of_a_table_gets_its_rows_from_a_newer_spool_and_an_older_spool_adds_none(
    spark: SparkSession, make_batch: MakeBatch, tmp_path: Path
) -> None:
    """The rehearsal of `docs/production/backup.md`: one of the two is restored alone."""
    table, copy = tmp_path / "table", tmp_path / "copy"
    manifests = {
        name: make_batch([JmsMessage.text(f'{{"n": {number}}}')], batch_id=name)
        for number, name in enumerate(("one", "two"))
    }

    def store(name: str) -> None:
        manifest = manifests[name]
        arguments = ["--manifest", manifest.uri, "--batch-id", name, "--fence"]
        with Batch.from_args([*arguments, str(take_fence(manifest.folder))]) as batch:
            rows = batch.json(batch.messages(spark), "n INT NOT NULL").rows
            batch.write(rows, str(table), format="delta")

    def found() -> list[tuple[int, str]]:
        # A job that starts after the restore has a session of its own, which remembers no newer version.
        jvm: Any = spark._jvm
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        rows = spark.read.format("delta").load(str(table)).select("n", "jms_batch_id").collect()
        return sorted(map(tuple, rows))

    store("one")
    shutil.copytree(table, copy)
    store("two")
    shutil.rmtree(table)
    shutil.copytree(copy, table)
    assert found() == [(0, "one")]
    with pytest.raises(SystemExit) as left:
        store("two")
    assert left.value.code == 0, "the spool says that it is done"
    assert found() == [(0, "one")]
    done = Path(str(manifests["two"].folder)) / "_DONE"
    done.unlink()
    store("two")
    assert found() == [(0, "one"), (1, "two")]
    # A spool of the time before, with the newer table: the commit is known by its batch.
    done.unlink()
    store("two")
    assert found() == [(0, "one"), (1, "two")]


NUMBERED = [JmsMessage.text('{"n": 1}'), JmsMessage.text('{"n": null}'), JmsMessage.text("no JSON")]


@pytest.mark.parametrize(
    "case",
    [
        ("n INT NOT NULL", "n INT", True, [0]),
        ("n INT NOT NULL", "n INT", False, [0]),
        ("n INT", "n INT NOT NULL", False, [0, 1]),
    ],
)
def test_another_schema_in_a_retry_neither_loses_a_message_nor_rejects_a_stored_one(
    spark: SparkSession, make_batch: MakeBatch, tmp_path: Path, case: tuple[str, str, bool, list[int]]
) -> None:
    """The first attempt dies after its commit, before or after it has rejected messages."""
    first, then, is_rejected_first, stored = case
    table, manifest = str(tmp_path / "table"), make_batch(NUMBERED)
    dies = Batch(manifest, take_fence(manifest.folder))
    mapped = dies.json(dies.messages(spark), first)
    if is_rejected_first:
        dies.reject(mapped.rejects)
    dies.write(mapped.rows, table, format="delta")

    with Batch(manifest, take_fence(manifest.folder)) as batch:
        mapped = batch.json(batch.messages(spark), then)
        if is_rejected_first:
            batch.reject(mapped.rejects)
        assert batch.write(mapped.rows, table, format="delta") == len(stored)
        batch.reject(mapped.rejects)
    found = spark.read.format("delta").load(table).select("jms_position").collect()
    assert sorted(row.jms_position for row in found) == stored
    rejected = [each.message.body for each in rejected_messages(manifest)]
    assert rejected == [message.body for place, message in enumerate(NUMBERED) if place not in stored]


def test_properties_clustering_and_options_of_a_new_table(writer: Writer) -> None:
    arguments = {"table_properties": {"delta.appendOnly": "true"}, "cluster_by": ["n"]}
    rows = "SELECT explode(array(1, 2)) AS n"
    for batch_id in ("one", "two"):
        assert writer.write(rows, batch_id, options={"maxRecordsPerFile": "1"}, **arguments) == 2
    name = f"delta.`{writer.table}`" if writer.table.startswith("/") else writer.table
    detail = writer.spark.sql(f"DESCRIBE DETAIL {name}").first()
    assert detail is not None
    assert (detail["clusteringColumns"], detail["properties"]["delta.appendOnly"]) == (["n"], "true")
    assert detail["numFiles"] == 4
    with pytest.raises(ConfigurationError, match="options: txnAppId is set by write itself"):
        writer.write(rows, "three", options={"txnAppId": "x"})


def test_a_retry_does_without_a_damaged_file_of_rejects(
    spark: SparkSession, make_batch: MakeBatch, tmp_path: Path
) -> None:
    manifest = make_batch(NUMBERED)
    for _ in range(2):
        batch = Batch(manifest, take_fence(manifest.folder))
        mapped = batch.json(batch.messages(spark), "n INT NOT NULL")
        batch.reject(mapped.rejects)
        batch.write(mapped.rows, str(tmp_path / "table"), format="delta")
        for path in manifest.folder.glob("rejects-000001-*"):
            path.unlink()
    batch.finish()
    assert [each.message.body for each in rejected_messages(manifest)] == ['{"n": null}', "no JSON"]


def test_a_new_column_widens_the_table_and_another_type_is_refused(writer: Writer) -> None:
    writer.write("SELECT 1.5D AS n, 'x' AS c", "one", partition_by=["c"])
    writer.write("SELECT 2D AS n, 'x' AS c, true AS more", "two", partition_by=["c"])
    for query, partition_by, fault in [
        (
            "SELECT CAST(1 AS DECIMAL(5,2)) AS n, 'x' AS c",
            ["c"],
            "column 'n' is DOUBLE in the table, and DECIMAL",
        ),
        ("SELECT 3D AS n, 'x' AS c", [], "is partitioned by c, and this batch would be by nothing else"),
    ]:
        with pytest.raises(ConfigurationError, match=fault):
            writer.write(query, "three", partition_by=partition_by)
    assert writer.read("n", "more", "c") == [(1.5, None, "x"), (2.0, True, "x")]


def test_a_table_of_the_newest_batch_alone(writer: Writer) -> None:
    writer.write("SELECT 1 AS n", "one", mode="overwrite")
    writer.write("SELECT 'x' AS n", "two", mode="overwrite")
    assert writer.write("SELECT 'x' AS n", "two", mode="overwrite") == 1
    assert writer.read("n", "jms_batch_id") == [("x", "two")]


def test_a_replay_of_compacted_rows_counts_its_own(
    spark: SparkSession, make_batch: MakeBatch, tmp_path: Path
) -> None:
    """Delta copies the rows of the other batch in the same file, and counts them as written."""
    table = str(tmp_path / "table")

    def store(batch: Batch | None) -> int:
        assert batch is not None
        with batch:
            rows = batch.json(batch.messages(spark), "n INT NOT NULL").rows
            return batch.write(rows, table, format="delta")

    for name in ("one", "two"):
        manifest = make_batch([JmsMessage.text('{"n": 1}')], batch_id=name)
        assert store(Batch(manifest, take_fence(manifest.folder))) == 1
    spark.sql(f"OPTIMIZE delta.`{table}`")
    assert store(Batch.replay(tmp_path / "spool", ["one"], name="again")) == 1
    assert spark.read.format("delta").load(table).count() == 2


def test_an_attempt_that_was_overtaken_commits_nothing(writer: Writer) -> None:
    old = writer.open("one")
    new = writer.open("one")
    with pytest.raises(FencedError):
        old.write(writer.spark.sql("SELECT 1 AS n"), writer.table, format="delta")
    new.write(writer.spark.sql("SELECT 1 AS n"), writer.table, format="delta")
    assert writer.read("n") == [(1,)]


def test_what_a_batch_can_not_do_is_said(writer: Writer) -> None:
    batch, rows = writer.open("one"), writer.spark.sql("SELECT 1 AS n")
    batch.write(rows, writer.table, format="delta")
    for arguments, fault in [
        (
            {"table": writer.table, "format": "delta"},
            "has already written to .*; write once, the union of the rows",
        ),
        ({"table": writer.table, "format": "orc"}, "format 'orc': expected one of parquet, delta"),
        ({"table": writer.table, "mode": "overwrite"}, "mode 'overwrite': format parquet supports append"),
        ({"table": "a b", "format": "delta"}, "'a b': expected an absolute path, a URI .* or a name"),
    ]:
        with pytest.raises(ConfigurationError, match=fault):
            batch.write(rows, **arguments)  # type: ignore[arg-type]  # by name
    assert writer.read("n") == [(1,)]


def test_a_table_of_another_format_is_refused(spark: SparkSession, make_batch: MakeBatch) -> None:
    spark.sql("CREATE TABLE plain (n INT) USING parquet")
    try:
        with pytest.raises(ConfigurationError, match="table plain: expected a Delta table, found parquet"):
            Writer(spark, make_batch, "plain").write("SELECT 1 AS n", "one")
    finally:
        spark.sql("DROP TABLE plain")


def test_the_last_commit_says_which_batch_it_is(
    spark: SparkSession, make_batch: MakeBatch, tmp_path: Path
) -> None:
    writer = Writer(spark, make_batch, str(tmp_path / "table"))
    writer.write("SELECT 1 AS n", "one")
    log = sorted((tmp_path / "table" / "_delta_log").glob("*.json"))
    (found,) = [
        entry["txn"] for line in log[-1].read_text().splitlines() if "txn" in (entry := json.loads(line))
    ]
    assert (found["appId"], found["version"]) == ("jmsjca/one", 0)
    # Without the commit the batch isn't there, and is written again.
    shutil.rmtree(tmp_path / "table")
    writer.write("SELECT 1 AS n", "one")
    assert writer.read("n") == [(1,)]
    assert Done.read(tmp_path / "spool" / "one") is None


REFUSED = [
    ({"n": -5}, "the CHECK constraint 'positive' refuses the row, found the values {\"n\":-5}"),
    ({"n": None}, "the CHECK constraint 'positive' refuses the row, found the values {\"n\":null}"),
    ({"code": "abcd"}, "column 'code': the value is no VARCHAR(3), found the string \"abcd\""),
    ({"code": None}, "column 'code' is NOT NULL in the table, found null"),
    ({"inner": {}}, "column 'inner.x' is NOT NULL in the table, found null"),
]


def test_a_message_that_the_table_refuses_is_a_reject_and_all_others_are_stored(
    spark: SparkSession, make_batch: MakeBatch
) -> None:
    good = {"n": 1, "code": "abc", "inner": {"x": 1}}
    bodies = [good | values for values, _ in REFUSED]
    manifest = make_batch([JmsMessage.text(json.dumps(body)) for body in [good, *bodies, good]])
    spark.sql(
        "CREATE TABLE orders_checked (n INT, code VARCHAR(3) NOT NULL, inner STRUCT<x: INT NOT NULL>) "
        "USING delta"
    )
    try:
        spark.sql("ALTER TABLE orders_checked ADD CONSTRAINT positive CHECK (n > 0)")
        with Batch(manifest, take_fence(manifest.folder)) as batch:
            rows = batch.json(batch.messages(spark), "n INT, code STRING, inner STRUCT<x: INT>").rows
            assert batch.write(rows, "orders_checked", format="delta") == 2
        stored = spark.table("orders_checked").select("n", "jms_position").collect()
        assert sorted(map(tuple, stored)) == [(1, 0), (1, len(REFUSED) + 1)]
        assert [each.exception_message for each in rejected_messages(manifest)] == [
            f"table orders_checked: {reason}" for _, reason in REFUSED
        ]
        # Rows that don't say which message they are from: the failure counts as one of the data.
        other = make_batch([JmsMessage.text("x")], batch_id="other")
        batch = Batch(other, take_fence(other.folder))
        rows = spark.sql("SELECT -1 AS n, 'a' AS code, struct(1 AS x) AS inner")
        with pytest.raises(Py4JJavaError) as raised:
            batch.write(rows, "orders_checked", format="delta")
        failure = data_failure(raised.value)
        assert failure is not None
        assert failure.exception_class.endswith("DeltaInvariantViolationException")
        assert "CHECK constraint positive" in failure.exception_message
    finally:
        spark.sql("DROP TABLE orders_checked")


def test_a_name_that_needs_column_mapping_is_refused_with_a_way_out(
    spark: SparkSession, make_batch: MakeBatch, tmp_path: Path
) -> None:
    writer = Writer(spark, make_batch, str(tmp_path / "table"))
    setting = "spark.databricks.delta.properties.defaults.columnMapping.mode"
    with pytest.raises(ConfigurationError, match=f"{setting}=name"):
        writer.write("SELECT 1 AS `first name`", "one")
    spark.conf.set(setting, "name")
    try:
        writer.write("SELECT 1 AS `first name`", "one")
    finally:
        spark.conf.unset(setting)
    assert writer.read("`first name`") == [(1,)]


def _compact(log: Path, table: Path) -> list[dict[str, Any]]:
    """Return the actions of a compaction of the table's only file."""
    actions = [
        json.loads(line) for each in sorted(log.glob("*.json")) for line in each.read_text().splitlines()
    ]
    *_, added = (action["add"] for action in actions if "add" in action)
    shutil.copy(table / added["path"], table / "compacted.parquet")
    removed = {"path": added["path"], "deletionTimestamp": 1_700_000_000_000, "dataChange": False}
    return [{"remove": removed}, {"add": added | {"path": "compacted.parquet", "dataChange": False}}]


def _describe(log: Path, table: Path) -> list[dict[str, Any]]:
    """Return the actions of a commit that changes the table's description."""
    del table
    first = map(json.loads, (log / f"{0:020}.json").read_text().splitlines())
    (found,) = (action["metaData"] for action in first if "metaData" in action)
    return [{"metaData": found | {"description": "orders"}}]


@pytest.mark.parametrize(
    ("change", "arguments"),
    [(_compact, {"mode": "upsert", "keys": ["id"]}), (_describe, {})],
    ids=["an upsert, and its files are compacted", "an append, and the table is changed"],
)
def test_a_write_is_repeated_if_another_commit_is_faster(
    spark: SparkSession,
    make_batch: MakeBatch,
    tmp_path: Path,
    change: Callable[[Path, Path], list[dict[str, Any]]],
    arguments: dict[str, Any],
) -> None:
    """The other commit is made while the rows of ours are computed, after Delta has read the table."""
    table = tmp_path / "table"
    log = table / "_delta_log"
    made = tmp_path / "made"

    def commit(value: str) -> str:
        if not made.exists():
            made.touch()
            actions = [
                *change(log, table),
                {"commitInfo": {"timestamp": 1_700_000_000_000, "operation": "OTHER"}},
            ]
            version = len(list(log.glob("*.json")))
            (log / f"{version:020}.json").write_text("".join(f"{json.dumps(each)}\n" for each in actions))
        return value

    def store(name: str, *keys: int) -> int:
        messages = [JmsMessage.text(json.dumps({"id": key, "v": name})) for key in keys]
        manifest = make_batch(messages, batch_id=name)
        with Batch(manifest, take_fence(manifest.folder)) as batch:
            rows = batch.json(batch.messages(spark), "id INT NOT NULL, v STRING").rows
            if name == "ours":
                rows = rows.withColumn("v", sql.udf(commit, "string", useArrow=False)("v"))
            return batch.write(rows, str(table), format="delta", **arguments)

    assert store("first", 1, 2) == 2
    assert store("ours", 2, 3) == 2
    history = spark.sql(f"DESCRIBE HISTORY delta.`{table}`").collect()
    # The commit that stands began after the other one.
    assert (history[1].operation, history[1].version) == ("OTHER", history[0].readVersion)
    found = spark.read.format("delta").load(str(table)).select("id", "v").collect()
    kept = [(2, "first")] if not arguments else []
    assert sorted(map(tuple, found)) == [(1, "first"), *kept, (2, "ours"), (3, "ours")]
