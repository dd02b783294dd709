"""What an event carries into the DAG."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import Body, JmsMessage
from airflow_provider_jmsjca.core.message_json import to_json

_BODY_KEYS = ("body", "item_types")


class Payload(enum.StrEnum):
    """How much of a message an event carries."""

    MESSAGE = "message"
    HEADERS = "headers"


def message_event(
    jms_conn_id: str, destination: Destination, message: JmsMessage, form: Payload
) -> dict[str, Any]:
    """Return the payload of the event for one message, JSON only.

    `{"event": "message", "jms_conn_id": ..., "destination": "queue://orders", "message": {...}}`, where
    `message` is the form that `JmsMessage.from_json` reads; with `Payload.HEADERS` it is `headers`, the same
    without the body.
    """
    content = to_json(message)
    if form is Payload.HEADERS:
        content = {name: value for name, value in content.items() if name not in _BODY_KEYS}
    return {
        "event": "message",
        "jms_conn_id": jms_conn_id,
        "destination": str(destination),
        str(form): content,
    }


def ready_event(jms_conn_id: str, destination: Destination) -> dict[str, Any]:
    """Return the payload of the event that says messages are there."""
    return {"event": "ready", "jms_conn_id": jms_conn_id, "destination": str(destination)}


def body_exceeds(message: JmsMessage, limit: int) -> bool:
    """Say whether the body's JSON form takes more than so many bytes."""
    # The cheap bound first: to write down a body of many megabytes would hold up the event loop.
    if _least_size(message.body) > limit:
        return True
    return len(json.dumps(to_json(message)["body"])) > limit


def _least_size(body: Body) -> int:
    match body:
        case str() | bytes():
            return len(body)
        case Mapping():
            return sum(_least_size(value) for value in body.values() if isinstance(value, str | bytes))
        case Sequence():
            return sum(_least_size(value) for value in body if isinstance(value, str | bytes))
        case _:
            return 0
