"""Decides whether a received message with the id of a stored one is a redelivery of it, or is new."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.message.message import Identity
from airflow_provider_jmsjca.spool.files import SpoolPath
from airflow_provider_jmsjca.spool.manifest import Segment
from airflow_provider_jmsjca.spool.rows import Row, row_identity
from airflow_provider_jmsjca.spool.spool import SpoolBatch


class DroppedMessage(NamedTuple):
    """A received message that was dropped because a segment holds it already.

    Attributes:
        segment: The segment that holds the message.
    """

    segment: SpoolPath
    identity: Identity


class DuplicateFilter:
    """Detects duplicates: received messages that a segment holds already.

    A duplicate may be acknowledged without being stored.

    If the broker sets the ids, a message is a duplicate if its identity is in a sealed segment.

    If the producer sets the ids, two different messages may be equal in everything. The redelivered flag
    alone proves nothing: a browse sets it on messages that were never received. A flagged message is a
    duplicate of an equal sealed message if one of these conditions is met:

    - The broker hasn't confirmed the acknowledgement of the sealed message's segment, see
      `SpoolBatch.is_settled`.
    - The message carries the time at which it was sent. Two different messages are unlikely to have the
      same id, the same content and the same time. So this condition holds even if the acknowledgement was
      confirmed. It is necessary because RabbitMQ loses confirmed acknowledgements when it is killed, and
      then redelivers the messages.

    If the producer sets the ids, at most one message per connection is taken for the duplicate of a given
    sealed message. A message sealed over the current connection has no duplicate, because the broker
    redelivers the message only after a reconnect.

    Safe to use from two threads: one that receives, and one that commits.

    Args:
        batch: The batch that the messages are for.
        stable: Whether the broker sets the ids (`Capabilities.stable_message_id`).
    """

    def __init__(self, batch: SpoolBatch, *, stable: bool) -> None:
        self._batch = batch
        self._stable = stable
        self._lock = threading.Lock()
        # `_unsettled`: by segment, the sealed messages without a sending time that may be redelivered.
        # `_unconfirmed`: dropped duplicates whose acknowledgement isn't confirmed yet.
        self._unsettled: defaultdict[SpoolPath, Counter[Identity]] = defaultdict(Counter)
        self._unconfirmed: Counter[DroppedMessage] = Counter()
        # Number of duplicates received over this connection, for messages with a sending time.
        self._timed: Counter[Identity] = Counter()
        self._sealed_before = self._sealed()

    def note_connection(self, *, stable: bool) -> None:
        """Prepare for the messages of a new connection.

        From now on, duplicates can also be messages that were sealed over the previous connection. So can
        messages that were dropped over it, if the broker hasn't confirmed their acknowledgement.

        Args:
            stable: Whether the new connection's broker sets the ids.
        """
        with self._lock:
            self._stable = stable
            for dropped, count in self._unconfirmed.items():
                self._unsettled[dropped.segment][dropped.identity] += count
            self._unconfirmed.clear()
            self._timed.clear()
            self._sealed_before = self._sealed()

    def is_candidate(self, message: JmsMessage) -> bool:
        """Return whether a message that has an id can be a duplicate.

        If the producer sets the ids, only a message with the redelivered flag can be a duplicate.
        """
        return self._stable or message.redelivered

    def check_duplicate(self, key: str, row: Row) -> DroppedMessage | None:
        """Decide whether a received message is a duplicate.

        Args:
            key: Key of the message, from `known_ids.message_key`.
            row: The message, for which `is_candidate` returned `True`.

        Returns:
            The duplicate, to be passed to `note_confirmed`; `None` if the message isn't one and must be
            stored.

        Raises:
            SpoolError: A segment can't be read.
        """
        if not self._batch.may_contain(key):
            return None
        identity = row_identity(row)
        if identity is None:
            return None
        found = [
            segment
            for segment in self._batch.segments_with(key)
            if self._batch.identities(segment).get(identity)
        ]
        if self._stable:
            return DroppedMessage(found[0], identity) if found else None
        # A message settled over a connection isn't redelivered over the same one.
        found = [each for each in found if each.parent != self._batch.folder or each in self._sealed_before]
        with self._lock:
            return (
                self._repeats_timed(found, identity) if identity.timestamp else self._repeats(found, identity)
            )

    def _repeats_timed(self, found: Sequence[SpoolPath], identity: Identity) -> DroppedMessage | None:
        copies = sum(self._batch.identities(segment)[identity] for segment in found)
        if copies <= self._timed[identity]:
            return None
        self._timed[identity] += 1
        return DroppedMessage(found[0], identity)

    def _repeats(self, found: Sequence[SpoolPath], identity: Identity) -> DroppedMessage | None:
        for segment in found:
            if self._batch.is_settled(segment):
                continue
            if segment not in self._unsettled:
                there = self._batch.identities(segment).items()
                self._unsettled[segment].update({each: count for each, count in there if not each.timestamp})
            left = self._unsettled[segment]
            if left[identity] > 0:
                left[identity] -= 1
                dropped = DroppedMessage(segment, identity)
                self._unconfirmed[dropped] += 1
                return dropped
        return None

    def note_confirmed(self, dropped: Sequence[DroppedMessage], sealed: Segment | None) -> None:
        """Note that the broker has confirmed the acknowledgements of a unit of work.

        Args:
            dropped: The duplicates in the unit, from `check_duplicate`.
            sealed: The segment with the other messages of the unit; `None` if the unit has only duplicates.

        Raises:
            SpoolError: The confirmation can't be recorded in the spool.
        """
        if self._stable:
            return
        with self._lock:
            untimed = Counter(each for each in dropped if not each.identity.timestamp)
            self._unconfirmed -= untimed
            waiting = {each.segment for each in self._unconfirmed}
            settled = [
                segment
                for segment in dict.fromkeys(each.segment for each in untimed)
                if segment not in waiting and not +self._unsettled[segment]
            ]
        if sealed is not None:
            settled.append(self._batch.folder / sealed.file)
        for segment in settled:
            self._batch.note_settled(segment)

    def _sealed(self) -> frozenset[SpoolPath]:
        return frozenset(self._batch.folder / segment.file for segment in self._batch.segments)
