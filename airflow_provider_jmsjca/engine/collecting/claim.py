"""Claims a few messages of a queue for one holder: seals them in a batch, then acknowledges them.

Unlike a collection, a claim selects messages. Unselected messages stay on the queue, and a message that
can't be decoded is dead-lettered.

| Event | Effect on the messages |
|---|---|
| `kill -9` before the segment is sealed | they return to the queue for the next claim |
| `kill -9` between seal and acknowledgement | they stay in the batch; the next attempt settles redeliveries |
| the connection is lost before the seal | they return to the queue |
| the connection is lost after the seal | they stay in the batch; the next attempt settles redeliveries |
| the disk is full | no message is acknowledged; the caller gets the error |
"""

from __future__ import annotations

import enum
import functools
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta

from airflow_provider_jmsjca.core.copies.dead_letter import ConsumedFrom, send_letter
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.redelivery import MessageState, MoveTarget
from airflow_provider_jmsjca.engine.collecting.batcher import HANDFUL
from airflow_provider_jmsjca.engine.moving import FailedDeadLetterSends, commit_with_fallback, target_of
from airflow_provider_jmsjca.errors import ConfigurationError, PermanentBrokerError, PoisonMessageError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.spool.duplicates import DroppedMessage, DuplicateFilter
from airflow_provider_jmsjca.spool.known_ids import message_key
from airflow_provider_jmsjca.spool.manifest import Manifest
from airflow_provider_jmsjca.spool.rows import Row
from airflow_provider_jmsjca.spool.spool import SpoolBatch
from airflow_provider_jmsjca.transports.base import Connection, Outgoing, Received, Subscription, UnitOfWork
from airflow_provider_jmsjca.transports.receiving import BufferedConsumer

_log = safe_logger(__name__)
_LOSSES = FailedDeadLetterSends()
_TICK_SECONDS = 0.1
# Prefetch in addition to `max_messages`, for messages in front of the claimed ones that stay on the queue.
_SPARE = 10
LOOKED_PAST = 1_000
"""Maximum number of unclaimed messages to skip; the broker's page size may be a lower limit."""


class Choice(enum.Enum):
    """Decision about a received message: claim it, or leave it on the queue."""

    CLAIM = "claim"
    LEAVE = "leave"
    CLAIM_ALONE = "claim alone"
    """Claim only this message, and stop."""


Choose = Callable[[JmsMessage], Choice]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSpec:
    """Source and selection of a claim.

    Attributes:
        subscription: The queue, with the effective selector.
        max_messages: Maximum number of messages.
        first_within: While no message is claimed, the claim ends after this time without a message.
        wait_for_more: The claim ends at the latest this long after it has claimed its first message.
        choose: Decides about a message; `None` claims all. If it raises, no message is claimed.
        filters_messages: Whether `choose` may leave messages on the queue. The prefetch is then larger, so
            that later messages arrive in spite of them.
        dead_letter: Destinations of undecodable messages; empty: they stay on the queue.
        redirect: Move undecodable messages without the properties that give the reason.
        client_id: JMS client id, written into the properties of dead letters.
    """

    subscription: Subscription
    max_messages: int = 1
    first_within: timedelta = timedelta(seconds=1)
    wait_for_more: timedelta = timedelta(seconds=1)
    choose: Choose | None = None
    filters_messages: bool = False
    dead_letter: tuple[MoveTarget, ...] = ()
    redirect: bool = False
    client_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimResult:
    """Result of a claim.

    Attributes:
        manifest: The finished batch; `None` if no message was claimed.
        repeated: Redelivered messages settled because a sealed segment contains them.
        left: Messages that were checked and stay on the queue.
        dead_letters: Undecodable messages that were moved.
    """

    manifest: Manifest | None
    repeated: int = 0
    left: int = 0
    dead_letters: int = 0


