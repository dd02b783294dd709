"""Remembers how often messages came again, and what was noted about them."""

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
    """What is known about one message between its deliveries.

    Attributes:
        seen: How often it was seen with the redelivered flag; 0 means never before.
        rollback_data: Strings that the handler left for its next delivery, by key.
        failure: The last exception of the handler.
        handling: Redelivery handling of this message alone; `None`: that of the activation.

    Source: J169-J171, J173.
    """

    seen: int = 0
    rollback_data: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    failure: Failure | None = None
    handling: RedeliveryHandling | None = None


UNSEEN = MessageState()


class RedeliveryTracker:
    """Counts sightings by message id, in memory, for one activation.

    Holds at most `limit` messages; the least recently seen is forgotten first, with all that was noted about
    it. For as many it remembers what the broker's next flag means. Nothing survives the process. Not safe to
    use from several threads at once: the caller serialises.

    Attributes:
        known: A view of the ids that are counted, or about which something was noted.
        taken_back: A view of the ids of which an attempt was made, or a sighting taken back.

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
        """Count a sighting with the redelivered flag.

        Returns:
            The count, this sighting included: 1 on the first redelivery.
        """
        state = self.state(message_id)
        self._put(message_id, replace(state, seen=state.seen + 1))
        return state.seen + 1

    def at_least(self, message_id: str, seen: int) -> None:
        """Raise the count to what somebody else knows, for example the broker; never lowers it."""
        state = self.state(message_id)
        self._put(message_id, replace(state, seen=max(state.seen, seen)))

    def state(self, message_id: str) -> MessageState:
        """Return what is known about a message, without counting."""
        return self._states.get(message_id, UNSEEN)

    def note(
        self,
        message_id: str,
        *,
        rollback_data: Mapping[str, str] | None = None,
        failure: Failure | None = None,
        handling: RedeliveryHandling | None = None,
    ) -> None:
        """Keep something about a message.

        Args:
            message_id: The message.
            rollback_data: Added to what is there, key by key.
            failure: The last exception; `None` keeps the one before.
            handling: Handling of this message alone; `None` keeps the one before.
        """
        state = self.state(message_id)
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
        """Undo a sighting that led to nothing.

        Args:
            message_id: The message.
            counted: The sighting had raised the count.
            delivered: The broker's delivery led to nothing, too; otherwise it had led to a hand-over before.
            flagged: The sighting counts as a redelivery.
        """
        state = self._states.get(message_id)
        if state is not None and counted:
            self._states[message_id] = replace(state, seen=max(state.seen - 1, 0))
        if delivered:
            self._expect_flag(message_id, counts=flagged)

    def attempted(self, message_id: str) -> None:
        """Note that an attempt was made: the flag on the next sighting is about that."""
        self.note(message_id)
        self._expect_flag(message_id, counts=True)

    def parked(self, message_id: str) -> None:
        """Note that a copy takes the message's place; a flag on the copy is not about earlier attempts."""
        self._flags.pop(message_id, None)

    def subscribed(self) -> None:
        """Note a new subscription; messages held by the one before were taken back already.

        From the second one on, the broker also flags messages that it had sent over an earlier one and that
        no handler got: they waited in this process, or were lost on the way.
        """
        self._subscriptions += 1

    def flag_means_failure(self, message_id: str) -> bool:
        """Say whether the broker's flag on the next sighting may be about a failure.

        - After an attempt of this activation it is.
        - If the last sighting was taken back, the flag counts if it counted then. If not, the message has it
          only because it went back.
        - Any other flag is about other processes, an earlier life of this one among them, and counts during
          the first subscription only. After that, this activation may have caused the flag itself.
        """
        return self._flags.get(message_id, self._subscriptions <= 1)

    def _expect_flag(self, message_id: str, *, counts: bool) -> None:
        self._flags[message_id] = counts
        self._flags.move_to_end(message_id)
        if len(self._flags) > self._limit:
            self._flags.popitem(last=False)

    def forget(self, message_id: str) -> None:
        """Drop all about a message, for when it is settled; unknown ids are ignored."""
        self._states.pop(message_id, None)
        self._flags.pop(message_id, None)

    def forget_notes(self, message_id: str) -> None:
        """Drop what is noted about a message, and its count; what was taken back stays known."""
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
