"""What an event carries into the DAG."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import Body, BodyKind, JmsMessage, to_json

_BODY_KEYS = ("body", "item_types")
# Of what was stored: two triggerers and their restarts, and the gaps that several pauses make.
_STREAMS_KEPT = 4
_RANGES_KEPT = 16

HELD_KEY = "jms-held"
"""Under this key an asset's store lists the records of held messages: one look serves many messages."""
HEARD_KEY = "jms-heard"
"""Under this key an asset's store lists the last words of runs, by the tokens of their events."""
STARTED_KEY = "jms-started"
"""Under this key an asset's store has the time at which a run with held messages last started, in seconds."""
# What is listed is looked through for records that are gone when it has doubled, and has so many.
_LEAST_LOOKED_THROUGH = 256
_WORDS_HEARD = 500


class EventMode(enum.StrEnum):
    """What an event stands for.

    Attributes:
        MESSAGE: One message, consumed: it is acknowledged when Airflow has stored the event.
        READY: Messages are there. They stay; a task of the DAG consumes them.
    """

    MESSAGE = "message"
    READY = "ready"


class Payload(enum.StrEnum):
    """How much of a message an event carries.

    Attributes:
        MESSAGE: All of it; of one whose body is too large the headers, and a reference to the whole.
        HEADERS: All but the body, which is gone when the message is acknowledged.
        REFERENCE: The headers, and a reference to the whole message in the spool.
    """

    MESSAGE = "message"
    HEADERS = "headers"
    REFERENCE = "reference"


class Fit(enum.Enum):
    """How a message fits into an event.

    Attributes:
        WHOLE: As the payload says.
        SEALED: The message's body has to go into the spool.
        NOT: The message's properties alone are too large.
    """

    WHOLE = enum.auto()
    SEALED = enum.auto()
    NOT = enum.auto()


def message_content(destination: Destination, message: JmsMessage, form: Payload) -> dict[str, Any]:
    """Return what an event carries of one message, JSON only.

    `{"destination": "queue://orders", "message": {...}}`, where `message` is the form that
    `JmsMessage.from_json` reads. Otherwise it is `headers`, the same without the body; with
    `Payload.REFERENCE` whoever calls adds the `reference` to what was sealed.
    """
    content = to_json(message)
    name = str(Payload.MESSAGE)
    if form is not Payload.MESSAGE:
        content = {key: value for key, value in content.items() if key not in _BODY_KEYS}
        name = str(Payload.HEADERS)
    return {"destination": str(destination), name: content}


