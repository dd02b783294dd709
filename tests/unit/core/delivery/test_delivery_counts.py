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


def made(tracker: RedeliveryTracker | None = None) -> DeliveryCounts:
    return DeliveryCounts(tracker or RedeliveryTracker(), lambda *_: None, counts_repeats=True)


def counted(counts: DeliveryCounts, name: str = "a", *, flag: bool = True) -> InFlightMessage:
    """Return a message that arrived and was counted."""
    message = counts.receive(e.MessageArrived(delivery=1, message_id=name, redelivered=flag))
    counts.count(message)
    return message


def test_j130_the_first_redelivery_counts_one() -> None:
    counts = made()
    assert [counted(counts, name).seen for name in ("a", "a", "b", "a")] == [1, 2, 1, 3]


def test_two_machines_count_on_their_own_j131() -> None:
    first, second = made(), made()
    assert [counted(first).seen, counted(first).seen] == [1, 2]
    assert counted(second).seen == 1


def test_forget_starts_over() -> None:
    counts = made()
    message = counted(counts)
    counts.to_come_again([message])
    counts.in_doubt[message.key] = None
    counts.move_failed(message, lost=True)
    counts.forget([message])
    counts.forget([message])
    assert not any("a" in table for table in counts.remembered)
    assert message.key not in counts.failed_moves
    assert counted(counts).seen == 1


def test_a_delivery_that_led_to_nothing_is_not_counted() -> None:
    tracker = RedeliveryTracker()
    counts = made(tracker)
    message = [counted(counts) for _ in range(3)][-1]
    counts.given_back([message])
    assert tracker.state("a").seen == 2
    arrived = counts.receive(e.MessageArrived(delivery=2, message_id="a"))
    counts.given_back([arrived])
    assert tracker.state("a").seen == 2, "it had not raised the count"


def test_no_count_goes_below_zero() -> None:
    tracker = RedeliveryTracker()
    counts = made(tracker)
    message = counted(counts)
    counts.forget([message])
    tracker.note("a")
    counts.given_back([message])
    assert tracker.state("a").seen == 0


def test_what_was_never_counted_is_given_back_without_a_note() -> None:
    tracker = RedeliveryTracker()
    counts = made(tracker)
    message = counted(counts, flag=False)
    message.calls = 1
    counts.given_back([message])
    assert not any("a" in table for table in counts.remembered)
    assert counted(counts).seen == 1, "the flag is that of another process"


def test_the_last_delivery_in_vain_says_what_the_next_flag_means() -> None:
    counts = made()
    counts.given_back([counted(counts)])
    assert counted(counts).seen == 1
    counts = made()
    counts.given_back([counted(counts, flag=False)])
    assert counted(counts).seen == 0
    again = counted(counts)
    again.calls, again.first = 1, True
    counts.given_back([again])
    assert counted(counts).seen == 0, "it had led to a call"
    assert counted(counts, "b").seen == 1


def test_after_the_first_subscription_only_a_flag_that_was_seen_before_counts() -> None:
    tracker = RedeliveryTracker()
    counts = made(tracker)
    tracker.subscriptions = 1
    first = counted(counts)
    assert first.seen == 1, "of another process"
    counts.given_back([first])
    tracker.subscriptions = 2
    assert counted(counts).seen == 1
    assert counted(counts, "b").seen == 0, "it may have been on its way to this process"


def test_the_flag_after_an_attempt_counts_until_a_copy_takes_the_place_of_the_message() -> None:
    tracker = RedeliveryTracker()
    counts = made(tracker)
    tracker.subscriptions = 2
    message = counted(counts, flag=False)
    counts.to_come_again([message])
    assert tracker.flags["a"]
    assert "a" in tracker.states
    counts.parked(message)
    tracker.states.pop("a")
    assert counted(counts).seen == 0


def received(count: int) -> tuple[DeliveryCounts, list[InFlightMessage]]:
    delivery_counts = made()
    arrivals = (e.MessageArrived(delivery=number, message_id=f"ID:{number}") for number in range(count))
    return delivery_counts, [delivery_counts.receive(each) for each in arrivals]


def test_of_outcomes_in_doubt_the_last_5000_are_known() -> None:
    delivery_counts, messages = received(5001)
    known = delivery_counts.in_doubt
    for message in messages:
        known[message.key] = None
    assert [messages[number].key in known for number in (0, 1, 5000)] == [False, True, True]


def test_of_moves_in_vain_the_last_5000_are_known() -> None:
    delivery_counts, messages = received(5001)
    for message in messages:
        delivery_counts.move_failed(message, lost=False)
    known = delivery_counts.failed_moves
    assert [messages[number].key in known for number in (0, 1, 5000)] == [False, True, True]
