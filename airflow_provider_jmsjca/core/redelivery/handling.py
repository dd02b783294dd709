"""The policy: which action a message's count asks for."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import ClassVar

from airflow_provider_jmsjca.core.redelivery.actions import (
    BLANKS,
    Action,
    Delay,
    Delete,
    Move,
    MoveKind,
    MoveTarget,
    order_faults,
)
from airflow_provider_jmsjca.core.redelivery.grammar import parse_actions
from airflow_provider_jmsjca.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class RedeliveryHandling:
    """What happens to messages that come again, by how often they came again.

    The text form is canonical: parsing `str(handling)` gives an equal value.

    Attributes:
        actions: In order of their counts; empty means that every message is delivered at once, for ever.

    Raises:
        ConfigurationError: The actions are out of order, or follow a move or a deletion.

    Source: J128-J144, J137b, J148.
    """

    DEFAULT: ClassVar[RedeliveryHandling]

    actions: tuple[Action, ...] = ()

    def __post_init__(self) -> None:
        faults = tuple(sentence for _, sentence in order_faults(self.actions))
        if faults:
            raise ConfigurationError(faults)

    @classmethod
    def parse(cls, text: str) -> RedeliveryHandling:
        """Return the handling that a JMSJCA string describes.

        Args:
            text: For example `5:1000; 10:5000; 50:move(queue:dlq.$)`; empty for no handling.

        Raises:
            ConfigurationError: Every fault with its position.
        """
        return cls(parse_actions(text))

    @classmethod
    def from_client_properties(
        cls,
        *,
        delay: str = "",
        after: int | None = None,
        action: str = "",
        move_kind: str = "auto",
        move_name: str = "",
    ) -> RedeliveryHandling:
        """Return the handling that the separate properties of a Java CAPS client describe.

        Args:
            delay: Delays separated by commas, `5:1000, 10:5000`; empty for none.
            after: Move/Delete after N times.
            action: `move` or `delete`; empty: retried until received.
            move_kind: `queue`, `topic`, or `auto` for the same kind as it came from.
            move_name: Where to; `$` stands for the original name.

        Raises:
            ConfigurationError: A property is impossible, or missing for the action.

        Source: C14.
        """
        actions = parse_actions(delay)
        wanted = action.strip(BLANKS).lower()
        if not wanted:
            return cls(actions)
        if wanted not in {"move", "delete"}:
            raise ConfigurationError(f"the action is {action!r}; expected move, delete or nothing")
        if after is None:
            raise ConfigurationError(f"the action {action!r} needs the number of times after which it acts")
        if wanted == "delete":
            return cls((*actions, Delete(after)))
        target = MoveTarget.named(MoveKind.SAME if move_kind == "auto" else move_kind, move_name)
        return cls((*actions, Move.to(after, (target,))))

    def action_for(self, seen: int) -> Action | None:
        """Return what to do with a message that came again.

        Args:
            seen: How often it was seen with the redelivered flag: 0 on the first delivery, 1 on the next.

        Returns:
            The action with the highest count up to `seen`; `None` before the first: deliver at once.

        Source: J130, J134, J137.
        """
        index = bisect_right(self.actions, seen, key=lambda action: action.at)
        return self.actions[index - 1] if index else None

    def __str__(self) -> str:
        return "; ".join(map(str, self.actions))


RedeliveryHandling.DEFAULT = RedeliveryHandling(
    (Delay(3, 25), Delay(5, 50), Delay(10, 100), Delay(20, 1000), Delay(50, 5000))
)
