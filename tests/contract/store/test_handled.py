"""Ids of handled messages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow_provider_jmsjca import Store

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


def test_an_id_is_known_to_its_activation_once_it_was_handled(store: Store) -> None:
    store.handled.add("orders", ["m1", "\0", "x" * 999], NOON)
    store.handled.add("orders", ["m1"], NOON)
    assert store.handled.known("orders", ["m1", "m2", "\0", "x" * 999]) == {"m1", "\0", "x" * 999}
    assert store.handled.known("bills", ["m1"]) == frozenset()
    assert store.handled.known("orders", []) == frozenset()


def test_the_window_is_bounded_by_count_and_age(store: Store) -> None:
    for number in range(5):
        store.handled.add("orders", [f"m{number}"], NOON + timedelta(seconds=number))
    store.handled.add("bills", ["b0"], NOON - timedelta(days=8))
    assert store.handled.sweep(NOON + timedelta(seconds=5), keep=3) == 3
    assert store.handled.known("orders", [f"m{number}" for number in range(5)]) == {"m2", "m3", "m4"}
    assert store.handled.known("bills", ["b0"]) == frozenset()


def test_an_id_handled_again_is_as_young_as_that(store: Store) -> None:
    for number in (0, 1, 2, 0):
        store.handled.add("orders", [f"m{number}"], NOON + timedelta(seconds=number))
    store.handled.add("orders", ["m0"], NOON + timedelta(seconds=9))
    store.handled.sweep(NOON + timedelta(seconds=9), keep=1)
    assert store.handled.known("orders", ["m0", "m1", "m2"]) == {"m0"}
