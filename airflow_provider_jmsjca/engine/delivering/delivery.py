"""The argument of a handler: the message, and extra properties through which the handler steers its delivery.

Source: J169-J177, J185, J186, J191.
"""

from __future__ import annotations

import contextvars
import enum
import logging
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_provider_jmsjca.core.configuration.administered import LOOKUP, destination_named
from airflow_provider_jmsjca.core.copies.dead_letter import redirect_of
from airflow_provider_jmsjca.core.copies.delivery_date import chosen_delay
from airflow_provider_jmsjca.core.delivery.decisions import Deliver, DeliverEndOfBatch
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import BodyKind, ItemValue, JmsMessage, PropertyValue
from airflow_provider_jmsjca.core.message.checks import shortened
from airflow_provider_jmsjca.core.message.property_reader import PropertyReader
from airflow_provider_jmsjca.core.message.value_types import ItemType, PropertyType
from airflow_provider_jmsjca.core.redelivery import Move, RedeliveryHandling
from airflow_provider_jmsjca.engine.moving import target_of
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.transports.base import Outgoing


class Result(enum.StrEnum):
    """Result of a request, as its answer states it. Source: I46."""

    SUCCESS = "SUCCESS"
    VALCHANGE = "VALCHANGE"
    MULTIPLE_HITS = "MULTIPLE_HITS"
    FAIL = "FAIL"
    FAIL_RETRIEVE_BY_CONTENT = "FAIL_RETRIEVE_BY_CONTENT"
    BO_DOES_NOT_EXIST = "BO_DOES_NOT_EXIST"
    UNABLE_TO_LOGIN = "UNABLE_TO_LOGIN"
    VALDUPES = "VALDUPES"
    APPRESPONSETIMEOUT = "APPRESPONSETIMEOUT"


