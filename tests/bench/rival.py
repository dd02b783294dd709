"""What every contestant of the benchmark offers."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, Protocol, TypeAlias

from tests.bench.rates import Measured

Leg: TypeAlias = Callable[[int], Iterator[Measured]]
"""Work on a queue of its own, which is empty afterwards; given how many messages, yields what it measured."""


class Rival(Protocol):
    """Somebody who does the same work on the same broker.

    Attributes:
        who: Its name in the tables.
    """

    who: ClassVar[str]

    def manner(self) -> str:
        """Return how it works and what it waits for, in a line: what the figures are worth depends on it."""

    def legs(self) -> Mapping[str, Leg]:
        """Return its pieces of work by their names; rivals do those of one name one after another."""

    def close(self) -> None:
        """End what it started."""


def new_queue() -> str:
    """Return the name of a queue that doesn't exist yet."""
    return f"bench.{uuid.uuid4().hex[:12]}"
