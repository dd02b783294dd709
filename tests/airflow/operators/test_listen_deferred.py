"""`JmsListenOperator` while it is deferred: what the triggerer watches, and how the task goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowSkipException,
    AirflowTaskTimeout,
    TaskDeferred,
)

from airflow_provider_jmsjca import (
    ConnectionSettings,
    Destination,
    JmsConnection,
    JmsListenOperator,
    JmsMessage,
    MemoryBroker,
    Outgoing,
    WantedState,
    connect,
    memory_broker,
    open_store,
)
from tests.internals.triggers import JmsListenTrigger
from tests.pace import at_most
from tests.unit.engine.listening import until

Publish = Callable[..., None]
Change = Callable[..., None]
Event = dict[str, Any]
# Operators load half of Airflow, whose dependencies warn about each other.
pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]
ORDERS = Destination.queue("orders")
SPEC = {"destination": "queue://orders"}
EVERY_MEMBER = SPEC | {"distributed_destination_connection": "every_member"}


class _Instance:
    dag_id, task_id, run_id, map_index = "d", "listen", "r", -1


CONTEXT: Any = {"ti": _Instance()}


@pytest.fixture
def change(server: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> Change:
    """Change the Airflow connection that leads to the in-memory broker."""

    def changed(query: str = "", **fields: Any) -> None:
        document = {"conn_type": "jms", "host": f"vm://{server.name}{query}", **fields}
        monkeypatch.setenv("AIRFLOW_CONN_JMS_TEST", json.dumps(document))

    return changed


def listen(on_message: Callable[..., Any] = lambda _: None, **arguments: Any) -> JmsListenOperator:
    given = {"spec": SPEC, "jms_conn_id": "jms_test", "defer_after": 0.2, "poll_interval": 0.1}
    return JmsListenOperator(task_id="listen", on_message=on_message, **{**given, **arguments})


def connection_to(server: MemoryBroker) -> Any:
    return connect(ConnectionSettings(scheme="vm", hosts=((server.name, None),)))


def put(server: MemoryBroker, body: str, properties: dict[str, Any] | None = None) -> None:
    connection = connection_to(server)
    connection.send([Outgoing(destination=ORDERS, message=JmsMessage.text(body, properties or {}))])
    connection.close()


def take(server: MemoryBroker) -> None:
    """Be the faster consumer."""
    with JmsConnection(connection_to(server)) as connection, connection.session() as session:
        assert session.receive(ORDERS, timeout=20) is not None


def deferred(call: Callable[[], Any]) -> JmsListenTrigger:
    with pytest.raises(TaskDeferred) as found:
        call()
    trigger = found.value.trigger
    assert isinstance(trigger, JmsListenTrigger)
    return trigger


def first_trigger(operator: JmsListenOperator) -> JmsListenTrigger:
    return deferred(lambda: operator.execute(CONTEXT))


def event_of(trigger: JmsListenTrigger, meanwhile: Callable[[], Any] | None = None) -> Event:
    """Run a trigger as the triggerer does, from what is in the database."""
    _, arguments = json.loads(json.dumps(trigger.serialize()))

    async def run() -> Event:
        async def first() -> list[Event]:
            return [event.payload async for event in JmsListenTrigger(**arguments).run()]

        running = asyncio.create_task(first())
        if meanwhile is not None:
            await asyncio.sleep(0.3)
            meanwhile()
        (payload,) = await asyncio.wait_for(running, 10)
        return payload

    return asyncio.run(run())


# What is watched


@pytest.mark.parametrize(
    "how",
    [
        {"connection_url": "vm://{other}"},
        {"connection_url": "lookup://jms_other"},
        {"username": "app"},
    ],
)
def test_a_spec_that_connects_otherwise_keeps_the_worker(
    server: MemoryBroker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    how: dict[str, str],
) -> None:
    """The triggerer knows the connection only: it would watch another broker, or as somebody else."""
    other = memory_broker(uuid.uuid4().hex)
    monkeypatch.setenv(
        "AIRFLOW_CONN_JMS_OTHER", json.dumps({"conn_type": "jms", "host": f"vm://{other.name}"})
    )
    spec = SPEC | {name: text.format(other=other.name) for name, text in how.items()}
    monkeypatch.setattr(JmsListenOperator, "log", logging.getLogger("listen"))
    operator = listen(spec=spec, max_messages=1, run_for=1)
    with caplog.at_level(logging.INFO):
        assert operator.execute(CONTEXT)["ended_by"] == "time"
    assert "Not deferred while no message arrives" in caplog.text
    put(server if "username" in how else other, "a")
    assert listen(spec=spec, max_messages=1).execute(CONTEXT)["committed"] == 1


def test_an_address_that_only_the_spec_has(server: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_JMS_TEST", json.dumps({"conn_type": "jms"}))
    spec = SPEC | {"connection_url": f"vm://{server.name}"}
    assert listen(spec=spec, run_for=0.5).execute(CONTEXT)["ended_by"] == "time"


def test_a_client_id_of_the_spec_does_not_keep_the_worker(server: MemoryBroker) -> None:
    first_trigger(listen(spec=SPEC | {"client_id": "mine"}, idle_for=60))
    del server


def test_the_selector_of_the_spec_holds_while_deferred(server: MemoryBroker, change: Change) -> None:
    """J57: the activation's word beats the connection's, which isn't heard a second time."""
    change("?JMSJCA.selector=x%3D1")
    operator = listen(spec=SPEC | {"selector_override": "y = 2"}, max_messages=1)
    trigger = first_trigger(operator)
    put(server, "a", {"y": 2})
    payload = event_of(trigger)
    assert payload["event"] == "ready"
    assert operator.resume(CONTEXT, payload)["committed"] == 1


