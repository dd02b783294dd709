"""The socket of a connection, plain or with TLS, and the thread that reads and writes it.

A `Channel` never blocks, and connects within a deadline. Two threads must not read and write an `SSLSocket`
concurrently, and a blocked read must not delay a write. So TLS runs over memory buffers under a lock, and the
threads share only the underlying plain socket.

`Wire` adds the reader, the buffer of outgoing frames, and heart-beats.

One thread per connection, the reader, reads, sends heart-beats, and sends the frames that other threads left
in the buffer. It waits only for the socket, so it continues to read even if the broker stops reading.
"""

from __future__ import annotations

import collections
import contextlib
import ipaddress
import math
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol

from airflow_provider_jmsjca.errors import (
    ConfigurationError,
    ConnectionLostError,
    JmsError,
    PermanentBrokerError,
    PoisonMessageError,
    TransientBrokerError,
)
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.transports.base import TlsSettings
from airflow_provider_jmsjca.transports.stomp.wire.frames import (
    MAX_GREETING,
    RECEIPT_ID,
    ForgedFrameError,
    Frame,
    FrameParser,
    ProtocolError,
)

_log = safe_logger(__name__)

FLUSH_SIZE: Final = 64 * 1024
_SILENT_BEATS: Final = 2.5
_LINGER_SECONDS: Final = 0.005
_BROKEN_OFF_SECONDS: Final = 1.0
_LONGEST_WAIT: Final = 3600.0
_LATE_SECONDS: Final = 0.5
_RECENTLY_SECONDS: Final = 10.0
_LINE_FEED: Final = b"\n"
GATHERING_SECONDS: Final = 0.001
LEAST_PREFETCH: Final = 50
"""Minimum prefetch for gathering; with a smaller one the broker would wait for acknowledgements."""
_RAPID: Final = 8_000
"""Messages per second; alternating requests and replies are slower than that."""
_MUCH: Final = 32 * 1024
_REPLY_SECONDS: Final = 0.002
READ_SIZE: Final = 256 * 1024
_QUICK_ACK: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)


class Channel(Protocol):
    """A byte stream to the broker. One thread may receive while another sends."""

    def fileno(self) -> int:
        """Return the descriptor to wait on."""

    def receive(self) -> bytes | None:
        """Return received bytes, `None` if there are none yet, and `b""` at the end of the stream."""

    def send(self, data: bytes) -> bool:
        """Accept `data`; return whether all accepted data was sent.

        If not, call this again with `b""` when the descriptor is writable.
        """

    def shut_down(self) -> None:
        """End both directions immediately, and wake threads that wait on the descriptor."""

    def close(self) -> None:
        """Close the descriptor."""


class PlainChannel:
    """A byte stream without TLS."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._quick_ack = _QUICK_ACK if sock.family in {socket.AF_INET, socket.AF_INET6} else None
        self._rest = memoryview(b"")

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._socket.fileno()

    def receive(self) -> bytes | None:
        """Return received bytes, `None` if there are none yet, and `b""` at the end of the stream."""
        try:
            data = self._socket.recv(READ_SIZE)
        except BlockingIOError:
            return None
        if self._quick_ack is not None:
            # The kernel reverts to delayed acknowledgements on its own. A broker without tcpNoDelay would
            # then delay the next receipt by 44 ms.
            self._socket.setsockopt(socket.IPPROTO_TCP, self._quick_ack, 1)
        return data

    def send(self, data: bytes) -> bool:
        """Accept `data`; return whether all accepted data was sent."""
        rest = memoryview(bytes(self._rest) + data if self._rest else data)
        try:
            while rest:
                rest = rest[self._socket.send(rest) :]
        except BlockingIOError:
            pass
        self._rest = rest
        return not rest

    def shut_down(self) -> None:
        """End both directions immediately, and wake threads that wait on the descriptor."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the descriptor."""
        self._socket.close()


