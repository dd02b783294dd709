"""The registry over processes: two listeners, a real triggerer, and a database that goes away."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from airflow_provider_jmsjca import (
    Destination,
    JmsMessage,
    Outgoing,
    RunReport,
    RunStatus,
    WantedState,
    connect,
    list_activations,
    request_activation_state,
    resume_activations,
)
from tests.airflow.test_triggerer import airflow_connection
from tests.airflow.triggerer import TriggererProcess
from tests.contract.store.conftest import new_store
from tests.internals.store import SqlStore
from tests.pace import at_most
from tests.servers.broker import Broker
from tests.servers.postgres import Postgres
from tests.servers.proxy import TcpProxy

LISTENER = """
import sys, threading
from airflow_provider_jmsjca import Activation, open_store
store_url, broker, username, password, queue = sys.argv[1:]
spec = {"name": "booking", "destination": queue, "username": username, "password": password}
with Activation(spec, lambda delivery: None, connection=broker, store=open_store(store_url)):
    threading.Event().wait()
"""
AWAY_SECONDS = 10.0
PROMISED_SECONDS = 2.0


@contextlib.contextmanager
def listeners(count: int, *arguments: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    started = [
        subprocess.Popen([sys.executable, "-c", LISTENER, *arguments], cwd=Path(__file__).parents[2])
        for _ in range(count)
    ]
    try:
        yield started
    finally:
        for each in started:
            each.kill()
            each.wait(10)


class Registry:
    """The runs of the two listeners and the triggerer, and requests to all of them."""

    def __init__(self, store: SqlStore, home: TriggererProcess) -> None:
        self.store = store
        self.home = home

    def reports(self) -> list[RunReport]:
        return [run.report for each in list_activations(self.store) for run in each.runs]

    def all_are(self, status: RunStatus) -> bool:
        found = self.reports()
        return len(found) == 3 and all(each.status is status for each in found)

    def within(self, seconds: float, condition: Callable[[], object], what: str) -> None:
        self.home.until(lambda: bool(condition()), seconds, what)

    def suspend_and_resume(self) -> None:
        self._check_request(RunStatus.SUSPENDED)
        self._check_request(RunStatus.UP)

    def _check_request(self, reached: RunStatus) -> None:
        """Request a state, and check how soon each process was in it."""
        names = [each.name for each in list_activations(self.store)]
        asked = self.store.owners.now()
        if reached is RunStatus.UP:
            resume_activations(self.store, names)
        else:
            request_activation_state(
                self.store, names, WantedState.SUSPENDED, reason="maintenance", user="ada"
            )
        self.within(30, lambda: self.all_are(reached), f"{reached} everywhere")
        late = max((each.since - asked).total_seconds() for each in self.reports())
        assert late <= at_most(PROMISED_SECONDS), self.reports()


@pytest.mark.timeout(900)
def test_requests_reach_listeners_and_a_triggerer_in_two_seconds(
    activemq: Broker, postgres: Postgres, tmp_path: Path, migrated_database: Path
) -> None:
    """Also after the database was away for ten seconds, which stops nobody. A killed run is lost at once."""
    orders, events = (Destination.queue(f"{name}.{uuid.uuid4().hex}") for name in ("orders", "events"))
    url = make_url(postgres.new_database())
    home = TriggererProcess(
        tmp_path / "home",
        airflow_connection(activemq),
        {"jms_conn_id": "jms_test", "destination": str(events)},
    )
    home.prepare(migrated_database)
    with contextlib.ExitStack() as ending:
        store = ending.enter_context(contextlib.closing(new_store(url.render_as_string(hide_password=False))))
        connection = ending.enter_context(contextlib.closing(connect(activemq.settings())))
        proxy = ending.enter_context(TcpProxy((str(url.host), int(url.port or 0))))
        proxied = url.set(host=proxy.address[0], port=proxy.port).render_as_string(hide_password=False)
        home.environment["AIRFLOW__JMSJCA__STORE_URL"] = proxied
        home.start()
        ending.callback(home.stop)
        broker = "stomp://{}:{}".format(*activemq.address())
        first, _ = ending.enter_context(
            listeners(2, proxied, broker, activemq.username, activemq.password, str(orders))
        )
        registry = Registry(store, home)

        def send(queue: Destination) -> None:
            connection.send([Outgoing(destination=queue, message=JmsMessage.text("a"))])

        registry.within(120, lambda: registry.all_are(RunStatus.UP), "three runs")
        # A trigger that is suspended waits until its events are stored, and Airflow's first answer to a
        # trigger takes half a minute on a busy machine.
        send(events)
        registry.within(150, lambda: not list(connection.browse(events)), "the first acknowledgement")
        registry.suspend_and_resume()

        proxy.freeze()
        back_at = time.monotonic() + AWAY_SECONDS
        send(orders)
        send(events)
        registry.within(30, lambda: not list(connection.browse(orders)), "consumption without the store")
        registry.within(30, lambda: len(home.payloads()) == 2, "an event without the store")
        registry.within(30, lambda: time.monotonic() >= back_at, "ten seconds")
        proxy.cut()
        proxy.thaw()
        registry.suspend_and_resume()

        first.kill()
        first.wait(10)
        killed = [each.report.status for each in store.activations.runs() if each.pid == first.pid]
        assert killed == [RunStatus.LOST]
