"""What is due in limbo is sent by the triggerer, whichever triggers run there."""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_jmsjca import (
    JmsActivationTrigger,
    JmsMessage,
    MemoryBroker,
    TransientStoreError,
    open_store,
)
from tests.airflow.triggers.test_activation import send, triggerer
from tests.airflow.triggers.waiting import run, until
from tests.internals.hooks import installed_store, shared_store
from tests.internals.hooks import store as hooks_store
from tests.internals.store import LimboEntry, SqlStore
from tests.internals.triggers import releasing as module
from tests.pace import at_most


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqlStore]:
    monkeypatch.setenv("AIRFLOW__JMSJCA__STORE_URL", f"sqlite:///{tmp_path / 'store.db'}")
    opened = installed_store()
    yield opened
    opened.close()


def put(store: SqlStore, body: str, queue: str = "queue://orders", **delay: float) -> None:
    now = datetime.now(UTC)
    entry = LimboEntry(
        jms_conn_id="jms_test",
        destination=queue,
        message=JmsMessage.text(body),
        due_at=now + timedelta(**delay),
    )
    store.limbo.put([entry], now)


def test_all_triggers_share_one_task_which_sends_what_is_due(server: MemoryBroker, store: SqlStore) -> None:
    async def work() -> None:
        put(store, "later", seconds=0.5)
        put(store, "for others", "queue://others")
        async with triggerer() as running:
            orders = running.watch()
            running.watch(destination="queue://prices")
            await until(lambda: orders.bodies == ["later"])
            assert [each.body for each in server.messages("others")] == ["for others"]
            assert [found.users for found in module._tasks.values()] == [2]
            task = next(iter(module._tasks.values())).task
        await until(task.done)
        assert not module._tasks
        await until(lambda: store.limbo.page() == [])  # the round that sent it may be under way

    run(work())


def test_none_is_early_and_none_later_than_2_seconds(server: MemoryBroker, store: SqlStore) -> None:
    due = {str(number): time.time() + 0.35 * number for number in range(8)}
    for body, moment in due.items():
        put(store, body, "queue://others", seconds=moment - time.time())
    came: dict[object, float] = {}

    async def work() -> None:
        with module.releasing():
            await until(all_came, seconds=60)

    def all_came() -> bool:
        for each in server.messages("others"):
            came.setdefault(each.body, time.time())
        return len(came) == len(due)

    run(work())
    late = {body: moment - due[str(body)] for body, moment in came.items()}
    assert min(late.values()) >= -0.001, "milliseconds are stored"
    assert max(late.values()) <= at_most(2)


def test_leases_are_held_until_the_round_that_sends_is_over(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end, happened = threading.Event(), threading.Event(), list[str]()
    leave = SqlStore.close

    def sends(_: object) -> None:
        begun.set()
        may_end.wait(60)
        happened.append("sent")

    def closes(closed: SqlStore) -> None:
        happened.append("closed")
        leave(closed)

    monkeypatch.setattr(module.StoreUpkeep, "round", sends)
    monkeypatch.setattr(SqlStore, "close", closes)
    put(store, "a")

    async def work() -> None:
        with module.releasing():
            await until(begun.is_set)
            task = next(iter(module._tasks.values())).task
        await until(task.done)
        may_end.set()
        await until(lambda: len(happened) >= 2)

    run(work())
    assert happened == ["sent", "closed"]


@pytest.mark.usefixtures("store")
def test_triggers_and_the_task_share_one_store_which_the_last_closes(
    server: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[SqlStore] = []
    closed: list[SqlStore] = []
    leave = SqlStore.close

    def opens(url: Any, **more: Any) -> SqlStore:
        opened.append(open_store(url, **more))
        return opened[-1]

    def closes(left: SqlStore) -> None:
        closed.append(left)
        leave(left)

    monkeypatch.setattr("airflow_provider_jmsjca.store.sql.store.open_store", opens)
    monkeypatch.setattr(SqlStore, "close", closes)

    async def work() -> None:
        async with triggerer() as running:
            for queue in ("orders", "prices", "trades"):
                send(server, queue, queue=queue)
                watcher = running.watch(destination=f"queue://{queue}", use_store=True)
                await until(lambda watcher=watcher, queue=queue: watcher.bodies == [queue])
            assert closed == []
        await until(lambda: closed)

    run(work())
    assert len(opened) == 1
    assert closed == opened
    assert hooks_store._shares == {}


@pytest.mark.usefixtures("store")
def test_a_store_that_cannot_be_opened_is_opened_by_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any, **__: Any) -> SqlStore:
        raise TransientStoreError("away")

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr("airflow_provider_jmsjca.store.sql.store.open_store", away)
        for _ in range(2):
            with pytest.raises(TransientStoreError):
                shared_store()
    hooks_store.release_shared_store(shared_store())


def test_a_store_that_nobody_uses_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW__JMSJCA__STORE_URL", raising=False)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    looked: list[bool] = []
    monkeypatch.setattr(module, "store_in_use", lambda: bool(looked.append(True)))

    async def work() -> None:
        with module.releasing():
            await until(lambda: looked)

    run(work())
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_away_is_said_once_and_tried_again(
    server: MemoryBroker,
    store: SqlStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)
    put(store, "a", "queue://others")
    monkeypatch.setattr(module, "_RETRY_BACKOFF", module.Backoff(steps=(timedelta(milliseconds=10),)))
    tries: list[Any] = []

    def away() -> SqlStore:
        tries.append(None)
        if len(tries) < 4:
            raise module.TransientBrokerError("no answer")
        return shared_store()

    monkeypatch.setattr(module, "shared_store", away)

    async def work() -> None:
        with module.releasing():
            await until(lambda: server.depth("others") == 1)

    run(work())
    assert [record.getMessage() for record in caplog.records if "limbo" in record.getMessage()] == [
        "Nothing is sent from limbo until this is fixed: no answer"
    ]


def test_a_refused_message_stays_in_limbo_where_no_destination_is_set_i28(
    server: MemoryBroker, store: SqlStore
) -> None:
    """I28: it isn't left unsettled, and can be revived."""

    async def work() -> None:
        send(server, "x", region="eu" * 5_000)
        send(server, "fits")
        async with triggerer() as running:
            orders = running.watch(use_store=True, max_body_bytes=1_000)
            await until(lambda: orders.bodies == ["fits"])
            await until(lambda: server.depth("orders") == 0)
        (kept,) = store.limbo.page()
        assert (kept.state, kept.destination, kept.jms_conn_id) == ("failed", "queue://orders", "jms_test")
        assert "max_body_bytes" in kept.exception_message

    run(work())


def test_what_relies_on_limbo_is_checked_when_the_dag_is_parsed_p15() -> None:
    """P15: without a destination the messages stay in limbo, if there is one."""
    given = {"destination": "queue://orders", "max_attempts": 3, "use_store": True}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        JmsActivationTrigger("jms_test", **given)
        JmsActivationTrigger("jms_test", **given | {"in_doubt_events": "log_error"})
    with pytest.warns(UserWarning, match="dead_letter_destination: missing"):
        JmsActivationTrigger("jms_test", **given | {"connection_url": "stomp://elsewhere"})
    with pytest.warns(UserWarning, match="dead_letter_destination: missing"):
        JmsActivationTrigger("jms_test", **given | {"use_store": False})
