from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import BatchInUseError, ConfigurationError, SpoolError
from airflow_provider_jmsjca.spark.rejects import Reject, rejected_messages
from airflow_provider_jmsjca.spool.attempts import Done, take_fence
from airflow_provider_jmsjca.spool.known_ids import DeduplicationWindow, message_key
from airflow_provider_jmsjca.spool.layout import MESSAGE_SCHEMA
from airflow_provider_jmsjca.spool.manifest import Manifest
from airflow_provider_jmsjca.spool.rows import Row, row_identity, table_to_messages
from airflow_provider_jmsjca.spool.spool import SpoolBatch, UnfinishedBatch, unfinished_batches
from tests.unit.spool.batches import NOW, MakeRows, OpenBatch, is_sealed, write_rejects
from tests.unit.spool.dying_writer import KILLED, write, write_and_die


def key(number: int) -> str:
    return message_key(f"ID:{number}", "queue://orders")


def ids(folder: Path) -> list[str]:
    found = []
    for path in sorted(folder.glob("segment-*.parquet")):
        found += [item.message.message_id for item in table_to_messages(pq.ParquetFile(path).read())]
    return found


def test_what_a_batch_leaves_on_disk(finished: Manifest) -> None:
    folder = finished.folder
    assert sorted(item.name for item in folder.iterdir()) == [
        "batch.json",
        "lock",
        "manifest.json",
        "segment-000000.parquet",
        "segment-000001.parquet",
        "segment-000002.parquet",  # the end
    ]
    first, second = ((folder / f"segment-00000{number}.parquet").read_bytes() for number in (0, 1))
    assert json.loads((folder / "manifest.json").read_text()) == {
        "format_version": 1,
        "schema_version": 1,
        "batch_id": "b1",
        "source": "queue://orders",
        "activation": "a",
        "created": "2023-11-14T22:13:20.000+00:00",
        "rows": 5,
        "segments": [
            {
                "file": "segment-000000.parquet",
                "rows": 3,
                "bytes": len(first),
                "sha256": hashlib.sha256(first).hexdigest(),
            },
            {
                "file": "segment-000001.parquet",
                "rows": 2,
                "bytes": len(second),
                "sha256": hashlib.sha256(second).hexdigest(),
            },
        ],
    }
    assert json.loads((folder / "batch.json").read_text()) == {
        "format_version": 1,
        "schema_version": 1,
        "batch_id": "b1",
        "source": "queue://orders",
        "activation": "a",
        "created": "2023-11-14T22:13:20.000+00:00",
    }
    assert finished.uri == f"file://{folder}/manifest.json"
    assert Manifest.read(finished.uri) == finished
    finished.verify()


def test_a_segment_is_zstd_parquet_of_the_message_schema(finished: Manifest) -> None:
    file = pq.ParquetFile(finished.segment_paths()[1])
    assert file.schema_arrow.equals(MESSAGE_SCHEMA)
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    metadata = file.schema_arrow.metadata
    assert {name: value for name, value in metadata.items() if name.startswith(b"jmsjca.")} == {
        b"jmsjca.format_version": b"1",
        b"jmsjca.schema_version": b"1",
        b"jmsjca.batch_id": b"b1",
        b"jmsjca.segment": b"1",
    }
    assert file.read(columns=["position"]).column(0).to_pylist() == [0, 1]


def test_an_unfinished_batch_is_continued(open_batch: OpenBatch, rows: MakeRows) -> None:
    with open_batch() as first:
        first.seal(rows(range(3)))
        (first.folder / ".tmp-abc").write_bytes(b"half a segment")
    with open_batch() as second:
        assert second.rows == 3
        assert [segment.rows for segment in second.segments] == [3]
        assert second.may_contain(key(2))
        assert not second.may_contain(key(3))
        assert not (second.folder / ".tmp-abc").exists()
        second.seal(rows([3]))
        manifest = second.complete()
    manifest.verify()
    assert ids(manifest.folder) == ["ID:0", "ID:1", "ID:2", "ID:3"]


def test_a_finished_batch_is_returned_as_it_is(
    finished: Manifest, open_batch: OpenBatch, rows: MakeRows
) -> None:
    with open_batch() as again:
        assert again.manifest == finished
        assert again.rows == 5
        assert again.complete() == finished
        with pytest.raises(SpoolError, match="finished or closed"):
            again.seal(rows([9]))