_LONGEST_ERROR = 4_000
_CHANGING = {Result.VALCHANGE, Result.MULTIPLE_HITS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """The outcome of a request.

    Attributes:
        result: Result in the answer; `None` if the answer contains no result, or an unknown one.
        error: Why the request failed: the body of the answer (the first 4,000 characters), or a default text
            if the body is empty; `None` if the request succeeded.
        has_values: Whether the body of the answer contains values that replace those of the request.
    """

    result: Result | None
    error: str | None = None
    has_values: bool = False

    @property
    def failed(self) -> bool:
        """Whether the request failed; a missing or unknown result counts as a failure."""
        return self.error is not None

    @property
    def fatal(self) -> bool:
        """Whether the application that should answer can't be reached, so that a WBIA adapter would end."""
        return self.result is Result.APPRESPONSETIMEOUT


def read_response(message: JmsMessage, result_property: str) -> Response:
    """Return the outcome of a request from its answer.

    Args:
        message: The answer.
        result_property: Name of the message property that holds the result.

    Source: I45, I46.
    """
    given = message.properties.get(result_property)
    if given is None:
        return Response(result=None, error=f"the answer has no result in its property {result_property!r}")
    try:
        result = Result(str(given).strip().upper())
    except ValueError:
        return Response(result=None, error=f"the answer's result {shortened(str(given))} is not known")
    if result is Result.SUCCESS:
        return Response(result=result)
    if result in _CHANGING:
        return Response(result=result, has_values=bool(message.body))
    text = _text(message.body)
    return Response(result=result, error=text or f"the request failed: {result}")


def _text(body: object) -> str:
    """Return the first 4,000 characters of a body; they go into logs and dead letters."""
    text = ""
    if isinstance(body, bytes):
        # A character takes four bytes at most.
        text = body[: 4 * _LONGEST_ERROR + 4].decode("utf-8", "replace").strip()
    elif isinstance(body, str):
        text = body[: _LONGEST_ERROR + 1].strip()
    return text if len(text) <= _LONGEST_ERROR else f"{text[:_LONGEST_ERROR]}…"


SET_ROLLBACK_ONLY = "JMSJCA.setRollbackOnly"
BATCH_INDEX = "JMSJCA.batchIndex"
BATCH_SIZE = "JMSJCA.batchSize"
END_OF_BATCH = "JMSJCA.EndOfBatch"

OLD_PREFIX = "JMS_Sun_JMSJCA_"
PREFIX = "_JMSJCA_"
REDELIVERY_COUNT = f"{PREFIX}RedeliveryCount"
REDELIVERY_HANDLING = f"{PREFIX}RedeliveryHandling"
STOP_MESSAGE_DELIVERY = f"{PREFIX}StopMessageDelivery"
USER_ROLLBACK_DATA = f"{PREFIX}UserRollbackData"
EXCEPTION_CLASS = f"{PREFIX}ExceptionClass"
EXCEPTION_MESSAGE = f"{PREFIX}ExceptionMessage"

# The source document spells it in two ways.
_ROLLBACK_SPELLINGS = frozenset({SET_ROLLBACK_ONLY, "JMSJCA.setRollBackOnly"})
_READ_ONLY = frozenset(
    {BATCH_INDEX, BATCH_SIZE, END_OF_BATCH, REDELIVERY_COUNT, EXCEPTION_CLASS, EXCEPTION_MESSAGE}
)
_STRINGS = frozenset({REDELIVERY_HANDLING, STOP_MESSAGE_DELIVERY, EXCEPTION_CLASS, EXCEPTION_MESSAGE})
_ATTRIBUTES = {
    SET_ROLLBACK_ONLY: "rollback_only",
    BATCH_INDEX: "batch_index",
    BATCH_SIZE: "batch_size",
    END_OF_BATCH: "_end_of_batch_mark",
    REDELIVERY_COUNT: "redelivery_count",
    REDELIVERY_HANDLING: "redelivery_handling",
    STOP_MESSAGE_DELIVERY: "stop_reason",
    EXCEPTION_CLASS: "exception_class",
    EXCEPTION_MESSAGE: "exception_message",
}


def extra_property(name: str) -> str | None:
    """Return the canonical name of an extra property; `None` if the name isn't that of an extra property.

    Both prefixes are accepted, `JMS_Sun_JMSJCA_` and `_JMSJCA_`. A name of user rollback data may have a dot
    before the key, as in `_JMSJCA_UserRollbackData.key`, or none.

    Source: J166, J169-J173, J176.
    """
    if name in _ROLLBACK_SPELLINGS:
        return SET_ROLLBACK_ONLY
    plain = PREFIX + name[len(OLD_PREFIX) :] if name.startswith(OLD_PREFIX) else name
    if plain.startswith(USER_ROLLBACK_DATA):
        key = plain[len(USER_ROLLBACK_DATA) :].removeprefix(".")
        return USER_ROLLBACK_DATA + key if key else None
    return plain if plain in _ATTRIBUTES else None


ENTER_LOGGER = "com.stc.EnterContext"
EXIT_LOGGER = "com.stc.ExitContext"

context_name: contextvars.ContextVar[str | None] = contextvars.ContextVar("jms_context_name", default=None)
"""Context name of the current delivery, for log lines; `None` outside a delivery. Source: J62."""


class ContextFilter(logging.Filter):
    """Puts the context name on every log record, as the attribute `ContextName` (empty outside deliveries).

    Add it to a handler: `handler.addFilter(ContextFilter())`, with `%(ContextName)s` in the format.

    Source: J62.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the context name to a record, and let it pass."""
        record.ContextName = context_name.get() or ""
        return True


@dataclass(frozen=True, slots=True)
class DeliveryContext:
    """The context of a delivery, like that of a message-driven bean.

    Source: W38.
    """

    _delivery: Delivery

    @property
    def principal(self) -> str | None:
        """User name with which the message was received; `None` without one."""
        return self._delivery.engine.principal

    @property
    def destination(self) -> Destination:
        """The destination from which the message was received, as the activation names it."""
        return self._delivery.received_from

    @property
    def attempt(self) -> int:
        """Number of this attempt at the message, derived from known redeliveries; 1 is the first."""
        return self._delivery.redelivery_count + 1

    @property
    def in_doubt(self) -> bool:
        """Whether an earlier attempt may have been committed, with the messages it sent."""
        return self._delivery.in_doubt

    @property
    def rollback_only(self) -> bool:
        """Whether the delivery is going to be rolled back.

        Raises:
            ConfigurationError: The activation is bean-managed.
        """
        self._check()
        return self._delivery.rollback_only

    def set_rollback_only(self) -> None:
        """Request a rollback at the end of the delivery.

        Raises:
            ConfigurationError: The activation is bean-managed.
        """
        self._check()
        self._delivery.set_rollback_only()

    def _check(self) -> None:
        if not self._delivery.engine.transacted:
            raise ConfigurationError(
                "the activation is bean-managed: raise an exception, or use delivery.set_rollback_only()"
            )


class HandlerEngine:
    """The part of the engine that deliveries use; there is one for each listener.

    Attributes:
        destination: The consumed destination, the first of several.
        transacted: Whether sent messages wait for the commit.
        principal: User name of the connection.
        result_property: Message property that holds the result of a request; `None`: messages aren't answers.
        find: Returns the destination of a name.
    """

    __slots__ = ("acknowledge", "destination", "find", "principal", "result_property", "send", "transacted")

    def __init__(
        self,
        *,
        destination: Destination,
        transacted: bool,
        principal: str | None,
        send: Callable[[Delivery, Outgoing], None],
        acknowledge: Callable[[Delivery], None] | None,
        result_property: str | None = None,
        find: Callable[[str], Destination] = destination_named,
    ) -> None:
        self.destination = destination
        self.transacted = transacted
        self.principal = principal
        self.send = send
        self.acknowledge = acknowledge
        self.result_property = result_property
        self.find = find


class Delivery(PropertyReader):
    """One attempt at a message, or at the end of a batch; the argument of a handler.

    All attributes of the wrapped `JmsMessage` can be read. Extra properties are read with `get_object` and
    written with `set_property` under their names, or used as attributes. Unlike JMS properties, they can be
    written on a received message, and are not in `properties`. They aren't converted: `get_string` reads
    extra properties that are strings, and every other getter refuses extra properties.

    The engine applies the handler's changes after the handler returns; only `acknowledge` acts at once. Not
    safe to use from several threads at once.

    Attributes:
        message: The wrapped message.
        redelivery_count: Number of earlier deliveries in this activation; 0 is the first delivery.
        batch_index: Number of earlier messages of the batch; `None` outside batches.
        batch_size: Size of batches as configured; `None` outside batches.
        end_of_batch: Whether this is the message that ends a batch.
        exception_class: Class of the exception that ended the last delivery, if any.
        exception_message: Text of the exception that ended the last delivery, if any.
        rollback_only: Whether the handler wants the delivery rolled back.
        stop_is_new: Whether the handler has requested a stop since the last call of `take_stop`.
        user_rollback_data: Values by key that the handler keeps for the next delivery.
        call: Number of this call of the handler, in events of the delivery machine.
        unit: The number of the unit of work to which the attempt belongs.
        received: The delivery by the transport; `None` for the end of a batch.
        in_doubt: Whether an earlier attempt may have been committed.
        received_from: The destination, as the activation names it; for the end of a batch the first one.
        sent_later: Number of delayed messages that the handler has sent by way of limbo.
        changed_handling: The redelivery handling that the handler has set; `None` if it hasn't changed it.

    Source: J169-J173, J175-J177, J185, J186, J191.
    """

    __slots__ = (
        "_handling",
        "_stop_reason",
        "batch_index",
        "batch_size",
        "buffer",
        "call",
        "changed_handling",
        "end_of_batch",
        "engine",
        "exception_class",
        "exception_message",
        "in_doubt",
        "message",
        "received",
        "received_from",
        "redelivery_count",
        "rollback_only",
        "sent_later",
        "stop_is_new",
        "unit",
        "user_rollback_data",
    )

    def __init__(  # noqa: PLR0917 - a call by position, once for each message
        self,
        message: JmsMessage,
        engine: HandlerEngine,
        buffer: Any,
        call: int,
        unit: int,
        handling: str = "",
        received: Any = None,
    ) -> None:
        """Wrap a message, with the attributes of a first delivery that isn't part of a batch."""
        self.message = message
        self.redelivery_count = 0
        self.batch_index: int | None = None
        self.batch_size: int | None = None
        self.end_of_batch = False
        self.exception_class: str | None = None
        self.exception_message: str | None = None
        self.rollback_only = False
        self._stop_reason: str | None = None
        self.stop_is_new = False
        self.user_rollback_data: MutableMapping[str, str] = {}
        self.engine = engine
        self.buffer = buffer
        self.call = call
        self.unit = unit
        self.received = received
        self.in_doubt = False
        self.received_from = engine.destination
        self.sent_later = 0
        self.changed_handling: str | None = None
        self._handling = handling

    @property
    def stop_reason(self) -> str | None:
        """Why the handler wants the activation stopped; `None` if it doesn't."""
        return self._stop_reason

    @stop_reason.setter
    def stop_reason(self, reason: str | None) -> None:
        self._stop_reason = reason
        self.stop_is_new = reason is not None

    def take_stop(self) -> str | None:
        """Return the reason of a stop that the handler has requested since the last call; `None` if none."""
        if not self.stop_is_new:
            return None
        self.stop_is_new = False
        return self._stop_reason

    @property
    def redelivery_handling(self) -> str:
        """The redelivery handling in force for this message; a change applies to this message only.

        Raises:
            ConfigurationError: On setting: the string is invalid, or a moved message would return to its
                source.

        Source: J171.
        """
        return self._handling if self.changed_handling is None else self.changed_handling

    @redelivery_handling.setter
    def redelivery_handling(self, text: str) -> None:
        self._check_handling(text)
        self.changed_handling = None if text == self._handling else text

    @property
    def _end_of_batch_mark(self) -> bool | None:
        # Absent rather than false elsewhere: handlers ask whether it is there (J186).
        return True if self.end_of_batch else None

    def acknowledge(self) -> None:
        """Acknowledge that processing has finished; with hold-until-ack this ends the delivery.

        Without hold-until-ack this has no effect: the handler's return ends the delivery.

        Source: J176.
        """
        if self.engine.acknowledge is not None:
            self.engine.acknowledge(self)

    def set_rollback_only(self) -> None:
        """Request a rollback at the end of the delivery. Source: J176."""
        self.rollback_only = True

    def stop_message_delivery(self, reason: str) -> None:
        """Request a stop of the whole activation; the reason is logged. Source: J172."""
        self.stop_reason = reason

    def set_property(self, name: str, value: PropertyValue) -> None:
        """Write an extra property.

        Raises:
            ConfigurationError: The name isn't that of a writable extra property, or the value has the wrong
                type.

        Source: J169, J171, J172, J176, J177.
        """
        extra = extra_property(name)
        if extra is None or extra in _READ_ONLY:
            raise ConfigurationError(
                f"property {name!r}: a received message is read-only; expected {SET_ROLLBACK_ONLY}, "
                f"{REDELIVERY_HANDLING}, {STOP_MESSAGE_DELIVERY} or {USER_ROLLBACK_DATA}..."
            )
        if extra == SET_ROLLBACK_ONLY:
            if not isinstance(value, bool):
                raise ConfigurationError(f"property {name!r}: expected a boolean, not {type(value).__name__}")
            self.rollback_only = value
            return
        if not isinstance(value, str):
            raise ConfigurationError(f"property {name!r}: expected a string, not {type(value).__name__}")
        if extra == REDELIVERY_HANDLING:
            self.redelivery_handling = value
        elif extra == STOP_MESSAGE_DELIVERY:
            self.stop_reason = value
        else:
            self.user_rollback_data[extra.removeprefix(USER_ROLLBACK_DATA)] = value

    def get_object(self, name: str) -> PropertyValue:
        """Return a property or an extra property without conversion; `None` if it doesn't exist.

        A moved message carries the count, exception and user data of its last activation as properties. These
        are returned if this delivery has no value of its own.

        Source: J154, J162-J165, J170, J171, J173, J176, J186.
        """
        extra = extra_property(name)
        if extra is None:
            return self.message.get_object(name)
        if extra in _ATTRIBUTES:
            value: PropertyValue = getattr(self, _ATTRIBUTES[extra])
        else:
            value = self.user_rollback_data.get(extra.removeprefix(USER_ROLLBACK_DATA))
        return self.message.get_object(name) if value is None else value

    def get_string(self, name: str) -> str | None:
        """Return a property as text, or an extra property that is a string."""
        extra = extra_property(name)
        if extra is not None and (extra in _STRINGS or extra.startswith(USER_ROLLBACK_DATA)):
            value = self.get_object(name)
            return None if value is None else str(value)
        return super().get_string(name)

    def _property(self, name: str, kind: ItemType) -> ItemValue:
        if extra_property(name) is not None:
            raise ConfigurationError(
                f"property {name!r}: read it with get_object; it isn't converted to {kind}"
            )
        return super()._property(name, kind)

    def __repr__(self) -> str:
        return f"Delivery({self.message!r}, redelivery_count={self.redelivery_count})"

    @property
    def body_kind(self) -> BodyKind:
        """How the body is to be read."""
        return self.message.body_kind

    @property
    def body(self) -> Any:
        """The body of the message."""
        return self.message.body

    @property
    def properties(self) -> Mapping[str, PropertyValue]:
        """The properties of the message, without extra properties. Source: J177."""
        return self.message.properties

    @property
    def property_types(self) -> Mapping[str, PropertyType]:
        """The JMS types of properties, where they are known."""
        return self.message.property_types

    @property
    def item_types(self) -> Mapping[Any, ItemType]:
        """The types of the items in a map or stream body."""
        return self.message.item_types

    def __getattr__(self, name: str) -> Any:
        """Read every other attribute (headers) from the message."""
        # Half-made copies ask for `message` too, before it is there.
        if name.startswith("_") or name == "message":
            raise AttributeError(name)
        return getattr(self.message, name)

    def tell(self, decision: Deliver, received_from: Destination, batch_size: int | None) -> None:
        """Set the origin of the message, the number of this attempt, and the data of earlier attempts."""
        self.received_from = received_from
        self.redelivery_count = decision.seen
        self.in_doubt = decision.in_doubt
        if batch_size is not None:
            self.batch_index, self.batch_size = decision.batch_index, batch_size
        self.user_rollback_data.update(decision.state.rollback_data)
        if (failure := decision.state.failure) is not None:
            self.exception_class, self.exception_message = failure.class_name, failure.message

    def tell_end_of_batch(self, decision: DeliverEndOfBatch, batch_size: int | None) -> None:
        """Mark this as the end of the batch, and set whether the batch is rolled back."""
        self.end_of_batch = True
        self.batch_index, self.batch_size = decision.batch_index, batch_size
        self.rollback_only = decision.rollback

    def _check_handling(self, text: str) -> None:
        for action in RedeliveryHandling.parse(text).actions:
            for target in action.all_targets if isinstance(action, Move) else ():
                if target.name.startswith(LOOKUP):
                    raise ConfigurationError(
                        f"redelivery handling of a message: {target} is a lookup, which works only in "
                        "redelivery_handling of the spec; give the name of the destination"
                    )
                target_of(self.buffer.link.connection.broker, target, self.received_from)

    @property
    def context(self) -> DeliveryContext:
        """Principal, attempt, destination and rollback of this delivery."""
        return DeliveryContext(self)

    @property
    def response(self) -> Response:
        """The outcome of a request; this message is the answer to it.

        Raises:
            ConfigurationError: The spec doesn't say which property holds the result.

        Source: I45, I46.
        """
        if self.engine.result_property is None:
            raise ConfigurationError(
                "message_response_result_property: missing, expected the property that holds the result"
            )
        return read_response(self.message, self.engine.result_property)

    def send(
        self,
        destination: Destination | str,
        message: JmsMessage | Delivery,
        *,
        delay: float | None = None,
        deliver_at: datetime | str | None = None,
        deduplication_id: str | None = None,
    ) -> None:
        """Send a message that belongs to this delivery.

        Guarantee: in a container-managed activation the message is sent when the delivery is committed. If
        the broker commits atomically, both happen or neither. Otherwise the message is sent first: a crash
        before the acknowledgement sends it again and loses nothing. In a bean-managed activation it is sent
        at once.

        Args:
            destination: The destination, for example `queue://orders`; in a task also `lookup://orders`.
            message: The message; a delivery, such as this one, is forwarded as it was received.
            delay: Seconds from now before the message can be received. If the broker can't delay (RabbitMQ)
                and the spec has `use_store`, the message waits in limbo. It is put there before the received
                message is acknowledged. A crash in between doesn't send it twice, if the received message has
                an id.
            deliver_at: The earliest time of its delivery, instead of `delay`: a `datetime` with a time zone,
                or ISO 8601 text. Without `delay` and `deliver_at`, the message property `DELIVERY_DATE`
                applies if the spec has `allow_message_delays`.
            deduplication_id: The broker drops a second message with this id. Single deliveries don't need it.
                In batches on Artemis, a crash may duplicate messages sent without it. Derive it from the
                received message's id, if the sent message depends on nothing else.

        Raises:
            ConfigurationError: `delay` or `deliver_at` can't be used, or both are given.
            CapabilityError: The broker can't carry the message, or can't delay it and there is no limbo.
            ConnectionLostError: The connection is lost; the broker will redeliver this message.
            PermanentBrokerError: The broker refuses the message.
            TransientStoreError: The store can't be used, and the message was to be put in limbo at once.
        """
        unsaid = delay is None and deliver_at is None
        held_back = None if unsaid else chosen_delay(delay, deliver_at, datetime.now(UTC))
        self.engine.send(
            self,
            Outgoing(
                destination=(
                    destination if isinstance(destination, Destination) else self.engine.find(destination)
                ),
                message=redirect_of(message.message) if isinstance(message, Delivery) else message,
                delay=held_back,
                deduplication_id=deduplication_id,
            ),
        )
