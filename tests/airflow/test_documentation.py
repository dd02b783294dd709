"""Every block of README, CONTRIBUTING and the pages is run or parsed, by what a reader would hand it to."""

from __future__ import annotations

import configparser
import contextlib
import io
import json
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.cli import cli_parser
from airflow.configuration import conf
from airflow.dag_processing.dagbag import DagBag
from airflow.models.connection import Connection
from airflow.utils.session import create_session
from sqlalchemy import select, update

from airflow_provider_jmsjca import (
    Activation,
    ActivationSpec,
    ConfigurationError,
    ConnectionSettings,
    Destination,
    JmsHook,
    JmsMessage,
    JmsNotifier,
    Manifest,
    MemoryBroker,
    Outgoing,
    RedeliveryHandling,
    Selector,
    Subscription,
    connect,
    memory_broker,
)
from tests.airflow.conftest import Publish
from tests.airflow.task_runs import serialized
from tests.bench.__main__ import parser as bench_parser
from tests.docs.blocks import Block, blocks, inline_code
from tests.docs.conformance import catalogue
from tests.docs.walks import WALKS
from tests.internals.assets import JmsBatchRunFacet
from tests.internals.plugins import task_state
from tests.internals.spool import path_to_uri
from tests.servers.__main__ import _parser as servers_parser

ROOT = Path(__file__).parents[2]
BLOCKS = blocks(ROOT)
PYTHON = [block for block in BLOCKS if block.language == "python"]

NOT_RUN = {
    ("docs/tutorial.md", "sh"): "tests/spark/test_tutorial.py runs it",
    ("docs/tutorial.md", "python"): "tests/spark/test_tutorial.py runs it, on a real broker and Airflow",
    ("docs/library.md", "python"): "tests/unit/docs/test_library_page.py runs it, and checks what it prints",
    (
        "docs/how-to/own-triggers.md",
        "python",
    ): "tests/airflow/hooks/test_async_jms.py runs it on real brokers",
    ("docs/how-to/spark-jobs.md", "python"): "tests/spark/test_documentation.py runs its jobs in Spark",
    ("docs/how-to/spark-tables.md", "python"): "tests/spark/test_documentation.py runs its jobs in Spark",
    ("docs/how-to/spark-sources.md", "python"): "tests/spark/test_documentation.py runs it on a real broker",
    ("docs/how-to/dead-letters.md", "java"): "tests/broker/test_java_programs.py runs it on a real broker",
    ("docs/migrate/weblogic.md", "java"): "tests/broker/test_java_programs.py runs it on a real broker",
    ("docs/how-to/broker-limits.md", "xml"): "tests/broker/test_broker_recipes.py gives it to the brokers",
    ("docs/how-to/broker-limits.md", "console"): "tests/broker/test_broker_recipes.py runs it",
    ("docs/reference/redelivery.md", "text"): "a grammar",
    ("docs/production/monitoring.md", "text"): "settings of Airflow itself",
    ("docs/how-to/state-messages.md", "ini"): "tests/airflow/plugins/test_state_messages.py sets both",
}
"""Kinds of blocks of a page that aren't run here, and where they are run or why they can't be. DAGs are read
by Airflow all the same."""
RUN = {"python", "console", "xml", "json", "yaml", "ini", "properties", ""}
"""Languages that a test below takes."""
IMPORTS = [block for block in BLOCKS if block.text.startswith("$ airflow jms import ")]
"""Each takes the files that the page shows before it, and its output follows."""


def of(language: str) -> list[Any]:
    return [
        pytest.param(block, id=str(block))
        for block in BLOCKS
        if block.language == language and (block.page, language) not in NOT_RUN
    ]


def test_no_block_is_left_out() -> None:
    kinds = {(block.page, block.language) for block in BLOCKS}
    assert {kind for kind in kinds if kind[1] not in RUN} <= {*NOT_RUN}
    assert {*NOT_RUN} <= kinds
    elsewhere = [word for why in NOT_RUN.values() for word in why.replace(",", " ").split() if "/" in word]
    assert [path for path in elsewhere if not (ROOT / path).exists()] == []


