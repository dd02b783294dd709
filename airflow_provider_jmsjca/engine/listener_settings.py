"""What a listener needs to know, and how it is read from an activation spec."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import timedelta

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.backoff import Backoff
from airflow_provider_jmsjca.core.delivery import DeliverySettings, OutageSettings
from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.options import OPTIONS_BY_NAME
from airflow_provider_jmsjca.core.options.choices import AcknowledgeMode, ConcurrencyMode
from airflow_provider_jmsjca.core.redelivery import MoveKind, MoveTarget
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.transports.base import Subscription

# What every dialect asks for without being told; more is asked for where more is in hand at once.
_USUAL_PREFETCH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """How an activation consumes.

    Attributes:
        delivery: The rules for its messages.
        subscription: What it receives.
        receivers: How many consumers share the work (`sync`); one otherwise.
        pool_initial: Threads kept ready, at most one for each unit of work at once.
        pool_idle_timeout: A thread above those ends after so long without work; `None`: never.
        confirm: Wait after each message until the broker has confirmed its acknowledgement. Otherwise
            acknowledgements travel together; a crash brings back those under way.
        transacted: What a handler sends is sent when its delivery is committed; otherwise at once.
        retry_permanent: Also connect again after what usually is for good: wrong credentials, a missing
            destination.
        delete_durable: Delete the durable subscription at the end (W33).
        name: For logs and threads.
        context_name: Stands in the log context of each delivery; `None`: none (J62).
        principal: Who consumes.
        client_id: JMS client id, for dead letters.
    """

    delivery: DeliverySettings
    subscription: Subscription
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
    threads: int = field(init=False)

    def __post_init__(self) -> None:
        delivery = self.delivery
        # A batch keeps its thread; one more receives, moves and records meanwhile.
        threads = delivery.concurrency + (delivery.batch_size > 1)
        object.__setattr__(self, "threads", threads)


def listener_settings(
    spec: ActivationSpec,
    *,
    client_id: str | None = None,
    principal: str | None = None,
    confirm: bool = False,
    park: bool = False,
    retry_permanent: bool = False,
) -> ListenerSettings:
    """Return what an activation spec asks of a listener.

    Args:
        spec: The spec in force.
        client_id: JMS client id of the connection.
        principal: User name of the connection.
        confirm: As the attribute of `ListenerSettings`.
        park: Delays above 5 seconds are the broker's to keep (`DeliverySettings.park`).
        retry_permanent: As the attribute of `ListenerSettings`.

    Raises:
        ConfigurationError: The spec asks for what a listener doesn't do.

    Source: J46-J63, J81-J84, W21-W26.
    """
    destination = _destination(spec)
    concurrency = spec.concurrency_for(destination.kind)
    receivers = concurrency if spec.concurrency_mode is ConcurrencyMode.SYNC else 1
    confirmed = confirm or not (spec.transacted or spec.acknowledge_mode is AcknowledgeMode.DUPS_OK)
    return ListenerSettings(
        delivery=DeliverySettings(
            destination=destination,
            handling=spec.redelivery,
            redirect=spec.redelivery_redirect,
            non_retryable=frozenset(spec.non_retryable),
            dead_letter=tuple(
                MoveTarget(MoveKind(target.kind.value), target.name)
                for target in spec.dead_letter_destinations
            ),
            concurrency=concurrency,
            batch_size=spec.batch_size,
            batch_idle=spec.batch_idle_timeout,
            batch_flush=spec.batch_timeout,
            hold_until_ack=spec.hold_until_ack,
            park=park,
            transaction_timeout=spec.effective_transaction_timeout if spec.transacted else None,
            outage=_outage(spec),
        ),
        subscription=Subscription(
            destination=destination,
            selector=spec.selector_for(),
            durable_name=spec.durable_name,
            prefetch=_prefetch(spec, concurrency, receivers),
            # One message at a time is settled before the next is looked at; batches let members go early.
            in_order=concurrency == 1 and spec.batch_size == 1,
        ),
        receivers=receivers,
        pool_initial=min(spec.pool_initial_size, concurrency),
        pool_idle_timeout=spec.pool_idle_timeout,
        confirm=confirmed,
        transacted=spec.transacted,
        retry_permanent=retry_permanent,
        delete_durable=spec.durable_subscription_deletion and spec.durable,
        name=spec.title,
        context_name=spec.context_name or None,
        principal=principal,
        client_id=client_id,
    )


def _destination(spec: ActivationSpec) -> Destination:
    faults = []
    destinations = spec.destinations
    if len(destinations) > 1:
        names = ", ".join(map(str, destinations))
        faults.append(f"destination: got {len(destinations)} ({names}), expected one for each listener")
    if spec.subscription is not None and spec.subscription.distributed:
        faults.append("subscription_name: a distributed durable subscription is not available to a listener")
    if faults:
        raise ConfigurationError(faults)
    return destinations[0]


def _outage(spec: ActivationSpec) -> OutageSettings:
    """Suspensions and a fixed interval hold where they were asked for; the flow is back at once otherwise."""

    def asked(name: str) -> bool:
        return bool(getattr(spec, name) != OPTIONS_BY_NAME[name].default)

    settings: dict[str, object] = {}
    if asked("polling_interval"):
        settings["backoff"] = Backoff(steps=(spec.polling_interval,))
    if asked("init_suspend") or asked("max_suspend"):
        settings |= {"init_suspend": spec.suspend_interval, "max_suspend": spec.max_suspend}
    return OutageSettings(**settings)  # type: ignore[arg-type]  # names and types as there


def _prefetch(spec: ActivationSpec, concurrency: int, receivers: int) -> int | None:
    """Return a prefetch under which nothing stalls and no receiver hoards.

    Whatever is in hand at once must fit in: all the units of work, each with its batch, and what a broker
    counts although it is acknowledged in a transaction. Beyond a batch a large window only slows commits.
    """
    if spec.prefetch is not None:
        return max(spec.prefetch, math.ceil(concurrency * spec.batch_size / receivers))
    if spec.batch_size > 1:
        return max(2, math.ceil(concurrency * spec.batch_size / receivers))
    if receivers > 1:
        return max(2, math.ceil(_USUAL_PREFETCH / receivers))
    if spec.destination_references[0].kind is DestinationKind.TOPIC:
        return None
    return None if concurrency <= _USUAL_PREFETCH // 2 else 2 * concurrency
