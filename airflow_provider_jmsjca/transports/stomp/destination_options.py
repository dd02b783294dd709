"""The broker's options of a destination, as headers of the frames that name it."""

from __future__ import annotations

from typing import ClassVar, Protocol

from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.destination_options import broker_options
from airflow_provider_jmsjca.errors import ConfigurationError


class Knowing(Protocol):
    """What a dialect says of the options its broker knows."""

    product: ClassVar[str]
    consumer_options: ClassVar[frozenset[str]]
    producer_options: ClassVar[frozenset[str]]


def check_broker_options(dialect: Knowing, destination: Destination) -> None:
    """Refuse what the broker would ignore, or what would change a header of ours.

    Raises:
        ConfigurationError: Every such option.

    Source: J91.
    """
    known = dialect.consumer_options | dialect.producer_options
    faults = [
        f"destination {destination}: {key} is no option of a destination on {dialect.product}, expected "
        + (f"one of: prefetch, {', '.join(sorted(known))}" if known else "prefetch or none")
        for key in broker_options(destination)
        if key not in known
    ]
    if faults:
        raise ConfigurationError(faults)


def consumer_headers(dialect: Knowing, destination: Destination) -> dict[str, str]:
    """Return the headers for SUBSCRIBE.

    Raises:
        ConfigurationError: The broker doesn't know an option.

    Source: J91.
    """
    check_broker_options(dialect, destination)
    return {k: v for k, v in broker_options(destination).items() if k in dialect.consumer_options}


def producer_headers(dialect: Knowing, destination: Destination) -> list[tuple[str, str]]:
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
