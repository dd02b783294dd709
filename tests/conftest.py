"""Rules for every test: the folder says the tier, and no test is without one."""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from xdist.scheduler import LoadFileScheduling

from airflow_provider_jmsjca.engine.activations.listener import Listener
from tests.second_run import FAILURES
from tests.servers import short_lived

# The same examples in every run, so that a change is judged by what it changed; `make fuzz` tries new ones.
# No deadline for one example: a busy machine is slow, and pytest-timeout ends what hangs.
hypothesis.settings.register_profile("same", derandomize=True, database=None, deadline=None)
if "JMSJCA_EXAMPLES" not in os.environ:
    hypothesis.settings.load_profile("same")

TIERS = ("unit", "contract", "airflow", "spark", "broker", "hostile", "chaos")
# What takes all the time of a processor, what waits for servers most of the time, and what is soon over.
_WORKING, _WAITING, _SHORT = ("chaos", "spark"), ("airflow", "broker", "hostile", "contract"), ("unit",)
# How much later the short ones begin, in parts of the run. Files that take minutes come first, and some short
# ones last, so that the processes which share the tests end at about the same time.
_LATER = 0.1
_LONG = ("test_triggerer_kill.py", "test_listener_kill.py", "test_held_messages.py", "test_several_dags.py")
# One process runs all of these: each further one would start a Spark of its own.
_ONE_SPARK = "tests/spark/"
pytest_plugins = ["tests.servers.fixtures"]

# A test that has a broker for itself has it to kill it.

ROOT = Path(__file__).parent


@pytest.fixture(scope="session", autouse=True)
def _anywhere() -> None:
    """Spark runs on any machine, and soon."""
    os.environ |= short_lived.spark_environment()
    os.environ |= short_lived.options()


@pytest.fixture(scope="session", autouse=True)
def _started() -> Iterator[weakref.WeakSet[Listener]]:
    """Every activation that a test has started."""
    known: weakref.WeakSet[Listener] = weakref.WeakSet()
    start = Listener.start

    @functools.wraps(start)
    def noted(activation: Listener) -> None:
        known.add(activation)
        start(activation)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Listener, "start", noted)
        yield known


@pytest.fixture(autouse=True)
def _none_goes_on(_started: weakref.WeakSet[Listener]) -> Iterator[None]:
    """What a test that failed has left running doesn't disturb the next ones."""
    yield
    for activation in list(_started):
        if activation.running:
            activation.stop(0)
    _started.clear()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        tier = _tier(item.path)
        if tier not in TIERS:
            raise pytest.UsageError(f"{item.nodeid}: a test lives in one of tests/{{{','.join(TIERS)}}}")
        item.add_marker(getattr(pytest.mark, tier))
    places = _places({item.path for item in items})
    items.sort(key=lambda item: places[item.path])


def _tier(file: Path) -> str:
    return file.relative_to(ROOT).parts[0]


def _places(files: set[Path]) -> dict[Path, tuple[bool, float, Path]]:
    """Return where in the run each file stands: what works, what waits and what is short are spread over it.

    While one process waits another has the processor.
    """
    places = {}
    for tiers, later in ((_WORKING, 0.0), (_WAITING, 0.0), (_SHORT, _LATER)):
        these = [file for file in files if _tier(file) in tiers]
        these.sort(key=lambda file: (tiers.index(_tier(file)), file))
        for at, file in enumerate(these):
            is_long = file.name in _LONG or _tier(file) == "spark"
            places[file] = (not is_long, later + at / len(these), file)
    return places


class _Files(LoadFileScheduling):
    """Each file goes to one process, and those that share a Spark to the same one."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return _ONE_SPARK if file.startswith(_ONE_SPARK) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling | None:
    return _Files(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell `tests.second_run` what failed."""
    if FAILURES not in os.environ:
        return
    reports = [each for kind in ("failed", "error") for each in terminalreporter.stats.get(kind, ())]
    failed = sorted({each.nodeid for each in reports})
    Path(os.environ[FAILURES]).write_text("\n".join(failed), encoding="utf-8")
