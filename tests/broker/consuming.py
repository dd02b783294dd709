"""A process that takes large messages in one of three ways, and says how much memory it had at most."""

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

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.engine.delivering.delivery import Delivery
from airflow_provider_jmsjca.engine.delivering.settings import listener_settings
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import ConnectionSettings, Subscription

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
        "stream": _stream,
    }
    count = ways[asked["way"]](settings, asked["queue"], asked["count"])
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert peak is not None
    sys.stdout.write(json.dumps({"count": count, "mebibytes": int(peak[1]) / 1024}))


def _collect(settings: ConnectionSettings, queue: str, count: int) -> int:
    from airflow_provider_jmsjca.engine.collecting.batch_spec import BatchSpec  # noqa: PLC0415 - Arrow is large
    from airflow_provider_jmsjca.engine.collecting.batcher import collect  # noqa: PLC0415
    from airflow_provider_jmsjca.engine.connecting.connector import open_connection  # noqa: PLC0415
    from airflow_provider_jmsjca.spool.spool import SpoolBatch  # noqa: PLC0415

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


def _listen(settings: ConnectionSettings, queue: str, count: int) -> int:
    from airflow_provider_jmsjca.engine.activations.plain import PlainActivation  # noqa: PLC0415

    def handle(delivery: Delivery) -> None:
        assert delivery.body is not None

    rules = listener_settings(ActivationSpec(destination=f"queue://{queue}"))
    connected = functools.partial(connect, settings)
    return PlainActivation(rules, connected, handle).run(max_messages=count, run_for=_LIMIT).committed


def _stream(settings: ConnectionSettings, queue: str, count: int) -> int:
    from tests.broker.test_stream import streaming  # noqa: PLC0415

    async def work() -> int:
        async with streaming(settings, queue) as stream:
            for _ in range(count):
                delivery = await asyncio.wait_for(anext(stream), _LIMIT.total_seconds())
                assert delivery.message.body is not None
                delivery.returned()
        return count

    return asyncio.run(work())


if __name__ == "__main__":
    main()
