"""The table of metrics, Prometheus' text format, and tags that StatsD takes."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_jmsjca.core.metrics import (
    BY_NAME,
    LONGEST_TAG,
    METRICS,
    Measured,
    MetricKind,
    increases,
    prometheus_text,
    statsd_tag,
)
from tests.unit.core.prometheus import parsed

TAGS = {"activation": "shop", "destination": "queue://orders", "kind": "listener"}


def test_names_are_unique_and_fit_every_system() -> None:
    assert len(BY_NAME) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", metric.name), metric.name
        assert metric.statistic == f"jms.{metric.name}"
        assert metric.series == f"jms_{metric.name}" + ("_total" if metric.kind is MetricKind.COUNTER else "")
        assert metric.tags
        assert not metric.meaning.endswith(".")


def test_the_text_has_help_type_and_samples() -> None:
    text = prometheus_text(
        [
            Measured(tags=TAGS, values={"deliveries": 3, "in_flight": 0, "handler_seconds": 0.25}),
            Measured(tags=TAGS | {"activation": "bank"}, values={"deliveries": 2_000_000}),
        ]
    )
    assert text == (
        "# HELP jms_deliveries_total Messages given to the function, or received into a batch.\n"
        "# TYPE jms_deliveries_total counter\n"
        'jms_deliveries_total{activation="shop",destination="queue://orders",kind="listener"} 3\n'
        'jms_deliveries_total{activation="bank",destination="queue://orders",kind="listener"} 2000000\n'
        "# HELP jms_handler_seconds_total Time spent in the function.\n"
        "# TYPE jms_handler_seconds_total counter\n"
        'jms_handler_seconds_total{activation="shop",destination="queue://orders",kind="listener"} 0.25\n'
        "# HELP jms_in_flight Messages received and not settled.\n"
        "# TYPE jms_in_flight gauge\n"
        'jms_in_flight{activation="shop",destination="queue://orders",kind="listener"} 0\n'
    )


def test_hostile_names_stay_inside_their_quotes() -> None:
    text = prometheus_text(
        [Measured(tags={"activation": 'a"} 1\nevil 2\\', "kind": "\ud800"}, values={"in_flight": 1})]
    )
    assert text.splitlines()[-1] == r'jms_in_flight{activation="a\"} 1\nevil 2\\",kind="?"} 1'


@given(st.dictionaries(st.sampled_from(["activation", "destination", "kind"]), st.text()), st.floats())
def test_any_name_and_value_is_read_again(tags: dict[str, str], value: float) -> None:
    text = prometheus_text([Measured(tags=tags, values={"in_flight": value})])
    (name, labels, number), *others = parsed(text)
    assert (name, others) == ("jms_in_flight", [])
    assert labels == {key: each.encode("utf-8", "replace").decode() for key, each in tags.items()}
    assert number == value or math.isnan(value)


@pytest.mark.parametrize(
    ("before", "now", "grown"),
    [
        ({}, {"deliveries": 3, "in_flight": 2}, {"deliveries": 3}),
        ({"deliveries": 3}, {"deliveries": 3}, {}),
        ({"deliveries": 3}, {"deliveries": 5}, {"deliveries": 2}),
        ({"deliveries": 5}, {"deliveries": 1}, {"deliveries": 1}),
        ({"deliveries": 5}, {"deliveries": 0}, {}),
    ],
    ids=["first", "same", "more", "started again", "started again, nothing yet"],
)
def test_counters_are_sent_as_increases(
    before: dict[str, float], now: dict[str, float], grown: dict[str, float]
) -> None:
    assert increases(before, now) == grown


@pytest.mark.parametrize(
    ("value", "tag"),
    [
        ("queue://orders", "queue/orders"),
        ("shop", "shop"),
        ("", "none"),
        ("a:1|c\n#x,y=z", "a_1_c_x_y_z"),
        ("größe", "gr_e"),
    ],
)
def test_tags_have_characters_that_statsd_takes(value: str, tag: str) -> None:
    assert statsd_tag(value) == tag


@given(st.text(min_size=1, max_size=200), st.text(min_size=1, max_size=200))
def test_any_tag_is_short_and_long_ones_differ(one: str, other: str) -> None:
    found = statsd_tag(one)
    assert re.fullmatch(r"[A-Za-z0-9_./-]{1,64}", found)
    if len(found) == LONGEST_TAG and len(statsd_tag(other)) == LONGEST_TAG and one != other:
        assert len(one) <= LONGEST_TAG or found != statsd_tag(other)
