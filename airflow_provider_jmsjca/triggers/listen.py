"""Waits, for a deferred listener, until it has something to do or its time is up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from airflow.triggers.base import TriggerEvent

from airflow_provider_jmsjca.triggers.ready import JmsReadyTrigger


class JmsListenTrigger(JmsReadyTrigger):
    """Fires once: when a queue holds messages, or at a moment. It consumes nothing.

    The event is that of `JmsReadyTrigger`, or `{"event": "deadline"}`; it carries `state` back.

    Args:
        deadline: Seconds since the epoch; `None`: it waits for ever.
        state: What the task wants to know when it goes on. It travels here and not in the arguments of
            `defer`, because `dag.test()` drops those.
        **kwargs: The arguments of `JmsReadyTrigger`.
    """

    def __init__(
        self, *, deadline: float | None = None, state: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.deadline = deadline
        self.state = dict(state or {})

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        path, arguments = super().serialize()
        return path, arguments | {"deadline": self.deadline, "state": self.state}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event."""
        left = None if self.deadline is None else max(0.0, self.deadline - time.time())
        payload: dict[str, Any] = {"event": "deadline"}
        try:
            async with asyncio.timeout(left):
                async for found in super().run():
                    payload = found.payload
        except TimeoutError:
            pass
        yield TriggerEvent(payload | {"state": self.state})
