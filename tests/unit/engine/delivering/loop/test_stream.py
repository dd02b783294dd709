"""The stream of deliveries over a broker of this process: what becomes of each message."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_jmsjca.core.delivery.settings import DeliverySettings
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.connecting.async_connection import AsyncConnection
from airflow_provider_jmsjca.engine.connecting.pool import ConnectionPool
from airflow_provider_jmsjca.engine.delivering.loop.stream import DeliveryStream, StreamDelivery
from airflow_provider_jmsjca.engine.delivering.settings import ListenerSettings
from airflow_provider_jmsjca.errors import AuthenticationError, ConfigurationError, PoisonMessageError
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Received, Subscription
from tests.dead_letters import original_of
from tests.unit.engine.streaming import (
    DEAD,
    ORDERS,
    Site,
    nothing_comes,
    one,
    run,
    settings,
    take,
    until,
)


@pytest.fixture
def site() -> Site:
    return Site()


def bodies(deliveries: list[StreamDelivery]) -> list[object]:
    return [delivery.message.body for delivery in deliveries]


def test_a_delivery_is_settled_when_it_returned_and_not_before(site: Site) -> None:
    async def work() -> None:
        site.send("a", "b", "c")
        async with site.streaming() as stream:
            found = await take(stream, 3)
            assert bodies(found) == ["a", "b", "c"]
            assert [(each.seen, each.destination) for each in found] == [(0, ORDERS)] * 3
            await asyncio.sleep(0.05)
            assert site.broker.depth("orders") == 3
            found[2].returned()
            found[0].returned()
            await until(lambda: site.broker.depth("orders") == 1)
            assert (stream.counts.delivered, stream.counts.rolled_back) == (3, 0)
        assert site.bodies() == ["b"]

    run(work())


def test_what_raised_is_delivered_again_after_the_delays_of_the_handling_j130_j137(site: Site) -> None:
    """J129, J130, J137: kept in hand, counted from the second sighting."""

    async def work() -> None:
        site.send("a", "b")
        async with site.streaming(settings("1:60; 2:120")) as stream:
            first, second = await take(stream, 2)
            second.returned()
            seen, moments = [first.seen], [time.monotonic()]
            delivery = first
            for _ in range(2):
                delivery.raised(ValueError("no stock"))
                delivery = await one(stream)
                seen.append(delivery.seen)
                moments.append(time.monotonic())
                assert delivery.failure is not None
                assert delivery.failure.message == "no stock"
            assert seen == [0, 1, 2]
            gaps = [after - before for before, after in itertools.pairwise(moments)]
            assert gaps[0] >= 0.055
            assert gaps[1] >= 0.115
            delivery.returned()
            await until(lambda: site.broker.depth("orders") == 0)
            await until(lambda: stream.counts.committed == 2)
            assert (stream.counts.delivered, stream.counts.redelivered, stream.counts.rolled_back) == (
                4,
                2,
                2,
            )

    run(work())


def test_it_is_moved_after_so_many_attempts_with_where_it_came_from_and_why_j149(site: Site) -> None:
    """J133, J145, J150, J154, J155, J162, J163."""

    async def work() -> None:
        site.send("a", region="eu")
        async with site.streaming(settings("3:move(queue:$.dlq)")) as stream:
            for seen in range(3):
                delivery = await one(stream)
                assert delivery.seen == seen
                delivery.raised(ValueError("no stock"))
            await until(lambda: stream.counts.moved == 1)
            assert site.broker.depth("orders") == 0
        (message,) = site.broker.messages("orders.dlq")
        letter = original_of(message)
        assert letter is not None
        assert (letter.message.body, letter.message.properties["region"]) == ("a", "eu")
        assert letter.origin.destination == ORDERS
        assert letter.state.seen == 3
        assert letter.state.failure is not None
        assert (letter.state.failure.class_name, letter.state.failure.message) == ("ValueError", "no stock")

    run(work())


def test_it_is_deleted_if_the_handling_says_so_j133(site: Site) -> None:
    async def work() -> None:
        site.send("a", "b")
        async with site.streaming(settings("1:delete")) as stream:
            first, second = await take(stream, 2)
            first.raised(ValueError())
            await until(lambda: stream.counts.deleted == 1)
            second.returned()
            await until(lambda: site.broker.depth("orders") == 0)

    run(work())


def test_a_move_that_is_refused_leaves_the_message_to_be_delivered_j142(site: Site) -> None:
    async def work() -> None:
        site.broker.forbid(DEAD)
        site.send("a")
        async with site.streaming(settings("1:30; 2:move(queue:dead)")) as stream:
            for _ in range(2):
                (await one(stream)).raised(ValueError())
            last = await one(stream)
            assert (last.seen, stream.counts.moved, stream.counts.failed) == (2, 0, 2)
            last.returned()
            await until(lambda: site.broker.depth("orders") == 0)

    run(work())


def test_poison_goes_straight_to_the_dead_letter_destination(site: Site) -> None:
    async def work() -> None:
        site.send("a")
        rules = settings("1:60000", dead_letter=DEAD)
        async with site.streaming(rules) as stream:
            (await one(stream)).raised(PoisonMessageError("not for us"))
            await until(lambda: stream.counts.moved == 1)
        assert (site.bodies("dead"), site.bodies()) == (["a"], [])

    run(work())


def test_poison_that_has_nowhere_to_go_stays_and_takes_a_place_only(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Also when the broker repeats it over another connection: nobody gets it a second time."""

    async def work() -> None:
        site.send("bad", "good")
        async with site.streaming(settings("1:60000", keep_poison=True, prefetch=10)) as stream:
            bad, good = await take(stream, 2)
            bad.raised(PoisonMessageError("not for us"))
            good.returned()
            await until(lambda: site.broker.depth("orders") == 1)
            site.broker.restart()
            site.send("more")
            more = await one(stream)
            assert more.message.body == "more"
            more.returned()
            await until(lambda: site.broker.depth("orders") == 1)
            assert await nothing_comes(stream)
        assert site.bodies() == ["bad"]

    run(work())
    assert (
        sum(
            "stays unsettled on queue://orders; such messages take 1 of 10 prefetch places"
            in each.getMessage()
            for each in caplog.records
        )
        == 1
    )


