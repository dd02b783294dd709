"""`JmsSensor(peek=False)` and `@task.jms_sensor`, over an in-memory broker."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
    TaskDeferred,
)
from airflow.utils.state import TaskInstanceState

from airflow_provider_jmsjca import (
    ConfigurationError,
    ConnectionLostError,
    ConnectionSettings,
    Destination,
    JmsMessage,
    JmsSensor,
    MemoryBroker,
    Outgoing,
    SpoolError,
    connect,
    jms_sensor_task,
    message_from_event,
    messages_from_event,
)
from tests.airflow.task_runs import execute, run_task
from tests.internals.spool import DeduplicationWindow, SpoolBatch, TaskKey, prune
from tests.internals.transports import MemoryConnection
from tests.internals.triggers import JmsListenTrigger

Publish = Callable[..., None]
# Operators load half of Airflow, whose dependencies warn about each other.
pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]


def run(name: str = "monday", map_index: int = -1) -> Any:
    instance = SimpleNamespace(dag_id="dag", run_id=name, task_id="wait", map_index=map_index)
    return {"ti": instance, "task_instance": instance}


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def sensor(server: MemoryBroker, spool: Path) -> Callable[..., JmsSensor]:
    del server

    def make(**arguments: Any) -> JmsSensor:
        given: dict[str, Any] = {
            "destination": "orders", "jms_conn_id": "jms_test", "peek": False, "poke_interval": 0.1,
            "batch_timeout": 0.2, "spool_path": str(spool),
        }  # fmt: skip
        return JmsSensor(task_id="wait", **given | arguments)

    return make


Sensor = Callable[..., JmsSensor]


def bodies(value: Any) -> list[object]:
    return [message.body for message in messages_from_event(json.loads(json.dumps(value)))]


def on_queue(server: MemoryBroker) -> list[object]:
    return [message.body for message in server.messages("orders")]


def fire(deferred: TaskDeferred) -> dict[str, Any]:
    """Return what the trigger of a deferred task says, as it is after Airflow has stored it."""
    _, arguments = json.loads(json.dumps(deferred.trigger.serialize()))

    async def run() -> list[dict[str, Any]]:
        return [event.payload async for event in JmsListenTrigger(**arguments).run()]

    (payload,) = asyncio.run(asyncio.wait_for(run(), 20))
    return payload


# -- what it returns ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("metadata")
def test_a_task_run_returns_the_message_and_the_queue_has_the_others(
    server: MemoryBroker, publish: Publish, sensor: Sensor
) -> None:
    publish("a", "b")
    outcome = run_task(sensor)
    assert outcome.state == TaskInstanceState.SUCCESS
    assert outcome.value["event"] == "batch"
    assert (outcome.value["jms_conn_id"], outcome.value["destination"]) == ("jms_test", "queue://orders")
    assert bodies(outcome.value) == ["a"]
    assert on_queue(server) == ["b"]


@pytest.mark.usefixtures("metadata")
def test_a_deferred_task_run_is_woken_and_consumes(
    server: MemoryBroker, publish: Publish, sensor: Sensor
) -> None:
    publishing = threading.Timer(1.0, publish, args=("late",))
    publishing.start()
    outcome = run_task(lambda: sensor(deferrable=True))
    publishing.join()
    assert outcome.state == TaskInstanceState.SUCCESS
    assert bodies(outcome.value) == ["late"]
    assert server.depth("orders") == 0


def test_a_batch_is_returned_in_the_order_of_the_queue(
    server: MemoryBroker,
    publish: Publish,
    sensor: Sensor,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And the log says in words what was found."""
    monkeypatch.setattr(JmsSensor, "log", logging.getLogger("wait"))
    caplog.set_level(logging.INFO, "wait")
    publish("a", "b", "c", "d")
    assert bodies(sensor(max_messages=3).execute(run())) == ["a", "b", "c"]
    (said,) = [each for each in caplog.messages if each.startswith("Checked queue://orders")]
    assert re.fullmatch(
        r"Checked queue://orders: batch \S+ of 3 claimed, 0 repeated messages dropped, .*", said
    )
    assert "ClaimResult" not in caplog.text
    assert bodies(sensor(max_messages=3).execute(run("tuesday"))) == ["d"]
    assert server.depth("orders") == 0


