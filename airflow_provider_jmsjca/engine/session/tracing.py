"""Traces across messages: the property `traceparent` connects the sender's span with the handler's span.

Nothing is loaded and nothing changes unless the process has set up OpenTelemetry with a tracer provider of
its own, as Airflow does with `[traces] otel_on`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.traceparent import TRACEPARENT
from airflow_provider_jmsjca.transports.base import Outgoing

_API: Final = "opentelemetry.trace"
_TRACER: Final = "airflow_provider_jmsjca"


def _active() -> Any:
    """Return OpenTelemetry's `trace` module; `None` unless the process has a tracer provider."""
    trace = sys.modules.get(_API)
    if trace is None:
        return None
    provider = trace.get_tracer_provider()
    return None if isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider)) else trace


def current_traceparent() -> str | None:
    """Return the current span as `traceparent`; `None` if there is no span or no tracer provider."""
    trace = sys.modules.get(_API)
    if trace is None:
        return None
    # The span is checked first. A check of the provider takes ten times as long, and this function runs for
    # each message.
    context = trace.get_current_span().get_span_context()
    if not context.is_valid or _active() is None:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 0b11:02x}"


def with_traceparent(message: JmsMessage, traceparent: str | None) -> JmsMessage:
    """Return a message with this `traceparent`, unless the message already has a valid one.

    Args:
        message: The message; it isn't changed.
        traceparent: Result of `current_traceparent`.
    """
    if traceparent is None or message.traceparent is not None:
        return message
    types = {name: each for name, each in message.property_types.items() if name != TRACEPARENT}
    return replace(
        message,
        properties=MappingProxyType({**message.properties, TRACEPARENT: traceparent}),
        property_types=MappingProxyType(types),
    )


def with_current_trace(outgoing: Iterable[Outgoing]) -> list[Outgoing]:
    """Return messages with the current span as their `traceparent`; see `with_traceparent`."""
    found, traceparent = list(outgoing), current_traceparent()
    if traceparent is None:
        return found
    return [replace(each, message=with_traceparent(each.message, traceparent)) for each in found]


def traced(handler: Callable[[Any], object], destination: str) -> Callable[[Any], object]:
    """Return a handler that calls the given one in a new span for each message.

    If the process has no tracer provider, the given handler is returned unchanged. The span is a child of the
    message's `traceparent`, and linked with the span in which the listener was started. Without a valid
    `traceparent`, the new span is a child of the listener's span. It records the class of an exception, but
    never the exception's text, which may contain parts of the message.

    Args:
        handler: The handler.
        destination: The listener's destination, for the name of the span.
    """
    trace = _active()
    if trace is None:
        return handler
    tracer = trace.get_tracer(_TRACER)

    @functools.wraps(handler)
    def call(delivery: Any) -> object:
        if delivery.end_of_batch:
            return handler(delivery)
        message: JmsMessage = delivery.message
        parent = _remote(trace, message.traceparent)
        started_in = trace.get_current_span().get_span_context()
        with tracer.start_as_current_span(
            f"process {destination}",
            context=parent,
            kind=trace.SpanKind.CONSUMER,
            links=[trace.Link(started_in)] if parent is not None and started_in.is_valid else None,
            attributes={
                "messaging.system": "jms",
                "messaging.operation.type": "process",
                "messaging.destination.name": destination,
                "messaging.message.id": message.message_id or "",
                "jms.attempt": delivery.redelivery_count + 1,
            },
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                return handler(delivery)
            except BaseException as error:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(trace.Status(trace.StatusCode.ERROR))
                raise

    return call


def _remote(trace: Any, traceparent: str | None) -> Any:
    """Return OpenTelemetry's context of a remote span; `None` without a `traceparent`."""
    if traceparent is None:
        return None
    _, trace_id, span_id, flags = traceparent.split("-")
    context = trace.SpanContext(
        trace_id=int(trace_id, 16),
        span_id=int(span_id, 16),
        is_remote=True,
        trace_flags=trace.TraceFlags(int(flags, 16)),
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(context))
