"""Whose turn it is: round robin with a quantity for each destination."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.delivery.in_hand import Turns


def played(turns: Turns, waiting: list[int], *, cycles: int = 1000) -> str:
    """Take until nothing is left or so many cycles are over; destinations are called A, B, C ..."""
    order = ""
    while turns.cycle < cycles:
        before = turns.cycle
        source = turns.take(lambda each: waiting[each] > 0)
        if source is None or (turns.cycle > before and turns.cycle >= cycles):
            break
        waiting[source] -= 1
        order += "ABCDE"[source]
    return order


def test_the_worked_example() -> None:
    """I4, I5, I6, I51: A=2, B=1, C=5, PollQuantity=2: A, B, C, A, (B empty), C; C keeps 3."""
    waiting = [2, 1, 5]
    assert played(Turns(3, 2), waiting, cycles=1) == "ABCAC"
    assert waiting == [0, 0, 3]


def test_what_a_destination_keeps_comes_in_the_next_cycles() -> None:
    """I4: a cycle that is over is followed by another one."""
    assert played(Turns(3, 2), [2, 1, 5]) == "ABCACCCC"
    assert played(Turns(2, 1), [2, 3]) == "ABABB"


def test_a_cycle_begins_with_the_first_destination() -> None:
    """I5: with a quantity of 1 a destination that got something late waits for the next cycle."""
    turns = Turns(3, 1)
    waiting = [1, 1, 0]
    assert turns.take(lambda each: waiting[each] > 0) == 0
    waiting[0] = 1  # A again, C still empty
    assert turns.take(lambda each: waiting[each] > 0) == 1
    waiting[1] = 0
    assert turns.cycle == 0
    assert turns.take(lambda each: waiting[each] > 0) == 0
    assert turns.cycle == 1


def test_nobody_has_any() -> None:
    turns = Turns(2, 1)
    assert turns.take(lambda _: False) is None
    assert turns.cycle == 0


@given(
    waiting=st.lists(st.integers(0, 8), min_size=1, max_size=5),
    quantity=st.integers(1, 4),
)
def test_fair_and_complete(waiting: list[int], quantity: int) -> None:
    """I4, I5: each cycle gives at most `quantity` of each; everything comes; nobody gets two turns in a row
    while another one has a message and quantity left."""
    turns = Turns(len(waiting), quantity)
    left, given_in_cycle, cycle = list(waiting), [0] * len(waiting), 0
    last: int | None = None
    for _ in range(sum(waiting)):
        before = list(left)
        source = turns.take(lambda each: left[each] > 0)
        assert source is not None
        if turns.cycle != cycle:
            assert all(
                not before[each] or given_in_cycle[each] == quantity for each in range(len(waiting))
            ), "a cycle ends only when nobody can give"
            cycle, given_in_cycle, last = turns.cycle, [0] * len(waiting), None
        others = [
            each
            for each in range(len(waiting))
            if each != source and before[each] and given_in_cycle[each] < quantity
        ]
        assert source != last or not others
        left[source] -= 1
        given_in_cycle[source] += 1
        assert given_in_cycle[source] <= quantity
        last = source
    assert turns.take(lambda each: left[each] > 0) is None