def claim(connection: Connection, open_batch: Callable[[], SpoolBatch], spec: ClaimSpec) -> ClaimResult:
    """Claim messages into a batch, and finish the batch.

    Guarantee: also if this raises, a message is acknowledged only after its segment is sealed. All claimed
    messages are acknowledged in one unit of work. If an earlier attempt died, its batch takes no new
    messages: redelivered messages at the front of the queue are settled, and the batch is finished.

    Args:
        connection: The connection; the caller closes it.
        open_batch: Opens the holder's batch; called for the first message.
        spec: Source and selection.

    Raises:
        ConfigurationError: A dead letter would return to the queue.
        ConnectionLostError: The connection is lost. The batch may contain the messages.
        InDoubtError: The connection was lost during the acknowledgement; the batch contains the messages.
        PermanentBrokerError: The broker refuses the subscription or an acknowledgement.
        CapabilityError: The selector can't work on this broker.
        BatchInUseError: Another attempt is using the batch.
        SpoolError: The batch can't be written or read.
    """
    with ExitStack() as stack:
        return _Claim(connection, spec, lambda: stack.enter_context(open_batch())).run()


def finish(connection: Connection, batch: SpoolBatch, spec: ClaimSpec) -> ClaimResult:
    """Settle messages that an earlier attempt sealed but may not have acknowledged; finish its batch.

    Every other message stays on the queue, even an undecodable one.

    Args:
        connection: The connection; the caller closes it.
        batch: The open batch, with messages and without a manifest.
        spec: Source and selection of the earlier claim.

    Raises:
        JmsError: Any error of `claim`; the batch keeps the messages.
    """
    return _Claim(
        connection, replace(spec, choose=None, filters_messages=False, dead_letter=()), batch=batch
    ).run()


