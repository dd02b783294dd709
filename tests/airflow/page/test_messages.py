"""Queues, dead letters and limbo on the page: what each role sees and may do."""

from __future__ import annotations

import html
import json
import re
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import pytest

from airflow_provider_jmsjca import (
    ActivationKind,
    ConnectionSettings,
    Destination,
    JmsMessage,
    MemoryBroker,
    Outgoing,
    QueueOperation,
    RunReport,
    RunStatus,
    connect,
)
from tests.airflow.page.browsing import Browser, audit
from tests.internals.core import Failure
from tests.internals.store import ActivationSample, LimboEntry
from tests.internals.transports import MemoryAdministration, MemoryConnection
from tests.internals.transports import connection as memory

pytestmark = [
    pytest.mark.usefixtures("server", "store"),
    # A server of Airflow loads all of it, whose dependencies warn about each other.
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::airflow_provider_jmsjca"),
]
Browse = Callable[..., Browser]
CONN = {"conn_id": "jms_test"}
HOSTILE = "\x1b[2Jred\x9b31m \u202eevil <b onclick=x>b</b> 'quoted' \"double\" &amp; {{ 7*7 }}"
PLAIN = "\\x1b[2Jred\\x9b31m \\u202eevil <b onclick=x>b</b> 'quoted' \"double\" &amp; {{ 7*7 }}"
"""The same without characters that steer a terminal or a browser."""
ORIGIN = {
    "JMS_Sun_JMSJCA_OriginalDestinationName": "orders",
    "JMS_Sun_JMSJCA_OriginalDestinationType": "javax.jms.Queue",
    "JMS_Sun_JMSJCA_ExceptionClass": "ValueError",
    "JMS_Sun_JMSJCA_ExceptionMessage": "no stock of 'tea'",
}


@pytest.fixture
def send(server: MemoryBroker) -> Callable[..., None]:
    def put(queue: str, *messages: JmsMessage) -> None:
        connection = connect(ConnectionSettings(scheme="vm", hosts=((server.name, None),)))
        connection.send(Outgoing(destination=Destination.queue(queue), message=each) for each in messages)
        connection.close()

    return put


@pytest.fixture
def count(server: MemoryBroker) -> Callable[[str], int]:
    def found(queue: str) -> int:
        connection = connect(ConnectionSettings(scheme="vm", hosts=((server.name, None),)))
        try:
            return len(list(connection.browse(Destination.queue(queue))))
        finally:
            connection.close()

    return found


def only_id(text: str) -> str:
    (found,) = set(re.findall(r"[?&;]id=([^\"&]+)", text))
    return unquote(str(found))


def dead(text: str = "x", **properties: Any) -> JmsMessage:
    return JmsMessage.text(text, {**ORIGIN, **properties})


def test_viewers_see_depths_and_no_messages(send: Callable[..., None], browser: Browse) -> None:
    send("orders", JmsMessage.text("secret body"), JmsMessage.text("b"))
    send("empty.q", JmsMessage.text("c"))
    viewer = browser("viewer")
    shown = viewer.get("queues", **CONN)
    assert shown.status_code == 200
    assert re.search(r'>orders</a></td>\s*<td class="number">2</td>', shown.text)
    assert "secret body" not in shown.text
    assert "empty.q" not in viewer.get("queues", **CONN, match="ord").text
    for path, query in [
        ("queue", {"queue": "orders"}),
        ("message", {"queue": "orders", "id": "x"}),
        ("dead-letters", {"queue": "orders"}),
    ]:
        for role in ("viewer", "user"):
            refused = browser(role).get(path, **CONN, **query)
            assert refused.status_code == 403
            assert "connections: read" in refused.text
            assert "secret body" not in refused.text


def test_messages_are_browsed_page_by_page(send: Callable[..., None], browser: Browse) -> None:
    send("orders", *(JmsMessage.text(f"body {n:03}", {"n": n}) for n in range(60)))
    operator = browser("op")
    first = operator.get("queue", **CONN, queue="orders").text
    assert "body 000" in first
    assert "body 049" in first
    assert "body 050" not in first
    (following,) = re.findall(r'href="([^"]+)">Next', first)
    second = operator.client.get(html.unescape(following)).text
    assert "body 050" in second
    assert "body 049" not in second
    selected = operator.get("queue", **CONN, queue="orders", selector="n = 7").text
    assert "body 007" in selected
    assert "body 008" not in selected
    assert operator.get("queue", **CONN, queue="orders", selector="n = ").status_code == 400


