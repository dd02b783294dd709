"""What a listener needs to know, and how it is read from an activation spec."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.administered import destination_named
from airflow_provider_jmsjca.core.backoff import Backoff
from airflow_provider_jmsjca.core.delivery import DeliverySettings, OutageSettings
from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.destination_options import prefetch_of
from airflow_provider_jmsjca.core.options.choices import (
    AcknowledgeMode,
    ConcurrencyMode,
    DistributedDestinationConnection,
)
from airflow_provider_jmsjca.engine.fates import Fates, Subscribes
from airflow_provider_jmsjca.engine.in_progress import InProgress, in_progress_of
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.transports.base import Subscription

# Shared between the receivers of one destination; more is asked for where more is in hand at once.
_USUAL_PREFETCH = 100
# A run that may settle this many keeps the prefetch it has.
_LARGE_PREFETCH = 500
_SPARE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """How an activation consumes.

    Attributes:
        delivery: The rules for its messages.
        subscription: What it receives.
        further: What it receives besides, from the further destinations of `delivery`.
        receivers: How many consumers share the work on each queue (`sync`); one otherwise.
        pool_initial: Threads kept ready, at most one for each unit of work at once.
        pool_idle_timeout: A thread above those ends after so long without work; `None`: never.
        confirm: Wait after each message until the broker has confirmed its acknowledgement. Otherwise
            acknowledgements travel together; a crash brings back those under way.
        transacted: What a handler sends is sent when its delivery is committed; otherwise at once.
        retry_permanent: Also connect again after what usually is for good: wrong credentials, a missing
            destination.
        delete_durable: Delete the durable subscription at a stop in good order (W33).
        name: For logs and threads.
        context_name: Stands in the log context of each delivery; `None`: none (J62).
        principal: Who consumes.
        client_id: JMS client id, for dead letters.
        archive: Gets a copy of each message that was handled, in the unit of work that settles it (I26).
        source_queue: Gets each message that was handled, in the same way: where events go on to (I16).
        drop_duplicates: Acknowledge a message whose id was handled before instead of delivering it (I17).
        reply_to: Where answers go to messages that a handler sends and that don't say it (I39).
        result_property: Message property that holds the result, where answers are consumed (I45).
        subscribes: Says of each message whether somebody wants it; `None`: all are wanted (I30). It is called
            while others wait, so it must be quick and wait for nothing; a message at which it raises is
            poison.
        in_progress: The queue in which messages stand while they are handled; `None`: they stay in their own.
        find: Returns the destination that a text names, where a handler sends by name.
        url: Where the broker is, without secrets; for `management.properties`.
        spec: What it was made from.
    """

    delivery: DeliverySettings
    subscription: Subscription
    further: tuple[Subscription, ...] = ()
    receivers: int = 1
    pool_initial: int = 1
    pool_idle_timeout: timedelta | None = None
    confirm: bool = False
    transacted: bool = True
    retry_permanent: bool = False
    delete_durable: bool = False
    name: str = "jms"
    context_name: str | None = None
    principal: str | None = None
    client_id: str | None = None
    archive: Destination | None = None
    source_queue: Destination | None = None
    drop_duplicates: bool = False
    reply_to: Destination | None = None
    result_property: str | None = None
    subscribes: Subscribes | None = None
    in_progress: InProgress | None = None
    find: Callable[[str], Destination] = field(default=destination_named, repr=False, compare=False)
    url: str = ""
    spec: ActivationSpec | None = field(default=None, repr=False)
    threads: int = field(init=False)
    copies: tuple[Destination, ...] = field(init=False)
    subscriptions: tuple[Subscription, ...] = field(init=False)

    def __post_init__(self) -> None:
        delivery = self.delivery
        # A batch keeps its thread; one more receives, moves and records meanwhile.
        threads = delivery.concurrency + (delivery.batch_size > 1)
        object.__setattr__(self, "threads", threads)
        copies = tuple(each for each in (self.archive, self.source_queue) if each is not None)
        object.__setattr__(self, "copies", copies)
        object.__setattr__(self, "subscriptions", (self.subscription, *self.further))


def listener_settings(
    spec: ActivationSpec,
    *,
    client_id: str | None = None,
    principal: str | None = None,
    url: str = "",
    confirm: bool = False,
    park: bool = False,
    retry_permanent: bool = False,
    subscribes: Subscribes | None = None,
    find: Callable[[str], Destination] = destination_named,
) -> ListenerSettings:
    """Return what an activation spec asks of a listener.

    Args:
        spec: The spec in force.
        client_id: JMS client id of the connection.
        principal: User name of the connection.
        url: Where the broker is, without secrets.
        confirm: As the attribute of `ListenerSettings`; also if the spec says so.
        park: Delays above 5 seconds are the broker's to keep (`DeliverySettings.park`); also if the spec says
            so.
        retry_permanent: As the attribute of `ListenerSettings`; also if the spec says so.
        subscribes: The listener's own word on which messages are wanted, besides the selector.
        find: As the attribute of `ListenerSettings`.

    Raises:
        ConfigurationError: The spec asks for what a listener doesn't do.

    Source: J46-J63, J81-J84, W21-W26, I15-I17, I26, I39.
    """
    destination, *further = _destinations(spec)
    fates = Fates.of(spec, subscribes)
    concurrency = max(spec.concurrency_for(each.kind) for each in (destination, *further))
    receivers = concurrency if spec.concurrency_mode is ConcurrencyMode.SYNC else 1
    confirmed = (
        confirm or spec.confirm or not (spec.transacted or spec.acknowledge_mode is AcknowledgeMode.DUPS_OK)
    )
    subscriptions = tuple(
        Subscription(
            destination=each,
            selector=fates.broker_selector,
            durable_name=spec.durable_name,
            prefetch=_prefetch(spec, each, concurrency, receivers),
            # One message at a time is settled before the next is looked at; batches let members go early.
            in_order=concurrency == 1 and spec.batch_size == 1,
            one_of_several=(
                receivers > 1
                and spec.batch_size == 1
                and each.kind is DestinationKind.QUEUE
                and (prefetch_of(each) or spec.prefetch) is None
            ),
            alone=not further and receivers == 1 and spec.in_progress_destination is None,
        )
        for each in (destination, *further)
    )
    in_progress = in_progress_of(spec, subscriptions[0].prefetch)
    return ListenerSettings(
        delivery=DeliverySettings(
            destination=destination,
            further=tuple(further),
            quantity=spec.poll_quantity,
            handling=fates.handling,
            redirect=spec.redelivery_redirect,
            non_retryable=fates.non_retryable,
            dead_letter=fates.dead_letter,
            unsubscribed=fates.unsubscribed,
            move_retries=spec.move_retries,
            in_progress=in_progress is not None,
            concurrency=concurrency,
            batch_size=spec.batch_size,
            batch_idle=spec.batch_idle_timeout,
            batch_flush=spec.batch_timeout,
            hold_until_ack=spec.hold_until_ack,
            park=park or spec.park,
            transaction_timeout=spec.effective_transaction_timeout if spec.transacted else None,
            outage=_outage(spec),
        ),
        subscription=subscriptions[0],
        further=subscriptions[1:],
        receivers=receivers,
        pool_initial=min(spec.pool_initial_size, concurrency),
        pool_idle_timeout=spec.pool_idle_timeout,
        confirm=confirmed,
        transacted=spec.transacted,
        retry_permanent=retry_permanent or spec.retry_permanent,
        delete_durable=spec.durable_subscription_deletion and spec.durable,
        name=spec.title,
        context_name=spec.context_name or None,
        principal=principal,
        client_id=client_id,
        archive=fates.archive,
        source_queue=fates.source_queue,
        drop_duplicates=spec.duplicate_event_elimination,
        reply_to=fates.reply_to,
        result_property=spec.message_response_result_property,
        subscribes=fates.subscribes,
        in_progress=in_progress,
        find=find,
        url=url,
        spec=spec,
    )


def _destinations(spec: ActivationSpec) -> tuple[Destination, ...]:
    faults = []
    destinations = spec.destinations
    twice = sorted({str(each) for each in destinations if destinations.count(each) > 1})
    if twice:
        faults.append(f"destination: got {', '.join(twice)} more than once, expected each once")
    if spec.subscription is not None and spec.subscription.distributed:
        faults.append(
            "subscription_name: got a distributed one, expected a plain name for one listener "
            "(engine.load_balancing makes the two that it takes)"
        )
    if spec.distributed_destination_connection is DistributedDestinationConnection.EVERY_MEMBER:
        faults.append(
            "distributed_destination_connection: got every_member, expected local_only for one listener "
            "(engine.members makes one for each host)"
        )
    if faults:
        raise ConfigurationError(faults)
    return destinations


def _outage(spec: ActivationSpec) -> OutageSettings:
    """WebLogic's suspensions and fixed interval hold where somebody set one of them, be it to its default.

    Otherwise JMSJCA's way: growing pauses, and the flow is back as soon as the broker is.

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


