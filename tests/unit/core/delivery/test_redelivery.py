"""Counts, delays, moves and deletions as the machine decides them: J128-J172, C1, C2, P6-P8, P15."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_jmsjca.core.copies.dead_letter import ConsumedFrom, copy_of
from airflow_provider_jmsjca.core.delivery import decisions as d
from airflow_provider_jmsjca.core.delivery import events as e
from airflow_provider_jmsjca.core.delivery.settings import DeliverySettings
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.redelivery import MessageState, MoveKind, MoveTarget, RedeliveryHandling
from tests.dead_letters import original_of
from tests.unit.core.delivery.harness import FAILURE, SECOND, SETTINGS, Run

POISON = Failure(class_names=("shop.Broken", "shop.Bad", "builtins.Exception"), message="bad")
DLQ = (Destination.queue("dlq"),)


def fail(run: Run, delivered: d.Deliver, failure: Failure = FAILURE) -> list[d.Decision]:
    """Let the handler raise; the rollback is decided first."""
    rolled_back, *rest = run.send(e.HandlerRaised(call=delivered.call, failure=failure))
    assert rolled_back == d.RollBackUnit(unit=delivered.unit)
    return rest


def test_c1_commit_when_the_handler_returns() -> None:
    run = Run()
    (delivered,) = run.arrive()
    assert delivered == d.Deliver(
        call=2, unit=1, delivery=1, seen=0, batch_index=0, in_doubt=False, state=MessageState()
    )
    assert run.send(e.HandlerReturned(call=2)) == [d.CommitUnit(unit=1, acknowledge=(1,))]
    assert run.send(e.UnitCommitted(unit=1)) == []
    assert run.machine.idle


@pytest.mark.parametrize(
    ("handling", "failures", "expected"),
    [
        ("2:1000", 3, [d.Deliver, d.Wait, d.Wait]),
        ("2:move(queue:dlq)", 2, [d.Deliver, d.MoveMessage]),
        ("2:delete", 2, [d.Deliver, d.DeleteMessage]),
    ],
)
def test_j144_what_is_transient_is_delayed_what_is_permanent_is_moved_or_deleted(
    handling: str, failures: int, expected: list[type[d.Decision]]
) -> None:
    """J17, W37."""
    run = Run(handling=handling)
    (decision,) = run.arrive()
    found = []
    for _ in range(failures):
        assert isinstance(decision, d.Deliver)
        (decision,) = fail(run, decision)
        found.append(type(decision))
        if isinstance(decision, d.Wait):
            (decision,) = run.tick()
    assert found == expected


def test_c2_j137b_published_vector_through_the_machine() -> None:
    run = Run(handling="5:10; 6:15; 10:30; 15:move(queue:a)")
    (decision,) = run.arrive()
    delays, counts = [], []
    while isinstance(decision, d.Deliver):
        counts.append(decision.seen)
        (decision,) = fail(run, decision)
        if isinstance(decision, d.Wait):
            delays.append(decision.pause // timedelta(milliseconds=1))
            (decision,) = run.tick()
    assert counts == list(range(15))
    assert delays == [10, 15, 15, 15, 15, 30, 30, 30, 30, 30]
    assert sum(delays) == 220
    assert isinstance(decision, d.MoveMessage)
    assert decision.targets == (Destination.queue("a"),)
    assert decision.state == MessageState(seen=15, failure=FAILURE)


def test_j129_j130_counts_what_the_broker_flags() -> None:
    run = Run(handling="2:delete")
    (delivered,) = run.arrive("m", redelivered=True)
    assert isinstance(delivered, d.Deliver)
    assert delivered.seen == 1
    run.send(e.ConnectionLost())
    run.send(e.HandlerReturned(call=delivered.call))
    run.tick()
    run.send(e.ConnectionOpened())
    assert run.arrive("m", redelivered=True) == [d.DeleteMessage(unit=4, delivery=2, seen=2)]
    assert run.send(e.UnitCommitted(unit=4)) == []
    assert "m" not in run.tracker.states


def test_where_repeats_do_not_count_only_failures_do() -> None:
    run = Run(handling="1:10; 2:delete", settings=replace(SETTINGS, counts_repeats=False))
    (delivered,) = run.arrive("m", redelivered=True)
    assert isinstance(delivered, d.Deliver)
    assert delivered.seen == 0
    (waits,) = fail(run, delivered)
    assert isinstance(waits, d.Wait)
    (again,) = run.tick()
    assert isinstance(again, d.Deliver)
    assert again.seen == 1
    (deleted,) = fail(run, again)
    assert isinstance(deleted, d.DeleteMessage)
    assert deleted.seen == 2


def test_a_message_lost_in_the_handler_counts_even_where_the_broker_flags_nothing() -> None:
    run = Run()
    (delivered,) = run.arrive("m")
    assert isinstance(delivered, d.Deliver)
    run.send(e.ConnectionLost())
    assert run.send(e.HandlerReturned(call=delivered.call)) == [d.RollBackUnit(unit=delivered.unit)]
    run.tick()
    run.send(e.ConnectionOpened())
    (again,) = run.arrive("m")
    assert isinstance(again, d.Deliver)
    assert again.seen == 1


def test_attempts_are_recorded_before_the_message_is_handed_over() -> None:
    run = Run(handling="2:delete", settings=replace(SETTINGS, record_attempts=True))
    assert run.arrive("m") == [d.RecordAttempt(delivery=1, message_id="m")]
    assert run.send(e.AttemptNotRecorded(delivery=1, failure=FAILURE)) == []
    assert run.tick() == [d.RecordAttempt(delivery=1, message_id="m")]
    (delivered,) = run.send(e.AttemptRecorded(delivery=1, attempt=2))
    assert isinstance(delivered, d.Deliver)
    assert delivered.seen == 1
    assert fail(run, delivered) == [d.RecordAttempt(delivery=1, message_id="m")]
    assert run.send(e.AttemptRecorded(delivery=1, attempt=3)) == [d.DeleteMessage(unit=4, delivery=1, seen=2)]


def test_j141_a_long_delay_comes_in_slices_and_counts_once() -> None:
    run = Run(handling="1:12000")
    (waits,) = run.arrive(redelivered=True)
    assert waits == d.Wait(delivery=1, pause=5 * SECOND, left=7 * SECOND)
    assert run.tick() == [d.Wait(delivery=1, pause=5 * SECOND, left=2 * SECOND)]
    assert run.tick() == [d.Wait(delivery=1, pause=2 * SECOND, left=0 * SECOND)]
    (delivered,) = run.tick()
    assert isinstance(delivered, d.Deliver)
    assert delivered.seen == 1
    assert run.now == 112.0


def test_a_delay_of_a_year_takes_no_memory_for_its_slices() -> None:
    run = Run(handling="1:31536000000")
    tracemalloc.start()
    try:
        (waits,) = run.arrive(redelivered=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert waits == d.Wait(delivery=1, pause=5 * SECOND, left=timedelta(days=365) - 5 * SECOND)
    assert peak < 1_000_000


@pytest.mark.parametrize(("milliseconds", "logged"), [(0, False), (999, False), (1000, True), (5000, True)])
def test_j147_whole_seconds_are_logged(milliseconds: int, logged: bool) -> None:
    run = Run(handling=f"1:{milliseconds}")
    decisions = run.machine.handle(run.message("m", redelivered=True), run.now)
    text = f"message 'm': redelivery 1 is delayed for {milliseconds} ms"
    assert (d.Log(level=d.LogLevel.INFO, text=text, of_delivery=True) in decisions) is logged


def test_p15_a_move_is_a_unit_of_its_own() -> None:
    """P11."""
    run = Run(handling="1:move(queue:dlq.$,topic:alarms)")
    (move,) = run.arrive("m", redelivered=True)
    assert isinstance(move, d.MoveMessage)
    assert move == d.MoveMessage(
        unit=2,
        delivery=1,
        targets=(Destination.queue("dlq.orders"), Destination.topic("alarms")),
        redirect=False,
        state=MessageState(seen=1, failure=move.state.failure),
    )
    assert run.send(e.UnitCommitted(unit=2)) == []
    assert run.machine.idle


def test_a_dead_letter_says_so_if_no_exception_is_known() -> None:
    """Its process may have died at each attempt, and so another one moves it."""
    (move,) = Run(handling="1:move(queue:dlq.$)").arrive("m", redelivered=True)
    assert isinstance(move, d.MoveMessage)
    failure = move.state.failure
    assert failure is not None
    assert (failure.class_name, failure.message[:26]) == ("", "no exception is known: the")
    letter = copy_of(JmsMessage.text("x"), ConsumedFrom(destination=Destination.queue("orders")), move.state)
    assert letter.properties["JMS_Sun_JMSJCA_ExceptionMessage"] == failure.message
    assert "JMS_Sun_JMSJCA_ExceptionClass" not in letter.properties
    read = original_of(letter)
    assert read is not None
    assert read.state.failure == failure


def test_what_nobody_subscribes_to_is_moved_without_a_reason() -> None:
    settings = replace(SETTINGS, unsubscribed=Destination.queue("others"))
    (move,) = Run(settings=settings).arrive("m", redelivered=True, unsubscribed=True)
    assert isinstance(move, d.MoveMessage)
    assert move.state.failure is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"handling": "2:move(queue:dlq)"}, "message 'm' was moved to queue://dlq after 2 deliveries"),
        (
            {"handling": "2:delete"},
            "message 'm' was deleted, as configured in redelivery_handling, after 2 deliveries",
        ),
        (
            {"settings": replace(SETTINGS, limbo=True, shelve_at=2)},
            "message 'm' was moved to limbo after 2 deliveries",
        ),
    ],
)
def test_a_move_and_a_deletion_are_logged(settings: Any, said: str) -> None:
    run = Run(**settings)
    (taken_out,) = run.arrive("m", seen=2)
    assert isinstance(taken_out, d.MoveMessage | d.DeleteMessage)
    decisions = run.machine.handle(e.UnitCommitted(unit=taken_out.unit), run.now)
    assert decisions == [d.Log(level=d.LogLevel.INFO, text=said, of_delivery=True)]


def test_j142_j167_copy_then_redirect_then_delivered_where_it_is() -> None:
    run = Run(handling="1:1000; 2:move(queue:dlq)")
    (move,) = run.arrive("m", seen=2)
    assert isinstance(move, d.MoveMessage)
    assert not move.redirect
    redirect = run.only(d.MoveMessage, e.UnitFailed(unit=move.unit, failure=FAILURE))
    assert redirect == replace(move, unit=redirect.unit, redirect=True)
    assert run.send(e.UnitFailed(unit=redirect.unit, failure=FAILURE)) == [
        d.Wait(delivery=1, pause=SECOND, left=0 * SECOND)
    ]
    (delivered,) = run.tick()
    assert isinstance(delivered, d.Deliver)
    assert delivered.seen == 2
    (again,) = fail(run, delivered)
    assert isinstance(again, d.MoveMessage)
    redirect = run.only(d.MoveMessage, e.UnitFailed(unit=again.unit, failure=FAILURE))
    # Delivered once more, it would hold up those behind it for ever.
    assert run.send(e.UnitFailed(unit=redirect.unit, failure=FAILURE)) == [d.Leave(delivery=1)]
    (behind,) = run.arrive("behind")
    assert isinstance(behind, d.Deliver)


def test_p16_a_failed_move_is_tried_again_and_then_the_message_stays() -> None:
    """It isn't handled any more, and those behind it go on."""
    run = Run(handling="1:1000; 2:move(queue:dlq)", settings=replace(SETTINGS, move_retries=2))
    (move,) = run.arrive("m", seen=2)
    for _ in range(2):
        assert isinstance(move, d.MoveMessage)
        assert not move.redirect
        redirect = run.only(d.MoveMessage, e.UnitFailed(unit=move.unit, failure=FAILURE))
        assert run.send(e.UnitFailed(unit=redirect.unit, failure=FAILURE)) == []
        before = run.now
        (move,) = run.tick()
        assert run.now == before + 1.0
    assert isinstance(move, d.MoveMessage)
    assert (move.redirect, move.less) == (False, 0), "a refusal is no lost connection: all of it is sent"
    redirect = run.only(d.MoveMessage, e.UnitFailed(unit=move.unit, failure=FAILURE))
    assert run.send(e.UnitFailed(unit=redirect.unit, failure=FAILURE)) == [d.Leave(delivery=1)]
    assert run.machine.deadline is None
    (delivered,) = run.arrive("next")
    assert isinstance(delivered, d.Deliver)
    assert delivered.delivery == 2


