"""A listener on each member of a distributed destination.

| what happens | what becomes of it |
|---|---|
| a member is lost | it is connected again with the usual pauses; the others go on |
| a member refuses for good (credentials, a missing queue) | it is named and tried again; the others go on |
| all members refuse for good | the activation stops with that fault |
| a call for a message of a lost member still runs | it keeps its place; the message comes again |
| a handler stops the activation | every member stops, within one deadline |
"""

from __future__ import annotations

import functools
import logging
import random
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from airflow_provider_jmsjca.core.delivery import ActivationState
from airflow_provider_jmsjca.core.delivery.events import StopAsked
from airflow_provider_jmsjca.core.delivery.room import Room, Share
from airflow_provider_jmsjca.engine import management
from airflow_provider_jmsjca.engine.batch_spec import EndReason
from airflow_provider_jmsjca.engine.calls import Handler, RecordFunction
from airflow_provider_jmsjca.engine.dispatch import STOP_WITHIN
from airflow_provider_jmsjca.engine.ends import Ends
from airflow_provider_jmsjca.engine.listener import Activation
from airflow_provider_jmsjca.engine.listener_settings import ListenerSettings
from airflow_provider_jmsjca.engine.members import EveryMember
from airflow_provider_jmsjca.engine.runs import TICK_SECONDS, Progress, StopSignal, Watch
from airflow_provider_jmsjca.engine.statistics import Counts, Statistics, total
from airflow_provider_jmsjca.errors import ConfigurationError

_log = logging.getLogger("airflow_provider_jmsjca.listener")
# What a member is doing counts for the whole in this order.
_STATES = (
    ActivationState.UP,
    ActivationState.CONNECTING,
    ActivationState.DISCONNECTING,
    ActivationState.DOWN,
)


class _SharedRoom(Room):
    """Room for machines in several threads."""

    def __init__(self, places: int, limit: int | None) -> None:
        super().__init__(places, limit)
        self._lock = threading.Lock()

    def join(self, wake: Callable[[], object]) -> Share:
        with self._lock:
            return super().join(wake)

    def admit(self, share: Share, *, unit: bool, message: bool = True) -> bool:
        with self._lock:
            return super().admit(share, unit=unit, message=message)

    def report(self, share: Share, *, units: int, taken: int, settled: int, waiting: int = 0) -> bool:
        with self._lock:
            return super().report(share, units=units, taken=taken, settled=settled, waiting=waiting)

    def wants_nothing(self, share: Share) -> None:
        with self._lock:
            super().wants_nothing(share)


