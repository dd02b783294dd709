"""A task that asks is killed between its request and the answer, and after it: the retry has the answer.

`JMSJCA_CHAOS=full` kills 20 tasks on each broker, otherwise one, before its answer is sent.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_jmsjca import JmsMessage, JmsRequestOperator, message_from_event
from tests.airflow.answering import copied, service
from tests.chaos.conftest import Report
from tests.chaos.test_sensor_kill import ROOT, connection_of
from tests.servers.broker import Broker

TASKS = 20 if os.environ.get("JMSJCA_CHAOS") == "full" else 1
# Operators load half of Airflow, whose dependencies warn about each other.
pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]


def first_attempt(asked: dict[str, Any]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.requesting"],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stdin is not None
    # The password travels where no list of processes shows it.
    json.dump(asked, process.stdin)
    process.stdin.close()
    return process


@pytest.mark.timeout(900)
def test_a_task_killed_before_or_after_its_answer_has_it_when_tried_again(
    broker: Broker, queue_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: Report
) -> None:
    connection = connection_of(broker)
    monkeypatch.setenv("AIRFLOW_CONN_JMS_TEST", json.dumps(connection))
    chance = random.Random(7)  # noqa: S311  # when to kill
    asks = f"{queue_name}.ask"
    task = {
        "destination": f"queue://{asks}", "reply_to": f"queue://{queue_name}.answers",
        "response_timeout": 120, "poke_interval": 0.2, "spool_path": str(tmp_path),
    }  # fmt: skip
    killed = repeated = 0
    for run in range(TASKS):
        may_answer = threading.Event()

        def answer(request: JmsMessage, may_answer: threading.Event = may_answer) -> JmsMessage:
            assert may_answer.wait(120)
            return copied(request)

        with service(answer, queue=asks) as asked:
            process = first_attempt({"connection": connection, "task": task, "run": str(run)})
            try:
                deadline = time.monotonic() + 120
                while not asked:
                    assert process.poll() is None, "it ended without a request"
                    assert time.monotonic() < deadline, "no request came"
                    time.sleep(0.01)
                if run % 2:
                    may_answer.set()
                    time.sleep(chance.choice([0, 0.01, 0.05, 0.2, 0.5]))
                killed += process.poll() is None
            finally:
                process.kill()
                process.wait(60)
                may_answer.set()
        # The service has ended, so the answer is sent by now.
        instance = SimpleNamespace(dag_id="dag", run_id=str(run), task_id="ask", map_index=-1, try_number=2)
        context: Any = {"ti": instance}
        with service(queue=asks) as again:
            operator = JmsRequestOperator(
                task_id="ask",
                jms_conn_id="jms_test",
                message="how much?",
                **task,  # type: ignore[arg-type]
            )
            value = operator.execute(context)
            assert operator.execute(context) == value
        assert message_from_event(value).body == "answer to how much?"
        (correlation_id,) = {each.correlation_id for each in (*asked, *again)}
        assert correlation_id is not None
        assert correlation_id.startswith(f"dag/{run}/ask/-1/")
        assert run % 2 or not again, "the answer was there, and the retry asked again"
        repeated += len(again)
    assert killed
    report(f"request: {killed} tasks killed, {repeated} asked again")