def test_p16_a_move_that_succeeds_in_the_end_is_a_move() -> None:
    run = Run(handling="1:move(queue:dlq)", settings=replace(SETTINGS, move_retries=5, redirect=True))
    (move,) = run.arrive("m", redelivered=True)
    assert isinstance(move, d.MoveMessage)
    assert run.send(e.UnitFailed(unit=move.unit, failure=FAILURE)) == []
    (again,) = run.tick()
    assert isinstance(again, d.MoveMessage)
    assert run.send(e.UnitCommitted(unit=again.unit)) == []
    assert run.machine.idle
    assert run.machine.in_flight == 0


def test_p16_without_retries_it_stays_at_once() -> None:
    run = Run(handling="1:move(queue:dlq)", settings=replace(SETTINGS, move_retries=0, redirect=True))
    (move,) = run.arrive("m", redelivered=True)
    assert isinstance(move, d.MoveMessage)
    assert run.send(e.UnitFailed(unit=move.unit, failure=FAILURE)) == [d.Leave(delivery=1)]
    assert run.machine.deadline is None


def test_p16_a_stop_does_not_wait_for_the_next_try() -> None:
    run = Run(handling="1:move(queue:dlq)", settings=replace(SETTINGS, move_retries=5, redirect=True))
    (move,) = run.arrive("m", redelivered=True)
    assert isinstance(move, d.MoveMessage)
    assert run.send(e.UnitFailed(unit=move.unit, failure=FAILURE)) == []
    decided = run.send(e.StopAsked(reason="told to"))
    assert [type(decision) for decision in decided] == [d.CloseConnection, d.Stopped]