def _prefetch(spec: ActivationSpec, destination: Destination, concurrency: int, receivers: int) -> int | None:
    """Return a prefetch under which nothing stalls and no receiver hoards.

    Whatever is in hand at once must fit in: all the units of work, each with its batch, and what a broker
    counts although it is acknowledged in a transaction. Beyond a batch a large window only slows commits.
    """
    asked = prefetch_of(destination) or spec.prefetch
    if asked is not None:
        return max(asked, math.ceil(concurrency * spec.batch_size / receivers))
    if spec.batch_size > 1:
        # One more than all batches hold, whichever receivers their messages come from: what fills a prefetch
        # is acknowledged before its commit.
        return 1 + concurrency * spec.batch_size
    if receivers > 1:
        return max(2, math.ceil(_USUAL_PREFETCH / receivers))
    if destination.kind is DestinationKind.TOPIC:
        return None
    return None if concurrency <= _USUAL_PREFETCH // 2 else 2 * concurrency


def bounded(settings: ListenerSettings, limit: int) -> ListenerSettings:
    """Return the settings of a run that settles no more than `limit` messages.

    The broker sets aside that many, and a few that may stay unsettled. What goes back unseen at the end was
    kept from other consumers until then, and on quorum queues of RabbitMQ it counts as delivered.
    """
    most = limit + _SPARE
    if most >= _LARGE_PREFETCH:
        return settings
    first, *further = (
        replace(each, prefetch=min(each.prefetch or most, most))
        if each.destination.kind is DestinationKind.QUEUE
        else each
        for each in settings.subscriptions
    )
    return replace(settings, subscription=first, further=tuple(further))
