"""Activations on the page: what each role sees and may do, and what is written where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_provider_jmsjca import ActivationKind, RunReport, RunStatus, WantedState, list_activations
from tests.airflow.page.browsing import Browser, audit

pytestmark = [
    # A server of Airflow loads all of it, whose dependencies warn about each other.
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]
Browse = Callable[..., Browser]
NAME = "orders at stomp://a:61613"
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
HOSTILE = "</td><script>alert('1')</script>\x1b[31m \u202e\ud800\"'\n"
TYPED = HOSTILE.replace("\ud800", "")


def report(name: str = NAME, **changes: Any) -> RunReport:
    given: dict[str, Any] = {
        "run": name,
        "activation": name,
        "title": name,
        "kind": ActivationKind.LISTENER,
        "owner": "dag.task",
        "broker": "stomp://a:61613",
        "destination": "queue://orders",
        "status": RunStatus.UP,
        "started_at": NOON,
        "since": NOON,
    }
    return RunReport(**given | changes)


def test_viewers_see_states_and_counts(store: Any, browser: Browse) -> None:
    store.activations.report(
        [
            report(committed=17, dead_lettered=3, backlog=250, last_error="no stock"),
            report("bills", status=RunStatus.ENDED),
        ]
    )
    store.activations.request_state("far", WantedState.STOPPED, reason="holiday", asked_by="user eve")
    shown = browser("viewer").get("")
    assert shown.status_code == 200
    for text in (NAME, "up", "dag.task", ">17<", ">3<", ">250<", "2026-05-04 12:00:00"):
        assert text in shown.text
    assert "stopped by user eve: holiday" in shown.text
    assert "no stock" not in shown.text
    assert "needs Airflow&#39;s permission “connections: read”" in shown.text
    assert "no stock" in browser("op").get("").text
    assert "bills" not in shown.text
    assert "bills" in browser("viewer").get("", ended="1").text
    narrowed = browser("viewer").get("", match="FAR")
    assert "holiday" in narrowed.text
    assert "dag.task" not in narrowed.text


def test_a_dag_and_a_task_have_their_own_lists(
    store: Any, browser: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners = {
        "a": "orders.load, run manual__1, x",
        "b": "orders.load[2], run scheduled__1",
        "c": "orders.other",
        "d": "orders2.load",
        "e": "asset 'bills', asset 'orders'",
        "f": "asset 'orders2'",
        "g": "my.orders.load",
    }
    store.activations.report([report(f"activation-{name}", owner=owner) for name, owner in owners.items()])
    monkeypatch.setattr(
        "airflow_provider_jmsjca.page.activations.scheduling_assets",
        lambda dag_id: {"orders": ["orders"]}.get(dag_id, []),
    )
    viewer = browser("viewer")

    def listed(**query: str) -> str:
        text = viewer.get("", **query).text
        return "".join(name for name in owners if f">activation-{name}</a>" in text)

    assert listed(dag_id="orders") == "abce"
    assert listed(dag_id="orders", task_id="load") == "ab"
    assert listed(dag_id="my.orders") == "g"
    assert listed(dag_id="orders", match="ACTIVATION-C") == "c"
    assert listed(dag_id="nothing") == ""
    assert listed() == "abcdefg"


def test_assets_of_a_schedule_belong_to_its_dag(store: Any, browser: Browse) -> None:
    from airflow.models.asset import AssetModel, DagScheduleAssetReference  # noqa: PLC0415 - after the home
    from airflow.models.dag import DagModel  # noqa: PLC0415 - as above
    from airflow.models.dagbundle import DagBundleModel  # noqa: PLC0415 - as above
    from airflow.utils.session import create_session  # noqa: PLC0415 - as above

    store.activations.report([report("one", owner="asset 'waiting'"), report("two", owner="asset 'other'")])
    with create_session() as session:
        asset = AssetModel(name="waiting", uri="x://waiting", group="asset", extra={})
        session.add_all([DagBundleModel(name="b"), asset])
        session.flush()
        session.add(DagModel(dag_id="orders", bundle_name="b"))
        session.flush()
        session.add(DagScheduleAssetReference(dag_id="orders", asset_id=asset.id))
    shown = browser("viewer").get("", dag_id="orders").text
    assert ">one</a>" in shown
    assert ">two</a>" not in shown


def test_a_lost_run_is_marked(store: Any, browser: Browse, monkeypatch: pytest.MonkeyPatch) -> None:
    store.activations.report([report(backlog=250)])
    (status,) = list_activations(store)
    (run,) = status.runs
    assert "values of" not in browser("viewer").get("").text
    lost = replace(run, report=replace(run.report, status=RunStatus.LOST))
    monkeypatch.setattr(
        "airflow_provider_jmsjca.page.activations.list_activations",
        lambda *_, **__: [replace(status, runs=(lost,))],
    )
    shown = browser("viewer").get("").text
    assert '<tr class="lost">' in shown
    assert f"values of {run.seen_at:%Y-%m-%d %H:%M:%S}" in shown


@pytest.mark.parametrize(
    ("action", "wanted"),
    [("suspend", WantedState.SUSPENDED), ("drain", WantedState.DRAINED), ("stop", WantedState.STOPPED)],
)
def test_operators_request_a_state_and_withdraw_it(
    store: Any, browser: Browse, action: str, wanted: WantedState
) -> None:
    store.activations.report([report()])
    operator = browser("op")
    done = operator.post("activation", {"action": action, "reason": "a move"}, name=NAME)
    assert done.status_code == 303
    order = store.activations.order(NAME)
    assert (order.wanted, order.reason, order.asked_by) == (wanted, "a move", "user op")
    shown = operator.client.get(done.headers["location"])
    assert f"{wanted} by user op: a move" in shown.text
    assert operator.post("activation", {"action": "resume"}, name=NAME).status_code == 303
    assert store.activations.order(NAME) is None
    assert audit() == [
        (f"jms_{action}_activation", "op", {"activation": NAME, "reason": "a move"}),
        ("jms_resume_activation", "op", {"activation": NAME, "reason": ""}),
    ]


@pytest.mark.parametrize("role", ["viewer", "user"])
@pytest.mark.parametrize("action", ["suspend", "drain", "stop", "resume"])
def test_others_may_not(store: Any, browser: Browse, role: str, action: str) -> None:
    store.activations.report([report()])
    one = browser(role)
    refused = one.post("activation", {"action": action, "reason": "x"}, name=NAME)
    assert refused.status_code == 403
    assert "connections: edit" in refused.text
    assert store.activations.order(NAME) is None
    assert audit() == []
    assert '<form method="post"' not in one.get("activation", name=NAME).text


def test_what_is_wrong_is_said_and_changes_nothing(store: Any, browser: Browse) -> None:
    store.activations.report([report()])
    operator = browser("op")
    for form, name, said in [
        ({"action": "stop", "reason": " "}, NAME, "the reason is empty"),
        ({"action": "explode", "reason": "x"}, NAME, "expected one of resume, suspend, drain, stop"),
        ({"action": "stop", "reason": "x"}, "unknown", "is not registered"),
        ({"action": "resume"}, NAME, "is not suspended, drained or stopped"),
    ]:
        refused = operator.post("activation", form, name=name)
        assert refused.status_code == 400
        assert said in refused.text
    assert store.activations.order(NAME) is None
    # What can be known before an action is checked first; the rest is written down as it was asked for.
    assert [event for event, _, _ in audit()] == ["jms_resume_activation"]


def test_text_of_others_is_neither_markup_nor_control_characters(store: Any, browser: Browse) -> None:
    store.activations.report(
        [report(title=HOSTILE, owner=HOSTILE, destination=HOSTILE, last_error=HOSTILE, last_error_at=NOON)]
    )
    operator = browser("op")
    answer = operator.post("activation", {"action": "stop", "reason": TYPED}, name=NAME)
    assert answer.status_code == 303
    for shown in (operator.get(""), operator.get("activation", name=NAME), operator.get("", match=TYPED)):
        assert "<script>alert" not in shown.text
        assert "\x1b" not in shown.text
        assert "\u202e" not in shown.text
    assert "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;\\x1b[31m \\u202e" in operator.get("").text


def test_without_a_store_the_page_says_so(browser: Browse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW__JMSJCA__STORE_URL", raising=False)
    shown = browser("viewer").get("")
    assert shown.status_code == 400
    assert "no store yet" in shown.text
