"""A Spark in this process, and batches for it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_jmsjca import Destination, JmsMessage, Manifest
from tests import servers
from tests.internals.spark import delta
from tests.internals.spool import Row, SpoolBatch
from tests.servers.artifacts import fetch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERS = Destination.queue("orders")
MakeBatch = Callable[..., Manifest]


def table_jars() -> str:
    """Return what Spark needs for tables other than Parquet, as `spark.jars` wants it."""
    return ",".join(map(str, fetch(Path(servers.__file__).parent / "spark-tables.lock")))


def s3a_jars() -> str:
    """Return what Spark needs to read from S3, as `spark.jars` wants it."""
    return ",".join(map(str, fetch(Path(servers.__file__).parent / "spark-s3a.lock")))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pyspark's own: its tests look at the version of pandas
        from pyspark.sql import SparkSession  # noqa: PLC0415 - only the tests that ask for it pay for it

        session = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.jars", f"{table_jars()},{s3a_jars()}")
            .config(map=delta.SESSION)
            .config("spark.databricks.delta.snapshotPartitions", "2")
            .config("spark.sql.shuffle.partitions", "4")
            .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
            .getOrCreate()
        )
    yield session
    session.stop()


@pytest.fixture
def make_batch(tmp_path: Path) -> MakeBatch:
    def make(*segments: list[JmsMessage], batch_id: str = "d~~r~~t~~-1") -> Manifest:
        with SpoolBatch(tmp_path / "spool", batch_id, source=str(ORDERS), activation="a") as batch:
            for messages in segments:
                batch.seal([Row(message, 1_700_000_000_000_000) for message in messages])
            return batch.complete()

    return make


def flight(number: int, carrier: str, delay: float | str | None) -> JmsMessage:
    body = json.dumps({"carrier": carrier, "dep_delay": delay, "more": "left out"})
    return JmsMessage.text(body, message_id=f"ID:{number}", destination=ORDERS, timestamp=1_600_000_000_000)
