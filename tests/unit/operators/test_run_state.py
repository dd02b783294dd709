from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_jmsjca.engine.delivering.statistics import Counts
from airflow_provider_jmsjca.operators.run_state import RunState

ONE = Counts(delivered=1, committed=1)


def woken(run_state: RunState, now: float = 0, **event: Any) -> RunState:
    """Send it to the triggerer, which sees a message, and back."""
    seen = {"event": "ready", "watch": "queue://a", "message_id": "m1", "deliveries": 0}
    state = json.loads(json.dumps(run_state.as_state()))
    return RunState.resumed({**seen, "state": state, **event}, now)


def after(run_state: RunState, now: float, counts: Counts | None = None, **how: Any) -> RunState:
    given: dict[str, Any] = {"began": now - 5, "quiet": 5, "idle_for": 60, "interval": 5, **how}
    return run_state.after(counts or run_state.counts, now, **given)


@pytest.mark.parametrize(
    ("idle_until", "idle_for", "defer_after", "expected"),
    [
        (None, None, None, None),
        (None, 60, None, 60),
        (None, None, 5, 5),
        (None, 60, 5, 5),
        (None, 3, 5, 3),
        (1030, 60, 5, 5),
        (1003, 60, 5, 3),
        (1000.1, 60, 5, 1),  # long enough for the broker to answer
        (900, 60, 5, 1),
        (900, 60, 0.5, 0.5),
        (900, 0.2, 5, 0.2),
    ],
)
def test_how_long_it_waits_at_the_worker(
    idle_until: float | None, idle_for: float | None, defer_after: float | None, expected: float | None
) -> None:
    run_state = RunState(idle_until=idle_until)
    assert run_state.idle_limit(1000, idle_for=idle_for, defer_after=defer_after) == expected


def test_nothing_came_since_the_last_message_and_not_since_the_last_deferral() -> None:
    first = after(RunState(), 1000)
    assert first.idle_until == 1055
    second = after(woken(first), 1030)
    assert second.idle_until == 1055
    third = after(woken(second), 1040, ONE)
    assert (third.idle_until, third.counts) == (1095, ONE)


def test_without_idle_for_it_is_never_idle() -> None:
    assert after(RunState(until=2000), 1000, idle_for=None).deadline == 2000
    assert after(RunState(), 1000, idle_for=None).deadline is None


@pytest.mark.parametrize(
    ("until", "idle_until", "expected"),
    [(5, None, (5, True)), (5, 6, (5, True)), (6, 5, (5, False)), (None, 5, (5, False))],
)
def test_which_end_the_deadline_is(
    until: float | None, idle_until: float | None, expected: tuple[float, bool]
) -> None:
    run_state = RunState(until=until, idle_until=idle_until)
    assert (run_state.deadline, run_state.ends_by_time) == expected


def test_at_the_deadline_the_clock_of_the_triggerer_decides() -> None:
    """A worker whose clock is behind doesn't wait on."""
    run_state = RunState(until=2000, idle_until=1055)
    resumed = RunState.resumed({"event": "deadline", "state": run_state.as_state()}, 1054)
    assert resumed.idle_limit(1054, idle_for=60, defer_after=5) == 1


def test_what_travels_comes_back() -> None:
    run_state = replace(
        after(woken(RunState(until=9000)), 1000), counts=ONE, members_down=("broker-a:61613",)
    )
    assert replace(woken(run_state), woken_by=None) == run_state


def test_a_queue_whose_message_nobody_gets_rests_longer_and_longer() -> None:
    run_state = after(RunState(), 1000)
    assert run_state.pauses == {}
    waits = []
    for _ in range(8):
        run_state = after(woken(run_state), 1000)
        waits.append(run_state.pauses["queue://a"].until - 1000)
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300]


def test_a_queue_that_moves_rests_for_one_interval() -> None:
    run_state = RunState()
    for number in range(3):
        run_state = after(woken(run_state, message_id=f"m{number}"), 1000)
        assert run_state.pauses["queue://a"].until == 1005
    for _ in range(3):
        run_state = after(woken(run_state, message_id=None), 1000)
        assert run_state.pauses["queue://a"].until == 1005


def test_a_look_that_counts_as_a_delivery_doubles_the_rest() -> None:
    assert after(woken(RunState(), deliveries=4), 1000).pauses["queue://a"].until == 1040


def test_the_rest_is_over_when_something_came() -> None:
    run_state = after(woken(after(woken(RunState()), 1000)), 1000, ONE)
    assert run_state.pauses == {}


def test_each_queue_rests_for_itself() -> None:
    run_state = after(woken(after(woken(RunState()), 1000)), 1000)
    other = after(woken(run_state, watch="queue://b"), 1000)
    assert {name: rest.until for name, rest in other.pauses.items()} == {"queue://a": 1010, "queue://b": 1005}
    assert after(woken(other, watch="queue://b"), 1000, ONE).pauses == run_state.pauses


def test_that_a_parked_message_only_fails_is_known_over_deferrals() -> None:
    """Each time it comes back it fails once more, and is parked: for the run nothing is left."""
    failed = Counts(delivered=1, rolled_back=1)
    state = after(RunState(), 1000, failed, began=990)
    assert state.failing_since is None  # it was its first delivery: something else had happened
    for number in range(1, 13):
        now = 1000 + 10 * number
        failed += Counts(delivered=1, redelivered=1, rolled_back=1)
        state = after(woken(state), now, failed, began=now - 2)
    assert (state.failing_since, state.failures_before) == (1008, 1)
    assert state.has_only_failures(1120, failure_timeout=60, failures=12)
    assert not state.has_only_failures(1120, failure_timeout=60, failures=13)
    assert not state.has_only_failures(1120, failure_timeout=120, failures=12)
    quiet = after(woken(state), 1130, began=1128)
    assert quiet.failing_since == 1008  # nothing at all is nothing else
    other = after(woken(quiet), 1140, failed + ONE, began=1138)
    assert other.failing_since is None
    assert not other.has_only_failures(2000, failure_timeout=60, failures=0)
