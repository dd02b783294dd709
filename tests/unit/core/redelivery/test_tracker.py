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


def test_a_limit_of_one_is_a_limit() -> None:
    tracker = RedeliveryTracker(limit=1)
    tracker.seen("a")
    assert tracker.seen("b") == 1
    assert "a" not in tracker


def take_back(tracker: RedeliveryTracker, *, counted: bool = False, **known: bool) -> None:
    said = {"delivered": False, "flagged": False, **known}
    tracker.take_back("a", counted=counted, **said)


def test_a_sighting_that_led_to_nothing_is_not_counted() -> None:
    tracker = RedeliveryTracker()
    for _ in range(3):
        tracker.seen("a")
    take_back(tracker, counted=True)
    assert tracker.state("a").seen == 2
    take_back(tracker, counted=False, delivered=True)
    assert tracker.state("a").seen == 2, "it had not raised the count"


def test_no_count_goes_below_zero() -> None:
    tracker = RedeliveryTracker()
    tracker.note("a")
    take_back(tracker, counted=True)
    assert tracker.state("a").seen == 0


def test_what_was_never_counted_is_taken_back_without_a_trace() -> None:
    tracker = RedeliveryTracker()
    take_back(tracker, counted=True)
    assert "a" not in tracker
    assert "a" not in tracker.taken_back
    assert tracker.flag_means_failure("a")


def test_the_last_delivery_in_vain_says_what_the_next_flag_means() -> None:
    tracker = RedeliveryTracker()
    take_back(tracker, delivered=True, flagged=True)
    assert tracker.flag_means_failure("a")
    take_back(tracker, delivered=True)
    assert not tracker.flag_means_failure("a")
    take_back(tracker, flagged=True)
    assert not tracker.flag_means_failure("a"), "it had led to a hand-over before"
    assert "a" in tracker.taken_back
    assert tracker.flag_means_failure("b")
    tracker.forget("a")
    assert "a" not in tracker.taken_back
    assert tracker.flag_means_failure("a")


def test_of_what_was_taken_back_the_oldest_is_forgotten_first() -> None:
    tracker = RedeliveryTracker(limit=2)
    for name in ("a", "b", "a", "c"):
        tracker.take_back(name, counted=False, delivered=True, flagged=False)
    assert [name in tracker.taken_back for name in ("a", "b", "c")] == [True, False, True]


def test_two_trackers_count_on_their_own_j131() -> None:
    first, second = RedeliveryTracker(), RedeliveryTracker()
    assert [first.seen("m"), first.seen("m")] == [1, 2]
    assert second.seen("m") == 1


def test_after_the_first_subscription_only_a_flag_that_was_seen_before_counts() -> None:
    tracker = RedeliveryTracker()
    tracker.subscribed()
    assert tracker.flag_means_failure("a"), "of another process"
    take_back(tracker, delivered=True, flagged=True)
    tracker.subscribed()
    assert tracker.flag_means_failure("a")
    assert not tracker.flag_means_failure("b"), "it may have been on its way to this process"


def test_the_flag_after_an_attempt_counts_until_a_copy_takes_the_place_of_the_message() -> None:
    tracker = RedeliveryTracker()
    tracker.subscribed()
    tracker.subscribed()
    tracker.attempted("a")
    assert "a" in tracker
    assert tracker.flag_means_failure("a")
    tracker.parked("a")
    assert not tracker.flag_means_failure("a")