@pytest.mark.parametrize("spec", [{}, {"keep_poison": True}])
def test_j142_what_can_not_be_moved_is_delivered_after_the_last_delay_before_the_move(
    spec: dict[str, Any],
) -> None:
    settings = replace(SETTINGS, redirect=True, **spec)
    run = Run(handling="1:2000; 2:3000; 3:move(queue:dlq)", settings=settings)
    (move,) = run.arrive("m", seen=3)
    assert isinstance(move, d.MoveMessage)
    assert run.send(e.UnitFailed(unit=move.unit, failure=FAILURE)) == [
        d.Wait(delivery=1, pause=3 * SECOND, left=0 * SECOND)
    ]
    (delivered,) = run.tick()
    assert isinstance(delivered, d.Deliver)


def test_i30_what_nobody_subscribes_to_stays_where_its_move_fails() -> None:
    settings = replace(SETTINGS, redirect=True, unsubscribed=Destination.queue("nobody"))
    run = Run(settings=settings)
    (move,) = run.arrive("m", unsubscribed=True)
    assert isinstance(move, d.MoveMessage)
    assert run.send(e.UnitFailed(unit=move.unit, failure=FAILURE)) == [d.Leave(delivery=1)]
    assert run.machine.deadline is None


@pytest.mark.parametrize(
    ("spec", "handling"),
    [
        ({"redirect": True}, "1:60000; 2:move(queue:dlq)"),
        ({"redirect": True, "move_retries": 3}, "1:move(queue:dlq)"),
        ({}, "1:60000; 2:delete"),
        ({"non_blocking_redelivery": True}, "1:60000"),
        ({"in_progress": True}, ""),
    ],
)
@pytest.mark.parametrize("asked", [e.StopAsked(reason="told to"), e.SuspendAsked()])
def test_w27_what_is_refused_after_a_stop_or_a_suspension_waits_for_nothing(
    spec: dict[str, Any], handling: str, asked: e.Event
) -> None:
    run = Run(handling=handling, settings=replace(SETTINGS, **spec))
    (settling,) = run.arrive("m", seen=2)
    assert isinstance(settling, d.MoveMessage | d.DeleteMessage | d.Park | d.Stage)
    assert run.send(asked) == []
    decided = run.send(e.UnitFailed(unit=settling.unit, failure=FAILURE))
    assert decided[0].__class__ in {d.CloseConnection, d.CloseConsumer}
    assert run.machine.idle
    assert run.machine.deadline is None


