"""A trigger without a broker: what Airflow itself takes for events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Hashable, Sequence
from pathlib import Path
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

_LOOKS_EVERY = 0.02


class NullTrigger(BaseEventTrigger):
    """Yields as many events as the files in a folder say, in the form of ours.

    Args:
        plans: The folder. A file says `run`, `count`, and `every`: seconds between two events.
    """

    def __init__(self, plans: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's own is untyped
        self.plans = plans

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {"plans": self.plans}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield events for ever."""
        while True:
            for file in Path(self.plans).glob("*.json"):  # noqa: ASYNC240  # small, and in memory
                plan = json.loads(file.read_text(encoding="utf-8"))
                file.unlink()
                began = time.time()
                for number in range(plan["count"]):
                    if plan["every"]:
                        await asyncio.sleep(max(0.0, began + number * plan["every"] - time.time()))
                    moment = time.time() if plan["every"] else began
                    yield TriggerEvent(_payload(f"{plan['run']} {moment}"))
            await asyncio.sleep(_LOOKS_EVERY)


class _Idle(SharedStreamProducer):
    """Produces nothing."""

    async def open_stream(self) -> AsyncIterator[tuple[Any, Any]]:
        """Yield nothing."""
        await asyncio.Event().wait()
        yield None, None

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Nothing was produced."""


class IdleTrigger(BaseEventTrigger):
    """Waits for ever: what Airflow itself takes for a trigger whose events are acknowledged, as ours are.

    Args:
        number: Which one, so that they differ.
    """

    def __init__(self, number: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's own is untyped
        self.number = number

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {"number": self.number}

    def shared_stream_key(self) -> Hashable:
        """Return a key of its own for each number."""
        return self.number

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        """Return what produces nothing."""
        del kwargs
        return _Idle()

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        """Yield what comes, which is nothing."""
        async for each in shared_stream:
            yield TriggerEvent(each)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield nothing; Airflow calls this only for a trigger that shares no stream."""
        await asyncio.Event().wait()
        yield TriggerEvent(None)


def _payload(body: str) -> dict[str, Any]:
    """Return what an event of ours carries, with this body."""
    return {
        "event": "message",
        "jms_conn_id": "jms_test",
        "destination": "queue://bench.null",
        "message": {"type": "text", "body": body, "message_id": "ID:null", "priority": 4, "properties": {}},
    }
