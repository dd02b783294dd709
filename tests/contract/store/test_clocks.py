"""Hosts whose clocks differ: what they share is compared by the clock of the database."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Self

import pytest

from airflow_provider_jmsjca import (
    ConnectionSettings,
    Destination,
    JmsConnection,
    JmsMessage,
    MemoryBroker,
    Outgoing,
    memory_broker,
    open_store,
    transports,
)
from tests.contract.store.conftest import new_store, url_of
from tests.internals.engine import LEASE, AttemptLog, DelayedMessages, LimboSender
from tests.internals.store import SILENT_FOR, LimboEntry, SqlStore

Shift = Callable[[timedelta], None]


@pytest.fixture
def stores(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[SqlStore, SqlStore]]:
    """A PostgreSQL store as two hosts open it."""
    url = url_of("postgresql", tmp_path, request)
    opened = new_store(url), open_store(url, where="other/2")
    yield opened
    for each in opened:
        each.close()


@pytest.fixture
def shift(monkeypatch: pytest.MonkeyPatch) -> Shift:
    """Put the clock of this process off, as every module of the package reads it."""

    def shifted(by: timedelta) -> None:
        class Shifted(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> Self:
                return datetime.now(tz) + by  # type: ignore[return-value]  # a datetime will do

        for name, module in list(sys.modules.items()):
            if name.startswith("airflow_provider_jmsjca.") and hasattr(module, "datetime"):
                monkeypatch.setattr(module, "datetime", Shifted)

    return shifted


def put(store: SqlStore, *bodies: str) -> None:
    now = datetime.now(UTC) - timedelta(minutes=5)
    entry = LimboEntry(
        jms_conn_id="orders", destination="queue://orders", message=JmsMessage.text(""), due_at=now
    )
    store.limbo.put([replace(entry, message=JmsMessage.text(body)) for body in bodies], now)


def connect_to(server: MemoryBroker) -> Callable[[str], AbstractContextManager[JmsConnection]]:
    settings = ConnectionSettings(scheme="vm", hosts=((server.name, None),))
    return lambda _: JmsConnection(transports.connect(settings))


def test_a_host_whose_clock_is_ahead_takes_over_no_lease_that_holds(
    stores: tuple[SqlStore, SqlStore], shift: Shift
) -> None:
    """At 70 seconds each message was sent twice."""
    server = memory_broker("clocks")
    sending, go_on = threading.Event(), threading.Event()

    def connect(name: str) -> AbstractContextManager[JmsConnection]:
        sending.set()
        assert go_on.wait(30)
        return connect_to(server)(name)

    put(stores[0], "1", "2")
    thread = threading.Thread(target=LimboSender(stores[0].limbo, connect).send_due)
    thread.start()
    assert sending.wait(30)
    shift(LEASE + timedelta(seconds=10))
    try:
        assert LimboSender(stores[1].limbo, connect_to(server)).send_due().sent == 0
    finally:
        go_on.set()
        thread.join(30)
    assert sorted(str(each.body) for each in server.messages("orders")) == ["1", "2"]


@pytest.mark.parametrize("by", [SILENT_FOR + timedelta(seconds=1), -SILENT_FOR - timedelta(seconds=1)])
def test_a_process_lives_whatever_the_clock_of_the_host_that_asks(
    stores: tuple[SqlStore, SqlStore], shift: Shift, by: timedelta
) -> None:
    """At 61 seconds every living process counted as dead, and what it handled as in doubt."""
    living, asking = stores
    if by < timedelta(0):  # it is its own clock that is behind
        shift(by)
    AttemptLog(living, "orders", title="orders").begin(["m1"])
    shift(max(by, timedelta(0)))
    assert AttemptLog(asking, "orders", title="orders").left_in_doubt() == []


@pytest.mark.parametrize("by", [timedelta(minutes=-2), timedelta(minutes=2)])
def test_a_delay_is_as_long_as_it_is_whatever_the_clock_of_the_host(
    stores: tuple[SqlStore, SqlStore], shift: Shift, by: timedelta
) -> None:
    limbo, minute = stores[0].limbo, timedelta(minutes=1)
    shift(by)
    shelf = DelayedMessages(limbo=limbo, activation="orders", jms_conn_id="orders", most_tries=5)
    orders, message = Destination.queue("orders"), JmsMessage.text("1", message_id="1")
    shelf.park(message, orders, orders, seen=1, pause=minute, again=False)
    shelf.put([shelf.entry_of(Outgoing(destination=orders, message=message, delay=minute))])
    for each in limbo.page():
        assert abs(each.due_at - each.put_at - minute) < timedelta(seconds=30)
        assert abs(each.put_at - datetime.now(UTC)) < timedelta(seconds=30)
