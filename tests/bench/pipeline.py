"""The way from a broker into a table: collecting, alone and in parallel, and what Spark makes of it."""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from subprocess import PIPE, Popen
from typing import TYPE_CHECKING, Final

from airflow_provider_jmsjca import register_data_sources
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.prefetch import for_batch
from airflow_provider_jmsjca.spark.job import Batch
from airflow_provider_jmsjca.spool.attempts import Done, take_fence
from airflow_provider_jmsjca.spool.rows import Row
from airflow_provider_jmsjca.spool.spool import SpoolBatch
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import ConnectionSettings, Outgoing, Received, Subscription
from tests.bench.collector import SEGMENT, seal
from tests.bench.filling import fill
from tests.bench.rates import PATIENCE
from tests.bench.rival import new_queue
from tests.chaos.sinks import ROOT, DeltaSink, submit
from tests.servers.broker import Broker
from tests.servers.folders import run_folder
from tests.servers.ports import HOST

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_MEBIBYTES: Final = 200.0
"""What a process that collects may take."""
LEAST_SEALED: Final = 20_000.0
"""Messages a second into sealed segments, or the share of a plain drain that counts as well."""
LEAST_SHARE: Final = 0.6
_COLLECTORS: Final = (1, 2, 4)
_SLOTS: Final = (1, 2, 4)
_PREFETCH: Final = 500
_HANDFUL: Final = 100
_BAD_EVERY: Final = 100
_FIELDS: Final = (
    "id BIGINT NOT NULL, carrier STRING NOT NULL, flight INT, origin STRING, dest STRING, "
    "delay DOUBLE, distance INT, cancelled BOOLEAN, departed TIMESTAMP, price DECIMAL(9,2)"
)


def on_broker(broker: Broker, messages: int) -> Iterator[str]:
    """Yield lines about collecting from a broker.

    Args:
        broker: It runs.
        messages: How many, each time.
    """
    settings = broker.settings()
    drained = _drain(settings, messages)
    yield f"  {drained:>9,.0f}/s  draining a queue: each message acknowledged, nothing else done"
    bound = _drain(settings, messages, unit=SEGMENT)
    yield f"  {bound:>9,.0f}/s  the same in transactions of {SEGMENT:,}, as a collector acknowledges"
    for count in _COLLECTORS:
        found = _collected(settings, messages, count)
        together = f"by {count} at once" if count > 1 else "by one"
        yield f"  {found.per_second:>9,.0f}/s  sealed {together}, {found.mebibytes:.0f} MiB each at most"
        if count == 1:
            alone = found
    yield verdict_on_sealed(alone.per_second, drained)
    is_small = alone.mebibytes <= MOST_MEBIBYTES
    yield (
        f"  {'met' if is_small else 'NOT MET':<12}  memory of a collector: {alone.mebibytes:.0f} MiB, "
        f"goal {MOST_MEBIBYTES:.0f}"
    )


def verdict_on_sealed(sealed: float, drained: float) -> str:
    """Return a line that says whether collecting is quick enough.

    Args:
        sealed: Messages a second into sealed segments.
        drained: Messages a second of a plain drain.
    """
    share = sealed / drained
    met = sealed >= LEAST_SEALED or share >= LEAST_SHARE
    shown = math.floor(share * 100) / 100
    return (
        f"  {'met' if met else 'NOT MET':<12}  sealed: {sealed:,.0f}/s, {shown:.2f} x a plain drain; "
        f"goal {LEAST_SEALED:,.0f}/s or {LEAST_SHARE:g} x"
    )


