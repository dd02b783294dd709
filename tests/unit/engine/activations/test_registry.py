"""Running activations are registered in the store, and obey the states requested for them there."""

from __future__ import annotations

import contextlib
import functools
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_jmsjca.engine.activations import registry
from airflow_provider_jmsjca.engine.activations.activation import Activation
from airflow_provider_jmsjca.engine.watching.depths import DepthProbes
from airflow_provider_jmsjca.errors import DeliveryStoppedError, SpoolError, TransientStoreError
from airflow_provider_jmsjca.operating.samples import samples
from airflow_provider_jmsjca.store.base import ActivationKind, RunReport, RunStatus, WantedState
from tests.memory_store import MemoryActivations, MemoryStore
from tests.unit.engine.listening import Site, fail, nothing, until

SPEC = {"name": "booking", "destination": "queue://orders"}
NAME = "booking at vm://"
IN_TIME = 10.0


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("host/1")


def only(store: MemoryStore) -> RunReport:
    (run,) = store.activations.runs()
    return run.report


def request(store: MemoryStore, wanted: WantedState) -> None:
    activation = only(store).activation
    store.activations.request_state(activation, wanted, reason="the disk is full", asked_by="ada")


def reaches(store: MemoryStore, status: RunStatus) -> None:
    until(lambda: only(store).status is status, within=IN_TIME)


def test_a_run_is_registered_with_its_counts_and_ends(site: Site, store: MemoryStore) -> None:
    site.send("a", "b")
    with Activation(SPEC, nothing, connection=site.settings, store=store, owner="billing") as activation:
        until(lambda: activation.counts.committed == 2)
        reaches(store, RunStatus.UP)
        found = only(store)
        assert (found.kind, found.owner, found.destination) == (
            ActivationKind.LISTENER,
            "billing",
            "queue://orders",
        )
        assert found.activation.startswith(NAME)
        assert len(found.spec_digest) == 64
    ended = only(store)
    assert (ended.status, ended.delivered, ended.committed, ended.in_flight) == (RunStatus.ENDED, 2, 2, 0)
    assert ended.last_message_at is not None


