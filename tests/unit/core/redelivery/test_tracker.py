"""The cache of counts: J129-J132, J169-J171."""

from __future__ import annotations

import pytest

from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.redelivery import MessageState, RedeliveryHandling, RedeliveryTracker


def test_j130_the_first_redelivery_counts_one() -> None:
    tracker = RedeliveryTracker()
    assert [tracker.seen("a"), tracker.seen("a"), tracker.seen("b"), tracker.seen("a")] == [1, 2, 1, 3]
    assert tracker.state("a").seen == 3
    assert tracker.state("c") == MessageState()


def test_j132_forgets_the_least_recently_seen_first() -> None:
    tracker = RedeliveryTracker(limit=2)
    tracker.seen("a")
    tracker.seen("b")
    tracker.seen("a")
    tracker.seen("c")
    assert len(tracker) == 2
    assert "b" not in tracker
    assert tracker.seen("a") == 3


def test_j132_default_limit() -> None:
    tracker = RedeliveryTracker()
    for number in range(5001):
        tracker.seen(str(number))
    assert len(tracker) == 5000
    assert "0" not in tracker
    assert "1" in tracker


def test_j169_j171_state_is_kept_with_the_count() -> None:
    tracker = RedeliveryTracker()
    handling = RedeliveryHandling.parse("1:delete")
    failure = Failure(class_names=("a.B",), message="no")
    tracker.note("a", rollback_data={"mode": "permanent"})
    assert tracker.state("a").seen == 0
    tracker.seen("a")
    tracker.note("a", handling=handling, failure=failure)
    tracker.note("a", rollback_data={"step": "2"})
    assert tracker.state("a") == MessageState(
        seen=1, rollback_data={"mode": "permanent", "step": "2"}, failure=failure, handling=handling
    )


def test_j169_what_is_left_last_is_what_is_found() -> None:
    tracker = RedeliveryTracker()
    tracker.note("a", rollback_data={"mode": "permanent", "step": "1"})
    tracker.note("a", rollback_data={"step": "2"})
    assert tracker.state("a").rollback_data == {"mode": "permanent", "step": "2"}


def test_j132_notes_are_bounded_with_the_counts() -> None:
    tracker = RedeliveryTracker(limit=3)
    for number in range(10):
        tracker.note(str(number), rollback_data={"k": "v"})
    assert len(tracker) == 3


def test_forget_starts_over() -> None:
    tracker = RedeliveryTracker()
    tracker.seen("a")
    tracker.forget("a")
    tracker.forget("a")
    assert tracker.seen("a") == 1


def test_limit_must_be_positive() -> None:
    with pytest.raises(ValueError, match="the limit is 0"):
        RedeliveryTracker(limit=0)


def test_two_trackers_count_on_their_own_j131() -> None:
    first, second = RedeliveryTracker(), RedeliveryTracker()
    assert [first.seen("m"), first.seen("m")] == [1, 2]
    assert second.seen("m") == 1