class TlsChannel:
    """A byte stream with TLS over a plain channel."""

    def __init__(self, plain: PlainChannel, context: ssl.SSLContext, server_name: str) -> None:
        self._plain = plain
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._plain.fileno()

    def shake_hands(self, deadline: float) -> None:
        """Do the TLS handshake, and verify the certificate if the context requires it.

        Raises:
            TimeoutError: The peer didn't answer by `deadline`, as is usual for ports without TLS.
            ssl.SSLError: The peer isn't trusted, or doesn't speak TLS.
        """
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._send_encrypted()
            except ssl.SSLError:
                self._send_encrypted()
                raise
            else:
                self._send_encrypted()
                return
            wait_for(self.fileno(), select.POLLIN, deadline)
            data = self._plain.receive()
            if data == b"":
                self._incoming.write_eof()
            elif data:
                self._incoming.write(data)

    def receive(self) -> bytes | None:
        """Return received bytes, `None` if there are none yet, and `b""` at the end of the stream."""
        while True:
            with self._lock:
                try:
                    return self._tls.read(READ_SIZE)
                except ssl.SSLWantReadError:
                    pass
                except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                    return b""
            data = self._plain.receive()
            if not data:
                return data
            with self._lock:
                self._incoming.write(data)

    def send(self, data: bytes) -> bool:
        """Accept `data`; return whether all accepted data was sent."""
        with self._lock:
            if data:
                self._tls.write(data)
            encrypted = self._outgoing.read()
        return self._plain.send(encrypted)

    def _send_encrypted(self) -> None:
        self._plain.send(self._outgoing.read())

    def shut_down(self) -> None:
        """End both directions immediately, and wake threads that wait on the descriptor."""
        self._plain.shut_down()

    def close(self) -> None:
        """Close the descriptor."""
        self._plain.close()


def wait_for(fileno: int, events: int, deadline: float) -> None:
    """Wait until the descriptor is ready.

    Raises:
        TimeoutError: The descriptor isn't ready by `deadline` (monotonic clock).
    """
    poll = select.poll()
    poll.register(fileno, events)
    if not poll.poll(max(0.0, deadline - monotonic()) * 1000):
        raise TimeoutError


def open_channel(host: str, port: int, tls: TlsSettings | None, deadline: float) -> Channel:
    """Connect, with TLS if `tls` is given.

    Raises:
        TransientBrokerError: The host can't be resolved, doesn't answer by `deadline` (monotonic clock), or
            fails the TLS handshake.
        PermanentBrokerError: The certificate is not trusted, or is for another name.
        ConfigurationError: A certificate file can't be used, or the host name is invalid.
    """
    context = None if tls is None else _context(tls)
    sock = _connect(host, port, deadline)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        plain = PlainChannel(sock)
        if tls is None or context is None:
            return plain
        channel = TlsChannel(plain, context, tls.server_name or host)
        channel.shake_hands(deadline)
    except TimeoutError as error:
        sock.close()
        raise TransientBrokerError("TLS got no answer in time (does this port speak plain STOMP?)") from error
    except ssl.SSLCertVerificationError as error:
        sock.close()
        raise PermanentBrokerError(
            f"its certificate is not trusted: {error.verify_message} (name its authority with ca_file)"
        ) from error
    except ssl.SSLError as error:
        sock.close()
        raise TransientBrokerError(
            f"TLS failed: {error.reason} (does this port speak plain STOMP?)"
        ) from error
    except OSError as error:
        sock.close()
        raise TransientBrokerError(f"TLS failed: {error}") from error
    return channel


