"""Memory over many messages: a publisher and a listener with redelivery handling at a bounded backlog."""

from __future__ import annotations

import functools
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psutil

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.activations.listener import Listener
from airflow_provider_jmsjca.engine.activations.run import one_connection
from airflow_provider_jmsjca.engine.delivering.delivery import Delivery
from airflow_provider_jmsjca.engine.delivering.settings import listener_settings
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import ConnectionSettings, Outgoing
from tests.bench.rates import BODY, PATIENCE
from tests.bench.rival import new_queue

BACKLOG = 5_000
"""How many messages wait at most; more would be memory of the broker's, which `vm://` shares with us."""
MOST_GROWTH_MEBIBYTES = 5.0
"""What a long run may grow by after its first tenth: ten bytes left behind by each of a million are more."""
_BULK = 500
_FAIL_EVERY = 1_000
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The process after so many messages.

    Attributes:
        messages: How many were delivered.
        resident: Bytes of memory.
        blocks: Python's own count of what it has allocated and not freed.
        seconds: Since the start.
    """

    messages: int
    resident: int
    blocks: int
    seconds: float

    @property
    def mebibytes(self) -> float:
        """The memory in MiB."""
        return self.resident / _MIB


def run(
    settings: ConnectionSettings, messages: int, every: int, *, sends: bool = False, **mode: Any
) -> Iterator[Sample]:
    """Send and consume that many messages; yield a sample after each `every`.

    One message in a thousand is rolled back once, so that what redelivery handling remembers counts too.

    Args:
        settings: The broker.
        messages: How many.
        every: How many for a sample.
        sends: The handler sends each message on, to a topic that keeps nothing.
        mode: Further fields of the spec.

    Raises:
        AssertionError: A message was lost, or the listener stopped.
    """
    queue = new_queue()
    resident = psutil.Process(os.getpid()).memory_info
    marks = [*range(every, messages, every), messages]
    progress = threading.Condition()
    done = 0

    def handle(delivery: Delivery) -> None:
        nonlocal done
        assert delivery.body is not None
        number = int(str(delivery.message.properties["n"]))
        if number % _FAIL_EVERY == 0 and delivery.redelivery_count == 0:
            delivery.set_rollback_only()
            return
        if sends:
            delivery.send(f"topic://{queue}", delivery.message)
        with progress:
            done += 1
            if done % _BULK == 0 or done in marks:
                progress.notify_all()

    def wait(condition: Callable[[], bool]) -> None:
        with progress:
            assert progress.wait_for(condition, PATIENCE), f"{done} of {messages} messages came"

    handling = "3:10; 5:move(queue:$.dlq)"
    spec = ActivationSpec(destination=f"queue://{queue}", redelivery_handling=handling, **mode)
    listener = Listener(one_connection(listener_settings(spec), functools.partial(connect, settings)), handle)
    publisher = connect(settings)
    target = Destination.queue(queue)
    began = time.monotonic()
    listener.start()
    try:
        sent = 0
        for mark in marks:
            while sent < mark:
                wait(lambda: sent - done < BACKLOG)  # noqa: B023 - called before `sent` changes
                bulk = min(_BULK, mark - sent)
                publisher.send(
                    Outgoing(destination=target, message=JmsMessage.text(BODY, {"n": str(sent + number)}))
                    for number in range(bulk)
                )
                sent += bulk
            wait(lambda: done >= mark)  # noqa: B023 - called before `mark` changes
            gc.collect()
            yield Sample(
                messages=mark,
                resident=resident().rss,
                blocks=sys.getallocatedblocks(),
                seconds=time.monotonic() - began,
            )
    finally:
        listener.stop()
        publisher.close()
    assert done == messages, f"{done} of {messages} messages came"


def report(settings: ConnectionSettings, messages: int) -> bool:
    """Print a line for each tenth, and what the memory did after the first; return whether it stayed flat."""
    samples = []
    for sample in run(settings, messages, max(_BULK, messages // 10)):
        samples.append(sample)
        print(
            f"  {sample.messages:>11,} messages  {sample.mebibytes:>7.1f} MiB resident  "
            f"{sample.messages / sample.seconds:>8,.0f}/s",
            flush=True,
        )
    grown = samples[-1].mebibytes - samples[0].mebibytes
    flat = grown <= MOST_GROWTH_MEBIBYTES
    verdict = "flat" if flat else "NOT FLAT"
    print(f"  grown by {grown:+.1f} MiB since the first line, at most {MOST_GROWTH_MEBIBYTES:.0f}: {verdict}")
    return flat
