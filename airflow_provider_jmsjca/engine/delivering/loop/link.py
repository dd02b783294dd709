"""The connection of a stream: borrowed without blocking the event loop, consumed on in a lane of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from airflow_provider_jmsjca.core.delivery.events import ConnectionOpened, ReconnectAsked
from airflow_provider_jmsjca.engine.connecting.async_connection import AsyncConnection
from airflow_provider_jmsjca.engine.connecting.threads import Lane
from airflow_provider_jmsjca.engine.delivering.admission import Intake
from airflow_provider_jmsjca.engine.delivering.receivers import ConsumingLink, LinkUser, Receivers
from airflow_provider_jmsjca.engine.delivering.settings import ListenerSettings
from airflow_provider_jmsjca.errors import JmsError, PermanentBrokerError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.transports.base import Received

_log = safe_logger(__name__)


class LoopLinkUser(LinkUser, Protocol):
    """Who wants to know; everything is told in the event loop."""

    def opening(self, intake: Intake) -> None:
        """Whatever the lane did for the intake before this one is done and told; now it fills."""


class LoopLink(ConsumingLink):
    """One attempt to borrow a connection, and what is consumed over it.

    What may block runs in the lane, where commits and moves run too: consumers are closed after those that
    were decided before, and nothing is settled twice. Every method is for the event loop.

    Args:
        settings: What to receive.
        source: Lends the connection.
        user: Who wants to know.
        receivers: Opens the consumers.
        lane: For what may block.

    Attributes:
        closed: Done when its consumers are closed and the connection is given back.
    """

    def __init__(
        self,
        settings: ListenerSettings,
        source: AsyncConnection,
        user: LoopLinkUser,
        receivers: Receivers,
        lane: Lane,
    ) -> None:
        super().__init__(settings, user, receivers)
        self._user: LoopLinkUser = user
        self._source = source
        self._lane = lane
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self.closed: asyncio.Future[None] = self._loop.create_future()

    def start(self) -> None:
        """Connect; `ConnectionOpened` or `ConnectFailed` is reported."""
        self._task = self._loop.create_task(self._open())

    def consume(self, intake: Intake) -> None:
        """Open the consumers; told by `LinkUser.opened`, or as a failure."""
        self._lane.submit(lambda: self._consume(intake))

    def stop_consuming(self) -> None:
        """Close the consumers: what isn't settled goes back."""
        self._lane.submit(self._stop_consuming)

    def close(self) -> None:
        """Close the consumers, so that what isn't settled goes back, and give back the connection.

        Or give up connecting. Returns at once; closing twice is harmless.
        """
        if self._unwanted:
            return
        self._unwanted = True
        if self._retry is not None:
            self._retry.cancel()
        if self._task is not None:
            self._task.cancel()
        give_back = self._source.relinquish()
        if self._connection is None:
            self._set_closed()
            return

        def work() -> None:
            try:
                self._stop_consuming()
            finally:
                give_back()
                self.post(self._set_closed)

        self._lane.submit(work)

    def post(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call back in the event loop, if there is one still; from any thread."""
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
            _log.exception("Keeping the connection of %s failed", self._settings.name)
            self._failed(PermanentBrokerError("keeping the connection failed; the log has the traceback"))
            return
        self._connection = connection
        self._user.report(self, ConnectionOpened())
        # Logged once, for all who share the connection.
        self._source.on_lost(lambda error: self.post(partial(self._lost, error, logged=True)))
        self._source.on_stale(self._stale)

    def _stale(self) -> None:
        event = ReconnectAsked(reason="the settings of the connection have changed", logged=True)
        self._user.report(self, event)

    # -- in the lane --------------------------------------------------------------------------------------

    def _consume(self, intake: Intake) -> None:
        if self._unwanted:
            return
        self.post(self._user.opening, intake)
        append = intake.arrivals.append

        def on_received(received: Received) -> None:
            append(received)
            # One call into the loop for all that arrives before the loop gets to it.
            if not intake.noticed:
                intake.noticed = True
                self.post(self._tell, intake)

        connection = self.connection
        try:
            with self._source.asking():
                self._receivers.open(connection, on_received)
            self._source.apart = self._receivers.refused
        except JmsError as error:
            self.post(self._failed, error)
            return
        except Exception:  # noqa: BLE001 - as above
            _log.exception("Opening the consumers of %s failed", self._settings.name)
            fault = PermanentBrokerError("opening the consumers failed; the log has the traceback")
            self.post(self._failed, fault)
            return
        self.post(self._opened, intake, self._receivers.next_try)

    def _try_again(self) -> None:
        self._receivers.try_again()
        self._source.apart = self._receivers.refused
        self.post(self._try_later, self._receivers.next_try)

    # -- in the loop again --------------------------------------------------------------------------------

    def _tell(self, intake: Intake) -> None:
        intake.noticed = False
        self._user.arrived(intake)

    def _opened(self, intake: Intake, next_try: float | None) -> None:
        _log.info("%s is consuming from %s", self._settings.name, self.connection.broker)
        self._user.opened(intake)
        self._try_later(next_try)

    def _try_later(self, next_try: float | None) -> None:
        if next_try is not None and not self._unwanted:
            self._retry = self._loop.call_later(next_try, self._lane.submit, self._try_again)
