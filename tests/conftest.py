"""Rules for every test: the folder says the tier, and no test is without one."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest

from tests.second_run import FAILURES
from tests.servers import short_lived

# The same examples in every run, so that a change is judged by what it changed; `make fuzz` tries new ones.
# No deadline for one example: a busy machine is slow, and pytest-timeout ends what hangs.
hypothesis.settings.register_profile("same", derandomize=True, database=None, deadline=None)
if "JMSJCA_EXAMPLES" not in os.environ:
    hypothesis.settings.load_profile("same")

TIERS = ("unit", "contract", "airflow", "spark", "broker", "hostile", "chaos")
# The longest first, so that the processes which share the tests end at about the same time.
_ORDER = ("chaos", "spark", "airflow", "broker", "contract", "hostile", "unit")
pytest_plugins = ["tests.servers.fixtures"]

# A test that has a broker for itself has it to kill it.

ROOT = Path(__file__).parent


@pytest.fixture(scope="session", autouse=True)
def _anywhere() -> None:
    """Spark runs on any machine, and soon."""
    os.environ |= short_lived.spark_environment()
    os.environ |= short_lived.options()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        tier = item.path.relative_to(ROOT).parts[0]
        if tier not in TIERS:
            raise pytest.UsageError(f"{item.nodeid}: a test lives in one of tests/{{{','.join(TIERS)}}}")
        item.add_marker(getattr(pytest.mark, tier))
    items.sort(key=lambda item: _ORDER.index(item.path.relative_to(ROOT).parts[0]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell `tests.second_run` what failed."""
    if FAILURES not in os.environ:
        return
    reports = [each for kind in ("failed", "error") for each in terminalreporter.stats.get(kind, ())]
    failed = sorted({each.nodeid for each in reports})
    Path(os.environ[FAILURES]).write_text("\n".join(failed), encoding="utf-8")