LESS_EACH_TIME = [(0, False), (0, False), (1, False), (2, False), (3, False), (0, True)]


@pytest.mark.parametrize("retries", [None, 0, 2])
def test_j142_p16_a_move_that_costs_the_connection_each_time_ends_as_any_other(retries: int | None) -> None:
    """With P16 the message stays, without it it is delivered once; if it comes again, it is tried again."""
    run = Run(handling="1:1000; 2:move(queue:dlq)", settings=replace(SETTINGS, move_retries=retries))

    def move_until_it_ends() -> d.Decision:
        for tries in range(7):
            (decided,) = run.arrive("m", seen=2)
            if not isinstance(decided, d.MoveMessage):
                assert tries == (6 if retries is None else retries + 1)
                return decided
            assert (decided.less, decided.redirect) == LESS_EACH_TIME[tries]
            run.send(e.UnitLost(unit=decided.unit))
            reconnect(run)
        raise AssertionError("it goes on for ever")

    for _ in range(2):
        ended = move_until_it_ends()
        if retries is None:
            assert isinstance(ended, d.Wait)
            (delivered,) = run.tick()
            assert isinstance(delivered, d.Deliver)
            (ended,) = fail(run, delivered)
        assert ended == d.Leave(delivery=run.delivery)
        (behind,) = run.arrive("behind")
        assert isinstance(behind, d.Deliver)
        run.send(e.HandlerReturned(call=behind.call))
        run.send(e.UnitCommitted(unit=behind.unit))
        reconnect(run)


def test_p16_however_often_a_move_costs_the_connection_something_is_left_to_send() -> None:
    """With nothing to send the message would be taken out, and be nowhere."""
    run = Run(handling="1:move(queue:dlq)", settings=replace(SETTINGS, move_retries=7))
    decided = []
    for _ in range(8):
        (move,) = run.arrive("m", redelivered=True)
        assert isinstance(move, d.MoveMessage)
        decided.append((move.less, move.redirect))
        run.send(e.UnitLost(unit=move.unit))
        reconnect(run)
    assert decided == [(0, False), (0, False), (1, False), (2, False), *[(3, False)] * 4]


def reconnect(run: Run) -> None:
    run.send(e.ConnectionLost(failure=FAILURE))
    run.send(e.ConnectionOpened())


def test_j94_redirect_at_once_where_asked() -> None:
    run = Run(handling="1:move(queue:dlq)", settings=replace(SETTINGS, redirect=True))
    (move,) = run.arrive(redelivered=True)
    assert isinstance(move, d.MoveMessage)
    assert move.redirect
    assert run.send(e.UnitFailed(unit=move.unit, failure=FAILURE)) == [
        d.Wait(delivery=1, pause=SECOND, left=timedelta(0))
    ]
    (delivered,) = run.tick()
    assert isinstance(delivered, d.Deliver)


def test_j142_a_failed_deletion_delivers() -> None:
    run = Run(handling="1:delete")
    (delete,) = run.arrive(redelivered=True)
    assert isinstance(delete, d.DeleteMessage)
    assert run.send(e.UnitFailed(unit=delete.unit, failure=FAILURE)) == [
        d.Wait(delivery=1, pause=SECOND, left=timedelta(0))
    ]
    (delivered,) = run.tick()
    assert isinstance(delivered, d.Deliver)


def test_non_retryable_classes_and_their_children_are_moved_at_once() -> None:
    run = Run(
        handling="50:move(queue:dlq)", settings=replace(SETTINGS, non_retryable=frozenset({"shop.Bad"}))
    )
    (delivered,) = run.arrive("m")
    assert isinstance(delivered, d.Deliver)
    (move,) = fail(run, delivered, POISON)
    assert isinstance(move, d.MoveMessage)
    assert move.targets == DLQ
    assert move.state == MessageState(seen=1, failure=POISON)


