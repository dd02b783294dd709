"""Stores replays into a table of each kind at once: `python -m tests.chaos.storing_replays`.

Reads a JSON object from stdin: `tables`, each with `kind`, `spool`, `format`, `table` and `options` of the
writer; the `names` of the replays, in turn; and whether it `halts`. Then each table's first replay stops for
ever at its most delicate moment, and `halted` is printed. `replaying` is printed before each replay.
Started again it continues with the work that isn't done.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

from pyspark.sql import SparkSession

from airflow_provider_jmsjca import Batch, Manifest
from tests.chaos.test_delta_kill import commits, transactions
from tests.internals.spark import delta, jdbc
from tests.internals.spool import Done, replay_id, take_fence
from tests.servers.ports import HOST
from tests.spark.conftest import table_jars

NARROW = "id LONG NOT NULL, v INT NOT NULL"
Table = dict[str, Any]


def session() -> SparkSession:
    """Start Spark with Delta, for small tables."""
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": HOST}
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.jars", table_jars())
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .config(map=delta.SESSION)
        .config("spark.databricks.delta.snapshotPartitions", "1")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )


def _store(spark: SparkSession, table: Table) -> None:
    """Store the first two batches, which have no more than the schema."""
    properties = {"delta.enableTypeWidening": "true"} if table["format"] == "delta" else {}
    for name in ("b1", "b2"):
        manifest = Manifest.read(Path(table["spool"]) / name / "manifest.json")
        if Done.read(manifest.folder) is not None:
            continue
        with Batch(manifest, take_fence(manifest.folder), shows_progress=False) as batch:
            mapped = batch.json(batch.messages(spark), NARROW)
            batch.write(
                mapped.rows, table["table"],
                format=table["format"], options=table["options"], table_properties=properties,
            )  # fmt: skip
            batch.reject(mapped.rejects)


def _replay(spark: SparkSession, table: Table, name: str) -> None:
    """Store the first batch again, with a column for its other field and a wider type."""
    replay = Batch.replay(table["spool"], ["b1"], name=name)
    if replay is None:
        return
    widens = table["format"] != "parquet"
    with replay as batch:
        schema = f"id LONG NOT NULL, v {'LONG' if widens else 'INT'}"
        rows = batch.json(batch.messages(spark), schema, rescue="_rescued STRING").rows
        batch.write(
            rows, table["table"],
            format=table["format"], options=table["options"], evolve=["add", "widen"] if widens else "add",
        )  # fmt: skip


def _schema(table: Path) -> str:
    actions = [action for commit in commits(table) for action in commit]
    return str([action["metaData"]["schemaString"] for action in actions if "metaData" in action][-1])


def _halt(enough: threading.Barrier) -> None:
    if enough.wait(300) == 0:
        print("halted", flush=True)
    threading.Event().wait()


def _halting(tables: list[Table], replay: str) -> ExitStack:
    """Stop each table's replay where a kill may do the most harm."""
    enough = threading.Barrier(len(tables))
    by_folder = {str(Path(each["spool"]) / replay): each for each in tables}
    for_delta: Any = delta
    for_jdbc: Any = jdbc
    rename, check, committing = Path.rename, for_delta.check_fence, for_jdbc.committing_as

    def renamed(self: Path, target: Path | str) -> Path:
        # The old rows are away, the table has its new columns; the new rows aren't there yet.
        if Path(target).name == f"jms_batch_id={replay}":
            _halt(enough)
        return rename(self, target)

    def checked(folder: Path, fence: int) -> None:
        check(folder, fence)
        table = by_folder.get(str(folder))
        if table is None:
            return
        # Delta: the columns are wider and the rows aren't written, or they are and nobody knows it.
        if table["kind"] == "delta, widened":
            reached = '"name":"v","type":"long"' in _schema(Path(table["table"]))
        else:
            reached = f"jmsjca/{replay}" in transactions(Path(table["table"]))
        if reached:
            _halt(enough)

    def commits_as(folder: Path, fence: int) -> Any:
        if str(folder) in by_folder:  # all is done, and nothing is committed
            _halt(enough)
        return committing(folder, fence)

    stack = ExitStack()
    stack.enter_context(mock.patch.object(Path, "rename", renamed))
    stack.enter_context(mock.patch.object(for_delta, "check_fence", checked))
    stack.enter_context(mock.patch.object(for_jdbc, "committing_as", commits_as))
    return stack


def _each(tables: list[Table], action: Callable[[Table], None]) -> None:
    with ThreadPoolExecutor(len(tables)) as threads:
        list(threads.map(action, tables))


def main() -> None:
    """Do what standard input asks for."""
    given = json.load(sys.stdin)
    tables, names = given["tables"], given["names"]
    spark = session()
    _each(tables, lambda table: _store(spark, table))
    with _halting(tables, replay_id(names[0])) if given["halts"] else ExitStack():
        for name in names:
            print("replaying", flush=True)
            _each(tables, lambda table: _replay(spark, table, name))  # noqa: B023 - used at once
    spark.stop()


if __name__ == "__main__":
    main()