@pytest.mark.parametrize(
    ("message", "body", "form"),
    [
        (JmsMessage.text(HOSTILE, {"p": HOSTILE}), PLAIN, "text"),
        (JmsMessage.text('{"a": [1]}', {"p": HOSTILE}), '{\n  "a": [\n    1\n  ]\n}', "json"),
        (JmsMessage.bytes(b"\xff\xfe<i>", {"p": HOSTILE}), "ff fe 3c 69 3e", "hex"),
        (JmsMessage.text("line 1\nline\r2\n", {"p": HOSTILE}), "line 1\nline\\r2\n", "text"),
    ],
)
def test_a_message_is_shown_completely_and_is_no_markup(
    send: Callable[..., None], browser: Browse, message: JmsMessage, body: str, form: str
) -> None:
    queue = f"q.{uuid.uuid4().hex}"
    send(queue, message)
    operator = browser("op")
    found = operator.get("queue", **CONN, queue=queue)
    shown = operator.client.get(f"/jms/message?conn_id=jms_test&queue={queue}&id={only_id(found.text)}").text
    assert f"shown as {form}" in shown
    (pre,) = re.findall(r"<pre>(.*?)</pre>", shown, re.DOTALL)
    assert body in html.unescape(pre)
    assert html.escape(PLAIN, quote=False).replace("'", "&#39;").replace('"', "&#34;") in shown
    for text in (found.text, shown):
        assert "<b onclick" not in text
        assert "<i>" not in text
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)
        assert "49" not in re.findall(r"<dd>(.*?)</dd>", text)


def test_of_a_body_of_10_mib_the_beginning_is_shown(send: Callable[..., None], browser: Browse) -> None:
    send("big", JmsMessage.text("é" * (10 << 20)))
    operator = browser("op")
    found = operator.get("queue", **CONN, queue="big").text
    shown = operator.client.get(f"/jms/message?conn_id=jms_test&queue=big&id={only_id(found)}")
    assert shown.status_code == 200
    assert "20971520 bytes, shown as text; only the beginning is shown" in shown.text
    assert len(shown.text) < 400_000


def test_names_of_queues_are_no_markup(send: Callable[..., None], browser: Browse) -> None:
    name = "a'\"<b>&x=1 #é\x1b[31m"
    send(name, JmsMessage.text("found"))
    operator = browser("op")
    shown = operator.get("queues", **CONN).text
    assert "<b>" not in shown
    assert "\x1b" not in shown
    (link,) = re.findall(r'href="(/jms/queue\?[^"]+)"', shown)
    assert "found" in operator.client.get(html.unescape(link)).text


def test_where_looking_changes_something_the_page_asks_first(
    send: Callable[..., None], browser: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryAdministration, "browse_note", "browsing marks messages as redelivered")
    send("orders", dead("seen"))
    operator = browser("op")
    for path, query in [("queue", {}), ("dead-letters", {}), ("message", {"id": "no such id"})]:
        asked = operator.get(path, **CONN, queue="orders", **query)
        assert "browsing marks messages as redelivered" in asked.text
        assert "seen" not in asked.text
        assert "Look at the messages" in asked.text
    assert audit() == []
    assert "seen" in operator.post("queue", {}, **CONN, queue="orders").text
    assert "ValueError" in operator.post("dead-letters", {}, **CONN, queue="orders").text
    assert operator.post("message", {}, **CONN, queue="orders", id="no such id").status_code == 400
    target = {"conn_id": "jms_test", "queue": "orders"}
    assert audit() == [
        ("jms_browse_queue", "op", target),
        ("jms_browse_queue", "op", target),
        ("jms_browse_message", "op", {**target, "message": "no such id"}),
    ]
    assert browser("viewer").post("queue", {}, **CONN, queue="orders").status_code == 403


