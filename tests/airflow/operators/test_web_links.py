"""Links of tasks, as Airflow's API server shows them."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.api_fastapi.app import create_app, get_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.providers_manager import ProvidersManager
from fastapi.testclient import TestClient

from airflow_provider_jmsjca import (
    Destination,
    JmsCollectOperator,
    JmsListenOperator,
    JmsToSparkSubmitOperator,
    MemoryBroker,
)
from tests.airflow.task_runs import Outcome, run_task
from tests.internals.operators import JmsBatchLink, JmsDeadLettersLink, JmsSparkUiLink, console_address

Publish = Callable[..., None]
pytestmark = [
    pytest.mark.usefixtures("metadata"),
    # A task run loads half of Airflow, whose dependencies warn about each other.
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]
CONSOLE = "https://console.example.com/#/queues/%2F/{queue}"
KEY: Any = SimpleNamespace(dag_id="d", run_id="manual__2026-01-02T00:00:00+00:00", task_id="t", map_index=-1)


@functools.cache
def api_server() -> TestClient:
    return TestClient(create_app(apps="core"), base_url="http://testserver")


def links(outcome: Outcome, task_id: str) -> dict[str, str | None]:
    """Ask the API server, as its web page does."""
    client, run = api_server(), outcome.run
    token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username="admin", role="admin"))
    answer = client.get(
        f"/api/v2/dags/{run.dag_id}/dagRuns/{run.run_id}/taskInstances/{task_id}/links",
        headers={"Authorization": f"Bearer {token}"},
    )
    assert answer.status_code == 200, answer.text
    found: dict[str, str | None] = answer.json()["extra_links"]
    return found


def collect(spool: Path) -> Callable[[], JmsCollectOperator]:
    return lambda: JmsCollectOperator(
        task_id="collect",
        jms_conn_id="jms_test",
        destination="queue://orders",
        spool_path=str(spool),
        idle_time=0.2,
        if_empty="succeed",
    )


def test_a_batch_is_linked_to_where_it_is_seen(
    publish: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish("a")
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example.com/")
    outcome = run_task(collect(tmp_path))
    run = outcome.run
    page = f"https://airflow.example.com/dags/{run.dag_id}/runs/manual__2026-01-02T00%3A00%3A00%2B00%3A00"
    assert links(outcome, "collect") == {"JMS batch": f"{page}/tasks/collect/xcom"}

    monkeypatch.setenv("AIRFLOW__JMSJCA__BATCH_URL", "https://spool.example.com/spool/{batch_id}/")
    publish("b")
    outcome = run_task(collect(tmp_path))
    name = outcome.value["batch_id"]
    assert links(outcome, "collect") == {"JMS batch": f"https://spool.example.com/spool/{name}/"}
    # Nothing came, and nothing is left: there is nothing to see.
    assert links(run_task(collect(tmp_path)), "collect") == {"JMS batch": None}


def test_dead_letters_of_a_listener_are_linked_to_the_console(
    server: MemoryBroker, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Any) -> None:
        raise ValueError("no")

    def listen() -> JmsListenOperator:
        spec = {"destination": "queue://orders/north", "redelivery_handling": "1:move(queue:$.dlq)"}
        return JmsListenOperator(
            task_id="listen", spec=spec, on_message=fail, jms_conn_id="jms_test", idle_for=0.3
        )

    extra = json.dumps({"console_url": CONSOLE})
    connection = {"conn_type": "jms", "host": f"vm://{server.name}", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_JMS_TEST", json.dumps(connection))
    publish("bad", to="orders/north")
    wanted = "https://console.example.com/#/queues/%2F/orders%2Fnorth.dlq"
    outcome = run_task(listen)
    assert outcome.value["moved"] == 1
    assert links(outcome, "listen") == {"JMS dead letters": wanted}
    assert links(run_task(listen), "listen") == {"JMS dead letters": None}  # this run had none


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("javascript:alert('{queue}')", "not the address of a web page"),
        ("console.example.com/{queue}", "not the address of a web page"),
        ("https://console.example.com/", "doesn't contain {queue}"),
        ("https://{queue}/", "in its host"),
        ("https://{queue}.example.com/", "in its host"),
        ("https://user:hush@console.example.com/{queue}", "contains a user or a secret"),
        ("https://console.example.com/{queue}?token=hush", "contains a user or a secret"),
        ("https://console.example.com/#/{queue}?password=hush", "contains a user or a secret"),
        ("https://[console/{queue}", "not a valid address"),
    ],
)
def test_what_a_browser_should_not_open_is_no_link(
    template: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    assert console_address("jms_test", template, Destination.queue("orders")) == ""
    (message,) = [each for each in caplog.messages if "No link" in each]
    assert "connection 'jms_test'" in message
    assert said in message
    assert "hush" not in message


@pytest.mark.parametrize("name", ["a b", "../x", "a&b=c", "<script>", "größe", "a?b#c", "{queue}"])
def test_a_name_stays_a_name(name: str) -> None:
    address = console_address("jms_test", CONSOLE, Destination.queue(name))
    assert address.startswith("https://console.example.com/#/queues/%2F/")
    rest = address.removeprefix("https://console.example.com/#/queues/%2F/")
    assert not set(rest) & set(" /&=<>?#{}")


def test_a_topic_and_a_connection_without_a_console_have_no_link() -> None:
    assert console_address("jms_test", CONSOLE, Destination.topic("prices")) == ""
    assert console_address("jms_test", None, Destination.queue("orders")) == ""


def test_a_task_that_has_failed_is_linked_to_its_batch_where_that_has_a_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = SimpleNamespace(linked_batch=("d~~r~~t~~-1", False))
    assert JmsBatchLink().get_link(failed, ti_key=KEY) == ""
    monkeypatch.setenv("AIRFLOW__JMSJCA__BATCH_URL", "https://spool.example.com/?b={batch_id}")
    assert JmsBatchLink().get_link(failed, ti_key=KEY) == "https://spool.example.com/?b=d~~r~~t~~-1"


def test_the_link_of_a_mapped_task_is_that_of_its_instance() -> None:
    mapped: Any = SimpleNamespace(**vars(KEY) | {"map_index": 3})
    finished = SimpleNamespace(linked_batch=("name", True))
    assert JmsBatchLink().get_link(finished, ti_key=mapped).endswith("/tasks/t/mapped/3/xcom")


def test_airflow_knows_the_links_of_each_operator() -> None:
    known = ProvidersManager().extra_links_class_names
    for link in (JmsBatchLink, JmsDeadLettersLink, JmsSparkUiLink):
        assert f"{link.__module__}.{link.__qualname__}" in known
    spark = [link.name for link in JmsToSparkSubmitOperator.operator_extra_links]
    assert spark == ["JMS batch", "JMS dead letters", "Spark UI"]
