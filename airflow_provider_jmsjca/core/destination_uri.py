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
"""Default port of STOMP; an address with it and an address without a port are equal."""

_VIRTUAL_HOST = "virtual_host"
_DEFAULT_VIRTUAL_HOST = "/"
_EXPECTED = "expected jms://NAME/queue/DESTINATION or jms://NAME/topic/DESTINATION"
_PORT = re.compile(r"(?P<host>\[[^]]+\]|[^:]+)(?::(?P<port>\d*))?")
_HIGHEST_PORT = 65535
_SAFE = "/.:$-_~@!*'(),"


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationUri:
    """A destination, and the broker or connection it belongs to.

    Attributes:
        authority: The broker's address, or the id of an Airflow connection, as written by the user.
        destination: The destination.
        virtual_host: Virtual host of the broker; `None` for the default.
    """

    authority: str
    destination: Destination
    virtual_host: str | None = None

    @classmethod
    def parse(cls, text: str) -> DestinationUri:
        """Return the URI for a text. Reserved characters in names are percent-encoded; `/` may stay as it is.

        Raises:
            ConfigurationError: The text is not such a URI. User and password are never shown.
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
            faults.append("user and password belong in an Airflow connection")
        elif not parts.netloc:
            faults.append("the name after jms:// is missing")
        kind, _, name = parts.path.removeprefix("/").partition("/")
        if kind.lower() not in list(DestinationKind):
            faults.append(f"{kind!r} is neither 'queue' nor 'topic'")
        elif not name:
            faults.append(f"the {kind.lower()} has no name")
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        if unknown := [key for key in query if key != _VIRTUAL_HOST]:
            names = ", ".join(map(repr, unknown))
            faults.append(f"the query has {names}, expected {_VIRTUAL_HOST!r} only")
        if parts.fragment:
            faults.append(f"{'#' + parts.fragment!r} is not allowed; write # in a name as %23")
        if faults:
            raise ConfigurationError(f"URI {shown!r}: {fault}; {_EXPECTED}" for fault in faults)
        return cls(
            authority=unquote(parts.netloc),
            destination=Destination(DestinationKind(kind.lower()), unquote(name)),
            virtual_host=query.get(_VIRTUAL_HOST) or None,
        )

    def normalized(self) -> DestinationUri:
        """Return the canonical URI: host in lower case, without default port and default virtual host.

        Raises:
            ConfigurationError: The authority is not a broker address, or its port is out of range.
        """
        found = _PORT.fullmatch(self.authority)
        port = int(found["port"] or DEFAULT_PORT) if found is not None else 0
        if found is None or not 1 <= port <= _HIGHEST_PORT:
            raise ConfigurationError(
                f"URI {str(self)!r}: {self.authority!r} is not the address of a broker; expected HOST or "
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
        """First part of the URI, which identifies the broker, such as `jms://orders.example.com`."""
        return f"{SCHEME}://{quote(self.authority, safe='[]:.-_~')}"

    @property
    def name(self) -> str:
        """Second part of the URI, which identifies the destination, such as `queue/orders`."""
        encoded = quote(self.destination.name, safe=_SAFE)
        if encoded.endswith("/"):  # Airflow strips a trailing slash from a URI
            encoded = f"{encoded[:-1]}%2F"
        query = f"?{_VIRTUAL_HOST}={quote(self.virtual_host, safe='')}" if self.virtual_host else ""
        return f"{self.destination.kind}/{encoded}{query}"

    def __str__(self) -> str:
        return f"{self.broker}/{self.name}"
