"""A DAG is paused while messages flow: its watcher is cancelled in Airflow's own runner."""

from __future__ import annotations

import asyncio
import io
import time

import airflow.jobs.triggerer_job_runner as runners
import pytest
import structlog
from airflow.jobs.triggerer_job_runner import TriggerRunner

from airflow_provider_jmsjca import JmsActivationTrigger, MemoryBroker
from tests.airflow.conftest import Publish

INFO = 20
MESSAGES = {str(number) for number in range(100)}


async def stored_and_left(server: MemoryBroker, queue: str, steps: int) -> tuple[set[str], set[str]]:
    """Watch a queue, cancel the watcher so many steps of the loop after its first event.

    Returns:
        The bodies of the events that are stored, and of the messages that are still in the queue.
    """
    runner = TriggerRunner()
    # A triggerer logs each event, and awaits that, before it binds it; the tests' own level leaves it out.
    runner.log = structlog.wrap_logger(
        structlog.PrintLogger(io.StringIO()), wrapper_class=structlog.make_filtering_bound_logger(INFO)
    )
    trigger = JmsActivationTrigger("jms_test", f"queue://{queue}")
    runner.triggers[1] = {"task": None, "is_watcher": True, "name": "watcher", "events": 0}
    task = runner.triggers[1]["task"] = asyncio.create_task(runner.run_trigger(1, trigger))
    stored: set[str] = set()

    def store() -> None:
        """Do what the supervisor does with the events at each sync, and the confirmation that comes back."""
        entries = list(runner.events)
        runner.events.clear()
        stored.update(entry.event.payload["message"]["body"] for entry in entries)
        numbers = [entry.persist_seq for entry in entries if entry.persist_seq is not None]
        runner._shared_streams.confirm_persisted(numbers)

    deadline = time.monotonic() + 5
    while not runner.events and time.monotonic() < deadline:  # noqa: ASYNC110 - step by step
        await asyncio.sleep(0)
    for _ in range(steps):
        await asyncio.sleep(0)
    store()
    task.cancel(runners._USER_ACTION_CANCEL_MSG)
    await asyncio.gather(task, return_exceptions=True)
    store()
    return stored, {str(message.body) for message in server.messages(queue)}


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 8, 13, 21, 34])
def test_pausing_a_dag_loses_nothing(server: MemoryBroker, publish: Publish, steps: int) -> None:
    """A message counts as done with Airflow although its event was in nobody's hands at that moment."""
    publish(*sorted(MESSAGES, key=int), to="orders")

    async def work() -> None:
        stored, left = await stored_and_left(server, "orders", steps)
        assert stored | left == MESSAGES

    asyncio.run(asyncio.wait_for(work(), 30))
