"""JMS sessions over any transport."""

from __future__ import annotations

import contextlib
import enum
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType, TracebackType
from typing import Any, Self

from airflow_provider_jmsjca.core.configuration.administered import destination_named
from airflow_provider_jmsjca.core.configuration.destination_options import prefetch_of
from airflow_provider_jmsjca.core.copies.delivery_date import chosen_delay
from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.message.delivery_memory import REMEMBERED, DeliveryMemory
from airflow_provider_jmsjca.core.message.message import identity_of
from airflow_provider_jmsjca.core.prefetch import MOST_IN_ORDER, for_session
from airflow_provider_jmsjca.core.selector import Selector, parameters_for, selector_text, substitute
from airflow_provider_jmsjca.engine.connecting.pool import Usage
from airflow_provider_jmsjca.engine.session.inbox import Inbox
from airflow_provider_jmsjca.engine.session.tracing import (
    current_traceparent,
    with_current_trace,
    with_traceparent,
)
from airflow_provider_jmsjca.errors import (
    ConfigurationError,
    ConnectionLostError,
    JmsError,
    PermanentBrokerError,
    PoisonMessageError,
    TransientBrokerError,
)
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.transports.base import (
    Connection,
    Outgoing,
    Received,
    Subscription,
    UnitOfWork,
    check_sendable,
)


class AcknowledgeMode(enum.StrEnum):
    """When a session settles received messages. Source: JMS 2.0 section 6.2.10.

    Attributes:
        AUTO: When `receive` returns; the broker has confirmed the settlement by then, or a warning is logged.
        CLIENT: When `acknowledge` is called, for all messages that the session has received.
        DUPS_OK: When `receive` returns, without waiting for the broker: faster, and the last few messages
            may be redelivered after a crash.
        SESSION_TRANSACTED: When `commit` is called, together with the messages that the session sent.
    """

    AUTO = "auto"
    CLIENT = "client"
    DUPS_OK = "dups_ok"
    SESSION_TRANSACTED = "session_transacted"


AT_ONCE = frozenset({AcknowledgeMode.AUTO, AcknowledgeMode.DUPS_OK})
"""Modes in which a message is settled when it is received."""


def session_subscription(
    mode: AcknowledgeMode,
    destination: Destination,
    selector: str | None,
    durable_name: str | None,
    prefetch: int | None,
) -> Subscription:
    """Return the subscription with which a session receives.

    Args:
        mode: When the session settles messages.
        destination: The destination; a prefetch among its options overrides the session's.
        selector: JMS selector; `None` or empty: all messages.
        durable_name: Name of a durable subscription; `None`: not durable.
        prefetch: Prefetch of the session; `None`: the default for the mode.
    """
    found = for_session(
        prefetch_of(destination, prefetch),
        is_topic=destination.kind is DestinationKind.TOPIC,
        settles_each=mode is AcknowledgeMode.AUTO,
    )
    if mode in AT_ONCE:
        # Not in order on a plain topic: to leave an undecodable message unsettled, a session that settles in
        # order has to subscribe again (`Inbox.settle_singly`), and a plain topic would lose messages then.
        in_order = destination.kind is DestinationKind.QUEUE or durable_name is not None
    else:
        in_order = found <= MOST_IN_ORDER
    return Subscription(
        destination=destination,
        selector=selector or None,
        durable_name=durable_name,
        prefetch=found,
        in_order=in_order,
    )


__all__ = ["AcknowledgeMode", "JmsSession"]

_log = safe_logger(__name__)


