"""The consumers of a listener on one connection, one or more for each destination.

`ConsumingLink` is the base of `ThreadLink`, for handlers in threads, and of `LoopLink`, for event loops.
"""

from __future__ import annotations

import contextlib
import functools
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from airflow_provider_jmsjca.core.copies.in_progress import RUN
from airflow_provider_jmsjca.core.delivery.events import ConnectFailed, ConnectionLost
from airflow_provider_jmsjca.core.delivery.outage import RefusedDestinations
from airflow_provider_jmsjca.core.destination import DestinationKind
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.options.choices import InDoubtEvents
from airflow_provider_jmsjca.engine.delivering.driver import Driver
from airflow_provider_jmsjca.engine.delivering.receiver import ConsumerConnection
from airflow_provider_jmsjca.engine.delivering.settings import InProgress, ListenerSettings
from airflow_provider_jmsjca.engine.moving import check_handling, check_target, target_of
from airflow_provider_jmsjca.engine.watching.backlog import BacklogWatch
from airflow_provider_jmsjca.engine.watching.peek import peek
from airflow_provider_jmsjca.errors import (
    ClientIdInUseError,
    ConfigurationError,
    ConnectionLostError,
    DeliveryStoppedError,
    JmsError,
    PermanentBrokerError,
    ReplyTimeoutError,
    TransientBrokerError,
)
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.store.base import MessageAttempts
from airflow_provider_jmsjca.transports.base import (
    BrokerInfo,
    ConnectFunction,
    Connection,
    ConnectionState,
    Consumer,
    OnReceived,
    Received,
    Subscription,
)

_log = safe_logger("airflow_provider_jmsjca.listener")
_MOST_SAID = 100


class LeftInDoubtError(PermanentBrokerError):
    """The start fails because messages are in doubt, as the spec requires; not a refusal by the broker."""


@dataclass(slots=True)
class InDoubt:
    """State of a run's check for messages that an earlier run left in doubt.

    Attributes:
        left: Returns the messages in doubt from the store; `None` without a store.
        checked: Whether the check was done, which happens on the first connection.
    """

    left: Callable[[], list[MessageAttempts]] | None = None
    checked: bool = False