class _Claim:
    """State of one call of `claim` or `finish`."""

    def __init__(
        self,
        connection: Connection,
        spec: ClaimSpec,
        open_batch: Callable[[], SpoolBatch] | None = None,
        batch: SpoolBatch | None = None,
    ) -> None:
        self._connection = connection
        self._open_batch = open_batch
        self._spec = spec
        self._batch: SpoolBatch | None = None
        self._repetitions: DuplicateFilter | None = None
        if batch is not None:
            self._use_batch(batch)
        source = spec.subscription.destination
        self._dead_letter = tuple(target_of(connection.broker, each, source) for each in spec.dead_letter)
        self._claimed: list[tuple[Received, Row]] = []
        self._repeated: list[tuple[Received, DroppedMessage]] = []
        self._left = self._dead_letters = 0

    def _use_batch(self, batch: SpoolBatch) -> None:
        self._batch = batch
        self._repetitions = DuplicateFilter(batch, stable=self._connection.capabilities.stable_message_id)

    def run(self) -> ClaimResult:
        window = self._spec.max_messages + (LOOKED_PAST if self._spec.filters_messages else _SPARE)
        arrivals = BufferedConsumer(self._connection, replace(self._spec.subscription, prefetch=window))
        try:
            self._receive(arrivals)
            if self._left >= window and self._batch is None:
                if window < LOOKED_PAST:
                    self._left, window = 0, LOOKED_PAST
                    arrivals.renew(replace(self._spec.subscription, prefetch=window))
                    self._receive(arrivals)
                if self._left >= window and self._batch is None:
                    self._warn_of_left()
            manifest = self._settle()
        finally:
            arrivals.close()
        return ClaimResult(
            manifest=manifest,
            repeated=len(self._repeated),
            left=self._left,
            dead_letters=self._dead_letters,
        )

    def _warn_of_left(self) -> None:
        _log.warning(
            "%d messages that were not claimed are at the front of %s and hide all messages behind them. "
            "Set a message_selector to skip them, or a dead-letter destination for undecodable ones",
            self._left,
            self._spec.subscription.destination,
        )

    def _receive(self, arrivals: BufferedConsumer) -> None:
        last = time.monotonic()
        first_claimed: float | None = None
        while True:
            began, within = (
                (last, self._spec.first_within)
                if first_claimed is None
                else (first_claimed, self._spec.wait_for_more)
            )
            left = began + within.total_seconds() - time.monotonic()
            if left <= 0:
                return
            for received in arrivals.take(HANDFUL, within=min(left, _TICK_SECONDS)):
                if self._is_enough(received):
                    return
                last = time.monotonic()
                if self._claimed and first_claimed is None:
                    first_claimed = last

    def _is_enough(self, received: Received) -> bool:
        """Claim, settle or leave a message; return whether the claim is complete."""
        try:
            message = received.message
        except PoisonMessageError as fault:
            self._move_undecodable(received, fault)
            return False
        row = Row(message, time.time_ns() // 1000)
        choice = Choice.CLAIM if self._spec.choose is None else self._spec.choose(message)
        if self._batch is None and choice is not Choice.LEAVE and self._open_batch is not None:
            self._use_batch(self._open_batch())
        batch = self._batch
        if batch is None:
            self._left += 1
            return False
        dropped = self._repetition(row)
        if dropped is not None:
            self._repeated.append((received, dropped))
            return 0 < batch.rows <= len(self._repeated)
        if choice is Choice.LEAVE or batch.rows or batch.manifest is not None:
            # The message is not selected, or an earlier attempt has claimed messages: then this attempt takes
            # no new ones.
            self._left += 1
            return batch.manifest is not None or self._left >= LOOKED_PAST
        if choice is Choice.CLAIM_ALONE:
            self._left += len(self._claimed)
            self._claimed = [(received, row)]
            return True
        self._claimed.append((received, row))
        return len(self._claimed) >= self._spec.max_messages

    def _repetition(self, row: Row) -> DroppedMessage | None:
        message, repetitions = row.message, self._repetitions
        if repetitions is None or message.message_id is None or not repetitions.is_candidate(message):
            return None
        place = None if message.destination is None else str(message.destination)
        return repetitions.check_duplicate(message_key(message.message_id, place), row)

    def _settle(self) -> Manifest | None:
        """Seal claimed messages, acknowledge them with redelivered ones, and finish the batch."""
        batch = self._batch
        if batch is None:
            return None
        if batch.manifest is not None:
            # Another attempt has finished the batch; the messages received here return to the queue.
            return self._finished_manifest(batch)
        sealed = batch.seal([row for _, row in self._claimed]) if self._claimed else None
        settled = [received for received, _ in (*self._repeated, *self._claimed)]
        if settled:
            unit = settled[0].unit()
            for received in settled:
                unit.acknowledge(received)
            unit.commit()
        if self._repetitions is not None:
            self._repetitions.note_confirmed([dropped for _, dropped in self._repeated], sealed)
        batch.complete()
        return self._finished_manifest(batch)

    @staticmethod
    def _finished_manifest(batch: SpoolBatch) -> Manifest | None:
        """Return the manifest; discard an empty batch and return `None`, so that the next claim can begin."""
        if batch.rows == 0:
            batch.discard()
            return None
        return batch.manifest

    def _move_undecodable(self, received: Received, fault: PoisonMessageError) -> None:
        """Move an undecodable message to the dead-letter destinations, or leave it on the queue."""
        salvaged, source = received.salvaged, self._spec.subscription.destination
        if salvaged is None or not self._dead_letter:
            self._left += 1
            _log.warning(
                "A message on %s can't be decoded and stays on the queue, because %s: %s",
                source,
                "no part of it can be read"
                if salvaged is None
                else "no dead-letter destination is configured",
                fault,
            )
            return
        origin = ConsumedFrom(destination=source, client_id=self._spec.client_id)
        state = MessageState(failure=Failure.of(fault))

        def fill(unit: UnitOfWork, first: int) -> None:
            for target in self._dead_letter:
                send_letter(
                    functools.partial(_send, unit, target),
                    salvaged,
                    origin,
                    state,
                    first=first,
                    max_property_characters=self._connection.capabilities.max_property_characters,
                    redirect=self._spec.redirect,
                    secrets=self._connection.secrets,
                )

        try:
            with _LOSSES.counted(f"{salvaged.message_id}\0{source}") as left:
                refusal = commit_with_fallback(received, left, fill)
        except (ConfigurationError, PermanentBrokerError) as error:
            self._left += 1
            _log.error(
                "An undecodable message stays on %s, because moving it to the dead-letter destination "
                "failed: %s",
                source,
                error,
            )
            return
        self._dead_letters += 1
        if refusal is not None:
            _log.warning(
                "Message %s is moved as a shortened copy, because the complete one could not be sent: %s",
                salvaged.message_id,
                refusal,
            )
        _log.warning(
            "Message %s on %s can't be decoded; moved to %s: %s",
            salvaged.message_id, source, ", ".join(map(str, self._dead_letter)), fault,
        )  # fmt: skip


def _send(unit: UnitOfWork, target: Destination, letter: JmsMessage) -> None:
    unit.send(Outgoing(destination=target, message=letter))