@pytest.mark.parametrize("name", ["LookupError", "builtins.LookupError"])
def test_a_built_in_non_retryable_class_needs_no_module(name: str) -> None:
    run = Run(handling="50:move(queue:dlq)", settings=replace(SETTINGS, non_retryable=frozenset({name})))
    (delivered,) = run.arrive("m")
    assert isinstance(delivered, d.Deliver)
    (move,) = fail(run, delivered, Failure.of(KeyError("k")))
    assert isinstance(move, d.MoveMessage)


def test_j171_a_move_of_the_message_alone_goes_before_that_of_all_also_for_poison() -> None:
    run = Run(
        handling="50:move(queue:dlq)", settings=replace(SETTINGS, non_retryable=frozenset({"shop.Bad"}))
    )
    delivered = run.only(d.Deliver, run.message("m"))
    run.send(e.StateSet(call=delivered.call, handling=RedeliveryHandling.parse("9:move(queue:special)")))
    (move,) = fail(run, delivered, POISON)
    assert isinstance(move, d.MoveMessage)
    assert move.targets == (Destination.queue("special"),)


def test_poison_message_error_needs_no_listing_and_dead_letter_beats_the_move() -> None:
    settings = replace(SETTINGS, dead_letter=(MoveTarget(MoveKind.SAME, "$.poison"),))
    run = Run(handling="50:move(queue:dlq)", settings=settings)
    (delivered,) = run.arrive()
    assert isinstance(delivered, d.Deliver)
    failure = Failure(class_names=("airflow_provider_jmsjca.errors.PoisonMessageError",))
    (move,) = fail(run, delivered, failure)
    assert isinstance(move, d.MoveMessage)
    assert move.targets == (Destination.queue("orders.poison"),)


def test_poison_without_a_place_to_go_is_redelivered() -> None:
    run = Run(settings=replace(SETTINGS, non_retryable=frozenset({"shop.Bad"})))
    (delivered,) = run.arrive()
    assert isinstance(delivered, d.Deliver)
    (again,) = fail(run, delivered, POISON)
    assert isinstance(again, d.Deliver)


def test_undecodable_messages_are_moved_or_kept_never_delivered() -> None:
    run = Run(handling="50:move(queue:dlq)")
    (move,) = run.arrive(undecodable=FAILURE)
    assert isinstance(move, d.MoveMessage)
    assert move.state.failure == FAILURE
    redirect = run.only(d.MoveMessage, e.UnitFailed(unit=move.unit, failure=FAILURE))
    assert run.send(e.UnitFailed(unit=redirect.unit, failure=FAILURE)) == [d.Leave(delivery=move.delivery)]
    assert run.machine.idle
    run = Run(handling="1:5")
    (left,) = run.arrive(undecodable=FAILURE)
    assert isinstance(left, d.Leave)


def test_j169_j171_what_the_handler_leaves_is_there_next_time() -> None:
    run = Run(handling="1:5")
    (delivered,) = run.arrive("m")
    assert isinstance(delivered, d.Deliver)
    handling = RedeliveryHandling.parse("2:delete")
    run.send(e.StateSet(call=delivered.call, rollback_data={"mode": "permanent"}, handling=handling))
    (again,) = fail(run, delivered)
    assert isinstance(again, d.Deliver), "its own handling has no delay at 1"
    assert again.state == MessageState(
        seen=1, rollback_data={"mode": "permanent"}, failure=FAILURE, handling=handling
    )
    assert [type(decision) for decision in fail(run, again)] == [d.DeleteMessage]


def test_j171_a_handler_may_leave_a_handling_and_nothing_else() -> None:
    run = Run(handling="1:5")
    delivered = run.only(d.Deliver, run.message("m"))
    run.send(e.StateSet(call=delivered.call, handling=RedeliveryHandling.parse("1:delete")))
    assert [type(decision) for decision in fail(run, delivered)] == [d.DeleteMessage]


def test_j172_the_handler_stops_delivery() -> None:
    run = Run()
    (delivered,) = run.arrive()
    assert isinstance(delivered, d.Deliver)
    assert run.send(e.StopAsked(reason="no stock")) == []
    assert run.machine.state == "Disconnecting"
    assert run.arrive() == []
    assert run.send(e.HandlerReturned(call=delivered.call)) == [
        d.CommitUnit(unit=delivered.unit, acknowledge=(1,))
    ]
    assert run.send(e.UnitCommitted(unit=delivered.unit)) == [
        d.CloseConnection(clean=True),
        d.Stopped(reason="no stock"),
    ]
    assert run.machine.state == "Down"
    assert run.machine.deadline is None
    assert run.send(e.Start()) == [d.Connect()]


def test_parking_hands_a_long_delay_to_the_broker() -> None:
    run = Run(handling="1:5000; 2:6000", settings=replace(SETTINGS, non_blocking_redelivery=True))
    (waits,) = run.arrive("m", redelivered=True)
    assert isinstance(waits, d.Wait), "five seconds are held"
    (delivered,) = run.tick()
    assert isinstance(delivered, d.Deliver)
    (park,) = fail(run, delivered)
    assert park == d.Park(unit=park.unit, delivery=1, pause=6 * SECOND, seen=2)
    assert run.send(e.UnitCommitted(unit=park.unit)) == []
    (back,) = run.arrive("m", parked=2)
    assert isinstance(back, d.Deliver), "its delay has been served"
    assert back.seen == 2
    assert back.state.failure == FAILURE
    assert [type(decision) for decision in fail(run, back)] == [d.Park]


