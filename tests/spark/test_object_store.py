"""A batch in S3 and in HDFS: Spark reads it there, and writes there what is turned away."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_jmsjca import Batch, FencedError, Manifest, rejected_messages
from tests.internals.spool import (
    Done,
    ObjectPath,
    Row,
    SpoolBatch,
    State,
    describe,
    names_in,
    path_for_spark,
    remove,
    take_fence,
    uri_to_path,
    verify,
)
from tests.servers.hadoop import Hdfs
from tests.servers.s3 import BUCKET, S3
from tests.spark.conftest import ORDERS, flight

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "carrier STRING NOT NULL, dep_delay DOUBLE NOT NULL"


@pytest.fixture(params=["s3", "hdfs"])
def root(request: pytest.FixtureRequest, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder of the store, as the spool calls it, with what it takes to reach it in the environment."""
    server: S3 | Hdfs = request.getfixturevalue(request.param)
    for name, value in server.options().items():
        monkeypatch.setenv(name.upper(), value)
    if isinstance(server, Hdfs):
        return f"{server.url}/{uuid.uuid4().hex}"
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[union-attr]
    for name, value in (
        ("endpoint", server.endpoint),
        ("endpoint.region", "us-east-1"),
        ("access.key", "any"),
        ("secret.key", "any"),
        ("path.style.access", "true"),
    ):
        hadoop.set(f"fs.s3a.{name}", value)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


@pytest.fixture
def manifest(root: str) -> Manifest:
    """Three good messages and two bad ones, in two segments."""
    spool = ObjectPath.parse(f"{root}/jms~spool [1]")
    with SpoolBatch(spool, "d~~r~~t~~-1", source=str(ORDERS), activation="a") as batch:
        for messages in (
            [flight(0, "UA", 1.0), flight(1, "UA", "late"), flight(2, "AA", 2.0)],
            [flight(3, "AA", None), flight(4, "DL", 3.0)],
        ):
            batch.seal([Row(message, 1_700_000_000_000_000) for message in messages])
        return batch.complete()


def run(manifest: Manifest, fence: int, spark: SparkSession, table: str) -> None:
    with Batch(Manifest.read(manifest.uri), fence) as batch:
        flights = batch.json(batch.messages(spark), SCHEMA)
        batch.reject(flights.rejects)
        batch.write(flights.rows, table)


def test_a_batch_is_stored_once_and_its_rejects_come_back(
    root: str, manifest: Manifest, spark: SparkSession, tmp_path: Path
) -> None:
    tables = [str(tmp_path / "table")]
    if os.environ.get("JMSJCA_CHAOS") == "full" or root.startswith("hdfs:"):
        tables.append(path_for_spark(uri_to_path(f"{root}/table")))
    for table in tables:
        run(manifest, take_fence(manifest.folder), spark, table)
        done = Done.read(manifest.folder)
        assert done is not None
        assert (done.stored, done.rejected) == ({table: 3}, 2)
        assert [each.message.message_id for each in rejected_messages(manifest)] == ["ID:1", "ID:3"]
        assert sorted(row.dep_delay for row in spark.read.parquet(table).collect()) == [1.0, 2.0, 3.0]
        assert describe(manifest.folder).state is State.REJECTS
        assert verify(describe(manifest.folder)) is None
        assert not [name for name in names_in(manifest.folder) if name.startswith("_rejects")]
        # As if the driver had died just before it reported.
        remove(manifest.folder / "_DONE")


def test_an_attempt_that_was_overtaken_commits_nothing(
    manifest: Manifest, spark: SparkSession, tmp_path: Path
) -> None:
    table = str(tmp_path / "table")
    old = Batch(manifest, take_fence(manifest.folder))
    newer = take_fence(manifest.folder)
    with pytest.raises(FencedError):
        old.write(old.messages(spark), table)
    with pytest.raises(FencedError):
        old.finish()
    assert not Path(table).exists()
    run(manifest, newer, spark, table)
    done = Done.read(manifest.folder)
    assert done is not None
    assert done.fence == newer
