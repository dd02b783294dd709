"""Calls the handler of a listener, and reads what it wishes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from airflow_provider_jmsjca.core.delivered import DeliveredMessage
from airflow_provider_jmsjca.core.delivery.decisions import Deliver, DeliverEndOfBatch, RecordAttempt
from airflow_provider_jmsjca.core.delivery.events import (
    Acknowledged,
    AttemptNotRecorded,
    AttemptRecorded,
    Event,
    HandlerRaised,
    HandlerReturned,
    RollbackAsked,
    StateSet,
    StopAsked,
)
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.redelivery import RedeliveryHandling
from airflow_provider_jmsjca.engine.delivery import (
    ENTER_LOGGER,
    EXIT_LOGGER,
    Delivery,
    HandlerEngine,
)
from airflow_provider_jmsjca.engine.dispatch import Dispatcher
from airflow_provider_jmsjca.engine.outage import Intake
from airflow_provider_jmsjca.engine.sendable import check_sendable
from airflow_provider_jmsjca.engine.settle import Settler, Settling
from airflow_provider_jmsjca.engine.user_functions import refuse_unrun
from airflow_provider_jmsjca.engine.workers import Work
from airflow_provider_jmsjca.errors import ConfigurationError, ConnectionLostError
from airflow_provider_jmsjca.transports.base import Outgoing

_log = logging.getLogger("airflow_provider_jmsjca.listener")
_enter = logging.getLogger(ENTER_LOGGER)
_exit = logging.getLogger(EXIT_LOGGER)

Handler: TypeAlias = Callable[[Delivery], object]
RecordFunction: TypeAlias = Callable[[str | None], int]
"""Stores durably that a message is about to be handed over; returns the attempt's number, from 1."""

_END_OF_BATCH = JmsMessage.empty()


