"""How much memory large messages take that are in hand: bounded by bytes, and nothing stands still for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from airflow_provider_jmsjca.core.delivery.settings import MOST_BYTES
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.message.message import size_of
from airflow_provider_jmsjca.engine.delivering.delivery import Delivery
from airflow_provider_jmsjca.engine.delivering.loop.stream import StreamDelivery
from airflow_provider_jmsjca.errors import PoisonMessageError
from airflow_provider_jmsjca.transports.base import Subscription
from airflow_provider_jmsjca.transports.memory.connection import MemoryConnection
from tests.unit.engine import listening, streaming
from tests.unit.engine.streaming import nothing_comes, one, run, settings, take, until

MEBIBYTE = 1024 * 1024
AT_ONCE = MOST_BYTES // MEBIBYTE
BOTH = ["queue://A", "queue://B"]
A, B = (Destination.queue(name) for name in "AB")


@pytest.fixture
def site() -> streaming.Site:
    return streaming.Site()


@pytest.fixture
def place() -> Any:
    site = listening.Site()
    yield site
    site.close()


def large(number: int, size: int = MEBIBYTE) -> str:
    return f"{number:03}".ljust(size, "x")


def numbers(deliveries: list[StreamDelivery]) -> list[int]:
    return [int(str(delivery.message.body)[:3]) for delivery in deliveries]


def test_what_a_message_takes() -> None:
    message = JmsMessage.map(
        {"name": "abc", "count": 7, "data": b"1234"},
        {"region": "eu", "number": 5},
        correlation_id="c" * 10,
        type="t" * 20,
        reply_to=Destination.queue("r" * 30),
    )
    assert size_of(message) == (4 + 3 + 5 + 8 + 4 + 4) + (6 + 2 + 6 + 8) + 2 * 120 + 60
    assert size_of(JmsMessage.empty()) == 0
    assert size_of(JmsMessage.stream(["ab", None, 1.5])) == 10


@pytest.mark.parametrize("further", [(), (B,)], ids=["one", "several"])
def test_a_stream_hands_out_no_more_bytes_before_others_are_settled(
    site: streaming.Site, further: tuple[Destination, ...]
) -> None:
    rules = settings(concurrency=100, further=further)
    rules = replace(rules, further=tuple(Subscription(destination=each) for each in further))

    async def work() -> None:
        site.send(*(large(number) for number in range(2 * AT_ONCE)))
        async with site.streaming(rules) as stream:
            found = await take(stream, AT_ONCE)
            assert await nothing_comes(stream)
            found[3].returned()
            found += await take(stream, 1)
            assert await nothing_comes(stream)
            for delivery in found:
                delivery.returned()
            found += await take(stream, AT_ONCE - 1)
            assert numbers(found) == list(range(2 * AT_ONCE))
            for delivery in found:
                delivery.returned()
            await until(lambda: site.broker.depth("orders") == 0)

    run(work())


def test_small_messages_are_bounded_by_their_number_alone(site: streaming.Site) -> None:
    async def work() -> None:
        site.send(*(large(number, 10_000) for number in range(100)))
        async with site.streaming(settings(concurrency=100)) as stream:
            assert len(await take(stream, 100)) == 100

    run(work())


def test_a_message_larger_than_the_bound_is_delivered_alone(site: streaming.Site) -> None:
    async def work() -> None:
        site.send(large(0, MOST_BYTES + 1), "001", large(2, MOST_BYTES + 1))
        async with site.streaming(settings(concurrency=100)) as stream:
            first = await one(stream)
            assert await nothing_comes(stream)
            first.returned()
            assert numbers([first, *await take(stream, 2)]) == [0, 1, 2]

    run(work())


def test_what_stays_or_is_moved_holds_up_nobody(site: streaming.Site) -> None:
    async def work() -> None:
        site.send(*(large(number) for number in range(AT_ONCE)), "999")
        async with site.streaming(settings("1:60000", keep_poison=True, concurrency=100)) as stream:
            for delivery in await take(stream, AT_ONCE):
                delivery.raised(PoisonMessageError("nobody can use it"))
            assert numbers([await one(stream)]) == [999]

    run(work())


def test_what_comes_over_another_connection_is_counted_anew(site: streaming.Site) -> None:
    async def work() -> None:
        site.send(*(large(number) for number in range(AT_ONCE + 2)))
        async with site.streaming(settings(concurrency=100)) as stream:
            before = await take(stream, AT_ONCE)
            site.broker.restart()
            await streaming.until_noticed(stream)
            for delivery in before[1:]:
                delivery.returned()
            before[0].raised(ValueError("no stock"))
            assert sorted(numbers(await take(stream, 3))) == [0, AT_ONCE, AT_ONCE + 1]

    run(work())


class Counting(MemoryConnection):
    """Knows how many messages have come, and how many of them have been decoded."""

    received = decoded = 0

    def consume(self, subscription: Subscription, on_received: Any) -> Any:
        def counted(received: Any) -> None:
            decode = received._decode

            def counting() -> JmsMessage:
                self.decoded += 1
                return decode()  # type: ignore[no-any-return]

            received._decode = counting
            on_received(received)
            self.received += 1

        return super().consume(subscription, counted)


def test_a_listener_on_several_destinations_reads_no_more_bytes_than_it_has_room_for(
    place: listening.Site,
) -> None:
    for queue in (A, B):
        place.send(*(large(number) for number in range(AT_ONCE)), to=queue)
    connection = Counting(place.broker, place.settings)
    begun, go_on = threading.Event(), threading.Event()
    most: list[int] = []

    def handle(_: Delivery) -> None:
        begun.set()
        assert go_on.wait(20)
        most.append(connection.decoded - len(most))

    activation = place.activation(handle, destination=BOTH, connect_with=lambda: connection)
    activation.start()
    assert begun.wait(20)
    listening.until(lambda: connection.received == 2 * AT_ONCE)
    go_on.set()
    listening.until(lambda: activation.counts.committed == 2 * AT_ONCE)
    assert AT_ONCE <= max(most) <= AT_ONCE + 1
    assert connection.decoded == 2 * AT_ONCE


@pytest.mark.parametrize("destination", [["queue://A"], BOTH])
def test_a_message_in_progress_has_room_behind_those_that_came_before_it(
    place: listening.Site, destination: list[str]
) -> None:
    place.send(*(large(number) for number in range(AT_ONCE + 4)), to=A)
    counts = place.activation(
        lambda _: None, destination=destination, in_progress_destination="queue://progress"
    ).run(max_messages=AT_ONCE + 4, run_for=timedelta(seconds=20))
    assert counts.committed == AT_ONCE + 4


def batches(place: listening.Site) -> list[int]:
    """Return how many messages the batches had, where one was filled after the other."""
    ends = [at for at, body in enumerate(place.got) if body == "END"]
    return [end - start - 1 for start, end in pairwise([-1, *ends])]


# No batch of these may wait for anything but bytes.
SLOW: dict[str, Any] = {"batch_size": 50, "batch_idle_timeout": 60, "concurrency_mode": "cc"}


@pytest.mark.parametrize("destination", [["queue://A"], BOTH], ids=["one", "several"])
def test_a_batch_ends_when_it_holds_so_many_bytes(place: listening.Site, destination: list[str]) -> None:
    count = 3 * AT_ONCE
    place.send(*(large(number) for number in range(count)), to=A)
    connection = Counting(place.broker, place.settings)
    held: list[int] = []
    activation = place.activation(
        lambda _: held.append(connection.decoded - activation.counts.committed),
        connect_with=lambda: connection,
        destination=destination,
        endpoint_pool_max_size=1,
        **SLOW,
    )
    assert activation.run(max_messages=count, run_for=timedelta(seconds=20)).committed == count
    assert batches(place) == [AT_ONCE] * 3
    assert [int(body[:3]) for body in place.got if body != "END"] == list(range(count))
    assert max(held) <= AT_ONCE + 1


def test_a_batch_of_small_messages_is_as_large_as_it_is_to_be(place: listening.Site) -> None:
    # These are smaller than what is counted, and together more than the bound.
    size = 16 * 1024 - 1
    count = MOST_BYTES // size + 100
    place.send(*(large(number, size) for number in range(count)), to=A)
    place.activation(
        listening.nothing, destination="queue://A", endpoint_pool_max_size=1, **SLOW | {"batch_size": count}
    ).run(max_messages=count, run_for=timedelta(seconds=20))
    assert batches(place) == [count]


def test_a_message_larger_than_the_bound_ends_its_batch(place: listening.Site) -> None:
    place.send("000", large(1, MOST_BYTES + 1), large(2, MOST_BYTES + 1), to=A)
    place.activation(listening.nothing, destination="queue://A", endpoint_pool_max_size=1, **SLOW).run(
        max_messages=3, run_for=timedelta(seconds=20)
    )
    assert batches(place) == [2, 1]


def test_a_batch_that_was_rolled_back_comes_again_as_it_was(place: listening.Site) -> None:
    place.send(*(large(number) for number in range(2 * AT_ONCE)), to=A)

    def fail_once(delivery: Delivery) -> None:
        if str(delivery.body)[:3] == "005" and not delivery.redelivery_count:
            raise ValueError("no stock")

    counts = place.activation(fail_once, destination="queue://A", endpoint_pool_max_size=1, **SLOW).run(
        max_messages=2 * AT_ONCE, run_for=timedelta(seconds=20)
    )
    assert batches(place) == [6, AT_ONCE, AT_ONCE]
    assert (counts.rolled_back, counts.committed) == (6, 2 * AT_ONCE)


@pytest.mark.parametrize("destination", [["queue://A"], BOTH], ids=["one", "several"])
@pytest.mark.parametrize("mode", ["cc", "sync"])
def test_each_batch_under_way_has_bytes_of_its_own(
    place: listening.Site, mode: str, destination: list[str]
) -> None:
    """One that takes long, or is held, keeps no other from being filled and handed over."""
    place.send(*(large(number) for number in range(4 * AT_ONCE)), to=A)
    connection = Counting(place.broker, place.settings)
    held: list[Delivery] = []
    ends: list[int] = []
    lock = threading.Lock()

    def hold(delivery: Delivery) -> None:
        with lock:
            held.append(delivery)
            if delivery.end_of_batch:
                ends.append(delivery.batch_index or 0)

    activation = place.activation(
        hold,
        connect_with=lambda: connection,
        destination=destination,
        hold_until_ack=True,
        endpoint_pool_max_size=3,
        **SLOW | {"concurrency_mode": mode},
    )
    activation.start()
    listening.until(lambda: len(ends) == 3)
    assert ends == [AT_ONCE] * 3
    assert connection.decoded == 3 * AT_ONCE
    assert activation.counts.committed == 0
    first = held[0].unit
    for delivery in [each for each in held if each.unit == first]:
        delivery.acknowledge()
    listening.until(lambda: len(ends) == 4)
    assert (activation.counts.committed, connection.decoded) == (AT_ONCE, 4 * AT_ONCE)
    for delivery in [each for each in held if each.unit != first]:
        delivery.acknowledge()
    listening.until(lambda: activation.counts.committed == 4 * AT_ONCE)


def test_a_batch_ends_where_what_fills_memory_waits_for_another(place: listening.Site) -> None:
    """The messages of a group wait for the batch that has the group; nothing comes for the other batch."""
    place.send(large(0), JMSXGroupID="g")
    place.send("001")
    ended, go_on = threading.Event(), threading.Event()

    def handle(delivery: Delivery) -> None:
        if delivery.end_of_batch and delivery.batch_index == 1:
            ended.set()
        elif str(delivery.body)[:3] == "000":
            assert go_on.wait(20)

    connection = Counting(place.broker, place.settings)
    activation = place.activation(handle, connect_with=lambda: connection, endpoint_pool_max_size=2, **SLOW)
    activation.start()
    listening.until(lambda: len(place.got) == 2)
    place.send(*(large(number) for number in range(2, 2 * AT_ONCE)), JMSXGroupID="g")
    assert ended.wait(20)
    assert connection.decoded <= AT_ONCE + 2
    go_on.set()
    listening.until(lambda: activation.counts.committed > AT_ONCE)


@pytest.mark.parametrize("destination", [["queue://A"], BOTH], ids=["one", "several"])
def test_a_batch_of_messages_in_progress_ends_when_it_holds_so_many_bytes(
    place: listening.Site, destination: list[str]
) -> None:
    count = 2 * AT_ONCE
    place.send(*(large(number) for number in range(count)), to=A)
    counts = place.activation(
        listening.nothing,
        destination=destination,
        in_progress_destination="queue://progress",
        endpoint_pool_max_size=1,
        **SLOW,
    ).run(max_messages=count, run_for=timedelta(seconds=20))
    assert counts.committed == count
    assert batches(place) == [AT_ONCE] * 2


def test_what_is_held_until_it_is_acknowledged_leaves_the_others_with_the_broker(
    place: listening.Site,
) -> None:
    """Held messages keep no thread, and whoever is free could take in all the others."""
    count = 4 * AT_ONCE
    place.send(*(large(number) for number in range(count)))
    connection = Counting(place.broker, place.settings)
    held: list[Delivery] = []
    activation = place.activation(
        held.append,
        connect_with=lambda: connection,
        hold_until_ack=True,
        concurrency_mode="cc",
        endpoint_pool_max_size=2,
    )
    activation.start()
    listening.until(lambda: connection.received == count and connection.decoded >= AT_ONCE)

    def is_held(number: int) -> Callable[[], bool]:
        return lambda: len(held) > number

    for number in range(count):
        listening.until(is_held(number))
        assert connection.decoded <= number + AT_ONCE + 2
        held[number].acknowledge()
    listening.until(lambda: activation.counts.committed == count)


def test_what_stays_in_a_listener_on_several_destinations_holds_up_nobody(place: listening.Site) -> None:
    place.send(*(large(number) for number in range(AT_ONCE + 1)), to=A)

    def refuse(delivery: Delivery) -> None:
        if len(str(delivery.body)) > 3:
            raise PoisonMessageError("nobody can use it")

    activation = place.activation(refuse, destination=BOTH, changes={"keep_poison": True})
    activation.start()
    listening.until(lambda: len(set(place.got)) == AT_ONCE + 1)
    place.send("999", to=B)
    listening.until(lambda: "999" in place.got)


def test_many_small_headers_count_for_what_they_take(place: listening.Site) -> None:
    """A message of 900 short headers takes 100 kB of memory, and 7 kB on the wire."""
    headers = {f"h{number}": "x" for number in range(900)}
    for number in range(200):
        place.send(str(number), to=A, **headers)
    activation = place.activation(
        listening.nothing, destination="queue://A", endpoint_pool_max_size=1, **SLOW | {"batch_size": 200}
    )
    assert activation.run(max_messages=200, run_for=timedelta(seconds=20)).committed == 200
    assert max(batches(place)) < 100
