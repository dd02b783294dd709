"""What a batch guarantees, wherever its files are."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from airflow_provider_jmsjca import (
    BatchInUseError,
    FencedError,
    JmsMessage,
    Manifest,
    SpoolError,
    manifest_messages,
)
from tests.contract.spool.conftest import ORDERS, OpenBatch, rows
from tests.internals.spool import (
    MANIFEST,
    Done,
    ObjectPath,
    RowRange,
    SpoolPath,
    State,
    adopt,
    batches,
    check_fence,
    describe,
    exists,
    has_renames,
    is_folder,
    make_part,
    message_key,
    names_in,
    parts,
    prune,
    read_message,
    remove,
    salvage,
    seal_message,
    secret_code,
    sweep_references,
    take_fence,
    unfinished_batches,
    verify,
    was_split,
)


def ids(manifest: Manifest) -> list[str | None]:
    return [stored.message.message_id for stored in manifest_messages(manifest)]


def done(manifest: Manifest, fence: int) -> None:
    Done(
        batch_id=manifest.batch_id,
        fence=fence,
        rows=manifest.rows,
        stored={},
        rejected=0,
        rejects=(),
        finished="now",
    ).create(manifest.folder)


def test_a_batch_is_continued_and_finished_once(open_batch: OpenBatch) -> None:
    with open_batch() as batch:
        batch.add(rows(range(2)))
        batch.seal(rows([2]))
    with open_batch() as batch:
        assert batch.rows == 3
        assert batch.may_contain(message_key("ID:1", str(ORDERS)))
        batch.seal(rows([3, 4]))
        manifest = batch.complete()
    with open_batch() as batch:
        assert batch.manifest == manifest == Manifest.read(manifest.folder / MANIFEST)
    assert ids(manifest) == [f"ID:{number}" for number in range(5)]
    manifest.verify()


def test_a_segment_is_noted_as_settled_for_every_writer(open_batch: OpenBatch) -> None:
    with open_batch() as batch:
        first, second = (batch.folder / batch.seal(rows([number])).file for number in range(2))
        for _ in range(2):
            batch.note_settled(first)
        batch.note_settled(batch.folder.parent / "gone" / first.name)
    with open_batch() as batch:
        assert (batch.is_settled(first), batch.is_settled(second)) == (True, False)
        assert batch.rows == 2


def test_the_newer_writer_shuts_out_the_older(open_batch: OpenBatch, spool: SpoolPath) -> None:
    with open_batch() as old:
        old.seal(rows([1]))
        if has_renames(spool):
            with pytest.raises(BatchInUseError):
                open_batch()
            return
        old.add(rows([2]))
        with open_batch() as new:
            assert new.rows == 1
            with pytest.raises(BatchInUseError):
                old.seal()
            with pytest.raises(BatchInUseError):
                old.complete()
            new.seal(rows([2, 3]))
            assert ids(new.complete()) == ["ID:1", "ID:2", "ID:3"]


def test_what_two_writers_think_sealed_is_in_the_batch_once(open_batch: OpenBatch) -> None:
    sealed: list[str] = []

    def write(first: int) -> None:
        try:
            with open_batch() as batch:
                for number in range(first, first + 5):
                    batch.seal(rows([number]))
                    sealed.append(f"ID:{number}")
        except BatchInUseError:
            pass

    threads = [threading.Thread(target=write, args=(100 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with open_batch() as batch:
        assert sorted(map(str, ids(batch.complete()))) == sorted(sealed)


def test_a_message_of_an_earlier_batch_is_known(open_batch: OpenBatch) -> None:
    for batch_id, numbers in (("b1", range(3)), ("b2", range(3, 6))):
        with open_batch(batch_id) as batch:
            batch.seal(rows(numbers))
            batch.complete()
    with open_batch("other", activation="other") as batch:
        batch.seal(rows([7]))
    with open_batch("b3") as batch:
        known = [batch.may_contain(message_key(f"ID:{number}", str(ORDERS))) for number in range(8)]
    assert known == [True] * 6 + [False] * 2


def test_an_empty_batch_leaves_nothing_and_is_looked_for_again(
    open_batch: OpenBatch, spool: SpoolPath
) -> None:
    with open_batch() as batch:
        assert batch.complete().rows == 0
        batch.discard()
    assert not is_folder(batch.folder)
    with open_batch() as batch:
        batch.seal(rows([1]))
        batch.complete()
        batch.discard()
    assert exists(batch.folder / MANIFEST)
    assert [each.batch_id for each in batches(spool)] == [batch.batch_id]


def test_an_empty_batch_that_was_retried(open_batch: OpenBatch) -> None:
    for _ in range(2):
        with open_batch() as batch:
            batch.complete()
    batch.discard()
    with open_batch() as batch:
        batch.seal(rows([1]))
        assert ids(batch.complete()) == ["ID:1"]


def test_only_the_newest_attempt_commits(open_batch: OpenBatch) -> None:
    with open_batch() as batch:
        batch.seal(rows([1]))
        folder = batch.complete().folder
    assert [take_fence(folder), take_fence(folder)] == [1, 2]
    check_fence(folder, 2)
    with pytest.raises(FencedError):
        check_fence(folder, 1)


def test_states_pruning_and_forgetting(open_batch: OpenBatch, spool: SpoolPath) -> None:
    with open_batch("unfinished") as batch:
        batch.seal(rows([1]))
    for name in ("collected", "done", "undone"):
        with open_batch(name, activation="old") as batch:
            batch.seal(rows([2]))
            manifest = batch.complete()
        if name != "collected":
            fence = take_fence(manifest.folder)
        if name == "done":
            done(manifest, fence)
    found = {each.batch_id: each.state for each in batches(spool)}
    assert found == {
        "collected": State.COLLECTED,
        "done": State.DONE,
        "undone": State.UNDONE,
        "unfinished": State.UNFINISHED,
    }
    assert [verify(each) for each in batches(spool)] == [None] * 4
    later = {
        "older_than": timedelta(days=1),
        "now": max(each.changed for each in batches(spool)) + 30 * 86_400,
    }
    assert [each.batch_id for each in prune(spool, **later, dry_run=True).removed] == ["done"]  # type: ignore[arg-type]
    assert [each.batch_id for each in prune(spool, **later).removed] == ["done"]  # type: ignore[arg-type]
    assert describe(spool / "done").state is State.PRUNED
    assert not any(name.startswith("segment") for name in names_in(spool / "done"))
    with pytest.raises(SpoolError, match="pruned"):
        Manifest.read(spool / "done" / MANIFEST).verify()
    gone = prune(spool, **later, forget=timedelta(days=1)).removed  # type: ignore[arg-type]
    assert [(each.batch_id, each.whole) for each in gone] == [("done", True)]
    assert not is_folder(spool / "done")


def test_a_batch_that_its_run_left_is_adopted(open_batch: OpenBatch, spool: SpoolPath) -> None:
    with open_batch("left") as batch:
        batch.seal(rows([1, 2]))
    with open_batch("mine"):
        assert [(each.batch_id, each.rows) for each in unfinished_batches(spool, "mine", "a")] == [
            ("left", 2)
        ]
    manifest = adopt(spool, "left")
    assert manifest is not None
    assert ids(manifest) == ["ID:1", "ID:2"]
    assert adopt(spool, "mine") is None
    assert [each.batch_id for each in batches(spool)] == ["left"]


def test_a_segment_that_is_gone_or_changed_is_named(open_batch: OpenBatch) -> None:
    with open_batch() as batch:
        batch.seal(rows([1]))
        manifest = batch.complete()
    remove(manifest.folder / "segment-000000.parquet")
    with pytest.raises(SpoolError, match=r"segment-000000\.parquet: can't be read"):
        manifest.verify()


def test_parts_of_a_batch(open_batch: OpenBatch) -> None:
    with open_batch() as batch:
        batch.seal(rows(range(6)))
        batch.seal(rows(range(6, 10)))
        manifest = batch.complete()
    fence = take_fence(manifest.folder)
    part = make_part(manifest, RowRange(4, 7), fence)
    assert make_part(manifest, RowRange(4, 7), fence) == part
    part.verify()
    assert ids(part) == ["ID:4", "ID:5", "ID:6", "ID:7"]
    assert parts(manifest.folder) == [(RowRange(4, 7), part.folder)]
    assert not was_split(manifest, RowRange(0, 9))
    with pytest.raises(FencedError):
        make_part(manifest, RowRange(0, 3), fence - 1)


def test_a_part_that_one_who_died_began(open_batch: OpenBatch) -> None:
    with open_batch() as batch:
        batch.seal(rows(range(4)))
        manifest = batch.complete()
    fence = take_fence(manifest.folder)
    part = make_part(manifest, RowRange(0, 1), fence)
    remove(part.path)
    if isinstance(part.folder, ObjectPath):
        again = make_part(manifest, RowRange(0, 1), fence)
        assert again == part
        again.verify()


@pytest.mark.usefixtures("store_environment")
def test_messages_of_events(spool: SpoolPath) -> None:
    place = ObjectPath.parse(str(spool)) if isinstance(spool, ObjectPath) else spool
    message = JmsMessage.text("x" * 100_000, message_id="ID:1")
    reference = seal_message(place, message)
    assert seal_message(place, message) == reference
    assert read_message(reference, [place]) == message
    assert sweep_references(place, timedelta(days=1)) == 0
    assert sweep_references(place, timedelta(seconds=-5)) == 1
    with pytest.raises(SpoolError, match="reference_retention_days"):
        read_message(reference, [place])


@pytest.mark.usefixtures("store_environment")
def test_a_spool_keeps_its_secret(spool: SpoolPath) -> None:
    place = ObjectPath.parse(str(spool)) if isinstance(spool, ObjectPath) else spool
    code = secret_code(place, "request")
    assert secret_code(place, "request") == code
    assert list(batches(place)) == []


@pytest.mark.parametrize("complete", [True, False], ids=["finished", "unfinished"])
def test_a_batch_goes_on_without_a_segment_that_is_gone(
    open_batch: OpenBatch, spool: SpoolPath, *, complete: bool
) -> None:
    with open_batch() as batch:
        for number in range(3):
            batch.seal(rows([number]))
        finished = batch.complete() if complete else None
    gone = batch.folder / "segment-000001.parquet"
    remove(gone)
    assert "missing" in salvage(spool, batch.batch_id)[0].fault
    assert salvage(spool, batch.batch_id) == ()
    with open_batch() as again:
        if not complete:
            again.seal(rows([3]))
        manifest = again.complete()
    manifest.verify()
    assert ids(manifest) == ["ID:0", "ID:2", *([] if complete else ["ID:3"])]
    assert finished is None or manifest.created == finished.created
