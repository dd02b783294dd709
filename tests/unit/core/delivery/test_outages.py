"""Connections that come and go, suspension, stop: J12, J13, J119, J122, J198, W15, W24-W27."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_provider_jmsjca.core.backoff import RECONNECT
from airflow_provider_jmsjca.core.delivery import decisions as d
from airflow_provider_jmsjca.core.delivery import events as e
from airflow_provider_jmsjca.core.delivery.machine import DeliveryMachine
from airflow_provider_jmsjca.core.delivery.outage import Outage
from airflow_provider_jmsjca.core.delivery.settings import DeliverySettings, OutageSettings
from airflow_provider_jmsjca.core.redelivery import RedeliveryTracker
from tests.unit.core.delivery.harness import FAILURE, SECOND, SETTINGS, Run

OUTAGE = OutageSettings(backoff=replace(RECONNECT, jitter=0.0))


def new_machine(settings: DeliverySettings) -> DeliveryMachine:
    return DeliveryMachine(settings, RedeliveryTracker(), lambda: 0.5)


def test_j12_j122_connects_in_the_background_with_growing_pauses() -> None:
    machine = new_machine(replace(SETTINGS, outage=OUTAGE))
    assert machine.handle(e.Start(), 0.0) == [d.Connect()]
    assert machine.state == "Connecting"
    now, pauses = 0.0, []
    for _ in range(7):
        machine.handle(e.ConnectFailed(failure=FAILURE), now)
        assert machine.state == "Connecting"
        assert machine.deadline is not None
        pauses.append(machine.deadline - now)
        now = machine.deadline
        assert machine.handle(e.Tick(), now) == [d.Connect()]
    assert pauses == [1, 2, 5, 5, 10, 10, 10]
    assert machine.handle(e.ConnectionOpened(), now) == [d.OpenConsumer()]
    assert machine.state == "Connecting"  # nothing is subscribed yet
    machine.handle(e.ConsumerOpened(), now)
    assert machine.state == "Up"


def test_jitter_shortens_the_pauses() -> None:
    machine = new_machine(replace(SETTINGS, outage=OutageSettings(backoff=replace(RECONNECT, jitter=0.4))))
    machine.handle(e.Start(), 0.0)
    machine.handle(e.ConnectFailed(failure=FAILURE), 0.0)
    assert machine.deadline == pytest.approx(0.8)


def test_j204_w31_standing_by_is_said_once_and_is_no_warning() -> None:
    machine = new_machine(replace(SETTINGS, outage=OUTAGE))
    machine.handle(e.Start(), 0.0)
    said: list[d.Log] = []
    now = 0.0
    for failed in (
        e.ConnectFailed(failure=FAILURE, standby=True),
        e.ConnectFailed(failure=FAILURE, standby=True),
        e.ConnectFailed(failure=FAILURE),
        e.ConnectFailed(failure=FAILURE, standby=True),
    ):
        said += [one for one in machine.handle(failed, now) if isinstance(one, d.Log)]
        assert machine.state == "Connecting"
        assert machine.deadline is not None
        now = machine.deadline
        assert machine.handle(e.Tick(), now) == [d.Connect()]
    standby = "no more; standing by, and trying again until it is free"
    assert [(one.level, one.text) for one in said] == [
        (d.LogLevel.INFO, standby),
        (d.LogLevel.WARNING, "no more; connecting again in 5.0 s"),
        (d.LogLevel.INFO, standby),
    ]
    machine.handle(e.ConnectionOpened(), now)
    refused = machine.handle(e.ConnectFailed(failure=FAILURE, standby=True), now)
    assert refused == [d.CloseConnection()], "it has its connection, and still stands by"
    machine.handle(e.Tick(), now + 60)
    machine.handle(e.ConnectionOpened(), now + 60)
    machine.handle(e.ConsumerOpened(), now + 60)
    _, again = machine.handle(e.ConnectFailed(failure=FAILURE, standby=True), now + 60)
    assert isinstance(again, d.Log), "a new wait is said anew"


def test_a_connection_whose_consumer_is_refused_is_closed() -> None:
    """Another is opened for the next try."""
    run = Run()
    assert run.send(e.ConnectFailed(failure=FAILURE)) == [d.CloseConnection()]
    assert run.machine.state == "Connecting"
    assert run.tick() == [d.Connect()]
    assert run.send(e.ConnectFailed(failure=FAILURE)) == [], "there was none"


def test_a_refusal_stops_the_activation() -> None:
    machine = new_machine(SETTINGS)
    machine.handle(e.Start(), 0.0)
    decisions = machine.handle(e.ConnectFailed(failure=FAILURE, permanent=True), 0.0)
    assert decisions[-1] == d.Stopped(reason="the broker refuses: no more")
    assert machine.deadline is None


def test_j13_what_was_in_hand_is_left_to_the_broker() -> None:
    run = Run()
    (first,) = run.arrive("a")
    assert isinstance(first, d.Deliver)
    run.arrive("b")
    assert run.machine.in_flight == 2
    assert run.send(e.ConnectionLost()) == []
    assert run.machine.in_flight == 0
    assert run.tick() == [d.Connect()]
    assert run.send(e.ConnectionOpened()) == [d.OpenConsumer()]
    assert run.arrive("a", redelivered=True) == [], "its old call still runs"
    rolled_back, again = run.send(e.HandlerReturned(call=first.call))
    assert rolled_back == d.RollBackUnit(unit=first.unit)
    assert isinstance(again, d.Deliver)
    assert (again.delivery, again.seen) == (3, 1)


def test_what_comes_back_waits_for_its_old_call_also_where_there_is_room() -> None:
    run = Run(settings=replace(SETTINGS, concurrency=2))
    first = run.only(d.Deliver, run.message("a"))
    run.send(e.ConnectionLost())
    run.tick()
    run.send(e.ConnectionOpened())
    assert run.arrive("a", redelivered=True) == []
    other = run.only(d.Deliver, run.message("b"))
    assert run.send(e.HandlerReturned(call=other.call)) == [d.CommitUnit(unit=other.unit, acknowledge=(3,))]
    rolled_back, again = run.send(e.HandlerReturned(call=first.call))
    assert rolled_back == d.RollBackUnit(unit=first.unit)
    assert isinstance(again, d.Deliver)
    assert (again.delivery, again.seen) == (2, 1)


@pytest.mark.parametrize("outcome", [e.UnitLost, e.UnitInDoubt])
def test_what_went_down_with_its_unit_counts_even_where_the_broker_flags_nothing(
    outcome: type[e.UnitLost | e.UnitInDoubt],
) -> None:
    """J129: a commit was under way, and the loss is heard of only afterwards."""
    run = Run()
    first = run.only(d.Deliver, run.message("a"))
    run.send(e.HandlerReturned(call=first.call))
    assert run.send(outcome(unit=first.unit)) == []
    run.send(e.ConnectionLost())
    run.tick()
    run.send(e.ConnectionOpened())
    again = run.only(d.Deliver, run.message("a"))
    assert (again.seen, again.in_doubt) == (1, outcome is e.UnitInDoubt)


@pytest.mark.parametrize("handling", ["1:move(queue:dlq)", "1:delete", "1:6000"])
def test_what_is_refused_after_the_loss_is_left_to_the_broker(handling: str) -> None:
    """J13: no cascade, no delay, no delivery of a message that is no longer in hand."""
    run = Run(handling=handling, settings=replace(SETTINGS, non_blocking_redelivery=True))
    (under_way,) = run.arrive("a", redelivered=True)
    assert isinstance(under_way, d.MoveMessage | d.DeleteMessage | d.Park)
    run.send(e.ConnectionLost())
    assert run.send(e.UnitFailed(unit=under_way.unit, failure=FAILURE)) == []
    assert (run.machine.idle, run.machine.in_flight) == (True, 0)


def test_an_unknown_outcome_is_told_when_the_message_comes_back() -> None:
    run = Run()
    (first,) = run.arrive("a")
    assert isinstance(first, d.Deliver)
    run.send(e.HandlerReturned(call=first.call))
    run.send(e.UnitInDoubt(unit=first.unit))
    run.send(e.ConnectionLost())
    run.tick()
    run.send(e.ConnectionOpened())
    (again,) = run.arrive("a")
    assert isinstance(again, d.Deliver)
    assert again.in_doubt
    run.send(e.HandlerReturned(call=again.call))
    run.send(e.UnitCommitted(unit=again.unit))
    (other,) = run.arrive("b")
    assert isinstance(other, d.Deliver)
    assert not other.in_doubt


def test_a_commit_that_was_done_when_the_connection_went_counts() -> None:
    run = Run()
    (first,) = run.arrive("a")
    assert isinstance(first, d.Deliver)
    run.send(e.HandlerReturned(call=first.call))
    run.send(e.ConnectionLost())
    assert run.send(e.UnitCommitted(unit=first.unit)) == []
    assert run.machine.idle
    assert "a" not in run.tracker.states


def test_w24_w26_suspensions_repeat_up_to_their_total_and_then_pauses_grow() -> None:
    """W25: each as long as said, the last one cut short."""
    outage = replace(OUTAGE, init_suspend=20 * SECOND, max_suspend=50 * SECOND)
    run = Run(settings=replace(SETTINGS, outage=outage))
    run.send(e.ConnectionLost())
    pauses, states = [], []
    for _ in range(5):
        states.append(str(run.machine.state))
        assert run.machine.deadline is not None
        pauses.append(run.machine.deadline - run.now)
        assert run.tick() == [d.Connect()]
        run.send(e.ConnectFailed(failure=FAILURE))
    assert pauses == [20, 20, 10, 1, 2]
    assert states == ["Down", "Down", "Down", "Connecting", "Connecting"]


def test_w26_equal_settings_suspend_once_and_zero_never() -> None:
    outage = replace(OUTAGE, init_suspend=60 * SECOND, max_suspend=60 * SECOND)
    run = Run(settings=replace(SETTINGS, outage=outage))
    run.send(e.ConnectionLost())
    assert run.machine.deadline == run.now + 60
    outage = replace(OUTAGE, init_suspend=60 * SECOND, max_suspend=timedelta(0))
    run = Run(settings=replace(SETTINGS, outage=outage))
    run.send(e.ConnectionLost())
    assert run.machine.deadline == run.now + 1


def test_w27_suspend_finishes_what_is_handled_and_gives_the_rest_back() -> None:
    run = Run()
    (first,) = run.arrive()
    assert isinstance(first, d.Deliver)
    run.arrive()
    assert run.send(e.SuspendAsked()) == []
    run.send(e.HandlerReturned(call=first.call))
    assert run.send(e.UnitCommitted(unit=first.unit)) == [d.CloseConsumer()]
    assert run.machine.in_flight == 0
    assert run.machine.state == "Up"
    assert run.send(e.ResumeAsked()) == [d.OpenConsumer()]


def test_w27_suspend_before_the_connection_is_up() -> None:
    machine = new_machine(SETTINGS)
    machine.handle(e.Start(), 0.0)
    machine.handle(e.SuspendAsked(), 0.0)
    assert machine.handle(e.ConnectionOpened(), 0.0) == []
    assert machine.handle(e.ResumeAsked(), 0.0) == [d.OpenConsumer()]


def test_stop_interrupts_a_delay_at_once() -> None:
    run = Run(handling="1:5000")
    run.arrive(redelivered=True)
    assert run.send(e.StopAsked(reason="enough")) == [d.CloseConnection(), d.Stopped(reason="enough")]


def test_stop_interrupts_connecting() -> None:
    machine = new_machine(SETTINGS)
    machine.handle(e.Start(), 0.0)
    assert machine.handle(e.StopAsked(reason="enough"), 0.0)[1:] == [
        d.CloseConnection(),
        d.Stopped(reason="enough"),
    ]
    assert machine.handle(e.ConnectionOpened(), 1.0) == [d.CloseConnection()]


def test_stop_ends_an_open_batch_in_good_order() -> None:
    run = Run(settings=replace(SETTINGS, batch_size=10))
    (first,) = run.arrive()
    assert isinstance(first, d.Deliver)
    run.send(e.HandlerReturned(call=first.call))
    end = run.only(d.DeliverEndOfBatch, e.StopAsked(reason="enough"))
    assert run.send(e.HandlerReturned(call=end.call)) == [d.CommitUnit(unit=first.unit, acknowledge=(1,))]


def test_stop_leaves_a_handler_alone_after_its_deadline() -> None:
    run = Run()
    (first,) = run.arrive()
    assert isinstance(first, d.Deliver)
    assert run.send(e.StopAsked(reason="enough", within=7 * SECOND)) == []
    start = run.now
    assert run.tick() == [
        d.RollBackUnit(unit=first.unit),
        d.CloseConnection(),
        d.Stopped(reason="enough"),
    ]
    assert run.now == start + 7
    assert run.send(e.HandlerReturned(call=first.call)) == []


def test_a_stop_that_does_not_wait_rolls_back_nothing_that_is_being_committed() -> None:
    """Its outcome is the broker's to say."""
    run = Run(settings=replace(SETTINGS, concurrency=2))
    committing, running = run.only(d.Deliver, run.message()), run.only(d.Deliver, run.message())
    run.send(e.HandlerReturned(call=committing.call))
    assert run.send(e.StopAsked(reason="enough", within=SECOND)) == []
    assert run.tick() == [
        d.RollBackUnit(unit=running.unit),
        d.CloseConnection(),
        d.Stopped(reason="enough"),
    ]
    assert run.send(e.UnitCommitted(unit=committing.unit)) == []


