"""What the databases are trusted with: schema, processes, forks, and every way of being out of order."""

from __future__ import annotations

import json
import multiprocessing
import os
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, text

from airflow_provider_jmsjca import (
    ConfigurationError,
    JmsMessage,
    StoreSchemaError,
    TransientStoreError,
    open_store,
)
from tests.contract.store.conftest import new_store, url_of
from tests.internals.store import METADATA, REVISIONS, VERSION_TABLE, Database, LimboEntry, SqlStore
from tests.internals.store import database as module
from tests.servers.postgres import Postgres

PARKED = 100_000
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    made = Database(url)
    yield made
    made.close()


def execute(url: str, *statements: str) -> None:
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


def test_the_tables_are_those_of_the_revisions(database: Database) -> None:
    assert database.upgrade() is None
    assert database.upgrade() == REVISIONS[-1], "a second time changes nothing"
    with database.read() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        assert compare_metadata(context, METADATA) == []


def upgrade_to(database: Database, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(module.__file__).parent / "migrations"))
    with database.write(durable=True) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


# One row in each table of the first revision; what later ones have added, they have to fill in.
OLD_ROWS = (
    (
        "INSERT INTO jms_attempt (activation, message, attempts, first_at, first_where, last_at, last_where) "
        "VALUES ('orders', 'm1', 2, 1000, 'host/1', 2000, 'host/2')"
    ),
    "INSERT INTO jms_attempt_history VALUES ('orders', 'm1', 1, 1000, 'host/1', 'ValueError', 'no stock')",
    "INSERT INTO jms_handled VALUES ('orders', 'm0', 1000)",
    "INSERT INTO jms_owner VALUES ('host/2', 'host', 2, 1000, 2000)",
    (
        "INSERT INTO jms_limbo (activation, key, state, jms_conn_id, destination, put_at, due_at, tries, "
        "exception_class, exception_message) VALUES ('', '', 'waiting', 'b', 'queue://q', 1, 2, 3, '', '')"
    ),
)


@pytest.mark.parametrize("revision", REVISIONS[:-1])
def test_what_an_earlier_revision_has_outlives_an_upgrade(
    url: str, database: Database, revision: str
) -> None:
    upgrade_to(database, revision)
    content = json.dumps(JmsMessage.text("hello").to_json()).encode()
    with database.write(durable=True) as connection:
        for statement in OLD_ROWS:
            connection.execute(text(statement))
        row = {"number": 1, "encrypted": False, "content": content}
        connection.execute(text("INSERT INTO jms_limbo_content VALUES (:number, :encrypted, :content)"), row)
    assert database.upgrade() == revision
    opened = open_store(url)
    assert opened.attempts.begin("orders", ["m1", "m2"], NOON) == {"m1": 3, "m2": 1}
    assert opened.attempts.doubtful("orders", ["m1"]) == frozenset()
    first, *_ = opened.attempts.history("orders", "m1")
    assert (first.attempt, first.exception_message) == (1, "no stock")
    assert opened.handled.known("orders", ["m0", "m1"]) == {"m0"}
    (kept,) = opened.limbo.page()
    assert (kept.destination, kept.tries, kept.most_tries) == ("queue://q", 3, 5)
    (message,) = opened.limbo.contents([kept.number]).values()
    assert isinstance(message, JmsMessage)
    assert message.body == "hello"
    opened.close()


