"""Destinations: where messages are sent to and received from."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from airflow_provider_jmsjca.errors import ConfigurationError


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
    def parse(cls, text: str) -> Destination:
        """Return the destination that `queue://name`, `topic://name` or a bare queue name says.

        Also read: `queue:name`, `/queue/name`, and the same for topics.

        Raises:
            ConfigurationError: The text names no destination.
        """
        for kind in DestinationKind:
            for prefix in (f"{kind}://", f"/{kind}/", f"{kind}:"):
                if text.startswith(prefix):
                    return cls(kind, text[len(prefix) :])
        return cls.queue(text)

    def __str__(self) -> str:
        return f"{self.kind}://{self.name}"
