"""The interface that every transport implements.

A `Connection` carries many `Consumer`s. The broker keeps a received message until it is settled: through
`Consumer.acknowledge`, or together with messages to send in a `UnitOfWork`, which `Received.unit` opens.
After a crash, a lost connection or `Consumer.recover`, the broker redelivers unsettled messages.

Every method may be called from any thread. Callbacks run on the connection's own thread and must not block.
An exception in a callback is logged and ends the connection, so that its messages are redelivered. All waits
have a deadline.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.masking import is_secret
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.selector import selector_text
from airflow_provider_jmsjca.errors import CapabilityError, ConfigurationError, JmsError, PoisonMessageError
from airflow_provider_jmsjca.transports.administration import QueueAdministration
from airflow_provider_jmsjca.transports.backlog import Backlog
from airflow_provider_jmsjca.transports.capabilities import BrokerInfo, Capabilities

__all__ = [
    "BrokerInfo",
    "Capabilities",
    "Connection",
    "ConnectionSettings",
    "ConnectionState",
    "Consumer",
    "OnLost",
    "OnReceived",
    "Outgoing",
    "Received",
    "Subscription",
    "TlsSettings",
    "Transport",
    "UnitOfWork",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """How to verify the broker's certificate, and the client's own certificate.

    Attributes:
        ca_file: PEM file of trusted certificates; `None` means the system's.
        certificate_file: Client certificate (PEM), for brokers that require one.
        key_file: The certificate's key, if not in the same file.
        key_password: The password of the key.
        verify: `False` accepts any certificate; the connection is then open to a man in the middle.
        server_name: Expected name in the certificate; `None` means the host name.
    """

    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    verify: bool = True
    server_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """Settings to connect to a broker; the scheme selects the transport.

    Attributes:
        scheme: `stomp`, `stomp+ssl` or `vm`.
        hosts: Pairs of host name and port, tried in order, each within `connect_timeout`. For `vm`: the
            broker's name and `None`. Empty if the transport finds its broker by `options`.
        client_id: JMS client id: needed for durable subscriptions.
        virtual_host: STOMP `host` header; `None`: the default of the broker's dialect.
        connect_timeout: Maximum time for each host, from TCP connect through TLS to CONNECTED.
        heart_beat: Interval of heart-beats in both directions; zero switches them off.
        reply_timeout: Maximum wait for a receipt; after it, the connection counts as lost.
        max_frame_size: Maximum size of a frame from the broker in bytes, headers and body together; a larger
            frame ends the connection.
        management_url: Root of the broker's HTTP management API; RabbitMQ needs it for administration.
        options: Further options of the broker or transport, as given in the URL.
        name: Name for the log, such as an Airflow connection id; ignored when settings are compared.

    Raises:
        ConfigurationError: A host is not a pair of a name and a port.
    """

    scheme: str
    hosts: tuple[tuple[str, int | None], ...] = ()
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    client_id: str | None = None
    virtual_host: str | None = None
    tls: TlsSettings | None = None
    connect_timeout: timedelta = timedelta(seconds=15)
    heart_beat: timedelta = timedelta(seconds=5)
    reply_timeout: timedelta = timedelta(seconds=30)
    max_frame_size: int = 128 * 1024 * 1024
    management_url: str | None = field(default=None, repr=False)
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        hosts: object = self.hosts  # an untyped caller may pass any object, even text with a password
        if not isinstance(hosts, tuple):
            faults = [f"hosts is a {type(hosts).__name__}"]
        else:
            faults = [f"hosts[{at}] is no such pair" for at, each in enumerate(hosts) if not _is_host(each)]
        if faults:
            raise ConfigurationError(
                f"{fault}; expected a tuple of pairs of a name and a port, for example "
                '(("localhost", 61613),), or (("test", None),) for vm'
                for fault in faults
            )

    @property
    def secrets(self) -> tuple[str, ...]:
        """Secret values, to be masked in every output, even where the broker repeats them."""
        return (self.password or "", *(given for name, given in self.options.items() if is_secret(name)))

    @property
    def url(self) -> str:
        """Scheme and hosts as a URL, without credentials and options."""
        hosts = (
            (f"[{host}]" if ":" in host else host) + ("" if port is None else f":{port}")
            for host, port in self.hosts
        )
        return f"{self.scheme}://{','.join(hosts)}"


def _is_host(given: object) -> bool:
    match given:
        case (str(), None):
            return True
        case (str(), int(port)):
            return not isinstance(port, bool)
        case _:
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """Subscription of a consumer.

    Attributes:
        selector: JMS message selector; `None` selects every message, and blank text becomes `None`. A broker
            that ignores selectors (`Capabilities.selector`) causes an error.
        durable_name: Name of a durable subscription on a topic; `None` for a non-durable one.
        prefetch: Maximum number of unsettled messages at the consumer, as precisely as the broker supports;
            `None`: the default of the dialect.
        prefetch_bytes: Minimum number of bytes to prefetch, for brokers that limit the prefetch by size. With
            0, such a broker may send large messages one at a time.
        in_order: The caller promises to settle in the order of arrival, so that a transport may acknowledge
            many messages at once. A message settled early is acknowledged after all messages before it. A
            unit of work can settle only the oldest unsettled messages, and must not skip a message.
        alone: The caller promises to have no other consumer on the connection. The transport may then send
            one acknowledgement for many messages, even if it covers all messages of the connection. The
            transport refuses a second consumer.
        own_session: The transport may open a further connection to the broker for this consumer alone, so
            that one acknowledgement settles many messages (`Capabilities.own_sessions`). If the further
            connection is lost, this `Connection` is lost, too.
        one_of_several: The caller has several consumers of the destination and sets no prefetch. On a broker
            that does not show message groups, the transport then receives one message at a time, to keep each
            group in order.
    """

    destination: Destination
    selector: str | None = None
    durable_name: str | None = None
    prefetch: int | None = None
    prefetch_bytes: int = 0
    in_order: bool = False
    alone: bool = False
    own_session: bool = False
    one_of_several: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "selector", selector_text(self.selector))


@dataclass(slots=True, kw_only=True)
class Outgoing:
    """One message to send. Not frozen, because that would double its construction time.

    Attributes:
        delay: Delay of its delivery; needs `Capabilities.delayed_delivery`.
        deduplication_id: Id by which the broker recognises and drops a second message; needs
            `Capabilities.deduplicating_send`.
        message_id: Message id for a broker that assigns none. Of the characters that STOMP escapes, it may
            contain only the colon. `None`: a new id.

    Raises:
        ConfigurationError: `message` is not a `JmsMessage`, but for example a string.
    """

    destination: Destination
    message: JmsMessage
    delay: timedelta | None = None
    deduplication_id: str | None = None
    message_id: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.message, JmsMessage):
            raise ConfigurationError(
                f"message: got a {type(self.message).__name__}, expected a JmsMessage, for example "
                "JmsMessage.text(...)"
            )


ABOUT_US: Final = (PoisonMessageError, MemoryError)
"""Errors of decoding to raise unchanged: already a poison error, or not caused by the message."""


def poison_error(error: Exception) -> PoisonMessageError:
    """Return the `PoisonMessageError` to raise after a message could not be decoded."""
    return PoisonMessageError(f"the message can't be decoded: {type(error).__name__}: {error}")


class Received:
    """One delivery by the broker, not yet settled. The message is decoded on first use.

    Attributes:
        consumer: The consumer that received it.
        token: Opaque value with which the transport settles it.
        generation: Generation of the consumer; deliveries from before `Consumer.recover` are stale.
        decoded: The decoded message; `None` before its first use.
    """

    __slots__ = ("_decode", "_salvage", "consumer", "decoded", "generation", "token")

    def __init__(
        self,
        consumer: Consumer,
        token: object,
        generation: int,
        decode: Callable[[], JmsMessage],
        salvage: Callable[[], JmsMessage] | None = None,
    ) -> None:
        self.consumer = consumer
        self.token = token
        self.generation = generation
        self._decode = decode
        self._salvage = salvage
        self.decoded: JmsMessage | None = None

    @property
    def message(self) -> JmsMessage:
        """The decoded message.

        Raises:
            PoisonMessageError: The message can't be decoded, for example because its text is not Unicode. The
                content of a message causes no other error.
        """
        if self.decoded is None:
            try:
                self.decoded = self._decode()
            except ABOUT_US:
                raise
            except Exception as error:
                raise poison_error(error) from error
        return self.decoded

    def unit(self) -> UnitOfWork:
        """Open the unit of work of the message.

        In JMS, only a transaction of the session that received a message can settle it. The unit of work is
        therefore opened through the message. Other messages may join the unit.
        """
        return self.consumer.unit(self)

    @property
    def is_stale(self) -> bool:
        """Whether the message was handed back to the broker, which redelivers it."""
        return self.generation != self.consumer.generation

    def forget_message(self) -> None:
        """Drop the decoded message to save memory; `message` decodes it again."""
        self.decoded = None

    @property
    def salvaged(self) -> JmsMessage | None:
        """A bytes message with the raw body of an undecodable message.

        `None` if the transport can't provide it.
        """
        return None if self._salvage is None else self._salvage()

    @property
    def is_on_disk(self) -> bool:
        """Whether the message is kept on disk; the first use of `message` reads the disk."""
        return False

    @property
    def readable(self) -> JmsMessage | None:
        """The message, or its salvaged form if it can't be decoded."""
        message = self.decoded  # most calls come after decoding and need no call of `message`
        if message is not None:
            return message
        try:
            return self.message
        except PoisonMessageError:
            return self.salvaged


