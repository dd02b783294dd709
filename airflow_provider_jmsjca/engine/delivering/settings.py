"""Settings of a listener, made from an activation spec."""

from __future__ import annotations

import hashlib
import inspect
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final, Self, TypeAlias, TypeVar

from airflow_provider_jmsjca.core import prefetch
from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.backoff import Backoff
from airflow_provider_jmsjca.core.configuration.administered import DISCARD, destination_named, is_discard
from airflow_provider_jmsjca.core.configuration.destination_options import prefetch_of
from airflow_provider_jmsjca.core.copies.in_progress import StagedFrom, run_selector, staged_copy
from airflow_provider_jmsjca.core.delivery.settings import DeliverySettings, OutageSettings
from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.options import OPTIONS_BY_NAME
from airflow_provider_jmsjca.core.options.choices import (
    BeanAcknowledge,
    ConcurrencyMode,
    ContainerManagedEvents,
    DistributedDestinationConnection,
    InDoubtEvents,
)
from airflow_provider_jmsjca.core.redelivery import Delete, Move, MoveTarget, RedeliveryHandling
from airflow_provider_jmsjca.core.selector import Selector
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.store.base import LIMBO_TRIES, Store
from airflow_provider_jmsjca.transports.base import Connection, ConnectionSettings, Outgoing, Subscription
from airflow_provider_jmsjca.transports.settings import warn_once

_log = safe_logger(__name__)

_ROUTES = (
    "archive_destination",
    "error_destination",
    "unsubscribed_destination",
    "in_progress_destination",
    "source_queue",
)
_SHOWN: Final = 40
_EVERY_EXCEPTION = "builtins.BaseException"

Subscribes: TypeAlias = Callable[[JmsMessage], bool]

_F = TypeVar("_F", bound=Callable[..., object])
_KINDS = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)


def plain_function(what: str, function: _F) -> _F:
    """Return the function unchanged, after a check that it is neither asynchronous nor a generator.

    Args:
        what: Name of the function, for the error.
        function: The user's function.

    Raises:
        ConfigurationError: A call would only create a coroutine or a generator, which would never run.
    """
    for each in (function, getattr(function, "__call__", None)):  # noqa: B004 - of an object it is a method
        if any(is_kind(each) for is_kind in _KINDS):
            raise ConfigurationError(
                f"{what} is asynchronous or a generator, so calling it does nothing; expected a plain "
                "function. In it, asyncio.run(...) runs a coroutine"
            )
    return function


