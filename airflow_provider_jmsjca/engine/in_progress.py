"""The in-progress queue of a listener: what is put there, and what an earlier run left there."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass, field

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.administered import destination_named
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.in_progress import RUN, Staged, run_selector, staged_copy
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.options.choices import InDoubtEvents
from airflow_provider_jmsjca.engine.peek import peek
from airflow_provider_jmsjca.errors import ConfigurationError, PermanentBrokerError
from airflow_provider_jmsjca.transports.base import Connection, Outgoing, Subscription

_log = logging.getLogger("airflow_provider_jmsjca.listener")


@dataclass(frozen=True, slots=True, kw_only=True)
class InProgress:
    """Where messages stand while they are handled, and what becomes of those found there at the start.

    Attributes:
        destination: The queue; no two activations that run at once may share one.
        events: What happens to messages that another run left there.
        prefetch: As for the other subscriptions.
        run: Names this run: what it puts there isn't in doubt.

    Source: I9-I14, I52.
    """

    destination: Destination
    events: InDoubtEvents = InDoubtEvents.REPROCESS
    prefetch: int | None = None
    run: str = field(default_factory=lambda: uuid.uuid4().hex)

    def subscription(self, connection: Connection) -> Subscription:
        """Return what to receive from it: with most settings only what this run puts there."""
        own = self.events is not InDoubtEvents.REPROCESS and connection.capabilities.selector
        return Subscription(
            destination=self.destination,
            selector=run_selector(self.run) if own else None,
            prefetch=self.prefetch,
        )

    def outgoing(self, message: JmsMessage, source: Destination) -> Outgoing:
        """Return the copy that stands there while the message is handled."""
        staged = Staged(run=self.run, source=str(source))
        return Outgoing(destination=self.destination, message=staged_copy(message, staged))

    def check(self, connection: Connection, name: str) -> None:
        """Deal, before anything is consumed, with what an earlier run left there.

        Args:
            connection: Where.
            name: The activation's, for the log.

        Raises:
            PermanentBrokerError: Something is there, and the activation is to fail then.
            CapabilityError: It is to be left there, and the broker can't leave it out.
        """
        match self.events:
            case InDoubtEvents.REPROCESS:
                return
            case InDoubtEvents.FAIL_ON_STARTUP:
                if peek(connection, self.destination, None):
                    raise PermanentBrokerError(
                        f"{self.destination} holds messages whose outcome is in doubt: an earlier run was "
                        "handling them. Examine them, and delete them or move them back"
                    )
            case InDoubtEvents.IGNORE | InDoubtEvents.LOG_ERROR:
                purpose = f"in_doubt_events {self.events}"
                connection.capabilities.require(connection.broker, "selector", purpose=purpose)
                if self.events is InDoubtEvents.LOG_ERROR:
                    self._log_each(connection, name)

    def _log_each(self, connection: Connection, name: str) -> None:
        if connection.capabilities.browse:
            for message in connection.browse(self.destination):
                if message.properties.get(RUN) != self.run:
                    _log.error("%s: message %s is in doubt: it stays", name, message.message_id)
        elif peek(connection, self.destination, None):
            _log.error("%s: %s holds messages in doubt: they stay", name, self.destination)


def in_progress_of(spec: ActivationSpec, prefetch: int | None) -> InProgress | None:
    """Return what a spec says about messages in progress; `None` if they stay in their own queue.

    Raises:
        ConfigurationError: It says how to treat messages in doubt, and there can be none.
    """
    if spec.in_progress_destination is None:
        if spec.in_doubt_events is not InDoubtEvents.REPROCESS:
            raise ConfigurationError(
                f"in_doubt_events: got {spec.in_doubt_events}, expected an in_progress_destination with it:"
                " without one no event is in doubt"
            )
        return None
    return InProgress(
        destination=destination_named(spec.in_progress_destination),
        events=spec.in_doubt_events,
        prefetch=prefetch,
    )
