"""What tasks of an event loop wait for: the same as `asyncio.Event`, and smaller."""

from __future__ import annotations

import asyncio

import pytest

from airflow_provider_jmsjca.engine.delivering.loop.signal import Signal


def test_all_who_wait_go_on_when_it_is_set_and_those_who_come_later_do_not_wait() -> None:
    async def work() -> None:
        signal = Signal()
        waiting = [asyncio.create_task(signal.wait()) for _ in range(3)]
        await asyncio.sleep(0)
        assert not any(each.done() for each in waiting)
        signal.set()
        assert signal.is_set()
        await asyncio.wait_for(asyncio.gather(*waiting), 5)
        await asyncio.wait_for(signal.wait(), 5)

    asyncio.run(work())


def test_who_waited_goes_on_although_it_is_cleared_at_once() -> None:
    async def work() -> None:
        signal = Signal()
        waiting = asyncio.create_task(signal.wait())
        await asyncio.sleep(0)
        signal.set()
        signal.clear()
        await asyncio.wait_for(waiting, 5)
        later = asyncio.create_task(signal.wait())
        await asyncio.sleep(0.01)
        assert not later.done()
        signal.set()
        await asyncio.wait_for(later, 5)

    asyncio.run(work())


def test_who_is_cancelled_takes_nobody_with_him() -> None:
    async def work() -> None:
        signal = Signal()
        one, other = (asyncio.create_task(signal.wait()) for _ in range(2))
        await asyncio.sleep(0)
        one.cancel()
        await asyncio.gather(one, return_exceptions=True)
        signal.set()
        await asyncio.wait_for(other, 5)
        assert one.cancelled()

    asyncio.run(work())


def test_a_wait_with_a_limit_ends_when_the_time_is_up() -> None:
    async def work() -> None:
        signal = Signal()
        await asyncio.wait_for(signal.wait(0.01), 5)
        assert not signal.is_set()

    asyncio.run(work())


@pytest.mark.parametrize("turns", range(6))
@pytest.mark.parametrize("first", ["cancelled", "set"])
def test_a_cancellation_is_never_lost_to_a_signal(first: str, turns: int) -> None:
    """Both come within a few turns of the loop, in any order; a lost one leaves a task running for ever."""

    async def work() -> None:
        signal = Signal()

        async def endless() -> None:
            while True:
                signal.clear()
                await signal.wait(60)

        task = asyncio.create_task(endless())
        await asyncio.sleep(0)
        acts = [task.cancel, signal.set] if first == "cancelled" else [signal.set, task.cancel]
        acts[0]()
        for _ in range(turns):
            await asyncio.sleep(0)
        acts[1]()
        await asyncio.wait({task}, timeout=1)
        assert task.cancelled()

    asyncio.run(work())