OnReceived: TypeAlias = Callable[[Received], None]
OnLost: TypeAlias = Callable[[JmsError], None]


class ConnectionState(enum.StrEnum):
    """State of a connection. `LOST` and `CLOSED` are final: open a new connection."""

    UP = "up"
    LOST = "lost"
    CLOSED = "closed"


class Consumer(Protocol):
    """An active subscription on a connection."""

    @property
    def subscription(self) -> Subscription:
        """The subscription."""

    @property
    def generation(self) -> int:
        """Current generation; `recover` and `close` start a new one."""

    @property
    def settles_in_order(self) -> bool:
        """Whether an unsettled message blocks the settlement of later ones."""

    def unit(self, received: Received) -> UnitOfWork:
        """Open the unit of work of a message; callers use `Received.unit`.

        The unit is a transaction of the session that received the message. On a broker where transactions
        belong to the connection, the unit is a new transaction of the connection.
        """

    def acknowledge(self, received: Iterable[Received]) -> None:
        """Settle messages without a unit of work.

        Messages that were handed back (`Received.is_stale`) are ignored, because the broker redelivers them.

        Guarantee: does not wait for the broker. The acknowledgements are durable at the broker once
        `Connection.synchronize` has returned.

        Raises:
            ConnectionLostError: The connection is lost; the broker redelivers the messages.
        """

    def recover(self) -> None:
        """Hand all unsettled messages of this consumer back to the broker, which redelivers them.

        Raises:
            ConnectionLostError: The connection is lost; the broker redelivers the messages in this case, too.
        """

    def close(self, *, delete_durable: bool = False) -> None:
        """Unsubscribe; the broker takes back unsettled messages. Closing twice is harmless.

        Args:
            delete_durable: Also delete the durable subscription and its messages.
        """


