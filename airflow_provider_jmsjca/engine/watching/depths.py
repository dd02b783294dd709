"""Depths of the queues that registered runs consume, queried once a minute."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.errors import CapabilityError, ConfigurationError, JmsError, PermanentBrokerError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.administration import QueueOperation, QueueStatistics
from airflow_provider_jmsjca.transports.base import Connection, ConnectionSettings
from airflow_provider_jmsjca.transports.members import settings_for_member

_log = safe_logger("airflow_provider_jmsjca.registry")

PROBE_AFTER: Final = timedelta(seconds=20)
"""Time from the first run of a process to the first probe, so that short tasks probe nothing."""

PROBE_EVERY: Final = timedelta(seconds=60)
"""Interval of the probes. After a failure it doubles, up to `_LONGEST_PAUSE`."""

_LONGEST_PAUSE: Final = 3_600.0
_FEW: Final = 20
"""Up to this number, queues are queried one by one; for more, the list of all queues is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedQueues:
    """The queues that a run consumes.

    Attributes:
        settings: Connection settings, one for each broker that has a part of the queues.
        queues: Names of the queues.
    """

    settings: tuple[ConnectionSettings, ...] = field(repr=False)
    queues: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDepth:
    """The number and age of the messages on a group of queues.

    Attributes:
        waiting: Number of messages on the queues, without in-flight ones.
        oldest: Time at which the oldest message was sent; `None`: no message waits, or the broker does not
            report the time.
    """

    waiting: int
    oldest: datetime | None = None


def probed_queues(
    connection: ConnectionSettings | None, sources: Iterable[Destination], members: Collection[str] = ()
) -> ProbedQueues | None:
    """Return the queues among the destinations of a run; `None` if the run consumes no queue.

    Args:
        connection: Connection settings of the run; `None`: the result is `None`.
        sources: The destinations.
        members: Hosts that each have a part of the queues; empty: one broker has all messages.
    """
    queues = tuple(each.name for each in sources if each.kind is DestinationKind.QUEUE)
    if connection is None or not queues:
        return None
    settings = tuple(settings_for_member(each, connection) for each in members) or (connection,)
    return ProbedQueues(settings=settings, queues=queues)


_Key = tuple[str, str | None, str | None]
_Probe = tuple[ConnectionSettings, frozenset[str]]


@dataclass(slots=True)
class _Broker:
    """A broker that is probed.

    Attributes:
        next: Time on the clock of the next probe.
        failures: Failed probes since the last success.
        refused: Queues whose depths it does not report.
    """

    next: float
    failures: int = 0
    refused: frozenset[str] = frozenset()


