"""Messages of earlier batches become a new batch, made once."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_provider_jmsjca.errors import ConfigurationError, JmsError, SpoolError
from airflow_provider_jmsjca.spark.rejects import Reject
from airflow_provider_jmsjca.spark.replays import ReplacedBatches, make_replay, selected_batches
from airflow_provider_jmsjca.spool.attempts import Done, current_fence, take_fence
from airflow_provider_jmsjca.spool.batch_id import TaskKey, is_replay, replay_id
from airflow_provider_jmsjca.spool.manifest import Manifest
from airflow_provider_jmsjca.spool.rows import manifest_messages
from airflow_provider_jmsjca.spool.sequence import BatchSequence
from airflow_provider_jmsjca.spool.splits import RowRange, make_part
from airflow_provider_jmsjca.spool.upkeep import replays as module
from airflow_provider_jmsjca.spool.upkeep.replays import Replay, Selection
from airflow_provider_jmsjca.spool.upkeep.salvage import salvage
from airflow_provider_jmsjca.spool.upkeep.states import State, batches, describe, prune
from tests.unit.spool.batches import NOW, MakeRows, OpenBatch, write_rejects

TABLE = "/data/orders"
Process = Callable[..., None]
MakeBatch = Callable[..., Manifest]


@pytest.fixture
def make(open_batch: OpenBatch, rows: MakeRows) -> MakeBatch:
    def make_it(batch_id: str, *segments: range, at: float = NOW, **changes: object) -> Manifest:
        with open_batch(batch_id, clock=lambda: at, **changes) as batch:
            for each in segments:
                batch.seal(rows(each))
            return batch.complete()

    return make_it


def process(
    manifest: Manifest, table: str = TABLE, rejects: tuple[tuple[int, int], ...] = (), at: int = 0
) -> None:
    """Leave a batch as a job does that stored all other messages; `at` gives jobs an order."""
    fence = take_fence(manifest.folder)
    found = [
        Reject(segment=segment, position=position, exception_class="x.Y", exception_message="bad")
        for segment, position in rejects
    ]
    files = (write_rejects(manifest.folder, fence, 0, found),) if found else ()
    Done(
        batch_id=manifest.batch_id,
        fence=fence,
        rows=manifest.rows,
        stored={table: manifest.rows - len(found)},
        rejected=len(found),
        rejects=files,
        finished=f"2026-01-01T00:00:{at:02d}.000+00:00",
    ).create(manifest.folder)


def replayed(spool: Path, name: str, *names: str, rejects: bool = False) -> Manifest:
    found = make_replay(spool, replay_id(name), Selection(batches=names, rejects=rejects))
    assert found is not None
    return found


def ids(manifest: Manifest) -> list[str | None]:
    return [stored.message.message_id for stored in manifest_messages(manifest)]


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(NOW + seconds, UTC)


def test_a_replay_of_whole_batches_has_their_messages_in_order(tmp_path: Path, make: MakeBatch) -> None:
    make("b2", range(5, 7), at=NOW + 1)
    make("b1", range(3), range(3, 5))
    found = replayed(tmp_path, "again", "b2", "b1")
    assert ids(found) == [f"ID:{number}" for number in range(7)]
    assert (found.batch_id, found.rows, found.source) == (replay_id("again"), 7, "queue://orders")
    assert Replay.read(found.folder) == Replay(of=("b1", "b2"), rejects=False)
    assert is_replay(found.batch_id)
    found.verify()


def test_a_replay_of_rejects_has_no_other_message(tmp_path: Path, make: MakeBatch) -> None:
    process(make("b1", range(3), range(3, 5)), rejects=((1, 1), (0, 2), (0, 0)))
    found = replayed(tmp_path, "again", "b1", rejects=True)
    assert ids(found) == ["ID:0", "ID:2", "ID:4"]
    assert [(each.segment, each.position) for each in manifest_messages(found)] == [(0, 0), (0, 1), (0, 2)]


def test_segments_of_a_replay_are_bounded(
    tmp_path: Path, make: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("b1", *(range(number, number + 1) for number in range(5)))
    monkeypatch.setattr(module, "_SEGMENT_ROWS", 2)
    found = replayed(tmp_path, "again", "b1")
    assert [segment.rows for segment in found.segments] == [2, 2, 1]
    assert ids(found) == [f"ID:{number}" for number in range(5)]


def test_a_time_range_takes_batches_by_the_time_they_were_finished(tmp_path: Path, make: MakeBatch) -> None:
    for number in range(4):
        make(f"b{number}", range(number, number + 1), at=NOW + number)
    make("other", range(9, 10), at=NOW + 1, source="queue://other")
    selection = Selection(since=moment(1), until=moment(3), source="queue://orders")
    assert [each.batch_id for each in selected_batches(tmp_path, selection)] == ["b1", "b2"]
    found = make_replay(tmp_path, replay_id("range"), selection)
    assert found is not None
    assert ids(found) == ["ID:1", "ID:2"]
    # Neither a replay nor a batch that was finished since changes a selection.
    make("late", range(10, 11), at=NOW + 1)
    assert [each.batch_id for each in selected_batches(tmp_path, selection)] == ["b1", "late", "b2"]
    again = make_replay(tmp_path, replay_id("range"), selection)
    assert again == found


def test_rejects_of_a_time_range_pass_over_batches_without_rejects(tmp_path: Path, make: MakeBatch) -> None:
    make("collected", range(1))
    process(make("good", range(1, 2)))
    process(make("bad", range(2, 4)), rejects=((0, 1),))
    selection = Selection(since=moment(0), rejects=True)
    assert [(each.batch_id, each.rows, each.of) for each in selected_batches(tmp_path, selection)] == [
        ("bad", 1, 2)
    ]
    assert make_replay(tmp_path, replay_id("none"), Selection(batches=("good",), rejects=True)) is None


@pytest.mark.parametrize(
    ("selection", "said"),
    [
        (Selection(), "names of batches, or a time range .* neither given"),
        (Selection(batches=("b1",), since=moment(0)), "both given"),
        (Selection(batches=("b1",), source="queue://orders"), "source works only with a time range"),
        (Selection(since=datetime(2026, 1, 1)), "2026-01-01T00:00:00 has no offset"),  # noqa: DTZ001 - refused
        (Selection(since=moment(1), until=moment(1)), "is not before until"),
        (Selection(since=moment(0)), "queue://orders, queue://other; choose one"),
        (Selection(batches=("absent",)), "there is no batch 'absent'"),
        (Selection(batches=("open",)), "open is unfinished"),
        (Selection(batches=("undone",)), "undone was submitted and isn't done: clear its task"),
        (Selection(batches=("b1",), rejects=True), "b1 was never submitted to a job"),
        (Selection(batches=("pruned",)), "pruned was pruned"),
        (Selection(batches=("../b1",)), "can't name a folder"),
    ],
)
def test_a_selection_that_cant_be_replayed_is_refused(
    tmp_path: Path, make: MakeBatch, selection: Selection, said: str
) -> None:
    make("b1", range(1))
    make("other", range(1), source="queue://other")
    (make("open", range(1)).folder / "manifest.json").unlink()  # type: ignore[union-attr]  # of this machine
    take_fence(make("undone", range(1), at=NOW - 1).folder)
    process(make("pruned", range(1), at=NOW - 1, activation="gone"))
    if "pruned" in selection.batches:
        (tmp_path / "pruned" / "pruned").touch()
    with pytest.raises(JmsError, match=said):
        make_replay(tmp_path, replay_id("x"), selection)
    assert not [name for name in tmp_path.iterdir() if is_replay(name.name)]


def test_a_damaged_segment_is_not_copied(tmp_path: Path, make: MakeBatch) -> None:
    manifest = make("b1", range(3))
    path = manifest.folder / "segment-000000.parquet"
    path.write_bytes(path.read_bytes()[:-1])  # type: ignore[union-attr]  # a folder of this machine
    with pytest.raises(SpoolError, match=r"expected .* bytes"):
        replayed(tmp_path, "again", "b1")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".known", "b1"]


def test_a_name_has_the_messages_of_its_first_selection(tmp_path: Path, make: MakeBatch) -> None:
    make("b1", range(1))
    make("b2", range(1, 2))
    first = replayed(tmp_path, "again", "b1")
    assert replayed(tmp_path, "again", "b1") == first
    for selection in (Selection(batches=("b2",)), Selection(batches=("b1",), rejects=True)):
        with pytest.raises(ConfigurationError, match="of b1; choose another name"):
            make_replay(tmp_path, replay_id("again"), selection)


def test_no_task_instance_has_the_name_of_a_replay() -> None:
    key = TaskKey(dag_id="replay", run_id="a" * 300, task_id="t")
    assert not is_replay(key.batch_id())
    assert not is_replay(TaskKey(dag_id="replay", run_id="0" * 32, task_id="t").batch_id())


def test_streams_and_the_horizon_leave_replays_out(tmp_path: Path, make: MakeBatch) -> None:
    make("b1", range(3))
    replay = replayed(tmp_path, "again", "b1")
    sequence = BatchSequence(tmp_path)
    assert [each.batch_id for each in sequence[: sequence.refresh()]] == ["b1"]
    process(replay)
    assert describe(replay.folder).state is State.DONE
    pruned = prune(tmp_path, older_than=timedelta(0), collected=True, now=replay_time(replay))
    assert [each.batch_id for each in pruned.removed] == [replay.batch_id]
    # Its record stays, by which a later replay knows it.
    assert Replay.read(replay.folder).of == ("b1",)
    assert sequence.refresh() == 1


def replay_time(replay: Manifest) -> float:
    return describe(replay.folder).changed + 1


def test_a_replay_is_salvaged_as_any_batch(tmp_path: Path, make: MakeBatch) -> None:
    make("b1", range(3))
    replay = replayed(tmp_path, "again", "b1")
    (replay.folder / "manifest.json").write_text("{")  # type: ignore[union-attr]  # a folder of this machine
    assert salvage(tmp_path, replay.batch_id) == ()
    assert ids(Manifest.read(replay.path)) == ["ID:0", "ID:1", "ID:2"]
    (found,) = batches(tmp_path, [replay.batch_id])
    assert found.state is State.COLLECTED


def rows_in(manifest: Manifest, table: str = TABLE) -> tuple[str, ...]:
    found = ReplacedBatches.of(manifest.folder)
    assert found is not None
    return found.rows_in(table)


def test_a_batch_that_is_no_replay_replaces_nothing(make: MakeBatch) -> None:
    assert ReplacedBatches.of(make("b1", range(1)).folder) is None


def test_a_whole_batch_is_replaced_and_that_of_the_rejects_is_not(tmp_path: Path, make: MakeBatch) -> None:
    process(make("b1", range(3)), rejects=((0, 1),))
    whole, rejects = replayed(tmp_path, "w", "b1"), replayed(tmp_path, "r", "b1", rejects=True)
    assert rows_in(whole) == ("b1", rejects.batch_id)
    assert rows_in(rejects) == ()
    found = ReplacedBatches.of(rejects.folder)
    assert found is not None
    assert found.rejects_in() == ("b1",)


def test_parts_of_a_bisected_batch_are_replaced_too(tmp_path: Path, make: MakeBatch) -> None:
    manifest = make("b1", range(4))
    fence = take_fence(manifest.folder)
    part = make_part(manifest, RowRange(0, 1), fence)
    process(manifest)
    replay = replayed(tmp_path, "w", "b1")
    assert rows_in(replay) == ("b1", part.batch_id)
    # A part of a replay stands for the replay.
    of_replay = make_part(replay, RowRange(0, 1), take_fence(replay.folder))
    assert rows_in(of_replay) == ("b1", part.batch_id)


@pytest.mark.parametrize("is_pruned_first", [True, False])
def test_parts_of_a_batch_that_was_pruned_or_forgotten_since_are_replaced_too(
    tmp_path: Path, make: MakeBatch, *, is_pruned_first: bool
) -> None:
    """The batch is bisected before or after the replay is made."""
    manifest = make("b1", range(4))
    if is_pruned_first:
        replay = replayed(tmp_path, "w", "b1")
    part = make_part(manifest, RowRange(0, 1), take_fence(manifest.folder))
    process(manifest)
    if not is_pruned_first:
        replay = replayed(tmp_path, "w", "b1")
    now = describe(manifest.folder).changed + 30 * 86_400
    for _ in range(2):  # the second removes nothing more
        prune(tmp_path, older_than=timedelta(1), now=now)
    assert describe(manifest.folder).state is State.PRUNED
    assert not (tmp_path / "b1" / "splits").exists()
    assert rows_in(replay) == ("b1", part.batch_id)
    if not is_pruned_first:
        prune(tmp_path, older_than=timedelta(1), forget=timedelta(1), now=now + 30 * 86_400)
        assert not (tmp_path / "b1").exists()
        assert rows_in(replay) == ("b1", part.batch_id)


def test_a_second_replay_of_the_same_messages_replaces_the_first(tmp_path: Path, make: MakeBatch) -> None:
    process(make("b1", range(3)), rejects=((0, 1), (0, 2)))
    first = replayed(tmp_path, "1", "b1", rejects=True)
    process(first, rejects=((0, 0),))
    second = replayed(tmp_path, "2", "b1", rejects=True)
    assert rows_in(second) == (first.batch_id,)
    # The rejects of the first replay have no rows anywhere.
    assert rows_in(replayed(tmp_path, "3", first.batch_id, rejects=True)) == ()


def test_a_replay_that_isnt_done_is_shut_out_by_one_of_the_same_messages(
    tmp_path: Path, make: MakeBatch
) -> None:
    process(make("b1", range(3)))
    first, second = replayed(tmp_path, "1", "b1"), replayed(tmp_path, "2", "b1")
    assert take_fence(first.folder) == 1
    assert rows_in(second) == ("b1", first.batch_id)
    assert current_fence(first.folder) == 2


def test_rows_of_further_messages_are_not_replaced(tmp_path: Path, make: MakeBatch) -> None:
    process(make("b1", range(2)), rejects=((0, 1),))
    process(make("b2", range(2, 4)))
    both = replayed(tmp_path, "both", "b1", "b2")
    process(both, at=1)
    one = replayed(tmp_path, "one", "b1")
    with pytest.raises(ConfigurationError, match=f"batch {both.batch_id} has some of them, and further"):
        rows_in(one)
    with pytest.raises(ConfigurationError, match="Nothing was written"):
        rows_in(one, f"file://{TABLE}/")
    assert rows_in(one, "/data/elsewhere") == ("b1",)


def test_rejects_of_a_replay_that_replaced_its_batch_are_added(tmp_path: Path, make: MakeBatch) -> None:
    """The batch's rows aren't in the table any more; its report still says that they were stored."""
    process(make("b1", range(3)), rejects=((0, 0),))
    whole = replayed(tmp_path, "w", "b1")
    process(whole, rejects=((0, 2),), at=1)
    assert rows_in(replayed(tmp_path, "r", whole.batch_id, rejects=True)) == ()
    elsewhere = replayed(tmp_path, "x", whole.batch_id, rejects=True)
    process(make("b3", range(4, 5)), at=2)
    assert rows_in(elsewhere, TABLE) == (replay_id("r"),)


def test_rejects_of_a_replay_in_another_table_may_be_rows_of_the_first(
    tmp_path: Path, make: MakeBatch
) -> None:
    process(make("b1", range(3)))
    whole = replayed(tmp_path, "w", "b1")
    process(whole, "/data/elsewhere", rejects=((0, 2),), at=1)
    with pytest.raises(ConfigurationError, match="batch b1 has some of them"):
        rows_in(replayed(tmp_path, "r", whole.batch_id, rejects=True))


def test_a_replay_of_a_whole_replay_counts_as_one_of_its_batch(tmp_path: Path, make: MakeBatch) -> None:
    process(make("b1", range(3)))
    first = replayed(tmp_path, "1", "b1")
    process(first, at=1)
    assert rows_in(replayed(tmp_path, "2", first.batch_id)) == ("b1", first.batch_id)


@pytest.mark.parametrize(
    "content", ["", "{}", '{"of": [], "rejects": true}', '{"of": ["../x"], "rejects": 1}']
)
def test_a_damaged_record_is_an_error(tmp_path: Path, make: MakeBatch, content: str) -> None:
    make("b1", range(1))
    replay = replayed(tmp_path, "1", "b1")
    path = tmp_path / replay.batch_id / "replay.json"
    assert json.loads(path.read_text()) == {"of": ["b1"], "rejects": False}
    path.write_text(content)
    with pytest.raises(JmsError, match=r"replay\.json"):
        rows_in(replay)
