"""Messages that are acknowledged when their DAG runs say so; Airflow's store of the asset is the test's."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.triggers.base import TriggerEvent

from airflow_provider_jmsjca import (
    JmsActivationTrigger,
    MemoryBroker,
    message_from_event,
    messages_from_event,
)
from tests.airflow.conftest import Publish
from tests.airflow.triggers.test_activation import Triggerer, Watcher, triggerer
from tests.airflow.triggers.waiting import run, until
from tests.dead_letters import original_of
from tests.internals.core import Backoff
from tests.internals.triggers import (
    HELD_KEY,
    OUTCOME_LIST_KEY,
    STARTED_KEY,
    hold_records,
    hold_token,
    holding,
    outcome_key,
    producers,
    with_held_keys,
    with_listed_outcome,
)

DONE = {"acknowledged": True}
FAILED = {"acknowledged": False, "why": "task load of DAG shop failed in run run1"}


class Store:
    """What an asset keeps, over restarts of the triggerer."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}
        self.recorded: list[TriggerEvent] = []
        self.fails = False
        self.asked: list[str] = []

    def record(self, event: TriggerEvent) -> None:
        """Record what waits, as the plugin does."""
        records = hold_records({"payload": event.payload}, time.time())
        self.rows |= records
        self.rows[HELD_KEY] = with_held_keys(self.rows.get(HELD_KEY), list(records), self.rows.__contains__)
        self.recorded.append(event)

    async def aget(self, key: str, default: Any = None) -> Any:
        self._check()
        self.asked.append(key)
        return self.rows.get(key, default)

    async def aset(self, key: str, value: Any) -> None:
        self._check()
        self.rows[key] = value

    async def adelete(self, key: str) -> None:
        self._check()
        self.rows.pop(key, None)

    def _check(self) -> None:
        if self.fails:
            raise RuntimeError("Airflow's API server is away")

    @property
    def left(self) -> list[str]:
        """What is kept of messages."""
        return [key for key in self.rows if key not in (HELD_KEY, OUTCOME_LIST_KEY)]

    @property
    def waiting(self) -> int:
        return sum(key.startswith("jms-hold.") for key in self.rows)

    def say(self, watcher: Watcher, word: dict[str, Any], number: int = -1) -> None:
        """Have the run of an event say what becomes of its messages."""
        token = hold_token({"payload": watcher.events[number].payload})
        assert token is not None
        self.rows[outcome_key(token)] = word
        self.rows[OUTCOME_LIST_KEY] = with_listed_outcome(self.rows.get(OUTCOME_LIST_KEY), token, word)


class Stores:
    def __init__(self, by_name: dict[str, Store]) -> None:
        self._by_name = by_name

    def __getitem__(self, asset: Asset) -> Store:
        return self._by_name[asset.name]


class HoldingWatcher(Watcher):
    """Stores an event as Airflow does: with what the plugin adds to that."""

    stores_of: tuple[Store, ...] = ()

    def store(self) -> None:
        for event in self.events:
            for store in self.stores_of:
                if event not in store.recorded:
                    store.record(event)
        super().store()


def watch(running: Triggerer, *stores: Store, names: str = "orders", **arguments: Any) -> Watcher:
    options = {"jms_conn_id": "jms_test", "destination": "orders", "hold_until_ack": True, **arguments}
    trigger = JmsActivationTrigger(**options)
    if stores:
        by_name = dict(zip(names.split(), stores, strict=True))
        trigger.asset_state_store = Stores(by_name)  # type: ignore[assignment]
    watcher = HoldingWatcher(running.manager, trigger, len(running.watchers) + 1)
    watcher.stores_of = stores
    running.watchers.append(watcher)
    return watcher


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "_KEPT_SECONDS", 0.1)


def ids(watcher: Watcher) -> list[Any]:
    return [message_from_event(each.payload).message_id for each in watcher.events]


