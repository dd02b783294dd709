"""Registers running activations in the store, and carries out requests to suspend, drain or stop them.

A `Registrar` is one thread for a store and process, however many activations the process runs. Every second
it reads the requests for all of them in one statement, and reports runs whose state changed. Counts are
reported every five seconds, all in one statement. Once a minute the counts since the last minute are added to
the samples.

| event | effect |
|---|---|
| the store is unavailable | activations continue; reports and requests catch up once it is back |
| the store is unavailable when a run starts | the run waits up to 5 seconds for requests, then consumes |
| the process is killed | its runs are shown as lost; the broker redelivers their in-flight messages |
| a request is made | every process obeys within two seconds, and the activation logs it |
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, assert_never

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.delivery.outage import ActivationState
from airflow_provider_jmsjca.engine.collecting.batcher import CollectionControl
from airflow_provider_jmsjca.engine.watching.depths import (
    DepthProbes,
    ProbedQueues,
    QueueDepth,
    probed_queues,
)
from airflow_provider_jmsjca.errors import DeliveryStoppedError, JmsError, TransientStoreError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.store.base import (
    ActivationKind,
    ActivationOrder,
    ActivationSample,
    RunReport,
    RunStatus,
    Store,
    WantedState,
    stored_name,
)
from airflow_provider_jmsjca.transports.base import ConnectionSettings

if TYPE_CHECKING:  # collectors and triggers register too, and need no listener
    from airflow_provider_jmsjca.engine.activations.listener import Listener

_log = safe_logger("airflow_provider_jmsjca.registry")

POLL_EVERY: Final = timedelta(seconds=1)
"""How often a process reads the requests for its activations."""

REPORT_EVERY: Final = timedelta(seconds=5)
"""How often a process reports changed counts; it reports changed states at the next poll."""

SAMPLE_EVERY: Final = timedelta(seconds=60)
"""How often a process adds the counts since the last sample to the samples."""

_SWEEP_SECONDS = 600.0
_FIRST_ANSWER_SECONDS = 5.0
_END_SECONDS = 1.0
_LINGER_SECONDS = 60.0
# Seconds between reports shortly after a request, so that operators soon see its effect; and how long after a
# request reports are that frequent.
_SETTLE_SECONDS = 0.2
_SETTLED_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The constant part of a run's reports; `store.base.RunReport` describes most attributes.

    Attributes:
        probed: The queues whose depth is reported as the backlog; `None`: no backlog is reported.
    """

    activation: str
    kind: ActivationKind
    owner: str
    destination: str
    broker: str = ""
    spec_digest: str = ""
    probed: ProbedQueues | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The current state of a run. `store.base.RunReport` has the attributes, with `error` as `last_error`."""

    status: RunStatus
    broker: str = ""
    owner: str = ""
    delivered: int = 0
    committed: int = 0
    rolled_back: int = 0
    moved: int = 0
    deleted: int = 0
    dead_lettered: int = 0
    in_flight: int = 0
    backlog: int | None = None
    error: str = ""


class Supervised(Protocol):
    """A registered run. Its `Registrar` calls both methods in its own thread, so they must not block."""

    def sample(self) -> Sample:
        """Return the state of the run."""

    def apply_order(self, order: ActivationOrder | None) -> None:
        """Carry out the request for the activation; called when the request changes.

        Args:
            order: The new request; `None`: the request was withdrawn.
        """


def spec_digest(spec: ActivationSpec | None) -> str:
    """Return the SHA-256 digest of a spec with its secrets masked; empty without a spec."""
    return "" if spec is None else hashlib.sha256(repr(spec).encode("utf-8", "replace")).hexdigest()


class Registration:
    """One registered run, from `Registrar.register` until it has ended.

    Attributes:
        key: Unique id of the run.
        order: The requested state of the activation, as last read from the store; `None`: no state is
            requested, so the run consumes.
        report: The latest report in the store; `None`: there is none yet.
        sampled: The report whose counts were last added to the samples; `None`: there is none yet.
    """

    def __init__(self, registrar: Registrar, identity: Identity, run: Supervised, *, refuses: bool) -> None:
        self._registrar = registrar
        self.identity = identity
        self.name = stored_name(identity.activation)
        self.key = uuid.uuid4().hex
        self.run = run
        self.order: ActivationOrder | None = None
        self._answered = threading.Event()
        self._reported = threading.Event()
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._admitted = not refuses
        self._order_changed = False
        self.ended = False
        self.report: RunReport | None = None
        self.sampled: RunReport | None = None

    def admit(self) -> None:
        """Wait until the store has answered whether the activation may run; then the run may connect.

        If the store doesn't answer within 5 seconds of the registration, the run connects anyway. A stored
        request to stop or suspend it applies once the store answers.

        Raises:
            DeliveryStoppedError: The activation is stopped or drained.
        """
        left = _FIRST_ANSWER_SECONDS - (time.monotonic() - self._began)
        if not self._answered.wait(max(0.0, left)) and left > 0:
            _log.warning(
                "%s: the store does not answer; consuming anyway. A stored stop or suspension applies once "
                "it answers",
                self.identity.activation,
            )
        with self._lock:
            self.refuse_if_stopped()
            self._admitted = True

    def refuse_if_stopped(self) -> None:
        """Raise `DeliveryStoppedError` if the activation is stopped or drained."""
        order = self.order
        if order is not None and order.ends_runs:
            raise DeliveryStoppedError(str(order))

    @property
    def is_changing(self) -> bool:
        """Whether the next report is due early, because the state may have changed."""
        report = self.report
        return report is None or self.ended or self._order_changed or report.status is not RunStatus.UP

    @property
    def answered(self) -> bool:
        """Whether the store has answered or failed permanently."""
        return self._answered.is_set()

    def set_order(self, order: ActivationOrder | None) -> bool:
        """Store the requested state in `order`, and pass it to the run if it has changed.

        A request to drain or stop is not passed to a run that waits in `admit`: `admit` raises instead. Only
        the registrar's thread may call this method.

        Args:
            order: The requested state as just read; `None`: no state is requested.

        Returns:
            Whether the requested state differs from the previous one.
        """
        with self._lock:
            changed = order != self.order
            self.order = order
            # A run that is not admitted yet gets the request as an exception of `admit`.
            obeys = changed and (self._admitted or order is None or not order.ends_runs)
        if obeys:
            self.run.apply_order(order)
        self._order_changed = changed
        self._answered.set()
        return changed

    def release(self) -> None:
        """Let the run consume although no requests could be read, because the store failed permanently."""
        self._answered.set()

    def reported_end(self) -> None:
        """Note that the end of the run is stored."""
        self._reported.set()

    def end(self, within: float = _END_SECONDS) -> None:
        """Report the end of the run, and wait until it is stored.

        Args:
            within: Seconds to wait at most. The registrar keeps trying for a minute.
        """
        self.ended = True
        self._registrar.wake()
        self._reported.wait(within)


class Registrar:
    """Registers the runs of this process in one store. Its thread ends with the last run.

    Registering never blocks and never fails: a store that can't be used delays reports and requests.

    Args:
        open_store: Opens the store, in the registrar's thread; tried again after errors.
        poll_every: How often requests are read.
        report_every: How often changed counts are reported.
    """

    def __init__(
        self,
        open_store: Callable[[], AbstractContextManager[Store]],
        *,
        poll_every: timedelta = POLL_EVERY,
        report_every: timedelta = REPORT_EVERY,
    ) -> None:
        self._open_store = open_store
        self._poll_seconds = poll_every.total_seconds()
        self._report_seconds = report_every.total_seconds()
        self._start_empty()

    def _start_empty(self) -> None:
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._registrations: list[Registration] = []
        self._running = False
        self._pid = os.getpid()

    def register(self, identity: Identity, run: Supervised, *, refuses: bool = True) -> Registration:
        """Register a run that is about to start.

        Args:
            identity: The constant part of the run's reports.
            run: Reports its state, and carries out requests.
            refuses: If a request to drain or stop is read before `Registration.admit` returns, `admit`
                raises, and `run.apply_order` is not called. `False`: `run.apply_order` is called for every
                request.
        """
        if self._pid != os.getpid():  # after a fork, the thread and its runs exist only in the parent
            self._start_empty()
        registration = Registration(self, identity, run, refuses=refuses)
        with self._lock:
            self._registrations.append(registration)
            starts, self._running = not self._running, True
        self._woken.set()
        if starts:
            threading.Thread(target=self._run, name="jms-registry", daemon=True).start()
        return registration

    def wake(self) -> None:
        """Make the registrar report runs and read requests now, instead of at the next interval."""
        self._woken.set()

    # -- in the thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        rounds = _Rounds(self._report_seconds)
        with contextlib.ExitStack() as opened:
            store: Store | None = None
            trouble, changes, hurries_until = "", False, 0.0
            last_success = time.monotonic()
            while True:
                self._woken.clear()
                with self._lock:
                    registrations = list(self._registrations)
                try:
                    if store is None:
                        store = opened.enter_context(self._open_store())
                    changes = rounds.run_round(store, registrations)
                    if trouble:
                        _log.warning("The registry of activations works again")
                    trouble, last_success = "", time.monotonic()
                except JmsError as error:
                    trouble = self._failed(error, trouble, registrations)
                except Exception as error:  # noqa: BLE001 - the outermost edge of this thread: nobody else sees it
                    if trouble != repr(error):
                        _log.exception("Reporting activations to the store failed; retrying")
                    trouble = self._failed(JmsError(repr(error)), repr(error), registrations)
                if trouble:
                    rounds.forget()
                    changes = False
                if self._is_over(given_up=time.monotonic() >= last_success + _LINGER_SECONDS):
                    return
                if changes:
                    hurries_until = time.monotonic() + _SETTLED_SECONDS
                hurries = time.monotonic() < hurries_until and any(each.is_changing for each in registrations)
                self._woken.wait(_SETTLE_SECONDS if hurries else self._poll_seconds)

    @staticmethod
    def _failed(error: JmsError, reported: str, registrations: list[Registration]) -> str:
        if str(error) != reported:
            _log.warning("Activations can't be reported or controlled until this is fixed: %s", error)
        if not isinstance(error, TransientStoreError):
            for each in registrations:
                each.release()
        return str(error)

    def _is_over(self, *, given_up: bool) -> bool:
        with self._lock:
            self._registrations = [
                each
                for each in self._registrations
                if each.report is None or each.report.status is not RunStatus.ENDED
            ]
            if self._registrations and not (given_up and all(each.ended for each in self._registrations)):
                return False
            self._registrations.clear()
            self._running = False
            return True


class _Rounds:
    """The periodic work of a registrar: each round reports runs, then reads requests.

    Args:
        report_seconds: How often changed counts are reported.
    """

    def __init__(self, report_seconds: float) -> None:
        self._report_seconds = report_seconds
        self._next_report = self._next_sweep = 0.0
        self._next_sample = time.monotonic() + SAMPLE_EVERY.total_seconds()
        self._clock_offset = timedelta(0)
        self._complete = True
        self._depths = DepthProbes()

    def forget(self) -> None:
        """Report all runs in the next round, because the last round failed and may have stored no report."""
        self._complete = True

    def run_round(self, store: Store, registrations: list[Registration]) -> bool:
        """Report changed runs, and pass requests to all runs; return whether any request changed."""
        now = time.monotonic()
        counts_are_due = self._complete or now >= self._next_report
        if counts_are_due:
            self._clock_offset = store.owners.now() - datetime.now(UTC)
            self._next_report = now + self._report_seconds
        store_time = datetime.now(UTC) + self._clock_offset
        if counts_are_due:
            self._depths.probe_if_due(
                {
                    each.key: each.identity.probed
                    for each in registrations
                    if each.identity.probed is not None and not each.ended
                }
            )
        made = [
            (each, _report(each, store_time, self._depths.depth(each.key)))
            for each in registrations
            if counts_are_due or each.is_changing
        ]
        due = [
            (each, report)
            for each, report in made
            if self._complete
            or each.report is None
            or (each.report != report and (counts_are_due or _is_urgent(each.report, report)))
        ]
        if due:
            store.activations.report([report for _, report in due])
        for each, report in due:
            each.report = report
        self._sample(store, registrations, now, store_time)
        for each, report in due:
            if report.status is RunStatus.ENDED:
                each.reported_end()
        orders = store.activations.orders()
        changes = [each.set_order(orders.get(each.name)) for each in registrations if not each.ended]
        self._complete = False
        if now >= self._next_sweep:
            self._next_sweep = now + _SWEEP_SECONDS
            store.activations.sweep()
        return any(changes)

    def _sample(
        self, store: Store, registrations: list[Registration], now: float, store_time: datetime
    ) -> None:
        """Add the counts since the last sample to the samples: once a minute, and when a run ends."""
        is_due = now >= self._next_sample
        sampled = [
            (each, each.report)
            for each in registrations
            if each.report is not None and (is_due or each.report.status is RunStatus.ENDED)
        ]
        if sampled:
            store.activations.add_samples(
                [_sample(report, each.sampled, store_time) for each, report in sampled]
            )
        for each, report in sampled:
            each.sampled = report
        if is_due:
            self._next_sample = now + SAMPLE_EVERY.total_seconds()


def _sample(report: RunReport, before: RunReport | None, now: datetime) -> ActivationSample:
    """Return the counts of a run since the report `before`; if it is `None`, since the start of the run."""

    def since(name: str) -> int:
        done: int = getattr(report, name) - (0 if before is None else getattr(before, name))
        return max(0, done)

    return ActivationSample(
        activation=report.activation,
        at=now,
        delivered=since("delivered"),
        committed=since("committed"),
        failed=since("rolled_back"),
        dead_lettered=since("dead_lettered"),
        backlog=report.backlog,
        oldest_at=report.oldest_at,
    )


def _is_urgent(before: RunReport, after: RunReport) -> bool:
    return (before.status, before.last_error, before.broker) != (after.status, after.last_error, after.broker)


def _report(registration: Registration, now: datetime, depth: QueueDepth | None) -> RunReport:
    """Return the report of a run: its current state, and the times at which status and error last changed."""
    found, identity, before = registration.run.sample(), registration.identity, registration.report
    status = RunStatus.ENDED if registration.ended else found.status
    errors = found.error if found.error or before is None else before.last_error
    delivered_before = 0 if before is None else before.delivered
    return RunReport(
        run=registration.key,
        activation=identity.activation,
        title=identity.activation,
        kind=identity.kind,
        owner=found.owner or identity.owner,
        broker=found.broker or (identity.broker if before is None else before.broker),
        destination=identity.destination,
        spec_digest=identity.spec_digest,
        status=status,
        started_at=now if before is None else before.started_at,
        since=before.since if before is not None and before.status is status else now,
        delivered=found.delivered,
        committed=found.committed,
        rolled_back=found.rolled_back,
        moved=found.moved,
        deleted=found.deleted,
        dead_lettered=found.dead_lettered,
        in_flight=0 if status is RunStatus.ENDED else found.in_flight,
        backlog=found.backlog if depth is None else depth.waiting,
        oldest_at=None if depth is None else depth.oldest,
        last_message_at=(
            now if found.delivered > delivered_before else None if before is None else before.last_message_at
        ),
        last_error=errors,
        last_error_at=(
            None if not errors
            else before.last_error_at if before is not None and before.last_error == errors
            else now
        ),
    )  # fmt: skip


# -- of listeners -----------------------------------------------------------------------------------------


class _Listening:
    """Reports a run of a listener, and carries out the requests for it."""

    def __init__(self, activation: Listener) -> None:
        self._activation = activation
        self._suspended = self._draining = False
        self._drained = ""
        # When an activation is started again, `over` is still true from its previous run.
        self._may_end = not activation.is_closed

    def sample(self) -> Sample:
        activation = self._activation
        self.suspend_if_requested()
        statistics, counts = activation.statistics(), activation.counts
        if self._draining and activation.is_idle():
            activation.request_stop(reason=self._drained, delete_durable=False)
        fault = activation.fault
        return Sample(
            status=self._status(),
            broker=":".join(filter(None, activation.server)),
            delivered=counts.delivered,
            committed=counts.committed,
            rolled_back=counts.rolled_back,
            moved=counts.moved,
            deleted=counts.deleted,
            in_flight=statistics.in_flight,
            dead_lettered=statistics.dead_lettered,
            error="; ".join(statistics.refused) or str(fault or statistics.last_failure),
        )

    def suspend_if_requested(self) -> None:
        """Suspend the activation if a user has requested that, perhaps before the activation started."""
        # A suspension of an activation that doesn't run would outlast the request.
        if self._suspended and self._activation.running and not self._activation.suspended:
            self._activation.suspend()

    def _status(self) -> RunStatus:
        activation = self._activation
        state = activation.state
        if state is ActivationState.DISCONNECTING:
            return RunStatus.STOPPING
        self._may_end = self._may_end or activation.running
        if self._may_end and activation.is_closed and not activation.running:
            return RunStatus.ENDED
        if self._draining:
            return RunStatus.DRAINING
        if activation.suspended:
            return RunStatus.SUSPENDED
        return RunStatus.UP if state is ActivationState.UP else RunStatus.CONNECTING

    def apply_order(self, order: ActivationOrder | None) -> None:
        activation, name = self._activation, self._activation.settings.name
        if order is None:
            self._draining = False
            if self._suspended:
                self._suspended = False
                _log.warning("%s: resumed; it consumes again", name)
                activation.resume()
            return
        _log.warning("%s: %s", name, order)
        if order.wanted is WantedState.STOPPED:
            activation.request_stop(reason=str(order), delete_durable=False)
            return
        self._suspended = True
        self._draining, self._drained = order.wanted is WantedState.DRAINED, str(order)
        self.suspend_if_requested()


@dataclass(slots=True)
class Supervision:
    """Registers the runs of a listener, one after the other.

    Args:
        registrar: Registrar of the store in which the runs are registered.
        owner: The task, asset or application that runs the listener.
        connection: Settings for querying the backlog of the listener's queues; `None`: no backlog is
            reported.
    """

    registrar: Registrar
    owner: str
    connection: ConnectionSettings | None = None
    _registration: Registration | None = field(default=None, init=False)
    _listening: _Listening | None = field(default=None, init=False)

    @property
    def order(self) -> ActivationOrder | None:
        """The requested state of the activation; `None`: no state is requested, so the listener consumes."""
        return None if self._registration is None else self._registration.order

    def admit(self) -> None:
        """Return once the listener may connect; see `Registration.admit`.

        If suspension was requested, the listener is suspended before it connects.
        """
        if self._registration is not None and self._listening is not None:
            self._registration.admit()
            self._listening.suspend_if_requested()

    def begin(self, activation: Listener) -> None:
        """Register a run that is about to start."""
        settings = activation.settings
        identity = Identity(
            activation=settings.whole or settings.name,
            kind=ActivationKind.LISTENER,
            owner=self.owner or application(),
            destination=", ".join(map(str, settings.delivery.sources)),
            broker=settings.url.partition("?")[0],
            spec_digest=spec_digest(settings.spec),
            probed=probed_queues(self.connection, settings.delivery.sources, activation.member_names),
        )
        self._listening = _Listening(activation)
        self._registration = self.registrar.register(identity, self._listening)

    def end(self) -> None:
        """Report the end of the run; see `Registration.end`."""
        if self._registration is not None:
            self._registration.end()

    @contextlib.contextmanager
    def running(self, activation: Listener) -> Iterator[None]:
        """Register a run for the time of the block."""
        self.begin(activation)
        try:
            yield
        finally:
            self.end()


# -- of collectors ----------------------------------------------------------------------------------------


class _Collecting:
    """Reports a run of a collector, and carries out the requests for it."""

    def __init__(self, identity: Identity, control: CollectionControl, stop: Callable[[], object]) -> None:
        self._identity = identity
        self._control = control
        self._stop = stop
        self._stopped = False

    def sample(self) -> Sample:
        control = self._control
        return Sample(
            status=self._status(),
            delivered=control.received,
            committed=control.stored,
            in_flight=control.in_flight,
            error=control.last_failure,
        )

    def _status(self) -> RunStatus:
        control = self._control
        if self._stopped:
            return RunStatus.STOPPING
        if control.drained.is_set():
            return RunStatus.DRAINING
        if control.suspended.is_set():
            return RunStatus.SUSPENDED
        return RunStatus.UP if control.connected else RunStatus.CONNECTING

    def apply_order(self, order: ActivationOrder | None) -> None:
        if order is None:
            self._control.suspended.clear()
            _log.warning("%s: resumed; it receives again", self._identity.activation)
            return
        _log.warning("%s: %s", self._identity.activation, order)
        match order.wanted:
            case WantedState.SUSPENDED:
                self._control.suspended.set()
            case WantedState.DRAINED:
                self._control.drained.set()
            case WantedState.STOPPED:
                self._stopped = True
                self._stop()
            case _:
                assert_never(order.wanted)


def register_collector(
    registrar: Registrar, identity: Identity, control: CollectionControl, stop: Callable[[], object]
) -> Registration:
    """Register a collector; the arguments are those of `collecting`."""
    return registrar.register(identity, _Collecting(identity, control, stop))


@contextlib.contextmanager
def collecting(
    registrar: Registrar | None, identity: Identity, stop: Callable[[], object]
) -> Iterator[CollectionControl]:
    """Register a collector for the time of the block, and yield its `CollectionControl`.

    Args:
        registrar: Registrar of the store; `None`: the collector isn't registered.
        identity: The collector.
        stop: Called when a user stops the collector.

    Raises:
        DeliveryStoppedError: A user has stopped the collector, or had drained it before it began.
    """
    control = CollectionControl()
    if registrar is None:
        yield control
        return
    registration = register_collector(registrar, identity, control, stop)
    try:
        registration.admit()
        yield control
    except DeliveryStoppedError:
        raise
    except JmsError as error:
        control.last_failure = str(error)
        raise
    finally:
        registration.end()
    order = registration.order
    if order is not None and order.wanted is WantedState.STOPPED:
        raise DeliveryStoppedError(str(order))


def application() -> str:
    """Return the name of this process's program: the owner of runs that belong to no task."""
    return Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"


# A registrar refers to its store, so `id(store)` isn't reused while the registrar exists.
_registrars: weakref.WeakValueDictionary[int, Registrar] = weakref.WeakValueDictionary()
_making = threading.Lock()


def registrar_of(store: Store) -> Registrar:
    """Return the one registrar of an open store. The registrar doesn't close the store."""
    with _making:
        found = _registrars.get(id(store))
        if found is None:
            found = _registrars[id(store)] = Registrar(lambda: contextlib.nullcontext(store))
        return found
