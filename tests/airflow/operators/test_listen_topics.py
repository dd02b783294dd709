"""`JmsListenOperator` on topics: durable subscriptions, client ids, distributed durable subscribers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from airflow.utils.state import TaskInstanceState

from airflow_provider_jmsjca import (
    ConnectionSettings,
    Destination,
    JmsListenOperator,
    JmsMessage,
    MemoryBroker,
    Outgoing,
    Subscription,
    connect,
)
from tests.airflow.task_runs import run_task

pytestmark = [
    pytest.mark.usefixtures("metadata"),
    # A task run loads half of Airflow, whose dependencies warn about each other.
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]
NEWS = Destination.topic("news")
SPEC = {"destination": "topic://news", "subscription_durability": "durable", "subscription_name": "s1"}
DISTRIBUTED = SPEC | {"subscription_name": "jmsjca://?distribution=1&subscribername=s1", "name": "orders"}


class _Instance:
    dag_id, task_id, run_id = "d", "listen", "r"

    def __init__(self, map_index: int = -1) -> None:
        self.map_index = map_index


def listen(on_message: Callable[..., Any], **arguments: Any) -> JmsListenOperator:
    given: dict[str, Any] = {
        "spec": SPEC,
        "on_message": on_message,
        "jms_conn_id": "jms_test",
        "idle_for": 0.5,
    }
    return JmsListenOperator(task_id="listen", **given | arguments)


def execute(operator: JmsListenOperator, map_index: int = -1) -> dict[str, Any]:
    context: Any = {"ti": _Instance(map_index)}
    return operator.execute(context)


def subscribe(server: MemoryBroker, client_id: str) -> None:
    """Make the durable subscription `s1` of a client, so that it keeps what is published."""
    connection = connect(ConnectionSettings(scheme="vm", hosts=((server.name, None),), client_id=client_id))
    connection.consume(Subscription(destination=NEWS, durable_name="s1"), lambda _: None)
    connection.close()


def publish(server: MemoryBroker, *bodies: str) -> None:
    connection = connect(ConnectionSettings(scheme="vm", hosts=((server.name, None),)))
    connection.send(Outgoing(destination=NEWS, message=JmsMessage.text(body)) for body in bodies)
    connection.close()


def test_a_distributed_subscription_through_a_task(server: MemoryBroker) -> None:
    """J25, J205, J206: moved to the queue, handled from there, and told."""
    subscribe(server, "s1")
    publish(server, "a", "b", "c")
    got: list[tuple[str, Destination]] = []
    outcome = run_task(
        lambda: listen(
            lambda delivery: got.append((delivery.body, delivery.message.destination)),
            spec=DISTRIBUTED,
            max_messages=3,
            idle_for=60,
            defer_after=0.1,
        )
    )
    assert outcome.state == TaskInstanceState.SUCCESS
    wanted = {"delivered": 3, "committed": 3, "redelivered": 0, "moved_to_queue": 3, "ended_by": "count"}
    assert {name: outcome.value[name] for name in wanted} == wanted
    assert got == [("a", NEWS), ("b", NEWS), ("c", NEWS)]
    assert server.connections == 0


def test_it_never_leaves_the_worker(server: MemoryBroker) -> None:
    """J204: deferred, nobody would move its messages."""
    report = execute(listen(lambda _: None, spec=DISTRIBUTED, idle_for=0.6, defer_after=0.1))
    assert (report["ended_by"], report["moved_to_queue"]) == ("idle", 0)
    del server


def test_killed_it_stops_both_sides(server: MemoryBroker) -> None:
    subscribe(server, "s1")
    publish(server, "a")
    operators: list[JmsListenOperator] = []
    operators.append(listen(lambda _: operators[0].on_kill(), spec=DISTRIBUTED, idle_for=60))
    with pytest.raises(Exception, match="told to stop"):
        execute(operators[0])
    assert server.connections == 0


def test_deleted_at_the_end_but_not_when_killed(server: MemoryBroker) -> None:
    """W33: the task that is killed runs again, and wants its messages then."""
    spec = SPEC | {"durable_subscription_deletion": True}
    subscribe(server, "s1")
    publish(server, "a")
    operators: list[JmsListenOperator] = []
    operators.append(listen(lambda _: operators[0].on_kill(), spec=spec, idle_for=60))
    with pytest.raises(Exception, match="told to stop"):
        execute(operators[0])
    publish(server, "b")
    got: list[str] = []
    execute(listen(lambda delivery: got.append(delivery.body), spec=spec))
    assert got[-1] == "b"
    publish(server, "c")
    got.clear()
    execute(listen(lambda delivery: got.append(delivery.body)))
    assert got == []


@pytest.mark.parametrize(("map_index", "client_id"), [(-1, "s1-d.listen"), (3, "s1-d.listen.3")])
def test_every_mapped_instance_has_its_client_id(
    server: MemoryBroker, map_index: int, client_id: str
) -> None:
    """W31: it is the same in the next run, which finds its subscription."""
    subscribe(server, client_id)
    publish(server, "a")
    got: list[str] = []
    execute(
        listen(lambda delivery: got.append(delivery.body), spec=SPEC | {"generate_unique_client_id": True}),
        map_index,
    )
    assert got == ["a"]


def test_two_tasks_of_one_subscription_take_turns(server: MemoryBroker) -> None:
    """J204, W31: the second waits for the first, and doesn't fail."""
    subscribe(server, "s1")
    entered, leave = threading.Event(), threading.Event()

    def hold(_: Any) -> None:
        entered.set()
        assert leave.wait(10)

    publish(server, "a", "b")
    reports: list[dict[str, Any]] = []
    first = threading.Thread(target=lambda: reports.append(execute(listen(hold, max_messages=1))))
    second = threading.Thread(
        target=lambda: reports.append(
            execute(listen(lambda _: None, max_messages=1, idle_for=None, run_for=30))
        )
    )
    first.start()
    assert entered.wait(10)
    second.start()
    leave.set()
    first.join(30)
    second.join(30)
    assert [report["committed"] for report in reports] == [1, 1]
