"""The trace of a task goes to the Spark job as properties."""

from __future__ import annotations

import functools

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from airflow_provider_jmsjca.operators.spark import _trace


def test_the_span_of_the_task_goes_to_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _trace() == {}
    provider = TracerProvider()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(trace, "get_tracer", functools.partial(trace.get_tracer, tracer_provider=provider))
    assert _trace() == {}
    with trace.get_tracer("test").start_as_current_span("task") as span:
        context = span.get_span_context()
        found = _trace()
    value = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    assert found == {
        "spark.jmsjca.traceparent": value,
        "spark.executorEnv.TRACEPARENT": value,
        "spark.yarn.appMasterEnv.TRACEPARENT": value,
        "spark.kubernetes.driverEnv.TRACEPARENT": value,
    }
    provider.shutdown()
