"""A replay of a batch is killed while it is made: it is there whole or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airflow_provider_jmsjca import JmsMessage, Manifest, manifest_messages
from tests.chaos.sinks import ROOT
from tests.internals.spark import make_replay
from tests.internals.spool import Row, Selection, SpoolBatch, replay_id

MESSAGES, SEGMENTS = 200, 4
REPLAY = replay_id("killed")
_MAKES = """
import sys
from pathlib import Path
from tests.internals.spark import make_replay
from tests.internals.spool import Selection, replay_id
print("ready", flush=True)
make_replay(Path(sys.argv[1]), replay_id("killed"), Selection(batches=("b1",)))
"""


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Every tenth message lacks a field that the first schema requires."""
    with SpoolBatch(tmp_path / "spool", "b1", source="queue://orders", activation="a") as batch:
        for first in range(0, MESSAGES, MESSAGES // SEGMENTS):
            numbers = range(first, first + MESSAGES // SEGMENTS)
            bodies = [{"id": number} | ({"v": number} if number % 10 else {}) for number in numbers]
            batch.seal([Row(JmsMessage.text(json.dumps(body)), 1_700_000_000_000_000) for body in bodies])
        return batch.complete()


def replay_of(manifest: Manifest) -> Manifest:
    found = make_replay(manifest.folder.parent, REPLAY, Selection(batches=("b1",)))
    assert found is not None
    return found


@pytest.mark.timeout(900)
def test_killed_while_it_is_made_a_replay_is_there_whole_or_not_at_all(manifest: Manifest) -> None:
    spool = manifest.folder.parent
    for attempt in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", _MAKES, str(spool)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(0.002 * attempt)  # a different moment each time; each must do
        process.kill()
        process.communicate()
        if (spool / REPLAY).exists():  # type: ignore[operator]  # a folder of this machine
            Manifest.read(spool / REPLAY / "manifest.json").verify()
    replay = replay_of(manifest)
    replay.verify()
    found = [json.loads(str(stored.message.body))["id"] for stored in manifest_messages(replay)]
    assert found == list(range(MESSAGES))
