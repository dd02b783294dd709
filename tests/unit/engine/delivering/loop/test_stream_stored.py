"""A stream whose attempts and ids are stored: what a restart and a store that is away do to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message.message import stable_digest
from airflow_provider_jmsjca.engine.delivering.settings import ListenerSettings
from airflow_provider_jmsjca.transports import connect
from tests.unit.engine.delivering.test_attempt_log import Store
from tests.unit.engine.streaming import Site, nothing_comes, one, run, settings, take, until

ORDERS = Destination.queue("orders")


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
def store() -> Store:
    return Store()


def stored(store: Store, handling: str = "") -> ListenerSettings:
    made = settings(handling)
    return replace(made, store=store, delivery=replace(made.delivery, record_attempts=True))


def test_counts_go_on_in_the_next_stream_and_the_history_has_the_exceptions(site: Site, store: Store) -> None:
    """J129, and past J131."""

    async def work() -> None:
        site.send("bad")
        async with site.streaming(stored(store, "2:move(queue:dlq)")) as stream:
            first = await one(stream)
            assert first.seen == 0
            first.raised(ValueError("no stock"))
            assert (await one(stream)).seen == 1
            (message,) = store.attempts.page()
            entry, _ = store.attempts.history(message.activation, message.message)
            assert (entry.exception_class, entry.exception_message) == ("ValueError", "no stock")
        async with site.streaming(stored(store, "2:move(queue:dlq)")) as stream:
            await nothing_comes(stream)
            await until(lambda: site.bodies("dlq") == ["bad"])
        await until(lambda: store.counted() == [])

    run(work())


def test_many_messages_are_counted_by_few_writes(site: Site, store: Store) -> None:
    async def work() -> None:
        site.send(*map(str, range(40)))
        made = stored(store)
        wide = replace(made, delivery=replace(made.delivery, concurrency=40))
        async with site.streaming(wide) as stream:
            for delivery in await take(stream, 40):
                delivery.returned()
            await until(lambda: site.broker.depth("orders") == 0)
        assert sum(store.attempts.writes) == 40
        assert len(store.attempts.writes) < 20
        await until(lambda: store.counted() == [])

    run(work())


def test_what_was_not_handed_out_is_no_attempt(site: Site, store: Store) -> None:
    async def work() -> None:
        site.send("a")
        async with site.streaming(stored(store)) as stream:
            waiting = asyncio.ensure_future(one(stream))
            await until(lambda: store.counted() == [1])
            await waiting
        async with site.streaming(stored(store)) as stream:
            delivery = await one(stream)
            assert delivery.seen == 1
            delivery.returned()
            await until(lambda: site.broker.depth("orders") == 0)

    run(work())


def test_an_attempt_to_disregard_counts_only_if_it_is_ended_before_the_close(
    site: Site, store: Store
) -> None:
    async def work() -> None:
        site.send("a", "b")
        async with site.streaming(stored(store, "1:60000")) as stream:
            first, second = await take(stream, 2)
            first.disregard()
            second.disregard()
            second.raised(ValueError())
            second.disregard()
        async with site.streaming(stored(store)) as stream:
            assert [each.seen for each in await take(stream, 2)] == [0, 1]

    run(work())


def test_an_attempt_is_undone_before_its_message_returns_to_the_broker(site: Site, store: Store) -> None:
    take_back = store.attempts.take_back
    returned: list[int] = []

    def noting(activation: str, messages: Collection[str]) -> None:
        with contextlib.closing(connect(site.settings)) as connection:
            returned.append(connection.backlog(ORDERS).waiting)
        take_back(activation, messages)

    store.attempts.take_back = noting  # type: ignore[method-assign]

    async def work() -> None:
        site.send("a", "b")
        async with site.streaming(stored(store)) as stream:
            await one(stream)
            await until(lambda: store.counted() == [1, 1])
        await until(lambda: store.counted() == [1])

    run(work())
    assert returned == [0]


@pytest.mark.parametrize("cancelled", [False, True], ids=["closed", "cancelled"])
def test_a_close_while_the_store_counts_leaves_no_count(site: Site, store: Store, cancelled: bool) -> None:
    async def work() -> None:
        site.send("a", "b")
        store.attempts.answers.clear()
        stream = site.stream(stored(store))
        asking = asyncio.ensure_future(one(stream))
        await until(store.counted)
        closing = asyncio.ensure_future(stream.aclose())
        if cancelled:
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([closing])
        else:
            await asyncio.wait([closing], timeout=0.05)
        store.attempts.answers.set()
        await asyncio.wait([closing, asking])
        await until(lambda: store.counted() == [])
        assert (type(asking.exception()), site.broker.depth("orders")) == (StopAsyncIteration, 2)

    run(work())


def test_a_message_that_was_handled_makes_no_second_delivery(site: Site, store: Store) -> None:
    async def work() -> None:
        site.send("a", "b")
        first, _ = site.broker.messages("orders")
        store.handled.add("orders", [str(stable_digest(first, ORDERS))], datetime.now(UTC))
        async with site.streaming(replace(stored(store), name="orders")) as stream:
            delivery = await one(stream)
            assert delivery.message.body == "b"
            await until(lambda: stream.counts.repeated == 1)
            delivery.returned()
            await until(lambda: stream.counts.committed == 1)
            assert (stream.counts.deleted, site.broker.depth("orders")) == (0, 0)

    run(work())


def test_another_message_under_the_id_of_a_handled_one_is_delivered(site: Site, store: Store) -> None:
    """On a broker that was set up anew the ids begin again, and producers may name any."""

    async def work() -> None:
        site.send("old")
        async with site.streaming(replace(stored(store), name="orders")) as stream:
            delivery = await one(stream)
            message_id = delivery.message.message_id
            delivery.returned()
            await until(lambda: stream.counts.committed == 1)
        anew = Site()
        anew.send("new")
        (message,) = anew.broker.messages("orders")
        assert message.message_id is not None
        anew.broker.queue("orders").entries(anew.broker.now_ms())[0].message = replace(
            message, message_id=message_id
        )
        async with anew.streaming(replace(stored(store), name="orders")) as stream:
            delivery = await one(stream)
            assert (delivery.message.body, delivery.message.message_id) == ("new", message_id)
            delivery.returned()
            await until(lambda: stream.counts.committed == 1)
            assert stream.counts.repeated == 0

    run(work())


def test_while_the_store_is_away_nothing_is_handed_out(site: Site, store: Store) -> None:
    async def work() -> None:
        store.attempts.away = True
        site.send("a")
        async with site.streaming(stored(store)) as stream:
            await nothing_comes(stream)
            assert store.attempts.asked.is_set()
            store.attempts.away = False
            delivery = await one(stream)
            assert (delivery.message.body, delivery.seen) == ("a", 0)
            delivery.returned()
            await until(lambda: site.broker.depth("orders") == 0)

    run(work())
