"""What is wrong is said in one line, with the way out, and the messages stay on the queue."""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException
from airflow.utils.state import TaskInstanceState

from airflow_provider_jmsjca import (
    JmsCollectOperator,
    JmsPublishOperator,
    JmsToSparkSubmitOperator,
    MemoryBroker,
)
from tests.airflow.task_runs import Outcome, run_task
from tests.internals.hooks import spark_submit_hook
from tests.internals.spool import count_rows

Publish = Callable[..., None]
Change = Callable[..., None]
pytestmark = [
    pytest.mark.usefixtures("metadata"),
    # A task run loads half of Airflow, whose dependencies warn about each other.
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]
SECRET = "Tr0ub4dor"  # what must not be shown
ROOT = Path(__file__).parents[2]


class Failing:
    """Runs tasks that fail, and keeps what the user reads."""

    def __init__(self, spool: Path) -> None:
        self.spool = spool
        self.said = ""

    def run(self, operator: type[BaseOperator], dag_id: str | None = None, **arguments: Any) -> Outcome:
        outcome = run_task(
            lambda: operator(task_id="task", on_failure_callback=self._note, **arguments), dag_id
        )
        assert outcome.state == TaskInstanceState.FAILED
        assert "\n" not in self.said
        assert SECRET not in self.said
        return outcome

    def collect(self, operator: type[BaseOperator] = JmsCollectOperator, **arguments: Any) -> Outcome:
        given = {
            "jms_conn_id": "jms_test",
            "destination": "orders",
            "spool_path": str(self.spool),
            "idle_time": 0.3,
        }
        return self.run(operator, **{**given, **arguments})

    def _note(self, context: Any) -> None:
        self.said = str(context["exception"])


@pytest.fixture
def failing(tmp_path: Path) -> Failing:
    return Failing(tmp_path / "spool")


@pytest.fixture
def change(server: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> Change:
    """Change the Airflow connection that leads to the in-memory broker."""

    def changed(**fields: Any) -> None:
        document = {"conn_type": "jms", "host": f"vm://{server.name}", **fields}
        monkeypatch.setenv("AIRFLOW_CONN_JMS_TEST", json.dumps(document))

    return changed


def test_an_unreachable_broker(change: Change, failing: Failing) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    change(host="127.0.0.1", port=port, login="app", password=SECRET)
    failing.collect(max_time=0.5, retries=0)
    assert f"stomp://127.0.0.1:{port}: Connection refused" in failing.said
    assert "continues with the next attempt" in failing.said


@pytest.mark.parametrize(
    "faulty",
    [
        ({"login": "app", "password": SECRET}, "'app'"),
        ({"extra": '{"client_id": '}, "connection 'jms_test': extra is not JSON: Expecting value at line 1"),
        ({"extra": {"clint_id": "x"}}, "did you mean client_id?"),
        ({"host": "stmp://broker"}, "no transport for scheme 'stmp' (did you mean 'stomp'?)"),
    ],
)
def test_a_faulty_connection_is_not_tried_again(
    server: MemoryBroker,
    publish: Publish,
    change: Change,
    failing: Failing,
    faulty: tuple[dict[str, Any], str],
) -> None:
    fields, expected = faulty
    publish("a")
    if "password" in fields:
        server.require_login("app", "right")
    change(**fields)
    outcome = failing.collect(retries=3)
    assert expected in failing.said
    assert outcome.run.get_task_instance("task").try_number == 1
    assert server.depth("orders") == 1


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        (JmsCollectOperator, {}),
        (JmsToSparkSubmitOperator, {}),
        (JmsToSparkSubmitOperator, {"destination": "orders", "dead_letter_destination": "queu://orders"}),
    ],
)
def test_an_unknown_destination_type(
    server: MemoryBroker,
    publish: Publish,
    failing: Failing,
    operator: type[BaseOperator],
    arguments: dict[str, str],
) -> None:
    publish("a")
    failing.collect(operator, retries=3, **{"destination": "queu://orders", **arguments})
    assert "'queu://orders': no destination type 'queu' (did you mean 'queue'?)" in failing.said
    assert "expected queue://name, topic://name" in failing.said
    assert server.depth("orders") == 1