def test_dead_letters_are_grouped_by_reason_and_origin(send: Callable[..., None], browser: Browse) -> None:
    send("orders.dlq", dead("1"), dead("2"), JmsMessage.text("3"))
    send("orders", JmsMessage.text("no dead letter"))
    operator = browser("op")
    queues = operator.get("dead-letters", **CONN).text
    assert ">orders.dlq</a>" in queues
    assert ">orders</a>" not in queues
    shown = operator.get("dead-letters", **CONN, queue="orders.dlq").text
    assert "ValueError: no stock of …" in html.unescape(shown)
    assert re.search(r'<td class="number">2</td><td>queue://orders</td>', shown)
    assert "no reason is known" in shown


@pytest.mark.parametrize("form", [{"origin": "queue://orders"}, {"to": "queue://orders"}])
def test_dead_letters_are_sent_back(
    send: Callable[..., None], count: Callable[[str], int], browser: Browse, form: dict[str, str]
) -> None:
    send("orders.dlq", dead("1"), dead("2"))
    operator = browser("op")
    query = {**CONN, "queue": "orders.dlq"}
    counted = operator.post("dead-letters", {"action": "replay", "dry_run": "1", **form}, **query)
    assert "2 would be sent back to queue://orders" in counted.text
    assert (count("orders.dlq"), audit()) == (2, [])
    sent = operator.post("dead-letters", {"action": "replay", **form}, **query)
    assert "2 sent back to queue://orders" in sent.text
    assert (count("orders.dlq"), count("orders")) == (0, 2)
    assert audit() == [
        (
            "jms_replay_dead_letters",
            "op",
            {"conn_id": "jms_test", "queue": "orders.dlq", "selector": "", **form},
        )
    ]


def test_a_dry_run_that_receives_letters_is_written_down(
    send: Callable[..., None], browser: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    capabilities = replace(memory.CAPABILITIES, browse=False)
    monkeypatch.setattr(MemoryConnection, "capabilities", capabilities)
    send("orders.dlq", dead("1"))
    form = {"action": "replay", "to": "queue://orders", "dry_run": "1"}
    counted = browser("op").post("dead-letters", form, **CONN, queue="orders.dlq")
    assert "1 would be sent back" in counted.text
    assert audit() == [("jms_browse_queue", "op", {"conn_id": "jms_test", "queue": "orders.dlq"})]


def test_a_replay_says_that_letters_beyond_its_limit_may_be_left(
    send: Callable[..., None],
    count: Callable[[str], int],
    browser: Browse,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("airflow_provider_jmsjca.page.dead_letters._MOST_SENT", 2)
    send("orders.dlq", dead("1"), dead("2"), dead("3"))
    form, query = {"action": "replay", "to": "queue://orders"}, {**CONN, "queue": "orders.dlq"}
    operator = browser("op")
    for dry_run in ({"dry_run": "1"}, {}):
        assert "There may be more" in operator.post("dead-letters", form | dry_run, **query).text
    assert count("orders.dlq") == 1
    last = operator.post("dead-letters", form, **query).text
    assert "1 sent back" in last
    assert "more;" not in last


def test_dead_letters_are_deleted_once_the_name_is_typed(
    send: Callable[..., None], count: Callable[[str], int], browser: Browse
) -> None:
    send("orders.dlq", dead("1", region="eu"), dead("2", region="us"))
    operator = browser("op")
    query = {**CONN, "queue": "orders.dlq", "selector": "region = 'eu'"}
    refused = operator.post("dead-letters", {"action": "purge", "confirm": "orders"}, **query)
    assert refused.status_code == 400
    assert "type the name of the queue" in refused.text
    assert (count("orders.dlq"), audit()) == (2, [])
    deleted = operator.post("dead-letters", {"action": "purge", "confirm": "orders.dlq"}, **query)
    assert "1 messages deleted" in deleted.text
    assert count("orders.dlq") == 1
    target = {"conn_id": "jms_test", "queue": "orders.dlq", "selector": "region = 'eu'"}
    assert audit() == [("jms_purge_dead_letters", "op", target)]


@pytest.mark.parametrize("role", ["viewer", "user"])
@pytest.mark.parametrize("action", ["replay", "purge"])
def test_others_change_no_dead_letters(
    send: Callable[..., None], count: Callable[[str], int], browser: Browse, role: str, action: str
) -> None:
    send("orders.dlq", dead())
    form = {"action": action, "to": "queue://orders", "confirm": "orders.dlq"}
    refused = browser(role).post("dead-letters", form, **CONN, queue="orders.dlq")
    assert refused.status_code == 403
    assert (count("orders.dlq"), audit()) == (1, [])


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"action": "replay"}, "give either one target"),
        ({"action": "replay", "to": "queue://orders.dlq"}, "expected another target"),
        ({"action": "explode"}, "expected replay or purge"),
    ],
)
def test_what_is_wrong_with_a_replay_is_said(
    send: Callable[..., None], browser: Browse, form: dict[str, str], said: str
) -> None:
    send("orders.dlq", dead())
    refused = browser("op").post("dead-letters", form, **CONN, queue="orders.dlq")
    assert refused.status_code == 400
    assert said in refused.text


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("move", (2, 1, "1 message moved to other")),
        ("copy", (3, 1, "1 message copied to other")),
        ("delete", (2, 0, "1 message deleted")),
    ],
)
def test_one_message_is_changed_once_that_is_confirmed(
    send: Callable[..., None],
    count: Callable[[str], int],
    browser: Browse,
    action: str,
    expected: tuple[int, int, str],
) -> None:
    send("orders", *(JmsMessage.text(str(n), {"n": n}) for n in range(3)))
    operator = browser("op")
    chosen = only_id(operator.get("queue", **CONN, queue="orders", selector="n = 1").text)
    query = {**CONN, "queue": "orders", "id": chosen}
    asked = operator.post("message", {"action": action, "to": "queue://other"}, **query)
    assert f"{action.capitalize()} 1 message of orders" in asked.text
    assert (count("orders"), audit()) == (3, [])
    confirmed = operator.post("message", {"action": action, "to": "other", "confirmed": "1"}, **query)
    left, arrived, done = expected
    assert done in confirmed.text
    assert (count("orders"), count("other")) == (left, arrived)
    target = {"conn_id": "jms_test", "queue": "orders", "message": chosen}
    to = {} if action == "delete" else {"to": "other"}
    assert audit() == [(f"jms_{action}_messages", "op", target | to)]


