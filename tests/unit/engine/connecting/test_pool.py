from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType

import pytest

from airflow_provider_jmsjca.engine.connecting.pool import ConnectionPool, Lease
from airflow_provider_jmsjca.engine.session.connection import JmsConnection
from airflow_provider_jmsjca.errors import ConfigurationError, PermanentBrokerError, TransientBrokerError
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Connection, ConnectionSettings, ConnectionState
from airflow_provider_jmsjca.transports.memory import MemoryBroker as Broker
from airflow_provider_jmsjca.transports.memory import memory_broker as broker
from tests.unit.engine.brokers import settings


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Broker:
    return broker(request.node.name)


@pytest.fixture
def wanted(server: Broker) -> ConnectionSettings:
    return settings(server.name)


@pytest.fixture
def pool() -> Iterator[ConnectionPool]:
    with ConnectionPool() as made:
        yield made


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_equal_settings_share_one_connection(
    server: Broker, wanted: ConnectionSettings, pool: ConnectionPool
) -> None:
    first = replace(wanted, options=MappingProxyType({"a": "1"}))
    second = replace(wanted, options={"a": "1"})
    with pool.borrow(first) as one, pool.borrow(second) as two:
        assert one is two
        assert server.connections == 1


@pytest.mark.parametrize("change", [{"username": "u"}, {"client_id": "c"}, {"options": {"a": "2"}}])
def test_other_settings_get_another(
    server: Broker, wanted: ConnectionSettings, pool: ConnectionPool, change: dict[str, object]
) -> None:
    other = replace(wanted, **change)  # type: ignore[arg-type]  # fields by name
    with pool.borrow(wanted) as one, pool.borrow(other) as two:
        assert one is not two
        assert server.connections == 2


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_j43_unused_it_is_closed_after_the_idle_timeout(server: Broker, wanted: ConnectionSettings) -> None:
    others = set(threading.enumerate())  # pools of other tests may have theirs
    with ConnectionPool(idle_timeout=timedelta(milliseconds=150)) as pool:
        lease = pool.borrow(wanted)
        with pool.borrow(wanted):
            pass
        assert server.connections == 1
        lease.release()
        lease.release()
        wait_until(lambda: server.connections == 0)
        assert len(pool) == 0
        wait_until(lambda: not any(each.name == "jms-pool" for each in set(threading.enumerate()) - others))


def test_j43_the_idle_timeout_counts_from_the_last_successful_use(
    server: Broker, wanted: ConnectionSettings
) -> None:
    clock = Clock()
    with ConnectionPool(idle_timeout=timedelta(seconds=30), clock=clock) as pool:
        lease = pool.borrow(wanted)
        clock.now += 20
        lease.usage.record_success()
        clock.now += 29
        with pool.borrow(wanted) as same:
            assert same is lease.connection
        clock.now += 1
        with pool.borrow(wanted) as fresh:
            assert fresh is not lease.connection
            assert lease.connection.state is ConnectionState.UP
            lease.release()
            assert lease.connection.state is ConnectionState.CLOSED
        assert server.connections == 1


def test_j43_given_back_after_the_idle_timeout_it_is_closed_at_once(
    server: Broker, wanted: ConnectionSettings
) -> None:
    clock = Clock()
    with ConnectionPool(idle_timeout=timedelta(seconds=30), clock=clock) as pool:
        with pool.borrow(wanted):
            clock.now += 31
        assert server.connections == 0


def test_j14_one_on_which_the_broker_refused_something_is_not_lent_again(
    wanted: ConnectionSettings, pool: ConnectionPool
) -> None:
    with pool.borrow(wanted) as first:
        pass
    lease = pool.borrow(wanted)
    assert lease.connection is first
    with pytest.raises(PermanentBrokerError), lease.usage:
        raise PermanentBrokerError("no")
    lease.release()
    assert first.state is ConnectionState.CLOSED
    with pool.borrow(wanted) as fresh:
        assert fresh is not first


def test_a_mistake_of_the_caller_says_nothing_about_the_connection(
    wanted: ConnectionSettings, pool: ConnectionPool
) -> None:
    lease = pool.borrow(wanted)
    with pytest.raises(ConfigurationError), lease.usage:
        raise ConfigurationError("no")
    with pool.borrow(wanted) as same:
        assert same is lease.connection
    lease.release()


