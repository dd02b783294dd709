"""Keeps the connection of a listener: opens it, opens consumers on it, closes it, notices its loss."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from airflow_provider_jmsjca.core.delivery.events import ConnectionUp
from airflow_provider_jmsjca.engine.delivering.admission import Intake
from airflow_provider_jmsjca.engine.delivering.receivers import LinkUser, Receivers, failed, lost, watches
from airflow_provider_jmsjca.engine.delivering.settings import ListenerSettings
from airflow_provider_jmsjca.engine.watching.backlog import BacklogWatch
from airflow_provider_jmsjca.errors import (
    JmsError,
    PermanentBrokerError,
)
from airflow_provider_jmsjca.transports.base import ConnectFunction, Connection, Received

_log = logging.getLogger(__name__)


class ThreadLink:
    """One attempt to connect, and the connection that comes of it.

    Whatever may block runs in a thread of the link's own, in order. A link that is closed while it still
    connects is left alone; its connection is closed when it comes.
    """

    def __init__(
        self, settings: ListenerSettings, connect: ConnectFunction, user: LinkUser, receivers: Receivers
    ) -> None:
        self._settings = settings
        self._connect = connect
        self._user = user
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._connection: Connection | None = None
        self._receivers = receivers
        self._unwanted = False
        self.closed = threading.Event()
        self.fault: JmsError | None = None
        self.is_lost = False
        self._watches: list[BacklogWatch] = []
        self._thread = threading.Thread(target=self._run, name=f"jms-link {settings.name}", daemon=True)

    @property
    def connection(self) -> Connection:
        """The connection, from `ConnectionUp` on."""
        if self._connection is None:
            raise AssertionError("nothing is asked of a link before it is up")
        return self._connection

    @property
    def server_type(self) -> str:
        """The product it is connected to; empty without a connection."""
        return "" if self._connection is None else self._connection.broker.product

    @property
    def address(self) -> str:
        """`host:port` it is connected to; empty without a connection."""
        return "" if self._connection is None else self._connection.broker.address

    def start(self) -> None:
        """Connect; `ConnectionUp` or `ConnectFailed` is reported."""
        self._thread.start()

    def consume(self, intake: Intake) -> None:
        """Open the consumers; told by `LinkUser.opened`, or as a failure."""
        self._work.put(lambda: self._consume(intake))

    def stop_consuming(self) -> None:
        """Close the consumers: what isn't settled goes back."""
        self._work.put(self._stop_consuming)

    def close(self, *, delete_durable: bool = False) -> None:
        """Close the connection, or give up connecting; `closed` is set when that is done."""
        self._unwanted = True
        self._stop_watching()
        if delete_durable:
            self._work.put(self._delete_durable)
        self._work.put(None)
        if self._connection is None:
            self.closed.set()

    def _run(self) -> None:
        try:
            self._open()
            while (work := self._next_work()) is not None:
                work()
        except Exception:  # noqa: BLE001 - the outermost edge of this thread: nobody else would see it
            _log.exception("Keeping the connection of %s failed", self._settings.name)
            self._failed(PermanentBrokerError("keeping the connection failed; the log has the traceback"))
        finally:
            if self._connection is not None:
                self._connection.close()
            self.closed.set()

    def _next_work(self) -> Callable[[], None] | None:
        while True:
            try:
                return self._work.get(timeout=self._receivers.next_try)
            except queue.Empty:
                self._receivers.try_again()

    def _open(self) -> None:
        try:
            connection = self._connect()
        except JmsError as error:
            if not self._unwanted:
                self._failed(error)
            return
        self._connection = connection
        if not self._unwanted:
            self._user.report(self, ConnectionUp())
            connection.on_lost(self._lost)  # after that: what isn't up can't be lost

    def _consume(self, intake: Intake) -> None:
        if self._unwanted:
            return
        append, arrived = intake.arrivals.append, self._user.arrived
        call_soon = self.connection.call_soon
        told = False

        def tell() -> None:
            nonlocal told
            told = False
            arrived(intake)

        def on_received(received: Received) -> None:
            append(received)
            arrived(intake)

        def on_received_by_one(received: Received) -> None:
            # To wake the one thread for the first of many messages would only make it wait for the others.
            nonlocal told
            append(received)
            if not (told or intake.noticed):
                told = True
                call_soon(tell)

        try:
            self._check(self.connection)
            serial = self._settings.threads == 1
            self._receivers.open(self.connection, on_received_by_one if serial else on_received)
        except JmsError as error:
            self._failed(error)
            return
        _log.info("%s is consuming from %s", self._settings.name, self.connection.broker)
        intake.ready = True
        self._user.opened(intake)
        self._watch_backlog(self.connection)

    def _watch_backlog(self, connection: Connection) -> None:
        if self._watches or not connection.capabilities.backlog:
            return
        self._watches = watches(self._settings, self._connect, self._user)
        for watch in self._watches:
            watch.start()
        if self._unwanted:  # closed meanwhile
            self._stop_watching()

    @property
    def looks(self) -> bool:
        """Whether it is just being looked if messages stay at the broker."""
        return any(watch.looking for watch in self._watches)

    def _stop_watching(self) -> None:
        for watch in self._watches:
            watch.stop()

    def _check(self, connection: Connection) -> None:
        delivery, capabilities, broker = self._settings.delivery, connection.capabilities, connection.broker
        if delivery.park and not self._settings.has_limbo:
            capabilities.require(broker, "delayed_delivery", purpose="leaving delays to the broker")
        subscription = self._settings.subscription
        if subscription.durable_name is not None:
            capabilities.require(broker, "durable_subscription", purpose="the durable subscription")
        if subscription.selector:
            capabilities.require(broker, "selector", purpose="the message selector")

    def _stop_consuming(self) -> None:
        try:
            self._receivers.close()
        except JmsError as error:
            # Lost on the way: that has handed everything back too.
            _log.debug("Closing a consumer of %s: %s", self._settings.name, error)

    def _delete_durable(self) -> None:
        name, destination = self._settings.subscription.durable_name, self._settings.subscription.destination
        if name is None or self._connection is None:
            return
        try:
            self._receivers.close()
            self._connection.delete_durable(name, destination)
        except JmsError as error:
            _log.warning(
                "The durable subscription of %s could not be deleted: %s", self._settings.name, error
            )

    def _failed(self, error: JmsError) -> None:
        self.fault = error
        self._user.report(self, failed(error, retry_permanent=self._settings.retry_permanent))

    def _lost(self, error: JmsError) -> None:
        self._user.report(self, lost(error))