def test_init_suspend_is_needed_with_max_suspend() -> None:
    with pytest.raises(ValueError, match="init_suspend is 0; expected more"):
        replace(SETTINGS, outage=replace(OUTAGE, max_suspend=SECOND))


def test_minimal_logging_says_it_once_as_an_error_j108() -> None:
    for minimal, expected in (
        (True, [d.LogLevel.ERROR, d.LogLevel.DEBUG, d.LogLevel.DEBUG]),
        (False, [d.LogLevel.WARNING] * 3),
    ):
        outage = Outage(OutageSettings(minimal_logging=minimal))
        assert [outage.level() for _ in range(3)] == expected
        outage.over()
        assert outage.level() is expected[0]


def test_pauses_grow_while_connections_open_and_consumers_are_refused() -> None:
    """J122: an outage is over when messages can come again, not before."""
    machine = new_machine(replace(SETTINGS, outage=OUTAGE))
    machine.handle(e.Start(), 0.0)
    now, pauses = 0.0, []
    for _ in range(4):
        assert machine.handle(e.ConnectionOpened(), now) == [d.OpenConsumer()]
        machine.handle(e.ConnectFailed(failure=FAILURE), now)
        assert machine.deadline is not None
        pauses.append(machine.deadline - now)
        now = machine.deadline
        machine.handle(e.Tick(), now)
    assert pauses == [1, 2, 5, 5]
    machine.handle(e.ConnectionOpened(), now)
    machine.handle(e.ConsumerOpened(), now)
    machine.handle(e.ConnectionLost(failure=FAILURE), now)
    assert machine.deadline == now + 1


