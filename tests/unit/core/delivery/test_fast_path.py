"""The short way: the same outcome as the long one, and the long one as soon as anything else happens."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_provider_jmsjca.core.delivery import decisions as d
from airflow_provider_jmsjca.core.delivery import events as e
from airflow_provider_jmsjca.core.delivery.settings import DeliverySettings
from airflow_provider_jmsjca.core.delivery.states import FastPathUnit
from airflow_provider_jmsjca.core.destination import Destination
from tests.unit.core.delivery.harness import FAILURE, SETTINGS, Run


def begin(run: Run, message_id: str = "ID:a", group: str | None = None) -> FastPathUnit:
    run.delivery += 1
    direct = run.machine.begin_directly(run.delivery, message_id, group, run.now)
    assert direct is not None
    return direct


def refuses(run: Run, message_id: str = "ID:a", *, group: str | None = None) -> bool:
    return run.machine.begin_directly(99, message_id, group, run.now) is None


def test_from_arrival_to_commit() -> None:
    run = Run(handling="3:100; 10:move(queue:dlq)")
    direct = begin(run)
    assert (run.machine.idle, run.machine.in_flight) == (False, 1)
    assert run.machine.returned_directly(direct)
    assert (run.machine.idle, run.machine.in_flight) == (False, 1)
    assert run.machine.committed_directly(direct)
    assert (run.machine.idle, run.machine.in_flight) == (True, 0)
    assert begin(run, "ID:b").unit > direct.call


def test_one_at_a_time() -> None:
    run = Run()
    begin(run)
    assert refuses(run, "ID:b")


def two_at_a_time() -> Run:
    return Run(settings=replace(SETTINGS, concurrency=2, transaction_timeout=timedelta(seconds=30)))


def test_as_many_at_a_time_as_there_may_be() -> None:
    run = two_at_a_time()
    first, second = begin(run, "ID:a"), begin(run, "ID:b")
    assert refuses(run, "ID:c")
    assert run.machine.returned_directly(second)
    assert run.machine.committed_directly(second)
    assert run.machine.in_flight == 1
    third = begin(run, "ID:c")
    for direct in (third, first):
        assert run.machine.returned_directly(direct)
        assert run.machine.committed_directly(direct)
    assert (run.machine.idle, run.machine.in_flight) == (True, 0)


def test_what_is_on_the_long_way_takes_its_place() -> None:
    run = two_at_a_time()
    delivered = run.only(d.Deliver, run.message("ID:a"))
    direct = begin(run, "ID:b")
    assert refuses(run, "ID:c")
    run.send(e.HandlerReturned(call=delivered.call))
    assert not run.machine.returned_directly(direct)
    commit = run.only(d.CommitUnit, e.HandlerReturned(call=direct.call))
    assert commit.acknowledge == (direct.delivery,)


def test_what_happens_to_one_takes_the_others_to_the_long_way() -> None:
    run = two_at_a_time()
    failing, other = begin(run, "ID:a"), begin(run, "ID:b")
    rolled_back, again = run.send(e.HandlerRaised(call=failing.call, failure=FAILURE))
    assert rolled_back == d.RollBackUnit(unit=failing.unit)
    assert isinstance(again, d.Deliver)
    assert not run.machine.returned_directly(other)
    commit = run.only(d.CommitUnit, e.HandlerReturned(call=other.call))
    assert commit.acknowledge == (other.delivery,)


def test_a_second_message_of_the_same_id_or_group_takes_the_long_way() -> None:
    """Of a group one message is in flight at a time, in whatever unit."""
    run = two_at_a_time()
    first = begin(run, "ID:a", group="g")
    assert refuses(run, "ID:a")
    assert refuses(run, "ID:b", group="g")
    assert run.send(run.message("ID:b", group="g")) == []
    assert refuses(run, "ID:c")  # it might have to wait
    commit = run.only(d.CommitUnit, e.HandlerReturned(call=first.call))
    second = run.only(d.Deliver, e.UnitCommitted(unit=commit.unit))
    run.send(e.HandlerReturned(call=second.call))
    run.send(e.UnitCommitted(unit=second.unit))
    begin(run, "ID:c")


def test_messages_of_several_groups_are_in_flight_together() -> None:
    run = two_at_a_time()
    begin(run, "ID:a", group="g")
    begin(run, "ID:b", group="h")


def test_the_oldest_one_times_out_first_w22() -> None:
    run = two_at_a_time()
    first = begin(run, "ID:a")
    run.now += 10
    second = begin(run, "ID:b")
    assert run.machine.deadline == first.began + 30
    assert run.machine.returned_directly(first)
    assert run.machine.committed_directly(first)
    assert run.machine.deadline == second.began + 30
    run.now += 10
    run.arrive()
    assert run.machine.deadline == second.began + 30, "on the long way, too"


@pytest.mark.parametrize(
    "settings",
    [
        replace(SETTINGS, batch_size=2),
        replace(SETTINGS, hold_until_ack=True),
        replace(SETTINGS, record_attempts=True),
        replace(SETTINGS, in_progress=True),
        replace(SETTINGS, further=(Destination.queue("more"),)),
    ],
)
def test_rules_under_which_there_is_none(settings: DeliverySettings) -> None:
    assert refuses(Run(settings=settings))


def test_not_for_what_was_seen_before() -> None:
    run = Run()
    delivered = run.only(d.Deliver, run.message("ID:a"))
    run.send(e.ConnectionLost())
    run.send(e.HandlerReturned(call=delivered.call))
    assert run.tick() == [d.Connect()]
    run.send(e.ConnectionOpened())
    assert refuses(run, "ID:a")
    begin(run, "ID:b")


def test_not_behind_others_nor_while_nothing_is_consumed() -> None:
    run = Run()
    run.arrive("ID:b")
    assert refuses(run)
    run = Run()
    run.send(e.SuspendAsked())
    assert refuses(run)
    run.send(e.ResumeAsked())
    begin(run)


def test_not_while_it_is_suspended_or_an_old_call_of_the_same_message_runs() -> None:
    run = two_at_a_time()
    begin(run, "ID:a")
    run.send(e.SuspendAsked())
    assert refuses(run, "ID:b")
    run.send(e.ResumeAsked())
    run.send(e.ConnectionLost())
    run.tick()
    run.send(e.ConnectionOpened())
    assert refuses(run, "ID:a")


def test_one_whose_handler_could_not_be_called_is_new_when_it_comes_again() -> None:
    run = Run(handling="1:delete")
    direct = begin(run)
    run.send(e.ConnectionLost())
    run.send(e.HandlerNotCalled(call=direct.call))
    run.tick()
    run.send(e.ConnectionOpened())
    assert run.only(d.Deliver, run.message("ID:a", redelivered=True)).seen == 0


def test_a_handler_that_raises_takes_the_long_way() -> None:
    run = Run()
    direct = begin(run)
    decided = run.send(e.HandlerRaised(call=direct.call, failure=FAILURE))
    rolled_back, again = decided
    assert rolled_back == d.RollBackUnit(unit=direct.unit)
    assert isinstance(again, d.Deliver)
    assert (again.delivery, again.seen, again.state.failure) == (direct.delivery, 1, FAILURE)


def test_whatever_else_happens_the_handlers_end_is_an_event() -> None:
    run = Run()
    direct = begin(run)
    assert run.send(e.StopAsked(reason="enough")) == []
    assert not run.machine.returned_directly(direct)
    commit = run.only(d.CommitUnit, e.HandlerReturned(call=direct.call))
    assert commit == d.CommitUnit(unit=direct.unit, acknowledge=(direct.delivery,))
    assert run.send(e.UnitCommitted(unit=direct.unit))[-1] == d.Stopped(reason="enough")


def test_whatever_else_happens_the_commit_is_an_event() -> None:
    run = Run()
    direct = begin(run)
    assert run.machine.returned_directly(direct)
    run.arrive("ID:b")
    assert not run.machine.committed_directly(direct)
    following = run.only(d.Deliver, e.UnitCommitted(unit=direct.unit))
    assert following.delivery == 2


def test_a_commit_that_fails_delivers_again() -> None:
    run = Run()
    direct = begin(run)
    run.machine.returned_directly(direct)
    again = run.only(d.Deliver, e.UnitFailed(unit=direct.unit, failure=FAILURE))
    assert (again.delivery, again.seen) == (direct.delivery, 1)


def test_a_lost_connection_lets_the_handler_return_and_commits_nothing() -> None:
    run = Run()
    direct = begin(run)
    run.send(e.ConnectionLost())
    assert run.machine.in_flight == 0
    assert not run.machine.returned_directly(direct)
    assert run.only(d.RollBackUnit, e.HandlerReturned(call=direct.call)).unit == direct.unit


def test_a_transaction_times_out() -> None:
    """W22."""
    run = Run(settings=replace(SETTINGS, transaction_timeout=timedelta(seconds=30)))
    direct = begin(run)
    assert run.machine.deadline == run.now + 30
    run.tick()
    assert not run.machine.returned_directly(direct)
    rolled_back, again = run.send(e.HandlerReturned(call=direct.call))
    assert rolled_back == d.RollBackUnit(unit=direct.unit)
    assert isinstance(again, d.Deliver)
    assert again.delivery == direct.delivery


def test_a_unit_is_open_until_its_handler_has_returned() -> None:
    run = two_at_a_time()
    first, second = begin(run, "ID:a"), begin(run, "ID:b")
    assert run.machine.returned_directly(second)
    assert [run.machine.is_open(each.unit) for each in (first, second)] == [True, False]


def test_handling_of_what_failed_holds_up_no_first_delivery() -> None:
    begin(Run(handling="1:1000"))


def test_one_at_a_time_keeps_the_order_of_groups() -> None:
    run = Run()
    run.delivery += 1
    assert run.machine.begin_directly(run.delivery, "ID:a", "group", run.now) is not None
