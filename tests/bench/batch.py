"""How fast messages get from a broker into sealed segments."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.collecting.batch_spec import BatchSpec
from airflow_provider_jmsjca.engine.collecting.batcher import ConnectUnlessStopped, collect
from airflow_provider_jmsjca.spool.manifest import Manifest
from airflow_provider_jmsjca.spool.spool import SpoolBatch
from airflow_provider_jmsjca.transports.base import Connection, Outgoing, Subscription


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRate:
    """Messages per second, from the first connection to the manifest, and what of it was processor time."""

    messages: int
    seconds: float
    processor_seconds: float

    @property
    def per_second(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds

    def __str__(self) -> str:
        each = self.processor_seconds / self.messages * 1e6
        return (
            f"{self.per_second:,.0f} messages/s sealed ({self.messages:,}; {each:.0f} µs processor time each)"
        )


def publish(connection: Connection, destination: Destination, count: int, body_bytes: int = 1024) -> None:
    """Fill a destination with persistent text messages of that size."""
    body = os.urandom(body_bytes // 2).hex()
    connection.send(
        Outgoing(destination=destination, message=JmsMessage.text(body, {"n": str(number)}))
        for number in range(count)
    )


def measure(
    connect: ConnectUnlessStopped,
    destination: Destination,
    count: int,
    spool: Path,
    *,
    batch_id: str = "bench",
    prefetch: int | None = None,
    segment_messages: int = 5_000,
) -> BatchRate:
    """Collect that many messages, which must be there, into a new batch.

    Raises:
        AssertionError: The batch hasn't got them all.
    """
    spec = BatchSpec(
        subscription=Subscription(destination=destination, prefetch=prefetch),
        max_messages=count,
        segment_messages=segment_messages,
    )
    with SpoolBatch(spool, batch_id, source=str(destination), activation=batch_id) as batch:
        began, processor = time.monotonic(), time.process_time()
        result = collect(connect, batch, spec, stop=threading.Event())
        seconds, processor = time.monotonic() - began, time.process_time() - processor
    assert result.manifest is not None
    manifest = Manifest.read(result.manifest)
    manifest.verify()
    assert manifest.rows == count
    return BatchRate(messages=count, seconds=seconds, processor_seconds=processor)