@pytest.mark.parametrize("kind", ["plain", "every_member"])
def test_suspend_and_resume_reach_a_running_listener(
    site: Site, store: MemoryStore, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    member = {} if kind == "plain" else {"distributed_destination_connection": "every_member"}
    with Activation(SPEC | member, nothing, connection=site.settings, store=store) as activation:
        reaches(store, RunStatus.UP)
        request(store, WantedState.SUSPENDED)
        reaches(store, RunStatus.SUSPENDED)
        site.send("a")
        assert "suspended since" in caplog.text
        assert "by ada (host/1): the disk is full. Nothing is consumed until" in caplog.text
        assert activation.counts.delivered == 0
        store.activations.resume([only(store).activation])
        until(lambda: activation.counts.committed == 1, within=IN_TIME)
        assert "resumed; it consumes again" in caplog.text


def test_a_suspension_holds_from_the_start_of_the_next_run(site: Site, store: MemoryStore) -> None:
    """Nothing is delivered before the request is known, not even in the first second."""
    activation = Activation(SPEC, nothing, connection=site.settings, store=store)
    assert activation.run(run_for=0.1).delivered == 0
    request(store, WantedState.SUSPENDED)
    site.send("a")
    activation.start()
    until(lambda: activation.suspended, within=IN_TIME)
    until(lambda: only_live(store).status is RunStatus.SUSPENDED, within=IN_TIME)
    assert activation.counts.delivered == 0
    store.activations.resume([only_live(store).activation])
    until(lambda: activation.counts.committed == 1, within=IN_TIME)
    activation.stop()


def test_samples_have_the_counts_of_each_minute_and_the_backlog(
    site: Site, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "SAMPLE_EVERY", timedelta(0))
    registrar = registry.Registrar(lambda: contextlib.nullcontext(store), report_every=timedelta(0))
    monkeypatch.setitem(registry._registrars, id(store), registrar)
    monkeypatch.setattr(registry, "DepthProbes", functools.partial(DepthProbes, after=timedelta(0)))
    spec = SPEC | {"redelivery_handling": "1:delete", "concurrency_mode": "serial"}
    site.send("a", "b")
    entered, leave = threading.Event(), threading.Event()

    def wait(_: Any) -> None:
        entered.set()
        assert leave.wait(20)

    with Activation(spec, wait, connection=site.settings, store=store):
        assert entered.wait(20)
        until(lambda: only(store).backlog is not None, within=IN_TIME)
        assert only(store).oldest_at is not None
        leave.set()
        until(lambda: only(store).committed == 2, within=IN_TIME)
    found = samples(store, only(store).activation, datetime.now(UTC) - timedelta(hours=1))
    assert sum(each.delivered for each in found) == sum(each.committed for each in found) == 2
    assert sum(each.failed for each in found) == 0
    assert found[0].backlog is not None


def only_live(store: MemoryStore) -> RunReport:
    (run,) = [each.report for each in store.activations.runs() if each.report.status is not RunStatus.ENDED]
    return run


def test_drain_finishes_the_message_in_the_handler_and_takes_no_other(site: Site, store: MemoryStore) -> None:
    entered, leave = threading.Event(), threading.Event()

    def wait(_: Any) -> None:
        entered.set()
        assert leave.wait(20)

    site.send("a", "b")
    activation = Activation(
        SPEC | {"concurrency_mode": "serial"}, wait, connection=site.settings, store=store
    )
    activation.start()
    assert entered.wait(5)
    until(store.activations.runs)
    request(store, WantedState.DRAINED)
    reaches(store, RunStatus.DRAINING)
    leave.set()
    reaches(store, RunStatus.ENDED)
    assert activation.counts.committed == activation.counts.delivered == 1
    with pytest.raises(DeliveryStoppedError, match=r"drained since .* the disk is full"):
        activation.run(idle_for=5)


def test_stop_ends_a_run_and_refuses_the_next(site: Site, store: MemoryStore) -> None:
    activation = Activation(SPEC, nothing, connection=site.settings, store=store)
    activation.start()
    until(store.activations.runs)
    request(store, WantedState.STOPPED)
    until(lambda: not activation.running, within=IN_TIME)
    assert "by ada" in activation.stop_reason
    other = Activation(SPEC, nothing, connection=site.settings, store=store.seen_from("host/2"))
    with pytest.raises(DeliveryStoppedError, match=r"stopped since .* the disk is full"):
        other.run(idle_for=5)


def test_dead_letters_and_the_exception_of_the_handler_are_reported(site: Site, store: MemoryStore) -> None:
    def raise_it(_: Any) -> None:
        raise ValueError("no stock for s3cret-word")

    site.send("a")
    spec = SPEC | {"redelivery_handling": "2:move(queue:dead)"}
    settings = replace(site.settings, username="app", password="s3cret-word")
    with Activation(spec, raise_it, connection=settings, store=store) as activation:
        until(lambda: activation.counts.moved == 1)
    found = only(store)
    assert (found.delivered, found.rolled_back, found.moved, found.dead_lettered) == (2, 2, 1, 1)
    assert found.last_error.startswith("ValueError: no stock for ")
    assert "s3cret-word" not in found.last_error


def test_the_last_error_is_reported(site: Site, store: MemoryStore) -> None:
    site.broker.kill()
    activation = Activation(SPEC, fail, connection=site.settings, store=store)
    activation.start()
    until(lambda: only(store).last_error)
    assert only(store).status is RunStatus.CONNECTING
    assert only(store).last_error_at is not None
    activation.stop()


def test_the_error_that_ends_a_collector_is_reported(store: MemoryStore) -> None:
    identity = registry.Identity(
        activation="orders",
        kind=ActivationKind.COLLECTOR,
        owner="task",
        destination="queue://q",
    )
    collector = registry.collecting(registry.registrar_of(store), identity, lambda: None)
    with pytest.raises(SpoolError), collector:
        raise SpoolError("can't be written: No space left on device")
    ended = only(store)
    assert (ended.status, ended.last_error) == (
        RunStatus.ENDED,
        "can't be written: No space left on device",
    )


class Away(MemoryActivations):
    """A registry whose database may be away."""

    away = False

    def report(self, *reports: Any) -> None:
        if self.away:
            raise TransientStoreError("the database is away")
        super().report(*reports)

    def orders(self) -> Any:
        if self.away:
            raise TransientStoreError("the database is away")
        return super().orders()


def test_a_store_that_is_away_stops_nothing_and_catches_up(
    site: Site, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.activations = away = Away("host/1", store.owners)
    with Activation(SPEC, nothing, connection=site.settings, store=store) as activation:
        reaches(store, RunStatus.UP)
        away.away = True
        site.send("a")
        until(lambda: activation.counts.committed == 1)
        until(lambda: "the database is away" in caplog.text)
        request(store, WantedState.SUSPENDED)
        away.away = False
        reaches(store, RunStatus.SUSPENDED)
        assert only(store).committed == 1
    assert only(store).status is RunStatus.ENDED


def test_an_activation_starts_while_the_store_is_away(
    site: Site, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_FIRST_ANSWER_SECONDS", 0.2)
    store.activations = away = Away("host/1", store.owners)
    away.away = True
    site.send("a")
    activation = Activation(SPEC, nothing, connection=site.settings, store=store)
    activation.start()
    until(lambda: activation.counts.committed == 1)
    activation.stop()
