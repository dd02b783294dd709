"""The broker is killed in the middle of a batch, several times: nothing lost, nothing stored twice.

`JMSJCA_CHAOS=full` sends 20,000 messages and kills six times, otherwise 3,000 and twice.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import psutil
import pytest

from airflow_provider_jmsjca import Destination, JmsMessage, Outgoing, connect
from tests.chaos.collecting import CollectorProcess, stored_numbers
from tests.chaos.conftest import Report
from tests.servers.broker import Broker

FULL = os.environ.get("JMSJCA_CHAOS") == "full"
MESSAGES, SEGMENT, KILLS = (20_000, 250, 6) if FULL else (3_000, 100, 2)


def send(broker: Broker, queue: Destination, numbers: Iterable[int]) -> None:
    connection = connect(broker.settings())
    connection.send(Outgoing(destination=queue, message=JmsMessage.text(str(n))) for n in numbers)
    connection.close()


def kill_after_segments(broker: Broker, collector: CollectorProcess, goal: int, *, in_between: bool) -> None:
    """Kill the broker in the middle of the batch.

    Args:
        broker: The victim.
        collector: Who collects.
        goal: How many segments have to be sealed before.
        in_between: Whether to kill in the middle between two segments, so that received messages are lost
            from memory; if not, the moment one is sealed, which is before the broker hears of it.
    """
    assert broker.pid is not None
    leader = psutil.Process(broker.pid)
    # Looked up before: a list of processes takes longer than an acknowledgement.
    processes = [leader, *leader.children(recursive=True)]
    first = collector.segments + 1
    deadline = time.monotonic() + 120
    since = None
    while (found := collector.segments) < goal:
        assert collector.alive, f"the batch ended before segment {goal}"
        assert time.monotonic() < deadline, f"no segment {goal}"
        if since is None and found >= first:
            since = time.monotonic()
        time.sleep(0.0005)
    if in_between and since is not None:
        time.sleep((time.monotonic() - since) / (goal - first) / 2)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # RabbitMQ has helpers that come and go
            process.kill()
    broker.kill()
    assert collector.alive, "the batch ended when the broker died"


@pytest.mark.timeout(900)
def test_each_message_is_in_the_batch_once_when_the_broker_is_killed(
    any_private_broker: Broker, tmp_path: Path, report: Report
) -> None:
    broker, queue = any_private_broker, "killed"
    numbers, share = iter(range(MESSAGES)), MESSAGES // (KILLS + 1)
    send(broker, Destination.queue(queue), islice(numbers, share // 2))
    folders = tmp_path / "first", tmp_path / "rest"
    collector = CollectorProcess(
        broker, queue, folders[0], max_messages=MESSAGES, segment_messages=SEGMENT, idle_seconds=60
    )
    try:
        for number in range(KILLS):
            # Half a share more than the goal: the batch can't end before the kill, however fast it is.
            send(broker, Destination.queue(queue), islice(numbers, share))
            goal = (number + 1) * share // SEGMENT
            kill_after_segments(broker, collector, goal, in_between=number % 2 == 1)
            broker.start()
        send(broker, Destination.queue(queue), numbers)
        first = collector.result()
    finally:
        collector.kill()
    # The broker may still have what was sealed but not acknowledged; the activation's next batch knows it.
    rest = CollectorProcess(
        broker, queue, folders[1], max_messages=MESSAGES, segment_messages=SEGMENT, idle_seconds=2
    ).result()

    stored = Counter(stored_numbers(folders))
    again = sum(stored.values()) - len(stored)
    report(f"{broker.name}, batch: {KILLS} kills, {first}, then {rest}: {len(stored)} stored, {again} again")
    assert set(stored) == set(range(MESSAGES))
    assert again == 0
    assert first["reconnects"] >= KILLS, "window missed: the collector didn't notice a kill"
