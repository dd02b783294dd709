"""Producers of event streams: Airflow's shared stream runs one for all triggers with equal arguments."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import math
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.triggers.shared_stream import AdvanceItem, AdvanceOutcome, SharedStreamProducer

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.backoff import Backoff, pause
from airflow_provider_jmsjca.core.delivery.settings import MOST_BYTES
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.message.delivery_memory import DeliveryMemory
from airflow_provider_jmsjca.core.message.message import size_of
from airflow_provider_jmsjca.core.metrics import Measured
from airflow_provider_jmsjca.core.redelivery import RedeliveryTracker
from airflow_provider_jmsjca.engine.activations.metrics import counted, tags_of
from airflow_provider_jmsjca.engine.activations.registry import Identity, Sample, spec_digest
from airflow_provider_jmsjca.engine.connecting.async_connection import AsyncConnection
from airflow_provider_jmsjca.engine.connecting.threads import in_thread, start_in_thread, start_uncancelled
from airflow_provider_jmsjca.engine.delivering.loop.signal import Signal
from airflow_provider_jmsjca.engine.delivering.loop.stream import DeliveryStream, StreamDelivery
from airflow_provider_jmsjca.engine.delivering.settings import activation_name
from airflow_provider_jmsjca.engine.delivering.statistics import Counts
from airflow_provider_jmsjca.engine.watching.depths import probed_queues
from airflow_provider_jmsjca.engine.watching.queue_watch import QueueWatch
from airflow_provider_jmsjca.errors import (
    ConfigurationError,
    JmsError,
    PermanentBrokerError,
    PoisonMessageError,
    SpoolError,
    TransientBrokerError,
    TransientStoreError,
)
from airflow_provider_jmsjca.hooks.metrics import Watch
from airflow_provider_jmsjca.hooks.metrics import sender as metrics_sender
from airflow_provider_jmsjca.hooks.registry import installed_registrar
from airflow_provider_jmsjca.hooks.store import release_shared_store, shared_store
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.store.base import ActivationKind, RunStatus
from airflow_provider_jmsjca.transports.base import ConnectionSettings, Received
from airflow_provider_jmsjca.triggers.activation_options import ActivationOptions
from airflow_provider_jmsjca.triggers.effective_options import EffectiveOptions
from airflow_provider_jmsjca.triggers.holding import AssetStore, Hold, Holder
from airflow_provider_jmsjca.triggers.payload import FAULT_KEY, bytes_in_event
from airflow_provider_jmsjca.triggers.receipts import Acknowledger, ConfirmedDeliveries, Receipt, are_stored
from airflow_provider_jmsjca.triggers.references import sweep_sometimes
from airflow_provider_jmsjca.triggers.registry import StreamControl
from airflow_provider_jmsjca.triggers.releasing import releasing

if TYPE_CHECKING:
    from airflow_provider_jmsjca.store.sql.store import SqlStore

log = safe_logger(__name__)
_T = TypeVar("_T")

Parse = Callable[[], ActivationOptions]

MOST_BATCH_BYTES = 1_048_576
"""A batch ends before bodies and properties in its event exceed this size, in bytes."""
_MOST_HELD = MOST_BYTES // 2
"""A batch ends when its messages take this much memory, in bytes, including bodies stored in the spool."""

# Maximum time, in seconds, for Airflow to store the events of a trigger that was cancelled.
_STORING_SECONDS = 30.0
_STORED_POLL_SECONDS = 0.2
_SETTLING_SECONDS = 5.0
# Seconds after the end of a stream at which the producer closes itself, if Airflow hasn't closed it.
_SELF_CLOSE_SECONDS = 30.0

# Pauses after faults that need a correction. If a trigger raises, Airflow restarts it every 2 seconds.
RETRY_BACKOFF = Backoff(steps=tuple(timedelta(seconds=step) for step in (5, 10, 30, 60)), jitter=0)

_REPEAT_SECONDS = 600.0
# A source that has been open for this many seconds is considered working, even if no message has arrived.
_WORKING_SECONDS = 60.0
_NOTE_SECONDS = 5.0


@dataclass(slots=True, kw_only=True)
class _Fault:
    """A fault that prevents the opening of a source.

    Attributes:
        since: Time of the first failed attempt.
        text_since: Time from which all attempts have failed with the same error; all errors of the spool
            count as one.
        attempts: Number of failed attempts.
        text: Text of the last error.
        logged: Time of the last log record, by the monotonic clock.
        is_spool_fault: Whether the fault is that the spool can't be used. The arrival of a message doesn't
            show that such a fault is over.
    """

    since: datetime
    text_since: datetime
    attempts: int = 0
    text: str = ""
    logged: float = -math.inf
    is_spool_fault: bool = False

    def failed(self, error: JmsError, now: float) -> bool:
        """Count a failed attempt; return whether to log it: the error is new, or ten minutes have passed."""
        self.attempts += 1
        is_new = str(error) != self.text and not isinstance(
            error, SpoolError
        )  # it names another file each time
        was_of_spool, self.is_spool_fault = self.is_spool_fault, isinstance(error, SpoolError)
        if is_new or self.is_spool_fault is not was_of_spool:
            self.text_since = datetime.now(UTC)
        is_due = is_new or now >= self.logged + _REPEAT_SECONDS
        if is_due:
            self.text, self.logged = str(error), now
        return is_due


class _Producer(SharedStreamProducer):
    """Opens a source of events, and reopens it after faults.

    Args:
        parse: Returns the options; raises `ConfigurationError`.
        retry: Whether to reopen the source after a fault; otherwise the fault is raised.
        recipients: Returns the assets or the task that receive the events, for the log.
        stores: Returns Airflow's state stores of the assets that receive the events, by name. Faults are
            written there too.
        backoff: Pauses between attempts.
    """

    def __init__(
        self,
        parse: Parse,
        *,
        retry: bool = True,
        recipients: Callable[[], str] = lambda: "",
        stores: Callable[[], Mapping[str, AssetStore]] = dict,
        backoff: Backoff = RETRY_BACKOFF,
    ) -> None:
        self._parse = parse
        self._recipients = recipients
        self._stores = stores
        self._fault: _Fault | None = None
        self._recovery_report: asyncio.Task[None] | None = None
        self._source = ""
        self._retry = retry
        self._backoff = backoff
        self._connection: AsyncConnection | None = None
        self._control: StreamControl | None = None
        self._metrics_watch: tuple[Identity, Watch] | None = None
        self._is_closed = False
        self._close_timer: asyncio.TimerHandle | None = None

    async def open_stream(self) -> AsyncIterator[tuple[Any, Any]]:
        """Yield events without end, each with the token with which Airflow confirms the event.

        While a user has the activation suspended, drained or stopped, the producer has no subscription
        and yields nothing.

        Guarantee: if the stream ends and `aclose` isn't called, the producer closes itself after 30 seconds.
        """
        with releasing(), self._closed_after_delay():
            while True:
                try:
                    begun = await self._begin()
                    if self._control is not None:
                        await self._control.admit(f"Events for {self._recipients()}{self._source}")
                    async for event in self._events(*begun):
                        if self._fault is not None and not self._fault.is_spool_fault:
                            await self._report_recovery()
                        yield event
                    # The events end where a state is requested.
                    await self._wait_until_stored()
                    await asyncio.shield(start_uncancelled(self._end()))
                except _RETRIED as error:
                    self._cancel_recovery_report()
                    await self._close()
                    if not self._retry:
                        raise
                    attempts = await self._failed(error)
                    await asyncio.sleep(self._backoff.wait(attempts, 0).total_seconds())
                    self._recovery_report = asyncio.create_task(self._report_recovery(_WORKING_SECONDS))

    @contextlib.contextmanager
    def _closed_after_delay(self) -> Iterator[None]:
        """Close the producer half a minute after the end of the context, unless Airflow closes it.

        Airflow closes a producer last. If a fault in Airflow's own tasks prevents that, the subscription
        would stay open and the messages unsettled.
        """
        loop = asyncio.get_running_loop()
        try:
            yield
        finally:
            if not (self._is_closed or loop.is_closed()):
                self._close_timer = loop.call_later(_SELF_CLOSE_SECONDS, self._close_itself)

    def _close_itself(self) -> None:
        log.error(
            "The stream of events%s for %s ended %.0f s ago and Airflow has not closed it; closing it now",
            self._source,
            self._recipients(),
            _SELF_CLOSE_SECONDS,
        )
        start_uncancelled(self.aclose())

    async def _failed(self, error: JmsError) -> int:
        """Count a failed attempt, and return the number of failed attempts.

        If the fault is due for the log, log it and write it to the state stores of the assets.
        """
        now = datetime.now(UTC)
        fault = self._fault = self._fault or _Fault(since=now, text_since=now)
        if fault.failed(error, time.monotonic()):
            since = fault.since.isoformat(timespec="seconds")
            log.error(
                "No events for %s%s until this is fixed: %s (attempt %d, failing since %s)",
                self._recipients(),
                self._source,
                error,
                fault.attempts,
                since,
            )
            await self._note(
                {
                    "error": fault.text,
                    "where": self._source.strip(),
                    "attempt": fault.attempts,
                    "since": since,
                    "error_since": fault.text_since.isoformat(timespec="seconds"),
                    "at": now.isoformat(timespec="seconds"),
                }
            )
        return fault.attempts

    async def _report_recovery(self, after: float = 0) -> None:
        """Wait `after` seconds, then report that the fault is over; return at once if there was no fault.

        The report is a line in the log. The fault is also deleted from the state stores of the assets.
        """
        fault = self._fault
        if fault is None:
            return
        await asyncio.sleep(after)
        if not after:
            self._cancel_recovery_report()
        self._fault = None
        log.warning(
            "%s%s works again, after %d failed attempts", self._recipients(), self._source, fault.attempts
        )
        await self._note(None)

    def _cancel_recovery_report(self) -> None:
        mended, self._recovery_report = self._recovery_report, None
        if mended is not None:
            mended.cancel()

    async def _note(self, value: dict[str, Any] | None) -> None:
        """Write a fault to the state stores of the assets that get the events, or delete the stored fault.

        Args:
            value: The fault as JSON; `None`: delete the stored fault.
        """
        try:
            async with asyncio.timeout(_NOTE_SECONDS):
                for store in self._stores().values():
                    await (store.adelete(FAULT_KEY) if value is None else store.aset(FAULT_KEY, value))
        except Exception as error:  # noqa: BLE001 - whatever Airflow's store raises: the log has it all
            log.debug("%s can't be written: %s", FAULT_KEY, error)

    async def _begin(self) -> tuple[ActivationOptions, EffectiveOptions, AsyncConnection]:
        """Register the stream; return its options, its effective options, and the connection to use."""
        options = self._parse()
        self._source = f" from {options.title} over connection {options.jms_conn_id!r}"
        effective, settings = await options.settings()
        effective.check()
        self._register(effective.spec, settings)
        quiet = effective.spec.minimal_reconnect_logging
        find = options.settings_finder(effective)
        self._connection = AsyncConnection(
            find,
            subject=lambda: f"{self._recipients()}{self._source}",
            minimal_logging=quiet,
            unshared=self._connection is not None and self._connection.unshared,
        )
        return options, effective, self._connection

    def _register(self, spec: ActivationSpec, settings: ConnectionSettings) -> None:
        """Register the stream in the store, if there is one; register it again if its name has changed."""
        if not self._retry:
            return
        identity = Identity(
            activation=activation_name(spec.title, settings.url, spec.durable_name, settings.client_id),
            kind=ActivationKind.TRIGGER,
            owner=self._recipients(),
            destination=", ".join(map(str, spec.destinations)),
            broker=settings.url.partition("?")[0],
            spec_digest=spec_digest(spec),
            probed=probed_queues(settings, spec.destinations),
        )
        self._send_metrics(identity)
        registrar = installed_registrar()
        if registrar is None:
            return
        if self._control is not None:
            if self._control.identity.activation == identity.activation:
                return
            self._control.leave()
        self._control = StreamControl(registrar, identity, sample=self._sample, interrupt=self._interrupt)

    def _send_metrics(self, identity: Identity) -> None:
        """Send the stream's metrics if statistics are configured.

        If the name of the activation has changed, they are sent under the new name.
        """
        metrics = metrics_sender()
        if metrics is None:
            return
        if self._metrics_watch is not None:
            if self._metrics_watch[0].activation == identity.activation:
                return
            self._stop_metrics()
        self._metrics_watch = identity, metrics.watch(lambda: self._measured(identity), identity.probed)

    def _stop_metrics(self) -> None:
        found, self._metrics_watch = self._metrics_watch, None
        if found is not None and (metrics := metrics_sender()) is not None:
            metrics.leave(found[1], wait=False)

    def _measured(self, identity: Identity) -> Measured:
        """Return the metrics of the stream; called from any thread."""
        suspended = self._control is not None and self._control.order is not None
        up = self._is_up and not suspended
        return Measured(
            tags=tags_of(identity),
            values=self._counters()
            | {
                "connections_up": int(up),
                "connections_down": int(not up and not suspended),
                "suspended": int(suspended),
            },
        )

    def _counters(self) -> dict[str, float]:
        """Return the counts of messages and outages as metrics, by name; called from any thread."""
        return {}

    def _sample(self) -> Sample:
        """Return the state of the stream; called from any thread."""
        fault, control = self._fault, self._control
        requested = None if control is None else control.status
        status = requested or (RunStatus.UP if self._is_up and fault is None else RunStatus.CONNECTING)
        found = self._counted()
        error = found.error if fault is None else fault.text
        return replace(found, status=status, owner=self._recipients(), error=error)

    @property
    def _is_up(self) -> bool:
        """Whether the subscription is open; readable from any thread."""
        raise NotImplementedError

    def _counted(self) -> Sample:
        """Return the counts of messages as a sample for the registry; called from any thread."""
        return Sample(status=RunStatus.UP)

    def _interrupt(self) -> None:
        """End the stream, because suspending, draining or stopping was requested."""
        raise NotImplementedError

    async def _wait_until_stored(self) -> None:
        """Wait, for a limited time, until Airflow has stored the events that the stream has yielded."""

    def _events(
        self, options: ActivationOptions, effective: EffectiveOptions, connection: AsyncConnection
    ) -> AsyncIterator[tuple[Any, Any]]:
        raise NotImplementedError

    async def _close(self) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        """Close the stream; messages without a stored event return to the broker.

        Guarantee: cancelling the caller doesn't interrupt the close.
        """
        self._is_closed = True
        if self._close_timer is not None:
            self._close_timer.cancel()
        self._cancel_recovery_report()
        if self._control is not None:
            self._control.leave()
        self._stop_metrics()
        await asyncio.shield(start_uncancelled(self._end()))

    async def _end(self) -> None:
        await self._close()


_RETRIED = (ConfigurationError, PermanentBrokerError, SpoolError, TransientBrokerError, TransientStoreError)


class OutstandingEvent:
    """A message or a batch that the triggers of a stream turn into events.

    Attributes:
        deliveries: The messages.
        batch: Whether the event is that of a batch.
        open: Number of triggers whose event Airflow may not have received: they are creating the event, or
            have yielded it and were not asked for the next one. If such a trigger is cancelled, because its
            DAG is paused, the event is lost, although Airflow counts the trigger as finished.
        refused: Messages that a trigger found too large.
        fault: The error of a trigger that could not create its event; `None` if none failed.
        holds: Holds of each message, one for each trigger; empty if messages aren't held.
        received: Time of receipt, by the monotonic clock.
        receipts: Receipts of the event, one for each trigger that watches assets; empty if messages are held.
        stream: Identifies the producer that numbers the events. Its numbers go on after it has reopened the
            source.
        source: The stream of deliveries of these messages. The producer may have opened another one since.
        number: Number of the event in the stream, from 1.
        yielded: Whether a trigger has created the event, so that Airflow may have it.
    """

    __slots__ = (
        "batch",
        "deliveries",
        "fault",
        "holds",
        "number",
        "open",
        "receipts",
        "received",
        "refused",
        "source",
        "stream",
        "yielded",
    )

    def __init__(
        self,
        deliveries: Sequence[StreamDelivery],
        *,
        batch: bool,
        stream: str = "",
        number: int = 0,
        source: DeliveryStream | None = None,
    ) -> None:
        self.deliveries = tuple(deliveries)
        self.batch = batch
        self.open = 0
        self.refused: set[StreamDelivery] = set()
        self.fault: JmsError | None = None
        self.holds: dict[StreamDelivery, list[Hold]] = {}
        self.receipts: list[Receipt] = []
        self.received = time.monotonic()
        self.stream = stream
        self.source = source
        self.number = number
        self.yielded = False

    @property
    def is_received(self) -> bool:
        """Whether Airflow has received the event, and a query can show whether the event is stored."""
        return not self.open and bool(self.holds or self.receipts)

    async def is_recorded(self) -> bool:
        """Return whether all held messages have their records, which are stored with the event.

        Raises:
            JmsError: Airflow's asset store is not reachable.
        """
        return all([await hold.stored() for holds in self.holds.values() for hold in holds])

    def settle_stored(self) -> None:
        """Settle the messages of a stored event, except held and refused ones."""
        for delivery in self.deliveries:
            if delivery not in self.holds and delivery not in self.refused:
                delivery.returned()


class MessageProducer(_Producer):
    """Produces an event for each message, and acknowledges the message after Airflow has stored the event.

    A stored event acknowledges its message. An event that a trigger refused makes its message poison. In all
    other cases the message is rolled back, and the redelivery handling applies. The messages of a batch are
    settled alike, except refused ones.

    Guarantee: no message is lost. After a crash between storing and acknowledging, the message is redelivered
    and makes a second event with the same message id. With `use_store` that happens only after a crash
    between Airflow's commit and the store's commit. Without a crash, a message makes one event however often
    it is redelivered, if its broker keeps its id.

    For a watched asset, Airflow may confirm an event that it has dropped. Such an event acknowledges no
    message. When the stream closes, messages stay unsettled until their events are stored, for half a minute
    at most. The reason: Airflow moves triggers away from a triggerer that it considers dead. That triggerer
    may be alive and still store events. 40 seconds after the close all messages are settled or back on the
    broker, if the event loop runs.
    """

    def __init__(self, parse: Parse, **more: Any) -> None:
        super().__init__(parse, **more)
        self._stream: DeliveryStream | None = None
        self._holder: Holder | None = None
        # Survives the reopening of the source, during which Airflow may still be storing events.
        self._memory: DeliveryMemory[Received] = DeliveryMemory()
        self._tracker = RedeliveryTracker()
        self._outstanding: set[OutstandingEvent] = set()
        self._advanced = Signal()
        self._acknowledger = Acknowledger()
        self._name = uuid.uuid4().hex[:12]
        self._numbers = itertools.count(1)
        self._store: SqlStore | None = None
        # Counts of the streams that were closed before the current one.
        self._counts = Counts()
        self._outages = self._dead_lettered = 0
        self._last_failure = ""
        self._counting = threading.Lock()
        self._spool_fault: SpoolError | None = None
        # Deliveries of the incomplete batch.
        self._incomplete_batch: list[StreamDelivery] = []

    async def _events(
        self, options: ActivationOptions, effective: EffectiveOptions, connection: AsyncConnection
    ) -> AsyncIterator[tuple[OutstandingEvent, OutstandingEvent]]:
        name = f"events{self._source} for {self._recipients()}"
        self._forget_fault()
        if effective.spec.use_store and self._store is None:
            self._store = await in_thread(shared_store, undo=release_shared_store)
        connects = (await options.settings(effective))[1]
        self._stream = stream = DeliveryStream(
            effective.listener(connects, name, self._store),
            connection,
            memory=self._memory,
            tracker=self._tracker,
        )
        del connects  # saves memory, because a process may run a thousand streams
        if options.holds:
            self._holder = Holder(options.hold_timeout, self._source)
        sweep_sometimes()
        if effective.batch_size > 1:
            weigh = functools.partial(bytes_in_event, limit=options.max_body_bytes, form=options.payload)
            async for deliveries in _batches(stream, effective, weigh, self._incomplete_batch):
                yield self._new_event(deliveries, batch=True)
        else:
            async for delivery in stream:
                yield self._new_event((delivery,), batch=False)
        if (fault := self._spool_fault) is not None:
            await self._wait_until_stored()
            raise fault

    def _new_event(
        self, deliveries: Sequence[StreamDelivery], *, batch: bool
    ) -> tuple[OutstandingEvent, OutstandingEvent]:
        event = OutstandingEvent(
            deliveries,
            batch=batch,
            stream=self._name,
            number=next(self._numbers),
            source=self._stream,
        )
        self._outstanding.add(event)
        return event, event

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Acknowledge the messages of stored events, dead-letter refused ones, roll back the others."""
        for event, outcome in batch:
            await self._advance(event, outcome)
        self._advanced.set()

    async def _advance(self, event: OutstandingEvent, outcome: AdvanceOutcome) -> None:
        self._outstanding.discard(event)
        if isinstance(event.fault, SpoolError) and not outcome.rejected:
            self._withdraw(event, event.fault)
            return
        why = self._reason_not_stored(event, outcome)
        if why is None:
            await self._report_recovery()
        else:
            log.warning(
                "The event of message %s%s for %s was not stored (%s); the message will be redelivered",
                ", ".join(str(each.message.message_id) for each in event.deliveries),
                self._source,
                self._recipients(),
                why,
            )
        self._settle(event, outcome, why)

    def _settle(self, event: OutstandingEvent, outcome: AdvanceOutcome, why: str | None) -> None:
        stored: list[StreamDelivery] = []
        for delivery in event.deliveries:
            if outcome.rejected or (why is None and delivery in event.refused):
                delivery.raised(
                    PoisonMessageError(
                        "the content of its event exceeds max_body_bytes; see the triggerer's log"
                    )
                )
            elif why is None and (holds := event.holds.get(delivery)):
                if self._holder is not None:  # after a close, the message is already back on the broker
                    self._holder.take(delivery, holds)
            elif why is None:
                stored.append(delivery)
            else:
                delivery.raised(JmsError(f"Airflow did not store its event ({why})"))
        if stored and event.receipts:
            self._acknowledger.take(stored, event.receipts)
        else:
            for delivery in stored:
                delivery.returned()

    def _forget_fault(self) -> None:
        """Reset the fault of the spool: the previous stream may have ended for another reason."""
        self._spool_fault = None

    def _withdraw(self, event: OutstandingEvent, fault: SpoolError) -> None:
        """End the event's stream because the spool can't be written; its messages are delivered again later.

        This delivery doesn't count as an attempt, because the messages didn't cause the fault. If the
        producer has opened another stream since, that one goes on.
        """
        if event.source is self._stream:
            self._spool_fault = fault
            self._interrupt()
        for delivery in event.deliveries:
            delivery.withdraw()

    @staticmethod
    def _reason_not_stored(event: OutstandingEvent, outcome: AdvanceOutcome) -> str | None:
        """Return why Airflow doesn't have an event; `None` if Airflow has it, or it was refused."""
        if outcome.rejected:
            return None
        if not outcome.is_clean:
            return str(outcome)
        if event.fault is not None:
            return str(event.fault)
        return "a trigger was cancelled before Airflow stored it" if event.open else None

    @property
    def _is_up(self) -> bool:
        stream = self._stream
        return stream is not None and stream.consuming.is_set()

    def _counted(self) -> Sample:
        with self._counting:
            stream, counts, dead_lettered = self._stream, self._counts, self._dead_lettered
            failure = self._last_failure
            if stream is not None:
                counts += stream.counts
                dead_lettered += stream.dead_lettered
                failure = stream.last_failure or failure
        return Sample(
            status=RunStatus.UP,
            delivered=counts.delivered,
            committed=counts.committed,
            rolled_back=counts.rolled_back,
            moved=counts.moved,
            deleted=counts.deleted,
            dead_lettered=dead_lettered,
            in_flight=0 if stream is None else stream.in_flight,
            error=failure,
        )

    def _counters(self) -> dict[str, float]:
        with self._counting:
            stream, counts, outages = self._stream, self._counts, self._outages
            dead_lettered, in_flight = self._dead_lettered, 0
            if stream is not None:
                counts += stream.counts
                outages += stream.outages
                dead_lettered += stream.dead_lettered
                in_flight = stream.in_flight
            return {
                **counted(counts), "dead_letters": dead_lettered, "outages": outages, "in_flight": in_flight,
            }  # fmt: skip

    def _interrupt(self) -> None:
        if self._stream is not None:
            self._stream.finish()

    async def _wait_until_stored(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STORING_SECONDS):
                while self._outstanding:
                    self._advanced.clear()
                    await self._advanced.wait()

    async def _end(self) -> None:
        """Close the stream; unsettled messages return to the broker.

        If Airflow may still be storing events, a background task closes the stream later. So messages of
        events that Airflow then stores are not redelivered.
        """
        try:
            confirmed = await self._acknowledger.stop()
            unconfirmed = [event for event in self._outstanding if event.is_received]
            if (confirmed or unconfirmed) and (stream := self._detach_stream()) is not None:
                store, self._store = self._store, None
                incomplete_batch, self._incomplete_batch = self._incomplete_batch, []
                ending = _close_once_stored(stream, store, confirmed, unconfirmed, incomplete_batch)
                start_uncancelled(ending)
        finally:
            await self._close()

    def _detach_stream(self) -> DeliveryStream | None:
        """Remove the stream from the producer, which keeps its counts; the caller closes the stream.

        Attempts at messages don't count if no trigger has created their event.
        """
        for event in self._outstanding:
            if not event.yielded:
                for delivery in event.deliveries:
                    delivery.disregard()
        with self._counting:
            stream, self._stream = self._stream, None
            if stream is not None:
                self._counts += stream.counts
                self._outages += stream.outages
                self._dead_lettered += stream.dead_lettered
                self._last_failure = stream.last_failure or self._last_failure
        return stream

    async def _close(self) -> None:
        holder, self._holder = self._holder, None
        try:
            if holder is not None:
                await holder.aclose()
        finally:
            stream = self._detach_stream()
            try:
                if stream is not None:
                    await stream.aclose()
            finally:
                _give_back(self._incomplete_batch)
                store, self._store = self._store, None
                _release_store(store)


