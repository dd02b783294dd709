"""`airflow jms queues`, `dlq`, `send` and `check` on a real broker, through Airflow's own command line."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.cli import cli_parser
from airflow.sdk import DAG, Asset, AssetWatcher

from airflow_provider_jmsjca import (
    ActivationKind,
    JmsActivationTrigger,
    JmsHook,
    JmsListenOperator,
    JmsMessage,
    JmsSensor,
    RunReport,
    RunStatus,
    open_store,
)
from tests.airflow.task_runs import serialized
from tests.internals.core import Failure
from tests.servers.broker import Broker

CONN_ID = "jms_queues"
NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
HOSTILE = "\x1b[2Jred\x9b31m \u202eevil <b>x</b> 'quoted' \"double\""
ORIGIN = {
    "JMS_Sun_JMSJCA_OriginalDestinationName": "orders",
    "JMS_Sun_JMSJCA_OriginalDestinationType": "javax.jms.Queue",
    "JMS_Sun_JMSJCA_ExceptionClass": "ValueError",
}


@pytest.fixture(autouse=True)
def _connection(activemq: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "client")  # the commands set it for their process
    host, port = activemq.address()
    login = {"login": activemq.username, "password": activemq.password}
    monkeypatch.setenv(
        f"AIRFLOW_CONN_{CONN_ID.upper()}",
        json.dumps({"conn_type": "jms", "host": host, "port": port, **login}),
    )


@pytest.fixture
def queue() -> str:
    return f"commands.{uuid.uuid4().hex[:8]}"


def run(*arguments: str) -> None:
    parsed = cli_parser.get_parser().parse_args(["jms", *arguments, "--conn-id", CONN_ID])
    parsed.func(parsed)


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, str]]:
    capsys.readouterr()
    run(*arguments, "--output", "json")
    found: list[dict[str, str]] = json.loads(capsys.readouterr().out)
    return found


def send(queue: str, *messages: JmsMessage) -> None:
    with JmsHook(CONN_ID).get_conn() as connection, connection.session() as session:
        for message in messages:
            session.send(f"queue://{queue}", message)


def test_look_and_change(queue: str, capsys: pytest.CaptureFixture[str]) -> None:
    send(queue, *(JmsMessage.text(json.dumps({"id": n}), {"n": n}) for n in range(3)))
    [listed] = rows(capsys, "queues", "list", "--match", f"{queue}*")
    assert (listed["queue"], listed["messages"], listed["in_flight"]) == (queue, "3", "0")
    assert listed["oldest"]
    found = rows(capsys, "queues", "browse", queue, "--selector", "n >= 1")
    assert [each["body"] for each in found] == ['{"id": 1}', '{"id": 2}']
    run("queues", "browse", queue, "--messages", "--limit", "2")
    lines = [JmsMessage.from_json(json.loads(line)) for line in capsys.readouterr().out.splitlines()]
    assert [each.body for each in lines] == ['{"id": 0}', '{"id": 1}']
    run("queues", "show", f"queue://{queue}", found[0]["message"], "--output", "plain")
    shown = capsys.readouterr().out
    assert "property n" in shown
    assert '"id": 1' in shown
    run("queues", "move", queue, f"{queue}.other", "--message", found[0]["message"], "--dry-run")
    assert capsys.readouterr().out == "1 messages would be moved\n"
    run("queues", "move", queue, f"{queue}.other", "--message", found[0]["message"])
    assert capsys.readouterr().out == "1 messages moved\n"
    run("queues", "delete", queue, "--all")
    assert capsys.readouterr().out == "2 messages deleted\n"
    for command in (("queues", "browse"), ("dlq", "list")):
        run(*command, queue)
        assert f"queue '{queue}' is empty or does not exist" in capsys.readouterr().err
        run(*command, queue, "--selector", "n = 1")
        assert f"no message on queue '{queue}' matches the selector" in capsys.readouterr().err
    assert [each["body"] for each in rows(capsys, "queues", "browse", f"{queue}.other")] == ['{"id": 1}']


def test_a_schema_is_proposed(queue: str, capsys: pytest.CaptureFixture[str]) -> None:
    send(queue, *(JmsMessage.text(json.dumps({"id": n, "at": "2026-01-31"})) for n in range(2)))
    send(queue, JmsMessage.text(f"[{HOSTILE}"))
    run("schema", queue)
    shown = capsys.readouterr()
    assert shown.out == "id BIGINT NOT NULL,\nat DATE NOT NULL\n"
    [fault, note] = shown.err.splitlines()
    assert fault.endswith(": the body is not JSON: Expecting value: line 1 column 2 (char 1)")
    assert note == "note: 3 messages read, 1 of them don't fit"
    assert len(rows(capsys, "queues", "browse", queue)) == 3
    for arguments in ((), (queue, "--batch", "b"), ("--batch", "b", "--selector", "a = 1")):
        with pytest.raises(SystemExit):
            run("schema", *arguments)
        assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.usefixtures("metadata")
@pytest.mark.filterwarnings("default", "error:::airflow_provider_jmsjca")
def test_queues_in_use_are_listed_with_their_users_and_rates(
    queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    monkeypatch.setenv("AIRFLOW__JMSJCA__STORE_URL", url)
    trigger = JmsActivationTrigger(jms_conn_id=CONN_ID, destination=f"queue://{queue}.watched")
    asset = Asset(f"asset {queue}", watchers=[AssetWatcher(name="w", trigger=trigger)])
    with DAG(f"dag.{queue}", schedule=asset) as dag:
        listens = {"destination": f"{queue}.listened", "redelivery_handling": "3:move(queue:$.dlq)"}
        JmsListenOperator(task_id="listen", spec=listens, jms_conn_id=CONN_ID, on_message=print, idle_for=1)
        JmsSensor(task_id="sense", destination=f"queue://{queue}.sensed", jms_conn_id=CONN_ID)
        JmsSensor(task_id="later", destination=f"queue://{queue}.{{{{ ds }}}}", jms_conn_id=CONN_ID)
        JmsSensor(task_id="elsewhere", destination=f"queue://{queue}.elsewhere")
    serialized(dag)
    send(f"{queue}.watched", JmsMessage.text("a"))
    report = RunReport(
        run="1",
        activation="orders",
        kind=ActivationKind.LISTENER,
        owner=HOSTILE,
        broker=":".join(map(str, (JmsHook(CONN_ID).settings().hosts[0]))),
        destination=f"queue://{queue}.run",
        status=RunStatus.UP,
        started_at=NOON,
        since=NOON,
    )
    with contextlib.closing(open_store(url)) as store:
        store.activations.report([report])
        used = rows(capsys, "queues", "list", "--used", "--rate", "0.2", "--match", f"{queue}*")
        assert [(each["queue"], each["messages"], each["used_by"]) for each in used] == [
            (f"{queue}.listened", "", f"task dag.{queue}.listen"),
            (f"{queue}.run", "", HOSTILE),
            (f"{queue}.sensed", "", f"task dag.{queue}.sense"),
            (f"{queue}.watched", "1", f"asset asset {queue}"),
        ]
        assert (used[-1]["in_per_second"], used[-1]["out_per_second"]) == ("0.0", "0.0")
        for output in ("table", "plain"):
            run("queues", "list", "--used", "--output", output)
            assert not set(capsys.readouterr().out) & set("\x1b\x9b\u202e")


@pytest.mark.usefixtures("metadata")
@pytest.mark.filterwarnings("default", "error:::airflow_provider_jmsjca")
def test_without_a_connection_the_queues_of_all_are_listed_with_the_error_of_each_that_fails(
    queue: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    send(queue, JmsMessage.text("a"))
    for conn_id, found in {
        # Nobody listens on port 1.
        "jms_lost": {"conn_type": "jms", "host": "127.0.0.1", "port": 1, "extra": {"connect_timeout": 1}},
        "jms_memory": {"conn_type": "jms", "host": "vm://queue-commands"},
        "other": {"conn_type": "http", "host": "127.0.0.1"},
    }.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(found))
    with JmsHook("jms_memory").get_conn() as connection, connection.session() as session:
        session.send(f"queue://{queue}.memory", JmsMessage.text("a"))

    def listed(*arguments: str) -> tuple[list[tuple[str, str, str]], str]:
        parsed = cli_parser.get_parser().parse_args(["jms", "queues", "list", *arguments, "-o", "json"])
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            parsed.func(parsed)
        assert left.value.code == 1
        shown = capsys.readouterr()
        rows = json.loads(shown.out or "[]")
        return [(each["connection"], each["queue"], each["messages"]) for each in rows], shown.err

    found, error = listed("--match", f"{queue}*")
    assert found == [("jms_memory", f"{queue}.memory", "1"), (CONN_ID, queue, "1")]
    assert error.startswith("error: connection 'jms_lost': ")
    assert len(error.splitlines()) == 1
    assert listed("--conn-id", "jms_lost")[1].startswith("error: ")


def test_the_attempts_at_a_message_are_shown(
    queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    monkeypatch.setenv("AIRFLOW__JMSJCA__STORE_URL", url)
    send(queue, JmsMessage.text("a"))
    (listed,) = rows(capsys, "queues", "browse", queue)
    with contextlib.closing(open_store(url, where="host/7")) as store:
        store.attempts.begin("orders", [listed["message"]], NOON)
        failure = Failure(class_names=("ValueError",), message=HOSTILE)
        store.attempts.failed("orders", {listed["message"]: failure})
    run("queues", "show", queue, listed["message"], "--output", "plain")
    shown = capsys.readouterr().out
    assert "attempt 1 of orders" in shown
    assert "2026-05-04T12:00:00+00:00 on host/7 ValueError" in shown
    assert not set(shown) & set("\x1b\x9b\u202e")


def test_a_change_must_be_chosen(queue: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (("delete", queue), ("move", queue, queue, "--all")):
        with pytest.raises(SystemExit):
            run("queues", *arguments)
        assert capsys.readouterr().err.startswith("error: ")


def test_an_empty_selector_is_no_choice(queue: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It comes from an unset shell variable, and would delete everything."""
    for command in (("queues", "delete"), ("dlq", "replay")):
        with pytest.raises(SystemExit):
            run(*command, queue, "--selector", " ")
        assert "--selector: is empty" in " ".join(capsys.readouterr().err.split())


