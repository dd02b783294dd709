"""Destinations: where messages are sent to and received from."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from airflow_provider_jmsjca.errors import ConfigurationError

_JNDI = "jndi"  # marks a name in the provider's own JNDI and is part of the name (J90)


class DestinationKind(enum.StrEnum):
    """The two messaging styles of JMS."""

    QUEUE = "queue"
    TOPIC = "topic"


@dataclass(frozen=True, slots=True)
class Destination:
    """A queue or a topic, by its name at the broker (without any prefix).

    Source: JMS 2.0 section 2.4; J50, J51.
    """

    kind: DestinationKind
    name: str

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigurationError("a destination needs a name, for example queue://orders")

    @classmethod
    def queue(cls, name: str) -> Destination:
        """Return the queue of that name."""
        return cls(DestinationKind.QUEUE, name)

    @classmethod
    def topic(cls, name: str) -> Destination:
        """Return the topic of that name."""
        return cls(DestinationKind.TOPIC, name)

    @classmethod
    def parse(cls, text: str, default: DestinationKind = DestinationKind.QUEUE) -> Destination:
        """Return the destination that `queue://name`, `topic://name` or a bare name says.

        Also read: `queue:name`, `/queue/name`, and the same for topics. Blanks around the name don't count.

        Args:
            text: The destination.
            default: What a bare name names.

        Raises:
            ConfigurationError: The text names no destination, or says another kind than those two.
        """
        text = text.strip()
        scheme, separator, name = text.partition("://")
        for kind in DestinationKind:
            if separator and scheme.lower() == kind:
                return cls(kind, name)
            for prefix in (f"/{kind}/", f"{kind}:"):
                if text.startswith(prefix):
                    return cls(kind, text[len(prefix) :])
        if separator and scheme.lower() != _JNDI:
            raise ConfigurationError(
                f"destination: {scheme!r} is no kind of destination, expected queue://name, topic://name or "
                "a bare name"
            )
        return cls(default, text)

    def __str__(self) -> str:
        return f"{self.kind}://{self.name}"
