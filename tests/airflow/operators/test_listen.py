"""`JmsListenOperator` and `@task.jms_listener` in task runs over an in-memory broker."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import logging
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    TaskDeferred,
)
from airflow.utils.state import DagRunState, TaskInstanceState

from airflow_provider_jmsjca import (
    ConfigurationError,
    ConnectionSettings,
    Destination,
    JmsListenOperator,
    JmsMessage,
    MemoryBroker,
    Outgoing,
    WantedState,
    connect,
    jms_listener_task,
    memory_broker,
)
from tests.airflow.task_runs import execute, run_task
from tests.internals.engine import RunMonitor
from tests.internals.hooks import installed_store
from tests.internals.operators import RunState
from tests.internals.triggers import JmsListenTrigger
from tests.pace import at_most
from tests.servers.stomp_peer import block, scripted_broker

Publish = Callable[..., None]
pytestmark = [
    pytest.mark.usefixtures("metadata"),
    # A task run loads half of Airflow, whose dependencies warn about each other.
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]
SPEC = {"destination": "queue://orders", "redelivery_handling": "2:move(queue:$.dlq)"}


def listen(on_message: Callable[..., Any], **arguments: Any) -> JmsListenOperator:
    return JmsListenOperator(
        task_id="listen",
        **{"spec": SPEC, "on_message": on_message, "jms_conn_id": "jms_test", "idle_for": 0.5} | arguments,
    )


def test_counts_come_back_and_what_was_sent_is_there(server: MemoryBroker, publish: Publish) -> None:
    publish("good", "bad")

    def handle(delivery: Any) -> None:
        if delivery.body == "bad":
            raise ValueError("no")
        delivery.send("queue://out", JmsMessage.text(delivery.body))

    outcome = run_task(lambda: listen(handle))
    assert outcome.state == TaskInstanceState.SUCCESS
    wanted = {"delivered": 3, "committed": 1, "rolled_back": 2, "moved": 1, "ended_by": "idle"}
    assert {name: outcome.value[name] for name in wanted} == wanted
    assert [message.body for message in server.messages("out")] == ["good"]
    assert [message.body for message in server.messages("orders.dlq")] == ["bad"]


def test_with_use_store_counts_go_on_in_the_next_task_run(
    server: MemoryBroker, publish: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J129, and past J131: the store of the installation keeps them."""
    monkeypatch.setenv("AIRFLOW__JMSJCA__STORE_URL", f"sqlite:///{tmp_path / 'store.db'}")
    publish("bad")
    seen: list[int] = []

    def handle(delivery: Any) -> None:
        seen.append(delivery.redelivery_count)
        delivery.stop_message_delivery("enough")
        raise ValueError("no")

    spec = SPEC | {"use_store": True}
    for _ in range(3):
        run_task(lambda: listen(handle, spec=spec))
        resume_all()
    assert seen == [0, 1]
    assert [message.body for message in server.messages("orders.dlq")] == ["bad"]


def test_a_task_fails_when_the_same_message_only_fails(
    server: MemoryBroker, publish: Publish, caplog: pytest.LogCaptureFixture
) -> None:
    """Once it went on for ever: the message was never moved, and the queue never empty."""
    publish("good", "bad")

    def handle(delivery: Any) -> None:
        if delivery.body == "bad":
            raise ValueError("no")

    spec = {"destination": "queue://orders", "redelivery_handling": "1:1"}
    outcome = run_task(lambda: listen(handle, spec=spec, idle_for=0.3, defer_after=0.2))
    assert outcome.state == TaskInstanceState.FAILED
    assert "the same messages failed again and again" in caplog.text
    assert [message.body for message in server.messages("orders")] == ["bad"]


def test_a_task_fails_when_the_broker_keeps_messages_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with scripted_broker(block, step="SEND", server="RabbitMQ/3.10.8", most=1) as peer:
        url, extra = f"stomp://127.0.0.1:{peer.port}", {"reply_timeout": 1, "heart_beat": 0}
        connection = {"conn_type": "jms", "host": url, "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_JMS_TEST", json.dumps(connection))
        operator = listen(lambda delivery: delivery.send("queue://out", delivery.message))
        with pytest.raises(AirflowException, match="stopped answering on a connection of this task"):
            operator.execute(CONTEXT)


