"""A TCP connection, plain or under TLS, that never blocks and connects within a deadline.

`SSLSocket` must not be read and written by two threads at once, and a blocked read must not hold up a write.
So TLS runs over memory buffers under a lock, and only the plain socket below is shared.
"""

from __future__ import annotations

import contextlib
import ipaddress
import select
import socket
import ssl
import threading
from time import monotonic
from typing import Final, Protocol

from airflow_provider_jmsjca.errors import ConfigurationError, PermanentBrokerError, TransientBrokerError
from airflow_provider_jmsjca.transports.base import TlsSettings

READ_SIZE: Final = 256 * 1024
_QUICK_ACK: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)


class Channel(Protocol):
    """Bytes to and from the broker. `receive` and `send` may run at once in two threads, not each twice."""

    def fileno(self) -> int:
        """Return the descriptor to wait on."""

    def receive(self) -> bytes | None:
        """Return what has come, `None` if nothing has, and nothing (`b""`) at the end of the stream."""

    def send(self, data: bytes) -> bool:
        """Take over `data`; say whether all that was taken over has left. If not, send `b""` later."""

    def shut_down(self) -> None:
        """End both directions at once; threads that wait on the descriptor wake up."""

    def close(self) -> None:
        """Free the descriptor."""


class PlainChannel:
    """Without TLS."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._quick_ack = _QUICK_ACK if sock.family in {socket.AF_INET, socket.AF_INET6} else None
        self._rest = memoryview(b"")

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._socket.fileno()

    def receive(self) -> bytes | None:
        """Return what has come, `None` if nothing has, and nothing (`b""`) at the end of the stream."""
        try:
            data = self._socket.recv(READ_SIZE)
        except BlockingIOError:
            return None
        if self._quick_ack is not None:
            # The kernel falls back to delayed acknowledgements by itself, and a broker without tcpNoDelay
            # then holds the next receipt back for 44 ms.
            self._socket.setsockopt(socket.IPPROTO_TCP, self._quick_ack, 1)
        return data

    def send(self, data: bytes) -> bool:
        """Take over `data`; say whether all that was taken over has left. If not, send `b""` later."""
        rest = memoryview(bytes(self._rest) + data if self._rest else data)
        try:
            while rest:
                rest = rest[self._socket.send(rest) :]
        except BlockingIOError:
            pass
        self._rest = rest
        return not rest

    def shut_down(self) -> None:
        """End both directions at once; threads that wait on the descriptor wake up."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Free the descriptor."""
        self._socket.close()


class TlsChannel:
    """With TLS, over a plain channel."""

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
        """Agree on keys and check the certificate.

        Raises:
            TimeoutError: The peer didn't answer until `deadline`; plain ports do that.
            ssl.SSLError: It isn't trusted, or doesn't speak TLS.
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
        """Return what has come, `None` if nothing has, and nothing (`b""`) at the end of the stream."""
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
        """Take over `data`; say whether all that was taken over has left. If not, send `b""` later."""
        with self._lock:
            if data:
                self._tls.write(data)
            encrypted = self._outgoing.read()
        return self._plain.send(encrypted)

    def _send_encrypted(self) -> None:
        self._plain.send(self._outgoing.read())

    def shut_down(self) -> None:
        """End both directions at once; threads that wait on the descriptor wake up."""
        self._plain.shut_down()

    def close(self) -> None:
        """Free the descriptor."""
        self._plain.close()


def wait_for(fileno: int, events: int, deadline: float) -> None:
    """Wait until the descriptor is ready.

    Raises:
        TimeoutError: It isn't until `deadline` (of the monotonic clock).
    """
    poll = select.poll()
    poll.register(fileno, events)
    if not poll.poll(max(0.0, deadline - monotonic()) * 1000):
        raise TimeoutError


def open_channel(host: str, port: int, tls: TlsSettings | None, deadline: float) -> Channel:
    """Connect, under TLS if `tls` is given.

    Raises:
        TransientBrokerError: Nobody answers there, or not until `deadline` (of the monotonic clock).
        PermanentBrokerError: The certificate is not trusted, or is for another name.
        ConfigurationError: A certificate file can't be used.
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
            # Without a password OpenSSL would ask for one on the terminal.
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
    """Look the name up in a thread of its own: the resolver knows no deadline."""
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
                f"{host!r} is no name of a host: its parts between dots have 1 to 63 characters"
            ) from problem
        raise TransientBrokerError(f"the name {host!r} can't be resolved: {problem.strerror}") from problem
    return list(found)
