"""Registers streams of events and deferred listeners in the store, and carries out requests to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from airflow_provider_jmsjca.engine.activations.registry import Identity, Registrar, Sample
from airflow_provider_jmsjca.engine.delivering.loop.signal import Signal
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.store.base import ActivationOrder, RunStatus

log = safe_logger(__name__)

_ANSWER_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.1


class StreamControl:
    """One stream of events in the registry, for use in its event loop. No method blocks the loop.

    A trigger can't end by itself, because Airflow would start it again. So requests to suspend, drain or stop
    have the same effect: the stream closes its subscription, and makes no events until it is resumed. It
    stays registered.

    Args:
        registrar: Registrar of the store in which the stream is registered.
        identity: Identity of the stream in the registry.
        sample: Returns the state of the stream for the registry: its status, counts and last error. Called
            from any thread.
        interrupt: Called in the loop when suspending, draining or stopping is requested.
    """

    def __init__(
        self,
        registrar: Registrar,
        identity: Identity,
        *,
        sample: Callable[[], Sample],
        interrupt: Callable[[], object],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.identity = identity
        self._sample = sample
        self._interrupt = interrupt
        self._changed = Signal()
        self._is_closed = False
        self._registration = registrar.register(identity, self, refuses=False)

    @property
    def order(self) -> ActivationOrder | None:
        """Request to suspend, drain or stop the stream; `None`: no request, so the stream makes events."""
        return self._registration.order

    def sample(self) -> Sample:
        """Return the state of the stream; called in the registrar's thread."""
        return self._sample()

    @property
    def status(self) -> RunStatus | None:
        """Status of the stream while a request to suspend, drain or stop applies, else `None`.

        `DRAINING` until the stream is closed, then `SUSPENDED`.
        """
        if self.order is None:
            return None
        return RunStatus.SUSPENDED if self._is_closed else RunStatus.DRAINING

    def apply_order(self, order: ActivationOrder | None) -> None:
        """Pass a request to the stream's event loop; called in the registrar's thread."""
        try:
            self._loop.call_soon_threadsafe(self._change_order, order)
        except RuntimeError:
            log.debug("The event loop of %s has ended", self.identity.activation)

    def _change_order(self, order: ActivationOrder | None) -> None:
        self._changed.set()
        if order is not None:
            self._interrupt()

    async def admit(self, subject: str) -> None:
        """Wait while a request keeps the stream from subscribing; return when the stream may subscribe.

        If the store doesn't answer for 5 seconds, return too: requests are carried out later.

        Args:
            subject: The stream, for the log.
        """
        deadline = self._loop.time() + _ANSWER_SECONDS
        while not self._registration.answered:
            if self._loop.time() >= deadline:
                log.warning(
                    "%s: the store does not answer; subscribing anyway. A stored stop applies once it "
                    "answers",
                    subject,
                )
                return
            await asyncio.sleep(_LOOK_SECONDS)
        reported: ActivationOrder | None = None
        while (order := self.order) is not None:
            if order != reported:
                reported, self._is_closed = order, True
                log.warning("%s: %s. The trigger stays registered but makes no events", subject, order)
            self._changed.clear()
            await self._changed.wait()
        if reported is not None:
            self._is_closed = False
            log.warning("%s: resumed; it subscribes again", subject)

    def leave(self) -> None:
        """Report the end of the stream, without waiting for the report."""
        self._registration.end(within=0)


class WaitingListener:
    """A deferred listener in the registry, for use in its event loop.

    Args:
        registrar: Registrar of the store in which the listener is registered.
        identity: Identity of the listener in the registry.
    """

    def __init__(self, registrar: Registrar, identity: Identity) -> None:
        self._loop = asyncio.get_running_loop()
        self._identity = identity
        self._changed = Signal()
        self._registration = registrar.register(identity, self, refuses=False)

    @property
    def order(self) -> ActivationOrder | None:
        """Request to suspend, drain or stop the listener; `None`: none, so the listener may consume."""
        return self._registration.order

    def sample(self) -> Sample:
        """Return the state of the listener; called in the registrar's thread."""
        return Sample(status=RunStatus.WAITING if self.order is None else RunStatus.SUSPENDED)

    def apply_order(self, order: ActivationOrder | None) -> None:
        """Notify the trigger in its event loop; called in the registrar's thread."""
        if order is None:
            log.warning("%s: resumed; its task waits for messages again", self._identity.activation)
        else:
            log.warning("%s: %s", self._identity.activation, order)
        try:
            self._loop.call_soon_threadsafe(self._changed.set)
        except RuntimeError:
            log.debug("The event loop of %s has ended", self._identity.activation)

    async def wait_for_change(self, order: ActivationOrder | None) -> None:
        """Return as soon as the request in force differs from `order`."""
        while True:
            self._changed.clear()
            if self.order != order:
                return
            await self._changed.wait()

    def leave(self) -> None:
        """Report the end of the deferral, without waiting for the report."""
        self._registration.end(within=0)
