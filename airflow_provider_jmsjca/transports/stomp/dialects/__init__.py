"""One dialect per broker, chosen from the `server` header of CONNECTED.

A dialect is stateless: it turns messages into frames and back, and defines how its broker settles and
recovers messages. It uses the frames of `wire`, and imports neither links nor consumers.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.errors import CapabilityError, ConfigurationError
from airflow_provider_jmsjca.transports.capabilities import Capabilities
from airflow_provider_jmsjca.transports.stomp.dialects.activemq import ActiveMqDialect
from airflow_provider_jmsjca.transports.stomp.dialects.artemis import ArtemisDialect
from airflow_provider_jmsjca.transports.stomp.dialects.dialect import Dialect
from airflow_provider_jmsjca.transports.stomp.dialects.generic import GenericDialect
from airflow_provider_jmsjca.transports.stomp.dialects.rabbitmq import RabbitMqDialect
from airflow_provider_jmsjca.transports.stomp.dialects.settlement import UnitKind
from airflow_provider_jmsjca.transports.stomp.wire.frames import Frame

GENERIC: Final = GenericDialect()
_known: Final[dict[str, Dialect]] = {
    "ActiveMQ": ActiveMqDialect(),
    "ActiveMQ-Artemis": ArtemisDialect(),
    "RabbitMQ": RabbitMqDialect(),
}
BY_SERVER: Final[Mapping[str, Dialect]] = MappingProxyType(_known)
_OURS: Final = frozenset(_known)
_KEPT_BY: Final = {
    "selector": ("subscribe",),
    "delivery_count": ("delivery_count",),
    "stable_message_id": ("lasting",),
    "durable_subscription": ("subscribe", "delete_durable"),
    "deduplicating_send": ("special_headers",),
    "typed_properties": ("property_headers", "decode_properties"),
    "body_kinds": ("encode_body", "decode_body"),
}
_SAMPLE: Final = Frame(
    b"MESSAGE", b"\nsubscription:s1\nmessage-id:m1\nack:a1\ndestination:/queue/orders", b"hello"
)
_TOKEN: Final = rb"a\c1" + b"\xff"
_SERVER: Final = re.compile(r"(?P<name>[^/\s]*)(?:/(?P<version>\S*))?")


def register_dialect(server: str, dialect: Dialect) -> None:
    """Register a custom dialect for a server, for all later connections of this process.

    The dialect is checked first. It must

    * be an instance of `Dialect`, and override methods of `Dialect` only with methods
    * read each destination back from the header that it has written for it
    * read id, delivery count and expiration of a message only from headers that senders can't set
    * override the methods that its capabilities require
    * have `UnitKind.TRANSACTION` if it has the capability `atomic_commit`
    * not have the capability `backlog`
    * return bytes from `orphan`, and bytes or `None` from `acknowledgement`, without raising an error.

    Args:
        server: The server's name in the `server` header of CONNECTED, up to the slash.
        dialect: A dialect instance; all connections to such servers share it.

    Raises:
        ConfigurationError: The server already has a dialect of this package, its name is not valid in the
            header, or the dialect fails a check.
    """
    given: object = dialect  # untyped callers may pass any object
    if not isinstance(given, Dialect):
        shown = given.__name__ if isinstance(given, type) else type(given).__name__
        raise ConfigurationError(f"server {server!r}: expected an object of a dialect, such as {shown}()")
    if server in _OURS:
        raise ConfigurationError(f"server {server!r} has a built-in dialect, which can't be replaced")
    if not server or not _SERVER.fullmatch(server) or "/" in server:
        raise ConfigurationError(
            f"server {server!r}: expected the name in the server header of CONNECTED, up to the slash"
        )
    _check_methods(server, dialect)
    _check_destinations(server, dialect)
    if forgeable := sorted(_asked(dialect) - (dialect.hidden & dialect.taken)):
        raise ConfigurationError(
            f"server {server!r}: {type(dialect).__name__} trusts the header {header!r}, but a sender can set "
            "it as a property: add it to hidden and to taken"
            for header in forgeable
        )
    _check_acknowledgement(server, dialect)
    _check_orphan(server, dialect)
    if lacking := list(_lacking(dialect)):
        raise ConfigurationError(
            f"server {server!r}: {type(dialect).__name__} claims {each}" for each in lacking
        )
    _known[server] = dialect


def _check_methods(server: str, dialect: Dialect) -> None:
    """Refuse a dialect that has a plain value where `Dialect` has a method."""
    for name in sorted(dir(Dialect)):
        if callable(getattr(Dialect, name)) and not callable(found := getattr(dialect, name)):
            raise ConfigurationError(
                f"server {server!r}: {type(dialect).__name__}.{name} is {found}; "
                f"expected a method, as {name}() of GenericDialect"
            )


def _check_destinations(server: str, dialect: Dialect) -> None:
    """Refuse a dialect that doesn't read destinations as it writes them."""
    for destination in (Destination.queue("orders"), Destination.topic("orders")):
        try:
            written = dialect.reply_to(destination)
            found = dialect.reply_to_from(written)
        except CapabilityError:
            continue  # a broker may have only queues, or only topics
        except Exception as error:
            raise ConfigurationError(
                f"server {server!r}: {type(dialect).__name__} raises {type(error).__name__}: {error} when it "
                f"writes {destination} and reads that again: see its destination() and destination_from()"
            ) from error
        if found != destination:
            raise ConfigurationError(
                f"server {server!r}: {type(dialect).__name__} writes {destination} as {written!r}, which it "
                f"reads as {found}: override destination_from() as the inverse of destination()"
            )


