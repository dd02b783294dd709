"""What is sent to Airflow's statistics, and when."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from airflow._shared.observability.metrics.statsd_logger import SafeStatsdLogger

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.metrics import METRICS, Measured, MetricKind
from airflow_provider_jmsjca.engine.watching.depths import probed_queues
from airflow_provider_jmsjca.errors import CapabilityError
from airflow_provider_jmsjca.hooks.metrics import (
    MetricsSender,
    Statistics,
    count,
    sender,
    sending,
)
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Connection, ConnectionSettings, Outgoing
from airflow_provider_jmsjca.transports.memory import memory_broker as broker
from tests.unit.engine.listening import until

TAGS = {"activation": "shop at stomp://broker:61613", "destination": "queue://orders", "kind": "listener"}
SHOWN = {
    "activation": "shop_at_stomp/broker_61613",
    "destination": "queue/orders",
    "kind": "listener",
}
NEVER, OFTEN = timedelta(hours=1), timedelta(milliseconds=10)


class Sink:
    """Receives what is sent."""

    def __init__(self) -> None:
        self.counters: dict[str, float] = {}
        self.gauges: dict[str, float] = {}
        self.tags: list[dict[str, Any]] = []
        self.fails = False

    def incr(self, stat: str, count: Any = None, *, tags: dict[str, Any] | None = None) -> None:
        if self.fails:
            raise OSError("no route to host")
        self.counters[stat] = self.counters.get(stat, 0) + count
        self.tags.append(tags or {})

    def gauge(self, stat: str, value: float, *, tags: dict[str, Any] | None = None) -> None:
        self.gauges[stat] = value
        self.tags.append(tags or {})


def measuring(values: dict[str, float]) -> Callable[[], Measured]:
    return lambda: Measured(tags=TAGS, values=dict(values))


def test_counters_are_sent_as_increases_and_gauges_as_they_are() -> None:
    sink, values = Sink(), {"deliveries": 2.0, "in_flight": 5.0}
    metrics = MetricsSender(lambda: sink, every=OFTEN)
    watch = metrics.watch(measuring(values))
    until(lambda: sink.gauges == {"jms.in_flight": 5})
    assert sink.counters == {"jms.deliveries": 2}
    values |= {"deliveries": 3, "in_flight": 1}
    until(lambda: sink.gauges == {"jms.in_flight": 1})
    assert sink.counters == {"jms.deliveries": 3}
    values["deliveries"] = 7
    metrics.leave(watch, wait=True)
    assert sink.counters == {"jms.deliveries": 7}
    assert sink.gauges == {"jms.in_flight": 0}
    assert all(each == SHOWN for each in sink.tags)
    until(lambda: not any(each.name == "jms-metrics" for each in threading.enumerate()))


@pytest.mark.parametrize("wait", [True, False])
def test_the_last_values_are_sent_though_no_round_comes(wait: bool) -> None:
    sink = Sink()
    metrics = MetricsSender(lambda: sink, every=NEVER)
    metrics.leave(metrics.watch(measuring({"commits": 4})), wait=wait)
    until(lambda: sink.counters == {"jms.commits": 4})


def test_a_counter_is_sent_before_it_grows() -> None:
    """An alert that looks for an increase misses a counter whose first value is 1."""
    sink, values = Sink(), {"dead_letters": 0.0}
    metrics = MetricsSender(lambda: sink, every=NEVER)
    watch = metrics.watch(measuring(values))
    until(lambda: sink.counters == {"jms.dead_letters": 0})
    values["dead_letters"] = 1
    metrics.leave(watch, wait=True)
    assert sink.counters == {"jms.dead_letters": 1}


def test_gauges_of_equal_tags_are_added() -> None:
    sink = Sink()
    metrics = MetricsSender(lambda: sink, every=OFTEN)
    watches = [metrics.watch(measuring({"in_flight": number})) for number in (2, 3)]
    until(lambda: sink.gauges == {"jms.in_flight": 5})
    for each in watches:
        metrics.leave(each, wait=False)
    until(lambda: sink.gauges == {"jms.in_flight": 0})


def test_what_fails_is_logged_once_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    sink, values = Sink(), {"commits": 1.0}
    sink.fails = True
    metrics = MetricsSender(lambda: sink, every=OFTEN)
    watch = metrics.watch(measuring(values))
    until(lambda: "Metrics could not be sent" in caplog.text)
    values["commits"] = 2
    sink.fails = False
    values["commits"] = 5
    until(lambda: sink.counters)
    metrics.leave(watch, wait=True)
    assert caplog.text.count("Metrics could not be sent") == 1

    def broken() -> Measured:
        raise RuntimeError("broken")

    metrics.leave(metrics.watch(broken), wait=True)
    assert "measuring them failed" in caplog.text


def test_nothing_is_measured_where_no_statistics_are_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STATSD_ON", "STATSD_DATADOG_ENABLED", "OTEL_ON"):
        monkeypatch.delenv(f"AIRFLOW__METRICS__{name}", raising=False)

    def refuse() -> Measured:
        raise AssertionError

    assert sender() is None
    with sending(refuse):
        pass
    count("stored_rows", 1, {"destination": "queue://orders", "table": "orders"})


@pytest.mark.parametrize("influx", [True, False])
def test_airflow_s_statsd_takes_every_name_and_tag(influx: bool) -> None:
    lines: list[str] = []

    class Client:
        def incr(self, stat: str, count: float, rate: float) -> None:
            lines.append(f"{stat}:{count}|c@{rate}")

        def gauge(self, stat: str, value: float, rate: float, delta: bool) -> None:
            lines.append(f"{stat}:{value}|g@{rate}{delta}")

    logger: Any = SafeStatsdLogger(
        Client(),  # type: ignore[arg-type]  # it has what is called
        influxdb_tags_enabled=influx,
        statsd_influxdb_enabled=influx,
    )
    metrics = MetricsSender(lambda: logger, every=NEVER)
    hostile = {"activation": "a:1|c\n" * 100, "destination": "queue://" + "ö,=" * 100, "kind": "listener"}
    values = {each.name: 1.0 for each in METRICS if set(each.tags) == set(hostile)}
    metrics.leave(metrics.watch(lambda: Measured(tags=hostile, values=values)), wait=True)
    sent = {line.partition(":")[0].partition(",")[0] for line in lines}
    assert sent == {f"jms.{name}" for name in values}
    for line in lines:
        name, _, rest = line.partition(":")
        assert "\n" not in line
        assert rest.count("|") == 1
        assert ("," in name) is influx
    kinds = {each.statistic: each.kind for each in METRICS}
    for line in lines:
        name = line.partition(":")[0].partition(",")[0]
        assert (kinds[name] is MetricKind.COUNTER) == ("|c@" in line)


# -- the backlog of queues --------------------------------------------------------------------------------


def test_the_backlog_of_a_queue_and_the_age_of_its_first_message_are_sent() -> None:
    server = broker(uuid.uuid4().hex)
    settings = ConnectionSettings(scheme="vm", hosts=((server.name, None),), client_id="desk")
    connection = connect(settings)
    orders = Destination.queue("orders")
    connection.send(Outgoing(destination=orders, message=JmsMessage.text(each)) for each in "ab")
    connection.close()
    server.advance(timedelta(seconds=-30))
    sink = Sink()
    metrics = MetricsSender(lambda: sink, every=OFTEN, queues_every=OFTEN)
    probe = probed_queues(settings, (orders, Destination.topic("prices")))
    watch = metrics.watch(measuring({}), probe)
    until(lambda: "jms.oldest_seconds" in sink.gauges)
    metrics.leave(watch, wait=False)
    assert sink.gauges["jms.backlog"] == 2
    assert 0 <= sink.gauges["jms.oldest_seconds"] < 3_600
    assert sink.tags[0] == {"broker": f"vm/{server.name}"[:64], "destination": "queue/orders"}


def test_a_broker_that_refuses_is_asked_once(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[str] = []

    def refuse(settings: ConnectionSettings) -> Connection:
        asked.append(settings.url)
        raise CapabilityError("no management here")

    sink: Statistics = Sink()
    metrics = MetricsSender(lambda: sink, every=OFTEN, queues_every=OFTEN, open_connection=refuse)
    settings = ConnectionSettings(scheme="stomp", hosts=(("broker", 61613),))
    rounds: list[int] = []

    def measure() -> Measured:
        rounds.append(1)
        return Measured(tags=TAGS)

    with caplog.at_level("INFO"):
        watch = metrics.watch(measure, probed_queues(settings, [Destination.queue("orders")]))
        until(lambda: asked)
        seen = len(rounds)
        until(lambda: len(rounds) > seen + 5)
        metrics.leave(watch, wait=False)
    assert asked == ["stomp://broker:61613"]
    assert "The backlog at stomp://broker:61613 is not known: no management here" in caplog.text