@pytest.mark.usefixtures("server")
def test_a_task_fails_when_a_parked_message_only_fails(publish: Publish) -> None:
    """While it is parked the queue is empty, so the task is deferred between two failures."""
    publish("bad")

    def handle(delivery: Any) -> None:
        raise ValueError(delivery.body)

    spec = {"destination": "queue://orders", "redelivery_handling": "1:6000"}
    operator = listen(
        handle, spec=spec, non_blocking_redelivery=True, idle_for=60, failure_timeout=0.1, defer_after=0.2
    )
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(CONTEXT)
    state = deferred.value.trigger.serialize()[1]["state"]
    assert state["failing"][0] is None
    # As after nine more returns of the message: it is due, fails, and is parked again.
    state |= {"failing": [time.time() - 60, 0], "so_far": state["so_far"] | {"rolled_back": 20}}
    event = {"event": "ready", "watch": "queue://orders", "message_id": "m", "deliveries": 1, "state": state}
    with pytest.raises(AirflowException, match="the same messages failed again and again"):
        operator.resume(CONTEXT, event)


def test_a_line_of_the_log_says_that_the_broker_is_away(
    server: MemoryBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without that it read as if the queue were empty."""
    monkeypatch.setattr("airflow_provider_jmsjca.operators.listen._PROGRESS", timedelta(seconds=0.1))
    monkeypatch.setattr(JmsListenOperator, "log", logging.getLogger("listen"))
    server.kill()
    with caplog.at_level(logging.INFO):
        run_task(lambda: listen(print, run_for=1, defer_after=None))
    assert "Listening: nothing yet; not up: Connecting" in caplog.messages


def test_what_a_handler_sends_is_looked_up_once_for_each_name(
    server: MemoryBroker, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J87: as the sessions of a connection do."""
    monkeypatch.setenv("AIRFLOW_VAR_JMS/BOOKED", "queue://q1234")
    publish("a", "b")

    def handle(delivery: Any) -> None:
        delivery.send("lookup://jms/booked", JmsMessage.text(delivery.body))
        monkeypatch.delenv("AIRFLOW_VAR_JMS/BOOKED", raising=False)

    outcome = run_task(lambda: listen(handle))
    assert outcome.value["committed"] == 2
    assert [message.body for message in server.messages("q1234")] == ["a", "b"]


def test_a_handler_that_sends_to_what_is_not_there_is_rolled_back(
    server: MemoryBroker, publish: Publish
) -> None:
    publish("a")
    outcome = run_task(
        lambda: listen(lambda delivery: delivery.send("lookup://nowhere", JmsMessage.text("x")))
    )
    assert (outcome.value["committed"], outcome.value["moved"]) == (0, 1)
    (dead,) = server.messages("orders.dlq")
    assert "lookup://nowhere: there is no such administered object" in str(dead.properties)


def test_ends_at_max_messages(server: MemoryBroker, publish: Publish) -> None:
    publish("a", "b", "c")
    outcome = run_task(lambda: listen(lambda _: None, max_messages=2))
    assert (outcome.value["committed"], outcome.value["ended_by"]) == (2, "count")
    assert [message.body for message in server.messages("orders")] == ["c"]


def resume_all() -> int:
    with contextlib.closing(installed_store()) as store:
        return store.activations.resume([each.activation for each in store.activations.page()])


def stop_delivery(delivery: Any) -> None:
    delivery.stop_message_delivery("disk full")


def test_a_stop_by_the_handler_fails_the_task_and_lasts_with_a_store_j172(
    server: MemoryBroker,
    publish: Publish,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """J172: only an action from outside resumes the delivery; a continuous DAG would consume on at once."""
    monkeypatch.setenv("AIRFLOW__JMSJCA__STORE_URL", f"sqlite:///{tmp_path / 'store.db'}")
    publish("a", "b")
    spec = SPEC | {"use_store": True}
    assert run_task(lambda: listen(stop_delivery, spec=spec)).state == TaskInstanceState.FAILED
    assert (
        "the handler stopped message delivery: disk full; 1 messages are settled" in capsys.readouterr().out
    )
    assert run_task(lambda: listen(stop_delivery, spec=spec)).state == TaskInstanceState.SKIPPED
    deferred = listen(stop_delivery, spec=spec)
    with pytest.raises(
        AirflowSkipException, match=r"disk full\. Nothing is consumed until somebody resumes it"
    ):
        deferred.resume(
            CONTEXT, {"event": "ready", "watch": "", "message_id": "1", "state": RunState().as_state()}
        )
    assert [message.body for message in server.messages("orders")] == ["b"]
    assert resume_all() == 1
    assert run_task(lambda: listen(lambda _: None, spec=spec)).value["committed"] == 1


def test_without_a_store_a_stop_by_the_handler_fails_the_task_j172(
    server: MemoryBroker, publish: Publish, capsys: pytest.CaptureFixture[str]
) -> None:
    publish("a", "b")
    assert run_task(lambda: listen(stop_delivery)).state == TaskInstanceState.FAILED
    assert "Without use_store the stop isn't stored: the next run consumes again" in capsys.readouterr().out
    assert [message.body for message in server.messages("orders")] == ["b"]


def test_options_of_the_connection_hold(
    server: MemoryBroker, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J95, J113: the URL's word on redelivery reaches the listener."""
    url = f"vm://{server.name}?JMSJCA.redeliveryhandling=1:move(queue:far)"
    monkeypatch.setenv("AIRFLOW_CONN_JMS_TEST", f'{{"conn_type": "jms", "host": "{url}"}}')
    publish("a")

    def fail(_: Any) -> None:
        raise ValueError("no")

    outcome = run_task(lambda: listen(fail, spec={"destination": "queue://orders"}))
    assert outcome.value["moved"] == 1
    assert [message.body for message in server.messages("far")] == ["a"]


class _Instance:
    dag_id, task_id, run_id, map_index = "d", "listen", "r", -1


CONTEXT: Any = {"ti": _Instance()}


def test_an_empty_queue_is_waited_for_in_the_triggerer(server: MemoryBroker, publish: Publish) -> None:
    """It goes on with its counts, and ends at what is left of its limits."""
    publish("a")
    operator = listen(lambda _: None, idle_for=60, defer_after=0.2, max_messages=2)
    before = time.time()
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(CONTEXT)
    trigger = deferred.value.trigger
    assert isinstance(trigger, JmsListenTrigger)
    assert trigger.destination == "queue://orders"
    assert trigger.deadline is not None
    assert before + 60 <= trigger.deadline <= time.time() + 60
    assert server.connections == 0
    publish("b", "c")
    event = {"event": "ready", "state": trigger.state, "watch": "queue://orders", "message_id": None}
    report = operator.resume(CONTEXT, event | {"deliveries": 0})
    assert (report["committed"], report["ended_by"]) == (2, "count")


def test_the_last_message_may_come_between_idleness_and_the_end(
    server: MemoryBroker, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is deferred when all is done."""
    until_end = RunMonitor.until_end

    def late(watch: RunMonitor, running: Any) -> Any:
        found = until_end(watch, running)
        publish("b")
        deadline = time.monotonic() + 5
        while running.counts.settled < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        return found

    monkeypatch.setattr(RunMonitor, "until_end", late)
    publish("a")
    operator = listen(lambda _: None, idle_for=60, defer_after=0.2, max_messages=2)
    report = operator.execute(CONTEXT)
    assert (report["committed"], report["ended_by"]) == (2, "count")
    assert not server.messages("orders")


def test_the_deadline_may_pass_while_deferred(server: MemoryBroker) -> None:
    operator = listen(lambda _: None, idle_for=60, defer_after=0.1)
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(CONTEXT)
    trigger = deferred.value.trigger
    assert isinstance(trigger, JmsListenTrigger)
    report = operator.resume(CONTEXT, {"event": "deadline", "state": trigger.state})
    assert (report["committed"], report["ended_by"]) == (0, "idle")
    del server


def test_several_queues_are_waited_for_together(server: MemoryBroker, publish: Publish) -> None:
    """I5: a message on any of them wakes the task, a fault with one of them doesn't hide the others."""
    operator = listen(
        lambda _: None,
        spec={"destination": ["queue://a", "queue://b"]},
        defer_after=0.1,
        idle_for=60,
        max_messages=1,
    )
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(CONTEXT)
    trigger = deferred.value.trigger
    assert isinstance(trigger, JmsListenTrigger)
    assert (trigger.destination, trigger.further) == ("queue://a", ["queue://b"])
    publish("x", to="queue://b")
    _, arguments = trigger.serialize()

    async def first() -> Any:
        return [event.payload async for event in JmsListenTrigger(**arguments).run()]

    server.forbid(Destination.queue("a"))
    (payload,) = asyncio.run(first())
    assert (payload["event"], payload["destination"]) == ("ready", "queue://b")
    server.permit(Destination.queue("a"))
    assert operator.resume(CONTEXT, payload | {"state": trigger.state})["committed"] == 1


@pytest.fixture
def members(monkeypatch: pytest.MonkeyPatch) -> list[MemoryBroker]:
    """Two brokers behind the Airflow connection `jms_test`."""
    found = [memory_broker(uuid.uuid4().hex) for _ in range(2)]
    url = f"vm://{','.join(each.name for each in found)}"
    monkeypatch.setenv("AIRFLOW_CONN_JMS_TEST", json.dumps({"conn_type": "jms", "host": url}))
    return found


def put(member: MemoryBroker, *bodies: str) -> None:
    connection = connect(ConnectionSettings(scheme="vm", hosts=((member.name, None),)))
    connection.send(
        Outgoing(destination=Destination.queue("orders"), message=JmsMessage.text(body)) for body in bodies
    )
    connection.close()


def test_every_member_is_listened_on(members: list[MemoryBroker]) -> None:
    """W12: each host of the connection; the counts are sums, and the report says which weren't there."""
    for number, member in enumerate(members):
        put(member, f"{number} a", f"{number} b")
    spec = SPEC | {"distributed_destination_connection": "every_member"}
    outcome = run_task(lambda: listen(lambda _: None, spec=spec))
    assert (outcome.value["committed"], outcome.value["members_down"]) == (4, [])
    put(members[0], "c")
    members[1].kill()
    outcome = run_task(lambda: listen(lambda _: None, spec=spec))
    assert (outcome.value["committed"], outcome.value["members_down"]) == (1, [members[1].name])


@pytest.mark.parametrize("waker", [0, 1])
def test_every_member_is_watched_while_deferred(members: list[MemoryBroker], waker: int) -> None:
    """W12: a message on any of them wakes the task; one that is down doesn't hide the others."""
    spec = SPEC | {"distributed_destination_connection": "every_member"}
    operator = listen(lambda _: None, spec=spec, defer_after=0.1, idle_for=60, max_messages=1)
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(CONTEXT)
    trigger = deferred.value.trigger
    assert isinstance(trigger, JmsListenTrigger)
    assert trigger.members == [each.name for each in members]
    put(members[waker], "x")
    members[1 - waker].kill()
    _, arguments = trigger.serialize()

    async def first() -> Any:
        return [event.payload async for event in JmsListenTrigger(**arguments).run()]

    (payload,) = asyncio.run(first())
    assert payload["event"] == "ready"
    assert operator.resume(CONTEXT, payload | {"state": trigger.state})["committed"] == 1


@pytest.mark.parametrize(("send", "event"), [(True, "ready"), (False, "deadline")])
def test_deferred_for_real(server: MemoryBroker, publish: Publish, send: bool, event: str) -> None:
    """`dag.test()` runs the trigger: messages or the deadline wake the task."""
    del server

    def later() -> None:
        time.sleep(1)
        publish("a")

    sender = threading.Thread(target=later)
    if send:
        sender.start()
    outcome = run_task(lambda: listen(lambda _: None, idle_for=4, defer_after=0.2, poll_interval=0.2))
    if send:
        sender.join()
    assert outcome.state == TaskInstanceState.SUCCESS
    assert outcome.value["committed"] == (1 if event == "ready" else 0)


def test_with_an_address_of_its_own_it_needs_no_airflow_connection(
    server: MemoryBroker, publish: Publish
) -> None:
    publish("a")
    spec = {"destination": "queue://orders", "connection_url": f"vm://{server.name}"}
    operator = listen(lambda _: None, spec=spec, jms_conn_id=None, max_messages=1, run_for=20)
    assert operator.execute(CONTEXT)["committed"] == 1


def test_killed_it_stops_cleanly(server: MemoryBroker, publish: Publish) -> None:
    """What is being handled is committed, the rest goes back."""
    publish("a", "b")
    operators: list[JmsListenOperator] = []

    def kill(_: Any) -> None:
        operators[0].on_kill()

    operators.append(listen(kill))
    with pytest.raises(Exception, match="told to stop"):
        operators[0].execute(CONTEXT)
    assert [message.body for message in server.messages("orders")] in (["b"], [])
    assert server.connections == 0


def test_killed_it_leaves_a_long_call_alone_before_airflow_ends_the_process(
    server: MemoryBroker, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5 seconds after it told it to end, whatever `stop_timeout` says."""
    monkeypatch.setattr("airflow_provider_jmsjca.operators.listen._WITHIN_IF_KILLED", timedelta(seconds=0.3))
    publish("a")
    called, returns = threading.Event(), threading.Event()

    def handle(_: Any) -> None:
        called.set()
        returns.wait(20)

    operator = listen(handle, stop_timeout=20)

    def kill() -> None:
        called.wait(5)
        operator.on_kill()

    killing = threading.Thread(target=kill)
    killing.start()
    began = time.monotonic()
    with pytest.raises(Exception, match="told to stop; 0 messages are settled"):
        operator.execute(CONTEXT)
    assert time.monotonic() - began < at_most(5)
    assert [message.body for message in server.messages("orders")] == ["a"]
    assert server.connections == 0
    returns.set()
    killing.join()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"idle_for": None}, "a listener needs an end: max_messages, run_for or idle_for"),
        ({"max_messages": "10"}, "max_messages is '10'; expected a whole number of at least 1"),
        ({"run_for": 0}, "run_for is 0; expected seconds above 0, or None for no such end"),
        ({"idle_for": -5}, "idle_for is -5; expected seconds above 0, or None for no such end"),
        ({"defer_after": 0}, "defer_after is 0; expected seconds above 0, or None to keep the worker"),
        ({"poll_interval": "x"}, "poll_interval is 'x'; expected seconds above 0"),
        ({"stop_timeout": -1}, "stop_timeout is -1; expected seconds of at least 0"),
        (
            {"run_for": -1, "poll_interval": 0},
            (
                "run_for is -1; expected seconds above 0, or None for no such end; "
                "poll_interval is 0; expected seconds above 0"
            ),
        ),
    ],
)
def test_bad_numbers(server: MemoryBroker, publish: Publish, arguments: dict[str, Any], said: str) -> None:
    publish("a")
    with pytest.raises(AirflowFailException) as found:
        listen(lambda _: None, **arguments).execute(CONTEXT)
    assert str(found.value) == said
    assert server.depth("orders") == 1


def test_a_spec_and_fields_of_one_are_refused() -> None:
    """One of them would be ignored."""
    with pytest.raises(ConfigurationError, match="got spec together with destination, name; put these"):
        jms_listener_task(spec=SPEC, destination="orders", name="x", idle_for=1)


def test_it_can_be_copied() -> None:
    """As Airflow does with a part of a DAG."""
    assert copy.deepcopy(listen(lambda _: None)).idle_for == 0.5


def test_decorated_function(server: MemoryBroker, publish: Publish) -> None:
    """Its first argument is the message; the others come from the call and from the context."""
    publish("a")
    got: list[tuple[Any, str, str]] = []
    start = datetime(2026, 1, 1, tzinfo=UTC)
    with DAG("decorated", schedule=None, start_date=start) as dag:

        @jms_listener_task(
            destination="orders", destination_type="queue", jms_conn_id="jms_test", idle_for=0.5
        )
        def book(delivery: Any, place: str, dag_run: Any = None) -> None:
            got.append((delivery.body, place, type(dag_run).__name__))

        book("warehouse")
    outcome = execute(dag, "book")
    assert outcome.run.state == DagRunState.SUCCESS
    assert [item[:2] for item in got] == [("a", "warehouse")]
    assert got[0][2] != "NoneType"
    assert outcome.value["committed"] == 1
    del server


def test_a_decorated_function_may_be_expanded_over_queues(server: MemoryBroker, publish: Publish) -> None:
    """The decorator names none; the argument `destination` of the function does."""
    publish("a")
    got: list[tuple[Any, str]] = []
    with DAG("expanded", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:

        @jms_listener_task(jms_conn_id="jms_test", idle_for=0.5)
        def book(delivery: Any, destination: str) -> None:
            got.append((delivery.body, destination))

        book.expand(destination=["queue://orders"])
    outcome = execute(dag, "book")
    assert outcome.run.state == DagRunState.SUCCESS
    assert got == [("a", "queue://orders")]
    assert server.depth("orders") == 0


def test_a_destination_of_the_decorator_beats_the_argument_of_that_name(publish: Publish) -> None:
    publish("a")
    got: list[str] = []
    with DAG("both", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:

        @jms_listener_task(destination="queue://orders", jms_conn_id="jms_test", idle_for=0.5)
        def book(_: Any, destination: str) -> None:
            got.append(destination)

        book("the warehouse")
    assert execute(dag, "book").run.state == DagRunState.SUCCESS
    assert got == ["the warehouse"]


def test_registered_as_task_jms_listener() -> None:
    """`@task.jms_listener`, where the package is installed."""
    from tests.internals.provider import get_provider_info  # noqa: PLC0415

    assert {
        "name": "jms_listener",
        "class-name": "airflow_provider_jmsjca.decorators.listener.jms_listener_task",
    } in get_provider_info()["task-decorators"]


@pytest.fixture
def use_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__JMSJCA__STORE_URL", f"sqlite:///{tmp_path / 'store.db'}")


@pytest.mark.usefixtures("use_store")
@pytest.mark.parametrize(
    "outcome",
    [(WantedState.DRAINED, TaskInstanceState.SUCCESS), (WantedState.STOPPED, TaskInstanceState.FAILED)],
    ids=["drained", "stopped"],
)
def test_a_task_is_registered_and_obeys_a_request(
    server: MemoryBroker,
    publish: Publish,
    caplog: pytest.LogCaptureFixture,
    outcome: tuple[WantedState, TaskInstanceState],
) -> None:
    """Without `use_store` too. A drained task keeps what it did; the next one is refused, and skipped."""
    wanted, state = outcome
    publish("a")

    def request(_: Any) -> None:
        with contextlib.closing(installed_store()) as store:
            (run,) = store.activations.runs()
            assert ".listen, run " in run.report.owner
            store.activations.request_state(run.report.activation, wanted, reason="disk full", asked_by="ada")

    assert run_task(lambda: listen(request, idle_for=60)).state == state
    assert f"{wanted} since " in caplog.text, "the task's log says so"
    publish("b")
    assert run_task(lambda: listen(lambda _: None)).state == TaskInstanceState.SKIPPED
    assert [message.body for message in server.messages("orders")] == ["b"]
    assert resume_all() == 1
    assert run_task(lambda: listen(lambda _: None)).value["committed"] == 1
