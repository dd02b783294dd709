"""A driver is killed while it stores replays of a batch, which also change the table: each row is there once.

One kill hits a replay into each kind of table, each stopped at its most delicate moment. With
`JMSJCA_CHAOS=full` twenty kills at random follow; the seed is reported, and `JMSJCA_CHAOS_SEED` repeats it.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg
import pyarrow.parquet as pq
import pytest

from airflow_provider_jmsjca import JmsMessage, Manifest, rejected_messages
from tests.chaos.conftest import Report
from tests.chaos.sinks import DeltaSink, JdbcSink, ParquetSink, Sink
from tests.chaos.spark_processes import Job
from tests.chaos.test_delta_kill import live_files, transactions
from tests.internals.spool import Done, Row, SpoolBatch, replay_id
from tests.servers.postgres import Postgres

FULL = os.environ.get("JMSJCA_CHAOS") == "full"
MESSAGES, SEGMENTS = (10_000, 4) if FULL else (200, 2)
KILLS = 20 if FULL else 0
BEFORE = [number for number in range(2 * MESSAGES) if number % 10]
AFTER = sorted({*BEFORE, *range(MESSAGES)})
WIDENED = {"jdbc": "column 'v': integer to bigint", "delta": "column 'v': INT to BIGINT"}


def batch(spool: Path, name: str, first: int) -> Manifest:
    """Return a batch of which every tenth message lacks a field that the first schema requires."""
    with SpoolBatch(spool, name, source="queue://orders", activation="a") as sealing:
        for begin in range(first, first + MESSAGES, MESSAGES // SEGMENTS):
            numbers = range(begin, begin + MESSAGES // SEGMENTS)
            bodies = [
                {"id": number, "extra": f"x{number}"} | ({"v": number} if number % 10 else {})
                for number in numbers
            ]
            sealing.seal([Row(JmsMessage.text(json.dumps(body)), 1_700_000_000_000_000) for body in bodies])
        return sealing.complete()


class Story:
    """Two batches, replays of the first, and a table.

    Args:
        kind: Names the table and the moment.
        folder: For the spool.
        sink: The table.
    """

    def __init__(self, kind: str, folder: Path, sink: Sink) -> None:
        self.sink, self.spool = sink, folder / "spool"
        self.first = batch(self.spool, "b1", 0)
        batch(self.spool, "b2", MESSAGES)
        environment = sink.environment()
        options = {
            name: environment[f"JMSJCA_JDBC_{name.upper()}"]
            for name in ("url", "user", "password")
            if environment
        }
        self.given = {
            "kind": kind, "spool": str(self.spool),
            "format": sink.format, "table": sink.table, "options": options,
        }  # fmt: skip

    def done(self, name: str) -> Done | None:
        folder = self.spool / replay_id(name)
        return Done.read(folder) if folder.exists() else None

    def extras(self, postgres: Postgres) -> list[tuple[int, str]]:
        """Return the values of the column that a replay added."""
        if isinstance(self.sink, JdbcSink):
            with psycopg.connect(postgres.url(driver="postgresql")) as database:
                query = f"SELECT id, extra FROM {self.sink.table} WHERE extra IS NOT NULL ORDER BY id"  # noqa: S608 - a name of the test's
                return database.execute(query.encode()).fetchall()
        table = Path(self.sink.table)
        files = live_files(table) if isinstance(self.sink, DeltaSink) else list(table.glob("jms_*/*.parquet"))
        rows = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
        return sorted((row["id"], row["extra"]) for row in rows if row.get("extra") is not None)


def job(stories: Sequence[Story], names: Sequence[str], log: Path, *, halts: bool) -> Job:
    given = {"tables": [story.given for story in stories], "names": names, "halts": halts}
    return Job("tests.chaos.storing_replays", given, log)


@pytest.fixture
def stories(tmp_path: Path, postgres: Postgres) -> Iterator[list[Story]]:
    jdbc = JdbcSink(postgres, "replayed")
    jdbc.drop()
    sinks: dict[str, Sink] = {
        "parquet": ParquetSink(tmp_path / "parquet" / "table"),
        "jdbc": jdbc,
        "delta, widened": DeltaSink(tmp_path / "widened" / "table"),
        "delta, committed": DeltaSink(tmp_path / "committed" / "table"),
    }
    yield [Story(kind, tmp_path / kind.rpartition(" ")[2], sink) for kind, sink in sinks.items()]
    jdbc.drop()


@pytest.mark.timeout(3_600)
def test_killed_while_it_is_stored_and_changes_its_table_a_replay_counts_once(
    stories: list[Story], postgres: Postgres, tmp_path: Path, report: Report
) -> None:
    log = tmp_path / "log"
    parquet, jdbc, widened, committed = stories
    with job(stories, ["first"], log, halts=True) as driver:
        driver.said("halted")
    assert [story.done("first") for story in stories] == [None] * 4
    assert parquet.sink.ids() == BEFORE[len(BEFORE) // 2 :], "the old rows have left, the new ones lack"
    assert jdbc.sink.ids() == widened.sink.ids() == BEFORE
    assert committed.sink.ids() == AFTER

    seed = int(os.environ.get("JMSJCA_CHAOS_SEED") or int.from_bytes(os.urandom(4)))
    chance = random.Random(seed)  # noqa: S311 - when to kill
    names = ["first", *(f"random{number}" for number in range(KILLS))]
    for number in range(KILLS):
        with job(stories, names[number : number + 2], log, halts=False) as driver:
            driver.said("replaying", times=2)
            time.sleep(chance.uniform(0, 8))  # a different moment each time; each must do
    with job(stories, names[-1:], log, halts=False) as driver:
        assert driver.ended() == "replaying\n"

    for story in stories:
        kind, sink = story.given["kind"], story.sink
        assert sink.ids() == AFTER, f"{kind}, seed {seed}"
        assert story.extras(postgres) == [(number, f"x{number}") for number in range(MESSAGES)], kind
        changes = [f"table {sink.table}: column 'extra': added as STRING"]
        if sink.format in WIDENED:
            changes.append(f"table {sink.table}: {WIDENED[sink.format]}")
        first = story.done("first")
        assert first is not None
        assert first.evolved == tuple(changes), kind
        for name in names:
            done = story.done(name)
            assert done is not None
            assert (done.stored, done.rejected) == ({sink.table: MESSAGES}, 0), f"{kind}, {name}, seed {seed}"
        assert sum(1 for _ in rejected_messages(story.first)) == MESSAGES // 10
    for story in (widened, committed):
        ids = ["b1", "b2", *map(replay_id, names)]
        assert sorted(transactions(Path(story.sink.table))) == sorted(f"jmsjca/{each}" for each in ids)
    report(f"replays that change their table: {1 + KILLS} kills, 0 lost, 0 twice; seed {seed}")
