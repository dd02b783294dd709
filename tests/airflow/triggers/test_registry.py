"""Event triggers in the registry: they close their subscription on request, and stay registered."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_jmsjca import ActivationKind, MemoryBroker, RunStatus, WantedState, open_store
from tests.airflow.triggers.test_activation import send, triggerer
from tests.airflow.triggers.waiting import run, until

SOON = 10.0


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    monkeypatch.setenv("AIRFLOW__JMSJCA__STORE_URL", url)
    with contextlib.closing(open_store(url)) as opened:
        yield opened


def reports(store: Any) -> list[Any]:
    return [each.report for each in store.activations.runs()]


def request(store: Any, wanted: WantedState) -> None:
    (name,) = {each.activation for each in reports(store)}
    store.activations.request_state(name, wanted, reason="maintenance", asked_by="ada")


@pytest.mark.parametrize("event", ["message", "ready"])
def test_a_suspended_trigger_makes_no_events_until_it_is_resumed(
    server: MemoryBroker, store: Any, caplog: pytest.LogCaptureFixture, event: str
) -> None:
    async def work() -> None:
        async with triggerer() as running:
            more: dict[str, Any] = {"interval": 0.2} if event == "ready" else {}
            watcher = running.watch(event=event, task=("dag", "wait"), **more)
            await until(lambda: [each.status for each in reports(store)] == [RunStatus.UP], SOON)
            (found,) = reports(store)
            assert (found.kind, found.owner) == (ActivationKind.TRIGGER, "task dag.wait")
            assert found.destination == "queue://orders"
            request(store, WantedState.SUSPENDED)
            await until(lambda: reports(store)[0].status is RunStatus.SUSPENDED, SOON)
            assert "suspended since" in caplog.text
            assert "The trigger stays registered but makes no events" in caplog.text
            send(server, "a")
            again = running.watch(event=event, task=("dag", "again"), message_selector="1 = 1", **more)
            await until(lambda: len(reports(store)) == 2, SOON)
            assert watcher.events == again.events == []
            store.activations.resume([found.activation])
            await until(lambda: bool(watcher.events or again.events), SOON)
            assert "resumed; it subscribes again" in caplog.text
        await until(lambda: {each.status for each in reports(store)} == {RunStatus.ENDED}, SOON)

    run(work())


@pytest.mark.parametrize("batch", [{}, {"batch_size": 10, "batch_timeout": 60}], ids=["one", "batch"])
def test_events_under_way_are_finished_and_others_wait_for_the_resumption(
    server: MemoryBroker, store: Any, batch: dict[str, Any]
) -> None:
    """No message makes two events, and none is lost."""

    async def work() -> None:
        async with triggerer() as running:
            watcher = running.watch(**batch)
            if not batch:
                watcher.stores = False
            send(server, "a")
            if not batch:
                await until(lambda: watcher.bodies == ["a"], SOON)
            await until(lambda: [each.status for each in reports(store)] == [RunStatus.UP], SOON)
            request(store, WantedState.STOPPED)
            await until(lambda: reports(store)[0].status in {RunStatus.DRAINING, RunStatus.SUSPENDED}, SOON)
            send(server, "b")
            watcher.stores = True
            watcher.store()
            await until(lambda: reports(store)[0].status is RunStatus.SUSPENDED, SOON)
            left = [message.body for message in server.messages("orders")]
            assert left == (["a", "b"] if batch else ["b"])
            store.activations.resume([reports(store)[0].activation])
            if batch:
                for body in "cdefghij":
                    send(server, body)
                await until(lambda: len(watcher.events) == 1, SOON)
            else:
                await until(lambda: watcher.bodies == ["a", "b"], SOON)
            await until(lambda: not server.messages("orders"), SOON)
            await asyncio.sleep(0)

    run(work())


def test_dead_letters_and_their_cause_are_counted(server: MemoryBroker, store: Any) -> None:
    """Also over another opening of the stream."""

    async def work() -> None:
        async with triggerer() as running:
            running.watch(max_body_bytes=1000, redelivery_handling="1:move(queue:$.dead)")
            for number in (1, 2):
                send(server, "a", region="x" * 2000)
                await until(lambda number=number: [each.dead_lettered for each in reports(store)] == [number])
                (found,) = reports(store)
                assert "PoisonMessageError: the content of its event exceeds" in found.last_error
                request(store, WantedState.SUSPENDED)
                await until(lambda: reports(store)[0].status is RunStatus.SUSPENDED, SOON)
                store.activations.resume([found.activation])
                await until(lambda: reports(store)[0].status is RunStatus.UP, SOON)

    run(work())
    assert server.depth("orders.dead") == 2
