"""`jms://orders.example.com:61613/queue/orders`: a destination with its broker, as one text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.masking import MASK
from airflow_provider_jmsjca.errors import ConfigurationError

SCHEME: Final = "jms"
DEFAULT_PORT: Final = 61613
"""The usual one of STOMP; an address that says it and one that says none are the same."""

_VIRTUAL_HOST = "virtual_host"
_DEFAULT_VIRTUAL_HOST = "/"
_EXPECTED = "expected jms://NAME/queue/DESTINATION or jms://NAME/topic/DESTINATION"
_PORT = re.compile(r"(?P<host>\[[^]]+\]|[^:]+)(?::(?P<port>\d*))?")
_HIGHEST_PORT = 65535
_SAFE = "/.:$-_~@!*'(),"


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationUri:
    """A destination, and whose it is.

    Attributes:
        authority: The broker's address, or the id of an Airflow connection, as the user says.
        destination: The destination.
        virtual_host: Of the broker, where it isn't the usual one.
    """

    authority: str
    destination: Destination
    virtual_host: str | None = None

    @classmethod
    def parse(cls, text: str) -> DestinationUri:
        """Return what the text says. Reserved characters in names are percent-encoded; `/` needn't be.

        Raises:
            ConfigurationError: The text is no such URI. User and password are never shown.
        """
        try:
            parts = urlsplit(text.strip())
        except ValueError as error:
            raise ConfigurationError(f"a jms:// URI that can't be read ({error}); {_EXPECTED}") from None
        shown = text if "@" not in parts.netloc else text.replace(parts.netloc.rpartition("@")[0], MASK)
        faults = []
        if parts.scheme.lower() != SCHEME:
            faults.append(f"the scheme is {parts.scheme!r}")
        if "@" in parts.netloc:
            faults.append("user and password belong into an Airflow connection")
        elif not parts.netloc:
            faults.append("there is no name after jms://")
        kind, _, name = parts.path.removeprefix("/").partition("/")
        if kind.lower() not in list(DestinationKind):
            faults.append(f"{kind!r} is neither 'queue' nor 'topic'")
        elif not name:
            faults.append(f"the {kind.lower()} has no name")
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        if unknown := [key for key in query if key != _VIRTUAL_HOST]:
            names = ", ".join(map(repr, unknown))
            faults.append(f"the query says {names}, and may say {_VIRTUAL_HOST!r} only")
        if parts.fragment:
            faults.append(f"{'#' + parts.fragment!r} is no part of it: # in a name is written %23")
        if faults:
            raise ConfigurationError(f"URI {shown!r}: {fault}; {_EXPECTED}" for fault in faults)
        return cls(
            authority=unquote(parts.netloc),
            destination=Destination(DestinationKind(kind.lower()), unquote(name)),
            virtual_host=query.get(_VIRTUAL_HOST) or None,
        )

    def normalized(self) -> DestinationUri:
        """Return the URI of a broker by which it is known: host in lower case, without the usual port.

        Raises:
            ConfigurationError: The port is none.
        """
        found = _PORT.fullmatch(self.authority)
        port = int(found["port"] or DEFAULT_PORT) if found is not None else 0
        if found is None or not 1 <= port <= _HIGHEST_PORT:
            raise ConfigurationError(
                f"URI {str(self)!r}: {self.authority!r} is no address of a broker; expected HOST or "
                f"HOST:PORT with a port from 1 to {_HIGHEST_PORT}"
            )
        host = found["host"].lower()
        return DestinationUri(
            authority=host if port == DEFAULT_PORT else f"{host}:{port}",
            destination=self.destination,
            virtual_host=None if self.virtual_host == _DEFAULT_VIRTUAL_HOST else self.virtual_host,
        )

    @property
    def broker(self) -> str:
        """The first part: whose the destination is, such as `jms://orders.example.com`."""
        return f"{SCHEME}://{quote(self.authority, safe='[]:.-_~')}"

    @property
    def name(self) -> str:
        """The second part: which destination it is, such as `queue/orders`."""
        encoded = quote(self.destination.name, safe=_SAFE)
        if encoded.endswith("/"):  # which Airflow takes off a URI
            encoded = f"{encoded[:-1]}%2F"
        query = f"?{_VIRTUAL_HOST}={quote(self.virtual_host, safe='')}" if self.virtual_host else ""
        return f"{self.destination.kind}/{encoded}{query}"

    def __str__(self) -> str:
        return f"{self.broker}/{self.name}"
