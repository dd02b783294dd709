"""Remembers the redelivery count, last exception and rollback data of messages between their deliveries."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.redelivery.handling import RedeliveryHandling

DEFAULT_LIMIT = 5000
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageState:
    """State of one message between its deliveries.

    Attributes:
        seen: Number of deliveries with the redelivered flag; 0 means none so far.
        rollback_data: Strings that the handler left for the next delivery, by key.
        failure: The last exception of the handler.
        handling: Redelivery handling of this message alone; `None`: the activation's.

    Source: J169-J171, J173.
    """

    seen: int = 0
    rollback_data: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    failure: Failure | None = None
    handling: RedeliveryHandling | None = None


UNSEEN = MessageState()


class RecentMessages(OrderedDict[str, _Value]):
    """Values of messages by id, of at most `limit` messages; the least recently stored is dropped first."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        if limit < 1:
            raise ValueError(f"the limit is {limit}; expected at least 1")
        super().__init__()
        self._limit = limit

    def __setitem__(self, message_id: str, value: _Value) -> None:
        super().__setitem__(message_id, value)
        self.move_to_end(message_id)
        if len(self) > self._limit:
            self.popitem(last=False)


class RedeliveryTracker:
    """States of messages (`MessageState`) by message id, in memory, for one activation.

    Holds the states of at most `limit` messages. For as many messages, it also holds whether the broker's
    next redelivered flag may indicate a failure. Nothing survives the process. The counting itself is done by
    `DeliveryCounts`. Not thread-safe: the caller serializes access.

    Attributes:
        states: Redelivery count, last exception, rollback data and redelivery handling of each message.
        flags: Whether the next redelivered flag of a message may indicate a failure. Contains messages with
            an attempt, and messages with a delivery that was undone.
        subscriptions: Number of subscriptions so far. For messages that `flags` doesn't contain, the
            redelivered flag counts during the first subscription only.

    Source: J129-J132.
    """

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self.states: RecentMessages[MessageState] = RecentMessages(limit)
        self.flags: RecentMessages[bool] = RecentMessages(limit)
        self.subscriptions = 0

    def state(self, message_id: str, seen: int | None = None) -> MessageState:
        """Return the state of a message; `seen` replaces its count, unless it is `None`."""
        state = self.states.get(message_id, UNSEEN)
        return state if seen is None or state.seen == seen else replace(state, seen=seen)

    def at_least(self, message_id: str, seen: int) -> None:
        """Raise the count to a number from another source, for example the broker; never lowers it."""
        state = self.state(message_id)
        self.states[message_id] = replace(state, seen=max(state.seen, seen))

    def note(
        self,
        message_id: str,
        *,
        rollback_data: Mapping[str, str] | None = None,
        failure: Failure | None = None,
        handling: RedeliveryHandling | None = None,
    ) -> None:
        """Store data for the next delivery of a message.

        Args:
            message_id: The message.
            rollback_data: Merged into the stored data, key by key.
            failure: The last exception; `None` keeps the stored one.
            handling: Handling of this message alone; `None` keeps the stored one.
        """
        state = self.state(message_id)
        self.states[message_id] = MessageState(
            seen=state.seen,
            rollback_data=MappingProxyType({**state.rollback_data, **(rollback_data or {})}),
            failure=failure or state.failure,
            handling=state.handling if handling is None else handling,
        )