def test_an_empty_batch_can_be_finished(open_batch: OpenBatch) -> None:
    with open_batch() as batch:
        manifest = batch.complete()
    manifest.verify()
    assert (manifest.rows, manifest.segments) == (0, ())


def test_a_segment_needs_a_row(open_batch: OpenBatch) -> None:
    with open_batch() as batch, pytest.raises(ValueError, match="at least one row"):
        batch.seal([])


def test_a_segment_is_written_piece_by_piece_and_is_there_once_it_is_sealed(
    open_batch: OpenBatch, rows: MakeRows
) -> None:
    with open_batch() as batch:
        batch.add(rows(range(3)))
        batch.add(rows(range(3, 5)))
        assert ids(batch.folder) == []
        assert not batch.may_contain(key(0))
        segment = batch.seal(rows([5]))
        assert (segment.rows, batch.may_contain(key(4)), batch.may_contain(key(5))) == (6, True, True)
        batch.add(rows([6]))
        batch.seal()
        batch.add(rows([7]))
        batch.drop_unsealed()
        batch.add(rows([8]))  # given up with the batch
    assert not list(batch.folder.glob(".tmp-*"))
    with pq.ParquetFile(batch.folder / "segment-000000.parquet") as file:
        assert [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)] == [
            3,
            2,
            1,
        ]
        assert file.read(columns=["position"]).column(0).to_pylist() == list(range(6))
    with open_batch() as again:
        assert (again.rows, again.may_contain(key(6)), again.may_contain(key(7))) == (7, True, False)
        assert is_sealed(again, key(4), row_identity(rows([4])[0]))
        again.complete().verify()


def test_a_second_writer_is_refused(open_batch: OpenBatch, rows: MakeRows) -> None:
    with open_batch() as first:
        with pytest.raises(
            BatchInUseError, match=rf"lock: the batch is being written by process {os.getpid()} on "
        ):
            open_batch()
        first.seal(rows([1]))
    with open_batch() as second:
        assert second.rows == 1


def test_where_locks_fail_the_second_to_seal_loses_cleanly(open_batch: OpenBatch, rows: MakeRows) -> None:
    with open_batch() as first:
        (first.folder / "lock").unlink()
        with open_batch() as second:
            second.seal(rows([1]))
            with pytest.raises(
                BatchInUseError, match=r"segment-000000\.parquet: another process has taken over"
            ):
                first.seal(rows([2]))
            manifest = second.complete()
            with pytest.raises(
                BatchInUseError, match=r"segment-000000\.parquet: another process has taken over"
            ):
                first.complete()
    assert ids(manifest.folder) == ["ID:1"]


def test_where_locks_fail_no_batch_is_completed_without_what_another_writer_sealed(
    open_batch: OpenBatch, rows: MakeRows
) -> None:
    with open_batch() as first:
        first.seal(rows([1]))
        (first.folder / "lock").unlink()
        with open_batch() as second:
            with pytest.raises(BatchInUseError):  # so these are not acknowledged
                first.seal(rows([2]))
            manifest = second.complete()
    assert (manifest.rows, [each.file for each in manifest.segments]) == (1, ["segment-000000.parquet"])
    assert ids(manifest.folder) == ["ID:1"]
    manifest.verify()


def test_where_locks_fail_the_first_writer_does_not_complete_without_the_seconds_rows(
    open_batch: OpenBatch, rows: MakeRows
) -> None:
    with open_batch() as first:
        first.seal(rows([1]))
        (first.folder / "lock").unlink()
        with open_batch() as second:
            second.seal(rows([2]))
            with pytest.raises(BatchInUseError):
                first.complete()
    with open_batch() as third:
        assert third.complete().rows == 2
    assert ids(third.folder) == ["ID:1", "ID:2"]


