"""The copy that is sent when a message is moved.

A move sends a copy: a new message with the same body, headers and properties, plus the origin and the reason
of the move. If the copy can't be sent, the message is redirected: sent unchanged, with nothing added.

Source: J149-J168, P15.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from airflow_provider_jmsjca.core.copies.broker_death import ADDED, broker_death
from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.masking import mask_values, masked_text
from airflow_provider_jmsjca.core.message import BodyKind, JmsMessage, PropertyType, PropertyValue
from airflow_provider_jmsjca.core.redelivery import MessageState
from airflow_provider_jmsjca.errors import ConfigurationError, PermanentBrokerError

_ESCAPED_ON_THE_WIRE = "\\:\r\n"
_LONGEST_CHARACTER = 6


def _shortened(text: str, limit: int | None) -> str:
    """Return text that fits into a property: encodable, with the middle cut out if it is too long.

    Brokers limit the bytes of a header line, so each character counts with its size on the wire.

    Args:
        text: Any text. Characters that can't be encoded are replaced.
        limit: Maximum length of a property; `None` for no limit.
    """
    sound = text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "\N{REPLACEMENT CHARACTER}")
    if limit is None or len(sound) * _LONGEST_CHARACTER <= limit or _wire_length(sound) <= limit:
        return sound
    marker = f"\n... about {len(sound) - limit} of {len(sound)} characters left out ...\n"
    room = limit - _wire_length(marker)
    if room <= 0:
        return sound[: _fitting(iter(sound), limit)]
    head = _fitting(iter(sound), room // 2)
    tail = _fitting(reversed(sound), room - room // 2)
    return sound[:head] + marker + sound[len(sound) - tail :]


def _fitting(characters: Iterator[str], room: int) -> int:
    count = 0
    for character in characters:
        room -= _wire_length(character)
        if room < 0:
            break
        count += 1
    return count


def _wire_length(text: str) -> int:
    # Java clients and brokers write surrogates of three bytes each, where UTF-8 has four bytes for two.
    pairs = len(text.encode("utf-16-le")) // 2 - len(text)
    return len(text.encode()) + 2 * pairs + sum(map(text.count, _ESCAPED_ON_THE_WIRE))


TIMESTAMP = "JMSJCATimestamp"
# Brokers that limit a value also limit all headers together, and the message's own have priority.
_LONGEST_TEXT = 10_000
KEPT_JMSX = "_JMSJCA_"

_PREFIX = "JMS_Sun_JMSJCA_"
"""Prefix of the added properties. Source: J154-J166."""
_PREFIXES = (_PREFIX, "_JMSJCA_")
"""Prefixes of these properties in received messages; the last one wins, as newer software wrote it."""

_COUNT = "RedeliveryCount"
_NAME = "OriginalDestinationName"
_TYPE = "OriginalDestinationType"
_SUBSCRIBER = "SubscriberName"
_CONTEXT = "ContextName"
_MESSAGE_ID = "OriginalJMSMessageID"
_CORRELATION_ID = "OriginalJMSCorrelationID"
_CLIENT_ID = "OriginalClientID"
_SENT = "OriginalTimestamp"
_EXPIRATION = "OriginalJMSExpiration"
_EXCEPTION_CLASS = "ExceptionClass"
_EXCEPTION_MESSAGE = "ExceptionMessage"
_EXCEPTION_TRACE = "ExceptionStackTrace"
_ROLLBACK_DATA = "UserRollbackData"
_SUFFIXES = frozenset({
    _COUNT, _NAME, _TYPE, _SUBSCRIBER, _CONTEXT, _MESSAGE_ID, _CORRELATION_ID, _CLIENT_ID, _SENT, _EXPIRATION,
    _EXCEPTION_CLASS, _EXCEPTION_MESSAGE, _EXCEPTION_TRACE,
})  # fmt: skip

_LEFT_OUT = f"{_PREFIX}LeftOut"

# Accepted by every broker: ActiveMQ allows 10,240 bytes for a name and its value, and 1,000 headers. Artemis
# allows 101,700 bytes for all headers beside a large body, two for each character.
_LONGEST_VALUE = 9_000
_LONGEST_NAME = 500
_LONGEST_ID = 2_000
_MOST_PROPERTIES = 900
_FEW_PROPERTIES, _FEW_CHARACTERS = 100, 10_000
_LONGEST_REASON = 1_000
_DIGITS_OF_LONG = 19

_KINDS = {DestinationKind.QUEUE: "javax.jms.Queue", DestinationKind.TOPIC: "javax.jms.Topic"}
_SET_ON_RECEIPT = frozenset({"JMSXDeliveryCount", "JMSXRcvTimestamp", "JMSXState", "JMSXConsumerTXID"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumedFrom:
    """Origin of a moved message.

    Attributes:
        destination: The destination as named by the activation.
        subscription_name: Name of the durable subscription; `None` if the subscription isn't durable.
        context_name: Name that the activation adds to the log context; `None` if it has no such name.
        client_id: The activation's client id; `None` if it has no such id.
    """

    destination: Destination
    subscription_name: str | None = None
    context_name: str | None = None
    client_id: str | None = None


def copy_of(
    message: JmsMessage,
    origin: ConsumedFrom,
    state: MessageState,
    *,
    max_property_characters: int | None = None,
) -> JmsMessage:
    """Return the message to send when `message` is moved.

    The copy keeps the body, correlation id, reply-to, type, priority, persistence and all properties. JMSX
    properties are kept under `_JMSJCA_JMSX...`, the timestamp as `JMSJCATimestamp`. The expiry becomes the
    property `JMS_Sun_JMSJCA_OriginalJMSExpiration`: a copy with the original expiry would expire on arrival.
    Properties added by an earlier move are replaced.

    Args:
        message: The message as received.
        origin: Origin of the message.
        state: The message's count, last exception and user rollback data.
        max_property_characters: The broker's maximum length of a value (`Capabilities`). An exception text
            that is longer than this or 10,000 characters is cut in the middle; a marker states the number
            left out. `None`: no limit.

    Raises:
        PermanentBrokerError: A property that may not be shortened is too long for the broker.

    Source: J149-J168.
    """
    added = _added(message, origin, state, max_property_characters)
    properties: dict[str, PropertyValue] = {}
    types: dict[str, PropertyType] = {}
    for name, value in message.properties.items():
        if _is_added(name):
            continue
        kept = KEPT_JMSX + name if name.startswith("JMSX") else name
        properties[kept] = value
        if name in message.property_types and kept not in added:
            types[kept] = message.property_types[name]
    properties |= added
    if (limit := max_property_characters) is not None:
        too_long = [
            f"property {name!r} has {len(value)} characters, and the broker passes at most {limit}"
            for name, value in properties.items()
            if isinstance(value, str) and len(value) > limit
        ]
        if too_long:
            raise PermanentBrokerError(f"the message can't be copied: {'; '.join(too_long)}")
    return _unsent(message, properties=MappingProxyType(properties), property_types=MappingProxyType(types))


def redirect_of(message: JmsMessage) -> JmsMessage:
    """Return `message` for sending unchanged: nothing renamed, and nothing added except its original expiry.

    Properties that the broker sets on every delivery are left to the broker. An expiry becomes the property
    `JMS_Sun_JMSJCA_OriginalJMSExpiration`, as in a copy.

    Source: J94, J149, J151, J167.
    """
    kept = {name: value for name, value in message.properties.items() if name not in _SET_ON_RECEIPT}
    if message.expiration:
        kept[f"{_PREFIX}{_EXPIRATION}"] = message.expiration
    return _unsent(message, properties=MappingProxyType(kept))


WAYS: Final = 4
"""Number of versions of a message that `send_letter` tries."""


def send_letter(
    send: Callable[[JmsMessage], object],
    message: JmsMessage,
    origin: ConsumedFrom,
    state: MessageState,
    *,
    first: int = 0,
    max_property_characters: int | None = None,
    redirect: bool = False,
    secrets: Collection[str] = (),
) -> Exception | None:
    """Send the most complete version of a moved message that `send` accepts.

    The versions by number:

    0. The whole message (`copy_of`, or `redirect_of` if it is redirected).
    1. Long values shortened, values that no broker accepts left out.
    2. Only a few short properties.
    3. The body and the reason of the move.

    From version 1 on, the property `JMS_Sun_JMSJCA_LeftOut` lists the missing parts.

    Args:
        send: Sends a version, or raises before any part of it has been sent.
        message: As for `copy_of`.
        origin: As for `copy_of`.
        state: As for `copy_of`.
        first: Number of the first version to try.
        max_property_characters: As for `copy_of`.
        redirect: Whether version 0 is the unchanged message.
        secrets: Values to mask wherever they occur in the text of the exception.

    Returns:
        The error of the first version; `None` if the first version was sent.

    Raises:
        ConfigurationError: No version was accepted; this is the error of the first.
        PermanentBrokerError: No version was accepted; this is the broker's error for the first.
    """
    if (failure := state.failure) is not None:
        text, trace = mask_values(failure.message, secrets), mask_values(failure.stack_trace, secrets)
        state = replace(state, failure=replace(failure, message=text, stack_trace=trace))
    refusal: Exception | None = None
    for number in range(first, WAYS):
        try:
            if number:
                letter = _shorter(number, message, origin, state)
            elif redirect:
                letter = redirect_of(message)
            else:
                letter = copy_of(message, origin, state, max_property_characters=max_property_characters)
            send(letter)
        except (ConfigurationError, PermanentBrokerError) as error:
            refusal = refusal or error
        else:
            return refusal
    raise refusal or AssertionError("there is no way to make it")


def _shorter(number: int, message: JmsMessage, origin: ConsumedFrom, state: MessageState) -> JmsMessage:
    """Return a less complete version of a moved message, by its number in `send_letter`: 1 or more."""
    if number < WAYS - 1:
        most, characters = (_MOST_PROPERTIES, None) if number == 1 else (_FEW_PROPERTIES, _FEW_CHARACTERS)
        return _reduced(message, _added(message, origin, state, _LONGEST_VALUE), most, characters)
    short = replace(message, properties=MappingProxyType({}), correlation_id=None, reply_to=None, type=None)
    why = replace(state, rollback_data=MappingProxyType({}))
    letter = _reduced(short, _added(message, origin, why, _LONGEST_REASON), 0, None)
    kept = {
        name: _shortened(value, _LONGEST_REASON) if isinstance(value, str) else value
        for name, value in letter.properties.items()
        if _is_added(name)
    }
    kept[_LEFT_OUT] = "everything but the body, and why it was moved"
    return replace(letter, properties=MappingProxyType(kept))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """The reason why a message was moved, read from the properties that the move added.

    `None` or an empty text means that a value is missing. If a broker moved the message, the values come from
    properties of the broker. Any producer that may write to the queue can forge the properties.

    Attributes:
        destination: The destination from which the message was moved.
        message_id: The message's id at `destination`.
        sent: Time at which the message was sent, in milliseconds since the epoch.
        deliveries: Number of deliveries before the move.
        exception_class: Class of the last exception.
        exception_message: Text of the last exception, or the reason of the move if there was no exception.
        stack_trace: Traceback of the last exception.
        deaths: How often a broker moved the message from this destination for this reason.
        moved: Time at which a broker moved the message, in milliseconds since the epoch.
    """

    destination: Destination | None
    message_id: str | None
    sent: int | None
    deliveries: int | None
    exception_class: str
    exception_message: str
    stack_trace: str
    deaths: int | None = None
    moved: int | None = None


def dead_letter(message: JmsMessage) -> DeadLetter:
    """Return the values that a move added to a message; all are missing if it was not moved."""
    found = _read(message.properties)
    name, kind = found.get(_NAME), found.get(_TYPE)
    kinds = {java: kind for kind, java in _KINDS.items()}
    destination = Destination(kinds.get(str(kind), DestinationKind.QUEUE), str(name)) if name else None
    ours = destination is not None or _EXCEPTION_CLASS in found or _EXCEPTION_MESSAGE in found
    death = None if ours else broker_death(message.properties)
    if death is not None:
        return DeadLetter(
            destination=death.queue,
            message_id=None,
            sent=None,
            deliveries=None,
            exception_class="",
            exception_message=death.reason,
            stack_trace="",
            deaths=death.count,
            moved=death.at,
        )
    return DeadLetter(
        destination=destination,
        message_id=_text(found.get(_MESSAGE_ID)) or None,
        sent=_whole(found.get(_SENT)),
        deliveries=_whole(found.get(_COUNT)),
        exception_class=_text(found.get(_EXCEPTION_CLASS)),
        exception_message=_text(found.get(_EXCEPTION_MESSAGE)),
        stack_trace=_text(found.get(_EXCEPTION_TRACE)),
    )


def restored(message: JmsMessage) -> JmsMessage:
    """Return the message to send when a dead letter is returned: without the properties added by moves.

    JMSX properties get their original names. The expiry is not restored: it has passed or may pass soon.
    Property types that were lost in transport are not restored.
    """
    names = {
        name: name.removeprefix(KEPT_JMSX) if name.startswith(f"{KEPT_JMSX}JMSX") else name
        for name in message.properties
        if not _is_added(name) and name not in {_LEFT_OUT, *_SET_ON_RECEIPT, *ADDED}
    }
    return _unsent(
        message,
        properties=MappingProxyType({names[name]: message.properties[name] for name in names}),
        property_types=MappingProxyType(
            {names[name]: kind for name, kind in message.property_types.items() if name in names}
        ),
    )


def _text(value: PropertyValue) -> str:
    return "" if value is None else str(value)


def _whole(value: PropertyValue) -> int | None:
    text = _text(value)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < _DIGITS_OF_LONG else None


def _unsent(message: JmsMessage, **changes: Any) -> JmsMessage:
    """Return a copy to send, without expiry and the values that a broker sets, and with `changes` applied."""
    return replace(
        message,
        message_id=None,
        destination=None,
        timestamp=None,
        expiration=0,
        redelivered=False,
        delivery_count=None,
        **changes,
    )


def _reduced(
    message: JmsMessage,
    added: Mapping[str, PropertyValue],
    most: int,
    characters: int | None,
) -> JmsMessage:
    """Return a copy that a broker with narrow limits accepts; one property lists the parts left out.

    Args:
        message: The message as received.
        added: The properties to add.
        most: Maximum number of the message's own properties to keep.
        characters: Maximum number of characters in these properties, names included; `None` for no limit.
    """
    short: list[str] = []
    gone: list[str] = []
    room = _SizeLimit(most, characters)
    kept: dict[str, PropertyValue] = {}
    for name, value in message.properties.items():
        if _is_added(name) or name == _LEFT_OUT or value is None:
            continue
        given = _fit(name, value, short)
        if _is_sound(name, _LONGEST_NAME) and room.take(len(name) + len(str(given))):
            kept[KEPT_JMSX + name if name.startswith("JMSX") else name] = given
        else:
            gone.append(name)
    kept |= {
        name: _fit(name, value, short) for name, value in added.items() if _is_sound(name, _LONGEST_NAME)
    }
    headers = _changed_headers(message)
    gone += headers
    told = [f"shortened: {_listed(short)}"] if short else []
    told += [f"left out: {_listed(gone)}"] if gone else []
    told += [str(message.properties[_LEFT_OUT])] if _LEFT_OUT in message.properties else []
    kept[_LEFT_OUT] = _shortened("; ".join(told) or "nothing of the message", _LONGEST_REASON)
    types = {
        name: kind
        for name, kind in message.property_types.items()
        if name in kept and name not in added and name not in short
    }
    return _unsent(
        message, properties=MappingProxyType(kept), property_types=MappingProxyType(types), **headers
    )


class _SizeLimit:
    """Limits on the properties that are kept.

    Args:
        most: Maximum number of properties.
        characters: Maximum number of characters; `None` for no limit.
    """

    def __init__(self, most: int, characters: int | None) -> None:
        self._most = most
        self._characters = characters

    def take(self, size: int) -> bool:
        """Count a property of that size against the limits; return whether it fits."""
        if not self._most or (self._characters is not None and size > self._characters):
            return False
        self._most -= 1
        if self._characters is not None:
            self._characters -= size
        return True


def _fit(name: str, value: PropertyValue, short: list[str]) -> PropertyValue:
    """Return the value, shortened if it is too long for some broker; its name is then added to `short`."""
    if not isinstance(value, str):
        return value
    cut = _shortened(value, _LONGEST_VALUE)
    if cut != value:
        short.append(name)
    return cut


def _changed_headers(message: JmsMessage) -> dict[str, Any]:
    """Return the headers and body that can't be sent unchanged, with their replacements."""
    changed: dict[str, Any] = {
        header: None
        for header in ("correlation_id", "type")
        if not _is_sound(getattr(message, header) or "-", _LONGEST_ID)
    }
    if message.reply_to is not None and not _is_sound(message.reply_to.name, _LONGEST_ID):
        changed["reply_to"] = None
    body = message.body
    if isinstance(body, str) and not _is_sound(body, None):
        changed |= {"body_kind": BodyKind.BYTES, "body": body.encode("utf-8", "surrogatepass")}
    return changed


