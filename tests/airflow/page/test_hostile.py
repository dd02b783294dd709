"""Hostile addresses, names and texts on every view: none is executed, hidden, followed or a server error."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from airflow_provider_jmsjca import (
    ActivationKind,
    ConnectionSettings,
    Destination,
    JmsMessage,
    MemoryBroker,
    Outgoing,
    RunReport,
    RunStatus,
    connect,
)
from tests.airflow.page.browsing import FORMS, VIEWS, Browser, audit
from tests.internals.store import ActivationSample

pytestmark = [
    # A server of Airflow loads all of it, whose dependencies warn about each other.
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]
Browse = Callable[..., Browser]
VALUES = [
    "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>",
    "\x1b[31m\x9b2J\u202e\u2028\r\nset-cookie: a=b",
    "a\x00b",
    "../../etc/passwd",
    "..%2F..%2Fetc%2Fpasswd",
    "//evil.example/",
    "https://evil.example/",
    "javascript:alert(1)",
    "\\\\evil.example\\x",
    "9" * 40,
    "x" * 3_000,
    "{{ 7*7 }}{% include 'layout.html' %}",
]
NAMES = (
    *("conn_id", "queue", "id", "selector", "skip", "match", "name", "done", "state", "after", "number"),
    *("dag_id", "task_id", "ended", "all", "filled", "next", "path", "self"),
)


def check(answer: Any, *, below: tuple[int, ...] = (200, 303, 400, 403, 404)) -> None:
    """Fail if an answer is a server error, has markup of others, or leads to another host."""
    assert answer.status_code in below, answer.text
    text = answer.text
    assert "<script>alert" not in text
    assert "<img" not in text
    assert "49" not in re.findall(r">\s*(49)\s*<", text)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\u2028]", text)
    assert "set-cookie" not in answer.headers
    leading = [answer.headers.get("location", ""), *re.findall(r'(?:href|action|src|hx-get)="([^"]*)"', text)]
    for each in map(html.unescape, filter(None, leading)):
        parts = urlsplit(each)
        assert (parts.scheme, parts.netloc) == ("", ""), each
        assert parts.path.startswith("/"), each


@pytest.mark.usefixtures("store", "server")
@pytest.mark.parametrize("value", VALUES)
def test_every_parameter_of_every_view_is_only_text(value: str, browser: Browse) -> None:
    operator, stranger = browser("op"), browser(None)
    for path in VIEWS:
        for query in [dict.fromkeys(NAMES, value), {**dict.fromkeys(NAMES, value), "conn_id": "jms_test"}]:
            check(operator.get(path, **query))
        sent_away = stranger.get(path, next=value)
        check(sent_away, below=(303,))
        (back,) = parse_qs(urlsplit(sent_away.headers["location"]).query)["next"]
        assert back.startswith(f"/jms/{path}?")
    for path in FORMS:
        form = dict.fromkeys(["action", "to", "origin", "confirm", "text", "reason"], value)
        for action in (value, "move", "replay", "purge", "stop"):
            query = {**dict.fromkeys(NAMES, value), "conn_id": "jms_test"}
            check(operator.post(path, {**form, "action": action, "confirmed": "1"}, **query))


@pytest.mark.parametrize(
    "path",
    [
        "static/../access.py",
        "static/%2e%2e/access.py",
        "static/..%2faccess.py",
        "static/%2fetc%2fpasswd",
        "static//etc/passwd",
        "static/a%00b",
        "a%2F..%2Fqueues",
        "%00",
        "%ff",
        ";/queues",
    ],
)
def test_paths_lead_nowhere(path: str, browser: Browse) -> None:
    answer = browser("admin").client.get(f"http://testserver/jms/{path}")
    assert answer.status_code in {404, 405}, answer.text
    assert "form_token" not in answer.text
    assert "root:" not in answer.text


@pytest.mark.usefixtures("server")
def test_an_activation_of_any_name_has_its_plots(store: Any, browser: Browse) -> None:
    now = store.owners.now()
    for name in VALUES[:5]:
        text = name.replace("\x00", "")
        store.activations.report(
            [
                RunReport(
                    run=text,
                    activation=text,
                    title=text,
                    kind=ActivationKind.LISTENER,
                    owner=text,
                    broker=text,
                    destination=text,
                    status=RunStatus.UP,
                    started_at=now,
                    since=now,
                    last_error=text,
                    last_error_at=now,
                )
            ]
        )
        store.activations.add_samples([ActivationSample(activation=text, at=now, delivered=1, backlog=2)])
        shown = browser("op").client.get(f"/jms/activation?name={quote(text)}&done={quote(text)}")
        check(shown, below=(200,))
        assert shown.text.count("<svg") == 3
    check(browser("viewer").get(""), below=(200,))


@pytest.mark.usefixtures("store")
def test_a_queue_of_any_name_is_browsed_and_changed(server: MemoryBroker, browser: Browse) -> None:
    operator = browser("op")
    for n, name in enumerate(VALUES[:9]):
        if "\x00" in name:
            continue
        connection = connect(ConnectionSettings(scheme="vm", hosts=((server.name, None),)))
        message = JmsMessage.text(name, {"p": name})
        connection.send([Outgoing(destination=Destination.queue(name), message=message)])
        connection.close()
        query = {"conn_id": "jms_test", "queue": name}
        listed = operator.get("queue", **query)
        check(listed, below=(200,))
        (link,) = re.findall(r'href="(/jms/message[^"]+)"', listed.text)
        check(operator.client.get(html.unescape(link)), below=(200,))
        check(operator.post("queue", {"action": "move", "to": f"to {n}"}, **query), below=(200,))
        check(
            operator.post("queue", {"action": "move", "to": f"to {n}", "confirmed": "1"}, **query),
            below=(200,),
        )
        assert [event for event, _, _ in audit()][-1] == "jms_move_messages"
        assert audit()[-1][2]["queue"] == name
