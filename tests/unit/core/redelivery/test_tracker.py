"""The tables of counts and notes: J132, J169-J171."""

from __future__ import annotations

import pytest

from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.redelivery import MessageState, RedeliveryHandling, RedeliveryTracker
from airflow_provider_jmsjca.core.redelivery.tracker import RecentMessages


def test_j132_forgets_the_least_recently_stored_first() -> None:
    recent: RecentMessages[int] = RecentMessages(limit=2)
    for number, name in enumerate(("a", "b", "a", "c")):
        recent[name] = number
    assert dict(recent) == {"a": 2, "c": 3}


def test_j132_default_limit() -> None:
    tracker = RedeliveryTracker()
    for number in range(5001):
        tracker.note(str(number))
        tracker.flags[str(number)] = True
    for table in (tracker.states, tracker.flags):
        assert len(table) == 5000
        assert "0" not in table
        assert "1" in table


def test_j169_j171_state_is_kept_with_the_count() -> None:
    tracker = RedeliveryTracker()
    handling = RedeliveryHandling.parse("1:delete")
    failure = Failure(class_names=("a.B",), message="no")
    tracker.note("a", rollback_data={"mode": "permanent"})
    assert tracker.state("a").seen == 0
    tracker.at_least("a", 1)
    tracker.note("a", handling=handling, failure=failure)
    tracker.note("a", rollback_data={"step": "2"})
    assert tracker.state("a") == MessageState(
        seen=1, rollback_data={"mode": "permanent", "step": "2"}, failure=failure, handling=handling
    )
    assert tracker.state("a", 7).seen == 7
    assert tracker.state("b") == MessageState()


def test_j169_what_is_left_last_is_what_is_found() -> None:
    tracker = RedeliveryTracker()
    tracker.note("a", rollback_data={"mode": "permanent", "step": "1"})
    tracker.note("a", rollback_data={"step": "2"})
    assert tracker.state("a").rollback_data == {"mode": "permanent", "step": "2"}


def test_a_count_is_never_lowered() -> None:
    tracker = RedeliveryTracker()
    tracker.at_least("a", 3)
    tracker.at_least("a", 2)
    assert tracker.state("a").seen == 3


def test_j132_notes_are_bounded_with_the_counts() -> None:
    tracker = RedeliveryTracker(limit=3)
    for number in range(10):
        tracker.note(str(number), rollback_data={"k": "v"})
    assert len(tracker.states) == 3


def test_limit_must_be_positive() -> None:
    with pytest.raises(ValueError, match="the limit is 0"):
        RedeliveryTracker(limit=0)


def test_a_limit_of_one_is_a_limit() -> None:
    tracker = RedeliveryTracker(limit=1)
    tracker.note("a")
    tracker.note("b")
    assert list(tracker.states) == ["b"]
