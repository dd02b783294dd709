"""A link to a broker: one connection after its greeting, without the port of `transports.base` on top.

Consumers, units of work, senders and browsers take a `Link`; `StompConnection` makes them and owns it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import secrets
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import Final, Protocol, TypeAlias

import stomp
from stomp.utils import Frame as StompFrame
from stomp.utils import calculate_heartbeats

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.masking import blotted
from airflow_provider_jmsjca.errors import (
    BlockedByBrokerError,
    ConfigurationError,
    ConnectionLostError,
    JmsError,
    PermanentBrokerError,
    ReplyTimeoutError,
    TransientBrokerError,
)
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.transports.base import (
    BrokerInfo,
    ConnectionSettings,
    ConnectionState,
    OnLost,
    Outgoing,
    Subscription,
)
from airflow_provider_jmsjca.transports.stomp.dialects import GENERIC, recognise
from airflow_provider_jmsjca.transports.stomp.dialects.dialect import Dialect
from airflow_provider_jmsjca.transports.stomp.dialects.settlement import UnitKind
from airflow_provider_jmsjca.transports.stomp.link.refusals import SizeLimits, connect_refusal, error_text
from airflow_provider_jmsjca.transports.stomp.link.replies import ReceiptGroup, Replies
from airflow_provider_jmsjca.transports.stomp.wire.frames import (
    SUBSCRIPTION,
    ForgedFrameError,
    Frame,
    ProtocolError,
    encode,
    escape,
    nack,
)
from airflow_provider_jmsjca.transports.stomp.wire.wire import LEAST_PREFETCH, Channel, StompClient, Wire

_log = safe_logger(__name__)
_UP: Final = ConnectionState.UP

_WITHOUT_HEART_BEAT: Final = 20_000
_MOST_DIGITS: Final = 10
_MOST_LATE: Final = 100
# A broker that sends so many errors for nothing would fill the log.
_MOST_STRANGE_ERRORS: Final = 100
"""A broker that pages in 200 messages at a time stalls if all are unacknowledged."""

Route: TypeAlias = Callable[[Frame, bytes], None]


class ErrorListener(Protocol):
    """A unit of work that wants to know of errors that don't say what caused them."""

    def blame(self, error: JmsError) -> None:
        """Note such an error."""


class Routes:
    """The subscriptions of one connection by their ids, as the broker writes those.

    Attributes:
        prefix: What ids begin with that the connection made up.
    """

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix.encode()
        self._routes: dict[bytes, Route] = {}
        self._destinations: dict[bytes, Destination] = {}
        self._fixed: set[bytes] = set()
        self._lock = threading.Lock()
        self._is_fresh = True
        self._is_taken = False
        self.get = self._routes.get

    def add(self, identifier: str, route: Route, destination: Destination | None = None) -> bytes:
        """Lead the messages of a subscription to `route`; return its id as the broker will write it.

        Args:
            identifier: The id of the subscription.
            route: Takes its messages.
            destination: The subscribed destination, for errors.

        Raises:
            PermanentBrokerError: There is one of this id.
            ConfigurationError: There is one that was promised to be the only one.
        """
        key = escape(identifier).encode()
        with self._lock:
            if self._is_taken and self._routes:
                raise ConfigurationError(
                    "this connection receives for one consumer, which was promised to be the only one: "
                    "open another connection"
                )
            self._is_fresh = False
            taken = self._routes.setdefault(key, route) is not route
            if not taken and destination is not None:
                self._destinations[key] = destination
            if not key.startswith(self.prefix):
                self._fixed.add(key)
        if taken:
            raise PermanentBrokerError(
                f"the subscription {identifier!r} is already active on this connection"
            )
        return key

    def destination(self, identifier: str) -> Destination | None:
        """Return the destination of a subscription in force, `None` if there is no such subscription."""
        return self._destinations.get(escape(identifier).encode())

    def expect(self, identifier: str) -> None:
        """Let messages come for a subscription that leads nowhere, under an id that is the user's.

        There are as many of those as durable subscriptions: they are never forgotten.
        """
        key = escape(identifier).encode()
        if not key.startswith(self.prefix):
            with self._lock:
                self._fixed.add(key)

    def check_late(self, key: bytes) -> None:
        """Do nothing for a message of a subscription that was: it crossed our UNSUBSCRIBE.

        Raises:
            ForgedFrameError: There never was one of this id.
        """
        if not key.startswith(self.prefix) and key not in self._fixed:
            raise ForgedFrameError(
                f"the broker sent a message for the subscription {key[:80]!r}, which was never made"
            )

    def take_alone(self) -> bool:
        """Reserve the connection for one consumer; say whether nothing was ever received over it."""
        with self._lock:
            fresh, self._is_fresh = self._is_fresh, False
            self._is_taken = self._is_taken or fresh
            return fresh

    def remove(self, key: bytes) -> None:
        """Drop what still comes for a subscription."""
        with self._lock:
            self._routes.pop(key, None)
            self._destinations.pop(key, None)
            if not self._routes:
                self._is_taken = False


