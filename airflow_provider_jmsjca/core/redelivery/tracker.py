"""Remembers the redelivery counts of messages, and notes about them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.redelivery.handling import RedeliveryHandling

DEFAULT_LIMIT = 5000


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


class RedeliveryTracker:
    """Counts deliveries by message id, in memory, for one activation.

    Holds counts and notes of at most `limit` messages; the least recently seen message is dropped first. For
    as many messages, it also remembers whether the broker's next redelivered flag may indicate a failure.
    Nothing survives the process. Not thread-safe: the caller serializes access.

    Attributes:
        known: A view of the ids with a count or a note.
        taken_back: A view of the ids with an attempt, or with a delivery that was undone.

    Source: J129-J132.
    """

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        if limit < 1:
            raise ValueError(f"the limit is {limit}; expected at least 1")
        self._limit = limit
        self._states: OrderedDict[str, MessageState] = OrderedDict()
        self._flags: OrderedDict[str, bool] = OrderedDict()
        self._subscriptions = 0
        self.known = self._states.keys()
        self.taken_back = self._flags.keys()

    def seen(self, message_id: str) -> int:
        """Count a delivery with the redelivered flag.

        Returns:
            The count, including this delivery: 1 on the first redelivery.
        """
        state = self._states.get(message_id, UNSEEN)
        self._put(message_id, replace(state, seen=state.seen + 1))
        return state.seen + 1

    def at_least(self, message_id: str, seen: int) -> None:
        """Raise the count to a number from another source, for example the broker; never lowers it."""
        state = self.state(message_id)
        self._put(message_id, replace(state, seen=max(state.seen, seen)))

    def state(self, message_id: str) -> MessageState:
        """Return the state of a message, without counting."""
        return self._states.get(message_id, UNSEEN)

    def note(
        self,
        message_id: str,
        *,
        rollback_data: Mapping[str, str] | None = None,
        failure: Failure | None = None,
        handling: RedeliveryHandling | None = None,
    ) -> None:
        """Store notes about a message.

        Args:
            message_id: The message.
            rollback_data: Merged into the stored data, key by key.
            failure: The last exception; `None` keeps the stored one.
            handling: Handling of this message alone; `None` keeps the stored one.
        """
        state = self._states.get(message_id, UNSEEN)
        merged = MappingProxyType({**state.rollback_data, **(rollback_data or {})})
        self._put(
            message_id,
            MessageState(
                seen=state.seen,
                rollback_data=merged,
                failure=failure or state.failure,
                handling=state.handling if handling is None else handling,
            ),
        )

    def take_back(self, message_id: str, *, counted: bool, delivered: bool, flagged: bool) -> None:
        """Undo the count of a delivery that was not used.

        Args:
            message_id: The message.
            counted: Whether the delivery raised the count.
            delivered: Whether the broker delivered the message and no handler was called with it. The
                redelivered flag on the next delivery then counts only if `flagged` is true.
            flagged: Whether the delivery counted as a redelivery.
        """
        state = self._states.get(message_id)
        if state is not None and counted:
            self._states[message_id] = replace(state, seen=max(state.seen - 1, 0))
        if delivered:
            self._expect_flag(message_id, counts=flagged)

    def attempted(self, message_id: str) -> None:
        """Record an attempt: the redelivered flag on the next delivery refers to it."""
        self._put(message_id, self._states.get(message_id, UNSEEN))
        self._expect_flag(message_id, counts=True)

    def parked(self, message_id: str) -> None:
        """Record that a copy replaces the message; a flag on the copy does not refer to earlier attempts."""
        self._flags.pop(message_id, None)

    def subscribed(self) -> None:
        """Record a new subscription, after pending deliveries on the previous one were undone.

        From the second subscription on, the broker also flags messages that an earlier subscription received
        but no handler got. They were waiting in this process, or were lost in transit.
        """
        self._subscriptions += 1

    def flag_means_failure(self, message_id: str) -> bool:
        """Return whether the broker's flag on the next delivery may indicate a failure.

        - After an attempt by this activation, the flag means a failure.
        - If the last delivery was undone, the flag counts if that delivery counted as a redelivery. If it did
          not, the message is flagged only because it was returned.
        - Any other flag stems from other processes, including those that ran this activation before. It
          counts during the first subscription only. Later, this activation may have caused the flag itself.
        """
        return self._flags.get(message_id, self._subscriptions <= 1)

    def _expect_flag(self, message_id: str, *, counts: bool) -> None:
        self._flags[message_id] = counts
        self._flags.move_to_end(message_id)
        if len(self._flags) > self._limit:
            self._flags.popitem(last=False)

    def forget(self, message_id: str) -> None:
        """Drop all state of a message after its settlement; unknown ids are ignored."""
        self._states.pop(message_id, None)
        self._flags.pop(message_id, None)

    def forget_notes(self, message_id: str) -> None:
        """Drop the notes and the count of a message; the meaning of its next flag is kept."""
        self._states.pop(message_id, None)

    def __contains__(self, message_id: str) -> bool:
        return message_id in self._states

    def __len__(self) -> int:
        return len(self._states)

    def _put(self, message_id: str, state: MessageState) -> None:
        self._states[message_id] = state
        self._states.move_to_end(message_id)
        if len(self._states) > self._limit:
            self._states.popitem(last=False)
