"""Delayed publishing over a broker that can't delay, and `airflow jms limbo`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.cli import cli_parser
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_jmsjca import (
    Delivery,
    JmsHook,
    JmsListenOperator,
    JmsMessage,
    JmsNotifier,
    JmsPublishOperator,
)
from tests.internals.core import Failure
from tests.internals.hooks import installed_store
from tests.internals.store import LimboEntry
from tests.servers.broker import Broker

CONN_ID = "jms_limbo"


@pytest.fixture(autouse=True)
def _installation(rabbitmq: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__JMSJCA__STORE_URL", f"sqlite:///{tmp_path / 'store.db'}")
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "client")  # the commands set it for their process
    host, port = rabbitmq.address()
    login = {"login": rabbitmq.username, "password": rabbitmq.password}
    uri = json.dumps({"conn_type": "jms", "host": host, "port": port, **login})
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", uri)


def run(*arguments: str) -> None:
    parsed = cli_parser.get_parser().parse_args(["jms", *arguments])
    parsed.func(parsed)


def publish(queue: str, **arguments: Any) -> dict[str, Any]:
    operator = JmsPublishOperator(task_id="send", jms_conn_id=CONN_ID, destination=queue, **arguments)
    return operator.execute({})


def receive(queue: str, timeout: float = 20) -> object:
    with JmsHook(CONN_ID).get_conn() as connection, connection.session() as session:
        message = session.receive(queue, timeout=timeout)
        return None if message is None else message.body


def listed(capsys: pytest.CaptureFixture[str], *filters: str) -> list[dict[str, str]]:
    capsys.readouterr()
    run("limbo", "list", "--output", "json", *filters)
    found: list[dict[str, str]] = json.loads(capsys.readouterr().out)
    return found


def test_a_delayed_message_waits_in_limbo_and_is_sent_when_it_is_due_p12_p13_p18(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """P12, P13, P18: a delayed message is kept in limbo, and never sent sooner; RabbitMQ can't delay."""
    later, queue = "queue://limbo.later", "queue://limbo.delayed"
    assert publish(later, messages="x", delay=3600) == {"destination": later, "count": 1, "limbo": [1]}
    run("store", "run", "--once")
    assert receive(later, timeout=0.5) is None
    assert [(each["number"], each["state"]) for each in listed(capsys)] == [("1", "waiting")]
    sent = publish(queue, messages=["a", "b"], delay=1)
    due = time.time() + 1
    assert sent == {"destination": queue, "count": 2, "limbo": [2, 3]}
    time.sleep(max(0.0, due - time.time()) + 0.05)
    run("store", "run", "--once")
    assert "2 messages sent, 0 failed" in capsys.readouterr().out
    assert [receive(queue), receive(queue)] == ["a", "b"]
    assert [each["number"] for each in listed(capsys)] == ["1"]


def test_the_store_is_where_its_url_says_p21(tmp_path: Path) -> None:
    """P21: the data source of what is in limbo."""
    publish("queue://limbo.source", messages="x", delay=60)
    assert (tmp_path / "store.db").exists()


def test_deliver_at_names_the_moment() -> None:
    queue = "queue://limbo.moment"
    soon = datetime.now(UTC) + timedelta(minutes=5)
    assert publish(queue, messages="x", deliver_at=soon.isoformat())["limbo"] == [1]
    assert publish(queue, messages="x", deliver_at=soon)["limbo"] == [2]
    past = datetime.now(UTC) - timedelta(minutes=5)
    assert publish(queue, messages="now", deliver_at=past) == {"destination": queue, "count": 1}
    assert receive(queue) == "now"
    for given, said in {
        "tomorrow": "deliver_at is 'tomorrow'; expected a datetime with a time zone",
        datetime(2026, 5, 4): "with a time zone",  # noqa: DTZ001 - it has none
    }.items():
        with pytest.raises(AirflowFailException, match=said):
            publish(queue, messages="x", deliver_at=given)
    with pytest.raises(AirflowFailException, match="both given"):
        publish(queue, messages="x", deliver_at=soon, delay=1)


