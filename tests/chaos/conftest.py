"""What task runs need is where the Airflow tests have it. Figures are printed at the end, passed or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from tests.airflow.conftest import metadata, migrated_database

__all__ = ["Report", "metadata", "migrated_database"]

Report: TypeAlias = Callable[[str], None]

_FIGURES = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_FIGURES] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if figures := config.stash[_FIGURES]:
        terminalreporter.section("figures")
        for line in figures:
            terminalreporter.line(line)


@pytest.fixture
def report(pytestconfig: pytest.Config) -> Report:
    """A function that takes a line for the end of the run."""
    return pytestconfig.stash[_FIGURES].append
