"""Plots of the page."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree as ET

from airflow_provider_jmsjca.page.plots import plot

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


def drawn(*values: float | None) -> str:
    points = [(NOON + timedelta(minutes=number), value) for number, value in enumerate(values)]
    return str(plot("Backlog <b>", points, NOON, NOON + timedelta(minutes=60)))


def lines(text: str) -> list[str]:
    return re.findall(r'points="([^"]*)"', text)


def test_values_are_scaled_between_the_edges() -> None:
    # 720 wide with 60 and 8 at the sides, 120 high with 8 above and 20 below.
    assert lines(drawn(0, 5, 10)) == ["60.0,100.0 70.9,54.0 81.7,8.0"]


def test_what_is_not_known_leaves_a_gap() -> None:
    assert len(lines(drawn(1, None, None, 2, 3))) == 2


def test_the_title_tells_since_when_no_value_is_known() -> None:
    def title(*values: float | None) -> str | None:
        return ET.fromstring(drawn(*values)).findtext("figcaption")  # noqa: S314 - our own

    assert title(1, 2, None) == "Backlog <b>; no value since 12:01"
    assert title(*(1 for _ in range(59))) == "Backlog <b>"
    assert title() == "Backlog <b>"


def test_a_single_value_is_seen() -> None:
    assert lines(drawn(4)) == ["60.0,8.0 60.0,8.0"]


def test_nothing_and_zeros_are_plotted_too() -> None:
    assert lines(drawn()) == []
    assert lines(drawn(0, 0)) == ["60.0,100.0 70.9,100.0"]


def test_it_is_well_formed_and_the_title_is_no_markup() -> None:
    root = ET.fromstring(drawn(1, 2))  # noqa: S314 - our own
    assert (root.findtext("figcaption") or "").startswith("Backlog <b>")
    assert "style" not in drawn(1, 2)
