"""`jms`: messages of a broker, as a table or as a stream, through a write-ahead spool.

The Spark driver receives messages while Spark requests the end offset of the next micro-batch. Received
messages are sealed in the spool first and acknowledged afterwards. So a planned offset refers to files, which
Spark can read any number of times.

| crash | effect |
|---|---|
| before a segment is sealed | the broker redelivers the messages |
| between seal and acknowledgement | the broker redelivers the messages; they are dropped as duplicates |
| after the acknowledgement, before Spark records the offset | the next start finishes and plans the batch |
| after Spark has recorded the offset | Spark reads the same segments again |
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.selector import Selector
from airflow_provider_jmsjca.engine.activations.registry import (
    Identity,
    Registrar,
    Registration,
    register_collector,
)
from airflow_provider_jmsjca.engine.collecting.batch_spec import BatchSpec
from airflow_provider_jmsjca.engine.collecting.batcher import CollectionControl, collect
from airflow_provider_jmsjca.engine.connecting.connector import open_connection
from airflow_provider_jmsjca.engine.delivering.settings import activation_name
from airflow_provider_jmsjca.engine.watching.depths import probed_queues
from airflow_provider_jmsjca.errors import (
    BatchInUseError,
    ConfigurationError,
    DeliveryStoppedError,
    JmsError,
    SpoolError,
    TransientBrokerError,
)
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.spark.data_sources.broker_options import (
    BROKER_OPTIONS,
    BrokerOptions,
    secret_from,
)
from airflow_provider_jmsjca.spark.data_sources.from_spool import SpoolStreamReader
from airflow_provider_jmsjca.spark.data_sources.given_options import GivenOptions
from airflow_provider_jmsjca.spark.data_sources.segments import check_schema, partitions_of, read_partition
from airflow_provider_jmsjca.spark.data_sources.to_broker import JmsStreamWriter, JmsWriter, Sender
from airflow_provider_jmsjca.spool.attempts import DONE, Done
from airflow_provider_jmsjca.spool.batch_id import check_batch_id
from airflow_provider_jmsjca.spool.files import exists, make_folder
from airflow_provider_jmsjca.spool.manifest import Manifest, uri_to_path
from airflow_provider_jmsjca.spool.schema import MESSAGE_DDL
from airflow_provider_jmsjca.spool.spool import SpoolBatch, unfinished_batches
from airflow_provider_jmsjca.spool.upkeep.states import adopt, prune
from airflow_provider_jmsjca.store.base import ActivationKind, Store
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import ConnectionSettings, Subscription

NAME = "jms"
OPTIONS = (
    *BROKER_OPTIONS, "path", "destination", "selector",
    "subscriptionName", "batchId", "maxMessagesPerTrigger", "maxBytesPerTrigger", "maxReceiveSeconds",
    "idleSeconds", "receiveAhead", "slots", "retentionHours", "onPruned", "storeUrlFile", "storeUrlEnv",
)  # fmt: skip
_log = safe_logger(__name__)
_PRUNE_SECONDS = 600.0
_BACKLOG_SECONDS = 10.0


class JmsDataSource(DataSource):
    """The format `jms`. Its options are listed in `OPTIONS`, and described on the reference page."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return NAME

    def schema(self) -> str:
        """Return the columns of the message schema."""
        return MESSAGE_DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader that collects one batch, and can read it repeatedly."""
        check_schema(NAME, schema)
        return JmsReader(SpoolingReceiver(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return a reader for a stream, which receives messages while the query runs."""
        check_schema(NAME, schema)
        return JmsStreamReader(SpoolingReceiver(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer that sends the rows of a DataFrame.

        Raises:
            ConfigurationError: The mode is `overwrite`.
        """
        if overwrite:
            raise ConfigurationError(f"{NAME}: mode overwrite: a queue can't be replaced; expected append")
        return JmsWriter(Sender(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, N802 - Spark's
        """Return a writer that sends the rows of each micro-batch."""
        return JmsStreamWriter(Sender(self.options, schema))


class SpoolingReceiver:
    """Receives messages into the write-ahead spool. The password is read at each connect, and is not kept.

    Args:
        given: The options.

    Raises:
        ConfigurationError: An option is wrong or contains a secret.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        options = GivenOptions(NAME, given, OPTIONS)
        self.spool = uri_to_path(options.required("path", "/data/jms-wal"))
        self._broker = BrokerOptions(NAME, options)
        self.destination = Destination.parse(options.required("destination", "queue://orders"))
        self._selector, self._durable = options.text("selector"), options.text("subscriptionName")
        if self.destination.kind is DestinationKind.TOPIC and self._durable is None:
            raise ConfigurationError(
                f"{NAME}: {self.destination} is a topic: between two micro-batches its messages would "
                "be lost; expected subscriptionName"
            )
        if self._selector is not None:
            Selector.parse(self._selector)
        self.batch_id = options.text("batchId")
        self.max_messages = options.count("maxMessagesPerTrigger") or 50_000
        self._bytes = options.count("maxBytesPerTrigger")
        self._longest = timedelta(seconds=options.count("maxReceiveSeconds") or 10)
        self._idle = timedelta(seconds=options.count("idleSeconds") or 1)
        self.is_ahead = options.choice("receiveAhead", ("false", "true")) == "true"
        self._slots = options.count("slots") or 1
        if self._slots > 1 and self._durable is not None:
            raise ConfigurationError(f"{NAME}: a durable subscription has one consumer; expected slots=1")
        self.retention = timedelta(hours=options.count("retentionHours") or 24)
        self.skip = options.choice("onPruned", ("fail", "skip")) == "skip"
        self._store_file, self._store_env = options.text("storeUrlFile"), options.text("storeUrlEnv")
        self.stop, self.control = threading.Event(), CollectionControl()
        self._given = dict(given)

    def __reduce__(self) -> tuple[Any, ...]:
        return SpoolingReceiver, (self._given,)  # executors get the options

    @property
    def activation(self) -> str:
        """Name of the activation. Its batches share the ids of the messages that they have stored."""
        return f"{self._broker.url.partition('?')[0]} {self.destination} {self._durable or ''}".rstrip()

    def register(self) -> Registration | None:
        """Register the stream in the store that the options name; return `None` if they name no store.

        Raises:
            ConfigurationError: The URL of the store isn't at the configured place.
        """
        url = secret_from(NAME, "storeUrl", file=self._store_file, variable=self._store_env)
        if url is None:
            return None
        broker = self._broker.url.partition("?")[0]
        identity = Identity(
            activation=activation_name(str(self.destination), broker, self._durable, self._durable),
            kind=ActivationKind.STREAM,
            owner=f"Spark, spool {self.spool}",
            destination=str(self.destination),
            broker=broker,
            probed=probed_queues(self.settings(), [self.destination]),
        )
        return register_collector(
            Registrar(functools.partial(_opened_store, url)), identity, self.control, self.stop.set
        )

    def settings(self) -> ConnectionSettings:
        """Return the connection settings, with the password."""
        return self._broker.settings(client_id=self._durable)

    def backlog(self) -> int | None:
        """Return the number of messages on the queue; `None` if the broker doesn't report it."""
        if self.destination.kind is DestinationKind.TOPIC:
            return None
        connection = connect(self.settings())
        try:
            if not connection.capabilities.backlog:
                return None
            found = connection.backlog(self.destination)
            return found.waiting + found.taken
        finally:
            connection.close()

    def receive(self, max_messages: int) -> int:
        """Receive up to `max_messages` messages into batches of the spool, and return their number.

        Raises:
            JmsError: The broker or the spool failed, see `engine.collecting.batcher.collect`.
        """
        self.finish_left()
        slots = min(self._slots, max_messages)
        shares = [max_messages // slots + (slot < max_messages % slots) for slot in range(slots)]
        with ThreadPoolExecutor(max_workers=slots, thread_name_prefix="jms-slot") as threads:
            return sum(threads.map(self._receive_share, shares))

    def _receive_share(self, max_messages: int) -> int:
        name = f"stream-{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex}"
        with self._open(name) as batch:
            result = collect(
                self._connect(), batch, self._spec(max_messages), stop=self.stop, control=self.control
            )
        if result.rows == 0:
            batch.discard()
        return result.rows

    def one_batch(self, batch_id: str) -> Manifest:
        """Return the batch of this name; receive it first, unless it is finished already."""
        with self._open(batch_id) as batch:
            collect(self._connect(), batch, self._spec(self.max_messages), stop=self.stop)
            return batch.complete()

    def _open(self, batch_id: str) -> SpoolBatch:
        return SpoolBatch(self.spool, batch_id, source=str(self.destination), activation=self.activation)

    def _connect(self) -> Any:
        return functools.partial(open_connection, self.settings())

    def _spec(self, max_messages: int) -> BatchSpec:
        return BatchSpec(
            subscription=Subscription(
                destination=self.destination, selector=self._selector, durable_name=self._durable
            ),
            max_messages=max_messages,
            max_bytes=None if self._bytes is None else max(1, self._bytes // self._slots),
            max_time=self._longest,
            idle_time=self._idle,
        )

    def finish_left(self) -> None:
        """Finish the batches that a killed Spark driver left unfinished, so that the stream reads them.

        Their messages are acknowledged already, so the broker doesn't deliver them again.
        """
        for left in unfinished_batches(self.spool, "", self.activation):
            try:
                adopt(self.spool, left.batch_id)
            except BatchInUseError:
                _log.info("Batch %s is still being written; it is read once that has ended", left.batch_id)

    def make_spool(self) -> None:
        """Create the spool's folder, if it is missing."""
        try:
            make_folder(self.spool)
        except OSError as error:
            raise SpoolError(f"{self.spool}: {error.strerror or error}") from error


@contextlib.contextmanager
def _opened_store(url: str) -> Iterator[Store]:
    from airflow_provider_jmsjca.store.sql.store import open_store  # noqa: PLC0415 - needs SQLAlchemy

    with contextlib.closing(open_store(url)) as store:
        yield store


class JmsReader(DataSourceReader):
    """Reads one batch, named by the option `batchId`, so that each read by Spark has the same messages."""

    def __init__(self, receiver: SpoolingReceiver) -> None:
        self._receiver = receiver

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition for each segment.

        Raises:
            ConfigurationError: The option `batchId` is missing or invalid.
            JmsError: The broker or the spool failed, see `engine.collecting.batcher.collect`.
        """
        name = self._receiver.batch_id
        if name is None:
            raise ConfigurationError(
                f"{NAME}: option 'batchId' is missing: Spark may read twice, and a queue gives its messages "
                "once; expected a name for the batch, such as orders-2026-05-01"
            )
        return partitions_of([self._receiver.one_batch(check_batch_id(name))])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a segment."""
        return read_partition(partition)


class JmsStreamReader(SpoolStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream; receives messages whenever Spark has planned all batches of the spool."""

    def __init__(self, receiver: SpoolingReceiver) -> None:
        super().__init__(receiver.spool, None, skip=receiver.skip)
        self._receiver = receiver
        self._is_bounded = False
        self._left: int | None = None
        self._committed = 0
        self._pruned = time.monotonic()
        self._ahead: Future[None] | None = None
        self._planned = 0
        self._backlog: int | None = None
        self._counted: float | None = None
        self._registration: Registration | None = None
        self._is_registered = False

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of a micro-batch."""
        return ReadMaxRows(self._receiver.max_messages)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the position of the first batch that no query has committed, and that wasn't pruned."""
        self._receiver.make_spool()
        length = self._sequence.refresh()
        for position, each in enumerate(self._sequence[0:length]):
            if each.manifest(self._spool) is not None and not exists(self._spool / each.batch_id / DONE):
                return self._offset(position)
        return self._offset(length)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Limit the query to as many messages as the queue holds now.

        If the broker doesn't report this number, the query ends when no message arrives any more.
        """
        self._receiver.make_spool()
        self._is_bounded = True
        self._left = self._receiver.backlog()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the end offset of the next micro-batch, and receive messages for it if necessary.

        Messages are received unless the spool has batches that Spark hasn't planned. While a user has the
        stream suspended in the store, nothing is received. With `receiveAhead` a thread receives the next
        micro-batch while Spark processes this one. If the Spark driver dies before Spark plans the next
        micro-batch, the received messages are in the spool, and the next start plans them.

        Raises:
            DeliveryStoppedError: A user has drained or stopped the stream, and Spark has planned all
                batches of the spool.
            JmsError: The broker refuses a request. An unreachable broker is an error only if the query is
                bounded (`availableNow`); otherwise it is logged.
        """
        first = self._position(start)
        max_messages = limit.max_rows if isinstance(limit, ReadMaxRows) else self._receiver.max_messages
        self._end_ahead()
        self._receiver.finish_left()
        if self._sequence.refresh() <= first and self._may_receive():
            self._receive(max_messages)
        end, rows = first, 0
        for each in self._sequence[first : self._sequence.refresh()]:
            rows += each.rows
            if rows > max_messages and end > first:
                break
            end += 1
        self._planned = end
        self._count_backlog()
        if self._receiver.is_ahead and first < end == len(self._sequence):
            threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="jms-ahead")
            self._ahead = threads.submit(self._receive_ahead, max_messages)
            threads.shutdown(wait=False)
        return self._offset(end)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the end of the spool, with message counts that Spark reports as progress.

        `backlog` is the number of messages on the queue, counted at most every 10 seconds. It is `None` if
        the broker doesn't report it. `unplanned` is the number of received messages that are in no
        micro-batch yet.
        """
        length = self._sequence.refresh()
        unplanned = sum(each.rows for each in self._sequence[self._planned : length])
        return {**self._offset(length), "backlog": self._backlog, "unplanned": unplanned}

    def _count_backlog(self) -> None:
        now = time.monotonic()
        if self._counted is not None and now - self._counted < _BACKLOG_SECONDS:
            return
        self._counted, self._backlog = now, None
        try:
            self._backlog = self._receiver.backlog()
        except JmsError as error:
            _log.warning("%s: its backlog can't be counted: %s", self._receiver.destination, error)

    def _receive_ahead(self, max_messages: int) -> None:
        # The next call of `latestOffset` raises this error, unless the spool has further batches.
        with contextlib.suppress(DeliveryStoppedError):
            if self._may_receive():
                self._receive(max_messages)

    def _end_ahead(self) -> None:
        """Wait until the thread that receives ahead has ended; raise its error."""
        if self._ahead is not None:
            ahead, self._ahead = self._ahead, None
            ahead.result()

    def _may_receive(self) -> bool:
        if not self._is_registered:
            self._registration, self._is_registered = self._receiver.register(), True
        if self._registration is not None:
            self._registration.admit()
        return not self._receiver.control.suspended.is_set()

    def _receive(self, max_messages: int) -> None:
        if self._left is not None:
            max_messages = min(max_messages, self._left)
        if max_messages <= 0:
            return
        try:
            received = self._receiver.receive(max_messages)
        except TransientBrokerError as error:
            if self._is_bounded:
                raise
            self._counted, self._backlog = time.monotonic(), None
            _log.warning(
                "%s: can't receive now; retrying with the next micro-batch: %s",
                self._receiver.destination,
                error,
            )
            return
        if self._left is not None:
            self._left = self._left - received if received else 0

    def commit(self, end: dict[str, Any]) -> None:
        """Record the batches that Spark has processed, and prune batches older than `retentionHours`.

        Batches within the deduplication window are kept, because duplicates are recognised by them.
        """
        last = self._position(end)
        for each in self._sequence[self._committed : last]:
            folder = self._spool / each.batch_id
            if each.manifest(self._spool) is not None and not exists(folder / DONE):
                Done(
                    batch_id=each.batch_id, fence=0, rows=each.rows, stored={}, rejected=0, rejects=(),
                    finished=datetime.now(UTC).isoformat(timespec="milliseconds"),
                ).create(folder)  # fmt: skip
        self._committed = max(self._committed, last)
        if time.monotonic() - self._pruned >= _PRUNE_SECONDS:
            prune(self._spool, older_than=self._receiver.retention, forget=2 * self._receiver.retention)
            self._pruned = time.monotonic()

    def stop(self) -> None:
        """End a receive in progress; the broker redelivers messages that aren't sealed."""
        self._receiver.stop.set()
        if self._ahead is not None:
            wait([self._ahead])
        if self._registration is not None:
            self._registration.end()