def test_a_retry_and_a_cleared_task_return_the_same_messages_and_take_no_others(
    server: MemoryBroker, publish: Publish, sensor: Sensor
) -> None:
    publish("a", "b", "c")
    first = sensor(max_messages=2).execute(run())
    server.kill()  # nobody is asked
    assert sensor(max_messages=2).execute(run()) == first
    server.restart()
    assert on_queue(server) == ["c"]
    assert bodies(sensor().execute(run("tuesday"))) == ["c"]


def test_each_mapped_task_has_messages_of_its_own(
    server: MemoryBroker, publish: Publish, sensor: Sensor
) -> None:
    publish("a", "b")
    assert bodies(sensor().execute(run(map_index=0))) == ["a"]
    assert bodies(sensor().execute(run(map_index=1))) == ["b"]
    assert bodies(sensor().execute(run(map_index=0))) == ["a"]
    assert server.depth("orders") == 0


def test_a_long_body_is_returned_by_reference_and_read_back_whole(
    server: MemoryBroker, publish: Publish, sensor: Sensor, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish("short", "x" * 5_000)
    publish_status(server, "y" * 5_000)
    value = sensor(max_messages=3, max_body_bytes=1_000).execute(run())
    short, long, properties = value["messages"]
    assert short["message"]["body"] == "short"
    assert "body" not in long["headers"]
    assert properties["headers"]["properties"] == {}
    assert len(json.dumps(value)) < 5_000
    with pytest.raises(ConfigurationError, match=r"isn't in a trusted spool; expected one below file://"):
        bodies(value)
    monkeypatch.setenv("AIRFLOW__JMSJCA__SPOOL_ROOTS", f"/somewhere/else, {spool}")
    assert bodies(value) == ["short", "x" * 5_000, "y" * 5_000]
    assert message_from_event(properties).properties == {"status": "y" * 5_000}
    old = time.time() - 31 * 86_400
    for file in spool.glob(".events/*/*.json"):
        os.utime(file, (old, old))
    publish("z" * 5_000)
    sensor(max_body_bytes=1_000).execute(run("tuesday"))
    with pytest.raises(SpoolError, match="reference_retention_days"):
        bodies(value)
    assert bodies(sensor(max_messages=3, max_body_bytes=1_000).execute(run())) == bodies(
        sensor(max_messages=3, max_body_bytes=100_000).execute(run())
    )


def test_a_cleared_task_whose_batch_was_pruned_says_so(
    server: MemoryBroker, publish: Publish, sensor: Sensor, spool: Path
) -> None:
    publish("a", "b")
    sensor().execute(run())
    everything = DeduplicationWindow(count=0, age=timedelta(0))
    removed = prune(spool, older_than=timedelta(0), collected=True, horizon=everything).removed
    assert [each.whole for each in removed] == [False]
    with pytest.raises(AirflowFailException, match="were removed from the spool"):
        sensor().execute(run())
    assert on_queue(server) == ["b"]


# -- when something dies ------------------------------------------------------------------------------------


def test_a_connection_lost_at_the_acknowledgement_costs_nothing(
    server: MemoryBroker, publish: Publish, sensor: Sensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages are durable by then: the task has them, and the queue's copy is settled when it comes."""
    publish("a", "b")
    unit = MemoryConnection.unit

    def losing(_: MemoryConnection) -> Any:
        monkeypatch.setattr(MemoryConnection, "unit", unit)
        server.kill()
        server.restart()
        raise ConnectionLostError("the broker is gone")

    monkeypatch.setattr(MemoryConnection, "unit", losing)
    assert bodies(sensor().execute(run())) == ["a"]
    assert on_queue(server) == ["b"]


def test_with_the_broker_gone_a_retry_returns_what_was_sealed(
    server: MemoryBroker, publish: Publish, sensor: Sensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between seal and acknowledgement: what the broker repeats is no second message later."""
    publish("a", "b")
    seal = SpoolBatch.seal

    def killed(batch: SpoolBatch, rows: Any = ()) -> Any:
        seal(batch, rows)
        raise KeyboardInterrupt

    monkeypatch.setattr(SpoolBatch, "seal", killed)
    with pytest.raises(KeyboardInterrupt):
        sensor().execute(run())
    monkeypatch.undo()
    monkeypatch.setenv(
        "AIRFLOW_CONN_JMS_TEST", json.dumps({"conn_type": "jms", "host": f"vm://{server.name}"})
    )
    server.kill()
    assert bodies(sensor().execute(run())) == ["a"]
    server.restart()
    assert on_queue(server) == ["a", "b"]
    assert bodies(sensor().execute(run("tuesday"))) == ["b"]
    assert server.depth("orders") == 0


def leave(sensor: Sensor, monkeypatch: pytest.MonkeyPatch, context: Any) -> None:
    """Have a sensor die after it has acknowledged what it took, and before its batch is finished."""

    def killed(_: SpoolBatch) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SpoolBatch, "complete", killed)
        with pytest.raises(KeyboardInterrupt):
            sensor().execute(context)


def named(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING and "was never finished" in record.getMessage()
    ]


LEFT = (
    "Batch dag~~monday~~wait~~{0} was never finished: 1 acknowledged messages are in it and nowhere else. "
    "Unless a retry is still to come, clear task 'wait' of run 'monday' of DAG 'dag'{1}: it continues that "
    "batch"
)


def test_what_an_earlier_run_left_is_named_and_its_cleared_task_returns_it(
    server: MemoryBroker,
    publish: Publish,
    sensor: Sensor,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(JmsSensor, "log", logging.getLogger("wait"))
    publish("a", "b")
    leave(sensor, monkeypatch, run())
    leave(sensor, monkeypatch, run(map_index=3))
    assert server.depth("orders") == 0
    caplog.clear()
    with pytest.raises(AirflowSensorTimeout):
        sensor(timeout=0.3).execute(run("tuesday"))  # looks more than once
    assert named(caplog) == [LEFT.format("-1", ""), LEFT.format("3", ", map index 3")]
    caplog.clear()
    sensor(peek=True).poke(run("tuesday"))
    assert named(caplog) == []
    assert bodies(sensor().execute(run())) == ["a"]
    assert bodies(sensor().execute(run(map_index=3))) == ["b"]
    caplog.clear()
    assert not sensor().poke(run("tuesday"))
    assert named(caplog) == []


def test_what_was_left_is_named_once_though_the_task_leaves_the_worker(
    publish: Publish, sensor: Sensor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(JmsSensor, "log", logging.getLogger("wait"))
    publish("a")
    leave(sensor, monkeypatch, run())
    with pytest.raises(TaskDeferred) as deferred:
        sensor(deferrable=True).execute(run("tuesday"))
    publish("b")
    assert bodies(sensor(deferrable=True).resume(run("tuesday"), fire(deferred.value))) == ["b"]
    assert named(caplog) == [LEFT.format("-1", "")]
    caplog.clear()
    context = run("wednesday")
    context["ti"].get_first_reschedule_date = lambda _: None
    for count in (0, 1):
        with pytest.raises(AirflowRescheduleException):
            sensor(mode="reschedule").execute(context | {"task_reschedule_count": count})
    assert named(caplog) == [LEFT.format("-1", "")]


def test_another_attempt_at_work_is_waited_for(
    server: MemoryBroker, publish: Publish, sensor: Sensor, spool: Path
) -> None:
    publish("a")
    name = TaskKey(dag_id="dag", run_id="monday", task_id="wait").batch_id()
    with SpoolBatch(spool, name, source="queue://orders", activation="jms_test queue://orders"):
        assert not sensor().poke(run())
    assert on_queue(server) == ["a"]
    assert bodies(sensor().execute(run())) == ["a"]


def test_a_consumer_with_the_client_id_does_not_keep_it_away(
    server: MemoryBroker, publish: Publish, sensor: Sensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = {"conn_type": "jms", "host": f"vm://{server.name}", "extra": {"client_id": "risk"}}
    monkeypatch.setenv("AIRFLOW_CONN_JMS_TEST", json.dumps(document))
    consumer = connect(ConnectionSettings(scheme="vm", hosts=((server.name, None),), client_id="risk"))
    publish("a")
    assert bodies(sensor().execute(run())) == ["a"]
    consumer.close()


# -- waiting ------------------------------------------------------------------------------------------------


def test_rescheduled_it_holds_no_worker(publish: Publish, sensor: Sensor) -> None:
    context = run()
    context["ti"].get_first_reschedule_date = lambda _: None
    waiting = sensor(mode="reschedule")
    with pytest.raises(AirflowRescheduleException):
        waiting.execute(context)
    publish("a")
    assert bodies(waiting.execute(context)) == ["a"]


def test_the_trigger_only_looks_and_the_worker_consumes(
    server: MemoryBroker, publish: Publish, sensor: Sensor
) -> None:
    waiting = sensor(deferrable=True)
    with pytest.raises(TaskDeferred) as deferred:
        waiting.execute(run())
    publish("a")
    event = fire(deferred.value)
    assert on_queue(server) == ["a"]
    assert bodies(waiting.resume(run(), event)) == ["a"]
    assert server.depth("orders") == 0


def test_woken_for_nothing_it_waits_before_it_looks_again(publish: Publish, sensor: Sensor) -> None:
    """Somebody else was quicker, or holds what a browser shows: no ping-pong with the triggerer."""
    waiting = sensor(deferrable=True, poke_interval=0.5)
    with pytest.raises(TaskDeferred) as deferred:
        waiting.execute(run())
    first = deferred.value.trigger.serialize()[1]
    publish("a")
    event = fire(deferred.value)
    assert bodies(sensor().execute(run("tuesday"))) == ["a"]
    with pytest.raises(TaskDeferred) as deferred:
        waiting.resume(run(), event)
    again = deferred.value.trigger.serialize()[1]
    assert again["not_before"]["queue://orders"] >= first["not_before"]["queue://orders"] + 0.5
    assert again["deadline"] == first["deadline"]


@pytest.mark.parametrize("deferrable", [False, True])
def test_its_timeout_fails_it_or_skips_it(sensor: Sensor, *, deferrable: bool) -> None:
    def wait(**arguments: Any) -> None:
        waiting = sensor(timeout=0.4, deferrable=deferrable, **arguments)
        try:
            waiting.execute(run())
        except TaskDeferred as deferred:
            waiting.resume_execution("resume", {"event": fire(deferred)}, run())

    with pytest.raises(AirflowSensorTimeout):
        wait()
    for soft in ("soft_fail", "never_fail"):
        with pytest.raises(AirflowSkipException):
            wait(**{soft: True})


@pytest.mark.parametrize("deferrable", [False, True])
def test_an_error_of_the_predicate_fails_skips_or_is_passed_over(
    publish: Publish, sensor: Sensor, server: MemoryBroker, *, deferrable: bool
) -> None:
    def wait(predicate: Callable[[JmsMessage], object], **arguments: Any) -> Any:
        waiting = sensor(predicate=predicate, deferrable=deferrable, timeout=10, **arguments)
        try:
            return waiting.execute(run())
        except TaskDeferred as deferred:
            return waiting.resume_execution("resume", {"event": fire(deferred)}, run())

    def fails(message: JmsMessage) -> bool:
        raise ValueError(f"no {message.body}")

    publish("a")
    for arguments in ({}, {"soft_fail": True}):
        with pytest.raises(ValueError, match="no a"):
            wait(fails, **arguments)
    with pytest.raises(AirflowSkipException) as raised:
        wait(fails, never_fail=True)
    assert isinstance(raised.value.__cause__, ValueError)
    assert on_queue(server) == ["a"]
    errors = iter([ValueError("the first look")])

    def fails_once(message: JmsMessage) -> bool:
        for error in errors:
            raise error
        return message.body == "a"

    assert bodies(wait(fails_once, silent_fail=True)) == ["a"]


def test_a_message_that_comes_with_the_timeout_is_taken(publish: Publish, sensor: Sensor) -> None:
    waiting = sensor(timeout=3, poke_interval=30, deferrable=True, predicate=lambda m: m.body == "b")
    publish("a")
    with pytest.raises(TaskDeferred) as deferred:
        waiting.execute(run())
    event = fire(deferred.value)
    publish("b")
    assert event["event"] == "deadline"
    assert bodies(waiting.resume(run(), event)) == ["b"]


def test_execution_timeout_counts_the_time_it_was_deferred(sensor: Sensor) -> None:
    waiting = sensor(deferrable=True, execution_timeout=timedelta(seconds=0.3))
    with pytest.raises(TaskDeferred) as deferred:
        waiting.execute(run())
    with pytest.raises(AirflowTaskTimeout, match="including the time deferred"):
        waiting.resume(run(), fire(deferred.value))


def test_the_selector_chooses_and_the_trigger_has_it(server: MemoryBroker, sensor: Sensor) -> None:
    waiting = sensor(deferrable=True, message_selector="region = 'eu'")
    with pytest.raises(TaskDeferred) as deferred:
        waiting.execute(run())
    assert deferred.value.trigger.serialize()[1]["message_selector"] == "region = 'eu'"
    assert server.depth("orders") == 0


# -- predicates ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("peek", [False, True])
@pytest.mark.usefixtures("metadata")
def test_a_decorated_function_says_which_message(
    server: MemoryBroker, publish: Publish, spool: Path, *, peek: bool
) -> None:
    publish("1", "500", "7", "900")
    with DAG("large_orders", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:

        @jms_sensor_task(
            destination="orders", jms_conn_id="jms_test", peek=peek, spool_path=str(spool), poke_interval=0.1
        )
        def large(message: JmsMessage, least: int, run_id: str) -> bool:
            assert run_id
            return int(str(message.body)) >= least

        large(100)
    outcome = execute(dag, "large")
    assert outcome.state == TaskInstanceState.SUCCESS
    if peek:
        assert outcome.value["event"] == "ready"
        assert on_queue(server) == ["1", "500", "7", "900"]
    else:
        assert bodies(outcome.value) == ["500"]
        assert on_queue(server) == ["1", "7", "900"]


@pytest.mark.parametrize("peek", [False, True])
def test_what_the_predicate_refuses_stays_and_does_not_satisfy(
    server: MemoryBroker, publish: Publish, sensor: Sensor, *, peek: bool
) -> None:
    publish("a", "b")
    waiting = sensor(peek=peek, predicate=lambda message: message.body == "c")
    assert not waiting.poke(run())
    assert on_queue(server) == ["a", "b"]
    publish("c")
    assert waiting.poke(run())
    assert on_queue(server) == (["a", "b", "c"] if peek else ["a", "b"])


def test_a_predicate_that_raises_fails_the_try_and_takes_nothing(
    server: MemoryBroker, publish: Publish, sensor: Sensor
) -> None:
    publish("a")
    with pytest.raises(ZeroDivisionError):
        sensor(predicate=lambda _: 1 / 0).execute(run())
    assert on_queue(server) == ["a"]


async def asynchronous(_: JmsMessage) -> bool:
    return True


def test_an_asynchronous_predicate_is_refused(server: MemoryBroker, publish: Publish, sensor: Sensor) -> None:
    publish("a")
    with pytest.raises(AirflowFailException, match="predicate is asynchronous"):
        sensor(predicate=asynchronous).execute(run())
    assert on_queue(server) == ["a"]


def test_a_decorated_sensor_has_one_predicate() -> None:
    with pytest.raises(ConfigurationError, match="the decorated function is the predicate"):
        jms_sensor_task(predicate=bool)


# -- failing ------------------------------------------------------------------------------------------------


FAILURES: list[Any] = ["status = 'FAILED'", lambda message: message.properties.get("status") == "FAILED"]


def publish_status(server: MemoryBroker, *statuses: str) -> None:
    connection = connect(ConnectionSettings(scheme="vm", hosts=((server.name, None),)))
    connection.send(
        Outgoing(destination=Destination.queue("orders"), message=JmsMessage.text(each, {"status": each}))
        for each in statuses
    )
    connection.close()


@pytest.mark.parametrize("fail_on", FAILURES)
def test_a_failing_message_is_consumed_alone_and_fails_each_try(
    server: MemoryBroker, sensor: Sensor, fail_on: Any
) -> None:
    publish_status(server, "DONE", "FAILED", "DONE")
    for _ in range(2):
        with pytest.raises(AirflowFailException, match=r"message ID:\S+ of queue://orders satisfies fail_on"):
            sensor(fail_on=fail_on, max_messages=3).execute(run())
        assert on_queue(server) == ["DONE", "DONE"]
    with pytest.raises(AirflowSkipException):
        sensor(fail_on=fail_on, soft_fail=True).execute(run())
    assert bodies(sensor(fail_on=fail_on).execute(run("tuesday"))) == ["DONE"]


@pytest.mark.parametrize("fail_on", FAILURES)
def test_peeking_the_first_message_decides(server: MemoryBroker, sensor: Sensor, fail_on: Any) -> None:
    publish_status(server, "FAILED", "DONE")
    with pytest.raises(AirflowFailException, match="satisfies fail_on"):
        sensor(peek=True, fail_on=fail_on).execute(run())
    assert on_queue(server) == ["FAILED", "DONE"]


def test_deferred_a_failing_message_fails_or_skips(server: MemoryBroker, sensor: Sensor) -> None:
    publish_status(server, "FAILED")
    with pytest.raises(AirflowFailException):
        sensor(fail_on=FAILURES[0], deferrable=True).execute(run())
    with pytest.raises(AirflowSkipException):
        sensor(fail_on=FAILURES[0], deferrable=True, soft_fail=True).execute(run())


# -- what can't be -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"max_messages": 0}, "max_messages is 0"),
        ({"max_messages": 1_001}, "use JmsCollectOperator for more"),
        ({"max_messages": 2, "peek": True}, "expected 1 with peek=True"),
        ({"batch_timeout": 0}, "batch_timeout is 0"),
        ({"max_body_bytes": -1}, "max_body_bytes is -1"),
        ({"predicate": "region = 'eu'"}, "predicate is \"region = 'eu'\"; expected a function"),
        ({"fail_on": "region ="}, "selector"),
        ({"destination": "topic://prices"}, "waits on a queue"),
        # As another task returns it, or a template that is rendered natively.
        ({"destination": None}, "destination is None, of type NoneType; expected a string"),
        ({"destination": 42}, "destination is 42"),
        ({"destination": ["orders"]}, r"destination is \['orders'\]"),
        ({"spool_path": 42}, "spool_path is 42; expected a path"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_taken(
    sensor: Sensor, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(AirflowFailException, match=said):
        sensor(**arguments).execute(run())
