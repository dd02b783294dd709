"""The port to a broker: what every transport offers, and what each one admits it can't do.

A `Connection` carries many `Consumer`s. What is received stays the broker's until it is settled: through
`Consumer.acknowledge`, or together with messages to send in a `UnitOfWork`. Until then a crash, a lost
connection or `Consumer.recover` makes the broker deliver it again.

Every method may be called from any thread. Callbacks run on the connection's own thread and must not block;
one that raises is logged, and ends the connection, so that what it was given comes again.
All waits have a deadline.
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
    """How to check the broker, and how to prove who we are.

    Attributes:
        ca_file: PEM file of trusted certificates; `None` means the system's.
        certificate_file: Our own certificate (PEM), for brokers that ask for one.
        key_file: The certificate's key, if not in the same file.
        key_password: The password of the key.
        verify: `False` accepts any certificate; the connection is then open to a man in the middle.
        server_name: Name to expect in the certificate; `None` means the host connected to.
    """

    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    verify: bool = True
    server_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """All a transport needs to reach a broker; the scheme chooses the transport.

    Attributes:
        scheme: `stomp`, `stomp+ssl` or `vm`.
        hosts: Tried in order, each within `connect_timeout`; for `vm` the name of the broker and `None`.
        client_id: JMS client id: needed for durable subscriptions.
        virtual_host: STOMP `host` header; `None` leaves it to the dialect.
        connect_timeout: Bound on the whole of TCP, TLS and CONNECTED, for each host.
        heart_beat: How often each side proves that it is alive; zero switches it off.
        reply_timeout: How long to wait for a receipt before the connection counts as lost.
        max_frame_size: The most bytes a frame of the broker may have, headers and body together; a larger one
            ends the connection.
        management_url: Root of the broker's HTTP management API; RabbitMQ needs it for administration.
        options: Whatever else belongs to the broker or transport, unchanged.
        name: What the log calls it, as an Airflow connection's id; it tells no connection from another.

    Raises:
        ConfigurationError: The hosts are no pairs of a name and a port.
    """

    scheme: str
    hosts: tuple[tuple[str, int | None], ...]
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
        hosts: object = self.hosts  # whatever a caller without types gives; it may hold a password
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
        """What must be shown nowhere, not even in the words of a broker that repeats it."""
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
    """What a consumer wants to receive.

    Attributes:
        selector: JMS message selector; refused where the broker ignores them (`Capabilities.selector`). A
            blank one becomes `None`, which selects every message.
        durable_name: Name of a durable subscription on a topic; `None` for a non-durable one.
        prefetch: How many unsettled messages the broker may have outstanding here, as near as the broker
            can bound it; `None` leaves it to the dialect.
        prefetch_bytes: At least so many bytes of them, where a broker bounds them by their size. Without it
            large messages that the holder must have at once would come one by one.
        in_order: The holder promises to settle in the order of arrival. A transport may then acknowledge many
            messages at once. What is settled before its turn is acknowledged when everything before it is. A
            unit of work can settle only what is next.
        alone: The holder promises to receive nothing else over the connection meanwhile. A transport may then
            acknowledge many messages at once, even if that counts for everything received over a connection.
            There it refuses another consumer.
        one_of_several: The holder has several consumers of the destination, and nobody has said what their
            prefetch is to be. Some brokers keep a message group's order only by giving it to one
            consumer, and don't show which messages are of one. There a transport takes one message at a time.
    """

    destination: Destination
    selector: str | None = None
    durable_name: str | None = None
    prefetch: int | None = None
    prefetch_bytes: int = 0
    in_order: bool = False
    alone: bool = False
    one_of_several: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "selector", selector_text(self.selector))


@dataclass(slots=True, kw_only=True)
class Outgoing:
    """One message to send. Not frozen, for that would take longer than all the rest of making it.

    Attributes:
        delay: Not delivered before it has passed; needs `Capabilities.delayed_delivery`.
        deduplication_id: A second message with this id is dropped where `Capabilities.deduplicating_send`.
        message_id: The message's id, for a broker that gives none; no character needs an escape but a colon.
            `None`: a new one.

    Raises:
        ConfigurationError: The message is none, but a string for example.
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
"""Errors in decoding that are raised as they are: poison already, or none of the message's fault."""


def poisoned_by(error: Exception) -> PoisonMessageError:
    """Return what to raise where decoding a message went wrong in any way: it is that message's poison."""
    return PoisonMessageError(f"the message can't be decoded: {type(error).__name__}: {error}")


