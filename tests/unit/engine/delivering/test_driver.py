"""The driver with threads and the one in the event loop settle the same outcomes alike."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import asdict, replace
from typing import Any, TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_jmsjca.engine.delivering.delivery import Delivery
from airflow_provider_jmsjca.errors import PoisonMessageError
from tests.unit.engine import listening, streaming

HANDLINGS = ("", "1:1; 2:move(queue:$.dead)", "2:delete", "1:1; 3:move(topic:t)", "3:move(queue:a,queue:b)")
SPEC: dict[str, Any] = {"dead_letter_destination": "queue://poison", "non_retryable": ["builtins.KeyError"]}
QUEUES = ("orders", "orders.dead", "poison", "a", "b")

Outcomes: TypeAlias = list[list[str]]
"""For each message what its attempts end with, in their order; after the last one they return."""

outcomes = st.lists(st.lists(st.sampled_from(["fail", "poison", "key"]), max_size=4), min_size=1, max_size=4)


def error_of(script: Outcomes, tried: Counter[int], body: object) -> Exception | None:
    """Return how the next attempt at a message ends."""
    number = int(str(body))
    attempt = tried[number]
    tried[number] += 1
    if attempt >= len(script[number]):
        return None
    match script[number][attempt]:
        case "poison":
            return PoisonMessageError("not for us")
        case "key":
            return KeyError("unknown")
        case _:
            return ValueError("no stock")


def with_threads(script: Outcomes, handling: str) -> dict[str, Any]:
    site = listening.Site()
    tried: Counter[int] = Counter()

    def handle(delivery: Delivery) -> None:
        if (error := error_of(script, tried, delivery.body)) is not None:
            raise error

    site.send(*map(str, range(len(script))))
    counts = site.activation(handle, redelivery_handling=handling, **SPEC).run(max_messages=len(script))
    found = {queue: site.bodies(queue) for queue in QUEUES}
    site.close()
    return {"attempts": site.attempts, "counts": asdict(counts), **found}


def in_the_loop(script: Outcomes, handling: str) -> dict[str, Any]:
    site = streaming.Site()
    tried: Counter[int] = Counter()
    attempts: list[tuple[Any, int]] = []
    made = listening.Site.listener_settings(redelivery_handling=handling, **SPEC)
    rules = replace(made, delivery=replace(made.delivery, transaction_timeout=None))

    async def work() -> dict[str, int]:
        site.send(*map(str, range(len(script))))
        async with site.streaming(rules) as stream:

            async def consume() -> None:
                async for delivery in stream:
                    attempts.append((delivery.message.body, delivery.seen))
                    error = error_of(script, tried, delivery.message.body)
                    delivery.returned() if error is None else delivery.raised(error)

            consuming = asyncio.create_task(consume())
            await streaming.until(lambda: stream.counts.settled == len(script))
            consuming.cancel()
            return asdict(stream.counts)

    counts = asyncio.run(asyncio.wait_for(work(), 20))
    return {"attempts": attempts, "counts": counts, **{queue: site.bodies(queue) for queue in QUEUES}}


@settings(max_examples=25)
@given(script=outcomes, handling=st.sampled_from(HANDLINGS))
def test_both_drivers_settle_the_same_outcomes_alike(script: Outcomes, handling: str) -> None:
    assert in_the_loop(script, handling) == with_threads(script, handling)
