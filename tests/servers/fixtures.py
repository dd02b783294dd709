"""pytest fixtures for real brokers. Each starts when a test first asks for it and ends with the session."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeAlias

import psutil
import pytest

from tests.servers.azure import Azurite
from tests.servers.broker import Broker, variable_of
from tests.servers.catalogue import BROKERS, make_broker, named_by_environment
from tests.servers.chromium import chromium as started_chromium
from tests.servers.errors import ServerUnavailableError
from tests.servers.folders import run_folder
from tests.servers.hadoop import Hdfs, Yarn
from tests.servers.postgres import Postgres
from tests.servers.s3 import S3
from tests.servers.server import Server
from tests.servers.spark_cluster import SparkCluster

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PrivateBroker: TypeAlias = Callable[[str], Broker]

_MISSING = pytest.StashKey[dict[str, str]]()
_FOLDER = pytest.StashKey[Path]()
_NOT_TESTED = "not tested: "


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_MISSING] = {}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = {str(each.longrepr[-1]) for each in terminalreporter.stats.get("skipped", ())}
    for why in sorted(reason.partition(_NOT_TESTED)[2] for reason in reasons if _NOT_TESTED in reason):
        terminalreporter.section("not tested", sep="!")
        terminalreporter.line(why)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    folder = session.config.stash.get(_FOLDER, None)
    if folder is not None and exitstatus == pytest.ExitCode.OK:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def servers_folder(pytestconfig: pytest.Config) -> Path:
    """The folder for this session's servers; kept when a test failed, until a later session."""
    parent = run_folder() / "servers"
    parent.mkdir(parents=True, exist_ok=True)
    for old in parent.glob("pytest-*"):
        pid = int(old.name.removeprefix("pytest-"))
        if pid == os.getpid() or not psutil.pid_exists(pid):
            shutil.rmtree(old, ignore_errors=True)
    folder = parent / f"pytest-{os.getpid()}"
    folder.mkdir()
    pytestconfig.stash[_FOLDER] = folder
    return folder


def _started(kind: str, folder: Path, config: pytest.Config) -> Broker:
    broker = make_broker(kind, folder)
    _start_or_skip(broker, config)
    return broker


def _start_or_skip(server: Server, config: pytest.Config) -> None:
    missing = config.stash[_MISSING]
    if server.name in missing:
        pytest.skip(_NOT_TESTED + missing[server.name])
    try:
        server.start()
    except ServerUnavailableError as error:
        missing[server.name] = str(error)
        _fail_in_ci_or_skip(error)


def _fail_in_ci_or_skip(error: ServerUnavailableError) -> NoReturn:
    # Where everything has to be tested, a server that can't be had is a failure.
    if os.environ.get("CI") == "true":
        raise error
    pytest.skip(_NOT_TESTED + str(error))


def _shared(kind: str, folder: Path, config: pytest.Config) -> Iterator[Broker]:
    running = named_by_environment(kind)
    if running is not None:
        running.wait_ready()
        yield running
        return
    broker = _started(kind, folder / kind, config)
    yield broker
    broker.stop()


@pytest.fixture(scope="session")
def activemq(servers_folder: Path, pytestconfig: pytest.Config) -> Iterator[Broker]:
    """ActiveMQ Classic, shared by the session: don't kill it."""
    yield from _shared("activemq", servers_folder, pytestconfig)


@pytest.fixture(scope="session")
def artemis(servers_folder: Path, pytestconfig: pytest.Config) -> Iterator[Broker]:
    """Apache Artemis, shared by the session: don't kill it."""
    yield from _shared("artemis", servers_folder, pytestconfig)


@pytest.fixture(scope="session")
def rabbitmq(servers_folder: Path, pytestconfig: pytest.Config) -> Iterator[Broker]:
    """RabbitMQ, shared by the session: don't kill it."""
    yield from _shared("rabbitmq", servers_folder, pytestconfig)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Chromium, for the tests of a module: Playwright keeps an event loop in their thread until it ends."""
    with contextlib.ExitStack() as stack:
        try:
            browser = stack.enter_context(started_chromium())
        except ServerUnavailableError as error:
            _fail_in_ci_or_skip(error)
        yield browser


@pytest.fixture(scope="session")
def s3(servers_folder: Path) -> Iterator[S3]:
    """An S3 server, shared by the session: take a prefix of your own in its bucket."""
    server = S3(servers_folder / "s3")
    server.start()
    yield server
    server.stop()
    server.discard()


@pytest.fixture(scope="session")
def azurite(servers_folder: Path, pytestconfig: pytest.Config) -> Iterator[Azurite]:
    """Azure's blobs, shared by the session: take a prefix of your own in its container."""
    server = Azurite(servers_folder / "azurite")
    _start_or_skip(server, pytestconfig)
    yield server
    server.stop()
    server.discard()


@pytest.fixture(scope="session")
def hdfs(servers_folder: Path) -> Iterator[Hdfs]:
    """HDFS with one data node, shared by the session: take a folder of your own in it."""
    server = Hdfs(servers_folder / "hdfs")
    server.start()
    yield server
    server.stop()
    server.discard()


@pytest.fixture(scope="session")
def yarn_cluster(servers_folder: Path, hdfs: Hdfs) -> Iterator[Yarn]:
    """YARN with one node, shared by the session."""
    server = Yarn(servers_folder / "yarn", hdfs)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def spark_cluster(servers_folder: Path) -> Iterator[SparkCluster]:
    """A standalone cluster of Spark with two workers, shared by the session."""
    server = SparkCluster(servers_folder / "spark")
    server.start()
    yield server
    server.stop()
    server.discard()


@pytest.fixture(scope="session")
def postgres(servers_folder: Path, pytestconfig: pytest.Config) -> Iterator[Postgres]:
    """PostgreSQL, shared by the session: make databases in it, and don't kill it."""
    server = Postgres(servers_folder / "postgres")
    _start_or_skip(server, pytestconfig)
    yield server
    server.stop()
    server.discard()


@pytest.fixture(scope="session", params=sorted(BROKERS))
def broker(request: pytest.FixtureRequest) -> Broker:
    """Each broker in turn, shared by the session: don't kill it."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Broker)
    return found


@pytest.fixture(params=sorted(BROKERS))
def any_private_broker(request: pytest.FixtureRequest, private_broker: PrivateBroker) -> Broker:
    """Each broker in turn, started for one test alone: it may be killed, suspended and stopped."""
    return private_broker(request.param)


@pytest.fixture
def private_broker(servers_folder: Path, pytestconfig: pytest.Config) -> Iterator[PrivateBroker]:
    """A function that starts a broker for one test alone: it may be killed, suspended and stopped."""
    brokers: list[Broker] = []

    def start(kind: str) -> Broker:
        if named_by_environment(kind) is not None:
            pytest.skip(f"{variable_of(kind)} names a broker that is not ours to kill")
        mine = _started(kind, servers_folder / f"{kind}-{uuid.uuid4().hex[:8]}", pytestconfig)
        brokers.append(mine)
        return mine

    yield start
    for mine in brokers:
        mine.resume()
        mine.stop()


@pytest.fixture
def queue_name(request: pytest.FixtureRequest) -> str:
    """A queue name no other test has, made of the test's name."""
    test = re.sub(r"\W+", "_", request.node.name).strip("_")
    return f"{test[:60]}.{uuid.uuid4().hex[:8]}"
