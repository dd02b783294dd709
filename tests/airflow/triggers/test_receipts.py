"""Messages are acknowledged when it is seen that their events were stored; Airflow's store is the test's."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from airflow.triggers.shared_stream import _SharedStreamGroup

from airflow_provider_jmsjca import JmsActivationTrigger, MemoryBroker
from tests.airflow.conftest import Publish
from tests.airflow.triggers.test_activation import Triggerer, Watcher, triggerer
from tests.airflow.triggers.test_holding import Store, Stores
from tests.airflow.triggers.waiting import run, until
from tests.internals.triggers import has_number, producers, receipt_of, receipts, with_number


class ReceivingWatcher(Watcher):
    """Stores an event as Airflow does, with what the plugin adds to that; or drops it and confirms it."""

    assets: tuple[Store, ...] = ()
    drops = False

    def store(self) -> None:
        for event in () if self.drops else self.events:
            for asset in self.assets:
                found = receipt_of({"payload": event.payload})
                assert found is not None
                key, stream, number = found
                asset.rows[key] = with_number(asset.rows.get(key), stream, number)
        super().store()


def watch(running: Triggerer, *assets: Store, **arguments: Any) -> ReceivingWatcher:
    trigger = JmsActivationTrigger("jms_test", "orders", **arguments)
    by_name = {f"asset{number}": each for number, each in enumerate(assets)}
    trigger.asset_state_store = Stores(by_name)  # type: ignore[assignment]
    watcher = ReceivingWatcher(running.manager, trigger, len(running.watchers) + 1)
    watcher.assets = assets
    running.watchers.append(watcher)
    return watcher


def test_what_is_stored_is_acknowledged(server: MemoryBroker, publish: Publish) -> None:
    async def work() -> None:
        async with triggerer() as running:
            first = watch(running, Store())
            publish("a", "b")
            await until(lambda: server.depth("orders") == 0)
            assert first.bodies == ["a", "b"]

    run(work())


@pytest.mark.parametrize("batch", [{}, {"batch_size": 2, "batch_timeout": 1}])
def test_what_airflow_dropped_goes_back_when_the_trigger_is_ended(
    server: MemoryBroker, publish: Publish, batch: dict[str, Any]
) -> None:
    """As Airflow does while a DAG is being paused: it confirms an event that nobody watches for."""

    async def work() -> None:
        asset = Store()
        async with triggerer() as running:
            first = watch(running, asset, **batch)
            first.drops = True
            publish("a", "b")
            await until(lambda: len(first.events) == (1 if batch else 2))
            await asyncio.sleep(0.5)
            assert server.depth("orders") == 2
            await first.cancel()
            second = watch(running, asset, **batch)
            await until(lambda: server.depth("orders") == 0)
            assert len(second.events) == len(first.events)

    run(work())


def test_what_airflow_dropped_comes_again_where_the_trigger_goes_on(
    server: MemoryBroker, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipts, "_GIVEN_UP_SECONDS", 0.2)

    async def work() -> None:
        async with triggerer() as running:
            first = watch(running, Store(), redelivery_handling="1:10")
            first.drops = True
            publish("a")
            await until(lambda: len(first.bodies) >= 2)
            first.drops = False
            await until(lambda: server.depth("orders") == 0)
            assert set(first.bodies) == {"a"}

    run(work())


def test_while_airflow_can_not_be_asked_messages_wait(
    server: MemoryBroker, publish: Publish, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        asset = Store()
        async with triggerer() as running:
            first = watch(running, asset)
            asset.fails = True
            publish("a", "b")
            await until(lambda: "can't be acknowledged yet" in caplog.text)
            assert server.depth("orders") == 2
            asset.fails = False
            await until(lambda: server.depth("orders") == 0)
            assert first.bodies == ["a", "b"]

    run(work())


def test_ended_while_events_are_being_stored_it_acknowledges_those_that_are(
    server: MemoryBroker, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is never stored, and doesn't hold up the second."""
    monkeypatch.setattr(producers, "_STORING_SECONDS", 3.0)

    async def work() -> None:
        asset = Store()
        async with triggerer() as running:
            first = watch(running, asset)
            first.stores = False
            publish("a", "b")
            await until(lambda: first.bodies == ["a", "b"])
            await first.cancel()
            first.events.pop(0)
            first.store()
            second = watch(running, asset)
            await until(lambda: server.depth("orders") == 0)
            assert second.bodies == ["a"]

    run(work())


def test_every_trigger_of_a_stream_needs_its_receipt_and_one_of_several_assets_is_enough(
    server: MemoryBroker, publish: Publish
) -> None:
    async def work() -> None:
        paused, alive, other = Store(), Store(), Store()
        async with triggerer() as running:
            first = watch(running, paused, alive)
            first.assets = (alive,)
            second = watch(running, other, payload="headers")
            second.drops = True
            publish("a")
            await until(lambda: len(first.events) == len(second.events) == 1)
            await asyncio.sleep(0.5)
            assert server.depth("orders") == 1
            second.drops = False
            second.store()
            await until(lambda: server.depth("orders") == 0)

    run(work())