def _drain(settings: ConnectionSettings, messages: int, unit: int = 0) -> float:
    """Return how many messages a second are received and acknowledged, in units of work or one by one."""
    name = new_queue()
    fill(settings, name, messages)
    connection = connect(settings)
    frees = connection.capabilities.unit_frees_prefetch
    began = time.monotonic()
    done = 0
    while done < messages:
        wanted = min(unit or messages, messages - done)
        prefetch = for_batch(None, wanted, unit_frees_prefetch=frees) if unit else _PREFETCH
        subscription = Subscription(destination=Destination.queue(name), prefetch=prefetch)
        arrived: SimpleQueue[Received] = (
            SimpleQueue()
        )  # what the consumer before was given too many goes back
        consumer, work = connection.consume(subscription, arrived.put), connection.unit()
        handful: list[Received] = []
        for number in range(1, wanted + 1):
            received = arrived.get(timeout=PATIENCE)
            if unit:
                work.acknowledge(received)
                continue
            handful.append(received)
            if len(handful) == _HANDFUL or number == wanted:
                consumer.acknowledge(handful)
                handful = []
        if unit:
            work.commit()
        done += wanted
        consumer.close()
    connection.synchronize()
    seconds = time.monotonic() - began
    connection.close()
    return messages / seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class _Collected:
    """What processes did together.

    Attributes:
        per_second: Messages a second, from the first connection to the last manifest.
        mebibytes: The most memory that one of them took.
    """

    per_second: float
    mebibytes: float


def _collected(settings: ConnectionSettings, messages: int, processes: int) -> _Collected:
    queue = new_queue()
    fill(settings, queue, messages)
    with tempfile.TemporaryDirectory(dir=_folder()) as spool, ExitStack() as stack:
        asked = {
            "scheme": settings.scheme,
            "hosts": settings.hosts,
            "username": settings.username,
            "password": settings.password,
            "queue": queue,
            "messages": messages // processes,
            "spool": spool,
        }
        started = []
        for number in range(processes):
            line = [sys.executable, "-m", "tests.bench.collector"]
            process = stack.enter_context(Popen(line, cwd=ROOT, stdin=PIPE, stdout=PIPE, text=True))
            stack.callback(process.kill)  # harmless if it has ended
            started.append(process)
            # The password travels where no list of processes shows it.
            _tell(process, json.dumps(asked | {"name": f"b{number}"}))
        for process in started:
            assert _hear(process) == "ready\n"
        for process in started:
            _tell(process, "go")
        found = [json.loads(_hear(process)) for process in started]
    seconds = max(each["ended"] for each in found) - min(each["began"] for each in found)
    return _Collected(
        per_second=messages // processes * processes / seconds,
        mebibytes=max(each["mebibytes"] for each in found),
    )


def _tell(process: Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def _hear(process: Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def in_spark(broker: Broker, messages: int, streamed: int) -> Iterator[str]:
    """Yield lines about what Spark does with the messages.

    Args:
        broker: It runs.
        messages: How many go from sealed segments, and from the broker, into a table.
        streamed: How many go through a stream, for each number of slots.
    """
    with tempfile.TemporaryDirectory(dir=_folder()) as name:
        folder = Path(name)
        with _session() as spark:
            yield from _sealed_to_table(spark, folder, messages)
            yield from _streams(spark, broker, folder, streamed)
        yield _broker_to_delta(broker.settings(), folder, messages)


@contextmanager
def _session() -> Iterator[SparkSession]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pyspark's own
        from pyspark.sql import SparkSession  # noqa: PLC0415 - slow to import

        os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": HOST}
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "ERROR")
            .getOrCreate()
        )
        try:
            yield spark
        finally:
            spark.stop()


def _sealed_to_table(spark: SparkSession, folder: Path, messages: int) -> Iterator[str]:
    bodies = _bodies(messages)
    with SpoolBatch(folder / "spool", "sealed", source="queue://q", activation="q") as sealing:
        for first in range(0, messages, SEGMENT):
            count = min(SEGMENT, messages - first)
            sealing.seal([Row(JmsMessage.text(next(bodies)), 1_700_000_000_000_000) for _ in range(count)])
        manifest = sealing.complete()
    marks = [time.monotonic()]
    with Batch(manifest, take_fence(manifest.folder)) as batch:
        mapped = batch.json(batch.messages(spark), _FIELDS)
        mapped.rows.count()  # all of it is kept from here on
        marks.append(time.monotonic())
        rejected = batch.reject(mapped.rejects)
        marks.append(time.monotonic())
        stored = batch.write(mapped.rows, str(folder / "table"))
        marks.append(time.monotonic())
    assert (stored, rejected) == (messages - rejected, math.ceil(messages / _BAD_EVERY))
    total = marks[-1] - marks[0]
    mapping, rejects, write = ((after - before) / total for before, after in itertools.pairwise(marks))
    yield (
        f"  {messages / total:>9,.0f}/s  sealed to a table of 10 columns, {messages:,} messages in "
        f"{total:.1f} s: mapping {mapping:.0%}, {rejected:,} rejects {rejects:.0%}, write {write:.0%}"
    )


