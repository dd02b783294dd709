from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

import pytest

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.engine.watching import backlog as backlog_watch
from airflow_provider_jmsjca.engine.watching.backlog import (
    BacklogWatch,
    deferred_watch,
    watch_for_stuck_messages,
)
from airflow_provider_jmsjca.errors import PermanentBrokerError, PoisonMessageError
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.backlog import Backlog
from airflow_provider_jmsjca.transports.base import Connection, ConnectionSettings, Subscription
from airflow_provider_jmsjca.transports.memory import MemoryBroker as Broker
from airflow_provider_jmsjca.transports.memory.connection import MemoryConnection
from tests.unit.engine import streaming
from tests.unit.engine.brokers import LesserConnection, settings
from tests.unit.engine.listening import ORDERS, Site, until

QUIET = Backlog(consumers=1)
HELD = Backlog(taken=2, consumers=1, taken_ids=frozenset({"7", "8"}))
HELD_ELSEWHERE = Backlog(taken=2, consumers=2, taken_ids=frozenset({"7", "8"}))
WAITING = Backlog(waiting=1, consumers=1)


class Counting(LesserConnection):
    """A connection whose broker counts what the test says."""

    def __init__(self, server: Broker, counts: Iterator[Backlog]) -> None:
        super().__init__(server)
        self._counts = counts

    def backlog(self, queue: Destination) -> Backlog:
        assert queue == ORDERS
        return next(self._counts)


@dataclass
class Scene:
    """A watch over a broker that counts what it is told."""

    idle: float = 10.0
    now: float = 1000.0
    filtered: bool = False
    keeps: bool = False
    connections: list[Connection] = field(default_factory=list)

    def watch(self, *counts: Backlog) -> BacklogWatch:
        given = iter(counts)

        def open_one() -> Connection:
            self.connections.append(Counting(Broker("counting"), given))
            return self.connections[-1]

        return BacklogWatch(
            name="orders listener",
            queue=ORDERS,
            filtered=self.filtered,
            consumers=1,
            connect=open_one,
            idle_for=lambda: self.idle,
            has_unsettled=lambda: self.keeps,
            clock=lambda: self.now,
        )


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COUNT_INTERVAL", "IDLE_BEFORE", "CHECK_INTERVAL"):
        monkeypatch.setattr(backlog_watch, name, getattr(backlog_watch, name) / 100)


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(record.levelno, record.getMessage()) for record in caplog.records]


def test_what_no_living_consumer_has_is_an_error_that_names_it(caplog: pytest.LogCaptureFixture) -> None:
    """Artemis, trap 10."""
    scene = Scene()
    scene.watch(HELD, HELD).check()
    text = (
        "orders listener: the broker keeps 2 messages of queue://orders for a consumer that is gone, and may"
        " deliver them only after a restart (7, 8)"
    )
    assert said(caplog) == [(logging.ERROR, text)]
    assert [connection.state for connection in scene.connections] == ["closed"]


def test_what_moves_between_two_counts_is_not_stuck(caplog: pytest.LogCaptureFixture) -> None:
    Scene().watch(HELD, QUIET).check()
    Scene().watch(WAITING, QUIET).check()
    Scene().watch(QUIET).check()
    later = Backlog(taken=1, consumers=1, taken_ids=frozenset({"9"}))
    Scene().watch(HELD, later).check()
    Scene().watch(HELD_ELSEWHERE, HELD).check()  # its holder goes, and they are on their way
    assert said(caplog) == []


def test_a_listener_that_has_something_to_do_again_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    Scene(idle=0.0).watch(HELD, HELD).check()
    assert said(caplog) == []


def test_what_the_listener_keeps_itself_is_nobody_elses(caplog: pytest.LogCaptureFixture) -> None:
    """A message that can be neither delivered nor moved is in the log already."""
    looks: list[float] = []
    look = BacklogWatch.check

    def counted(watch: BacklogWatch) -> None:
        look(watch)
        looks.append(watch._clock())

    site = Site()
    try:
        site.send(
            "bad", _JMSJCA_PublishedJMSDestination="queue://x", _JMSJCA_PublishedJMSTimestamp="no number"
        )
        activation = site.activation(site.note, balanced=True, concurrency_mode="cc")
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(BacklogWatch, "check", counted)
            activation.start()
            until(lambda: len(looks) == 2)
    finally:
        site.close()
    assert ["stays" in text for level, text in said(caplog) if level >= logging.WARNING] == [True]


