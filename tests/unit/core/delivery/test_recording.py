"""What the store answers about an attempt, and what the log says of a message."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_provider_jmsjca.core.delivery import decisions as d
from airflow_provider_jmsjca.core.delivery import events as e
from tests.unit.core.delivery.harness import FAILURE, SETTINGS, Run

RECORDING = replace(SETTINGS, record_attempts=True)


def logs(run: Run, event: e.Event) -> list[tuple[d.LogLevel, str]]:
    decided = run.machine.handle(event, run.now)
    return [(each.level, each.text) for each in decided if isinstance(each, d.Log)]


@pytest.mark.parametrize("in_doubt", [True, False])
def test_an_attempt_before_with_an_unknown_outcome_is_told(in_doubt: bool) -> None:
    run = Run(settings=RECORDING)
    assert run.arrive("ID:a") == [d.RecordAttempt(delivery=1, message_id="ID:a")]
    delivered = run.only(d.Deliver, e.AttemptRecorded(delivery=1, attempt=1, in_doubt=in_doubt))
    assert delivered.in_doubt is in_doubt


def test_a_first_attempt_takes_no_place_among_the_counts() -> None:
    """J132: as many as are remembered have come again."""
    run = Run(settings=RECORDING)
    run.arrive("ID:a")
    run.only(d.Deliver, e.AttemptRecorded(delivery=1, attempt=1))
    assert len(run.tracker.states) == 0


def test_the_stored_count_goes_before_the_flag_of_the_broker() -> None:
    run = Run(settings=RECORDING)
    run.arrive("ID:a", redelivered=True)
    delivered = run.only(d.Deliver, e.AttemptRecorded(delivery=1, attempt=1))
    assert (delivered.seen, delivered.state.seen) == (0, 0)


def test_each_answer_is_about_its_own_message() -> None:
    run = Run(settings=replace(RECORDING, concurrency=2))
    run.arrive("ID:a")
    run.arrive("ID:b")
    for delivery in (2, 1):
        delivered = run.only(d.Deliver, e.AttemptRecorded(delivery=delivery, attempt=1))
        assert delivered.delivery == delivery


def test_an_attempt_that_is_broken_off_while_it_is_stored_is_taken_back_once() -> None:
    run = Run(settings=RECORDING)
    run.arrive("ID:a")
    assert run.send(e.SuspendAsked()) == []
    assert run.send(e.AttemptRecorded(delivery=1, attempt=1)) == [d.CloseConsumer()]
    assert run.taken_back == [("ID:a", 0)]


def test_a_stop_is_not_clean_if_a_message_waits_that_was_attempted_in_an_earlier_run() -> None:
    run = Run(handling="1:5000", settings=RECORDING)
    run.arrive("ID:a")
    run.only(d.Wait, e.AttemptRecorded(delivery=1, attempt=2))
    assert run.send(e.StopAsked(reason="enough"))[0] == d.CloseConnection(clean=False)


def test_what_was_found_in_doubt_goes_to_limbo() -> None:
    run = Run(settings=replace(RECORDING, limbo=True))
    run.arrive("ID:a")
    moved = run.only(d.MoveMessage, e.FoundInDoubt(delivery=1, attempt=1))
    assert (moved.delivery, moved.targets, moved.to_limbo) == (1, (), True)


def test_what_was_handled_before_is_settled() -> None:
    run = Run(settings=RECORDING)
    run.arrive("ID:a")
    deleted = run.only(d.DeleteMessage, e.FoundHandled(delivery=1))
    assert (deleted.delivery, deleted.repeated) == (1, True)


def test_an_answer_that_nobody_waits_for_is_nothing() -> None:
    run = Run(settings=RECORDING)
    for answer in (
        e.FoundHandled(delivery=99),
        e.FoundInDoubt(delivery=99, attempt=1),
        e.AttemptRecorded(delivery=99, attempt=1),
        e.AttemptNotRecorded(delivery=99, failure=FAILURE),
    ):
        assert run.machine.handle(answer, run.now) == []


def test_a_unit_is_open_until_its_handler_has_returned() -> None:
    run = Run()
    delivered = run.only(d.Deliver, run.message())
    assert run.machine.is_open(delivered.unit) is True
    assert run.machine.is_open(delivered.unit + 1) is False
    run.send(e.HandlerReturned(call=delivered.call))
    assert run.machine.is_open(delivered.unit) is False


def test_a_missing_message_id_is_said_once() -> None:
    run = Run(settings=replace(SETTINGS, concurrency=3))
    assert logs(run, run.message("ID:a")) == []
    without = [replace(run.message(), message_id=None) for _ in range(2)]
    ((level, _),) = logs(run, without[0])
    assert level is d.LogLevel.WARNING
    assert logs(run, without[1]) == []


@pytest.mark.parametrize(("seen", "times"), [(1, "1 delivery"), (2, "2 deliveries")])
def test_the_log_says_how_often_a_message_was_delivered_before_it_went(seen: int, times: str) -> None:
    run = Run(handling=f"{seen}:move(queue:dlq)", settings=RECORDING)
    run.arrive("ID:a", redelivered=True)
    moved = run.only(d.MoveMessage, e.AttemptRecorded(delivery=1, attempt=seen + 1))
    ((level, text),) = logs(run, e.UnitCommitted(unit=moved.unit))
    assert level is d.LogLevel.INFO
    assert text == f"message 'ID:a' was moved to queue://dlq after {times}"


def test_the_log_says_which_time_a_unit_of_work_exceeded() -> None:
    run = Run(settings=replace(SETTINGS, transaction_timeout=timedelta(seconds=30)))
    run.arrive()
    run.now += 30
    assert logs(run, e.Tick()) == [
        (
            d.LogLevel.WARNING,
            "a unit of work of 1 message(s) took longer than transaction_timeout (30 s); rolling it back",
        )
    ]


def test_the_log_names_each_message_of_a_unit_that_could_not_be_committed() -> None:
    run = Run(settings=replace(SETTINGS, batch_size=2))
    first = run.only(d.Deliver, run.message("ID:a"))
    run.arrive("ID:b")
    second = run.only(d.Deliver, e.HandlerReturned(call=first.call))
    end = run.only(d.DeliverEndOfBatch, e.HandlerReturned(call=second.call))
    run.send(e.HandlerReturned(call=end.call))
    why = "its unit of work could not be committed (no more); redelivering it"
    assert logs(run, e.UnitFailed(unit=first.unit, failure=FAILURE)) == [
        (d.LogLevel.WARNING, f"message 'ID:a': {why}"),
        (d.LogLevel.WARNING, f"message 'ID:b': {why}"),
    ]


def test_a_parked_count_survives_a_refused_deletion_of_what_was_handled() -> None:
    """The deletion is refused, and the message delivered, before its count was ever used."""
    run = Run(handling="1:0", settings=RECORDING)
    run.only(d.RecordAttempt, run.message("m", parked=2))
    delete = run.only(d.DeleteMessage, e.FoundHandled(delivery=1))
    deliver = run.only(d.Deliver, e.UnitFailed(unit=delete.unit, failure=FAILURE))
    run.send(e.HandlerRaised(call=deliver.call, failure=FAILURE))
    assert run.tracker.state("m").seen == 2