@pytest.mark.parametrize("dead_letter", [DEAD, None])
@pytest.mark.parametrize("error", [PoisonMessageError("not Unicode"), ConfigurationError("no name")])
def test_what_cannot_be_decoded_is_never_delivered(
    site: Site, dead_letter: Destination | None, error: Exception
) -> None:
    """Whatever goes wrong with it."""

    async def work() -> None:
        site.send("bad", "good")
        rules = settings(dead_letter=dead_letter, keep_poison=True)
        async with site.streaming(rules, opens=undecodable("bad", error)) as stream:
            good = await one(stream)
            assert good.message.body == "good"
            good.returned()
            await until(lambda: site.broker.depth("orders") == (dead_letter is None))
            assert await nothing_comes(stream)
        assert site.bodies("dead") == ([] if dead_letter is None else ["bad"])

    run(work())


def undecodable(body: str, error: Exception) -> Any:
    """Return a function that opens connections over which one message can't be decoded."""

    def opens(to: Any) -> Any:
        connection: Any = connect(to)
        consume = connection.consume

        def consuming(subscription: Subscription, on_received: Any) -> Any:
            def spoil(received: Received) -> None:
                message = received.message
                if message.body == body:

                    def refuse() -> JmsMessage:
                        raise error

                    received = Received(
                        received.consumer, received.token, received.generation, refuse, lambda: message
                    )
                on_received(received)

            return consume(subscription, spoil)

        connection.consume = consuming
        return connection

    return opens


def test_no_more_than_the_concurrency_are_under_way(site: Site) -> None:
    """J82."""

    async def work() -> None:
        site.send(*"abcdefgh")
        async with site.streaming(settings(concurrency=3)) as stream:
            found = await take(stream, 3)
            assert await nothing_comes(stream)
            found[1].returned()
            assert (await one(stream)).message.body == "d"
            assert await nothing_comes(stream)

    run(work())


def test_a_group_is_delivered_one_by_one_in_order(site: Site) -> None:
    async def work() -> None:
        site.send("a1", "a2", "a3", JMSXGroupID="a")
        site.send("b1", JMSXGroupID="b")
        site.send("x")
        async with site.streaming(settings("1:30")) as stream:
            found = await take(stream, 3)
            assert bodies(found) == ["a1", "b1", "x"]
            assert await nothing_comes(stream)
            found[0].raised(ValueError())
            again = await one(stream)
            assert (again.message.body, again.seen) == ("a1", 1)
            assert await nothing_comes(stream)
            for expected in ("a2", "a3"):
                again.returned()
                again = await one(stream)
                assert again.message.body == expected

    run(work())


def test_the_second_end_of_a_delivery_is_ignored(site: Site) -> None:
    async def work() -> None:
        site.send("a")
        async with site.streaming() as stream:
            delivery = await one(stream)
            delivery.returned()
            delivery.raised(ValueError())
            delivery.returned()
            await until(lambda: stream.counts.committed == 1)
            assert stream.counts.rolled_back == 0
            assert await nothing_comes(stream)

    run(work())


