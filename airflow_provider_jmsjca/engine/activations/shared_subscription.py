"""Distributed durable subscribers: a durable subscription that several processes work off together.

JMS lets one client at a time use a durable subscription. So whoever has it, the active subscriber, moves its
messages to a queue, and every process consumes that queue; the others stand by to become the active one.

| what happens | what becomes of the messages |
|---|---|
| the active subscriber stops or dies | what it hadn't moved stays in the subscription; a standby takes over |
| it dies amid a move, ActiveMQ | both sides of the move happen or neither |
| the same, Artemis | the repetition is dropped by its id |
| the same, RabbitMQ | those of the batch may come twice, under the same message id |
| the broker refuses a move | the batch stays in the subscription and is tried again |
| a message can't be sent on | dead-letter destination; else it stays and is logged; those behind it go on |

ActiveMQ refuses a second client with the same client id. Artemis and RabbitMQ share the subscription among
them: there each of them is active.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.copies.load_balancing import balanced_copy
from airflow_provider_jmsjca.core.delivery.events import StopAsked
from airflow_provider_jmsjca.core.delivery.outage import ActivationState
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.options.choices import ConcurrencyMode
from airflow_provider_jmsjca.core.redelivery import Move, MoveTarget, RedeliveryHandling
from airflow_provider_jmsjca.engine.activations.base import STOP_WITHIN, ActivationGroup, Seconds
from airflow_provider_jmsjca.engine.activations.plain import PlainActivation
from airflow_provider_jmsjca.engine.delivering.delivery import Delivery
from airflow_provider_jmsjca.engine.delivering.settings import (
    BARE,
    ListenerContext,
    ListenerSettings,
    listener_settings,
)
from airflow_provider_jmsjca.engine.delivering.statistics import Counts, Statistics
from airflow_provider_jmsjca.engine.delivering.threaded.workers import Handler
from airflow_provider_jmsjca.errors import ConfigurationError, JmsError, PoisonMessageError
from airflow_provider_jmsjca.transports.base import ConnectFunction, Connection, Outgoing

# A move that fails is tried again for ever: only poison leaves the subscription another way.
_HANDLING = RedeliveryHandling.parse("1:100; 5:500")
_BATCHES_AHEAD = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBalancing:
    """How a distributed durable subscription is worked off.

    Attributes:
        topic_side: For the active subscriber.
        queue_side: For the handler.
        queue: The queue between them.
    """

    topic_side: ListenerSettings
    queue_side: ListenerSettings
    queue: Destination


def load_balancing(spec: ActivationSpec, context: ListenerContext = BARE) -> LoadBalancing | None:
    """Return what a distributed durable subscription asks of its two sides; `None` if the spec has none.

    The queue side is the spec without its subscription: non-durable, no subscription name, no client id, and
    no selector, for that has been applied before the queue. The topic side has one receiver and moves a batch
    in each transaction.

    Args:
        spec: The spec in force.
        context: What is given besides. The client id is the topic side's, the same in every process; all
            but the connection is the queue side's.

    Raises:
        ConfigurationError: The spec asks for what a listener doesn't do.

    Source: J205-J211.
    """
    name = spec.subscription
    if name is None or not name.distributed:
        return None
    topic = spec.destinations[0]
    queue = name.queue_for(topic)
    kept = spec.use_store and not (spec.dead_letter_destination or spec.error_destination)
    moving = listener_settings(
        spec.replace(
            name=name.name_for(spec.title),
            subscription_name=name.subscriber_name,
            concurrency_mode=ConcurrencyMode.SYNC,
            endpoint_pool_steady_size=1,
            endpoint_pool_max_size=1,
            batch_size=name.batch_size,
            hold_until_ack=False,
            use_store=False,
            park=False,
            # What is kept in limbo where nothing else is said is the queue side's.
            **({"max_attempts": None, "redelivery_delay": None, "non_retryable": None} if kept else {}),
            context_name=None,
            # Fewer would leave the active subscriber waiting for messages at each commit.
            prefetch=name.batch_size * _BATCHES_AHEAD,
        ),
        ListenerContext(
            client_id=context.client_id,
            principal=context.principal,
            url=context.url,
            subscribes=context.subscribes if spec.unsubscribed_destination else None,
        ),
    )
    handling = replace(
        moving.delivery,
        handling=_HANDLING,
        redirect=False,
        non_retryable=frozenset(),
        dead_letter=_dead_letter(moving),
        keep_poison=True,
        unsubscribed=None,
        transaction_timeout=spec.effective_transaction_timeout,
    )
    handled = listener_settings(
        spec.replace(
            name=spec.title,
            destination=str(queue),
            destination_type=None,
            # Without durability it names nothing, but the selector's text may refer to it.
            subscription_name=name.subscriber_name,
            subscription_durability=None,
            client_id=None,
            jms_client_id=None,
        ),
        replace(context, client_id=None),
        says_without_effect=False,  # of the topic side's spec it is said
    )
    return LoadBalancing(
        # What is archived or unsubscribed is the queue side's to say, once.
        topic_side=replace(
            moving,
            delivery=handling,
            transacted=True,
            archive=None,
            source_queue=None,
            drop_duplicates=False,
            subscribes=None,
        ),
        queue_side=replace(handled, subscription=replace(handled.subscription, selector=None), balanced=True),
        queue=queue,
    )


def _dead_letter(settings: ListenerSettings) -> tuple[MoveTarget, ...]:
    """Return where the topic side's poison goes: as the spec says, though its handling isn't applied here."""
    delivery = settings.delivery
    last = delivery.handling.actions[-1] if delivery.handling.actions else None
    if delivery.dead_letter or not isinstance(last, Move):
        return delivery.dead_letter
    return last.all_targets


def _connect_checked(settings: LoadBalancing, connect: ConnectFunction) -> Connection:
    """Connect, unless the broker doesn't take the name of the queue literally that is made of the topic's.

    Raises:
        ConfigurationError: Subscriptions to different topics might share a queue.
    """
    connection, topic = connect(), settings.topic_side.delivery.destination
    broker = connection.broker
    try:
        broker.names.check_derived(settings.queue, topic, broker.product)
        broker.names.check_target(settings.queue, topic, broker.product)
    except ConfigurationError:
        connection.close()
        raise
    return connection


class LoadBalancedActivation(ActivationGroup):
    """One process's share of a distributed durable subscription; used like an `Activation`.

    Guarantee: a message leaves the subscription when it is in the queue, and the queue as an `Activation`
    settles it. A crash loses none. On ActiveMQ it doubles none; on Artemis none as long as the broker
    remembers the message's id (20,000 for each queue by default); on RabbitMQ the batch under way in the
    move, and when that broker is killed, messages whose acknowledgement it had not written. Such duplicates
    have the same message id.

    Args:
        settings: As `load_balancing` returns them.
        connect_topic: Opens a connection with the client id, for the topic side.
        connect_queue: Opens a connection without one, for the queue side.
        handler: Called with each message of the queue.

    Attributes:
        topic_side: Moves messages while this process has the subscription.
        queue_side: Consumes the queue with the handler.

    Source: J204-J211.
    """

    watchable = False  # while it is away, nobody moves its messages to the queue

    def __init__(
        self,
        settings: LoadBalancing,
        connect_topic: ConnectFunction,
        connect_queue: ConnectFunction,
        handler: Handler,
    ) -> None:
        self._balancing = settings
        checked_topic = functools.partial(_connect_checked, settings, connect_topic)
        checked_queue = functools.partial(_connect_checked, settings, connect_queue)
        self.topic_side = PlainActivation(settings.topic_side, checked_topic, self._move)
        self.queue_side = PlainActivation(
            settings.queue_side, checked_queue, handler, on_stop=self._stop_topic_side
        )
        super().__init__(
            settings.queue_side,
            (self.queue_side, self.topic_side),
            time.monotonic,
            self.queue_side.consuming,
        )
        self._subscriber = f"{settings.topic_side.client_id}.{settings.topic_side.subscription.durable_name}"

    @property
    def active(self) -> bool:
        """Whether this process has the subscription now."""
        return self.topic_side.state is ActivationState.UP

    @property
    def state(self) -> ActivationState:
        """The state of the queue side."""
        return self.queue_side.state

    @property
    def counts(self) -> Counts:
        """What became of the queue's messages since the last start."""
        return self.queue_side.counts

    @property
    def failing(self) -> int | None:
        """How many of the queue's messages failed since anything else happened."""
        return self.queue_side.failing

    @property
    def ready(self) -> bool:
        """Whether the queue is consumed, and the subscription is had or was tried for."""
        return self.queue_side.ready and self.topic_side.answered

    def delete_subscription(self) -> None:
        """Delete the durable subscription, which others may use too; not the queue."""
        self.topic_side.delete_subscription()

    @property
    def stop_reason(self) -> str:
        """Why the activation has stopped; empty while it hasn't."""
        return self.queue_side.stop_reason

    @property
    def server_type(self) -> str:
        """Which product the broker is; empty while there was no connection. Source: J115."""
        return self.queue_side.server_type

    @property
    def server(self) -> tuple[str, str]:
        """Host and port of the queue side's connection. Source: J120."""
        return self.queue_side.server

    @property
    def fault(self) -> JmsError | None:
        """What one of the sides has stopped for; the topic side's first."""
        return self.topic_side.fault or self.queue_side.fault

    @property
    def looks(self) -> bool:
        """Whether the queue side is just looking if messages stay at the broker."""
        return self.queue_side.looks

    @property
    def blocked(self) -> bool:
        """Whether the broker may hold messages for an earlier connection of one of the sides."""
        return self.queue_side.blocked or self.topic_side.blocked

    def statistics(self) -> Statistics:
        """Return a snapshot of the queue side; `statistics_by_part` has both. Source: J117, J121, J209."""
        return replace(self.queue_side.statistics(), holds_subscription=self.active)

    def _report_besides(self) -> Mapping[str, object]:
        return {"moved_to_queue": self.topic_side.counts.committed}

    def begin(
        self, limit: int | None = None, *, stop_within: timedelta = timedelta(seconds=STOP_WITHIN)
    ) -> None:
        """Do what `start` does, within bounds that hold for the queue side.

        Args:
            limit: No more messages than this are settled from the queue; `None`: no limit.
            stop_within: How long running handlers may take when one of them asks for a stop.

        Raises:
            ConfigurationError: The activation runs already, and a limit is given.
        """
        with self._lock:
            self.queue_side.begin(limit, stop_within=stop_within)
            self.topic_side.begin()

    def request_stop(
        self, within: Seconds = STOP_WITHIN, *, reason: str = "told to stop", delete_durable: bool = False
    ) -> None:
        """Begin to stop both sides, and return at once. The subscription stays: it is others' too."""
        del delete_durable
        super().request_stop(within, reason=reason, delete_durable=False)

    def _stop_topic_side(self, event: StopAsked) -> None:
        with self._lock:  # a start under way has started it when this goes on
            self.topic_side.request_stop(event.within, reason=event.reason, delete_durable=False)

    def quiet_since(self) -> float | None:
        """Since when the queue side had nothing to do; see `Activation.quiet_since`."""
        return self.queue_side.quiet_since()

    def _move(self, delivery: Delivery) -> None:
        if delivery.end_of_batch:
            return
        message = delivery.message
        number = message.message_id
        if not delivery.buffer.link.connection.capabilities.deduplicating_send:
            number = None
        try:
            delivery.engine.send(
                delivery,
                Outgoing(
                    destination=self._balancing.queue,
                    message=balanced_copy(message, self._balancing.topic_side.delivery.destination),
                    # The same message may reach the queue through another subscription too.
                    deduplication_id=None if number is None else f"{number}>{self._subscriber}",
                ),
            )
        except ConfigurationError as error:
            raise PoisonMessageError(f"it can't be moved to {self._balancing.queue}: {error}") from error