@pytest.mark.usefixtures("server")
def test_nothing_is_published_to_an_unknown_destination_type(failing: Failing) -> None:
    failing.run(JmsPublishOperator, jms_conn_id="jms_test", destination="topik://prices", messages=["a"])
    assert "no destination type 'topik' (did you mean 'topic'?)" in failing.said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"delay": -5}, "delay is -5; expected seconds of at least 0, or None for no delay"),
        ({"delay": math.nan}, "delay is nan; expected seconds of at least 0, or None for no delay"),
        ({"delay": "soon"}, "delay is 'soon'; expected seconds of at least 0, or None for no delay"),
        ({"priority": 10}, "priority is 10; expected a whole number from 0 to 9"),
        ({"priority": "4.5"}, "priority is 4.5; expected a whole number from 0 to 9"),
        ({"priority": True}, "priority is True; expected a whole number from 0 to 9"),
        (
            {"time_to_live": 0},
            "time_to_live is 0; expected seconds above 0, or None for messages that never expire",
        ),
        (
            {"reply_to": "queu://a"},
            "reply_to is 'queu://a': destination 'queu://a': no destination type 'queu' (did you mean",
        ),
        (
            {"messages": [{1, 2}]},
            "messages[0]: a set can't be sent as a message (Object of type set is not JSON serializable)",
        ),
        (
            {"messages": None},
            "messages: None is not a message; does the upstream task return its value?",
        ),
        (
            {"messages": [{"x": math.nan}]},
            "messages[0]: a dict can't be sent as a message (Out of range float values are not",
        ),
        ({"messages": [{"body_kind": "text"}]}, "messages[0]: message, version: value None: expected 1"),
        ({"correlation_id": ["c"]}, "correlation_id is ['c'], of type list; expected text"),
        (
            {"properties": ["region"]},
            "properties is a list; expected a mapping of names to values, such as {'region': 'eu'}",
        ),
    ],
)
def test_nothing_is_published_with_bad_arguments(
    server: MemoryBroker, arguments: dict[str, Any], said: str
) -> None:
    arguments = {"destination": "orders", "messages": ["a"]} | arguments
    operator = JmsPublishOperator(task_id="task", jms_conn_id="jms_test", **arguments)
    context: Any = {"ti": SimpleNamespace(dag_id="d", run_id="r", task_id="task", map_index=-1)}
    with pytest.raises(AirflowFailException) as caught:
        operator.execute(context)
    assert str(caught.value).startswith(said)
    assert server.depth("orders") == 0


def test_a_batch_of_bad_numbers(server: MemoryBroker, publish: Publish, failing: Failing) -> None:
    publish("a")
    failing.collect(max_messages="5", idle_time=None, max_time=-1, segment_messages=0, segment_bytes=0)
    assert failing.said == (
        "max_messages is '5'; expected a whole number of at least 1; "
        "segment_messages is 0; expected a whole number of at least 1; "
        "segment_bytes is 0; expected a whole number of at least 1; "
        "max_time is -1; expected seconds above 0; idle_time is None; expected seconds above 0"
    )
    assert server.depth("orders") == 1


@pytest.mark.parametrize(
    "place", ["s3:///x", "hdfs:///x", "S3A:/bucket", "file://host/x", "file:///data/a#b", "file:///a?b"]
)
def test_a_spool_that_is_no_file_system(
    server: MemoryBroker,
    publish: Publish,
    failing: Failing,
    place: str,
) -> None:
    publish("a")
    failing.collect(spool_path=place)
    assert failing.said.startswith(f"spool_path is {place!r}; expected a path or file:///... URI")
    assert server.depth("orders") == 1
    assert not Path(place.partition("/")[0]).exists()


def test_a_spool_that_can_not_be_written(
    server: MemoryBroker, publish: Publish, failing: Failing, tmp_path: Path
) -> None:
    publish("a")
    failing.spool = tmp_path / "file" / "spool"
    failing.spool.parent.write_text("no folder")
    failing.collect()
    assert failing.said.startswith(f"{failing.spool}/")
    assert failing.said.endswith(
        "can't be opened: Not a directory; expected a spool_path that this process can write"
    )
    assert server.depth("orders") == 1


