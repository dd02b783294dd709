"""What a received message is to the machine."""

from __future__ import annotations

import logging
from dataclasses import replace

from airflow_provider_jmsjca.core.delivery.events import MessageArrived
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.in_progress import unstaged
from airflow_provider_jmsjca.core.load_balancing import published
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.options.choices import InDoubtEvents
from airflow_provider_jmsjca.core.parking import unparked
from airflow_provider_jmsjca.engine.listener_settings import ListenerSettings
from airflow_provider_jmsjca.errors import PoisonMessageError
from airflow_provider_jmsjca.transports.base import Received

_log = logging.getLogger("airflow_provider_jmsjca.listener")


class ArrivalReader:
    """Reads what a listener receives.

    Args:
        settings: Of the listener.

    Attributes:
        takes_left: Whether messages that an earlier run left in progress are delivered again (I11).
    """

    def __init__(self, settings: ListenerSettings) -> None:
        self._subscribes = settings.subscribes
        self._sources = {each: number for number, each in enumerate(settings.delivery.sources)}
        self._names = {str(each): each for each in settings.delivery.sources}
        self._first = settings.delivery.destination
        self._in_progress = settings.in_progress
        self.takes_left = (
            settings.in_progress is not None and settings.in_progress.events is InDoubtEvents.REPROCESS
        )

    def read(
        self, received: Received, number: int, *, ask: bool = True
    ) -> tuple[MessageArrived, JmsMessage | None, Destination | None]:
        """Return what the machine is told, and the message as the handler gets it.

        Args:
            received: From the transport.
            number: Names it to the machine.
            ask: Whether to find out if it is wanted.

        Returns:
            The message is what can be kept of one that can't be decoded, or `None`. The destination is the
            one it was first received from, if it is in progress.
        """
        if self._in_progress is None:
            source = 0
            if len(self._sources) > 1:
                source = self._sources[received.consumer.subscription.destination]
            event, message = self._read(received, number, source, ask=ask)
            return event, message, None
        destination = received.consumer.subscription.destination
        if destination != self._in_progress.destination:
            event, message = self._read(received, number, self._sources[destination], ask=ask)
            return event, message, None
        event, message = self._read(received, number, 0, ask=False)  # it was asked before it came here
        if message is None:
            return replace(event, in_progress=True), None, self._first
        message, staged = unstaged(message)
        origin = self._names.get(staged.source, self._first)
        left = staged.run != self._in_progress.run
        event = replace(event, source=self._sources[origin], in_progress=True, left=left)
        return event, message, origin

    def plain(self, received: Received) -> JmsMessage | None:
        """Return a message of which the machine is told nothing but its id and group; `None` for any other.

        Used where there is one destination, no in-progress queue and nobody to ask whether it is wanted.
        """
        try:
            message = received.message
            if message.redelivered or (message.delivery_count or 1) > 1:
                return None
            if message.properties:
                found, parked = unparked(published(message))
                if found is not message or parked is not None:
                    return None
        except PoisonMessageError:
            return None
        return message

    def _read(
        self, received: Received, number: int, source: int, *, ask: bool = True
    ) -> tuple[MessageArrived, JmsMessage | None]:
        message: JmsMessage | None = None
        try:
            message, parked = received.message, None
            if message.properties:
                message, parked = unparked(published(message))
            subscribes = self._subscribes if ask else None
            unsubscribed = subscribes is not None and not subscribes(message)
        except PoisonMessageError as error:
            return _poison(message or received.salvaged, number, source, error)
        except BaseException as error:
            if message is None:
                raise
            _log.exception("A message could not be asked whether it is wanted: it is poison")
            return _poison(message, number, source, error)
        group = message.properties.get("JMSXGroupID")
        event = MessageArrived(
            delivery=number,
            message_id=message.message_id,
            source=source,
            group=None if group is None else str(group),
            redelivered=message.redelivered,
            delivery_count=message.delivery_count,
            parked=parked,
            unsubscribed=unsubscribed,
        )
        return event, message


def _poison(
    message: JmsMessage | None, number: int, source: int, error: BaseException
) -> tuple[MessageArrived, JmsMessage | None]:
    event = MessageArrived(
        delivery=number,
        message_id=None if message is None else message.message_id,
        source=source,
        undecodable=Failure.of(error),
    )
    return event, message
