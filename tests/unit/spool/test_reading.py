"""Whoever reads a segment leaves no thread behind that could break the end of the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.spool.rows import Row
from airflow_provider_jmsjca.spool.spool import SpoolBatch

ROOT = Path(__file__).parents[3]
SCRIPT = """
import os, sys
from pathlib import Path
from airflow_provider_jmsjca.spark import rejects
from airflow_provider_jmsjca.spool import attempts, known_ids, layout, manifest, rows, splits, spool

folder = Path(sys.argv[1])
before = set(os.listdir("/proc/self/task"))
found = manifest.Manifest.read(folder / manifest.MANIFEST)
assert len(list(rows.manifest_messages(found))) == 10
assert len(known_ids.read_ids(found.segment_paths()[0])) == 5
assert len(list(known_ids.read_identities(found.segment_paths()[0]))) == 5
part = splits.make_part(found, splits.RowRange(3, 7), attempts.take_fence(folder))
assert part.rows == 5
wanted = {2: rejects.Reject(segment=0, position=2, exception_class="E", exception_message="e")}
assert len(list(rejects._messages(found, 0, wanted, 0))) == 1
(folder / manifest.MANIFEST).unlink()
with spool.SpoolBatch(folder.parent, folder.name, source=found.source, activation="a") as again:
    assert again.rows == 10
assert set(os.listdir("/proc/self/task")) == before, "Arrow reads in threads of its own"
"""


def message(number: int) -> Row:
    orders = Destination.queue("orders")
    return Row(JmsMessage.text("x", message_id=f"ID:{number}", destination=orders), 1_700_000_000_000_000)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads as Linux shows them")
def test_the_caller_alone_reads_segments(tmp_path: Path) -> None:
    with SpoolBatch(tmp_path, "batch", source="queue://orders", activation="a") as batch:
        for start in (0, 5):
            batch.seal([message(number) for number in range(start, start + 5)])
        folder = batch.complete().folder
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder)], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
