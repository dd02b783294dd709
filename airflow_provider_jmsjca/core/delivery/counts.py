"""Delivery counts of messages that are in flight or may be redelivered, and notes about them.

The notes about a message are its last exception, and the rollback data and redelivery handling that the
handler has set for it (`MessageState`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from airflow_provider_jmsjca.core.delivery.events import MessageArrived
from airflow_provider_jmsjca.core.delivery.states import Condition, Counted, InFlightMessage
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.redelivery import RedeliveryTracker
from airflow_provider_jmsjca.core.redelivery.tracker import UNSEEN, RecentMessages

FAILING_LIMIT = 100_000


@dataclass(frozen=True, slots=True)
class FailedMoves:
    """Outcomes of earlier attempts to move a message.

    Attributes:
        failed: Number of moves that were refused, or whose connection was lost.
        lost: Number of moves whose connection was lost.
        delivered: Whether the message was delivered after a failed move, because it could not be moved.
    """

    failed: int = 0
    lost: int = 0
    delivered: bool = False


NO_MOVES = FailedMoves()


class DeliveryCounts:
    """Turns arrivals into in-flight messages, and counts each delivery once.

    Args:
        tracker: Stores the counts of messages, and the notes about them: last exception, rollback data and
            redelivery handling.
        take_back: Called with the id and the source of a message to remove its stored attempt.
        counts_repeats: As in `DeliverySettings`.

    Attributes:
        remembered: Tables of messages with counts, notes or an outcome in doubt, by id. Such a message can't
            take the fast path (`machine.allows_fast_path`).
        failing: Keys of the messages that failed, at most `FAILING_LIMIT`. Emptied when any message is
            settled, or is delivered for the first time.
        in_doubt: Keys of messages whose settlement has an unknown outcome.
        failed_moves: Outcomes of each message's moves, on all connections since it was last left in its
            queue.

    Source: J129-J132, J169-J171.
    """

    def __init__(
        self,
        tracker: RedeliveryTracker,
        take_back: Callable[[str, int], object],
        *,
        counts_repeats: bool,
    ) -> None:
        self._tracker = tracker
        self._counts_repeats = counts_repeats
        self._take_back = take_back
        self.in_doubt: RecentMessages[None] = RecentMessages()
        self.failed_moves: RecentMessages[FailedMoves] = RecentMessages()
        self.failing: RecentMessages[None] = RecentMessages(FAILING_LIMIT)
        self.remembered = (tracker.states, self.in_doubt, tracker.flags)

    def receive(self, event: MessageArrived) -> InFlightMessage:
        """Return the in-flight message for an arrival; it is counted later, when a unit takes it."""
        message_id, source = event.message_id, event.source
        key = f"\0{event.delivery}" if message_id is None else message_id
        # Copies of a message in several queues may have the same id.
        condition = Condition.DELIVERABLE
        if event.unsubscribed:
            condition = Condition.UNSUBSCRIBED
        elif event.undecodable is not None:
            condition = Condition.UNDECODABLE
        return InFlightMessage(event, f"{key}\0{source}" if source else key, condition)

    def knows(self, message_id: str) -> bool:
        """Return whether a message has a count, data of earlier deliveries, or a settlement in doubt."""
        return message_id in self._tracker.states or message_id in self.in_doubt

    def _evaluate(self, message: InFlightMessage) -> bool:
        """Decide whether this delivery counts as a redelivery.

        It does if the broker's redelivered flag indicates an earlier failure, or if the tracker has data of
        an earlier delivery.

        This happens when a unit takes the message, not on arrival. Until then, the outcome of a delivery over
        an earlier connection may become known.

        Returns:
            Whether this delivery counts.
        """
        if message.counted is not Counted.ARRIVED:
            return message.counted is Counted.AGAIN or message.first
        event = message.arrival
        tracker, key = self._tracker, message.key
        # After an attempt by this activation, the flag means a failure. If the last delivery was undone, it
        # counts as that delivery did. Any other flag stems from other processes, including those that ran
        # this activation before. It counts during the first subscription only: from the second on, the broker
        # also flags messages that were waiting in this process, or were lost in transit.
        redelivered = (
            event.redelivered and self._counts_repeats and tracker.flags.get(key, tracker.subscriptions <= 1)
        )
        parked = event.parked
        if parked is not None:
            message.served = not redelivered
        message.first = (redelivered or key in tracker.states) and not message.served
        if parked is not None:
            tracker.at_least(key, parked)
        if event.undecodable is not None:
            tracker.note(key, failure=event.undecodable)
        return message.first

    def count(self, message: InFlightMessage) -> None:
        """Count this delivery of the message, in memory."""
        raises, tracker, key = self._evaluate(message), self._tracker, message.key
        state = tracker.states.get(key, UNSEEN)
        message.seen = state.seen + raises
        message.counted = Counted.RAISED if raises else Counted.SEEN
        if raises:
            tracker.states[key] = replace(state, seen=message.seen)

    def recorded(self, message: InFlightMessage, attempt: int) -> None:
        """Set the count of a message from the number of its stored attempt."""
        self._evaluate(message)
        message.seen = max(attempt - 1, 0)
        message.counted = Counted.STORED
        if message.seen > 0:
            self._tracker.at_least(message.key, message.seen)

    def took_too_long(self, messages: Iterable[InFlightMessage], failure: Failure) -> None:
        """Store the timeout of a unit as the last exception of its messages.

        It may turn out later that a handler was not called. Guarantee: if the tracker had no data of its
        message before, `given_back` removes the exception. So the timeout does not count as an attempt.
        """
        for message in messages:
            message.first_noted = message.key not in self._tracker.states
            self._tracker.note(message.key, failure=failure)

    def to_come_again(self, messages: Iterable[InFlightMessage]) -> None:
        """Make the next delivery of these messages count as a redelivery, even without the broker's flag."""
        tracker = self._tracker
        for message in messages:
            self._evaluate(message)  # or the count of a parked message would be lost
            message.counted = Counted.AGAIN
            message.served = False
            tracker.states[message.key] = tracker.state(message.key)
            tracker.flags[message.key] = True
            self.failing[message.key] = None

    def given_back(self, messages: Iterable[InFlightMessage]) -> None:
        """Undo the delivery count of messages that go back to the broker unprocessed.

        An attempt is a call of the handler, a move or a deletion. An interrupted delay, waiting, and a
        handler that could not be called are not attempts. This also holds after lost connections and
        suspensions, and even if the broker counts the delivery.
        """
        states, flags = self._tracker.states, self._tracker.flags
        for message in messages:
            if message.arrival.message_id is None:  # it could not be recognized later
                continue
            self._evaluate(message)
            if message.counted is Counted.ARRIVED:
                message.counted = Counted.EVALUATED
            if not message.calls:
                # The flag on the next delivery means only what it meant on this one.
                flags[message.key] = message.first
                if message.first_noted:
                    states.pop(message.key, None)
            if message.counted is Counted.RAISED and (state := states.get(message.key)) is not None:
                states[message.key] = replace(state, seen=max(state.seen - 1, 0))
            self.not_attempted(message)

    def parked(self, message: InFlightMessage) -> None:
        """Record that the broker may have a delayed copy (`Park`) instead of the message.

        A redelivered flag on the copy does not refer to earlier attempts at the message.
        """
        self._tracker.flags.pop(message.key, None)

    def not_attempted(self, message: InFlightMessage) -> None:
        """Undo the stored attempt of a message if the attempt was not made."""
        if message.counted is Counted.STORED:
            message.counted = Counted.SEEN
            self.attempt_unused(message)

    def attempt_unused(self, message: InFlightMessage) -> None:
        """Undo a stored attempt that no unit waits for any more."""
        if (message_id := message.arrival.message_id) is not None:
            self._take_back(message_id, message.arrival.source)

    def move_failed(self, message: InFlightMessage, *, lost: bool) -> None:
        """Record that a move of the message was refused, or that its connection was `lost`."""
        before = self.failed_moves.get(message.key, NO_MOVES)
        self.failed_moves[message.key] = replace(before, failed=before.failed + 1, lost=before.lost + lost)

    def forget(self, messages: Sequence[InFlightMessage]) -> None:
        """Drop the counts, notes and failed moves of settled messages."""
        for table in (*self.remembered, self.failed_moves):
            if table:
                for message in messages:
                    table.pop(message.key, None)
