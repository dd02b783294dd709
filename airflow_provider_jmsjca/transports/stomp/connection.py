"""A connection to a broker over STOMP: implements `transports.base.Connection` on a link."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import assert_never

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import JmsError
from airflow_provider_jmsjca.transports.administration import QueueAdministration
from airflow_provider_jmsjca.transports.backlog import Backlog
from airflow_provider_jmsjca.transports.base import (
    ConnectionState,
    OnLost,
    OnReceived,
    Outgoing,
    Subscription,
    UnitOfWork,
)
from airflow_provider_jmsjca.transports.stomp.browsing import browse, first_messages
from airflow_provider_jmsjca.transports.stomp.confirmed import ConfirmedUnit
from airflow_provider_jmsjca.transports.stomp.consumer import StompConsumer, delete_subscription, subscribe
from airflow_provider_jmsjca.transports.stomp.dialects.settlement import Cumulative, UnitKind
from airflow_provider_jmsjca.transports.stomp.link.link import Link
from airflow_provider_jmsjca.transports.stomp.management import backlog
from airflow_provider_jmsjca.transports.stomp.sending import send
from airflow_provider_jmsjca.transports.stomp.sessions import Sessions
from airflow_provider_jmsjca.transports.stomp.units import TransactionUnit


class StompConnection:
    """A connection with any number of subscriptions.

    `transports.base.Connection` documents the guarantees of each method.

    Args:
        link: An open link; the connection owns it.

    Attributes:
        link: The open link.
        call_soon: Calls a function in the reader thread, after it has handled the frames read so far.
        secrets: Credentials of the connection.
        broker: The connected broker.
        capabilities: Capabilities of the broker.
        unit: Begins a unit of work.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self.call_soon = link.wire.call_soon
        self.secrets = link.secrets
        self.broker = link.broker
        self.capabilities = link.dialect.capabilities
        self.unit = _units_on(link)
        self._sessions = Sessions(link, _units_on)

    @property
    def state(self) -> ConnectionState:
        """State of the connection."""
        return self.link.state

    def on_lost(self, callback: OnLost) -> None:
        """Call `callback` once when the connection is lost, but not when it is closed.

        If the connection is already lost, the call follows at once.
        """
        self.link.on_lost(callback)

    def consume(self, subscription: Subscription, on_received: OnReceived) -> StompConsumer:
        """Subscribe, and return the consumer; see `Connection.consume`."""
        if subscription.own_session and self.link.dialect.cumulative is Cumulative.CONNECTION:
            return self._sessions.consume(subscription, on_received)
        return subscribe(self.link, subscription, on_received, self.unit)

    def send(self, outgoing: Iterable[Outgoing]) -> int:
        """Send messages outside any unit, pipelined, and wait until the broker confirmed every one."""
        return send(self.link, outgoing)

    def browse(self, destination: Destination, selector: str | None = None) -> Iterator[JmsMessage]:
        """Yield the messages on a queue without consuming them."""
        return browse(self.link, destination, selector, self.link.reply_timeout)

    def first_messages(
        self, queues: Sequence[tuple[Destination, str | None]]
    ) -> list[JmsMessage | JmsError | None]:
        """Return the first message of each of several queues, without consuming it."""
        return first_messages(self.link, queues, self.link.reply_timeout)

    def backlog(self, queue: Destination) -> Backlog:
        """Return the backlog of a queue."""
        return backlog(self.link, queue, self.link.reply_timeout)

    def administration(self) -> QueueAdministration:
        """Return the queue administration of the broker."""
        # Listeners need no HTTP client.
        from airflow_provider_jmsjca.transports.stomp.administration import administration_over  # noqa: PLC0415

        return administration_over(self, self.link)

    def synchronize(self) -> None:
        """Wait until the broker has processed all earlier frames."""
        self.link.synchronize()
        self._sessions.synchronize()

    def delete_durable(self, name: str, destination: Destination) -> None:
        """Delete an idle durable subscription and its messages."""
        delete_subscription(self.link, name, destination)

    def close(self) -> None:
        """Close within the reply timeout; the broker takes back unsettled messages.

        Raises nothing. If messages were acknowledged and the broker doesn't confirm the close, this logs a
        WARNING: the last acknowledged messages may be redelivered. No message is lost.
        """
        self._sessions.close()
        self.link.close()


def _units_on(link: Link) -> Callable[[], UnitOfWork]:
    match link.dialect.unit_kind:
        case UnitKind.TRANSACTION:
            return functools.partial(TransactionUnit, link)
        case UnitKind.CONFIRM_THEN_ACKNOWLEDGE:
            return functools.partial(ConfirmedUnit, link)
        case _ as kind:
            assert_never(kind)
