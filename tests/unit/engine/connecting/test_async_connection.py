from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import re
import threading
import time
from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_provider_jmsjca.core.backoff import Backoff
from airflow_provider_jmsjca.engine.connecting import async_connection
from airflow_provider_jmsjca.engine.connecting.async_connection import AsyncConnection
from airflow_provider_jmsjca.engine.connecting.pool import ConnectionPool
from airflow_provider_jmsjca.errors import TransientBrokerError
from airflow_provider_jmsjca.transports.base import Connection, ConnectionSettings, ConnectionState
from airflow_provider_jmsjca.transports.memory import memory_broker as broker
from tests.unit.engine.brokers import settings
from tests.unit.engine.streaming import until

SOON = Backoff(steps=(timedelta(seconds=0.02),), jitter=0)


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


def test_an_attempt_says_who_waits_for_it_and_a_connection_whose_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    server = broker("named")
    server.kill()
    users = [
        AsyncConnection(settings("named"), subject=functools.partial(str, f"asset {name!r}"), backoff=SOON)
        for name in "edcba"
    ]

    async def work() -> str:
        waiting = [asyncio.create_task(user.get()) for user in users]
        await until(lambda: any("Attempt 1" in line for line in caplog.messages))
        server.restart()
        await asyncio.gather(*waiting)
        info = (await users[0].get()).broker
        users[0].failed(TransientBrokerError("it says no"))
        for user in users:
            user.release()
        return str(info)

    info = asyncio.run(asyncio.wait_for(work(), 20))
    asker_first = "asset 'e', asset 'a', asset 'b' and 2 more"
    assert f"Attempt 1 to connect failed for {asker_first}, another follows: " in caplog.text
    assert re.fullmatch(
        rf"Connected to {re.escape(info)} for (asset '.'(, )?){{3}} and 2 more", caplog.messages[-2]
    )
    assert caplog.messages[-1] == "Retrying after a wait for asset 'e': it says no"


def test_who_says_nothing_of_himself_is_known_by_the_name_of_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    connection = AsyncConnection(replace(settings("by-name"), name="jms_orders"))

    async def work() -> None:
        await connection.get()
        connection.release()

    asyncio.run(asyncio.wait_for(work(), 20))
    assert caplog.messages[-1].endswith(" for connection 'jms_orders'")


def test_a_connection_whose_settings_have_changed_is_stale_and_not_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(async_connection, "_CHECKED_EVERY_SECONDS", 0.05)
    monkeypatch.setattr(async_connection, "_SPREAD_SECONDS", 0.0)
    caplog.set_level(logging.INFO)
    found = settings("before")
    told: list[str] = []

    async def find() -> ConnectionSettings:
        return found

    async def work() -> None:
        nonlocal found
        connection = AsyncConnection(find, pool=ConnectionPool(idle_timeout=timedelta(0)), backoff=SOON)
        old = await connection.get()
        connection.on_lost(lambda _: told.append("lost"))
        connection.on_stale(lambda: told.append("stale"))
        found = settings("after")
        await until(lambda: told)
        assert old.state is ConnectionState.UP
        new = await connection.get()
        assert new.broker.address != old.broker.address
        await until(lambda: broker("before").connections == 0)
        connection.release()
        connection.on_stale(lambda: told.append("stale, and nothing is held"))

    asyncio.run(asyncio.wait_for(work(), 20))
    assert told == ["stale"]
    assert "The settings for vm://before have changed; moving to vm://after" in caplog.messages
