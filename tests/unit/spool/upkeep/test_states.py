"""States of batches, what may be pruned, and batches that their runs left."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_jmsjca.errors import BatchInUseError, SpoolError
from airflow_provider_jmsjca.spool.attempts import Done, RejectsFile, take_fence
from airflow_provider_jmsjca.spool.files import ASIDE, remove_if_unused, seal
from airflow_provider_jmsjca.spool.known_ids import DeduplicationWindow, message_key
from airflow_provider_jmsjca.spool.manifest import Manifest, path_to_uri
from airflow_provider_jmsjca.spool.spool import SpoolBatch
from airflow_provider_jmsjca.spool.upkeep.states import (
    KeptBatch,
    RemovedBatch,
    State,
    adopt,
    batches,
    describe,
    prune,
    verify,
)
from tests.unit.spool.batches import MakeRows, OpenBatch
from tests.unit.spool.dying_writer import KILLED, die_at

WEEK = timedelta(days=7)
LATER = time.time() + timedelta(days=30).total_seconds()
REJECT = b'{"segment": 0, "position": 0, "exception_class": "E", "exception_message": "m"}\n'
Make = Callable[..., Path]


@pytest.fixture
def make(open_batch: OpenBatch, rows: MakeRows) -> Make:
    """Make a batch of three messages in a state, and return its folder."""

    def make_it(name: str, state: State, *, rejected: int = 0, numbers: Iterable[int] = range(3)) -> Path:
        with open_batch(name) as batch:
            folder = batch.folder
            if state is State.EMPTY:
                return folder
            batch.seal(rows(numbers))
            if state is State.UNFINISHED:
                return folder
            manifest = batch.complete()
        if state is State.COLLECTED:
            return folder
        take_fence(folder)
        if state is State.UNDONE:
            return folder
        seal(folder / "rejects-000001-000000.jsonl", REJECT * rejected)
        digest = hashlib.sha256(REJECT * rejected).hexdigest()
        file = RejectsFile(file="rejects-000001-000000.jsonl", rows=rejected, sha256=digest)
        Done(
            batch_id=name,
            fence=1,
            rows=manifest.rows,
            stored={"/t": manifest.rows - rejected},
            rejected=rejected,
            rejects=(file,),
            finished="2026-01-01",
        ).create(folder)
        if rejected and state is State.DONE:
            seal(folder / f"dead-lettered-{rejected:09d}", b"")
        return folder

    return make_it


def everything(make: Make) -> Path:
    for state in (State.EMPTY, State.UNFINISHED, State.COLLECTED, State.UNDONE, State.DONE):
        folder = make(f"b-{state}", state)
    seal(make("b-rejects", State.REJECTS, rejected=2) / "dead-lettered-000000001", b"")
    make("b-sent", State.DONE, rejected=2)
    return folder.parent


def states(spool: Path) -> dict[str, State]:
    return {batch.batch_id: batch.state for batch in batches(spool)}


def test_the_state_of_a_batch_is_read_from_its_files(
    make: Make, open_batch: OpenBatch, rows: MakeRows
) -> None:
    spool = everything(make)
    (spool / "no batch").mkdir()
    (spool / ".hidden").mkdir()
    (spool / "b-damaged").mkdir()
    (spool / "b-damaged" / "manifest.json").write_text("x")
    with open_batch("b-collecting") as held:
        held.seal(rows([1]))
        found = {batch.batch_id: batch for batch in batches(spool)}
    assert {name: batch.state for name, batch in found.items()} == {
        "b-collected": State.COLLECTED,
        "b-collecting": State.COLLECTING,
        "b-damaged": State.DAMAGED,
        "b-done": State.DONE,
        "b-empty": State.EMPTY,
        "b-rejects": State.REJECTS,
        "b-sent": State.DONE,
        "b-undone": State.UNDONE,
        "b-unfinished": State.UNFINISHED,
    }
    assert "not JSON" in (found["b-damaged"].fault or "")
    done = found["b-sent"]
    assert (done.rows, done.segments, done.attempts, done.stored) == (3, 1, 1, (("/t", 1),))
    assert (done.rejected, done.dead_lettered, done.source, done.activation) == (2, 2, "queue://orders", "a")
    assert found["b-unfinished"].rows == 3
    assert [each.batch_id for each in batches(spool, ["b-done"])] == ["b-done"]
    with pytest.raises(SpoolError, match="there is no batch 'nobody'"):
        list(batches(spool, ["nobody"]))


@pytest.mark.parametrize("path", ["Bücher und mehr", "50% #1", "[a-b]*?{c}", "a\\b"])
def test_any_path_of_the_spool_will_do(tmp_path: Path, rows: MakeRows, path: str) -> None:
    spool = tmp_path / path
    with SpoolBatch(spool, "b1", source="queue://orders", activation="a") as batch:
        batch.seal(rows([1]))
        uri = batch.complete().uri
    assert Manifest.read(uri).folder == spool / "b1"
    with SpoolBatch(spool, "b2", source="queue://orders", activation="a") as batch:
        assert batch.may_contain(message_key("ID:1", "queue://orders"))
        batch.seal(rows([2]))
    assert adopt(spool, "b2") is not None
    assert [(each.batch_id, verify(each)) for each in batches(spool)] == [("b1", None), ("b2", None)]
    assert path_to_uri(spool / "b1" / "manifest.json") == uri


@pytest.mark.parametrize("name", ["b-done", "b-unfinished", "b-sent"])
def test_verifying_reads_every_byte(make: Make, name: str) -> None:
    spool = everything(make)
    assert [verify(each) for each in batches(spool)] == [None] * 7
    path = spool / name / ("rejects-000001-000000.jsonl" if name == "b-sent" else "segment-000000.parquet")
    content = bytearray(path.read_bytes())
    content[60] ^= 1
    path.write_bytes(content)
    faults = {each.batch_id: verify(each) for each in batches(spool)}
    assert str(path) in (faults.pop(name) or "")
    assert set(faults.values()) == {None}


def test_pruning_removes_what_nobody_needs_and_nothing_else(make: Make) -> None:
    spool = everything(make)
    before = states(spool)
    assert prune(spool, older_than=WEEK, dry_run=True).removed == ()  # nothing is that old
    outcome = prune(spool, older_than=timedelta(0))
    assert outcome.removed == (RemovedBatch(batch_id="b-empty", whole=True, bytes=_any()),)
    horizon = (
        "within the horizon (the newest 200,000 messages of the last 7 days), "
        "by which repetitions are recognised"
    )
    care = "it changed within the last 60 minutes, so its job may be running or its retry coming"
    assert outcome.kept == (
        KeptBatch(
            batch_id="b-collected",
            state=State.COLLECTED,
            why="no job was submitted for it; it is removed only if you ask for `collected` ones",
        ),
        KeptBatch(batch_id="b-done", state=State.DONE, why=horizon),
        KeptBatch(batch_id="b-rejects", state=State.REJECTS, why=care),
        KeptBatch(batch_id="b-sent", state=State.DONE, why=horizon),
        KeptBatch(batch_id="b-undone", state=State.UNDONE, why=care),
        KeptBatch(batch_id="b-unfinished", state=State.UNFINISHED, why=care),
    )
    assert f"kept 2 done batches: {horizon}" in outcome.kept_summary()
    later = prune(spool, older_than=WEEK, dry_run=True, now=LATER)
    assert {each.batch_id for each in later.kept if "it needs attention" in each.why} == {
        "b-rejects",
        "b-undone",
        "b-unfinished",
    }
    planned = later.removed
    assert [(each.batch_id, each.whole) for each in planned] == [("b-done", False), ("b-sent", False)]
    del before["b-empty"]
    assert states(spool) == before
    assert prune(spool, older_than=WEEK, now=LATER).removed == planned
    assert states(spool) == before | {"b-done": State.PRUNED, "b-sent": State.PRUNED}
    assert sorted(path.name for path in (spool / "b-sent").iterdir()) == [
        "_DONE",
        "batch.json",
        "dead-lettered-000000002",
        "manifest.json",
        "pruned",
    ]
    assert prune(spool, older_than=WEEK, now=LATER).removed == ()
    with pytest.raises(SpoolError, match="was pruned"):
        Manifest.read(spool / "b-done" / "manifest.json").verify()
    assert verify(describe(spool / "b-done")) is None
    removed = prune(spool, older_than=WEEK, collected=True, forget=WEEK, now=LATER).removed
    assert [(each.batch_id, each.whole) for each in removed] == [
        ("b-collected", False),
        ("b-done", True),
        ("b-sent", True),
    ]
    assert set(states(spool)) == {"b-collected", "b-rejects", "b-undone", "b-unfinished"}


class _any(int):  # noqa: N801 - reads as a value
    def __eq__(self, other: object) -> bool:
        return isinstance(other, int)

    def __hash__(self) -> int:
        return 0


def test_ids_within_the_horizon_are_kept_however_little_age_is_asked_for(make: Make) -> None:
    for number in range(6):
        folder = make(f"b{number}", State.DONE, numbers=range(3 * number, 3 * number + 3))
        os.utime(folder / "segment-000000.parquet", (time.time() - 100 + number,) * 2)
    spool = folder.parent
    assert prune(spool, older_than=timedelta(0)).removed == ()
    removed = prune(spool, older_than=timedelta(0), horizon=DeduplicationWindow(count=7)).removed
    assert [each.batch_id for each in removed] == ["b0", "b1", "b2"]


def test_a_pruned_batch_is_done_for_ever(make: Make, open_batch: OpenBatch) -> None:
    """A task that is cleared after a month must not collect anew: the rows in the table would be replaced."""
    make("b1", State.DONE)
    prune(make("b2", State.DONE).parent, older_than=WEEK, now=LATER)
    with open_batch("b1") as batch:
        assert batch.manifest is not None
        assert Done.read(batch.folder) is not None


def _prune_and_die(spool: Path, name: str, before: bool, number: int) -> None:
    die_at(name, before=before, number=number)
    prune(spool, older_than=WEEK, forget=timedelta(days=60), now=LATER)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(("name", "number"), [("link", 1), ("unlink", 2), ("unlink", 4), ("rename", 1)])
def test_killed_while_it_prunes_it_goes_on(
    make: Make, tmp_path: Path, name: str, number: int, *, before: bool
) -> None:
    everything(make)
    _run_dying(_prune_and_die, tmp_path, name, before, number)
    prune(tmp_path, older_than=WEEK, now=LATER)
    assert states(tmp_path) == {
        "b-collected": State.COLLECTED,
        "b-done": State.PRUNED,
        "b-rejects": State.REJECTS,
        "b-sent": State.PRUNED,
        "b-undone": State.UNDONE,
        "b-unfinished": State.UNFINISHED,
    }
    assert not list((tmp_path / "b-done").glob("segment*"))
    assert not list(tmp_path.glob(".pruned*"))


def test_a_batch_that_its_run_left_is_adopted(make: Make, open_batch: OpenBatch, rows: MakeRows) -> None:
    spool = make("left", State.UNFINISHED).parent
    with open_batch("left") as held, pytest.raises(BatchInUseError):
        adopt(spool, held.batch_id)
    manifest = adopt(spool, "left")
    assert manifest is not None
    manifest.verify()
    assert (manifest.rows, manifest.batch_id, manifest.source) == (3, "left", "queue://orders")
    assert adopt(spool, "left") == manifest
    # The run that left it comes back after all.
    with open_batch("left") as late:
        assert late.manifest == manifest
        with pytest.raises(SpoolError):
            late.seal(rows([7]))
    make("nothing", State.EMPTY)
    assert adopt(spool, "nothing") is None
    assert set(states(spool)) == {"left"}


def _adopt_and_die(spool: Path, name: str, before: bool, number: int) -> None:
    die_at(name, before=before, number=number)
    adopt(spool, "left")


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(("name", "number"), [("link", n) for n in (1, 2, 3)] + [("fsync", 5)])
def test_killed_while_it_adopts_nothing_is_lost(
    make: Make, tmp_path: Path, name: str, number: int, *, before: bool
) -> None:
    make("left", State.UNFINISHED)
    _run_dying(_adopt_and_die, tmp_path, name, before, number)
    manifest = adopt(tmp_path, "left")
    assert manifest is not None
    manifest.verify()
    assert manifest.rows == 3
    assert states(tmp_path) == {"left": State.COLLECTED}


def _run_dying(target: Callable[..., None], *args: object) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.unit.spool.dying_writer"])
    process = context.Process(target=target, args=args)
    process.start()
    process.join(timeout=60)
    assert process.exitcode == KILLED


def test_a_spool_that_is_not_there_is_said_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(SpoolError, match=r"no-spool: no such spool; the first batch creates it, or"):
        list(batches(tmp_path / "no-spool"))


def taken_aside(folder: Path) -> None:
    """Take a folder aside and be killed before it is looked into."""

    class Killed(BaseException):
        pass

    def die(_: object) -> bool:
        raise Killed

    with pytest.raises(Killed):
        remove_if_unused(folder, may_remove=die, kept_prefix="segment")
    assert not folder.exists()


def test_what_a_killed_removal_left_aside_comes_back_if_it_holds_messages(make: Make) -> None:
    """A task may have begun the batch anew between the look at it and its removal."""
    folder = make("b", State.UNFINISHED)
    taken_aside(folder)
    taken_aside(make("empty", State.EMPTY))
    assert prune(folder.parent, older_than=WEEK, now=LATER).kept == ()
    assert states(folder.parent) == {"b": State.UNFINISHED}
    assert describe(folder).rows == 3
    assert [*folder.parent.glob(f"{ASIDE}*")] == []


def test_what_can_not_come_back_stays_aside_and_is_named(make: Make) -> None:
    folder = make("b", State.UNFINISHED)
    taken_aside(folder)
    make("b", State.UNFINISHED)
    (damaged := folder.parent / f"{ASIDE}damaged").mkdir()
    (damaged / "segment-000000.parquet").write_bytes(b"PAR1")
    (folder.parent / f"{ASIDE}file").write_bytes(b"")
    kept = {each.batch_id: each for each in prune(folder.parent, older_than=WEEK, now=LATER).kept}
    assert kept.pop("b").state is State.UNFINISHED
    assert "can't be read" in kept.pop(damaged.name).why
    assert kept.pop(f"{ASIDE}file").why
    ((name, stays),) = kept.items()
    assert stays.why == "it holds messages, and another batch 'b' was created since"
    assert describe(folder.parent / name).rows == describe(folder).rows == 3