def test_a_message_waits_for_the_word_of_its_run(server: MemoryBroker, publish: Publish) -> None:
    """J192, J195, J199: stored isn't acknowledged; others come meanwhile."""

    async def work() -> None:
        store = Store()
        async with triggerer() as running:
            watcher = watch(running, store)
            publish("a", "b")
            await until(lambda: watcher.bodies == ["a", "b"])
            await until(lambda: store.waiting == 2)
            await asyncio.sleep(0.3)
            assert server.depth("orders") == 2
            store.say(watcher, DONE, 1)
            await until(lambda: server.depth("orders") == 1)
            (left,) = server.messages("orders")
            assert left.body == "a"
            store.say(watcher, DONE, 0)
            await until(lambda: server.depth("orders") == 0)
            await until(lambda: not store.left)

    run(work())


def test_one_look_serves_many_messages(server: MemoryBroker, publish: Publish) -> None:
    """Airflow answers one question of its triggers at a time, between two rounds of storing events."""

    async def work() -> None:
        store = Store()
        async with triggerer() as running:
            watcher = watch(running, store)
            publish("first")
            await until(lambda: store.waiting == 1)
            store.asked.clear()
            publish(*map(str, range(50)))
            await until(lambda: store.waiting == 51)
            for number in range(51):
                store.say(watcher, DONE, number)
            await until(lambda: server.depth("orders") == 0)
            assert set(store.asked) == {HELD_KEY, OUTCOME_LIST_KEY}
            assert len(store.asked) < 20

    run(work())


