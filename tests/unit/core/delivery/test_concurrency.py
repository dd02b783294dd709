"""Room shared by several machines: places, a limit of messages, and nobody kept out."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from airflow_provider_jmsjca.core.delivery import decisions as d
from airflow_provider_jmsjca.core.delivery import events as e
from airflow_provider_jmsjca.core.delivery.concurrency import ConcurrencyLimit, Permits
from tests.unit.core.delivery.harness import SETTINGS, Run


def test_who_waits_goes_before_who_comes_back() -> None:
    """W2, W4: one place; the one that was refused has it next, however long the other's backlog is."""
    woken: list[str] = []
    room = ConcurrencyLimit(1)
    first, second = room.join(lambda: woken.append("first")), room.join(lambda: woken.append("second"))
    assert first.admit(unit=True)
    assert not second.admit(unit=True)
    assert first.report(units=0, taken=0, settled=1)
    assert woken == ["second"]
    assert not first.admit(unit=True)
    assert second.admit(unit=True)


def test_who_has_lost_interest_lets_the_next_one_in() -> None:
    """A machine whose connection was lost while it waited for a place."""
    woken: list[str] = []
    room = ConcurrencyLimit(1)
    first, second = room.join(lambda: woken.append("first")), room.join(lambda: woken.append("second"))
    assert first.admit(unit=True)
    assert not second.admit(unit=True)
    second.withdraw()
    first.report(units=0, taken=0, settled=1)
    assert first.admit(unit=True)


def test_who_has_lost_interest_wakes_the_next_in_line() -> None:
    """One place is free and promised to the first in line, who then wants nothing."""
    woken: list[str] = []
    room = ConcurrencyLimit(1)
    holder, first, second = (room.join(lambda name=name: woken.append(name)) for name in "abc")
    holder.withdraw()
    assert holder.admit(unit=True)
    holder.withdraw()
    assert not first.admit(unit=True)
    assert not second.admit(unit=True)
    assert woken == []
    assert holder.report(units=0, taken=0, settled=1)
    assert woken == ["b", "c"]
    assert not second.admit(unit=True)
    first.withdraw()
    assert woken == ["b", "c", "c"]
    assert second.admit(unit=True)


def test_the_first_in_line_have_the_free_places_whoever_asks_first() -> None:
    room = ConcurrencyLimit(2)
    holder, first, second, third = (room.join(lambda: None) for _ in range(4))
    assert [holder.admit(unit=True) for _ in range(2)] == [True, True]
    assert not any(each.admit(unit=True) for each in (first, second, third))
    holder.report(units=0, taken=0, settled=2)
    assert [each.admit(unit=True) for each in (third, second, first)] == [False, True, True]


def test_one_free_place_is_for_the_first_in_line() -> None:
    room = ConcurrencyLimit(2)
    holder, first, second = (room.join(lambda: None) for _ in range(3))
    assert [holder.admit(unit=True) for _ in range(2)] == [True, True]
    assert not any(each.admit(unit=True) for each in (first, second))
    holder.report(units=1, taken=1, settled=1)
    assert [each.admit(unit=True) for each in (second, first)] == [False, True]


def test_a_message_that_waits_is_counted_once() -> None:
    """It is among those taken; the limit has room for it."""
    share = ConcurrencyLimit(2, 2).join(lambda: None)
    share.report(units=1, taken=2, settled=0, waiting=1)
    assert share.admit(unit=True, message=False)


def test_more_than_was_counted_is_not_less() -> None:
    share = ConcurrencyLimit(2).join(lambda: None)
    assert not share.report(units=1, taken=1, settled=0)
    assert share.waiting == 0


def test_more_messages_of_a_unit_need_no_place() -> None:
    room = ConcurrencyLimit(1)
    share = room.join(lambda: None)
    assert [share.admit(unit=True), share.admit(unit=False), share.admit(unit=True)] == [True, True, False]
    assert (share.units, share.taken, share.waiting) == (1, 2, 0)


def test_only_what_is_less_makes_room_and_wakes_those_refused_once() -> None:
    """Fewer units or fewer messages; not the one that reports, nor one that was never refused."""
    woken: list[str] = []
    room = ConcurrencyLimit(1, limit=9)
    busy, refused, idle = (room.join(lambda name=name: woken.append(name)) for name in "abc")
    assert busy.admit(unit=True)
    assert busy.admit(unit=False)
    assert not busy.admit(unit=True)
    assert not refused.admit(unit=True)
    assert not busy.report(units=1, taken=2, settled=0)
    assert not busy.report(units=1, taken=3, settled=4)
    assert woken == []
    assert busy.report(units=1, taken=1, settled=4)
    assert woken == ["b"]
    assert busy.report(units=0, taken=1, settled=4)
    assert woken == ["b"]
    assert idle.taken == 0


def test_what_waits_is_counted_once_and_taken_up_to_the_limit() -> None:
    """More may have come through the in-progress queue than there is room for."""
    room = ConcurrencyLimit(9, limit=2)
    share, other = room.join(lambda: None), room.join(lambda: None)
    share.report(units=0, taken=3, settled=0, waiting=3)
    assert not other.admit(unit=True)
    assert [share.admit(unit=True, message=False) for _ in range(3)] == [True, True, False]
    assert (share.units, share.taken, share.waiting) == (2, 3, 1)


