"""An activation: consumes a destination and hands its messages to a handler, under the rules of a spec.

| what happens | what becomes of the message |
|---|---|
| the handler returns | committed, with what it sent |
| it raises, or asks for a rollback | rolled back: what it sent is not sent; delivered again, attempt + 1 |
| it takes longer than the transaction timeout | rolled back as soon as it returns |
| it doesn't return before the deadline of a stop | left alone, rolled back, goes back to the broker |
| the connection is lost | comes again over the next one; what the handler had sent is not sent |
| the process is killed | comes again, to this or another process |
"""

from __future__ import annotations

import functools
import random
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from airflow_provider_jmsjca.core.delivery import ActivationState
from airflow_provider_jmsjca.core.delivery.events import ResumeAsked, Start, StopAsked, SuspendAsked
from airflow_provider_jmsjca.core.delivery.room import Room
from airflow_provider_jmsjca.core.redelivery import RedeliveryTracker
from airflow_provider_jmsjca.engine import management
from airflow_provider_jmsjca.engine.assembly import assemble
from airflow_provider_jmsjca.engine.batch_spec import EndReason
from airflow_provider_jmsjca.engine.calls import Handler, RecordFunction
from airflow_provider_jmsjca.engine.dispatch import STOP_WITHIN
from airflow_provider_jmsjca.engine.ends import Ends
from airflow_provider_jmsjca.engine.listener_settings import ListenerSettings
from airflow_provider_jmsjca.engine.outage import Connect
from airflow_provider_jmsjca.engine.runs import TICK_SECONDS, Progress, StopSignal, Watch
from airflow_provider_jmsjca.engine.statistics import Counts, Statistics
from airflow_provider_jmsjca.engine.user_functions import plain_function
from airflow_provider_jmsjca.errors import ConfigurationError, JmsError