class JmsSession:
    """Sends and receives, in transactions or not, on one thread at a time.

    Guarantee: the broker redelivers unsettled messages after a crash, a lost connection, `recover` or
    `rollback`, and after closing the session. The original order is kept if the broker keeps it. With
    `Capabilities.atomic_commit` sends and receipts of a transaction happen together or not at all. Without
    this capability sends come first, and a crash in between duplicates messages but loses none.

    Source: JMS 2.0 chapter 6.
    """

    def __init__(
        self,
        connection: Connection,
        acknowledge_mode: AcknowledgeMode,
        prefetch: int | None,
        on_close: Callable[[JmsSession], None],
        find: Callable[[str], Destination] = destination_named,
        *,
        usage: Usage | None = None,
        parameters: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._connection = connection
        self._mode = acknowledge_mode
        self._transacted = acknowledge_mode is AcknowledgeMode.SESSION_TRANSACTED
        self._settles_at_once = acknowledge_mode in AT_ONCE
        self._prefetch = prefetch
        self._on_close = on_close
        self._find = find
        self._usage = usage or Usage()
        self._parameters = parameters
        self._lock = threading.Condition()
        self._inboxes: dict[Hashable, Inbox] = {}
        self._latest: tuple[Destination | str, str | None, str | None, Inbox] | None = None
        self._unsettled: list[tuple[Inbox, Received]] = []
        # Messages that this session handed back. Their number is bounded, because the broker may deliver some
        # of them to another consumer.
        self._memory: DeliveryMemory[Received] = DeliveryMemory(REMEMBERED)
        self._unit: UnitOfWork | None = None
        self._loss: JmsError | None = None
        self._closed = False

    @property
    def acknowledge_mode(self) -> AcknowledgeMode:
        """When messages that the session received are settled."""
        return self._mode

    @property
    def transacted(self) -> bool:
        """Whether the session works in transactions."""
        return self._transacted

    def send(
        self,
        destination: Destination | str,
        message: JmsMessage,
        *,
        delay: float | None = None,
        time_to_live: float | None = None,
        priority: int | None = None,
        persistent: bool | None = None,
        deduplication_id: str | None = None,
    ) -> None:
        """Send a message; a transacted session sends it at `commit`, others before the call returns.

        Args:
            destination: The destination, for example `queue://orders`.
            message: The message; it isn't changed.
            delay: Seconds before the message can be received.
            time_to_live: Seconds until the message expires, counted from now.
            priority: 0 to 9; `None`: the priority in the message.
            persistent: Whether the message survives a restart of the broker; `None`: as the message says.
            deduplication_id: The broker drops a second message with this id.

        Raises:
            ConfigurationError: `message` isn't a message, or `delay` can't be used.
            CapabilityError: The broker lacks a capability for the message.
            PermanentBrokerError: The broker refused the message.
            InDoubtError: The connection was lost; the broker may have the message.
        """
        self._check_open()
        outgoing = Outgoing(
            destination=self._destination(destination),
            message=message,
            delay=None if delay is None else chosen_delay(delay, None, datetime.now(UTC)),
            deduplication_id=deduplication_id,
        )
        if not (priority is None and persistent is None and time_to_live is None):
            outgoing = replace(outgoing, message=_changed(message, time_to_live, priority, persistent))
        (outgoing,) = with_current_trace((outgoing,))
        check_sendable(self._connection, outgoing)
        if self._transacted:
            self._open_unit().send(outgoing)
            return
        with self._usage:
            self._connection.send([outgoing])
        self._usage.record_success()

    def send_all(self, messages: Iterable[Outgoing]) -> None:
        """Send messages; without transactions this is much faster than sending them one by one.

        A transacted session sends them at `commit`, other sessions before the call returns.

        Args:
            messages: Messages and their destinations.

        Raises:
            CapabilityError: The broker lacks a capability for one of the messages; it may have earlier ones.
            PermanentBrokerError: The broker refused a message; it may have others.
            InDoubtError: The connection was lost; the broker may have some of the messages.
        """
        self._check_open()
        if self._transacted:
            unit = self._open_unit()
            for outgoing in self._sendable(messages):
                unit.send(outgoing)
            return
        with self._usage:
            self._connection.send(self._sendable(messages))
        self._usage.record_success()

    def _sendable(self, messages: Iterable[Outgoing]) -> Iterator[Outgoing]:
        traceparent = current_traceparent()
        for outgoing in messages:
            sent = outgoing
            if traceparent is not None:
                sent = replace(outgoing, message=with_traceparent(outgoing.message, traceparent))
            check_sendable(self._connection, sent)
            yield sent

    def receive(
        self,
        destination: Destination | str,
        timeout: float = 10,
        selector: str | None = None,
        *,
        subscription_name: str | None = None,
    ) -> JmsMessage | None:
        """Return the next message, or `None` when the time is up.

        The first call subscribes; the subscription stays until the session is closed. Until then the broker
        may set aside as many messages for this session as the prefetch says.

        Args:
            destination: The destination, for example `queue://orders`.
            timeout: Seconds to wait; 0 asks the broker once and doesn't wait for messages to be sent.
            selector: JMS message selector; parameters such as `${region}` are replaced by their values.
            subscription_name: Name of a durable subscription to a topic.

        Raises:
            ConfigurationError: The selector can't be parsed; the error names the position. Or no message
                arrived, and the session holds as many unsettled messages as its prefetch allows.
            CapabilityError: The broker ignores selectors, or has no durable subscriptions. The session
                doesn't filter by itself, because it would take messages meant for other consumers, or change
                their order.
            ConnectionLostError: The connection is lost.
            PoisonMessageError: The message can't be decoded, and stays unsettled. In a transacted session the
                next `commit` settles it, in a CLIENT session the next `acknowledge`. In the other modes the
                message is never settled. Later calls return the messages behind it, and may raise this error
                again.
        """
        self._check_open()
        inbox = self._inbox_of(destination, selector, subscription_name)
        try:
            received = inbox.take(timeout)
        except (TransientBrokerError, PermanentBrokerError):
            self._usage.record_failure()
            raise
        if received is None:
            return None
        self._usage.record_success()
        self._unsettled.append((inbox, received))
        if self._transacted:
            # Acknowledged now and not at the commit, because some brokers deliver nothing while too many
            # messages are unacknowledged.
            self._open_unit(received).acknowledge(received)
        if not self._settles_at_once:
            message = received.message
            return self._flagged(inbox, message) if self._memory.has_entries else message
        self._unsettled.pop()
        try:
            message = received.message
        except PoisonMessageError:
            inbox.settle_singly()
            raise
        received.consumer.acknowledge([received])
        inbox.note_settled(1)
        if self._mode is AcknowledgeMode.AUTO:
            try:
                self._connection.synchronize()
            except JmsError as error:
                # Not raised: the broker may have settled the message, and then the caller has the only copy.
                _log.warning(
                    "The acknowledgement of message %s was not confirmed; the message may be redelivered: %s",
                    message.message_id,
                    error,
                )
        return message

    def acknowledge(self) -> None:
        """Settle all messages that the session has received, and wait for the broker's confirmation.

        Raises:
            ConfigurationError: The session isn't in CLIENT mode.
            ConnectionLostError: The connection is lost; the broker will redeliver the messages.
        """
        self._check_open()
        if self._mode is not AcknowledgeMode.CLIENT:
            raise ConfigurationError(
                f"acknowledge() is for sessions in client mode; this one is {self._mode}"
            )
        unsettled, self._unsettled = self._unsettled, []
        for inbox, received in unsettled:
            received.consumer.acknowledge([received])
            inbox.note_settled(1)
        self._connection.synchronize()

    def recover(self) -> None:
        """Hand unsettled messages back to the broker, which redelivers them.

        Raises:
            ConfigurationError: The session is transacted: use `rollback`.
            ConnectionLostError: The connection is lost; the broker redelivers the messages in this case, too.
        """
        self._check_open()
        if self.transacted:
            raise ConfigurationError("recover() is for sessions that aren't transacted; use rollback()")
        self._hand_back()

    def commit(self) -> None:
        """Commit all messages sent and received since the last commit.

        Raises:
            InDoubtError: The connection was lost, and the outcome is unknown.
            ConnectionLostError: The connection was lost, and the transaction is rolled back.
            PermanentBrokerError: The broker refused a part of the transaction, and all of it is rolled back.
            ConfigurationError: The session isn't transacted.
        """
        self._check_transacted("commit")
        unit, self._unit = self._unit, None
        if unit is None:
            return
        try:
            with self._usage:
                unit.commit(self._decode_ahead)
        except PermanentBrokerError:
            self._hand_back()
            raise
        self._usage.record_success()
        unsettled, self._unsettled = self._unsettled, []
        for inbox, count in Counter(inbox for inbox, _ in unsettled).items():
            inbox.note_settled(count)

    def _decode_ahead(self) -> None:
        for inbox in self._inboxes.values():
            inbox.decode_ahead()

    def rollback(self) -> None:
        """Drop the messages sent since the last commit, and hand the received messages back to the broker.

        Raises:
            ConnectionLostError: The connection is lost; the transaction is rolled back in this case, too.
            ConfigurationError: The session isn't transacted.
        """
        self._check_transacted("rollback")
        unit, self._unit = self._unit, None
        if unit is not None:
            unit.rollback()
        self._hand_back()

    def browse(self, destination: Destination | str, selector: str | None = None) -> Iterator[JmsMessage]:
        """Yield the messages on a queue without consuming them.

        A message that can't be decoded is logged and yielded as a bytes message of its raw body.

        Raises:
            CapabilityError: The broker can't be browsed, or ignores selectors.
        """
        self._check_open()
        target = self._destination(destination)
        self._require("browse", purpose=f"browsing {target}")
        return self._connection.browse(target, self._checked_selector(selector, None))

    def close(self) -> None:
        """End the session: roll back an open transaction, and hand unsettled and unread messages back.

        Closing twice is harmless.

        Raises:
            PermanentBrokerError: The broker refused to end a subscription; all others are ended.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self._loss is None:
                with self._usage, contextlib.ExitStack() as closing:
                    for inbox in self._inboxes.values():
                        closing.callback(inbox.close)
                    if self._unit is not None:
                        self._unit.rollback()
                    elif self._mode is AcknowledgeMode.DUPS_OK and self._inboxes:
                        self._connection.synchronize()
        except ConnectionLostError as error:
            _log.debug(
                "The connection was lost while a session was closing; its unsettled messages go back: %s",
                error,
            )
        finally:
            self._on_close(self)

    def connection_lost(self, reason: JmsError) -> None:
        """Wake callers that wait for messages; called by the connection when it is lost.

        Args:
            reason: The error that the callers raise.
        """
        self._loss = reason
        for inbox in list(self._inboxes.values()):
            inbox.connection_lost(reason)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _inbox_of(
        self, destination: Destination | str, selector: str | None, durable_name: str | None
    ) -> Inbox:
        latest = self._latest  # most calls have the arguments of the previous call
        if (
            latest is not None
            and latest[0] is destination
            and latest[1] == selector
            and latest[2] == durable_name
        ):
            return latest[3]
        inbox = self._inbox(self._destination(destination), selector, durable_name)
        self._latest = destination, selector, durable_name, inbox
        return inbox

    def _inbox(self, destination: Destination, selector: str | None, durable_name: str | None) -> Inbox:
        key = (destination, destination.options, selector_text(selector), durable_name)
        found = self._inboxes.get(key)
        if found is None:
            selector = self._checked_selector(selector, durable_name)
            if durable_name is not None:
                self._require("durable_subscription", purpose=f"the durable subscription {durable_name!r}")
            subscription = session_subscription(
                self._mode, destination, selector, durable_name, self._prefetch
            )
            found = self._inboxes[key] = Inbox(self._connection, subscription, self._lock)
            if self._loss is not None:
                found.connection_lost(self._loss)
        return found

    def _open_unit(self, received: Received | None = None) -> UnitOfWork:
        if self._unit is None:
            self._unit = self._connection.unit() if received is None else received.unit()
        return self._unit

    def _flagged(self, inbox: Inbox, message: JmsMessage) -> JmsMessage:
        """Return a message, with the redelivered flag set if this session has handed it back before.

        Not every broker sets the flag of a message that was handed back.
        """
        known = identity_of(message, None)
        if known is None or not self._memory.pop_expected((inbox, known)) or message.redelivered:
            return message
        return replace(message, redelivered=True)

    def _hand_back(self) -> None:
        for inbox, received in self._unsettled:
            if (known := identity_of(received.readable, None)) is not None:
                self._memory.expect((inbox, known))
        self._unsettled.clear()
        for inbox in self._inboxes.values():
            inbox.recover()

    def _require(self, *names: str, purpose: str) -> None:
        self._connection.capabilities.require(self._connection.broker, *names, purpose=purpose)

    def _checked_selector(self, selector: str | None, durable_name: str | None) -> str | None:
        """Return the selector with its parameters replaced by their values. Source: J179-J181."""
        template = selector_text(selector)
        if template is None:
            return None
        known = parameters_for(template, self._parameters)
        if durable_name is not None:
            known["subscribername"] = durable_name
        filled = selector_text(substitute(template, known))
        if filled is not None:
            Selector.parse(filled)
            self._require("selector", purpose=f"the message selector {filled!r}")
        return filled

    def _check_transacted(self, method: str) -> None:
        self._check_open()
        if not self.transacted:
            raise ConfigurationError(f"{method}() is for transacted sessions; this one is {self._mode}")

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigurationError("the session is closed")

    def _destination(self, given: Destination | str) -> Destination:
        return given if isinstance(given, Destination) else self._find(given)


def _changed(
    message: JmsMessage, time_to_live: float | None, priority: int | None, persistent: bool | None
) -> JmsMessage:
    changes: dict[str, Any] = {}
    if priority is not None:
        changes["priority"] = priority
    if persistent is not None:
        changes["persistent"] = persistent
    if time_to_live is not None:
        changes["expiration"] = int((time.time() + time_to_live) * 1000)
    return replace(message, **changes)
