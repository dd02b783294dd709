"""Three poison messages in a batch of a real spark-submit, which is killed while it bisects the batch."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
import uuid
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pyarrow.dataset as ds
import pytest
from airflow.sdk.exceptions import AirflowException

from airflow_provider_jmsjca import (
    ConnectionSettings,
    Destination,
    JmsMessage,
    JmsToSparkSubmitOperator,
    MemoryBroker,
    Outgoing,
    connect,
    memory_broker,
)
from tests.dead_letters import original_of
from tests.internals.cli import show_command
from tests.internals.spool import Done, Row, SpoolBatch, TaskKey, current_fence, parts

ROOT = Path(__file__).parents[2]
ORDERS = Destination.queue("orders")
FULL = os.environ.get("JMSJCA_CHAOS") == "full"
MESSAGES, SPLITS = (200, range(8, 21)) if FULL else (48, range(6, 15))
HALF_WITH_POISON = "0-99" if FULL else "24-47"
NOT_A_NUMBER = (30, 31)
REFUSED = 35
JOB = """
import sys
from pyspark.sql import SparkSession, functions as sql
from pyspark.sql.types import IntegerType
from airflow_provider_jmsjca import Batch

@sql.udf(returnType=IntegerType())
def checked(number):
    if number == 35:
        raise LookupError("nobody orders 35")
    return number

with Batch.from_args() as batch:
    table, runs = batch.arguments
    with open(runs, "a") as file:
        file.write(batch.batch_id + "\\n")
    spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
    try:
        number = sql.expr("CAST(CAST(body AS STRING) AS INT)")
        batch.write(batch.messages(spark).select("message_id", checked(number).alias("number")), table)
    finally:
        if batch.manifest.rows > 20:  # a script may stop its session, or leave it
            spark.stop()
