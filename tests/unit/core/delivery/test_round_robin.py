"""Whose turn it is: round robin with a quantity for each destination."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.delivery.pending import RoundRobin


def played(turns: RoundRobin, waiting: list[int]) -> str:
    """Take until nothing is left; destinations are called A, B, C ..."""
    order = ""
    while (source := turns.take(lambda each: waiting[each] > 0)) is not None:
        waiting[source] -= 1
        order += "ABCDE"[source]
    return order


def test_the_worked_example() -> None:
    """I4, I5, I6, I51: A=2, B=1, C=5, PollQuantity=2: A, B, C, A, (B empty), C; C keeps 3."""
    assert played(RoundRobin(3, 2), [2, 1, 5]) == "ABCAC" + "CCC"


def test_what_a_destination_keeps_comes_in_the_next_cycles() -> None:
    """I4: a cycle that is over is followed by another one."""
    assert played(RoundRobin(2, 1), [2, 3]) == "ABABB"
    assert played(RoundRobin(2, 2), [1, 5]) == "ABBBBB"


def test_a_cycle_begins_with_the_first_destination() -> None:
    """I5: with a quantity of 1 a destination that got something late waits for the next cycle."""
    turns = RoundRobin(3, 1)
    waiting = [1, 0, 1]
    assert turns.take(lambda each: waiting[each] > 0) == 0
    assert turns.take(lambda each: waiting[each] > 0) == 2
    waiting[1] = 1  # A and C have more, and have had their turn
    assert turns.take(lambda each: waiting[each] > 0) == 1
    assert turns.take(lambda each: waiting[each] > 0) == 0


def test_nobody_has_any() -> None:
    turns = RoundRobin(2, 1)
    assert turns.take(lambda _: True) == 0
    assert turns.take(lambda _: False) is None
    assert turns.take(lambda _: True) == 1  # asking in vain ended neither the turn nor the cycle


@given(
    waiting=st.lists(st.integers(0, 8), min_size=1, max_size=5),
    quantity=st.integers(1, 4),
    late=st.lists(st.integers(0, 4), max_size=10),
)
def test_fair_and_complete(waiting: list[int], quantity: int, late: list[int]) -> None:
    """I4, I5: each cycle gives at most `quantity` of each; everything comes; nobody gets two turns in a row
    while another one has a message and quantity left."""
    turns = RoundRobin(len(waiting), quantity)
    left, given_in_cycle = list(waiting), [0] * len(waiting)
    last: int | None = None

    def can_give() -> list[int]:
        return [each for each, count in enumerate(left) if count and given_in_cycle[each] < quantity]

    while any(left):
        candidates = can_give()
        if not candidates:  # the cycle is over
            given_in_cycle, last = [0] * len(waiting), None
            candidates = can_give()[:1]
        source = turns.take(lambda each: left[each] > 0)
        assert source in candidates
        assert source != last or candidates == [source]
        left[source] -= 1
        given_in_cycle[source] += 1
        last = source
        if late:
            left[late.pop() % len(left)] += 1
    assert turns.take(lambda each: left[each] > 0) is None
