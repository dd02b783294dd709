"""Parquet tables over many batches: their columns, and what survives a crash."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_jmsjca import ConfigurationError
from tests.internals.spark import TableAttempt, parquet, replace_by_overwrite, replace_by_rename
from tests.internals.spool import take_fence

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Write = Callable[..., int]


def by_rename(df: DataFrame, table: Path, attempt: TableAttempt, partition_by: list[str]) -> int:
    return replace_by_rename(df, table, attempt, partition_by)


def by_overwrite(df: DataFrame, table: Path, attempt: TableAttempt, partition_by: list[str]) -> int:
    return replace_by_overwrite(df, table.as_uri(), attempt, partition_by)


@pytest.fixture(params=[by_rename, by_overwrite])
def write(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Write:
    """Write the rows of a query, as a batch."""

    def write_rows(query: str, batch_id: str, *partition_by: str) -> int:
        folder = tmp_path / "spool" / batch_id
        folder.mkdir(parents=True, exist_ok=True)
        attempt = TableAttempt(batch_id=batch_id, folder=folder, fence=take_fence(folder))
        written: int = request.param(spark.sql(query), tmp_path / "table", attempt, list(partition_by))
        return written

    return write_rows


def read(spark: SparkSession, table: Path, *columns: str) -> list[tuple[Any, ...]]:
    """Read as anybody does, without options."""
    return sorted((tuple(row) for row in spark.read.parquet(str(table)).select(*columns).collect()), key=str)


def files(table: Path) -> dict[str, bytes]:
    found = {str(file.relative_to(table)): file for file in table.rglob("*") if file.is_file()}
    return {name: file.read_bytes() for name, file in found.items() if not name.startswith("_staging")}


def test_a_new_column_widens_the_table(spark: SparkSession, write: Write, tmp_path: Path) -> None:
    table = tmp_path / "table"
    write("SELECT 1 AS n, struct('x' AS a) AS s, 'UA' AS carrier", "one", "carrier")
    write("SELECT 2 AS n, struct('y' AS a, 1.5D AS b) AS s, true AS more, 'UA' AS carrier", "two", "carrier")
    write("SELECT 3 AS n, 'UA' AS carrier", "three", "carrier")
    assert read(spark, table, "n", "s.a", "s.b", "more", "carrier", "jms_batch_id") == [
        (1, "x", None, None, "UA", "one"),
        (2, "y", 1.5, True, "UA", "two"),
        (3, None, None, None, "UA", "three"),
    ]


@pytest.mark.parametrize(
    ("query", "partition_by", "fault"),
    [
        (
            "SELECT CAST(1 AS DECIMAL(5,2)) AS n",
            ["c"],
            "column 'n' is DOUBLE in the table, and DECIMAL(5,2) in",
        ),
        ("SELECT 'x' AS n", ["c"], "column 'n' is DOUBLE in the table, and STRING in the rows of this batch"),
        ("SELECT 1D AS N", ["c"], "column 'N' differs from 'n' in the table only in upper and lower case"),
        ("SELECT array(struct('x' AS a)) AS s", ["c"], "column 's[].a' is INT in the table, and STRING in"),
        ("SELECT map('k', 1) AS m", ["c"], "column 'm[]' is STRING in the table, and INT in"),
        ("SELECT 1D AS n", [], "is partitioned by c, and this batch would be by nothing else"),
        ("SELECT 1D AS n, 1 AS d", ["c", "d"], r"set partition_by to ['c'], or write to another table"),
    ],
)
def test_a_change_that_readers_can_not_take_is_refused_before_anything_is_written(
    spark: SparkSession, write: Write, tmp_path: Path, *, query: str, partition_by: list[str], fault: str
) -> None:
    table = tmp_path / "table"
    write("SELECT 1.5D AS n, array(struct(1 AS a)) AS s, map('k', 'v') AS m, 'x' AS c", "one", "c")
    before = files(table)
    with pytest.raises(ConfigurationError) as refused:
        write(f"{query}, 'y' AS c", "two", *partition_by)
    assert fault in str(refused.value)
    assert files(table) == before
    assert read(spark, table, "n", "c") == [(1.5, "x")]


def test_the_first_batch_may_be_written_again_with_other_types(
    spark: SparkSession, write: Write, tmp_path: Path
) -> None:
    write("SELECT 1.5D AS n, 'x' AS c", "one", "c")
    write("SELECT 'text' AS n, 'x' AS c", "one", "c")
    write("SELECT 'more' AS n, 'x' AS c", "two", "c")
    assert read(spark, tmp_path / "table", "n") == [("more",), ("text",)]


def test_columns_of_an_older_table_are_found_in_its_files(
    spark: SparkSession, write: Write, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    write("SELECT 1 AS n, 'x' AS c", "one", "c")
    (table / "_common_metadata").unlink()
    with pytest.raises(ConfigurationError, match="column 'n' is INT in the table, and STRING in"):
        write("SELECT 'x' AS n, 'x' AS c", "two", "c")
    write("SELECT 2 AS n, 3 AS more, 'x' AS c", "two", "c")
    assert read(spark, table, "n", "more") == [(1, None), (2, 3)]


def test_two_batches_that_add_columns_at_once_both_do(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table"

    def write(query: str, batch_id: str) -> None:
        folder = tmp_path / batch_id
        folder.mkdir()
        attempt = TableAttempt(batch_id=batch_id, folder=folder, fence=take_fence(folder))
        replace_by_rename(spark.sql(query), table, attempt, [])

    write("SELECT 1 AS n", "one")
    real = parquet._write_columns

    def beside(*arguments: Any) -> None:
        real(*arguments)
        monkeypatch.setattr(parquet, "_write_columns", real)
        write("SELECT 2 AS n, 'x' AS theirs", "two")

    monkeypatch.setattr(parquet, "_write_columns", beside)
    write("SELECT 3 AS n, 'y' AS ours", "three")
    assert read(spark, table, "n", "ours", "theirs") == [(1, None, None), (2, None, "x"), (3, "y", None)]


def test_every_file_and_folder_of_a_table_is_flushed_before_it_takes_its_place(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, table = tmp_path / "batch", tmp_path / "table"
    batch.mkdir()
    fence = take_fence(batch)
    flushed: list[str] = []
    real = {"fsync": os.fsync, "rename": os.rename}

    def fsync(descriptor: int) -> None:
        flushed.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        real["fsync"](descriptor)

    def rename(source: Any, target: Any) -> None:
        flushed.append(f"rename {target}")
        real["rename"](source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    attempt = TableAttempt(batch_id="b1", folder=batch, fence=fence)
    frame = spark.sql("SELECT explode(array(1, 2)) AS n, explode(array('1', '2')) AS day")
    assert replace_by_rename(frame, table, attempt, ["day"]) == 4
    place = table / "jms_batch_id=b1"
    at = flushed.index(f"rename {place}")
    before = {path.split("/new-", 1)[-1].partition("/")[2] for path in flushed[:at] if "/new-" in path}
    written = {str(path.relative_to(place)) for path in place.rglob("*")}
    assert before == {"", *written}
    assert {"_SUCCESS", "day=1", "day=2"} < before
    assert {str(table), str(tmp_path)} <= set(flushed[:at])
    assert flushed[at + 1] == str(table)
