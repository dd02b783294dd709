"""Payloads of events, and the records that Airflow's asset store keeps of them."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import Body, BodyKind, JmsMessage, to_json

_BODY_KEYS = ("body", "item_types")
# A record of stored events keeps this many streams, enough for two triggerers with a restart each. For each
# stream it keeps this many ranges: each time the DAG is paused, a gap of events that were not stored follows.
_STREAMS_KEPT = 4
_RANGES_KEPT = 16

FAULT_KEY = "jms-fault"
"""Key of the reason why a watched asset gets no events, in the asset's store."""
HELD_KEY = "jms-held"
"""Key of the list of held messages in an asset's store, so that one query serves many messages."""
OUTCOME_LIST_KEY = "jms-heard"
"""Key of the list of the last outcomes in an asset's store, by the tokens of their events."""
STARTED_KEY = "jms-started"
"""Key of the time at which a run with held messages last started, in seconds since the epoch."""
FAILURE_KEY = "jms-failure"
"""Key of the exception that failed a task of a run with held messages, in the state store of the task."""
# Keys of deleted records are dropped from the list when it has doubled and has at least this many keys.
_LEAST_LOOKED_THROUGH = 256
_OUTCOMES_LISTED = 500
_LONGEST_FAILURE = 300


class EventMode(enum.StrEnum):
    """Kind of event.

    Attributes:
        MESSAGE: One message. It is consumed, and acknowledged when Airflow has stored the event.
        READY: The queue has messages. They stay on the queue; a task of the DAG consumes them.
    """

    MESSAGE = "message"
    READY = "ready"


class Payload(enum.StrEnum):
    """Parts of a message that an event carries.

    Attributes:
        MESSAGE: The whole message. If its body is too large, the headers and a reference to the message.
        HEADERS: The headers. The body is lost when the message is acknowledged.
        REFERENCE: The headers, and a reference to the whole message in the spool.
    """

    MESSAGE = "message"
    HEADERS = "headers"
    REFERENCE = "reference"


class Fit(enum.Enum):
    """How a message fits into an event.

    Attributes:
        WHOLE: The message fits in the form that `payload` selects.
        SEALED: The body has to go into the spool.
        NOT: The properties alone are too large.
    """

    WHOLE = enum.auto()
    SEALED = enum.auto()
    NOT = enum.auto()


def message_content(destination: Destination, message: JmsMessage, form: Payload) -> dict[str, Any]:
    """Return the part of an event for one message, as JSON.

    With `Payload.MESSAGE` it is `{"destination": "queue://orders", "message": {...}}`, where `message` is the
    form that `JmsMessage.from_json` reads. With the other payloads it has `headers` instead of `message`,
    without the body. With `Payload.REFERENCE` the caller adds the `reference` to the spooled message.
    """
    content = to_json(message)
    name = str(Payload.MESSAGE)
    if form is not Payload.MESSAGE:
        content = {key: value for key, value in content.items() if key not in _BODY_KEYS}
        name = str(Payload.HEADERS)
    return {"destination": str(destination), name: content}


