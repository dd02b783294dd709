"""Options of an activation for redelivery and for events: copies, duplicates, in-doubt events, replies."""

from __future__ import annotations

from airflow_provider_jmsjca.core.options.choices import (
    ContainerManagedEvents,
    InDoubtEvents,
    RedeliveryAction,
)
from airflow_provider_jmsjca.core.options.option import Option, OptionType
from airflow_provider_jmsjca.core.redelivery.actions import MoveKind

_ENGINE = "engine.delivering"


def _destination(name: str, meaning: str, source: str, *, acts: str) -> Option:
    return Option(
        name=name,
        value_type=OptionType.TEXT,
        levels="A",
        meaning=meaning,
        source=source,
        acts=acts,
    )


REDELIVERY = (
    Option(
        name="max_attempts",
        value_type=OptionType.INTEGER,
        levels="A",
        minimum=1,
        meaning="Deliveries before the message goes to the dead-letter destination.",
        source="P6, P7, P15",
        acts="core.activation",
    ),
    Option(
        name="redelivery_delay",
        value_type=OptionType.DURATION,
        levels="A",
        minimum=0,
        meaning="Time between those deliveries.",
        source="P6-P8",
        acts="core.activation",
    ),
    Option(
        name="limbo_delivery_retry",
        value_type=OptionType.INTEGER,
        levels="A",
        default=5,
        minimum=0,
        meaning="How often a failed move is tried again, each time a second later; then the message stays "
        "where it is, undelivered. With use_store limbo tries it so often.",
        source="P16",
        acts="core.delivery, engine.limbo",
        shown_default="5 with max_attempts or use_store; else such a message is delivered",
    ),
    Option(
        name="allow_message_delays",
        value_type=OptionType.BOOLEAN,
        levels="CFA",
        default=False,
        meaning="Hear the property DELIVERY_DATE of a message that is sent, milliseconds since 1970: the "
        "message is delivered no sooner.",
        source="P18, P21",
        acts="operators, engine.delivering.threaded.workers",
    ),
    Option(
        name="redelivery_delays",
        value_type=OptionType.TEXT,
        levels="A",
        java_caps=("Delay",),
        meaning="Delays as retries:milliseconds, separated by comma and space.",
        source="C14",
        acts="core.activation",
    ),
    Option(
        name="redelivery_action",
        value_type=OptionType.CHOICE,
        levels="A",
        choices=RedeliveryAction,
        java_caps=("Action",),
        meaning="What happens after the last redelivery.",
        source="C14",
        acts="core.activation",
        shown_default="none: delivered again for ever",
    ),
    Option(
        name="redelivery_action_after",
        value_type=OptionType.INTEGER,
        levels="A",
        minimum=1,
        java_caps=("Move/Delete after N times",),
        meaning="Redeliveries before that action.",
        source="C14",
        acts="core.activation",
    ),
    Option(
        name="redelivery_move_kind",
        value_type=OptionType.CHOICE,
        levels="A",
        choices=MoveKind,
        java_caps=("Move to queue/topic",),
        meaning="Kind of destination to move to; auto means the same kind.",
        source="C14",
        acts="core.activation",
        shown_default="same",
    ),
    Option(
        name="redelivery_move_name",
        value_type=OptionType.TEXT,
        levels="A",
        java_caps=("Move to destination name",),
        meaning="Name of the destination to move to; $ stands for the original one.",
        source="C14",
        acts="core.activation",
    ),
)

EVENTS = (
    Option(
        name="poll_quantity",
        value_type=OptionType.INTEGER,
        levels="A",
        default=1,
        minimum=1,
        meaning="Most messages of each destination in a cycle of turns; no effect with one destination.",
        source="I4-I6, I49, I51",
        acts="core.delivery.pending",
    ),
    _destination(
        "in_progress_destination",
        "Where a message stands while it is processed (queues only).",
        "I9, I49, I52",
        acts=_ENGINE,
    ),
    Option(
        name="in_doubt_events",
        value_type=OptionType.CHOICE,
        levels="A",
        choices=InDoubtEvents,
        default=InDoubtEvents.REPROCESS,
        meaning="What happens at start to messages left in the in-progress destination, or in doubt as "
        "the store says.",
        source="I9-I14, I49",
        acts=_ENGINE,
    ),
    Option(
        name="container_managed_events",
        value_type=OptionType.CHOICE,
        levels="A",
        choices=ContainerManagedEvents,
        default=ContainerManagedEvents.NONE,
        meaning="jms: each message, once handled, goes on to source_queue in one transaction (queues only).",
        source="I15, I16, I49",
        acts=_ENGINE,
    ),
    Option(
        name="duplicate_event_elimination",
        value_type=OptionType.BOOLEAN,
        levels="A",
        default=False,
        meaning="Drop a message whose id is one of the last 32,768 handled: without use_store in this run, "
        "with it in earlier runs too.",
        source="I15, I17, I49",
        acts="engine.delivering.receiver",
    ),
    _destination(
        "archive_destination",
        "Gets a copy of every message processed.",
        "I26, I49",
        acts=_ENGINE,
    ),
    _destination(
        "error_destination",
        "Gets every message that failed for good; discard drops them.",
        "I28, I29, I49",
        acts=_ENGINE,
    ),
    _destination(
        "unsubscribed_destination",
        "Gets every message that the selector, or the listener's `subscribes`, rejects; discard drops them.",
        "I30, I49",
        acts=_ENGINE,
    ),
    _destination(
        "reply_to_destination",
        "Where answers go to what a handler sends; a message's own reply_to goes before it.",
        "I39, I49",
        acts="engine.delivering.threaded.workers",
    ),
    Option(
        name="message_response_result_property",
        value_type=OptionType.TEXT,
        levels="A",
        meaning="Message property that holds the result of a request, where answers are consumed.",
        source="I45, I46, I49",
        acts="engine.delivering.delivery",
    ),
    _destination(
        "source_queue",
        "Where events go on to, with container_managed_events.",
        "I16, I48",
        acts=_ENGINE,
    ),
)