def test_parking_holds_a_message_of_a_group_and_one_that_could_not_be_parked() -> None:
    run = Run(handling="1:6000", settings=replace(SETTINGS, non_blocking_redelivery=True))
    (waits,) = run.arrive(redelivered=True, group="g")
    assert waits == d.Wait(delivery=1, pause=5 * SECOND, left=SECOND)
    run = Run(handling="1:6000", settings=replace(SETTINGS, non_blocking_redelivery=True))
    (park,) = run.arrive(redelivered=True)
    assert isinstance(park, d.Park)
    assert run.send(e.UnitFailed(unit=park.unit, failure=FAILURE)) == [
        d.Wait(delivery=1, pause=5 * SECOND, left=SECOND)
    ]


def test_parking_holds_what_comes_in_batches() -> None:
    run = Run(handling="1:6000", settings=replace(SETTINGS, non_blocking_redelivery=True, batch_size=2))
    (waits,) = run.arrive(redelivered=True)
    assert waits == d.Wait(delivery=1, pause=5 * SECOND, left=SECOND)


def test_parking_holds_what_comes_from_a_topic() -> None:
    """A copy would reach every other subscriber."""
    settings = replace(SETTINGS, further=(Destination.topic("news"),), non_blocking_redelivery=True)
    run = Run(handling="1:6000", settings=settings)
    (waits,) = run.arrive(redelivered=True, source=1)
    assert waits == d.Wait(delivery=1, pause=5 * SECOND, left=SECOND)
    run = Run(handling="1:6000", settings=settings)
    (park,) = run.arrive(redelivered=True, source=0)
    assert isinstance(park, d.Park), "each by where it came from"


def test_a_parked_message_that_comes_back_to_a_new_process_keeps_its_count() -> None:
    run = Run(handling="8:delete")
    (delivered,) = run.arrive("m", parked=6)
    assert isinstance(delivered, d.Deliver)
    assert delivered.seen == 6
    (delivered,) = fail(run, delivered)
    assert isinstance(delivered, d.Deliver)
    assert delivered.seen == 7
    assert [type(decision) for decision in fail(run, delivered)] == [d.DeleteMessage]


def test_a_refused_commit_is_a_failure_of_the_message() -> None:
    run = Run(handling="1:25")
    (delivered,) = run.arrive()
    assert isinstance(delivered, d.Deliver)
    run.send(e.HandlerReturned(call=delivered.call))
    assert run.send(e.UnitFailed(unit=delivered.unit, failure=FAILURE)) == [
        d.Wait(delivery=1, pause=timedelta(milliseconds=25), left=0 * SECOND)
    ]
    (again,) = run.tick()
    assert isinstance(again, d.Deliver)
    assert again.state.failure == FAILURE


def test_a_message_without_id_is_counted_while_in_hand() -> None:
    run = Run(handling="2:delete")
    nameless = e.MessageArrived(delivery=1, message_id=None)
    decisions = run.machine.handle(nameless, run.now)
    assert [type(decision) for decision in decisions] == [d.Log, d.Deliver]
    delivered = decisions[1]
    assert isinstance(delivered, d.Deliver)
    (again,) = fail(run, delivered)
    assert isinstance(again, d.Deliver)
    assert again.seen == 1
    assert [type(decision) for decision in fail(run, again)] == [d.DeleteMessage]


def test_an_attempt_that_was_stored_and_broken_off_is_taken_back() -> None:
    run = Run(handling="1:60000; 3:delete", settings=replace(SETTINGS, record_attempts=True))
    for number in range(1, 4):
        run.arrive("m", redelivered=True)
        (waits,) = run.send(e.AttemptRecorded(delivery=run.delivery, attempt=2))
        assert isinstance(waits, d.Wait)
        reconnect(run)
        assert run.taken_back == [("m", 0)] * number


def test_an_attempt_that_is_stored_too_late_is_taken_back() -> None:
    run = Run(settings=replace(SETTINGS, record_attempts=True))
    run.arrive("m")
    reconnect(run)
    assert run.taken_back == []
    assert run.send(e.AttemptRecorded(delivery=run.delivery, attempt=1)) == []
    assert run.taken_back == [("m", 0)]


def test_an_attempt_that_was_made_is_not_taken_back() -> None:
    run = Run(settings=replace(SETTINGS, record_attempts=True))
    run.arrive("m")
    (delivered,) = run.send(e.AttemptRecorded(delivery=run.delivery, attempt=1))
    assert isinstance(delivered, d.Deliver)
    reconnect(run)
    run.send(e.HandlerReturned(call=delivered.call))
    assert run.taken_back == []


