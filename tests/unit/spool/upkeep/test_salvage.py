"""A batch goes on without the segments of it that are damaged."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_jmsjca.errors import BatchInUseError, SpoolError
from airflow_provider_jmsjca.spark.rejects import Reject, rejected_messages
from airflow_provider_jmsjca.spool.attempts import Done, check_fence, take_fence
from airflow_provider_jmsjca.spool.known_ids import message_key
from airflow_provider_jmsjca.spool.manifest import Manifest
from airflow_provider_jmsjca.spool.rows import manifest_messages, row_identity
from airflow_provider_jmsjca.spool.sequence import BatchSequence
from airflow_provider_jmsjca.spool.splits import RowRange, make_part
from airflow_provider_jmsjca.spool.upkeep import salvage as module
from airflow_provider_jmsjca.spool.upkeep.salvage import salvage
from airflow_provider_jmsjca.spool.upkeep.states import State, batches, describe, prune, verify
from tests.unit.spool.batches import MakeRows, OpenBatch, is_sealed, write_rejects

FIRST, SECOND, END = (f"segment-00000{number}.parquet" for number in range(3))


def ids(manifest: Manifest) -> list[str | None]:
    return [stored.message.message_id for stored in manifest_messages(manifest)]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def key(number: int) -> str:
    return message_key(f"ID:{number}", "queue://orders")


@pytest.mark.parametrize(
    "damage", [flip, Path.unlink, lambda path: path.write_bytes(b""), lambda path: os.truncate(path, 100)]
)
def test_a_finished_batch_keeps_its_sound_segments_and_its_moment(
    finished: Manifest, damage: Callable[[Path], object]
) -> None:
    spool = finished.folder.parent
    stream = BatchSequence(spool)
    assert stream.refresh() == 1
    take_fence(finished.folder)
    path = finished.folder / FIRST
    damage(path)
    left = path.read_bytes() if path.exists() else b""
    with pytest.raises(SpoolError, match=r"`airflow jms spool salvage b1`"):
        finished.verify()
    (given_up,) = salvage(spool, "b1")
    assert (given_up.file, given_up.rows) == (FIRST, 3)
    assert given_up.kept.read_bytes() == left  # type: ignore[union-attr]  # a folder of this machine
    manifest = Manifest.read(finished.path)
    manifest.verify()
    assert ids(manifest) == ["ID:3", "ID:4"]
    assert (manifest.created, manifest.activation) == (finished.created, finished.activation)
    (state,) = batches(spool)
    assert (state.state, state.rows, verify(state)) == (State.UNDONE, 2, None)
    check_fence(finished.folder, 1)
    # A stream finds it where it was.
    assert stream.refresh() == 1
    assert stream[0:1][0].manifest(spool) == manifest
    assert salvage(spool, "b1") == ()


@pytest.mark.parametrize("damage", [flip, Path.unlink])
def test_the_end_of_a_batch_is_known_from_its_manifest(
    finished: Manifest, damage: Callable[[Path], object]
) -> None:
    damage(finished.folder / END)
    damage(finished.folder / SECOND)
    found = salvage(finished.folder.parent, "b1")
    assert [(each.file, each.rows) for each in found] == [
        (SECOND, 2),
        *([(END, 0)] if damage is flip else []),
    ]
    manifest = Manifest.read(finished.path)
    assert (ids(manifest), manifest.created) == (["ID:0", "ID:1", "ID:2"], finished.created)


def test_a_manifest_that_is_damaged_is_made_anew(finished: Manifest) -> None:
    finished.path.write_text("{")
    assert salvage(finished.folder.parent, "b1") == ()
    assert Manifest.read(finished.path) == finished


def test_an_unfinished_batch_stays_so_and_goes_on(open_batch: OpenBatch, rows: MakeRows) -> None:
    with open_batch() as batch:
        for number in range(3):
            batch.seal(rows([number]))
    spool = batch.folder.parent
    flip(batch.folder / SECOND)
    with pytest.raises(SpoolError, match=r"restore the file, or .*spool salvage b1`"):
        open_batch()
    (given_up,) = salvage(spool, "b1")
    assert (given_up.file, given_up.rows) == (SECOND, None)
    assert (describe(batch.folder).state, describe(batch.folder).rows) == (State.UNFINISHED, 2)
    with open_batch() as again:
        assert [again.may_contain(key(number)) for number in range(3)] == [True, False, True]
        again.seal(rows([1, 3]))
        assert ids(again.complete()) == ["ID:0", "ID:2", "ID:1", "ID:3"]


@pytest.mark.parametrize("indexed", [True, False])
def test_other_batches_of_the_activation_go_on(
    open_batch: OpenBatch, finished: Manifest, rows: MakeRows, *, indexed: bool
) -> None:
    if indexed:
        with open_batch("b2") as other:
            assert other.may_contain(key(0))
    flip(finished.folder / FIRST)

    def known(name: str, number: int) -> bool:
        [row] = rows([number])
        with open_batch(name) as batch:
            return is_sealed(batch, key(number), row_identity(row))

    with pytest.raises(SpoolError, match=r"spool salvage b1`.*are then stored again"):
        known("b3", 0)
    salvage(finished.folder.parent, "b1")
    assert [known("b4", number) for number in range(5)] == [False, False, False, True, True]


def test_rejected_messages_of_a_segment_that_was_given_up_are_left_out(
    finished: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    rejects = [
        Reject(segment=segment, position=0, exception_class="x.Y", exception_message="bad")
        for segment in (0, 1)
    ]
    file = write_rejects(finished.folder, 1, 0, rejects)
    counts = {"rows": 5, "stored": {}, "rejected": 2, "rejects": (file,)}
    Done(batch_id="b1", fence=1, finished="2026-01-01", **counts).create(finished.folder)  # type: ignore[arg-type]
    flip(finished.folder / FIRST)
    salvage(finished.folder.parent, "b1")
    with caplog.at_level(logging.WARNING):
        found = list(rejected_messages(Manifest.read(finished.path)))
    assert [(each.number, each.message.message_id) for each in found] == [(1, "ID:3")]
    assert "1 rejected messages can't be sent as dead letters: they were in segment 0" in caplog.text


@pytest.mark.parametrize("step", ["_set_aside", "seal_number", "SpoolBatch"])
@pytest.mark.parametrize("calls", [1, 2])
def test_killed_at_any_step_and_called_again_it_goes_on(
    finished: Manifest, monkeypatch: pytest.MonkeyPatch, step: str, calls: int
) -> None:
    flip(finished.folder / FIRST)
    damaged = (finished.folder / FIRST).read_bytes()
    real, left = getattr(module, step), [calls]

    def killed(*arguments: object, **named: object) -> object:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return real(*arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(module, step, killed)
        try:
            salvage(finished.folder.parent, "b1")
        except KeyboardInterrupt:
            salvage(finished.folder.parent, "b1")
    monkeypatch.undo()
    salvage(finished.folder.parent, "b1")
    manifest = Manifest.read(finished.path)
    manifest.verify()
    assert (ids(manifest), manifest.created) == (["ID:3", "ID:4"], finished.created)
    assert (finished.folder / "damaged-000000.parquet").read_bytes() == damaged


def test_what_cannot_be_salvaged_is_left_alone(
    finished: Manifest, open_batch: OpenBatch, rows: MakeRows
) -> None:
    spool, path = finished.folder.parent, finished.folder / FIRST
    with pytest.raises(SpoolError, match="there is no batch 'b9'"):
        salvage(spool, "b9")
    with open_batch("held") as held:
        held.seal(rows([1]))
        with pytest.raises(BatchInUseError):
            salvage(spool, "held")
    # What can't be read now isn't damaged.
    target = path.rename(finished.folder / "elsewhere")
    path.symlink_to(target)
    with pytest.raises(SpoolError, match=r"segment-000000\.parquet: can't be read: .*symbolic"):
        salvage(spool, "b1")
    path.unlink()
    target.rename(path)
    make_part(finished, RowRange(0, 1), take_fence(finished.folder))
    flip(path)
    with pytest.raises(SpoolError, match="the batch was split"):
        salvage(spool, "b1")
    assert Manifest.read(finished.path) == finished


def test_a_batch_that_was_pruned_is_refused(finished: Manifest) -> None:
    spool = finished.folder.parent
    take_fence(finished.folder)
    counts = {"rows": 5, "stored": {}, "rejected": 0, "rejects": ()}
    Done(batch_id="b1", fence=1, finished="2026-01-01", **counts).create(finished.folder)  # type: ignore[arg-type]
    for path in finished.folder.iterdir():
        os.utime(path, (0, 0))
    assert prune(spool, older_than=timedelta(0)).removed
    with pytest.raises(SpoolError, match="the batch was pruned"):
        salvage(spool, "b1")
