"""The dashboard and the alert rules name metrics that exist, with tags that these have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_jmsjca.core.metrics import BY_NAME, METRICS, MetricKind

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "production"
SELECTED = re.compile(
    r'\{__name__=~"\(airflow_\)\?jms_(?P<name>[a-z_]+?)(?P<counter>\(_total\)\?)?"(?P<more>[^}]*)\}'
)
GROUPED = re.compile(r"\bby \((?P<tags>[a-z, ]+)\)")


def expressions() -> Iterator[tuple[str, str]]:
    """Yield name and expression of each alert and each panel."""
    rules: Any = yaml.safe_load((FOLDER / "monitoring" / "alerts.yml").read_text(encoding="utf-8"))
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    board = json.loads((FOLDER / "monitoring" / "dashboard.json").read_text(encoding="utf-8"))
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"]


ALL = dict(expressions())


@pytest.mark.parametrize("title", ALL)
def test_an_expression_names_metrics_of_the_table(title: str) -> None:
    expression = ALL[title]
    found = list(SELECTED.finditer(expression))
    assert found
    assert expression.count("jms_") == len(found), "a metric is named in another form"
    grouped = {tag for each in GROUPED.findall(expression) for tag in each.split(", ")}
    for match in found:
        metric = BY_NAME[match["name"]]
        assert bool(match["counter"]) == (metric.kind is MetricKind.COUNTER)
        assert grouped <= set(metric.tags)
    for counted in re.findall(r"\b(?:rate|increase)\(\{[^}]*jms_([a-z_]+?)(?:\(_total\)\?)?\"", expression):
        assert BY_NAME[counted].kind is MetricKind.COUNTER, "only a counter has a rate"


def test_every_metric_is_on_the_dashboard() -> None:
    board = (FOLDER / "monitoring" / "dashboard.json").read_text(encoding="utf-8")
    assert [each.name for each in METRICS if f"jms_{each.name}" not in board] == []


def test_alerts_say_what_to_do() -> None:
    rules: Any = yaml.safe_load((FOLDER / "monitoring" / "alerts.yml").read_text(encoding="utf-8"))
    found = [rule for group in rules["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in found}) == len(found)
    for rule in found:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        assert set(rule["annotations"]) == {"summary", "description"}
        grouped = {tag for each in GROUPED.findall(rule["expr"]) for tag in each.split(", ")}
        assert set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) <= grouped
    page = (FOLDER / "monitoring.md").read_text(encoding="utf-8")
    assert [rule["alert"] for rule in found if f"`{rule['alert']}`" not in page] == []


def test_panels_have_places_of_their_own() -> None:
    board = json.loads((FOLDER / "monitoring" / "dashboard.json").read_text(encoding="utf-8"))
    places = [(each["gridPos"]["x"], each["gridPos"]["y"]) for each in board["panels"]]
    assert len(set(places)) == len(places)
    assert len({each["id"] for each in board["panels"]}) == len(places)
    assert all(each["gridPos"]["x"] + each["gridPos"]["w"] <= 24 for each in board["panels"])