class Received:
    """One delivery by the broker, not yet settled. The message is decoded on first use.

    Attributes:
        consumer: The consumer it came to.
        token: What the transport needs to settle it; opaque.
        generation: The consumer's generation it belongs to: after `Consumer.recover` older ones are stale.
    """

    __slots__ = ("_decode", "_message", "_salvage", "consumer", "generation", "token")

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
        self._message: JmsMessage | None = None

    @property
    def message(self) -> JmsMessage:
        """The message.

        Raises:
            PoisonMessageError: The message can't be decoded (for example text that is not Unicode). Nothing
                else is raised, whatever the message holds.
        """
        if self._message is None:
            try:
                self._message = self._decode()
            except ABOUT_US:
                raise
            except Exception as error:
                raise poisoned_by(error) from error
        return self._message

    @property
    def is_stale(self) -> bool:
        """Whether the broker has the message back, and sends it again: its consumer has begun anew."""
        return self.generation != self.consumer.generation

    def forget_message(self) -> None:
        """Let go of the decoded message, to save memory; whoever asks for it again has it decoded again."""
        self._message = None

    @property
    def salvaged(self) -> JmsMessage | None:
        """What can be kept of a message that can't be decoded: a bytes message with its body as it came.

        `None` where the transport can't tell that.
        """
        return None if self._salvage is None else self._salvage()

    @property
    def is_on_disk(self) -> bool:
        """Whether the message is kept on disk until somebody asks for it."""
        return False

    @property
    def readable(self) -> JmsMessage | None:
        """The message, or what can be kept of it."""
        message = self._message  # asked for more than once, nearly always of one that has been decoded
        if message is not None:
            return message
        try:
            return self.message
        except PoisonMessageError:
            return self.salvaged


OnReceived: TypeAlias = Callable[[Received], None]
OnLost: TypeAlias = Callable[[JmsError], None]


class ConnectionState(enum.StrEnum):
    """The life of a connection; it never comes back from `LOST` or `CLOSED`: open a new one."""

    UP = "up"
    LOST = "lost"
    CLOSED = "closed"


class Consumer(Protocol):
    """A subscription in force on a connection."""

    @property
    def subscription(self) -> Subscription:
        """What the consumer receives."""

    @property
    def generation(self) -> int:
        """Which generation is not stale; `recover` and `close` begin a new one."""

    @property
    def settles_in_order(self) -> bool:
        """Whether a message that stays unsettled holds up the settlement of those behind it."""

    def acknowledge(self, received: Iterable[Received]) -> None:
        """Settle without a unit of work. Stale ones are ignored: the broker has them back already.

        Guarantee: pipelined; durable at the broker once `Connection.synchronize` has returned.

        Raises:
            ConnectionLostError: The connection is gone; they will be redelivered.
        """

    def recover(self) -> None:
        """Hand every unsettled message of this consumer back: the broker delivers them again.

        Raises:
            ConnectionLostError: The connection is gone, which hands them back too.
        """

    def close(self, *, delete_durable: bool = False) -> None:
        """End the subscription; unsettled messages go back. Closing twice is harmless.

        Args:
            delete_durable: Also delete the durable subscription and what it holds.
        """


class UnitOfWork(Protocol):
    """Sends and acknowledgements that belong together. One use: commit or roll back, once.

    Guarantee: when `commit` returns, all of it is durable at the broker. Whether a crash can leave half of
    it done is `Capabilities.atomic_commit`; without it sends are confirmed before anything is acknowledged.
    """

    def send(self, outgoing: Outgoing) -> None:
        """Add a message to send."""

    def acknowledge(self, received: Received) -> None:
        """Add a received message to settle; a stale one is ignored.

        Raises:
            ConfigurationError: The message is part of a unit of work already, of this or another one.
        """

    def commit(self, meanwhile: Callable[[], object] | None = None) -> None:
        """Make all of the unit durable.

        Args:
            meanwhile: Work that is due anyway and doesn't raise; it may be done while the broker works.

        Raises:
            InDoubtError: The connection was lost before the outcome was known.
            ConnectionLostError: The connection was lost before the commit began; nothing of the unit
                happened.
            PermanentBrokerError: The broker refused a part; nothing was acknowledged.
        """

    def rollback(self) -> None:
        """Undo the sends; acknowledged messages are unsettled again and still in the caller's hands.

        To hand them back to the broker, call `Consumer.recover`.
        """


