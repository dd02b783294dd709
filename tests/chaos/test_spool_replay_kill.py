"""A replay is killed while it is made, also while its batches are pruned: it is there whole or not at all.

`JMSJCA_CHAOS=full` kills twenty times while batches are pruned, otherwise twice.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from airflow_provider_jmsjca import JmsMessage, Manifest, SpoolError, manifest_messages
from tests.chaos.conftest import Report
from tests.internals.spark import make_replay
from tests.internals.spool import (
    DeduplicationWindow,
    Done,
    Row,
    Selection,
    SpoolBatch,
    State,
    describe,
    prune,
    replay_id,
)

FULL = os.environ.get("JMSJCA_CHAOS") == "full"
MESSAGES, SEGMENTS = 200, 4
REPLAY = replay_id("killed")
NAMES, KILLS = [f"b{number:02d}" for number in range(24)], 20 if FULL else 2


@contextmanager
def processes(*targets: Callable[..., None], **given: object) -> Iterator[list[BaseProcess]]:
    """Begin functions in processes of their own, at the same moment."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.internals.spark", "tests.internals.spool"])
    begin = context.Barrier(len(targets) + 1)
    started = [
        context.Process(target=each, kwargs={**given, "begin": begin}, daemon=True) for each in targets
    ]
    for process in started:
        process.start()
    begin.wait(120)
    yield started
    for process in started:
        process.join(120)


def _make_replay(spool: Path, begin: Barrier) -> None:
    begin.wait()
    make_replay(spool, REPLAY, Selection(batches=("b1",)))


def _finish_and_prune_all(spool: Path, begin: Barrier) -> None:
    begin.wait()
    for name in NAMES:
        Done(
            batch_id=name, fence=1, rows=MESSAGES, stored={"/table": MESSAGES}, rejected=0, rejects=(),
            finished="2026-01-01T00:00:00.000+00:00",
        ).create(spool / name)  # fmt: skip
        prune(spool, older_than=timedelta(0), horizon=DeduplicationWindow(count=0))


def _replay_all(spool: Path, begin: Barrier) -> None:
    begin.wait()
    for name in reversed(NAMES):
        with suppress(SpoolError):  # the batch was pruned, or just is
            make_replay(spool, replay_id(name), Selection(batches=(name,)))


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
        with processes(_make_replay, spool=spool) as (process,):
            time.sleep(0.002 * attempt)  # a different moment each time; each must do
            process.kill()
        if (spool / REPLAY).exists():  # type: ignore[operator]  # a folder of this machine
            Manifest.read(spool / REPLAY / "manifest.json").verify()
    replay = replay_of(manifest)
    replay.verify()
    found = [json.loads(str(stored.message.body))["id"] for stored in manifest_messages(replay)]
    assert found == list(range(MESSAGES))


@pytest.mark.timeout(900)
def test_killed_while_batches_are_pruned_a_replay_has_all_messages_or_its_batch_has_gone(
    tmp_path: Path, report: Report
) -> None:
    """Replays are made from the last batch on, while pruning begins with the first: they meet."""
    seed = int(os.environ.get("JMSJCA_CHAOS_SEED") or int.from_bytes(os.urandom(4)))
    chance = random.Random(seed)  # noqa: S311 - when to kill
    spool = tmp_path / "spool"
    for name in NAMES:
        with SpoolBatch(spool, name, source="queue://orders", activation="a") as batch:
            bodies = map(str, range(MESSAGES))
            batch.seal([Row(JmsMessage.text(body), 1_700_000_000_000_000) for body in bodies])
            batch.complete()

    for _ in range(KILLS):
        with processes(_finish_and_prune_all, _replay_all, spool=spool) as both:
            time.sleep(chance.uniform(0, 0.5))  # each moment must do
            for process in both:
                process.kill()
    with processes(_finish_and_prune_all, _replay_all, spool=spool) as both:
        pass
    assert [process.exitcode for process in both] == [0, 0]

    replayed = 0
    for name in NAMES:
        assert describe(spool / name).state == State.PRUNED
        selection = Selection(batches=(name,))
        if not (spool / replay_id(name)).exists():
            with pytest.raises(SpoolError, match=f"batch {name} was pruned"):
                make_replay(spool, replay_id(name), selection)
            continue
        replay = make_replay(spool, replay_id(name), selection)
        assert replay is not None
        replay.verify()
        assert [each.message.body for each in manifest_messages(replay)] == list(map(str, range(MESSAGES)))
        replayed += 1
    report(f"{replayed} of {len(NAMES)} batches replayed while they are pruned: {KILLS} kills; seed {seed}")