def test_a_batch_whose_end_is_sealed_gets_no_further_rows(
    open_batch: OpenBatch, rows: MakeRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_batch() as first, monkeypatch.context() as patched:
        first.seal(rows([1]))

        def die(*_: object) -> None:
            raise KeyboardInterrupt

        patched.setattr(SpoolBatch, "_seal_manifest", die)
        with pytest.raises(KeyboardInterrupt):
            first.complete()
    (first.folder / "lock").unlink()
    with open_batch() as second:
        assert second.manifest is not None
        assert second.manifest.rows == 1
        with pytest.raises(SpoolError, match="finished or closed"):
            second.seal(rows([2]))


def test_of_a_batch_that_is_continued_the_rows_know_their_segment(
    open_batch: OpenBatch, rows: MakeRows
) -> None:
    with open_batch() as first:
        first.seal(rows([1]))
    with open_batch() as second:
        second.seal(rows([2, 3]))
        manifest = second.complete()
    assert [(each.number, each.rows) for each in manifest.segments] == [(0, 1), (2, 2)]
    file = write_rejects(
        manifest.folder, 1, 0, [Reject(segment=2, position=1, exception_class="E", exception_message="no")]
    )
    done = Done(batch_id="b1", fence=1, rows=3, stored={}, rejected=1, rejects=(file,), finished="2026-01-01")
    done.create(manifest.folder)
    assert [found.message.message_id for found in rejected_messages(manifest)] == ["ID:3"]


def test_an_empty_batch_is_discarded_and_nothing_else_is(open_batch: OpenBatch, rows: MakeRows) -> None:
    with open_batch() as late:
        late.complete()
    with open_batch() as other:
        other.discard()
    assert not late.folder.exists()
    with open_batch() as third:
        third.seal(rows(range(7)))
        late.discard()  # by an attempt that slept through all that
        other.discard()
        assert third.complete().rows == 7
    late.discard()
    third.discard()
    assert ids(third.folder) == [f"ID:{number}" for number in range(7)]
    assert sorted(item.name for item in third.folder.parent.iterdir()) == [".known", "b1"]


@pytest.mark.parametrize("content", ["x", "[" * 100_000, '{"activation": 7}', "null", "\ud800", None])
def test_a_damaged_header_of_another_batch_stops_nobody(
    open_batch: OpenBatch, rows: MakeRows, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with open_batch("foreign", activation="another") as foreign:
        foreign.seal(rows([1]))
    header = foreign.folder / "batch.json"
    header.unlink()
    if content is None:
        os.mkfifo(header)
    else:
        header.write_text(content, errors="surrogatepass")
    with open_batch() as batch:
        batch.seal(rows([2]))
        assert batch.complete().rows == 1
    if content not in {'{"activation": 7}', "null"}:
        assert f"{header} can't be read" in caplog.text


def test_batches_that_nobody_finished_are_named(open_batch: OpenBatch, rows: MakeRows) -> None:
    for name in ("complete", "given-up", "of-another", "empty", "mine"):
        with open_batch(name, activation="z" if name == "of-another" else "a") as batch:
            if name != "empty":
                batch.seal(rows(range(3)))
            if name == "complete":
                batch.complete()
    spool = batch.folder.parent
    assert unfinished_batches(spool, "mine", "a") == [UnfinishedBatch(batch_id="given-up", rows=3)]
    with open_batch("given-up") as again:
        assert unfinished_batches(spool, "mine", "a") == []
        again.complete()
    assert unfinished_batches(spool, "mine", "a") == []


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("elsewhere")])
def test_a_batch_whose_lock_cannot_be_read_is_named_all_the_same(
    open_batch: OpenBatch, rows: MakeRows, make: Callable[[Path], None]
) -> None:
    for name in ("odd", "gone", "replaced"):
        with open_batch(name) as batch:
            batch.seal(rows([1]))
    spool = batch.folder.parent
    lock = spool / "odd" / "lock"
    lock.unlink()
    make(lock)
    for name in ("gone", "replaced"):
        shutil.rmtree(spool / name)
    (spool / "replaced").touch()
    [found] = unfinished_batches(spool, "mine", "a")
    assert found == UnfinishedBatch(batch_id="odd", rows=None)
    assert "Batch odd was never finished: an unknown number of acknowledged messages" in found.warning()
    assert "clear its task instance: it continues" in found.warning()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_files_and_folders_are_their_owners_alone(tmp_path: Path, rows: MakeRows, umask: int) -> None:
    before = os.umask(umask)
    try:
        spool = tmp_path / "spool"
        with SpoolBatch(spool, "b1", source="queue://orders", activation="a") as batch:
            batch.seal(rows([1]))
            batch.complete()
        take_fence(batch.folder)
    finally:
        os.umask(before)
    modes = {item.name: oct(item.stat().st_mode & 0o7777) for item in batch.folder.iterdir()}
    assert set(modes.values()) == {"0o600"}, modes
    assert [oct(item.stat().st_mode & 0o7777) for item in (spool, batch.folder)] == ["0o700", "0o700"]


