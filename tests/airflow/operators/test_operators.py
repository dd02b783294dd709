"""Operators in `dag.test()`: real task runs in this process, over an in-memory broker."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from airflow.models.xcom import XComModel
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, TaskInstanceState

from airflow_provider_jmsjca import (
    ActivationKind,
    AsyncJmsHook,
    Capabilities,
    ConfigurationError,
    Destination,
    JmsCollectOperator,
    JmsHook,
    JmsMessage,
    JmsNotifier,
    JmsPublishOperator,
    JmsSensor,
    JmsToSparkSubmitOperator,
    MemoryBroker,
    RunStatus,
    TransientBrokerError,
    WantedState,
    open_store,
)
from tests.airflow.task_runs import run_task
from tests.dead_letters import original_of
from tests.internals.engine import LimboSender
from tests.internals.hooks import connection_cache, spark_submit_hook
from tests.internals.operators import JmsDeadLettersLink
from tests.internals.spool import uri_to_path
from tests.internals.store import LimboEntry
from tests.memory_store import MemoryStore
from tests.servers.s3 import BUCKET, S3
from tests.spark.conftest import s3a_jars
from tests.unit.engine.brokers import LesserConnection

Publish = Callable[..., None]
pytestmark = [
    pytest.mark.usefixtures("metadata"),
    # A task run loads half of Airflow, whose dependencies warn about each other.
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]


def test_publish_sends_text_and_templates_it(server: MemoryBroker) -> None:
    """I37, I53."""
    outcome = run_task(
        lambda: JmsPublishOperator(
            task_id="publish",
            jms_conn_id="jms_test",
            destination="queue://orders",
            messages=["one {{ ds }}", JmsMessage.bytes(b"\x00\xff").to_json()],
            properties={"day": "{{ ds }}"},
            message_type="order",
        )
    )
    assert outcome.state == TaskInstanceState.SUCCESS
    assert outcome.value == {"destination": "queue://orders", "count": 2}
    text, octets = server.messages("orders")
    assert (text.body, text.type, dict(text.properties)) == ("one 2026-01-02", "order", {"day": "2026-01-02"})
    assert octets.body == b"\x00\xff"


def test_publishing_needs_a_destination() -> None:
    """I35."""
    with pytest.raises(TypeError, match="destination"):
        JmsPublishOperator(task_id="publish", messages="x")


def test_publish_sets_what_is_asked_and_sends_json(server: MemoryBroker) -> None:
    own = JmsMessage.text("own", correlation_id="c0", priority=2, reply_to=Destination.queue("there"))
    before = int(time.time() * 1000)
    outcome = run_task(
        lambda: JmsPublishOperator(
            task_id="publish",
            jms_conn_id="jms_test",
            destination="queue://orders",
            messages=[{"id": 1, "day": "{{ ds }}", "é": [1.5, None]}, ["a", "b"], 7, False, own],
            correlation_id="c-{{ ds }}",
            reply_to="topic://answers",
            priority="{{ 3 + 4 }}",
            time_to_live="{{ 600 }}",
            delay="{{ 0.2 }}",
            properties={"region": "eu"},
            message_type="order",
        )
    )
    assert outcome.state == TaskInstanceState.SUCCESS
    deadline = time.monotonic() + 10
    while len(messages := server.messages("orders")) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)  # the delay isn't over
    assert [each.body for each in messages] == [
        '{"id": 1, "day": "2026-01-02", "é": [1.5, null]}', '["a", "b"]', "7", "false", "own",
    ]  # fmt: skip
    for each in messages:
        assert (each.correlation_id, each.reply_to) == ("c-2026-01-02", Destination.topic("answers"))
        assert each.priority == 7
        assert before <= each.expiration - 600_000 <= time.time() * 1000 + 1
    assert [each.type for each in messages] == ["order"] * 4 + [None]
    assert [each.properties.get("region") for each in messages] == ["eu"] * 4 + [None]


def test_a_template_that_is_empty_asks_for_nothing(server: MemoryBroker) -> None:
    run_task(
        lambda: JmsPublishOperator(
            task_id="publish",
            jms_conn_id="jms_test",
            destination="orders",
            messages=JmsMessage.text("own", priority=2, correlation_id="c0").to_json(),
            **dict.fromkeys(("correlation_id", "reply_to", "priority", "time_to_live", "delay"), "{{ '' }}"),
        )
    )
    (message,) = server.messages("orders")
    assert (message.body, message.priority, message.correlation_id) == ("own", 2, "c0")
    assert (message.expiration, message.reply_to) == (0, None)


@pytest.mark.parametrize("transacted", [False, True])
def test_what_the_connection_factory_says_holds_for_publishing(
    server: MemoryBroker, monkeypatch: pytest.MonkeyPatch, *, transacted: bool
) -> None:
    """J98, J45: with IgnoreTx every session is transacted, and the task commits; the pool's bound holds."""
    extra = {"options": "JMSJCA.IgnoreTx=true\nJMSJCA.poolmaxsize=1\nJMSJCA.pooltimeout=50"}
    fields = {"conn_type": "jms", "host": f"vm://{server.name}", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_JMS_TEST", json.dumps(fields))
    context: Any = {"ti": SimpleNamespace(dag_id="d", run_id="r", task_id="publish", map_index=-1)}

    def send() -> None:
        JmsPublishOperator(
            task_id="publish",
            jms_conn_id="jms_test",
            destination="orders",
            messages=["a", "b"],
            transacted=transacted,
        ).execute(context)

    send()
    assert server.depth("orders") == 2
    with JmsHook("jms_test").get_conn() as connection, connection.session() as session:
        assert session.transacted
        with pytest.raises(TransientBrokerError, match="pool_max_size"):
            send()
    send()
    assert server.depth("orders") == 4


def by_notifier() -> None:
    JmsNotifier(jms_conn_id="jms_test", destination="orders", messages=["a"]).notify({})  # type: ignore[typeddict-item]


def in_an_event_loop() -> None:
    async def send() -> None:
        async with AsyncJmsHook("jms_test").get_conn() as connection:
            await connection.send("orders", JmsMessage.text("a"))

    asyncio.run(send())


def from_limbo() -> None:
    limbo, now = MemoryStore().limbo, datetime.now(UTC)
    entry = LimboEntry(
        jms_conn_id="jms_test", destination="queue://orders", message=JmsMessage.text("a"), due_at=now
    )
    limbo.put([entry], now)
    if not LimboSender(limbo, lambda name: JmsHook(name).get_conn()).send_due().sent:
        raise TransientBrokerError("it stays in limbo")


@pytest.mark.parametrize("send", [by_notifier, in_an_event_loop, from_limbo])
def test_what_the_connection_factory_says_holds_for_every_way_to_send(
    server: MemoryBroker, monkeypatch: pytest.MonkeyPatch, send: Callable[[], None]
) -> None:
    """J98, J100, J45: sessions are transacted and committed, and no more than allowed."""
    options = "JMSJCA.IgnoreTx=true\nJMSJCA.Strict=true\nJMSJCA.poolmaxsize=1\nJMSJCA.pooltimeout=50"
    fields = {"conn_type": "jms", "host": f"vm://{server.name}", "extra": {"options": options}}
    monkeypatch.setenv("AIRFLOW_CONN_JMS_TEST", json.dumps(fields))
    send()
    assert server.depth("orders") == 1
    with JmsHook("jms_test").get_conn() as connection, connection.session():
        with pytest.raises(TransientBrokerError):
            send()
        assert server.depth("orders") == 1
    send()
    assert server.depth("orders") == 2


def test_a_transacted_publish_that_is_refused_sends_nothing_and_is_not_tried_again(
    server: MemoryBroker,
) -> None:
    """I36."""
    server.forbid(Destination.queue("closed"))
    outcome = run_task(
        lambda: JmsPublishOperator(
            task_id="publish",
            jms_conn_id="jms_test",
            destination="closed",
            messages=["a", "b"],
            transacted=True,
            retries=3,
            retry_delay=timedelta(0),
        )
    )
    assert outcome.state == TaskInstanceState.FAILED
    assert outcome.run.get_task_instance("publish").try_number == 1
    assert server.depth("closed") == 0


def test_a_transacted_publish_needs_a_broker_that_commits_all_or_nothing(
    server: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JMSJCA_NOCFCACHE", "true")
    monkeypatch.setattr(connection_cache, "connect", lambda _: LesserConnection(server, Capabilities()))
    context: Any = {"ti": SimpleNamespace(dag_id="d", run_id="r", task_id="publish", map_index=-1)}

    def send(*messages: str) -> None:
        JmsPublishOperator(
            task_id="publish",
            jms_conn_id="jms_test",
            destination="orders",
            messages=list(messages),
            transacted=True,
        ).execute(context)

    with pytest.raises(AirflowFailException, match="transacted=True needs the capability 'atomic_commit'"):
        send("a", "b")
    assert server.depth("orders") == 0
    send("a")
    assert server.depth("orders") == 1


def test_publishing_the_same_again_is_dropped_where_asked(server: MemoryBroker) -> None:
    def make() -> BaseOperator:
        return JmsPublishOperator(
            task_id="publish",
            jms_conn_id="jms_test",
            destination="orders",
            messages=["a", "b"],
            deduplicate=True,
        )

    for _ in range(2):
        assert run_task(make, "again").state == TaskInstanceState.SUCCESS
    assert server.depth("orders") == 2


def test_what_is_no_message_is_named_with_its_place(server: MemoryBroker) -> None:
    outcome = run_task(
        lambda: JmsPublishOperator(
            task_id="publish", jms_conn_id="jms_test", destination="orders", messages=["fine", None]
        )
    )
    assert outcome.state == TaskInstanceState.FAILED
    assert server.depth("orders") == 0


def collect(spool: Path, **arguments: Any) -> Callable[[], BaseOperator]:
    return lambda: JmsCollectOperator(
        **{
            "task_id": "collect",
            "jms_conn_id": "jms_test",
            "destination": "queue://orders",
            "spool_path": str(spool),
            "idle_time": 1,
            "max_time": 20,
            **arguments,
        }
    )


def test_collect_puts_messages_into_a_batch_and_acknowledges_them(
    server: MemoryBroker, publish: Publish, tmp_path: Path
) -> None:
    publish(*(str(number) for number in range(25)))
    outcome = run_task(collect(tmp_path, segment_messages=10))
    assert outcome.state == TaskInstanceState.SUCCESS
    report = outcome.value
    assert (report["rows"], report["segments"], report["duplicates"]) == (25, 3, 0)
    assert report["ended_by"] == "idle"
    folder = uri_to_path(report["manifest"]).parent
    bodies = [
        body.decode() for file in sorted(folder.glob("*.parquet"))
        for body in pq.read_table(file)["body"].to_pylist()
    ]  # fmt: skip
    assert bodies == [str(number) for number in range(25)]
    assert server.depth("orders") == 0


def test_collect_stops_at_the_count_and_leaves_the_rest(
    server: MemoryBroker, publish: Publish, tmp_path: Path
) -> None:
    publish(*"abcdef")
    outcome = run_task(collect(tmp_path, max_messages=4))
    assert (outcome.value["rows"], outcome.value["ended_by"]) == (4, "count")
    assert [message.body for message in server.messages("orders")] == ["e", "f"]


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("if_empty", "state"), [("skip", TaskInstanceState.SKIPPED), ("succeed", TaskInstanceState.SUCCESS)]
)
def test_an_empty_queue(
    tmp_path: Path,
    if_empty: str,
    state: TaskInstanceState,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(JmsCollectOperator, "log", logging.getLogger("collect"))
    caplog.set_level(logging.INFO, "collect")
    outcome = run_task(collect(tmp_path, if_empty=if_empty))
    assert outcome.state == state
    assert list(tmp_path.glob("[!.]*")) == []  # but for the index of known ids
    if state == TaskInstanceState.SUCCESS:
        assert (outcome.value["rows"], outcome.value["manifest"]) == (0, None)
    assert "0 messages in 0 files; ended by idle after" in caplog.text
    said = "Nothing came from queue://orders within 1 s: the task is skipped (`if_empty` is 'skip')"
    assert (said in caplog.messages) == (if_empty == "skip")


def test_the_same_task_instance_finds_its_batch_finished_and_receives_nothing(
    server: MemoryBroker, publish: Publish, tmp_path: Path
) -> None:
    publish("a", "b")
    first = run_task(collect(tmp_path), "twice")
    publish("c")
    again = run_task(collect(tmp_path), "twice")
    assert again.value["ended_by"] == "complete"
    assert again.value["manifest"] == first.value["manifest"]
    assert server.depth("orders") == 1


def test_told_to_stop_it_stops_and_the_next_attempt_goes_on(
    server: MemoryBroker, publish: Publish, tmp_path: Path
) -> None:
    publish(*"abc")
    operators: list[JmsCollectOperator] = []

    def make() -> BaseOperator:
        operator = collect(tmp_path, idle_time=30, retries=0)()
        operators.append(operator)
        return operator

    def stop_when_sealed() -> None:
        deadline = time.monotonic() + 20
        while server.depth("orders") and time.monotonic() < deadline:
            time.sleep(0.01)
        operators[-1].on_kill()

    stopping = threading.Thread(target=stop_when_sealed)
    stopping.start()
    first = run_task(make, "stopped")
    stopping.join()
    assert first.state == TaskInstanceState.FAILED
    publish("d")
    second = run_task(collect(tmp_path), "stopped")
    assert (second.value["rows"], second.value["received"]) == (4, 1)


ORDERS = [json.dumps({"id": number, "amount": number * 1.5}) for number in range(40)]


@pytest.mark.parametrize("kind", ["posix", "s3"] if os.environ.get("JMSJCA_CHAOS") == "full" else ["posix"])
def test_collect_submit_and_dead_letter(  # noqa: PLR0917 - fixtures
    kind: str,
    server: MemoryBroker,
    publish: Publish,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> None:
    """J162: the whole batch path with a real spark-submit; bad messages leave with their reason."""
    spool, arguments = str(tmp_path / "spool"), {}
    if kind == "s3":
        store: S3 = request.getfixturevalue("s3")
        extra = {"endpoint_url": store.endpoint, "region_name": "us-east-1"}
        aws = {"conn_type": "aws", "login": "any", "password": "any", "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(aws))
        spool, arguments = f"s3://store@{BUCKET}/spool", {"jars": s3a_jars()}
    monkeypatch.setattr(JmsToSparkSubmitOperator, "log", logging.getLogger("load"))
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_TEST", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    root = str(Path(__file__).parents[3])
    monkeypatch.setenv("PYTHONPATH", root)
    monkeypatch.setenv("AIRFLOW__JMSJCA__CONSOLE_URL", "https://broker.example.com/{queue}")
    publish(*ORDERS, "no JSON", json.dumps({"id": None, "amount": 1.0}))
    table = tmp_path / "table"
    outcome = run_task(
        lambda: JmsToSparkSubmitOperator(
            task_id="load",
            jms_conn_id="jms_test",
            destination="queue://orders",
            spool_path=spool,
            idle_time=1,
            spark_conn_id="spark_test",
            application_args=["--table", str(table), "--schema", "id LONG NOT NULL, amount DOUBLE NOT NULL"],
            conf={"spark.ui.enabled": "false"},
            spark_arguments=arguments,
        )
    )
    assert outcome.state == TaskInstanceState.SUCCESS
    report = outcome.value
    assert (report["rows"], report["rejected"], report["dead_lettered"]) == (42, 2, 2)
    assert report["stored"] == {str(table): 40}
    reasons = {"required but missing: 'id'": 1, 'the body is not JSON, it begins with "…"': 1}
    assert report["reasons"] == reasons
    (said,) = [line for line in caplog.messages if ": stored " in line]
    assert said.startswith(f"Batch {report['batch_id']}: stored 40 in {table}; rejected 2: 1x ")
    assert all(f"1x {reason}" in said for reason in reasons)
    # Of Spark's own information only what it says before the job's settings hold.
    assert sum(" INFO " in line for line in caplog.messages) < 10
    assert server.depth("orders") == 0
    letters = [original_of(message) for message in server.messages("orders.dlq")]
    assert [letter is not None and letter.message.body for letter in letters] == [
        "no JSON", json.dumps({"id": None, "amount": 1.0}),
    ]  # fmt: skip
    assert all(letter is not None and letter.state.failure is not None for letter in letters)
    assert pq.read_table(table).num_rows == 40
    link = XComModel.get_many(run_id=outcome.run.run_id, key=JmsDeadLettersLink().xcom_key)
    with create_session() as session:
        assert [XComModel.deserialize_value(each) for each in session.scalars(link)] == [
            "https://broker.example.com/orders.dlq"
        ]


def spark_submit_of(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a `spark-submit` of our own on the path."""
    folder.mkdir()
    program = folder / "spark-submit"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_TEST", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def load(spool: Path, **arguments: Any) -> dict[str, Any]:
    return {
        "task_id": "load",
        "jms_conn_id": "jms_test",
        "destination": "queue://orders",
        "spool_path": str(spool),
        "idle_time": 1,
        "spark_conn_id": "spark_test",
        **arguments,
    }


def test_killed_it_ends_spark_submit_and_all_it_started(
    publish: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    script = f"sleep 600 & echo $$ $! > {pids}.new; mv {pids}.new {pids}; wait"
    spark_submit_of(tmp_path / "bin", script, monkeypatch)
    publish("a")
    running: list[JmsToSparkSubmitOperator] = []

    class Watched(JmsToSparkSubmitOperator):
        def execute(self, context: Any) -> dict[str, Any]:
            running.append(self)
            return super().execute(context)

    def kill_when_submitted() -> None:
        deadline = time.monotonic() + 30
        # On a busy machine the process may have written its file before `Popen` returns to who started it.
        while not (pids.exists() and running[-1]._process()) and time.monotonic() < deadline:
            time.sleep(0.01)
        running[-1].on_kill()

    killing = threading.Thread(target=kill_when_submitted)
    killing.start()
    outcome = run_task(lambda: Watched(**load(tmp_path / "spool")))
    killing.join()
    assert outcome.state == TaskInstanceState.FAILED
    deadline = time.monotonic() + 10
    while any(_runs(int(pid)) for pid in pids.read_text().split()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def _leave_a_batch(publish: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let a first attempt collect and fail; return the file that tells whether spark-submit is called."""
    calls = tmp_path / "calls"
    spark_submit_of(tmp_path / "bin", f"echo $$ >> {calls}; exec sleep 600", monkeypatch)
    publish("a")
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert run_task(lambda: JmsToSparkSubmitOperator(**load(tmp_path / "spool")), "left").state == "failed"
    monkeypatch.setenv("PATH", path)
    return calls


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "exit 137",
            "The Spark driver was ended by signal SIGKILL, usually a lack of memory",
        ),
        ("kill -TERM $$", "The Spark driver was ended by signal SIGTERM"),
        ("exit 1", "The Spark job failed"),
    ],
)
def test_a_driver_that_ends_badly_is_named_with_what_becomes_of_its_batch(  # noqa: PLR0917 - fixtures
    publish: Publish,
    tmp_path: Path,
    script: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    spark_submit_of(tmp_path / "bin", script, monkeypatch)
    monkeypatch.setattr(JmsToSparkSubmitOperator, "log", logging.getLogger("load"))
    caplog.set_level(logging.INFO, "load")
    publish("a", "b")
    assert (
        run_task(lambda: JmsToSparkSubmitOperator(**load(tmp_path / "spool"))).state
        == TaskInstanceState.FAILED
    )
    [error] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert error.startswith(f"{said}; batch ")
    assert error.endswith(" stays in the spool: a retry, or the cleared task, submits its 2 messages again")


def test_killed_before_it_submits_it_does_not(
    publish: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = _leave_a_batch(publish, tmp_path, monkeypatch)

    class Killed(JmsToSparkSubmitOperator):
        def _require_spark_connection(self) -> None:
            super()._require_spark_connection()
            self.on_kill()

    outcome = run_task(lambda: Killed(**load(tmp_path / "spool")), "left")
    assert outcome.state == TaskInstanceState.FAILED
    assert not calls.exists()


def test_killed_while_spark_submit_is_being_started_it_ends_that(
    publish: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = _leave_a_batch(publish, tmp_path, monkeypatch)

    running: list[JmsToSparkSubmitOperator] = []

    class Killed(JmsToSparkSubmitOperator):
        def execute(self, context: Any) -> dict[str, Any]:
            running.append(self)
            return super().execute(context)

    popen = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> Any:
        process = popen(*arguments, **options)
        if options.get("start_new_session"):
            running[-1].on_kill()
        return process

    monkeypatch.setattr("airflow.providers.apache.spark.hooks.spark_submit.subprocess.Popen", start)
    outcome = run_task(lambda: Killed(**load(tmp_path / "spool")), "left")
    assert outcome.state == TaskInstanceState.FAILED
    assert not calls.exists() or not _runs(int(calls.read_text()))


def test_operators_can_be_copied(tmp_path: Path) -> None:
    """As Airflow does with a part of a DAG."""
    copied = copy.deepcopy(JmsToSparkSubmitOperator(**load(tmp_path)))
    assert copied.spark_conn_id == "spark_test"
    copied._stop.set()


def test_a_job_that_leaves_no_report_fails_the_task_and_a_retry_submits_the_same_batch(
    server: MemoryBroker, publish: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    spark_submit_of(tmp_path / "bin", f'echo "$@" >> {calls}', monkeypatch)
    publish("a", "b")
    for _ in range(2):
        outcome = run_task(lambda: JmsToSparkSubmitOperator(**load(tmp_path / "spool")), "reported")
        assert outcome.state == TaskInstanceState.FAILED
    first, second = (line.split() for line in calls.read_text().splitlines())
    assert first[first.index("--manifest") + 1] == second[second.index("--manifest") + 1]
    assert (first[first.index("--fence") + 1], second[second.index("--fence") + 1]) == ("1", "2")
    assert server.depth("orders") == 0


SAYS_ADDRESS = """for each in "$@"; do case "$each" in spark.jmsjca.marker=*) marker=${each#*=};; esac; done
printf 'Spark UI %s: http://driver:4040\\n' "$marker"; """
"""What the job library does."""


OF_A_MESSAGE = r"Spark UI: http://forged\n\t tracking URL: http://forged\nSpark UI 0: http://forged\n"
OF_YARN = r"a tracking URL: http://forged\n\t tracking URL: http://rm:8088/proxy/application_1_1/\n"


@pytest.mark.parametrize(
    ("master", "before", "address"),
    [
        ("local[1]", OF_A_MESSAGE, "http://driver:4040"),
        ("yarn", OF_YARN, "http://rm:8088/proxy/application_1_1/"),
    ],
)
def test_where_sparks_web_page_is_can_be_seen_while_the_job_runs(
    master: str,
    before: str,
    address: str,
    *,
    publish: Publish,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A line in a message that a job prints leads nobody elsewhere."""
    heard: list[tuple[str, str]] = []

    class Watched(JmsToSparkSubmitOperator):
        def _note_address(self, address: str) -> None:
            super()._note_address(address)
            process = self._process()
            assert process is not None
            heard.append((address, "runs" if process.poll() is None else "has ended"))
            process.kill()

    spark_submit_of(tmp_path / "bin", f"printf '{before}'; {SAYS_ADDRESS} exec sleep 600", monkeypatch)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_TEST", json.dumps({"conn_type": "spark", "host": master}))
    publish("a")
    outcome = run_task(lambda: Watched(**load(tmp_path / "spool")))
    assert heard == [(address, "runs")]
    assert outcome.run.get_task_instance("load").xcom_pull(task_ids="load", key="spark_ui") == address


def test_the_password_of_a_database_is_in_the_environment_of_a_driver_that_runs_here(
    publish: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "said"
    spark_submit_of(tmp_path / "bin", f'env > {said}; echo "argv $@" >> {said}', monkeypatch)
    fields = {"conn_type": "postgres", "host": "db", "schema": "sales", "login": "u", "password": "s3cr3t"}
    monkeypatch.setenv("AIRFLOW_CONN_SALES", json.dumps(fields))
    publish("a")
    arguments = load(tmp_path / "spool", jdbc_conn_id="sales")
    run_task(lambda: JmsToSparkSubmitOperator(**arguments))
    lines = said.read_text().splitlines()
    for line in ("URL=jdbc:postgresql://db:5432/sales", "USER=u", "PASSWORD=s3cr3t"):
        assert f"JMSJCA_JDBC_{line}" in lines
    assert "s3cr3t" not in lines[-1]
    said.unlink()
    for host, mode in (("yarn", "client"), ("spark://h:7077", "cluster")):
        extra = {"deploy-mode": mode}
        fields = {"conn_type": "spark", "host": host, "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_TEST", json.dumps(fields))
        publish("a")
        assert run_task(lambda: JmsToSparkSubmitOperator(**arguments)).state == TaskInstanceState.FAILED
        assert not said.exists()


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "airflow.providers.apache.spark.hooks.spark_submit", None)
    spark_submit_hook.cache_clear()
    with pytest.raises(ConfigurationError, match="with its extra `spark`"):
        spark_submit_hook()


def test_the_sensor_sees_a_message_and_leaves_it(server: MemoryBroker, publish: Publish) -> None:
    publish("a")
    outcome = run_task(
        lambda: JmsSensor(task_id="wait", jms_conn_id="jms_test", destination="orders", poke_interval=0.1)
    )
    assert outcome.state == TaskInstanceState.SUCCESS
    assert outcome.value == {"event": "ready", "jms_conn_id": "jms_test", "destination": "queue://orders"}
    assert [message.redelivered for message in server.messages("orders")] == [False]


def test_the_deferred_sensor_waits_in_the_trigger(server: MemoryBroker, publish: Publish) -> None:
    publishing = threading.Timer(1.0, publish, args=("late",))
    publishing.start()
    outcome = run_task(
        lambda: JmsSensor(
            task_id="wait", jms_conn_id="jms_test", destination="orders", poke_interval=0.1, deferrable=True
        )
    )
    publishing.join()
    assert outcome.run.state == DagRunState.SUCCESS
    assert outcome.value["destination"] == "queue://orders"
    assert server.depth("orders") == 1


@pytest.mark.usefixtures("server")
def test_the_sensor_gives_up_at_its_timeout() -> None:
    outcome = run_task(
        lambda: JmsSensor(
            task_id="wait", jms_conn_id="jms_test", destination="orders", poke_interval=0.1, timeout=0.5
        )
    )
    assert outcome.state == TaskInstanceState.FAILED


def test_a_collector_is_registered_and_refused_while_it_is_stopped(
    server: MemoryBroker, publish: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    monkeypatch.setenv("AIRFLOW__JMSJCA__STORE_URL", url)
    publish("a")
    with contextlib.closing(open_store(url)) as store:
        assert run_task(collect(tmp_path / "spool")).value["rows"] == 1
        (run,) = store.activations.runs()
        found = run.report
        assert (found.kind, found.committed, found.status) == (
            ActivationKind.COLLECTOR, 1, RunStatus.ENDED,
        )  # fmt: skip
        publish("b")
        store.activations.request_state(found.activation, WantedState.STOPPED, reason="full", asked_by="ada")
        assert run_task(collect(tmp_path / "other")).state == TaskInstanceState.SKIPPED
        assert [message.body for message in server.messages("orders")] == ["b"]
