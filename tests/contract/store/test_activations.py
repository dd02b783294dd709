"""What is wanted of activations: the same answers from every store, in every process."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow_provider_jmsjca.store.base import Store, WantedState
from airflow_provider_jmsjca.store.memory import MemoryStore
from airflow_provider_jmsjca.store.sql.store import SqlStore

STOPPED = WantedState.STOPPED
HOSTILE = "no \0 stock '; DROP TABLE jms_activation; -- " + "é" * 3_000


def seen_from(store: Store, where: str) -> Store:
    if isinstance(store, MemoryStore):
        return store.seen_from(where)
    assert isinstance(store, SqlStore)
    return SqlStore(store.database, where=where)


def test_a_stop_lasts_for_every_process_until_it_is_resumed_j172(store: Store) -> None:
    """J172: only an action from outside resumes the delivery."""
    assert store.activations.order("orders") is None
    store.activations.want("orders", STOPPED, reason="disk full", asked_by="handler of message 1")
    other = seen_from(store, "host/2")
    found = other.activations.order("orders")
    assert found is not None
    assert (found.activation, found.wanted, found.reason) == ("orders", STOPPED, "disk full")
    assert (found.asked_by, found.where) == ("handler of message 1", "host/1")
    assert abs(found.since - datetime.now(UTC)) < timedelta(seconds=60)
    assert other.activations.page() == [found]
    assert other.activations.order("bills") is None
    assert other.activations.resume(["bills"]) == 0
    assert other.activations.resume(["orders", "bills"]) == 1
    assert store.activations.order("orders") is None
    assert store.activations.page() == []


def test_the_first_of_equal_orders_stays(store: Store) -> None:
    for reason in ("disk full", "disk still full"):
        store.activations.want("orders", STOPPED, reason=reason, asked_by="")
    assert [each.reason for each in store.activations.page()] == ["disk full"]


def test_names_and_reasons_are_anything(store: Store) -> None:
    """They are listed by a digest, by which they can be resumed too."""
    name = "orders\0 " + "x" * 300
    store.activations.want(name, STOPPED, reason=HOSTILE, asked_by=HOSTILE)
    (listed,) = store.activations.page()
    assert store.activations.order(name) == listed == store.activations.order(listed.activation)
    assert len(listed.reason) <= 2_000
    assert store.activations.resume([listed.activation]) == 1


def test_pages(store: Store) -> None:
    for number in range(5):
        store.activations.want(f"a{number}", STOPPED, reason="", asked_by="")
    assert [each.activation for each in store.activations.page(limit=2, after=3)] == ["a3", "a4"]
    assert len(store.activations.page(limit=2)) == 2