def test_another_consumer_may_take_its_time(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    watch = scene.watch(*[HELD_ELSEWHERE] * 8)
    watch.check()
    scene.now += 299
    watch.check()
    assert said(caplog) == []
    scene.now += 1
    watch.check()
    watch.check()  # said already
    text = (
        "orders listener: another consumer, or one that is gone, has had 2 messages of queue://orders"
        " for 0:05:00 or longer (7, 8)"
    )
    assert said(caplog) == [(logging.WARNING, text)]


def test_what_waits_and_does_not_come_is_said_unless_a_selector_may_be_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Scene(filtered=True).watch(WAITING, WAITING).check()
    assert said(caplog) == []
    Scene().watch(WAITING, WAITING).check()
    text = (
        "orders listener: messages wait on queue://orders and aren't delivered to this listener, which has"
        " nothing to do: the queue is paused, or they are kept for another consumer"
    )
    assert said(caplog) == [(logging.WARNING, text)]


def test_a_listener_that_is_idle_looks_by_itself(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the holder leaves has to reach the listener before the second count, also on a busy machine.
    monkeypatch.setattr(backlog_watch, "COUNT_INTERVAL", timedelta(seconds=1))
    site = Site()
    try:
        holder = connect(site.settings)
        held: list[object] = []
        holder.consume(Subscription(destination=ORDERS, prefetch=1), held.append)
        site.send("a", "b")
        until(lambda: held)
        activation = site.activation(site.note)
        activation.start()
        until(lambda: activation.counts.committed == 1)
        until(lambda: site.broker.connections >= 3)
        holder.close()
        until(lambda: activation.counts.committed == 2)
    finally:
        site.close()
    assert not [text for level, text in said(caplog) if level >= logging.ERROR]


def test_who_may_not_ask_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "airflow_provider_jmsjca.listener")

    class Refusing(MemoryConnection):
        def backlog(self, queue: Destination) -> Backlog:
            raise PermanentBrokerError(f"no {queue} for you")

    asked: list[ConnectionSettings] = []

    def open_one() -> Connection:
        asked.append(settings("refusing"))
        return Refusing(Broker("refusing"), asked[-1])

    watch = BacklogWatch(
        name="orders listener", queue=ORDERS, filtered=False, consumers=1, connect=open_one,
        idle_for=lambda: 10.0, has_unsettled=lambda: False, clock=lambda: 0.0,
    )  # fmt: skip
    watch.start()
    until(lambda: said(caplog))
    watch.stop()
    assert said(caplog) == [
        (
            logging.INFO,
            "orders listener: stuck messages on queue://orders can't be detected: no queue://orders for you",
        )
    ]
    assert len(asked) == 1


def test_a_run_does_not_end_for_silence_amid_a_look(caplog: pytest.LogCaptureFixture) -> None:
    site = Site()
    opened: list[Connection] = []

    def open_one() -> Connection:
        if opened:
            time.sleep(0.5)  # trap 9: the broker takes its time just then
        opened.append(Counting(site.broker, iter([HELD, HELD])))
        return opened[-1]

    listener = site.activation(lambda _: None, connect_with=open_one)
    listener.run(idle_for=timedelta(seconds=0.2))
    assert any("for a consumer that is gone" in text for _, text in said(caplog))


def test_who_is_deferred_looks_too(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryConnection, "backlog", lambda *_: HELD)
    monkeypatch.setattr(backlog_watch, "CHECK_INTERVAL", timedelta(seconds=0.01))
    site = Site()

    async def some_looks() -> None:
        looks = asyncio.create_task(
            watch_for_stuck_messages(deferred_watch(partial(connect, site.settings), ORDERS, filtered=False))
        )
        await streaming.until(lambda: said(caplog))
        looks.cancel()

    asyncio.run(some_looks())
    assert "queue://orders, deferred: the broker keeps 2 messages" in said(caplog)[0][1]


def test_a_stream_that_has_nothing_to_do_looks_too(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING, logger="airflow_provider_jmsjca")  # whatever Airflow has set
    monkeypatch.setattr(MemoryConnection, "backlog", lambda *_: HELD)
    monkeypatch.setattr(backlog_watch, "CHECK_INTERVAL", timedelta(seconds=0.05))
    text = (
        "stream: the broker keeps 2 messages of queue://orders for a consumer that is gone, and may deliver"
        " them only after a restart (7, 8)"
    )

    async def some_looks() -> None:
        site = streaming.Site()
        site.send("a")
        async with site.streaming() as stream:
            delivery = await streaming.one(stream)
            assert await streaming.nothing_comes(stream, 0.3)
            assert not said(caplog)
            delivery.returned()
            await streaming.until(lambda: said(caplog))
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(some_looks())
    assert said(caplog) == [(logging.ERROR, text)]


def test_a_stream_that_keeps_messages_itself_accuses_nobody(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryConnection, "backlog", lambda *_: HELD)
    monkeypatch.setattr(backlog_watch, "CHECK_INTERVAL", timedelta(seconds=0.05))

    async def some_looks() -> None:
        site = streaming.Site()
        site.send("a")
        async with site.streaming(streaming.settings(keep_poison=True)) as stream:
            (await streaming.one(stream)).raised(PoisonMessageError("no"))
            assert await streaming.nothing_comes(stream, 0.4)

    asyncio.run(some_looks())
    assert [text for _, text in said(caplog) if "keeps" in text] == []
    assert "stays unsettled on queue://orders" in caplog.text