def test_dead_letters_go_back(queue: str, capsys: pytest.CaptureFixture[str]) -> None:
    origin = ORIGIN | {"JMS_Sun_JMSJCA_OriginalDestinationName": queue}
    send(
        f"{queue}.dlq",
        *(
            JmsMessage.text(f"m{n}", origin | {"JMS_Sun_JMSJCA_ExceptionMessage": f"order {n} is bad"})
            for n in range(3)
        ),
    )
    [group] = rows(capsys, "dlq", "list", f"{queue}.dlq")
    assert (group["count"], group["from"]) == ("3", f"queue://{queue}")
    assert group["reason"] == "ValueError: order … is bad"
    run("dlq", "list", f"{queue}.dlq", "--output", "table")
    shown = f"airflow jms dlq show --conn-id {CONN_ID} {queue}.dlq {group['example']}"
    assert f"note: the whole reason and the message: {shown}\n" in capsys.readouterr().err
    run("dlq", "show", f"{queue}.dlq", group["example"], "--output", "table")
    edit = f"airflow jms dlq edit --to DESTINATION --conn-id {CONN_ID} {queue}.dlq {group['example']}"
    assert f"note: correct and send it: {edit}\n" in capsys.readouterr().err
    for limits, count, note in (
        (
            ("--limit", "2"),
            "2",
            "the groups count the first 2 dead letters of 3 on the queue; --all reads all, --limit more",
        ),
        (("--all",), "3", ""),
    ):
        run("dlq", "list", f"{queue}.dlq", "--output", "json", *limits)
        told = capsys.readouterr()
        assert [each["count"] for each in json.loads(told.out)] == [count]
        assert told.err == (note and f"note: {note}\n")
    with pytest.raises(SystemExit):
        run("dlq", "list", f"{queue}.dlq", "--all", "--limit", "2")
    assert "--all and --limit exclude each other" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("dlq", "replay", f"{queue}.dlq")
    assert "--origin" in capsys.readouterr().err
    gone = ("--origin", f"queue://{queue}", "--message", "ID:gone")
    with pytest.raises(SystemExit):
        run("dlq", "replay", f"{queue}.dlq", *gone)
    assert capsys.readouterr().err == "error: no message 'ID:gone' is on the queue\n"
    found = rows(capsys, "dlq", "replay", f"{queue}.dlq", "--origin", f"queue://{queue}")
    assert found == [{"count": "3", "what": f"sent back to queue://{queue}"}]
    assert [each["body"] for each in rows(capsys, "queues", "browse", queue)] == ["m0", "m1", "m2"]


