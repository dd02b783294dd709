"""The broker's side of event streams: what Airflow's shared stream runs once for all triggers alike."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from airflow.triggers.shared_stream import AdvanceItem, AdvanceOutcome, SharedStreamProducer

from airflow_provider_jmsjca.core.backoff import Backoff
from airflow_provider_jmsjca.core.dead_letter import Origin, copy_of
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.in_flight import Arrival, InFlight
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.redelivery.tracker import MessageState
from airflow_provider_jmsjca.core.repetition import pause
from airflow_provider_jmsjca.engine.async_connection import AsyncConnection
from airflow_provider_jmsjca.engine.readiness import QueueWatch
from airflow_provider_jmsjca.engine.stream import MessageStream
from airflow_provider_jmsjca.errors import (
    ConfigurationError,
    JmsError,
    PermanentBrokerError,
    PoisonMessageError,
)
from airflow_provider_jmsjca.hooks.clients import with_client_id
from airflow_provider_jmsjca.hooks.jms import JmsHook
from airflow_provider_jmsjca.hooks.selectors import selector_in_force
from airflow_provider_jmsjca.hooks.settings import settings_for
from airflow_provider_jmsjca.transports.base import Outgoing, Received, Subscription
from airflow_provider_jmsjca.triggers.options import ActivationOptions

log = logging.getLogger(__name__)

Parse = Callable[[], ActivationOptions]

# After a fault that only people can mend. Airflow would start a trigger that raises again every 2 seconds.
MENDING = Backoff(steps=tuple(timedelta(seconds=step) for step in (5, 10, 30, 60)), jitter=0)
# Before messages are handed back whose events Airflow didn't store: it may be busy.
_REDELIVERY = Backoff(steps=tuple(timedelta(seconds=step) for step in (1, 2, 5, 10, 30)), jitter=0)


class _Producer(SharedStreamProducer):
    """Opens a source of events, and opens it again after faults that somebody mends meanwhile.

    Args:
        parse: Returns the options, or raises what is wrong with them.
        patient: Whether to wait for the fault to be mended; otherwise it is raised.
        mending: How long to wait.
    """

    def __init__(self, parse: Parse, *, patient: bool = True, mending: Backoff = MENDING) -> None:
        self._parse = parse
        self._patient = patient
        self._mending = mending

    async def open_stream(self) -> AsyncIterator[tuple[Any, Any]]:
        """Yield events and what is needed to settle them, for ever."""
        faults = 0
        reported = ""
        while True:
            try:
                options = self._parse()
                hook = JmsHook(options.jms_conn_id)
                resolved = await hook.aoptions()
                selector = selector_in_force(
                    resolved,
                    options.destination,
                    options.message_selector,
                    options.subscription_name,
                )
                options = replace(options, message_selector=selector)
                settings = with_client_id(
                    settings_for(options.jms_conn_id, resolved), options.subscription_name
                )
                quiet = resolved["minimal_reconnect_logging"] is True
                connection = AsyncConnection(settings, minimal_logging=quiet)
                async for event in self._events(options, connection):
                    faults, reported = 0, ""
                    yield event
            except (ConfigurationError, PermanentBrokerError) as error:
                await self._close()
                if not self._patient:
                    raise
                faults += 1
                if str(error) != reported:
                    reported = str(error)
                    log.error("No events until this is mended: %s", error)  # noqa: TRY400 - no bug of ours
                await asyncio.sleep(self._mending.wait(faults, 0).total_seconds())

    def _events(
        self, options: ActivationOptions, connection: AsyncConnection
    ) -> AsyncIterator[tuple[Any, Any]]:
        raise NotImplementedError

    async def _close(self) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        """Close; messages whose events were not stored go back to the broker."""
        await self._close()


class MessageProducer(_Producer):
    """Each message is an event. It is acknowledged when Airflow has stored the event, and not before.

    Guarantee: nothing is lost. After a crash between storing and acknowledging the message comes again and
    makes a second event with the same message id. Without a crash a message whose broker keeps its id makes
    one event, however often it is redelivered.
    """

    def __init__(self, parse: Parse, *, patient: bool = True, mending: Backoff = MENDING) -> None:
        super().__init__(parse, patient=patient, mending=mending)
        self._stream: MessageStream | None = None
        self._options: ActivationOptions | None = None
        self._in_flight: InFlight[Received] = InFlight()
        self._room = asyncio.Event()
        self._nameless = itertools.count()
        self._failures = 0
        self._handing_back: asyncio.Task[None] | None = None

    async def _events(
        self, options: ActivationOptions, connection: AsyncConnection
    ) -> AsyncIterator[tuple[JmsMessage, Hashable]]:
        self._options = options
        subscription = Subscription(
            destination=options.destination,
            selector=options.message_selector,
            durable_name=options.subscription_name,
            prefetch=options.prefetch,
        )
        self._stream = stream = MessageStream(connection, subscription)
        async for received in stream:
            try:
                message = received.message
            except PoisonMessageError as error:
                await self._refuse_undecodable(received, error)
                continue
            key = message.message_id or next(self._nameless)
            match self._in_flight.arrived(key, received):
                case Arrival.NEW:
                    yield message, key
                case Arrival.SETTLED:
                    await stream.acknowledge([received])
                case Arrival.REPEATED | Arrival.HELD:
                    pass
            await self._wait_for_room(options.prefetch)

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Acknowledge what was stored, dead-letter what was refused, hand back what was neither."""
        stored: list[Hashable] = []
        for key, outcome in batch:
            if outcome.rejected:
                await self._refuse(key)
            elif outcome.is_clean:
                stored.append(key)
            else:
                self._give_back(key, outcome)
        if stored:
            self._failures = 0
            deliveries = [self._in_flight.settle(key) for key in stored]
            if self._stream is not None:
                await self._stream.acknowledge(item for item in deliveries if item is not None)
        self._room.set()

    async def _refuse(self, key: Hashable) -> None:
        received = self._in_flight.newest(key)
        if received is not None:
            why = PoisonMessageError("its body exceeds max_body_bytes; the triggerer's log says more")
            await self._move(key, received, received.message, why)

    async def _refuse_undecodable(self, received: Received, why: PoisonMessageError) -> None:
        remains = received.salvaged
        key = (remains and remains.message_id) or f"undecodable-{next(self._nameless)}"
        match self._in_flight.arrived(key, received):
            case Arrival.NEW:
                log.error("Message %s can't be decoded: %s", key, why)
                await self._move(key, received, remains, why)
            case Arrival.SETTLED if self._stream is not None:
                await self._stream.acknowledge([received])
            case _:
                pass

    async def _move(
        self, key: Hashable, received: Received, message: JmsMessage | None, why: PoisonMessageError
    ) -> None:
        """Move a message to the dead-letter destination; if that can't be, it stays unsettled."""
        stream, options = self._stream, self._options
        if stream is None or options is None:
            return
        target = options.dead_letter_destination
        if target is None or message is None:
            self._in_flight.hold(key)
            log.error(
                "Message %s stays on %s, because %s; %d of %d places for unsettled messages are taken so",
                key,
                options.destination,
                "no dead_letter_destination is set" if target is None else "nothing of it can be read",
                self._in_flight.held,
                options.prefetch,
            )
            return
        origin = Origin(destination=options.destination, subscription_name=options.subscription_name)
        try:
            limit = stream.capabilities.max_property_characters
            state = MessageState(failure=Failure.of(why))
            copy = copy_of(message, origin, state, max_property_characters=limit)
            moved = await stream.move(received, Outgoing(destination=target, message=copy))
        except JmsError as error:
            self._in_flight.hold(key)
            log.error("Message %s could not be moved to %s and stays: %s", key, target, error)  # noqa: TRY400
            return
        if moved:
            self._in_flight.settle(key)
            log.warning("Message %s was refused and moved to %s", key, target)
        else:
            self._in_flight.forget(key)

    def _give_back(self, key: Hashable, outcome: AdvanceOutcome) -> None:
        log.warning("The event of message %s was not stored (%s): the message comes again", key, outcome)
        self._in_flight.forget(key)
        if self._handing_back is None or self._handing_back.done():
            self._failures += 1
            self._handing_back = asyncio.ensure_future(self._hand_back(self._stream))

    async def _hand_back(self, stream: MessageStream | None) -> None:
        await asyncio.sleep(_REDELIVERY.wait(self._failures, 0).total_seconds())
        if stream is None:
            return
        try:
            await stream.recover()
        except JmsError as error:
            log.warning("Messages could not be handed back, they come again on reconnecting: %s", error)

    async def _wait_for_room(self, limit: int) -> None:
        while self._in_flight.pending >= limit:
            self._room.clear()
            await self._room.wait()

    async def _close(self) -> None:
        if self._handing_back is not None:
            self._handing_back.cancel()
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.aclose()


