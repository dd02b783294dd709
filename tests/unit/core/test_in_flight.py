from __future__ import annotations

from airflow_provider_jmsjca.core.in_flight import Arrival, InFlight


def test_a_message_is_new_once_and_repeated_until_it_is_settled() -> None:
    deliveries: InFlight[str] = InFlight()
    assert deliveries.arrived("ID:1", "first") is Arrival.NEW
    assert deliveries.arrived("ID:1", "second") is Arrival.REPEATED
    assert deliveries.pending == 1
    assert deliveries.settle("ID:1") == "second", "the older delivery is stale"
    assert deliveries.pending == 0
    assert deliveries.arrived("ID:1", "third") is Arrival.SETTLED


def test_what_is_forgotten_is_new_again() -> None:
    deliveries: InFlight[str] = InFlight()
    deliveries.arrived("ID:1", "first")
    deliveries.forget("ID:1")
    assert deliveries.arrived("ID:1", "second") is Arrival.NEW


def test_what_is_held_stays_held() -> None:
    deliveries: InFlight[str] = InFlight()
    deliveries.arrived("ID:1", "first")
    deliveries.hold("ID:1")
    assert (deliveries.pending, deliveries.held) == (0, 1)
    assert deliveries.arrived("ID:1", "second") is Arrival.HELD
    assert deliveries.newest("ID:1") is None


def test_the_oldest_settled_id_is_forgotten_first_and_a_repetition_refreshes_it() -> None:
    """J129: a bounded cache."""
    deliveries: InFlight[str] = InFlight(limit=2)
    for key in ("a", "b"):
        deliveries.arrived(key, key)
        deliveries.settle(key)
    assert deliveries.arrived("a", "again") is Arrival.SETTLED
    deliveries.arrived("c", "c")
    deliveries.settle("c")
    assert deliveries.arrived("a", "again") is Arrival.SETTLED
    assert deliveries.arrived("b", "again") is Arrival.NEW