def _context(tls: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    what = f"the CA file {tls.ca_file!r}"
    try:
        if tls.ca_file is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(tls.ca_file)
        if tls.certificate_file is not None:
            key_file = tls.key_file or tls.certificate_file
            what = f"the certificate {tls.certificate_file!r} or its key {key_file!r}"
            # Without a password OpenSSL would prompt for one on the terminal.
            context.load_cert_chain(tls.certificate_file, tls.key_file, tls.key_password or "")
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{what} can't be used: {error}") from error
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _connect(host: str, port: int, deadline: float) -> socket.socket:
    problem: OSError | None = None
    for family, kind, protocol, _, address in _resolve(host, port, deadline):
        left = deadline - monotonic()
        if left <= 0:
            break
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(left)
            sock.connect(address)
        except OSError as error:
            sock.close()
            problem = error
        else:
            return sock
    if problem is None or isinstance(problem, TimeoutError):
        raise TransientBrokerError("no answer in time") from problem
    raise TransientBrokerError(problem.strerror or str(problem)) from problem


_Address = tuple[
    socket.AddressFamily,
    socket.SocketKind,
    int,
    str,
    tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes],
]


def _resolve(host: str, port: int, deadline: float) -> list[_Address]:
    """Resolve the host in a separate thread, because the resolver has no timeout."""
    found: list[_Address] = []
    problems: list[OSError | UnicodeError] = []

    def look_up() -> None:
        try:
            found.extend(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            problems.append(error)

    try:
        ipaddress.ip_address(host)
    except ValueError:
        thread = threading.Thread(target=look_up, name=f"resolve {host}", daemon=True)
        thread.start()
        thread.join(max(0.0, deadline - monotonic()))
        if thread.is_alive():
            raise TransientBrokerError(f"the name {host!r} was not resolved in time") from None
    else:
        look_up()
    for problem in problems:
        if isinstance(problem, UnicodeError):
            raise ConfigurationError(
                f"{host!r} is not a host name: its parts between dots have 1 to 63 characters"
            ) from problem
        raise TransientBrokerError(f"the name {host!r} can't be resolved: {problem.strerror}") from problem
    return list(found)


class ReadPause:
    """Decides after each read whether the reader pauses, so that messages gather before the next read.

    Some brokers write each message separately, which wakes the reader for nearly every message. This costs
    the broker and the client more than the messages themselves.

    Attributes:
        allowed: Whether pauses are allowed.
    """

    def __init__(self) -> None:
        self.allowed = False
        self._last_read = self._last_reply = -math.inf

    def pause_after(self, messages: int, others: int, size: int, now: float) -> float:
        """Return the seconds to pause before the next read.

        The result is 0 if a caller seems to wait for each receipt, or if the reads are large anyway.

        Args:
            messages: Number of messages in the last read.
            others: Number of other frames in the last read.
            size: Size of the last read in bytes.
            now: Time of the last read, in seconds on a monotonic clock.
        """
        before, self._last_read = self._last_read, now
        if not self.allowed:
            return 0.0
        if others:
            self._last_reply = now
        is_rapid = messages > (now - before) * _RAPID
        return (
            GATHERING_SECONDS
            if is_rapid and size < _MUCH and now - self._last_reply > _REPLY_SECONDS
            else 0.0
        )


class ReaderDelay:
    """Measures delays of the reader, during which it sends nothing, not even heart-beats.

    Attributes:
        due: Latest time of the next run of the reader, on the monotonic clock.
        began: Start of the last delay.
    """

    def __init__(self, now: float) -> None:
        self.due = now
        self.began = self._ended = -math.inf

    def end(self, now: float) -> None:
        """Record a delay that has ended now."""
        self.began, self._ended = self.due, now

    def recently(self, now: float) -> float:
        """Return the length in seconds of the reader thread's last delay.

        The result is 0 unless the delay still lasts, or ended less than 10 seconds ago.
        """
        if now - self.due > _LATE_SECONDS:  # the reader is late and has not run yet
            self.end(now)
        return self._ended - self.began if now - self._ended < _RECENTLY_SECONDS else 0.0


class Wire:
    """Sends and receives frames over a channel.

    The calling thread writes urgent frames (those with a receipt). Other frames are buffered. The buffer is
    sent when the reader has no more input, with the next urgent frame, or at 64 KiB. `nudge` wakes the
    reader. So a frame waits at most until the reader has delivered its last read, plus a millisecond if the
    reader pauses to gather messages.

    Args:
        channel: The open connection.
        host: Host and port, for errors.
        send_timeout: Seconds without progress after which a blocked write means that the connection is lost.
        route_of: Returns the function to call in the reader with the messages of a subscription, or `None`.
        on_message: Called in the reader with every MESSAGE frame without such a function.
        on_receipt: Called in the reader with every receipt id.
        on_control: Called in the reader with the command, headers and body of CONNECTED and ERROR.
        on_broken_off: Called in the reader when a frame stays incomplete. The function must request an answer
            from the broker, which shows whether the frame has ended.
        on_end: Called once, at the end of the reader, with the reason; `None` after `end(None)`.

    Attributes:
        running: Whether the reader runs.
        gathering: Decides whether the reader pauses.
        last_message: The last received MESSAGE frame.
        has_acknowledged: Whether a consumer has acknowledged a message; a failed close is then logged as a
            warning.
    """

    def __init__(
        self,
        channel: Channel,
        host: tuple[str, int],
        *,
        send_timeout: float,
        route_of: Callable[[bytes | None], Callable[[Frame], None] | None],
        on_message: Callable[[Frame], None],
        on_receipt: Callable[[str], None],
        on_control: Callable[[str, dict[str, str], bytes], None],
        on_broken_off: Callable[[], None],
        on_end: Callable[[JmsError | None], None],
    ) -> None:
        self.running = False
        self._parser = FrameParser()
        self._parser.limit = MAX_GREETING
        self._channel = channel
        self._send_timeout = send_timeout
        self._route_of = route_of
        self._on_message = on_message
        self._on_receipt = on_receipt
        self._on_control = on_control
        self._on_broken_off = on_broken_off
        self._has_asked = False
        self._on_end = on_end
        self._reason: JmsError | None = None
        self._ended = False
        self._guard = threading.Lock()
        self._buffer: list[bytes] = []
        self._buffered = self._settled = 0
        self._replaceable: object = None
        self._linger_until = 0.0
        self._sleeps_until = math.inf
        self._send_lock = threading.Lock()
        self._unsent = False
        self._idle = False
        self._woken = False
        self._soon: collections.deque[Callable[[], None]] = collections.deque()
        self._wake_out, self._wake_in = socket.socketpair()
        self._wake_out.setblocking(False)
        self._wake_in.setblocking(False)
        self._thread = threading.Thread(target=self._run, name=f"stomp {host[0]}:{host[1]}", daemon=True)
        self._beat_every = 0.0
        self._silence_limit = 0.0
        self._last_sent = self._last_received = monotonic()
        self._lateness = ReaderDelay(self._last_sent)
        self.gathering = ReadPause()
        self.last_message: Frame | None = None
        self.has_acknowledged = False

    def start(self) -> None:
        """Start the reader.

        Raises:
            TransientBrokerError: The process can't start another thread.
        """
        self.running = True
        try:
            self._thread.start()
        except RuntimeError as error:
            self._free()
            raise TransientBrokerError(f"no thread could be started for the connection: {error}") from error

    def read_as(self, end: bytes, limit: int, *, gathers: bool) -> None:
        """Configure the parser and the reader for the broker.

        Args:
            end: Terminator of a body without content-length.
            limit: Maximum bytes of a frame, headers and body together.
            gathers: Whether the reader may pause so that messages gather.
        """
        self._parser.end = end
        self._parser.limit = limit
        self.gathering.allowed = gathers

    def gather_no_more(self) -> None:
        """Stop pauses for gathering, because a caller waits for each message."""
        self.gathering.allowed = False

    def believe_only(self, subscriptions: bytes, is_asked: Callable[[bytes], bool], *proofs: bytes) -> None:
        """From now on, trust only frames with an id of this client or one of `proofs`, unknown to producers.

        Args:
            subscriptions: Prefix of this client's subscription ids.
            is_asked: Returns whether a receipt with this id is pending.
            proofs: Other bytes that occur only in frames of the broker.
        """
        self._parser.believe_only(subscriptions, is_asked, *proofs)

    def heart_beats(self, send: float, receive: float) -> None:
        """Set the agreed heart-beat intervals in seconds, of this client and of the broker; 0 for never."""
        self._last_received = self._lateness.due = monotonic()
        # Half the agreed interval: brokers end a connection that is late by a millisecond.
        self._beat_every = send / 2
        self._silence_limit = receive * _SILENT_BEATS
        self._wake()

    def received_since(self, moment: float) -> bool:
        """Return whether the broker has sent anything since a time of the monotonic clock."""
        return self._last_received > moment

    @property
    def in_reader(self) -> bool:
        """Whether the caller is the reader, which must not wait for frames."""
        return threading.current_thread() is self._thread

    def append(self, data: bytes) -> bool:
        """Append encoded frames to the buffer. Call `nudge` afterwards, after releasing all locks.

        Args:
            data: The frames.

        Returns:
            Whether the buffer is full.

        Raises:
            ConnectionLostError: The connection is lost or closed.
        """
        with self._guard:
            if self._ended:
                raise ConnectionLostError(str(self._reason or "the connection is closed"))
            self._buffer.append(data)
            self._buffered += len(data)
            self._replaceable = None
            self._linger_until = 0.0
            return self._buffered >= FLUSH_SIZE

    def append_lazily(self, data: bytes, *, count: int, latest: object = None) -> int:
        """Append encoded frames that are sent with later ones, or alone after a few milliseconds.

        Args:
            data: The frames.
            count: Number of messages that the frames settle.
            latest: For a cumulative ACK, the consumer that sends it. If the previous append had the same
                consumer, these frames replace its frames, because the later ACK includes the earlier one.

        Returns:
            Number of messages that all unsent frames of this method settle.

        Raises:
            ConnectionLostError: The connection is lost or closed.
        """
        with self._guard:
            if self._ended:
                raise ConnectionLostError(str(self._reason or "the connection is closed"))
            self.has_acknowledged = True
            self._settled += count
            if latest is not None and self._replaceable is latest:
                self._buffer[-1] = data
                return self._settled
            self._buffer.append(data)
            self._buffered += len(data)
            self._replaceable = latest
            if not self._linger_until:
                self._linger_until = monotonic() + _LINGER_SECONDS
            settled = self._settled
            overslept = self._idle and self._sleeps_until > self._linger_until
        if overslept:
            self._wake()
        return settled

    def nudge(self, *, full: bool = False) -> None:
        """Have the reader send the buffer soon; if the buffer is `full`, send it before returning."""
        if full:
            self.flush()
        elif self._idle:
            self._wake()

    def write(self, data: bytes) -> None:
        """Send an encoded frame soon.

        Raises:
            ConnectionLostError: The connection is lost or closed.
        """
        self.nudge(full=self.append(data))

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call a function in the reader, after it has delivered the frames read so far."""
        self._soon.append(function)
        if self._idle:
            self._wake()

    def end(self, reason: JmsError | None) -> None:
        """Stop the reader; only the first call has an effect."""
        with self._guard:
            if self._ended:
                return
            self._ended = True
            self._reason = self._explained(reason)
        self.running = False
        self._channel.shut_down()
        self._wake()

    def _explained(self, reason: JmsError | None) -> JmsError | None:
        """Return the reason, with a note if delays of this process may have caused the loss."""
        if not self._beat_every or reason.__class__ is not ConnectionLostError:
            return reason
        now = monotonic()
        busy = self._lateness.recently(now)
        if busy <= self._beat_every:
            return reason
        began = time.strftime("%H:%M:%S", time.localtime(time.time() - (now - self._lateness.began)))
        return ConnectionLostError(
            f"this process was busy for {busy:.1f} s since {began} (interpreter lock held, or no processor) "
            f"and sent no heart-beat. A heart_beat above {2 * self._beat_every:g} s helps. Then {reason}"
        )

    def join(self, timeout: float) -> None:
        """Wait until the reader has ended."""
        if not self.in_reader and self._thread.ident is not None:
            self._thread.join(timeout)

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            try:
                self._wake_in.send(b"\0")
            except OSError:  # full, so the reader will wake up; or closed, so it has ended
                return

    def flush(self) -> None:
        """Send the whole buffer, and wait for the socket if necessary.

        Does nothing in the reader, which sends the buffer after handling its input.

        Raises:
            ConnectionLostError: The connection is lost.
        """
        if self.in_reader:
            return
        with self._send_lock:
            try:
                while not self._send_some():
                    # A new deadline for each wait: the broker may receive a large message slowly.
                    wait_for(self._channel.fileno(), select.POLLOUT, monotonic() + self._send_timeout)
            except TimeoutError:
                self.end(ConnectionLostError(f"the broker accepted no data for {self._send_timeout:g} s"))
            except (OSError, ValueError) as error:
                self.end(ConnectionLostError(f"the connection broke: {error}"))
        if self._buffer:  # left by `_flush_now`, which found the lock taken
            self._wake()
        if self._reason is not None:
            raise ConnectionLostError(str(self._reason))

    def _flush_now(self) -> None:
        """Send as much as the socket accepts, without waiting.

        If another thread is sending, do nothing: that thread checks the buffer again afterwards.
        """
        while (self._buffer or self._unsent) and self._send_lock.acquire(blocking=False):
            try:
                done = self._send_some()
            finally:
                self._send_lock.release()
            if not done:
                return

    def _send_some(self) -> bool:
        with self._guard:
            data = b"".join(self._buffer)
            self._buffer.clear()
            self._buffered = self._settled = 0
            self._replaceable = None
            self._linger_until = 0.0
        self._last_sent = monotonic()
        done = self._channel.send(data)
        self._unsent = not done
        return done

    def _run(self) -> None:
        reason: JmsError | None = None
        try:
            self._loop()
        except JmsError as error:
            reason = error
        except Exception as error:  # noqa: BLE001 - the edge of the reader: whoever waits must be told
            if not isinstance(error, (OSError, ValueError)):
                _log.exception("Reading from the broker failed")
            reason = ConnectionLostError(f"the connection broke: {str(error) or type(error).__name__}")
        finally:
            self.end(reason)
            if isinstance(self._reason, ConnectionLostError) and not isinstance(
                self._reason, ForgedFrameError
            ):
                self._drain_input()
            self._free()
            self._on_end(self._reason)

    def _free(self) -> None:
        with self._send_lock:
            self._channel.close()
        self._wake_in.close()
        self._wake_out.close()

    def _drain_input(self) -> None:
        """Read a pending ERROR with the broker's reason, if a failed write ended the connection first."""
        try:
            while data := self._channel.receive():
                for frame in self._parser.feed(data):
                    if frame.command == b"ERROR":
                        self._handle_reply(frame)
        except Exception as error:  # noqa: BLE001 - the connection is over, and only its last words are at stake
            _log.debug("Nothing more can be read: %s", error)

    def _loop(self) -> None:
        receive, lateness = self._channel.receive, self._lateness
        poll = select.poll()
        descriptor = self._channel.fileno()
        poll.register(self._wake_out.fileno(), select.POLLIN)
        while self.running:
            data = receive()
            now = monotonic()
            if is_late := now - lateness.due > _LATE_SECONDS:
                lateness.end(now)
            lateness.due = now
            pause = 0.0
            if data:
                pause = self._handle_input(data, now)
            elif data is None:
                self._idle = True  # from here on, other threads wake the reader for their frames and calls
            else:
                raise ConnectionLostError("the broker closed the connection")
            if self._soon:
                self._run_soon()
            if self._beat_every and now - self._last_sent >= self._beat_every:
                self._beat()
            elif (self._buffer or self._unsent) and self._linger_until <= now + pause:
                self._flush_now()
            if pause:
                time.sleep(pause)
            elif data is None and not is_late:  # if late, read pending input before checking for silence
                self._wait(poll, descriptor, now)

    def _handle_input(self, data: bytes, now: float) -> float:
        """Call back for each frame that `data` completes; return the seconds to pause before the next read.

        Args:
            data: The bytes of one read.
            now: Time of the read.
        """
        self._last_received = now
        others = 0
        frames = self._parser.feed(data)
        for frame in frames:
            if frame.command == b"MESSAGE":
                self.last_message = frame
                try:
                    (self._route_of(frame.key) or self._on_message)(frame)
                except Exception as error:
                    raise _failed(error) from error
            else:
                others += 1
                self._handle_reply(frame)
        if frames:
            self._has_asked = False
        if not self.gathering.allowed:
            return 0.0
        return self.gathering.pause_after(len(frames) - others, others, len(data), now)

    def _handle_reply(self, frame: Frame) -> None:
        """Call back for a RECEIPT, CONNECTED or ERROR."""
        if frame.command == b"RECEIPT":
            self._on_receipt((frame.key or frame.first(RECEIPT_ID) or b"").decode("ascii", "replace"))
            return
        command = frame.command.decode()
        try:
            headers = frame.headers()
        except PoisonMessageError as error:
            raise ProtocolError(f"the broker sent {command}, but {error}") from error
        self._on_control(command, headers, frame.body)

    def _run_soon(self) -> None:
        while self._soon:
            try:
                self._soon.popleft()()
            except Exception as error:
                raise _failed(error) from error

    def _wait(self, poll: select.poll, descriptor: int, now: float) -> None:
        """Wait for input, for other threads, or until something is due.

        Raises:
            ConnectionLostError: The broker has sent nothing for too long.
        """
        until = math.inf
        if self._silence_limit:
            until = self._last_received + self._silence_limit
            if until < now:
                raise ConnectionLostError(f"no sign of life from the broker for {self._silence_limit:.1f} s")
        if self._beat_every:
            until = min(until, self._last_sent + self._beat_every)
        if self._parser.unfinished:
            until = min(until, self._wait_for_the_rest(now))
        poll.register(descriptor, select.POLLIN | select.POLLOUT if self._unsent else select.POLLIN)
        with self._guard:  # `append_lazily` either runs before this or sees `_sleeps_until`
            if self._linger_until:
                until = min(until, self._linger_until)
            self._sleeps_until = self._lateness.due = until
        poll.poll(None if until == math.inf else min(max(0.0, until - now), _LONGEST_WAIT) * 1000 + 1)
        self._idle = False
        if self._woken:
            try:
                self._wake_out.recv(64)
            except BlockingIOError:
                return  # the byte has not arrived yet
            self._woken = False

    def _wait_for_the_rest(self, now: float) -> float:
        """Request an answer from the broker if a frame stays incomplete: its length may be wrong.

        Returns:
            When to check again, on the monotonic clock.

        Raises:
            ConnectionLostError: Nothing has arrived for too long.
        """
        asks_at = self._last_received + self._asking_after()
        if now > asks_at + self._send_timeout:
            silence = now - self._last_received
            raise ConnectionLostError(f"the broker stopped in the middle of a frame, {silence:.1f} s ago")
        if self._parser.proofs and not self._has_asked:
            if now < asks_at:
                return asks_at
            self._has_asked = True
            self._on_broken_off()
            self._flush_now()
        return asks_at + self._send_timeout

    def _asking_after(self) -> float:
        """Return how many seconds to wait for the rest of a frame before requesting an answer."""
        return 0.0 if self._parser.is_doubtful else _BROKEN_OFF_SECONDS

    def _beat(self) -> None:
        with self._guard:
            self._buffer.append(_LINE_FEED)
        self._flush_now()


def _failed(error: Exception) -> ConnectionLostError:
    """Return the error to raise after a callback failed; log all exceptions but `ConnectionLostError`."""
    if isinstance(error, ConnectionLostError):
        return error
    _log.error(
        "A callback failed; closing the connection so that its messages are redelivered", exc_info=error
    )
    return ConnectionLostError(f"a callback failed: {type(error).__name__}: {error}")
