"""A lost connection is no attempt: redelivery handling counts calls of the handler, not redelivered flags.

J129-J132. The messages together are larger than the buffers of the sockets. When the connection is cut, many
are on their way: the broker flags them as redelivered, although they never reached this process.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_jmsjca import ActivationSpec, Delivery
from tests.broker.listening import activation, bodies, idle, send, until
from tests.internals.core import Backoff
from tests.internals.engine import AsyncConnection, ConnectionPool, DeliveryStream, listener_settings
from tests.servers.broker import Broker
from tests.servers.proxy import TcpProxy

PADDING = "." * 6000
NAMES = {f"{number:03}" for number in range(300)}
MODES: dict[str, dict[str, Any]] = {
    "serial": {},
    "sync": {"concurrency_mode": "sync", "endpoint_pool_max_size": 4},
    "batches": {"concurrency_mode": "cc", "endpoint_pool_max_size": 2, "batch_size": 10},
    "several": {},
}


def fill(broker: Broker, queue: str) -> None:
    send(broker.settings(), queue, *(name + PADDING for name in sorted(NAMES)))


def interrupt(proxy: TcpProxy) -> None:
    """Cut every connection while messages are on their way."""
    proxy.freeze()
    proxy.cut()
    proxy.thaw()


@pytest.mark.parametrize("mode", sorted(MODES))
def test_no_message_is_deleted_without_a_call(broker: Broker, queue_name: str, mode: str) -> None:
    called: Counter[str] = Counter()
    spec = dict(MODES[mode])
    if mode == "several":
        spec["destination"] = [f"queue://{queue_name}", f"queue://{queue_name}.beside"]
    fill(broker, queue_name)
    first = threading.Lock()
    with TcpProxy(broker.address()) as proxy:

        def handle(delivery: Delivery) -> None:
            if not delivery.end_of_batch:
                called[delivery.body[:3]] += 1
            if first.acquire(blocking=False):
                interrupt(proxy)

        through = broker.settings(hosts=(proxy.address,))
        listener = activation(through, queue_name, handle, redelivery_handling="1:delete", **spec)
        listener.start()
        until(lambda: listener.counts.settled >= len(NAMES) and listener.is_idle())
        counts = listener.counts
        assert listener.stop(timedelta(seconds=10))
    assert NAMES - called.keys() == set()
    assert counts.deleted <= 20, "only those whose handlers were running"


@pytest.mark.parametrize("limit", [1, 4])
def test_each_message_is_moved_after_its_calls_and_not_before(
    broker: Broker, queue_name: str, limit: int
) -> None:
    called: Counter[str] = Counter()
    fill(broker, queue_name)
    with TcpProxy(broker.address()) as proxy:

        def fail(delivery: Delivery) -> None:
            called[delivery.body[:3]] += 1
            if called.total() in {1, 50 * limit, 51 * limit}:
                interrupt(proxy)
            raise ValueError("no stock")

        through = broker.settings(hosts=(proxy.address,))
        handling = f"{limit}:move(queue:$.dlq)"
        listener = activation(through, queue_name, fail, redelivery_handling=handling)
        listener.start()
        until(lambda: listener.counts.moved >= len(NAMES) and listener.is_idle())
        assert listener.stop(timedelta(seconds=10))
    assert called == dict.fromkeys(NAMES, limit)
    assert {body[:3] for body in bodies(broker.settings(), f"{queue_name}.dlq")} == NAMES


def test_a_stream_deletes_no_message_that_it_did_not_hand_out(broker: Broker, queue_name: str) -> None:
    got: Counter[str] = Counter()
    fill(broker, queue_name)
    rules = listener_settings(
        ActivationSpec(
            destination=f"queue://{queue_name}",
            concurrency_mode="cc",
            endpoint_pool_max_size=10,
            redelivery_handling="1:delete",
        )
    )
    quick = replace(rules.delivery.outage, backoff=Backoff(steps=(timedelta(seconds=0.1),)))
    rules = replace(rules, delivery=replace(rules.delivery, outage=quick))

    async def work() -> None:
        with TcpProxy(broker.address()) as proxy, ConnectionPool() as pool:
            through = AsyncConnection(broker.settings(hosts=(proxy.address,)), pool=pool)
            async with DeliveryStream(rules, through) as stream:
                while stream.counts.settled < len(NAMES):
                    try:
                        delivery = await asyncio.wait_for(anext(stream), idle().total_seconds())
                    except TimeoutError:
                        break
                    got[str(delivery.message.body)[:3]] += 1
                    if got.total() == 1:
                        await asyncio.to_thread(interrupt, proxy)
                    delivery.returned()

    asyncio.run(asyncio.wait_for(work(), 60))
    assert NAMES - got.keys() == set()
