"""What is sent when a message is moved, and how a dead letter is read back.

A move sends a copy: a new message with the same body, headers and properties, which also says where it came
from and why. If that can't be sent, the message is redirected: the same message, nothing added.

Source: J149-J168, P15.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.message import JmsMessage, PropertyValue
from airflow_provider_jmsjca.core.redelivery import MessageState
from airflow_provider_jmsjca.core.shortening import shortened
from airflow_provider_jmsjca.errors import PermanentBrokerError, PoisonMessageError

TIMESTAMP = "JMSJCATimestamp"
# Brokers that limit a value limit the headers as a whole too, and the message's own come first.
_LONGEST_TEXT = 10_000
KEPT_JMSX = "_JMSJCA_"

_COUNT = "RedeliveryCount"
_NAME = "OriginalDestinationName"
_TYPE = "OriginalDestinationType"
_SUBSCRIBER = "SubscriberName"
_CONTEXT = "ContextName"
_MESSAGE_ID = "OriginalJMSMessageID"
_CORRELATION_ID = "OriginalJMSCorrelationID"
_CLIENT_ID = "OriginalClientID"
_SENT = "OriginalTimestamp"
_EXCEPTION_CLASS = "ExceptionClass"
_EXCEPTION_MESSAGE = "ExceptionMessage"
_EXCEPTION_TRACE = "ExceptionStackTrace"
_ROLLBACK_DATA = "UserRollbackData"
_SUFFIXES = frozenset({
    _COUNT, _NAME, _TYPE, _SUBSCRIBER, _CONTEXT, _MESSAGE_ID, _CORRELATION_ID, _CLIENT_ID, _SENT,
    _EXCEPTION_CLASS, _EXCEPTION_MESSAGE, _EXCEPTION_TRACE,
})  # fmt: skip

_KINDS = {DestinationKind.QUEUE: "javax.jms.Queue", DestinationKind.TOPIC: "javax.jms.Topic"}
_SET_ON_RECEIPT = frozenset({"JMSXDeliveryCount", "JMSXRcvTimestamp", "JMSXState", "JMSXConsumerTXID"})


class PropertyPrefix(enum.StrEnum):
    """With what the added properties begin; both are read.

    Source: J154-J165 and J166.
    """

    DOCUMENTED = "JMS_Sun_JMSJCA_"
    LATER = "_JMSJCA_"

    def rollback_data(self, key: str) -> str:
        """Return the property that holds one piece of user rollback data; the later form has no dot."""
        return f"{self}{_ROLLBACK_DATA}{'.' if self is PropertyPrefix.DOCUMENTED else ''}{key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a moved message was received.

    Attributes:
        destination: As the activation names it.
        subscription_name: Of a durable subscription; `None` otherwise.
        context_name: The activation's context name, if any.
        client_id: The activation's client id, if any.
    """

    destination: Destination
    subscription_name: str | None = None
    context_name: str | None = None
    client_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A dead letter read back.

    Attributes:
        message: As it was received before the move: destination, id, timestamp and JMSX properties too.
        origin: Where it was received.
        state: Its count, last exception and user rollback data at the time.
    """

    message: JmsMessage
    origin: Origin
    state: MessageState


def copy_of(
    message: JmsMessage,
    origin: Origin,
    state: MessageState,
    *,
    prefix: PropertyPrefix = PropertyPrefix.DOCUMENTED,
    max_property_characters: int | None = None,
) -> JmsMessage:
    """Return the message to send when `message` is moved.

    Kept: the body, correlation id, reply-to, type, expiry, priority, persistence and all properties. JMSX
    properties are kept under `_JMSJCA_JMSX...`, the timestamp as `JMSJCATimestamp`. What an earlier move had
    added is replaced.

    Args:
        message: As received.
        origin: Where it was received.
        state: Its count, last exception and user rollback data.
        prefix: How the added properties are spelled.
        max_property_characters: The longest value the broker passes (`Capabilities`). An exception's text
            that is longer, or longer than 10,000, loses its middle; a marker says how much. `None`: no limit.

    Raises:
        PermanentBrokerError: A property that isn't ours to shorten is too long for the broker.

    Source: J149-J168.
    """
    added = _added(message, origin, state, prefix, max_property_characters)
    names = {name: KEPT_JMSX + name if name.startswith("JMSX") else name for name in message.properties}
    properties: dict[str, PropertyValue] = {
        names[name]: value for name, value in message.properties.items() if not _is_added(name)
    }
    properties |= added
    _check_lengths(properties, max_property_characters)
    types = {
        names[name]: kind
        for name, kind in message.property_types.items()
        if name in names and names[name] in properties and names[name] not in added
    }
    return replace(
        _unsent(message), properties=MappingProxyType(properties), property_types=MappingProxyType(types)
    )


def redirect_of(message: JmsMessage) -> JmsMessage:
    """Return `message` to be sent on as it is: nothing added, nothing renamed.

    Only what the broker sets anew for everything it delivers is left to the broker.

    Source: J94, J149, J151, J167.
    """
    kept = {name: value for name, value in message.properties.items() if name not in _SET_ON_RECEIPT}
    return replace(_unsent(message), properties=MappingProxyType(kept))


def original_of(message: JmsMessage) -> DeadLetter | None:
    """Read a dead letter back, whichever prefix it was written with.

    Returns:
        `None` for a message that was never moved, or was redirected.

    Raises:
        PoisonMessageError: An added property doesn't hold what it should.
    """
    found = _read(message.properties)
    name, kind = found.get(_NAME), found.get(_TYPE)
    if name is None or kind is None:
        return None
    if not name:
        raise PoisonMessageError(f"dead letter property {_NAME} is empty")
    destination = Destination(_destination_kind(str(kind)), str(name))
    timestamp = _number(found, _SENT, message.properties.get(TIMESTAMP))
    names = {
        name: name.removeprefix(KEPT_JMSX) if name.startswith(f"{KEPT_JMSX}JMSX") else name
        for name in message.properties
        if not _is_added(name)
    }
    original = replace(
        message,
        properties=MappingProxyType({names[name]: message.properties[name] for name in names}),
        property_types=MappingProxyType(
            {names[name]: kind for name, kind in message.property_types.items() if name in names}
        ),
        destination=destination,
        message_id=_text(found, _MESSAGE_ID),
        correlation_id=_text(found, _CORRELATION_ID) or message.correlation_id,
        timestamp=timestamp,
        redelivered=False,
        delivery_count=None,
    )
    origin = Origin(
        destination=destination,
        subscription_name=_text(found, _SUBSCRIBER),
        context_name=_text(found, _CONTEXT),
        client_id=_text(found, _CLIENT_ID),
    )
    state = MessageState(
        seen=_number(found, _COUNT, None) or 0,
        rollback_data=MappingProxyType(_rollback_data(message.properties)),
        failure=_failure(found),
    )
    return DeadLetter(message=original, origin=origin, state=state)


def _unsent(message: JmsMessage) -> JmsMessage:
    return replace(
        message, message_id=None, destination=None, timestamp=None, redelivered=False, delivery_count=None
    )


def _added(
    message: JmsMessage, origin: Origin, state: MessageState, prefix: PropertyPrefix, limit: int | None
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
    }
    if state.failure is not None:
        limit = None if limit is None else min(limit, _LONGEST_TEXT)
        values[_EXCEPTION_CLASS] = shortened(state.failure.class_name, limit)
        values[_EXCEPTION_MESSAGE] = shortened(state.failure.message, limit)
        # A Spark row that doesn't fit has a reason but no stack.
        values[_EXCEPTION_TRACE] = shortened(state.failure.stack_trace, limit) or None
    added: dict[str, PropertyValue] = {
        f"{prefix}{suffix}": value for suffix, value in values.items() if value is not None
    }
    added |= {prefix.rollback_data(key): value for key, value in state.rollback_data.items()}
    if message.timestamp is not None:
        added[TIMESTAMP] = message.timestamp
    return added


def _is_added(name: str) -> bool:
    return name == TIMESTAMP or any(
        name.removeprefix(prefix) in _SUFFIXES or name.startswith(prefix + _ROLLBACK_DATA)
        for prefix in PropertyPrefix
        if name.startswith(prefix)
    )


def _check_lengths(properties: Mapping[str, PropertyValue], limit: int | None) -> None:
    if limit is None:
        return
    too_long = [
        f"property {name!r} has {len(value)} characters, and the broker passes at most {limit}"
        for name, value in properties.items()
        if isinstance(value, str) and len(value) > limit
    ]
    if too_long:
        raise PermanentBrokerError(f"the message can't be copied: {'; '.join(too_long)}")


def _read(properties: Mapping[str, PropertyValue]) -> dict[str, PropertyValue]:
    return {
        suffix: properties[prefix + suffix]
        for prefix in PropertyPrefix  # the later prefix, written by the newer software, wins
        for suffix in _SUFFIXES
        if properties.get(prefix + suffix) is not None
    }


def _rollback_data(properties: Mapping[str, PropertyValue]) -> dict[str, str]:
    return {
        name.removeprefix(prefix + _ROLLBACK_DATA).removeprefix("."): str(value)
        for prefix in PropertyPrefix
        for name, value in properties.items()
        if name.startswith(prefix + _ROLLBACK_DATA)
    }


def _failure(found: Mapping[str, PropertyValue]) -> Failure | None:
    name = _text(found, _EXCEPTION_CLASS)
    if name is None:
        return None
    return Failure(
        class_names=(name,),
        message=_text(found, _EXCEPTION_MESSAGE) or "",
        stack_trace=_text(found, _EXCEPTION_TRACE) or "",
    )


def _text(found: Mapping[str, PropertyValue], suffix: str) -> str | None:
    value = found.get(suffix)
    return None if value is None else str(value)


def _number(found: Mapping[str, PropertyValue], suffix: str, otherwise: PropertyValue) -> int | None:
    value = found.get(suffix, otherwise)
    if value is None:
        return None
    try:
        return int(value)
    except (ValueError, OverflowError) as error:
        raise PoisonMessageError(f"dead letter property {suffix} holds {value!r}, not a number") from error


def _destination_kind(java_name: str) -> DestinationKind:
    try:
        return DestinationKind(java_name.rpartition(".")[2].lower())
    except ValueError as error:
        raise PoisonMessageError(
            f"dead letter property {_TYPE} holds {java_name!r}, not javax.jms.Queue or javax.jms.Topic"
        ) from error
