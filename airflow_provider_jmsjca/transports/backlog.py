"""What a broker tells about a queue."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What a queue holds, as the broker counts it.

    Attributes:
        waiting: Messages no consumer has; those due later don't count.
        taken: Messages a consumer has and has not settled.
        consumers: How many the queue has, over all connections.
        taken_ids: The ids of those taken; none where they are very many.
    """

    waiting: int = 0
    taken: int = 0
    consumers: int = 0
    taken_ids: frozenset[str] = frozenset()