class UnsettledAfterUnsubscribe:
    """Messages whose subscription ended before they were settled, on brokers that keep them until the end.

    Where the broker wants that, they are handed back through a subscription made for it when first needed,
    the keeper, which listens to a topic that nobody sends to.

    Attributes:
        last: The last message that came over the connection; set by the reader.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock = threading.Lock()
        self._keeper: str | None = None
        self._before: Frame | None = None
        self._since = 0
        self._undelivered: ReceiptGroup | None = None
        self.last: Frame | None = None

    def hand_back_undelivered(self, error: str) -> bool:
        """Hand back a message that the broker says it delivered into the void; say whether it did."""
        if self.last is not self._before:
            self._before, self._since = self.last, 0
        token = self._link.dialect.undelivered_token(error, self.last, self._since)
        if token is None:
            return False
        self._since += 1
        with self._lock:
            if self._undelivered is None:
                self._undelivered = self._link.replies.receipts()
            receipt = self._undelivered.ask()
        self._return(token, receipt)
        return True

    def hand_back(self, tokens: list[bytes]) -> None:
        """Hand messages back; wait until they are, and what was swallowed meanwhile too.

        The broker says what it swallowed before it answers what is asked after UNSUBSCRIBE, unless its
        process that carries the delivery is held up for longer than a round trip. Such a message goes back
        when the broker says so, behind those that came after it: no question that every user may ask waits
        for it.

        Raises:
            PermanentBrokerError: The broker refused.
            ConnectionLostError: The connection was lost, which hands them back too.
        """
        receipts = self._link.replies.receipts(blame=True) if tokens else self._link.ask()
        for token in tokens:
            self._return(token, receipts.ask())
        self._link.wait(receipts)
        with self._lock:
            undelivered, self._undelivered = self._undelivered, None
        if undelivered is not None:
            self._link.wait(undelivered)

    def _return(self, token: bytes, receipt: str) -> None:
        dialect, wire = self._link.dialect, self._link.wire
        with self._lock:
            if self._keeper is None and dialect.returns_through_another:
                self._keeper = self._link.new_subscription_id()
                topic = Destination.topic(f"keeper-{self._keeper}")
                headers = dialect.subscribe(Subscription(destination=topic), None)
                headers |= {"id": self._keeper, "ack": "client-individual"}
                wire.append(encode("SUBSCRIBE", headers.items()))
            returned = dialect.orphan(token, self._keeper or "")
        wire.write(nack(returned, b"receipt:%b\n" % receipt.encode()))


class Link(stomp.ConnectionListener):  # type: ignore[misc] # stomp.py has no types
    """The state of one connection: what the broker said of itself, who waits for which answer, our ids.

    A callback that raises ends the connection, with the traceback in the log: its message would otherwise
    stay unsettled and unseen until the end of the connection, while this way the broker delivers it again.

    Args:
        settings: What to say and how long to wait.
        host: Where the connection leads, for logs and errors.
        channel: The bytes in and out.
        another: Opens a second connection of the same user to the same host.

    Attributes:
        wire: What frames leave by.
        dialect: The broker's; the generic one until the broker has greeted.
        replies: Which receipt belongs to whom.
        routes: Which subscription leads where.
        limits: Which message passed a limit of the broker.
        orphans: Hands messages back whose subscription has ended.
        client_id: The JMS client id that was sent with CONNECT.
        reply_timeout: Seconds to wait for an answer of the broker.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        host: tuple[str, int],
        channel: Channel,
        another: Callable[[], Link] | None = None,
    ) -> None:
        self._settings = settings
        self._another = another
        self._process: str | None = None
        self._no_local = False
        self.client_id = settings.client_id
        self.reply_timeout = settings.reply_timeout.total_seconds()
        self._state = ConnectionState.UP
        self._lock = threading.Lock()
        self._answered = threading.Event()
        self._connected: StompFrame | None = None
        self._end_reason: JmsError | None = None
        self._last_error: str | None = None
        self._on_lost: list[OnLost] = []
        self._ended = False
        # No producer can know it, so that no producer can send what is taken for the broker's.
        self._token = secrets.token_urlsafe(8)
        self._identifiers = itertools.count(1)
        self._numbers = itertools.count(1)
        self._prefix = f"ID:{secrets.token_urlsafe(9)}-"
        self.routes = Routes(self._token)
        self.replies = Replies()
        self.orphans = UnsettledAfterUnsubscribe(self)
        self._units: weakref.WeakSet[ErrorListener] = weakref.WeakSet()
        self._begun: deque[str] = deque()
        self._late = 0
        self._strange_errors = 0
        self._has_acknowledged = False
        self._is_greeted = False
        self._broker = BrokerInfo(product="unknown", version="", address=f"{host[0]}:{host[1]}")
        self.dialect: Dialect = GENERIC
        self.wire = Wire(
            channel,
            host,
            vhost=settings.virtual_host or "/",
            send_timeout=self.reply_timeout,
            on_message=self._message,
            on_receipt=self.replies.arrived,
            on_broken_off=self._ask_on,
            on_end=self._end,
        )
        self.limits = SizeLimits(self.wire)
        self._client = StompClient(self.wire)
        self._client.set_listener("link", self)

    # --- life

    def open(self, deadline: float) -> None:
        """Say CONNECT, and wait for the answer until `deadline` (of the monotonic clock).

        Raises:
            TransientBrokerError: There is none, or the broker doesn't want us now.
            AuthenticationError: The broker refuses the credentials.
        """
        settings = self._settings
        beat = round(settings.heart_beat.total_seconds() * 1000)
        # Artemis cuts a client that promises nothing after a minute, so we always promise.
        beats = (beat or _WITHOUT_HEART_BEAT, beat)
        headers = dict(settings.options) | {"heart-beat": f"{beats[0]},{beats[1]}"}
        if self.client_id is not None:
            headers["client-id"] = self.client_id
        try:
            self.wire.start()
            # The reader knows why, if the connection ends before this is sent.
            with contextlib.suppress(ConnectionLostError):
                # CONNECT and not STOMP: its headers are not escaped, so any password passes.
                self._client.connect(
                    settings.username, settings.password, headers=headers, with_connect_command=True
                )
            self._answered.wait(max(0.0, deadline - monotonic()))
            if self._connected is not None:
                self._greet(self._connected, beats)
                self._is_greeted = True
                return
        except BaseException:  # also if the wait is interrupted
            self.wire.end(None)
            raise
        self.wire.end(None)
        raise connect_refusal(self._last_error, self._end_reason)

    def _greet(self, connected: StompFrame, beats: tuple[int, int]) -> None:
        headers = connected.headers
        if headers.get("version") != "1.2":
            raise PermanentBrokerError(f"the broker speaks STOMP {headers.get('version', '1.0')}, not 1.2")
        self.dialect, product, version = recognise(headers.get("server", ""))
        self._broker = replace(self._broker, product=product, version=version, names=self.dialect.names)
        self._process = self.dialect.process(headers.get("session", ""))
        self.wire.read_as(
            self.dialect.frame_end, self._settings.max_frame_size, gathers=self.dialect.writes_singly
        )
        self._token = self._token[: self.dialect.secret_length]  # in no id so far
        self.routes.prefix = self._token.encode()
        self.replies.length = self.dialect.receipt_length
        proof = self.dialect.proof(headers.get("session", ""))
        self._believe_only_ours(*(() if proof is None else (proof.encode(),)))
        send, receive = calculate_heartbeats(_beats(headers.get("heart-beat", "0,0")), beats)
        self.wire.heart_beats(send / 1000, receive / 1000)

    @property
    def broker(self) -> BrokerInfo:
        """Which broker answered."""
        return self._broker

    @property
    def _named(self) -> str:
        """The broker, with the name of the connection if it has one, for the log."""
        name = self._settings.name
        return f"{self._broker} (connection {name!r})" if name else str(self._broker)

    @property
    def state(self) -> ConnectionState:
        """Where in its life the connection is."""
        return self._state

    @property
    def secrets(self) -> tuple[str, ...]:
        """What the connection logged in with."""
        return self._settings.secrets

    @property
    def settings(self) -> ConnectionSettings:
        """The settings that this link was opened with."""
        return self._settings

    @property
    def is_up(self) -> bool:
        """Whether the connection can be used."""
        return self._state is _UP

    def on_lost(self, callback: OnLost) -> Callable[[], None]:
        """Call back once if the connection is lost (at once if it already is); not when it is closed.

        Returns:
            What takes that back. A connection may live for months, and so does what it is to call.
        """

        def take_back() -> None:
            with self._lock, contextlib.suppress(ValueError):
                self._on_lost.remove(callback)

        with self._lock:
            if not self._ended:
                self._on_lost.append(callback)
                return take_back
        if self._state is ConnectionState.LOST and self._end_reason is not None:
            reason = self._end_reason
            threading.Thread(target=lambda: callback(reason), name="stomp on_lost", daemon=True).start()
        return take_back

    def note_acknowledgement(self) -> None:
        """A consumer acknowledges something: whether the broker has it matters from now on."""
        self._has_acknowledged = True

    def give_up(self, reason: JmsError) -> None:
        """End the connection at once; everything unsettled goes back to the broker."""
        with self._lock:
            if self._state is ConnectionState.UP:
                self._state = ConnectionState.LOST
        self.wire.end(reason)

    def close(self) -> None:
        """Close in good order, within the reply timeout; unsettled messages go back to the broker.

        Raises nothing. If the broker doesn't confirm the close, the last acknowledged messages may be
        delivered again, and a WARNING says so. None is lost.
        """
        with self._lock:
            was_up = self._state is ConnectionState.UP
            if was_up:
                self._state = ConnectionState.CLOSED
        try:
            if was_up and not self.wire.in_reader:
                receipts = self.replies.receipts()
                self.wire.append(encode("DISCONNECT", [("receipt", receipts.ask())]))
                self.wait(receipts)
        except (ConnectionLostError, PermanentBrokerError) as error:
            matters = self._has_acknowledged or isinstance(error, BlockedByBrokerError)
            _log.log(
                logging.WARNING if matters else logging.DEBUG,
                "No good-bye from %s, so what was acknowledged last may come again: %s",
                self._named,
                error,
            )
        finally:  # also if the wait is interrupted
            self.wire.end(None)
        self.wire.join(self.reply_timeout)

    def _end(self, reason: JmsError | None) -> None:
        if isinstance(reason, ConnectionLostError) and self._last_error is not None:
            reason = type(reason)(f"{reason}: {self._last_error}")
        with self._lock:
            self._end_reason = reason
            if self._state is ConnectionState.UP:
                self._state = ConnectionState.LOST
            self._ended = True
            callbacks, self._on_lost = self._on_lost, []
        self._answered.set()
        closed = ConnectionLostError(str(reason or "closed"))
        self.replies.lost(reason if isinstance(reason, ConnectionLostError) else closed)
        if self._state is not ConnectionState.LOST or self._connected is None or reason is None:
            return
        _log.warning("The connection to %s is lost: %s", self._named, reason)
        for callback in callbacks:
            try:
                callback(reason)
            except Exception:  # noqa: BLE001 - the edge: the others must be told too
                _log.exception("A callback that was told of the lost connection failed")

    # --- frames in, called by the reader

    def on_connected(self, frame: StompFrame) -> None:
        """Take CONNECTED.

        Raises:
            ProtocolError: There was a CONNECTED before.
        """
        if self._connected is not None:
            raise ProtocolError("the broker said CONNECTED twice")
        self._believe_only_ours()
        self._connected = frame
        self._answered.set()

    def _believe_only_ours(self, *proofs: bytes) -> None:
        self.wire.believe_only(self._token.encode(), self.replies.is_asked, *proofs)

    def on_error(self, frame: StompFrame) -> None:
        """Take ERROR, and find whom it concerns.

        Raises:
            ConnectionLostError: The broker has cancelled a subscription, or has sent too many errors that
                belong to nothing.
        """
        text = blotted(error_text(frame), self._settings.secrets)
        if self.orphans.hand_back_undelivered(text):
            return
        self._last_error = text
        if self._connected is None:
            self._answered.set()
            return
        if self.dialect.cancelled in text:
            self._check_cancelled(frame.headers.get("subscription"))
            return
        text = self.limits.explained(text, self.dialect.ways_out)
        error = PermanentBrokerError(f"{self._broker} refused: {text}")
        named = frame.headers.get("receipt-id")
        expected = self.replies.refused(named, error)
        if expected and named is not None:
            return
        with self._lock:
            units = list(self._units)
        for unit in units:  # whoever else takes it for theirs: one of these may have lost a message
            unit.blame(error)
        if not (units or expected):
            _log.warning("%s reports an error that belongs to nothing we wait for: %s", self._named, text)
            self._strange_errors += 1
            if self._strange_errors >= _MOST_STRANGE_ERRORS:
                raise ConnectionLostError(f"the broker sent {self._strange_errors} errors without a cause")

    def _check_cancelled(self, identifier: str | None) -> None:
        """Give the connection up if the broker has cancelled a subscription that is in force.

        Everyone who consumes reconnects after a loss, and subscribes again. Nothing less would do: RabbitMQ
        declares a queue once for each connection, so SUBSCRIBE over the same one would be refused, and what
        is sent to the queue over it would be confirmed and dropped.

        Args:
            identifier: The id of the subscription, if the broker names it.

        Raises:
            ConnectionLostError: The subscription is in force, or may be.
        """
        destination = None if identifier is None else self.routes.destination(identifier)
        if destination is None and identifier is not None:
            return  # it crossed our UNSUBSCRIBE
        subject = "a subscription" if destination is None else f"the subscription to {destination}"
        raise ConnectionLostError(
            f"the broker cancelled {subject}, as it does when somebody deletes the queue; closed to "
            "subscribe again"
        )

    def _message(self, frame: Frame) -> None:
        self.orphans.last = frame
        key = frame.key or frame.first(SUBSCRIPTION) or b""
        if (route := self.routes.get(key)) is not None:
            route(frame, key)
        else:
            self.routes.check_late(key)

    def _ask_on(self) -> None:
        """Ask the broker for an answer that nobody waits for."""
        if self._is_greeted:
            self._ask(self.replies.receipts().ask())

    # --- for what is built on it

    def prepare_for(self, subscription: Subscription) -> None:
        """Be ready for a new consumer's subscription.

        Raises:
            CapabilityError: The broker would ignore or weaken it.
            ConfigurationError: Something is missing for it, or makes no sense.
        """
        self.dialect.check(subscription, self._broker, self.client_id)
        self._no_local |= any(name in self.dialect.no_local for name, _ in subscription.destination.options)
        if subscription.prefetch is not None and subscription.prefetch < LEAST_PREFETCH:
            self.wire.gather_no_more()

    def wait(self, receipts: ReceiptGroup, at_most: int = 0) -> None:
        """Send what is buffered and wait until no more than `at_most` receipts are missing.

        Raises:
            PermanentBrokerError: The broker refused.
            ConnectionLostError: The connection was lost, or counts as lost because no receipt came in time.
        """
        if self.wire.in_reader:
            raise ConfigurationError("a callback of the connection must not wait for the broker")
        try:
            self.wire.flush()
        except ConnectionLostError:
            # The reader hands the broker's last words to the receipts: they say why, and what went well.
            receipts.wait(self.reply_timeout)
            return
        began = monotonic()
        try:
            receipts.wait(self.reply_timeout, at_most)
        except ReplyTimeoutError as error:
            lost: ConnectionLostError = error
            if self.wire.received_since(began):
                lost = BlockedByBrokerError(
                    f"blocked by the broker, which sends and answers nothing: {error}"
                )
            self.give_up(lost)
            raise lost from None

    def another(self) -> Link | None:
        """Open a second connection of the same user to the same broker.

        Returns:
            The connection, or None: with a client id, where nothing tells whether the same broker answers,
            and beside a consumer that wants no messages of its own connection.

        Raises:
            JmsError: The broker doesn't take it (see `Transport.connect`), or another one answers there.
        """
        if self._another is None or self._process is None or self.client_id is not None or self._no_local:
            return None
        second = self._another()
        if second._process != self._process:  # noqa: SLF001 - of the same class
            second.close()
            raise TransientBrokerError(f"at {self._broker.address} another broker answers now")
        return second

    def new_subscription_id(self) -> str:
        """Return an id no other subscription of this connection has."""
        return f"{self._token}{next(self._identifiers)}"

    def new_transaction_id(self) -> str:
        """Return an id no other transaction of this connection has."""
        return f"{self._token}{next(self._identifiers)}"

    def encode(self, outgoing: Outgoing, first: bytes = b"") -> bytes:
        """Return the SEND frame, with these lines of headers before all others."""
        return self.dialect.encode(outgoing, self._new_message_id, first)

    def _new_message_id(self) -> str:
        return f"{self._prefix}{next(self._numbers)}"

    def watch(self, unit: ErrorListener) -> None:
        """Tell a unit about errors that don't say where they belong."""
        with self._lock:
            self._units.add(unit)

    def unwatch(self, unit: ErrorListener) -> None:
        """Tell a unit no more of such errors."""
        with self._lock:
            self._units.discard(unit)

    def synchronize(self) -> None:
        """Wait until the broker has carried out everything sent to it before."""
        self.wait(self.ask())

    def ask(self) -> ReceiptGroup:
        """Return what to wait for until the broker has carried out everything sent to it before.

        Raises:
            ConnectionLostError: The connection is gone.
        """
        receipts = self.replies.receipts()
        self._ask(receipts.ask())
        with contextlib.suppress(ConnectionLostError):  # whoever waits for it hears why
            self.wire.flush()
        return receipts

    def _ask(self, receipt: str) -> None:
        """Leave in the buffer what the broker answers with this receipt, and what is cheap.

        STOMP has no frame that does nothing but ask for a receipt. An empty transaction that is begun and
        aborted is near to that, but ABORT costs ActiveMQ as much as fifty messages or more; BEGIN costs next
        to nothing, and somebody will need a transaction.

        Raises:
            ConnectionLostError: The connection is gone.
        """
        spare = self.take_transaction()
        if spare is not None:  # no more of them than needed
            self.wire.append(_of_transaction("ABORT", spare, receipt))
            return
        identifier = self.new_transaction_id()
        if self.dialect.unit_kind is UnitKind.TRANSACTION:
            self.wire.append(_of_transaction("BEGIN", identifier, receipt))
            self._begun.append(identifier)
        else:
            self.wire.append(
                _of_transaction("BEGIN", identifier) + _of_transaction("ABORT", identifier, receipt)
            )

    def take_transaction(self) -> str | None:
        """Return a transaction that is begun and not used yet, if there is one; give it back unless used.

        There is one, or as many as there were units at once.
        """
        try:
            return self._begun.popleft()
        except IndexError:
            return None

    def give_back_transaction(self, identifier: str) -> None:
        """Let somebody else use a transaction in which nothing happened."""
        self._begun.append(identifier)

    def take_late(self) -> bool:
        """Take the right to acknowledge one message together with COMMIT; say whether there was room."""
        with self._lock:
            if self._late >= _MOST_LATE:
                return False
            self._late += 1
            return True

    def give_back_late(self, count: int) -> None:
        """Give back what `take_late` took for `count` messages."""
        with self._lock:
            self._late -= count


def _of_transaction(command: str, transaction: str, receipt: str | None = None) -> bytes:
    return encode(
        command, [("transaction", transaction), *(() if receipt is None else (("receipt", receipt),))]
    )


def _beats(value: str) -> tuple[str, str]:
    """Return the two numbers of a `heart-beat` header of CONNECTED.

    Raises:
        ProtocolError: The header isn't two numbers of milliseconds.
    """
    first, _, second = (part.strip() for part in value.partition(","))
    for each in (first, second):
        if not (each.isascii() and each.isdigit() and len(each) <= _MOST_DIGITS):
            raise ProtocolError(f"the broker's heart-beat {value[:40]!r} isn't two numbers of milliseconds")
    return first, second
