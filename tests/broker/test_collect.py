"""Batches from real brokers, in the order of the queue."""

from __future__ import annotations

import threading
import uuid
from datetime import timedelta
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.collecting.batch_spec import BatchSpec, CollectResult, EndReason
from airflow_provider_jmsjca.engine.collecting.batcher import collect
from airflow_provider_jmsjca.engine.connecting.connector import open_connection
from airflow_provider_jmsjca.spool.manifest import Manifest
from airflow_provider_jmsjca.spool.spool import SpoolBatch
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Outgoing, Subscription
from tests.servers.broker import Broker

COUNT, SEGMENT, LIMIT = 700, 250, 600


def test_a_queue_goes_into_batches_in_its_order_and_is_empty_then(broker: Broker, tmp_path: Path) -> None:
    source = Destination.queue(f"collect.{uuid.uuid4().hex[:8]}")
    connection = connect(broker.settings())
    connection.send(Outgoing(destination=source, message=JmsMessage.bytes(b"%d" % n)) for n in range(COUNT))
    connection.close()

    def run(batch_id: str) -> CollectResult:
        spec = BatchSpec(
            subscription=Subscription(destination=source),
            max_messages=LIMIT,
            idle_time=timedelta(seconds=3),
            segment_messages=SEGMENT,
        )
        with SpoolBatch(tmp_path, batch_id, source=str(source), activation="a") as batch:
            return collect(partial(open_connection, broker.settings()), batch, spec, stop=threading.Event())

    def numbers(result: CollectResult) -> list[int]:
        manifest = Manifest.read(str(result.manifest))
        manifest.verify()
        return [
            int(body)
            for path in manifest.segment_paths()
            for body in pq.ParquetFile(path).read(columns=["body"]).column(0).to_pylist()
        ]

    first, second, third = run("b1"), run("b2"), run("b3")
    assert (first.reason, first.rows, first.duplicates) == (EndReason.COUNT, LIMIT, 0)
    assert numbers(first) == list(range(LIMIT))
    assert (second.reason, second.rows, second.duplicates) == (EndReason.IDLE, COUNT - LIMIT, 0)
    assert numbers(second) == list(range(LIMIT, COUNT))
    assert third.received == 0
