"""The arguments of `JmsActivationTrigger`, checked."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from airflow_provider_jmsjca.core.administered import LOOKUP
from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.destination_options import prefetch_of
from airflow_provider_jmsjca.core.redelivery import Move, RedeliveryHandling
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.hooks.destinations import find_destination
from airflow_provider_jmsjca.triggers.payload import Payload

# Airflow gives a watcher that lags this many events behind up, so no more may be under way.
_MOST_IN_FLIGHT = 1000
_LONGEST_INTERVAL = 86_400

DEFAULT_REDELIVERY_HANDLING = "1:1000; 2:2000; 3:5000; 4:10000; 5:30000"
"""Pauses of 1, 2, 5, 10 and 30 seconds, then 30 for ever: nothing is moved or deleted unless that is said."""


class EventMode(enum.StrEnum):
    """What an event stands for.

    Attributes:
        MESSAGE: One message, consumed: it is acknowledged when Airflow has stored the event.
        READY: Messages are there. They stay; a task of the DAG consumes them.
    """

    MESSAGE = "message"
    READY = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationOptions:
    """What decides which stream of events a trigger shares with others.

    Attributes are those of `JmsActivationTrigger`, and:
        quiet: Say the first failed attempt to connect, not the others; the connection says that.
    """

    jms_conn_id: str
    destination: Destination
    message_selector: str | None
    subscription_name: str | None
    prefetch: int
    event: EventMode
    interval: timedelta
    dead_letter_destination: Destination | None
    redelivery_handling: RedeliveryHandling
    quiet: bool = False

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> ActivationOptions:
        """Return the options.

        Raises:
            ConfigurationError: Every fault, each with the argument's name and the value found.
        """
        faults: list[str] = []
        event = _event(given["event"], faults)
        destination = _destination("destination", given["destination"], faults)
        dead_letter = given["dead_letter_destination"]
        subscription_name = given["subscription_name"]
        if destination is not None and destination.kind is DestinationKind.TOPIC and event is EventMode.READY:
            faults.append(f"event='ready' needs a queue, not {destination}; use event='message' for a topic")
        if subscription_name and destination is not None and destination.kind is DestinationKind.QUEUE:
            faults.append(f"subscription_name is for topics, and the destination is {destination}")
        if dead_letter and event is EventMode.READY:
            faults.append("dead_letter_destination is for event='message': with 'ready' nothing is consumed")
        prefetch = _prefetch(given["prefetch"], destination, faults)
        interval = given["interval"]
        if not _is_number(interval, int | float) or not 0 < interval <= _LONGEST_INTERVAL:
            faults.append(f"interval is {interval!r}; expected seconds above 0, up to {_LONGEST_INTERVAL}")
        payload, most = given["payload"], given["max_body_bytes"]
        if payload not in set(Payload):
            faults.append(
                f"payload is {payload!r}; expected one of {', '.join(map(repr, map(str, Payload)))}"
            )
        if not _is_number(most, int) or most < 0:
            faults.append(f"max_body_bytes is {most!r}; expected a whole number of at least 0")
        dead = _destination("dead_letter_destination", dead_letter, faults) if dead_letter else None
        if dead is not None and dead == destination:
            faults.append(f"dead_letter_destination is the destination itself, {dead}")
        text = given["redelivery_handling"]
        handling = _handling(text, destination, faults)
        if event is EventMode.READY and text != DEFAULT_REDELIVERY_HANDLING:
            faults.append("redelivery_handling is for event='message': with 'ready' nothing is consumed")
        if faults or destination is None:
            raise ConfigurationError(f"JmsActivationTrigger: {fault}" for fault in faults)
        return cls(
            jms_conn_id=str(given["jms_conn_id"]),
            destination=destination,
            message_selector=given["message_selector"] or None,
            subscription_name=subscription_name or None,
            prefetch=prefetch,
            event=event,
            interval=timedelta(seconds=interval),
            dead_letter_destination=dead,
            redelivery_handling=handling,
        )


def _event(value: object, faults: list[str]) -> EventMode:
    try:
        return EventMode(str(value))
    except ValueError:
        faults.append(f"event is {value!r}; expected one of {', '.join(map(repr, map(str, EventMode)))}")
        return EventMode.MESSAGE


def _destination(name: str, value: object, faults: list[str]) -> Destination | None:
    if not isinstance(value, str):
        faults.append(f"{name} is {value!r}; expected a string such as 'queue://orders'")
        return None
    try:
        return find_destination(value, variables=False)
    except ConfigurationError as error:
        faults.extend(f"{name} is {value!r}: {fault}" for fault in error.faults)
        return None


def _handling(given: object, destination: Destination | None, faults: list[str]) -> RedeliveryHandling:
    if not isinstance(given, str):
        faults.append(
            f"redelivery_handling is {given!r}; expected a string such as '3:1000; 10:move(queue:$.dead)'"
        )
        return RedeliveryHandling()
    try:
        handling = RedeliveryHandling.parse(given)
        last = handling.actions[-1] if handling.actions else None
        targets = last.targets(destination) if isinstance(last, Move) and destination is not None else ()
    except ConfigurationError as error:
        faults.extend(f"redelivery_handling is {given!r}: {fault}" for fault in error.faults)
        return RedeliveryHandling()
    if destination in targets:
        faults.append(f"redelivery_handling is {given!r}: it moves to the destination itself, {destination}")
    if looked_up := [str(target) for target in targets if target.name.startswith(LOOKUP)]:
        faults.append(
            f"redelivery_handling is {given!r}: {', '.join(looked_up)} would have to be looked up; expected "
            "the name itself"
        )
    return handling


def _prefetch(given: Any, destination: Destination | None, faults: list[str]) -> int:
    said = None if destination is None else prefetch_of(destination)
    value: int = given if said is None else said
    if not _is_number(value, int) or not 1 <= value <= _MOST_IN_FLIGHT:
        place = "prefetch" if said is None else "destination: prefetch"
        faults.append(f"{place} is {value!r}; expected a whole number from 1 to {_MOST_IN_FLIGHT}")
    return value


def _is_number(value: object, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
