"""The page in Chromium: it updates itself under its own content security policy, and its forms work."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvicorn
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from fastapi import FastAPI
from playwright.sync_api import Browser, Page

from airflow_provider_jmsjca import ActivationKind, RunReport, RunStatus, WantedState
from tests.airflow.page.browsing import audit
from tests.servers.ports import HOST

pytestmark = [
    # A server of Airflow loads all of it, whose dependencies warn about each other.
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]
WITHIN = 120_000
"""Milliseconds."""
NAME = "orders at stomp://a:61613"


@pytest.fixture
def site(airflow: FastAPI) -> Iterator[str]:
    """The address of the API server, which runs in this process."""
    server = uvicorn.Server(uvicorn.Config(airflow, log_level="warning"))
    # Who connects before the server has started waits for it.
    with socket.create_server((HOST, 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield f"http://{HOST}:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join()


@pytest.fixture
def visit(site: str, chromium: Browser) -> Iterator[Callable[[str], Page]]:
    """Return a window of a user, who is logged in and whose role is the name. No script and no error is left.

    Every window fails the test if anything was executed, refused by the content security policy, or failed.
    """
    said: list[str] = []
    with contextlib.ExitStack() as stack:

        def window(role: str) -> Page:
            context = stack.enter_context(chromium.new_context(base_url=site))
            context.set_default_timeout(WITHIN)
            token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=role, role=role))
            context.add_cookies([{"name": "_token", "value": token, "url": site}])
            page = context.new_page()
            page.on("console", lambda message: said.append(message.text))
            page.on("pageerror", lambda error: said.append(str(error)))
            page.on("dialog", lambda dialog: said.append(f"dialog {dialog.message}"))
            return page

        yield window
    assert said == []


def test_the_list_updates_itself_and_an_operator_suspends(store: Any, visit: Callable[[str], Page]) -> None:
    page = visit("op")
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
