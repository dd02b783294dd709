"""Findings of `airflow jms doctor` on the page: what each role sees, and that no broker delays the page."""

from __future__ import annotations

import contextlib
import html
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Never

import pytest

from airflow_provider_jmsjca import (
    ActivationKind,
    ConnectionSettings,
    Destination,
    JmsError,
    JmsHook,
    JmsMessage,
    MemoryBroker,
    Outgoing,
    RunReport,
    RunStatus,
    WantedState,
    connect,
)
from tests.airflow.page.browsing import Browser
from tests.internals.transports import MemoryAdministration
from tests.internals.triggers import examine_airflow, examine_connections

pytestmark = [
    # A server of Airflow loads all of it, whose dependencies warn about each other.
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]
Browse = Callable[..., Browser]
HOSTILE = "</td><script>alert('1')</script>\x1b[31m \u202e\"'\n"
ROLES = [("viewer", False), ("user", False), ("op", True), ("admin", True)]


@pytest.fixture(autouse=True)
def _spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__JMSJCA__SPOOL_PATH", str(tmp_path / "spool"))


def never_called(*_: object) -> Never:
    raise AssertionError("the first screen examines nothing itself")


@pytest.mark.parametrize(("role", "sees_causes"), ROLES)
def test_every_role_sees_symptoms_of_the_installation_and_operators_causes(
    role: str, sees_causes: bool, store: Any, browser: Browse
) -> None:
    store.activations.request_state("orders", WantedState.STOPPED, reason=HOSTILE, asked_by="the handler")
    answer = browser(role).get("findings")
    assert answer.status_code == 200
    assert "activation orders is stopped" in answer.text
    assert ("the handler: " in answer.text) is sees_causes
    assert ("airflow jms activations resume orders" in answer.text) is sees_causes
    assert ("connections: read" in answer.text) is not sees_causes
    assert "<script>alert" not in answer.text
    assert "\x1b" not in answer.text


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(("role", "sees_causes"), ROLES)
def test_every_role_sees_symptoms_of_brokers_and_operators_causes(
    role: str, sees_causes: bool, browser: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody listens on port 1.
    lost = {"conn_type": "jms", "host": "127.0.0.1", "port": 1, "extra": {"connect_timeout": 1}}
    monkeypatch.setenv("AIRFLOW_CONN_JMS_LOST", json.dumps(lost))
    answer = browser(role).get("broker-findings")
    assert answer.status_code == 200
    text = html.unescape(answer.text)
    assert "connection 'jms_lost' cannot log in" in text
    assert ("127.0.0.1" in text) is sees_causes
    assert ("airflow jms check jms_lost" in text) is sees_causes


def test_the_registry_explains_dead_letters_that_the_page_does_not_browse(
    store: Any, server: MemoryBroker, browser: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryAdministration, "browse_note", "browsing marks messages as redelivered")
    settings = ConnectionSettings(scheme="vm", hosts=((server.name, None),))
    with contextlib.closing(connect(settings)) as connection:
        letter = JmsMessage.text("{")
        connection.send([Outgoing(destination=Destination.queue("orders.dlq"), message=letter)])
    now = store.owners.now()
    moved = RunReport(
        run="1",
        activation="orders",
        title="orders",
        kind=ActivationKind.LISTENER,
        owner="orders.load",
        broker=settings.url,
        destination="queue://orders",
        status=RunStatus.UP,
        started_at=now,
        since=now,
        dead_lettered=1,
        last_error=f"ValueError: {HOSTILE}",
        last_error_at=now,
    )
    store.activations.report([moved])
    shown = browser("op").get("broker-findings").text
    assert "activation orders (orders.load) moved 1 message to a dead-letter destination" in shown
    assert "its last error: ValueError: " in shown
    assert "<script>alert" not in shown
    assert "its last error" not in browser("viewer").get("broker-findings").text


@pytest.mark.parametrize(("role", "sees_causes"), [("viewer", False), ("op", True)])
def test_what_follows_from_a_cause_is_below_it(
    role: str, sees_causes: bool, store: Any, browser: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = {"conn_type": "jms", "host": "127.0.0.1", "port": 1}
    monkeypatch.setenv("AIRFLOW_CONN_JMS_LOST", json.dumps(lost))
    with pytest.raises(JmsError) as error, contextlib.closing(connect(JmsHook("jms_lost").settings())):
        pass
    now = store.owners.now()
    down = RunReport(
        run="1",
        activation="orders",
        kind=ActivationKind.LISTENER,
        owner="orders.load",
        broker="stomp://127.0.0.1:1",
        destination="queue://orders",
        status=RunStatus.CONNECTING,
        started_at=now,
        since=now,
        last_error=str(error.value),
    )
    other = replace(down, run="2", activation=HOSTILE, last_error=HOSTILE)
    store.activations.report([down, other])
    text = browser(role).get("broker-findings").text
    assert "because of this: activation orders is not connected" in " ".join(text.split())
    assert text.index("cannot log in") < text.index("activation orders is not connected")
    assert text.count("is not connected since") == 2
    assert ("airflow jms activations show orders" in text) is sees_causes
    assert "<script>alert" not in text


@pytest.mark.usefixtures("store", "server")
def test_a_healthy_installation_has_no_findings(browser: Browse) -> None:
    viewer = browser("viewer")
    first, all_of_them = viewer.get("findings").text, viewer.get("broker-findings").text
    assert "Brokers: examining" in first
    for part in ("Installation", "DAGs that wait for messages"):
        assert f"{part}: no problems found." in first
        assert f"{part}: no problems found." in all_of_them
    assert "Brokers: no problems found." in all_of_them


@pytest.mark.usefixtures("store")
def test_the_first_screen_loads_findings_after_itself(
    browser: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider_jmsjca.page.findings.examine_installation", never_called)
    first = browser("viewer").get("").text
    for path in ("findings", "broker-findings"):
        assert f'hx-get="/jms/{path}"' in first
    # The page of one DAG is about that DAG.
    assert "findings" not in browser("viewer").get("", dag_id="orders").text


def test_the_first_screen_has_findings_although_the_store_cannot_be_used(
    browser: Browse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("AIRFLOW__JMSJCA__STORE_URL", f"sqlite:///{tmp_path / 'file' / 'store.db'}")
    viewer = browser("viewer")
    first = viewer.get("")
    assert first.status_code >= 400
    assert 'hx-get="/jms/findings"' in first.text
    assert "the store" in viewer.get("findings").text


@pytest.mark.usefixtures("metadata")
def test_a_slow_broker_delays_no_finding_of_others(server: MemoryBroker) -> None:
    del server
    state, _ = examine_airflow()
    released = threading.Event()

    def settings_of(conn_id: str) -> Any:
        if conn_id == "slow":
            released.wait()
        return JmsHook("jms_test").settings()

    try:
        found = examine_connections(["slow", "jms_test"], state, settings_of, within=2)
    finally:
        released.set()
    assert [each for each in found["jms_test"] if each.kind == "unknown"] == []
    [slow] = found["slow"]
    assert (str(slow.kind), slow.symptom) == ("unknown", "connection 'slow' not examined")
    assert slow.fix == "airflow jms doctor --conn-id slow"
