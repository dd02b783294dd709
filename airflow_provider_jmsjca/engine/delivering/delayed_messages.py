"""Puts messages of a listener or a stream in limbo, which sends them on later."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from airflow_provider_jmsjca.core.configuration.destination_options import sending_text
from airflow_provider_jmsjca.core.copies.dead_letter import redirect_of
from airflow_provider_jmsjca.core.copies.load_balancing import with_origin
from airflow_provider_jmsjca.core.copies.parking import parked_copy
from airflow_provider_jmsjca.core.delivery.units import IN_DOUBT
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.message.message import stable_digest
from airflow_provider_jmsjca.errors import InDoubtError, TransientStoreError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.store.base import Limbo, LimboEntry, LimboSelection
from airflow_provider_jmsjca.transports.base import Outgoing, UnitOfWork

_log = safe_logger("airflow_provider_jmsjca.listener")


def parked(message: JmsMessage, origin: Destination, home: Destination, seen: int) -> JmsMessage:
    """Return the copy of a message to put in limbo; the copy returns to the listener when it is due.

    Args:
        message: The message as its handler gets it.
        origin: The destination from which the message was received, as named by the activation.
        home: The destination to which the copy returns.
        seen: Delivery count of the message; the copy returns with this count.
    """
    copy = parked_copy(message, seen)
    known = message.destination is not None
    if (known and message.destination != origin) or home.kind is not origin.kind:
        copy = with_origin(copy, message, origin)
    return copy


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedMessages:
    """Messages of one activation in limbo.

    Guarantee: a message is put in limbo before it is acknowledged. If a crash comes in between, the message
    is redelivered and replaces its own entry, so limbo never contains it twice.

    Attributes:
        limbo: The limbo of the store.
        activation: The activation's name in the store.
        jms_conn_id: The Airflow connection over which the messages are sent when they are due.
        most_tries: Maximum number of attempts to send a message; after that it stays in limbo as failed.
        says_doubt: Log a message in doubt as an error; otherwise as information.
        clock: The clock of this host. Delays that handlers request are counted from its time; `put` converts
            due times to the clock of the store.

    Source: P12-P16.
    """

    limbo: Limbo
    activation: str
    jms_conn_id: str
    most_tries: int
    says_doubt: bool = True
    clock: Callable[[], datetime] = field(default=lambda: datetime.now(UTC), repr=False)

    def park(
        self,
        message: JmsMessage,
        origin: Destination,
        home: Destination,
        *,
        seen: int,
        pause: timedelta,
        again: bool,
    ) -> list[int]:
        """Put a message in limbo, from which it returns to its destination after a pause.

        Args:
            message: The message as its handler gets it.
            origin: The destination from which it was received, as named by the activation.
            home: The destination to which it returns. This is the origin, or the destination named in the
                message if the origin is a wildcard. For a durable subscription it is the queue through which
                its delayed messages return.
            seen: Delivery count of the message; it returns with this count.
            pause: The delay.
            again: The message was delivered before, and may already be in limbo.

        Returns:
            A list with the number of the message in limbo.

        Raises:
            TransientStoreError: The store can't be used; the message isn't in limbo.
        """
        copy = parked(message, origin, home, seen)
        return self._put(message, origin, [(home, copy)], again=again, pause=pause)

    def move(
        self,
        message: JmsMessage,
        origin: Destination,
        copies: Sequence[tuple[Destination, JmsMessage]],
        *,
        again: bool,
    ) -> list[int]:
        """Put copies of a message in limbo, because sending them to their targets failed.

        Args:
            message: The message as its handler gets it.
            origin: The destination from which it was received, as named by the activation.
            copies: Messages to send, and their destinations.
            again: The message was delivered before, and its copies may already be in limbo.

        Returns:
            Numbers of the copies in limbo, in the same order.

        Raises:
            TransientStoreError: The store can't be used; the copies aren't in limbo.
        """
        return self._put(message, origin, copies, again=again)

    def keep(
        self,
        message: JmsMessage,
        origin: Destination,
        home: Destination,
        *,
        failure: Failure | None,
        again: bool,
    ) -> list[int]:
        """Keep a failed message in limbo, because no target for failed messages is configured.

        `airflow jms limbo revive` sends it back to its destination.

        Args:
            message: The message as its handler gets it.
            origin: The destination from which it was received, as named by the activation.
            home: The destination to which it returns when it is revived; see `park`.
            failure: Why the message failed; `None`: it has no subscriber.
            again: The message was delivered before, and may already be in limbo.

        Returns:
            A list with the number of the message in limbo.

        Raises:
            TransientStoreError: The store can't be used; the message isn't in limbo.
        """
        failure = failure or Failure(class_names=("Unsubscribed",), message="nobody subscribes to it")
        copies = [(home, redirect_of(message))]
        numbers = self._put(message, origin, copies, again=again, failure=failure)
        _log.log(
            logging.INFO if failure == IN_DOUBT and not self.says_doubt else logging.ERROR,
            "Message %s from %s stays in limbo as number %d (airflow jms limbo revive sends it back): %s",
            message.message_id,
            origin,
            numbers[0],
            failure.message,
        )
        return numbers

    def _put(
        self,
        message: JmsMessage,
        origin: Destination,
        copies: Sequence[tuple[Destination, JmsMessage]],
        *,
        again: bool,
        pause: timedelta = timedelta(),
        failure: Failure | None = None,
    ) -> list[int]:
        now, digest = self.limbo.now(), stable_digest(message, origin)
        return self.limbo.put(
            [
                LimboEntry(
                    jms_conn_id=self.jms_conn_id,
                    destination=sending_text(target),
                    message=copy,
                    due_at=now + pause,
                    activation=self.activation,
                    key="" if digest is None else f"{digest} to {target}",
                    again=again,
                    most_tries=self.most_tries,
                    failure=failure,
                )
                for target, copy in copies
            ],
            now,
        )

    def entry_of(
        self,
        outgoing: Outgoing,
        cause: tuple[JmsMessage, Destination] | None = None,
        place: int = 0,
        *,
        again: bool = False,
    ) -> LimboEntry:
        """Return the entry for a message that a handler sends with a delay, counted from now.

        Args:
            outgoing: The message and its delay.
            cause: The message being handled, and its origin, if the entry belongs to the unit of work of this
                message. `None`: the entry is put in limbo at once, independently of any commit.
            place: Number of delayed messages that the handler sent before this one; part of the entry's key.
            again: Whether the message being handled was delivered before. Then an earlier attempt may have
                put this entry in limbo already.
        """
        digest = None if cause is None else stable_digest(*cause)
        return LimboEntry(
            jms_conn_id=self.jms_conn_id,
            destination=sending_text(outgoing.destination),
            message=outgoing.message,
            due_at=self.clock() + (outgoing.delay or timedelta()),
            activation=self.activation,
            key="" if digest is None else f"{digest} sent {place} to {outgoing.destination}",
            again=again,
            most_tries=self.most_tries,
            once=digest is not None,
        )

    def put(self, entries: Sequence[LimboEntry]) -> list[int]:
        """Put delayed messages of a handler in limbo; return the numbers of the stored entries.

        An entry is left out if an earlier attempt already put it in limbo and it was sent since.

        Raises:
            TransientStoreError: The store can't be used; none of the messages is in limbo.
        """
        # Their delays began by the clock of this host, and end by that of the store.
        now, here = self.limbo.now(), self.clock()
        return self.limbo.put([replace(each, due_at=each.due_at + (now - here)) for each in entries], now)

    def settled(self, entries: Sequence[LimboEntry]) -> None:
        """Forget the keys of these messages, because the message being handled is acknowledged."""
        try:
            self.limbo.settled(self.activation, [each.key for each in entries if each.once])
        except TransientStoreError as error:  # they are forgotten when they are old
            _log.debug("Keys of sent messages could not be deleted from limbo yet: %s", error)

    @contextlib.contextmanager
    def unless_refused(self, numbers: Sequence[int]) -> Iterator[None]:
        """Withdraw messages from limbo if the block raises.

        The block acknowledges the received message that led to these messages. If the block fails, the
        received message is redelivered and would put them in limbo a second time. If the outcome of the
        acknowledgement is in doubt, they stay in limbo.

        Args:
            numbers: Numbers of the messages in limbo.
        """
        try:
            yield
        except InDoubtError:  # it may be acknowledged
            raise
        except BaseException:
            self._withdraw(numbers)
            raise

    def _withdraw(self, numbers: Sequence[int]) -> None:
        try:
            self.limbo.purge(LimboSelection(numbers=frozenset(numbers)), self.limbo.now())
        except TransientStoreError as error:
            _log.warning(
                "Messages %s could not be removed from limbo and may be delivered twice: %s", numbers, error
            )


class ParkingUnit:
    """A unit of work that puts messages in limbo before it acknowledges anything.

    Args:
        unit: The broker's part of the unit of work.
        delayed_messages: The limbo.
        put: Puts entries in limbo and returns their numbers; may wait for the store.
    """

    def __init__(
        self,
        unit: UnitOfWork,
        delayed_messages: DelayedMessages,
        put: Callable[[Sequence[LimboEntry]], Sequence[int]],
    ) -> None:
        self._unit = unit
        self._delayed_messages = delayed_messages
        self._put = put
        self._entries: list[LimboEntry] = []
        self.send = unit.send
        self.acknowledge = unit.acknowledge
        self.rollback = unit.rollback

    def park(self, entry: LimboEntry) -> None:
        """Add a message for limbo."""
        self._entries.append(entry)

    def commit(self, meanwhile: Callable[[], object] | None = None) -> None:
        """Put the messages in limbo, then commit the broker's part of the unit.

        Args:
            meanwhile: Passed to `UnitOfWork.commit`.

        Raises:
            TransientStoreError: The store can't be used; the unit is rolled back.
        """
        try:
            numbers = self._put(self._entries)
        except BaseException:
            self._unit.rollback()
            raise
        with self._delayed_messages.unless_refused(numbers):
            self._unit.commit(meanwhile)
        self._delayed_messages.settled(self._entries)
