"""The broker's side of event streams: what Airflow's shared stream runs once for all triggers alike."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

from airflow_provider_jmsjca.core.backoff import Backoff
from airflow_provider_jmsjca.core.delivery import DeliverySettings, OutageSettings
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.redelivery import MoveTarget
from airflow_provider_jmsjca.core.repetition import pause
from airflow_provider_jmsjca.engine.async_connection import AsyncConnection
from airflow_provider_jmsjca.engine.listener_settings import ListenerSettings
from airflow_provider_jmsjca.engine.once import Once
from airflow_provider_jmsjca.engine.readiness import QueueWatch
from airflow_provider_jmsjca.engine.stream import DeliveryStream, StreamDelivery
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
from airflow_provider_jmsjca.transports.base import Subscription
from airflow_provider_jmsjca.triggers.options import ActivationOptions, EventMode

log = logging.getLogger(__name__)

Parse = Callable[[], ActivationOptions]

# After a fault that only people can mend. Airflow would start a trigger that raises again every 2 seconds.
MENDING = Backoff(steps=tuple(timedelta(seconds=step) for step in (5, 10, 30, 60)), jitter=0)


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
                quiet = resolved["minimal_reconnect_logging"] is True
                options = replace(options, message_selector=selector, quiet=quiet)
                settings = with_client_id(
                    settings_for(options.jms_conn_id, resolved), options.subscription_name
                )
                if options.event is EventMode.READY:
                    # Whoever only looks has no identity: the client id is for the consumer.
                    settings = replace(settings, client_id=None)
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


class Handed:
    """A message on its way through the triggers that share the stream.

    Attributes:
        message: It.
        open: How many triggers have made its event, and not been asked for the next by Airflow. Airflow binds
            an event to its message only after it has awaited its own log; a trigger that is cancelled in that
            moment, because its DAG is paused, counts as done with the message although nobody has the event.
    """

    __slots__ = ("message", "open")

    def __init__(self, message: JmsMessage) -> None:
        self.message = message
        self.open = 0


class MessageProducer(_Producer):
    """Each message is an event. It is acknowledged when Airflow has stored the event, and not before.

    Airflow is the handler of a delivery: an event that it stored is returned, one that a trigger refused is
    poison, and one that was neither is rolled back, for the redelivery handling to deal with.

    Guarantee: nothing is lost. After a crash between storing and acknowledging the message comes again and
    makes a second event with the same message id. Without a crash a message whose broker keeps its id makes
    one event, however often it is redelivered.
    """

    def __init__(self, parse: Parse, *, patient: bool = True, mending: Backoff = MENDING) -> None:
        super().__init__(parse, patient=patient, mending=mending)
        self._stream: DeliveryStream | None = None
        # What was stored stays known while a fault is mended, and events still await their storing then.
        self._once = Once()

    async def _events(
        self, options: ActivationOptions, connection: AsyncConnection
    ) -> AsyncIterator[tuple[Handed, tuple[Handed, StreamDelivery]]]:
        self._stream = stream = DeliveryStream(_settings(options), connection, once=self._once)
        async for delivery in stream:
            handed = Handed(delivery.message)
            yield handed, (handed, delivery)

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Settle what was stored, dead-letter what was refused, roll back what was neither."""
        for (handed, delivery), outcome in batch:
            if outcome.rejected:
                delivery.raised(
                    PoisonMessageError("its body exceeds max_body_bytes; the triggerer's log says more")
                )
            elif outcome.is_clean and not handed.open:
                delivery.returned()
            else:
                why = "a trigger was cancelled before Airflow had it" if outcome.is_clean else str(outcome)
                message_id = handed.message.message_id
                log.warning("The event of message %s was not stored (%s): it comes again", message_id, why)
                delivery.raised(JmsError(f"Airflow did not store its event ({why})"))

    async def _close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.aclose()


def _settings(options: ActivationOptions) -> ListenerSettings:
    dead = options.dead_letter_destination
    return ListenerSettings(
        delivery=DeliverySettings(
            destination=options.destination,
            handling=options.redelivery_handling,
            dead_letter=() if dead is None else (MoveTarget.of(dead),),
            keep_poison=True,
            concurrency=options.prefetch,
            # Airflow has a timeout of its own for each event.
            transaction_timeout=None,
            outage=OutageSettings(minimal_logging=options.quiet),
        ),
        subscription=Subscription(
            destination=options.destination,
            selector=options.message_selector,
            durable_name=options.subscription_name,
            prefetch=options.prefetch,
        ),
        name=f"events of {options.destination}",
    )


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
