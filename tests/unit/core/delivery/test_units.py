"""Units of work: concurrency, groups, batches, hold-until-ack, timeouts: J81-J84, J183-J203, W22."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_provider_jmsjca.core.delivery import decisions as d
from airflow_provider_jmsjca.core.delivery import events as e
from airflow_provider_jmsjca.core.delivery.settings import DeliverySettings
from airflow_provider_jmsjca.errors import ConfigurationError
from tests.unit.core.delivery.harness import FAILURE, SECOND, SETTINGS, Run

BATCH = replace(SETTINGS, batch_size=3)
HOLD = replace(SETTINGS, hold_until_ack=True)


def delivered(decisions: list[d.Decision]) -> d.Deliver:
    (decision,) = decisions
    assert isinstance(decision, d.Deliver)
    return decision


def end_of_batch(decisions: list[d.Decision]) -> d.DeliverEndOfBatch:
    (decision,) = decisions
    assert isinstance(decision, d.DeliverEndOfBatch)
    return decision


def test_j81_serial_delivers_one_after_the_other() -> None:
    run = Run()
    first = delivered(run.arrive())
    assert run.arrive() == []
    run.send(e.HandlerReturned(call=first.call))
    assert delivered(run.send(e.UnitCommitted(unit=first.unit))).delivery == 2


def test_j82_j83_concurrency_is_bounded() -> None:
    run = Run(settings=replace(SETTINGS, concurrency=2))
    first, second = delivered(run.arrive()), delivered(run.arrive())
    assert first.unit != second.unit
    assert run.arrive() == []
    run.send(e.HandlerReturned(call=second.call))
    assert delivered(run.send(e.UnitCommitted(unit=second.unit))).delivery == 3


def test_j146_a_delayed_message_keeps_its_place() -> None:
    run = Run(handling="1:1000")
    assert [type(decision) for decision in run.arrive(redelivered=True)] == [d.Wait]
    assert run.arrive() == []


def test_groups_keep_their_order_under_concurrency() -> None:
    run = Run(settings=replace(SETTINGS, concurrency=3))
    first = delivered(run.arrive(group="g"))
    assert run.arrive(group="g") == []
    assert delivered(run.arrive(group="h")).delivery == 3
    assert delivered(run.arrive()).delivery == 4
    rolled_back, again = run.send(e.HandlerRaised(call=first.call, failure=FAILURE))
    assert rolled_back == d.RollBackUnit(unit=first.unit)
    assert isinstance(again, d.Deliver)
    assert (again.delivery, again.seen) == (1, 1), "the failed one comes before its successors"


def test_j183_j187_a_full_batch_ends_with_end_of_batch_and_commits_once() -> None:
    run = Run(settings=BATCH)
    one = delivered(run.arrive())
    assert run.arrive() == []
    two = delivered(run.send(e.HandlerReturned(call=one.call)))
    assert run.send(e.HandlerReturned(call=two.call)) == []
    three = delivered(run.arrive())
    assert [(item.unit, item.batch_index) for item in (one, two, three)] == [(1, 0), (1, 1), (1, 2)]
    end = end_of_batch(run.send(e.HandlerReturned(call=three.call)))
    assert (end.unit, end.batch_index, end.rollback) == (1, 3, False)
    assert run.send(e.HandlerReturned(call=end.call)) == [d.CommitUnit(unit=1, acknowledge=(1, 2, 3))]


def test_j188_a_batch_ends_when_nothing_comes_for_100_ms() -> None:
    run = Run(settings=BATCH)
    one = delivered(run.arrive())
    run.send(e.HandlerReturned(call=one.call))
    assert run.machine.deadline == pytest.approx(run.now + 0.1)
    end = end_of_batch(run.tick())
    assert end.batch_index == 1


def test_a_batch_is_flushed_in_time() -> None:
    run = Run(settings=replace(BATCH, batch_size=100, batch_flush=SECOND))
    call = delivered(run.arrive()).call
    start = run.now
    for _ in range(11):
        run.now += 0.09
        assert run.arrive() == []
        call = delivered(run.send(e.HandlerReturned(call=call))).call
    assert run.machine.deadline == pytest.approx(start + 1.0)
    assert run.tick() == []
    assert end_of_batch(run.send(e.HandlerReturned(call=call))).batch_index == 12


def test_a_batch_of_two_is_flushed_in_time() -> None:
    run = Run(settings=replace(SETTINGS, batch_size=2, batch_idle=5 * SECOND, batch_flush=SECOND))
    one = delivered(run.arrive())
    run.send(e.HandlerReturned(call=one.call))
    assert run.machine.deadline == run.now + 1
    assert end_of_batch(run.tick()).batch_index == 1


def test_a_batch_ends_when_its_messages_take_so_many_bytes() -> None:
    run = Run(settings=replace(BATCH, batch_bytes=100))
    for size in (60, 40):
        call = delivered(run.arrive(size=size)).call
        assert run.machine.wants_message is False, "the one place is taken, and its handler runs"
        if size == 60:
            assert run.send(e.HandlerReturned(call=call)) == []
            assert run.machine.wants_message, "the batch has room"
    end = end_of_batch(run.send(e.HandlerReturned(call=call)))
    assert end.batch_index == 2
    assert not run.machine.wants_message
    run.send(e.HandlerReturned(call=end.call))
    run.send(e.UnitCommitted(unit=end.unit))
    assert run.machine.wants_message, "the place is free"


def test_bytes_of_a_batch_that_is_rolled_back_are_counted_anew() -> None:
    run = Run(settings=replace(BATCH, batch_bytes=100))
    call = delivered(run.arrive(size=60)).call
    end = end_of_batch(run.send(e.HandlerRaised(call=call, failure=FAILURE)))
    _, again = run.send(e.HandlerReturned(call=end.call))
    assert isinstance(again, d.Deliver)
    assert run.send(e.HandlerReturned(call=again.call)) == []
    last = delivered(run.arrive(size=50))
    assert (last.unit, last.batch_index) == (again.unit, 1)
    assert end_of_batch(run.send(e.HandlerReturned(call=last.call))).batch_index == 2


def test_a_batch_waits_for_nothing_where_what_others_wait_for_takes_so_many_bytes() -> None:
    """Nothing more is taken in hand then, and what waits is of a group that another batch has."""
    run = Run(settings=replace(BATCH, concurrency=2, batch_bytes=100))
    first, other = delivered(run.arrive(group="g", size=40)), delivered(run.arrive(size=20))
    assert run.send(e.HandlerReturned(call=other.call)) == []
    assert run.machine.wants_message
    assert run.arrive(group="g", size=39) == []
    assert not run.machine.wants_message, "a message waits"
    assert end_of_batch(run.arrive(group="g", size=1)).unit == other.unit
    next_of_group = delivered(run.send(e.HandlerReturned(call=first.call)))
    assert next_of_group.unit == first.unit


def test_a_batch_of_messages_in_progress_waits_whatever_others_take() -> None:
    """What is not in progress may not be handled before it is, and finds room for that."""
    run = Run(settings=replace(BATCH, concurrency=2, batch_bytes=100, in_progress=True))
    first = delivered(run.arrive(group="g", size=40, in_progress=True))
    other = delivered(run.arrive(size=20, in_progress=True))
    assert run.send(e.HandlerReturned(call=other.call)) == []
    assert run.arrive(group="g", size=100, in_progress=True) == []
    assert delivered(run.send(e.HandlerReturned(call=first.call))).unit == first.unit


def test_what_a_handler_says_after_its_end_is_nothing() -> None:
    run = Run(settings=BATCH)
    one = delivered(run.arrive())
    run.send(e.HandlerReturned(call=one.call))
    assert run.send(e.HandlerRaised(call=one.call, failure=FAILURE)) == []
    assert run.send(e.HandlerNotCalled(call=one.call)) == []
    end = end_of_batch(run.tick())
    assert not end.rollback
    run.send(e.HandlerReturned(call=end.call))
    run.send(e.UnitCommitted(unit=one.unit))
    for said in (
        e.HandlerReturned(call=one.call),
        e.HandlerRaised(call=one.call, failure=FAILURE),
        e.HandlerNotCalled(call=one.call),
        e.RollbackAsked(call=one.call),
        e.Acknowledged(call=one.call),
        e.StateSet(call=one.call, rollback_data={"step": "2"}),
    ):
        assert run.send(said) == []
    assert len(run.tracker.states) == 0


def test_j185_j189_an_exception_still_gets_its_end_of_batch_and_rolls_all_back() -> None:
    run = Run(settings=BATCH)
    one = delivered(run.arrive("a"))
    run.arrive("b")
    two = delivered(run.send(e.HandlerReturned(call=one.call)))
    end = end_of_batch(run.send(e.HandlerRaised(call=two.call, failure=FAILURE)))
    assert (end.batch_index, end.rollback) == (2, True)
    rolled_back, again = run.send(e.HandlerReturned(call=end.call))
    assert rolled_back == d.RollBackUnit(unit=1)
    assert isinstance(again, d.Deliver)
    assert (again.delivery, again.seen, again.batch_index, again.state.failure) == (1, 1, 0, None)
    second = delivered(run.send(e.HandlerReturned(call=again.call)))
    assert (second.delivery, second.seen, second.state.failure) == (2, 1, FAILURE)


def test_j185_end_of_batch_may_fail_too() -> None:
    run = Run(settings=BATCH)
    one = delivered(run.arrive())
    run.send(e.HandlerReturned(call=one.call))
    end = end_of_batch(run.tick())
    rolled_back, again = run.send(e.HandlerRaised(call=end.call, failure=FAILURE))
    assert rolled_back == d.RollBackUnit(unit=1)
    assert isinstance(again, d.Deliver)
    assert again.state.failure == FAILURE


def test_j189_a_batch_serves_its_longest_delay_once() -> None:
    run = Run(handling="1:1000", settings=BATCH)
    (waits,) = run.arrive(redelivered=True)
    assert isinstance(waits, d.Wait)
    run.arrive(redelivered=True)
    one = delivered(run.tick())
    assert delivered(run.send(e.HandlerReturned(call=one.call))).delivery == 2


def test_a_message_moved_out_of_a_batch_leaves_the_batch_going() -> None:
    run = Run(handling="3:move(queue:dlq)", settings=BATCH)
    one = delivered(run.arrive())
    run.arrive(seen=3)
    (move,) = run.send(e.HandlerReturned(call=one.call))
    assert isinstance(move, d.MoveMessage)
    run.arrive()
    three = delivered(run.send(e.UnitCommitted(unit=move.unit)))
    assert (three.delivery, three.unit, three.batch_index) == (3, one.unit, 1)


def test_a_batch_ends_when_the_move_of_one_of_its_messages_is_lost_with_the_connection() -> None:
    run = Run(handling="3:move(queue:dlq)", settings=BATCH)
    one = delivered(run.arrive())
    run.arrive(seen=3)
    (move,) = run.send(e.HandlerReturned(call=one.call))
    assert isinstance(move, d.MoveMessage)
    end = end_of_batch(run.send(e.UnitLost(unit=move.unit)))
    assert (end.batch_index, end.rollback) == (1, True)


def test_a_consumer_that_settles_in_order_gives_a_batch_consecutive_messages() -> None:
    run = Run(settings=replace(BATCH, concurrency=3))
    one, other = (delivered(run.arrive(consumer=each)) for each in (8, 9))
    assert one.unit != other.unit
    for each in (9, 8, 9):  # deliveries 3, 4, 5: all wait, although a third unit may begin
        assert run.arrive(consumer=each) == []
    later = delivered(run.send(e.HandlerReturned(call=one.call)))
    assert later.delivery == 4
    end = end_of_batch(run.send(e.HandlerRaised(call=later.call, failure=FAILURE)))
    rolled_back, *again = run.send(e.HandlerReturned(call=end.call))
    assert isinstance(rolled_back, d.RollBackUnit)
    assert delivered(again).delivery == 1, "what is rolled back is the first of its consumer again"
    assert delivered(run.send(e.HandlerReturned(call=other.call))).delivery == 3


def test_a_batch_in_order_ends_before_a_message_that_is_moved() -> None:
    """Acknowledging that message would settle those before it too."""
    run = Run(handling="3:move(queue:dlq)", settings=BATCH)
    one = delivered(run.arrive(consumer=8))
    run.arrive(seen=3, consumer=8)
    run.arrive(consumer=8)
    end = end_of_batch(run.send(e.HandlerReturned(call=one.call)))
    (commit,) = run.send(e.HandlerReturned(call=end.call))
    assert isinstance(commit, d.CommitUnit)
    assert commit.acknowledge == (1,)
    (move,) = run.send(e.UnitCommitted(unit=commit.unit))
    assert isinstance(move, d.MoveMessage)
    assert move.delivery == 2
    assert delivered(run.send(e.UnitCommitted(unit=move.unit))).delivery == 3


def test_a_batch_of_which_everything_was_moved_has_no_end() -> None:
    run = Run(handling="3:move(queue:dlq)", settings=BATCH)
    (move,) = run.arrive(seen=3)
    assert isinstance(move, d.MoveMessage)
    assert run.send(e.UnitCommitted(unit=move.unit)) == []
    assert run.machine.idle


def test_j192_j195_hold_until_ack_commits_on_acknowledge_after_the_return() -> None:
    run = Run(settings=HOLD)
    held = delivered(run.arrive())
    assert run.send(e.HandlerReturned(call=held.call)) == []
    assert run.arrive() == []
    assert run.send(e.Acknowledged(call=held.call)) == [d.CommitUnit(unit=held.unit, acknowledge=(1,))]
    assert run.send(e.Acknowledged(call=held.call)) == []


def test_j195_hold_until_ack_may_acknowledge_inside_the_call() -> None:
    run = Run(settings=HOLD)
    held = delivered(run.arrive())
    assert run.send(e.Acknowledged(call=held.call)) == []
    assert run.send(e.HandlerReturned(call=held.call)) == [d.CommitUnit(unit=held.unit, acknowledge=(1,))]


def test_j194_rollback_and_then_acknowledge_rolls_back() -> None:
    run = Run(settings=HOLD)
    held = delivered(run.arrive())
    run.send(e.HandlerReturned(call=held.call))
    assert run.send(e.RollbackAsked(call=held.call)) == []
    rolled_back, again = run.send(e.Acknowledged(call=held.call))
    assert rolled_back == d.RollBackUnit(unit=held.unit)
    assert isinstance(again, d.Deliver)
    assert again.seen == 1


def test_j197_an_exception_counts_as_rollback_and_acknowledge() -> None:
    run = Run(settings=HOLD)
    held = delivered(run.arrive())
    rolled_back, _ = run.send(e.HandlerRaised(call=held.call, failure=FAILURE))
    assert rolled_back == d.RollBackUnit(unit=held.unit)


def test_j198_stop_rolls_back_what_waits_for_an_acknowledgement() -> None:
    run = Run(settings=HOLD)
    held = delivered(run.arrive())
    run.send(e.HandlerReturned(call=held.call))
    assert run.send(e.StopAsked(reason="enough")) == [
        d.RollBackUnit(unit=held.unit),
        d.CloseConnection(),
        d.Stopped(reason="enough"),
    ]
    assert run.send(e.Acknowledged(call=held.call)) == []


def test_a_batch_left_alone_at_a_stop_counts_for_those_whose_handler_was_called() -> None:
    """Its second member could not be called, and its EndOfBatch message doesn't come back in time."""
    run = Run(settings=BATCH)
    called = delivered(run.arrive("ID:a"))
    run.send(e.HandlerReturned(call=called.call))
    uncalled = delivered(run.arrive("ID:b"))
    end_of_batch(run.send(e.HandlerNotCalled(call=uncalled.call)))
    run.send(e.StopAsked(reason="told to stop", within=SECOND))
    assert d.RollBackUnit(unit=called.unit) in run.tick()
    run.send(e.Start())
    run.send(e.ConnectionOpened())
    run.send(e.ConsumerOpened())
    again = delivered(run.arrive("ID:a", redelivered=True))
    assert again.seen == 1
    run.send(e.HandlerReturned(call=again.call))
    assert delivered(run.arrive("ID:b", redelivered=True)).seen == 0, "its hand-over led to nothing"