@pytest.mark.parametrize("name", ["lock", "commit.lock"])
@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_lock_that_is_another_file_is_refused(
    open_batch: OpenBatch, tmp_path: Path, name: str, link: Callable[[Path, Path], None]
) -> None:
    victim = tmp_path.parent / f"{tmp_path.name}-victim"
    victim.write_text("precious")
    open_batch().close()
    (tmp_path / "b1" / "lock").unlink()
    link(victim, tmp_path / "b1" / name)
    with pytest.raises(SpoolError):
        _ = open_batch() if name == "lock" else take_fence(tmp_path / "b1")
    assert victim.read_text() == "precious"


def test_a_folder_that_is_a_symbolic_link_is_refused(open_batch: OpenBatch, tmp_path: Path) -> None:
    elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere"
    elsewhere.mkdir()
    (tmp_path / "b1").symlink_to(elsewhere)
    with pytest.raises(SpoolError, match="can't be opened"):
        open_batch()
    assert list(elsewhere.iterdir()) == []


def test_of_two_threads_one_writes(open_batch: OpenBatch, rows: MakeRows) -> None:
    barrier = threading.Barrier(2)
    outcomes: list[str] = []

    def write() -> None:
        barrier.wait()
        try:
            with open_batch() as batch:
                barrier.wait(timeout=5)
                batch.seal(rows([1]))
                outcomes.append("sealed")
        except BatchInUseError:
            outcomes.append("refused")
            barrier.wait(timeout=5)

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["refused", "sealed"]


def test_ids_of_earlier_batches_are_known_within_the_horizon(open_batch: OpenBatch, rows: MakeRows) -> None:
    modified = NOW - 1000
    for name, numbers, activation in (
        ("old", range(10), "a"),
        ("other", range(20, 30), "another"),
        ("new", range(40, 50), "a"),
    ):
        with open_batch(name, activation=activation) as batch:
            batch.seal(rows(numbers))
            segment = batch.folder / "segment-000000.parquet"
        modified += 100
        os.utime(segment, (modified, modified))
        os.utime(segment.parent, (modified, modified))

    def known(**horizon: object) -> set[int]:
        with open_batch("b1", horizon=DeduplicationWindow(**horizon)) as batch:  # type: ignore[arg-type]  # by name
            return {number for number in range(60) if batch.may_contain(key(number))}

    everything = {*range(10), *range(40, 50)}
    assert known() == everything
    assert known(count=11) == everything
    assert known(count=10) == set(range(40, 50))
    assert known(count=0) == set()
    assert known(age=timedelta(seconds=850)) == set(range(40, 50))
    assert known(age=timedelta(seconds=650)) == set()


def test_copies_of_a_message_in_two_queues_are_two_messages(open_batch: OpenBatch, rows: MakeRows) -> None:
    with open_batch() as batch:
        batch.seal(rows([1]))
        assert batch.may_contain(message_key("ID:1", "queue://orders"))
        assert not batch.may_contain(message_key("ID:1", "queue://copies"))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"source": "queue://other"}, r"source: expected 'queue://other', found 'queue://orders'"),
        ({"activation": "z"}, r"activation: expected 'z', found 'a'"),
    ],
)
@pytest.mark.parametrize("complete", [False, True])
def test_a_batch_of_another_source_is_refused(
    open_batch: OpenBatch, changes: dict[str, str], fault: str, *, complete: bool
) -> None:
    with open_batch() as batch:
        if complete:
            batch.complete()
    with pytest.raises(SpoolError, match=fault):
        open_batch(**changes)


def test_a_name_that_is_no_folder_is_refused(open_batch: OpenBatch, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="can't name a folder"):
        open_batch("../x")
    assert list(tmp_path.iterdir()) == []


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[60] ^= 0xFF
    path.write_bytes(content)


def _swap(path: Path) -> None:
    path.write_bytes((path.parent / "segment-000000.parquet").read_bytes())


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (_truncate, r"segment-000001\.parquet: (not a Parquet file|damaged)"),
        (_flip, r"segment-000001\.parquet: damaged"),
        (_swap, r"segment-000001\.parquet: jmsjca\.segment: expected '1', found '0'"),
        (
            lambda path: path.rename(path.with_name("segment-000005.parquet")),
            r"expected segment-000001\.parquet, found segment-000005\.parquet",
        ),
        (
            lambda path: path.rename(path.with_name("segment-1.parquet")),
            r"expected segment-000001\.parquet, found segment-1\.parquet",
        ),
        (
            lambda path: (path.parent / "batch.json").write_text("{}"),
            r"batch\.json: format_version: expected 1",
        ),
        (lambda path: (path.parent / "batch.json").write_text("x"), r"batch\.json: can't be read"),
    ],
)
def test_a_damaged_unfinished_batch_is_not_continued(
    open_batch: OpenBatch, rows: MakeRows, damage: Callable[[Path], object], fault: str
) -> None:
    with open_batch() as batch:
        batch.seal(rows(range(100)))
        batch.seal(rows(range(100, 200)))
    damage(batch.folder / "segment-000001.parquet")
    with pytest.raises(SpoolError, match=fault):
        open_batch()