def test_a_parked_message_was_not_attempted() -> None:
    run = Run(
        handling="1:60000", settings=replace(SETTINGS, record_attempts=True, non_blocking_redelivery=True)
    )
    run.arrive("m", redelivered=True)
    (park,) = run.send(e.AttemptRecorded(delivery=run.delivery, attempt=2))
    assert isinstance(park, d.Park)
    run.send(e.UnitCommitted(unit=park.unit))
    assert run.taken_back == [("m", 0)]


@pytest.mark.parametrize("left_alone", [False, True])
def test_a_message_that_could_not_be_parked_any_more_was_not_attempted(left_alone: bool) -> None:
    """Its connection was lost, or a stop didn't wait for the broker's answer."""
    run = Run(handling="1:60000; 2:delete", settings=replace(SETTINGS, non_blocking_redelivery=True))
    park = run.only(d.Park, run.message("m", redelivered=True))
    if left_alone:
        run.send(e.StopAsked(reason="enough"))
        assert d.Stopped(reason="enough") in run.tick()
        run.send(e.Start())
        run.send(e.ConnectionOpened())
    else:
        run.send(e.UnitLost(unit=park.unit))
        reconnect(run)
    assert run.only(d.Park, run.message("m", redelivered=True)).seen == 1


def test_a_message_that_was_handled_is_settled_and_not_delivered() -> None:
    run = Run(settings=replace(SETTINGS, record_attempts=True))
    run.arrive("m", redelivered=True)
    (delete,) = run.send(e.FoundHandled(delivery=run.delivery))
    assert delete == d.DeleteMessage(unit=2, delivery=1, seen=0, repeated=True)
    assert run.send(e.UnitCommitted(unit=2)) == []
    assert run.machine.idle
    assert run.machine.in_flight == 0


def test_only_hand_overs_count_however_often_a_message_goes_back() -> None:
    run = Run(handling="1:60000; 2:delete")
    (delivered,) = run.arrive("m")
    assert isinstance(delivered, d.Deliver)
    for number in range(2, 8):
        reconnect(run)
        if number == 2:
            run.send(e.HandlerReturned(call=delivered.call))
        (waits,) = run.arrive("m", redelivered=True)
        assert isinstance(waits, d.Wait)
    decided = run.tick()
    while not (found := [each for each in decided if isinstance(each, d.Deliver)]):
        decided = run.tick()
    assert [each.seen for each in found] == [1]


def test_a_message_that_only_waited_behind_another_is_new_when_it_comes_again() -> None:
    run = Run(handling="1:delete")
    (first,) = run.arrive("a")
    assert isinstance(first, d.Deliver)
    assert run.arrive("b") == []
    reconnect(run)
    run.send(e.HandlerReturned(call=first.call))
    (b,) = run.arrive("b", redelivered=True)
    assert isinstance(b, d.Deliver)
    assert b.seen == 0


def test_what_comes_while_it_stops_is_no_attempt_for_the_next_run() -> None:
    run = Run(handling="2:delete")
    for _ in range(5):
        (delivered,) = run.arrive("busy")
        assert isinstance(delivered, d.Deliver)
        assert run.send(e.StopAsked(reason="told to")) == []
        assert run.arrive("m", redelivered=run.delivery > 2) == []
        run.send(e.HandlerReturned(call=delivered.call))
        run.send(e.UnitCommitted(unit=delivered.unit))
        run.send(e.Start())
        run.send(e.ConnectionOpened())
        run.send(e.ConsumerOpened())
    (delivered,) = run.arrive("m", redelivered=True)
    assert isinstance(delivered, d.Deliver)
    assert delivered.seen == 0


def test_a_handler_that_could_not_be_called_and_is_called_then_fails_like_any_other() -> None:
    run = Run()
    first = run.only(d.Deliver, run.message())
    _, second = run.send(e.HandlerNotCalled(call=first.call))
    assert isinstance(second, d.Deliver)
    _, third = run.send(e.HandlerRaised(call=second.call, failure=FAILURE))
    assert isinstance(third, d.Deliver)
    assert [each.seen for each in (first, second, third)] == [0, 0, 1]


def test_a_delay_is_served_once_also_if_the_handler_could_not_be_called_after_it() -> None:
    run = Run(handling="1:5000")
    run.only(d.Wait, run.message(redelivered=True))
    (first,) = run.tick()
    assert isinstance(first, d.Deliver)
    assert [type(each) for each in run.send(e.HandlerNotCalled(call=first.call))] == [
        d.RollBackUnit,
        d.Deliver,
    ]


def test_the_end_of_a_batch_fails_for_those_only_that_were_handed_over() -> None:
    """One whose handler could not be called any more is new when it comes again."""
    run = Run(handling="1:delete", settings=replace(SETTINGS, batch_size=2))
    (a,) = run.arrive("a")
    assert isinstance(a, d.Deliver)
    run.send(e.HandlerReturned(call=a.call))
    (b,) = run.arrive("b")
    assert isinstance(b, d.Deliver)
    run.send(e.ConnectionLost())
    (end,) = run.send(e.HandlerNotCalled(call=b.call))
    assert isinstance(end, d.DeliverEndOfBatch)
    run.send(e.HandlerRaised(call=end.call, failure=FAILURE))
    run.tick()
    run.send(e.ConnectionOpened())
    (again,) = run.arrive("b", redelivered=True)
    assert isinstance(again, d.Deliver)
    assert (again.seen, again.state.failure) == (0, None)


