"""From the connection to the handler and to the settlement, while nothing is out of the ordinary.

This is what a listener with one message in hand does nearly all the time. It does what the dispatcher, the
caller and the settler do in turn, without a decision to pass on for each step.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from airflow_provider_jmsjca.core.delivery import DeliveryMachine
from airflow_provider_jmsjca.core.delivery.decisions import CommitUnit
from airflow_provider_jmsjca.core.delivery.direct import Direct, allows_short_way
from airflow_provider_jmsjca.core.delivery.events import Event, HandlerReturned, UnitCommitted
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.arrival import ArrivalReader
from airflow_provider_jmsjca.engine.delivery import Delivery, HandlerEngine
from airflow_provider_jmsjca.engine.dispatch import Dispatcher
from airflow_provider_jmsjca.engine.listener_settings import ListenerSettings
from airflow_provider_jmsjca.engine.outage import Intake
from airflow_provider_jmsjca.engine.settle import Settler
from airflow_provider_jmsjca.engine.workers import Work
from airflow_provider_jmsjca.transports.base import Received


def allows_direct_way(settings: ListenerSettings) -> bool:
    """Say whether a listener can settle a message with nothing but a pipelined acknowledgement."""
    return (
        allows_short_way(settings.delivery)
        and not settings.confirm
        and not (settings.copies or settings.drop_duplicates)
        and settings.subscribes is None
    )


class DirectWay:
    """Used by the only thread of a listener.

    Args:
        dispatcher: Whose arrivals are taken, and whose machine is told.
        settler: Told of what fails.
        engine: For deliveries.
        call: Calls the handler; returns what the machine is to be told of it, `None` if it just returned.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        settler: Settler,
        engine: HandlerEngine,
        call: Callable[[Delivery], tuple[Event, ...] | None],
    ) -> None:
        self._dispatcher = dispatcher
        self._admission = dispatcher.admission
        self._machine: DeliveryMachine = dispatcher.machine
        self._settler = settler
        self._engine = engine
        self._call = call
        self._reader = ArrivalReader(dispatcher.settings)
        delivery = dispatcher.settings.delivery
        self._handling = str(delivery.handling)
        timeout = delivery.transaction_timeout
        self._source = delivery.destination
        self._timeout = math.inf if timeout is None else timeout.total_seconds()

    def take(self, intake: Intake) -> list[Work] | None:
        """Handle what arrives, message after message.

        Returns:
            What is to be done before this is asked again; `None`: there is nothing to take.
        """
        dispatcher, arrivals, lock = self._dispatcher, intake.arrivals, self._dispatcher.lock
        dispatcher.rollbacks.finish()
        todo: list[Work] | None = None
        done: Direct | None = None
        while True:
            # Decoded here, and not under the lock: nobody else takes from the arrivals.
            message = self._reader.plain(arrivals[0]) if arrivals else None
            with lock:
                now = dispatcher.clock()
                if done is not None and (todo := self._committed(intake, done, now)):
                    break
                if not self._admission.may_take(intake):
                    todo = None
                    break
                begun = None if message is None else self._begin(intake, message, now)
                if begun is None or message is None:
                    todo = dispatcher.take_one()
                    break
            direct, received = begun
            delivery = Delivery(message, self._engine, intake, direct.call, direct.unit, self._handling)
            events = self._call(delivery)
            with lock:
                dispatcher.tally.active -= 1
                if events is not None or not self._is_plain(direct):
                    todo = dispatcher.handle(events or (HandlerReturned(call=direct.call),))
                    break
            try:
                received.consumer.acknowledge((received,))
            except Exception as error:  # noqa: BLE001 - the settler tells them apart
                commit = CommitUnit(unit=direct.unit, acknowledge=(direct.delivery,))
                return self._settler.failed(intake, commit, error)
            done = direct
        dispatcher.speak()
        return todo

    def _begin(self, intake: Intake, message: JmsMessage, now: float) -> tuple[Direct, Received] | None:
        dispatcher, received = self._dispatcher, intake.arrivals[0]
        if received.generation != received.consumer.generation or message.message_id is None:
            return None
        if dispatcher.settled.comes_again(received):
            return None
        group = message.properties.get("JMSXGroupID")
        direct = self._machine.begin_directly(
            next(self._admission.numbers), message.message_id, None if group is None else str(group), now
        )
        if direct is None:
            return None
        intake.arrivals.popleft()
        intake.held[direct.delivery] = received, message
        dispatcher.last_activity = now
        dispatcher.tally.deliver(0, now)
        if now + self._timeout < dispatcher.alarm:
            dispatcher.arm()
        return direct, received

    def _is_plain(self, direct: Direct) -> bool:
        """Say whether there is nothing to do but to acknowledge, now that the handler has returned."""
        return direct.unit not in self._dispatcher.units and self._machine.returned_directly(direct)

    def _committed(self, intake: Intake, direct: Direct, now: float) -> list[Work]:
        dispatcher = self._dispatcher
        held = intake.held.pop(direct.delivery, None)
        if held is not None:
            dispatcher.settled.note(held[0], held[1], self._source)
        dispatcher.tally.commit(1)
        if not self._machine.committed_directly(direct):
            return dispatcher.handle((UnitCommitted(unit=direct.unit),))
        dispatcher.last_activity = now
        return []