class Consumers:
    """Opens and closes the consumers of one `ConsumingLink`; used by one thread at a time.

    If the broker refuses one of several destinations, the others continue. The refused one is logged, shown
    in the statistics, and retried after 1, 5, 15, 60, 60 ... seconds.

    Args:
        settings: Contains the subscriptions.
        refusals: Refused destinations, on this and earlier connections.
        in_doubt: State of this run's check for messages in doubt.
        clock: Returns seconds, monotonic.
        chance: Returns a random number, 0 up to but not including 1.

    Source: I5.
    """

    def __init__(
        self,
        settings: ListenerSettings,
        refusals: RefusedDestinations,
        in_doubt: InDoubt,
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._settings = settings
        self._refusals = refusals
        self._in_doubt = in_doubt
        self._clock = clock
        self._chance = chance
        self._connection: Connection | None = None
        self._on_received: OnReceived | None = None
        self._consumers: list[Consumer] = []

    def open(self, connection: Connection, on_received: OnReceived) -> None:
        """Open the consumers of every destination that is due to be tried.

        Raises:
            CapabilityError: The settings leave delays to the broker, and it can't delay.
            ConfigurationError: Messages that are moved or copied could return to their source.
            LeftInDoubtError: Messages are in doubt, and the spec requires the start to fail then.
            JmsError: Every destination was refused or waits for its next retry, or the connection is lost.
        """
        if self._settings.delivery.non_blocking_redelivery and not self._settings.has_limbo:
            purpose = "leaving delays to the broker"
            connection.capabilities.require(connection.broker, "delayed_delivery", purpose=purpose)
        check_targets(self._settings, connection.broker)
        self._connection, self._on_received = connection, on_received
        in_progress = self._settings.in_progress
        if not self._in_doubt.checked and self._in_doubt.left is not None:
            _check_stored(self._settings, self._in_doubt.left)
            self._in_doubt.checked = in_progress is None
        if in_progress is not None:
            # First, and required: messages put there must come back.
            if not self._in_doubt.checked:
                _check_in_doubt(in_progress, connection, self._settings.name)
                self._in_doubt.checked = True
            self._consumers.append(connection.consume(in_progress.subscription(connection), on_received))
        if self._settings.returns is not None:
            self._consumers.append(connection.consume(self._settings.returns, on_received))
        sources = range(len(self._settings.subscriptions))
        error: JmsError | None = None
        for source in sources:
            if connection.state is ConnectionState.UP and self._refusals.may_try(source, self._clock()):
                error = self._try(source) or error
        if len(self._refusals.reasons) < len(sources):
            return
        if error is not None:
            raise error
        # They were refused over the connections before, which some brokers close with each refusal.
        kind = PermanentBrokerError if self._refusals.all_final else TransientBrokerError
        raise kind("; ".join(dict.fromkeys(self._refusals.reasons.values())))

    def close(self) -> None:
        """Close every consumer: unsettled messages return to the broker.

        Raises:
            JmsError: A consumer can't be closed; the others are closed all the same.
        """
        self._connection = None
        consumers, self._consumers = self._consumers, []
        problem: JmsError | None = None
        for consumer in consumers:
            try:
                consumer.close()
            except JmsError as error:  # the others are closed all the same
                problem = problem or error
        if problem is not None:
            raise problem

    @property
    def next_try(self) -> float | None:
        """Seconds until the next retry of a refused destination; `None` if there is none."""
        due = None if self._connection is None else self._refusals.next_due
        return None if due is None else max(0.0, due - self._clock())

    @property
    def refused(self) -> bool:
        """Whether the broker refuses at least one of the destinations."""
        return bool(self._refusals.reasons)

    def try_again(self) -> None:
        """Open the consumers of refused destinations whose retry is due."""
        for source in self._refusals.due(self._clock()):
            if self._connection is None or self._connection.state is not ConnectionState.UP:
                self._connection = None
                return
            with contextlib.suppress(ConnectionLostError):  # reported elsewhere
                self._try(source)

    def _try(self, source: int) -> JmsError | None:
        settings = self._settings
        name, destination = settings.name, settings.subscriptions[source].destination
        try:
            self._open(source)
        except JmsError as error:
            # Some brokers close the connection after a refusal: the next destination isn't to blame for it.
            if len(settings.subscriptions) == 1 or isinstance(error, ConnectionLostError):
                raise
            final = isinstance(error, (PermanentBrokerError, ConfigurationError))
            pause = self._refusals.refused(source, str(error), self._clock(), self._chance(), final=final)
            _log.warning(
                "%s: can't consume from %s: %s; the other destinations go on, retrying this one in %.1f s",
                name,
                destination,
                error,
                pause.total_seconds(),
            )
            return error
        if self._refusals.accepted(source):
            _log.info("%s: consuming from %s again", name, destination)
        return None

    def _open(self, source: int) -> None:
        if self._connection is None or self._on_received is None:
            raise AssertionError("consumers are opened on a connection")
        subscription, count = consumers_of(self._settings, source, self._connection)
        if not subscription.own_session:
            self._consume(self._connection, subscription, count, self._on_received)
            return
        gate = _Gate(self._on_received)
        try:
            self._consume(self._connection, subscription, count, gate)
            gate.open()
        except JmsError as error:
            if self._connection.state is not ConnectionState.UP:
                raise
            _log.warning(
                "%s: can't open a connection for each of %d concurrent batches of %s; acknowledging each "
                "message separately, which is slower: %s",
                self._settings.name,
                count,
                subscription.destination,
                error,
            )
            subscription, count = _sharing_a_connection(self._settings, source)
            self._consume(self._connection, subscription, count, self._on_received)

    def _consume(
        self, connection: Connection, subscription: Subscription, count: int, on_received: OnReceived
    ) -> None:
        before = len(self._consumers)
        for _ in range(count):
            try:
                consumer = connection.consume(subscription, on_received)
            except JmsError:
                while len(self._consumers) > before:
                    self._consumers.pop().close()
                raise
            self._consumers.append(consumer)


class _Gate:
    """Keeps messages back until all consumers are open, and then passes them on.

    If a consumer can't be opened, the gate stays closed, and the kept messages are never passed on.

    Args:
        on_received: Takes the messages.
    """

    def __init__(self, on_received: OnReceived) -> None:
        self._on_received = on_received
        self._lock = threading.Lock()
        self._is_open = False
        self._kept: list[Received] = []

    def __call__(self, received: Received) -> None:
        """Pass a message on if the gate is open, else keep it."""
        if not self._is_open:
            with self._lock:
                if not self._is_open:
                    self._kept.append(received)
                    return
        self._on_received(received)

    def open(self) -> None:
        """Pass on the kept messages, and from now on every message at once."""
        with self._lock:
            for received in self._kept:
                self._on_received(received)
            self._is_open = True


def consumers_of(settings: ListenerSettings, source: int, connection: Connection) -> tuple[Subscription, int]:
    """Return how to consume a destination on a connection: the subscription, and the number of consumers.

    The subscription is that of the settings. If each unit of work has its own consumer, it is adapted to what
    the connection's broker can do.

    Args:
        settings: Contains the subscriptions and the number of consumers.
        source: Index of the destination in `ListenerSettings.subscriptions`.
        connection: The connection.
    """
    subscription, units = settings.subscriptions[source], settings.unit_consumers
    if units is not None:
        of_unit = replace(subscription, in_order=True, prefetch=units.prefetch)
        if connection.capabilities.cumulative_acknowledgement:
            return of_unit, units.count
        if connection.capabilities.own_sessions and units.count > 1:
            return replace(of_unit, own_session=True), units.count
    return _sharing_a_connection(settings, source)


def _sharing_a_connection(settings: ListenerSettings, source: int) -> tuple[Subscription, int]:
    subscription = settings.subscriptions[source]
    # A second consumer on a topic would get every message a second time.
    is_queue = subscription.destination.kind is DestinationKind.QUEUE
    return subscription, settings.receivers if is_queue else 1


def check_targets(settings: ListenerSettings, broker: BrokerInfo) -> None:
    """Refuse targets of moves and copies from which a message could return to its source.

    Raises:
        ConfigurationError: All faults at once.
    """
    delivery = settings.delivery
    in_progress = None if settings.in_progress is None else settings.in_progress.destination
    plain = [each for each in (*settings.copies, delivery.unsubscribed, in_progress) if each is not None]
    faults: list[str] = []
    for source in delivery.sources:
        if (settings.has_limbo or delivery.non_blocking_redelivery) and not broker.names.can_return(source):
            faults.append(
                f"non_blocking_redelivery, use_store: {source} is a wildcard, and {broker.product} accepts "
                "no delayed message back on it; expected a queue by its name"
            )
        checks: list[Callable[[], object]] = [
            functools.partial(check_handling, broker, delivery.handling, source),
            *(functools.partial(target_of, broker, each, source) for each in delivery.dead_letter),
            *(functools.partial(check_target, broker, each, source) for each in plain),
        ]
        for check in checks:
            try:
                check()
            except ConfigurationError as error:
                faults.extend(error.faults)
    if faults:
        raise ConfigurationError(dict.fromkeys(faults))


def _check_in_doubt(in_progress: InProgress, connection: Connection, name: str) -> None:
    """Apply `in_doubt_events` to messages that an earlier run left on the in-progress queue.

    Call it before the consumers are opened.

    Args:
        in_progress: The queue, and the spec's `in_doubt_events`.
        connection: Connection to the broker.
        name: Name of the activation, for the log.

    Raises:
        LeftInDoubtError: The queue holds messages, and the spec requires the start to fail then.
        CapabilityError: The messages are to stay on the queue, and the broker has no selectors to skip them.
    """
    match in_progress.events:
        case InDoubtEvents.REPROCESS:
            return
        case InDoubtEvents.FAIL_ON_STARTUP:
            if peek(connection, in_progress.destination, None):
                raise LeftInDoubtError(
                    f"{in_progress.destination} holds messages whose outcome is in doubt: an earlier run "
                    "died while handling them. Examine them, then delete them or move them back"
                )
        case InDoubtEvents.IGNORE | InDoubtEvents.LOG_ERROR:
            purpose = f"in_doubt_events {in_progress.events}"
            connection.capabilities.require(connection.broker, "selector", purpose=purpose)
            if in_progress.events is InDoubtEvents.LOG_ERROR:
                _log_each(in_progress, connection, name)


def _check_stored(settings: ListenerSettings, left: Callable[[], list[MessageAttempts]]) -> None:
    """Apply `in_doubt_events` to messages that are in doubt according to the store.

    An earlier process was handling these messages when it died. Call it before the consumers are opened.

    Raises:
        LeftInDoubtError: There are such messages, and the spec requires the start to fail then.
        TransientStoreError: The store can't be used.
    """
    if settings.in_doubt not in {InDoubtEvents.FAIL_ON_STARTUP, InDoubtEvents.LOG_ERROR}:
        return
    found = left()
    for each in found[:_MOST_SAID]:
        _log.error(
            "%s: message %s is in doubt: %s died while handling it",
            settings.name,
            each.message,
            each.where or "a process",
        )
    if len(found) > _MOST_SAID:
        _log.error(
            "%s: %d more messages are in doubt; list all with airflow jms indoubt list",
            settings.name,
            len(found) - _MOST_SAID,
        )
    if found and settings.in_doubt is InDoubtEvents.FAIL_ON_STARTUP:
        raise LeftInDoubtError(
            f"{len(found)} messages of {found[0].activation!r} are in doubt: the process that was handling "
            "them died. Examine them (airflow jms indoubt list), then let them be redelivered (airflow "
            "jms indoubt reset)"
        )


def _log_each(in_progress: InProgress, connection: Connection, name: str) -> None:
    if connection.capabilities.browse:
        for message in connection.browse(in_progress.destination):
            if message.properties.get(RUN) != in_progress.run:
                _log.error(
                    "%s: message %s is in doubt; it stays on the in-progress queue", name, message.message_id
                )
    elif peek(connection, in_progress.destination, None):
        _log.error(
            "%s: %s holds messages in doubt; they stay there. Examine them, then delete them or move them "
            "back",
            name,
            in_progress.destination,
        )


def watches(
    settings: ListenerSettings, connect: ConnectFunction, driver: Driver, connection: Connection
) -> list[BacklogWatch]:
    """Return a watch for each queue, to detect messages that stay there; no watch is started yet.

    Args:
        settings: Contains the subscriptions.
        connect: Opens a connection for the check.
        driver: Reports whether the listener is idle.
        connection: The listener's connection.
    """
    return [
        BacklogWatch(
            name=settings.name,
            queue=subscription.destination,
            filtered=bool(subscription.selector),
            consumers=consumers_of(settings, source, connection)[1],
            connect=connect,
            idle_for=driver.idle_for,
            has_unsettled=driver.keeps,
            clock=time.monotonic,
        )
        for source, subscription in enumerate(settings.subscriptions)
        if subscription.destination.kind is DestinationKind.QUEUE
    ]


class ConsumingLink(ConsumerConnection):
    """A connection, and the consumers on it; base of `ThreadLink` and `LoopLink`.

    Args:
        settings: Contains the subscriptions.
        driver: Receives the events of the link.
        receivers: Opens the consumers.
    """

    def __init__(self, settings: ListenerSettings, driver: Driver, receivers: Consumers) -> None:
        self._settings = settings
        self._driver = driver
        self._receivers = receivers
        self._connection: Connection | None = None
        self._unwanted = False
        self.fault: JmsError | None = None
        self.is_lost = False
        self.is_blocked = False

    @property
    def connection(self) -> Connection:
        """The connection, from `ConnectionOpened` on."""
        if self._connection is None:
            raise AssertionError("nothing is asked of a link before it is up")
        return self._connection

    def mark_lost(self) -> None:
        """Mark the connection as lost, so that its further reports are ignored."""
        self.is_lost = True

    def _stop_consuming(self) -> None:
        try:
            self._receivers.close()
        except JmsError as error:
            # Lost on the way: that has handed everything back too.
            _log.debug("Closing a consumer of %s: %s", self._settings.name, error)

    def _failed(self, error: JmsError, *, logged: bool = False) -> None:
        """Report that connecting, or opening the consumers, failed.

        Args:
            error: The error.
            logged: Whether the error is in the log already.
        """
        self.fault = error
        permanent = isinstance(error, (PermanentBrokerError, ConfigurationError))
        stopped = isinstance(error, DeliveryStoppedError)
        event = ConnectFailed(
            failure=Failure.of(error, with_trace=False),
            permanent=permanent and (stopped or not self._settings.retry_permanent_errors),
            by_broker=not (stopped or isinstance(error, LeftInDoubtError)),
            standby=isinstance(error, ClientIdInUseError),
            logged=logged,
        )
        self._driver.report(self, event)

    def _lost(self, error: JmsError, *, logged: bool = False) -> None:
        self.is_blocked = isinstance(error, ReplyTimeoutError)
        self._driver.report(self, ConnectionLost(failure=Failure.of(error, with_trace=False), logged=logged))