def test_messages_that_match_a_selector_are_copied(
    send: Callable[..., None], count: Callable[[str], int], browser: Browse
) -> None:
    send("orders", *(JmsMessage.text(str(n), {"n": n}) for n in range(3)))
    query = {**CONN, "queue": "orders", "selector": "n > 0"}
    form = {"action": "copy", "to": "other"}
    operator = browser("op")
    assert "Copy 2 messages of orders to other?" in operator.post("queue", form, **query).text
    operator.post("queue", {**form, "confirmed": "1"}, **query)
    assert (count("orders"), count("other")) == (3, 2)
    target = {"conn_id": "jms_test", "queue": "orders", "selector": "n > 0", "to": "other"}
    assert audit() == [("jms_copy_messages", "op", target)]


def test_a_message_is_edited_compared_and_sent(
    send: Callable[..., None], count: Callable[[str], int], browser: Browse
) -> None:
    send("orders.dlq", dead("1"), dead(HOSTILE, region="eu"))
    operator = browser("op")
    chosen = only_id(operator.get("queue", **CONN, queue="orders.dlq", selector="region = 'eu'").text)
    query = {**CONN, "queue": "orders.dlq", "id": chosen}
    shown = operator.get("edit", **query).text
    (area,) = re.findall(r"<textarea[^>]*>\n(.*?)</textarea>", shown, re.DOTALL)
    assert "<b onclick" not in shown
    text = html.unescape(area)
    assert json.loads(text)["body"] == HOSTILE
    assert "JMS_Sun_JMSJCA" not in text
    form = {"text": text.replace('"eu"', '"us"').replace("\n", "\r\n"), "to": "queue://orders"}
    compared = html.unescape(operator.post("edit", form, **query).text)
    assert '-    "region": "eu"' in compared
    assert '+    "region": "us"' in compared
    assert (count("orders.dlq"), audit()) == (2, [])
    sent = operator.post("edit", {**form, "confirmed": "1"}, **query)
    assert "The edited message was sent to queue://orders." in sent.text
    assert (count("orders.dlq"), count("orders")) == (1, 1)
    target = {"conn_id": "jms_test", "queue": "orders.dlq", "message": chosen, "to": "queue://orders"}
    assert audit() == [("jms_edit_message", "op", target)]
    arrived = operator.get("queue", **CONN, queue="orders", selector="region = 'us'").text
    assert only_id(arrived)


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"text": "{", "to": "queue://orders"}, "not a message"),
        ({"text": "[" * 5000, "to": "queue://orders"}, "not a message"),
        ({"text": '{"body": 1}', "to": "queue://orders"}, "not a message"),
        ({"text": "same", "to": "queue://orders"}, "was not changed"),
        ({"text": "same", "to": ""}, "a destination needs a name"),
        ({"text": "same", "to": "queue://orders.dlq"}, "was not changed"),
    ],
)
def test_what_is_wrong_with_an_edited_message_is_said(
    send: Callable[..., None], count: Callable[[str], int], browser: Browse, form: dict[str, str], said: str
) -> None:
    send("orders.dlq", dead("1"))
    operator = browser("op")
    query = {**CONN, "queue": "orders.dlq"}
    query["id"] = only_id(operator.get("queue", **query).text)
    if form["text"] == "same":
        (area,) = re.findall(
            r"<textarea[^>]*>(.*?)</textarea>", operator.get("edit", **query).text, re.DOTALL
        )
        form = {**form, "text": html.unescape(area)}
    refused = operator.post("edit", {**form, "confirmed": "1"}, **query)
    assert refused.status_code == 400
    assert said in refused.text
    assert (count("orders.dlq"), audit()) == (1, [])