def _is_sound(text: str, longest: int | None) -> bool:
    """Return whether text can be sent in a header or a body.

    Args:
        text: The text.
        longest: Maximum number of characters in the header; `None` if the text is a body.
    """
    if longest is not None and (not text or "\0" in text or len(text) > longest):
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _listed(names: list[str]) -> str:
    shown = ", ".join(repr(name[:60]) for name in names[:10])
    return shown if len(names) <= 10 else f"{shown} and {len(names) - 10} more"  # noqa: PLR2004 - as above


def _added(
    message: JmsMessage, origin: ConsumedFrom, state: MessageState, limit: int | None
) -> dict[str, PropertyValue]:
    values: dict[str, PropertyValue] = {
        _COUNT: state.seen,
        _NAME: origin.destination.name,
        _TYPE: _KINDS[origin.destination.kind],
        _SUBSCRIBER: origin.subscription_name,
        _CONTEXT: origin.context_name,
        _MESSAGE_ID: message.message_id,
        _CORRELATION_ID: message.correlation_id,
        _CLIENT_ID: origin.client_id,
        _SENT: message.timestamp,
        _EXPIRATION: message.expiration
        or (_read(message.properties).get(_EXPIRATION) if message.properties else None),
    }
    if state.failure is not None:
        limit = None if limit is None else min(limit, _LONGEST_TEXT)
        # Without an exception from the handler there is a reason but no class; a Spark row has no stack.
        values[_EXCEPTION_CLASS] = _shortened(state.failure.class_name, limit) or None
        values[_EXCEPTION_MESSAGE] = _shortened(masked_text(state.failure.message), limit)
        values[_EXCEPTION_TRACE] = _shortened(masked_text(state.failure.stack_trace), limit) or None
    added: dict[str, PropertyValue] = {
        f"{_PREFIX}{suffix}": value for suffix, value in values.items() if value is not None
    }
    added |= {f"{_PREFIX}{_ROLLBACK_DATA}.{key}": value for key, value in state.rollback_data.items()}
    if message.timestamp is not None:
        added[TIMESTAMP] = message.timestamp
    return added


def without_secrets(failure: Failure, secrets: Iterable[str]) -> Failure:
    """Return a failure that is safe to store: no connection secrets, no passwords, no traceback."""
    return replace(failure, message=masked_text(mask_values(failure.message, secrets)), stack_trace="")


def _is_added(name: str) -> bool:
    return name == TIMESTAMP or any(
        name.removeprefix(prefix) in _SUFFIXES or name.startswith(prefix + _ROLLBACK_DATA)
        for prefix in _PREFIXES
        if name.startswith(prefix)
    )


def _read(properties: Mapping[str, PropertyValue]) -> dict[str, PropertyValue]:
    return {
        suffix: properties[prefix + suffix]
        for prefix in _PREFIXES
        for suffix in _SUFFIXES
        if properties.get(prefix + suffix) is not None
    }
