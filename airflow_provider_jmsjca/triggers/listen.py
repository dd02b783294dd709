"""Trigger of deferred listeners: waits for messages or a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from airflow.triggers.base import TriggerEvent

from airflow_provider_jmsjca.core.delivery.outage import RETRY
from airflow_provider_jmsjca.engine.activations.registry import Identity, application
from airflow_provider_jmsjca.errors import ConfigurationError, PermanentBrokerError
from airflow_provider_jmsjca.hooks.destinations import find_destination
from airflow_provider_jmsjca.hooks.registry import installed_registrar, task_name
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.store.base import ActivationKind
from airflow_provider_jmsjca.triggers.payload import ready_event
from airflow_provider_jmsjca.triggers.ready import CANNOT_WATCH, JmsReadyTrigger
from airflow_provider_jmsjca.triggers.registry import WaitingListener
from airflow_provider_jmsjca.triggers.releasing import releasing

_log = safe_logger(__name__)


class JmsListenTrigger(JmsReadyTrigger):
    """Fires once, when one of its queues has messages or at a deadline. It consumes nothing.

    Events, each with the additional key `state`:

    - A queue has messages: the event of `JmsReadyTrigger`, with three more keys. `watch` is the queue, with
      its member. `message_id` is `None` if the message has no id or can't be decoded. `deliveries` is the
      number of the message's deliveries, including the probe; 0 if probes don't count as deliveries.
    - At the deadline: `{"event": "deadline"}`.
    - A user stops or drains the activation: `{"event": "requested"}`. While it is suspended, messages
      and refusals fire no event.
    - All queues are refused, and `retry_permanent_errors` is not set: an event with `error`.

    A refused queue is tried again after 1, 5, 15, 60, 60 ... seconds.

    Args:
        further: Queues to watch besides `destination`.
        members: Hosts of the connection on which to watch the queues; empty for any reachable host.
        message_selector: The effective selector; that of the connection is not applied again.
        not_before: Time of the first probe of a queue, in seconds since the epoch; the keys are the queues'
            `watch` names. Other queues are probed at once.
        retry_permanent_errors: Whether to continue while all queues are refused.
        activation: Name of the activation under which the waiting task is registered; empty: it isn't
            registered.
        broker: Address of the activation's broker, for the registry.
        state: Returned to the task in the event. It is not passed as an argument of `defer`, because
            `dag.test()` drops those.
        **kwargs: The arguments of `JmsReadyTrigger`.
    """

    def __init__(
        self,
        *,
        further: Sequence[str] = (),
        members: Sequence[str] = (),
        not_before: Mapping[str, float] | None = None,
        retry_permanent_errors: bool = False,
        activation: str = "",
        broker: str = "",
        state: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.further = list(further)
        self.members = list(members)
        self.not_before = dict(not_before or {})
        self.retry_permanent_errors = retry_permanent_errors
        self.activation = activation
        self.broker = broker
        self.state = dict(state or {})

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        path, arguments = super().serialize()
        return path, arguments | {
            "further": self.further,
            "members": self.members,
            "not_before": self.not_before,
            "retry_permanent_errors": self.retry_permanent_errors,
            "activation": self.activation,
            "broker": self.broker,
            "state": self.state,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event."""
        payload: dict[str, Any] = {"event": "deadline"}
        try:
            with releasing():
                async with asyncio.timeout(self._seconds_left):
                    payload = await self._registered_first()
        except TimeoutError:
            pass
        yield TriggerEvent(payload | {"state": self.state})

    async def _registered_first(self) -> dict[str, Any]:
        """Wait for the trigger's event and return it. The activation is registered while the call waits."""
        registrar = installed_registrar() if self.activation else None
        if registrar is None:
            return await self._first()
        task = self.task_instance
        identity = Identity(
            activation=self.activation,
            kind=ActivationKind.LISTENER,
            owner=application() if task is None else task_name(task),
            destination=", ".join((self.destination, *self.further)),
            broker=self.broker,
        )
        waiting = WaitingListener(registrar, identity)
        try:
            while (order := waiting.order) is None or not order.ends_runs:
                if order is not None:
                    await waiting.wait_for_change(order)
                    continue
                first = asyncio.ensure_future(self._first())
                changed = asyncio.ensure_future(waiting.wait_for_change(None))
                try:
                    await asyncio.wait({first, changed}, return_when=asyncio.FIRST_COMPLETED)
                    if first.done() and waiting.order is None:
                        return first.result()
                finally:
                    first.cancel()
                    changed.cancel()
                    await asyncio.gather(first, changed, return_exceptions=True)
            return {"event": "requested"}
        finally:
            waiting.leave()

    async def _first(self) -> dict[str, Any]:
        """Return the event of the first queue that has messages; an error event if all queues are refused."""
        refused: dict[str, str | None] = {}
        watches = []
        for destination in (self.destination, *self.further):
            for member in self.members or (self.member,):
                name = destination if member is None else f"{destination} on {member}"
                refused[name] = None
                watches.append(asyncio.create_task(self._watch(name, destination, member, refused)))
        try:
            return await next(asyncio.as_completed(watches))
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    async def _watch(
        self, name: str, text: str, member: str | None, refused: dict[str, str | None]
    ) -> dict[str, Any]:
        """Wait for a message on one queue, and return the event; an error event if all queues are refused.

        Args:
            name: Name of this watch.
            text: The queue.
            member: Host of the connection; `None` for any reachable host.
            refused: The last refusal of each watch, by name; `None` if not refused. Shared by all watches.
        """
        await asyncio.sleep(max(0.0, self.not_before.get(name, 0.0) - time.time()))
        reported, attempts = "", 0
        while True:
            attempts += 1
            try:
                queue = find_destination(text, variables=False)
                ready = await self._until_ready(queue, member, selector_is_final=True)
            except (ConfigurationError, PermanentBrokerError) as error:
                refused[name] = str(error)
            else:
                seen = {
                    "watch": name,
                    "message_id": None if ready.message is None else ready.message.message_id,
                    "deliveries": ready.deliveries,
                }
                return ready_event(self.jms_conn_id, queue) | seen
            if refused[name] != reported:
                reported = refused[name] or ""
                _log.warning(CANNOT_WATCH, self.subject(name), reported)
            faults = [fault for fault in refused.values() if fault is not None]
            if len(faults) == len(refused) and not self.retry_permanent_errors:
                return {"event": "error", "error": "; ".join(dict.fromkeys(faults))}
            await asyncio.sleep(RETRY.wait(attempts, 0).total_seconds())
            refused[name] = None