def test_a_word_that_no_list_has_is_heard(
    server: MemoryBroker, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks wrote at the same time, and one has overwritten what the other added to the list."""
    monkeypatch.setattr(holding, "_READ_PAUSES", Backoff(steps=(timedelta(seconds=0.1),)))

    async def work() -> None:
        store = Store()
        async with triggerer() as running:
            watcher = watch(running, store)
            publish("a")
            await until(lambda: store.waiting == 1)
            store.say(watcher, DONE)
            del store.rows[OUTCOME_LIST_KEY]
            await until(lambda: server.depth("orders") == 0)

    run(work())


def test_one_message_of_an_event_fails_alone(server: MemoryBroker, publish: Publish) -> None:
    async def work() -> None:
        store = Store()
        async with triggerer() as running:
            watcher = watch(
                running, store, batch_size=3, batch_timeout=0.3, redelivery_handling="1:move(queue:$.dead)"
            )
            publish("a", "bad", "c")
            await until(lambda: store.waiting == 3)
            found = messages_from_event(watcher.events[0].payload)
            (bad,) = [str(message.message_id) for message in found if message.body == "bad"]
            single = {bad: {"acknowledged": False, "why": "poison"}}
            store.say(watcher, {"messages": single})
            await until(lambda: server.depth("orders.dead") == 1)
            assert server.depth("orders") == 2
            store.say(watcher, {"messages": single, "acknowledged": True})
            await until(lambda: server.depth("orders") == 0)
            assert len(watcher.events) == 1

    run(work())


def test_a_failed_run_has_its_message_delivered_again(server: MemoryBroker, publish: Publish) -> None:
    """J194, J197: as the redelivery handling says; the new event has the same id, and a word of its own."""

    async def work() -> None:
        store = Store()
        async with triggerer() as running:
            watcher = watch(running, store, redelivery_handling="1:100; 2:move(queue:$.dead)")
            publish("a")
            await until(lambda: store.waiting == 1)
            store.say(watcher, FAILED)
            await until(lambda: len(watcher.events) == 2)
            assert len(set(ids(watcher))) == 1
            await until(lambda: store.waiting == 1)
            store.say(watcher, DONE, 0)  # the first run was cleared, and succeeded too late
            await asyncio.sleep(0.3)
            assert server.depth("orders") == 1
            store.say(watcher, FAILED, 1)
            await until(lambda: (server.depth("orders"), server.depth("orders.dead")) == (0, 1))

    run(work())


def test_a_restart_is_no_failure(server: MemoryBroker, publish: Publish) -> None:
    """The redelivery handling counts runs that have failed, and not how often the broker has delivered."""

    async def work() -> None:
        store = Store()
        handling = "1:move(queue:$.dead)"
        async with triggerer() as running:
            first = watch(running, store, redelivery_handling=handling)
            publish("a", "b")
            await until(lambda: store.waiting == 2)
        store.say(first, DONE, 0)
        for _ in range(2):
            async with triggerer() as running:
                second = watch(running, store, redelivery_handling=handling)
                await until(lambda: server.depth("orders") == 1)
        assert (second.events, server.depth("orders.dead")) == ([], 0)
        async with triggerer() as running:
            third = watch(running, store, redelivery_handling=handling)
            store.say(first, FAILED, 1)
            await until(lambda: (server.depth("orders"), server.depth("orders.dead")) == (0, 1))
            assert third.events == []
            await until(lambda: not store.waiting)

    run(work())


def test_a_run_that_says_nothing_has_its_time(
    server: MemoryBroker, publish: Publish, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        store = Store()
        async with triggerer() as running:
            watcher = watch(running, store, redelivery_handling="1:move(queue:$.dead)", hold_timeout=0.5)
            publish("a")
            await until(lambda: watcher.bodies == ["a"])
            await until(lambda: server.depth("orders.dead") == 1)
            await until(lambda: not store.waiting)

    run(work())
    assert "has not acknowledged it within 0.5 s (hold_timeout)" in caplog.text


def test_a_message_without_a_run_has_time_while_other_runs_start(
    server: MemoryBroker, publish: Publish
) -> None:
    async def work() -> None:
        store = Store()
        async with triggerer() as running:
            watcher = watch(running, store, redelivery_handling="1:move(queue:$.dead)", hold_timeout=0.5)
            publish("a", "b")
            await until(lambda: store.waiting == 2)
            store.rows[STARTED_KEY] = time.time() + 3600
            (_, other) = (next(iter(hold_records({"payload": each.payload}, 0))) for each in watcher.events)
            store.rows[other] |= {"started": True}
            await until(lambda: server.depth("orders.dead") == 1)
            assert (server.depth("orders"), store.waiting) == (1, 1)

    run(work())
    letters = [original_of(each) for each in server.messages("orders.dead")]
    assert [letter and letter.message.body for letter in letters] == ["b"]


def test_in_the_end_a_dag_that_had_no_run_counts_no_more(
    server: MemoryBroker, publish: Publish, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        store = Store()
        async with triggerer() as running:
            watcher = watch(running, store, redelivery_handling="1:move(queue:$.dead)", hold_timeout=0.5)
            publish("a")
            await until(lambda: watcher.bodies == ["a"])
            store.say(watcher, DONE | {"awaits": ["ship"]})
            await until(lambda: (server.depth("orders"), server.depth("orders.dead")) == (0, 0))

    run(work())
    assert "is acknowledged: ship had no run for it within 0.5 s (hold_timeout)" in caplog.text


def test_one_whose_time_was_over_when_its_dag_was_unpaused_has_its_time_again(
    server: MemoryBroker, publish: Publish
) -> None:
    """Airflow goes on with the runs of a paused DAG only when somebody unpauses it."""

    async def work() -> None:
        store, handling = Store(), "1:move(queue:$.dead)"
        async with triggerer() as running:
            first = watch(running, store, redelivery_handling=handling)
            publish("a", "b")
            await until(lambda: store.waiting == 2)
        for key in store.left:
            store.rows[key]["since"] -= 2 * 86_400
        async with triggerer() as running:
            second = watch(running, store, redelivery_handling=handling)
            await until(lambda: server.connections == 1)
            store.say(first, DONE, 0)
            await until(lambda: (server.depth("orders"), store.waiting) == (1, 1))
            assert (second.events, server.depth("orders.dead")) == ([], 0)
        async with triggerer() as running:
            third = watch(running, store, redelivery_handling=handling, hold_timeout=0.5)
            await until(lambda: (server.depth("orders"), server.depth("orders.dead")) == (0, 1))
            assert third.events == []

    run(work())


def test_after_a_restart_a_message_finds_its_run(server: MemoryBroker, publish: Publish) -> None:
    async def work() -> None:
        store = Store()
        async with triggerer() as running:
            first = watch(running, store)
            publish("a", "b")
            await until(lambda: store.waiting == 2)
        store.say(first, DONE, 0)  # one run ends while the triggerer is away
        async with triggerer() as running:
            second = watch(running, store)
            await until(lambda: server.depth("orders") == 1)
            store.say(first, DONE, 1)
            await until(lambda: server.depth("orders") == 0)
            assert second.events == []
            publish("c")
            await until(lambda: second.bodies == ["c"])

    run(work())


def test_killed_as_soon_as_its_event_was_stored_it_makes_no_second_one(
    server: MemoryBroker, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the trigger heard of it, or had done anything."""
    monkeypatch.setattr(producers, "_STORING_SECONDS", 0)  # nobody waits in a process that was killed

    async def work() -> None:
        store = Store()
        async with triggerer() as running:
            first = watch(running, store)
            first.stores = False
            publish("a", "b")
            await until(lambda: first.bodies == ["a", "b"])
            store.record(first.events[0])
        async with triggerer() as running:
            second = watch(running, store)
            await until(lambda: second.bodies == ["b"])
            assert ids(second) == ids(first)[1:]
            store.say(first, DONE, 0)
            store.say(second, DONE)
            await until(lambda: server.depth("orders") == 0)
            assert second.bodies == ["b"]
            await until(lambda: not store.left)

    run(work())


def test_cancelled_while_its_event_is_being_stored_it_gives_the_message_back_afterwards(
    server: MemoryBroker, publish: Publish
) -> None:
    """As when another triggerer takes over from one that was only slow: both would make an event."""

    async def work() -> None:
        store = Store()
        async with triggerer() as running:
            first = watch(running, store)
            first.stores = False
            publish("a")
            await until(lambda: first.bodies == ["a"])
            await first.cancel()
            second = watch(running, store)
            await asyncio.sleep(1)
            assert second.bodies == []
            store.record(first.events[0])
            await asyncio.sleep(1)
            store.say(first, DONE)
            await until(lambda: server.depth("orders") == 0)
            assert second.bodies == []

    run(work())


@pytest.mark.parametrize("hold", [True, False])
def test_cancelled_again_and_again_it_gives_its_messages_back(
    server: MemoryBroker, publish: Publish, hold: bool
) -> None:
    """Airflow cancels a trigger at each of its rounds until it has ended; a slow one is cancelled twice."""

    async def work() -> None:
        store = Store()
        async with triggerer() as running:
            for steps in range(1, 12):
                first = watch(running, *([store] if hold else []), hold_until_ack=hold)
                first.stores = hold
                publish(f"held {steps}", f"under way {steps}")
                await until(lambda first=first: len(first.bodies) == 2)
                if hold:
                    await until(lambda: store.waiting == 2)
                await first.cancel(again_after=steps)
                second = watch(running, hold_until_ack=False)
                await until(lambda second=second: len(second.bodies) == 2)
                await until(lambda: server.depth("orders") == 0)
                await second.cancel()
                store.rows.clear()

    run(work())


def test_cancelled_before_an_event_that_is_never_stored_it_gives_the_message_back(
    publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the trigger was deleted; or Airflow can't be asked any more."""
    monkeypatch.setattr(producers, "_STORING_SECONDS", 0.5)

    async def work() -> None:
        store = Store()
        async with triggerer() as running:
            for away in (False, True):
                first = watch(running, store)
                first.stores = False
                publish("a")
                await until(lambda first=first: first.bodies == ["a"])
                store.fails = away
                await first.cancel()
                store.fails = False
                second = watch(running, store)
                await until(lambda second=second: second.bodies == ["a"])
                second.store()
                store.say(second, DONE)
                await second.cancel()

    run(work())


def test_the_messages_of_a_batch_wait_together_and_are_found_in_others(
    server: MemoryBroker, publish: Publish
) -> None:
    """J200, J201."""

    async def work() -> None:
        store = Store()
        async with triggerer() as running:
            first = watch(running, store, batch_size=3, batch_timeout=0.3)
            publish("a", "b", "c")
            await until(lambda: store.waiting == 3)
        publish("d")
        async with triggerer() as running:
            second = watch(running, store, batch_size=2, batch_timeout=0.3)
            await until(lambda: len(second.events) == 1)
            found = messages_from_event(second.events[0].payload)
            assert [message.body for message in found] == ["d"]
            store.say(first, DONE)
            await until(lambda: [message.body for message in server.messages("orders")] == ["d"])
            store.say(second, DONE)
            await until(lambda: server.depth("orders") == 0)
            await until(lambda: not store.left)

    run(work())


def test_every_asset_has_to_acknowledge(server: MemoryBroker, publish: Publish) -> None:
    async def work() -> None:
        stores = Store(), Store()
        async with triggerer() as running:
            one, other = (watch(running, store, names=name) for store, name in zip(stores, "ab", strict=True))
            publish("a")
            await until(lambda: all(store.waiting == 1 for store in stores))
            stores[0].say(one, DONE)
            await asyncio.sleep(1.5)
            assert server.depth("orders") == 1
            stores[1].say(other, DONE)
            await until(lambda: server.depth("orders") == 0)

    run(work())


def test_every_asset_of_one_trigger_has_to_acknowledge(server: MemoryBroker, publish: Publish) -> None:
    """Airflow keeps one trigger for all assets that are watched with the same arguments."""

    async def work() -> None:
        stores = Store(), Store()
        async with triggerer() as running:
            both = watch(running, *stores, names="a b")
            publish("a")
            await until(lambda: all(store.waiting == 1 for store in stores))
            stores[0].say(both, DONE)
            await asyncio.sleep(1.5)
            assert server.depth("orders") == 1
        async with triggerer() as running:
            again = watch(running, *stores, names="a b")
            await asyncio.sleep(0.5)
            assert (again.events, server.depth("orders")) == ([], 1)
            stores[1].say(both, DONE)
            await until(lambda: server.depth("orders") == 0)
            await until(lambda: not any(store.left for store in stores))
            publish("b")
            await until(lambda: all(store.waiting == 1 for store in stores))
            stores[0].say(again, FAILED)
            await until(lambda: again.bodies == ["b", "b"])

    run(work())


def test_while_airflow_can_not_be_asked_messages_wait(
    server: MemoryBroker, publish: Publish, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        store = Store()
        async with triggerer() as running:
            watcher = watch(running, store, redelivery_handling="1:200")
            publish("a")
            await until(lambda: store.waiting == 1)
            store.fails = True
            await until(
                lambda: "asset store can't be used; retrying: Airflow's API server is away" in caplog.text
            )
            publish("b")
            await until(lambda: "asset store can't be read" in caplog.text)
            assert (watcher.bodies, server.depth("orders")) == (["a"], 2)
            store.fails = False
            store.say(watcher, DONE, 0)
            await until(lambda: watcher.bodies == ["a", "b"])
            await until(lambda: server.depth("orders") == 1)

    with caplog.at_level(logging.WARNING):
        run(work())


def test_a_lost_connection_makes_no_second_event(server: MemoryBroker, publish: Publish) -> None:
    async def work() -> None:
        store = Store()
        async with triggerer() as running:
            watcher = watch(running, store)
            publish("a")
            await until(lambda: store.waiting == 1)
            server.restart()
            await until(lambda: server.connections == 1)
            store.say(watcher, DONE)
            await until(lambda: server.depth("orders") == 0)
            assert watcher.bodies == ["a"]

    run(work())


def test_no_more_wait_than_the_prefetch(publish: Publish) -> None:
    async def work() -> None:
        store = Store()
        async with triggerer() as running:
            watcher = watch(running, store, prefetch=2)
            publish("a", "b", "c")
            await until(lambda: store.waiting == 2)
            await asyncio.sleep(0.2)
            assert watcher.bodies == ["a", "b"]
            store.say(watcher, DONE, 0)
            await until(lambda: watcher.bodies == ["a", "b", "c"])

    run(work())


def test_without_an_asset_nobody_could_say_anything(
    server: MemoryBroker, publish: Publish, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with triggerer() as running:
            watcher = watch(running)
            publish("a")
            await until(lambda: "works only for the trigger of an AssetWatcher" in caplog.text)
            assert (watcher.events, server.depth("orders")) == ([], 1)

    run(work())
