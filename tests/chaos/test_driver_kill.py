"""The Spark driver is killed in the middle of its job: the retried task stores the batch once.

`JMSJCA_CHAOS=full` sends 20,000 messages and kills four attempts, otherwise 2,000 and two.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from airflow.utils.state import TaskInstanceState

from airflow_provider_jmsjca import Destination, JmsMessage, JmsToSparkSubmitOperator, Outgoing, connect
from tests.airflow.task_runs import Outcome, run_task
from tests.chaos.spark_processes import Driver, ended, nothing_is_committed, signal_groups, soon
from tests.dead_letters import original_of
from tests.internals.spool import COMMIT_LOCK, Done, current_fence
from tests.servers.broker import Broker

FULL = os.environ.get("JMSJCA_CHAOS") == "full"
MESSAGES = 20_000 if FULL else 2_000
BAD_EVERY = 100
ROOT = Path(__file__).parents[2]
Find = Callable[[Driver], psutil.Process | None]

pytestmark = [
    pytest.mark.usefixtures("metadata"),
    pytest.mark.timeout(900),
    # A task run loads half of Airflow, whose dependencies warn about each other.
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]


class Story:
    """Messages on a queue, a task that loads them into a table, and what is to be found afterwards."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self.queue = Destination.queue(f"driver.{uuid.uuid4().hex[:8]}")
        self.spool = folder / "spool"
        self.table = folder / "table"
        self._connection = connect(broker.settings())
        bodies = (
            "no JSON" if number % BAD_EVERY == 0 else json.dumps({"id": number}) for number in range(MESSAGES)
        )
        self._connection.send(
            Outgoing(destination=self.queue, message=JmsMessage.text(body)) for body in bodies
        )

    def run(self, retries: int) -> Outcome:
        return run_task(
            lambda: JmsToSparkSubmitOperator(
                task_id="load",
                jms_conn_id="jms_test",
                destination=str(self.queue),
                spool_path=str(self.spool),
                idle_time=60,  # the batch ends when it has all messages, also where the broker stalls
                max_messages=MESSAGES,
                spark_conn_id="spark_test",
                application_args=["--table", str(self.table), "--schema", "id LONG NOT NULL"],
                conf={"spark.ui.enabled": "false"},
                retries=retries,
                retry_delay=timedelta(0),
            )
        )

    @property
    def batch(self) -> Path:
        (folder,) = self.spool.glob("[!.]*")  # beside the index of known ids
        return folder

    def staged(self, pattern: str) -> Callable[[], set[Path]]:
        """Look for files that attempts have written aside."""
        return lambda: set(self.table.glob(f"_staging/*/new-*/{pattern}"))

    def placed(self) -> list[Path]:
        return list(self.table.glob("jms_batch_id=*"))

    def done(self) -> Done | None:
        return Done.read(self.batch)

    def check(self, outcome: Outcome, attempts: int) -> None:
        """The table has the batch once, the counts are right, nothing is left on the queue."""
        assert outcome.state == TaskInstanceState.SUCCESS
        assert outcome.run.get_task_instance("load").try_number == attempts
        good = [number for number in range(MESSAGES) if number % BAD_EVERY]
        bad = MESSAGES - len(good)
        assert sorted(pq.read_table(self.table)["id"].to_pylist()) == good
        done = self.done()
        assert done is not None
        assert (done.fence, done.rows, done.stored, done.rejected) == (
            attempts, MESSAGES, {str(self.table): len(good)}, bad,
        )  # fmt: skip
        report: dict[str, Any] = outcome.value
        assert (report["rows"], report["rejected"], report["dead_lettered"]) == (MESSAGES, bad, bad)
        letters = list(self._connection.browse(Destination.queue(f"{self.queue.name}.dlq")))
        originals = [original_of(letter) for letter in letters]
        assert [original is not None and original.message.body for original in originals] == ["no JSON"] * bad
        assert list(self._connection.browse(self.queue)) == []
        self._connection.close()


@pytest.fixture
def story(activemq: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Story:
    host, port = activemq.address()
    connection = {
        "conn_type": "jms",
        "host": host,
        "port": port,
        "login": activemq.username,
        "password": activemq.password,
    }
    monkeypatch.setenv("AIRFLOW_CONN_JMS_TEST", json.dumps(connection))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_TEST", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return Story(activemq, tmp_path)


@contextmanager
def meanwhile(action: Callable[[], None]) -> Iterator[None]:
    """Carry out an action beside the block; what it raises is raised at the end of the block."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        acting = thread.submit(action)
        yield
        acting.result(timeout=10)


def kill(story: Story, fence: int, find: Find, look: Callable[[], object]) -> None:
    """Kill a process of an attempt when what `look` sees changes, and be sure that it was in its job."""
    before = look()
    with nothing_is_committed(story.batch, lambda: look() != before, f"trace of attempt {fence}"):
        victim = find(Driver(fence))
        assert victim is not None, f"window missed: attempt {fence} had ended"
        victim.kill()
        assert story.done() is None, f"window missed: attempt {fence} had done the batch"


def outlive_the_jvm(story: Story) -> psutil.Process:
    """Kill the JVM of attempt 1 when Spark has written all rows and Python has yet to put them in place.

    Returns:
        The Python driver, suspended.
    """
    soon(story.staged("."), "rows written aside")
    with (story.batch / COMMIT_LOCK).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        soon(story.staged("_SUCCESS"), "finished rows")
        jvm, python = Driver(1).jvm(), Driver(1).python()
        assert jvm is not None
        assert python is not None
        soon(lambda: lock.name in {file.path for file in python.open_files()}, "driver about to commit")
        python.suspend()
        jvm.kill()
    return python


def resume_beside(story: Story, python: psutil.Process, fence: int) -> None:
    """Let the old driver go on once the next attempt has begun: it must end without a trace."""
    groups = soon(Driver(fence).groups, f"attempt {fence}")
    signal_groups(groups, signal.SIGSTOP)
    try:
        assert not story.placed(), "window missed: the batch is in the table before the old driver goes on"
        python.resume()
        soon(lambda: ended(python), "end of the old driver")
        assert not story.placed(), "the old driver put its rows into the table"
        assert story.done() is None, "the old driver reported the batch done"
    finally:
        if not ended(python):
            python.kill()
        signal_groups(groups, signal.SIGCONT)
    assert current_fence(story.batch) == fence


def test_retries_store_the_batch_once_and_a_driver_that_outlives_its_jvm_is_shut_out(story: Story) -> None:
    in_the_middle = [(2, Driver.jvm), (3, Driver.python)] if FULL else []
    last = 2 + len(in_the_middle)

    def kills() -> None:
        resume_beside(story, outlive_the_jvm(story), 2)
        for fence, find in in_the_middle:
            kill(story, fence, find, story.staged("**/*.parquet*"))
        # In the table, but not yet reported: the next attempt replaces it.
        kill(story, last, Driver.python, story.placed)

    with meanwhile(kills):
        outcome = story.run(retries=last)
    story.check(outcome, attempts=last + 1)
