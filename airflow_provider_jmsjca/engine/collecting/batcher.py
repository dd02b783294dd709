"""The batch driver: collects messages of one destination into sealed segments of a batch.

Messages are received, appended, sealed on disk and acknowledged, always in this order. A second thread seals
a segment and commits its unit of work; messages that arrive meanwhile go into the next segment.

| source | lifetime of a consumer | reason |
|---|---|---|
| ActiveMQ Classic, Artemis | one segment | a long-lived consumer on ActiveMQ Classic gets slower and slower |
| RabbitMQ | until the prefetch has to change | no messages return to the broker between two segments |
| any broker: topic without durable subscription | the connection | it would lose messages between consumers |

ActiveMQ Classic gets slower because it searches all uncommitted deliveries of the consumer at every
acknowledgement. RabbitMQ doesn't need a new consumer, because one acknowledgement covers a whole segment.
Artemis limits the prefetch in bytes; the driver raises this limit once it is too small to fill a segment.

| event | effect on the messages |
|---|---|
| `kill -9` before a segment is sealed | its messages are redelivered |
| `kill -9` between seal and commit | its messages are redelivered, dropped as duplicates and acknowledged |
| the connection is lost | the open segment is dropped; its messages are redelivered over a new connection |
| another collector has sealed messages of the open segment | as above; these are dropped as duplicates |
| a stop is requested | the open segment is dropped and redelivered; the next attempt continues the batch |
| a message can't be decoded | it is stored as `undecodable` with its bytes and the reason |
| the disk is full | nothing more is acknowledged; the error goes to the caller |
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import replace
from typing import Protocol

from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.message.message import size_of
from airflow_provider_jmsjca.core.prefetch import for_batch
from airflow_provider_jmsjca.engine.collecting.batch_spec import BatchSpec, CollectResult, EndReason
from airflow_provider_jmsjca.engine.moving import target_of
from airflow_provider_jmsjca.errors import (
    ConnectionLostError,
    InDoubtError,
    JmsError,
    PoisonMessageError,
    TransientBrokerError,
)
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.spool.duplicates import DroppedMessage, DuplicateFilter
from airflow_provider_jmsjca.spool.known_ids import message_key
from airflow_provider_jmsjca.spool.rows import Row
from airflow_provider_jmsjca.spool.spool import SealedElsewhereError, SpoolBatch
from airflow_provider_jmsjca.transports.base import Connection, Received, Subscription, UnitOfWork
from airflow_provider_jmsjca.transports.receiving import BufferedConsumer

_log = safe_logger(__name__)
# Maximum wait in seconds between two checks for a stop request and the deadlines.
_TICK_SECONDS = 0.1
# Maximum number of messages taken at a time, so that stop requests are checked often enough.
HANDFUL = 256
# Seconds that a stopped collection waits for a broker that doesn't answer.
_STOP_GRACE_SECONDS = 0.3
_FRUITLESS_SECONDS = 1.0
# Size of messages in memory (bodies and properties) that is written as a row group of the segment file.
# Writing needs several times as much memory, because messages, columns and encoded pages exist at once.
_GROUP_BYTES = 2 * 1024 * 1024
# Artemis counts about this many bytes against the prefetch for each collected byte: two for each character of
# text, and the headers.
_COUNTED = 3
# First limit of the bytes that Artemis may send ahead; raised if it is too low to fill a segment.
_BYTES_AHEAD = 8 * 1024 * 1024


class CollectionControl:
    """Lets another thread watch and steer a collection, or all collections of one activation together.

    Attributes:
        suspended: Set it to receive nothing until it is cleared. The open segment is sealed, and other
            messages return to the broker. `max_time` keeps running, `idle_time` does not.
        drained: Set it to end the batch with the messages received so far.
        connected: Whether the collection has a connection.
        received: Deliveries by the broker.
        stored: Messages sealed.
        in_flight: Messages received and not sealed.
        last_failure: The last failure of the connection; empty if there was none.
        outages: Connections that were lost.
    """

    def __init__(self) -> None:
        self.suspended, self.drained = threading.Event(), threading.Event()
        self.connected = False
        self.received = self.stored = self.in_flight = self.outages = 0
        self.last_failure = ""
        self._lock = threading.Lock()

    def count(self, *, received: int, stored: int, in_flight: int) -> None:
        """Add to the counts, and set the number of messages in flight."""
        with self._lock:
            self.received += received
            self.stored += stored
            self.in_flight = in_flight


class ConnectUnlessStopped(Protocol):
    """Opens a connection with backoff, as `functools.partial(open_connection, settings)` does."""

    def __call__(self, *, stop: threading.Event, on_failure: Callable[[JmsError], None]) -> Connection | None:
        """Return a connection, or `None` once `stop` is set; call `on_failure` after each failed attempt."""


def collect(
    connect: ConnectUnlessStopped,
    batch: SpoolBatch,
    spec: BatchSpec,
    *,
    stop: threading.Event,
    control: CollectionControl | None = None,
) -> CollectResult:
    """Fill a batch and finish it.

    Guarantee: no message is acknowledged before it is in a sealed segment, so no crash loses messages. A
    redelivered message is stored once if it arrives within `spool.known_ids.DeduplicationWindow`, and
    `spool.duplicates.DuplicateFilter` can distinguish it from a new message with equal content.

    Args:
        connect: Opens a connection, with backoff.
        batch: Opened and, afterwards, closed by the caller.
        spec: Settings of the batch.
        stop: Set it to end the collection within half a second; unsealed messages return to the broker.
        control: Lets another thread suspend or drain the collection; `None`: no control.

    Returns:
        Why the collection ended, its counts, and the manifest's URI.

    Raises:
        TransientBrokerError: There was no connection within `max_time`.
        PermanentBrokerError: The broker refuses the subscription, or an acknowledgement.
        CapabilityError: The subscription needs a missing capability.
        ConfigurationError: A moved message would return to the source.
        SpoolError: A segment or the manifest can't be written.
    """
    if batch.manifest is not None:
        return CollectResult(
            reason=EndReason.COMPLETE,
            manifest=batch.manifest.uri,
            rows=batch.rows,
            segments=len(batch.segments),
        )
    return _Collection(batch, spec, stop, control or CollectionControl()).run(connect)


class _Collection:
    """One attempt at one batch."""

    def __init__(
        self, batch: SpoolBatch, spec: BatchSpec, stop: threading.Event, control: CollectionControl
    ) -> None:
        self._control = control
        self._was_suspended = False
        self._reported = 0, 0
        self._batch = batch
        self._spec = spec
        self._stop = stop
        self._began = time.monotonic()
        deadline = None if spec.max_time is None else self._began + spec.max_time.total_seconds()
        self._stop_or_deadline = StopOrDeadline(stop, deadline)
        self._last_arrival = self._began
        self._sealer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="jms-seal")
        self._sealing: Future[None] | None = None
        self._connect_failure: JmsError | None = None
        self._rows: list[Row] = []
        # Keys of messages in the current segment that another collector may receive too.
        self._keys: list[str] = []
        self._repetitions = DuplicateFilter(batch, stable=False)
        self._dropped: list[DroppedMessage] = []
        self._unit: UnitOfWork | None = None
        self._bytes = self._in_unit = self._bytes_sealed = 0
        self._max_bytes = math.inf if spec.max_bytes is None else spec.max_bytes
        # Maximum and current prefetch in bytes, for brokers that count bytes.
        self._max_prefetch_bytes = _COUNTED * spec.segment_bytes
        self._prefetch_bytes = min(_BYTES_AHEAD, self._max_prefetch_bytes)
        # For the current segment: number of rows passed to `SpoolBatch.add`, and size of the rows in memory.
        self._added = self._bytes_in_memory = 0
        # Rows sealed or passed to the sealer. `SpoolBatch.rows` counts them only once they are sealed.
        self._rows_passed = batch.rows
        self._rows_before = batch.rows
        # Destination of the previous message and its text, because the next message usually has the same.
        self._last_destination: Destination | None = None
        self._last_destination_name: str | None = None
        self._received = self._duplicates = self._undecodable = self._left = self._connections = 0
        # Whether messages are settled in order of arrival; `False` once a message has to stay at the broker.
        self._in_order = True

    # --- Connections -----------------------------------------------------------------------------------

    def run(self, connect: ConnectUnlessStopped) -> CollectResult:
        try:
            while (reason := self._end()) is None:
                if self._is_suspended():
                    self._stop_or_deadline.wait(_TICK_SECONDS)
                    continue
                connection = connect(stop=self._stop_or_deadline, on_failure=self._failed_to_connect)
                if connection is None:
                    continue
                self._connections += 1
                self._collect_over(connection)
        finally:
            self._sealer.shutdown(wait=not self._stop.is_set(), cancel_futures=True)
        if reason is EndReason.TIME and self._connections == 0 and not self._was_suspended:
            raise TransientBrokerError(
                f"no connection within the batch's {self._spec.max_time} for {self._batch.source}: "
                f"{self._connect_failure or 'the first attempt has not ended'}; batch {self._batch.batch_id} "
                "continues with the next attempt"
            ) from self._connect_failure
        self._report_progress()
        manifest = None if reason is EndReason.STOPPED else self._batch.complete().uri
        return CollectResult(
            reason=reason,
            manifest=manifest,
            rows=self._batch.rows,
            segments=len(self._batch.segments),
            received=self._received,
            stored=self._batch.rows - self._rows_before,
            duplicates=self._duplicates,
            undecodable=self._undecodable,
            left=self._left,
            reconnects=max(0, self._connections - 1),
            seconds=time.monotonic() - self._began,
        )

    def _is_suspended(self) -> bool:
        if not self._control.suspended.is_set():
            return False
        self._was_suspended = True
        self._last_arrival = time.monotonic()  # the time without a consumer is not idle time
        return True

    def _failed_to_connect(self, failure: JmsError) -> None:
        self._connect_failure = failure
        self._control.last_failure = str(failure)

    def _collect_over(self, connection: Connection) -> None:
        received_before = self._received
        lost = False
        self._control.connected = True
        try:
            for target in self._spec.moves_to:
                target_of(connection.broker, target, self._spec.subscription.destination)
            self._receive(connection)
            self._finish_sealing()
        except (ConnectionLostError, InDoubtError, SealedElsewhereError) as loss:
            # Wait for the sealer, so that redelivered messages are compared with all sealed ones.
            self._await_sealer()
            self._raise_failure_of_sealer(except_loss=True)
            _log.warning("Collecting %s: %s; reconnecting", self._batch.source, loss)
            self._control.last_failure = str(loss)
            self._control.outages += not isinstance(loss, SealedElsewhereError)
            lost = True
        finally:
            self._control.connected = False
            self._drop_rows()
            self._close(connection)
        if lost and self._received == received_before:
            # Wait, in case the broker accepts connections and drops them at once.
            self._stop_or_deadline.wait(_FRUITLESS_SECONDS)
        if lost:
            self._last_arrival = time.monotonic()  # an outage is not idle time

    def _close(self, connection: Connection) -> None:
        """Close the connection; after a stop request, don't wait for a broker that doesn't answer."""
        closing = threading.Thread(target=connection.close, name="jms-close", daemon=True)
        closing.start()
        while closing.is_alive():
            stopping = self._stop.is_set()
            closing.join(_STOP_GRACE_SECONDS if stopping else _TICK_SECONDS)
            if stopping:
                return

    # --- Receiving -------------------------------------------------------------------------------------

    def _receive(self, connection: Connection) -> None:
        self._repetitions.note_connection(stable=connection.capabilities.stable_message_id)
        arrivals = BufferedConsumer(connection, self._subscription(connection))
        self._left = 0
        self._last_arrival = time.monotonic()
        while self._end() is None and not self._is_suspended():
            self._report_progress()
            arrived = arrivals.take(HANDFUL, within=_TICK_SECONDS)
            if not arrived:
                self._wait_on(arrivals, connection)
                continue
            for received in arrived:
                if self._unit is None:
                    self._unit = received.unit()
                taken = self._add_message(received, self._unit)
                if (not taken and self._is_blocked(arrivals)) or self._is_full():
                    self._seal()
                    # The wait for the sealer is not idle time.
                    self._last_arrival = time.monotonic()
                    if self._end() is not None or self._renew(arrivals, connection):
                        break
                elif self._bytes_in_memory >= _GROUP_BYTES:
                    self._write_to_disk()
            self._last_arrival = time.monotonic()
        if self._end() is not EndReason.STOPPED:
            self._seal()

    def _report_progress(self) -> None:
        """Add the progress since the last call to the counts of `CollectionControl`."""
        stored = self._batch.rows - self._rows_before
        received_before, stored_before = self._reported
        self._reported = self._received, stored
        self._control.count(
            received=self._received - received_before,
            stored=stored - stored_before,
            in_flight=self._in_unit,
        )

    def _wait_on(self, arrivals: BufferedConsumer, connection: Connection) -> None:
        """Seal a partial segment if no message has arrived for `flush_time`; called while none arrives.

        The segment is also sealed if the broker has used up the prefetch in bytes. The consumer is then
        replaced by one with a larger prefetch.
        """
        is_due = self._in_unit and self._idle_seconds() >= self._spec.flush_time.total_seconds()
        if is_due or self._raise_prefetch_bytes(arrivals):
            began = time.monotonic()
            self._seal()
            self._renew(arrivals, connection)
            # Sealing is not idle time, because nothing was received during it.
            self._last_arrival += time.monotonic() - began
        if self._sealing is not None and not self._sealing.done():
            # Not idle time: the broker can't send while the whole prefetch waits for the commit.
            self._last_arrival = time.monotonic()
        self._raise_failure_of_sealer()

    def _renew(self, arrivals: BufferedConsumer, connection: Connection) -> bool:
        """Replace the consumer if necessary, unless that would lose messages.

        Returns:
            `True` if the caller must not use the messages already taken from the current consumer: it was
            replaced or, after a stop request, would have to be replaced.
        """
        if self._is_plain_topic:
            return False
        renewed = self._subscription(connection)
        if arrivals.settles_in_order and renewed == arrivals.subscription:
            return False
        self._finish_sealing()
        if not self._stop.is_set():
            arrivals.renew(renewed)
            self._left = 0
        return True

    def _subscription(self, connection: Connection) -> Subscription:
        requested, maximum = self._spec.subscription, self._spec.max_messages
        wanted = self._spec.segment_messages
        if maximum is not None:
            wanted = min(wanted, maximum - self._rows_passed)
        frees = connection.capabilities.unit_frees_prefetch
        prefetch = for_batch(requested.prefetch, wanted, unit_frees_prefetch=frees)
        if frees:
            return replace(requested, prefetch=prefetch)
        return replace(
            requested,
            prefetch=prefetch,
            prefetch_bytes=self._max_prefetch_bytes if self._is_plain_topic else self._prefetch_bytes,
            in_order=self._in_order and not self._is_plain_topic,
            alone=True,
        )

    def _raise_prefetch_bytes(self, arrivals: BufferedConsumer) -> bool:
        """Raise the prefetch in bytes if the broker has probably used it up; return whether it was raised.

        The caller then ends the segment, because only the next consumer gets the larger prefetch. The new
        value suffices for a segment of messages of the current size.
        """
        counted = _COUNTED * self._bytes
        requested = arrivals.subscription.prefetch_bytes
        if arrivals.settles_in_order or not requested or not requested <= counted < self._max_prefetch_bytes:
            return False
        worth = counted * self._spec.segment_messages // self._in_unit
        self._prefetch_bytes = min(self._max_prefetch_bytes, worth)
        return True

    @property
    def _is_plain_topic(self) -> bool:
        requested = self._spec.subscription
        return requested.destination.kind is DestinationKind.TOPIC and requested.durable_name is None

    def _add_message(self, received: Received, unit: UnitOfWork) -> bool:
        """Add a message to the current segment; return whether it is settled with the segment."""
        self._received += 1
        undecodable = None
        try:
            message = received.message
        except PoisonMessageError as fault:
            salvaged = received.salvaged
            if salvaged is None:
                # The message has no readable bytes to store, so an acknowledgement would lose it. Unsettled,
                # it stays at the broker, which redelivers it to the next consumer.
                self._left += 1
                _log.warning(
                    "A message on %s can't be read; it stays at the broker, unacknowledged: %s",
                    self._batch.source,
                    fault,
                )
                return False
            message, undecodable = salvaged, str(fault)
            self._undecodable += 1
        row = Row(message, time.time_ns() // 1000, undecodable)
        key = self._key(message) if self._repetitions.is_candidate(message) else None
        dropped = None if key is None else self._repetitions.check_duplicate(key, row)
        if dropped is not None:
            self._duplicates += 1
            self._dropped.append(dropped)
        else:
            if key is not None:
                self._keys.append(key)
            size = size_of(message)
            self._bytes += size
            self._bytes_in_memory += size
            self._rows.append(row)
        unit.acknowledge(received)
        received.forget_message()  # saves memory: the unit keeps the delivery until its commit
        self._in_unit += 1
        return True

    def _key(self, message: JmsMessage) -> str | None:
        if message.message_id is None:
            return None
        place = message.destination
        if place is not self._last_destination:
            self._last_destination, self._last_destination_name = place, None if place is None else str(place)
        return message_key(message.message_id, self._last_destination_name)

    def _is_blocked(self, arrivals: BufferedConsumer) -> bool:
        """Return whether an unsettled message blocks later ones; if so, change to single acknowledgements."""
        if not arrivals.settles_in_order:
            return False
        self._in_order = False
        return True

    def _is_full(self) -> bool:
        spec, size = self._spec, self._bytes
        if (
            self._in_unit >= spec.segment_messages
            or size >= spec.segment_bytes
            or self._bytes_sealed + size >= self._max_bytes
        ):
            return True
        maximum = spec.max_messages
        return maximum is not None and self._rows_passed + self._added + len(self._rows) >= maximum

    def _end(self) -> EndReason | None:
        if self._stop.is_set():
            return EndReason.STOPPED
        if self._control.drained.is_set():
            return EndReason.DRAINED
        maximum = self._spec.max_messages
        if maximum is not None and self._rows_passed >= maximum:
            return EndReason.COUNT
        if self._bytes_sealed >= self._max_bytes:
            return EndReason.BYTES
        if self._stop_or_deadline.expired():
            return EndReason.TIME
        idle = self._spec.idle_time
        if idle is not None and self._connections and self._idle_seconds() >= idle.total_seconds():
            return EndReason.IDLE
        return None

    def _idle_seconds(self) -> float:
        return time.monotonic() - self._last_arrival

    # --- Sealing ---------------------------------------------------------------------------------------

    def _seal(self) -> None:
        """Pass the rows to the sealer, a thread that seals them and commits their unit of work.

        The call first waits until the sealer has finished the previous segment, and raises its error.
        """
        self._finish_sealing()
        if self._unit is not None and self._sealing is None:
            count = self._added + len(self._rows)
            self._rows_passed += count
            self._bytes_sealed += self._bytes
            self._sealing = self._sealer.submit(
                self._seal_and_commit, self._rows, self._keys, self._unit, count, self._dropped
            )
            self._begin_segment()

    def _seal_and_commit(
        self, rows: list[Row], keys: list[str], unit: UnitOfWork, count: int, dropped: list[DroppedMessage]
    ) -> None:
        sealed = self._batch.seal(rows, only_if_new=keys) if count else None
        unit.commit()
        self._repetitions.note_confirmed(dropped, sealed)

    def _write_to_disk(self) -> None:
        """Pass the rows in memory to the sealer, which writes them into the current segment."""
        self._finish_sealing()
        if self._sealing is None:
            self._sealing = self._sealer.submit(self._batch.add, self._rows)
            self._added += len(self._rows)
            self._rows, self._bytes_in_memory = [], 0

    def _finish_sealing(self) -> None:
        """Wait for the sealer and raise its error."""
        self._await_sealer()
        self._raise_failure_of_sealer()

    def _await_sealer(self) -> None:
        while self._sealing is not None and not self._sealing.done():
            stopping = self._stop.is_set()
            wait_for([self._sealing], _STOP_GRACE_SECONDS if stopping else _TICK_SECONDS)
            if stopping:
                return

    def _raise_failure_of_sealer(self, *, except_loss: bool = False) -> None:
        if self._sealing is None or not self._sealing.done():
            return
        failure = self._sealing.exception()
        self._sealing = None
        if failure is not None and not (
            except_loss and isinstance(failure, TransientBrokerError | SealedElsewhereError)
        ):
            raise failure

    def _begin_segment(self) -> None:
        self._rows, self._keys, self._dropped, self._unit = [], [], [], None
        self._bytes = self._in_unit = self._added = self._bytes_in_memory = 0

    def _drop_rows(self) -> None:
        """Drop unsealed messages; the broker redelivers them."""
        self._await_sealer()
        self._batch.drop_unsealed()
        self._begin_segment()
        self._rows_passed = self._batch.rows


class StopOrDeadline(threading.Event):
    """An event that is also set when another event is set or a deadline has passed.

    Args:
        stop: The other event.
        deadline: Time on the clock, in seconds; `None` means never.
        clock: Returns seconds, monotonic.
    """

    def __init__(
        self,
        stop: threading.Event,
        deadline: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._stop = stop
        self._deadline = deadline
        self._clock = clock

    def expired(self) -> bool:
        """Return whether the deadline has passed."""
        return self._deadline is not None and self._clock() >= self._deadline

    def is_set(self) -> bool:
        """Return whether to stop."""
        return super().is_set() or self._stop.is_set() or self.expired()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds; return whether the stop was set or the deadline has passed."""
        end = None if timeout is None else self._clock() + timeout
        while not self.is_set():
            left = _TICK_SECONDS if end is None else min(_TICK_SECONDS, end - self._clock())
            if left <= 0:
                return False
            self._stop.wait(left)
        return True
