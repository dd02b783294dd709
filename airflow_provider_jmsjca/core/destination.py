"""Destinations: where messages are sent to and received from."""

from __future__ import annotations

import difflib
import enum
import re
from dataclasses import dataclass

from airflow_provider_jmsjca.errors import ConfigurationError

_TYPED = re.compile(r"(?P<type>[A-Za-z][A-Za-z0-9+.-]*)://")


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

        Also read: `queue:name`, `/queue/name`, and the same for topics; blanks around it don't count. A queue
        whose own name looks like `other://name` is written `queue://other://name`.

        Raises:
            ConfigurationError: The text names no destination, or one of an unknown type.
        """
        text = text.strip()
        found = _read(text)
        if found is None:
            refuse_unknown_type(text)
            return cls.queue(text)
        return found

    @classmethod
    def from_header(cls, text: str) -> Destination:
        """Return the destination that a message's header names.

        Whatever has none of the forms of `parse` is the name of a queue: what producers write is not ours to
        refuse.

        Raises:
            ConfigurationError: The name is empty.
        """
        return _read(text) or cls.queue(text)

    def __str__(self) -> str:
        return f"{self.kind}://{self.name}"


def refuse_unknown_type(text: str) -> None:
    """Refuse what a user may have meant as another type of destination, and would get as a queue's name.

    Raises:
        ConfigurationError: The text begins with a type that isn't `queue` or `topic`.
    """
    typed = _TYPED.match(text)
    if typed is None or typed["type"] in set(DestinationKind):
        return
    close = difflib.get_close_matches(typed["type"].lower(), list(DestinationKind), n=1)
    hint = f" (did you mean {str(close[0])!r}?)" if close else ""
    raise ConfigurationError(
        f"destination {text!r}: no destination type {typed['type']!r}{hint}; expected queue://name, "
        f"topic://name or the name of a queue (queue://{text} if it is really called that)"
    )


def _read(text: str) -> Destination | None:
    for kind in DestinationKind:
        for prefix in (f"{kind}://", f"/{kind}/", f"{kind}:"):
            if text.startswith(prefix):
                return Destination(kind, text[len(prefix) :])
    return None
