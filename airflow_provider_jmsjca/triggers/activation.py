"""Starts DAGs when messages arrive."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import math
import time
import uuid
import warnings
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.sdk import Asset, AssetWatcher
from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from airflow.triggers.shared_stream import SharedStreamProducer, reject_shared_stream_event

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import ConfigurationError, JmsError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.triggers.activation_options import (
    DEFAULT_HOLD_TIMEOUT,
    DEFAULT_INTERVAL,
    DEFAULT_MAX_BODY_BYTES,
    ActivationOptions,
    plain,
)
from airflow_provider_jmsjca.triggers.holding import AssetStore, Hold, read_key, record_key
from airflow_provider_jmsjca.triggers.payload import (
    HELD_KEY,
    EventMode,
    Fit,
    Payload,
    batch_event,
    fit,
    held_event,
    may_be_held,
    message_content,
    message_event,
    ready_event,
    with_receipt,
)

# The processor of DAG files imports this module for every DAG with an asset watcher, and runs no trigger.
# Modules that only a running trigger needs are imported in its methods.
if TYPE_CHECKING:
    from airflow_provider_jmsjca.engine.delivering.loop.stream import StreamDelivery
    from airflow_provider_jmsjca.triggers.producers import OutstandingEvent

log = safe_logger(__name__)


class JmsActivationTrigger(BaseEventTrigger):
    """Watches a destination for an `AssetWatcher`.

    Two kinds of event:

    - `event="message"`: messages are consumed. Each message becomes an event, or, with `batch_size`, each
      batch of messages. The messages of an event are acknowledged together, after Airflow has stored the
      event. No message is lost when the triggerer, the broker or the network fails. A message that is
      redelivered while the triggerer runs creates no second event. If the triggerer crashes while an event
      is being stored, its messages may create a second event with the same `message_id`.
    - `event="ready"`: the queue has messages. They are not consumed; a task of the DAG, such as
      `JmsToSparkSubmitOperator`, drains the queue. While the queue has messages, there is an event every
      `interval` seconds. While the first message stays the same, events become rarer, down to one in 5
      minutes. Set `max_active_runs=1` on the DAG: Airflow then combines all events during a DAG run into
      one further DAG run. So 50,000 messages make a few DAG runs. A message that arrives while a DAG run is
      ending still starts another DAG run.

    With `hold_until_ack=True` each event has its own DAG run. The message is acknowledged when the DAG runs
    of all DAGs on the asset have succeeded. A `JmsAcknowledgeOperator` in one of them can acknowledge it
    earlier. When a DAG run fails, or after `hold_timeout`, the redelivery handling applies. Up to `prefetch`
    messages wait in the triggerer and occupy no worker. After a restart of the triggerer, a message is
    redelivered, waits for its DAG run again, and makes no second event. The redelivery handling counts only
    failures then, not deliveries by the broker. A DAG that has no run at the end of `hold_timeout` doesn't
    delay the acknowledgement. If several assets are watched with equal arguments, the DAG runs of all of
    them have to succeed.

    Probing a queue differs by broker. ActiveMQ Classic is browsed. With the broker policy
    `persistJMSRedelivered` this marks the first two messages as redelivered. It adds one to their delivery
    counts, however often they are browsed. Artemis delivers one message and takes it back without counting or
    marking it. RabbitMQ marks that one message as redelivered, and quorum queues count a delivery. There each
    probe of the same message doubles the interval, up to an hour. So probes alone reach a queue's delivery
    limit late: 20 probes take half a day.

    Triggers with the same arguments share one subscription, and each of them gets every event. Triggers with
    different arguments on one queue compete for its messages, as JMS consumers do.

    Invalid arguments and refusals by the broker don't raise, because Airflow would restart the trigger every
    two seconds. They are logged and retried with growing pauses, up to a minute. Invalid arguments also cause
    a `UserWarning` when the DAG is parsed.

    Where this installation has a store, the trigger is listed by `airflow jms activations list`. A user
    can suspend, drain or stop it. It then has no subscription and makes no events, but
    stays registered in Airflow. It subscribes again when it is resumed.

    Use the trigger only in an `AssetWatcher`, and not to defer a task of your own. The trigger can't check
    whether its event reached that task. If the task is cleared or times out at that moment, the message is
    lost. `JmsSensor(peek=False)` and `JmsListenOperator` don't lose it.

    In `dag.test()` Airflow runs triggers without storing events. Then nothing is acknowledged, and a consumed
    message returns to the broker.

    The trigger is an activation. Its activation spec is given as `spec`, as single fields, or both. Options
    of the connection and of `[jmsjca]`, such as redelivery, selectors and prefetch, apply as for a listener.
    By default, up to `prefetch` events are stored at once (`concurrency_mode` cc), and the pauses between
    redeliveries grow. With `concurrency_mode="serial"` each event is created after the previous one was
    stored. Options that a trigger doesn't support are refused by name: an in-progress queue, a consumer on
    every member, replies.

    Args:
        jms_conn_id: The Airflow connection; `None` takes the connection of the spec.
        destination: `queue://name`, `topic://name`, the name of a queue, or `lookup://object` for an entry
            `destination.object` of `[jmsjca]`. Several destinations, in a list or with `;` between them, take
            turns.
        message_selector: Selects the messages; `None` for all. Parameters such as `${region}` are replaced.
        spec: An `ActivationSpec`, or its fields. Secrets are refused, because Airflow stores and shows it.
        subscription_name: Name of a durable subscription to a topic; also the client id, if the connection
            has no client id.
        prefetch: Maximum number of in-flight messages, until their events are stored, 1 to 1000; 500 by
            default, 100 with `hold_until_ack`. A `prefetch` of the destination takes precedence.
        event: `"message"` or `"ready"`.
        interval: Seconds between two `ready` events while the queue has messages.
        payload: Content of an event. `"message"`: the whole message. `"reference"`: the headers, and a
            reference to the whole message in the spool (`[jmsjca] spool_path`). `"headers"`: the message
            without its body, which is lost when the message is acknowledged.
            `message_from_event` reads the first two, `messages_from_event` batches.
        max_body_bytes: With `payload="message"`, maximum size of body and properties as JSON; a larger
            message is passed by reference. A message is refused if its properties alone are larger.
        hold_timeout: With `hold_until_ack=True`: seconds after which an unacknowledged message counts as
            failed. The time is counted from the start of the message's DAG run or, without a DAG run, from
            the storing of the event. It starts again when the trigger restarts. While the message has no DAG
            run, the time also starts again with each other DAG run for held messages. So messages that wait
            for their turn don't fail.
        dead_letter_destination: Destination of refused messages. By default they go to the target of the
            redelivery handling's move. Without such a target they stay unsettled on the broker, with an error
            in the log.
        redelivery_handling: Actions by the number of deliveries. They apply to a message if Airflow didn't
            store its event, or if the broker redelivers it before that. For example,
            `"3:5000; 10:move(queue:$.dead)"` waits 5 s from the third delivery on, and moves the message at
            the tenth. If no level sets it, the pauses are 1, 2, 5, 10 and then always 30 seconds, and
            messages are never moved or deleted.
        **fields: Any other field of an activation spec, under any of its spellings:
            `unsubscribed_destination`, `redelivery_redirect`, `archive_destination` ... With a `batch_size`
            above 1 an event has up to this many messages. It is created when they have arrived, when they
            exceed 1 MiB, or `batch_timeout` seconds after the first. Without a `batch_timeout` it is created
            when no message arrived for `batch_idle_timeout` (0.1 seconds by default).

    Source: JMS 2.0 section 8.7.
    """

    def __init__(
        self,
        jms_conn_id: str | None = None,
        destination: str | Sequence[str] | None = None,
        message_selector: str | None = None,
        *,
        spec: ActivationSpec | Mapping[str, Any] | None = None,
        subscription_name: str | None = None,
        prefetch: int | None = None,
        event: str = EventMode.MESSAGE,
        interval: float = DEFAULT_INTERVAL,
        payload: str = Payload.MESSAGE,
        max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
        hold_timeout: float = DEFAULT_HOLD_TIMEOUT,
        dead_letter_destination: str | Sequence[str] | None = None,
        redelivery_handling: str | None = None,
        **fields: Any,
    ) -> None:
        # Nothing is raised here: an exception in a constructor stops the whole triggerer.
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's own is untyped
        given: dict[str, Any] = {
            "jms_conn_id": jms_conn_id,
            "destination": destination,
            "message_selector": message_selector,
            "spec": spec,
            "subscription_name": subscription_name,
            "prefetch": prefetch,
            "event": event,
            "interval": interval,
            "payload": payload,
            "max_body_bytes": max_body_bytes,
            "hold_timeout": hold_timeout,
            "dead_letter_destination": dead_letter_destination,
            "redelivery_handling": redelivery_handling,
        }
        self._arguments = {name: plain(name, value) for name, value in (given | fields).items()}
        # By asset: the time of the last query for its list of held messages, and the list.
        self._lists: dict[str, tuple[float, Any]] = {}
        _warn_of_faults(self._arguments)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        return f"{type(self).__module__}.{type(self).__qualname__}", dict(self._arguments)

    def watched_asset(self, name: str, **arguments: Any) -> Asset:
        """Return an asset that this trigger watches; its page in Airflow shows connection and destination.

        Airflow shows the `extra` of an asset, on its page and in the REST API, but no trigger arguments.
        So `extra` gets `jms_conn_id` and `destination`, unless it has these keys already.

        Args:
            name: Name of the asset; also of its watcher.
            **arguments: Other arguments of `Asset`: `uri`, `group`, `extra`.
        """
        try:
            options = ActivationOptions.parse(self._arguments)
            shown = {"jms_conn_id": options.jms_conn_id, "destination": options.title}
        except ConfigurationError:
            shown = {}  # the constructor has warned of the faults
        arguments["extra"] = {**shown, **(arguments.get("extra") or {})}
        return Asset(name=name, watchers=[AssetWatcher(name=name, trigger=self)], **arguments)

    def shared_stream_key(self) -> Hashable:
        """Return the key of the shared stream of events.

        Triggers get the same key if they differ only in the arguments for the form of events.
        """
        path = self.serialize()[0]
        try:
            return path, ActivationOptions.parse(self._arguments).key
        except ConfigurationError:
            # A stream of its own, which reports the faults.
            return path, repr(sorted(self._arguments.items()))

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        """Return the producer of the shared stream; Airflow tells it which events are stored ("ack mode")."""
        # Constructed from all arguments, so that omitted ones have their defaults.
        _, arguments = (made := cls(**kwargs)).serialize()
        key = made.shared_stream_key()

        def followers() -> Sequence[_Follower]:
            return _followers.get(key, ())

        return _producer(
            arguments,
            retry=True,
            recipients=lambda: _named([each.name for each in followers()]),
            stores=lambda: {name: store for each in followers() for name, store in each.stores.items()},
        )

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        """Yield an event for each item of the stream."""
        with self._following():
            async for raw in shared_stream:
                if isinstance(raw, Destination):
                    yield TriggerEvent(ready_event(self._conn_id, raw))
                else:
                    # `open` stays above 0 if this trigger is cancelled before Airflow has taken the event.
                    raw.open += 1
                    event = await self._event(raw)
                    if event is None:
                        raw.open -= 1
                        if len(raw.refused) == len(raw.deliveries):
                            reject_shared_stream_event()
                        continue
                    raw.yielded = True
                    yield event
                    raw.open -= 1
                if self.task_instance is not None:
                    # A deferred task takes one event, so further messages would be lost. The trigger waits
                    # until Airflow has stored the event and cancels it. A return would end the trigger before
                    # the message can be acknowledged.
                    await asyncio.Event().wait()

    @contextlib.contextmanager
    def _following(self) -> Iterator[None]:
        """Register this trigger within the context as one that gets the events of the stream."""
        key, follower = self.shared_stream_key(), _Follower(self._recipients, self._stores())
        followers = _followers.setdefault(key, [])
        followers.append(follower)
        try:
            yield
        finally:
            followers.remove(follower)
            if not followers and _followers.get(key) is followers:
                del _followers[key]

    @property
    def _recipients(self) -> str:
        """The task or the assets that get the events, for the log."""
        if self.task_instance is not None:
            return f"task {self.task_instance.dag_id}.{self.task_instance.task_id}"
        return ", ".join(f"asset {name!r}" for name in self._stores()) or f"trigger {self.trigger_id}"

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event, then wait to be cancelled; only `dag.test()` calls it.

        Raises:
            ConfigurationError: The arguments or the connection are invalid.
            PermanentBrokerError: The broker refuses.
        """
        from airflow_provider_jmsjca.triggers.producers import closing  # noqa: PLC0415 - not at parse time

        async with closing(
            _producer(self._arguments, retry=False, recipients=lambda: self._recipients)
        ) as producer:
            async for raw, _ in producer.open_stream():
                if isinstance(raw, Destination):
                    event: TriggerEvent | None = TriggerEvent(ready_event(self._conn_id, raw))
                else:
                    event = await self._event(raw)
                    if raw.fault is not None:
                        raise raw.fault
                    raw.yielded = True
                if event is None:
                    continue
                yield event
                await asyncio.Event().wait()

    @functools.cached_property
    def _conn_id(self) -> str:
        return ActivationOptions.parse(self._arguments).jms_conn_id

    async def _event(self, outstanding: OutstandingEvent) -> TriggerEvent | None:
        """Return the event for Airflow, with those messages that need a new event.

        A message that waits for the DAG run of a stored event needs no new event. A message that is too large
        is refused.

        Returns:
            `None` if no message is left. Also `None`, with `outstanding.fault` set, if the event can't be
            created.
        """
        contents: dict[StreamDelivery, dict[str, Any]] = {}
        try:
            for delivery in outstanding.deliveries:
                if self._holds and (found := await self._stored_holds(delivery, outstanding.received)):
                    outstanding.holds.setdefault(delivery, []).extend(found)
                    continue
                content = await self._content(delivery.message, delivery.destination)
                if content is None:
                    outstanding.refused.add(delivery)
                else:
                    contents[delivery] = content
        except JmsError as error:
            outstanding.fault = error
            return None
        if not contents:
            return None
        bodies = list(contents.values())
        event = (
            batch_event(self._conn_id, bodies)
            if outstanding.batch
            else message_event(self._conn_id, bodies[0])
        )
        if self._holds:
            return TriggerEvent(self._add_holds(event, outstanding, list(contents)))
        return TriggerEvent(self._with_receipt(event, outstanding))

    @functools.cached_property
    def _holds(self) -> bool:
        """Whether messages are held until their DAG runs end."""
        return ActivationOptions.parse(self._arguments).holds

    async def _stored_holds(self, delivery: StreamDelivery, received: float) -> list[Hold]:
        """Return a message's waits for DAG runs (`Hold`) if its event is stored already, else an empty list.

        Airflow answers one query at a time, and each takes as long as storing an event. So one read of the
        list of held messages serves all messages that were received before it.

        Args:
            delivery: The message.
            received: Time of its receipt, by the monotonic clock.

        Raises:
            JmsError: No asset is watched, or Airflow is not reachable.
        """
        stores = self._stores()
        if not stores:
            raise ConfigurationError(
                "hold_until_ack works only for the trigger of an AssetWatcher: other triggers start no DAG "
                "runs"
            )
        key = record_key(delivery.message, delivery.destination)
        if key is None:
            return []
        holds = [
            await Hold.found(name, store, key)
            for name, store in stores.items()
            if may_be_held(await self._listed(name, store, received), key)
        ]
        return [each for each in holds if each is not None]

    async def _listed(self, asset: str, store: AssetStore, received: float) -> Any:
        """Return the list of an asset's held messages, read at `received` or later."""
        looked, listed = self._lists.get(asset, (-math.inf, None))
        if looked <= received:
            looked = time.monotonic()
            listed = await read_key(store, HELD_KEY)
            self._lists[asset] = looked, listed
        return listed

    def _add_holds(
        self, event: dict[str, Any], outstanding: OutstandingEvent, deliveries: Sequence[StreamDelivery]
    ) -> dict[str, Any]:
        """Give an event a token, by which its outcome is stored, and hold its messages.

        Args:
            event: The event without a token.
            outstanding: Gets the holds of the messages.
            deliveries: The messages in the event.

        Returns:
            The event with the token.
        """
        token, since, of = uuid.uuid4().hex, time.time(), len(deliveries)
        keys = {each: record_key(each.message, each.destination) for each in deliveries}
        for delivery, key in keys.items():
            outstanding.holds.setdefault(delivery, []).extend(
                Hold(asset=asset, store=store, key=key, token=token, of=of, since=since)
                for asset, store in self._stores().items()
            )
        return held_event(event, token, of, [key for key in keys.values() if key is not None])

    def _with_receipt(self, event: dict[str, Any], outstanding: OutstandingEvent) -> dict[str, Any]:
        """Return the event with the key, stream and number of its receipt (`receipts.Receipt`).

        If no asset is watched, there is no receipt, and the event is returned unchanged.
        """
        from airflow_provider_jmsjca.triggers.receipts import Receipt  # noqa: PLC0415 - not at parse time

        stores = self._stores()
        if not stores:
            return event
        receipt = Receipt(stores, self._receipt_key, outstanding.stream, outstanding.number)
        outstanding.receipts.append(receipt)
        return with_receipt(event, receipt.key, receipt.stream, receipt.number)

    @functools.cached_property
    def _receipt_key(self) -> str:
        arguments = json.dumps(self.serialize(), sort_keys=True, default=str)
        return f"jms-stored.{hashlib.sha256(arguments.encode()).hexdigest()[:16]}"

    def _stores(self) -> dict[str, AssetStore]:
        """Return Airflow's state stores of the assets that watch with this trigger, by the asset's name."""
        # Airflow has no public list of the assets that watch a trigger.
        stores = self.asset_state_store
        if stores is None:
            return {}
        return {name: stores[Asset(name)] for name in vars(stores).get("_by_name", {})}

    async def _content(self, message: JmsMessage, destination: Destination) -> dict[str, Any] | None:
        """Return the content of an event for a message; `None` if it is too large.

        Raises:
            JmsError: The message can't be written to the spool.
        """
        from airflow_provider_jmsjca.triggers.references import seal  # noqa: PLC0415 - not at parse time

        form = Payload(self._arguments["payload"])
        limit = int(self._arguments["max_body_bytes"])
        match fit(message, limit, form):
            case Fit.WHOLE:
                return message_content(destination, message, form)
            case Fit.SEALED:
                reference = await seal(message)
                return message_content(destination, message, Payload.REFERENCE) | {"reference": reference}
            case Fit.NOT:
                log.error(
                    "The properties of message %s on %s (connection %r, %s) exceed max_body_bytes (%d); "
                    "use event='ready' and let a task read it, or raise max_body_bytes",
                    message.message_id,
                    destination,
                    self._conn_id,
                    self._recipients,
                    limit,
                )
                return None