def test_what_is_kept_of_numbers_is_small_and_knows_gaps() -> None:
    kept: Any = None
    for number in (1, 2, 3, 7, 8, 3):
        kept = with_number(kept, "a", number)
    assert kept == {"a": [[1, 3], [7, 8]]}
    assert [has_number(kept, "a", number) for number in (0, 3, 4, 8, 9)] == [False, True, False, True, False]
    assert not has_number(kept, "b", 1)
    for strange in (1, "a", [1], {"a": 1}, {"a": [1, ["x", 2], [1, 2, 3]]}):
        assert not has_number(strange, "a", 1)
        assert with_number(strange, "a", 1)["a"] == [[1, 1]]
    for stream in "bcdef":
        kept = with_number(kept, stream, 1)
    assert list(kept) == ["c", "d", "e", "f"]
    for number in range(1, 101, 2):
        kept = with_number(kept, "c", number)
    assert list(kept) == ["d", "e", "f", "c"]
    assert len(kept["c"]) == 16
    assert has_number(kept, "c", 99)


@pytest.mark.parametrize(
    "payload",
    [
        None, {}, {"receipt": 1}, {"receipt": {"key": 1, "stream": "a", "number": 1}},
        {"receipt": {"key": "k", "stream": "a", "number": "1"}},
    ],
)  # fmt: skip
def test_other_events_have_no_receipt(payload: Any) -> None:
    assert receipt_of({"payload": payload}) is None


class AskedStore(Store):
    """Answers when the test lets it, as Airflow's supervisor does after a stall of the triggerer."""

    def __init__(self) -> None:
        super().__init__()
        self.questions: list[asyncio.Future[None]] = []

    async def aget(self, key: str, default: Any = None) -> Any:
        question: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.questions.append(question)
        await question
        return await super().aget(key, default)

    def answer(self) -> None:
        for question in self.questions:
            if not question.done():
                question.set_result(None)


def confirm_one(watcher: ReceivingWatcher) -> None:
    """Tell Airflow that the first of the unconfirmed events is stored."""
    watcher._manager.confirm_persisted([watcher._unconfirmed.pop(0)])


@pytest.mark.parametrize("turns", range(2, 9))
@pytest.mark.usefixtures("server")
def test_a_cancelled_stream_lets_go_of_its_messages_whenever_the_answer_about_receipts_comes(
    publish: Publish, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """After a stall the answer about one event, the confirmation of another and the pause come together."""
    monkeypatch.setattr(producers, "_STORING_SECONDS", 0.1)

    async def work() -> None:
        asset = AskedStore()
        async with triggerer() as running:
            first = watch(running, asset)
            first.drops = True
            first.stores = False
            publish("a", "b", "c")
            await until(lambda: len(first.events) == 3)
            confirm_one(first)
            await until(lambda: bool(asset.questions))
            confirm_one(first)
            cancelling: asyncio.Task[None] | None = None
            for turn in range(9):
                if turn == 0:
                    cancelling = asyncio.create_task(first.cancel())
                if turn == turns:
                    time.sleep(0.2)  # noqa: ASYNC251 - all deadlines of the loop are due at once
                    asset.answer()
                await asyncio.sleep(0)
            assert cancelling is not None
            await asyncio.wait({cancelling}, timeout=5)
            assert cancelling.done()
            asset.answer()
            second = watch(running, Store())
            await until(lambda: sorted(second.bodies) == ["a", "b", "c"])

    run(work())


@pytest.mark.usefixtures("server")
def test_a_stream_that_airflow_does_not_close_closes_by_itself(
    publish: Publish, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault in Airflow's own task before it closes the producer."""
    monkeypatch.setattr(producers, "_SELF_CLOSE_SECONDS", 0.1)
    monkeypatch.setattr(producers, "_STORING_SECONDS", 0.1)

    async def faulty(group: _SharedStreamGroup, producer: Any) -> None:
        del producer
        await group._advance_wakeup.wait()
        raise RuntimeError("a fault of Airflow")

    async def work() -> None:
        async with triggerer() as running:
            with monkeypatch.context() as patched:
                patched.setattr(_SharedStreamGroup, "_run_advance_pump", faulty)
                first = watch(running, Store())
                first.stores = False
                publish("a", "b")
                await until(lambda: len(first.events) == 2)
                with pytest.raises(RuntimeError, match="a fault of Airflow"):
                    await first.cancel()
                running.watchers.remove(first)
            second = watch(running, Store())
            await until(lambda: sorted(second.bodies) == ["a", "b"])
            assert "Airflow has not closed it" in caplog.text

    run(work())