async def _close_once_stored(
    stream: DeliveryStream,
    store: SqlStore | None,
    confirmed: Sequence[ConfirmedDeliveries],
    unconfirmed: Sequence[OutstandingEvent],
    incomplete_batch: list[StreamDelivery],
) -> None:
    """Wait for a limited time until Airflow has stored a stream's events, then close the stream.

    Messages of stored events are settled. All others return to the broker.
    """
    try:
        async with asyncio.timeout(_STORING_SECONDS):
            known = await are_stored([each.receipts for each in confirmed])
            for each in itertools.compress(confirmed, known):
                each.returned()
            left = list(unconfirmed)
            while left:
                stored = [each for each in left if await each.is_recorded()]
                stored = list(
                    itertools.compress(stored, await are_stored([each.receipts for each in stored]))
                )
                for event in stored:
                    event.settle_stored()
                left = [each for each in left if each not in stored]
                if left:
                    await asyncio.sleep(_STORED_POLL_SECONDS)
        await stream.aclose(within=_SETTLING_SECONDS)
    except (TimeoutError, JmsError) as error:
        # Events of a deleted trigger are never stored, and Airflow doesn't answer at the end of a process.
        unsettled = sum(len(each.deliveries) for each in confirmed)
        unsettled += sum(len(each.deliveries) for each in unconfirmed)
        log.info(
            "Up to %d messages return to the broker, because Airflow didn't confirm that it stored their "
            "events%s",
            unsettled,
            f": {error}" if str(error) else "",
        )
    finally:
        await stream.aclose()
        _give_back(incomplete_batch)
        _release_store(store)


