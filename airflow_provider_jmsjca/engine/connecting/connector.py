"""Opens a connection, and retries until the broker is reachable."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from datetime import timedelta

from airflow_provider_jmsjca.core.backoff import RECONNECT, Backoff
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.errors import JmsError, PermanentBrokerError, TransientBrokerError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import ConnectFunction, Connection, ConnectionSettings

_log = safe_logger(__name__)
# How often a connection attempt checks for a stop request.
_STOP_CHECK_SECONDS = 0.1
# Seconds before each retry of deleting a durable subscription.
_DELETION_PAUSES = (0.2, 0.5, 1.0, 2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When to retry, and how to log failures.

    Attributes:
        backoff: The waits between attempts.
        deadline: Give up after this time; `None` means never.
        retry_permanent_errors: Also retry permanent errors such as wrong credentials, for an activation that
            has to start and wait until the broker is repaired.
        minimal_logging: Only the first failure is logged above debug level.
    """

    backoff: Backoff = RECONNECT
    deadline: timedelta | None = None
    retry_permanent_errors: bool = False
    minimal_logging: bool = False


def open_connection(
    settings: ConnectionSettings,
    *,
    stop: threading.Event,
    policy: RetryPolicy | None = None,
    on_failure: Callable[[JmsError], None] | None = None,
    connect: Callable[[ConnectionSettings], Connection] = connect,
    clock: Callable[[], float] = time.monotonic,
    uniform: Callable[[], float] = random.random,
) -> Connection | None:
    """Connect, with backoff, until an attempt succeeds.

    A stop request takes effect within 0.1 s, even during an attempt. If the abandoned attempt succeeds later,
    its connection is closed.

    Args:
        settings: The broker.
        stop: Event that ends the attempts when it is set.
        policy: When to retry; `None` means the default policy.
        on_failure: Called with the error of a failed attempt, before the wait for the next one.
        connect: Opens one connection.
        clock: Returns seconds, monotonic.
        uniform: Returns a random number from 0 to 1, for the jitter.

    Returns:
        The connection; `None` if `stop` was set first.

    Raises:
        TransientBrokerError: The deadline passed; the last failure is its cause.
        PermanentBrokerError: The broker refuses, and `retry_permanent_errors` is off. For wrong credentials
            this is an `AuthenticationError`.
        ConfigurationError: The settings can't work, and `retry_permanent_errors` is off.
    """
    policy = RetryPolicy() if policy is None else policy
    began = clock()
    failures = 0
    while not stop.is_set():
        try:
            connection = _connect_unless_stopped(settings, connect, stop)
        except JmsError as failure:
            if not isinstance(failure, TransientBrokerError) and not policy.retry_permanent_errors:
                raise
            failures += 1
            if on_failure is not None:
                on_failure(failure)
            wait = policy.backoff.wait(failures, uniform()).total_seconds()
            elapsed = clock() - began
            if policy.deadline is not None and elapsed + wait > policy.deadline.total_seconds():
                raise TransientBrokerError(
                    f"no connection after {failures} attempts in {elapsed:.1f} s: {failure}"
                ) from failure
            _log.log(
                _level(failures, minimal=policy.minimal_logging),
                "Attempt %d to connect failed, next in %.1f s: %s",
                failures,
                wait,
                failure,
            )
            stop.wait(wait)
            continue
        if connection is not None and failures:
            _log.info("Connected to %s after %d failed attempts", connection.broker, failures)
        return connection
    return None


def delete_durable(connect_again: ConnectFunction, name: str, destination: Destination) -> None:
    """Delete an idle durable subscription over a separate connection.

    A broker may notice late that the last consumer has closed. Artemis then refuses the deletion and closes
    the connection. So a refused deletion is retried over new connections for about four seconds.

    Raises:
        PermanentBrokerError: The broker refused the last attempt too.
        JmsError: Any other error; it is not retried.
    """
    for pause in (*_DELETION_PAUSES, None):
        connection = connect_again()
        try:
            connection.delete_durable(name, destination)
        except PermanentBrokerError:
            if pause is None:
                raise
        else:
            return
        finally:
            connection.close()
        time.sleep(pause)


def _level(failures: int, *, minimal: bool) -> int:
    if failures == 1:
        return logging.ERROR
    return logging.DEBUG if minimal else logging.WARNING


def _connect_unless_stopped(
    settings: ConnectionSettings, connect: Callable[[ConnectionSettings], Connection], stop: threading.Event
) -> Connection | None:
    outcome: Future[Connection] = Future()

    def attempt() -> None:
        try:
            connection = connect(settings)
        except BaseException as failure:  # noqa: BLE001  # handed to the waiting thread, which raises it
            try:
                outcome.set_exception(failure)
            except InvalidStateError:
                _log.debug("The abandoned connection attempt failed: %s", failure)
            return
        try:
            outcome.set_result(connection)
        except InvalidStateError:
            connection.close()

    threading.Thread(target=attempt, name="jms-connect", daemon=True).start()
    while True:
        try:
            return outcome.result(timeout=_STOP_CHECK_SECONDS)
        except FutureTimeoutError:
            if outcome.done():
                continue
            if stop.is_set() and outcome.cancel():
                return None
