"""Sends metrics to StatsD, Datadog or OpenTelemetry through Airflow, as `[metrics]` configures it.

Each process has one daemon thread for this. It measures listeners, triggers and collectors every ten seconds,
and sends changed values. If no statistics are configured, nothing runs and nothing is measured. A failure to
measure or to send is logged once, and stops no consumption.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol, cast

from airflow.sdk.configuration import conf

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.metrics import BY_NAME, Measured, MetricKind, increases, statsd_tag
from airflow_provider_jmsjca.engine.watching.depths import PROBE_EVERY, DepthProbes, ProbedQueues
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.administration import QueueStatistics
from airflow_provider_jmsjca.transports.base import Connection, ConnectionSettings

_log = safe_logger(__name__)

SEND_EVERY: Final = timedelta(seconds=10)
"""How often metrics are measured and sent."""

_SWITCHES = ("statsd_on", "statsd_datadog_enabled", "otel_on")
# Airflow has two modules of statistics: one for its servers, one for tasks. Each process initializes one.
_OF_SERVERS = "airflow._shared.observability.metrics.stats"
_OF_TASKS = "airflow.sdk._shared.observability.metrics.stats"
_TRIGGERER = "airflow.jobs.triggerer_job_runner"

Measure = Callable[[], Measured]


class Statistics(Protocol):
    """The functions of Airflow's statistics that this package calls."""

    def incr(self, stat: str, count: Any = None, *, tags: dict[str, Any] | None = None) -> object:
        """Increase a counter."""

    def gauge(self, stat: str, value: float, *, tags: dict[str, Any] | None = None) -> object:
        """Set a gauge."""


def has_statistics() -> bool:
    """Return whether `[metrics]` configures statistics."""
    return any(conf.getboolean("metrics", each, fallback=False) for each in _SWITCHES)


def statistics() -> Statistics:
    """Return Airflow's statistics as this process has set them up."""
    order = (_OF_SERVERS, _OF_TASKS) if _TRIGGERER in sys.modules else (_OF_TASKS, _OF_SERVERS)
    for name in order:
        module = sys.modules.get(name)
        if module is not None and getattr(module, "_factory", None) is not None:
            return cast("Statistics", module)
    from airflow.sdk.observability import stats  # noqa: PLC0415 - only where statistics are sent

    return cast("Statistics", stats)


class Watch:
    """A listener, trigger or collector whose metrics are sent, from `MetricsSender.watch` to `leave`.

    Attributes:
        measure: Returns the current values.
        probe: Queues whose backlog is sent, too; `None`: no queues.
        sent: The values that were last sent.
        last: The final values; `None` before `MetricsSender.leave`.
    """

    def __init__(self, measure: Measure, probe: ProbedQueues | None) -> None:
        self.measure = measure
        self.probe = probe
        self.sent: Mapping[str, float] = {}
        self.last: Measured | None = None