def test_a_refused_consumer_is_said_once_as_an_error_j108() -> None:
    outage = replace(OUTAGE, minimal_logging=True)
    machine = new_machine(replace(SETTINGS, outage=outage))
    machine.handle(e.Start(), 0.0)
    now, levels = 0.0, list[d.LogLevel]()
    for _ in range(3):
        machine.handle(e.ConnectionOpened(), now)
        failed = machine.handle(e.ConnectFailed(failure=FAILURE), now)
        levels += [one.level for one in failed if isinstance(one, d.Log)]
        assert machine.deadline is not None
        now = machine.deadline
        machine.handle(e.Tick(), now)
    assert levels == [d.LogLevel.ERROR, d.LogLevel.DEBUG, d.LogLevel.DEBUG]


def test_a_second_stop_may_be_quicker_and_never_slower() -> None:
    run = Run()
    (first,) = run.arrive()
    assert isinstance(first, d.Deliver)
    run.send(e.StopAsked(reason="enough", within=30 * SECOND))
    start = run.now
    assert run.send(e.StopAsked(reason="at once", within=2 * SECOND)) == []
    assert run.send(e.StopAsked(reason="no hurry", within=60 * SECOND)) == []
    assert run.machine.deadline == start + 2
    assert run.tick() == [
        d.RollBackUnit(unit=first.unit),
        d.CloseConnection(),
        d.Stopped(reason="enough"),
    ]