LIMBO = replace(SETTINGS, limbo=True)


@pytest.mark.parametrize("retries", [None, 0, 2])
def test_p16_with_limbo_a_failed_move_goes_there_at_once(retries: int | None) -> None:
    run = Run(handling="1:move(queue:dlq)", settings=replace(LIMBO, move_retries=retries))
    (move,) = run.arrive("m", redelivered=True)
    assert isinstance(move, d.MoveMessage)
    redirect = run.only(d.MoveMessage, e.UnitFailed(unit=move.unit, failure=FAILURE))
    assert (redirect.redirect, redirect.to_limbo) == (True, False)
    shelved = run.only(d.MoveMessage, e.UnitFailed(unit=redirect.unit, failure=FAILURE))
    assert (shelved.redirect, shelved.to_limbo, shelved.targets) == (False, True, move.targets)
    said = "message 'm' was moved to limbo, to be sent to queue://dlq later, after 1 delivery"
    assert run.machine.handle(e.UnitCommitted(unit=shelved.unit), run.now) == [
        d.Log(level=d.LogLevel.INFO, text=said, of_delivery=True)
    ]
    assert run.machine.idle


def test_p16_a_move_that_costs_the_connection_each_time_ends_in_limbo() -> None:
    run = Run(handling="1:move(queue:dlq)", settings=replace(LIMBO, move_retries=1))
    for _ in range(10):
        (move,) = run.arrive("m", redelivered=True)
        assert isinstance(move, d.MoveMessage)
        if move.to_limbo:
            break
        run.send(e.UnitLost(unit=move.unit))
        reconnect(run)
    assert (move.to_limbo, move.less, move.redirect) == (True, 0, False)


def test_the_log_says_where_a_message_is_whose_move_failed() -> None:
    """In limbo, or where it was: that is where somebody looks for it."""

    def said(settings: DeliverySettings, failures: int) -> str:
        run = Run(handling="1:move(queue:dlq)", settings=replace(settings, redirect=True))
        (move,) = run.arrive("m", redelivered=True)
        for _ in range(failures):
            assert isinstance(move, d.MoveMessage)
            decided = run.machine.handle(e.UnitFailed(unit=move.unit, failure=FAILURE), run.now)
            log = next(each for each in decided if isinstance(each, d.Log))
            move = next((each for each in decided if isinstance(each, d.MoveMessage)), move)
        return log.text

    assert said(SETTINGS, 1).endswith("move failed (no more); it stays on the queue")
    assert said(LIMBO, 1).endswith("move failed (no more); putting it in limbo")
    assert said(LIMBO, 2).endswith("move failed (no more); it stays on the queue")


def test_what_can_not_be_put_in_limbo_waits_for_it() -> None:
    """The store is away; it is tried again each second, and nothing is handed over."""
    run = Run(settings=LIMBO)
    (shelved,) = run.arrive("m", unsubscribed=True)
    for _ in range(3):
        assert isinstance(shelved, d.MoveMessage)
        assert (shelved.targets, shelved.to_limbo) == ((), True)
        assert run.send(e.UnitFailed(unit=shelved.unit, failure=FAILURE)) == []
        (shelved,) = run.tick()


def test_i28_with_limbo_poison_that_nothing_says_where_to_put_goes_there() -> None:
    run = Run(settings=replace(LIMBO, keep_poison=True))
    (shelved,) = run.arrive("m", undecodable=FAILURE)
    assert isinstance(shelved, d.MoveMessage)
    assert (shelved.targets, shelved.to_limbo) == ((), True)
    assert shelved.state.failure == FAILURE
    # Nothing of it can be read, so nothing can be put there.
    assert run.send(e.UnitFailed(unit=shelved.unit, failure=FAILURE)) == [d.Leave(delivery=1)]


def test_p15_after_its_attempts_a_message_without_a_destination_goes_to_limbo() -> None:
    run = Run(settings=replace(LIMBO, shelve_at=2))
    (delivered,) = run.arrive("m")
    assert isinstance(delivered, d.Deliver)
    again = fail(run, delivered)
    assert isinstance(again[0], d.Deliver)
    (shelved,) = fail(run, again[0])
    assert isinstance(shelved, d.MoveMessage)
    assert (shelved.targets, shelved.to_limbo) == ((), True)


def test_p15_a_message_that_had_more_than_its_attempts_elsewhere_goes_to_limbo() -> None:
    """It was parked by another process, under rules that allowed more of them."""
    (shelved,) = Run(settings=replace(LIMBO, shelve_at=2)).arrive("m", parked=8)
    assert isinstance(shelved, d.MoveMessage)
    assert (shelved.targets, shelved.to_limbo) == ((), True)


@pytest.mark.parametrize("arrival", [{"undecodable": FAILURE}, {"unsubscribed": True}])
def test_i28_i30_discard_is_a_deletion(arrival: dict[str, Any]) -> None:
    both = replace(LIMBO, discard_poison=True, discard_unsubscribed=True)
    (deleted,) = Run(settings=both).arrive("m", **arrival)
    assert isinstance(deleted, d.DeleteMessage)
    assert not deleted.repeated