class Caller:
    """Does the work of a listener: handler calls, and through the settler the rest.

    Args:
        dispatcher: Whose decisions are carried out.
        settler: For those that settle.
        handler: The user's; whatever it raises rolls its delivery back.
        record: For attempts that are stored.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        settler: Settler,
        handler: Handler,
        record: RecordFunction | None,
    ) -> None:
        settings = dispatcher.settings
        delivery = settings.delivery
        self._dispatcher = dispatcher
        self._tally = dispatcher.tally
        self._settler = settler
        self._handler = handler
        self._record = record or _no_record
        self._context_name = settings.context_name
        self._batch_size = delivery.batch_size if delivery.batch_size > 1 else None
        self._handling = str(delivery.handling)
        self._transacted = settings.transacted
        self._reply_to = settings.reply_to
        self._name = settings.name
        self.engine = HandlerEngine(
            destination=delivery.destination,
            transacted=settings.transacted,
            principal=settings.principal,
            send=self._send,
            acknowledge=self._acknowledge if delivery.hold_until_ack else None,
            result_property=settings.result_property,
            find=settings.find,
        )

    def perform(self, work: Work) -> list[Work]:
        """Do a piece of work; return what is to be done next."""
        intake, decision = work
        kind = decision.__class__
        if kind is Deliver:
            return self._deliver(intake, decision)  # type: ignore[arg-type]  # a Deliver
        if kind is DeliverEndOfBatch:
            return self._deliver_end_of_batch(intake, decision)  # type: ignore[arg-type]
        if kind is RecordAttempt:
            return self._record_attempt(decision)  # type: ignore[arg-type]
        settling: Settling = decision  # type: ignore[assignment]  # whatever else there is settles
        return self._settler.settle(intake, settling)

    def _deliver(self, intake: Intake, decision: Deliver) -> list[Work]:
        call = decision.call
        if not intake.open:  # it is lost already
            self._dispatcher.not_delivered(decision.unit, decision.seen)
            return self._over((HandlerReturned(call=call),))
        received, message = intake.held[decision.delivery]
        if message is None:
            raise AssertionError("an undecodable message is never delivered")
        if self._batch_size is not None:
            try:
                # At once: the transport may have to acknowledge before the commit, to get more.
                self._settler.unit_of(intake, decision.unit).acknowledge(received)
            except ConnectionLostError:
                self._dispatcher.not_delivered(decision.unit, decision.seen)
                return self._over((HandlerReturned(call=call),))
            except Exception as error:  # noqa: BLE001 - a worker's edge: the batch must not slip out of hand
                self._dispatcher.not_delivered(decision.unit, decision.seen)
                return self._over((HandlerRaised(call=call, failure=Failure.of(error)),))
            with self._dispatcher.lock:
                self._dispatcher.join_unit(decision.unit)
        state = decision.state
        handling = self._handling if state.handling is None else str(state.handling)
        delivery = Delivery(message, self.engine, intake, call, decision.unit, handling)
        delivery.received_from = intake.origin(decision.delivery)
        delivery.redelivery_count = decision.seen
        if self._batch_size is not None:
            delivery.batch_index, delivery.batch_size = decision.batch_index, self._batch_size
        if decision.seen or state.failure is not None or state.rollback_data:
            delivery.user_rollback_data.update(state.rollback_data)
            if state.failure is not None:
                delivery.exception_class = state.failure.class_name
                delivery.exception_message = state.failure.message
        delivery.in_doubt = decision.in_doubt
        return self._over(self.call(delivery))

    def _deliver_end_of_batch(self, intake: Intake, decision: DeliverEndOfBatch) -> list[Work]:
        delivery = Delivery(_END_OF_BATCH, self.engine, intake, decision.call, decision.unit)
        delivery.end_of_batch = True
        delivery.batch_index, delivery.batch_size = decision.batch_index, self._batch_size
        delivery.rollback_only = decision.rollback
        with self._dispatcher.lock:
            self._tally.active += 1
        return self._over(self.call(delivery))

    def _over(self, events: tuple[Event, ...]) -> list[Work]:
        dispatcher = self._dispatcher
        with dispatcher.lock:
            self._tally.active -= 1
            todo = dispatcher.handle(events)
        dispatcher.speak()
        return todo

    def call(self, delivery: Delivery) -> tuple[Event, ...]:
        """Call the handler; return what the machine is to be told of it."""
        raised = self.call_directly(delivery)
        if raised is None:
            return (HandlerReturned(call=delivery.call),)
        return raised

    def call_directly(self, delivery: Delivery) -> tuple[Event, ...] | None:
        """Do the same, but return `None` if the handler has returned and left the delivery as it was."""
        end: Event | None = None
        name = self._context_name
        if name is not None:
            _enter.info("%s", name)
        try:
            result = self._handler(delivery)
            if result is not None:
                refuse_unrun("the handler", result)
        except BaseException as error:  # noqa: BLE001 - a worker's edge: it becomes a rollback
            _log.warning(
                "%s: the handler raised %s at attempt %d of message %s",
                self._name,
                type(error).__name__,
                delivery.redelivery_count + 1,
                delivery.message.message_id,
                # A message that fails again and again would fill the log with the same traceback.
                exc_info=error if delivery.redelivery_count == 0 else None,
            )
            end = HandlerRaised(call=delivery.call, failure=Failure.of(error))
        finally:
            if name is not None:
                _exit.info("%s", name)
        try:
            if not delivery.is_untouched:
                return (*self._wishes(delivery), end or HandlerReturned(call=delivery.call))
        except Exception as error:  # noqa: BLE001 - a worker's edge, and it holds what a user made
            _log.exception("%s: what the handler wrote on its delivery can't be read", self._name)
            end = HandlerRaised(call=delivery.call, failure=Failure.of(error))
        return None if end is None else (end,)

    def _wishes(self, delivery: Delivery) -> tuple[Event, ...]:
        """Return what a handler wrote on its delivery. Source: J169-J172, J176."""
        events: list[Event] = []
        if delivery.rollback_only:
            events.append(RollbackAsked(call=delivery.call))
        handling = delivery.changed_handling
        if delivery.user_rollback_data or handling is not None:
            events.append(
                StateSet(
                    call=delivery.call,
                    rollback_data=dict(delivery.user_rollback_data),
                    handling=None if handling is None else RedeliveryHandling.parse(handling),
                )
            )
        if delivery.stop_reason is not None:
            stop = StopAsked(reason=delivery.stop_reason, within=self._dispatcher.stop_within)
            self._dispatcher.on_stop(stop)
            events.append(stop)
        return tuple(events)

    def _acknowledge(self, delivered: DeliveredMessage) -> None:
        """Take an acknowledgement, from whichever thread. Source: J195, J196."""
        if isinstance(delivered, Delivery):
            wishes, said = self._wishes(delivered), Acknowledged(call=delivered.call)
            # A stop rolls back what isn't acknowledged, so it comes last.
            if wishes and wishes[-1].__class__ is StopAsked:
                self._dispatcher.feed(*wishes[:-1], said, wishes[-1])
            else:
                self._dispatcher.feed(*wishes, said)

    def _send(self, delivery: Delivery, outgoing: Outgoing) -> None:
        intake: Intake = delivery.intake
        if not intake.open:
            raise ConnectionLostError("the connection was lost: this delivery is rolled back and comes again")
        connection = intake.link.connection
        if self._reply_to is not None and outgoing.message.reply_to is None:
            outgoing = replace(outgoing, message=replace(outgoing.message, reply_to=self._reply_to))
        check_sendable(connection, outgoing)
        if self._transacted:
            self._settler.unit_to_join(intake, delivery.unit).send(outgoing)
        else:
            connection.send((outgoing,))

    def _record_attempt(self, decision: RecordAttempt) -> list[Work]:
        event: Event
        try:
            attempt = self._record(decision.message_id)
            event = AttemptRecorded(delivery=decision.delivery, attempt=attempt)
        except Exception as error:  # noqa: BLE001 - the port's errors are its own; the message waits whatever it was
            _log.warning("%s: an attempt could not be recorded", self._name, exc_info=True)
            event = AttemptNotRecorded(delivery=decision.delivery, failure=Failure.of(error))
        dispatcher = self._dispatcher
        with dispatcher.lock:
            todo = dispatcher.handle((event,))
        dispatcher.speak()
        return todo


def _no_record(_message_id: str | None) -> int:
    raise ConfigurationError("attempts are to be recorded, and nothing was given to record them with")
