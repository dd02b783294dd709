"""The kinds of tables that the ready-made job writes, and a batch for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import psycopg
import pyarrow.dataset as ds

from airflow_provider_jmsjca import JmsMessage, Manifest, rejected_messages
from tests.chaos.test_delta_kill import stored as stored_in_delta
from tests.internals.spark import messages_to_table
from tests.internals.spool import Done, Row, SpoolBatch, SpoolPath, take_fence
from tests.servers.broker import USER
from tests.servers.ports import HOST
from tests.servers.postgres import Postgres
from tests.spark.conftest import table_jars

ROOT = Path(__file__).parents[2]
BAD_EVERY = 100
_SEGMENT = 1_000


class Sink(ABC):
    """A table of one kind.

    Attributes:
        format: What `--format` takes.
        table: What `--table` takes.
    """

    format: ClassVar[str]
    table: str

    def jars(self) -> Sequence[str]:
        """Return what Spark needs besides."""
        return [table_jars()]

    def environment(self) -> Mapping[str, str]:
        """Return what the driver's environment has besides."""
        return {}

    @abstractmethod
    def begun(self) -> object:
        """Return something true once rows of an attempt are being written; it changes with each attempt."""

    @abstractmethod
    def ids(self) -> list[int]:
        """Return the ids that the table has, in order."""


class ParquetSink(Sink):
    """A folder of Parquet files."""

    format = "parquet"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.table = str(folder)

    def jars(self) -> Sequence[str]:
        return []

    def begun(self) -> set[Path]:
        return set(self._folder.glob("_staging/*/new-*/**/part-*.parquet"))

    def ids(self) -> list[int]:
        if not any(self._folder.glob("jms_batch_id=*")):
            return []
        found = ds.dataset(self._folder, format="parquet", partitioning="hive").to_table(["id"])
        return sorted(found["id"].to_pylist())


class DeltaSink(Sink):
    """A Delta table."""

    format = "delta"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.table = str(folder)

    def begun(self) -> set[Path]:
        return set(self._folder.glob("*.parquet"))

    def ids(self) -> list[int]:
        return stored_in_delta(self._folder)


class JdbcSink(Sink):
    """A table of PostgreSQL.

    Args:
        postgres: The server.
        name: The table's name.
        port: Where the job finds the server; `None` means where it listens.
    """

    format = "jdbc"

    def __init__(self, postgres: Postgres, name: str, port: int | None = None) -> None:
        self._postgres = postgres
        self._port = port or postgres.ports["postgres"]
        self.table = name

    def environment(self) -> Mapping[str, str]:
        return {
            "JMSJCA_JDBC_URL": f"jdbc:postgresql://{HOST}:{self._port}/postgres",
            "JMSJCA_JDBC_USER": USER,
            "JMSJCA_JDBC_PASSWORD": self._postgres.password,
        }

    def _query(self, query: str, *values: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self._postgres.url(driver="postgresql"), autocommit=True) as connection:
            return connection.execute(query.encode(), values).fetchall()

    def begun(self) -> set[object]:
        found = self._query(
            "SELECT DISTINCT relation::regclass::text FROM pg_locks "
            "WHERE mode = 'RowExclusiveLock' AND relation::regclass::text LIKE 'jms!_%%!_%%' ESCAPE '!'"
        )
        return {name for (name,) in found}

    def ids(self) -> list[int]:
        if self._query("SELECT to_regclass(%s)", self.table) == [(None,)]:
            return []
        return [int(str(number)) for (number,) in self._query(f"SELECT id FROM {self.table} ORDER BY id")]  # noqa: S608 - a name of the test's

    def drop(self) -> None:
        """Remove the table."""
        with psycopg.connect(self._postgres.url(driver="postgresql"), autocommit=True) as connection:
            connection.execute(f"DROP TABLE IF EXISTS {self.table}".encode())


def numbered_batch(spool: SpoolPath, messages: int, body_bytes: int = 0) -> Manifest:
    """Return a finished batch of objects with ids, of which every hundredth message is no JSON.

    Args:
        spool: The folder of all batches.
        messages: How many.
        body_bytes: How much longer each body is.
    """
    with SpoolBatch(spool, "b1", source="queue://orders", activation="a") as batch:
        for first in range(0, messages, _SEGMENT):
            numbers = range(first, min(first + _SEGMENT, messages))
            bodies = (
                "no JSON"
                if number % BAD_EVERY == 0
                else json.dumps({"id": number, "text": os.urandom(body_bytes // 2).hex()})
                for number in numbers
            )
            batch.seal([Row(JmsMessage.text(body), 1_700_000_000_000_000) for body in bodies])
        return batch.complete()


def submit(
    manifest: Manifest,
    sink: Sink,
    log: Path,
    *,
    master: str = "local[1]",
    jars: Sequence[str] = (),
    conf: Mapping[str, str] | None = None,
    schema: str = "id LONG NOT NULL",
    arguments: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """Submit the ready-made job as a new attempt; what it says is added to `log`."""
    settings = {"spark.ui.enabled": "false", "spark.databricks.delta.snapshotPartitions": "2"}
    settings |= {"spark.sql.shuffle.partitions": "2", "spark.port.maxRetries": "100", **(conf or {})}
    needed = [*sink.jars(), *jars]
    with log.open("ab") as output:
        return subprocess.Popen(
            [
                Path(sys.executable).parent / "spark-submit",
                "--master", master,
                *(["--jars", ",".join(needed)] if needed else []),
                *(part for name, value in settings.items() for part in ("--conf", f"{name}={value}")),
                str(messages_to_table.__file__),
                "--manifest", manifest.uri,
                "--batch-id", manifest.batch_id,
                "--fence", str(take_fence(manifest.folder)),
                "--table", sink.table,
                "--format", sink.format,
                "--schema", schema,
                *arguments,
            ],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, cwd=log.parent,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "PYSPARK_PYTHON": sys.executable,
                **sink.environment(),
            },
        )  # fmt: skip


def check_stored_once(manifest: Manifest, sink: Sink, messages: int) -> None:
    """Check that a table has each good message once, and that each bad one came back."""
    good = [number for number in range(messages) if number % BAD_EVERY]
    assert sink.ids() == good
    done = Done.read(manifest.folder)
    assert done is not None
    assert (done.stored, done.rejected) == ({sink.table: len(good)}, messages - len(good))
    assert sum(1 for _ in rejected_messages(manifest)) == done.rejected