def message_event(jms_conn_id: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the payload of the event for one message: what it carries, `event` and `jms_conn_id`."""
    return {"event": "message", "jms_conn_id": jms_conn_id, **content}


def batch_event(jms_conn_id: str, contents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the payload of the event for a batch: `messages` holds what it carries of each."""
    return {"event": "batch", "jms_conn_id": jms_conn_id, "messages": list(contents)}


def held_event(event: Mapping[str, Any], token: str, of: int, keys: Sequence[str]) -> dict[str, Any]:
    """Return the payload of an event whose messages wait for the word of its DAG run.

    Args:
        event: The payload of one that doesn't wait.
        token: What tells the event from others.
        of: How many messages the event has.
        keys: Under which keys those of them that have an id are recorded, when the event is stored.
    """
    return {**event, "hold": {"token": token, "of": of, "keys": list(keys)}}


def with_receipt(event: Mapping[str, Any], key: str, stream: str, number: int) -> dict[str, Any]:
    """Return the payload of an event whose trigger looks, later, whether it was stored.

    Args:
        event: The payload.
        key: Under which key is kept what was stored.
        stream: What tells the trigger from others that use this key, after a restart.
        number: Of the event, counted from 1.
    """
    return {**event, "receipt": {"key": key, "stream": stream, "number": number}}


def receipt_of(extra: object) -> tuple[str, str, int] | None:
    """Return key, stream and number of such an event, by what Airflow keeps of it; `None` for others.

    An event that somebody has made over Airflow's API is another one. It must not say that a trigger's event
    of this number was stored: the message of that one would be acknowledged, stored or not.
    """
    found = {} if _is_made_by_hand(extra) else _part("receipt", extra)
    key, stream, number = (found.get(name) for name in ("key", "stream", "number"))
    if isinstance(key, str) and isinstance(stream, str) and isinstance(number, int):
        return key, stream, number
    return None


def with_number(kept: object, stream: str, number: int) -> dict[str, list[list[int]]]:
    """Return what is kept of the events that were stored, with one more: from and to, for each stream.

    Gaps are numbers whose events were not stored. Of a stream some last gaps are kept, and some last streams.
    """
    streams = dict(kept) if isinstance(kept, Mapping) else {}
    ranges = _ranges(streams.pop(stream, None))
    if ranges and number == ranges[-1][1] + 1:
        ranges[-1][1] = number
    elif not has_number({stream: ranges}, stream, number):
        ranges.append([number, number])
    kept_streams = list(streams.items())[1 - _STREAMS_KEPT :]
    return {**dict(kept_streams), stream: ranges[-_RANGES_KEPT:]}


def has_number(kept: object, stream: str, number: int) -> bool:
    """Say whether the event of this number was stored, by what is kept."""
    ranges = _ranges(kept.get(stream)) if isinstance(kept, Mapping) else []
    return any(first <= number <= last for first, last in ranges)


def _ranges(found: object) -> list[list[int]]:
    """Return ranges; whoever writes tasks may write what they like into the store of their asset."""
    known: list[list[int]] = []
    for each in found if isinstance(found, list) else ():
        match each:
            case [int(first), int(last)]:
                known.append([first, last])
    return known


def is_event(extra: object) -> bool:
    """Say whether this is what Airflow keeps of an event that one of the triggers has made."""
    payload = extra.get("payload") if isinstance(extra, Mapping) and extra.get("from_trigger") else None
    return isinstance(payload, Mapping) and "jms_conn_id" in payload and "event" in payload


def hold_token(extra: object) -> str | None:
    """Return the token in what Airflow keeps of such an event; `None` for other events.

    An event that somebody has made again over Airflow's API is another one: the message doesn't wait for its
    runs.
    """
    found = _hold(extra).get("token")
    return found if isinstance(found, str) and not _is_made_by_hand(extra) else None


def message_ids(extra: object) -> list[str]:
    """Return the ids of the messages in what Airflow keeps of an event."""
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


def word_on(word: object, message_id: str | None) -> bool | str | None:
    """Return the outcome of a message: `True` if it is acknowledged, why it failed, or `None` if it is open.

    Args:
        word: `acknowledged` is for all messages of an event, `messages` for single ones, by their ids. It is
            open while it `awaits` DAGs.
        message_id: Of the message.
    """
    if not isinstance(word, Mapping):
        return None
    single = word.get("messages")
    said = single.get(message_id) if isinstance(single, Mapping) else None
    if not isinstance(said, Mapping):
        said = word
    if "acknowledged" not in said or "awaits" in said:
        return None
    return True if said["acknowledged"] is True else str(said.get("why", "no reason is given"))


def awaited_dags(word: object) -> list[str]:
    """Return the DAGs without a run that an outcome waits for, although all runs so far have succeeded."""
    found = word.get("awaits") if isinstance(word, Mapping) else None
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


def hold_records(extra: object, since: float) -> dict[str, dict[str, Any]]:
    """Return what is to be kept of such an event's messages, by their keys; nothing for other events.

    Args:
        extra: What Airflow keeps of the event.
        since: When it was stored, in seconds since the epoch.
    """
    hold, token = _hold(extra), hold_token(extra)
    keys = hold.get("keys")
    if token is None or not isinstance(keys, list):
        return {}
    return {
        key: {"token": token, "of": hold.get("of"), "since": since} for key in keys if isinstance(key, str)
    }


def with_held(kept: object, keys: Sequence[str], is_kept: Callable[[str], bool]) -> dict[str, Any]:
    """Return the list of records of held messages, with more keys.

    Args:
        kept: The list so far; `None`: there is none.
        keys: Of new records.
        is_kept: Says whether there is still a record of this key. Keys without a record are dropped from the
            list when it has doubled.
    """
    held = _held_keys(kept) or {}
    held |= dict.fromkeys(keys)
    limit = kept.get("limit") if isinstance(kept, Mapping) else None
    if not isinstance(limit, int):
        limit = _LEAST_LOOKED_THROUGH
    if len(held) > limit:
        held = {key: None for key in held if is_kept(key)}
        limit = max(_LEAST_LOOKED_THROUGH, 2 * len(held))
    return {"keys": list(held), "limit": limit}


def may_be_held(kept: object, key: str) -> bool:
    """Say whether there may be a record of this key, by the list; without a list there may be."""
    held = _held_keys(kept)
    return held is None or key in held


def _held_keys(kept: object) -> dict[str, None] | None:
    keys = kept.get("keys") if isinstance(kept, Mapping) else None
    return dict.fromkeys(each for each in keys if isinstance(each, str)) if isinstance(keys, list) else None


def with_heard(kept: object, token: str, word: Mapping[str, Any]) -> dict[str, Any]:
    """Return the list of the last words of runs, by the tokens of their events, with one more."""
    words = heard(kept) | {token: dict(word)}
    return dict(list(words.items())[-_WORDS_HEARD:])


def heard(kept: object) -> dict[str, Any]:
    """Return the words in such a list, by token."""
    return dict(kept) if isinstance(kept, Mapping) else {}


def still_waits(extra: object, kept: Callable[[str], object]) -> bool:
    """Say whether a message of such an event may wait for the word of its runs.

    Args:
        extra: What Airflow keeps of the event.
        kept: Returns what is kept under a key; `None`: nothing.
    """
    records = hold_records(extra, 0)
    of = _hold(extra).get("of")
    if not isinstance(of, int) or len(records) < of:
        return True  # of a message without an id nothing is kept
    token = hold_token(extra)
    return any(isinstance(each, Mapping) and token in tokens_of(each) for each in map(kept, records))


def tokens_of(record: Mapping[str, Any]) -> list[Any]:
    """Return the tokens of the events in a record: the last, and those that were stored before it.

    There are several where a triggerer was believed dead while it lived: it and its successor may each have
    made an event of one message, and only one of them waits.
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
    # Airflow sets it, whatever is given.
    return isinstance(extra, Mapping) and bool(extra.get("from_rest_api"))


def outcome_key(token: str) -> str:
    """Return under which key a DAG run says what becomes of the messages of an event."""
    return f"jms-outcome.{token}"


def ready_event(jms_conn_id: str, destination: Destination) -> dict[str, Any]:
    """Return the payload of the event that says messages are there."""
    return {"event": "ready", "jms_conn_id": jms_conn_id, "destination": str(destination)}


def fit(message: JmsMessage, limit: int, form: Payload) -> Fit:
    """Return how a message fits into an event.

    Args:
        message: The message.
        limit: Bytes as JSON of body and properties; where the body doesn't travel, of the properties alone.
        form: What the event carries.
    """
    bodiless = replace(message, body_kind=BodyKind.EMPTY, body=None, item_types={})
    properties = _size("properties", bodiless, limit) if message.properties else 0
    if properties > limit:
        return Fit.NOT
    if form is Payload.MESSAGE:
        return Fit.SEALED if properties + _size("body", message, limit) > limit else Fit.WHOLE
    return Fit.SEALED if form is Payload.REFERENCE else Fit.WHOLE


def weight(message: JmsMessage, limit: int, form: Payload) -> int:
    """Return about how many bytes an event carries for a message; the arguments are those of `fit`."""
    body = _least_size(message.body) if form is Payload.MESSAGE else 0
    return _least_size(message.properties) + (body if body <= limit else 0)


def _size(part: str, message: JmsMessage, limit: int) -> int:
    """Return how many bytes the body, or the properties, of a message take as JSON; at least, if too many."""
    # The cheap bound first: to write down a body of many megabytes would hold up the event loop.
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