def test_many_parked_messages_outlive_an_upgrade(url: str, database: Database) -> None:
    """100,000, from the first revision."""
    upgrade_to(database, REVISIONS[0])
    content = json.dumps(JmsMessage.text("x" * 100).to_json()).encode()
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {PARKED}) SELECT"  # noqa: S608
    with database.write(durable=True) as connection:
        rows = "i, '', '', 'waiting', 'b', 'queue://q', 1, 2, 0, NULL, NULL, '', ''"
        connection.execute(text(f"INSERT INTO jms_limbo {numbers} {rows} FROM n"))
        connection.execute(
            text(f"INSERT INTO jms_limbo_content {numbers} i, :encrypted, :content FROM n"),
            {"encrypted": False, "content": content},
        )
    began = time.monotonic()
    assert database.upgrade() == REVISIONS[0]
    print(
        f"{database.name.partition(':')[0]}: {PARKED:,} parked: upgraded in {time.monotonic() - began:.2f} s"
    )
    opened = open_store(url)
    (last,) = opened.limbo.page(after=PARKED - 1)
    assert (last.number, last.most_tries) == (PARKED, 5)
    with database.read() as connection:
        assert (
            connection.execute(text("SELECT count(*) FROM jms_limbo WHERE most_tries = 5")).scalar() == PARKED
        )
    opened.close()


def test_every_revision_is_named() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(module.__file__).parent / "migrations"))
    scripts = [each.revision for each in ScriptDirectory.from_config(config).walk_revisions()]
    assert tuple(reversed(scripts)) == REVISIONS


