"""A process that takes large messages in one of several ways, and says how much memory they took at most."""

from __future__ import annotations

import asyncio
import functools
import json
import re
import sys
import tempfile
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from airflow_provider_jmsjca import (
    ActivationSpec,
    ConnectionSettings,
    Delivery,
    JmsMessage,
    StreamDelivery,
    Subscription,
    connect,
)
from tests.internals.engine import AsyncConnection, ConnectionPool, DeliveryStream, listener_settings

_LIMIT = timedelta(seconds=60)


def main() -> None:
    asked = json.loads(sys.stdin.readline())
    settings = ConnectionSettings(
        scheme="stomp",
        hosts=((asked["host"], asked["port"]),),
        username=asked["username"],
        password=asked["password"],
    )
    ways: dict[str, Callable[[ConnectionSettings, str, int], int]] = {
        "collector": _collect,
        "listener": _listen,
        "listener of several": functools.partial(_listen, beside=True),
        "listener with batches": functools.partial(_listen, batch_size=50),
        "listener with batches of several": functools.partial(_listen, batch_size=50, beside=True),
        "stream": _stream,
        "stream that is late": functools.partial(_stream, late=True),
    }
    if asked["way"] == "collector":
        _seal_a_small_one()
    before = _peak()
    count = ways[asked["way"]](settings, asked["queue"], asked["count"])
    sys.stdout.write(json.dumps({"count": count, "mebibytes": _peak() - before}))


def _peak() -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1]) / 1024


def _seal_a_small_one() -> None:
    """Load Arrow, and what it loads itself: how large those are differs from machine to machine."""
    from tests.internals.spool import Row, SpoolBatch  # noqa: PLC0415 - Arrow is large

    with (
        tempfile.TemporaryDirectory() as folder,
        SpoolBatch(Path(folder), "b", source="small", activation="small") as batch,
    ):
        batch.seal([Row(JmsMessage.text("small"), 0)])


def _collect(settings: ConnectionSettings, queue: str, count: int) -> int:
    from tests.internals.collecting import BatchSpec, collect  # noqa: PLC0415 - Arrow is large
    from tests.internals.engine import open_connection  # noqa: PLC0415
    from tests.internals.spool import SpoolBatch  # noqa: PLC0415

    rules = listener_settings(ActivationSpec(destination=f"queue://{queue}"))
    spec = BatchSpec(
        subscription=Subscription(destination=rules.subscription.destination),
        max_messages=count,
        max_time=_LIMIT,
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        SpoolBatch(Path(folder), "b", source=queue, activation="a") as batch,
    ):
        opened = functools.partial(open_connection, settings)
        return collect(opened, batch, spec, stop=threading.Event()).rows


def _listen(
    settings: ConnectionSettings, queue: str, count: int, *, beside: bool = False, batch_size: int = 1
) -> int:
    from tests.internals.engine import Listener, one_connection  # noqa: PLC0415 - Arrow is large

    def handle(delivery: Delivery) -> None:
        assert delivery.end_of_batch or delivery.body is not None

    queues = [f"queue://{queue}", *([f"queue://{queue}.beside"] if beside else ())]
    rules = listener_settings(
        ActivationSpec(
            destination=queues,
            batch_size=batch_size,
            concurrency_mode="serial" if batch_size == 1 else "cc",
            endpoint_pool_max_size=1,
        )
    )
    connected = functools.partial(connect, settings)
    return (
        Listener(one_connection(rules, connected), handle).run(max_messages=count, run_for=_LIMIT).committed
    )


def _stream(settings: ConnectionSettings, queue: str, count: int, *, late: bool = False) -> int:
    """Take messages from a stream; `late` ends none before no more come, as a busy Airflow may."""
    rules = listener_settings(
        ActivationSpec(
            destination=f"queue://{queue}",
            concurrency_mode="cc",
            endpoint_pool_max_size=count if late else 10,
            transaction_timeout=0,
        )
    )

    async def work() -> int:
        held: list[StreamDelivery] = []
        with ConnectionPool() as pool:
            async with DeliveryStream(rules, AsyncConnection(settings, pool=pool)) as stream:
                for _ in range(count):
                    try:
                        delivery = await asyncio.wait_for(anext(stream), 1 if held else 60)
                    except TimeoutError:
                        while held:
                            held.pop().returned()
                        delivery = await asyncio.wait_for(anext(stream), 60)
                    assert delivery.message.body is not None
                    held.append(delivery)
                    if not late:
                        held.pop().returned()
                while held:
                    held.pop().returned()
        return count

    return asyncio.run(work())


if __name__ == "__main__":
    main()
