"""What is known about messages from one sighting to the next: counts, notes, unknown outcomes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from airflow_provider_jmsjca.core.delivery.events import MessageArrived
from airflow_provider_jmsjca.core.delivery.units import InHand
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.redelivery import MessageState, RedeliveryTracker

IN_DOUBT_LIMIT = 5000


@dataclass(frozen=True, slots=True)
class MovesInVain:
    """What became of the moves of one message so far.

    Attributes:
        failed: How many were refused, or lost with their connection.
        lost: How many of these were lost with their connection.
        delivered: The message has been delivered since, for it could not be moved.
    """

    failed: int = 0
    lost: int = 0
    delivered: bool = False


_NONE = MovesInVain()


class Sightings:
    """Turns arrivals into messages in hand, and counts each sighting once.

    Args:
        tracker: Counts and notes.
        take_back: Called with the id and the source of a message whose stored attempt led to nothing.

    Source: J129-J132, J169-J171.
    """

    def __init__(
        self, tracker: RedeliveryTracker, take_back: Callable[[str, int], object] = lambda *_: None
    ) -> None:
        self._tracker = tracker
        self._take_back = take_back
        self._in_doubt: OrderedDict[str, None] = OrderedDict()
        self._moves_in_vain: OrderedDict[str, MovesInVain] = OrderedDict()

    def receive(self, event: MessageArrived) -> InHand:
        """Return the message that arrived; it isn't counted before its turn comes."""
        return InHand(
            delivery=event.delivery,
            key=_key(event),
            message_id=event.message_id,
            group=event.group or None,
            poison=event.undecodable is not None,
            undecodable=event.undecodable is not None,
            arrival=event,
            unsubscribed=event.unsubscribed,
            in_progress=event.in_progress,
            source=event.source,
        )

    def knows(self, message_id: str) -> bool:
        """Say whether a message was handed over before, or something was noted about it."""
        return message_id in self._tracker or message_id in self._in_doubt

    def remembers(self, message_id: str) -> bool:
        """Say whether there is anything to know about a message."""
        return self.knows(message_id) or self._tracker.has_taken_back(message_id)

    def _look(self, message: InHand) -> None:
        """Take into account what the broker says, less what is known to have led to nothing.

        It is done when the message's turn comes, and not before: what became of it over the connection
        before may be known only then.
        """
        event, message.arrival = message.arrival, None
        if event is None:
            return
        tracker, key = self._tracker, message.key
        in_vain = tracker.in_vain(key)
        before = max((event.delivery_count or 1) - 1 - in_vain.deliveries, 0)
        redelivered = event.redelivered and (in_vain.flagged or not in_vain.deliveries)
        message.served = event.parked is not None and not redelivered
        flagged = redelivered or before > 0 or key in tracker
        message.first = message.flagged = flagged and not message.served
        if before > 1 or event.parked is not None:
            tracker.at_least(key, max(before - 1, event.parked or 0))
        if event.undecodable is not None:
            tracker.note(key, failure=event.undecodable)

    def count(self, message: InHand) -> None:
        """Count this sighting of the message, in memory."""
        self._look(message)
        message.counted, message.raised = True, message.flagged
        key = message.key
        message.seen = self._tracker.seen(key) if message.flagged else self._tracker.state(key).seen

    def recorded(self, message: InHand, attempt: int) -> None:
        """Take the count from the number of the attempt, as stored."""
        self._look(message)
        before = self._tracker.state(message.key).seen
        seen = max(attempt - 1, 0)
        message.counted = message.stored = True
        message.raised = seen > before
        message.seen = seen
        if seen > 0:
            self._tracker.at_least(message.key, seen)

    def state(self, message: InHand) -> MessageState:
        """Return what is known about the message, with the count of this sighting."""
        state = self._tracker.state(message.key)
        return state if state.seen == message.seen else replace(state, seen=message.seen)

    def failed(self, messages: Iterable[InHand], failure: Failure) -> None:
        """Note what went wrong with these messages."""
        for message in messages:
            self._tracker.note(message.key, failure=failure)

    def to_come_again(self, messages: Iterable[InHand]) -> None:
        """Know these messages when they come back, even from a broker that doesn't flag them."""
        for message in messages:
            message.flagged = True
            message.counted = message.raised = message.stored = message.served = False
            self._tracker.note(message.key)

    def given_back(self, messages: Iterable[InHand]) -> None:
        """Take back the sighting of messages that go back to the broker with nothing done about them.

        What counts has led to a hand-over, a move or a deletion. A delay that was broken off, a message that
        only waited, one whose handler could not be called any more: however often the connection is lost or
        delivery suspended meanwhile, none of it is an attempt, not even where the broker counts it as one.
        """
        for message in messages:
            if message.message_id is None:  # nobody would know it again
                continue
            self._look(message)
            self._tracker.take_back(
                message.key,
                counted=message.raised,
                delivered=not message.calls,
                flagged=message.first,
            )
            self.not_attempted(message)
            message.counted = message.raised = False

    def not_attempted(self, message: InHand) -> None:
        """Have the attempt taken back that was stored for a message, and led to nothing."""
        if message.stored and message.message_id is not None:
            self._take_back(message.message_id, message.source)
        message.stored = False

    def doubt(self, messages: Iterable[InHand]) -> None:
        """Note that the outcome of settling these messages is unknown."""
        self._in_doubt.update(dict.fromkeys(message.key for message in messages))
        while len(self._in_doubt) > IN_DOUBT_LIMIT:
            self._in_doubt.popitem(last=False)

    def move_failed(self, message: InHand, *, lost: bool) -> None:
        """Note that a move of the message was refused, or `lost` with its connection."""
        before = self.moves_in_vain(message)
        self._moves_in_vain[message.key] = replace(before, failed=before.failed + 1, lost=before.lost + lost)
        if len(self._moves_in_vain) > IN_DOUBT_LIMIT:
            self._moves_in_vain.popitem(last=False)

    def moves_in_vain(self, message: InHand) -> MovesInVain:
        """Return what became of its moves since it was last left, whatever the connection."""
        return self._moves_in_vain.get(message.key, _NONE)

    def delivered(self, message: InHand) -> None:
        """Note that a message is delivered: perhaps because it could not be moved."""
        if self._moves_in_vain and (before := self._moves_in_vain.get(message.key)) is not None:
            self._moves_in_vain[message.key] = replace(before, delivered=True)

    def left(self, message: InHand) -> None:
        """Note that a message is left where it is: if it comes again, its moves count anew."""
        self._moves_in_vain.pop(message.key, None)

    def is_in_doubt(self, message: InHand) -> bool:
        """Say whether an earlier settling of the message has an unknown outcome."""
        return message.key in self._in_doubt

    def forget(self, messages: Iterable[InHand]) -> None:
        """Drop all about messages that are settled."""
        for message in messages:
            self._tracker.forget(message.key)
            self._in_doubt.pop(message.key, None)
            self._moves_in_vain.pop(message.key, None)


def _key(event: MessageArrived) -> str:
    key = event.message_id if event.message_id is not None else f"\0{event.delivery}"
    # Copies of a message in several queues may have the same id.
    return f"{key}\0{event.source}" if event.source else key
