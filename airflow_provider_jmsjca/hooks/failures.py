"""The one place where our errors become Airflow's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_jmsjca.errors import ConfigurationError, PermanentBrokerError


@contextlib.contextmanager
def task_failures() -> Iterator[None]:
    """Fail a task without retries where trying again gives the same answer.

    Transient errors pass as they are: Airflow retries the task as often as it is told to.

    Raises:
        AirflowFailException: From a configuration error or a permanent refusal by the broker.
    """
    try:
        yield
    except (ConfigurationError, PermanentBrokerError) as error:
        raise AirflowFailException(str(error)) from error
