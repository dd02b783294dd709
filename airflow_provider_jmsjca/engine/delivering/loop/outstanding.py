"""Outstanding deliveries of a stream: handed out to the user, and not ended yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_jmsjca.core.delivery.decisions import Deliver
from airflow_provider_jmsjca.core.delivery.events import (
    Event,
    HandlerNotCalled,
    HandlerRaised,
    HandlerReturned,
    RollbackAsked,
)
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.message.delivery_memory import DeliveryMemory
from airflow_provider_jmsjca.core.message.message import Identity
from airflow_provider_jmsjca.engine.delivering.receiver import ReceiveBuffer
from airflow_provider_jmsjca.engine.delivering.statistics import Counters
from airflow_provider_jmsjca.transports.base import Received


@dataclass(frozen=True, slots=True)
class DeliveryTicket:
    """A delivery in the driver: the decision, the receive buffer of the message, and the message's key."""

    decision: Deliver
    buffer: ReceiveBuffer
    key: Identity | None


class StreamDelivery:
    """One attempt at a message; end it once with `returned`, `raised` or `withdraw`, in the event loop.

    Attributes:
        message: The decoded message.
        destination: The destination from which it was received, as the activation names it.
        seen: Redelivery count of the message: 0 on the first delivery.
        in_doubt: Whether an earlier settlement of the message has an unknown outcome.
        failure: The exception that ended the previous attempt; `None` without one.

    Source: J130, J170.
    """

    __slots__ = (
        "_ended", "_handed_out", "_ticket", "destination", "failure", "in_doubt", "message", "seen",
    )  # fmt: skip

    def __init__(
        self, handed_out: OutstandingDeliveries, ticket: DeliveryTicket, message: JmsMessage
    ) -> None:
        decision = ticket.decision
        self._handed_out = handed_out
        self._ticket = ticket
        self._ended = False
        self.message = message
        self.destination: Destination = ticket.buffer.origin(decision.delivery)
        self.seen = decision.seen
        self.in_doubt = decision.in_doubt
        self.failure = decision.state.failure

    @property
    def ended(self) -> bool:
        """Whether the attempt was ended with `returned`, `raised` or `withdraw`."""
        return self._ended

    def returned(self) -> None:
        """End the attempt successfully: the message is settled. A second end is ignored.

        If the transaction timeout has passed, the attempt is rolled back instead.

        Guarantee: this stream doesn't hand the message out again, even if the broker redelivers it after the
        loss of the connection. Nor does another stream with the same `DeliveryMemory`.
        """
        self._end(HandlerReturned(call=self._ticket.decision.call))

    def raised(self, error: BaseException) -> None:
        """End the attempt as failed: redelivery handling decides the next step. A second end is ignored.

        Args:
            error: The exception. If it is a `PoisonMessageError`, or listed as not retryable, the message
                goes to the dead-letter destination.
        """
        self._end(HandlerRaised(call=self._ticket.decision.call, failure=Failure.of(error)))

    def withdraw(self) -> None:
        """End the attempt as if it had not begun: it isn't counted, and the message is delivered again.

        A second end is ignored.
        """
        self._end(HandlerNotCalled(call=self._ticket.decision.call))

    def disregard(self) -> None:
        """Don't count this attempt if the stream is closed before the attempt is ended.

        Call it for a message that the user has not received. An outcome after the close is remembered all the
        same.
        """
        self._handed_out.disregard(self._ticket.decision.call)

    def _end(self, event: HandlerReturned | HandlerRaised | HandlerNotCalled) -> None:
        if not self._ended:
            self._ended = True
            self._handed_out.answered(event, self._ticket)


