"""Every endpoint of the page asks for a login, and every form for a token of its user."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

from tests.airflow.page.browsing import FORMS, ROUTES, VIEWS, Browser, audit
from tests.internals.page import form_token

pytestmark = [
    pytest.mark.usefixtures("store"),
    # A server of Airflow loads all of it, whose dependencies warn about each other.
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]
Browse = Callable[..., Browser]


def test_the_routes_are_those_that_are_tested() -> None:
    names = {
        "",
        "activation",
        "queues",
        "queue",
        "message",
        "edit",
        "dead-letters",
        "limbo",
        "limbo-message",
        "batches",
        "findings",
        "broker-findings",
    }
    assert set(VIEWS) == names
    assert set(FORMS) == {"activation", "queue", "message", "edit", "dead-letters"}
    assert {method for method, _ in ROUTES} == {"GET", "HEAD", "POST"}


@pytest.mark.parametrize("path", VIEWS)
def test_a_view_without_a_login_leads_to_airflows_login_and_back(path: str, browser: Browse) -> None:
    stranger = browser(None)
    answer = stranger.get(path, name="a&b")
    assert answer.status_code == 303
    assert answer.headers["location"] == (f"/api/v2/auth/login?next=%2Fjms%2F{path}%3Fname%3Da%2526b")
    login = stranger.client.get(answer.headers["location"])
    assert login.status_code == 307
    assert login.headers["location"] == f"/auth/login?next=%2Fjms%2F{path}%3Fname%3Da%2526b"
    polled = stranger.client.get(f"/jms/{path}", headers={"hx-request": "true"})
    assert (polled.status_code, polled.text, polled.headers["hx-refresh"]) == (401, "", "true")
    assert stranger.client.head(f"/jms/{path}").status_code == 303


@pytest.mark.parametrize("path", FORMS)
def test_a_form_without_a_login_is_refused(path: str, browser: Browse) -> None:
    token = form_token(SimpleAuthManagerUser(username="op", role="op"))
    assert browser(None).post(path, {"action": "stop", "token": token}).status_code == 401
    assert audit() == []


@pytest.mark.parametrize("path", FORMS)
@pytest.mark.parametrize("kind", ["none", "empty", "other", "old", "made up", "later", "not ascii"])
def test_a_form_with_a_wrong_token_is_refused(
    path: str, kind: str, browser: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = browser("admin")
    own = form_token(SimpleAuthManagerUser(username="admin", role="admin"))
    until, _, signature = own.partition(".")
    if kind == "old":
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: int(until) - 25 * 3600)
            own = form_token(SimpleAuthManagerUser(username="admin", role="admin"))
    token = {
        "none": None,
        "empty": "",
        "other": form_token(SimpleAuthManagerUser(username="op", role="op")),
        "old": own,
        "made up": f"{until}.{'0' * len(signature)}",
        "later": f"{int(until) + 1}.{signature}",
        "not ascii": f"٣.{signature}é",
    }[kind]
    form = {"action": "stop", "reason": "x"} | ({} if token is None else {"token": token})
    refused = admin.client.post(f"/jms/{path}", params={"name": "n"}, data=form)
    assert refused.status_code == 403
    assert "Load the page again" in refused.text
    assert audit() == []


def test_a_token_is_worth_nothing_after_the_key_has_changed(
    browser: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = browser("admin")
    token = form_token(SimpleAuthManagerUser(username="admin", role="admin"))
    monkeypatch.setenv("AIRFLOW__API__SECRET_KEY", "another")
    assert admin.client.post("/jms/activation", data={"token": token}).status_code == 403


def test_a_forged_login_is_none(browser: Browse) -> None:
    forger = browser(None)
    forger.client.cookies.set("_token", "e30.e30.e30")
    assert forger.get("").status_code == 303
    assert forger.client.get("/jms/", headers={"authorization": "Bearer e30.e30.e30"}).status_code == 303


@pytest.mark.parametrize("path", VIEWS)
def test_a_user_without_a_role_sees_nothing(path: str, browser: Browse) -> None:
    answer = browser("eve", "").get(path)
    assert answer.status_code == 403
    assert "assets: read" in answer.text
    assert "<nav>" not in answer.text


@pytest.mark.parametrize(
    ("content", "kind", "status", "said"),
    [
        (b"action=stop", "text/plain", 400, "The request has no form"),
        (b"{}", "application/json", 400, "The request has no form"),
        (b"a=" + b"x" * 530_000, "application/x-www-form-urlencoded", 400, "longer than 524288 bytes"),
        (b"&".join([b"a=1"] * 30), "application/x-www-form-urlencoded", 400, "can&#39;t be read"),
        (b"\xff\xfe=1", "application/x-www-form-urlencoded", 400, "can&#39;t be read"),
    ],
)
def test_what_is_no_form_is_refused(
    browser: Browse, content: bytes, kind: str, status: int, said: str
) -> None:
    answer = browser("admin").client.post("/jms/activation", content=content, headers={"content-type": kind})
    assert answer.status_code == status
    assert said in answer.text


@pytest.mark.parametrize("path", ["", "static/htmx.min.js", "static/page.css", "nothing"])
def test_headers_forbid_inline_scripts_and_frames_of_others(path: str, browser: Browse) -> None:
    headers = browser("viewer").get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'self'" in policy
    assert "unsafe" not in policy
    assert headers["x-frame-options"] == "SAMEORIGIN"
    assert headers["x-content-type-options"] == "nosniff"


def test_airflow_shows_the_page_in_its_navigation(browser: Browse) -> None:
    plugins: Any = browser("admin").client.get("/api/v2/plugins").json()["plugins"]
    (ours,) = [each for each in plugins if each["name"] == "jms"]
    assert ours["fastapi_apps"][0]["url_prefix"] == "/jms"
    views = [(each["destination"], each["href"], each["url_route"]) for each in ours["external_views"]]
    assert views == [
        ("nav", "/jms/", "jms"),
        ("dag", "/jms/?dag_id={DAG_ID}", "jms_dag"),
        ("task", "/jms/?dag_id={DAG_ID}&task_id={TASK_ID}", "jms_task"),
        ("task_instance", "/jms/?dag_id={DAG_ID}&task_id={TASK_ID}&ended=1", "jms_task_instance"),
    ]


def test_no_page_has_scripts_or_styles_in_its_html(browser: Browse) -> None:
    text = browser("op").get("").text
    assert text.count("<script") == text.count('<script src="/jms/static/htmx.min.js" defer></script>') == 1
    assert "style=" not in text
    assert "<style" not in text
    assert "onclick" not in text
    assert browser("viewer").get("static/htmx.min.js").text.startswith("/* htmx 2.0.11")
