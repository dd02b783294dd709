"""Every example DAG can be read, and runs as it stands on an in-memory broker."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from airflow.sdk import DAG, Asset
from airflow.utils.state import DagRunState

from airflow_provider_jmsjca import JmsActivationTrigger, JmsMessage, MemoryBroker
from tests.airflow.conftest import Publish
from tests.airflow.operators.test_request import service
from tests.airflow.task_runs import Outcome, execute, execute_on_event, word_of
from tests.airflow.triggers.test_holding import Store, Stores

EXAMPLES = sorted((Path(__file__).parents[2] / "example_dags").glob("example_*.py"))


def read(path: Path) -> list[DAG]:
    return [value for value in vars(loaded(path)).values() if isinstance(value, DAG)]


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_can_be_read_and_has_tasks(path: Path) -> None:
    dags = read(path)
    assert [dag.dag_id for dag in dags] == [path.stem]
    assert dags[0].tasks


@pytest.fixture
def bodies(
    server: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], list[object]]:
    """The connection of the examples is that broker, and the spool is empty; returns what a queue holds."""
    monkeypatch.setenv(
        "AIRFLOW_CONN_JMS_DEFAULT", json.dumps({"conn_type": "jms", "host": f"vm://{server.name}"})
    )
    monkeypatch.setenv("AIRFLOW__JMSJCA__SPOOL_PATH", str(tmp_path / "spool"))
    return lambda queue: [message.body for message in server.messages(queue)]


def run(name: str, task_id: str) -> Outcome:
    (dag,) = read(EXAMPLES[0].with_name(f"{name}.py"))
    outcome = execute(dag, task_id)
    assert outcome.run.state == DagRunState.SUCCESS
    return outcome


async def event_of(asset: Asset) -> dict[str, Any]:
    """Return the event that the trigger of an asset makes of what is on its queue."""
    _, arguments = asset.watchers[0].trigger.serialize()
    trigger = JmsActivationTrigger(**arguments)
    trigger.asset_state_store = Stores({asset.name: Store()})  # type: ignore[assignment]
    events = trigger.run()
    try:
        event = await asyncio.wait_for(anext(events), 30)
    finally:
        await events.aclose()  # type: ignore[attr-defined]  # it is a generator
    return dict(json.loads(json.dumps(event.payload)))


def run_on_event(name: str, asset: str, task_id: str) -> tuple[Outcome, dict[str, Any]]:
    """Run a DAG for the event of its own trigger."""
    module = loaded(EXAMPLES[0].with_name(f"{name}.py"))
    watched = getattr(module, asset)
    payload = asyncio.run(event_of(watched))
    outcome = execute_on_event(module.dag, task_id, watched, payload)
    assert outcome.run.state == DagRunState.SUCCESS
    return outcome, payload


EXECUTED: dict[str, Callable[[Publish, Any], None]] = {}


def example(check: Callable[[Publish, Any], None]) -> Callable[[Publish, Any], None]:
    EXECUTED[check.__name__] = check
    return check


@example
def example_jms_publish(publish: Publish, bodies: Any) -> None:  # noqa: ARG001
    run("example_jms_publish", "publish")
    assert [json.loads(body)["id"] for body in bodies("orders")] == [1, 2]


@example
def example_jms_event(publish: Publish, bodies: Any) -> None:
    publish("a", "b")
    outcome, payload = run_on_event("example_jms_event", "orders", "collect")
    assert (payload["event"], outcome.value["rows"]) == ("ready", 2)
    assert bodies("orders") == []


@example
def example_jms_batches(publish: Publish, bodies: Any) -> None:  # noqa: ARG001
    """Run by hand, without an event, and by one for a full batch."""
    assert run("example_jms_batches", "count").value == {"messages": 0, "characters": 0}
    publish(*["abc"] * 500, to="payments")
    outcome, _ = run_on_event("example_jms_batches", "payments", "count")
    assert outcome.value == {"messages": 500, "characters": 1_500}


@example
def example_jms_hold(publish: Publish, bodies: Any) -> None:  # noqa: ARG001
    """Run by hand, without an event, nothing waits for a word; by an event the task says it."""
    assert run("example_jms_hold", "booked").value == 0
    publish("a parcel", to="shipments")
    outcome, payload = run_on_event("example_jms_hold", "shipments", "booked")
    assert (outcome.value, word_of(payload)) == (1, {"acknowledged": True})


@example
def example_jms_names(publish: Publish, bodies: Any) -> None:  # noqa: ARG001
    """Run by hand, without an event, and by one that refers to a large message."""
    assert run("example_jms_names", "lengths").value == []
    publish("x" * 70_000, to="payments")
    outcome, payload = run_on_event("example_jms_names", "payments", "lengths")
    assert outcome.value == [70_000]
    assert "reference" in payload


@example
def example_jms_notifier(publish: Publish, bodies: Any) -> None:  # noqa: ARG001
    assert run("example_jms_notifier", "load").value == 3
    assert (bodies("done"), bodies("alerts")) == (["load is done"], [])


@example
def example_jms_sensor(publish: Publish, bodies: Any) -> None:
    publish("a", "end of day")
    run("example_jms_sensor", "last_answer")
    assert bodies("booked") == ["booked a", "booked end of day"]
    assert bodies("orders") == []


@example
def example_jms_request(publish: Publish, bodies: Any) -> None:  # noqa: ARG001
    def answer(request: JmsMessage) -> JmsMessage:
        return JmsMessage.text(f"price of {request.body}")

    with service(answer, conn_id="jms_default", queue="prices.ask"):
        assert run("example_jms_request", "price").value == 'price of {"article": 4711}'
    assert bodies("prices.answers") == []


@example
def example_jms_listener(publish: Publish, bodies: Any) -> None:
    publish("a", "", "b")
    assert run("example_jms_listener", "book").value["moved"] == 1
    assert bodies("booked") == ["booked a", "booked b"]
    assert len(bodies("orders.dead")) == 1


@example
def example_jms_mapped(publish: Publish, bodies: Any) -> None:
    publish("a", to="orders.eu")
    publish("b", "c", to="orders.us")
    run("example_jms_mapped", "answer_each")
    assert (bodies("booked.eu"), bodies("booked.us")) == (["booked a"], ["booked b"])
    assert bodies("orders.us") == ["c"]


@example
def example_jms_spool_maintenance(publish: Publish, bodies: Any) -> None:
    publish("a")
    run("example_jms_event", "collect")
    (dag,) = read(EXAMPLES[0].with_name("example_jms_spool_maintenance.py"))
    run("example_jms_spool_maintenance", dag.tasks[0].task_id)
    assert bodies("orders") == []


@pytest.mark.usefixtures("metadata")
# A task run loads half of Airflow, whose dependencies warn about each other.
@pytest.mark.filterwarnings("default")
@pytest.mark.filterwarnings("error:::airflow_provider_jmsjca")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs(path: Path, publish: Publish, bodies: Any) -> None:
    EXECUTED[path.stem](publish, bodies)