@pytest.fixture(autouse=True)
def _environment_as_before() -> Iterator[None]:
    """What a page sets is gone after it."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.parametrize(
    "block", [pytest.param(block, id=str(block)) for block in PYTHON if "DAG(" in block.text]
)
def test_airflow_reads_the_dags(block: Block, tmp_path: Path) -> None:
    save_dag(block, tmp_path)

    bag = DagBag(tmp_path, safe_mode=False, bundle_path=tmp_path, bundle_name="documentation")

    assert bag.import_errors == {}
    assert bag.dags
    assert all(dag.tasks for dag in bag.dags.values())


@pytest.mark.usefixtures("metadata")
# The scheduler's side loads half of Airflow, whose dependencies warn about each other.
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "block", [pytest.param(block, id=str(block)) for block in PYTHON if '"@continuous"' in block.text]
)
def test_a_dag_that_is_always_on_is_started_again(block: Block, tmp_path: Path) -> None:
    """Without a start date Airflow's scheduler takes the second run for the first and never starts it."""
    save_dag(block, tmp_path)
    bag = DagBag(tmp_path, safe_mode=False, bundle_path=tmp_path, bundle_name="documentation")
    for dag in bag.dags.values():
        serialized(dag)

        assert [scheduled_runs(dag.dag_id) for _ in range(3)] == [["scheduled"]] * 3


def save_dag(block: Block, folder: Path) -> None:
    """Save a DAG of a page as its reader does, with the file that it reads."""
    (folder / "documented.py").write_text(block.text, encoding="utf-8")
    if "orders.yaml" in block.text:
        save_imported_spec(folder)


def scheduled_runs(dag_id: str) -> Any:
    """Return the types of the runs that Airflow's scheduler makes now; they end at once."""
    from airflow.jobs.job import Job  # noqa: PLC0415 - the scheduler's side takes long to load
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner  # noqa: PLC0415
    from airflow.models.dag import DagModel  # noqa: PLC0415
    from airflow.models.dagrun import DagRun  # noqa: PLC0415

    with create_session() as session:
        before = set(session.scalars(select(DagRun.id)))
        model = session.get(DagModel, dag_id)
        scheduler = SchedulerJobRunner(job=Job())
        scheduler._create_dag_runs([model], session=session)
        session.flush()
        made = session.scalars(select(DagRun.run_type).where(DagRun.id.not_in(before))).all()
        session.execute(update(DagRun).values(state="success"))
        scheduler._set_exceeds_max_active_runs(dag_model=model, session=session)
    return made


PREPARED: dict[str, Callable[[], None]] = {}
FINISHED: dict[str, Callable[[dict[str, Any]], None]] = {}


