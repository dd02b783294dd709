"""What an activation's index of known ids has to find, wherever a process dies and whatever is damaged."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from airflow_provider_jmsjca.spool import id_index
from airflow_provider_jmsjca.spool.files import Buffer, seal
from airflow_provider_jmsjca.spool.id_index import INDEX_FOLDER, IdIndex
from airflow_provider_jmsjca.spool.known_ids import DeduplicationWindow, message_key
from airflow_provider_jmsjca.spool.rows import row_identity
from airflow_provider_jmsjca.spool.spool import SpoolBatch
from tests.unit.spool.batches import MakeRows, OpenBatch, is_sealed
from tests.unit.spool.dying_writer import KILLED, die_at


def key(number: int) -> str:
    return message_key(f"ID:{number}", "queue://orders")


def make(open_batch: OpenBatch, rows: MakeRows, numbers: Iterable[int], **named: object) -> None:
    """Finish a batch of one message for each number."""
    for number in numbers:
        with open_batch(f"e{number}", **named) as batch:
            batch.seal(rows([number]))
            batch.complete()


def known(batch: SpoolBatch, numbers: Iterable[int]) -> set[int]:
    return {number for number in numbers if batch.may_contain(key(number))}


def index_files(spool: Path, *activations: str) -> list[Path]:
    """Return the newest index of each activation."""
    folders = [spool / INDEX_FOLDER / hashlib.sha256(name.encode()).hexdigest()[:32] for name in activations]
    return [max(folder.glob("ids-*.arrow")) for folder in folders]


class _Watch:
    """Counts what is opened and listed while it is on."""

    def __init__(self) -> None:
        self.on = False
        self.count = 0
        sys.addaudithook(self._see)

    def _see(self, event: str, _: object) -> None:
        if self.on and event in {"open", "os.scandir", "os.listdir"}:
            self.count += 1


def test_opening_a_batch_reads_as_much_after_many_others_as_after_few(
    open_batch: OpenBatch, rows: MakeRows
) -> None:
    watch = _Watch()
    counts = []
    made = 0
    for earlier in (10, 30):
        make(open_batch, rows, range(made, earlier))
        made = earlier
        watch.count, watch.on = 0, True
        with open_batch(f"new{earlier}") as batch:
            batch.may_contain("ID:nobody queue://orders")
            watch.on = False
            counts.append(watch.count)
            assert known(batch, range(60)) == set(range(earlier))
            batch.complete()
        batch.discard()
    few, many = counts
    # Batches are taken into the index eight at a time: that much may differ.
    assert many <= few + 8 * 3, counts


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped", "empty", "another's"])
def test_an_index_that_cannot_be_read_is_made_anew(
    open_batch: OpenBatch, rows: MakeRows, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    make(open_batch, rows, range(12))
    make(open_batch, rows, range(20, 32), activation="another")
    with open_batch("unfinished") as unfinished:
        unfinished.seal(rows([40]))
    folder, another = (path.parent for path in index_files(unfinished.folder.parent, "a", "another"))
    if damage == "missing":
        shutil.rmtree(folder)
    else:
        [index] = folder.glob("ids-*.arrow")
        content = bytearray(index.read_bytes())
        content[200] ^= 1 if damage == "flipped" else 0
        if damage == "another's":
            content = bytearray(next(another.glob("ids-*.arrow")).read_bytes())
        index.write_bytes(content[: {"cut": -3, "empty": 0}.get(damage, len(content))])
    with open_batch() as batch:
        assert known(batch, range(50)) == {*range(12), 40}
        batch.complete()
    assert ("rebuilding it" in caplog.text) == (damage != "missing")
    # What may still grow is found later too.
    with open_batch("unfinished") as unfinished:
        unfinished.seal(rows([41]))
    with open_batch("last") as batch:
        assert known(batch, range(50)) == {*range(12), 40, 41}


def _open_and_die(spool: Path, name: str, before: bool, number: int) -> None:
    die_at(name, before=before, number=number)
    for batch_id in ("x1", "x2"):
        with SpoolBatch(spool, batch_id, source="queue://orders", activation="a") as batch:
            batch.may_contain("ID:nobody queue://orders")


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    ("name", "number"),
    [("link", 1), ("link", 2), ("link", 3), *(("fsync", n) for n in (2, 4, 6, 8)), ("unlink", 3)],
)
def test_killed_at_any_step_of_it_nothing_is_forgotten(
    open_batch: OpenBatch, rows: MakeRows, tmp_path: Path, name: str, number: int, *, before: bool
) -> None:
    make(open_batch, rows, range(5))
    with open_batch("unfinished") as batch:
        batch.seal(rows([5]))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.unit.spool.dying_writer"])
    process = context.Process(target=_open_and_die, args=(tmp_path, name, before, number))
    process.start()
    process.join(timeout=60)
    assert process.exitcode == KILLED
    for batch_id in ("x1", "y"):
        with open_batch(batch_id) as batch:
            assert known(batch, range(10)) == set(range(6))


def test_one_that_was_overtaken_while_it_wrote_the_index_forgets_nothing(
    open_batch: OpenBatch, rows: MakeRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others have replaced the index twice: the name that the late one wants is free again."""
    make(open_batch, rows, range(3))
    slept = []

    def slow(path: Path, content: Sequence[Buffer] | Buffer) -> bool:
        if not slept:
            slept.append(path)
            for number in (3, 4, 5):
                make(open_batch, rows, [number])
                with open_batch(f"look{number}") as batch:
                    batch.may_contain("ID:nobody queue://orders")
            assert not path.exists()
        return seal(path, content)

    with open_batch("late") as batch:
        monkeypatch.setattr(id_index, "seal", slow)
        assert known(batch, range(3)) == {0, 1, 2}
    assert slept
    for batch_id in ("x", "y"):
        with open_batch(batch_id) as batch:
            assert known(batch, range(10)) == set(range(6))


def test_what_is_beyond_the_horizon_leaves_the_index_and_is_not_read_again(
    open_batch: OpenBatch, rows: MakeRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = DeduplicationWindow(count=10)
    monkeypatch.setattr(id_index, "_LEAST", narrow)
    for number in range(24):
        with open_batch(f"e{number}", horizon=narrow) as batch:
            batch.seal(rows([number]))
            os.utime(batch.folder / "segment-000000.parquet", (1_800_000_000 + number,) * 2)
            if number:
                batch.complete()
    with open_batch("x", horizon=narrow) as batch:
        assert known(batch, range(50)) == set(range(14, 24))
    index = IdIndex(tmp_path, "a", "y", narrow)
    read: list[Path] = []
    monkeypatch.setattr(id_index, "read_ids", lambda path: read.append(path) or [])
    assert [path.parent.name for path in index.find(key(20))] == ["e20"]
    assert index.find(key(3)) == ()
    assert read == []
    assert index.batches() == ["e0", "x"]


def test_a_batch_that_was_removed_is_not_known(open_batch: OpenBatch, rows: MakeRows) -> None:
    make(open_batch, rows, range(3))
    with open_batch("x") as batch:
        assert known(batch, range(3)) == {0, 1, 2}
        spool = batch.folder.parent
    (spool / "e1").rename(spool / ".away")
    with open_batch("y") as batch:
        assert [is_sealed(batch, key(n), row_identity(rows([n])[0])) for n in range(3)] == [True, False, True]
