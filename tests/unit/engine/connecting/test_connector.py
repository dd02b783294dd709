from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from airflow_provider_jmsjca.core.backoff import Backoff
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.engine.connecting import connector
from airflow_provider_jmsjca.engine.connecting.connector import (
    RetryPolicy,
    delete_durable,
    open_connection,
)
from airflow_provider_jmsjca.errors import (
    AuthenticationError,
    JmsError,
    PermanentBrokerError,
    TransientBrokerError,
)
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Connection, ConnectionSettings, ConnectionState
from airflow_provider_jmsjca.transports.memory import memory_broker as broker
from tests.pace import at_most
from tests.unit.engine.brokers import settings

QUICK = Backoff(steps=(timedelta(milliseconds=1),))
SETTINGS = settings("connector")


class Failing:
    """Connects after so many failures."""

    def __init__(self, *failures: JmsError) -> None:
        self.calls = 0
        self._failures = list(failures)

    def __call__(self, settings: ConnectionSettings) -> Connection:
        self.calls += 1
        if self._failures:
            raise self._failures.pop(0)
        return connect(settings)


class PatientEvent(threading.Event):
    """A stop event that notes how long it was asked to wait, and doesn't."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return self.is_set()


def down(count: int) -> list[JmsError]:
    return [TransientBrokerError(f"down {number}") for number in range(count)]


def open_it(attempt: Callable[[ConnectionSettings], Connection], **policy: object) -> Connection | None:
    return open_connection(
        SETTINGS,
        stop=threading.Event(),
        policy=RetryPolicy(**{"backoff": QUICK, **policy}),  # type: ignore[arg-type]  # fields by name
        connect=attempt,
    )


def test_j122_waits_1_2_5_5_10_10_seconds() -> None:
    stop = PatientEvent()
    opened = open_connection(SETTINGS, stop=stop, connect=Failing(*down(6)), uniform=lambda: 0.0)
    assert opened is not None
    opened.close()
    assert stop.waits == [1, 2, 5, 5, 10, 10]


def test_a_permanent_error_is_raised_at_once() -> None:
    attempt = Failing(AuthenticationError("no"))
    with pytest.raises(AuthenticationError):
        open_it(attempt)
    assert attempt.calls == 1


def test_j12_an_activation_may_ask_to_retry_even_that() -> None:
    opened = open_it(Failing(AuthenticationError("no")), retry_permanent_errors=True)
    assert opened is not None
    opened.close()


def test_the_deadline_ends_it_with_the_last_failure() -> None:
    with pytest.raises(
        TransientBrokerError, match=r"no connection after \d+ attempts .*: down \d+"
    ) as gave_up:
        open_it(Failing(*down(100_000)), deadline=timedelta(milliseconds=60))
    assert isinstance(gave_up.value.__cause__, TransientBrokerError)


def test_a_stop_request_interrupts_the_wait() -> None:
    stop = threading.Event()
    timer = threading.Timer(0.1, stop.set)
    timer.start()
    began = time.monotonic()
    policy = RetryPolicy(backoff=Backoff(steps=(timedelta(seconds=30),)))
    assert open_connection(SETTINGS, stop=stop, policy=policy, connect=Failing(*down(1))) is None
    assert time.monotonic() - began < 0.1 + at_most(0.4)
    timer.join()


def test_a_stop_request_interrupts_an_attempt_and_its_connection_is_closed_later() -> None:
    stop, go_on, opened = threading.Event(), threading.Event(), []

    def slow(settings: ConnectionSettings) -> Connection:
        go_on.wait(5)
        opened.append(connect(settings))
        return opened[0]

    timer = threading.Timer(0.1, stop.set)
    timer.start()
    began = time.monotonic()
    assert open_connection(SETTINGS, stop=stop, connect=slow) is None
    assert time.monotonic() - began < 0.1 + at_most(0.5)
    timer.join()
    go_on.set()
    deadline = time.monotonic() + 5
    while not (opened and opened[0].state is ConnectionState.CLOSED) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert opened[0].state is ConnectionState.CLOSED


def test_stopped_before_it_began_it_does_nothing() -> None:
    stop = threading.Event()
    stop.set()
    attempt = Failing()
    assert open_connection(SETTINGS, stop=stop, connect=attempt) is None
    assert attempt.calls == 0


@pytest.mark.parametrize(
    ("minimal", "levels"),
    [
        (False, [logging.ERROR, logging.WARNING, logging.WARNING, logging.INFO]),
        (True, [logging.ERROR, logging.DEBUG, logging.DEBUG, logging.INFO]),
    ],
)
def test_j108_the_first_failure_is_an_error_the_rest_is_less(
    caplog: pytest.LogCaptureFixture,
    minimal: bool,  # a parameter of pytest's
    levels: list[int],
) -> None:
    caplog.set_level(logging.DEBUG, "airflow_provider_jmsjca")
    opened = open_it(Failing(*down(3)), minimal_logging=minimal)
    assert opened is not None
    opened.close()
    assert [record.levelno for record in caplog.records] == levels
    assert "down 0" in caplog.records[0].getMessage()
    assert "after 3 failed attempts" in caplog.records[-1].getMessage()


def test_a_broker_that_comes_up_is_found() -> None:
    server = broker("connector-late")
    server.kill()
    timer = threading.Timer(0.1, server.restart)
    timer.start()
    opened = open_connection(
        settings("connector-late"), stop=threading.Event(), policy=RetryPolicy(backoff=QUICK)
    )
    assert opened is not None
    assert opened.state is ConnectionState.UP
    opened.close()
    timer.join()


@pytest.mark.parametrize(
    ("refusals", "fault", "calls"),
    [(0, None, 1), (2, None, 3), (3, "in use", 3), (0, "gone", 1)],
    ids=["at once", "refused at first", "refused to the end", "another fault"],
)
def test_a_refused_deletion_is_tried_again_over_new_connections(
    monkeypatch: pytest.MonkeyPatch, refusals: int, fault: str | None, calls: int
) -> None:
    said: list[str] = []

    class Refusing:
        def delete_durable(self, name: str, destination: Destination) -> None:
            said.append(f"{name} of {destination}")
            if said.count(said[-1]) <= refusals:
                raise PermanentBrokerError("in use")
            if fault is not None:
                raise TransientBrokerError(fault)

        def close(self) -> None:
            said.append("closed")

    monkeypatch.setattr(connector, "_DELETION_PAUSES", (0.001, 0.001))

    def delete() -> None:
        delete_durable(Refusing, "s1", Destination.topic("t"))  # type: ignore[arg-type]

    if fault is None:
        delete()
    else:
        with pytest.raises(JmsError, match=fault):
            delete()
    assert said == ["s1 of topic://t", "closed"] * calls
