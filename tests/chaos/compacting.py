"""Compacts two Delta tables while batches are stored in them: `python -m tests.chaos.compacting`.

Reads a JSON object from stdin: `spool`; the tables `appended` and `upserted`; the `batches` of each; how many
of them are stored `first`, before the tables are compacted; `replayed`, a batch of the first table to store
again; and whether it `halts`. Then no batch is appended any more, and the process goes on until it is killed.
`compacting` is printed when that begins, and `stored` after each batch behind it. Started again it continues
with the batches that aren't done.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from airflow_provider_jmsjca import Batch, Manifest
from tests.chaos.storing_replays import session
from tests.internals.spool import Done, take_fence

SCHEMA = "id LONG NOT NULL, part INT NOT NULL, text STRING NOT NULL"
WRITES: dict[str, dict[str, Any]] = {
    "appended": {},
    "upserted": {"mode": "upsert", "keys": ["id"], "delete_when": "text = 'gone'"},
}


def _store(spark: SparkSession, batch: Batch, table: str, **arguments: Any) -> None:
    with batch:
        rows = batch.json(batch.messages(spark), SCHEMA).rows
        batch.write(rows, table, format="delta", partition_by=["part"], **arguments)
    print("stored", flush=True)


def _store_all(spark: SparkSession, given: dict[str, Any], name: str, batches: Iterable[str]) -> None:
    for batch_id in batches:
        manifest = Manifest.read(Path(given["spool"]) / batch_id / "manifest.json")
        if Done.read(manifest.folder) is None:
            batch = Batch(manifest, take_fence(manifest.folder), shows_progress=False)
            _store(spark, batch, given[name], **WRITES[name])


def _append_all(spark: SparkSession, given: dict[str, Any], batches: Iterable[str]) -> None:
    _store_all(spark, given, "appended", batches)
    replay = Batch.replay(given["spool"], [given["replayed"]], name="again")
    if replay is not None:
        _store(spark, replay, given["appended"])


def _compact(spark: SparkSession, table: str, enough: threading.Event) -> None:
    """Compact a table again and again, as a task with retries does, and once more at the end."""
    is_last = False
    while not is_last:
        is_last = enough.wait(0.05)
        try:
            spark.sql(f"OPTIMIZE delta.`{table}`")
        except (Py4JJavaError, PySparkException) as error:
            if "DELTA_CONCURRENT" not in str(error):
                raise


def _compacting(spark: SparkSession) -> SparkSession:
    found = spark.newSession()
    # Each partition is compacted by itself, so a compaction takes a while, and a kill finds it at work.
    found.conf.set("spark.databricks.delta.optimize.maxThreads", "1")
    return found


def main() -> None:
    """Do what standard input asks for."""
    given = json.load(sys.stdin)
    first = given["first"]
    spark = session()
    enough = threading.Event()
    with ThreadPoolExecutor(4) as threads:
        # Each has a session of its own, as separate jobs have: a session's settings count for all in it.
        mine = {name: spark.newSession() for name in WRITES}
        list(
            threads.map(
                lambda name: _store_all(mine[name], given, name, given["batches"][name][:first]), WRITES
            )
        )
        print("compacting", flush=True)
        compactions = [threads.submit(_compact, _compacting(spark), given[name], enough) for name in WRITES]
        stores = [
            threads.submit(_store_all, mine["upserted"], given, "upserted", given["batches"]["upserted"])
        ]
        if not given["halts"]:
            stores.append(threads.submit(_append_all, mine["appended"], given, given["batches"]["appended"]))
        try:
            for each in stores:
                each.result()
            if given["halts"]:
                threading.Event().wait()
        finally:
            enough.set()
        for each in compactions:
            each.result()
    spark.stop()


if __name__ == "__main__":
    main()
