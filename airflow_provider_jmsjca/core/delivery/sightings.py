"""What is known about messages from one sighting to the next: counts, notes, unknown outcomes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace

from airflow_provider_jmsjca.core.delivery.events import MessageArrived
from airflow_provider_jmsjca.core.delivery.units import InHand
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.redelivery import MessageState, RedeliveryTracker

IN_DOUBT_LIMIT = 5000


class Sightings:
    """Turns arrivals into messages in hand, and counts each sighting once.

    Source: J129-J132, J169-J171.
    """

    def __init__(self, tracker: RedeliveryTracker) -> None:
        self._tracker = tracker
        self._in_doubt: OrderedDict[str, None] = OrderedDict()
        self._moves_failed: OrderedDict[str, int] = OrderedDict()

    def receive(self, event: MessageArrived) -> InHand:
        """Return the message that arrived; it isn't counted before its turn comes."""
        key = event.message_id if event.message_id is not None else f"\0{event.delivery}"
        if event.source:  # copies of a message in several queues may have the same id
            key = f"{key}\0{event.source}"
        before = max((event.delivery_count or 1) - 1, 0)
        served = event.parked is not None and not event.redelivered
        flagged = event.redelivered or before > 0 or key in self._tracker
        if before > 1 or event.parked is not None:
            self._tracker.at_least(key, max(before - 1, event.parked or 0))
        if event.undecodable is not None:
            self._tracker.note(key, failure=event.undecodable)
        return InHand(
            delivery=event.delivery,
            key=key,
            message_id=event.message_id,
            group=event.group or None,
            flagged=flagged and not served,
            served=served,
            poison=event.undecodable is not None,
            undecodable=event.undecodable is not None,
            unsubscribed=event.unsubscribed,
            in_progress=event.in_progress,
            source=event.source,
        )

    def knows(self, message_id: str) -> bool:
        """Say whether there is anything to know about a message."""
        return message_id in self._tracker or message_id in self._in_doubt

    def count(self, message: InHand) -> None:
        """Count this sighting of the message, in memory."""
        message.counted = True
        key = message.key
        message.seen = self._tracker.seen(key) if message.flagged else self._tracker.state(key).seen

    def recorded(self, message: InHand, attempt: int) -> None:
        """Take the count from the number of the attempt, as stored."""
        message.counted = True
        message.seen = attempt - 1
        if message.seen > 0:
            self._tracker.at_least(message.key, message.seen)

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
            message.counted = message.served = False
            self._tracker.note(message.key)

    def doubt(self, messages: Iterable[InHand]) -> None:
        """Note that the outcome of settling these messages is unknown."""
        self._in_doubt.update(dict.fromkeys(message.key for message in messages))
        while len(self._in_doubt) > IN_DOUBT_LIMIT:
            self._in_doubt.popitem(last=False)

    def move_failed(self, message: InHand) -> None:
        """Note that a move of the message failed, or that the connection was lost during it."""
        self._moves_failed[message.key] = self.moves_failed(message) + 1
        if len(self._moves_failed) > IN_DOUBT_LIMIT:
            self._moves_failed.popitem(last=False)

    def moves_failed(self, message: InHand) -> int:
        """Return how often that was so since it was last delivered or left, whatever the connection."""
        return self._moves_failed.get(message.key, 0)

    def move_given_up(self, message: InHand) -> None:
        """Note that it is delivered instead, or left where it is: if it comes again, it is tried again."""
        if self._moves_failed:
            self._moves_failed.pop(message.key, None)

    def is_in_doubt(self, message: InHand) -> bool:
        """Say whether an earlier settling of the message has an unknown outcome."""
        return message.key in self._in_doubt

    def forget(self, messages: Iterable[InHand]) -> None:
        """Drop all about messages that are settled."""
        for message in messages:
            self._tracker.forget(message.key)
            self._in_doubt.pop(message.key, None)
            self._moves_failed.pop(message.key, None)