def test_the_limit_counts_what_is_settled_and_under_way() -> None:
    """Never more than the limit, all machines together; what is put back makes room again."""
    room = ConcurrencyLimit(10, limit=2)
    first, second = room.join(lambda: None), room.join(lambda: None)
    assert first.admit(unit=True)
    first.report(units=0, taken=0, settled=1)
    assert second.admit(unit=True)
    assert not first.admit(unit=True)
    second.report(units=0, taken=0, settled=0)
    assert first.admit(unit=True)
    assert not second.admit(unit=False)


def test_a_machine_with_a_message_keeps_its_place_in_the_queue() -> None:
    room = ConcurrencyLimit(1)
    holder = room.join(lambda: None)
    assert holder.admit(unit=True)
    run = Run(room=room.join(lambda: None))
    assert run.arrive() == []
    holder.report(units=0, taken=0, settled=1)
    assert not holder.admit(unit=True)


def test_a_machine_that_is_suspended_gives_up_its_place_in_the_queue() -> None:
    room = ConcurrencyLimit(1)
    holder = room.join(lambda: None)
    assert holder.admit(unit=True)
    run = Run(room=room.join(lambda: None))
    assert run.arrive() == []
    run.send(e.SuspendAsked())
    holder.report(units=0, taken=0, settled=1)
    assert holder.admit(unit=True)


def test_a_machine_whose_batch_took_what_waited_gives_up_its_place_in_the_queue() -> None:
    room = ConcurrencyLimit(1)
    other = room.join(lambda: None)
    run = Run(settings=replace(SETTINGS, batch_size=2, concurrency=2), room=room.join(lambda: None))
    first = run.only(d.Deliver, run.message())
    assert run.arrive() == []
    second = run.only(d.Deliver, e.HandlerReturned(call=first.call))
    end = run.only(d.DeliverEndOfBatch, e.HandlerReturned(call=second.call))
    run.send(e.HandlerReturned(call=end.call))
    run.send(e.UnitCommitted(unit=first.unit))
    assert other.admit(unit=True)


def test_a_machine_takes_up_to_the_limit_and_not_one_less() -> None:
    run = Run(settings=replace(SETTINGS, concurrency=3), room=ConcurrencyLimit(3, limit=2).join(lambda: None))
    first = run.only(d.Deliver, run.message())
    run.only(d.Deliver, run.message())
    assert run.arrive() == []
    run.send(e.HandlerReturned(call=first.call))
    assert run.send(e.UnitCommitted(unit=first.unit)) == [], "what is settled counts"


class Sharing(RuleBasedStateMachine):
    """Machines with backlogs, each of which takes whatever it may and is woken when there may be room."""

    @initialize(places=st.integers(1, 3), machines=st.integers(1, 4), limit=st.none() | st.integers(1, 12))
    def begin(self, places: int, machines: int, limit: int | None) -> None:
        self.places, self.limit = places, limit
        self.room = ConcurrencyLimit(places, limit)
        self.awake: set[int] = set()
        self.backlog = [0] * machines
        self.under_way = [0] * machines
        self.settled = [0] * machines
        self.shares: list[Permits] = [
            self.room.join(lambda number=number: self.awake.add(number)) for number in range(machines)
        ]

    def fill(self, number: int) -> None:
        share = self.shares[number]

        def report() -> None:
            share.report(
                units=self.under_way[number], taken=self.under_way[number], settled=self.settled[number]
            )

        report()
        while self.backlog[number] and share.admit(unit=True):
            self.backlog[number] -= 1
            self.under_way[number] += 1
        report()
        if not self.backlog[number]:
            share.withdraw()
        while self.awake:
            self.fill(self.awake.pop())

    @rule(number=st.integers(0, 3), count=st.integers(1, 5))
    def arrive(self, number: int, count: int) -> None:
        number %= len(self.shares)
        self.backlog[number] += count
        self.fill(number)

    @rule(number=st.integers(0, 3), settles=st.booleans())
    def end(self, number: int, settles: bool) -> None:
        number %= len(self.shares)
        if self.under_way[number]:
            self.under_way[number] -= 1
            self.settled[number] += settles
            self.backlog[number] += not settles
            self.fill(number)

    @rule(number=st.integers(0, 3))
    def lose(self, number: int) -> None:
        """Its connection is gone, and all it had."""
        number %= len(self.shares)
        self.backlog[number] = self.under_way[number] = 0
        self.fill(number)

    @invariant()
    def never_too_much(self) -> None:
        assert sum(self.under_way) <= self.places
        if self.limit is not None:
            assert sum(self.under_way) + sum(self.settled) <= self.limit

    @invariant()
    def nobody_waits_while_there_is_room(self) -> None:
        enough = self.limit is not None and sum(self.under_way) + sum(self.settled) >= self.limit
        assert sum(self.under_way) == self.places or enough or not any(self.backlog)


TestSharing = Sharing.TestCase
TestSharing.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
