"""Fixtures of the store's contract suite: every test that asks for `store` runs once for each kind."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from airflow_provider_jmsjca import Store, open_store
from tests.internals.store import Database, SqlStore
from tests.memory_store import MemoryStore
from tests.servers.postgres import Postgres

KINDS = ("memory", "sqlite", "postgresql")


@pytest.fixture(scope="session", params=KINDS[1:])
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of database in turn."""
    return str(request.param)


def url_of(kind: str, folder: Path, request: pytest.FixtureRequest) -> str:
    """Return the URL of an empty database."""
    if kind == "sqlite":
        return f"sqlite:///{folder / uuid.uuid4().hex}.db"
    server: Postgres = request.getfixturevalue("postgres")
    name = f"store_{uuid.uuid4().hex}"
    engine = create_engine(server.url(), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return server.url().rpartition("/")[0] + f"/{name}"


def new_store(url: str) -> SqlStore:
    """Make the tables, and open the store."""
    database = Database(url)
    database.upgrade()
    database.close()
    return open_store(url, where="host/1")


@pytest.fixture
def url(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """An empty database of each kind."""
    return url_of(kind, tmp_path, request)


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store of each kind."""
    if request.param == "memory":
        yield MemoryStore("host/1")
        return
    opened = new_store(url_of(request.param, tmp_path, request))
    yield opened
    opened.close()