class UnitOfWork(Protocol):
    """Sends and acknowledgements in one transaction. Commit or roll back once; not reusable.

    Guarantee: when `commit` returns, the whole unit is durable at the broker. With
    `Capabilities.atomic_commit` a crash leaves all or nothing of it. Without this capability, sends are
    confirmed before the acknowledgements: a crash in between duplicates messages but loses none.
    """

    def send(self, outgoing: Outgoing) -> None:
        """Add a message to this unit of work; consumers receive the message after the commit."""

    def acknowledge(self, received: Received) -> None:
        """Add a received message to this unit of work, whose commit settles the message.

        A delivery that was handed back to the broker (`Received.is_stale`) is ignored.

        Where a transaction belongs to a session, the unit commits in the session of the message that opened
        it. Messages of other sessions are settled right after the commit: a crash in between makes the broker
        redeliver them.

        Raises:
            ConfigurationError: The message is already part of this or another unit of work.
        """

    def commit(self, meanwhile: Callable[[], object] | None = None) -> None:
        """Commit the unit.

        Args:
            meanwhile: Function that may be called while the commit waits for the broker. The function must
                not raise.

        Raises:
            InDoubtError: The connection was lost before the outcome was known.
            ConnectionLostError: The connection was lost before the commit began; nothing was committed.
            PermanentBrokerError: The broker refused a message or an acknowledgement; nothing was
                acknowledged.
        """

    def rollback(self) -> None:
        """Undo the sends; acknowledged messages are unsettled again, and the caller keeps them.

        `Consumer.recover` hands them back to the broker.
        """


