"""Fixtures of the contract suite: every test that asks for `lab` runs once for each transport."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_jmsjca import Connection, Destination
from tests.contract.transport.lab import Lab, MemoryLab, SessionLab, StompLab
from tests.contract.transport.report import Report
from tests.contract.transport.traffic import Connect
from tests.servers.catalogue import BROKERS
from tests.servers.fixtures import PrivateBroker
from tests.servers.folders import run_folder

_REPORT = pytest.StashKey[Report]()
_WITH_SESSIONS = {"test_in_order", "test_settlement"}
"""The modules about settling run over messages that belong to sessions, too."""


@pytest.fixture(scope="session", params=["memory", "sessions", *sorted(BROKERS)])
def lab(request: pytest.FixtureRequest) -> Lab:
    """Each broker in turn, shared by the session."""
    if request.param == "memory":
        return MemoryLab()
    if request.param == "sessions":
        return SessionLab()
    return StompLab(request.param, request.getfixturevalue(request.param))


@pytest.fixture
def private_lab(lab: Lab, private_broker: PrivateBroker) -> Lab:
    """The same kind of broker, for this test alone: it may be killed."""
    return type(lab)() if isinstance(lab, MemoryLab) else StompLab(lab.name, private_broker(lab.name))


@pytest.fixture
def connect(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Opens connections that are closed after the test; arguments replace fields of the settings."""
    opened: list[Connection] = []

    def factory(**overrides: Any) -> Connection:
        base = overrides.pop("settings", None)
        settings = lab.settings(**overrides) if base is None else replace(base, **overrides)
        connection = lab.connect(settings)
        opened.append(connection)
        if not isinstance(lab, SessionLab):
            request.config.stash[_REPORT].met(lab.name, connection)
        return connection

    yield factory
    for connection in opened:
        connection.close()


@pytest.fixture
def connection(connect: Connect) -> Connection:
    return connect()


@pytest.fixture
def name() -> str:
    """A name no other test uses."""
    return f"contract.{uuid.uuid4().hex[:12]}"


@pytest.fixture
def queue(name: str) -> Destination:
    return Destination.queue(name)


@pytest.fixture
def topic(name: str) -> Destination:
    return Destination.topic(name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def is_run(item: pytest.Item) -> bool:
        params = getattr(getattr(item, "callspec", None), "params", {})
        return params.get("lab") != "sessions" or item.path.stem in _WITH_SESSIONS

    items[:] = filter(is_run, items)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_REPORT] = Report()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome: pytest.TestReport = yield
    lab = getattr(item, "funcargs", {}).get("lab")
    if not isinstance(lab, SessionLab | None) and (
        outcome.when == "call" or outcome.failed or outcome.skipped
    ):
        item.config.stash[_REPORT].ran(lab.name, item.originalname, outcome.outcome)
    return outcome


def pytest_sessionfinish(session: pytest.Session) -> None:
    session.config.stash[_REPORT].write(run_folder() / "contract-report.json")