class ReadyProducer(_Producer):
    """While messages are there, events come again and again; the messages stay where they are.

    Guarantee: no wake-up is lost. An event that Airflow didn't store, a message that came while a DAG run
    was ending, a DAG that was paused: as long as messages are there another event follows, as
    `core.repetition.pause` says.
    """

    def __init__(self, parse: Parse, *, patient: bool = True, mending: Backoff = MENDING) -> None:
        super().__init__(parse, patient=patient, mending=mending)
        self._watch: QueueWatch | None = None

    async def _events(
        self, options: ActivationOptions, connection: AsyncConnection
    ) -> AsyncIterator[tuple[None, None]]:
        self._watch = watch = QueueWatch(connection, options.destination, options.message_selector)
        repeats = 0
        last: str | None = None
        while True:
            ready = await watch.wait()
            yield None, None
            seen = None if ready.message is None else ready.message.message_id
            repeats = repeats + 1 if seen is not None and seen == last else 0
            last = seen
            wait = pause(options.interval, repeats=repeats, deliveries=ready.deliveries)
            await asyncio.sleep(wait.total_seconds())

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Do nothing: nothing was taken from the broker, and the next event comes anyway."""

    async def _close(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()


@contextlib.asynccontextmanager
async def closing(producer: SharedStreamProducer) -> AsyncIterator[SharedStreamProducer]:
    """Close the producer at the end, whatever the end is."""
    try:
        yield producer
    finally:
        await producer.aclose()
