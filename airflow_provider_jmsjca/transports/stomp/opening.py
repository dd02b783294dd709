"""Opens STOMP connections."""

from __future__ import annotations

from time import monotonic
from typing import Final

from airflow_provider_jmsjca.core.configuration.url import DEFAULT_PORTS
from airflow_provider_jmsjca.errors import (
    AuthenticationError,
    ClientIdInUseError,
    ConfigurationError,
    JmsError,
    PermanentBrokerError,
    TransientBrokerError,
)
from airflow_provider_jmsjca.transports.base import Connection, ConnectionSettings, TlsSettings, Transport
from airflow_provider_jmsjca.transports.stomp.connection import StompConnection
from airflow_provider_jmsjca.transports.stomp.link.link import Link
from airflow_provider_jmsjca.transports.stomp.link.refusals import NoAnswerError
from airflow_provider_jmsjca.transports.stomp.wire.wire import open_channel

PLAIN: Final = "stomp"
TLS: Final = "stomp+ssl"
_OURS: Final = frozenset(
    {"accept-version", "client-id", "content-length", "heart-beat", "host", "login", "passcode", "receipt"}
)


class StompTransport:
    """The transport for the schemes `stomp` and `stomp+ssl`.

    `ConnectionSettings.options` are sent as headers of CONNECT, unchanged.
    """

    def connect(self, settings: ConnectionSettings) -> Connection:
        """Connect to the first host that answers.

        Raises:
            TransientBrokerError: No host answered in time; the text lists every attempt.
            ClientIdInUseError: A broker has another connection with this client id, and no other host
                accepted the connection.
            PermanentBrokerError: No host is usable: TLS fails with each, or none supports STOMP 1.2.
            AuthenticationError: A broker refused the credentials; further hosts are not tried.
            ConfigurationError: The settings are invalid.
        """
        _check(settings)
        problems: list[tuple[str, JmsError]] = []
        for host, port in settings.hosts:
            address = (host, port or DEFAULT_PORTS[settings.scheme])
            try:
                return StompConnection(_open(settings, address))
            except (AuthenticationError, ConfigurationError):
                raise
            except (TransientBrokerError, PermanentBrokerError) as error:
                problems.append((f"{settings.scheme}://{address[0]}:{address[1]}", error))
        text = "; ".join(f"{name}: {error}" for name, error in problems)
        if all(isinstance(error, PermanentBrokerError) for _, error in problems):
            raise PermanentBrokerError(f"no broker can be used: {text}")
        if any(isinstance(error, ClientIdInUseError) for _, error in problems):
            raise ClientIdInUseError(text)
        raise TransientBrokerError(
            f"no broker could be reached: {text}; check host and port, and that it takes STOMP there"
        )


def _open(settings: ConnectionSettings, address: tuple[str, int]) -> Link:
    deadline = monotonic() + settings.connect_timeout.total_seconds()
    try:
        try:
            return _attempt(settings, address, deadline)
        except NoAnswerError:
            # ActiveMQ sometimes closes before it sends its ERROR; wrong credentials would then look like a
            # temporary fault.
            return _attempt(settings, address, deadline)
    except AuthenticationError as error:
        raise AuthenticationError(f"{settings.scheme}://{address[0]}:{address[1]}: {error}") from error


def _attempt(settings: ConnectionSettings, address: tuple[str, int], deadline: float) -> Link:
    tls = (settings.tls or TlsSettings()) if settings.scheme == TLS else None
    try:
        channel = open_channel(*address, tls, deadline)
        try:
            link = Link(settings, address, channel, lambda: _open(settings, address))
        except BaseException:
            channel.close()
            raise
        link.open(deadline)
    except OSError as error:  # usually the file descriptors
        raise TransientBrokerError(f"this process can't open another connection: {error}") from error
    return link


def _check(settings: ConnectionSettings) -> None:
    faults = []
    if settings.scheme not in DEFAULT_PORTS:
        faults.append(f"the scheme {settings.scheme!r} is neither {PLAIN!r} nor {TLS!r}")
    if not settings.hosts:
        faults.append("no host is named")
    if settings.scheme == PLAIN and settings.tls is not None:
        faults.append(f"TLS settings need the scheme {TLS!r}, not {PLAIN!r}")
    faults += [
        f"the option {name!r} would be sent as a header of CONNECT, where this package sets it itself"
        for name in settings.options
        if name in _OURS
    ]
    values = {
        "user name": settings.username,
        "password": settings.password,
        "client id": settings.client_id,
        "virtual host": settings.virtual_host,
    }
    faults += [
        f"the {name} holds a line break or NUL, which STOMP can't send"
        for name, value in values.items()
        if value is not None and set(value) & set("\r\n\0")
    ]
    faults += [
        f"the option {name!r} holds a colon in its name, a line break or NUL, which STOMP can't send"
        for name, value in settings.options.items()
        if ":" in name or set(name + value) & set("\r\n\0")
    ]
    if faults:
        raise ConfigurationError(faults)


TRANSPORT: Final[Transport] = StompTransport()
