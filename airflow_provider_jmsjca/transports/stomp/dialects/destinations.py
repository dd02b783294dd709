"""Destinations as headers: what a name and its options say to the broker, and names that came back."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import ClassVar, NamedTuple, Protocol

from airflow_provider_jmsjca.core.configuration.destination_options import broker_options
from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.transports.stomp.dialects.headers import Headers
from airflow_provider_jmsjca.transports.stomp.wire.frames import encode_headers


class Naming(Protocol):
    """What a dialect says of destinations: the options its broker knows, and how a name is written."""

    product: ClassVar[str]
    consumer_options: ClassVar[frozenset[str]]
    producer_options: ClassVar[frozenset[str]]
    reading_options: ClassVar[frozenset[str]]
    choices: ClassVar[Mapping[str, frozenset[str]]]

    def destination(self, destination: Destination) -> str:
        """Return the `destination` header."""

    def check_headers(self, headers: Headers, body: bytes) -> None:
        """Refuse headers the broker would choke on."""


def check_name(destination: Destination) -> None:
    """Refuse a name in the provider's own JNDI, which a client in Java only can look up.

    Raises:
        ConfigurationError: It is such a name. The broker would make a queue of that very name.

    Source: J86, J90.
    """
    if destination.name.lower().startswith("jndi://"):
        raise ConfigurationError(
            f"destination {destination}: jndi:// names are in the provider's own JNDI, where STOMP can't "
            f"look. Expected the name at the broker, such as {destination.kind}://orders, or lookup:// and "
            "the name of an administered object"
        )


def check_broker_options(dialect: Naming, destination: Destination) -> None:
    """Refuse what the broker would ignore, or what would change a header of ours.

    Raises:
        ConfigurationError: Every such option.

    Source: J91.
    """
    known = dialect.consumer_options | dialect.producer_options | dialect.reading_options
    faults = [
        f"destination {destination}: {key} is no option of a destination on {dialect.product}, expected "
        + (f"one of: prefetch, {', '.join(sorted(known))}" if known else "prefetch or none")
        for key in broker_options(destination)
        if key not in known
    ]
    faults += [
        f"destination {destination}: {key} is {given!r}, expected one of: {', '.join(sorted(choices))}"
        for key, given in broker_options(destination).items()
        if (choices := dialect.choices.get(key)) is not None and given not in choices
    ]
    if faults:
        raise ConfigurationError(faults)


def consumer_headers(dialect: Naming, destination: Destination) -> dict[str, str]:
    """Return the headers for SUBSCRIBE.

    Raises:
        ConfigurationError: The broker doesn't know an option, or can't look the name up.

    Source: J91.
    """
    check_name(destination)
    check_broker_options(dialect, destination)
    return {k: v for k, v in broker_options(destination).items() if k in dialect.consumer_options}


def producer_headers(dialect: Naming, destination: Destination) -> list[tuple[str, str]]:
    """Return the headers for SEND; what is about consuming only is left out.

    Raises:
        ConfigurationError: The broker doesn't know an option.

    Source: J91.
    """
    if not destination.options:
        return []
    check_broker_options(dialect, destination)
    if destination.kind is DestinationKind.TOPIC:
        return []
    return [(k, v) for k, v in broker_options(destination).items() if k in dialect.producer_options]


class Address(NamedTuple):
    """The headers that all messages to a destination have.

    Attributes:
        lines: The same, encoded.
    """

    headers: tuple[tuple[str, str], ...]
    lines: bytes


@lru_cache(maxsize=1024)
def address_of(
    dialect: Naming,
    kind: DestinationKind,
    name: str,
    options: tuple[tuple[str, str], ...],
    *,
    persistent: bool,
) -> Address:
    """Return what stands at the head of every SEND. Remembered, for there are few destinations."""
    destination = Destination(kind, name, options)
    check_name(destination)
    headers = (
        ("destination", dialect.destination(destination)),
        # `persistent:false` says nothing new; RabbitMQ would declare a queue that ends with the connection.
        *((("persistent", "true"),) if persistent else ()),
        *producer_headers(dialect, destination),
    )
    dialect.check_headers([*headers], b"")
    return Address(headers, encode_headers(headers))