def test_a_stop_is_clean_if_nothing_that_was_begun_goes_back() -> None:
    """W33: a durable subscription may be deleted then."""
    run = Run()
    (first,) = run.arrive()
    assert isinstance(first, d.Deliver)
    run.arrive()
    run.send(e.StopAsked(reason="enough"))
    run.send(e.HandlerReturned(call=first.call))
    assert run.send(e.UnitCommitted(unit=first.unit)) == [
        d.CloseConnection(clean=True),
        d.Stopped(reason="enough"),
    ]


def test_a_stop_is_not_clean_if_a_message_waits_out_its_delay() -> None:
    run = Run(handling="1:5000")
    (first,) = run.arrive()
    assert isinstance(first, d.Deliver)
    run.send(e.HandlerRaised(call=first.call, failure=FAILURE))
    assert run.send(e.StopAsked(reason="enough"))[0] == d.CloseConnection(clean=False)


def test_a_connection_that_is_of_no_use_any_more_is_replaced_like_a_lost_one() -> None:
    machine = new_machine(replace(SETTINGS, outage=OUTAGE))
    machine.handle(e.Start(), 0.0)
    assert machine.handle(e.ReconnectAsked(reason="not yet"), 0.0) == [], "it isn't up"
    machine.handle(e.ConnectionOpened(), 0.0)
    machine.handle(e.ConsumerOpened(), 0.0)
    closes, log = machine.handle(e.ReconnectAsked(reason="a message stays"), 1.0)
    assert closes == d.CloseConnection()
    assert isinstance(log, d.Log)
    assert (log.level, log.text) == (d.LogLevel.WARNING, "a message stays; connecting again in 1.0 s")
    assert machine.state == "Connecting"
    assert machine.handle(e.Tick(), 2.0) == [d.Connect()]