class Connection(Protocol):
    """A connection to one broker. It doesn't reconnect; open a new one after a loss."""

    @property
    def broker(self) -> BrokerInfo:
        """The broker."""

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of the broker."""

    @property
    def state(self) -> ConnectionState:
        """State of the connection."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """Credentials of the connection; never show or send them."""

    def on_lost(self, callback: OnLost) -> None:
        """Call `callback` once when the connection is lost, but not when it is closed.

        If the connection is already lost, the call follows at once.
        """

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call `function` on the connection's own thread, after the messages that it has already read."""

    def consume(self, subscription: Subscription, on_received: OnReceived) -> Consumer:
        """Subscribe, and return the consumer, which calls `on_received` with each message.

        Raises:
            CapabilityError: The subscription needs a missing capability.
            PermanentBrokerError: The broker refused it (bad selector, no permission).
            ConnectionLostError: The connection is lost.
        """

    def send(self, outgoing: Iterable[Outgoing]) -> int:
        """Send messages without a unit of work, pipelined, and wait until the broker confirmed all.

        For many messages, the call may open a second connection; the messages still arrive in order. If a
        connection is lost, the broker has an unbroken sequence of messages from the first one on.

        Returns:
            The number of messages sent.

        Raises:
            PermanentBrokerError: The broker refused a message. The text names it, or a range that contains
                it. The broker has the messages before it, unless the text says that this is unknown.
            InDoubtError: The connection was lost; the broker may have some of the messages.

        Guarantee: when it returns, the broker has confirmed all messages. Any other exception, for example
        from the caller's iterable, is raised after the messages sent so far are confirmed.
        """

    def unit(self) -> UnitOfWork:
        """Begin a unit of work without a received message, for example to send only.

        To settle messages, open the unit with `Received.unit`.
        """

    def browse(self, destination: Destination, selector: str | None = None) -> Iterator[JmsMessage]:
        """Yield the messages on a queue without consuming them.

        A message that can't be decoded is logged and yielded as a bytes message with its raw body.

        Raises:
            CapabilityError: The broker can't browse (`Capabilities.browse`).
        """

    def first_messages(
        self, queues: Sequence[tuple[Destination, str | None]]
    ) -> list[JmsMessage | JmsError | None]:
        """Browse the first message of each of several queues in one round trip.

        Args:
            queues: The queues, each with its selector.

        Returns:
            For each queue its first message, `None` if it is empty, or the error of its browse.

        Raises:
            CapabilityError: The broker can't browse (`Capabilities.browse`).
        """

    def backlog(self, queue: Destination) -> Backlog:
        """Return the backlog of a queue.

        Use a separate connection: some brokers close the connection when they refuse a request.

        Raises:
            CapabilityError: The broker doesn't report backlogs (`Capabilities.backlog`).
            PermanentBrokerError: The broker refused the request.
        """

    def administration(self) -> QueueAdministration:
        """Return the administration of queues over this connection.

        Use a separate connection: some brokers close the connection when they refuse a request.
        """

    def synchronize(self) -> None:
        """Wait until the broker has processed all earlier frames."""

    def delete_durable(self, name: str, destination: Destination) -> None:
        """Delete a durable subscription without an active subscriber, and the messages it holds."""

    def close(self) -> None:
        """Close within the reply timeout; the broker takes back unsettled messages.

        Raises nothing. If messages were acknowledged and the broker doesn't confirm the close, this logs a
        WARNING: the last acknowledged messages may be redelivered. No message is lost.
        """


ConnectFunction: TypeAlias = Callable[[], Connection]
"""Opens one connection, or raises `JmsError`."""


class Transport(Protocol):
    """Opens connections for its URL schemes."""

    def connect(self, settings: ConnectionSettings) -> Connection:
        """Connect to the first host that answers.

        Raises:
            TransientBrokerError: No host answered in time; the text lists every attempt.
            ClientIdInUseError: Another connection has the client id. Brokers that share a durable
                subscription among connections don't raise it.
            AuthenticationError: A broker refused the credentials; further hosts are not tried.
            ConfigurationError: The transport can't use these settings.
        """


def check_sendable(connection: Connection, outgoing: Outgoing) -> None:
    """Refuse a message with a delay, deduplication id or kind of body that the broker doesn't support.

    Raises:
        CapabilityError: The message needs a capability that the broker lacks.
    """
    capabilities = connection.capabilities
    if outgoing.delay:
        capabilities.require(
            connection.broker,
            "delayed_delivery",
            purpose="a delay",
            otherwise=(
                "; JmsPublishOperator keeps the message in limbo, and so does a listener with use_store "
                "(in Airflow, if jms_conn_id alone says how to connect)"
            ),
        )
    if outgoing.deduplication_id is not None:
        capabilities.require(connection.broker, "deduplicating_send", purpose="a deduplication id")
    if outgoing.message.body_kind not in capabilities.body_kinds:
        raise CapabilityError(
            f"a message with a {outgoing.message.body_kind} body can't be sent to {connection.broker}:"
            " the body would be lost"
        )