def test_j200_every_message_and_the_end_of_batch_are_acknowledged() -> None:
    run = Run(settings=replace(HOLD, batch_size=2))
    one = delivered(run.arrive())
    run.arrive()
    two = delivered(run.send(e.HandlerReturned(call=one.call)))
    end = end_of_batch(run.send(e.HandlerReturned(call=two.call)))
    assert run.send(e.Acknowledged(call=two.call)) == []
    assert run.send(e.HandlerReturned(call=end.call)) == []
    assert run.send(e.Acknowledged(call=end.call)) == []
    assert run.send(e.Acknowledged(call=one.call)) == [d.CommitUnit(unit=one.unit, acknowledge=(1, 2))]


def test_j201_j202_rollback_on_any_of_them_ends_the_batch_at_once() -> None:
    run = Run(settings=replace(HOLD, batch_size=9))
    one = delivered(run.arrive())
    assert run.send(e.HandlerReturned(call=one.call)) == []
    end = end_of_batch(run.send(e.RollbackAsked(call=one.call)))
    assert end.rollback
    run.send(e.HandlerReturned(call=end.call))
    run.send(e.Acknowledged(call=one.call))
    rolled_back, again = run.send(e.Acknowledged(call=end.call))
    assert rolled_back == d.RollBackUnit(unit=one.unit)
    assert isinstance(again, d.Deliver)