def test_why_a_connection_is_replaced_is_said_once_for_all_who_share_it() -> None:
    machine = new_machine(replace(SETTINGS, outage=OUTAGE))
    machine.handle(e.Start(), 0.0)
    machine.handle(e.ConnectionOpened(), 0.0)
    closes, log = machine.handle(e.ReconnectAsked(reason="its settings changed", logged=True), 1.0)
    assert closes == d.CloseConnection()
    assert isinstance(log, d.Log)
    assert (log.level, log.text) == (d.LogLevel.DEBUG, "its settings changed; connecting again in 1.0 s")


def test_a_stop_is_not_held_up_by_a_connection_that_is_replaced() -> None:
    machine = new_machine(replace(SETTINGS, outage=OUTAGE))
    machine.handle(e.Start(), 0.0)
    machine.handle(e.ConnectionOpened(), 0.0)
    machine.handle(e.ReconnectAsked(reason="a message stays"), 1.0)
    decided = machine.handle(e.StopAsked(reason="enough"), 1.0)
    assert decided[-2:] == [d.CloseConnection(), d.Stopped(reason="enough")]
    assert machine.deadline is None


def test_it_is_opening_from_the_connection_until_the_subscriptions_are_confirmed() -> None:
    machine = new_machine(SETTINGS)
    machine.handle(e.Start(), 0.0)
    assert machine.opening is False, "there is no connection yet"
    machine.handle(e.ConnectionOpened(), 0.0)
    assert machine.opening is True
    machine.handle(e.ConsumerOpened(), 0.0)
    assert machine.opening is False


def test_it_is_stopping_while_a_handler_still_runs() -> None:
    run = Run()
    assert run.machine.stopping is False
    first = run.only(d.Deliver, run.message())
    run.send(e.StopAsked(reason="enough"))
    assert run.machine.stopping is True
    run.send(e.HandlerReturned(call=first.call))
    run.send(e.UnitCommitted(unit=first.unit))
    assert run.machine.stopping is False


@pytest.mark.parametrize(("by_handler", "level"), [(True, d.LogLevel.WARNING), (False, d.LogLevel.INFO)])
def test_a_stop_by_a_handler_is_a_warning(by_handler: bool, level: d.LogLevel) -> None:
    machine = new_machine(SETTINGS)
    machine.handle(e.Start(), 0.0)
    log, *_ = machine.handle(e.StopAsked(reason="enough", by_handler=by_handler), 0.0)
    assert log == d.Log(level=level, text="message delivery stops: enough", of_delivery=False)


def test_what_an_event_means_that_says_no_more_than_it_must() -> None:
    """A stop waits 30 seconds and is nobody's surprise; an outage is in the log; a first attempt is sure."""
    run = Run(settings=replace(SETTINGS, record_attempts=True))
    (lost,) = (each for each in run.machine.handle(e.ConnectionLost(), run.now) if isinstance(each, d.Log))
    assert lost.level is d.LogLevel.WARNING
    run.tick()
    (failed,) = run.machine.handle(e.ConnectFailed(failure=FAILURE), run.now)
    assert isinstance(failed, d.Log)
    assert failed.level is d.LogLevel.WARNING
    run.tick()
    run.send(e.ConnectionOpened())
    run.arrive()
    first = run.only(d.Deliver, e.AttemptRecorded(delivery=1, attempt=1))
    assert not first.in_doubt
    (stops,) = run.machine.handle(e.StopAsked(reason="enough"), run.now)
    assert isinstance(stops, d.Log)
    assert stops.level is d.LogLevel.INFO
    assert run.machine.deadline == run.now + 30


def test_a_connection_that_nobody_wants_is_closed_and_its_failure_is_nothing() -> None:
    """Before the start, and while the last handler runs."""
    machine = new_machine(SETTINGS)
    assert machine.handle(e.ConnectionOpened(), 0.0) == [d.CloseConnection()]
    assert machine.handle(e.ConnectFailed(failure=FAILURE), 0.0) == []
    run = Run()
    run.arrive()
    run.send(e.StopAsked(reason="enough"))
    assert run.send(e.ConnectionOpened()) == [d.CloseConnection()]
    assert run.send(e.ConnectFailed(failure=FAILURE)) == []
    assert run.machine.state == "Disconnecting"