def test_messages_are_listed_shown_released_revived_and_purged_p17(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """P17: one, a selection, or all."""
    queue = "queue://limbo.commands"
    publish(queue, messages=["a", "b", "c"], properties={"region": "eu"}, delay=3600)
    publish("queue://limbo.other", messages=["d"], delay=3600)
    assert [each["number"] for each in listed(capsys, "--destination", queue, "--limit", "2")] == ["1", "2"]
    assert [each["number"] for each in listed(capsys, "--after", "3")] == ["4"]
    run("limbo", "show", "2")
    shown = json.loads(capsys.readouterr().out)
    assert (shown["message"]["body"], shown["message"]["properties"]) == ("b", {"region": "eu"})
    publish("queue://limbo.hostile", messages="größe \x9b31m \u202e \u2028", delay=3600)
    capsys.readouterr()
    run("limbo", "show", "5")
    printed = capsys.readouterr().out
    assert json.loads(printed)["message"]["body"] == "größe \x9b31m \u202e \u2028"
    assert r"größe \u009b31m \u202e \u2028" in printed
    run("limbo", "purge", "5")
    capsys.readouterr()
    run("limbo", "release", "1", "3")
    first = capsys.readouterr()
    assert (first.out, "note" in first.err) == ("2 messages released\n", False)
    run("limbo", "release", "1", "3")
    again = capsys.readouterr()
    assert again.out == "0 messages released\n"
    assert again.err.startswith("note: these are due already; ")
    run("limbo", "purge", "--destination", "queue://limbo.other")
    run("limbo", "revive", "--all")
    run("store", "run", "--once")
    said = capsys.readouterr().out
    assert "1 messages purged\n0 messages revived\n2 messages sent, 0 failed\n" in said
    assert [receive(queue), receive(queue)] == ["a", "c"]
    with pytest.raises(SystemExit):
        run("limbo", "purge")
    assert "give their numbers, a filter such as --destination, or --all" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("limbo", "show", "99")
    assert "no message 99 is in limbo" in capsys.readouterr().err


def test_a_list_says_that_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    queue = "queue://limbo.pages"
    publish(queue, messages=["a", "b", "c"], delay=3600)
    pages = {(): "1", ("--after", "1"): "2", ("--after", "2"): None}
    capsys.readouterr()
    for arguments, after in pages.items():
        run("limbo", "list", "--limit", "1", "--output", "json", *arguments)
        shown = capsys.readouterr()
        assert len(json.loads(shown.out)) == 1
        more = f"note: there are more than these 1; add --after {after} for the next, or a higher --limit\n"
        assert (more in shown.err) if after else ("more" not in shown.err)
    run("limbo", "list", "--limit", "3")
    assert "more" not in capsys.readouterr().err


@pytest.mark.parametrize("command", ["revive", "release", "purge"])
def test_all_and_numbers_are_not_both_meant(capsys: pytest.CaptureFixture[str], command: str) -> None:
    publish("queue://limbo.either", messages=["a", "b"], delay=3600)
    for arguments in (("--all", "1", "2"), ("1", "2", "--all")):
        with pytest.raises(SystemExit):
            run("limbo", command, *arguments)
        assert "--all and 1, 2 are both given; expected one of them" in capsys.readouterr().err
    assert len(listed(capsys)) == 2
    run("limbo", command, "--all", "--state", "waiting")
    said = {"revive": "0 messages revived", "release": "2 messages released", "purge": "2 messages purged"}
    assert said[command] in capsys.readouterr().out


def listen(spec: dict[str, Any], handler: Callable[[Delivery], object]) -> dict[str, Any]:
    operator = JmsListenOperator(
        task_id="listen", jms_conn_id=CONN_ID, spec=spec, on_message=handler, idle_for=1, defer_after=None
    )
    return operator.execute({"ti": SimpleNamespace(dag_id="d", task_id="listen", map_index=-1)})


@pytest.mark.parametrize("connection", ["local_only", "every_member"])
def test_a_listener_leaves_a_long_delay_to_limbo_p15(
    capsys: pytest.CaptureFixture[str], rabbitmq: Broker, connection: str
) -> None:
    """P12, P15: RabbitMQ can't delay; the task ends, and the next one goes on with the count."""
    queue = f"queue://limbo.redelivered.{connection}"
    publish(queue, messages=["bad", "good"])
    spec = {
        "destination": queue,
        "redelivery_handling": "1:3600000; 2:move(queue:limbo.dead)",
        "use_store": True,
        "non_blocking_redelivery": True,
        "distributed_destination_connection": connection,
    }
    attempts: list[tuple[object, int]] = []

    def fail_bad(delivery: Delivery) -> None:
        attempts.append((delivery.body, delivery.redelivery_count))
        if delivery.body == "bad":
            raise ValueError("no stock")

    first = listen(spec, fail_bad)
    assert (first["parked"], first["committed"]) == (1, 1)
    (kept,) = listed(capsys)
    member = "@{}:{}".format(*rabbitmq.address()) if connection == "every_member" else ""
    assert (kept["destination"], kept["conn_id"], kept["state"]) == (queue, CONN_ID + member, "waiting")
    name, _, _ = kept["activation"].partition(" at ")
    run("limbo", "release", "--activation", name)
    run("store", "run", "--once")
    second = listen(spec, fail_bad)
    assert (second["parked"], second["moved"]) == (0, 1)
    assert attempts == [("bad", 0), ("good", 0), ("bad", 1)]
    assert receive("queue://limbo.dead") == "bad"
    assert listed(capsys) == []


def test_a_listener_sends_later_p18(capsys: pytest.CaptureFixture[str]) -> None:
    """P18: RabbitMQ can't delay; never sooner, and only with the acknowledgement of what was received."""
    queue, later = "queue://limbo.forwarded", "queue://limbo.reminders"
    publish(queue, messages=["a", "b"])

    def remind(delivery: Delivery) -> None:
        delivery.send(later, JmsMessage.text(f"soon {delivery.body}"), delay=1)
        delivery.send(later, JmsMessage.text(f"later {delivery.body}"), delay=3600)
        if delivery.redelivery_count == 0:
            raise ValueError("not yet")

    began = time.time()
    report = listen({"destination": queue, "use_store": True}, remind)
    assert (report["committed"], report["rolled_back"]) == (2, 2)
    kept = listed(capsys)
    assert [each["destination"] for each in kept] == [later] * len(kept)
    assert 2 <= len(kept) <= 4, "on a slow machine two were due before this listener stopped, and were sent"
    until_due = began + 1
    while (body := receive(later, timeout=0)) is None:
        run("store", "run", "--once")
    assert time.time() >= until_due
    assert body == "soon a"
    assert receive(later) == "soon b"
    assert receive(later, timeout=0) is None
    assert len(listed(capsys)) == 2


def test_a_notification_is_sent_later_p18() -> None:
    """P18: by a callback of a worker, and by one of the triggerer."""
    notifier = JmsNotifier(destination="queue://limbo.notes", messages="x", jms_conn_id=CONN_ID, delay=3600)
    notifier.notify({})
    asyncio.run(notifier.async_notify({}))
    with contextlib.closing(installed_store()) as store:
        assert [each.destination for each in store.limbo.page()] == ["queue://limbo.notes"] * 2


def test_what_failed_for_good_stays_in_limbo_and_is_revived_i28(capsys: pytest.CaptureFixture[str]) -> None:
    """I28, P17: no destination is set; revived, it goes back to its queue."""
    queue = "queue://limbo.homeless"
    publish(queue, messages="bad")

    def fail(_: Delivery) -> None:
        raise ValueError("no stock")

    assert listen({"destination": queue, "max_attempts": 1, "use_store": True}, fail)["moved"] == 1
    (kept,) = listed(capsys, "--state", "failed")
    assert (kept["destination"], kept["exception"]) == (queue, "ValueError: no stock")
    run("limbo", "revive", kept["number"])
    run("store", "run", "--once")
    assert receive(queue) == "bad"


def test_the_property_delivery_date_is_heard_where_it_is_allowed_p18_p21(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P18, P21: allowMessageDelays; a delay of the operator comes first."""
    queue = "queue://limbo.property"
    due = str(int((time.time() + 3600) * 1000))
    dated = {"messages": "later", "properties": {"DELIVERY_DATE": due}}
    assert "limbo" not in publish(queue, **dated)
    assert receive(queue) == "later"
    monkeypatch.setenv("AIRFLOW__JMSJCA__ALLOW_MESSAGE_DELAYS", "true")
    assert publish(queue, **dated)["limbo"] == [1]
    assert publish(queue, messages="now") == {"destination": queue, "count": 1}
    assert publish(queue, **dated, delay=60)["limbo"] == [2]
    past = datetime.now(UTC) - timedelta(minutes=5)
    for at_once in ({"deliver_at": past}, {"delay": 0}):
        assert "limbo" not in publish(queue, **dated, **at_once)
    with contextlib.closing(installed_store()) as store:
        first, second = store.limbo.page()
    # As long after it as the operator took.
    assert -2 < first.due_at.timestamp() * 1000 - int(due) < 60_000
    assert second.due_at < first.due_at
    with pytest.raises(AirflowFailException, match=r"messages\[0\]: property DELIVERY_DATE holds 'soon'"):
        publish(queue, messages="x", properties={"DELIVERY_DATE": "soon"})


def test_what_a_message_says_doesnt_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A broker's refusal may hold what a producer wrote."""
    hostile = Failure(class_names=("a.Broken",), message="\x1b[2J[red]no\nroom")
    now = datetime.now(UTC)
    with contextlib.closing(installed_store()) as store:
        store.limbo.put(
            [
                LimboEntry(
                    jms_conn_id=CONN_ID,
                    destination="queue://o",
                    message=JmsMessage.text("x"),
                    due_at=now,
                    failure=hostile,
                )
            ],
            now,
        )
    for output in ("table", "plain"):
        run("limbo", "list", "--output", output)
        shown = capsys.readouterr().out
        assert "\x1b" not in shown
        assert "[red]no" in shown
    (kept,) = listed(capsys)
    assert kept["exception"] == "a.Broken: \x1b[2J[red]no\nroom"


@pytest.mark.parametrize(
    "arguments",
    [
        ("limbo", "list", "--limit", "0"),
        ("limbo", "list", "--limit", str(2**63 - 1)),
        ("limbo", "list", "--after", "-1"),
        ("limbo", "show", str(2**63)),
        ("limbo", "purge", "9" * 5_000),
        ("attempts", "list", "--at-least", str(2**31)),
        ("indoubt", "list", "--limit", "-1"),
    ],
    ids=lambda each: " ".join(each)[:40],
)
def test_numbers_that_no_store_has_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(*arguments)
    assert ended.value.code == 2
    assert "expected a whole number from" in " ".join(capsys.readouterr().err.split())


def test_the_name_of_a_queue_will_do_as_a_filter(capsys: pytest.CaptureFixture[str]) -> None:
    publish("queue://limbo.named", messages="x", delay=60)
    assert len(listed(capsys, "--destination", "limbo.named")) == 1
    assert listed(capsys, "--destination", "topic://limbo.named") == []
    run("limbo", "purge", "--destination", "limbo.named")
    assert listed(capsys) == []


def test_a_listener_that_parks_sends_what_is_due_itself_and_finds_its_numbers_again(
    activemq: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No triggerer and no command run here. Over STOMP the amount comes back as text."""
    host, port = activemq.address()
    login = {"login": activemq.username, "password": activemq.password}
    uri = json.dumps({"conn_type": "jms", "host": host, "port": port, **login})
    monkeypatch.setenv("AIRFLOW_CONN_JMS_PARKING", uri)
    queue = f"parking.{time.time_ns()}"
    with JmsHook("jms_parking").get_conn() as connection, connection.session() as session:
        session.send(f"queue://{queue}", JmsMessage.text("payment", {"amount": 2000.5}))
    attempts: list[tuple[int, float]] = []

    def pay(delivery: Delivery) -> None:
        attempts.append((delivery.context.attempt, time.monotonic()))
        if delivery.context.attempt == 1:
            raise ValueError("not yet")

    spec = {
        "destination": f"queue://{queue}",
        "selector": "amount > 1000",
        "redelivery_handling": "1:6000",
        "use_store": True,
    }
    listener = JmsListenOperator(
        task_id="listen", spec=spec, on_message=pay, jms_conn_id="jms_parking", max_messages=1,
        non_blocking_redelivery=True,
        run_for=60, defer_after=None,
    )  # fmt: skip
    found = listener.execute({"ti": SimpleNamespace(task_id="listen", dag_id="d", map_index=-1)})

    assert [attempt for attempt, _ in attempts] == [1, 2]
    assert attempts[1][1] - attempts[0][1] >= 6
    assert found["parked"] == 1
    assert [thread.name for thread in threading.enumerate() if thread.name == "jms-limbo"] == []