def _give_back(incomplete_batch: list[StreamDelivery]) -> None:
    """Return the messages of an incomplete batch; a later stream delivers them again."""
    for delivery in incomplete_batch:
        delivery.raised(JmsError("the batch was not completed"))
    incomplete_batch.clear()


def _release_store(store: SqlStore | None) -> None:
    if store is not None:
        start_in_thread(lambda: release_shared_store(store))


async def _batches(
    stream: DeliveryStream,
    effective: EffectiveOptions,
    bytes_in_event: Callable[[JmsMessage], int],
    held: list[StreamDelivery],
) -> AsyncIterator[list[StreamDelivery]]:
    """Yield batches of deliveries in order; the effective options decide when a batch ends.

    Args:
        stream: The deliveries.
        effective: Size and timeouts of a batch.
        bytes_in_event: Returns the approximate number of bytes of a message in an event.
        held: An empty list, to which the deliveries of the incomplete batch are added.
    """
    clock = asyncio.get_running_loop().time
    weighed, size, first, last = 0, 0, 0.0, 0.0
    following: asyncio.Future[StreamDelivery] | None = None
    try:
        while True:
            if following is None:
                following = asyncio.ensure_future(anext(stream))
            ends = min(first + effective.batch_seconds, last + effective.batch_idle_seconds)
            finite = held and ends != math.inf
            await asyncio.wait({following}, timeout=max(0.0, ends - clock()) if finite else None)
            if following.done():
                try:
                    delivery = following.result()
                except StopAsyncIteration:
                    return  # finished; held messages go back to the broker
                finally:
                    following = None
                heavy = bytes_in_event(delivery.message)
                if held and weighed + heavy > MOST_BATCH_BYTES:
                    batch = held.copy()
                    held.clear()
                    yield batch
                last = clock()
                if not held:
                    weighed, size, first = 0, 0, last
                held.append(delivery)
                weighed += heavy
                size += size_of(delivery.message)
                if len(held) < effective.batch_size and size < _MOST_HELD:
                    continue
            batch = held.copy()
            held.clear()
            yield batch
    finally:
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