def test_a_refused_commit_settles_later_and_the_outcome_stands(site: Site) -> None:
    """Its archive is refused at first: the delivery isn't handed out a second time for that."""

    async def work() -> None:
        archive = Destination.queue("archive")
        site.broker.forbid(archive)
        site.send("a")
        async with site.streaming(replace(settings("1:100"), archive=archive)) as stream:
            (await one(stream)).returned()
            await until(lambda: stream.counts.failed >= 1)
            site.broker.permit(archive)
            await until(lambda: stream.counts.committed == 1)
            assert stream.counts.delivered == 1
            assert await nothing_comes(stream)
        assert (site.bodies("archive"), site.bodies()) == (["a"], [])

    run(work())


def test_what_returns_after_the_transaction_timeout_is_rolled_back_w22(site: Site) -> None:
    async def work() -> None:
        site.send("a")
        async with site.streaming(settings(transaction_timeout=timedelta(milliseconds=500))) as stream:
            late = await one(stream)
            await asyncio.sleep(0.6)
            late.returned()
            again = await one(stream)
            assert (again.message.body, again.seen) == ("a", 1)
            again.returned()
            await until(lambda: site.broker.depth("orders") == 0)
            await until(lambda: stream.counts.committed == 1)
            assert stream.counts.rolled_back == 1

    run(work())


def taken_in(stream: DeliveryStream) -> int:
    """Return how many messages the machine has had to choose from."""
    assert stream._driver is not None
    return len(stream._driver.receiver.buffer.held) + stream.counts.committed


def test_several_destinations_take_turns_i5(site: Site) -> None:
    async def work() -> None:
        other = Destination.queue("other")
        site.send("a1", "a2")
        site.send("b1", "b2", to=other)
        rules = ListenerSettings(
            delivery=DeliverySettings(
                destination=ORDERS, further=(other,), concurrency=1, transaction_timeout=None
            ),
            subscription=Subscription(destination=ORDERS),
            further=(Subscription(destination=other),),
        )
        async with site.streaming(rules) as stream:
            found = []
            for _ in range(4):
                delivery = await one(stream)
                await until(lambda: taken_in(stream) == 4)  # from both
                found.append((delivery.message.body, delivery.destination))
                delivery.returned()
            assert found == [("a1", ORDERS), ("b1", other), ("a2", ORDERS), ("b2", other)]
            await until(lambda: stream.counts.committed == 4)

    run(work())


def test_a_delay_above_5_seconds_may_be_left_to_the_broker(site: Site) -> None:
    async def work() -> None:
        site.send("a")
        async with site.streaming(settings("1:6000", non_blocking_redelivery=True)) as stream:
            (await one(stream)).raised(ValueError())
            await until(lambda: stream.counts.parked == 1)
            site.broker.advance(timedelta(seconds=7))
            again = await one(stream)
            assert (again.message.body, again.seen) == ("a", 1)
            again.returned()
            await until(lambda: stream.counts.committed == 1)

    run(work())


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"record_attempts": True}, "record_attempts"),
        ({"batch_size": 2}, "batch_size"),
        ({"hold_until_ack": True}, "hold_until_ack"),
        ({"in_progress": True}, "in_progress_destination"),
    ],
)
def test_what_only_a_listener_does_is_refused(site: Site, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        site.stream(settings(**changes))


def test_a_refused_login_is_raised_and_not_tried_for_ever(site: Site) -> None:
    async def work() -> None:
        site.broker.require_login("app", "right")
        stream = site.stream()
        for _ in range(2):
            with pytest.raises(AuthenticationError):
                await one(stream)
        await stream.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    run(work())


def test_many_streams_share_one_connection_and_need_no_thread_each(site: Site) -> None:
    async def work() -> None:
        pool = ConnectionPool()
        before = threading.active_count()
        queues = [Destination.queue(f"q{number}") for number in range(200)]
        streams = [
            DeliveryStream(
                ListenerSettings(
                    delivery=DeliverySettings(destination=each, transaction_timeout=None),
                    subscription=Subscription(destination=each),
                ),
                AsyncConnection(site.settings, pool=pool),
            )
            for each in queues
        ]
        waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
        for queue in queues:
            site.send("a", to=queue)
        found = await asyncio.wait_for(asyncio.gather(*waiting), 20)
        assert site.broker.connections == 1
        await until(lambda: threading.active_count() <= before + 3)
        for delivery in found:
            delivery.returned()
        await until(lambda: all(site.broker.depth(queue.name) == 0 for queue in queues))
        await asyncio.gather(*(stream.aclose() for stream in streams))
        pool.close()

    run(work())