def test_hostile_text_does_not_reach_the_terminal(queue: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = {"JMS_Sun_JMSJCA_ExceptionMessage": HOSTILE, "name": HOSTILE}
    send(f"{queue}.dlq", JmsMessage.text(HOSTILE, ORIGIN | text), JmsMessage.bytes(b"\xff\x9b\x00"))
    for output in ("table", "plain"):
        for command in (("dlq", "list"), ("queues", "browse")):
            run(*command, f"{queue}.dlq", "--output", output)
        for each in rows(capsys, "queues", "browse", f"{queue}.dlq"):
            run("queues", "show", f"{queue}.dlq", each["message"], "--output", output)
            shown = capsys.readouterr().out
            assert not set(shown) & set("\x1b\x9b\u202e\x00")


def test_sending(
    queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("send", f"queue://{queue}", "--body", "one", "--property", "region=eu", "--correlation-id", "c1")
    assert capsys.readouterr().out == f"1 message sent to queue://{queue}\n"
    file = tmp_path / "lines"
    file.write_text("two\nthree\n")
    run("send", queue, "--file", str(file), "--lines")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"\x00\xff")))
    run("send", queue, "--bytes")
    found = rows(capsys, "queues", "browse", queue)
    assert [each["body"] for each in found] == ["one", "two", "three", "00ff"]
    run("queues", "show", queue, found[0]["message"], "--output", "json")
    file.write_text(capsys.readouterr().out)
    run("send", f"{queue}.again", "--file", str(file), "--messages")
    with JmsHook(CONN_ID).get_conn() as connection, connection.session() as session:
        message = session.receive(f"queue://{queue}.again", timeout=10)
    assert message is not None
    assert (message.body, message.properties["region"], message.correlation_id) == ("one", "eu", "c1")


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--body", "x", "--property", "region"], "--property 'region': expected NAME=VALUE"),
        (["--body", "{", "--messages"], "line 1: not valid JSON"),
        (["--body", "{}", "--messages"], "line 1: message, "),
        (["--file", "/nowhere"], "/nowhere: cannot be read"),
    ],
)
def test_what_cannot_be_sent(
    queue: str, arguments: list[str], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run("send", queue, *arguments)
    assert fault in capsys.readouterr().err


def test_checking(queue: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def check(*arguments: str) -> None:
        parsed = cli_parser.get_parser().parse_args(["jms", "check", *arguments, "--output", "json"])
        parsed.func(parsed)

    check(CONN_ID, "--queue", queue)
    found = json.loads(capsys.readouterr().out)
    assert [(each["check"], each["result"]) for each in found] == [
        ("login", "ok"),
        ("capabilities", "ok"),
        ("administration", "ok"),
        ("memory and disk", "ok"),
        ("clock", "ok"),
        (f"round trip over queue://{queue}", "ok"),
    ]
    assert "ms; the broker's clock differs by" in found[-1]["detail"]
    wrong = json.loads(os.environ[f"AIRFLOW_CONN_{CONN_ID.upper()}"]) | {"password": "wrong"}
    monkeypatch.setenv("AIRFLOW_CONN_JMS_WRONG", json.dumps(wrong))
    with pytest.raises(SystemExit):
        check("jms_wrong")
    [failed] = json.loads(capsys.readouterr().out)
    assert (failed["check"], failed["result"]) == ("login", "failed")
    assert "wrong" not in failed["detail"]


EDITORS = {
    "edits": "s = p.read_text(); p.write_text(s.replace('wrong', 'right'))",
    "changes nothing": "",
    "empties it": "p.write_text('')",
    "fails": "p.write_text('{}'); raise SystemExit(1)",
    "writes nonsense": "p.write_text('{')",
}


@pytest.mark.parametrize("editor", EDITORS)
def test_a_dead_letter_is_edited_and_sent(
    editor: str,
    queue: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    program = tmp_path / "editor.py"
    program.write_text(f"import pathlib, sys\np = pathlib.Path(sys.argv[1])\n{EDITORS[editor]}\n")
    monkeypatch.setenv("VISUAL", f"{sys.executable} {program}")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    send(f"{queue}.dlq", JmsMessage.text('{"id": "wrong"}', ORIGIN | {"region": "eu"}))
    [letter] = rows(capsys, "queues", "browse", f"{queue}.dlq")
    command = ("dlq", "edit", f"{queue}.dlq", letter["message"], "--to", queue)
    if editor == "writes nonsense":
        with pytest.raises(SystemExit):
            run(*command)
        assert "your text is in" in capsys.readouterr().err
    else:
        run(*command)
    kept = [each.name for each in tmp_path.glob("jms-*")]
    assert len(kept) == (editor == "writes nonsense")
    if editor != "edits":
        assert rows(capsys, "queues", "browse", f"{queue}.dlq") == [letter]
        assert rows(capsys, "queues", "browse", queue) == []
        return
    assert rows(capsys, "queues", "browse", f"{queue}.dlq") == []
    with JmsHook(CONN_ID).get_conn() as connection, connection.session() as session:
        message = session.receive(f"queue://{queue}", timeout=10)
    assert message is not None
    assert message.body == '{"id": "right"}'
    own = {"region": "eu", "JMSJCA_ReplayOf": letter["message"], "JMSJCA_ReplayCount": "1"}
    assert {name: str(value) for name, value in message.properties.items()} == own


def test_purging_asks_first(
    queue: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    send(queue, *(JmsMessage.text(str(n), {"n": n}) for n in range(3)))
    monkeypatch.setattr("builtins.input", lambda _: "n")
    run("dlq", "purge", queue)
    assert capsys.readouterr().out == "nothing deleted\n"
    run("dlq", "purge", queue, "--selector", "n = 1", "--yes")
    assert capsys.readouterr().out == "1 messages deleted\n"
    monkeypatch.setattr("builtins.input", lambda _: "y")
    run("dlq", "purge", queue)
    assert capsys.readouterr().out == "2 messages deleted\n"
