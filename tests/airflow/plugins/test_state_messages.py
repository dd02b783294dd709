"""States of DAG runs and task instances as messages: of real runs, and where the broker fails."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator, Context

from airflow_provider_jmsjca import MemoryBroker
from tests.airflow.task_runs import execute
from tests.internals.plugins import (
    MOST_WAITING,
    StateMessages,
    StatePublisher,
    Target,
    state_messages,
    task_state,
)

pytestmark = [
    # A task run loads half of Airflow, whose dependencies warn about each other.
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]
TARGET = Target("jms_test", "queue://states")
SOON = 20.0


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__JMSJCA__STATE_MESSAGES_DESTINATION", "queue://states")
    monkeypatch.setenv("AIRFLOW__JMSJCA__STATE_MESSAGES_CONN_ID", "jms_test")
    monkeypatch.setattr(state_messages, "_publishers", {})


class Work(BaseOperator):
    """A task that ends as it is told."""

    def __init__(self, *, error: Exception | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.error = error

    def execute(self, context: Context) -> None:
        del context
        if self.error is not None:
            raise self.error


def published(server: MemoryBroker) -> list[dict[str, Any]]:
    assert state_messages.publisher().flush(SOON)
    return [json.loads(str(each.body)) for each in server.messages("states")]


@pytest.mark.usefixtures("metadata", "configured")
def test_the_states_of_a_run_and_its_tasks_are_published(server: MemoryBroker) -> None:
    with DAG("shop", schedule=None) as dag:
        Work(task_id="work")
    assert execute(dag, "work").state == "success"
    found = published(server)
    of_task = [each for each in found if each["event"] == "task_instance"]
    assert [each["state"] for each in of_task] == ["running", "success"]
    assert {(each["dag_id"], each["task_id"], each["try_number"]) for each in of_task} == {
        ("shop", "work", of_task[0]["try_number"])
    }
    of_run = [each["state"] for each in found if each["event"] == "dag_run"]
    assert of_run[-1] == "success"
    run_ids = {each["run_id"] for each in found}
    assert len(run_ids) == 1
    message = server.messages("states")[-1]
    assert message.type == "airflow.state"
    assert message.properties["dag_id"] == "shop"
    assert message.properties["state"] in {"success", "running"}


@pytest.mark.usefixtures("metadata", "configured")
def test_of_a_failure_the_class_is_published_and_never_its_text(server: MemoryBroker) -> None:
    with DAG("shop", schedule=None) as dag:
        Work(task_id="work", error=ValueError("password is swordfish"))
    execute(dag, "work")
    found = published(server)
    (failed,) = [each for each in found if each["event"] == "task_instance" and each["state"] == "failed"]
    assert failed["exception"] == "ValueError"
    assert "swordfish" not in json.dumps(found)
    assert [each["state"] for each in found if each["event"] == "dag_run"][-1] == "failed"


@pytest.mark.usefixtures("metadata")
def test_nothing_is_published_unless_it_is_configured(
    server: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_messages, "_publishers", {})
    with DAG("shop", schedule=None) as dag:
        Work(task_id="work")
    assert execute(dag, "work").state == "success"
    assert state_messages._publishers == {}
    assert server.messages("states") == []


@pytest.mark.usefixtures("metadata", "configured")
def test_a_run_goes_on_while_the_broker_is_away(
    server: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    server.kill()
    with DAG("shop", schedule=None) as dag:
        Work(task_id="work")
    assert execute(dag, "work").state == "success"
    state_messages.publisher().flush(SOON)
    assert "state messages were lost; Airflow is not affected" in caplog.text


@pytest.mark.usefixtures("configured")
def test_a_state_that_cannot_be_read_fails_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        @property
        def dag_id(self) -> str:
            raise RuntimeError("detached")

    StateMessages().on_dag_run_success(Broken(), "")
    assert "A state message could not be created" in caplog.text


@pytest.mark.parametrize(("state", "published_as"), [("up_for_retry", "up_for_retry"), ("failed", "failed")])
def test_a_try_that_is_followed_by_another_is_told_from_the_last(state: str, published_as: str) -> None:
    assert state_messages._failed_as(SimpleNamespace(state=state)) == published_as
    found = task_state(SimpleNamespace(dag_id="a\n\u202e"), published_as, None, "text")
    assert (found["dag_id"], found["exception"], found["previous_state"]) == ("a\n\u202e", None, None)


# -- the publisher ----------------------------------------------------------------------------------------


class Sink:
    """A broker that can be slow and can fail."""

    def __init__(self) -> None:
        self.states: list[Mapping[str, Any]] = []
        self.opened = self.closed = 0
        self.fails = False
        self.go_on = threading.Event()
        self.go_on.set()

    def open(self) -> Any:
        self.opened += 1
        return self.send, self.close

    def send(self, target: Target, states: Sequence[Mapping[str, Any]]) -> None:
        assert target == TARGET
        self.go_on.wait(SOON)
        if self.fails:
            raise OSError("no route")
        self.states += states

    def close(self) -> None:
        self.closed += 1


def test_states_are_sent_in_their_order_over_one_connection() -> None:
    sink = Sink()
    publisher = StatePublisher(sink.open)
    for number in range(250):
        publisher.publish(TARGET, {"n": number})
    assert publisher.flush(SOON)
    assert [each["n"] for each in sink.states] == list(range(250))
    assert (sink.opened, sink.closed) == (1, 0)


def test_a_slow_broker_blocks_nobody_and_what_is_too_much_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = Sink()
    sink.go_on.clear()
    publisher = StatePublisher(sink.open, pause=0)
    for number in range(2 * MOST_WAITING):
        publisher.publish(TARGET, {"n": number})
    assert sink.states == []
    assert not publisher.flush(0.01)
    sink.go_on.set()
    assert publisher.flush(SOON)
    assert MOST_WAITING <= len(sink.states) <= MOST_WAITING + 100
    sink.fails = True
    publisher.publish(TARGET, {"n": -1})
    assert publisher.flush(SOON)
    lost = 2 * MOST_WAITING - len(sink.states) + 1
    assert f"{lost} state messages were lost" in caplog.text


def test_after_a_failure_another_connection_is_opened(caplog: pytest.LogCaptureFixture) -> None:
    sink = Sink()
    publisher = StatePublisher(sink.open, pause=0)
    sink.fails = True
    publisher.publish(TARGET, {"n": 1})
    assert publisher.flush(SOON)
    sink.fails = False
    publisher.publish(TARGET, {"n": 2})
    assert publisher.flush(SOON)
    assert [each["n"] for each in sink.states] == [2]
    assert (sink.opened, sink.closed) == (2, 1)
    assert caplog.text.count("were lost") == 1
