"""The page in Chromium: it updates itself under its own content security policy, and its forms work."""

from __future__ import annotations

import importlib
import os
import shutil
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from fastapi import FastAPI

from airflow_provider_jmsjca import ActivationKind, RunReport, RunStatus, WantedState
from tests.airflow.page.browsing import audit
from tests.servers.ports import free_ports

pytestmark = [
    # A server of Airflow loads all of it, whose dependencies warn about each other.
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]
WITHIN = 120_000
"""Milliseconds."""
NAME = "orders at stomp://a:61613"


@pytest.fixture
def page(airflow: FastAPI) -> Iterator[Any]:
    """A page of an operator in Chromium, from a server of this process."""
    browser = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip(
            "no Chromium on the PATH and none named in CHROMIUM (on Debian: apt-get install chromium)"
        )
    try:
        playwright = importlib.import_module("playwright.sync_api")
    except ImportError:
        pytest.skip("no Playwright: pip install -r requirements/screenshots.txt")
    (port,) = free_ports(1)
    server = uvicorn.Server(uvicorn.Config(airflow, host="127.0.0.1", port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        with playwright.sync_playwright() as started:
            # Chromium refuses to run as root within its sandbox; all it opens here is our own page.
            chromium = started.chromium.launch(executable_path=browser, args=["--no-sandbox"])
            base = f"http://127.0.0.1:{port}"
            context = chromium.new_context(base_url=base)
            token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username="op", role="op"))
            context.add_cookies([{"name": "_token", "value": token, "url": base}])
            opened = context.new_page()
            opened.set_default_timeout(WITHIN)
            yield opened
            chromium.close()
    finally:
        server.should_exit = True
        thread.join()


def test_the_list_updates_itself_and_an_operator_suspends(store: Any, page: Any) -> None:
    now = store.owners.now()

    def report(committed: int) -> RunReport:
        return RunReport(
            run="r",
            activation=NAME,
            title=NAME,
            kind=ActivationKind.LISTENER,
            owner="dag.task",
            broker="stomp://a:61613",
            destination="queue://orders",
            status=RunStatus.UP,
            started_at=now,
            since=now,
            committed=committed,
            last_error="<img src=x onerror=alert(1)>",
        )

    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(f"dialog {dialog.message}"))
    store.activations.report([report(41)])
    page.goto("/jms/")
    page.get_by_role("cell", name="41", exact=True).wait_for()
    store.activations.report([report(42)])
    page.get_by_role("cell", name="42", exact=True).wait_for()  # without loading the page
    page.get_by_text("<img src=x onerror=alert(1)>").wait_for()
    page.get_by_role("link", name=NAME).click()
    page.get_by_label("Reason").fill("a <b>move</b>")
    page.get_by_role("button", name="Suspend").click()
    page.get_by_text("by user op: a <b>move</b>").first.wait_for()
    assert store.activations.order(NAME).wanted is WantedState.SUSPENDED
    page.get_by_role("button", name="Resume").click()
    page.get_by_text("Requested: resume").wait_for()
    assert store.activations.order(NAME) is None
    assert [event for event, _, _ in audit()] == ["jms_suspend_activation", "jms_resume_activation"]
    assert said == []