class DepthProbes:
    """Queries the depths of queues at their brokers, in a thread and over connections of its own.

    A probe never delays a consumer. A broker that does not report depths is queried once. After failures the
    interval grows.

    Args:
        open_connection: Opens a connection.
        clock: Returns seconds, monotonic.
        after: Time to the first probe.
        every: Interval of the probes.
        on_statistics: Called in the probing thread with the broker's address and the statistics of each
            queue.
    """

    def __init__(
        self,
        open_connection: Callable[[ConnectionSettings], Connection] = connect,
        clock: Callable[[], float] = time.monotonic,
        *,
        after: timedelta = PROBE_AFTER,
        every: timedelta = PROBE_EVERY,
        on_statistics: Callable[[str, QueueStatistics], object] = lambda _broker, _found: None,
    ) -> None:
        self._open = open_connection
        self._clock = clock
        self._first = clock() + after.total_seconds()
        self._every = every.total_seconds()
        self._on_statistics = on_statistics
        self._brokers: dict[_Key, _Broker] = {}
        self._found: dict[str, QueueDepth | None] = {}
        self._busy = False

    def depth(self, run: str) -> QueueDepth | None:
        """Return the depth of a run's queues as last reported; `None` if it is not known."""
        return self._found.get(run)

    def probe_if_due(self, runs: Mapping[str, ProbedQueues]) -> None:
        """Start a probe in a thread if one is due; return at once.

        Args:
            runs: The queues of each run, by the run's key.
        """
        self._found = {run: depth for run, depth in self._found.items() if run in runs}
        due = self._due(runs.values())
        if due and not self._busy:
            self._busy = True
            threading.Thread(target=self._run, args=(dict(runs), due), name="jms-depths", daemon=True).start()

    def _due(self, runs: Collection[ProbedQueues]) -> list[_Probe]:
        """Return the probes to make now, one for each broker."""
        now = self._clock()
        queues: dict[_Key, set[str]] = {}
        settings: dict[_Key, ConnectionSettings] = {}
        for run in runs:
            for each in run.settings:
                queues.setdefault(_key(each), set()).update(run.queues)
                settings[_key(each)] = each
        for key in queues:
            self._brokers.setdefault(key, _Broker(next=max(now, self._first)))
        return [
            (settings[key], frozenset(names))
            for key, names in queues.items()
            if names and now >= self._brokers[key].next and names != self._brokers[key].refused
        ]

    def _run(self, runs: dict[str, ProbedQueues], due: list[_Probe]) -> None:
        try:
            statistics = {_key(settings): self._probe(settings, queues) for settings, queues in due}
            for run, probed in runs.items():
                keys = [_key(each) for each in probed.settings]
                if all(each in statistics for each in keys):
                    self._found[run] = _depth(probed.queues, [statistics[each] for each in keys])
        finally:
            self._busy = False

    def _probe(
        self, settings: ConnectionSettings, queues: frozenset[str]
    ) -> dict[str, QueueStatistics | None] | None:
        """Return statistics by queue, with `None` for a missing queue; `None` if the probe fails."""
        broker = self._brokers[_key(settings)]
        broker.next = self._clock() + self._every
        try:
            with contextlib.closing(self._open(replace(settings, client_id=None))) as connection:
                found = dict(_statistics(connection, queues))
        except CapabilityError as error:
            _log.info("The backlog at %s is not known: %s", settings.url, error)
            broker.refused = queues
            return None
        except JmsError as error:
            broker.failures += 1
            level = _log.info if isinstance(error, (PermanentBrokerError, ConfigurationError)) else _log.debug
            level("The backlog at %s is not known: %s", settings.url, error)
            pause = self._every * 2 ** min(broker.failures, 16)
            broker.next = self._clock() + min(pause, _LONGEST_PAUSE)
            return None
        broker.failures = 0
        for figures in found.values():
            if figures is not None:
                self._on_statistics(settings.url, figures)
        return found


def _key(settings: ConnectionSettings) -> _Key:
    return settings.url, settings.username, settings.virtual_host


def _statistics(
    connection: Connection, queues: frozenset[str]
) -> Iterator[tuple[str, QueueStatistics | None]]:
    names = connection.broker.names
    plain = sorted(each for each in queues if names.meaning(Destination.queue(each)) is None)
    if not plain:
        raise CapabilityError(
            f"{connection.broker}: the depth of a wildcard, or of a queue name with options, can't be queried"
        )
    with contextlib.closing(connection.administration()) as administration:
        if QueueOperation.STATISTICS not in administration.operations:
            raise CapabilityError(f"{connection.broker} does not report the depth of queues")
        if len(plain) > _FEW:
            listed = {each.name: each for each in administration.queues()}
            yield from ((name, listed.get(name)) for name in plain)
        else:
            yield from ((name, administration.statistics(name)) for name in plain)


def _depth(
    queues: Collection[str], brokers: Collection[Mapping[str, QueueStatistics | None] | None]
) -> QueueDepth | None:
    """Return the depth of queues over all brokers; `None` if a part of it is not known."""
    waiting, oldest = 0, None
    for statistics in brokers:
        for name in queues:
            if statistics is None or name not in statistics:
                return None
            figures = statistics[name]
            if figures is None:
                continue
            waiting += max(0, figures.messages - (figures.in_flight or 0))
            if figures.oldest is not None and figures.messages:
                oldest = figures.oldest if oldest is None else min(oldest, figures.oldest)
    return QueueDepth(waiting=waiting, oldest=oldest)
