"""What was settled lately, to know it if a broker that was killed has forgotten that."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Set as AbstractSet
from typing import TypeAlias

from airflow_provider_jmsjca.core.delivery.events import MessageArrived
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import JmsError
from airflow_provider_jmsjca.transports.base import Received

Key: TypeAlias = tuple[str, int] | tuple[str, int, Destination] | None

_log = logging.getLogger("airflow_provider_jmsjca.listener")
_REMEMBERED = 32_768
"""As many acknowledgements as a busy queue of RabbitMQ keeps from the disk (its
`queue_index_max_journal_entries`)."""


class SettledLately:
    """Ids of settled messages, and messages that came again although they were settled.

    Where the broker makes the ids, a message is known by what it is there: a broker that was killed may call
    what it repeats new. Where the id is the producer's word, or comes from what was published elsewhere, it
    counts only with the redelivered flag.

    Noting, connecting and asking are serialised by the caller; settling is not.

    Args:
        sources: How many destinations there are. Copies of a message in several queues may have the same id,
            and each of them is settled by itself.

    Attributes:
        stable: Whether the broker makes the ids.
    """

    def __init__(self, sources: int = 1) -> None:
        self._sources = sources
        self._ids: deque[Key] = deque(maxlen=_REMEMBERED)
        self._known: frozenset[Key] = frozenset()
        self._repeated: deque[Received] = deque()
        self.stable = False

    @property
    def has_repeated(self) -> bool:
        """Whether there is something to settle once more."""
        return bool(self._repeated)

    @property
    def known(self) -> frozenset[Key]:
        """What was settled over earlier connections."""
        return self._known

    def note(self, received: Received, message: JmsMessage | None, destination: Destination) -> None:
        """Note that a message was settled.

        Args:
            received: It.
            message: What it is to the listener, under the id it was published with.
            destination: Which of the sources it came from.
        """
        if self.stable:
            self._ids.append(self.identity(received))
            if message is received.readable:
                return
        self._ids.append(self.key(destination, message))

    def key(self, destination: Destination, message: JmsMessage | None) -> Key:
        """Return what tells a published message from others; `None` if nothing does.

        On some brokers the id is the producer's word, which may give several messages the same: what they
        say tells them apart.
        """
        if message is None or message.message_id is None:
            return None
        body = message.body
        return self._key(message.message_id, body if isinstance(body, (str, bytes)) else None, destination)

    def identity(self, received: Received) -> Key:
        """Return what tells a message at the broker from others; `None` if nothing does.

        A broker that was set up anew gives the same ids again, but not at the same time.
        """
        message = received.readable
        if not self.stable or message is None or message.message_id is None:
            return self.key(received.consumer.subscription.destination, message)
        body = message.body
        said = body if isinstance(body, (str, bytes)) else None
        return self._key(
            message.message_id, (said, message.timestamp), received.consumer.subscription.destination
        )

    def _key(self, message_id: str, said: object, destination: Destination) -> Key:
        if self._sources == 1:
            return message_id, hash(said)
        return message_id, hash(said), destination

    def connected(self, *, stable: bool) -> None:
        """Know from now on what was settled over the connections before.

        Args:
            stable: Whether the broker makes the ids.
        """
        self.stable = stable
        self._known = frozenset(self._ids) - {None}

    def forget(self, keys: AbstractSet[Key]) -> None:
        """Know nothing of messages that came anew under the id of a settled one, and were not settled."""
        if not keys.isdisjoint(self._ids):
            self._ids = deque((each for each in self._ids if each not in keys), maxlen=_REMEMBERED)
        self._known -= keys

    def knows(self, event: MessageArrived, received: Received, key: Key) -> bool:
        """Say whether a message was settled before and came again."""
        if not self._known:
            return False
        if self.comes_again(received):
            return True
        counts = event.parked is None or event.in_progress
        return event.redelivered and counts and key in self._known

    def comes_again(self, received: Received) -> bool:
        """Say whether the broker, which makes the ids, has given out this very message before."""
        return self.stable and bool(self._known) and self.identity(received) in self._known

    def keep(self, received: Received) -> None:
        """Keep a message that is to be settled once more."""
        self._repeated.append(received)

    def settle_again(self, name: str) -> None:
        """Settle duplicates, and what this listener settled before the way to the broker broke down."""
        while self._repeated:
            try:
                received = self._repeated.popleft()
            except IndexError:  # another thread was quicker
                return
            try:
                received.consumer.acknowledge((received,))
            except JmsError as error:
                _log.debug("%s: it comes once more: %s", name, error)
