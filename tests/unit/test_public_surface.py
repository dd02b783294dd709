"""What users import from the package itself."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import airflow_provider_jmsjca as package
from airflow_provider_jmsjca import errors
from airflow_provider_jmsjca.transports.base import Connection

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(package.__file__).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", package.__all__)
def test_every_name_is_what_its_module_says(name: str) -> None:
    found = getattr(package, name)
    assert found.__name__ == name
    assert found is getattr(import_module(found.__module__), name)


def test_types_are_told_of_the_same_names() -> None:
    tree = ast.parse(SOURCE)
    imported: dict[str, str] = {}
    for branch in tree.body:
        if isinstance(branch, ast.If):
            for each in ast.walk(branch):
                if isinstance(each, ast.ImportFrom):
                    imported |= {alias.name: str(each.module) for alias in each.names}
    assert imported == {name: f"{package.__name__}.{module}" for name, module in package._MODULE_OF.items()}
    assert sorted(imported) == package.__all__


def test_every_error_is_there() -> None:
    known = {name for name, each in vars(errors).items() if isinstance(each, type) and name.endswith("Error")}
    assert known == {name for name in package.__all__ if name.endswith("Error")}


def test_the_names_are_listed() -> None:
    assert set(package.__all__) <= set(dir(package))
    assert "__version__" in dir(package)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="'airflow_provider_jmsjca' has no attribute 'JmsHok'"):
        _ = package.JmsHok  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="JmsHok"):
        exec("from airflow_provider_jmsjca import JmsHok")  # noqa: S102  # as a user writes it


def test_the_page_of_the_api_shows_every_name() -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"autoclass:: [\w.]+\.(\w+)|autofunction:: [\w.]+\.(\w+)", page))
    named = {one or other for one, other in shown} | set(re.findall(r"`(\w+)`", page))
    assert [name for name in package.__all__ if name not in named and not name.endswith("Error")] == []
    assert "automodule:: airflow_provider_jmsjca.errors" in page
    assert {one or other for one, other in shown} - set(package.__all__) == set()


def test_the_page_of_the_api_shows_what_classes_inherit() -> None:
    """A method counts as public wherever it is written: the page must show it, or its class."""
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    directives = re.findall(r"autoclass:: ([\w.]+)\n((?:   :.*\n)*)", page)
    shown = {name.rpartition(".")[2]: options for name, options in directives if ":members:\n" in options}
    missing = []
    for name in set(shown) - {"Batch"}:  # it needs PySpark
        path = next(path for path, _ in directives if path.endswith(f".{name}"))
        kind = getattr(import_module(path.rpartition(".")[0]), name)
        whole = [each for each in kind.__mro__ if ":inherited-members:" in shown.get(each.__name__, "")]
        missing += [
            f"{name}: {base.__name__}"
            for base in kind.__mro__[1:]
            if base.__module__.startswith(package.__name__)
            and any(not each.startswith("_") for each in vars(base))
            and base.__name__ not in shown
            and not any(issubclass(each, base) for each in whole)
        ]
    assert missing == []


def test_the_page_of_the_api_shows_what_pages_call_of_a_connection() -> None:
    """A `Connection` shows chosen members only."""
    docs = ROOT / "docs"
    page = (docs / "reference" / "api.md").read_text(encoding="utf-8")
    members = page.partition("transports.base.Connection\n")[2].partition(":members:")[2].partition("\n")[0]
    taught = {
        name
        for path in docs.rglob("*.md")
        if path.name != "architecture.md"  # for those who change the package
        for name in re.findall(r"\bconnection\.(\w+)", path.read_text(encoding="utf-8"))
        if hasattr(package.JmsConnection, name) or hasattr(Connection, name)
    }
    assert {"delete_durable", "capabilities"} <= taught
    other_connections = {"session", "consume"}  # of a hook; their pages show every member
    assert taught - other_connections <= {each.strip() for each in members.split(",")}


def test_the_classes_of_redelivery_actions_are_public() -> None:
    text = "1:5; 2:backoff(10,2,100); 3:move(queue:$.dlq)"
    actions = package.RedeliveryHandling.parse(text).actions
    assert [type(each) for each in actions] == [package.Delay, package.GrowingDelay, package.Move]
    assert package.RedeliveryHandling.parse("1:delete").actions == (package.Delete(1),)


def test_the_page_on_the_library_imports_from_the_package_itself() -> None:
    page = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    imported = re.findall(r"^from (airflow_provider_jmsjca\S*) import", page, re.MULTILINE)
    assert len(imported) > 4
    assert set(imported) == {"airflow_provider_jmsjca"}


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import airflow_provider_jmsjca", {"airflow", "pyspark", "stomp", "pydantic", "pyarrow"}),
        (
            "import airflow_provider_jmsjca as p; dir(p)",
            {"airflow", "pyspark", "stomp", "pydantic", "pyarrow"},
        ),
        ("from airflow_provider_jmsjca import Destination, JmsMessage", {"airflow", "pyspark", "stomp"}),
        ("from airflow_provider_jmsjca import ActivationSpec, Activation", {"airflow", "pyspark"}),
        (
            "from airflow_provider_jmsjca import connect, ConnectionSettings, Outgoing, Capabilities",
            {"airflow", "pyspark", "stomp", "sqlalchemy"},
        ),
        (
            "from airflow_provider_jmsjca import GenericDialect, JmsConnection, register_dialect, open_store",
            {"airflow", "pyspark"},
        ),
        ("from airflow_provider_jmsjca import JmsHook", {"pyspark"}),
        ("from airflow_provider_jmsjca import Batch", {"airflow", "stomp"}),
    ],
)
def test_what_an_import_brings_in(statement: str, unwanted: set[str]) -> None:
    script = f"import sys; {statement}; print(*{{each.partition('.')[0] for each in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert unwanted & set(done.stdout.split()) == set()
    assert "airflow_provider_jmsjca" in done.stdout.split()


PARSED = [name for name in package.__all__ if package._MODULE_OF[name].partition(".")[0] in {
    "decorators", "hooks", "notifications", "operators", "sensors", "triggers"
}]  # fmt: skip
PROVIDER = "airflow_provider_jmsjca.queues.jms"


def test_naming_what_a_dag_names_loads_neither_arrow_nor_the_store() -> None:
    """Airflow does that each time it parses a DAG."""
    names = ", ".join(PARSED)
    assert "JmsSensor" in names
    script = f"import sys; from airflow_provider_jmsjca import {names}; print(*sys.modules)"
    loaded = _modules_after(script)
    assert {each for each in loaded if each.partition(".")[0] in {"pyarrow", "numpy", "pandas"}} == set()
    assert {each for each in loaded if each.startswith("airflow_provider_jmsjca.store.sql.")} == set()


def test_naming_a_trigger_a_sensor_or_a_listener_loads_no_module_that_only_runs() -> None:
    """Parsing a DAG costs as little as it can."""
    loaded = _modules_after(
        "import sys; from airflow_provider_jmsjca import JmsActivationTrigger, JmsListenOperator, "
        "JmsPublishOperator, JmsSensor; print(*sys.modules)"
    )
    running = (
        "core.delivery.machine",
        "engine.activations",
        "engine.collecting.claim",
        "engine.delivering.driver",
        "migrate",
        "spool.spool",
        "triggers.producers",
    )
    unwanted = tuple(f"{package.__name__}.{module}" for module in running)
    assert {each for each in loaded if each.startswith(unwanted)} == set()


def test_the_queue_provider_loads_nothing_of_ours_until_its_scheme_matches() -> None:
    """`MessageQueueTrigger` asks each provider, whichever the scheme is."""
    pytest.importorskip("airflow.providers.common.messaging")
    script = (
        f"import sys; from {PROVIDER} import JmsMessageQueueProvider as P; found = P(); "
        "assert not found.queue_matches('kafka://x/y'); assert not found.scheme_matches('kafka'); "
        "print(*sys.modules)"
    )
    # Airflow's providers manager loads what Airflow registers, which needs the table of options.
    rooms = (
        "triggers",
        "hooks",
        "engine",
        "spool",
        "store",
        "transports",
        "core.activation",
        "core.delivery",
    )
    unwanted = tuple(f"{package.__name__}.{room}" for room in rooms)
    assert {each for each in _modules_after(script) if each.startswith(unwanted)} == set()


@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        (
            ("activations", "attempts", "limbo"),
            ("core.activation", "engine", "hooks.jms", "migrate", "spark", "spool", "transports", "triggers"),
        ),
        (
            ("dead_letters", "queues"),
            (
                "core.activation",
                "core.delivery",
                "engine.activations",
                "engine.connecting",
                "engine.delivering",
                "engine.session",
                "migrate",
                "operating.checking",
                "operating.doctor",
                "operating.rejects",
                "spark",
                "spool",
                "store",
                "transports.stomp",
                "triggers",
            ),
        ),
        (
            ("spool",),
            (
                "core.activation",
                "engine",
                "hooks.jms",
                "migrate",
                "operators",
                "store",
                "transports",
                "triggers",
            ),
        ),
        (
            ("doctor",),
            ("core.delivery.machine", "engine.delivering.driver", "migrate", "spark", "triggers.producers"),
        ),
    ],
)
def test_a_list_command_loads_only_the_modules_of_its_list(
    modules: tuple[str, ...], unwanted: tuple[str, ...]
) -> None:
    """A user waits for the imports of each command: it runs in a new process."""
    named = ", ".join(f"{package.__name__}.cli.{each}" for each in modules)
    loaded = _modules_after(f"import sys, {named}; print(*sys.modules)")
    assert f"{package.__name__}.cli.{modules[0]}" in loaded
    assert loaded & {"pyarrow", "stomp"} == set()
    names = {each.removeprefix(f"{package.__name__}.") for each in loaded}
    assert {each for each in names for room in unwanted if f"{each}.".startswith(f"{room}.")} == set()


def _modules_after(script: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.splitlines()[-1].split())


def test_tests_above_unit_import_public_names_from_the_package_and_others_from_one_place() -> None:
    """A moved module then changes `tests/internals` only. The library's wheel is all that a cluster has."""
    tiers = ("contract", "broker", "airflow", "spark", "chaos", "hostile")
    files = [path for tier in tiers for path in (ROOT / "tests" / tier).rglob("*.py")]
    inside = re.compile(r"^\s*(?:from|import) airflow_provider_jmsjca\.", re.MULTILINE)
    assert len(files) > 100
    assert [
        str(path.relative_to(ROOT))
        for path in files
        if inside.search(path.read_text(encoding="utf-8")) and path.name != "library_everywhere.py"
    ] == []
    internals = {
        name: path.stem
        for path in (ROOT / "tests" / "internals").glob("*.py")
        for name in re.findall(r'^    "(\w+)",$', path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert len(internals) > 100
    assert set(internals) & set(package.__all__) == set()
