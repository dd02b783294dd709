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

    Adding, connecting and asking are serialised by the caller; settling is not.

    Args:
        sources: How many destinations there are. Copies of a message in several queues may have the same id,
            and each of them is settled by itself.
    """

    def __init__(self, sources: int = 1) -> None:
        self._sources = sources
        self._ids: deque[Key] = deque(maxlen=_REMEMBERED)
        self._known: frozenset[Key] = frozenset()
        self._repeated: deque[Received] = deque()
        self.add = self._ids.append

    @property
    def has_repeated(self) -> bool:
        """Whether there is something to settle once more."""
        return bool(self._repeated)

    @property
    def known(self) -> frozenset[Key]:
        """What was settled over earlier connections."""
        return self._known

    def key(self, destination: Destination, message: JmsMessage | None) -> Key:
        """Return what tells a message from others; `None` if nothing does.

        On some brokers the id is the producer's word, which may give several messages the same: what they
        say tells them apart.
        """
        if message is None or message.message_id is None:
            return None
        body = message.body
        said = hash(body) if isinstance(body, (str, bytes)) else 0
        return (message.message_id, said) if self._sources == 1 else (message.message_id, said, destination)

    def connected(self) -> None:
        """Know from now on what was settled over the connections before."""
        self._known = frozenset(self._ids) - {None}

    def forget(self, keys: AbstractSet[Key]) -> None:
        """Know nothing of messages that came anew under the id of a settled one, and were not settled."""
        if not keys.isdisjoint(self._ids):
            self._ids = deque((each for each in self._ids if each not in keys), maxlen=_REMEMBERED)
            self.add = self._ids.append
        self._known -= keys

    def knows(self, event: MessageArrived, key: Key) -> bool:
        """Say whether a message was settled before and came again."""
        counts = event.parked is None or event.in_progress
        return event.redelivered and counts and key in self._known

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