@pytest.mark.usefixtures("metadata")
@pytest.mark.parametrize("page", sorted({block.page for block in PYTHON} - {page for page, _ in NOT_RUN}))
def test_the_python_of_a_page_runs_from_top_to_bottom(
    page: str, server: MemoryBroker, publish: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_JMS_DEFAULT", json.dumps({"conn_type": "jms", "host": f"vm://{server.name}"})
    )
    monkeypatch.setenv("AIRFLOW__JMSJCA__SPOOL_PATH", str(tmp_path / "spool"))
    monkeypatch.setattr("airflow.settings.DAGS_FOLDER", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    publish("one", "two")
    names: dict[str, Any] = {"store_order": print, "__name__": "documented"}
    PREPARED.get(page, lambda: None)()
    for block in PYTHON:
        if block.page == page:
            saved = tmp_path / f"{Path(page).stem}_{block.line}.py"  # Airflow reads a DAG's file again
            saved.write_text(block.text, encoding="utf-8")
            # A name that a page hasn't defined by then is an error, as it would be for the reader.
            names["__file__"] = str(saved)
            exec(compile(block.text, saved, "exec"), names)  # noqa: S102 - our own pages
    FINISHED.get(page, lambda _: None)(names)


def page_is(page: str, table: dict[str, Any]) -> Callable[[Any], Any]:
    return lambda function: table.setdefault(page, function)


@page_is("docs/migrate/weblogic.md", PREPARED)
def the_imported_spec_is_saved() -> None:
    save_imported_spec(Path.cwd())


def save_imported_spec(folder: Path) -> None:
    (shown,) = (block for block in BLOCKS if block.text.startswith("$ airflow jms import ejb-jar.xml"))
    text = "".join(line for line in shown.printed.splitlines(keepends=True) if not line.startswith("note: "))
    (folder / "orders.yaml").write_text(text, encoding="utf-8")


@page_is("docs/migrate/index.md", FINISHED)
def runs_are_ended(names: dict[str, Any]) -> None:
    """Airflow's API is played here; the script was tried with a real one."""
    asked: list[tuple[str, str, str | None, bytes]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(
            (
                request.method,
                request.url.raw_path.decode(),
                request.headers.get("Authorization"),
                request.content,
            )
        )
        runs = [{"dag_run_id": "manual__2026-01-01T00:00:00+00:00"}]
        return httpx.Response(200, json={"access_token": "t", "dag_runs": runs})

    client = partial(httpx.Client, transport=httpx.MockTransport(answer))
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
        patch.setenv("AIRFLOW_USER", "somebody")
        patch.setenv("AIRFLOW_PASSWORD", "secret")
        patch.setattr(names["httpx"], "Client", client)
        names["stop"]("orders")
    runs = "/api/v2/dags/orders/dagRuns"
    assert [(method, path, token) for method, path, token, _ in asked] == [
        ("POST", "/auth/token", None),
        ("PATCH", "/api/v2/dags/orders", "Bearer t"),
        ("GET", f"{runs}?state=running", "Bearer t"),
        ("PATCH", f"{runs}/manual__2026-01-01T00%3A00%3A00%2B00%3A00", "Bearer t"),
    ]
    assert json.loads(asked[0][3]) == {"username": "somebody", "password": "secret"}
    assert json.loads(asked[1][3]) == {"is_paused": True}
    assert json.loads(asked[3][3]) == {"state": "failed"}


@page_is("docs/production/checklist.md", FINISHED)
def a_rehearsal_is_counted(names: dict[str, Any]) -> None:
    connection = connect(JmsHook("jms_default").settings())
    dead = Outgoing(destination=Destination.queue("rehearsed.dlq"), message=JmsMessage.text("bad"))
    left = Outgoing(destination=Destination.queue("rehearsed"), message=JmsMessage.text("{}"))
    connection.send([dead, left, left])
    connection.close()
    for batch, ids in (("one", [1, 2]), ("two", [3])):
        folder = Path("table") / f"jms_batch_id={batch}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"id": ids}), folder / "part-0.parquet")
    (Path("table") / "_staging").mkdir()
    arguments = {"table": "table", "queue": "queue://rehearsed"}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert names["count"](6, **arguments)
        assert not names["count"](7, **arguments)
    assert "6 sent = 3 stored + 1 dead letters + 2 left?\nstored twice: []\n" in printed.getvalue()
    pq.write_table(pa.table({"id": [3]}), folder / "part-1.parquet")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert names["count"](6, **arguments)
    assert "twice: [3]" in printed.getvalue()


@page_is("docs/how-to/topics.md", PREPARED)
def somebody_has_subscribed() -> None:
    settings: ConnectionSettings = JmsHook("jms_default").settings()
    connection = connect(replace(settings, client_id="risk-desk"))
    prices = Subscription(destination=Destination.topic("prices"), durable_name="risk")
    connection.consume(prices, lambda _: None)
    connection.close()


@page_is("docs/quickstart.md", FINISHED)
def a_message_is_moved(names: dict[str, Any]) -> None:
    names["move_one"]()
    (server,) = (host for host, _ in JmsHook("jms_default").settings().hosts)
    assert [message.body for message in memory_broker(server).messages("archive")] == ["one"]


@page_is("docs/how-to/test.md", FINISHED)
def the_test_passes(names: dict[str, Any]) -> None:
    names["test_it_sends_an_order"]()
    names["test_it_books_the_good_order"]()


@page_is("docs/how-to/dead-letters.md", FINISHED)
def one_order_is_mended_and_sent_back(names: dict[str, Any]) -> None:
    settings: ConnectionSettings = JmsHook("jms_default").settings()
    dead = Destination.queue("orders.dlq")
    (server,) = (host for host, _ in settings.hosts)
    before = len(memory_broker(server).messages("orders"))
    connection = connect(settings)
    connection.send(
        Outgoing(
            destination=dead,
            message=JmsMessage.text(
                '{"id": 7, "amount": "much"}',
                properties={"JMS_Sun_JMSJCA_OriginalJMSMessageID": identifier, "region": "eu"},
                correlation_id="c",
                type="order",
            ),
        )
        for identifier in ("ID:broker-1:4710", "ID:broker-1:4711", "ID:broker-1:4712")
    )
    connection.close()
    (selector,) = re.findall(
        r'message_selector="(.*)"', (ROOT / "docs/how-to/dead-letters.md").read_text("utf-8")
    )
    spec = {"destination": str(dead), "message_selector": selector}
    Activation(spec, names["correct"].function, connection=settings).run(max_messages=1)
    (mended,) = memory_broker(server).messages("orders")[before:]
    assert mended.body == '{"id": 7, "amount": 12.5}'
    assert (mended.properties["region"], mended.correlation_id, mended.type) == ("eu", "c", "order")
    assert len(memory_broker(server).messages("orders.dlq")) == 2


@pytest.mark.parametrize(
    ("block", "command"),
    [
        pytest.param(block, command, id=f"{block}-{number}")
        for block in BLOCKS
        if block.language == "console" and (block.page, "console") not in NOT_RUN
        for number, command in enumerate(block.commands)
    ],
)
def test_a_command_is_understood(block: Block, command: str) -> None:
    understood(command, block)


INLINE = [
    (page, code)
    for page, code in sorted(inline_code(ROOT))
    if re.match(r"(airflow|make|pip|python -m tests\S*) \S|python -m tests\S*$", code)
]


@pytest.mark.parametrize(("page", "command"), INLINE)
def test_a_command_within_a_sentence_is_understood(page: str, command: str) -> None:
    block = Block(page=page, line=0, language="console", text="", saved_as=None)
    understood(command, block, named_only=True)


def understood(  # noqa: C901, PLR0912 - one case for each program
    command: str, block: Block, *, named_only: bool = False
) -> None:
    """Parse a command as the program does that it is for.

    Args:
        named_only: The command may lack its arguments.
    """
    match shlex.split(command):
        case ["airflow", *arguments]:
            with contextlib.suppress(SystemExit):
                cli_parser.get_parser().parse_args(arguments)
                return
            assert named_only, f"{block}: airflow doesn't take {command!r}"
            with pytest.raises(SystemExit, match=r"^0$"):
                cli_parser.get_parser().parse_args([*arguments, "--help"])
        case ["make", target, *_]:
            assert f"\n{target}:" in (ROOT / "Makefile").read_text(encoding="utf-8")
        case ["pip", "install", package]:
            extra = package.partition("[")[2].removesuffix("]")
            project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
            assert extra in project["optional-dependencies"]
            assert package.startswith((".", project["name"]))
        case ["pip", "install", "--no-deps", package]:
            assert package == "."
        case ["pip", "install", *packages]:
            written = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
            of_tests = [each for each in written["dependency-groups"]["dev"] if isinstance(each, str)]
            needed = [*written["project"]["dependencies"], *of_tests]
            assert {*packages} <= {*needed, *(each.partition(">=")[0] for each in needed)}
        case ["export", setting]:
            is_a_setting(*setting.split("=", 1))
        case ["python", "-m", "tests.servers", *arguments]:
            servers_parser().parse_args(arguments)
        case ["python", "-m", "tests.bench", *arguments]:
            bench_parser().parse_args(arguments)
        case ["python", "-m", ("tests.bench.documents" as module), "FOLDER"]:
            assert (ROOT / Path(*module.split(".")) / "__main__.py").exists()
        case ["python", "-m", module] if module.startswith("tests."):
            path = ROOT / Path(*module.split("."))
            assert path.exists() or path.with_suffix(".py").exists()
        case ["python", "-m", "tests.docs.walks", walk]:
            assert walk in WALKS
        case ["python", "-m", "tests.docs", number]:
            assert number in catalogue(ROOT)
        case ["python", "-m", "pytest", file] | ["python" | "source", file]:
            assert file in {each.saved_as for each in blocks(ROOT, block.page)} | {".venv/bin/activate"}
        case _:
            pytest.fail(f"{block}: nothing checks {command!r}")


def is_a_setting(name: str, value: str) -> None:
    """Check what an environment variable of Airflow holds."""
    if name.startswith("AIRFLOW_CONN_"):
        is_a_connection(value)
    elif option := re.fullmatch("AIRFLOW__([A-Z_]+?)__([A-Z_]+)", name):
        assert conf.has_option(option[1].lower(), option[2].lower()), name
    else:
        assert name == "AIRFLOW_HOME"


def is_a_connection(value: str) -> None:
    connection = Connection.from_json(value, conn_id="documented")
    if connection.conn_type == "spark":
        assert connection.host
        return
    assert connection.conn_type == "jms"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_CONN_DOCUMENTED", value)
        settings = JmsHook("documented").settings()
    assert settings.username == connection.login
    assert all(port for _, port in settings.hosts)


def test_descriptors_become_what_the_page_prints_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "client")
    descriptors = [
        block.text
        for block in BLOCKS
        if block.page in {command.page for command in IMPORTS} and block.language in {"xml", "properties"}
    ]
    for command in IMPORTS:
        arguments = command.commands[0].split()[1:]
        for name in arguments[2:]:
            Path(name).write_text(descriptors.pop(0), encoding="utf-8")
        parsed = cli_parser.get_parser().parse_args(arguments)
        parsed.func(parsed)
        said = capsys.readouterr()
        notes = [line for line in said.err.splitlines(keepends=True) if line.startswith("note: ")]
        assert said.out + "".join(notes) == command.printed
    assert descriptors == []


@pytest.mark.usefixtures("metadata")
def test_explain_prints_what_the_page_on_levels_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "client")
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("AIRFLOW__JMSJCA__PREFETCH", "100")
    monkeypatch.setenv("AIRFLOW__JMSJCA__CONNECT_TIMEOUT", "10")
    connection = {
        "host": "stomp://broker:61613",
        "login": "app",
        "password": "secret",
        "extra": {"prefetch": 500},
    }
    monkeypatch.setenv("AIRFLOW_CONN_JMS_DEFAULT", json.dumps({"conn_type": "jms", **connection}))
    Path("orders.yaml").write_text("destination: queue://orders\nprefetch: 50\n", encoding="utf-8")
    (shown,) = blocks(ROOT, "docs/concepts/configuration.md")
    parsed = cli_parser.get_parser().parse_args(shown.commands[0].split()[1:])

    parsed.func(parsed)

    assert rows_of(capsys.readouterr().out) == rows_of(shown.printed)


