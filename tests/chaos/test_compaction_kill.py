"""A driver is killed while it compacts Delta tables and stores batches in them: each batch is there once.

With `JMSJCA_CHAOS=full` twenty kills at random follow; the seed is reported, and `JMSJCA_CHAOS_SEED` repeats
it.
"""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_provider_jmsjca import JmsMessage
from tests.chaos.conftest import Report
from tests.chaos.spark_processes import Job, soon
from tests.chaos.test_delta_kill import commits, live_files, transactions
from tests.internals.spool import Done, Row, SpoolBatch, replay_id

FULL = os.environ.get("JMSJCA_CHAOS") == "full"
KILLS = 20 if FULL else 0
FIRST, MORE = 2, 24 if FULL else 2
ROWS, PARTS = 80, 4


class Tables:
    """Two Delta tables and their batches; those of the second have half of its keys, in turn.

    Args:
        folder: For tables and spool.
    """

    def __init__(self, folder: Path) -> None:
        self.spool = folder / "spool"
        self.paths = {name: folder / name for name in ("appended", "upserted")}
        numbers = range(FIRST + MORE)
        self.batches = {name: [f"{name}-{number:02d}" for number in numbers] for name in self.paths}
        self.upserts: list[dict[int, str]] = []
        for number in numbers:
            begin = number * ROWS
            self._seal("appended", number, dict.fromkeys(range(begin, begin + ROWS), "new"))
            keys = [key for key in range(ROWS) if key // PARTS % 2 == number % 2]
            is_last = number == numbers[-1]
            texts = {key: "gone" if is_last and key % 10 == 0 else f"round {number}" for key in keys}
            self.upserts.append(texts)
            self._seal("upserted", number, texts)

    def _seal(self, name: str, number: int, texts: dict[int, str]) -> None:
        batch_id = self.batches[name][number]
        with SpoolBatch(self.spool, batch_id, source="queue://orders", activation=name) as batch:
            bodies = ({"id": key, "part": key % PARTS, "text": text} for key, text in texts.items())
            batch.seal([Row(JmsMessage.text(json.dumps(body)), 1_700_000_000_000_000) for body in bodies])
            batch.complete()

    def job(self, log: Path, *, halts: bool = False) -> Job:
        given: dict[str, Any] = {
            "spool": str(self.spool), "batches": self.batches, "first": FIRST, "replayed": "appended-00",
            "halts": halts,
        }  # fmt: skip
        paths = {name: str(path) for name, path in self.paths.items()}
        return Job("tests.chaos.compacting", given | paths, log)

    def rows(self, name: str) -> list[tuple[int, str]]:
        tables = [pq.ParquetFile(file).read() for file in live_files(self.paths[name])]
        return sorted((row["id"], row["text"]) for table in tables for row in table.to_pylist())

    def compactions(self, name: str) -> int:
        actions = [action for commit in commits(self.paths[name]) for action in commit]
        return sum(action.get("commitInfo", {}).get("operation") == "OPTIMIZE" for action in actions)

    def is_compacting(self) -> bool:
        """Tell whether the first table, to which nobody else writes, has files that no commit knows."""
        table = self.paths["appended"]
        found = set(table.glob("part=*/*.parquet"))
        added = {action["add"]["path"] for commit in commits(table) for action in commit if "add" in action}
        return bool(found - {table / str(path) for path in added})


@pytest.mark.timeout(3_600)
def test_killed_while_it_compacts_and_stores_a_batch_counts_once(tmp_path: Path, report: Report) -> None:
    log, tables = tmp_path / "log", Tables(tmp_path)
    with tables.job(log, halts=True) as driver:
        driver.said("compacting")
        soon(tables.is_compacting, "file of a compaction")
    assert tables.compactions("appended") == 0, "window missed: the compaction had ended"
    assert tables.rows("appended") == [(key, "new") for key in range(FIRST * ROWS)]

    seed = int(os.environ.get("JMSJCA_CHAOS_SEED") or int.from_bytes(os.urandom(4)))
    chance = random.Random(seed)  # noqa: S311 - when to kill
    for _ in range(KILLS):
        with tables.job(log) as driver:
            driver.said("compacting")
            time.sleep(chance.uniform(0, 15))  # a different moment each time; each must do
    with tables.job(log) as driver:
        driver.ended()

    every = range((FIRST + MORE) * ROWS)
    assert tables.rows("appended") == [(key, "new") for key in every], f"seed {seed}"
    newest: dict[int, str] = {}
    for texts in tables.upserts:
        newest |= texts
    left = sorted((key, text) for key, text in newest.items() if text != "gone")
    assert tables.rows("upserted") == left, f"seed {seed}"
    upserted = [sum(text != "gone" for text in texts.values()) for texts in tables.upserts]
    stored = {
        "appended": dict.fromkeys([*tables.batches["appended"], replay_id("again")], ROWS),
        "upserted": dict(zip(tables.batches["upserted"], upserted, strict=True)),
    }
    for name, rows in stored.items():
        assert sorted(transactions(tables.paths[name])) == sorted(f"jmsjca/{each}" for each in rows)
        assert tables.compactions(name), f"{name} was never compacted"
        for batch_id, count in rows.items():
            done = Done.read(tables.spool / batch_id)
            assert done is not None, batch_id
            assert done.stored == {str(tables.paths[name]): count}, batch_id
    report(f"stored while their tables are compacted: {1 + KILLS} kills, 0 lost, 0 twice; seed {seed}")
