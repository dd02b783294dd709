"""Trigger of deferred tasks: waits for messages on a queue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_jmsjca.core.configuration.precedence import Resolved
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.engine.connecting.async_connection import AsyncConnection
from airflow_provider_jmsjca.engine.watching.backlog import deferred_watch, watch_for_stuck_messages
from airflow_provider_jmsjca.engine.watching.peek import Ready
from airflow_provider_jmsjca.engine.watching.queue_watch import QueueWatch
from airflow_provider_jmsjca.errors import ConfigurationError, PermanentBrokerError, TransientBrokerError
from airflow_provider_jmsjca.hooks.destinations import find_destination
from airflow_provider_jmsjca.hooks.jms import JmsHook
from airflow_provider_jmsjca.hooks.selectors import effective_selector
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.transports.base import ConnectionSettings
from airflow_provider_jmsjca.transports.members import settings_for_member
from airflow_provider_jmsjca.triggers.payload import ready_event
from airflow_provider_jmsjca.triggers.releasing import releasing

_log = safe_logger(__name__)
_ASK_AGAIN_SECONDS = 5.0
CANNOT_WATCH = "%s can't be watched; retrying: %s"


class JmsReadyTrigger(BaseTrigger):
    """Fires once, when a queue has messages. It consumes nothing.

    The event is `{"event": "ready", "destination": ..., "jms_conn_id": ...}`, or `{"event": "error", "error":
    ...}` if the broker refuses or the configuration is invalid. Lost connections are retried.

    Args:
        jms_conn_id: The Airflow connection.
        destination: `queue://name` or the name of a queue.
        message_selector: Only messages that match count; `None` for all.
        poll_interval: Seconds between two probes, for brokers that can be browsed.
        member: Host of the connection to watch, `broker-a:61613`; `None` for any reachable host.
        deadline: Time at which the event is `{"event": "deadline"}`, in seconds since the epoch; `None` for
            no limit.
    """

    def __init__(
        self,
        jms_conn_id: str,
        destination: str,
        message_selector: str | None = None,
        poll_interval: float = 5,
        member: str | None = None,
        *,
        deadline: float | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's own is untyped
        self.jms_conn_id = jms_conn_id
        self.destination = destination
        self.message_selector = message_selector
        self.poll_interval = poll_interval
        self.member = member
        self.deadline = deadline
        self._unshared: set[str] = set()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            "jms_conn_id": self.jms_conn_id,
            "destination": self.destination,
            "message_selector": self.message_selector,
            "poll_interval": self.poll_interval,
            "member": self.member,
            "deadline": self.deadline,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event."""
        try:
            queue = find_destination(self.destination, variables=False)
            with releasing():
                async with asyncio.timeout(self._seconds_left):
                    ready = await self._until_ready(queue, self.member)
        except TimeoutError:
            yield TriggerEvent({"event": "deadline"})
            return
        except (ConfigurationError, PermanentBrokerError) as error:
            yield TriggerEvent({"event": "error", "error": str(error)})
            return
        _log.info("%s holds messages; the first is %s", queue, ready.message and ready.message.message_id)
        yield TriggerEvent(ready_event(self.jms_conn_id, queue))

    def subject(self, queue: str) -> str:
        """Return the name of a watch in the log: the queue, its connection, and the task that waits."""
        watched = f"{queue} over connection {self.jms_conn_id!r}"
        task = self.task_instance
        return watched if task is None else f"{watched} for task {task.dag_id}.{task.task_id}"

    @property
    def _seconds_left(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline - time.time())

    async def _options(self, hook: JmsHook) -> Resolved:
        """Return the options of the connection; retries until Airflow answers."""
        while True:
            try:
                return await hook.aoptions()
            except TransientBrokerError as error:
                _log.warning(CANNOT_WATCH, self.subject(self.destination), error)
                await asyncio.sleep(_ASK_AGAIN_SECONDS)

    async def _until_ready(
        self, queue: Destination, member: str | None, *, selector_is_final: bool = False
    ) -> Ready:
        """Return as soon as the queue holds a message.

        Args:
            queue: The queue.
            member: Host of the connection to watch; `None` for any reachable host.
            selector_is_final: Whether the trigger's selector contains the connection's selector already.

        Raises:
            PermanentBrokerError: The broker refuses.
            ConfigurationError: The connection or the selector can't be used.
        """
        hook = JmsHook(self.jms_conn_id)
        options = await self._options(hook)
        selector = self.message_selector or None
        if not selector_is_final:
            selector = effective_selector(options, queue, selector)

        async def find() -> ConnectionSettings:
            # Only the consumer uses the client id: the broker refuses a second connection with it.
            settings = replace(await hook.asettings(), client_id=None)
            return settings if member is None else settings_for_member(member, settings)

        quiet = options["minimal_reconnect_logging"] is True
        poll = timedelta(seconds=self.poll_interval)
        name = str(queue) if member is None else f"{queue} on {member}"
        connection = AsyncConnection(
            find, subject=lambda: self.subject(name), minimal_logging=quiet, unshared=name in self._unshared
        )
        watch = QueueWatch(connection, queue, selector, poll=poll)
        looks = asyncio.create_task(
            watch_for_stuck_messages(
                deferred_watch(connection.open_probe_connection, queue, filtered=selector is not None),
                connection.in_thread,
            )
        )
        try:
            return await watch.wait()
        finally:
            if connection.unshared:
                self._unshared.add(name)
            looks.cancel()
            watch.close()
