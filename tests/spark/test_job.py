from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_jmsjca import (
    Batch,
    ConfigurationError,
    FencedError,
    JmsMessage,
    Manifest,
    SpoolError,
    rejected_messages,
)
from tests.internals.spark import TableAttempt, replace_by_overwrite
from tests.internals.spool import Done, State, batches, path_to_uri, take_fence
from tests.spark.conftest import MakeBatch, flight

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "carrier STRING NOT NULL, dep_delay DOUBLE NOT NULL"


@pytest.fixture
def flights(make_batch: MakeBatch) -> Manifest:
    """Five flights, two of them bad."""
    return make_batch(
        [flight(0, "UA", 2.0), flight(1, "AA", None), flight(2, "UA", -4)],
        [flight(3, "B6", "late"), flight(4, "AA", 7.5)],
    )


def arguments(manifest: Manifest, fence: int, *more: str) -> list[str]:
    return ["--manifest", manifest.uri, "--batch-id", manifest.batch_id, "--fence", str(fence), *more]


def store(spark: SparkSession, batch: Batch, table: Path) -> None:
    mapped = batch.json(batch.messages(spark), SCHEMA)
    assert batch.write(mapped.rows, str(table), partition_by=["carrier"]) == 3
    assert batch.reject(mapped.rejects) == 2


def read(spark: SparkSession, table: Path) -> list[tuple[str, float, str]]:
    rows = spark.read.parquet(str(table)).select("carrier", "dep_delay", "jms_batch_id").collect()
    return sorted(tuple(row) for row in rows)


STORED = [("AA", 7.5, "d~~r~~t~~-1"), ("UA", -4.0, "d~~r~~t~~-1"), ("UA", 2.0, "d~~r~~t~~-1")]


def test_paths_are_taken_as_they_stand(spark: SparkSession, flights: Manifest, tmp_path: Path) -> None:
    place = tmp_path / "sp ace %41 #1"
    shutil.copytree(flights.folder, place / flights.folder.name)
    moved = Manifest.read(path_to_uri(place / flights.folder.name / "manifest.json"))
    for table in (place / "ta ble%20#2", place / "plain"):
        store(spark, Batch(moved, take_fence(moved.folder)), table)
        found = {path.parent.parent.name for path in table.rglob("*.parquet")}
        assert found == {f"jms_batch_id={flights.batch_id}"}
        assert read(spark, table) == STORED