def test_the_spark_provider_is_missing(
    server: MemoryBroker, publish: Publish, failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish("a")
    spark_submit_hook.cache_clear()  # what tests before have imported
    monkeypatch.setitem(sys.modules, "airflow.providers.apache.spark.hooks.spark_submit", None)
    failing.collect(JmsToSparkSubmitOperator)
    assert "needs the Spark provider: install this package with its extra `spark`" in failing.said
    assert server.depth("orders") == 1


@pytest.fixture
def submit(failing: Failing, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Outcome]:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_TEST", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(**arguments: Any) -> Outcome:
        given = {"application_args": ["--table", str(tmp_path / "table")], **arguments}
        return failing.collect(JmsToSparkSubmitOperator, spark_conn_id="spark_test", dag_id="bad", **given)

    return run


def test_the_spark_connection_is_not_defined(
    server: MemoryBroker, publish: Publish, failing: Failing
) -> None:
    publish("a")
    failing.collect(JmsToSparkSubmitOperator, spark_conn_id="spark_nowhere", retries=3)
    assert "connection 'spark_nowhere' is not defined in Airflow" in failing.said
    assert "AIRFLOW_CONN_SPARK_NOWHERE=" in failing.said
    assert server.depth("orders") == 1


@pytest.mark.parametrize(
    ("connection", "fault"),
    [
        ({"conn_type": "spark_connect", "host": "spark", "port": 15002}, "is for Spark Connect"),
        ({"conn_type": "spark", "host": "sc://spark:15002"}, "is for Spark Connect"),
        (
            {"conn_type": "spark", "host": "spark://spark:7077", "extra": {"deploy-mode": "cluster"}},
            "takes no Python script in deploy mode cluster; leave the deploy mode out",
        ),
    ],
)
def test_spark_is_reached_in_a_way_that_runs_no_job(  # noqa: PLR0917 - fixtures
    server: MemoryBroker,
    publish: Publish,
    failing: Failing,
    monkeypatch: pytest.MonkeyPatch,
    connection: dict[str, Any],
    fault: str,
) -> None:
    publish("a")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_TEST", json.dumps(connection))
    failing.collect(JmsToSparkSubmitOperator, spark_conn_id="spark_test", retries=3)
    assert fault in failing.said
    assert server.depth("orders") == 1


def segments(failing: Failing) -> list[Path]:
    return [path for path in failing.spool.glob("*/segment-*.parquet") if count_rows(path)]


def test_there_is_no_spark_submit(
    publish: Publish, failing: Failing, submit: Callable[..., Outcome],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    publish("a")
    monkeypatch.setenv("PATH", str(tmp_path))
    submit(retries=3)
    assert (
        "there is no 'spark-submit' on this worker: install this package with its extra `spark`"
        in failing.said
    )
    assert len(segments(failing)) == 1


def test_there_is_no_java(
    publish: Publish, failing: Failing, submit: Callable[..., Outcome],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """With a real spark-submit, on a path that has what its scripts call, but no Java."""
    publish("a")
    for name in ("bash", "dirname", "env", "uname", "readlink", "basename", "ls", "cat"):
        (tmp_path / name).symlink_to(shutil.which(name) or "/missing")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{tmp_path}")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert shutil.which("java") is None
    submit()
    assert "there is no Java on this worker: install Java 17 or newer" in failing.said
    assert len(segments(failing)) == 1


def test_a_schema_that_spark_can_not_read(
    publish: Publish, failing: Failing, submit: Callable[..., Outcome]
) -> None:
    publish("a")
    submit(retries=3, application_args=["--table", "/nowhere", "--schema", "id:"])
    assert failing.said.startswith("the Spark job: schema 'id:': [PARSE_SYNTAX_ERROR]")
    assert len(segments(failing)) == 1


def test_a_batch_with_a_wrong_hash(
    publish: Publish, failing: Failing, submit: Callable[..., Outcome],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The retry of a task whose batch was spoilt meanwhile: the real job refuses it."""
    publish("a")
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", str(tmp_path))
    submit()
    (segment,) = segments(failing)
    manifest = json.loads((segment.parent / "manifest.json").read_text())
    content = bytearray(segment.read_bytes())
    content[50] ^= 1
    segment.write_bytes(content)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{path}")
    submit()
    assert failing.said.startswith(f"{segment}: expected sha256 {manifest['segments'][0]['sha256']}, found ")
    assert not (tmp_path / "table").exists()
    assert not (segment.parent / "_DONE").exists()