class ReadyProducer(_Producer):
    """Produces events as long as a queue has messages, and leaves the messages there.

    Guarantee: no wake-up is lost. As long as the queue has messages, another event follows after
    `core.backoff.pause`. This also holds for an event that Airflow didn't store, for a message that arrived
    while a DAG run was ending, and for a paused DAG.
    """

    def __init__(self, parse: Parse, **more: Any) -> None:
        super().__init__(parse, **more)
        self._watch: QueueWatch | None = None
        self._interrupted = Signal()

    @property
    def _is_up(self) -> bool:
        return self._watch is not None

    def _interrupt(self) -> None:
        self._interrupted.set()

    async def _unless_interrupted(self, waiting: Coroutine[Any, Any, _T]) -> _T | None:
        """Return the result of a coroutine; cancel it and return `None` when the stream is interrupted."""
        task, interrupted = asyncio.create_task(waiting), asyncio.create_task(self._interrupted.wait())
        try:
            await asyncio.wait({task, interrupted}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            task.cancel()
            interrupted.cancel()
            await asyncio.gather(task, interrupted, return_exceptions=True)

    async def _events(
        self, options: ActivationOptions, effective: EffectiveOptions, connection: AsyncConnection
    ) -> AsyncIterator[tuple[Destination, None]]:
        (queue,) = effective.spec.destinations
        self._watch = watch = QueueWatch(connection, queue, effective.spec.selector_for())
        repeats = 0
        last: str | None = None
        self._interrupted.clear()
        while not self._interrupted.is_set():
            ready = await self._unless_interrupted(watch.wait())
            if ready is None:
                return
            yield queue, None
            seen = None if ready.message is None else ready.message.message_id
            repeats = repeats + 1 if seen is not None and seen == last else 0
            last = seen
            wait = pause(options.interval, repeats=repeats, deliveries=ready.deliveries)
            await self._unless_interrupted(asyncio.sleep(wait.total_seconds()))

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Do nothing: no message was consumed, and another event follows."""

    async def _close(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()


@contextlib.asynccontextmanager
async def closing(producer: SharedStreamProducer) -> AsyncIterator[SharedStreamProducer]:
    """Close the producer on exit."""
    try:
        yield producer
    finally:
        await producer.aclose()
