"""Failures of tasks: converts this package's errors to Airflow's, and handles timeouts of deferred tasks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Protocol

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_jmsjca.errors import ConfigurationError, PermanentBrokerError

# Additional time, after which Airflow's scheduler ends a deferral if no triggerer runs.
_GRACE = timedelta(seconds=30)


@contextlib.contextmanager
def task_failures() -> Iterator[None]:
    """Fail a task without retries if a retry would fail in the same way.

    Transient errors pass unchanged: Airflow retries the task up to its `retries`.

    Raises:
        AirflowFailException: From a configuration error or a permanent refusal by the broker.
    """
    try:
        yield
    except (ConfigurationError, PermanentBrokerError) as error:
        raise AirflowFailException(str(error)) from error


def context_entry(context: Context, name: str) -> Any:
    """Return an entry of a task's context.

    Raises:
        ConfigurationError: The context has no such entry, because no task is running.
    """
    try:
        return context[name]  # type: ignore[literal-required]  # the names are those of callers
    except KeyError:
        raise ConfigurationError(
            f"the context has no {name!r}; expected that of a running task. In a test, run the task with "
            "dag.test()"
        ) from None


class Task(Protocol):
    """An Airflow operator, of which this module reads only the `execution_timeout`."""

    execution_timeout: timedelta | None


def timeout_text(task: Task) -> str:
    """Return the error text for a task that has exceeded its timeout."""
    return f"execution_timeout of {task.execution_timeout} is over, including the time deferred"


def deferral_timeout(timeout_at: float | None, own: timedelta | None = None) -> timedelta | None:
    """Return the `timeout` to pass to `defer`: the rest of `execution_timeout`, plus 30 seconds.

    The trigger itself reports the end of `execution_timeout`. If no triggerer runs, Airflow ends the deferral
    after the additional 30 seconds.

    Args:
        timeout_at: End of `execution_timeout`, in seconds since the epoch; `None`: the task has no
            `execution_timeout`.
        own: Maximum of the result; `None`: no maximum.

    Returns:
        The timeout; `None` if the task has neither limit.
    """
    if timeout_at is None:
        return own
    left = timedelta(seconds=max(0.0, timeout_at - time.time())) + _GRACE
    return left if own is None else min(left, own)
