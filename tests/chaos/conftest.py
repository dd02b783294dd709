"""What task runs need is where the Airflow tests have it. Figures are printed at the end, passed or not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import pytest

from tests.airflow.conftest import metadata, migrated_database

__all__ = ["Report", "metadata", "migrated_database"]

Report: TypeAlias = Callable[[str], None]

_FIGURE = "figure"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # They come with the reports, which is how they leave the process that ran the test.
    reports = [
        each
        for outcome in ("passed", "failed")
        for each in terminalreporter.stats.get(outcome, ())
        if each.when == "call"
    ]
    figures = [line for each in reports for name, line in each.user_properties if name == _FIGURE]
    if figures:
        terminalreporter.section("figures")
        for line in figures:
            terminalreporter.line(line)


@pytest.fixture
def report(record_property: Callable[[str, object], None]) -> Report:
    """A function that takes a line for the end of the run."""
    return partial(record_property, _FIGURE)