def test_w22_a_unit_that_takes_too_long_is_rolled_back() -> None:
    run = Run(settings=replace(HOLD, transaction_timeout=30 * SECOND))
    held = delivered(run.arrive())
    run.send(e.HandlerReturned(call=held.call))
    start = run.now
    rolled_back, again = run.tick()
    assert run.now == start + 30
    assert rolled_back == d.RollBackUnit(unit=held.unit)
    assert isinstance(again, d.Deliver)
    assert again.state.failure is not None
    assert again.state.failure.message == ("its unit of work took longer than transaction_timeout (30 s)")
    assert run.send(e.Acknowledged(call=held.call)) == [], "the late acknowledgement is disregarded"


def test_w22_a_running_handler_is_waited_for_and_not_committed() -> None:
    run = Run(settings=replace(SETTINGS, transaction_timeout=30 * SECOND))
    slow = delivered(run.arrive())
    assert run.tick() == []
    rolled_back, _ = run.send(e.HandlerReturned(call=slow.call))
    assert rolled_back == d.RollBackUnit(unit=slow.unit)


@pytest.mark.parametrize("called_before", [False, True])
def test_a_message_whose_time_ran_out_before_its_handler_was_called_has_no_attempt(
    called_before: bool,
) -> None:
    run = Run(settings=replace(SETTINGS, transaction_timeout=30 * SECOND))
    one = delivered(run.arrive("ID:a"))
    if called_before:
        one = delivered(run.send(e.HandlerRaised(call=one.call, failure=FAILURE))[1:])
    before = one.seen
    run.tick()
    run.send(e.ConnectionLost())
    run.send(e.HandlerNotCalled(call=one.call))
    run.send(e.ConnectionOpened())
    assert delivered(run.arrive("ID:a")).seen == before == int(called_before)


