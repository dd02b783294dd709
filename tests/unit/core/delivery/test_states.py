"""Transitions of in-flight messages and units of work: a table, which unit tests enforce."""

from __future__ import annotations

from typing import get_args

import pytest

from airflow_provider_jmsjca.core.delivery import events as e
from airflow_provider_jmsjca.core.delivery.states import (
    TRANSITIONS,
    Condition,
    Counted,
    InFlightMessage,
    Phase,
    Prospect,
    Unit,
    check_transition,
)
from tests.unit.core.delivery.harness import Run


def message() -> InFlightMessage:
    return InFlightMessage(e.MessageArrived(delivery=1, message_id="ID:a"), "ID:a")


def test_each_state_has_a_row() -> None:
    states = {each for kind in (Condition, Counted, Phase, Prospect) for each in kind}
    assert set(TRANSITIONS) == states
    assert all(type(after) is type(before) for before in states for after in TRANSITIONS[before])


@pytest.mark.parametrize(
    ("owner", "name", "states"),
    [
        (Unit(1), "phase", [Phase.TAKING, Phase.COMMITTING]),
        (Unit(1), "phase", [Phase.HANDLING, Phase.COMMITTING, Phase.OVER, Phase.TAKING]),
        (Unit(1), "prospect", [Prospect.LOST, Prospect.COMMIT]),
        (message(), "counted", [Counted.SEEN, Counted.STORED]),
        (message(), "condition", [Condition.IN_DOUBT, Condition.DELIVERABLE]),
    ],
)
def test_an_unknown_transition_raises_in_every_unit_test(
    owner: object, name: str, states: list[object]
) -> None:
    *before, last = states
    for each in before:
        setattr(owner, name, each)
    with pytest.raises(AssertionError, match="never becomes"):
        setattr(owner, name, last)


def test_the_same_state_is_no_transition() -> None:
    check_transition(Phase.OVER, Phase.OVER)


def test_a_message_has_few_fields() -> None:
    """Booleans that several classes write are what these states replaced."""
    unit, in_flight = Unit(1), message()
    flags = [name for name in InFlightMessage.__slots__ if isinstance(getattr(in_flight, name), bool)]
    assert (len(InFlightMessage.__slots__) <= 10, len(flags) <= 3) == (True, True)
    assert not [name for name in Unit.__slots__ if isinstance(getattr(unit, name), bool)]


def test_the_machine_handles_every_event() -> None:
    assert set(Run().machine._handlers) == set(get_args(e.Event))
