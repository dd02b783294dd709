"""JMS sessions over any transport."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.selector import Selector
from airflow_provider_jmsjca.engine.acknowledge_mode import AcknowledgeMode
from airflow_provider_jmsjca.engine.inbox import Inbox
from airflow_provider_jmsjca.engine.sendable import check_sendable
from airflow_provider_jmsjca.engine.session_subscription import AT_ONCE, session_subscription
from airflow_provider_jmsjca.engine.usage import Usage
from airflow_provider_jmsjca.errors import (
    ConfigurationError,
    JmsError,
    PermanentBrokerError,
    PoisonMessageError,
    TransientBrokerError,
)
from airflow_provider_jmsjca.transports.base import (
    Connection,
    Outgoing,
    Received,
    UnitOfWork,
)

__all__ = ["AcknowledgeMode", "JmsSession"]

_log = logging.getLogger(__name__)


class JmsSession:
    """Sends and receives, in transactions or not, on one thread at a time.

    Guarantee: what was received and not settled comes again after a crash, a lost connection, `recover` or
    `rollback`, and after closing the session, in its original order as far as the broker keeps it. With
    `Capabilities.atomic_commit` sends and receipts of a transaction happen together or not at all; without
    it sends come first, and a crash in between repeats messages but loses none.

    Source: JMS 2.0 chapter 6.
    """

    def __init__(
        self,
        connection: Connection,
        acknowledge_mode: AcknowledgeMode,
        prefetch: int | None,
        on_close: Callable[[JmsSession], None],
        find: Callable[[str], Destination] = Destination.parse,
        *,
        usage: Usage | None = None,
    ) -> None:
        self._connection = connection
        self._mode = acknowledge_mode
        self._transacted = acknowledge_mode is AcknowledgeMode.SESSION_TRANSACTED
        self._settles_at_once = acknowledge_mode in AT_ONCE
        self._prefetch = prefetch
        self._on_close = on_close
        self._find = find
        self._usage = usage or Usage()
        self._lock = threading.Condition()
        self._inboxes: dict[Hashable, Inbox] = {}
        self._latest: tuple[Destination | str, str | None, str | None, Inbox] | None = None
        self._unsettled: list[tuple[Inbox, Received]] = []
        self._unit: UnitOfWork | None = None
        self._loss: JmsError | None = None
        self._closed = False

    @property
    def acknowledge_mode(self) -> AcknowledgeMode:
        """When what it received is settled."""
        return self._mode

    @property
    def transacted(self) -> bool:
        """Whether it works in transactions."""
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
        """Send a message; in a transacted session it is there after `commit`, else when this returns.

        Args:
            destination: Where to, for example `queue://orders`.
            message: What to send; it isn't changed.
            delay: Seconds before it can be received.
            time_to_live: Seconds until it expires, counted from now.
            priority: 0 to 9; `None` leaves the message's own.
            persistent: Whether it survives a restart of the broker; `None` leaves the message's own.
            deduplication_id: A second message with this id is dropped by the broker.

        Raises:
            ConfigurationError: What is given is no message.
            CapabilityError: The broker can't do what is asked.
            PermanentBrokerError: The broker refused it.
            InDoubtError: The connection was lost; it may be there.
        """
        self._check_open()
        outgoing = Outgoing(
            destination=self._destination(destination),
            message=message,
            delay=None if delay is None else timedelta(seconds=delay),
            deduplication_id=deduplication_id,
        )
        if not (priority is None and persistent is None and time_to_live is None):
            outgoing = replace(outgoing, message=_changed(message, time_to_live, priority, persistent))
        check_sendable(self._connection, outgoing)
        if self._transacted:
            self._open_unit().send(outgoing)
            return
        with self._usage:
            self._connection.send([outgoing])
        self._usage.succeeded()

    def receive(
        self,
        destination: Destination | str,
        timeout: float = 10,
        selector: str | None = None,
        *,
        subscription_name: str | None = None,
    ) -> JmsMessage | None:
        """Return the next message, or `None` when the time is up.

        The first call subscribes; the subscription stays until the session is closed. Meanwhile the broker
        may set aside as many messages for this session as the prefetch says.

        Args:
            destination: Where from, for example `queue://orders`.
            timeout: Seconds to wait; 0 asks the broker once and doesn't wait for messages to be sent.
            selector: JMS message selector.
            subscription_name: Name of a durable subscription to a topic.

        Raises:
            ConfigurationError: The selector can't be parsed; the position is in the text.
            CapabilityError: The broker ignores selectors, or has no durable subscriptions. The session does
                not filter instead: it would take away messages meant for others, or mix up their order.
            ConfigurationError: Nothing came, and the session holds as many unsettled messages as its prefetch
                allows.
            ConnectionLostError: The connection is gone.
            PoisonMessageError: The message can't be decoded. It stays unsettled; in a transacted or CLIENT
                session `commit` or `acknowledge` settles it. In the other modes ActiveMQ may hand it out
                once more to the same session.
        """
        self._check_open()
        inbox = self._inbox_of(destination, selector, subscription_name)
        try:
            received = inbox.take(timeout)
        except (TransientBrokerError, PermanentBrokerError):
            self._usage.failed()
            raise
        if received is None:
            return None
        self._usage.succeeded()
        self._unsettled.append((inbox, received))
        if self._transacted:
            # At once: some brokers hand out no more while too much is unacknowledged.
            self._open_unit().acknowledge(received)
        if not self._settles_at_once:
            return received.message
        self._unsettled.pop()
        try:
            message = received.message
        except PoisonMessageError:
            inbox.settle_singly()
            raise
        received.consumer.acknowledge([received])
        inbox.settled(1)
        if self._mode is AcknowledgeMode.AUTO:
            try:
                self._connection.synchronize()
            except JmsError as error:
                # The broker may have let go of it: then there is none but this one.
                _log.warning("Message %s may come again: %s", message.message_id, error)
        return message

    def acknowledge(self) -> None:
        """Settle everything the session received so far; the broker has confirmed it on return.

        Raises:
            ConfigurationError: The session isn't in CLIENT mode.
            ConnectionLostError: The connection is gone; they will come again.
        """
        self._check_open()
        if self._mode is not AcknowledgeMode.CLIENT:
            raise ConfigurationError(
                f"acknowledge() is for sessions in client mode; this one is {self._mode}"
            )
        unsettled, self._unsettled = self._unsettled, []
        for inbox, received in unsettled:
            received.consumer.acknowledge([received])
            inbox.settled(1)
        self._connection.synchronize()

    def recover(self) -> None:
        """Hand back what the session received and did not settle; it comes again.

        Raises:
            ConfigurationError: The session is transacted: use `rollback`.
            ConnectionLostError: The connection is gone, which hands it back too.
        """
        self._check_open()
        if self.transacted:
            raise ConfigurationError("recover() is for sessions that aren't transacted; use rollback()")
        self._hand_back()

    def commit(self) -> None:
        """Make everything sent and received since the last commit final.

        Raises:
            InDoubtError: The connection was lost and the outcome is unknown.
            ConnectionLostError: The connection was lost; nothing of it happened.
            PermanentBrokerError: The broker refused a part: all of it is rolled back.
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
        self._usage.succeeded()
        unsettled, self._unsettled = self._unsettled, []
        for inbox, count in Counter(inbox for inbox, _ in unsettled).items():
            inbox.settled(count)

    def _decode_ahead(self) -> None:
        for inbox in self._inboxes.values():
            inbox.decode_ahead()

    def rollback(self) -> None:
        """Forget what was sent and hand back what was received since the last commit: it comes again.

        Raises:
            ConnectionLostError: The connection is gone, which rolls back too.
            ConfigurationError: The session isn't transacted.
        """
        self._check_transacted("rollback")
        unit, self._unit = self._unit, None
        if unit is not None:
            unit.rollback()
        self._hand_back()

    def browse(self, destination: Destination | str, selector: str | None = None) -> Iterator[JmsMessage]:
        """Yield the messages on a queue without consuming them.

        Raises:
            CapabilityError: The broker can't be browsed, or ignores selectors.
        """
        self._check_open()
        target = self._destination(destination)
        self._require("browse", purpose=f"browsing {target}")
        self._check_selector(selector)
        return self._connection.browse(target, selector)

    def close(self) -> None:
        """End the session: an open transaction is rolled back, unsettled and unread messages go back.

        Closing twice is harmless.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self._loss is None:
                if self._unit is not None:
                    self._unit.rollback()
                elif self._mode is AcknowledgeMode.DUPS_OK and self._inboxes:
                    self._connection.synchronize()
                for inbox in self._inboxes.values():
                    inbox.close()
        except TransientBrokerError:
            # The connection broke meanwhile: that has handed everything back already.
            if self._loss is None:
                raise
        finally:
            self._on_close(self)

    def lose(self, reason: JmsError) -> None:
        """The connection is gone: wake whoever waits. Called by the connection."""
        self._loss = reason
        for inbox in list(self._inboxes.values()):
            inbox.lose(reason)

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
        latest = self._latest  # nearly always the same again, and quicker to tell than to look up
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
        key = (destination, destination.options, selector or None, durable_name)
        found = self._inboxes.get(key)
        if found is None:
            self._check_selector(selector)
            if durable_name is not None:
                self._require("durable_subscription", purpose=f"the durable subscription {durable_name!r}")
            subscription = session_subscription(
                self._mode, destination, selector, durable_name, self._prefetch
            )
            found = self._inboxes[key] = Inbox(self._connection, subscription, self._lock)
            if self._loss is not None:
                found.lose(self._loss)
        return found

    def _open_unit(self) -> UnitOfWork:
        if self._unit is None:
            self._unit = self._connection.unit()
        return self._unit

    def _hand_back(self) -> None:
        self._unsettled.clear()
        for inbox in self._inboxes.values():
            inbox.recover()

    def _require(self, *names: str, purpose: str) -> None:
        self._connection.capabilities.require(self._connection.broker, *names, purpose=purpose)

    def _check_selector(self, selector: str | None) -> None:
        if selector:
            Selector.parse(selector)
            self._require("selector", purpose=f"the message selector {selector!r}")

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
