"""What a producer writes into a message forges no line of a log, and steers no terminal."""

from __future__ import annotations

import contextlib
import logging
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException

from airflow_provider_jmsjca import (
    JmsCollectOperator,
    JmsListenOperator,
    JmsMessage,
    JmsRequestOperator,
    JmsSensor,
    MemoryBroker,
)
from tests.airflow.answering import service
from tests.airflow.triggers.test_activation import run, send, triggerer, until

FORGED = "\nERROR forged\r\x1b[2J\x9b31m\u202e\u2028\x7f"
STEERING = ["Cc", "Cf", "Cs", "Zl", "Zp"]
pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines += self.format(record).split("\n")


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """Every line that the package logs."""
    handler, logger = _Lines(), logging.getLogger("airflow_provider_jmsjca")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler.lines
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.fixture(autouse=True)
def _hostile(
    server: MemoryBroker,
    lines: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[None]:
    """The broker's ids are a producer's; afterwards, what was logged is looked at."""
    monkeypatch.setattr(server, "_id_prefix", f"ID:{FORGED}")
    yield
    printed = capsys.readouterr()
    shown = [*lines, *printed.out.split("\n"), *printed.err.split("\n")]
    assert not [line for line in shown if line.startswith("ERROR forged")]
    # Airflow's own lines may be coloured.
    steered = [
        line for line in lines if any(unicodedata.category(character) in STEERING for character in line)
    ]
    assert not steered
    assert "\x9b31m" not in printed.out + printed.err
    assert "\u202e" not in printed.out + printed.err


def context(name: str = "monday") -> Any:
    instance = SimpleNamespace(dag_id="dag", run_id=name, task_id="task", map_index=-1, try_number=1)
    return {"ti": instance, "task_instance": instance}


def said(lines: list[str]) -> bool:
    return any(r"\nERROR forged\r\x1b[2J\x9b31m\u202e\u2028\x7f" in line for line in lines)


@pytest.mark.parametrize(
    "handling",
    ["1:move(queue:dlq)", "3:delete", "2:10;3:move(queue:dlq)", "2:move(queue:dlq)"],
)
def test_a_listener(lines: list[str], publish: Any, handling: str) -> None:
    publish("a", "b")

    def fail(delivery: Any) -> None:
        raise ValueError(f"{delivery.message.message_id} {FORGED}")

    operator = JmsListenOperator(
        task_id="task",
        spec={"destination": "queue://orders", "redelivery_handling": handling},
        on_message=fail,
        jms_conn_id="jms_test",
        idle_for=0.5,
        run_for=5,
    )
    operator.execute(context())
    assert said(lines)


def test_a_trigger(lines: list[str], publish: Any, server: MemoryBroker) -> None:
    async def work() -> None:
        async with triggerer() as running:
            watcher = running.watch(max_body_bytes=10)
            publish("a" * 1000, "b")
            await until(lambda: len(watcher.events) == 2)
            await until(lambda: server.depth("orders") == 0)

    run(work())
    assert lines


def test_a_trigger_whose_event_takes_no_message(lines: list[str], server: MemoryBroker) -> None:
    async def work() -> None:
        async with triggerer() as running:
            running.watch(max_body_bytes=100, redelivery_handling="1:move(queue:dlq)")
            send(server, "a", status="x" * 5_000)
            await until(lambda: server.depth("dlq") == 1)

    run(work())
    assert said(lines)


def test_a_collector(publish: Any, tmp_path: Path) -> None:
    publish("a", "b")
    operator = JmsCollectOperator(
        task_id="task", jms_conn_id="jms_test", destination="queue://orders", spool_path=str(tmp_path),
        idle_time=0.5, max_time=5,
    )  # fmt: skip
    assert operator.execute(context())["rows"] == 2


def test_a_sensor(publish: Any, tmp_path: Path) -> None:
    publish("a", "b")

    def fails(message: Any) -> bool:
        raise ValueError(message.message_id)

    for arguments in ({}, {"max_messages": 2}, {"predicate": fails}, {"fail_on": fails}, {"peek": True}):
        given: dict[str, Any] = {"peek": False} | arguments
        sensor = JmsSensor(
            task_id="task", destination="orders", jms_conn_id="jms_test", poke_interval=0.1, timeout=0.5,
            spool_path=str(tmp_path), **given,
        )  # fmt: skip
        with contextlib.suppress(AirflowException, ValueError):
            sensor.execute(context(str(arguments)))


def test_an_answer_that_says_no(tmp_path: Path) -> None:
    def answer(_: JmsMessage) -> JmsMessage:
        return JmsMessage.text(f"no{FORGED}" + "x" * 100_000, {"Result": "FAIL"})

    operator = JmsRequestOperator(
        task_id="task", destination="ask", reply_to="answers", message="?", jms_conn_id="jms_test",
        response_timeout=20, poke_interval=0.1, spool_path=str(tmp_path), result_property="Result",
    )  # fmt: skip
    with service(answer), pytest.raises(AirflowException, match="failed: no") as failed:
        operator.execute(context())
    assert r"no\nERROR forged\r\x1b[2J" in str(failed.value)
    assert len(str(failed.value)) < 5_000
