"""A database that can't be used while something consumes: full, locked, read-only, gone."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from sqlalchemy import create_engine, event, text

from airflow_provider_jmsjca import TransientStoreError, open_store
from tests.contract.store.conftest import new_store, url_of
from tests.internals.engine import ListenerSettings
from tests.internals.store import SqlStore
from tests.internals.store import database as module
from tests.servers.postgres import Postgres
from tests.unit.engine import streaming
from tests.unit.engine.listening import Site, nothing, until

MESSAGES = 30
# Longer than what a page of a small page size holds: each row needs a page more.
WHERE = "h" * 200

Trouble: TypeAlias = Callable[[], AbstractContextManager[None]]

SERIAL = {"concurrency_mode": "serial"}
CC = {"concurrency_mode": "cc", "endpoint_pool_max_size": 3}
BATCH = {"concurrency_mode": "cc", "endpoint_pool_max_size": 1, "batch_size": 5}
TROUBLES = {
    "full": "full",
    "locked": "locked",
    "read-only": "readonly",
    "moved": "its file is gone",
    "gone": "can't be used now",
    "postgresql full": "No space left on device",
    "postgresql locked": "lock timeout",
    "postgresql read-only": "in a read-only transaction",
}
"""What is wrong, and what is said of it; of SQLite, but for the last ones."""


def on_postgresql(trouble: str) -> bool:
    return trouble == "gone" or trouble.startswith("postgresql")


@pytest.fixture
def store(
    trouble: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SqlStore]:
    monkeypatch.setattr(module, "_BUSY_SECONDS", 2 if on_postgresql(trouble) else 0.1)
    if on_postgresql(trouble):
        url = url_of("postgresql", tmp_path, request)
        new_store(url).close()
    else:
        path = tmp_path / "store.db"
        made = sqlite3.connect(path)
        made.executescript("PRAGMA page_size=512; VACUUM")
        made.close()
        url = f"sqlite:///{path}"
    opened = open_store(url, where=WHERE)
    yield opened
    opened.close()


@pytest.fixture
def site(store: SqlStore) -> Iterator[Site]:
    """A broker whose listeners end before the store is closed."""
    del store
    made = Site()
    yield made
    made.close()


@contextmanager
def set_up(store: SqlStore, wrong: str, right: str) -> Iterator[None]:
    """Let a setting of SQLite hold for every connection, and another one afterwards."""
    engine = store.database._engine_here()
    says = wrong

    def checkout(connection: Any, *_: object) -> None:
        connection.execute(says)

    event.listen(engine, "checkout", checkout)
    yield
    says = right


@contextmanager
def locked(path: Path) -> Iterator[None]:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    yield
    other.execute("COMMIT")
    other.close()


@contextmanager
def moved(path: Path) -> Iterator[None]:
    path.rename(path.with_suffix(".away"))
    yield
    assert not path.exists(), "no new file was made"
    path.with_suffix(".away").rename(path)


@contextmanager
def gone(server: Postgres) -> Iterator[None]:
    server.kill()
    try:
        yield
    finally:
        server.start()


@contextmanager
def locked_table(url: str) -> Iterator[None]:
    engine = create_engine(url)
    try:
        with engine.begin() as connection:
            connection.execute(text("LOCK TABLE jms_attempt IN ACCESS EXCLUSIVE MODE"))
            yield
    finally:
        engine.dispose()


@contextmanager
def told(url: str, before: Sequence[str], after: Sequence[str]) -> Iterator[None]:
    """Let PostgreSQL do something before and after, outside of transactions."""
    engine = create_engine(url, isolation_level="AUTOCOMMIT")

    def tell(statements: Sequence[str]) -> None:
        with engine.connect() as connection:
            for each in statements:
                connection.execute(text(each))

    tell(before)
    try:
        yield
    finally:
        tell(after)
        engine.dispose()


def read_only(url: str) -> AbstractContextManager[None]:
    name = url.rpartition("/")[2]
    end = (
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}' AND "  # noqa: S608
        "pid <> pg_backend_pid()"
    )
    setting = f"ALTER DATABASE {name} SET default_transaction_read_only ="
    # Whoever undoes it is in a session that began before.
    undo = ("SET default_transaction_read_only = off", f"{setting} off", end)
    return told(url, [f"{setting} on", end], undo)


FULL_DISK = """CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$"""


def full(url: str) -> AbstractContextManager[None]:
    """Let PostgreSQL say what it says when its disk is full."""
    each = "CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON jms_attempt EXECUTE FUNCTION full_disk()"
    return told(url, [FULL_DISK, each], ["DROP FUNCTION full_disk CASCADE"])


@pytest.fixture
def broken(trouble: str, store: SqlStore, tmp_path: Path, request: pytest.FixtureRequest) -> Trouble:
    """Return what makes the store unusable for the length of a `with` block."""
    match trouble:
        case "full":
            return lambda: set_up(store, "PRAGMA max_page_count=1", "PRAGMA max_page_count=1000000")
        case "locked":
            return lambda: locked(tmp_path / "store.db")
        case "read-only":
            return lambda: set_up(store, "PRAGMA query_only=ON", "PRAGMA query_only=OFF")
        case "moved":
            return lambda: moved(tmp_path / "store.db")
        case "gone":
            server: Postgres = request.getfixturevalue("postgres")
            return lambda: gone(server)
    url = store.database._url.render_as_string(hide_password=False)
    ways = {"locked": locked_table, "read-only": read_only, "full": full}
    return lambda: ways[trouble.removeprefix("postgresql ")](url)


def counting(monkeypatch: pytest.MonkeyPatch, store: SqlStore) -> list[None]:
    """Return a list that grows with each attempt to count messages, be it in vain."""
    tries: list[None] = []
    transaction = store.transaction

    def noted() -> AbstractContextManager[object]:
        tries.append(None)
        return transaction()

    monkeypatch.setattr(store, "transaction", noted)
    return tries


@pytest.mark.parametrize(
    ("mode", "trouble"),
    [*((SERIAL, each) for each in TROUBLES), (CC, "gone"), (BATCH, "full"), (BATCH, "gone")],
    ids=lambda value: (
        value if isinstance(value, str) else "batch" if "batch_size" in value else value["concurrency_mode"]
    ),
)
def test_a_listener_pauses_says_so_and_goes_on(  # noqa: PLR0917 - fixtures
    site: Site,
    store: SqlStore,
    broken: Trouble,
    mode: dict[str, Any],
    trouble: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    tries = counting(monkeypatch, store)
    activation = site.activation(nothing, store=store, **mode)
    activation.start()
    site.send("first")
    until(lambda: activation.counts.committed == 1)
    until(lambda: store.attempts.page() == [])
    with broken():
        site.send(*map(str, range(MESSAGES)))
        until(lambda: activation.statistics().refused)
        (why,) = activation.statistics().refused
        assert TROUBLES[trouble] in why
        tried = len(tries)
        until(lambda: len(tries) > tried, within=30)
        assert site.broker.depth("orders") == MESSAGES
        handed = [body for body in site.got if body != "END"]
        # A row may still fit into a page of a full SQLite file: then its attempt is stored.
        recorded = store.attempts.page() if trouble == "full" else []
        assert handed[0] == "first"
        assert len(handed) <= 1 + len(recorded)
        assert activation.counts.committed == 1
    until(lambda: activation.counts.committed == MESSAGES + 1, within=60)
    until(lambda: activation.statistics().refused == ())
    assert activation.stop()
    assert sorted(body for body in site.got if body != "END") == sorted(["first", *map(str, range(MESSAGES))])
    assert {count for body, count in site.attempts if body != "END"} == {0}, "no attempt of it counts"
    assert store.attempts.page() == []
    lines = [line for line in caplog.messages if "no message is handled or acknowledged" in line]
    assert len(lines) == 1
    assert TROUBLES[trouble] in lines[0]


def stored(store: SqlStore) -> ListenerSettings:
    made = streaming.settings()
    return replace(made, store=store, delivery=replace(made.delivery, record_attempts=True))


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_stream_pauses_says_so_and_goes_on(
    store: SqlStore, broken: Trouble, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    site = streaming.Site()

    async def work() -> None:
        async with site.streaming(stored(store)) as stream:
            site.send("first")
            (await streaming.one(stream)).returned()
            await streaming.until(lambda: site.broker.depth("orders") == 0)
            with broken():
                site.send(*map(str, range(5)))
                asking = asyncio.ensure_future(streaming.take(stream, 5, 60))
                await streaming.until(lambda: "no message is handled" in caplog.text, 20)
                assert TROUBLES[trouble] in caplog.text
                assert (asking.done(), site.broker.depth("orders")) == (False, 5)
            deliveries = await asyncio.wait_for(asking, 30)
            assert [each.seen for each in deliveries] == [0] * 5
            for each in deliveries:
                each.returned()
            await streaming.until(lambda: site.broker.depth("orders") == 0, 20)

    streaming.run(work())
    assert store.attempts.page() == []


def test_a_file_that_was_replaced_is_opened_anew(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = open_store(f"sqlite:///{path}", where=WHERE)
    now = datetime.now(UTC)
    assert store.attempts.begin("a", ["m"], now) == {"m": 1}
    for file in tmp_path.iterdir():
        file.unlink()
    with pytest.raises(TransientStoreError, match="its file is gone; restore it, or create an empty"):
        store.attempts.begin("a", ["m"], now)
    assert not path.exists()
    open_store(f"sqlite:///{path}", where=WHERE).close()
    with pytest.raises(TransientStoreError, match="its file was replaced by another one"):
        store.attempts.begin("a", ["m"], now)
    assert store.attempts.begin("a", ["m"], now) == {"m": 1}
    store.close()
