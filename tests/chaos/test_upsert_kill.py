"""Drivers are killed around an upsert: each key has its newest message once, and no upsert is repeated."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psycopg
import pytest

from airflow_provider_jmsjca import JmsMessage, Manifest, rejected_messages
from tests.chaos.sinks import DeltaSink, JdbcSink, Sink, submit
from tests.chaos.spark_processes import Driver, nothing_is_committed
from tests.chaos.test_delta_kill import commits
from tests.internals.spool import Done, Row, SpoolBatch
from tests.servers.postgres import Postgres

KEYS = 200
ROUNDS = 5
UPSERT = ("--mode", "upsert", "--keys", "id", "--delete-when", "text = 'gone'")


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Each key in every segment; the last says for every tenth that it is gone; one message is no JSON."""
    with SpoolBatch(tmp_path / "spool", "b1", source="queue://orders", activation="a") as batch:
        for number in range(ROUNDS):
            last = number == ROUNDS - 1
            bodies = [
                json.dumps({"id": key, "text": "gone" if last and key % 10 == 0 else f"round {number}"})
                for key in range(KEYS)
            ]
            texts = [*bodies, "no JSON"] if last else bodies
            batch.seal([Row(JmsMessage.text(text), 1_700_000_000_000_000) for text in texts])
        return batch.complete()


def merged(folder: Path) -> bool:
    return any("txn" in action for commit in commits(folder) for action in commit)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["delta", "jdbc"])
def test_killed_while_it_upserts_a_batch_counts_once(
    request: pytest.FixtureRequest, manifest: Manifest, tmp_path: Path, kind: str
) -> None:
    """Delta's driver dies between the commit and its report, PostgreSQL's while it writes."""
    folder = tmp_path / "table"
    postgres: Postgres | None = request.getfixturevalue("postgres") if kind == "jdbc" else None
    sink: Sink = DeltaSink(folder) if postgres is None else JdbcSink(postgres, "upserted")
    arguments = {"schema": "id LONG NOT NULL, text STRING NOT NULL", "arguments": UPSERT}
    log = tmp_path / "log"

    started = submit(manifest, sink, log, **arguments)
    driver = Driver(1)

    def look() -> object:
        return merged(folder) if postgres is None else sink.begun()

    try:
        with nothing_is_committed(manifest.folder, look, f"upsert into {kind}"):
            victim = driver.python() if postgres is None else driver.jvm()
            assert victim is not None, "window missed: the attempt had ended"
            victim.kill()
        started.wait(120)
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait(10)
    assert Done.read(manifest.folder) is None
    assert submit(manifest, sink, log, **arguments).wait(300) == 0, log.read_text(errors="replace")[-2_000:]

    assert sink.ids() == [key for key in range(KEYS) if key % 10]
    done = Done.read(manifest.folder)
    assert done is not None
    assert done.stored == {sink.table: KEYS - KEYS // 10}
    assert [each.message.body for each in rejected_messages(manifest)] == ["no JSON"]
    if postgres is None:
        assert sum("txn" in action for commit in commits(folder) for action in commit) == 1
        return
    with psycopg.connect(postgres.url(driver="postgresql")) as database:
        assert database.execute("SELECT DISTINCT text FROM upserted").fetchall() == [("round 4",)]