class Connection(Protocol):
    """A live connection to one broker. It doesn't reconnect: a new one is opened by whoever needs it."""

    @property
    def broker(self) -> BrokerInfo:
        """The broker that answered."""

    @property
    def capabilities(self) -> Capabilities:
        """What the broker can do."""

    @property
    def state(self) -> ConnectionState:
        """Where in its life the connection is."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """What the connection logged in with, to be shown and sent nowhere."""

    def on_lost(self, callback: OnLost) -> None:
        """Call back once if the connection is lost (at once if it already is); not when it is closed."""

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call back on the connection's own thread: after the messages it has at hand now are received."""

    def consume(self, subscription: Subscription, on_received: OnReceived) -> Consumer:
        """Start receiving.

        Raises:
            CapabilityError: The subscription needs what the broker can't do.
            PermanentBrokerError: The broker refused it (bad selector, no permission).
            ConnectionLostError: The connection is gone.
        """

    def send(self, outgoing: Iterable[Outgoing]) -> int:
        """Send messages outside any unit, pipelined, and wait until the broker confirmed every one.

        Many of them may travel over a second connection besides, which is opened for this call; they arrive
        in their order all the same. Where a connection is lost, what is there is a beginning without gaps.

        Returns:
            How many were sent.

        Raises:
            PermanentBrokerError: The broker refused one. The text says which, or among which, and those
                before are there unless it says that this isn't known.
            InDoubtError: The connection was lost; some may be there.

        Guarantee: when it returns, the broker has confirmed all of them. Whatever else it raises, from the
        caller's own messages for example, comes after what was sent by then is confirmed.
        """

    def unit(self) -> UnitOfWork:
        """Begin a unit of work."""

    def browse(self, destination: Destination, selector: str | None = None) -> Iterator[JmsMessage]:
        """Yield the messages on a queue without consuming them.

        One that can't be decoded is logged and yielded as what can be kept of it, a bytes message.

        Raises:
            CapabilityError: The broker can't (`Capabilities.browse`).
        """

    def first_messages(
        self, queues: Sequence[tuple[Destination, str | None]]
    ) -> list[JmsMessage | JmsError | None]:
        """Look at the first message of each of several queues, in one round trip; as `browse`, but for all.

        Args:
            queues: Which, each with its selector.

        Returns:
            For each queue its first message, `None` if it holds none, or why that can't be told.

        Raises:
            CapabilityError: The broker can't (`Capabilities.browse`).
        """

    def backlog(self, queue: Destination) -> Backlog:
        """Ask the broker what a queue holds; use a connection of its own, for a refusal may end it.

        Raises:
            CapabilityError: The broker can't tell (`Capabilities.backlog`).
            PermanentBrokerError: The broker refuses to.
        """

    def administration(self) -> QueueAdministration:
        """Return queue statistics, browsing and changes of messages, over this connection.

        Use a connection of its own: some brokers close the connection when they refuse a request.
        """

    def synchronize(self) -> None:
        """Wait until the broker has carried out everything sent to it before."""

    def delete_durable(self, name: str, destination: Destination) -> None:
        """Delete an idle durable subscription and the messages it holds."""

    def close(self) -> None:
        """Close in good order, within the reply timeout; unsettled messages go back to the broker.

        Raises nothing. If the broker doesn't confirm the close, the last acknowledged messages may be
        delivered again, and a WARNING says so. None is lost.
        """


ConnectFunction: TypeAlias = Callable[[], Connection]
"""Opens one connection, or raises `JmsError`."""


class Transport(Protocol):
    """Opens connections for the URL schemes it knows."""

    def connect(self, settings: ConnectionSettings) -> Connection:
        """Connect to the first host that answers.

        Raises:
            TransientBrokerError: No host answered in time; every attempt is named.
            ClientIdInUseError: Another connection has the client id; brokers that share a durable
                subscription among its connections don't say so.
            AuthenticationError: A broker refused the credentials; further hosts are not tried.
            ConfigurationError: The settings can't work.
        """


def check_sendable(connection: Connection, outgoing: Outgoing) -> None:
    """Refuse a delay, a deduplication id or a kind of body that the broker doesn't have.

    Raises:
        CapabilityError: The message has one of these.
    """
    capabilities = connection.capabilities
    if outgoing.delay:
        capabilities.require(
            connection.broker,
            "delayed_delivery",
            purpose="a delay",
            otherwise=(
                "; JmsPublishOperator keeps the message in limbo, and so does a listener with use_store, if "
                "nothing but the Airflow connection says how to connect"
            ),
        )
    if outgoing.deduplication_id is not None:
        capabilities.require(connection.broker, "deduplicating_send", purpose="a deduplication id")
    if outgoing.message.body_kind not in capabilities.body_kinds:
        raise CapabilityError(
            f"a message with a {outgoing.message.body_kind} body can't be sent to {connection.broker}:"
            " the body would not survive"
        )
