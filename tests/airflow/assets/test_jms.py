"""Asset URIs as Airflow reads them, and what tasks note for lineage."""

from __future__ import annotations

import functools
import importlib.metadata
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.api_fastapi.app import create_app, get_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, BaseOperator, lineage
from airflow.sdk.lineage import HookLineageCollector
from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime
from airflow.utils.state import TaskInstanceState
from fastapi.testclient import TestClient

from airflow_provider_jmsjca import (
    ConfigurationError,
    ConnectionSettings,
    Destination,
    JmsActivationTrigger,
    JmsCollectOperator,
    JmsListenOperator,
    JmsPublishOperator,
    JmsSensor,
    JmsToSparkSubmitOperator,
    MemoryBroker,
)
from tests.airflow.conftest import Publish
from tests.airflow.task_runs import run_task, serialized
from tests.internals.assets import create_asset, jms
from tests.internals.spool import Done

pytestmark = [
    pytest.mark.usefixtures("metadata"),
    # A task run loads half of Airflow, whose dependencies warn about each other.
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]


def test_airflow_brings_every_way_to_write_it_into_one_form() -> None:
    assert Asset("jms://Broker:61613/Queue/orders/").uri == "jms://broker/queue/orders"
    assert Asset("jms://broker:61614/topic/a b").uri == "jms://broker:61614/topic/a%20b"
    # Airflow takes a password off by itself, with a warning.
    with pytest.warns(UserWarning, match="should not contain a password"):
        assert Asset("jms://joe:hush@broker/queue/orders").uri == "jms://broker/queue/orders"


