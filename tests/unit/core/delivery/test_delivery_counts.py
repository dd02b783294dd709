"""What is known about messages: about those whose ids aren't theirs alone, and about how many."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_jmsjca.core.delivery import decisions as d
from airflow_provider_jmsjca.core.delivery import events as e
from airflow_provider_jmsjca.core.delivery.counts import DeliveryCounts
from airflow_provider_jmsjca.core.delivery.states import InFlightMessage
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.redelivery import RedeliveryTracker
from tests.unit.core.delivery.harness import SETTINGS, Run

TWO = replace(SETTINGS, further=(Destination.queue("b"),))


def test_what_is_known_of_an_id_says_nothing_of_the_same_id_in_another_queue() -> None:
    """J129: a broker's fan-out puts the same id into several queues, and each is counted by itself."""
    run = Run(handling="1:delete", settings=TWO)
    first = run.only(d.Deliver, run.message("X", source=0))
    run.send(e.ConnectionLost())
    run.send(e.HandlerReturned(call=first.call))
    run.tick()
    run.send(e.ConnectionOpened())
    other = run.only(d.Deliver, run.message("X", source=1))
    assert other.seen == 0
    run.send(e.HandlerReturned(call=other.call))
    assert run.send(e.UnitCommitted(unit=other.unit)) == []
    assert run.only(d.DeleteMessage, run.message("X", source=0)).seen == 1, (
        "nor is it forgotten with that one"
    )


def test_one_that_still_runs_holds_up_nothing_but_itself() -> None:
    run = Run(settings=replace(TWO, concurrency=2))
    first = run.only(d.Deliver, run.message("X", source=0))
    run.send(e.ConnectionLost())
    run.tick()
    run.send(e.ConnectionOpened())
    assert run.arrive("X", source=0) == []
    other = run.only(d.Deliver, run.message("X", source=1))
    assert (other.delivery, other.seen) == (3, 0)
    assert [type(one) for one in run.send(e.HandlerReturned(call=first.call))] == [d.RollBackUnit, d.Deliver]


def test_an_outcome_in_doubt_is_that_of_one_of_them() -> None:
    run = Run(settings=TWO)
    first = run.only(d.Deliver, run.message("X", source=0))
    run.send(e.HandlerReturned(call=first.call))
    run.send(e.UnitInDoubt(unit=first.unit))
    run.send(e.ConnectionLost())
    run.tick()
    run.send(e.ConnectionOpened())
    other = run.only(d.Deliver, run.message("X", source=1))
    assert not other.in_doubt
    run.send(e.HandlerReturned(call=other.call))
    run.send(e.UnitCommitted(unit=other.unit))
    assert run.only(d.Deliver, run.message("X", source=0)).in_doubt


def received(count: int) -> tuple[DeliveryCounts, list[InFlightMessage]]:
    delivery_counts = DeliveryCounts(RedeliveryTracker(), lambda *_: None, counts_repeats=True)
    arrivals = (e.MessageArrived(delivery=number, message_id=f"ID:{number}") for number in range(count))
    return delivery_counts, [delivery_counts.receive(each) for each in arrivals]


def test_of_outcomes_in_doubt_the_last_5000_are_known() -> None:
    delivery_counts, messages = received(5001)
    delivery_counts.doubt(messages[:2])
    for message in messages[2:]:
        delivery_counts.doubt([message])
    assert [delivery_counts.delivered(messages[number]) for number in (0, 1, 5000)] == [False, True, True]


def test_of_moves_in_vain_the_last_5000_are_known() -> None:
    delivery_counts, messages = received(5001)
    for message in messages:
        delivery_counts.move_failed(message, lost=False)
    assert [delivery_counts.failed_moves(messages[number]).failed for number in (0, 1, 5000)] == [0, 1, 1]
