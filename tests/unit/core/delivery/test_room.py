"""Room shared by several machines: places, a limit of messages, and nobody kept out."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from airflow_provider_jmsjca.core.delivery.room import Room, Share


def test_who_waits_goes_before_who_comes_back() -> None:
    """W2, W4: one place; the one that was refused has it next, however long the other's backlog is."""
    woken: list[str] = []
    room = Room(1)
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
    room = Room(1)
    first, second = room.join(lambda: woken.append("first")), room.join(lambda: woken.append("second"))
    assert first.admit(unit=True)
    assert not second.admit(unit=True)
    second.wants_nothing()
    first.report(units=0, taken=0, settled=1)
    assert first.admit(unit=True)


def test_the_limit_counts_what_is_settled_and_under_way() -> None:
    """Never more than the limit, all machines together; what is put back makes room again."""
    room = Room(10, limit=2)
    first, second = room.join(lambda: None), room.join(lambda: None)
    assert first.admit(unit=True)
    first.report(units=0, taken=0, settled=1)
    assert second.admit(unit=True)
    assert not first.admit(unit=True)
    second.report(units=0, taken=0, settled=0)
    assert first.admit(unit=True)
    assert not second.admit(unit=False)


class Sharing(RuleBasedStateMachine):
    """Machines with backlogs, each of which takes whatever it may and is woken when there may be room."""

    @initialize(places=st.integers(1, 3), machines=st.integers(1, 4), limit=st.none() | st.integers(1, 12))
    def begin(self, places: int, machines: int, limit: int | None) -> None:
        self.places, self.limit = places, limit
        self.room = Room(places, limit)
        self.awake: set[int] = set()
        self.backlog = [0] * machines
        self.under_way = [0] * machines
        self.settled = [0] * machines
        self.shares: list[Share] = [
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
            share.wants_nothing()
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