def test_w22_an_end_of_batch_that_takes_too_long_commits_nothing() -> None:
    run = Run(settings=replace(BATCH, transaction_timeout=30 * SECOND))
    one = delivered(run.arrive())
    run.send(e.HandlerReturned(call=one.call))
    start = run.now
    end = end_of_batch(run.tick())
    assert run.tick() == []
    assert run.now == pytest.approx(start + 30)
    rolled_back, _ = run.send(e.HandlerReturned(call=end.call))
    assert rolled_back == d.RollBackUnit(unit=one.unit)


def test_w22_a_batch_that_waits_too_long_for_a_move_is_rolled_back() -> None:
    run = Run(handling="3:move(queue:dlq)", settings=replace(BATCH, transaction_timeout=30 * SECOND))
    one = delivered(run.arrive())
    run.arrive(seen=3)
    (move,) = run.send(e.HandlerReturned(call=one.call))
    assert isinstance(move, d.MoveMessage)
    start = run.now
    while run.now < start + 30:
        assert run.tick() == []
    end = end_of_batch(run.send(e.UnitCommitted(unit=move.unit)))
    assert (end.batch_index, end.rollback) == (1, True)


def test_a_transaction_lasts_30_seconds_and_a_turn_one_message_unless_something_else_is_said() -> None:
    settings = DeliverySettings(destination=SETTINGS.destination)
    assert (settings.transaction_timeout, settings.quantity) == (30 * SECOND, 1)


def test_settings_report_every_fault() -> None:
    with pytest.raises(ConfigurationError) as caught:
        DeliverySettings(
            destination=SETTINGS.destination, concurrency=0, batch_size=0, batch_idle=timedelta(0)
        )
    assert len(caught.value.faults) == 3


@pytest.mark.parametrize(("flush", "longest"), [(None, 15), (20 * SECOND, 15), (2 * SECOND, 2)])
def test_a_batch_that_only_collects_ends_before_its_transaction_times_out(
    flush: timedelta | None, longest: int
) -> None:
    """W22: no handler is slow, so nothing is rolled back for it."""
    settings = replace(BATCH, batch_size=1000, batch_flush=flush, transaction_timeout=30 * SECOND)
    run = Run(settings=settings)
    call = delivered(run.arrive()).call
    start = run.now
    while run.now < start + longest - 0.09:
        run.now += 0.09
        assert run.arrive() == []
        assert run.send(e.Tick()) == []
        call = delivered(run.send(e.HandlerReturned(call=call))).call
    assert run.send(e.HandlerReturned(call=call)) == []
    run.now = start + longest
    assert not end_of_batch(run.send(e.Tick())).rollback
