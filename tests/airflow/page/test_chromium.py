"""The page in Chromium: each action, each role, each view without a login, and hostile text.

Forms are filled and sent as a user does it, under the page's own content security policy.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
import uvicorn
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from fastapi import FastAPI
from playwright.sync_api import Browser, Page

from airflow_provider_jmsjca import (
    ActivationKind,
    ConnectionSettings,
    Destination,
    JmsMessage,
    MemoryBroker,
    Outgoing,
    RunReport,
    RunStatus,
    WantedState,
    connect,
)
from tests.airflow.page.browsing import VIEWS, audit
from tests.docs.screenshots import PAGE_SHOTS, save_picture
from tests.internals.store import ActivationSample
from tests.internals.transports import MemoryAdministration
from tests.servers.ports import HOST

pytestmark = [
    # A server of Airflow loads all of it, whose dependencies warn about each other.
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]
WITHIN = 120_000
"""Milliseconds."""
NAME = "orders at stomp://a:61613"
LISTENER = "orders_eu at stomp://broker:61613"
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
HOSTILE = "\x1b[31m<img src=x onerror=alert(1)></textarea></pre><script>alert(2)</script> \u202e'\"{{ 7*7 }}"


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
def visit(site: str, chromium: Browser) -> Iterator[Callable[..., Page]]:
    """Return a window of a user who is logged in, and whose role is the name; `None`: without a login.

    The test fails if a window ran a script of somebody else, or the content security policy refused
    something.
    """
    said: list[str] = []

    def note(text: str) -> None:
        # Chromium reports answers with an error status, too.
        if not re.match(r"Failed to load resource: the server responded with a status of 4\d\d", text):
            said.append(text)

    with contextlib.ExitStack() as stack:

        def window(role: str | None, *, silent: bool = True) -> Page:
            context = stack.enter_context(chromium.new_context(base_url=site))
            context.set_default_timeout(WITHIN)
            if role is not None:
                token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=role, role=role))
                context.add_cookies([{"name": "_token", "value": token, "url": site}])
            page = context.new_page()
            if silent:
                page.on("console", lambda message: note(message.text))
                page.on("pageerror", lambda error: note(str(error)))
                page.on("dialog", lambda dialog: note(f"dialog {dialog.message}"))
            return page

        yield window
    assert said == []


@pytest.fixture
def broker(server: MemoryBroker) -> Iterator[Any]:
    """The broker of the connection `jms_test`."""
    with contextlib.closing(
        connect(ConnectionSettings(scheme="vm", hosts=((server.name, None),)))
    ) as connection:
        yield connection


def report(name: str = NAME, **changes: Any) -> RunReport:
    given: dict[str, Any] = {
        "run": name,
        "activation": name,
        "title": name,
        "kind": ActivationKind.LISTENER,
        "owner": "orders.load",
        "broker": "stomp://a:61613",
        "destination": "queue://orders",
        "status": RunStatus.UP,
        "started_at": NOON,
        "since": NOON,
    }
    return RunReport(**given | changes)


def send(broker: Any, queue: str, *messages: JmsMessage) -> None:
    broker.send(Outgoing(destination=Destination.queue(queue), message=each) for each in messages)


def bodies(broker: Any, queue: str) -> list[Any]:
    return [each.body for each in broker.browse(Destination.queue(queue))]


def test_a_user_logs_in_and_gets_to_the_view_that_was_asked_for(
    store: Any, visit: Callable[..., Page], passwords: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE", str(passwords))
    store.activations.report([report()])
    page = visit(None, silent=False)
    page.goto("/jms/?match=orders")
    page.locator("input[name=username]").fill("viewer")
    page.locator("input[name=password]").fill(json.loads(passwords.read_text())["viewer"])
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("link", name=NAME).wait_for()
    assert urlsplit(page.url).path == "/jms/"
    assert urlsplit(page.url).query == "match=orders"


@pytest.mark.usefixtures("store", "server")
def test_no_view_and_no_form_is_for_a_stranger(visit: Callable[..., Page]) -> None:
    page = visit(None, silent=False)
    for path in VIEWS:
        page.goto(f"/jms/{path}", wait_until="commit")
        assert urlsplit(page.url).path.endswith("/auth/login"), path
        refused = page.request.post(f"/jms/{path}", form={"action": "stop"}, max_redirects=0)
        assert refused.status in {401, 405}, path
    assert audit() == []


def test_the_list_updates_itself(store: Any, visit: Callable[..., Page]) -> None:
    page = visit("viewer")
    store.activations.report([report(committed=41)])
    page.goto("/jms/")
    page.get_by_role("cell", name="41", exact=True).wait_for()
    page.evaluate("window.mark = 'not loaded again'")
    store.activations.report([report(committed=42)])
    page.get_by_role("cell", name="42", exact=True).wait_for()
    assert page.evaluate("window.mark") == "not loaded again"
    # A finding that is loaded after the page stays a row with its kind.
    store.activations.request_state(NAME, WantedState.STOPPED, reason="stock count", asked_by="user nina")
    page.goto("/jms/")
    page.locator(".findings td .state.problem").first.wait_for()


def test_operators_and_admins_suspend_drain_stop_and_resume(store: Any, visit: Callable[..., Page]) -> None:
    store.activations.report([report()])
    events = []
    for role, action, wanted in [
        ("op", "suspend", WantedState.SUSPENDED),
        ("op", "drain", WantedState.DRAINED),
        ("admin", "stop", WantedState.STOPPED),
    ]:
        page = visit(role)
        page.goto("/jms/")
        page.get_by_role("link", name=NAME).click()
        page.get_by_label("Reason").fill("a <b>move</b>")
        page.get_by_role("button", name=action.capitalize()).click()
        page.get_by_text(f"{wanted} since").wait_for()
        page.get_by_text(f"by user {role}: a <b>move</b>").first.wait_for()
        order = store.activations.order(NAME)
        assert (order.wanted, order.reason, order.asked_by) == (wanted, "a <b>move</b>", f"user {role}")
        page.get_by_role("button", name="Resume").click()
        page.get_by_text("Requested: resume").wait_for()
        assert store.activations.order(NAME) is None
        events += [(f"jms_{action}_activation", role), ("jms_resume_activation", role)]
    assert [(event, user) for event, user, _ in audit()] == events


def test_viewers_and_users_see_counts_and_are_offered_nothing(
    store: Any, broker: Any, visit: Callable[..., Page]
) -> None:
    store.activations.report([report()])
    send(broker, "orders", JmsMessage.text("secret body"))
    for role in ("viewer", "user"):
        page = visit(role)
        page.goto(f"/jms/activation?name={quote(NAME)}")
        page.get_by_text("need Airflow's permission to edit connections").wait_for()
        assert page.locator("form[method=post]").count() == 0
        page.goto("/jms/queues")
        page.get_by_role("link", name="orders", exact=True).click()
        page.get_by_text("This needs Airflow's permission").wait_for()
        for path in ("dead-letters", "message", "edit"):
            page.goto(f"/jms/{path}?conn_id=jms_test&queue=orders&id=1")
            page.get_by_text("This needs Airflow's permission").wait_for()
            assert "secret body" not in page.content()
    assert audit() == []


@pytest.mark.usefixtures("store")
def test_a_message_is_moved_copied_and_deleted(broker: Any, visit: Callable[..., Page]) -> None:
    page = visit("op")
    for action, left, arrived in [
        ("Move", [], [HOSTILE]),
        ("Copy", [HOSTILE], [HOSTILE]),
        ("Delete", [], []),
    ]:
        queue, other = f"{action} <i>q</i>", f"other {action}"
        send(broker, queue, JmsMessage.text(HOSTILE, {"p": HOSTILE}))
        page.goto("/jms/queues")
        page.get_by_role("link", name=queue, exact=True).click()
        page.locator("#live td a").click()
        page.get_by_text("<img src=x onerror=alert(1)>").first.wait_for()
        page.get_by_label("To queue").fill("" if action == "Delete" else other)
        page.get_by_role("button", name=action).click()
        page.get_by_text(f"{action} 1 message of {queue}").wait_for()
        assert bodies(broker, queue) == [HOSTILE]
        page.get_by_role("button", name=action).click()
        page.get_by_role("status").get_by_text("1 message").wait_for()
        assert (bodies(broker, queue), bodies(broker, other)) == (left, arrived)
        page.get_by_role("link", name="Back").click()
        page.get_by_role("heading", name=queue).wait_for()
    assert [event for event, _, _ in audit()] == [
        f"jms_{each}_messages" for each in ("move", "copy", "delete")
    ]


@pytest.mark.usefixtures("store")
def test_a_message_is_edited_and_sent(broker: Any, visit: Callable[..., Page]) -> None:
    page = visit("op")
    send(broker, "orders.dlq", JmsMessage.text(f"wrong\r\n{HOSTILE}", {"region": "eu"}))
    page.goto("/jms/queue?conn_id=jms_test&queue=orders.dlq")
    page.locator("#live td a").click()
    page.get_by_role("link", name="Edit a copy").click()
    area = page.get_by_label("Message as JSON")
    area.fill(area.input_value().replace("wrong", "right"))
    page.get_by_label("To", exact=True).fill("queue://orders")
    page.get_by_role("button", name="Compare and send").click()
    page.get_by_text("Send this copy to queue://orders").wait_for()
    shown = page.locator("pre").inner_text()
    assert "wrong" in shown
    assert "right" in shown
    assert bodies(broker, "orders") == []
    page.get_by_role("button", name="Send").click()
    page.get_by_text("The edited message was sent to queue://orders.").wait_for()
    assert bodies(broker, "orders") == [f"right\r\n{HOSTILE}"]
    assert bodies(broker, "orders.dlq") == []
    assert [event for event, _, _ in audit()] == ["jms_edit_message"]


@pytest.mark.usefixtures("store")
def test_dead_letters_are_sent_back_and_deleted(broker: Any, visit: Callable[..., Page]) -> None:
    page = visit("op")
    origin = {
        "JMS_Sun_JMSJCA_OriginalDestinationName": "orders",
        "JMS_Sun_JMSJCA_OriginalDestinationType": "javax.jms.Queue",
        "JMS_Sun_JMSJCA_ExceptionClass": "ValueError",
        "JMS_Sun_JMSJCA_ExceptionMessage": HOSTILE,
    }
    send(
        broker,
        "orders.dlq",
        JmsMessage.text("1", {**origin, "n": 1}),
        JmsMessage.text("2", {**origin, "n": 2}),
    )
    page.goto("/jms/dead-letters")
    page.get_by_role("link", name="orders.dlq", exact=True).click()
    page.get_by_label("Selector").fill("n = 1")
    page.get_by_role("button", name="Show").click()
    page.get_by_label("To their origin").select_option("queue://orders")
    page.get_by_role("button", name="Send back").click()
    page.get_by_text("1 sent back to queue://orders").wait_for()
    assert (bodies(broker, "orders.dlq"), bodies(broker, "orders")) == (["2"], ["1"])
    page.goto("/jms/dead-letters?conn_id=jms_test&queue=orders.dlq")
    page.get_by_label("Name of the queue, to confirm").fill("orders.dlq")
    page.get_by_role("button", name="Delete").click()
    page.get_by_text("1 messages deleted").wait_for()
    assert bodies(broker, "orders.dlq") == []
    assert [event for event, _, _ in audit()] == ["jms_replay_dead_letters", "jms_purge_dead_letters"]


@pytest.mark.usefixtures("store")
def test_a_look_that_changes_something_is_asked_for(
    broker: Any, visit: Callable[..., Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryAdministration, "browse_note", "browsing marks messages as redelivered")
    send(broker, "orders", JmsMessage.text("seen"))
    page = visit("op")
    page.goto("/jms/queue?conn_id=jms_test&queue=orders")
    page.get_by_text("browsing marks messages as redelivered").wait_for()
    assert "seen" not in page.content()
    page.get_by_role("button", name="Look at the messages").click()
    page.get_by_role("cell", name="seen").wait_for()
    assert [event for event, _, _ in audit()] == ["jms_browse_queue"]


def test_airflow_shows_the_page_in_a_frame(store: Any, visit: Callable[..., Page]) -> None:
    store.activations.report([report(), report("of another DAG", owner="bills.load")])
    page = visit("op", silent=False)
    page.goto("/plugin/jms")
    frame = page.frame_locator("iframe[title=JMS]")
    frame.get_by_role("link", name=NAME).click()
    frame.get_by_label("Reason").fill("from the frame")
    frame.get_by_role("button", name="Suspend").click()
    frame.get_by_text("by user op: from the frame").first.wait_for()
    assert store.activations.order(NAME).wanted is WantedState.SUSPENDED


def _fill(store: Any, broker: Any) -> None:
    """Three activations with six hours behind one of them, and dead letters of two kinds."""
    now = store.owners.now()
    common = {
        "broker": "stomp://broker:61613",
        "started_at": now - timedelta(hours=6),
        "since": now - timedelta(hours=2),
        "last_message_at": now - timedelta(minutes=1),
    }
    returns, us = "orders_returns at stomp://broker:61613", "orders_us at stomp://broker:61613"
    eu_counts = {
        "delivered": 48_219,
        "committed": 48_213,
        "rolled_back": 3,
        "dead_lettered": 3,
        "backlog": 118,
    }
    us_counts = {"delivered": 9_071, "committed": 9_071, "backlog": 2_450, "status": RunStatus.SUSPENDED}
    returns_counts = {
        "delivered": 1_412,
        "committed": 1_377,
        "rolled_back": 4,
        "dead_lettered": 31,
        "backlog": 0,
    }
    error = "InsufficientStock: no stock of 'tea'"
    store.activations.report(
        [
            report(LISTENER, owner="orders_eu.handle", **eu_counts, **common),
            report(us, owner="orders_us.handle", **us_counts, **common),
            report(returns, owner="asset 'orders-returns'", last_error=error, **returns_counts, **common),
        ]
    )
    store.activations.request_state(us, WantedState.SUSPENDED, reason="stock count", asked_by="user nina")
    store.activations.add_samples(
        [
            ActivationSample(
                activation=LISTENER,
                at=now - timedelta(minutes=ago),
                delivered=120 + ago % 17 * 3,
                failed=int(ago % 40 == 0),
                backlog=max(0, 900 - abs(ago - 150) * 9) + ago % 11,
            )
            for ago in range(359, 0, -1)
        ]
    )
    for exception, text, number in [
        ("InsufficientStock", "no stock of 'tea'", 31),
        ("ValidationError", "amount is missing", 4),
    ]:
        known = {
            "JMS_Sun_JMSJCA_OriginalDestinationName": "orders",
            "JMS_Sun_JMSJCA_OriginalDestinationType": "javax.jms.Queue",
            "JMS_Sun_JMSJCA_ExceptionClass": exception,
            "JMS_Sun_JMSJCA_ExceptionMessage": text,
        }
        send(broker, "orders.dlq", *(JmsMessage.text("{}", known) for _ in range(number)))


def test_the_pictures_of_the_docs_can_be_taken(
    store: Any, broker: Any, visit: Callable[..., Page], tmp_path: Path
) -> None:
    """`make screenshots` names the folder of the docs, and keeps them."""
    folder = Path(os.environ.get("JMSJCA_PICTURES", tmp_path))
    _fill(store, broker)
    page = visit("op")
    page.set_viewport_size({"width": 1600, "height": 760})
    page.goto("/jms/")
    page.get_by_text("stock count").first.wait_for()
    # Findings come after the list, those of brokers by themselves.
    page.get_by_text("35 messages on the dead-letter queue orders.dlq").wait_for()
    page.get_by_text(re.compile("orders_us .* is suspended since")).wait_for()
    save_picture(page.screenshot(animations="disabled"), folder / "page-activations.png")
    page.get_by_role("link", name=LISTENER).click()
    page.get_by_text("Failures a minute").wait_for()
    page.get_by_label("Reason").fill("stock system is down until 14:00")
    save_picture(page.screenshot(animations="disabled"), folder / "page-activation.png")
    page.goto("/jms/dead-letters?conn_id=jms_test&queue=orders.dlq")
    page.get_by_label("To their origin").select_option("queue://orders")
    save_picture(page.screenshot(animations="disabled"), folder / "page-dead-letters.png")
    assert {*PAGE_SHOTS} <= {each.name for each in folder.glob("page-*.png")}