def test_long_messages_are_edited_elsewhere(send: Callable[..., None], browser: Browse) -> None:
    send("big", JmsMessage.text("x" * 200_000))
    operator = browser("op")
    query = {**CONN, "queue": "big", "id": only_id(operator.get("queue", **CONN, queue="big").text)}
    assert "use airflow jms dlq edit" in operator.get("edit", **query).text
    send("wide", JmsMessage.text("\u4e2d" * 60_000))
    query = {**CONN, "queue": "wide", "id": only_id(operator.get("queue", **CONN, queue="wide").text)}
    assert "use airflow jms dlq edit" in operator.get("edit", **query).text


@pytest.mark.parametrize("character", ["\u4e2d", "\U0001f600", '"'])
def test_a_message_that_may_be_edited_fits_into_the_forms(
    character: str, send: Callable[..., None], count: Callable[[str], int], browser: Browse
) -> None:
    written = json.dumps(character, ensure_ascii=False)[1:-1].encode()
    send("wide", JmsMessage.text(character * (130_000 // len(written))))
    operator = browser("op")
    query = {**CONN, "queue": "wide", "id": only_id(operator.get("queue", **CONN, queue="wide").text)}
    (area,) = re.findall(r"<textarea[^>]*>(.*?)</textarea>", operator.get("edit", **query).text, re.DOTALL)
    form = {"text": html.unescape(area).replace('"priority": 4', '"priority": 5'), "to": "queue://there"}
    compared = operator.post("edit", form, **query)
    assert "Send this copy to queue://there" in compared.text
    (text,) = re.findall(r'name="text" value="([^"]*)"', compared.text)
    sent = operator.post("edit", {**form, "text": html.unescape(text), "confirmed": "1"}, **query)
    assert "was sent to queue://there" in sent.text
    assert (count("wide"), count("there")) == (0, 1)


@pytest.mark.parametrize("role", ["viewer", "user"])
def test_others_change_no_messages(
    send: Callable[..., None], count: Callable[[str], int], browser: Browse, role: str
) -> None:
    send("orders", JmsMessage.text("1"))
    one = browser(role)
    query = {
        **CONN,
        "queue": "orders",
        "id": only_id(browser("op").get("queue", **CONN, queue="orders").text),
    }
    for action in ("move", "copy", "delete"):
        form = {"action": action, "to": "other", "confirmed": "1"}
        for path in ("queue", "message"):
            assert one.post(path, form, **query).status_code == 403
    assert (
        one.post("edit", {"text": "{}", "to": "queue://other", "confirmed": "1"}, **query).status_code == 403
    )
    assert one.get("edit", **query).status_code == 403
    assert (count("orders"), count("other"), audit()) == (1, 0, [])


def test_a_broker_without_an_operation_offers_and_does_none(
    send: Callable[..., None], browser: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryAdministration, "operations", frozenset({QueueOperation.BROWSE}))
    send("orders", JmsMessage.text("1"))
    operator = browser("op")
    shown = operator.get("queue", **CONN, queue="orders").text
    query = {**CONN, "queue": "orders", "id": only_id(shown)}
    for text in (shown, operator.get("message", **query).text):
        assert "To queue" not in text
        assert "Edit a copy" not in text
    refused = operator.post("message", {"action": "move", "to": "other"}, **query)
    assert refused.status_code == 400
    assert "move is not offered by" in refused.text
    assert operator.get("edit", **query).status_code == 400
    assert operator.post("queue", {"action": "explode"}, **query).status_code == 400


def test_only_jms_connections_are_reached(browser: Browse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_WEB", json.dumps({"conn_type": "http", "host": "example.com"}))
    for conn_id in ("web", "nothing", "jms_test'"):
        for path in ("queues", "queue", "dead-letters", "message", "edit"):
            refused = browser("op").get(path, conn_id=conn_id, queue="q", id="1")
            assert refused.status_code == 400
            assert "there is no JMS connection" in refused.text


def test_a_broker_that_is_away_is_reported(browser: Browse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_JMS_TEST", json.dumps({"conn_type": "jms", "host": "stomp://127.0.0.1", "port": 1})
    )
    shown = browser("viewer").get("queues", **CONN)
    assert shown.status_code == 502
    assert "127.0.0.1" in shown.text


def test_limbo_is_listed_and_its_messages_are_for_those_who_may_read(store: Any, browser: Browse) -> None:
    now = store.limbo.now()
    failure = Failure.of(ValueError(f"no article {HOSTILE}"))
    entries = [
        LimboEntry(
            jms_conn_id="jms_test", destination="queue://a", message=JmsMessage.text("m1"), due_at=now
        ),
        LimboEntry(
            jms_conn_id="jms_test",
            destination=f"queue://{HOSTILE}",
            message=JmsMessage.text(HOSTILE),
            due_at=now,
            failure=failure,
        ),
    ]
    numbers = store.limbo.put(entries, now)
    viewer, operator = browser("viewer"), browser("op")
    shown = viewer.get("limbo").text
    assert "queue://a" in shown
    assert "<b onclick" not in shown
    assert "\x1b" not in shown
    assert "ValueError: needs Airflow&#39;s permission “connections: read”" in shown
    assert "no article" not in shown
    assert "ValueError: no article" in operator.get("limbo").text
    assert "queue://a" not in viewer.get("limbo", state="failed").text
    assert viewer.get("limbo", state="x").status_code == 400
    assert viewer.get("limbo", after="x").status_code == 400
    assert viewer.get("limbo-message", number=numbers[0]).status_code == 403
    assert "m1" in operator.get("limbo-message", number=numbers[0]).text
    assert "<b onclick" not in operator.get("limbo-message", number=numbers[1]).text
    assert operator.get("limbo-message", number="999").status_code == 400


def test_backlog_and_rates_are_plotted(store: Any, browser: Browse) -> None:
    now = store.owners.now()
    store.activations.report(
        [
            RunReport(
                run="r",
                activation="a",
                title="a",
                kind=ActivationKind.LISTENER,
                owner="d.t",
                broker="b",
                destination="queue://q",
                status=RunStatus.UP,
                started_at=now,
                since=now,
            )
        ]
    )
    assert "<svg" not in browser("viewer").get("activation", name="a").text
    store.activations.add_samples([ActivationSample(activation="a", at=now, delivered=7, backlog=1234)])
    shown = browser("viewer").get("activation", name="a").text
    assert shown.count("<svg") == 3
    assert ">1234</text>" in shown
    assert datetime.now(UTC).strftime("%Y") in shown
