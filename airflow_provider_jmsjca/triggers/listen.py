"""Waits, for a deferred listener, until it has something to do or its time is up."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from airflow.triggers.base import TriggerEvent

from airflow_provider_jmsjca.triggers.ready import JmsReadyTrigger

_log = logging.getLogger(__name__)


class JmsListenTrigger(JmsReadyTrigger):
    """Fires once: when one of its queues holds messages, or at a moment. It consumes nothing.

    The event is that of `JmsReadyTrigger`, or `{"event": "deadline"}`; it carries `state` back.

    Args:
        further: Queues to watch besides `destination`. A fault with one is reported when all have one.
        members: Watch them on each of these hosts of the connection; empty: on whichever can be reached.
        deadline: Seconds since the epoch; `None`: it waits for ever.
        state: What the task wants to know when it goes on. It travels here and not in the arguments of
            `defer`, because `dag.test()` drops those.
        **kwargs: The arguments of `JmsReadyTrigger`.
    """

    def __init__(
        self,
        *,
        further: Sequence[str] = (),
        members: Sequence[str] = (),
        deadline: float | None = None,
        state: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.further = list(further)
        self.members = list(members)
        self.deadline = deadline
        self.state = dict(state or {})

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        path, arguments = super().serialize()
        return path, arguments | {
            "further": self.further,
            "members": self.members,
            "deadline": self.deadline,
            "state": self.state,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event."""
        left = None if self.deadline is None else max(0.0, self.deadline - time.time())
        payload: dict[str, Any] = {"event": "deadline"}
        try:
            async with asyncio.timeout(left):
                payload = await self._first()
        except TimeoutError:
            pass
        yield TriggerEvent(payload | {"state": self.state})

    async def _first(self) -> dict[str, Any]:
        """Return what the first queue has to say that holds messages; a fault only if none can be watched."""
        arguments = super().serialize()[1]
        watches = [
            asyncio.create_task(
                _event_of(JmsReadyTrigger(**arguments | {"destination": destination, "member": member}))
            )
            for destination in (self.destination, *self.further)
            for member in self.members or (self.member,)
        ]
        payload: dict[str, Any] = {}
        try:
            for watched in asyncio.as_completed(watches):
                payload = await watched
                if payload["event"] != "error":
                    break
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)
        return payload


async def _event_of(trigger: JmsReadyTrigger) -> dict[str, Any]:
    payload: dict[str, Any] = {}
    async for found in trigger.run():
        payload = found.payload
    if payload["event"] == "error":
        where = "" if trigger.member is None else f" on {trigger.member}"
        _log.warning("%s%s can't be watched: %s", trigger.destination, where, payload["error"])
    return payload
