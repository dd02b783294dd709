"""Waits, for a deferred task, until a Spark application on a cluster has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_jmsjca.engine.connecting.threads import ThreadPool, in_thread
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.hooks.spark_submit import ClusterAwayError, SparkApplication
from airflow_provider_jmsjca.logs import safe_logger

_log = safe_logger(__name__)
_THREADS = ThreadPool(4)


class JmsSparkApplicationTrigger(BaseTrigger):
    """Fires once, when a Spark application has ended, successfully or not. It changes nothing.

    The event is `{"event": "ended", "application": ..., "how": ...}` with the name of the application and a
    text about its end. If the cluster can't be queried at all, it is `{"event": "error", "error": ...}`.
    While the cluster is unreachable, the trigger retries.

    Args:
        application: Result of `SparkApplication.as_dict`, which contains no secret.
        poll_interval: Seconds between two queries.
    """

    def __init__(self, application: Mapping[str, Any], poll_interval: float = 30) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's own is untyped
        self.application = application
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        cls = type(self)
        arguments = {"application": dict(self.application), "poll_interval": self.poll_interval}
        return f"{cls.__module__}.{cls.__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll the cluster until the application has ended."""
        try:
            yield TriggerEvent(await self._ended())
        except (ConfigurationError, ValueError) as error:
            yield TriggerEvent({"event": "error", "error": str(error)})

    async def _ended(self) -> dict[str, Any]:
        application, last_error = SparkApplication.of(self.application), ""
        while True:
            try:
                how = await in_thread(application.ending, start=_THREADS.submit)
            except ClusterAwayError as error:
                if str(error) != last_error:
                    last_error = str(error)
                    _log.warning(
                        "Can't get the state of Spark application %s: %s; retrying", application.name, error
                    )
            else:
                last_error = ""
                if how is not None:
                    return {"event": "ended", "application": application.name, "how": how}
            await asyncio.sleep(self.poll_interval)
