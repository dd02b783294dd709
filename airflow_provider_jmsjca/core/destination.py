"""Destinations: the queues and topics of messages."""

from __future__ import annotations

import difflib
import enum
import re
from dataclasses import dataclass, field

from airflow_provider_jmsjca.core.masking import MASK
from airflow_provider_jmsjca.errors import ConfigurationError

_HARMLESS = re.compile(r"[\w./$-]*")
_JNDI = "jndi"  # marks a name in the provider's own JNDI and is part of the name (J90)


class DestinationKind(enum.StrEnum):
    """Kind of a destination: queue or topic."""

    QUEUE = "queue"
    TOPIC = "topic"


@dataclass(frozen=True, slots=True)
class Destination:
    """A queue or a topic, by its name at the broker (without any prefix).

    Attributes:
        options: Options for using the destination; ignored when destinations are compared.

    Source: JMS 2.0 section 2.4; J50, J51, J91.
    """

    kind: DestinationKind
    name: str
    options: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)

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
        """Return the destination for `queue://name`, `topic://name` or a bare name.

        Also accepted: `queue:name`, `/queue/name`, and the same for topics. Blanks around the name are
        ignored. A queue with a name like `other://name` is written `queue://other://name`.

        Args:
            text: The destination.
            default: Kind of destination for a bare name.

        Raises:
            ConfigurationError: The text is not a destination, or its type is neither queue nor topic.
        """
        text = text.strip()
        found = _read(text)
        if found is None:
            _refuse_unknown_type(text)
            return cls(default, text)
        return found

    @classmethod
    def from_header(cls, text: str) -> Destination:
        """Return the destination in a message header.

        Text in none of the forms of `parse` is the name of a queue, because producers' headers must not be
        refused.

        Raises:
            ConfigurationError: The name is empty.
        """
        return _read(text) or cls.queue(text)

    def __str__(self) -> str:
        return f"{self.kind}://{self.name}"


def _read(text: str) -> Destination | None:
    scheme, separator, name = text.partition("://")
    for kind in DestinationKind:
        if separator and scheme.lower() == kind:
            return Destination(kind, name)
        for prefix in (f"/{kind}/", f"{kind}:"):
            if text.startswith(prefix):
                return Destination(kind, text[len(prefix) :])
    return None


def _refuse_unknown_type(text: str) -> None:
    scheme, separator, rest = text.partition("://")
    if not separator or scheme.lower() == _JNDI:
        return
    # The text may be a broker URL with a password.
    shown = text if _HARMLESS.fullmatch(rest) else f"{scheme}://{MASK}"
    close = difflib.get_close_matches(scheme.lower(), list(DestinationKind), n=1)
    hint = f" (did you mean {str(close[0])!r}?)" if close else ""
    raise ConfigurationError(
        f"destination {shown!r}: no destination type {scheme!r}{hint}; expected queue://name, "
        f"topic://name or the name of a queue (queue://{shown} if it is really called that)"
    )