class OutstandingDeliveries:
    """The outstanding deliveries, from `Deliver` to their end.

    Args:
        counters: Counts the deliveries.
        memory: Remembers outstanding messages.
        clock: Returns seconds; the machine's clock.
        feed: Passes events to the machine.
        wake: Called when a delivery can be handed out.
        raised: Called after a failed attempt with the receive buffer, the message's number and id, and the
            failure.
    """

    def __init__(
        self,
        counters: Counters,
        memory: DeliveryMemory[Received],
        clock: Callable[[], float],
        feed: Callable[..., None],
        wake: Callable[[], object],
        *,
        raised: Callable[[ReceiveBuffer, int, str | None, Failure], object] = lambda *_: None,
    ) -> None:
        self._counters = counters
        self._memory = memory
        self._clock = clock
        self._feed = feed
        self._wake = wake
        self._raised = raised
        self._ready: list[tuple[DeliveryTicket, StreamDelivery]] = []
        self._calls: set[int] = set()
        self._disregarded: set[int] = set()
        self._withdrawn: set[int] = set()
        self._rolled_back = 0

    def deliver(self, decision: Deliver, buffer: ReceiveBuffer, key: Identity | None) -> None:
        """Make a delivery ready to be handed out; end it at once if its message already has an outcome."""
        _, message = buffer.held[decision.delivery]
        if message is None:
            raise AssertionError("an undecodable message is never delivered")
        if self._memory.is_handled(decision.delivery):  # its commit was refused; its outcome stands
            self._feed(HandlerReturned(call=decision.call))
            return
        self._counters.deliver(decision.seen, self._clock())
        self._calls.add(decision.call)
        ticket = DeliveryTicket(decision, buffer, key)
        self._ready.append((ticket, StreamDelivery(self, ticket, message)))
        self._wake()

    def next(self) -> StreamDelivery | None:
        """Hand out the next delivery; `None` if no delivery is ready."""
        if not self._ready:
            return None
        ticket, delivery = self._ready.pop(0)
        self._memory.hand_out(ticket.key)
        return delivery

    def answered(
        self, event: HandlerReturned | HandlerRaised | HandlerNotCalled, ticket: DeliveryTicket
    ) -> None:
        """Handle the end of a delivery: the user has called `returned`, `raised` or `withdraw`.

        Args:
            event: The event for the machine.
            ticket: The delivery.
        """
        handled = isinstance(event, HandlerReturned)
        if isinstance(event, HandlerRaised):
            number = ticket.decision.delivery
            held = ticket.buffer.held.get(number)
            message = None if held is None else held[1]
            message_id = None if message is None else message.message_id
            self._raised(ticket.buffer, number, message_id, event.failure)
        if self._close(event.call):
            self._rolled_back = 0
            if isinstance(event, HandlerNotCalled):
                self._withdrawn.add(ticket.decision.unit)
                self._counters.undeliver(ticket.decision.seen)
            self._feed(event)
            if handled and ticket.buffer.open:
                handled = self._rolled_back != ticket.decision.unit  # it took longer than a unit may
        # Also while the stream is being closed.
        self._memory.record_outcome(ticket.decision.delivery, ticket.key, ticket.buffer, handled=handled)

    def withdraw(self) -> None:
        """Withdraw deliveries that weren't handed out to the user and that can't be settled any more.

        The broker redelivers their messages.
        """
        gone = [ticket.decision for ticket, _ in self._ready if not ticket.buffer.open]
        self._ready = [each for each in self._ready if each[0].buffer.open]
        for decision in gone:
            self._close(decision.call)
            self._withdrawn.add(decision.unit)
            self._counters.undeliver(decision.seen)
        self._feed(*(HandlerNotCalled(call=decision.call) for decision in gone))

    def rolled_back(self, unit: int) -> bool:
        """Record the rollback of a unit; return whether its message was handed out to the user."""
        self._rolled_back = unit
        seen = unit not in self._withdrawn
        self._withdrawn.discard(unit)
        return seen

    def disregard(self, call: int) -> None:
        """Don't count a delivery that `end_all` ends; see `StreamDelivery.disregard`."""
        if call in self._calls:
            self._disregarded.add(call)

    def end_all(self) -> None:
        """Roll back all outstanding deliveries.

        If the user ends a delivery later, the delivery memory notes the outcome, and nothing is settled.
        """
        unseen = {ticket.decision.call for ticket, _ in self._ready} | self._disregarded
        self._ready.clear()
        events: list[Event] = []
        for call in tuple(self._calls):
            self._close(call)
            if call in unseen:
                events.append(HandlerNotCalled(call=call))
            else:
                events += [RollbackAsked(call=call), HandlerReturned(call=call)]
        self._feed(*events)

    def _close(self, call: int) -> bool:
        if call not in self._calls:
            return False
        self._calls.discard(call)
        self._disregarded.discard(call)
        self._counters.active -= 1
        return True
