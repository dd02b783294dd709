"""What a handler gets from a listener."""

from __future__ import annotations

import contextlib
import contextvars
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from airflow_provider_jmsjca.core.configuration.administered import LOOKUP, destination_named
from airflow_provider_jmsjca.core.copies.dead_letter import redirect_of
from airflow_provider_jmsjca.core.delivered import DeliveredMessage, Response, read_response
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.redelivery import Move, RedeliveryHandling
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.transports.base import Outgoing

ENTER_LOGGER = "com.stc.EnterContext"
EXIT_LOGGER = "com.stc.ExitContext"

context_name: contextvars.ContextVar[str | None] = contextvars.ContextVar("jms_context_name", default=None)
"""The context name of the delivery that log lines are about; `None` outside. Source: J62."""


@contextlib.contextmanager
def in_context(name: str | None) -> Iterator[None]:
    """Write log lines with this context name meanwhile, or with none."""
    token = context_name.set(name)
    try:
        yield
    finally:
        context_name.reset(token)


class ContextFilter(logging.Filter):
    """Puts the context name on every log record, as the attribute `ContextName` (empty outside deliveries).

    Add it to a handler: `handler.addFilter(ContextFilter())`, with `%(ContextName)s` in the format.

    Source: J62.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass."""
        record.ContextName = context_name.get() or ""
        return True


@dataclass(frozen=True, slots=True)
class DeliveryContext:
    """The circumstances of a delivery, as a message-driven bean gets them.

    Source: W38.
    """

    _delivery: Delivery

    @property
    def principal(self) -> str | None:
        """User name with which the message was received; `None` without one."""
        return self._delivery.engine.principal

    @property
    def destination(self) -> Destination:
        """Where the message was received, as the activation names it."""
        return self._delivery.received_from

    @property
    def attempt(self) -> int:
        """Which attempt at this message this is, as far as is known; 1 is the first."""
        return self._delivery.redelivery_count + 1

    @property
    def in_doubt(self) -> bool:
        """Whether an earlier attempt may have been committed: what it sent may be there."""
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
        """Have the delivery rolled back when it ends.

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
    """The part of the engine a delivery may use; one for each listener.

    Attributes:
        destination: What is consumed, the first of several.
        transacted: Whether what is sent waits for the commit.
        principal: Who consumes.
        result_property: Message property that holds the result of a request; `None`: messages are no answers.
        find: Returns the destination that a text names.
    """

    __slots__ = ("acknowledge", "destination", "find", "principal", "result_property", "send", "transacted")

    def __init__(
        self,
        *,
        destination: Destination,
        transacted: bool,
        principal: str | None,
        send: Callable[[Delivery, Outgoing], None],
        acknowledge: Callable[[DeliveredMessage], None] | None,
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


class Delivery(DeliveredMessage):
    """One attempt at one message (or at the end of a batch), in the handler's hands.

    Attributes:
        call: Its number.
        unit: The number of the unit of work it is in.
        in_doubt: An earlier attempt may have been committed.
        received_from: The destination, as the activation names it; for the end of a batch the first one.
    """

    __slots__ = ("_given_handling", "call", "engine", "in_doubt", "intake", "received_from", "unit")

    def __init__(  # noqa: PLR0917 - a call by position, once for each message
        self,
        message: JmsMessage,
        engine: HandlerEngine,
        intake: Any,
        call: int,
        unit: int,
        handling: str = "",
    ) -> None:
        super().__init__(
            message,
            redelivery_handling=handling,
            check_redelivery_handling=_check_handling,
            acknowledge=engine.acknowledge,
        )
        self.engine = engine
        self.intake = intake
        self.call = call
        self.unit = unit
        self.in_doubt = False
        self.received_from = engine.destination
        self._given_handling = handling

    @property
    def changed_handling(self) -> str | None:
        """The redelivery handling the handler has set; `None` if it left it as it was."""
        changed = self._redelivery_handling
        return None if changed == self._given_handling else changed

    @property
    def is_untouched(self) -> bool:
        """Whether the handler wrote nothing on it."""
        return not (
            self.rollback_only
            or self.user_rollback_data
            or self.stop_reason is not None
            or self._redelivery_handling != self._given_handling
        )

    @property
    def context(self) -> DeliveryContext:
        """The circumstances: principal, attempt, destination, rollback."""
        return DeliveryContext(self)

    @property
    def response(self) -> Response:
        """What this message, the answer to a request, says of the request.

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
        message: JmsMessage | DeliveredMessage,
        *,
        delay: float | None = None,
        deduplication_id: str | None = None,
    ) -> None:
        """Send a message that belongs to this delivery.

        Guarantee: in a container-managed activation it is sent if and when the delivery is committed. Where
        the broker commits atomically, both happen or neither. Elsewhere it is sent first: a crash in between
        sends it again and loses nothing. In a bean-managed activation it is sent at once.

        Args:
            destination: Where to, for example `queue://orders`; in a task also `lookup://orders`.
            message: What; a delivery, such as this one, is sent on as it was received.
            delay: Seconds before it can be received; `None`: as its property `DELIVERY_DATE` says, where the
                spec has `allow_message_delays`, otherwise none.
            deduplication_id: A second message with this id is dropped by the broker. Deliveries by
                themselves need none. Those in batches do on Artemis, or what they sent is there twice after
                a crash. Make it of the message's own id, if what is sent depends on nothing else.

        Raises:
            CapabilityError: The broker can't carry it.
            ConnectionLostError: The connection is gone, and this delivery will come again.
            PermanentBrokerError: The broker refuses it.
        """
        self.engine.send(
            self,
            Outgoing(
                destination=(
                    destination if isinstance(destination, Destination) else self.engine.find(destination)
                ),
                message=redirect_of(message.message) if isinstance(message, DeliveredMessage) else message,
                delay=None if delay is None else timedelta(seconds=delay),
                deduplication_id=deduplication_id,
            ),
        )


def _check_handling(text: str) -> RedeliveryHandling:
    handling = RedeliveryHandling.parse(text)
    for action in handling.actions:
        for target in action.all_targets if isinstance(action, Move) else ():
            if target.name.startswith(LOOKUP):
                raise ConfigurationError(
                    f"redelivery handling of a message: {target} would have to be looked up, which is done "
                    "for the handling of a spec only; name the destination itself"
                )
    return handling