def test_a_batch_done_again_after_a_crash_leaves_one_copy(
    spark: SparkSession, flights: Manifest, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    crashed = Batch(flights, take_fence(flights.folder))
    store(spark, crashed, table)
    assert read(spark, table) == STORED

    with Batch.from_args(arguments(flights, take_fence(flights.folder))) as batch:
        store(spark, batch, table)
    assert read(spark, table) == STORED
    done = Done.read(flights.folder)
    assert done is not None
    assert (done.fence, done.rows, done.stored, done.rejected) == (2, 5, {str(table): 3}, 2)
    assert [item.message.message_id for item in rejected_messages(flights)] == ["ID:1", "ID:3"]
    assert list((table / "_staging").iterdir()) == []


def test_a_done_batch_ends_at_once(
    spark: SparkSession, flights: Manifest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Batch.from_args(arguments(flights, take_fence(flights.folder))) as batch:
        store(spark, batch, tmp_path / "table")
    capsys.readouterr()  # how far the first attempt was
    with pytest.raises(SystemExit) as left:
        Batch.from_args(arguments(flights, take_fence(flights.folder)))
    assert left.value.code == 0
    assert capsys.readouterr().err == "batch d~~r~~t~~-1 is done already\n"


def test_another_batch_in_the_same_table_is_left_alone(
    spark: SparkSession, make_batch: MakeBatch, tmp_path: Path
) -> None:
    table = str(tmp_path / "table")
    one, two = (make_batch([JmsMessage.text(name)], batch_id=name) for name in ("one", "two"))
    for manifest in (one, two, one):
        batch = Batch(manifest, take_fence(manifest.folder))
        assert batch.write(batch.messages(spark), table) == 1
    assert sorted(row.batch_id for row in spark.read.parquet(table).collect()) == ["one", "two"]


def test_reasons_are_planned_only_if_a_message_may_not_fit(
    spark: SparkSession, make_batch: MakeBatch
) -> None:
    """Their plan costs a small batch more than all else."""
    for text, is_doubtful in (("12", True), ("x", False)):  # without quotes, 12 would be read as a text too
        manifest = make_batch([JmsMessage.text(f'{{"a b": "{text}"}}')], batch_id=text)
        batch = Batch(manifest, take_fence(manifest.folder))
        mapped = batch.json(batch.messages(spark), "`a b` STRING NOT NULL")
        assert [row[0] for row in mapped.rows.collect()] == [text]
        assert mapped.rejects.collect() == []
        assert batch.reject(mapped.rejects) == 0
        plan = mapped.rows._jdf.queryExecution().analyzed().toString()
        assert ("required but missing" in plan) is is_doubtful
        take_fence(manifest.folder)
        with pytest.raises(FencedError):
            batch.reject(mapped.rejects.select("*") if is_doubtful else mapped.rejects)


def test_an_older_attempt_commits_nothing(
    spark: SparkSession, flights: Manifest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table"
    old = Batch.from_args(arguments(flights, take_fence(flights.folder)))
    rows = old.json(old.messages(spark), SCHEMA).rows
    newer = take_fence(flights.folder)
    with pytest.raises(SystemExit) as left, old:
        old.write(rows, str(table))
    assert left.value.code == 75
    assert "this is attempt 1, but attempt 2 may commit" in capsys.readouterr().err
    assert not list(table.glob("jms_batch_id=*"))
    with pytest.raises(FencedError):
        old.finish()
    assert Done.read(flights.folder) is None
    with Batch(flights, newer) as batch:
        store(spark, batch, table)
    assert read(spark, table) == STORED


def test_an_attempt_overtaken_while_it_writes_commits_nothing(
    spark: SparkSession, flights: Manifest, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    old = Batch(flights, take_fence(flights.folder))
    frame = old.messages(spark).drop("_jms")

    class Slow:
        """The frame, with a retry beginning while Spark writes it."""

        @property
        def columns(self) -> list[str]:
            take_fence(flights.folder)
            return frame.columns

        def __getattr__(self, name: str) -> object:
            return getattr(frame, name)

    with pytest.raises(FencedError):
        old.write(Slow(), str(table))  # type: ignore[arg-type]  # stands in for a DataFrame
    assert not list(table.glob("jms_batch_id=*"))


def test_where_nothing_can_be_renamed_spark_overwrites(
    spark: SparkSession, flights: Manifest, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    for _ in range(2):
        fence = take_fence(flights.folder)
        batch = Batch(flights, fence)
        attempt = TableAttempt(batch_id=batch.batch_id, folder=flights.folder, fence=fence)
        rows = batch.json(batch.messages(spark), SCHEMA).rows
        assert replace_by_overwrite(rows, table.as_uri(), attempt, ["carrier"]) == 3
    assert read(spark, table) == STORED


@pytest.mark.parametrize(
    ("columns", "fault"),
    [
        ("0 AS segment, 0 AS position, 'x' AS exception_class", "missing: _jms, exception_message"),
        ("0 AS _jms, 'x' AS exception_class, 'y' AS exception_message", "column _jms: expected a struct"),
        (
            "struct(0 AS segment, 3 AS position) AS _jms, 'x' AS exception_class, 'y' AS exception_message",
            "segment 0 position 3 is not a message of batch",
        ),
    ],
)
def test_rejects_of_no_message_are_refused(
    spark: SparkSession, flights: Manifest, columns: str, fault: str
) -> None:
    batch = Batch(flights, take_fence(flights.folder))
    with pytest.raises(ConfigurationError, match=fault):
        batch.reject(spark.sql(f"SELECT {columns}"))


def test_a_relative_table_path_is_refused(spark: SparkSession, flights: Manifest) -> None:
    batch = Batch(flights, take_fence(flights.folder))
    with pytest.raises(ConfigurationError, match="table path 'table': expected an absolute path or a URI"):
        batch.write(batch.messages(spark), "table")


def test_a_job_that_fails_leaves_no_done(flights: Manifest) -> None:
    with pytest.raises(ZeroDivisionError), Batch(flights, take_fence(flights.folder)):
        _ = 1 / 0
    assert Done.read(flights.folder) is None


def test_a_mix_up_of_batches_is_an_error(flights: Manifest, capsys: pytest.CaptureFixture[str]) -> None:
    fence = take_fence(flights.folder)
    with pytest.raises(SystemExit) as left:
        Batch.from_args(["--manifest", flights.uri, "--batch-id", "other", "--fence", str(fence)])
    assert left.value.code == 65
    assert "expected batch 'other', found 'd~~r~~t~~-1'" in capsys.readouterr().err


def test_a_damaged_segment_is_an_error(flights: Manifest) -> None:
    flights.segment_paths()[0].write_bytes(b"x")
    with pytest.raises(SpoolError, match=r"segment-000000\.parquet: expected \d+ bytes, found 1"):
        Batch(flights, take_fence(flights.folder))


def test_a_spool_whose_path_has_any_characters_is_read(
    spark: SparkSession, make_batch: MakeBatch, tmp_path: Path
) -> None:
    """Umlauts, spaces, `%`, `#`, and what is a pattern to Hadoop."""
    made = make_batch([flight(1, "AA", 1.0)], [flight(2, "BB", 2.0)])
    spool = tmp_path / "Bücher %20 #1 [a-b]{c,d}*?\\e^"
    (tmp_path / "spool").rename(spool)
    manifest = Manifest.read(path_to_uri(spool / made.folder.name / "manifest.json"))
    batch = Batch(manifest, take_fence(manifest.folder))
    assert sorted(row.message_id for row in batch.messages(spark).collect()) == ["ID:1", "ID:2"]
    with batch:
        batch.write(batch.messages(spark), str(tmp_path / "table"))
    [found] = batches(spool)
    assert (found.state, found.rows) == (State.DONE, 2)