def message_event(jms_conn_id: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the payload of the event for one message: its content, `event` and `jms_conn_id`."""
    return {"event": "message", "jms_conn_id": jms_conn_id, **content}


def batch_event(jms_conn_id: str, contents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the payload of the event for a batch: `messages` has the content of each."""
    return {"event": "batch", "jms_conn_id": jms_conn_id, "messages": list(contents)}


def held_event(event: Mapping[str, Any], token: str, count: int, keys: Sequence[str]) -> dict[str, Any]:
    """Return the payload of an event with messages held until its DAG runs end.

    Args:
        event: The payload, to which `hold` is added.
        token: Identifies the event.
        count: Number of messages in the event.
        keys: Keys of the records of those messages that have an id.
    """
    return {**event, "hold": {"token": token, "of": count, "keys": list(keys)}}


def with_receipt(event: Mapping[str, Any], key: str, stream: str, number: int) -> dict[str, Any]:
    """Return the payload of a numbered event, for the trigger to check later whether it was stored.

    Args:
        event: The payload without the number.
        key: Key of the record of stored events.
        stream: Identifies one start of the trigger among those that use the key.
        number: Number of the event in the stream, from 1.
    """
    return {**event, "receipt": {"key": key, "stream": stream, "number": number}}


def receipt_of(extra: object) -> tuple[str, str, int] | None:
    """Return key, stream and number from the `extra` of a stored event; `None` without a receipt.

    The receipt of an event that was created over Airflow's API doesn't count. Such an event may have a number
    that the trigger gave to another event, whose message would then be acknowledged without a stored event.
    """
    found = {} if _is_made_by_hand(extra) else _part("receipt", extra)
    key, stream, number = (found.get(name) for name in ("key", "stream", "number"))
    if isinstance(key, str) and isinstance(stream, str) and isinstance(number, int):
        return key, stream, number
    return None


def with_number(record: object, stream: str, number: int) -> dict[str, list[list[int]]]:
    """Return the record of stored events, with the number of one more event.

    The record has a list for each stream, of ranges `[first number, last number]`. Numbers between the ranges
    are events that were not stored. Only the last streams, and the last ranges of each, are kept.

    Args:
        record: The record so far.
        stream: Identifies the stream of the event.
        number: Number of the event in the stream.
    """
    streams = dict(record) if isinstance(record, Mapping) else {}
    ranges = _ranges(streams.pop(stream, None))
    if ranges and number == ranges[-1][1] + 1:
        ranges[-1][1] = number
    elif not has_number({stream: ranges}, stream, number):
        ranges.append([number, number])
    kept_streams = list(streams.items())[1 - _STREAMS_KEPT :]
    return {**dict(kept_streams), stream: ranges[-_RANGES_KEPT:]}


def has_number(record: object, stream: str, number: int) -> bool:
    """Return whether the event with this number was stored, according to the record."""
    ranges = _ranges(record.get(stream)) if isinstance(record, Mapping) else []
    return any(first <= number <= last for first, last in ranges)


def _ranges(found: object) -> list[list[int]]:
    """Return the valid ranges of a record; tasks can write any value into the store of their asset."""
    known: list[list[int]] = []
    for each in found if isinstance(found, list) else ():
        match each:
            case [int(first), int(last)]:
                known.append([first, last])
    return known


def is_jms_event(extra: object) -> bool:
    """Return whether this is the `extra` of an event from a trigger of this package."""
    payload = extra.get("payload") if isinstance(extra, Mapping) and extra.get("from_trigger") else None
    return isinstance(payload, Mapping) and "jms_conn_id" in payload and "event" in payload


def hold_token(extra: object) -> str | None:
    """Return the token of an event with held messages, from its `extra`; `None` for other events.

    A copy of the event that was created over Airflow's API doesn't count: no message waits for its DAG runs.
    """
    found = _hold(extra).get("token")
    return found if isinstance(found, str) and not _is_made_by_hand(extra) else None


def message_ids(extra: object) -> list[str]:
    """Return the ids of the messages of an event, from its `extra`."""
    payload = extra.get("payload") if isinstance(extra, Mapping) else None
    if not isinstance(payload, Mapping):
        return []
    batch = payload.get("messages")
    contents = batch if isinstance(batch, list) else [payload]
    found = [
        each.get(form) for each in contents if isinstance(each, Mapping) for form in ("message", "headers")
    ]
    ids = [each.get("message_id") for each in found if isinstance(each, Mapping)]
    return [each for each in ids if isinstance(each, str)]


def message_outcome(outcome: object, message_id: str | None) -> bool | str | None:
    """Return the outcome of a message: `True` if it is acknowledged, why it failed, or `None` if it is open.

    Args:
        outcome: The stored outcome of an event. `acknowledged` applies to all its messages, and `messages` to
            single ones, by id. The outcome is open while it `awaits` DAGs.
        message_id: The message's id.
    """
    if not isinstance(outcome, Mapping):
        return None
    single = outcome.get("messages")
    own = single.get(message_id) if isinstance(single, Mapping) else None
    if not isinstance(own, Mapping):
        own = outcome
    if "acknowledged" not in own or "awaits" in own:
        return None
    return True if own["acknowledged"] is True else str(own.get("why", "no reason is given"))


def failure(error: BaseException, number: int, mask: Callable[[str], str]) -> dict[str, Any]:
    """Return the record of the exception that failed a task.

    Args:
        error: The exception. The record has its class and its first line, at most 300 characters.
        number: Number of the try that failed.
        mask: Returns a text with secrets masked.
    """
    line = mask(str(error)).strip().partition("\n")[0][:_LONGEST_FAILURE].strip()
    return {"try": number, "error": ": ".join(filter(None, (type(error).__name__, line)))}


def failure_of(record: str | None, number: int | None) -> str:
    """Return the exception of a task from its record; empty if the record isn't about this try.

    A task whose process is killed leaves no record, and may have one of an earlier try.

    Args:
        record: The record as JSON; `None`: there is none. Tasks can write any value.
        number: Number of the try that failed.
    """
    try:
        found = {} if record is None else json.loads(record)
    except ValueError:
        return ""
    error = found.get("error") if isinstance(found, Mapping) and found.get("try") == number else None
    return error if isinstance(error, str) else ""


def awaited_dags(outcome: object) -> list[str]:
    """Return the DAGs that an outcome still waits for, because they have no DAG run for the event yet.

    The DAG runs of all other DAGs have succeeded.
    """
    found = outcome.get("awaits") if isinstance(outcome, Mapping) else None
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


def hold_records(extra: object, since: float) -> dict[str, dict[str, Any]]:
    """Return the records of an event's held messages, by key; nothing for other events.

    Args:
        extra: The event's `extra`.
        since: Time at which the event was stored, in seconds since the epoch.
    """
    hold, token = _hold(extra), hold_token(extra)
    keys = hold.get("keys")
    if token is None or not isinstance(keys, list):
        return {}
    return {
        key: {"token": token, "of": hold.get("of"), "since": since} for key in keys if isinstance(key, str)
    }


def with_held_keys(listed: object, keys: Sequence[str], is_kept: Callable[[str], bool]) -> dict[str, Any]:
    """Add the keys of new records to the list of held messages; return the new list.

    When the list has twice as many keys as after the last clean-up, and at least 256, it is cleaned up: keys
    whose records were deleted are dropped.

    Args:
        listed: The list so far, from the asset's store; `None` if there is none.
        keys: Keys of the new records, one for each message.
        is_kept: Returns whether the record of a key still exists.
    """
    held = _held_keys(listed) or {}
    held |= dict.fromkeys(keys)
    limit = listed.get("limit") if isinstance(listed, Mapping) else None
    if not isinstance(limit, int):
        limit = _LEAST_LOOKED_THROUGH
    if len(held) > limit:
        held = {key: None for key in held if is_kept(key)}
        limit = max(_LEAST_LOOKED_THROUGH, 2 * len(held))
    return {"keys": list(held), "limit": limit}


def may_be_held(listed: object, key: str) -> bool:
    """Return whether an asset's store may have the record of a held message.

    This is so if the list of held messages has the record's key, or if there is no list.

    Args:
        listed: The list of held messages, from the asset's store; `None` if there is none.
        key: Key of the record.
    """
    held = _held_keys(listed)
    return held is None or key in held


def _held_keys(listed: object) -> dict[str, None] | None:
    keys = listed.get("keys") if isinstance(listed, Mapping) else None
    return dict.fromkeys(each for each in keys if isinstance(each, str)) if isinstance(keys, list) else None


def with_listed_outcome(listed: object, token: str, outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return the list of the last outcomes, with the outcome of one more event.

    Args:
        listed: The list so far.
        token: Token of the event.
        outcome: The event's outcome.
    """
    outcomes = listed_outcomes(listed) | {token: dict(outcome)}
    return dict(list(outcomes.items())[-_OUTCOMES_LISTED:])


def listed_outcomes(listed: object) -> dict[str, Any]:
    """Return the outcomes in the list of last outcomes, by token."""
    return dict(listed) if isinstance(listed, Mapping) else {}


def is_still_held(extra: object, stored: Callable[[str], object]) -> bool:
    """Return whether a message of an event may still wait for its DAG runs.

    Args:
        extra: The event's `extra`.
        stored: Returns the value of a key in the asset's store, or `None`.
    """
    records = hold_records(extra, 0)
    of = _hold(extra).get("of")
    if not isinstance(of, int) or len(records) < of:
        return True  # a message without an id has no record
    token = hold_token(extra)
    return any(isinstance(each, Mapping) and token in tokens_of(each) for each in map(stored, records))


def tokens_of(record: Mapping[str, Any]) -> list[Any]:
    """Return the tokens in the record of a held message, the latest first; a token identifies an event.

    There are several if Airflow considered a triggerer dead while it was alive. It and its successor may then
    each have created an event for the message. Only one of the two still has the message, and waits for the
    DAG runs of its own event.
    """
    also = record.get("also")
    return [record.get("token"), *(also if isinstance(also, list) else [])]


def _hold(extra: object) -> Mapping[str, Any]:
    return _part("hold", extra)


def _part(part: str, extra: object) -> Mapping[str, Any]:
    found = extra
    for name in ("payload", part):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _is_made_by_hand(extra: object) -> bool:
    # Airflow sets `from_rest_api` itself, whatever the request says.
    return isinstance(extra, Mapping) and bool(extra.get("from_rest_api"))


def outcome_key(token: str) -> str:
    """Return the key of the outcome of an event's messages."""
    return f"jms-outcome.{token}"


def ready_event(jms_conn_id: str, destination: Destination) -> dict[str, Any]:
    """Return the payload of the event that reports waiting messages."""
    return {"event": "ready", "jms_conn_id": jms_conn_id, "destination": str(destination)}


def fit(message: JmsMessage, limit: int, form: Payload) -> Fit:
    """Return how a message fits into an event.

    Args:
        message: The message.
        limit: Maximum bytes of body and properties as JSON; of the properties alone if the event has no body.
        form: The parts that the event carries.
    """
    bodiless = replace(message, body_kind=BodyKind.EMPTY, body=None, item_types={})
    properties = _size("properties", bodiless, limit) if message.properties else 0
    if properties > limit:
        return Fit.NOT
    if form is Payload.MESSAGE:
        return Fit.SEALED if properties + _size("body", message, limit) > limit else Fit.WHOLE
    return Fit.SEALED if form is Payload.REFERENCE else Fit.WHOLE


def bytes_in_event(message: JmsMessage, limit: int, form: Payload) -> int:
    """Return the approximate number of bytes of a message in an event; the arguments are those of `fit`."""
    body = _least_size(message.body) if form is Payload.MESSAGE else 0
    return _least_size(message.properties) + (body if body <= limit else 0)


def _size(part: str, message: JmsMessage, limit: int) -> int:
    """Return the size of the body or the properties as JSON, in bytes; above the limit, a lower bound."""
    # The cheap bound first: serializing a body of many megabytes would block the event loop.
    least = _least_size(getattr(message, part))
    return least if least > limit else len(json.dumps(to_json(message)[part]))


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
