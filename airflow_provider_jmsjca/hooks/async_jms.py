"""The hook for event loops: sends and receives for triggers that users write."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from airflow.sdk.bases.hook import BaseHook

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.connecting.async_connection import AsyncConnection
from airflow_provider_jmsjca.engine.connecting.threads import in_thread, start_uncancelled
from airflow_provider_jmsjca.engine.delivering.loop.stream import DeliveryStream, StreamDelivery
from airflow_provider_jmsjca.engine.delivering.settings import ListenerContext, listener_settings
from airflow_provider_jmsjca.engine.session.tracing import current_traceparent, with_traceparent
from airflow_provider_jmsjca.errors import ConfigurationError, TransientBrokerError
from airflow_provider_jmsjca.hooks.destinations import find_destination, with_lookups
from airflow_provider_jmsjca.hooks.jms import JmsHook
from airflow_provider_jmsjca.hooks.settings import settings_for, with_client_id_of
from airflow_provider_jmsjca.transports.base import ConnectionSettings

# Maximum number of threads for concurrent sends of one connection; further sends wait.
_SENDS_AT_ONCE = 2

# Doesn't look up administered objects in Airflow variables, because such a query blocks the event loop.
_find = functools.partial(find_destination, variables=False)


class AsyncJmsHook(BaseHook):
    """Sends and receives in an event loop, such as the triggerer's, and never blocks it.

    For example::

        async with AsyncJmsHook("jms_default").get_conn() as connection:
            await connection.send("queue://questions", JmsMessage.text("42?"))
            delivery = await connection.receive("queue://answers", timeout=60)
            if delivery is not None:
                print(delivery.message.body)
                delivery.returned()

    Args:
        jms_conn_id: The Airflow connection.
    """

    conn_name_attr = JmsHook.conn_name_attr
    default_conn_name = JmsHook.default_conn_name
    conn_type = JmsHook.conn_type
    hook_name = JmsHook.hook_name

    def __init__(self, jms_conn_id: str = JmsHook.default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.jms_conn_id = jms_conn_id

    def get_conn(self) -> AsyncJmsConnection:
        """Return a connection to use as an asynchronous context manager; nothing is queried or opened yet."""
        return AsyncJmsConnection(JmsHook(self.jms_conn_id))


class AsyncJmsConnection:
    """A connection for one task of an event loop. Use it as a context manager; leaving it closes the streams.

    Streams of all tasks of a process that consume from the same broker share one connection to it, and
    reconnect automatically. Sends use a separate connection, which stays open for further sends until its
    idle timeout.

    Guarantee: a message is settled only after `StreamDelivery.returned`. If a crash, a cancellation or the
    end of this connection comes before that call, the message is redelivered. The settlement follows in the
    background: a crash soon after `returned` may cause a redelivery.

    Args:
        hook: The hook for the Airflow connection.
    """

    def __init__(self, hook: JmsHook) -> None:
        self._hook = hook
        self._streams: list[DeliveryStream] = []
        self._receiving: dict[tuple[str, str | None], DeliveryStream] = {}
        self._received: dict[tuple[str, str | None], StreamDelivery] = {}
        self._sends = asyncio.Semaphore(_SENDS_AT_ONCE)
        self._closed = False

    async def __aenter__(self) -> Self:
        """Return this object. Connections to the broker open on first use."""
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the connection."""
        await self.aclose()

    async def send(
        self,
        destination: str | Destination,
        message: JmsMessage,
        *,
        delay: float | None = None,
        time_to_live: float | None = None,
        priority: int | None = None,
        persistent: bool | None = None,
        deduplication_id: str | None = None,
    ) -> None:
        """Send a message, and wait until the broker has confirmed it.

        Args:
            destination: `queue://name`, `topic://name`, the name of a queue, or `lookup://object` for an
                entry of `[jmsjca]`.
            message: The message to send.
            delay: Seconds before the message can be received.
            time_to_live: Seconds until the message expires, counted from now.
            priority: 0 to 9; `None`: the priority in the message.
            persistent: Whether the message survives a restart of the broker; `None`: as the message says.
            deduplication_id: The broker drops a second message with this id.

        Raises:
            ConfigurationError: The destination or the Airflow connection can't be used.
            CapabilityError: The broker lacks a capability that the message needs.
            TransientBrokerError: The broker can't be reached; nothing is sent. There is no retry.
            InDoubtError: The connection was lost; the broker may have the message.
            PermanentBrokerError: The broker refuses the message.

        Guarantee: a cancellation takes effect at once; the message may or may not be sent then.
        """
        self._check_open()
        target = destination if isinstance(destination, Destination) else _find(destination)
        options = await self._hook.aoptions()
        sent = with_traceparent(message, current_traceparent())  # the thread has no span

        def work() -> None:
            with self._hook.connect(options, _find) as connection, connection.session() as session:
                session.send(
                    target,
                    sent,
                    delay=delay,
                    time_to_live=time_to_live,
                    priority=priority,
                    persistent=persistent,
                    deduplication_id=deduplication_id,
                )
                if session.transacted:
                    session.commit()

        async with self._sends:
            await in_thread(work)

    async def receive(
        self,
        destination: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109  # as `JmsSession.receive`
        message_selector: str | None = None,
    ) -> StreamDelivery | None:
        """Wait for a message, and return its delivery.

        Once the message is handled, end the delivery with `returned`, or with `raised` if handling failed.
        Do so before the next call with the same destination and selector. `consume` allows several
        deliveries in flight.

        The first call subscribes, and the subscription stays until the connection is closed. So messages
        published to a topic between two calls are available to the second call.

        Args:
            destination: The destination, in the forms of `send`.
            timeout: Seconds to wait; `None` waits forever.
            message_selector: Selects the messages to receive; `None`: all messages.

        Returns:
            The delivery, or `None` if no message arrived in time.

        Raises:
            ConfigurationError: The destination, the selector or the Airflow connection can't be used; or the
                previous delivery isn't ended.
            TransientBrokerError: The broker couldn't be reached within the timeout.
            PermanentBrokerError: The broker refuses the connection or the subscription.
        """
        self._check_open()
        key = (destination, message_selector)
        if (last := self._received.get(key)) is not None and not last.ended:
            raise ConfigurationError(
                f"the last delivery from {destination} isn't ended; expected returned() or raised() before "
                "the next receive, or consume() with a concurrency_mode for several at once"
            )
        try:
            async with asyncio.timeout(timeout):
                if key not in self._receiving:
                    fields = {} if message_selector is None else {"message_selector": message_selector}
                    self._receiving[key] = await self.consume(destination, **fields)
                delivery = self._received[key] = await anext(self._receiving[key])
                return delivery
        except TimeoutError:
            if key in self._receiving and self._receiving[key].consuming.is_set():
                return None
            raise TransientBrokerError(
                f"{destination} over connection {self._hook.jms_conn_id!r}: the broker couldn't be reached "
                f"within {timeout:g} s; the log says why"
            ) from None

    async def consume(self, spec: str | ActivationSpec | Mapping[str, Any], **fields: Any) -> DeliveryStream:
        """Return the deliveries of a destination, for `async for`.

        Options apply as for a listener: the spec's override those of the Airflow connection and `[jmsjca]`.
        The spec's `concurrency_mode` sets the maximum number of in-flight deliveries, by default 1.

        Args:
            spec: A destination as for `send`, an `ActivationSpec`, or its fields.
            **fields: Further fields of the spec: `message_selector`, `redelivery_handling`,
                `concurrency_mode`, `prefetch` ...

        Raises:
            ConfigurationError: Names every fault in the spec, the Airflow connection and `[jmsjca]`; or the
                spec has an option that only listeners support.
            TransientBrokerError: Airflow can't be queried for its connection now.
        """
        self._check_open()
        return await self._stream(_spec_of(spec, fields))

    async def aclose(self) -> None:
        """Close the streams: settle the messages of returned deliveries, and hand all others back.

        Closing twice is harmless.

        Guarantee: returns within half a second. If the broker doesn't answer in time, a thread continues the
        close. Every stream is closed, even if the caller is cancelled during the close.
        """
        self._closed = True
        streams, self._streams = self._streams, []
        # Each stream is closed by its own asyncio task, which continues if this one is cancelled.
        await asyncio.gather(*(asyncio.shield(start_uncancelled(stream.aclose())) for stream in streams))

    async def _stream(self, spec: ActivationSpec) -> DeliveryStream:
        layer = spec.layer()

        async def find() -> tuple[ActivationSpec, ConnectionSettings]:
            resolved = await self._hook.aresolved(layer)
            effective = with_lookups(ActivationSpec.from_resolved(resolved), variables=False)
            settings = settings_for(self._hook.jms_conn_id, resolved)
            return effective, with_client_id_of(settings, effective, "")

        async def find_settings() -> ConnectionSettings:
            return (await find())[1]

        effective, settings = await find()
        listener = listener_settings(effective, ListenerContext(find=_find).over(settings))
        connection = AsyncConnection(find_settings, minimal_logging=effective.minimal_reconnect_logging)
        stream = DeliveryStream(listener, connection)
        self._check_open()
        self._streams.append(stream)
        return stream

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigurationError("the connection is closed")


def _spec_of(given: str | ActivationSpec | Mapping[str, Any], fields: Mapping[str, Any]) -> ActivationSpec:
    if isinstance(given, ActivationSpec):
        return given.replace(**fields) if fields else given
    if not isinstance(given, str):
        return ActivationSpec(**{**given, **fields})
    text = given if "://" in given else f"queue://{given}"
    return ActivationSpec(**{"destination": text, **fields})
