"""The backlog of a queue."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Message and consumer counts of a queue, as reported by the broker.

    Attributes:
        waiting: Number of messages ready for delivery, without delayed ones.
        taken: Number of in-flight messages: delivered to a consumer and not settled.
        consumers: Number of consumers over all connections.
        taken_ids: Ids of the in-flight messages; empty if there are too many to list.
    """

    waiting: int = 0
    taken: int = 0
    consumers: int = 0
    taken_ids: frozenset[str] = frozenset()
