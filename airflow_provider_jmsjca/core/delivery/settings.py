"""Rules of an activation for its deliveries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta

from airflow_provider_jmsjca.core.backoff import RECONNECT, Backoff
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.redelivery import MoveTarget, RedeliveryHandling
from airflow_provider_jmsjca.errors import ConfigurationError

MOST_BYTES = 8 * 1024 * 1024
"""Memory in bytes that large messages may take.

A batch ends when its large messages take this much. While all in-flight messages together take this much,
only units of work that would otherwise be idle take further messages.
"""
_NONE = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageSettings:
    """Wait times before reconnecting.

    Attributes:
        backoff: Pauses between attempts.
        init_suspend: Length of each suspension after a connection was lost.
        max_suspend: Length of all suspensions of one outage together; zero never suspends.
        minimal_logging: Log the first failure of an outage as an error, and the others at debug level.

    Source: J12, J13, J108, J122; W15, W16, W24-W26.
    """

    backoff: Backoff = RECONNECT
    init_suspend: timedelta = _NONE
    max_suspend: timedelta = _NONE
    minimal_logging: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverySettings:
    """The rules of one activation.

    Attributes:
        destination: The destination to consume, as named by the activation.
        further: Further destinations, which take turns with `destination`, in order.
        quantity: Maximum number of messages of each destination in a cycle of turns.
        handling: Redelivery handling.
        redirect: Move messages unchanged instead of as a copy.
        non_retryable: Exception classes (dotted names) after which a message is moved at once.
        dead_letter: Targets for poison: undecodable messages, and messages that failed with an exception in
            `non_retryable`. Empty: the targets of the move in `handling`.
        keep_poison: Whether poison that can't be moved is left unsettled, while later messages are processed.
            Otherwise such a message is delivered again.
        unsubscribed: Destination for messages without a subscriber.
        move_retries: Number of retries of a failed move, one second apart. After the last one, the message
            is left unsettled and not delivered. `None`: no retries, and the message is delivered.
        limbo: Whether limbo is available, which keeps messages in the store. A message that can't be moved
            is put there, to be moved later. Poison without a target stays there as failed. The activation
            itself then retries no move.
        shelve_at: Redelivery count from which a message goes to limbo as failed; `None`: never.
        discard_poison: Whether poison without a target is deleted.
        discard_unsubscribed: Whether messages without a subscriber are deleted.
        in_progress: Whether each message is first put into the in-progress queue, and handled when it is
            received from there.
        concurrency: Maximum number of units of work at once; 1 for serial.
        batch_size: Messages in one unit of work; above 1 an EndOfBatch message ends each batch.
        batch_idle: A batch ends when no message has arrived for this long.
        batch_flush: A batch ends this long after its first message; `None` for no such limit.
        batch_bytes: A batch ends when its messages take this much memory, in bytes.
        hold_until_ack: Whether a unit ends when its messages were acknowledged, instead of when the handlers
            return.
        counts_repeats: Whether the broker's redelivered flag counts as an earlier delivery. Otherwise only
            failures of this run count.
        record_attempts: Whether every attempt is stored before the handler is called.
        non_blocking_redelivery: Whether delays above 5 seconds don't hold the message, because a copy is
            delivered later. Messages of groups and batches are held anyway, to keep their order. Messages of
            topics are held too, unless `parks_topic` is set.
        parks_topic: Whether copies of a topic's messages return through a queue. Copies sent to the topic
            would reach its other subscribers too.
        transaction_timeout: A unit that lasts longer is rolled back; `None` for no limit.
        sources: Every destination, in the order of their turns.
        longest_batch: Maximum duration of a batch: `batch_flush`, or half of the transaction timeout if that
            is shorter. A batch that is only collecting must not be rolled back by the timeout.

    Raises:
        ConfigurationError: Lists every invalid or contradictory rule.

    Source: J81-J84, J94, J95, J183-J203; W22; I4, I5, I30; P16.
    """

    destination: Destination
    further: tuple[Destination, ...] = ()
    quantity: int = 1
    handling: RedeliveryHandling = RedeliveryHandling.DEFAULT
    redirect: bool = False
    non_retryable: frozenset[str] = frozenset()
    dead_letter: tuple[MoveTarget, ...] = ()
    keep_poison: bool = False
    unsubscribed: Destination | None = None
    move_retries: int | None = None
    limbo: bool = False
    shelve_at: int | None = None
    discard_poison: bool = False
    discard_unsubscribed: bool = False
    in_progress: bool = False
    concurrency: int = 1
    batch_size: int = 1
    batch_idle: timedelta = timedelta(milliseconds=100)
    batch_flush: timedelta | None = None
    batch_bytes: int = MOST_BYTES
    hold_until_ack: bool = False
    counts_repeats: bool = True
    record_attempts: bool = False
    non_blocking_redelivery: bool = False
    parks_topic: bool = False
    transaction_timeout: timedelta | None = timedelta(seconds=30)
    outage: OutageSettings = field(default_factory=OutageSettings)
    sources: tuple[Destination, ...] = field(init=False)
    longest_batch: timedelta | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sources", (self.destination, *self.further))
        limits = [self.batch_flush, self.transaction_timeout and self.transaction_timeout / 2]
        object.__setattr__(self, "longest_batch", min((each for each in limits if each), default=None))
        if faults := tuple(self._faults()):
            raise ConfigurationError(faults)

    def _faults(self) -> Iterator[str]:
        for name in ("concurrency", "batch_size", "batch_bytes", "quantity"):
            if getattr(self, name) < 1:
                yield f"{name} is {getattr(self, name)}; expected at least 1"
        if self.in_progress and self.non_blocking_redelivery:
            yield (
                "non_blocking_redelivery can't be combined with in_progress_destination: a delayed message "
                "would be in neither queue"
            )
        for name in ("batch_idle", "batch_flush", "transaction_timeout"):
            value = getattr(self, name)
            if value is not None and value <= _NONE:
                yield f"{name} is {value}; expected more than 0"
        if self.outage.max_suspend > _NONE >= self.outage.init_suspend:
            yield "init_suspend is 0; expected more than 0, because max_suspend is set"