def test_the_watch_leaves_the_client_id_to_the_consumer(server: MemoryBroker, change: Change) -> None:
    """The triggerer keeps its connection for a while after the event."""
    change(extra={"client_id": "risk"})
    operator = listen(max_messages=1, run_for=5)
    trigger = first_trigger(operator)
    put(server, "a")
    assert operator.resume(CONTEXT, event_of(trigger))["committed"] == 1


# `idle_for`


def test_idle_for_goes_on_through_wake_ups_that_bring_nothing(
    server: MemoryBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(JmsListenOperator, "log", logging.getLogger("listen"))
    caplog.set_level(logging.INFO, "listen")
    operator = listen(idle_for=2)
    trigger = first_trigger(operator)
    began, deadline = time.monotonic(), trigger.deadline
    while True:
        put(server, "a")
        payload = event_of(trigger)
        take(server)
        try:
            report = operator.resume(CONTEXT, payload)
        except TaskDeferred as again:
            trigger = again.trigger  # type: ignore[assignment]
            assert trigger.deadline == deadline
            continue
        break
    assert (report["ended_by"], report["committed"]) == ("idle", 0)
    assert time.monotonic() - began < 2 + at_most(6)
    assert (
        "The task ends: no message arrived for 2 s (`idle_for`), including the time deferred"
        in caplog.messages
    )


def test_a_message_renews_idle_for(server: MemoryBroker) -> None:
    operator = listen(idle_for=60)
    trigger = first_trigger(operator)
    put(server, "a")
    payload = event_of(trigger)
    again = deferred(lambda: operator.resume(CONTEXT, payload))
    assert again.deadline is not None
    assert trigger.deadline is not None
    assert again.deadline > trigger.deadline
    assert again.not_before == {}


def test_a_message_that_another_consumer_holds_does_not_wake_it_in_a_loop(server: MemoryBroker) -> None:
    """A browsed queue shows it."""
    operator = listen(idle_for=60, poll_interval=30)
    trigger = first_trigger(operator)
    put(server, "a")
    payload = event_of(trigger)
    take(server)
    before = time.time()
    again = deferred(lambda: operator.resume(CONTEXT, payload))
    assert list(again.not_before) == ["queue://orders"]
    assert again.not_before["queue://orders"] >= before + 30


def test_a_queue_that_rests_is_looked_at_later(server: MemoryBroker) -> None:
    put(server, "a")
    trigger = JmsListenTrigger(
        jms_conn_id="jms_test",
        destination="queue://orders",
        not_before={"queue://orders": time.time() + 1},
    )
    began = time.monotonic()
    payload = event_of(trigger)
    assert time.monotonic() - began >= 0.9
    assert (payload["watch"], payload["deliveries"]) == ("queue://orders", 0)
    assert payload["message_id"] == server.messages("orders")[0].message_id


def test_a_deferred_listener_is_registered_as_waiting_and_obeys(
    server: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    monkeypatch.setenv("AIRFLOW__JMSJCA__STORE_URL", url)
    operator = listen(idle_for=60)
    with contextlib.closing(open_store(url)) as store:
        trigger = first_trigger(operator)

        def status() -> str:
            return str(store.activations.runs()[-1].report.status)

        def reaches(wanted: str) -> None:
            until(lambda: status() == wanted)

        async def run() -> list[Event]:
            running = asyncio.create_task(first())
            await asyncio.to_thread(reaches, "waiting")
            found = store.activations.runs()[-1].report
            assert found.activation.startswith("queue://orders at vm://")
            assert found.destination == "queue://orders"
            for wanted in (WantedState.SUSPENDED, WantedState.STOPPED):
                store.activations.request_state(
                    found.activation, wanted, reason="the disk is full", asked_by="ada"
                )
                if wanted is WantedState.SUSPENDED:
                    await asyncio.to_thread(reaches, "suspended")
                    put(server, "a")
                    await asyncio.sleep(0.5)
                    assert not running.done(), "the task stays deferred while it is suspended"
            return await asyncio.wait_for(running, 20)

        async def first() -> list[Event]:
            _, arguments = json.loads(json.dumps(trigger.serialize()))
            return [event.payload async for event in JmsListenTrigger(**arguments).run()]

        (payload,) = asyncio.run(run())
        assert payload["event"] == "requested"
        reaches("ended")
        with pytest.raises(AirflowSkipException, match=r"by ada .*: the disk is full"):
            operator.resume(CONTEXT, payload)
    assert len(server.messages("orders")) == 1


def test_only_a_broker_that_answers_makes_it_idle(server: MemoryBroker) -> None:
    """An outage doesn't count, as at the worker."""
    operator = listen(idle_for=1, run_for=4)
    trigger = first_trigger(operator)
    server.kill()
    payload = event_of(trigger)
    assert payload["event"] == "deadline"
    assert operator.resume(CONTEXT, payload)["ended_by"] == "time"


def test_what_came_at_the_last_moment_is_handled(server: MemoryBroker) -> None:
    operator = listen(idle_for=1)
    trigger = first_trigger(operator)
    payload = event_of(trigger)
    assert payload["event"] == "deadline"
    put(server, "a")
    again = deferred(lambda: operator.resume(CONTEXT, payload))
    assert again.state["so_far"]["committed"] == 1


def test_run_for_is_the_end_whatever_the_clock_of_the_worker(
    server: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = listen(run_for=1)
    payload = event_of(first_trigger(operator))
    now = time.time()
    monkeypatch.setattr("airflow_provider_jmsjca.operators.listen.time.time", lambda: now - 0.5)
    report = operator.resume(CONTEXT, payload)
    assert (report["ended_by"], "members_down" in report) == ("time", False)
    del server


@pytest.mark.parametrize("end", [{"idle_for": 1}, {"run_for": 1}])
def test_members_that_are_down_are_reported(monkeypatch: pytest.MonkeyPatch, end: dict[str, float]) -> None:
    """W12: also when it ended while it was deferred."""
    members = [memory_broker(uuid.uuid4().hex) for _ in range(2)]
    url = f"vm://{','.join(each.name for each in members)}"
    monkeypatch.setenv("AIRFLOW_CONN_JMS_TEST", json.dumps({"conn_type": "jms", "host": url}))
    members[1].kill()
    operator = listen(spec=EVERY_MEMBER, **end)
    report = operator.resume(CONTEXT, event_of(first_trigger(operator)))
    assert report["members_down"] == [members[1].name]


# Refusals


def test_a_queue_that_is_refused_is_tried_again(server: MemoryBroker) -> None:
    spec = {"destination": ["queue://a", "queue://orders"]}
    operator = listen(spec=spec, max_messages=1)
    trigger = first_trigger(operator)
    server.forbid(ORDERS)

    def mend() -> None:
        server.permit(ORDERS)
        put(server, "x")

    payload = event_of(trigger, mend)
    assert payload["destination"] == "queue://orders"
    assert operator.resume(CONTEXT, payload)["committed"] == 1


def test_all_are_refused(server: MemoryBroker) -> None:
    spec = {"destination": ["queue://a", "queue://orders"]}
    operator = listen(spec=spec, max_messages=1)
    trigger = first_trigger(operator)
    for queue in (ORDERS, Destination.queue("a")):
        server.forbid(queue)
    payload = event_of(trigger)
    assert payload["event"] == "error"
    with pytest.raises(AirflowFailException, match="orders"):
        operator.resume(CONTEXT, payload)


def test_retry_permanent_errors_holds_while_deferred(server: MemoryBroker) -> None:
    operator = listen(spec=SPEC | {"retry_permanent_errors": True}, max_messages=1)
    trigger = first_trigger(operator)
    server.forbid(ORDERS)

    def mend() -> None:
        server.permit(ORDERS)
        put(server, "x")

    assert event_of(trigger, mend)["event"] == "ready"


# Airflow's own timeout


@pytest.mark.usefixtures("server")
def test_execution_timeout_ends_it_while_it_is_deferred() -> None:
    operator = listen(max_messages=1, execution_timeout=timedelta(seconds=1))
    with pytest.raises(TaskDeferred) as found:
        operator.execute(CONTEXT)
    assert found.value.timeout is not None  # for when no triggerer runs
    assert timedelta(seconds=1) <= found.value.timeout <= timedelta(minutes=1)
    trigger = found.value.trigger
    assert isinstance(trigger, JmsListenTrigger)
    event = event_of(trigger)
    assert event["event"] == "deadline"
    with pytest.raises(AirflowTaskTimeout, match="including the time deferred"):
        listen(max_messages=1, execution_timeout=timedelta(seconds=1)).resume(CONTEXT, event)


def test_execution_timeout_goes_on_from_the_first_start(server: MemoryBroker) -> None:
    """Airflow begins to count anew whenever a task comes back from its deferral."""

    def slow(_: Any) -> None:
        time.sleep(5)

    def operator() -> JmsListenOperator:
        return listen(slow, max_messages=1, execution_timeout=timedelta(seconds=2.5), stop_timeout=0)

    began = time.monotonic()
    trigger = first_trigger(operator())
    event = event_of(trigger, lambda: put(server, "a"))
    assert event["event"] == "ready"
    with pytest.raises(AirflowTaskTimeout, match="including the time deferred"):
        operator().resume(CONTEXT, event)
    assert 2 <= time.monotonic() - began < 2.5 + at_most(2)


@pytest.mark.usefixtures("server")
def test_an_end_of_its_own_comes_before_a_later_timeout() -> None:
    operator = listen(idle_for=0.6, execution_timeout=timedelta(seconds=60))
    event = event_of(first_trigger(operator))
    assert operator.resume(CONTEXT, event)["ended_by"] == "idle"


def test_the_log_says_what_is_waited_for_and_what_was_found(
    server: MemoryBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(JmsListenOperator, "log", logging.getLogger("listen"))
    caplog.set_level(logging.INFO, "listen")
    operator = listen(spec=SPEC | {"message_selector": "n = 1"}, max_messages=1, run_for=60)
    trigger = first_trigger(operator)
    waiting = (
        "Deferred until messages are on queue://orders, over connection 'jms_test', matching 'n = 1', for "
    )
    assert any(record.getMessage().startswith(waiting) for record in caplog.records)
    event = event_of(trigger, lambda: put(server, "a", {"n": 1}))
    operator.resume(CONTEXT, event)
    assert f"orders holds messages; the first is {event['message_id']}" in caplog.text
