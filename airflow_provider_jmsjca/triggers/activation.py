"""Starts DAGs when messages arrive."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Hashable, Mapping
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from airflow.triggers.shared_stream import SharedStreamProducer, reject_shared_stream_event

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.hooks.destinations import find_destination
from airflow_provider_jmsjca.triggers.options import (
    DEFAULT_REDELIVERY_HANDLING,
    ActivationOptions,
    EventMode,
)
from airflow_provider_jmsjca.triggers.payload import Payload, body_exceeds, message_event, ready_event
from airflow_provider_jmsjca.triggers.producers import Handed, MessageProducer, ReadyProducer, closing

log = logging.getLogger(__name__)

DEFAULT_MAX_BODY_BYTES = 262_144


class JmsActivationTrigger(BaseEventTrigger):
    """Watches a destination for an `AssetWatcher`.

    Two kinds of event:

    - `event="message"`: every message is an event and is consumed by it. The message is acknowledged after
      Airflow has stored the event: nothing is lost when the triggerer, the broker or the network dies. A
      message redelivered in the life of a triggerer makes no second event; after a crash of the triggerer
      the last few may, with the same `message_id`.
    - `event="ready"`: messages are there. Nothing is consumed; a task of the DAG, such as
      `JmsToSparkSubmitOperator`, drains the queue. While messages are there, an event comes every `interval`
      seconds; less and less often, down to every 5 minutes, while nobody consumes the first of them. Set
      `max_active_runs=1` on the DAG: Airflow then folds all events that come during a run into one further
      run, so that 50,000 messages make a few runs, and a message that arrives while a run is ending still
      gets its own.

    To look, ActiveMQ Classic is browsed, which with the broker policy `persistJMSRedelivered` marks the first
    two messages as redelivered and counts that once, however often it is done. Artemis hands one message out
    and takes it back without counting or marking it. RabbitMQ marks that one message as redelivered, and
    quorum queues count it as delivered: there each look at the same message doubles the interval, up to an
    hour, so that a queue's delivery limit isn't reached by looking.

    Triggers with the same arguments share one subscription, and each of them gets every event. Triggers with
    different arguments on one queue compete for its messages, as JMS consumers do.

    Wrong arguments and refusals by the broker don't raise: they are logged, and tried again with growing
    pauses up to a minute, because Airflow would restart a trigger that raises every two seconds.

    In `dag.test()` Airflow runs triggers without storing events; then nothing is acknowledged and a consumed
    message goes back.

    Args:
        jms_conn_id: The Airflow connection.
        destination: `queue://name`, `topic://name`, the name of a queue, or `lookup://object` for an entry
            `destination.object` of `[jmsjca]`.
        message_selector: Only messages that match; `None` for all.
        subscription_name: Name of a durable subscription to a topic; also the client id, if the connection
            says none.
        prefetch: How many messages may await that their events are stored, 1 to 1000; a `prefetch` of the
            destination beats it.
        event: `"message"` or `"ready"`.
        interval: Seconds between two `ready` events while messages are there.
        payload: What an event carries: `"message"`, or `"headers"` for the message without its body, which
            is then gone when the message is acknowledged.
        max_body_bytes: A message whose body is larger as JSON is refused, unless `payload` is `"headers"`.
        dead_letter_destination: Where refused messages are moved to; `None` leaves them unsettled on the
            broker, with an error in the log. Where the redelivery handling ends with a move, they go there
            then.
        redelivery_handling: What happens to a message whose event Airflow didn't store, or that the broker
            repeats before that, by how often it came: `"3:5000; 10:move(queue:$.dead)"` waits 5 s from the
            third time on and moves it at the tenth. The default waits 1, 2, 5, 10 and 30 seconds, then 30 for
            ever, and never moves or deletes.

    Source: J46-J64, J128-J148; JMS 2.0 section 8.7.
    """

    def __init__(
        self,
        jms_conn_id: str = "jms_default",
        destination: str = "",
        message_selector: str | None = None,
        *,
        subscription_name: str | None = None,
        prefetch: int = 100,
        event: str = EventMode.MESSAGE,
        interval: float = 10,
        payload: str = Payload.MESSAGE,
        max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
        dead_letter_destination: str | None = None,
        redelivery_handling: str = DEFAULT_REDELIVERY_HANDLING,
    ) -> None:
        # Nothing is checked here: whatever a constructor raises stops the whole triggerer.
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's own is untyped
        self._arguments: dict[str, Any] = {
            "jms_conn_id": jms_conn_id,
            "destination": destination,
            "message_selector": message_selector,
            "subscription_name": subscription_name,
            "prefetch": prefetch,
            "event": _plain(event),
            "interval": interval,
            "payload": _plain(payload),
            "max_body_bytes": max_body_bytes,
            "dead_letter_destination": dead_letter_destination,
            "redelivery_handling": redelivery_handling,
        }

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        return f"{type(self).__module__}.{type(self).__qualname__}", dict(self._arguments)

    def shared_stream_key(self) -> Hashable:
        """Return what decides which events come: all but how they are written down."""
        try:
            ActivationOptions.parse(self._arguments)
        except ConfigurationError:
            # A stream of its own, which says what is wrong.
            names = tuple(self._arguments)
        else:
            names = _STREAM_ARGUMENTS
        return (self.serialize()[0], *(repr(self._arguments[name]) for name in names))

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        """Return the broker's side, in Airflow's ack mode."""
        return _producer(kwargs, patient=True)

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        """Yield an event for each thing the stream brings."""
        async for raw in shared_stream:
            event = self._event(raw)
            if event is None:
                reject_shared_stream_event()
                continue
            if raw is not None:
                raw.open += 1
            yield event
            if raw is not None:  # not reached if we are cancelled before Airflow has taken the event
                raw.open -= 1
            if self.task_instance is not None:
                # A deferred task takes one event. To go on would lose messages, to return would lose the
                # acknowledgement: Airflow cancels us when it has stored the event.
                await asyncio.Event().wait()

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event, then wait to be cancelled; for `dag.test()`, which runs nothing but this.

        Raises:
            ConfigurationError: The arguments or the connection can't be used.
            PermanentBrokerError: The broker refuses.
        """
        async with closing(_producer(self._arguments, patient=False)) as producer:
            async for raw, _ in producer.open_stream():
                event = self._event(raw)
                if event is None:
                    continue
                yield event
                await asyncio.Event().wait()

    def _event(self, raw: Handed | None) -> TriggerEvent | None:
        """Return the event, or `None` if the message is refused."""
        conn_id = str(self._arguments["jms_conn_id"])
        destination = find_destination(self._arguments["destination"], variables=False)
        if raw is None:
            return TriggerEvent(ready_event(conn_id, destination))
        message = raw.message
        form = Payload(self._arguments["payload"])
        limit = int(self._arguments["max_body_bytes"])
        if form is Payload.MESSAGE and body_exceeds(message, limit):
            log.error(
                "The body of message %s on %s exceeds max_body_bytes (%d); payload='headers' would leave it "
                "out, event='ready' leaves the message to a task",
                message.message_id,
                destination,
                limit,
            )
            return None
        return TriggerEvent(message_event(conn_id, destination, message, form))


_STREAM_ARGUMENTS = (
    "jms_conn_id",
    "destination",
    "message_selector",
    "subscription_name",
    "prefetch",
    "event",
    "interval",
    "dead_letter_destination",
    "redelivery_handling",
)


def _producer(arguments: Mapping[str, Any], *, patient: bool) -> SharedStreamProducer:
    def parse() -> ActivationOptions:
        return ActivationOptions.parse(arguments)

    if arguments["event"] == EventMode.READY:
        return ReadyProducer(parse, patient=patient)
    return MessageProducer(parse, patient=patient)


def _plain(value: Any) -> Any:
    """Return enums as text: Airflow compares triggers by their serialized arguments."""
    return str(value) if isinstance(value, str) else value
