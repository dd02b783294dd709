"""The registry of activations: the same answers from every store, in every process."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import event

from airflow_provider_jmsjca import ActivationKind, RunReport, RunStatus, Store, WantedState
from tests.contract.store.conftest import new_store
from tests.internals.store import ActivationSample, SqlStore
from tests.memory_store import MemoryStore

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
    store.activations.request_state("orders", STOPPED, reason="disk full", asked_by="handler of message 1")
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
        store.activations.request_state("orders", STOPPED, reason=reason, asked_by="")
    assert [each.reason for each in store.activations.page()] == ["disk full"]


def test_names_and_reasons_are_anything(store: Store) -> None:
    """They are listed by a digest, by which they can be resumed too."""
    name = "orders\0 " + "x" * 300
    store.activations.request_state(name, STOPPED, reason=HOSTILE, asked_by=HOSTILE)
    (listed,) = store.activations.page()
    assert store.activations.order(name) == listed == store.activations.order(listed.activation)
    assert len(listed.reason) <= 2_000
    assert store.activations.resume([listed.activation]) == 1


def test_pages(store: Store) -> None:
    for number in range(5):
        store.activations.request_state(f"a{number}", STOPPED, reason="", asked_by="")
    assert [each.activation for each in store.activations.page(limit=2, after=3)] == ["a3", "a4"]
    assert len(store.activations.page(limit=2)) == 2


START = datetime(2026, 5, 4, 12, tzinfo=UTC)


def report(run: str, activation: str = "orders", **changes: Any) -> RunReport:
    given: dict[str, Any] = {
        "run": run,
        "activation": activation,
        "title": activation,
        "kind": ActivationKind.LISTENER,
        "owner": "dag.task",
        "broker": "stomp://a:61613",
        "destination": "queue://orders",
        "spec_digest": "d" * 64,
        "status": RunStatus.UP,
        "started_at": START,
        "since": START,
    }
    return RunReport(**given | changes)


def test_runs_are_reported_by_each_process_and_updated(store: Store) -> None:
    other = seen_from(store, "host/2")
    first = report("1")
    store.activations.report([first, report("2", "bills")])
    other.activations.report([report("3", owner="dag.other")])
    later = replace(
        first,
        status=RunStatus.SUSPENDED,
        since=START + timedelta(seconds=1),
        delivered=2**33,
        committed=5,
        rolled_back=4,
        moved=3,
        deleted=2,
        dead_lettered=1,
        in_flight=7,
        backlog=9,
        last_message_at=START,
        last_error="no stock",
        last_error_at=START,
        oldest_at=START,
    )
    store.activations.report([later])
    store.activations.report([])
    bills, orders, others = store.activations.runs()
    assert (bills.report, orders.report) == (report("2", "bills"), later)
    assert (orders.process, others.process) == ("host/1", "host/2")
    assert orders.pid == os.getpid()
    assert abs(orders.seen_at - datetime.now(UTC)) < timedelta(seconds=60)
    assert other.activations.runs(["orders"]) == [orders, others]
    assert other.activations.runs(["unknown"]) == []


def test_a_process_finds_the_requests_for_its_activations(store: Store) -> None:
    """A requested state belongs to the activation, and outlives all its runs."""
    other = seen_from(store, "host/2")
    store.activations.report([report("1"), report("2", "bills")])
    other.activations.report([report("3"), report("4", "far", status=RunStatus.ENDED)])
    for name, wanted in {"orders": WantedState.SUSPENDED, "far": STOPPED, "new": WantedState.DRAINED}.items():
        other.activations.request_state(name, wanted, reason="disk full", asked_by="ada")
    assert store.activations.orders().keys() == other.activations.orders().keys() == {"orders"}
    assert store.activations.orders()["orders"].wanted is WantedState.SUSPENDED
    store.activations.request_state("orders", STOPPED, reason="disk gone", asked_by="bob")
    found = other.activations.orders()["orders"]
    assert (found.wanted, found.reason, found.asked_by) == (STOPPED, "disk gone", "bob"), "the latest holds"
    store.activations.report([report("1", status=RunStatus.ENDED)])
    assert store.activations.orders() == {}
    assert other.activations.resume(["orders"]) == 1
    assert other.activations.orders() == {}


def test_a_process_without_a_heartbeat_has_lost_runs(store: Store) -> None:
    dead = seen_from(store, "host/2")
    dead.activations.report([report("1"), report("2", status=RunStatus.ENDED)])
    store.activations.report([report("3", "live")])
    dead.owners.leave()
    status = {each.report.run: each.report.status for each in store.activations.runs()}
    assert status == {"1": RunStatus.LOST, "2": RunStatus.ENDED, "3": RunStatus.UP}


def test_names_and_texts_of_runs_are_anything(store: Store) -> None:
    name = "orders\0 " + "x" * 300
    given = report("1", name, title=name, owner=HOSTILE, destination=HOSTILE, last_error=HOSTILE + "\ud800")
    store.activations.report([given])
    (found,) = store.activations.runs([name])
    assert store.activations.runs([found.report.activation]) == [found]
    assert len(found.report.last_error) <= 2_000
    store.activations.request_state(name, STOPPED, reason="", asked_by="")
    assert store.activations.orders().keys() == {found.report.activation}
    store.activations.request_state(found.report.activation, WantedState.SUSPENDED, reason="", asked_by="")
    assert [each.wanted for each in store.activations.page()] == [WantedState.SUSPENDED]


def test_only_so_many_dead_runs_are_kept(store: Store) -> None:
    dead = seen_from(store, "host/2")
    dead.activations.report([report(f"lost {number}") for number in range(3)])
    store.activations.report([report(f"ended {number}", status=RunStatus.ENDED) for number in range(3)])
    store.activations.report([report("live")])
    dead.owners.leave()
    assert store.activations.sweep() == 0
    assert store.activations.sweep(keep=4) == 2
    assert store.activations.sweep(max_ended_age=-timedelta(hours=1), max_lost_age=timedelta(hours=1)) <= 3
    left = {each.report.run for each in store.activations.runs()}
    assert "live" in left
    assert not any(each.startswith("ended") for each in left)
    store.activations.sweep(max_lost_age=-timedelta(hours=1))
    assert [each.report.run for each in store.activations.runs()] == ["live"]


def test_a_thousand_runs_are_two_statements(tmp_path: Path) -> None:
    """Not a thousand: a triggerer reports all its triggers at once."""
    store = new_store(f"sqlite:///{tmp_path / 'store.db'}")
    statements: list[str] = []
    with store.database.read() as connection:
        event.listen(connection.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    store.activations.report([report(str(number), f"a{number}") for number in range(1_000)])
    assert sum("jms_activation_run" in each for each in statements) == 2
    assert len(store.activations.runs()) == 1_000
    store.close()


def test_samples_of_all_processes_add_up_by_the_minute(store: Store) -> None:
    now = datetime.now(UTC).replace(second=10, microsecond=0)
    minute, name = now.replace(second=0), "orders\0 " + "x" * 300
    first = ActivationSample(
        activation=name, at=now, delivered=3, committed=2, failed=1, dead_lettered=1, backlog=7, oldest_at=now
    )
    store.activations.add_samples([first, ActivationSample(activation="bills", at=now)])
    later = now + timedelta(seconds=20)
    again = ActivationSample(activation=name, at=later, delivered=2)
    seen_from(store, "host/2").activations.add_samples([again, again])
    next_minute = now + timedelta(minutes=1)
    store.activations.add_samples(
        [replace(first, at=next_minute), replace(first, at=next_minute, backlog=0, oldest_at=None)]
    )
    found = store.activations.samples(name, now)
    assert store.activations.samples(found[0].activation, now) == found
    assert found == [
        replace(first, activation=found[0].activation, at=minute, delivered=7),
        ActivationSample(
            activation=found[0].activation,
            at=minute + timedelta(minutes=1),
            delivered=6,
            committed=4,
            failed=2,
            dead_lettered=2,
            backlog=0,
        ),
    ]
    assert store.activations.samples(name, next_minute) == found[1:]
    assert store.activations.samples("unknown", now) == []


def test_only_so_many_samples_are_kept(store: Store) -> None:
    now = datetime.now(UTC)
    store.activations.add_samples(
        [ActivationSample(activation="orders", at=now - timedelta(minutes=each)) for each in range(10)]
    )

    def kept() -> int:
        return len(store.activations.samples("orders", now - timedelta(days=1)))

    store.activations.sweep()
    assert kept() == 10
    store.activations.sweep(max_sample_age=timedelta(minutes=7, seconds=30))
    assert kept() in {7, 8}
    store.activations.sweep(keep_samples=4)
    assert kept() == 4


def test_a_thousand_samples_are_two_statements(tmp_path: Path) -> None:
    store = new_store(f"sqlite:///{tmp_path / 'store.db'}")
    statements: list[str] = []
    with store.database.read() as connection:
        event.listen(connection.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    now = datetime.now(UTC)
    store.activations.add_samples(
        [ActivationSample(activation=f"a{number}", at=now) for number in range(1_000)]
    )
    assert sum("jms_activation_sample" in each for each in statements) == 2
    store.close()