"""
pytestmark = [
    pytest.mark.usefixtures("metadata"),
    pytest.mark.timeout(1500),
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]


class Load:
    """The task, and where it works."""

    def __init__(self, folder: Path) -> None:
        self.spool, self.table, self.runs = folder / "Ablage [1] #", folder / "table", folder / "runs"
        self.script = folder / "job.py"
        self.script.write_text(JOB)
        key = TaskKey(dag_id="d", run_id="r", task_id="load")
        self.batch_id = key.batch_id()
        self.folder = self.spool / self.batch_id

    def __call__(self, **named: Any) -> dict[str, Any]:
        operator = JmsToSparkSubmitOperator(
            task_id="load",
            jms_conn_id="jms_test",
            destination="orders",
            idle_time=0.2,
            spool_path=str(self.spool),
            spark_conn_id="spark_test",
            application=str(self.script),
            application_args=[str(self.table), str(self.runs)],
            conf={"spark.ui.enabled": "false"},
            dead_letter_destination="queue://orders.dlq",
            **named,
        )
        names = {"dag_id": "d", "run_id": "r", "task_id": "load", "map_index": -1}
        context: Any = {"ti": SimpleNamespace(**names, xcom_push=lambda key, value: None)}  # noqa: ARG005 - as Airflow's
        return operator.execute(context)

    def rows(self) -> list[int]:
        return sorted(ds.dataset(self.table, format="parquet").to_table().column("number").to_pylist())


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> MemoryBroker:
    server = memory_broker(uuid.uuid4().hex)
    monkeypatch.setenv(
        "AIRFLOW_CONN_JMS_TEST", json.dumps({"conn_type": "jms", "host": f"vm://{server.name}"})
    )
    return server


@pytest.fixture
def load(tmp_path: Path, server: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_TEST", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    connection = connect(ConnectionSettings(scheme="vm", hosts=((server.name, None),)))
    bodies = ("none" if number in NOT_A_NUMBER else str(number) for number in range(MESSAGES))
    connection.send(Outgoing(destination=ORDERS, message=JmsMessage.text(body)) for body in bodies)
    connection.close()
    return Load(tmp_path)


def kill_once(load: Load, fence: int, done: int, killed: list[int]) -> None:
    """Kill the driver of an attempt, the JVM and all they started, once so many parts are stored."""
    deadline = time.monotonic() + 900
    while time.monotonic() < deadline and not killed:
        if len(list((load.folder / "splits").glob("*/_DONE"))) >= done:
            groups = set()
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if "--fence" in process.cmdline():
                        groups.add(os.getpgid(process.pid))
            for group in groups - {os.getpgid(0)}:
                os.killpg(group, signal.SIGKILL)
                killed.append(fence)
        time.sleep(0.02)


def test_the_poison_messages_of_a_batch_stand_alone_and_the_others_are_stored_once(
    load: Load, server: MemoryBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AirflowException, match=r"because of its data \(org.apache.spark.CAST_INVALID_INPUT"):
        load()
    assert parts(load.folder) == []

    killed: list[int] = []
    killer = threading.Thread(target=kill_once, args=(load, 2, 3, killed))
    killer.start()
    with pytest.raises(AirflowException):
        load(bisect=True)
    killer.join()
    assert killed
    assert current_fence(load.folder) == 2
    stored_before = {path.parent.name for path in (load.folder / "splits").glob("*/_DONE")}
    assert len(stored_before) >= 3
    assert Done.read(load.folder) is None
    assert server.depth("orders.dlq") == 0

    # What another run of the task left is adopted on the way. The option is gone: what was split stays so.
    left = TaskKey(dag_id="d", run_id="killed", task_id="load").batch_id()
    with SpoolBatch(load.spool, left, source=str(ORDERS), activation=f"jms_test {ORDERS}") as batch:
        batch.seal([Row(JmsMessage.text("1000", message_id="ID:left", destination=ORDERS), 0)])
    report = load(adopt_after=0)

    good = [number for number in range(MESSAGES) if number not in {*NOT_A_NUMBER, REFUSED}]
    assert load.rows() == [*good, 1000]
    assert report["stored"] == {str(load.table): MESSAGES - 3}
    assert (report["rejected"], report["dead_lettered"]) == (3, 3)
    assert report["splits"] in SPLITS
    assert [(each["batch_id"], each["stored"]) for each in report["adopted"]] == [
        (left, {str(load.table): 1})
    ]

    letters = [
        each for message in server.messages("orders.dlq") if (each := original_of(message)) is not None
    ]
    assert [letter.message.body for letter in letters] == ["none", "none", "35"]
    reasons = [letter.state.failure for letter in letters]
    assert all(reason is not None and reason.message for reason in reasons)
    assert [reason.class_names[0] for reason in reasons if reason is not None] == [
        "org.apache.spark.CAST_INVALID_INPUT",
        "org.apache.spark.CAST_INVALID_INPUT",
        "LookupError",
    ]

    runs = Counter(load.runs.read_text().split())
    assert all(runs[f"{load.batch_id}~~rows-{rows}"] == 1 for rows in stored_before)
    print(f"{sum(runs.values())} runs of the script, {report['splits']} splits")

    arguments = SimpleNamespace(batch=load.batch_id, spool_path=str(load.spool), output="json")
    capsys.readouterr()
    show_command(arguments)  # type: ignore[arg-type]
    shown = {row["name"]: row["value"] for row in json.loads(capsys.readouterr().out)}
    assert shown["state"] == "done"
    assert shown["part, rows 35-35"].startswith("failed: LookupError: nobody orders 35")
    assert shown[f"part, rows {HALF_WITH_POISON}"] == "split"
    assert list(shown.values()).count("stored") == len(list((load.folder / "splits").glob("*/_DONE")))

    assert load()["stored"] == {str(load.table): MESSAGES - 3}  # cleared later, nothing is done again
    assert load.rows() == [*good, 1000]
    assert len(server.messages("orders.dlq")) == 3