def refuse_unrun(what: str, result: object) -> None:
    """Refuse a coroutine or generator that a function returned instead of doing its work.

    Raises:
        ConfigurationError: The result is a coroutine or a generator.
    """
    if not (inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result)):
        return
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()
    raise ConfigurationError(
        f"{what} returned a {type(result).__name__}, which is never run, so nothing was done; expected a "
        "plain function"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class InProgress:
    """The queue that holds messages while they are handled, and the treatment of messages left there.

    Attributes:
        destination: The queue; activations that run at the same time must not share it.
        events: Treatment of messages that another run left on the queue.
        prefetch: Prefetch of the subscription to the queue; see `Subscription.prefetch`.
        run: Identifies this run, whose own messages on the queue aren't in doubt.

    Source: I9-I14, I52.
    """

    destination: Destination
    events: InDoubtEvents = InDoubtEvents.REPROCESS
    prefetch: int | None = None
    run: str = field(default_factory=lambda: uuid.uuid4().hex)

    def subscription(self, connection: Connection) -> Subscription:
        """Return the subscription to the queue.

        Unless `events` is `REPROCESS`, it selects only messages of this run, if the broker has selectors.
        """
        own = self.events is not InDoubtEvents.REPROCESS and connection.capabilities.selector
        return Subscription(
            destination=self.destination,
            selector=run_selector(self.run) if own else None,
            prefetch=self.prefetch,
        )

    def outgoing(self, message: JmsMessage, source: Destination) -> Outgoing:
        """Return the copy of a message that is on the queue while the message is handled."""
        staged = StagedFrom(run=self.run, source=str(source))
        return Outgoing(destination=self.destination, message=staged_copy(message, staged))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitConsumers:
    """Consumers that each give their messages to one unit of work at a time, in order.

    With `Capabilities.cumulative_acknowledgement`, one acknowledgement settles a batch.

    Attributes:
        count: Number of consumers on the queue.
        prefetch: Prefetch of each consumer.
    """

    count: int
    prefetch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """The settings of a listener.

    Attributes:
        delivery: Rules for the delivery of messages.
        subscription: The first subscription.
        further: Subscriptions to the other destinations of `delivery`, in the order of `delivery.sources`.
        returns: The queue through which delayed messages of a durable subscription return; `None`: delayed
            messages return to their destination.
        receivers: Number of consumers on each queue: several with concurrency mode `sync`, otherwise one.
        unit_consumers: Consumers of batches on brokers where one acknowledgement settles a batch; `None`:
            batches use the ordinary consumers on every broker.
        pool_initial: Number of threads that don't end while idle; at most the concurrency.
        pool_idle_timeout: Further threads end after this time without work; `None`: never.
        confirm_acknowledgements: Wait after each message until the broker has confirmed its acknowledgement.
            Otherwise acknowledgements are sent together; after a crash, unconfirmed messages are redelivered.
        transacted: Messages of a handler are sent when its delivery is committed; otherwise at once.
        retry_permanent_errors: Also connect again after errors that are usually permanent, such as wrong
            credentials or a missing destination.
        delete_durable: Delete the durable subscription at a clean stop.
        name: Name of the listener in the log and in names of threads.
        context_name: Added to the log context of each delivery; `None`: no context name.
        principal: User name of the connection.
        client_id: JMS client id that dead letters name.
        archive: Receives a copy of each handled message, in the unit of work that settles the message.
        source_queue: Receives a copy of each handled message in the same unit of work, for the next consumer
            of events.
        drop_duplicates: Acknowledge a message with an already handled id instead of delivering it.
        reply_to: Default reply destination of messages that a handler sends.
        result_property: Message property that holds the result, if the messages are answers to requests;
            `None`: they aren't.
        subscribes: Returns whether a message has a subscriber; `None`: every message has one. The function
            must be quick and must not block, because other messages wait for it. A message for which it
            raises is poison.
        store: Keeps attempts across restarts, and the ids of handled messages if duplicates are dropped;
            `None`: nothing outlives the run.
        jms_conn_id: The Airflow connection over which messages in limbo are sent later; empty: there is no
            limbo.
        in_doubt: Treatment of messages that another process was handling when it died, as recorded in the
            store.
        limbo_tries: Maximum number of attempts to send a message from limbo; after that it stays there as
            failed.
        balanced: The activation's queue holds copies made by load balancing. Handlers see them as they were
            published. Only then is the origin in a message's properties trusted.
        in_progress: The queue that holds messages while they are handled; `None`: they stay in their own
            queue.
        find: Returns the destination for a name to which a handler sends.
        url: Address of the broker, without secrets; for `management.properties`.
        whole: Name in the store for all parts that start and stop together, such as all members; empty: the
            name of this listener.
        spec: The activation spec.
    """

    delivery: DeliverySettings
    subscription: Subscription
    further: tuple[Subscription, ...] = ()
    returns: Subscription | None = None
    receivers: int = 1
    unit_consumers: UnitConsumers | None = None
    pool_initial: int = 1
    pool_idle_timeout: timedelta | None = None
    confirm_acknowledgements: bool = False
    transacted: bool = True
    retry_permanent_errors: bool = False
    delete_durable: bool = False
    name: str = "jms"
    context_name: str | None = None
    principal: str | None = None
    client_id: str | None = None
    archive: Destination | None = None
    source_queue: Destination | None = None
    drop_duplicates: bool = False
    store: Store | None = field(default=None, repr=False, compare=False)
    jms_conn_id: str = ""
    in_doubt: InDoubtEvents = InDoubtEvents.REPROCESS
    limbo_tries: int = LIMBO_TRIES
    balanced: bool = False
    reply_to: Destination | None = None
    result_property: str | None = None
    subscribes: Subscribes | None = None
    in_progress: InProgress | None = None
    find: Callable[[str], Destination] = field(default=destination_named, repr=False, compare=False)
    url: str = ""
    whole: str = ""
    spec: ActivationSpec | None = field(default=None, repr=False)
    threads: int = field(init=False)
    copies: tuple[Destination, ...] = field(init=False)
    subscriptions: tuple[Subscription, ...] = field(init=False)

    @property
    def has_limbo(self) -> bool:
        """Whether messages can be put in limbo."""
        return self.store is not None and bool(self.jms_conn_id)

    def __post_init__(self) -> None:
        delivery = self.delivery
        # A batch keeps its thread; one more receives, moves and records.
        threads = delivery.concurrency + (delivery.batch_size > 1)
        object.__setattr__(self, "threads", threads)
        copies = tuple(each for each in (self.archive, self.source_queue) if each is not None)
        object.__setattr__(self, "copies", copies)
        object.__setattr__(self, "subscriptions", (self.subscription, *self.further))


def _warn_without_effect(spec: ActivationSpec) -> None:
    if spec.without_effect:
        warn_once(_log, f"Activation {spec.title}: {'; '.join(spec.without_effect)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerContext:
    """Context of a listener in addition to its spec: values of the connection and of the calling code.

    Attributes:
        client_id: JMS client id of the connection.
        principal: User name of the connection.
        url: Address of the broker, without secrets.
        confirm_acknowledgements: See `ListenerSettings`; the spec can also turn it on.
        non_blocking_redelivery: Messages delayed by more than 5 seconds wait at the broker or in limbo
            (`DeliverySettings.non_blocking_redelivery`); the spec can also turn it on.
        subscribes: The listener's own filter of messages, in addition to the selector.
        find: See `ListenerSettings`.
        store: See `ListenerSettings`; used only for a spec with `use_store`.
        jms_conn_id: See `ListenerSettings`.
    """

    client_id: str | None = None
    principal: str | None = None
    url: str = ""
    confirm_acknowledgements: bool = False
    non_blocking_redelivery: bool = False
    subscribes: Subscribes | None = None
    find: Callable[[str], Destination] = field(default=destination_named, repr=False, compare=False)
    store: Store | None = field(default=None, repr=False, compare=False)
    jms_conn_id: str = ""

    def over(self, connection: ConnectionSettings) -> ListenerContext:
        """Return a copy with client id, user name and URL of a connection."""
        return replace(
            self, client_id=connection.client_id, principal=connection.username, url=connection.url
        )


def activation_name(title: str, url: str, durable_name: str | None, client_id: str | None) -> str:
    """Return the name of an activation in the store.

    All consumers of the activation share this name, and no other activation has it. Two subscriptions to a
    topic have different names, because they receive copies with the same ids.

    Args:
        title: The activation's name, or its destinations.
        url: Address of the broker, without secrets; its query is left out.
        durable_name: Name of the activation's durable subscription; `None`: it has none.
        client_id: JMS client id of that subscription.
    """
    name = f"{title} at {url.partition('?')[0]}" if url else title
    if durable_name is None:
        return name
    return f"{name}, subscription {durable_name} of {client_id or 'no client id'}"


BARE: Final = ListenerContext()
"""The context of a listener that has only a spec."""


def listener_settings(
    spec: ActivationSpec, context: ListenerContext = BARE, *, says_without_effect: bool = True
) -> ListenerSettings:
    """Return the settings of a listener for a spec, and log options without effect once.

    Args:
        spec: The spec in force.
        context: The listener's context.
        says_without_effect: Log the options without effect; off for a spec that is derived from the user's.

    Raises:
        ConfigurationError: The spec has options that a listener doesn't support.

    Source: J46-J63, J81-J84, W21-W26, I15-I17, I26, I39.
    """
    if says_without_effect:
        _warn_without_effect(spec)
    destination, *further = _destinations(spec)
    kept_in = _store_for(spec, destination, context.store)
    has_limbo = kept_in is not None and bool(context.jms_conn_id)
    routing = Routing.of(spec, context.subscribes, has_limbo=has_limbo)
    concurrency = max(spec.concurrency_for(each.kind) for each in (destination, *further))
    receivers = concurrency if spec.concurrency_mode is ConcurrencyMode.SYNC else 1
    unconfirmed = spec.transacted or spec.acknowledge_mode is BeanAcknowledge.DUPS_OK
    non_blocking_redelivery = context.non_blocking_redelivery or spec.non_blocking_redelivery
    parks_topic = (
        non_blocking_redelivery
        and not further
        and destination.kind is DestinationKind.TOPIC
        and spec.durable_name is not None
    )
    subscriptions = tuple(
        Subscription(
            destination=each,
            selector=routing.broker_selector,
            durable_name=spec.durable_name,
            prefetch=prefetch.for_activation(
                prefetch_of(each, spec.prefetch),
                is_topic=each.kind is DestinationKind.TOPIC,
                concurrency=concurrency,
                batch_size=spec.batch_size,
                receivers=receivers,
            ),
            # One message, or one batch, is settled before the next is looked at.
            in_order=concurrency == 1 and (spec.batch_size == 1 or _settle_in_order(spec, further)),
            one_of_several=(
                receivers > 1
                and spec.batch_size == 1
                and each.kind is DestinationKind.QUEUE
                and prefetch_of(each, spec.prefetch) is None
            ),
            alone=(
                not further and receivers == 1 and spec.in_progress_destination is None and not parks_topic
            ),
        )
        for each in (destination, *further)
    )
    returns = None
    if parks_topic:
        queue = _returns_queue(destination, spec.durable_name or "", context.client_id)
        returns = Subscription(destination=queue, prefetch=subscriptions[0].prefetch)
    in_progress = _in_progress(spec, subscriptions[0].prefetch)
    return ListenerSettings(
        delivery=DeliverySettings(
            destination=destination,
            further=tuple(further),
            quantity=spec.poll_quantity,
            handling=routing.handling,
            redirect=spec.redelivery_redirect,
            non_retryable=routing.non_retryable,
            dead_letter=routing.dead_letter,
            unsubscribed=routing.unsubscribed,
            move_retries=spec.move_retries,
            limbo=has_limbo,
            shelve_at=routing.shelve_at,
            discard_poison=routing.discard_poison,
            discard_unsubscribed=routing.discard_unsubscribed,
            in_progress=in_progress is not None,
            concurrency=concurrency,
            batch_size=spec.batch_size,
            batch_idle=spec.batch_idle_timeout,
            batch_flush=spec.batch_timeout,
            hold_until_ack=spec.hold_until_ack,
            record_attempts=spec.use_store,
            non_blocking_redelivery=non_blocking_redelivery,
            parks_topic=parks_topic,
            transaction_timeout=spec.effective_transaction_timeout if spec.transacted else None,
            outage=_outage(spec),
        ),
        subscription=subscriptions[0],
        further=subscriptions[1:],
        returns=returns,
        receivers=receivers,
        unit_consumers=_unit_consumers(spec, subscriptions, concurrency),
        pool_initial=min(spec.pool_initial_size, concurrency),
        pool_idle_timeout=spec.pool_idle_timeout,
        confirm_acknowledgements=context.confirm_acknowledgements
        or spec.confirm_acknowledgements
        or not unconfirmed,
        transacted=spec.transacted,
        retry_permanent_errors=spec.retry_permanent_errors,
        delete_durable=spec.durable_subscription_deletion and spec.durable,
        name=spec.title,
        context_name=spec.context_name or None,
        principal=context.principal,
        client_id=context.client_id,
        archive=routing.archive,
        source_queue=routing.source_queue,
        drop_duplicates=spec.duplicate_event_elimination,
        store=kept_in,
        jms_conn_id=context.jms_conn_id,
        in_doubt=_in_doubt(spec, has_limbo=has_limbo),
        limbo_tries=max(1, spec.limbo_delivery_retry),
        reply_to=routing.reply_to,
        result_property=spec.message_response_result_property,
        subscribes=routing.subscribes,
        in_progress=in_progress,
        find=context.find,
        url=context.url,
        whole=activation_name(spec.title, context.url, spec.durable_name, context.client_id),
        spec=spec,
    )


def _settle_in_order(spec: ActivationSpec, further: Sequence[object]) -> bool:
    """Return whether batches of a spec can settle their messages in order of arrival.

    They can if a batch takes consecutive messages of one consumer. This requires a single destination, no
    in-progress queue, and a batch size of at most `prefetch.MOST_IN_ORDER`.

    Args:
        spec: The activation spec.
        further: The subscriptions after the first.
    """
    return (
        1 < spec.batch_size <= prefetch.MOST_IN_ORDER and spec.in_progress_destination is None and not further
    )


def _unit_consumers(
    spec: ActivationSpec, subscriptions: tuple[Subscription, ...], concurrency: int
) -> UnitConsumers | None:
    """Return the consumers for batches, one for each unit of work.

    `None`: batches can't settle in order (`_settle_in_order`), or each of several consumers on a topic would
    receive every message.
    """
    subscription, *further = subscriptions
    destination = subscription.destination
    if not _settle_in_order(spec, further):
        return None
    if concurrency > 1 and destination.kind is DestinationKind.TOPIC:  # each would get every message
        return None
    asked = prefetch_of(destination, spec.prefetch)
    found = prefetch.for_unit(asked, concurrency=concurrency, batch_size=spec.batch_size)
    return UnitConsumers(count=concurrency, prefetch=found)


def _store_for(spec: ActivationSpec, destination: Destination, store: Store | None) -> Store | None:
    """Return the store, if a spec uses it.

    Raises:
        ConfigurationError: The spec uses a store, and `store` is `None`. Or the spec consumes a topic without
            a durable subscription, whose messages no broker redelivers after a restart.
    """
    if not spec.use_store:
        return None
    if destination.kind is DestinationKind.TOPIC and spec.durable_name is None:
        raise ConfigurationError(
            f"use_store is on, and {destination} is a topic without a durable subscription: no broker "
            "redelivers its messages. Expected a queue, a durable subscription, or use_store off"
        )
    if store is None:
        raise ConfigurationError(
            "use_store is on, but there is no store; pass one in the argument store, made by "
            "airflow_provider_jmsjca.open_store(url)"
        )
    return store


def _returns_queue(topic: Destination, durable_name: str, client_id: str | None) -> Destination:
    """Return the queue through which delayed messages of a durable subscription return.

    All processes that use the subscription use this queue, and no other subscription does. Its name contains
    no character with a special meaning for a broker.
    """
    whole = "\0".join((client_id or "", durable_name, str(topic)))
    shown = re.sub(r"[^A-Za-z0-9_-]+", "-", durable_name)[:_SHOWN]
    digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:_SHOWN]
    return Destination.queue(f"jmsjca.redelivery.{shown}-{digest}")


def _destinations(spec: ActivationSpec) -> tuple[Destination, ...]:
    faults = []
    destinations = spec.destinations
    twice = sorted({str(each) for each in destinations if destinations.count(each) > 1})
    if twice:
        faults.append(f"destination: got {', '.join(twice)} more than once, expected each once")
    if spec.subscription is not None and spec.subscription.distributed:
        faults.append(
            "subscription_name: a distributed subscription needs two listeners, which Activation makes; "
            "expected a plain name for a single listener"
        )
    if spec.distributed_destination_connection is DistributedDestinationConnection.EVERY_MEMBER:
        faults.append(
            "distributed_destination_connection: every_member needs a listener for each host, which "
            "Activation makes; expected local_only for a single listener"
        )
    if faults:
        raise ConfigurationError(faults)
    return destinations


def _outage(spec: ActivationSpec) -> OutageSettings:
    """Return the settings for reconnecting.

    WebLogic's suspensions and fixed interval apply only if the spec sets them, even to their defaults.
    Otherwise the listener reconnects as JMSJCA does: with growing pauses, and delivery resumes as soon as the
    broker is back.

    Source: J13, J122, W16, W24-W26.
    """
    asked = spec.model_fields_set
    settings: dict[str, object] = {}
    if "polling_interval" in asked:
        settings["backoff"] = Backoff(steps=(spec.polling_interval,))
    if asked & {"init_suspend", "max_suspend"}:
        settings |= {"init_suspend": spec.suspend_interval, "max_suspend": spec.max_suspend}
    settings["minimal_logging"] = spec.minimal_reconnect_logging
    return OutageSettings(**settings)  # type: ignore[arg-type]  # names and types as there


def bounded(settings: ListenerSettings, limit: int) -> ListenerSettings:
    """Return the settings of a run that settles no more than `limit` messages."""
    first, *further = (
        replace(each, prefetch=prefetch.for_limited_run(each.prefetch, limit))
        if each.destination.kind is DestinationKind.QUEUE
        else each
        for each in settings.subscriptions
    )
    returns = settings.returns
    if returns is not None:
        returns = replace(returns, prefetch=prefetch.for_limited_run(returns.prefetch, limit))
    units = settings.unit_consumers
    if units is not None and settings.delivery.destination.kind is DestinationKind.QUEUE:
        units = UnitConsumers(
            count=prefetch.consumers_of_limited_run(units.count, units.prefetch, limit),
            prefetch=prefetch.for_limited_run(units.prefetch, limit) or units.prefetch,
        )
    return replace(
        settings, subscription=first, further=tuple(further), returns=returns, unit_consumers=units
    )


def _in_doubt(spec: ActivationSpec, *, has_limbo: bool) -> InDoubtEvents:
    """Return the treatment of messages that are in doubt according to the store.

    Raises:
        ConfigurationError: Messages in doubt are to be set aside, and there is no limbo.
    """
    events = spec.in_doubt_events
    if spec.in_progress_destination is not None or events is InDoubtEvents.REPROCESS:
        return InDoubtEvents.REPROCESS  # messages in the in-progress queue are treated there
    if not has_limbo:
        raise ConfigurationError(
            f"in_doubt_events: got {events}, which keeps messages in limbo, and limbo sends over an Airflow "
            "connection. Set jms_conn_id alone, without URL, user or password in the spec"
        )
    return events


def _in_progress(spec: ActivationSpec, usual: int | None) -> InProgress | None:
    """Return the in-progress queue of a spec; `None` if messages stay in their own queue.

    Raises:
        ConfigurationError: The spec has `in_doubt_events`, but neither a store nor an in-progress queue.
    """
    if spec.in_progress_destination is None:
        if spec.in_doubt_events is not InDoubtEvents.REPROCESS and not spec.use_store:
            raise ConfigurationError(
                f"in_doubt_events: got {spec.in_doubt_events}, which needs use_store or "
                "in_progress_destination: without them, messages in doubt can't be recognised"
            )
        return None
    return InProgress(
        destination=destination_named(spec.in_progress_destination),
        events=spec.in_doubt_events,
        prefetch=usual,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Destinations for archived, failed and unsubscribed messages, and for replies, as in WBIA.

    Attributes:
        handling: Redelivery handling. Its deletions become moves to the error destination, if there is one.
        non_retryable: Exception classes after which a message has failed permanently. With an error
            destination and the default redelivery handling, these are all classes, because the WBIA adapter
            doesn't retry.
        dead_letter: Destinations of permanently failed messages; the error destination is one of them.
        archive: Receives a copy of each handled message.
        source_queue: Receives a copy of each handled message, if events are container-managed.
        reply_to: Destination for replies to messages that a handler sends.
        unsubscribed: Receives messages without a subscriber.
        subscribes: Returns whether a message has a subscriber.
        broker_selector: Selector of the broker. With `unsubscribed` it is `None`: the listener evaluates the
            selector, so that rejected messages don't stay in the queue.
        shelve_at: Delivery count at which a message without a configured target has failed permanently.
        discard_poison: Permanently failed messages are deleted, because the spec explicitly says so.
        discard_unsubscribed: Messages without a subscriber are deleted, because the spec explicitly says so.

    Source: I15, I16, I26-I30, I39; J133-J142, P15, W36.
    """

    handling: RedeliveryHandling
    non_retryable: frozenset[str]
    dead_letter: tuple[MoveTarget, ...]
    archive: Destination | None
    source_queue: Destination | None
    reply_to: Destination | None
    unsubscribed: Destination | None
    subscribes: Subscribes | None
    broker_selector: str | None
    shelve_at: int | None = None
    discard_poison: bool = False
    discard_unsubscribed: bool = False

    @classmethod
    def of(
        cls, spec: ActivationSpec, subscribes: Subscribes | None = None, *, has_limbo: bool = False
    ) -> Self:
        """Return the destinations of a spec.

        Args:
            spec: The activation spec.
            subscribes: The listener's own test of whether a message is wanted.
            has_limbo: Messages without another destination are kept in limbo.

        Raises:
            ConfigurationError: Messages may be rejected, and there is no destination for them. Or there is
                such a destination, and nothing rejects messages. Or `subscribes` isn't a plain function.
        """
        _refuse_circles(spec)
        if subscribes is not None:
            plain_function("subscribes", subscribes)
        settled = _wants_end_of_batch(spec)
        if not (settled or has_limbo) and (spec.max_attempts is not None or spec.non_retryable):
            raise ConfigurationError(
                "dead_letter_destination: missing, expected a destination for messages that have failed for "
                "good, or the word discard. Or set use_store, with which limbo keeps them (in Airflow, if "
                "jms_conn_id alone says how to connect)"
            )
        discard_error, discard_unsubscribed = map(
            is_discard, (spec.error_destination, spec.unsubscribed_destination)
        )
        error = _destination(spec.error_destination)
        unsubscribed = _destination(spec.unsubscribed_destination)
        selector = spec.selector_for()
        if unsubscribed is None and subscribes is not None and not (discard_unsubscribed or has_limbo):
            raise ConfigurationError(
                "unsubscribed_destination: missing, expected a destination for messages that subscribes "
                "rejects, or the word discard to drop them"
            )
        rejects = unsubscribed is not None or discard_unsubscribed
        if rejects and subscribes is None and selector is None:
            raise ConfigurationError(
                f"unsubscribed_destination: got {unsubscribed or DISCARD}, but nothing rejects messages; set "
                "a message_selector too, or give the listener a function subscribes"
            )
        handling, non_retryable = spec.redelivery, frozenset(spec.non_retryable)
        dead_letter = [*map(MoveTarget.of, spec.dead_letter_destinations)]
        usual = RedeliveryHandling.parse(str(OPTIONS_BY_NAME["redelivery_handling"].default))
        if (error is not None or discard_error) and handling == usual:
            non_retryable |= {_EVERY_EXCEPTION}
        if error is not None:
            target = MoveTarget.of(error)
            dead_letter += [target] if target not in dead_letter else []
            handling = _undeleting(handling, target)
        return cls(
            handling=handling,
            non_retryable=non_retryable,
            dead_letter=tuple(dead_letter),
            archive=_destination(spec.archive_destination),
            source_queue=(
                _destination(spec.source_queue)
                if spec.container_managed_events is ContainerManagedEvents.JMS
                else None
            ),
            reply_to=_destination(spec.reply_to_destination),
            unsubscribed=unsubscribed,
            # With limbo alone the broker selects: rejected messages stay in the queue.
            subscribes=_wanted(selector, subscribes) if rejects else subscribes,
            broker_selector=None if rejects else selector,
            shelve_at=None if settled else spec.max_attempts,
            discard_poison=discard_error or spec.discards_dead_letters,
            discard_unsubscribed=discard_unsubscribed,
        )


def _wants_end_of_batch(spec: ActivationSpec) -> bool:
    """Return whether a spec says what happens to permanently failed messages: a move, or discard."""
    actions = spec.redelivery.actions
    acts = bool(actions) and isinstance(actions[-1], Move)
    return acts or bool(spec.dead_letter_destination) or spec.error_destination is not None


def _refuse_circles(spec: ActivationSpec) -> None:
    own = spec.destinations
    faults = [
        f"{name}: got {target}, which is consumed itself, expected another destination"
        for name in _ROUTES
        if (target := _destination(getattr(spec, name))) in own
    ]
    faults += [
        f"dead_letter_destination: got {target}, which is consumed itself, expected another destination"
        for target in spec.dead_letter_destinations
        if target in own
    ]
    faults += [
        f"redelivery_handling: {action} moves to the destination itself, {source}; expected another one"
        for action in spec.redelivery.actions
        for source in own
        if isinstance(action, Move) and source in action.targets(source)
    ]
    if faults:
        raise ConfigurationError(faults)


def _destination(text: str | None) -> Destination | None:
    return None if text is None or is_discard(text) else destination_named(text)


def _undeleting(handling: RedeliveryHandling, target: MoveTarget) -> RedeliveryHandling:
    """Return the handling with each deletion replaced by a move."""  # I28, I29
    return RedeliveryHandling(
        tuple(
            Move.to(action.at, (target,)) if isinstance(action, Delete) else action
            for action in handling.actions
        )
    )


def _wanted(selector: str | None, subscribes: Subscribes | None) -> Subscribes:
    """Combine selector and function into one function; the selector compares as STOMP brokers do."""
    selected = None if selector is None else Selector.parse(selector, strings_as_numbers=True).matches
    if selected is None or subscribes is None:
        wanted = selected or subscribes
        assert wanted is not None, "one of them is given"  # noqa: S101
        return wanted
    own = subscribes
    return lambda message: selected(message) and own(message)