def test_one_that_is_listened_on_does_not_become_idle(wanted: ConnectionSettings) -> None:
    clock = Clock()
    with ConnectionPool(idle_timeout=timedelta(seconds=30), clock=clock) as pool:
        listener = pool.borrow(wanted, listening=True)
        clock.now += 3600
        with pool.borrow(wanted) as same:
            assert same is listener.connection
        listener.release()
        clock.now += 29
        with pool.borrow(wanted) as same:
            assert same is listener.connection
        clock.now += 2
        with pool.borrow(wanted) as fresh:
            assert fresh is not listener.connection


def test_used_again_in_time_it_stays(server: Broker, wanted: ConnectionSettings) -> None:
    with ConnectionPool(idle_timeout=timedelta(seconds=30)) as pool:
        with pool.borrow(wanted) as first:
            pass
        with pool.borrow(wanted) as second:
            assert second is first
        assert server.connections == 1
    assert server.connections == 0


def test_j14_a_lost_connection_is_not_lent_again(
    server: Broker, wanted: ConnectionSettings, pool: ConnectionPool
) -> None:
    lease = pool.borrow(wanted)
    server.restart()
    with pool.borrow(wanted) as fresh:
        assert fresh is not lease.connection
        assert fresh.state is ConnectionState.UP
        lease.release()
        assert fresh.state is ConnectionState.UP
    with pool.borrow(wanted) as again:
        assert again is fresh


def test_threads_that_ask_together_share_one_attempt(server: Broker, wanted: ConnectionSettings) -> None:
    attempts: list[ConnectionSettings] = []
    go_on = threading.Event()

    def slow(settings: ConnectionSettings) -> Connection:
        attempts.append(settings)
        go_on.wait(5)
        return connect(settings)

    with ConnectionPool(connect=slow) as pool:
        leases: list[object] = []
        threads = [threading.Thread(target=lambda: leases.append(pool.borrow(wanted))) for _ in range(8)]
        for thread in threads:
            thread.start()
        go_on.set()
        for thread in threads:
            thread.join(5)
        assert len(leases) == 8
        assert len(attempts) == 1
        assert server.connections == 1


def test_a_failed_attempt_leaves_nothing_behind(
    server: Broker, wanted: ConnectionSettings, pool: ConnectionPool
) -> None:
    server.kill()
    for _ in range(2):
        with pytest.raises(TransientBrokerError):
            pool.borrow(wanted)
    assert len(pool) == 0
    server.restart()
    with pool.borrow(wanted) as opened:
        assert opened.state is ConnectionState.UP


def test_closed_it_closes_everything_and_lends_no_more(server: Broker, wanted: ConnectionSettings) -> None:
    pool = ConnectionPool()
    lease = pool.borrow(wanted)
    pool.close()
    assert server.connections == 0
    lease.release()
    with pytest.raises(ConfigurationError, match="pool is closed"):
        pool.borrow(wanted)


def test_a_forked_child_does_not_use_its_parents_connections(
    wanted: ConnectionSettings, pool: ConnectionPool
) -> None:
    with pool.borrow(wanted) as mine:
        child = os.fork()
        if child == 0:
            os._exit(0 if len(pool) == 0 and mine.state is ConnectionState.UP else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(pool) == 1


def test_who_gave_the_connection_back_hears_and_holds_nothing(
    server: Broker, wanted: ConnectionSettings, pool: ConnectionPool
) -> None:
    """A connection that is shared for weeks must not collect the callbacks of everybody who used it."""
    told: list[str] = []
    keeper = pool.borrow(wanted)
    keeper.on_lost(lambda _: told.append("keeper"))
    gone = [
        JmsConnection(lease.connection, lease.release, on_lost=lease.on_lost)
        for lease in borrowed(pool, wanted)
    ]
    references = [weakref.ref(each) for each in gone]
    for each in gone:
        each.close()
    del gone, each
    gc.collect()
    assert [reference() for reference in references] == [None] * 50
    server.kill()
    wait_until(lambda: told == ["keeper"])


def test_a_lease_of_a_connection_that_is_lost_tells_at_once(
    server: Broker, wanted: ConnectionSettings, pool: ConnectionPool
) -> None:
    told: list[str] = []
    lease = pool.borrow(wanted)
    lease.on_lost(lambda _: told.append("first"))
    server.kill()
    wait_until(lambda: told == ["first"])
    lease.on_lost(lambda _: told.append("second"))
    assert told == ["first", "second"]
    lease.release()
    lease.on_lost(lambda _: told.append("after the release"))
    assert told == ["first", "second"]


def borrowed(pool: ConnectionPool, wanted: ConnectionSettings) -> Iterator[Lease]:
    for _ in range(50):
        yield pool.borrow(wanted)
