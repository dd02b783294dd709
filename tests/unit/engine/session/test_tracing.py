"""Traces over messages: with OpenTelemetry's own SDK, and without."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.activations.activation import Activation
from airflow_provider_jmsjca.engine.session.connection import JmsConnection
from airflow_provider_jmsjca.engine.session.tracing import current_traceparent, with_traceparent
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Outgoing
from tests.unit.engine.listening import Site

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
ORDERS = Destination.queue("orders")


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # A process sets its provider once; here each test has its own.
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(trace, "get_tracer", functools.partial(trace.get_tracer, tracer_provider=provider))
    yield exporter
    provider.shutdown()


def w3c(context: trace.SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def sent(site: Site, message: JmsMessage) -> JmsMessage:
    """Send a message with a session; return what the queue has then."""
    with JmsConnection(connect(site.settings)) as connection, connection.session() as session:
        session.send(ORDERS, message)
        session.send_all([Outgoing(destination=ORDERS, message=message)])
    one, other = site.broker.messages("orders")
    assert one.properties == other.properties
    return one


def test_without_opentelemetry_nothing_is_added(site: Site) -> None:
    assert current_traceparent() is None
    assert sent(site, JmsMessage.text("a", {"n": 1})).properties == {"n": 1}


@pytest.mark.usefixtures("spans")
def test_a_sent_message_carries_the_span_of_its_sender(site: Site) -> None:
    with trace.get_tracer("test").start_as_current_span("publishing") as span:
        context = span.get_span_context()
        found = sent(site, JmsMessage.text("a", {"n": 1}))
    expected = w3c(context)
    assert found.properties == {"n": 1, "traceparent": expected}
    assert found.traceparent == expected


@pytest.mark.usefixtures("spans")
def test_outside_of_spans_nothing_is_added(site: Site) -> None:
    assert sent(site, JmsMessage.text("a")).properties == {}


@pytest.mark.parametrize(
    ("given", "kept"), [(PARENT, True), ("nonsense", False), (f"{PARENT}\r\nx:y", False), (17, False)]
)
def test_a_valid_one_stays_and_a_malformed_one_is_replaced(given: Any, kept: bool) -> None:
    message = JmsMessage.text("a", {"traceparent": given})
    other = f"00-{TRACE[::-1]}-{SPAN}-00"
    assert with_traceparent(message, other).traceparent == (PARENT if kept else other)
    assert with_traceparent(message, None) is message


@pytest.mark.parametrize("mode", ["serial", "cc"])
def test_a_handler_runs_in_a_child_of_the_sender_s_span(
    site: Site, spans: InMemorySpanExporter, mode: str
) -> None:
    seen: list[str | None] = []

    def handle(delivery: Any) -> None:
        seen.append(delivery.traceparent)
        delivery.send("queue://booked", JmsMessage.text("booked"))
        if delivery.body == "bad":
            raise ValueError("secret content")

    site.send("good", traceparent=PARENT)
    site.send("plain")
    site.send("hostile", traceparent="00-evil")
    site.send("bad", traceparent=PARENT)
    spec = {"destination": ORDERS, "concurrency_mode": mode, "redelivery_handling": "1:move(queue:$.dlq)"}
    with trace.get_tracer("test").start_as_current_span("task") as task:
        started_in = task.get_span_context()
        Activation(spec, handle, connection=site.settings).run(max_messages=4, run_for=20)
    assert sorted(seen, key=str) == sorted([PARENT, None, None, PARENT], key=str)
    handled = [each for each in spans.get_finished_spans() if each.name == "process queue://orders"]
    children = [each for each in handled if each.parent and f"{each.parent.span_id:016x}" == SPAN]
    assert len(handled) == 4
    assert len(children) == 2
    for each in children:
        assert f"{each.context.trace_id:032x}" == TRACE
        assert [link.context.span_id for link in each.links] == [started_in.span_id]
        assert each.parent is not None
        assert each.parent.is_remote
    others = [each for each in handled if each not in children]
    assert {each.parent.span_id for each in others if each.parent} == {started_in.span_id}
    failed = [each for each in handled if each.status.status_code is trace.StatusCode.ERROR]
    assert [dict(each.attributes or {})["error.type"] for each in failed] == ["ValueError"]
    assert "secret content" not in "".join(each.to_json() for each in handled)
    booked = {each.traceparent for each in site.broker.messages("booked")}
    assert len(booked) == 3
    assert booked <= {w3c(each.context) for each in handled}


def test_without_opentelemetry_the_listener_shows_the_trace_all_the_same(site: Site) -> None:
    seen: list[str | None] = []
    site.send("good", traceparent=PARENT)
    site.send("hostile", traceparent="00-evil")
    spec = {"destination": "queue://orders"}
    listener = Activation(spec, lambda delivery: seen.append(delivery.traceparent), connection=site.settings)
    listener.run(max_messages=2, run_for=20)
    assert seen == [PARENT, None]