class _Follower(NamedTuple):
    """A trigger that gets the events of a stream: its name in the log, and the state stores of its assets."""

    name: str
    stores: Mapping[str, AssetStore]


# The followers of each stream in this triggerer.
_followers: dict[Hashable, list[_Follower]] = {}


def _named(followers: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(followers)) or "nobody any more"


def _warn_of_faults(arguments: Mapping[str, Any]) -> None:
    """Warn of invalid arguments while the DAG is parsed."""
    try:
        ActivationOptions.parse(arguments).check()
    except ConfigurationError as error:
        # Not where warnings are errors: an exception would stop the triggerer.
        with contextlib.suppress(UserWarning):
            warnings.warn(str(error), UserWarning, stacklevel=3)


def _producer(
    arguments: Mapping[str, Any],
    *,
    retry: bool,
    recipients: Callable[[], str],
    stores: Callable[[], Mapping[str, AssetStore]] = dict,
) -> SharedStreamProducer:
    from airflow_provider_jmsjca.triggers.producers import (  # noqa: PLC0415 - not at parse time
        MessageProducer,
        ReadyProducer,
    )

    def parse() -> ActivationOptions:
        return ActivationOptions.parse(arguments)

    if arguments["event"] == EventMode.READY:
        return ReadyProducer(parse, retry=retry, recipients=recipients, stores=stores)
    return MessageProducer(parse, retry=retry, recipients=recipients, stores=stores)