def test_sqlite_gets_its_tables_by_itself_and_postgresql_when_told(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    opened = open_store(f"sqlite:///{tmp_path / 'new' / 'folder' / 'store.db'}")
    assert opened.attempts.begin("orders", ["m1"], NOON) == {"m1": 1}
    opened.close()
    with pytest.raises(StoreSchemaError, match="no tables yet; run: airflow jms store upgrade"):
        open_store(url_of("postgresql", tmp_path, request))


def test_an_older_and_a_newer_schema_are_refused_with_the_way_out(
    url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.upgrade()
    monkeypatch.setattr(module, "REVISIONS", (*REVISIONS, "9998"))
    with pytest.raises(StoreSchemaError, match=r"expected 9998; .* run: airflow jms store upgrade"):
        database.check()
    execute(url, f"UPDATE {VERSION_TABLE} SET version_num = '9999'")  # noqa: S608
    for use in (database.check, database.upgrade, lambda: open_store(url)):
        with pytest.raises(StoreSchemaError, match="schema 9999, made by a newer version"):
            use()


def test_processes_at_once_make_the_tables_once_and_lose_no_count(url: str, database: Database) -> None:
    if not database.is_sqlite:
        database.upgrade()
    messages = [f"m{number}" for number in range(20)]
    command = [sys.executable, "-m", "tests.contract.store.writer", url, "25"]
    # The second names the same rows in another order.
    ways = (messages, messages[::-1])
    processes = [subprocess.Popen([*command, *way], stderr=subprocess.PIPE, text=True) for way in ways]
    assert [(process.communicate(timeout=60)[1], process.returncode) for process in processes] == [
        ("", 0)
    ] * 2
    opened = open_store(url)
    assert {each.attempts for each in opened.attempts.page()} == {50}
    assert opened.handled.known("orders", messages) == set(messages)
    opened.close()


def test_a_fork_has_connections_of_its_own(url: str) -> None:
    opened = new_store(url)
    opened.attempts.begin("orders", ["m1"], NOON)
    child = multiprocessing.get_context("fork").Process(
        target=lambda: opened.attempts.begin("orders", ["m1"], NOON)
    )
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert opened.attempts.begin("orders", ["m1"], NOON) == {"m1": 3}
    opened.close()


def test_closed_while_it_is_used_it_leaves_no_connection_open(database: Database) -> None:
    database.upgrade()
    with database.read() as connection:
        connection.exec_driver_sql("SELECT 1")
        raw, error = connection.connection.dbapi_connection, connection.dialect.loaded_dbapi.Error
        assert raw is not None
        database.close()
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1
    with pytest.raises(error, match="closed"):
        raw.cursor()
    assert database.revision() == REVISIONS[-1], "the next use opens it anew"


def works_again(store: SqlStore, count: int) -> None:
    assert store.attempts.begin("orders", ["m1"], NOON) == {"m1": count}
    store.close()


def test_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BUSY_SECONDS", 0.1)
    path = tmp_path / "store.db"
    opened = open_store(f"sqlite:///{path}")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(TransientStoreError, match="database is locked"):
        opened.attempts.begin("orders", ["m1"], NOON)
    other.execute("COMMIT")
    other.close()
    works_again(opened, 1)


def test_full(tmp_path: Path) -> None:
    opened = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    with opened.database.read() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
    with pytest.raises(TransientStoreError, match="full"):
        opened.attempts.begin("orders", [f"m{number}" * 20 for number in range(5_000)], NOON)
    with opened.database.read() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count=1000000")
    assert opened.attempts.page() == [], "nothing of it was stored"
    works_again(opened, 1)


def test_the_files_of_sqlite_are_their_owner_s_alone(tmp_path: Path) -> None:
    """Messages in limbo stand there, in clear where Airflow has no key."""
    before = os.umask(0)
    try:
        store = open_store(f"sqlite:///{tmp_path}/store.db")
        store.attempts.begin("orders", ["m1"], NOON)
        modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()}
        store.close()
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(("store.db", "store.db-shm", "store.db-wal"), 0o600)


def test_a_password_is_not_shown_wherever_it_stands_in_the_url() -> None:
    database = Database("postgresql://me:s3cret@db/jms?user=me&password=s3cret&connect_timeout=5")
    assert database.name.endswith("://me:***@db/jms?connect_timeout=5&password=***&user=me")
    with pytest.raises(ConfigurationError) as found:
        Database("mysql://db/jms?password=s3cret")
    assert "s3cret" not in str(found.value)


def test_damaged(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"no database" * 1_000)
    with pytest.raises(TransientStoreError, match="not a database"):
        open_store(f"sqlite:///{path}")


def test_a_name_of_a_file_that_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(TransientStoreError, match="File name too long"):
        open_store(f"sqlite:///{tmp_path}/{'x' * 5_000}")


def test_values_that_sqlite_can_not_hold_are_refused(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    with pytest.raises(ConfigurationError, match="can't hold a value: OverflowError"):
        store.limbo.page(limit=2**63)
    entry = LimboEntry(
        jms_conn_id="jms", destination="queue://\ud800", message=JmsMessage.text("x"), due_at=NOON
    )
    with pytest.raises(ConfigurationError, match="can't hold a value: UnicodeEncodeError"):
        store.limbo.put([entry], NOON)
    assert store.limbo.page() == []
    store.close()


def test_read_only_and_gone_and_back(
    postgres: Postgres, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = url_of("postgresql", tmp_path, request)
    opened = new_store(url)
    name = url.rpartition("/")[2]
    end = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"  # noqa: S608
    works_again(opened, 1)
    execute(postgres.url(), f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with pytest.raises(TransientStoreError, match="read-only"):
        opened.attempts.begin("orders", ["m1"], NOON)
    execute(postgres.url(), f"ALTER DATABASE {name} RESET default_transaction_read_only")
    opened.close()
    works_again(opened, 2)
    execute(postgres.url(), f"ALTER DATABASE {name} ALLOW_CONNECTIONS false", end)
    with pytest.raises(TransientStoreError, match="not currently accepting connections") as error:
        opened.attempts.begin("orders", ["m1"], NOON)
    assert postgres.password not in str(error.value)
    execute(postgres.url(), f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    works_again(opened, 3)


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("here/store.db", "not an SQLAlchemy URL"),
        ("mysql://app:secret@db/jms", r"got mysql://app:\*\*\*@db/jms; expected sqlite"),
        ("sqlite://", "no other process can open"),
        ("sqlite:///:memory:", "no other process can open"),
        ("postgresql+nothing://app:secret@db/jms", "driver isn't installed"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused(url: str, fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault) as error:
        Database(url)
    assert "secret" not in str(error.value)
