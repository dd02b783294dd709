"""Destinations that are refused while others are consumed."""

from __future__ import annotations

from datetime import timedelta

from airflow_provider_jmsjca.core.delivery.outage import RefusedDestinations


def test_a_refused_destination_is_tried_again_later_and_later() -> None:
    """I5: 1, 5, 15, 60, 60 ... seconds; the others are not held up."""
    refusals = RefusedDestinations()
    now = 0.0
    for seconds in (1, 5, 15, 60, 60):
        assert refusals.refused(1, "no permission", now, 0.0, final=True) == timedelta(seconds=seconds)
        assert refusals.may_try(0, now)
        assert not refusals.may_try(1, now + seconds - 0.1)
        assert refusals.due(now + seconds - 0.1) == ()
        assert refusals.next_due == now + seconds
        now += seconds
        assert refusals.may_try(1, now)
        assert refusals.due(now) == (1,)
    assert refusals.reasons == {1: "no permission"}


def test_a_destination_that_is_accepted_begins_anew() -> None:
    refusals = RefusedDestinations()
    assert not refusals.accepted(0)
    refusals.refused(0, "no permission", 0.0, 0.0, final=True)
    assert refusals.accepted(0)
    assert (refusals.reasons, refusals.next_due) == ({}, None)
    assert refusals.refused(0, "no permission", 9.0, 0.0, final=True) == timedelta(seconds=1)


def test_what_is_refused_for_good_is_told_from_what_may_end() -> None:
    refusals = RefusedDestinations()
    refusals.refused(0, "no permission", 0.0, 0.0, final=True)
    assert refusals.all_final is True
    refusals.refused(1, "in use", 0.0, 0.0, final=False)
    assert refusals.all_final is False
    refusals.accepted(1)
    assert refusals.all_final is True
