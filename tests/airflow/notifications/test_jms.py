"""`JmsNotifier` in real runs, on a real broker."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from airflow.callbacks.callback_requests import DagCallbackRequest
from airflow.dag_processing.processor import _execute_dag_callbacks
from airflow.models.callback import CallbackState
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, AsyncCallback
from airflow.sdk.log import mask_secret
from airflow.triggers.callback import CallbackTrigger
from airflow.utils.state import TaskInstanceState

from airflow_provider_jmsjca import (
    ConfigurationError,
    Destination,
    JmsHook,
    JmsMessage,
    JmsNotifier,
    TransientBrokerError,
)
from tests.airflow.task_runs import execute
from tests.servers.broker import Broker

pytestmark = [
    pytest.mark.usefixtures("metadata"),
    # A task run loads half of Airflow, whose dependencies warn about each other.
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]


def connection_to(port: int, **fields: Any) -> str:
    return json.dumps({"conn_type": "jms", "host": "127.0.0.1", "port": port, **fields})


@pytest.fixture
def real(activemq: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Airflow connection `jms_real`, to a real broker."""
    host, port = activemq.address()
    monkeypatch.setenv(
        "AIRFLOW_CONN_JMS_REAL",
        connection_to(port, host=host, login=activemq.username, password=activemq.password),
    )


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The Airflow connection `jms_away`, to a port where nobody listens."""
    with socket.socket() as taken:  # bound and never listening: nobody else gets the port
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AIRFLOW_CONN_JMS_AWAY", connection_to(taken.getsockname()[1]))
        yield


def received(queue: str, count: int) -> list[JmsMessage]:
    with JmsHook("jms_real").get_conn() as connection, connection.session() as session:
        found = [session.receive(queue, timeout=10) for _ in range(count)]
        assert session.receive(queue, timeout=0.2) is None
    messages = [message for message in found if message is not None]
    assert len(messages) == count
    return messages


def raises(text: str) -> Any:
    def fail() -> None:
        raise ValueError(text)

    return fail


def a_queue() -> str:
    return f"queue://alerts.{uuid.uuid4().hex}"


def a_dag(**arguments: Any) -> DAG:
    return DAG(
        f"dag_{uuid.uuid4().hex[:8]}", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC), **arguments
    )


@pytest.mark.usefixtures("real")
def test_a_failure_is_told_with_what_the_author_says() -> None:
    queue = a_queue()
    notifier = JmsNotifier(
        jms_conn_id="jms_real",
        destination=queue.replace("alerts", "{{ 'alerts' }}"),
        messages="{{ ti.task_id }} failed on {{ ds }}: {{ exception }}",
        properties={"severity": "{{ params.severity }}", "attempt": 1},
        message_type="alert",
        correlation_id="{{ dag.dag_id }}",
        reply_to="queue://answers",
        priority="{{ 4 + 4 }}",
        time_to_live="{{ 600 }}",
    )
    with a_dag(params={"severity": "high"}) as dag:
        PythonOperator(task_id="load", python_callable=raises("no space"), on_failure_callback=notifier)
    outcome = execute(dag, "load")

    assert outcome.state == TaskInstanceState.FAILED
    (message,) = received(queue, 1)
    assert message.body == "load failed on 2026-01-02: no space"
    assert (message.properties["severity"], message.properties["attempt"]) == ("high", "1")
    assert (message.type, message.correlation_id, message.priority) == ("alert", dag.dag_id, 8)
    assert message.reply_to == Destination.queue("answers")
    assert 550_000 < message.expiration - time.time() * 1000 <= 600_000


@pytest.mark.usefixtures("real")
def test_one_notifier_serves_many_tasks_and_says_what_it_knows() -> None:
    """Airflow renders templates into the notifier itself, which the second task would find rendered."""
    queue, secret = a_queue(), uuid.uuid4().hex
    mask_secret(secret)
    notifier = JmsNotifier(jms_conn_id="jms_real", destination=queue, properties={"task": "{{ ti.task_id }}"})
    with a_dag(default_args={"on_success_callback": notifier, "on_failure_callback": notifier}) as dag:
        EmptyOperator(task_id="first") >> PythonOperator(
            task_id="second",
            python_callable=raises(f"login with {secret} at postgresql://me:s3cret@db refused " + "x" * 5000),
        )
    execute(dag, "second")

    by_task = {message.properties["task"]: json.loads(str(message.body)) for message in received(queue, 2)}
    assert sorted(by_task) == ["first", "second"]
    assert by_task["first"]["state"] == "success"
    assert "exception" not in by_task["first"]
    told = by_task["second"]
    exception = told.pop("exception")
    assert exception.startswith("ValueError: login with *** at postgresql://***@db refused xxx")
    assert len(exception) == 4000
    assert told.pop("log_url").startswith("http")
    assert told == {
        "dag_id": dag.dag_id,
        "run_id": told["run_id"],
        "task_id": "second",
        "map_index": -1,
        "try_number": 1,
        "state": "failed",
        "logical_date": "2026-01-02T00:00:00+00:00",
    }


@pytest.mark.usefixtures("real")
def test_what_became_of_a_dag_run_is_told_by_the_dag_processor() -> None:
    queue = a_queue()
    with a_dag(on_failure_callback=JmsNotifier(jms_conn_id="jms_real", destination=queue)) as dag:
        EmptyOperator(task_id="load")
    bag: Any = SimpleNamespace(dags={dag.dag_id: dag})
    request = DagCallbackRequest(
        filepath="dag.py",
        bundle_name="b",
        bundle_version=None,
        dag_id=dag.dag_id,
        run_id="r1",
        is_failure_callback=True,
        msg="task_failure",
    )
    _execute_dag_callbacks(bag, request, structlog.get_logger())

    (message,) = received(queue, 1)
    told = json.loads(str(message.body))
    assert told == {"dag_id": dag.dag_id, "run_id": "r1", "reason": "task_failure"}


@pytest.mark.usefixtures("away")
def test_an_outage_is_in_the_log_and_hides_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Any] = []
    notifier = JmsNotifier(jms_conn_id="jms_away", destination="queue://alerts")
    with a_dag() as dag:
        PythonOperator(
            task_id="load",
            python_callable=raises("the task's own"),
            on_failure_callback=[notifier, lambda context: seen.append(context["exception"])],
        )
    began = time.monotonic()
    outcome = execute(dag, "load")

    assert time.monotonic() - began < 30
    assert outcome.state == TaskInstanceState.FAILED
    (error,) = seen  # callbacks after ours are called too
    assert (type(error), str(error)) == (ValueError, "the task's own")
    assert "Failed to send notification" in capsys.readouterr().out
    with pytest.raises(TransientBrokerError, match=r"127\.0\.0\.1"):
        notifier({"dag": dag})


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"priority": 11}, "priority is 11; expected a whole number from 0 to 9"),
        ({"messages": [None]}, r"messages\[0\]: None is not a message"),
        ({"reply_to": "quue://a"}, "no destination type 'quue'"),
        ({"jms_conn_id": "nowhere"}, "connection 'nowhere' is not defined"),
    ],
)
@pytest.mark.usefixtures("away")
def test_what_is_wrong_is_named(arguments: dict[str, Any], what: str) -> None:
    notifier = JmsNotifier(**{"jms_conn_id": "jms_away", "destination": "queue://alerts", **arguments})
    with pytest.raises(ConfigurationError, match=what):
        notifier({})


def test_a_secret_in_the_destination_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="JmsNotifier"):
        JmsNotifier(destination="lookup://stomp://u:p@host?password=pw")


async def triggered(arguments: dict[str, Any], context: dict[str, Any]) -> tuple[list[Any], float]:
    """Do what the triggerer does for a deadline alert; also return how long the loop was blocked."""
    callback = AsyncCallback(JmsNotifier, kwargs=arguments)
    trigger = CallbackTrigger(callback.path, {**callback.kwargs, "context": context})
    longest, stop = 0.0, asyncio.Event()

    async def watch() -> None:
        nonlocal longest
        while not stop.is_set():
            before = time.monotonic()
            await asyncio.sleep(0.005)
            longest = max(longest, time.monotonic() - before)

    watching = asyncio.create_task(watch())
    events = [event.payload async for event in trigger.run()]
    stop.set()
    await watching
    return events, longest


@pytest.mark.usefixtures("real")
def test_a_missed_deadline_is_told_by_the_triggerer() -> None:
    queue = a_queue()
    context = {
        "dag_run": {"dag_id": "late", "run_id": "r1", "state": "running"},
        "deadline": {"id": "1", "deadline_time": datetime(2026, 1, 2, tzinfo=UTC)},
    }
    arguments = {
        "jms_conn_id": "jms_real",
        "destination": queue,
        "correlation_id": "{{ dag_run.dag_id }}",
    }
    events, _ = asyncio.run(triggered(arguments, context))

    assert [event["state"] for event in events] == [CallbackState.RUNNING, CallbackState.SUCCESS]
    (message,) = received(queue, 1)
    assert message.correlation_id == "late"
    assert json.loads(str(message.body)) == {
        "dag_id": "late",
        "run_id": "r1",
        "state": "running",
        "deadline": "2026-01-02T00:00:00+00:00",
    }


def test_a_broker_that_does_not_answer_does_not_block_the_triggerer(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        extra = json.dumps({"connect_timeout": 2, "reply_timeout": 2})
        monkeypatch.setenv("AIRFLOW_CONN_JMS_MUTE", connection_to(mute.getsockname()[1], extra=extra))
        events, longest = asyncio.run(
            triggered({"jms_conn_id": "jms_mute", "destination": "queue://alerts"}, {})
        )
    assert [event["state"] for event in events] == [CallbackState.RUNNING, CallbackState.FAILED]
    assert "TransientBrokerError" in events[1]["body"]
    assert longest < 1.5  # a blocked loop would stand still for 2 s
