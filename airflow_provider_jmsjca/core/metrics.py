"""The metrics: one table of names, kinds, units, tags and meanings, and Prometheus' text format.

Every front end takes its names from this table: Airflow's statistics, `Listener.metrics`, the page on
monitoring, the dashboard and the alert rules.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final


class MetricKind(StrEnum):
    """How a value changes: a counter only grows until its process ends, a gauge goes up and down."""

    COUNTER = "counter"
    GAUGE = "gauge"


OF_ACTIVATION: Final = ("activation", "destination", "kind")
"""Tags of a metric of one activation."""

OF_QUEUE: Final = ("broker", "destination")
"""Tags of a metric of one queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric.

    Attributes:
        name: Name without prefix, in snake_case.
        kind: Counter or gauge.
        unit: Unit of the value.
        meaning: One sentence without a full stop.
        tags: Names of its tags, which Prometheus calls labels.
    """

    name: str
    kind: MetricKind
    unit: str
    meaning: str
    tags: tuple[str, ...] = OF_ACTIVATION

    @property
    def statistic(self) -> str:
        """Name in Airflow's statistics, such as `jms.deliveries`."""
        return f"jms.{self.name}"

    @property
    def series(self) -> str:
        """Name in Prometheus, such as `jms_deliveries_total`."""
        return f"jms_{self.name}_total" if self.kind is MetricKind.COUNTER else f"jms_{self.name}"


def _counter(name: str, unit: str, meaning: str, tags: tuple[str, ...] = OF_ACTIVATION) -> Metric:
    return Metric(name=name, kind=MetricKind.COUNTER, unit=unit, meaning=meaning, tags=tags)


def _gauge(name: str, unit: str, meaning: str, tags: tuple[str, ...] = OF_ACTIVATION) -> Metric:
    return Metric(name=name, kind=MetricKind.GAUGE, unit=unit, meaning=meaning, tags=tags)


METRICS: Final = (
    _counter("deliveries", "messages", "Messages given to the function, or received into a batch"),
    _counter("redeliveries", "messages", "Deliveries that were not the first attempt"),
    _counter("commits", "messages", "Messages settled because they were handled or stored"),
    _counter("rollbacks", "messages", "Deliveries that were rolled back"),
    _counter("moves", "messages", "Messages moved by the redelivery handling, for any reason"),
    _counter("dead_letters", "messages", "Messages moved because they failed"),
    _counter("deletions", "messages", "Messages deleted by the redelivery handling"),
    _counter("parked", "messages", "Delays left to limbo or to the broker"),
    _counter("repeats", "messages", "Messages that came again although they were settled"),
    _counter("settlement_failures", "messages", "Settlements that the broker refused"),
    _counter("in_doubt", "messages", "Settlements whose outcome is unknown"),
    _counter("outages", "outages", "Connections that were lost"),
    _counter("handler_seconds", "seconds", "Time spent in the function"),
    _gauge("connections_up", "connections", "Connections that consume"),
    _gauge("connections_down", "connections", "Connections that don't consume, of running activations"),
    _gauge("suspended", "activations", "Whether an operator has suspended the activation: 1 or 0"),
    _gauge("in_flight", "messages", "Messages received and not settled"),
    _gauge("running_calls", "calls", "Calls of the function that are running"),
    _gauge("backlog", "messages", "Messages on the queue, as the broker counts them", OF_QUEUE),
    _gauge("oldest_seconds", "seconds", "Age of the first message on the queue", OF_QUEUE),
    _counter("sealed_rows", "rows", "Messages sealed in segments of a batch"),
    _counter("stored_rows", "rows", "Rows that Spark jobs have stored in tables", ("destination", "table")),
    _counter("rejected_rows", "rows", "Messages that Spark jobs have rejected", ("destination",)),
)
"""All metrics."""

BY_NAME: Final[Mapping[str, Metric]] = {each.name: each for each in METRICS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Values of metrics with the same tags, at one time.

    Attributes:
        tags: Tag -> value.
        values: Name of a metric -> value. A counter may start at any value.
    """

    tags: Mapping[str, str]
    values: Mapping[str, float] = field(default_factory=dict)


def increases(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """Return the increase of each counter that grew.

    A counter that is smaller than before has restarted at 0, so its whole value is the increase.
    """
    found = {}
    for name, value in now.items():
        if BY_NAME[name].kind is MetricKind.COUNTER:
            last = before.get(name, 0)
            grown = value - last if value >= last else value
            if grown > 0:
                found[name] = grown
    return found


# -- Prometheus -------------------------------------------------------------------------------------------

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""Media type of the text format."""


def prometheus_text(measured: Iterable[Measured]) -> str:
    """Return values in Prometheus' text format (version 0.0.4), each metric with its help and its type.

    Args:
        measured: The values; a metric without a value is left out.
    """
    groups = list(measured)
    lines: list[str] = []
    for metric in METRICS:
        samples = [
            f"{metric.series}{_labels(each.tags, metric.tags)} {_number(each.values[metric.name])}"
            for each in groups
            if metric.name in each.values
        ]
        if samples:
            lines += [
                f"# HELP {metric.series} {_escaped_help(metric.meaning)}.",
                f"# TYPE {metric.series} {metric.kind}",
                *samples,
            ]
    return "".join(f"{line}\n" for line in lines)


def _labels(tags: Mapping[str, str], names: Iterable[str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped_label(tags[name])}"' for name in names if name in tags) + "}"


def _escaped_label(value: str) -> str:
    # A lone surrogate has no UTF-8 form: one hostile name would make the whole text unreadable.
    value = value.encode("utf-8", "replace").decode("utf-8")
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _escaped_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if float(value).is_integer() else repr(float(value))


# -- StatsD -----------------------------------------------------------------------------------------------

LONGEST_TAG: Final = 64
"""Maximum length of a tag's value in Airflow's statistics: all tags together may have 250 characters."""

_DIGEST = 8
_UNSAFE = re.compile(r"[^A-Za-z0-9_./-]+")


def statsd_tag(value: str) -> str:
    """Return a tag's value with the characters that StatsD allows, cut to `LONGEST_TAG`.

    `://` becomes `/`. Each run of other characters outside `A-Za-z0-9_./-` becomes one `_`. A value that is
    cut ends with a part of its SHA-256 digest, so that two long values stay different.

    Args:
        value: Any text; empty text becomes `none`.
    """
    plain = _UNSAFE.sub("_", value.replace("://", "/"))
    if len(plain) > LONGEST_TAG:
        digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
        plain = f"{plain[: LONGEST_TAG - _DIGEST - 1]}_{digest}"
    return plain or "none"