def test_a_segment_of_another_batch_is_refused(open_batch: OpenBatch, rows: MakeRows) -> None:
    with open_batch("b2") as other:
        other.seal(rows([1]))
    with open_batch("b1") as batch:
        batch.seal(rows([2]))
    name = "segment-000000.parquet"
    (batch.folder / name).write_bytes((other.folder / name).read_bytes())
    with pytest.raises(
        SpoolError, match=r"segment-000000\.parquet: jmsjca\.batch_id: expected 'b1', found 'b2'"
    ):
        open_batch("b1")


@pytest.mark.parametrize(
    ("name", "before", "number"),
    [
        # Each file is sealed by fsync, link, fsync of the folder: batch.json, two segments, the end, the
        # manifest. The folder of batches is flushed first.
        *[("fsync", before, number) for before in (True, False) for number in range(1, 12)],
        *[("link", before, number) for before in (True, False) for number in range(1, 6)],
    ],
)
def test_killed_at_any_step_a_batch_keeps_what_was_acknowledged_and_nothing_in_part(
    tmp_path: Path, name: str, number: int, *, before: bool
) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.unit.spool.dying_writer"])
    spool, noted = tmp_path / "spool", tmp_path / "acknowledged"
    spool.mkdir()
    noted.touch()
    process = context.Process(target=write_and_die, args=(spool, noted, name, before, number))
    process.start()
    process.join(timeout=60)
    assert process.exitcode == KILLED

    acknowledged = noted.read_text().split()
    present = ids(spool / "b1")
    assert present[: len(acknowledged)] == acknowledged
    assert len(present) in {0, 10, 20}

    was_complete = (spool / "b1" / "manifest.json").exists()
    write(spool, noted)
    manifest = Manifest.read(spool / "b1" / "manifest.json")
    manifest.verify()
    assert ids(manifest.folder) == [f"ID:{n}" for n in range(20)]
    # A finished batch isn't touched any more; the leftover is a second name of its manifest.
    assert was_complete or not list(manifest.folder.glob(".tmp-*"))


def test_a_message_is_known_only_if_all_agrees_that_it_says(open_batch: OpenBatch, rows: MakeRows) -> None:
    """The id may be the producer's word, and on a broker that was set up anew it begins again."""
    (row, later) = rows([1, 2])
    said = replace(row.message, timestamp=1_000, properties={"region": "eu", "amount": 5})
    row = row._replace(message=said)
    others = (
        replace(said, body="another"),
        replace(said, timestamp=1_001),
        replace(said, properties={"region": "us", "amount": 5}),
    )

    def is_known(batch: SpoolBatch, message: JmsMessage) -> bool:
        return is_sealed(batch, key(1), row_identity(Row(message, 7)))

    with open_batch("b1") as batch:
        batch.seal([row])
        assert is_known(batch, said)
        assert is_known(batch, replace(said, redelivered=True, delivery_count=4))
        assert not any(is_known(batch, each) for each in others)
        batch.seal([later])
        assert is_sealed(batch, key(2), row_identity(later)), "sealed after the first question"
    with open_batch("b2") as batch:
        assert is_known(batch, said)
        assert not any(is_known(batch, each) for each in others)
        assert not is_sealed(batch, key(3), row_identity(row))


def test_what_the_schema_cannot_hold_is_known_again_too(open_batch: OpenBatch, rows: MakeRows) -> None:
    (row,) = rows([1])
    for number, odd in enumerate(
        (
            row._replace(message=replace(row.message, timestamp=10**18, properties={"a": "\ud800"})),
            row._replace(undecodable="not Unicode"),
        )
    ):
        with open_batch(f"odd{number}") as batch:
            batch.seal([odd])
            assert is_sealed(batch, key(1), row_identity(odd._replace(received_at=9)))
