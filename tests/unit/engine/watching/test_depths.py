"""The depths of queues are asked for in a thread, and seldom where the broker does not answer."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_provider_jmsjca.engine.watching.depths import DepthProbes, ProbedQueues, QueueDepth
from airflow_provider_jmsjca.errors import CapabilityError, ConnectionLostError, JmsError
from airflow_provider_jmsjca.transports.administration import QueueOperation, QueueStatistics
from airflow_provider_jmsjca.transports.base import Connection, ConnectionSettings
from tests.unit.engine.listening import until

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


class Site:
    """Brokers by host, with figures by queue or an error, and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.brokers: dict[str, dict[str, QueueStatistics] | JmsError] = {}
        self.opened: list[str] = []
        self.listed = 0
        self.probes = DepthProbes(self._open, lambda: self.now)

    def _open(self, settings: ConnectionSettings) -> Connection:
        assert settings.client_id is None
        host = settings.hosts[0][0]
        self.opened.append(host)
        figures = self.brokers[host]

        def answer() -> dict[str, QueueStatistics]:
            if isinstance(figures, JmsError):
                raise figures
            return figures

        def queues() -> list[QueueStatistics]:
            self.listed += 1
            return list(answer().values())

        names = SimpleNamespace(meaning=lambda each: "a wildcard" if "*" in each.name else None)
        administration = SimpleNamespace(
            operations=frozenset(QueueOperation),
            statistics=lambda name: answer().get(name),
            queues=queues,
            close=lambda: None,
        )
        made = SimpleNamespace(
            broker=SimpleNamespace(names=names), administration=lambda: administration, close=lambda: None
        )
        return cast("Any", made)

    def probe(self, runs: dict[str, ProbedQueues]) -> None:
        """Probe what is due, and wait for the end."""
        self.probes.probe_if_due(runs)
        until(lambda: not self.probes._busy)


@pytest.fixture
def site() -> Site:
    return Site()


def on(*hosts: str, queues: tuple[str, ...] = ("orders",)) -> ProbedQueues:
    one = ConnectionSettings(scheme="stomp", hosts=(("x", 1),), password="s3cret", client_id="c")
    return ProbedQueues(settings=tuple(replace(one, hosts=((host, 1),)) for host in hosts), queues=queues)


def figures(name: str, messages: int, in_flight: int = 0) -> QueueStatistics:
    return QueueStatistics(name=name, messages=messages, in_flight=in_flight, oldest=NOON)


def test_the_depth_of_a_runs_queues_over_all_its_brokers(site: Site) -> None:
    site.brokers = {
        "a": {"orders": figures("orders", 5, 2), "bills": figures("bills", 4)},
        "b": {"orders": figures("orders", 1)},
    }
    runs = {"1": on("a"), "2": on("a", "b", queues=("orders", "bills")), "3": on("b", queues=("none",))}
    site.probe(runs)
    assert site.opened == [], "a short task asks nothing"
    site.now = 21
    site.probe(runs)
    assert sorted(site.opened) == ["a", "b"], "one connection for each broker"
    assert site.probes.depth("1") == QueueDepth(waiting=3, oldest=NOON)
    assert site.probes.depth("2") == QueueDepth(waiting=8, oldest=NOON)
    assert site.probes.depth("3") == QueueDepth(waiting=0)
    site.now = 60
    site.probe(runs)
    assert len(site.opened) == 2
    site.now = 82
    site.probe({"1": runs["1"]})
    assert len(site.opened) == 3
    assert site.probes.depth("2") is None, "a run that has ended is forgotten"
    assert "s3cret" not in repr(runs)


def test_many_queues_are_listed_at_once(site: Site) -> None:
    names = tuple(f"q{number}" for number in range(21))
    site.brokers = {"a": {name: figures(name, 1) for name in names}}
    site.now = 21
    site.probe({"1": on("a", queues=names)})
    assert site.probes.depth("1") == QueueDepth(waiting=21, oldest=NOON)
    assert site.listed == 1


@pytest.mark.parametrize(
    ("error", "asked"),
    [(CapabilityError("no plugin"), 1), (ConnectionLostError("away"), 2)],
    ids=["never again", "less and less often"],
)
def test_a_broker_that_does_not_answer(site: Site, error: JmsError, asked: int) -> None:
    site.brokers = {"a": {"orders": figures("orders", 5)}}
    site.now = 21
    runs = {"1": on("a")}
    site.probe(runs)
    site.now = 41
    site.brokers = {"a": error}
    for _ in range(9):
        site.now += 40
        site.probe(runs)
    assert len(site.opened) - 1 == asked
    assert site.probes.depth("1") is None


def test_patterns_are_not_asked_for(site: Site) -> None:
    site.brokers = {"a": {"orders": figures("orders", 5)}}
    site.now = 21
    runs = {"1": on("a", queues=("orders", "o*")), "2": on("a")}
    site.probe(runs)
    assert (site.probes.depth("1"), site.probes.depth("2")) == (None, QueueDepth(waiting=5, oldest=NOON))


def test_other_queues_of_a_broker_that_refused_are_asked_for(site: Site) -> None:
    site.brokers = {"a": {"orders": figures("orders", 5)}}
    for site.now in (21.0, 100.0):
        site.probe({"1": on("a", queues=("o*",))})
    assert site.opened == ["a"], "asked once"
    site.now = 200
    site.probe({"1": on("a", queues=("o*",)), "2": on("a")})
    assert site.probes.depth("2") == QueueDepth(waiting=5, oldest=NOON)


def test_a_slow_broker_blocks_nobody(site: Site) -> None:
    site.brokers = {"a": {}}
    opened, answers = site.probes._open, threading.Event()

    def slowly(settings: ConnectionSettings) -> Connection:
        assert answers.wait(20)
        return opened(settings)

    site.probes._open = slowly
    for site.now in (21.0, 500.0):
        site.probes.probe_if_due({"1": on("a")})
    answers.set()
    until(lambda: not site.probes._busy)
    assert site.opened == ["a"], "no second probe during the first"
    assert site.probes.depth("1") == QueueDepth(waiting=0)
