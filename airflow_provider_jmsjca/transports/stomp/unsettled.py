"""What a consumer holds unsettled, and what of it units of work have reserved. No I/O, no lock of its own."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Final

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.transports.base import Consumer, Received
from airflow_provider_jmsjca.transports.stomp.wire.frames import Frame

_OUT_OF_ORDER: Final = (
    "a unit of work settles a message while one before it is unsettled; the subscription promised to settle "
    "in order"
)


class Unsettled:
    """The messages of one consumer that the broker waits for, by what ACK must name.

    Where one frame acknowledges everything up to a message, a message that is acknowledged early waits until
    nothing before it is unsettled.

    Args:
        consumer: Whose they are.

    Attributes:
        frames: What is unsettled, in the order it came; put what comes here.
        generation: Which generation is not stale; `forget` begins a new one.
    """

    __slots__ = ("_consumer", "_early", "_reserved", "frames", "generation")

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self.generation = 0
        self.frames: MutableMapping[bytes, Frame] = OrderedDict()
        self._reserved: dict[bytes, bytes | None] = {}
        self._early: set[bytes] = set()

    def holds(self, received: Received) -> bool:
        """Say whether a message is unsettled still, and not acknowledged early.

        Raises:
            ConfigurationError: It came to another consumer.
        """
        if received.consumer is not self._consumer:
            raise ConfigurationError("a message can be settled only through the consumer it came to")
        token = received.token
        return received.generation == self.generation and token in self.frames and token not in self._early

    def take(self, received: Received, *, reserved: bool) -> bool:
        """Let go of a message that is reserved or isn't, as said; tell whether there was one."""
        token = bytes_of(received.token)
        if not self.holds(received) or (token in self._reserved) is not reserved:
            return False
        del self.frames[token]
        self._reserved.pop(token, None)
        return True

    def take_in_order(self, received: Iterable[Received]) -> tuple[bytes | None, int]:
        """Let go of messages, or note that they are acknowledged early; reserved ones stay.

        Returns:
            The last of those that nothing unsettled stands before, and how many those are.
        """
        frames, early = self.frames, self._early
        last, count = None, 0
        for one in received:
            if not self.holds(one) or one.token in self._reserved:
                continue
            first = next(iter(frames))
            if one.token != first:
                early.add(bytes_of(one.token))
                continue
            del frames[first]
            last = first
            count += 1
        caught_up, more = self.catch_up()
        return caught_up or last, count + more

    def reserve(self, received: Received, headers: bytes | None) -> bool:
        """Reserve a message for a unit of work.

        Args:
            received: The message.
            headers: Of the unit's acknowledgements.

        Returns:
            Whether it was there to be had.

        Raises:
            ConfigurationError: A unit of work has reserved it already; to go on would lose the settlement.
        """
        if not self.holds(received):
            return False
        token = bytes_of(received.token)
        if token in self._reserved:
            raise ConfigurationError("the message is part of a unit of work already")
        self._reserved[token] = headers
        return True

    def release(self, received: Received) -> None:
        """Give a reserved message back to its holder."""
        if self.holds(received):
            self._reserved.pop(bytes_of(received.token), None)

    def last_reserved(self, headers: bytes) -> bytes | None:
        """Return the last message that was reserved with these headers.

        Raises:
            ConfigurationError: Something before it is unsettled, against the promise of the subscription.
        """
        reserved = self._reserved
        last, count = None, 0
        for token in self._waiting():
            if reserved.get(token) != headers:
                break
            last = token
            count += 1
        if count != list(reserved.values()).count(headers):
            raise ConfigurationError(_OUT_OF_ORDER)
        return last

    def sorted(self, received: Iterable[Received]) -> list[Received]:
        """Return those that are held in the order of arrival.

        Raises:
            ConfigurationError: Something before them is unsettled, against the promise of the subscription.
        """
        by_token = {one.token: one for one in received if self.holds(one)}
        first = list(itertools.islice(self._waiting(), len(by_token)))
        if by_token.keys() != set(first):
            raise ConfigurationError(_OUT_OF_ORDER)
        return [by_token[token] for token in first]

    def settle(self, received: Iterable[Received]) -> None:
        """Let go of what a unit had reserved, which is settled; and of what was early before it."""
        tokens = [bytes_of(one.token) for one in received if one.generation == self.generation]
        mine = [token for token in tokens if token in self._reserved]
        self.cover(mine)
        for token in mine:
            del self.frames[token], self._reserved[token]

    def cover(self, tokens: Iterable[bytes]) -> None:
        """Let go of what was acknowledged early and stands before these, whose frame counts for it."""
        if not self._early:
            return
        left = set(tokens)
        for token in list(self.frames):
            if not left:
                return
            left.discard(token)
            if token in self._early:
                self._early.remove(token)
                del self.frames[token]

    def catch_up(self) -> tuple[bytes | None, int]:
        """Let go of what was acknowledged early and has nothing unsettled before it any more.

        Returns:
            The last of it, and how many messages it is.
        """
        frames, early = self.frames, self._early
        last, count = None, 0
        while early and (first := next(iter(frames))) in early:
            early.remove(first)
            del frames[first]
            last = first
            count += 1
        return last, count

    def forget(self) -> list[Frame]:
        """Begin a new generation; return the frames of the old one, oldest first."""
        frames = list(self.frames.values())
        self.generation += 1
        self.frames = OrderedDict()
        self._reserved = {}
        self._early = set()
        return frames

    def _waiting(self) -> Iterator[bytes]:
        """Yield what isn't acknowledged early."""
        return itertools.filterfalse(self._early.__contains__, self.frames)


def bytes_of(token: object) -> bytes:
    """Return a token as it stands on the wire."""
    return token if isinstance(token, bytes) else b""
