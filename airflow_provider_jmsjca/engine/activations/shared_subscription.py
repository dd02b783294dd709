"""Distributed durable subscribers: several processes share one durable subscription.

JMS lets one client at a time use a durable subscription. The client that holds it, the active subscriber,
moves its messages to a queue. Every process consumes that queue. The processes without the subscription are
standbys for the active subscriber.

| event | effect on the messages |
|---|---|
| the active subscriber stops or dies | unmoved messages stay in the subscription; a standby takes over |
| it dies during a move on ActiveMQ | both sides of the move happen, or neither |
| it dies during a move on Artemis | the broker drops the repeated message by its id |
| it dies during a move on RabbitMQ | messages of the batch may arrive twice, with the same message id |
| the broker refuses a move | the batch stays in the subscription and is retried |
| a message can't be sent on | moved to the dead-letter destination; without one, it stays and is logged |

ActiveMQ refuses a second client with the same client id. Artemis and RabbitMQ share the subscription among
clients with the same id, so all processes are active subscribers on these brokers.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.copies.load_balancing import balanced_copy
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.options.choices import ConcurrencyMode
from airflow_provider_jmsjca.core.redelivery import Move, MoveTarget, RedeliveryHandling
from airflow_provider_jmsjca.engine.activations.run import Connections, RunSettings
from airflow_provider_jmsjca.engine.delivering.delivery import Delivery
from airflow_provider_jmsjca.engine.delivering.settings import (
    BARE,
    ListenerContext,
    ListenerSettings,
    listener_settings,
)
from airflow_provider_jmsjca.errors import ConfigurationError, PoisonMessageError
from airflow_provider_jmsjca.transports.base import ConnectFunction, Connection, Outgoing

# Failed moves are retried without end. Only poison messages leave the subscription in another way.
_HANDLING = RedeliveryHandling.parse("1:100; 5:500")
_BATCHES_AHEAD = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBalancing:
    """Settings of the two sides of a distributed durable subscription.

    Attributes:
        topic_side: Settings of the active subscriber.
        queue_side: Settings of the listener that calls the handler.
        queue: The queue between the two sides.
    """

    topic_side: ListenerSettings
    queue_side: ListenerSettings
    queue: Destination


def load_balancing(spec: ActivationSpec, context: ListenerContext = BARE) -> LoadBalancing | None:
    """Return the settings of a distributed durable subscription; `None` if the spec has none.

    The queue side is the spec without its subscription: non-durable, no subscription name, no client id, and
    no selector, because the topic side has already applied it. The topic side has one receiver and moves a
    batch in each transaction.

    Args:
        spec: The spec in force.
        context: The environment of the listener. The client id belongs to the topic side and is the same in
            every process; everything except the connection belongs to the queue side.

    Raises:
        ConfigurationError: The spec requires something that a listener can't do.
    """
    # J205-J211
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
            non_blocking_redelivery=False,
            # Options that put failed messages into limbo by default apply to the queue side only.
            **({"max_attempts": None, "redelivery_delay": None, "non_retryable": None} if kept else {}),
            context_name=None,
            # With a smaller prefetch, the active subscriber would wait for messages after each commit.
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
            # A non-durable subscription ignores the name, but the selector may contain `${subscribername}`.
            subscription_name=name.subscriber_name,
            subscription_durability=None,
            client_id=None,
            jms_client_id=None,
        ),
        replace(context, client_id=None),
        says_without_effect=False,  # options without effect were logged for the topic side
    )
    return LoadBalancing(
        # Only the queue side archives and handles unsubscribed messages, so each is handled once.
        topic_side=replace(
            moving,
            delivery=handling,
            transacted=True,
            delete_durable=False,  # processes share the subscription
            archive=None,
            source_queue=None,
            drop_duplicates=False,
            subscribes=None,
        ),
        queue_side=replace(handled, subscription=replace(handled.subscription, selector=None), balanced=True),
        queue=queue,
    )


def _dead_letter(settings: ListenerSettings) -> tuple[MoveTarget, ...]:
    """Return the dead-letter targets for poison messages of the topic side.

    The topic side has its own redelivery handling. If the spec has no dead-letter targets, the result is
    taken from the last redelivery action of the spec, provided that it is a move.
    """
    delivery = settings.delivery
    last = delivery.handling.actions[-1] if delivery.handling.actions else None
    if delivery.dead_letter or not isinstance(last, Move):
        return delivery.dead_letter
    return last.all_targets


def _connect_checked(settings: LoadBalancing, connect: ConnectFunction) -> Connection:
    """Connect, and check that the broker takes the name of the queue literally.

    The name is derived from the topic's name.

    Raises:
        ConfigurationError: The broker interprets characters of the name, so subscriptions to different topics
            might share a queue.
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


def shared_subscription(
    settings: LoadBalancing, connect_topic: ConnectFunction, connect_queue: ConnectFunction
) -> Connections:
    """Return the connections of one process's share of a distributed durable subscription.

    Guarantee: a message leaves the subscription once it is in the queue, and leaves the queue as with an
    `Activation`. A crash loses no messages. On ActiveMQ it duplicates none. On Artemis it duplicates none
    as long as the broker remembers the message's id (20,000 for each queue by default). On RabbitMQ it may
    duplicate the batch being moved. If RabbitMQ itself is killed, it may also redeliver messages whose
    acknowledgement it had not yet written to disk. Duplicates have the same message id.

    Args:
        settings: Result of `load_balancing`.
        connect_topic: Opens a connection with the client id, for the topic side.
        connect_queue: Opens a connection without a client id, for the queue side.
    """
    # J204-J211
    topic, queue = settings.topic_side, settings.queue_side
    return Connections(
        settings=queue,
        consumers=(
            RunSettings(
                name=queue.name,
                settings=queue,
                connect=functools.partial(_connect_checked, settings, connect_queue),
            ),
        ),
        mover=RunSettings(
            name=topic.name,
            settings=topic,
            connect=functools.partial(_connect_checked, settings, connect_topic),
            handler=functools.partial(_move, settings),
        ),
    )


def _move(settings: LoadBalancing, delivery: Delivery) -> None:
    """Send a message of the subscription to the queue."""
    if delivery.end_of_batch:
        return
    topic, message = settings.topic_side, delivery.message
    number = message.message_id
    if not delivery.buffer.link.connection.capabilities.deduplicating_send:
        number = None
    subscriber = f"{topic.client_id}.{topic.subscription.durable_name}"
    try:
        delivery.engine.send(
            delivery,
            Outgoing(
                destination=settings.queue,
                message=balanced_copy(message, topic.delivery.destination),
                # The id contains the subscriber, because another subscription may move the same message to
                # this queue.
                deduplication_id=None if number is None else f"{number}>{subscriber}",
            ),
        )
    except ConfigurationError as error:
        raise PoisonMessageError(f"the message can't be moved to {settings.queue}: {error}") from error
