"""A connection to a broker over STOMP.

Longer than others, for one class is both the port and stomp.py's listener; what needs more than a few lines
of it stands in modules of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import secrets
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from time import monotonic
from typing import Final, assert_never

import stomp
from stomp.utils import Frame as StompFrame
from stomp.utils import calculate_heartbeats

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.masking import blotted
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import (
    ConfigurationError,
    ConnectionLostError,
    JmsError,
    PermanentBrokerError,
    TransientBrokerError,
)
from airflow_provider_jmsjca.transports.backlog import Backlog
from airflow_provider_jmsjca.transports.base import (
    BrokerInfo,
    Capabilities,
    ConnectionSettings,
    ConnectionState,
    OnLost,
    OnReceived,
    Outgoing,
    Subscription,
    UnitOfWork,
)
from airflow_provider_jmsjca.transports.stomp.allowance import Allowance
from airflow_provider_jmsjca.transports.stomp.browsing import browse
from airflow_provider_jmsjca.transports.stomp.channel import Channel
from airflow_provider_jmsjca.transports.stomp.client import Client
from airflow_provider_jmsjca.transports.stomp.confirmed import ConfirmedUnit
from airflow_provider_jmsjca.transports.stomp.consumer import StompConsumer
from airflow_provider_jmsjca.transports.stomp.dialects import GENERIC, recognise
from airflow_provider_jmsjca.transports.stomp.dialects.dialect import Dialect
from airflow_provider_jmsjca.transports.stomp.dialects.settlement import UnitKind
from airflow_provider_jmsjca.transports.stomp.frames import SUBSCRIPTION, Frame, encode
from airflow_provider_jmsjca.transports.stomp.gathering import LEAST_PREFETCH
from airflow_provider_jmsjca.transports.stomp.management import backlog
from airflow_provider_jmsjca.transports.stomp.orphans import Orphans
from airflow_provider_jmsjca.transports.stomp.refusals import Limits, connect_refusal, error_text
from airflow_provider_jmsjca.transports.stomp.replies import Receipts, ReceiptTimeoutError, Replies
from airflow_provider_jmsjca.transports.stomp.routes import Routes
from airflow_provider_jmsjca.transports.stomp.sending import send, send_confirmed
from airflow_provider_jmsjca.transports.stomp.transactions import Transactions
from airflow_provider_jmsjca.transports.stomp.units import TransactionUnit
from airflow_provider_jmsjca.transports.stomp.wire import Wire

_log = logging.getLogger(__name__)
_UP: Final = ConnectionState.UP

_WITHOUT_HEART_BEAT: Final = 20_000


class StompConnection(stomp.ConnectionListener):  # type: ignore[misc] # stomp.py has no types
    """One connection, many subscriptions. See the port for what each method promises.

    A callback that raises ends the connection, with the traceback in the log: its message would otherwise
    stay unsettled and unseen until the end of the connection, while this way the broker delivers it again.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        host: tuple[str, int],
        channel: Channel,
        another: Callable[[], StompConnection] | None = None,
    ) -> None:
        """Prepare it.

        Args:
            settings: What to say and how long to wait.
            host: Where it leads, for logs and errors.
            channel: The bytes in and out.
            another: Opens a second connection of the same user to the same host.
        """
        self._settings = settings
        self._another = another
        self._process: str | None = None
        self._no_local = False
        self._host = host
        self._reply_timeout = settings.reply_timeout.total_seconds()
        self._state = ConnectionState.UP
        self._lock = threading.Lock()
        self._answered = threading.Event()
        self._connected: StompFrame | None = None
        self._end_reason: JmsError | None = None
        self._last_error: str | None = None
        self._on_lost: list[OnLost] = []
        self._ended = False
        self.routes = Routes()
        self.transactions = Transactions(self)
        self._units: weakref.WeakSet[TransactionUnit] = weakref.WeakSet()
        self._numbers = itertools.count(1)
        self._prefix = f"ID:{secrets.token_urlsafe(12)}-"
        self.orphans = Orphans(self)
        self._broker = BrokerInfo(product="unknown", version="", address=f"{host[0]}:{host[1]}")
        self.dialect: Dialect = GENERIC
        self.replies = Replies()
        self.client_id = settings.client_id
        self.late = Allowance()
        self.wire = Wire(
            channel,
            host,
            send_timeout=self._reply_timeout,
            on_message=self._message,
            on_receipt=self.replies.arrived,
            on_end=self._end,
        )
        self.limits = Limits(self.wire)
        self._client = Client(self.wire)
        self._client.set_listener("connection", self)

    # --- life

    def open(self, deadline: float) -> None:
        """Say CONNECT, and wait for the answer until `deadline` (of the monotonic clock).

        Raises:
            TransientBrokerError: There is none, or the broker doesn't want us now.
            AuthenticationError: It refuses the credentials.
        """
        settings = self._settings
        beat = round(settings.heart_beat.total_seconds() * 1000)
        # Artemis cuts a client that promises nothing after a minute, so we always promise.
        beats = (beat or _WITHOUT_HEART_BEAT, beat)
        headers = dict(settings.options) | {"heart-beat": f"{beats[0]},{beats[1]}"}
        if settings.client_id is not None:
            headers["client-id"] = settings.client_id
        self.wire.vhost = settings.virtual_host or "/"
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
                return
        except BaseException:  # also if the wait is interrupted
            self.wire.end(None)
            raise
        self.wire.end(None)
        raise connect_refusal(self._last_error, self._end_reason)

    def _greet(self, connected: StompFrame, beats: tuple[int, int]) -> None:
        headers = connected.headers
        if headers.get("version") != "1.2":
            self.wire.end(None)
            raise PermanentBrokerError(f"the broker speaks STOMP {headers.get('version', '1.0')}, not 1.2")
        self.dialect, product, version = recognise(headers.get("server", ""))
        self._broker = replace(self._broker, product=product, version=version)
        self._process = self.dialect.process(headers.get("session", ""))
        self.wire.parser.end = self.dialect.frame_end
        self.wire.gathering.allowed = self.dialect.writes_singly
        send, receive = calculate_heartbeats(tuple(headers.get("heart-beat", "0,0").split(",")), beats)
        self.wire.heart_beats(send / 1000, receive / 1000)

    @property
    def broker(self) -> BrokerInfo:
        """Which broker answered."""
        return self._broker

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        return self.dialect.capabilities

    @property
    def state(self) -> ConnectionState:
        """Where in its life it is."""
        return self._state

    @property
    def is_up(self) -> bool:
        """Whether it can be used."""
        return self._state is _UP

    def on_lost(self, callback: OnLost) -> None:
        """Call back once if the connection is lost (at once if it already is); not when it is closed."""
        with self._lock:
            if not self._ended:
                self._on_lost.append(callback)
                return
        if self._state is ConnectionState.LOST and self._end_reason is not None:
            reason = self._end_reason
            threading.Thread(target=lambda: callback(reason), name="stomp on_lost", daemon=True).start()

    def give_up(self, reason: JmsError) -> None:
        """End the connection at once; everything unsettled goes back to the broker."""
        with self._lock:
            if self._state is ConnectionState.UP:
                self._state = ConnectionState.LOST
        self.wire.end(reason)

    def close(self) -> None:
        """Close in good order, within the reply timeout; unsettled messages go back to the broker."""
        with self._lock:
            was_up = self._state is ConnectionState.UP
            if was_up:
                self._state = ConnectionState.CLOSED
        try:
            if was_up and not self.wire.in_reader:
                receipts = self.replies.receipts()
                self.wire.append(encode("DISCONNECT", [("receipt", receipts.ask())]))
                self.wire.flush()
                receipts.wait(self._reply_timeout)
        except (ConnectionLostError, PermanentBrokerError) as error:
            _log.warning(
                "No good-bye from %s, so what was acknowledged last may come again: %s", self._broker, error
            )
        finally:  # also if the wait is interrupted
            self.wire.end(None)
        self.wire.join(self._reply_timeout)

    def _end(self, reason: JmsError | None) -> None:
        if isinstance(reason, ConnectionLostError) and self._last_error is not None:
            reason = ConnectionLostError(f"{reason}: {self._last_error}")
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
        _log.warning("The connection to %s is lost: %s", self._broker, reason)
        for callback in callbacks:
            try:
                callback(reason)
            except Exception:  # noqa: BLE001 - the edge: the others must be told too
                _log.exception("A callback that was told of the lost connection failed")

    # --- frames in, called by the reader

    def on_connected(self, frame: StompFrame) -> None:
        """Take CONNECTED."""
        self._connected = frame
        self._answered.set()

    def on_error(self, frame: StompFrame) -> None:
        """Take ERROR, and find whom it concerns."""
        text = blotted(error_text(frame), self._settings.secrets)
        if self.orphans.swallowed(text):
            return
        self._last_error = text
        if self._connected is None:
            self._answered.set()
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
            _log.warning("%s reports an error that belongs to nothing we wait for: %s", self._broker, text)

    def _message(self, frame: Frame) -> None:
        self.orphans.last = frame
        key = frame.first(SUBSCRIPTION) or b""
        if (route := self.routes.get(key)) is not None:
            route(frame, key)

    # --- for consumers, units and browsers

    def wait(self, receipts: Receipts, at_most: int = 0) -> None:
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
            receipts.wait(self._reply_timeout)
            return
        try:
            receipts.wait(self._reply_timeout, at_most)
        except ReceiptTimeoutError as error:
            self.give_up(error)
            raise

    def another(self) -> StompConnection | None:
        """Open a second connection of the same user to the same broker.

        Returns:
            It, or None: with a client id, where nothing tells whether the same broker answers, and beside a
            consumer that wants no messages of its own connection.

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
        return f"s{next(self._numbers)}"

    def new_transaction_id(self) -> str:
        """Return an id no other transaction of this connection has."""
        return f"t{next(self._numbers)}"

    def encode(self, outgoing: Outgoing, first: bytes = b"") -> bytes:
        """Return the SEND frame, with these lines of headers before all others."""
        return self.dialect.encode(outgoing, self._new_message_id, first)

    def _new_message_id(self) -> str:
        return f"{self._prefix}{next(self._numbers)}"

    def send_confirmed(self, outgoing: list[Outgoing], frames: list[bytes]) -> None:
        """Send each with a receipt, pipelined, and wait for all.

        Args:
            outgoing: What to send.
            frames: The same messages encoded.

        Raises:
            PermanentBrokerError: The broker refused one; the text says which.
            InDoubtError: The connection was lost; some may be there.
        """
        if outgoing:
            send_confirmed(self, outgoing, frames)

    def watch(self, unit: TransactionUnit) -> None:
        """Tell a unit about errors that don't say where they belong."""
        with self._lock:
            self._units.add(unit)

    def unwatch(self, unit: TransactionUnit) -> None:
        """Stop that."""
        with self._lock:
            self._units.discard(unit)

    # --- the port

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call back in the reader, after what it has read."""
        self.wire.call_soon(function)

    def consume(self, subscription: Subscription, on_received: OnReceived) -> StompConsumer:
        """Start receiving."""
        self.dialect.check(subscription, self._broker, self.client_id)
        self._no_local |= any(name in self.dialect.no_local for name, _ in subscription.destination.options)
        if subscription.prefetch is not None and subscription.prefetch < LEAST_PREFETCH:
            self.wire.gathering.allowed = False
        consumer = StompConsumer(self, subscription, on_received)
        consumer.start()
        return consumer

    def send(self, outgoing: Iterable[Outgoing]) -> int:
        """Send messages outside any unit, pipelined, and wait until the broker confirmed every one."""
        return send(self, outgoing)

    def unit(self) -> UnitOfWork:
        """Begin a unit of work."""
        match self.dialect.unit_kind:
            case UnitKind.TRANSACTION:
                return TransactionUnit(self)
            case UnitKind.CONFIRM_THEN_ACKNOWLEDGE:
                return ConfirmedUnit(self)
            case _ as kind:
                assert_never(kind)

    def browse(self, destination: Destination, selector: str | None = None) -> Iterator[JmsMessage]:
        """Yield the messages on a queue without consuming them."""
        return browse(self, destination, selector, self._reply_timeout)

    def backlog(self, queue: Destination) -> Backlog:
        """Ask the broker what a queue holds; see the port."""
        return backlog(self, queue, self._reply_timeout)

    def synchronize(self) -> None:
        """Wait until the broker has carried out everything sent to it before."""
        self.wait(self.ask())

    def ask(self) -> Receipts:
        """Return what to wait for until the broker has carried out everything sent to it before.

        Raises:
            ConnectionLostError: The connection is gone.
        """
        receipts = self.replies.receipts()
        self.transactions.ask(receipts.ask())
        with contextlib.suppress(ConnectionLostError):  # whoever waits for it hears why
            self.wire.flush()
        return receipts

    def delete_durable(self, name: str, destination: Destination) -> None:
        """Delete an idle durable subscription and the messages it holds."""
        receipts = self.replies.receipts(blame=True)
        subscription = Subscription(destination=destination, durable_name=name)
        self.dialect.check(subscription, self._broker, self.client_id)
        for command, headers in self.dialect.delete_durable(subscription, self.client_id):
            self.wire.append(encode(command, [*headers.items(), ("receipt", receipts.ask())]))
        self.wait(receipts)