class EveryMemberActivation:
    """A listener on each member, used like one `Activation`.

    Concurrency and ends hold for all members together: in serial mode one handler runs at a time, wherever
    its message comes from. Members with a backlog take turns.

    Guarantee: that of `Activation`, for each member's messages. A message that a lost member had handed out
    comes again from that member, once it is back.

    Every method may be called from any thread, but not from a signal handler.

    Args:
        settings: As `engine.members.every_member` returns them.
        handler: Called with each message, in a thread of its member's pool.
        record: Stores attempts, for `DeliverySettings.record_attempts`; from several threads.
        clock: Seconds, monotonic.
        chance: A random number, 0 up to but not including 1.

    Attributes:
        members: The activation of each member, by its name.
        ended_by: Which end the last `run` reached; `STOPPED` also when the handler stopped the activation.
        missing: Members that weren't up when the last `run` ended: what they hold is still there.

    Raises:
        ConfigurationError: The settings need `record`.

    Source: W12, W17, W46; J119-J121, W27.
    """

    def __init__(
        self,
        settings: EveryMember,
        handler: Handler,
        *,
        record: RecordFunction | None = None,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._settings = settings.settings
        self._clock = clock
        self._lock = threading.Lock()
        self._room: Room | None = None
        self.members = {
            member.name: Activation(
                member.settings,
                member.connect,
                handler,
                record=record,
                clock=clock,
                chance=chance,
                gives_up=self._all_refuse,
                on_stop=functools.partial(self._stop_others, member.name),
            )
            for member in settings.members
        }
        self._all = tuple(self.members.values())
        self.ended_by: EndReason | None = None
        self.missing: tuple[str, ...] = ()

    def _all_refuse(self) -> bool:
        return all(each.refusal is not None for each in self._all)

    def _stop_others(self, name: str, event: StopAsked) -> None:
        with self._lock:  # not amid a start: who hasn't started yet can't be stopped
            for other, member in self.members.items():
                if other != name:
                    member.request_stop(event.within, reason=event.reason, delete_durable=False)

    @property
    def settings(self) -> ListenerSettings:
        """How it consumes; the URL names all members."""
        return self._settings

    @property
    def running(self) -> bool:
        """Whether a member was started and hasn't stopped."""
        return any(each.running for each in self._all)

    @property
    def states(self) -> dict[str, ActivationState]:
        """The state of each member by its name. Source: J119."""
        return {name: member.state for name, member in self.members.items()}

    @property
    def state(self) -> ActivationState:
        """Up if a member is; else Connecting, Disconnecting or Down, the first that holds for one.

        Source: J119.
        """
        found = set(self.states.values())
        return next(state for state in _STATES if state in found)

    @property
    def down(self) -> tuple[str, ...]:
        """The members that aren't up."""
        return tuple(name for name, state in self.states.items() if state is not ActivationState.UP)

    @property
    def suspended(self) -> bool:
        """Whether delivery is suspended by hand."""
        return any(each.suspended for each in self._all)

    @property
    def server_type(self) -> str:
        """Which product the brokers are; empty while there was no connection. Source: J115."""
        return ",".join(dict.fromkeys(each.server_type for each in self._all if each.server_type))

    @property
    def server(self) -> tuple[str, str]:
        """Hosts and ports of the connections, each with a comma between them. Source: J120."""
        found = [each.server for each in self._all if each.server_type]
        return ",".join(host for host, _ in found), ",".join(port for _, port in found)

    @property
    def counts(self) -> Counts:
        """What became of the messages of all members since the last start."""
        return sum((each.counts for each in self._all), Counts())

    @property
    def stop_reason(self) -> str:
        """Why it has stopped; empty while it hasn't."""
        return next((each.stop_reason for each in self._all if each.stop_reason), "")

    def statistics(self) -> Statistics:
        """Return a snapshot: the sums of all members (see `statistics.total`).

        Source: J117, J121.
        """
        return total(self.member_statistics(), most=self._settings.delivery.concurrency)

    def member_statistics(self) -> dict[str, Statistics]:
        """Return a snapshot of each member by its name."""
        return {name: member.statistics() for name, member in self.members.items()}

    def attributes(self) -> dict[str, object]:
        """Return what JMSJCA's MBean shows of an activation, and the state of each member. Source: J117."""
        states = {name: str(state) for name, state in self.states.items()}
        return management.attributes(self) | {"Members": states}

    def operate(self, name: str) -> object:
        """Carry out an operation of JMSJCA's MBean on all members. Source: J116, J118, J120."""
        return management.operate(self, name)

    def reset_statistics(self) -> None:
        """Let `statistics` begin anew; `counts` go on. Source: J120."""
        for each in self._all:
            each.reset_statistics()

    def restart(self, within: timedelta = STOP_WITHIN) -> None:
        """Stop, wait for it, and start again; see `Activation.restart`. Source: J120."""
        self._refuse_in_handler("restart")
        self.stop(within, reason="told to restart")
        self.start()

    def start(self) -> None:
        """Begin to consume, and return at once; it succeeds also while every member is down.

        Members that have stopped begin anew, the others go on. Handlers run in the context (`contextvars`)
        of the caller.
        """
        self._begin(None)

    def _begin(self, limit: int | None, stop_within: timedelta = STOP_WITHIN) -> None:
        with self._lock:
            if self.running and limit is not None:
                raise ConfigurationError(
                    f"{self._settings.name} runs already; stop it, to let it run with a limit"
                )
            if self._room is None or not self.running:
                self._room = _SharedRoom(self._settings.delivery.concurrency, limit)
            for each in self._all:
                each.begin(room=self._room, stop_within=stop_within)

    def suspend(self) -> None:
        """Deliver nothing more until `resume`; what is being handled is finished, the rest goes back."""
        for each in self._all:
            each.suspend()

    def resume(self) -> None:
        """Deliver again."""
        for each in self._all:
            each.resume()

    def drain(self, within: timedelta = STOP_WITHIN) -> bool:
        """Suspend, and wait until what is being handled is done.

        Returns:
            Whether it is; `False` if time was up first.

        Raises:
            ConfigurationError: A handler calls it, and would wait for itself.
        """
        self._refuse_in_handler("drain")
        self.suspend()
        deadline = self._clock() + within.total_seconds()
        while not all(each.is_idle() for each in self._all):
            if self._clock() >= deadline:
                return False
            self._all[0].await_end(TICK_SECONDS)
        return True

    def stop(self, within: timedelta = STOP_WITHIN, *, reason: str = "told to stop") -> bool:
        """Stop all members, and wait for it; see `Activation.stop`. The time is for all together."""
        deadline = self._clock() + within.total_seconds()
        self.request_stop(within, reason=reason)
        return self.await_stop(deadline)

    def request_stop(
        self,
        within: timedelta = STOP_WITHIN,
        *,
        reason: str = "told to stop",
        delete_durable: bool = True,
    ) -> None:
        """Begin to stop, and return at once; see `Activation.request_stop`."""
        with self._lock:
            for each in self._all:
                each.request_stop(within, reason=reason, delete_durable=delete_durable)

    def _refuse_in_handler(self, method: str) -> None:
        for each in self._all:
            each.refuse_in_handler(method)

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
        """Consume until an end is reached, then stop; see `Activation.run`.

        The ends count the messages of all members. `idle_for` ends it when a member is up and nothing came
        from those that are; each member is waited for until it has answered or failed to once.

        Returns:
            The counts.

        Raises:
            PermanentBrokerError: Every member refuses.
            ConfigurationError: The settings can't work on these brokers, an end is out of range, or a handler
                calls it.
        """
        self._refuse_in_handler("run")
        watch = Watch(
            ends=Ends(max_messages=max_messages, run_for=run_for, idle_for=idle_for),
            stop=stop,
            within=within,
            within_if_stopped=within_if_stopped,
            progress=progress,
            progress_every=progress_every,
            clock=self._clock,
        )
        self._begin(max_messages, within)
        found = None
        try:
            found = watch.until_end(self)
        finally:
            self.missing = self.down
            self.ended_by = watch.end(self, found)
        fault = next((each.fault for each in self._all if each.fault is not None), None)
        if fault is not None:
            raise fault
        if found is not None and self.missing:
            _log.warning(
                "%s: not up at the end: %s; what is there stays there",
                self._settings.name,
                ", ".join(self.missing),
            )
        return self.counts

    def await_stop(self, deadline: float) -> bool:
        """Wait for the end of a stop of all members; see `Activation.await_stop`."""
        ended = [each.await_stop(deadline) for each in self._all]
        return all(ended)

    def await_end(self, seconds: float) -> bool:
        """Wait for so long; say whether a member has stopped by itself."""
        return self._all[0].await_end(seconds) or any(each.await_end(0) for each in self._all)

    def quiet_since(self) -> float | None:
        """Since when nothing came and nothing was in hand, on the clock; `None`: not now, or none is up."""
        if not all(each.answered and each.is_idle() for each in self._all):
            return None
        quiet: list[float] = []
        for each in self._all:
            since = each.quiet_since()
            if since is not None:
                quiet.append(since)
            elif each.state is ActivationState.UP:  # it has only just come, and what it has with it
                return None
        return max(quiet, default=None)

    @property
    def over(self) -> bool:
        """Whether every member has stopped and its connection is closed."""
        return all(each.over for each in self._all)

    @property
    def looks(self) -> bool:
        """Whether a member is just looking if messages stay at its broker."""
        return any(each.looks for each in self._all)