@pytest.mark.parametrize(
    ("uri", "what"),
    [
        ("jms://broker/orders", "'orders' is neither 'queue' nor 'topic'"),
        ("jms://broker/queue/", "the queue has no name"),
        ("jms://broker:0/queue/orders", "is not the address of a broker"),
        ("jms://broker/queue/orders?prefetch=1", "expected 'virtual_host' only"),
    ],
)
def test_airflow_refuses_what_is_none(uri: str, what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        Asset(uri)


def test_the_factory_makes_the_same_asset() -> None:
    made = create_asset(broker="Broker:61613", destination="topic://prices", extra={"owner": "sales"})
    assert made == Asset("jms://broker/topic/prices", extra={"owner": "sales"})
    assert ProvidersManagerTaskRuntime().asset_factories["jms"] is create_asset


def test_the_page_of_an_asset_shows_connection_and_destination() -> None:
    """As the REST API gives it to the page."""
    trigger = JmsActivationTrigger("jms_test", ["queue://orders", "topic://prices"], event="message")
    shown = trigger.watched_asset("orders_waiting", group="sales", extra={"owner": "sales"})
    spec = {"destination": "queue://bills", "jms_conn_id": "jms_other"}
    own = JmsActivationTrigger(spec=spec).watched_asset("bills", extra={"destination": "the bills"})
    with DAG("shown", schedule=[shown, own]) as dag:
        EmptyOperator(task_id="t")
    serialized(dag)
    client = TestClient(create_app(apps="core"), base_url="http://testserver")
    token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username="admin", role="admin"))
    answer = client.get("/api/v2/assets", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 200, answer.text
    found = {each["name"]: (each["extra"], each["group"]) for each in answer.json()["assets"]}
    destination = "queue://orders, topic://prices"
    assert found["orders_waiting"] == (
        {"jms_conn_id": "jms_test", "destination": destination, "owner": "sales"},
        "sales",
    )
    assert found["bills"] == ({"jms_conn_id": "jms_other", "destination": "the bills"}, "asset")
    assert [(each.name, each.trigger) for each in shown.watchers] == [("orders_waiting", trigger)]


@pytest.mark.filterwarnings("ignore:.*expected:UserWarning")
def test_an_asset_of_a_faulty_trigger_has_what_the_author_gave() -> None:
    trigger = JmsActivationTrigger("jms_test", "queue://orders", event="no such event")
    asset = trigger.watched_asset("orders", extra={"owner": "sales"})
    assert asset.extra == {"owner": "sales"}
    assert [each.name for each in asset.watchers] == ["orders"]


def test_openlineage_gets_the_broker_and_the_destination() -> None:
    assert importlib.metadata.version("openlineage-python")
    dataset = jms.convert_asset_to_openlineage(Asset("jms://Broker:61614/queue/orders"), None)
    assert (dataset.namespace, dataset.name) == ("jms://broker:61614", "queue/orders")


@pytest.mark.parametrize(
    ("settings", "uri"),
    [
        (ConnectionSettings(scheme="stomp", hosts=(("B", 61613), ("c", 61613))), "jms://b/queue/q"),
        (ConnectionSettings(scheme="stomp", hosts=(("::1", 61614),)), "jms://[::1]:61614/queue/q"),
        (
            ConnectionSettings(scheme="stomp", hosts=(("b", None),), virtual_host="prod"),
            "jms://b/queue/q?virtual_host=prod",
        ),
        (ConnectionSettings(scheme="stomp", hosts=(("b", None),), virtual_host="/"), "jms://b/queue/q"),
    ],
)
def test_the_first_host_stands_for_all(
    collected: HookLineageCollector, settings: ConnectionSettings, uri: str
) -> None:
    hook: Any = object()
    jms.note_input(hook, settings, Destination.queue("q"))
    (noted,) = collected.collected_assets.inputs
    assert noted.asset.uri == uri


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[HookLineageCollector]:
    """What tasks note, as if a plugin read it: without one Airflow collects nothing."""
    collector = HookLineageCollector()  # type: ignore[no-untyped-call]
    lineage.get_hook_lineage_collector.cache_clear()
    monkeypatch.setattr(jms, "get_hook_lineage_collector", lambda: collector)
    yield collector
    lineage.get_hook_lineage_collector.cache_clear()


def uris(noted: list[Any]) -> list[str]:
    return [each.asset.uri for each in noted]


def test_tasks_note_what_they_read_and_write(
    collected: HookLineageCollector, server: MemoryBroker, publish: Publish, tmp_path: Path
) -> None:
    publish("one", to="consumed")
    publish("two", to="gathered")
    publish("three", to="sensed")
    publish("four", to="peeked")
    tasks: list[Callable[[], BaseOperator]] = [
        functools.partial(
            JmsPublishOperator, task_id="publish", jms_conn_id="jms_test",
            destination="topic://a/b", messages="m",
        ),
        functools.partial(
            JmsListenOperator, task_id="listen", jms_conn_id="jms_test", spec={"destination": "queue://consumed"},
            on_message=print, max_messages=1, run_for=20,
        ),
        functools.partial(
            JmsCollectOperator, task_id="collect", jms_conn_id="jms_test", destination="queue://gathered",
            max_messages=1, spool_path=str(tmp_path),
        ),
    ]  # fmt: skip
    for name, peek in (("sensed", False), ("peeked", True)):
        tasks.append(
            functools.partial(
                JmsSensor, task_id=name, jms_conn_id="jms_test", destination=name, peek=peek,
                timeout=20, poke_interval=0.1, spool_path=str(tmp_path),
            )
        )  # fmt: skip
    for task in tasks:
        assert run_task(task).state == TaskInstanceState.SUCCESS

    broker = f"jms://{server.name}"
    assert uris(collected.collected_assets.outputs) == [f"{broker}/topic/a/b"]
    read = ("consumed", "gathered", "sensed")  # a look is no reading
    assert uris(collected.collected_assets.inputs) == [f"{broker}/queue/{name}" for name in read]


@pytest.mark.usefixtures("server")
def test_a_table_of_a_database_is_noted_with_its_address(
    collected: HookLineageCollector, publish: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, fields in {
        "SALES": {"conn_type": "postgres", "host": "db", "schema": "sales", "login": "u", "password": "p"},
        "SPARK": {"conn_type": "spark", "host": "local[1]"},
    }.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(fields))
    stored = {"shop.orders": 1, "bodies": 1}
    done = Done(batch_id="b", fence=1, rows=1, stored=stored, rejected=0, rejects=(), finished="now")
    monkeypatch.setattr(JmsToSparkSubmitOperator, "_submit", lambda *_: done)
    publish("one", to="orders")
    outcome = run_task(
        lambda: JmsToSparkSubmitOperator(
            task_id="load", jms_conn_id="jms_test", destination="queue://orders", max_messages=1,
            spool_path=str(tmp_path), spark_conn_id="spark", jdbc_conn_id="sales",
        )
    )  # fmt: skip
    assert outcome.state == TaskInstanceState.SUCCESS
    database = "postgres://db:5432/sales"
    assert uris(collected.collected_assets.outputs) == [
        f"{database}/shop/orders",
        f"{database}/public/bodies",
    ]


def test_a_task_that_could_not_send_notes_nothing(
    collected: HookLineageCollector, server: MemoryBroker
) -> None:
    server.kill()
    outcome = run_task(
        lambda: JmsPublishOperator(task_id="p", jms_conn_id="jms_test", destination="q", messages="m")
    )
    assert outcome.state == TaskInstanceState.FAILED
    assert not collected.has_collected
