"""`jms`: a real broker as a table and as a stream, through a write-ahead spool."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_jmsjca import (
    ActivationKind,
    DeliveryStoppedError,
    Destination,
    JmsMessage,
    Outgoing,
    RunStatus,
    WantedState,
    connect,
    list_activations,
    open_store,
    register_data_sources,
    request_activation_state,
    resume_activations,
)
from tests.internals.spark import JmsStreamReader, SpoolingReceiver
from tests.internals.spool import Row, SpoolBatch, State, batches
from tests.servers.broker import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Run = Callable[..., list[list[str]]]


@pytest.fixture
def options(activemq: Broker, queue_name: str, tmp_path: Path) -> dict[str, str]:
    password = tmp_path / "password"
    password.write_text(f"{activemq.password}\n")
    return {
        "path": str(tmp_path / "wal"),
        "url": "stomp://{}:{}".format(*activemq.address()),
        "username": activemq.username,
        "passwordFile": str(password),
        "destination": f"queue://{queue_name}",
    }


def send(broker: Broker, queue: str, *bodies: str) -> None:
    connection = connect(broker.settings())
    connection.send(
        Outgoing(destination=Destination.queue(queue), message=JmsMessage.text(b)) for b in bodies
    )
    connection.close()


@pytest.fixture
def run(spark: SparkSession, options: dict[str, str], tmp_path: Path) -> Run:
    """Run a query until it has what the queue holds; return the bodies of its micro-batches."""
    register_data_sources(spark)

    def once(**more: Any) -> list[list[str]]:
        found: list[list[str]] = []

        def keep(df: Any, _number: int) -> None:
            found.append([row.body.decode() for row in df.select("body").collect()])

        query = (
            spark.readStream.format("jms").options(**(options | more)).load()
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )  # fmt: skip
        query.awaitTermination()
        return found

    return once


def test_a_stream_takes_a_queue_in_bounded_portions_and_replays_from_the_spool(
    activemq: Broker, queue_name: str, run: Run, tmp_path: Path, options: dict[str, str]
) -> None:
    bodies = [f"{number:03}" for number in range(250)]
    send(activemq, queue_name, *bodies)
    assert run(maxMessagesPerTrigger=100) == [bodies[:100], bodies[100:200], bodies[200:]]
    assert [each.state for each in batches(tmp_path / "wal")].count(
        State.DONE
    ) == 2  # the last one comes later

    # Killed before Spark noted the last micro-batch: the broker has nothing, the spool has it.
    for file in (tmp_path / "checkpoint" / "commits").glob("*2*"):
        file.unlink()
    # Killed between seal and manifest, and between seal and acknowledgement: the spool has it, not finished.
    activation = SpoolingReceiver(options).activation
    with SpoolBatch(tmp_path / "wal", "left", source=options["destination"], activation=activation) as batch:
        batch.seal([Row(JmsMessage.text("left", message_id="ID:left"), 1_700_000_000_000_000)])
    send(activemq, queue_name, "more")
    assert run() == [bodies[200:], ["left"], ["more"]]


def test_a_table_is_one_named_batch(
    spark: SparkSession, activemq: Broker, queue_name: str, options: dict[str, str]
) -> None:
    register_data_sources(spark)
    send(activemq, queue_name, "a", "b", "c")
    df = spark.read.format("jms").options(**options, batchId="first", slots="2").load()
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        df.explain(extended=True)
    assert activemq.password not in said.getvalue()
    assert [row.body for row in df.collect()] == [b"a", b"b", b"c"]
    assert df.count() == 3

    with pytest.raises(Exception, match="option 'batchId' is missing"):
        spark.read.format("jms").options(**options).load().count()


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"url": "stomp://user:word@host:1"}, "option 'url' holds a secret"),
        ({"username": "stomp://user:word@host:1"}, "option 'username' holds a secret"),
        ({"password": "word"}, "unknown option 'password'"),
        ({"destination": "topic://news"}, "expected subscriptionName"),
        ({"slots": "2", "subscriptionName": "s"}, "expected slots=1"),
        ({"maxMessagesPerTrigger": "0"}, "a whole number from 1 up"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_received(
    options: dict[str, str], given: dict[str, str], fault: str
) -> None:
    with pytest.raises(Exception, match=fault) as refused:
        SpoolingReceiver(options | given)
    assert "word@" not in str(refused.value)


def test_slots_and_bytes(activemq: Broker, queue_name: str, options: dict[str, str]) -> None:
    send(activemq, queue_name, *("x" * 1000 for _ in range(100)))
    bounded = SpoolingReceiver(options | {"maxBytesPerTrigger": "20000"})
    bounded.make_spool()
    assert bounded.receive(1_000) == 20
    slots = SpoolingReceiver(options | {"slots": "4"})
    assert slots.receive(60) == 60
    reader = JmsStreamReader(slots)
    start = {"sequence": reader.initialOffset()["sequence"], "position": 0}
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert sum(part.segment.rows for part in reader.partitions(start, end)) == 80  # type: ignore[attr-defined]
    reader.commit(end)
    assert reader.initialOffset() == end


def test_a_stream_is_registered_suspended_and_ended_by_a_stop(
    options: dict[str, str], queue_name: str, activemq: Broker, tmp_path: Path
) -> None:
    """Without Spark: its calls are made here."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    (tmp_path / "store-url").write_text(url)
    given = options | {"storeUrlFile": str(tmp_path / "store-url"), "maxReceiveSeconds": "2"}
    reader = JmsStreamReader(SpoolingReceiver(given))
    limit = reader.getDefaultReadLimit()
    with contextlib.closing(open_store(url)) as store:
        send(activemq, queue_name, "a")
        offset = reader.latestOffset(reader.initialOffset(), limit)
        (activation,) = list_activations(store)
        (found,) = activation.runs
        assert (found.report.kind, found.report.destination) == (
            ActivationKind.STREAM, f"queue://{queue_name}",
        )  # fmt: skip

        def request(wanted: WantedState, status: RunStatus) -> None:
            request_activation_state(store, [activation.name], wanted, reason="full", user="ada")
            deadline = time.monotonic() + 20
            while list_activations(store)[0].runs[0].report.status is not status:
                assert time.monotonic() < deadline
                time.sleep(0.05)

        request(WantedState.SUSPENDED, RunStatus.SUSPENDED)
        send(activemq, queue_name, "b")
        assert reader.latestOffset(offset, limit) == offset, "nothing is received"
        resume_activations(store, [activation.name])
        before, deadline = offset, time.monotonic() + 20
        while (offset := reader.latestOffset(before, limit)) == before:
            assert time.monotonic() < deadline
        request(WantedState.STOPPED, RunStatus.STOPPING)
        with pytest.raises(DeliveryStoppedError, match="stopped since"):
            reader.latestOffset(offset, limit)
        reader.stop()
