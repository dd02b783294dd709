"""Reads dead letters back, for tests: J154-J165."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from airflow_provider_jmsjca.core.copies.dead_letter import KEPT_JMSX, TIMESTAMP, ConsumedFrom
from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.message import JmsMessage, PropertyValue
from airflow_provider_jmsjca.core.redelivery import MessageState

_PREFIX = "JMS_Sun_JMSJCA_"
_DATA = f"{_PREFIX}UserRollbackData."
_KEPT = f"{_PREFIX}LeftOut"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A dead letter read back.

    Attributes:
        message: As it was received before the move: destination, id, timestamp and JMSX properties too.
        origin: Where it was received.
        state: The message's count, last exception and user rollback data at the time.
    """

    message: JmsMessage
    origin: ConsumedFrom
    state: MessageState


def original_of(message: JmsMessage) -> DeadLetter | None:
    """Return what a dead letter says; `None` for a message that was never moved, or was redirected."""
    added = {name: value for name, value in message.properties.items() if name.startswith(_PREFIX)}
    found = {name.removeprefix(_PREFIX): str(value) for name, value in added.items()}
    if "OriginalDestinationName" not in found:
        return None
    kind = DestinationKind(found["OriginalDestinationType"].removeprefix("javax.jms.").lower())
    destination = Destination(kind, found["OriginalDestinationName"])
    own = {
        name: name.removeprefix(KEPT_JMSX) if name.startswith(f"{KEPT_JMSX}JMSX") else name
        for name in message.properties
        if name not in {*added, TIMESTAMP} - {_KEPT}
    }
    sent = found.get("OriginalTimestamp", message.properties.get(TIMESTAMP))
    original = replace(
        message,
        properties={own[name]: message.properties[name] for name in own},
        property_types={own[name]: kind for name, kind in message.property_types.items() if name in own},
        destination=destination,
        message_id=found.get("OriginalJMSMessageID"),
        correlation_id=found.get("OriginalJMSCorrelationID") or message.correlation_id,
        timestamp=None if sent is None else int(sent),
        expiration=int(found.get("OriginalJMSExpiration", message.expiration)),
        redelivered=False,
        delivery_count=None,
    )
    origin = ConsumedFrom(
        destination=destination,
        subscription_name=found.get("SubscriberName"),
        context_name=found.get("ContextName"),
        client_id=found.get("OriginalClientID"),
    )
    return DeadLetter(message=original, origin=origin, state=_state(found, added))


def _state(found: Mapping[str, str], added: Mapping[str, PropertyValue]) -> MessageState:
    name, message = found.get("ExceptionClass"), found.get("ExceptionMessage")
    failure = Failure(
        class_names=() if name is None else (name,),
        message=message or "",
        stack_trace=found.get("ExceptionStackTrace", ""),
    )
    return MessageState(
        seen=int(found["RedeliveryCount"]),
        rollback_data={
            key[len(_DATA) :]: str(value) for key, value in added.items() if key.startswith(_DATA)
        },
        failure=None if name is None and message is None else failure,
    )
