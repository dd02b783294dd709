"""Where messages go and come from, as headers."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.transports.stomp.destination_options import producer_headers
from airflow_provider_jmsjca.transports.stomp.frames import encode_headers

if TYPE_CHECKING:
    from airflow_provider_jmsjca.transports.stomp.dialects.dialect import Dialect


class Address(NamedTuple):
    """The headers that all messages to a destination have.

    Attributes:
        lines: The same, encoded.
    """

    headers: tuple[tuple[str, str], ...]
    lines: bytes


@lru_cache(maxsize=1024)
def address_of(
    dialect: Dialect,
    kind: DestinationKind,
    name: str,
    options: tuple[tuple[str, str], ...],
    *,
    persistent: bool,
) -> Address:
    """Return what stands at the head of every SEND. Remembered, for there are few destinations."""
    destination = Destination(kind, name, options)
    headers = (
        ("destination", dialect.destination(destination)),
        # `persistent:false` says nothing new; RabbitMQ would declare a queue that ends with the connection.
        *((("persistent", "true"),) if persistent else ()),
        *producer_headers(dialect, destination),
    )
    dialect.check_headers([*headers], b"")
    return Address(headers, encode_headers(headers))


@lru_cache(maxsize=1024)
def destination_of(text: str) -> Destination | None:
    """Return the destination of `/queue/name` or `/topic/name`. Remembered, for there are few of them."""
    for kind in DestinationKind:
        prefix = f"/{kind}/"
        if text.startswith(prefix) and len(text) > len(prefix):
            return Destination(kind, text[len(prefix) :])
    return None
