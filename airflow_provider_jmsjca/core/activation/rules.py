"""Checks of an activation spec after its options were read: missing, invalid and contradictory fields."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from airflow_provider_jmsjca.core.activation.fields import ActivationFields
from airflow_provider_jmsjca.core.activation.redelivery import redelivery_handling
from airflow_provider_jmsjca.core.configuration.administered import DestinationReference, is_discard
from airflow_provider_jmsjca.core.configuration.destination_options import check_options
from airflow_provider_jmsjca.core.configuration.overruling import ATTEMPTS, CLIENT_PROPERTIES
from airflow_provider_jmsjca.core.configuration.subscription import SubscriptionName
from airflow_provider_jmsjca.core.destination import DestinationKind
from airflow_provider_jmsjca.core.options.choices import (
    ConcurrencyMode,
    ContainerManagedEvents,
    DistributedDestinationConnection,
    SubscriptionDurability,
)
from airflow_provider_jmsjca.core.redelivery import Move
from airflow_provider_jmsjca.core.selector import Selector
from airflow_provider_jmsjca.errors import ConfigurationError

Fault = tuple[frozenset[str], str]
"""The names of the fields that cause a fault, and the fault as a sentence."""

_MOST_CONTAINER_MANAGED = 500
SINGLE_DESTINATIONS = (
    "in_progress_destination",
    "archive_destination",
    "error_destination",
    "unsubscribed_destination",
    "reply_to_destination",
    "source_queue",
)
"""Options that name one further destination; `dead_letter_destination` may name several."""


def references(spec: ActivationFields) -> tuple[DestinationReference, ...]:
    """Return the destinations that the spec names.

    Raises:
        ConfigurationError: Lists every destination that can't be parsed.
    """
    kind = DestinationKind(spec.destination_type.value) if spec.destination_type else None
    found: list[DestinationReference] = []
    faults: list[str] = []
    for text in spec.destination:
        try:
            found.append(DestinationReference.parse(text, kind))
        except ConfigurationError as error:
            faults.extend(error.faults)
    if faults:
        raise ConfigurationError(faults)
    return tuple(found)


def check(spec: ActivationFields) -> Iterator[Fault]:
    """Yield every fault of a spec that reading its single options does not find."""
    yield from _destinations(spec)
    yield from _subscription(spec)
    yield from _concurrency(spec)
    yield from _identity(spec)
    yield from _selector(spec)
    yield from _redelivery(spec)
    yield from _outages(spec)
    yield from _events(spec)


def _fault(names: str, sentence: str) -> Fault:
    return frozenset(names.split()), sentence


def _destinations(spec: ActivationFields) -> Iterator[Fault]:
    """Check that a destination to consume is given, and that every destination can be parsed.

    Source: J50, J51, J91.
    """
    if not spec.destination:
        yield _fault(
            "destination", "destination: missing, expected the name of the queue or topic to consume"
        )
    try:
        references(spec)
    except ConfigurationError as error:
        for sentence in error.faults:
            yield _fault("destination destination_type", sentence)
    for name in ("dead_letter_destination", *SINGLE_DESTINATIONS):
        given = getattr(spec, name)
        for text in given if isinstance(given, tuple) else (given,) if given else ():
            try:
                DestinationReference.parse(text, default=DestinationKind.QUEUE)
            except ConfigurationError as error:
                yield _fault(name, f"{name}: got {text!r}: {error}")


def _is_topic(spec: ActivationFields) -> bool | None:
    """Return whether the activation consumes topics; `None` if only a look-up can tell."""
    try:
        kinds = {reference.kind for reference in references(spec)}
    except ConfigurationError:
        return None
    return None if None in kinds or not kinds else DestinationKind.TOPIC in kinds


def _subscription(spec: ActivationFields) -> Iterator[Fault]:
    """Check that a durable subscription has one topic, and that a subscription name can be parsed.

    Source: J52, J53, J204-J211.
    """
    durable = spec.subscription_durability is SubscriptionDurability.DURABLE
    if durable and not spec.subscription_name:
        yield _fault(
            "subscription_durability subscription_name",
            "subscription_name: missing, expected a name because subscription_durability is durable",
        )
    if durable and _is_topic(spec) is False:
        yield _fault(
            "subscription_durability destination destination_type",
            "subscription_durability: got durable for a queue, expected a topic (queues keep their messages)",
        )
    if durable and len(spec.destination) > 1:
        yield _fault(
            "subscription_durability destination",
            f"destination: got {len(spec.destination)} topics for one durable subscription, expected one",
        )
    if not spec.subscription_name:
        return
    try:
        name = SubscriptionName.parse(spec.subscription_name)
    except ConfigurationError as error:
        for sentence in error.faults:
            yield _fault(
                "subscription_name", f"subscription_name: {sentence.removeprefix('subscription name: ')}"
            )
        return
    if name.distributed and not durable:
        yield _fault(
            "subscription_durability subscription_name",
            "subscription_durability: got non_durable, expected durable for a distributed subscription_name",
        )
    if name.distributed:
        yield from _distributed(spec)


def _distributed(spec: ActivationFields) -> Iterator[Fault]:
    """Check the options that can't be combined with a distributed subscription name.

    Source: J204, J211, W12, W31, W33.
    """
    for option, why in (
        ("generate_unique_client_id", "the instances share one subscription"),
        ("durable_subscription_deletion", "other instances may stand by for the subscription"),
    ):
        if getattr(spec, option):
            yield _fault(
                f"{option} subscription_name",
                f"{option}: got true, expected false for a distributed subscription_name: {why}",
            )
    if spec.distributed_destination_connection is DistributedDestinationConnection.EVERY_MEMBER:
        yield _fault(
            "distributed_destination_connection subscription_name",
            "distributed_destination_connection: got every_member, expected local_only for a distributed "
            "subscription_name: its messages pass through a queue of one broker",
        )


def _identity(spec: ActivationFields) -> Iterator[Fault]:
    given = spec.message_id_fallback
    kind, colon, name = (given or "digest").partition(":")
    if (kind, bool(colon), bool(name.strip())) not in {("digest", False, False), ("property", True, True)}:
        yield _fault(
            "message_id_fallback",
            f"message_id_fallback: got {given!r}, expected digest, or property:name with the name of a "
            "message property that its sender sets, different for each message",
        )


def _concurrency(spec: ActivationFields) -> Iterator[Fault]:
    """Refuse batches and `hold_until_ack` in serial mode, and a steady pool size above the maximum.

    Source: J55, J63, J184, J193.
    """
    if spec.concurrency_mode is ConcurrencyMode.SERIAL:
        for name, wanted in (
            ("batch_size", f"batches of {spec.batch_size}" if spec.batch_size > 1 else ""),
            ("hold_until_ack", "hold_until_ack" if spec.hold_until_ack else ""),
        ):
            if wanted:
                yield _fault(
                    f"concurrency_mode {name}",
                    f"concurrency_mode: got serial, expected sync or cc for {wanted}; sync with "
                    "endpoint_pool_max_size=1 has one at a time",
                )
    if (
        "endpoint_pool_steady_size" in spec.model_fields_set
        and spec.endpoint_pool_steady_size > spec.endpoint_pool_max_size
    ):
        yield _fault(
            "endpoint_pool_steady_size endpoint_pool_max_size",
            f"endpoint_pool_steady_size: got {spec.endpoint_pool_steady_size}, expected at most "
            f"endpoint_pool_max_size, {spec.endpoint_pool_max_size}",
        )


def _selector(spec: ActivationFields) -> Iterator[Fault]:
    """Check selectors without parameters; the values of parameters are not known yet.

    Source: J57, J178-J181.
    """
    for name in ("message_selector", "selector_override"):
        text = getattr(spec, name)
        if text and "$" not in text:
            try:
                Selector.parse(text)
            except ConfigurationError as error:
                for sentence in error.faults:
                    yield _fault(name, f"{name}: {sentence}")


def _redelivery(spec: ActivationFields) -> Iterator[Fault]:
    """Check redelivery handling and dead-letter destinations.

    Source: J64, J133-J139, P6-P9, C14.
    """
    ways = {
        "redelivery_handling": "redelivery_handling" in spec.model_fields_set,
        "max_attempts, redelivery_delay": any(getattr(spec, name) is not None for name in ATTEMPTS),
        "redelivery_delays, redelivery_action": any(
            getattr(spec, name) is not None for name in CLIENT_PROPERTIES
        ),
    }
    said = [way for way, given in ways.items() if given]
    if len(said) > 1:
        yield _fault(
            "redelivery_handling max_attempts redelivery_delay redelivery_delays redelivery_action",
            f"redelivery_handling: set in {len(said)} ways ({'; '.join(said)}), expected one of them",
        )
        return
    names = " ".join(("redelivery_handling", "dead_letter_destination", *ATTEMPTS, *CLIENT_PROPERTIES))
    try:
        handling = redelivery_handling(spec)
    except ConfigurationError as error:
        for sentence in error.faults:
            yield _fault(names, sentence)
        return
    last = handling.actions[-1] if handling.actions else None
    moves = isinstance(last, Move)
    if isinstance(last, Move):
        for target in last.all_targets:
            for sentence in check_options(dict(target.options), "redelivery_handling"):
                yield _fault("redelivery_handling", sentence)
    targets = spec.dead_letter_destination or spec.error_destination
    if len(spec.dead_letter_destination) > 1 and any(map(is_discard, spec.dead_letter_destination)):
        yield _fault(
            "dead_letter_destination",
            "dead_letter_destination: got discard beside destinations, expected one or the other "
            "(queue://discard names a queue)",
        )
    if spec.non_retryable and not (targets or moves or spec.use_store):
        yield _fault(
            f"non_retryable {names}",
            "dead_letter_destination: missing, expected a destination for messages that fail with "
            "non_retryable exceptions (or a move at the end of redelivery_handling, or use_store, which "
            "keeps them)",
        )


def _outages(spec: ActivationFields) -> Iterator[Fault]:
    """Refuse an `init_suspend` that is longer than `max_suspend`.

    Source: W24-W26.
    """
    if "init_suspend" in spec.model_fields_set and timedelta(0) < spec.max_suspend < spec.init_suspend:
        yield _fault(
            "init_suspend max_suspend",
            f"init_suspend: got {spec.init_suspend.total_seconds():g} s, expected at most max_suspend, "
            f"{spec.max_suspend.total_seconds():g} s",
        )


def _events(spec: ActivationFields) -> Iterator[Fault]:
    """Check the options of the in-progress queue and of container-managed events.

    Both require queues. Container-managed events also require a source queue, and limit `poll_quantity`.

    Source: I9, I15, I16.
    """
    container_managed = spec.container_managed_events is ContainerManagedEvents.JMS
    for name, given in (
        ("container_managed_events", container_managed),
        ("in_progress_destination", spec.in_progress_destination is not None),
    ):
        if given and _is_topic(spec):
            yield _fault(f"{name} destination destination_type", f"{name}: got a topic, expected queues only")
    if container_managed and not spec.source_queue:
        yield _fault(
            "container_managed_events source_queue",
            "source_queue: missing, expected a queue because container_managed_events is jms",
        )
    if container_managed and spec.source_queue and _is_a_topic(spec.source_queue):
        yield _fault("source_queue", f"source_queue: got {spec.source_queue!r}, expected a queue")
    if container_managed and spec.poll_quantity > _MOST_CONTAINER_MANAGED:
        yield _fault(
            "container_managed_events poll_quantity",
            f"poll_quantity: got {spec.poll_quantity}, expected 1 to {_MOST_CONTAINER_MANAGED} because "
            "container_managed_events is jms",
        )


def _is_a_topic(text: str) -> bool:
    try:
        kind = DestinationReference.parse(text, default=DestinationKind.QUEUE).kind
    except ConfigurationError:
        return False
    return kind is DestinationKind.TOPIC
