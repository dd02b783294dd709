from __future__ import annotations

import asyncio
import itertools
import threading
import time
from datetime import timedelta

from airflow_provider_jmsjca.core.backoff import Backoff
from airflow_provider_jmsjca.engine.connecting.async_connection import AsyncConnection
from airflow_provider_jmsjca.engine.connecting.pool import ConnectionPool
from airflow_provider_jmsjca.errors import TransientBrokerError
from airflow_provider_jmsjca.transports.base import Connection, ConnectionSettings


def test_a_connection_that_keeps_breaking_is_not_tried_in_a_hot_loop() -> None:
    attempts: list[float] = []
    enough = threading.Event()

    def breaking(_settings: ConnectionSettings) -> Connection:
        attempts.append(time.monotonic())
        if len(attempts) == 4:
            enough.set()
        raise TransientBrokerError("vm://x is down")

    async def work() -> None:
        connection = AsyncConnection(
            ConnectionSettings(scheme="vm", hosts=(("x", None),)),
            pool=ConnectionPool(connect=breaking),
            backoff=Backoff(steps=tuple(timedelta(seconds=step) for step in (0.05, 0.1, 0.2)), jitter=0),
        )
        waiting = asyncio.create_task(connection.get())
        assert await asyncio.to_thread(enough.wait, 10)
        waiting.cancel()

    asyncio.run(asyncio.wait_for(work(), 20))
    gaps = [later - earlier for earlier, later in itertools.pairwise(attempts)]
    assert [gap >= expected for gap, expected in zip(gaps, (0.05, 0.1, 0.2), strict=False)] == [True] * 3