class Activation:
    """One running consumption of a destination.

    Guarantee: a message is settled only after its handler has returned, or when the redelivery handling says
    so in so many words; until then whatever dies brings it back. A crash between a handler's return and the
    broker's confirmation delivers it once more. Counts of attempts last as long as this object (J131).

    Every method may be called from any thread, but not from a signal handler.

    Args:
        settings: How to consume; `listener_settings` reads them from a spec.
        connect: Opens one connection or raises `JmsError`, as `functools.partial(connect, settings)` does; it
            is called again and again while the broker is down.
        handler: Called with each message, in a thread of the pool.
        record: Stores attempts, for `DeliverySettings.record_attempts`.
        clock: Seconds, monotonic.
        chance: A random number, 0 up to but not including 1.
        gives_up: Asked when the broker refuses for good: whether to stop for it; otherwise it is tried again.
        on_stop: Called when the handler asks for a stop, in its thread.

    Attributes:
        ended_by: Which end the last `run` reached; `STOPPED` also when the handler stopped the activation.

    Raises:
        ConfigurationError: The settings need `record`, or the handler is no plain function: an asynchronous
            one or a generator would be called, and never run.

    Source: J9, J10, J12, J13, J81-J84, J116-J122, W15, W24-W27, W33.
    """

    def __init__(
        self,
        settings: ListenerSettings,
        connect: Connect,
        handler: Handler,
        *,
        record: RecordFunction | None = None,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
        gives_up: Callable[[], bool] = lambda: True,
        on_stop: Callable[[StopAsked], object] = lambda _: None,
    ) -> None:
        if settings.delivery.record_attempts and record is None:
            raise ConfigurationError("record_attempts is on, and nothing was given to record them with")
        self._settings = settings
        self._clock = clock
        self._assemble = functools.partial(
            assemble,
            settings,
            connect,
            plain_function("the handler", handler),
            record,
            RedeliveryTracker(),
            clock=clock,
            chance=chance,
            gives_up=gives_up,
            on_stop=on_stop,
        )
        self._lock = threading.Lock()
        self._dispatcher = self._assemble()
        self._started = False
        self.ended_by: EndReason | None = None

    @property
    def settings(self) -> ListenerSettings:
        """How it consumes."""
        return self._settings

    @property
    def running(self) -> bool:
        """Whether it was started and hasn't stopped."""
        return self._started and not self._dispatcher.stopped.is_set()

    @property
    def server_type(self) -> str:
        """Which product the broker is; empty while there was no connection. Source: J115."""
        return self._dispatcher.link.server_type

    @property
    def server(self) -> tuple[str, str]:
        """Host and port of the connection; empty while there was none. Source: J120."""
        host, _, port = self._dispatcher.link.address.rpartition(":")
        return (host, port) if host else (port, "")

    @property
    def state(self) -> ActivationState:
        """Up, Down, Connecting or Disconnecting. Source: J119."""
        return self._dispatcher.state

    @property
    def suspended(self) -> bool:
        """Whether delivery is suspended by hand."""
        return self._dispatcher.machine.suspended

    @property
    def counts(self) -> Counts:
        """What became of messages since the last start."""
        return self._dispatcher.tally.counts()

    @property
    def fault(self) -> JmsError | None:
        """What it has stopped for, if that was a fault."""
        return self._dispatcher.fault

    @property
    def refusal(self) -> JmsError | None:
        """What the broker refuses for good, as far as is known; `None` while it doesn't."""
        return self._dispatcher.refusal

    @property
    def answered(self) -> bool:
        """Whether the first attempt to connect since the start has succeeded or failed."""
        return self._dispatcher.answered

    @property
    def stop_reason(self) -> str:
        """Why it has stopped; empty while it hasn't."""
        return self._dispatcher.stop_reason

    def statistics(self) -> Statistics:
        """Return a snapshot of the activation. Source: J117, J121."""
        dispatcher = self._dispatcher
        with dispatcher.lock:
            return dispatcher.tally.statistics(
                threads=dispatcher.workers.size,
                in_hand=dispatcher.machine.in_hand,
                refused=dispatcher.refused,
            )

    def attributes(self) -> dict[str, object]:
        """Return what JMSJCA's MBean shows of an activation, under its names. Source: J117."""
        return management.attributes(self)

    def operate(self, name: str) -> object:
        """Carry out an operation of JMSJCA's MBean, such as `getStatus`. Source: J116, J118, J120."""
        return management.operate(self, name)

    def reset_statistics(self) -> None:
        """Let `statistics` begin anew; `counts` go on. Source: J120."""
        dispatcher = self._dispatcher
        with dispatcher.lock:
            dispatcher.tally.reset(self._clock())

    def restart(self, within: timedelta = STOP_WITHIN) -> None:
        """Stop, wait for it, and start again.

        Raises:
            ConfigurationError: A handler calls it, and would wait for itself.

        Source: J120.
        """
        self.refuse_in_handler("restart")
        self.stop(within, reason="told to restart")
        # Whoever asked for a stop before may have it under way still; to start now would change nothing.
        if self.running:
            self._dispatcher.stopped.wait()
        self.start()

    def start(self) -> None:
        """Begin to consume, and return at once; it succeeds also while the broker is down.

        Starting twice is harmless; after a stop it begins anew. Handlers run in the context (`contextvars`)
        of the caller.
        """
        self.begin()

    def begin(
        self, limit: int | None = None, room: Room | None = None, *, stop_within: timedelta = STOP_WITHIN
    ) -> None:
        """Do what `start` does, within bounds.

        Args:
            limit: No more messages than this are settled; `None`: no limit.
            room: Bounds it together with others, in place of the limit; whoever made it serialises its calls.
            stop_within: How long running handlers may take when one of them asks for a stop.

        Raises:
            ConfigurationError: It runs already, and a limit is given.
        """
        with self._lock:
            if self.running:
                if limit is not None:
                    raise ConfigurationError(
                        f"{self._settings.name} runs already; stop it, to let it run with a limit"
                    )
                return
            self._dispatcher = self._assemble(limit=limit, room=room)
            self._dispatcher.stop_within = stop_within
            self._started = True
            self._dispatcher.start()
            self._dispatcher.feed(Start())  # before anybody can ask for a stop

    def suspend(self) -> None:
        """Deliver nothing more until `resume`; what is being handled is finished, the rest goes back."""
        self._dispatcher.feed(SuspendAsked())

    def resume(self) -> None:
        """Deliver again."""
        self._dispatcher.feed(ResumeAsked())

    def drain(self, within: timedelta = STOP_WITHIN) -> bool:
        """Suspend, and wait until what is being handled is done.

        Returns:
            Whether it is; `False` if time was up first.

        Raises:
            ConfigurationError: A handler calls it, and would wait for itself.
        """
        self.refuse_in_handler("drain")
        self.suspend()
        deadline = self._clock() + within.total_seconds()
        while not self.is_idle():
            if self._clock() >= deadline:
                return False
            self._dispatcher.stopped.wait(TICK_SECONDS)
        return True

    def stop(self, within: timedelta = STOP_WITHIN, *, reason: str = "told to stop") -> bool:
        """Stop, and wait for it: delays, back-off and attempts to connect end at once.

        A durable subscription is deleted if the settings say so, everything has ended in good order and the
        connection is up; otherwise it stays, with what it holds (W33).

        Running handlers may return and are committed. Whoever doesn't return in time is left alone: the
        connection is closed, which rolls its delivery back. In a handler this only asks for the stop, and
        returns `False`.

        Args:
            within: How long running handlers may take, and how long this may take.
            reason: For the log.

        Returns:
            Whether everything has ended in good order. `False`: a handler was left alone, or the broker
            didn't take leave in time.
        """
        began = self._clock()
        self.request_stop(within, reason=reason)
        return self.await_stop(began + within.total_seconds())

    def request_stop(
        self,
        within: timedelta = STOP_WITHIN,
        *,
        reason: str = "told to stop",
        delete_durable: bool = True,
    ) -> None:
        """Begin to stop, and return at once.

        Args:
            within: How long running handlers may take.
            reason: For the log.
            delete_durable: Whether the durable subscription may go, if the settings say so.
        """
        with self._lock:
            dispatcher = self._dispatcher if self._started else None
        if dispatcher is not None:
            dispatcher.ask_stop(StopAsked(reason=reason, within=within), delete_durable=delete_durable)

    def await_stop(self, deadline: float) -> bool:
        """Wait for the end of a stop, until the deadline on the clock; return what `stop` returns."""
        if not self._started:
            return True
        dispatcher = self._dispatcher
        if dispatcher.workers.are_here:
            return False
        # The machine itself gives up at the deadline; that must not be missed by a hair.
        ended = dispatcher.stopped.wait(max(0.0, deadline - self._clock()) + 2 * TICK_SECONDS)
        left_alone = dispatcher.tally.active
        closed = dispatcher.link.closed.wait(max(0.0, deadline - self._clock()))
        return ended and closed and not left_alone

    def refuse_in_handler(self, method: str) -> None:
        """Raise `ConfigurationError` if the caller is a handler of this activation."""
        if self._dispatcher.workers.are_here:
            raise ConfigurationError(f"{method}() waits for handlers to return; it can't be called in one")

    def run(
        self,
        *,
        max_messages: int | None = None,
        run_for: timedelta | None = None,
        idle_for: timedelta | None = None,
        stop: StopSignal | None = None,
        within: timedelta = STOP_WITHIN,
        within_if_stopped: timedelta | None = None,
        progress: Progress | None = None,
        progress_every: timedelta = timedelta(seconds=5),
    ) -> Counts:
        """Consume until an end is reached, then stop.

        Args:
            max_messages: End when so many messages are settled: committed, moved or deleted; never more.
            run_for: End after this long.
            idle_for: End when, with the connection up, nothing came and nothing was in hand for this long.
            stop: End when it is set: somebody breaks it off. A durable subscription stays then, whatever the
                settings say, for messages that a later run is to get.
            within: How long running handlers may take at the end.
            within_if_stopped: How long at most once `stop` is set, be it at the end; `None`: no less.
            progress: Called with the counts now and then.
            progress_every: How often.

        Returns:
            The counts.

        Raises:
            PermanentBrokerError: The broker refuses.
            ConfigurationError: The settings can't work on this broker, an end is out of range, it runs
                already and `max_messages` is given, or a handler calls it, and would wait for itself.
        """
        self.refuse_in_handler("run")
        watch = Watch(
            ends=Ends(max_messages=max_messages, run_for=run_for, idle_for=idle_for),
            stop=stop,
            within=within,
            within_if_stopped=within_if_stopped,
            progress=progress,
            progress_every=progress_every,
            clock=self._clock,
        )
        self.begin(max_messages, stop_within=within)
        found = None
        try:
            found = watch.until_end(self)
        finally:
            self.ended_by = watch.end(self, found)
        if self.fault is not None:
            raise self.fault
        return self.counts

    def await_end(self, seconds: float) -> bool:
        """Wait for so long; say whether it has stopped by itself."""
        return self._dispatcher.stopped.wait(seconds)

    def quiet_since(self) -> float | None:
        """Since when there was nothing to do, on the clock; `None` while there is, or while not connected."""
        dispatcher = self._dispatcher
        consuming = dispatcher.machine.suspended or dispatcher.admission.intake.ready
        quiet = consuming and self.state is ActivationState.UP and self.is_idle()
        return dispatcher.last_activity if quiet else None

    @property
    def over(self) -> bool:
        """Whether it has stopped and its connection is closed, whatever was left alone."""
        return self._dispatcher.stopped.is_set() and self._dispatcher.link.closed.is_set()

    @property
    def looks(self) -> bool:
        """Whether it is just looking if messages stay at the broker."""
        return self._dispatcher.link.looks

    def is_idle(self) -> bool:
        """Whether no message is in hand; suspended, whether none is being handled."""
        dispatcher = self._dispatcher
        with dispatcher.lock:
            return dispatcher.machine.idle and (
                dispatcher.machine.in_hand == 0 or dispatcher.machine.suspended
            )
