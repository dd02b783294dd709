"""The connection of a stream: borrowed without blocking the event loop, consumed in a serial executor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from airflow_provider_jmsjca.core.delivery.events import ConnectionOpened, ReconnectAsked
from airflow_provider_jmsjca.engine.connecting.async_connection import AsyncConnection
from airflow_provider_jmsjca.engine.connecting.threads import SerialExecutor
from airflow_provider_jmsjca.engine.delivering.consumers import Consumers, ConsumingLink
from airflow_provider_jmsjca.engine.delivering.driver import Driver
from airflow_provider_jmsjca.engine.delivering.receiver import ReceiveBuffer
from airflow_provider_jmsjca.engine.delivering.settings import ListenerSettings
from airflow_provider_jmsjca.errors import JmsError, PermanentBrokerError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.transports.base import Received

_log = safe_logger(__name__)


class LoopLink(ConsumingLink):
    """One attempt to borrow a connection, and the consumers on it.

    Blocking calls run in the serial executor, after commits and moves submitted before. So consumers are
    closed after these, and no message is settled twice. Call every method except `post` in the event loop.

    Args:
        settings: Contains the subscriptions.
        source: Lends the connection.
        driver: Receives the events of the link.
        receivers: Opens the consumers.
        executor: Runs blocking calls.

    Attributes:
        closed: Future that is done when the consumers are closed and the connection is released.
    """

    def __init__(
        self,
        settings: ListenerSettings,
        source: AsyncConnection,
        driver: Driver,
        receivers: Consumers,
        executor: SerialExecutor,
    ) -> None:
        super().__init__(settings, driver, receivers)
        self._source = source
        self._executor = executor
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self.closed: asyncio.Future[None] = self._loop.create_future()

    def start(self) -> None:
        """Begin to connect; the driver later gets `ConnectionOpened` or `ConnectFailed`."""
        self._task = self._loop.create_task(self._open())

    def consume(self, buffer: ReceiveBuffer) -> None:
        """Begin to open the consumers; a call of `Driver.opened` or the event `ConnectFailed` follows."""
        self._executor.submit(lambda: self._consume(buffer))

    def stop_consuming(self) -> None:
        """Close the consumers: unsettled messages return to the broker."""
        self._executor.submit(self._stop_consuming)

    def close(self) -> None:
        """Close the consumers, so that unsettled messages return to the broker, and release the connection.

        An attempt to connect is given up. The call returns at once; closing twice is harmless.
        """
        if self._unwanted:
            return
        self._unwanted = True
        if self._retry is not None:
            self._retry.cancel()
        if self._task is not None:
            self._task.cancel()
        give_back = self._source.detach()
        if self._connection is None:
            self._set_closed()
            return

        def work() -> None:
            try:
                self._stop_consuming()
            finally:
                give_back()
                self.post(self._set_closed)

        self._executor.submit(work)

    def post(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call a function in the event loop, from any thread; do nothing if the loop is closed."""
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            _log.debug("The event loop is closed; the broker has the messages back")

    def _set_closed(self) -> None:
        if not self.closed.done():
            self.closed.set_result(None)

    async def _open(self) -> None:
        try:
            connection = await self._source.attempt()
        except JmsError as error:
            self._failed(error, logged=True)
            return
        except Exception:  # noqa: BLE001 - the outermost edge of this task: nobody else would see it
            _log.exception("Internal error in the connection of %s; please report it", self._settings.name)
            self._failed(
                PermanentBrokerError("internal error in the connection; see the traceback in the log")
            )
            return
        self._connection = connection
        self._driver.report(self, ConnectionOpened())
        # Logged once for all users of the connection.
        self._source.on_lost(lambda error: self.post(partial(self._lost, error, logged=True)))
        self._source.on_stale(self._stale)

    def _stale(self) -> None:
        event = ReconnectAsked(reason="the settings of the connection have changed", logged=True)
        self._driver.report(self, event)

    # -- in the serial executor ----------------------------------------------------------------------------

    def _consume(self, buffer: ReceiveBuffer) -> None:
        if self._unwanted:
            return
        append = buffer.arrivals.append

        def on_received(received: Received) -> None:
            append(received)
            # One call into the loop for all messages that arrive before it runs.
            if not buffer.noticed:
                buffer.noticed = True
                self.post(self._tell, buffer)

        connection = self.connection
        try:
            with self._source.noting_refusals():
                self._receivers.open(connection, on_received)
            self._source.unshared = self._receivers.refused
        except JmsError as error:
            self.post(self._failed, error)
            return
        except Exception:  # noqa: BLE001 - as above
            _log.exception(
                "Internal error while opening the consumers of %s; please report it", self._settings.name
            )
            fault = PermanentBrokerError(
                "internal error while opening the consumers; see the traceback in the log"
            )
            self.post(self._failed, fault)
            return
        self.post(self._opened, buffer, self._receivers.next_try)

    def _try_again(self) -> None:
        self._receivers.try_again()
        self._source.unshared = self._receivers.refused
        self.post(self._try_later, self._receivers.next_try)

    # -- in the loop again --------------------------------------------------------------------------------

    def _tell(self, buffer: ReceiveBuffer) -> None:
        buffer.noticed = False
        self._driver.arrived(buffer)

    def _opened(self, buffer: ReceiveBuffer, next_try: float | None) -> None:
        _log.info("%s is consuming from %s", self._settings.name, self.connection.broker)
        self._driver.opened(buffer)
        self._try_later(next_try)

    def _try_later(self, next_try: float | None) -> None:
        if next_try is not None and not self._unwanted:
            self._retry = self._loop.call_later(next_try, self._executor.submit, self._try_again)