def _check_acknowledgement(server: str, dialect: Dialect) -> None:
    """Refuse a dialect that fails on a sample frame, or returns neither bytes nor `None` for ACK."""
    try:
        token: object = dialect.acknowledgement(_SAMPLE)
    except Exception as error:
        raise ConfigurationError(
            f"server {server!r}: {type(dialect).__name__}.acknowledgement() raises {type(error).__name__}: "
            f"{error}; expected the value as bytes, or None where the frame has none"
        ) from error
    if not (token is None or isinstance(token, bytes)):
        raise ConfigurationError(
            f"server {server!r}: {type(dialect).__name__}.acknowledgement() returns {type(token).__name__}; "
            "expected bytes as on the wire, such as frame.first(b'\\nmessage-id:'), or None"
        )


def _check_orphan(server: str, dialect: Dialect) -> None:
    """Refuse a dialect with an `orphan` that fails on a token of `acknowledgement`, or returns no bytes."""
    try:
        token: object = dialect.orphan(_TOKEN, "s2")
    except Exception as error:
        raise ConfigurationError(
            f"server {server!r}: {type(dialect).__name__}.orphan() raises {type(error).__name__}: {error}; "
            "expected bytes for any value that acknowledgement() returns, text or not"
        ) from error
    if not isinstance(token, bytes):
        raise ConfigurationError(
            f"server {server!r}: {type(dialect).__name__}.orphan() returns {type(token).__name__}; "
            "expected bytes as on the wire"
        )


def _lacking(dialect: Dialect) -> Iterator[str]:
    """Yield each claimed capability that the dialect lacks the code for."""
    own, claimed = type(dialect), dialect.capabilities.table()
    claimed["body_kinds"] = not dialect.capabilities.body_kinds <= Capabilities().body_kinds
    for capability, methods in _KEPT_BY.items():
        same = [name for name in methods if getattr(own, name) is getattr(GenericDialect, name)]
        if claimed[capability] and same:
            yield f"{capability}, and doesn't override {' and '.join(f'{name}()' for name in same)}"
    if claimed["atomic_commit"] and dialect.unit_kind is not UnitKind.TRANSACTION:
        yield "atomic_commit, and its unit_kind isn't UnitKind.TRANSACTION"
    if claimed["backlog"]:
        yield "backlog, which only Artemis' own management can be asked for"


def _asked(dialect: Dialect) -> set[str]:
    """Return the headers from which the dialect reads values that only the broker may set."""
    headers = _Noting()
    # With no headers, a dialect may raise any error; each header it reads is recorded first.
    with contextlib.suppress(Exception):
        dialect.delivery_count(headers)
    return {dialect.identifier, dialect.expires, *headers.asked}


class _Noting(dict[str, str]):
    """An empty mapping of headers that records the requested names."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()

    def __contains__(self, name: object) -> bool:
        self.asked.add(str(name))
        return False

    def __missing__(self, name: str) -> str:
        self.asked.add(name)
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Record the name, and return the default."""
        self.asked.add(name)
        return default


def recognise(server: str) -> tuple[Dialect, str, str]:
    """Return the dialect, the product's name and its version for a `server` header.

    An unknown product gets the generic dialect, and keeps its own name.
    """
    match = _SERVER.match(server)
    name, version = (match["name"], match["version"] or "") if match else ("", "")
    dialect = BY_SERVER.get(name, GENERIC)
    return dialect, name if dialect is GENERIC and name else dialect.product, version