class MetricsSender:
    """Sends the metrics of a process, in a thread that ends with the last `Watch`.

    Args:
        emit: Returns Airflow's statistics, to which metrics are sent. Called again for each sending, because
            a fork changes them.
        every: How often metrics are measured and sent.
        queues_every: How often brokers are queried for the backlog of queues.
        open_connection: Opens a connection to a broker.
    """

    def __init__(
        self,
        emit: Callable[[], Statistics] = statistics,
        *,
        every: timedelta = SEND_EVERY,
        queues_every: timedelta = PROBE_EVERY,
        open_connection: Callable[[ConnectionSettings], Connection] = connect,
    ) -> None:
        self._emit = emit
        self._every = every.total_seconds()
        self._depths = DepthProbes(
            open_connection, after=timedelta(0), every=queues_every, on_statistics=self._send_backlog
        )
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._woken = threading.Event()
        self._watches: list[Watch] = []
        self._left: list[tuple[Watch, Measured]] = []
        self._runs = False
        self._last_error = ""

    def watch(self, measure: Measure, probe: ProbedQueues | None = None) -> Watch:
        """Send the metrics of a listener, trigger or collector from now on, until `leave`.

        Args:
            measure: Returns the current values; called in the sender's thread, and must not block.
            probe: The queues whose backlog is sent, too; `None`: no queues.
        """
        found = Watch(measure, probe)
        with self._lock:
            self._watches.append(found)
            starts, self._runs = not self._runs, True
        self._woken.set()
        if starts:
            threading.Thread(target=self._run, name="jms-metrics", daemon=True).start()
        return found

    def leave(self, watch: Watch, *, wait: bool) -> None:
        """Send the last values of a watch, with its gauges at 0, and forget it.

        Args:
            watch: The watch.
            wait: `True`: send in the calling thread, because a task's process may end at once. `False`: the
                sender's thread sends, and the call doesn't block.
        """
        with self._reported("measuring"):
            watch.last = _ended(watch.measure())
        with self._lock:
            self._watches.remove(watch)
            if watch.last is not None and not wait:
                self._left.append((watch, watch.last))
        if watch.last is not None and wait:
            with self._sending, self._reported("sending"):
                self._send_all(self._emit(), [(watch, watch.last)])
        self._woken.set()

    # -- in the thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._woken.wait(self._every)
            self._woken.clear()
            with self._lock:
                watches, left = list(self._watches), self._left
                self._left = []
            measured = list(left)
            for each in watches:
                with self._reported("measuring"):
                    measured.append((each, each.measure()))
            with self._sending, self._reported("sending"):
                self._send_all(self._emit(), measured)
            self._depths.probe_if_due(
                {str(number): each.probe for number, each in enumerate(watches) if each.probe is not None}
            )
            with self._lock:
                if not self._watches and not self._left:
                    self._runs = False
                    return

    @contextlib.contextmanager
    def _reported(self, doing: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - metrics must not stop what they measure
            error_text = f"{doing}: {error!r}"
            if error_text != self._last_error:
                self._last_error = error_text
                _log.warning("Metrics could not be sent, because %s them failed", doing, exc_info=True)

    @staticmethod
    def _send_all(emit: Statistics, measured: Iterable[tuple[Watch, Measured]]) -> None:
        gauges: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        for watch, found in measured:
            if watch.last is not None and watch.last is not found:
                continue  # `leave` has sent the final values since these were measured
            tags = _tags(found.tags)
            before, watch.sent = watch.sent, found.values
            grown = increases(before, found.values)
            for name in found.values if not before else grown:
                # The first time, counters at 0 are sent too: an alert notices an increase only if it knows
                # the previous value.
                if BY_NAME[name].kind is MetricKind.COUNTER:
                    emit.incr(BY_NAME[name].statistic, grown.get(name, 0), tags=tags)
            for name, value in found.values.items():
                if BY_NAME[name].kind is MetricKind.GAUGE:
                    key = name, tuple(tags.items())
                    gauges[key] = gauges.get(key, 0) + value
        for (name, pairs), value in gauges.items():
            emit.gauge(BY_NAME[name].statistic, value, tags=dict(pairs))

    def _send_backlog(self, broker: str, found: QueueStatistics) -> None:
        """Send the backlog of a queue, and the age of its first message; runs in the probing thread."""
        tags = _tags({"broker": broker, "destination": str(Destination.queue(found.name))})
        with self._sending, self._reported("sending"):
            emit = self._emit()
            emit.gauge(BY_NAME["backlog"].statistic, found.messages, tags=tags)
            if found.oldest is not None or not found.messages:
                age = 0.0 if found.oldest is None else (datetime.now(UTC) - found.oldest).total_seconds()
                emit.gauge(BY_NAME["oldest_seconds"].statistic, max(0.0, age), tags=tags)


def _ended(found: Measured) -> Measured:
    """Return the last values to send for a watch that has ended, with gauges at 0.

    Otherwise a metrics system would go on showing the last value of each gauge.
    """
    values = {
        name: 0 if BY_NAME[name].kind is MetricKind.GAUGE else value for name, value in found.values.items()
    }
    return replace(found, values=values)


def _tags(tags: Mapping[str, str]) -> dict[str, str]:
    return {name: statsd_tag(value) for name, value in tags.items()}


# -- of this process --------------------------------------------------------------------------------------

_senders: dict[int, MetricsSender] = {}
_making = threading.Lock()


def sender() -> MetricsSender | None:
    """Return the sender of this process; `None` if no statistics are configured."""
    if not has_statistics():
        return None
    pid = os.getpid()
    with _making:
        if pid not in _senders:
            _senders.clear()  # of the process that this one was forked from
            _senders[pid] = MetricsSender()
        return _senders[pid]


@contextlib.contextmanager
def sending(measure: Measure, probe: ProbedQueues | None = None) -> Iterator[None]:
    """Send the metrics of a listener or a collector during the `with` block, and final values at its end.

    Args:
        measure: Returns the current values; called in another thread, and must not block.
        probe: The queues whose backlog is sent, too; `None`: no queues.
    """
    found = sender()
    if found is None:
        yield
        return
    watch = found.watch(measure, probe)
    try:
        yield
    finally:
        found.leave(watch, wait=True)


def count(name: str, number: float, tags: Mapping[str, str]) -> None:
    """Add to a counter now; without statistics do nothing.

    Args:
        name: Name of the metric.
        number: The increment; 0 makes the counter visible to alerts before it grows.
        tags: The tags and their values.
    """
    if has_statistics():
        statistics().incr(BY_NAME[name].statistic, number, tags=_tags(tags))