def _streams(spark: SparkSession, broker: Broker, folder: Path, messages: int) -> Iterator[str]:
    settings = broker.settings()
    register_data_sources(spark)
    _stream(spark, broker, folder / "warm-up", 1_000, 1)
    drained = _drain(settings, messages)
    for slots in _SLOTS:
        found = _stream(spark, broker, folder / f"slots-{slots}", messages, slots)
        yield (
            f"  {found:>9,.0f}/s  streamed with slots={slots}: {found / drained:.2f} x a plain drain "
            f"({drained:,.0f}/s)"
        )


def _stream(spark: SparkSession, broker: Broker, folder: Path, messages: int, slots: int) -> float:
    folder.mkdir()
    password = folder / "password"
    password.write_text(broker.password, encoding="utf-8")
    queue, counted = new_queue(), 0
    fill(broker.settings(), queue, messages)

    def store(df: object, _: int) -> None:
        nonlocal counted
        counted += df.count()  # type: ignore[attr-defined]

    options = {
        "path": str(folder / "wal"),
        "url": "stomp://{}:{}".format(*broker.address()),
        "username": broker.username,
        "passwordFile": str(password),
        "destination": f"queue://{queue}",
        "slots": str(slots),
    }
    began = time.monotonic()
    query = (
        spark.readStream.format("jms").options(**options).load()
        .writeStream.foreachBatch(store)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )  # fmt: skip
    query.awaitTermination()
    seconds = time.monotonic() - began
    assert counted == messages
    return messages / seconds


def _broker_to_delta(settings: ConnectionSettings, folder: Path, messages: int) -> str:
    queue = new_queue()
    connection = connect(settings)
    target = Destination.queue(queue)
    connection.send(Outgoing(destination=target, message=JmsMessage.text(body)) for body in _bodies(messages))
    connection.close()
    began = time.monotonic()
    manifest = seal(settings, queue, messages, folder / "spool", "delta")
    middle = time.monotonic()
    log, sink = folder / "log", DeltaSink(folder / "delta")
    code = submit(manifest, sink, log, master="local[2]", schema=_FIELDS).wait()
    assert code == 0, log.read_text(errors="replace")[-2_000:]
    ended = time.monotonic()
    done = Done.read(manifest.folder)
    assert done is not None
    assert done.stored[sink.table] + done.rejected == messages
    return (
        f"  {messages / (ended - began):>9,.0f}/s  broker to Delta, {messages:,} messages in "
        f"{ended - began:.1f} s: collected in {middle - began:.1f} s, spark-submit {ended - middle:.1f} s"
    )


def _bodies(messages: int) -> Iterator[str]:
    """Yield JSON objects of ten fields, of which every hundredth is cut off."""
    for number in range(messages):
        body = json.dumps(
            {
                "id": number,
                "carrier": "UA",
                "flight": number % 9_000,
                "origin": "EWR",
                "dest": "IAH",
                "delay": number % 400 / 4,
                "distance": 1_400,
                "cancelled": number % 50 == 0,
                "departed": "2013-01-01T05:15:00Z",
                "price": number % 1_000 + 0.25,
            }
        )
        yield body[:20] if number % _BAD_EVERY == 0 else body


def _folder() -> Path:
    run_folder().mkdir(parents=True, exist_ok=True)
    return run_folder()
