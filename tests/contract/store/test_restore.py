"""A store that is copied while it is in use, and restored while broker and Airflow go on."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import MetaData, create_engine, insert, select

from airflow_provider_jmsjca import JmsMessage, open_store
from tests.contract.store.conftest import new_store, url_of
from tests.internals.store import LimboEntry, SqlStore

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
LATER = NOON + timedelta(minutes=1)


def copied(source: str, target: str) -> None:
    """Copy a database in use, as `sqlite3 .backup` and `pg_dump` do: the state of one moment."""
    if source.startswith("sqlite"):
        paths = [each.removeprefix("sqlite:///") for each in (source, target)]
        with closing(sqlite3.connect(paths[0])) as there, closing(sqlite3.connect(paths[1])) as here:
            there.backup(here)
        return
    new_store(target).close()
    tables = MetaData()
    here, there = create_engine(target), create_engine(source, isolation_level="REPEATABLE READ")
    tables.reflect(here)
    with there.connect() as reading, here.begin() as writing:
        for table in tables.sorted_tables:
            rows = [dict(row) for row in reading.execute(select(table)).mappings()]
            if rows and table.name != "jms_store_version" and "version" not in table.name:
                writing.execute(insert(table), rows)
    here.dispose()
    there.dispose()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_store_that_is_restored_alone(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    source, target = (url_of(kind, tmp_path, request) for _ in range(2))
    store = new_store(source)
    put = _putting(store)
    sent, waiting = put("sent after the copy"), put("waits")
    store.attempts.begin("orders", ["m1"], NOON)
    store.handled.add("orders", ["h1"], NOON)
    copied(source, target)
    put("put after the copy")
    assert [each.number for each in store.limbo.lease(NOON, owner="one", until=LATER, limit=1)] == [sent]
    store.limbo.sent("one", [sent])
    assert store.attempts.begin("orders", ["m1"], LATER) == {"m1": 2}
    store.handled.add("orders", ["h2"], LATER)
    store.close()

    restored = open_store(target, where="host/1")
    contents = restored.limbo.contents([each.number for each in restored.limbo.page()])
    # One message comes twice, one is lost: it left the broker for limbo after the copy.
    assert {number: each.body for number, each in contents.items()} == {
        sent: "sent after the copy",
        waiting: "waits",
    }
    assert restored.attempts.begin("orders", ["m1"], LATER) == {"m1": 2}, "the second attempt is forgotten"
    assert restored.handled.known("orders", ["h1", "h2"]) == {"h1"}, "h2 would be handled again"
    restored.close()


def _putting(store: SqlStore) -> Callable[[str], int]:
    def put(body: str) -> int:
        entry = LimboEntry(
            message=JmsMessage.text(body), destination="queue://orders", jms_conn_id="jms", due_at=NOON
        )
        (number,) = store.limbo.put([entry], NOON)
        return number

    return put