def rows_of(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")] for line in table.splitlines() if "|" in line]


@pytest.mark.parametrize("block", of("yaml"))
def test_a_spec_in_yaml_is_a_spec(block: Block) -> None:
    assert ActivationSpec.from_yaml(block.text).destination


@pytest.mark.parametrize("block", of("ini"))
def test_lines_for_the_section_are_looked_up(block: Block) -> None:
    parser = configparser.ConfigParser(delimiters=("=",))
    parser.read_string(f"[jmsjca]\n{block.text}")
    for option, value in parser["jmsjca"].items():
        assert option.startswith("destination.")
        assert str(Destination.parse(value)) == value


@pytest.mark.parametrize(
    "block",
    [each for each in of("properties") if each.values[0].page not in {block.page for block in IMPORTS}],
)
def test_properties_of_java_mean_what_the_spec_after_them_says(block: Block) -> None:
    after = next(each for each in PYTHON if each.page == block.page and each.line > block.line)
    names: dict[str, Any] = {}
    exec(compile(after.text, str(after), "exec"), names)  # noqa: S102 - our own pages
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(f"[all]\n{block.text}")
    spec = names["spec"]
    assert ActivationSpec(**parser["all"], destination=spec.destination) == spec


@pytest.mark.parametrize("block", of(""))
def test_a_redelivery_handling_is_one_and_an_error_is_what_is_said(block: Block) -> None:
    wrong: dict[str, Callable[[], object]] = {
        "redelivery handling": lambda: RedeliveryHandling.parse("5:10; 5:20; 7:destroy"),
        "message selector": lambda: Selector.parse("amount == 100"),
    }
    if (source := wrong.get(block.text.partition(",")[0])) is None:
        assert RedeliveryHandling.parse(block.text.strip())
        return
    with pytest.raises(ConfigurationError) as found:
        source()
    shown = " ".join(block.text.split())  # the page breaks lines, and leaves out the end where it says "..."
    assert " ".join(str(found.value).split()).startswith(shown.removesuffix(" ..."))


def is_a_manifest(text: str, folder: Path) -> None:
    shown = json.loads(text)
    file = folder / shown["batch_id"] / "manifest.json"
    file.parent.mkdir()
    file.write_text(text.replace("…64 hexadecimal digits…", "0" * 64), encoding="utf-8")
    assert Manifest.read(path_to_uri(file)).rows == shown["rows"]


def is_what_a_notifier_says(text: str, _: Path) -> None:
    shown = json.loads(text)
    assert JmsNotifier.__doc__ is not None
    assert {*shown} <= {*re.findall(r"`(\w+)`", JmsNotifier.__doc__)}


def is_a_state_message(text: str, _: Path) -> None:
    assert {*json.loads(text)} == {*task_state(SimpleNamespace(), "failed", "running")}


JSON: dict[str, Callable[[str, Path], Any]] = {
    "docs/how-to/state-messages.md": is_a_state_message,
    "docs/reference/spool.md": is_a_manifest,
    "docs/how-to/notifications.md": is_what_a_notifier_says,
    "docs/how-to/lineage.md": lambda text, _: JmsBatchRunFacet(**json.loads(text)),
}


@pytest.mark.parametrize("block", of("json"))
def test_json_is_what_it_is_said_to_be(block: Block, tmp_path: Path) -> None:
    JSON[block.page](block.text, tmp_path)
