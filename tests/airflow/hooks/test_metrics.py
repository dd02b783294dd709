"""Metrics of real tasks and triggers, through Airflow's own OpenTelemetry logger."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from airflow_provider_jmsjca import JmsCollectOperator, JmsListenOperator, MemoryBroker
from tests.airflow.task_runs import execute
from tests.airflow.triggers.test_activation import send, triggerer
from tests.airflow.triggers.waiting import run, until
from tests.internals.hooks import metrics

Publish = Callable[..., None]
pytestmark = [
    pytest.mark.usefixtures("metadata"),
    # A task run loads half of Airflow, whose dependencies warn about each other.
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]


class Collector:
    """Airflow's statistics, kept by OpenTelemetry in this process."""

    def __init__(self) -> None:
        from airflow.sdk._shared.observability.metrics.otel_logger import SafeOtelLogger  # noqa: PLC0415  # its home

        self._reader = InMemoryMetricReader()
        self.logger = SafeOtelLogger(MeterProvider(metric_readers=[self._reader]))

    def values(self, kind: str) -> dict[str, float]:
        """Return the value of each metric of ours, by its name, of one kind of activation."""
        data = self._reader.get_metrics_data()
        found: dict[str, float] = {}
        for resource in () if data is None else data.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        tags = dict(point.attributes or {})
                        if metric.name.startswith("airflow.jms.") and tags.get("kind", kind) == kind:
                            found[metric.name.removeprefix("airflow.jms.")] = point.value  # type: ignore[union-attr]  # a number
        return found


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Collector:
    found = Collector()
    monkeypatch.setenv("AIRFLOW__METRICS__OTEL_ON", "True")
    # A task run sets up Airflow's statistics anew, and the exporter would look for a collector.
    monkeypatch.setattr(metrics, "statistics", lambda: found.logger)
    monkeypatch.setattr(metrics, "_senders", {os.getpid(): metrics.MetricsSender(lambda: found.logger)})
    return found


def test_a_listening_task_sends_its_counts(publish: Publish, collector: Collector) -> None:
    def fail_once(delivery: Any) -> None:
        if delivery.body == "bad":
            raise ValueError

    publish("good", "bad")
    with DAG("listening", schedule=None) as dag:
        JmsListenOperator(
            task_id="listen",
            jms_conn_id="jms_test",
            spec={"destination": "queue://orders", "redelivery_handling": "2:move(queue:$.dlq)"},
            on_message=fail_once,
            max_messages=2,
        )
    assert execute(dag, "listen").state == "success"
    found = collector.values("listener")
    assert (found["commits"], found["moves"], found["dead_letters"]) == (1, 1, 1)
    assert found["deliveries"] >= 2
    assert (found["in_flight"], found["connections_up"], found["connections_down"]) == (0, 0, 0)


def test_a_collecting_task_counts_sealed_rows(publish: Publish, collector: Collector, tmp_path: Path) -> None:
    publish("one", "two", "three")
    with DAG("collecting", schedule=None) as dag:
        JmsCollectOperator(
            task_id="collect",
            jms_conn_id="jms_test",
            destination="queue://orders",
            max_messages=3,
            spool_path=str(tmp_path),
        )
    assert execute(dag, "collect").state == "success"
    found = collector.values("collector")
    assert (found["deliveries"], found["sealed_rows"], found["commits"]) == (3, 3, 3)


def test_a_trigger_counts_its_events(server: MemoryBroker, collector: Collector) -> None:
    async def work() -> None:
        async with triggerer() as running:
            running.watch()
            send(server, "a")
            await until(lambda: commits() == 1, 10)
        await until(lambda: collector.values("trigger").get("commits") == 1, 10)
        assert collector.values("trigger")["connections_up"] == 0

    def commits() -> float:
        sender = metrics.sender()
        assert sender is not None
        return sum(each.measure().values["commits"] for each in sender._watches)

    run(work())


def test_each_process_uses_the_statistics_that_it_has_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow._shared.observability.metrics import stats as of_servers  # noqa: PLC0415  # both homes
    from airflow.sdk._shared.observability.metrics import stats as of_tasks  # noqa: PLC0415

    monkeypatch.setattr(of_servers, "_factory", None)
    monkeypatch.setattr(of_tasks, "_factory", dict)
    monkeypatch.delitem(sys.modules, "airflow.jobs.triggerer_job_runner", raising=False)
    assert metrics.statistics() is of_tasks
    monkeypatch.setattr(of_servers, "_factory", dict)
    assert metrics.statistics() is of_tasks
    monkeypatch.setitem(sys.modules, "airflow.jobs.triggerer_job_runner", sys)
    assert metrics.statistics() is of_servers
    monkeypatch.setattr(of_servers, "_factory", None)
    monkeypatch.setattr(of_tasks, "_factory", None)
    metrics.statistics().incr(f"jms.{uuid.uuid4().hex}", 1)  # to nowhere
