"""The collecting process is killed while it seals a segment or right after it: nothing lost or doubled.

Before each kill the queue gets what makes one more segment, and not what the batch lacks: however fast the
process is, it can't have finished before it is killed. `JMSJCA_CHAOS=full` sends 20,000 messages, otherwise
3,000.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable
from functools import partial
from itertools import islice
from pathlib import Path

import pytest

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Outgoing
from tests.chaos.collecting import CollectorProcess, stored_numbers
from tests.chaos.conftest import Report
from tests.servers.broker import Broker

FULL = os.environ.get("JMSJCA_CHAOS") == "full"
MESSAGES, SEGMENT, ROUNDS = (20_000, 1_000, 9) if FULL else (3_000, 250, 5)


def send(broker: Broker, queue: Destination, numbers: Iterable[int]) -> None:
    connection = connect(broker.settings())
    connection.send(Outgoing(destination=queue, message=JmsMessage.text(str(n))) for n in numbers)
    connection.close()  # a machine this busy may starve its heart-beats


@pytest.mark.timeout(900)
def test_killed_around_seal_and_acknowledgement_nothing_is_lost_or_stored_twice(
    activemq: Broker, tmp_path: Path, report: Report
) -> None:
    queue = f"chaos.{uuid.uuid4().hex[:8]}"
    source = Destination.queue(queue)

    # The second batch may meet messages that a kill of the first left sealed but not acknowledged, and the
    # third those of the second: a batch that has its count doesn't ask the broker again.
    half = MESSAGES // 2
    unsent = iter(range(MESSAGES))
    kills = duplicates = 0
    for batch_id, rounds in (("first", ROUNDS), ("second", ROUNDS // 2), ("third", 0)):
        collect = partial(
            CollectorProcess,
            activemq,
            queue,
            tmp_path / batch_id,
            max_messages=half,
            segment_messages=SEGMENT,
            idle_seconds=60 if rounds else 5,
        )
        for number in range(rounds):
            early = number % 2 == 0
            send(activemq, source, islice(unsent, SEGMENT))
            collector = collect()
            before = collector.segments
            deadline = time.monotonic() + 120
            # Before the seal nothing may be acknowledged, after it nothing forgotten.
            while collector.segments == before and not (early and collector.sealing):
                assert collector.alive, "the batch ended before the kill"
                assert time.monotonic() < deadline, "no segment was sealed"
                time.sleep(0 if early else 0.0005)
            collector.kill()
            kills += 1
        if rounds:
            send(activemq, source, islice(unsent, half - rounds * SEGMENT))
        duplicates += collect().result()["duplicates"]

    stored = stored_numbers(tmp_path / name for name in ("first", "second", "third"))
    assert len(stored) == MESSAGES
    assert set(stored) == set(range(MESSAGES))
    connection = connect(activemq.settings())
    assert list(connection.browse(source)) == []
    connection.close()
    # Not an expectation: how many of the kills hit the gap is luck, and this says it.
    report(f"collecting task: {MESSAGES} messages, {kills} kills, {duplicates} duplicates dropped at the end")
