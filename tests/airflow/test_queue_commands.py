"""`airflow jms queues` and `airflow jms dlq` on a real broker, through Airflow's own command line."""

from __future__ import annotations

import json
import uuid

import pytest
from airflow.cli import cli_parser

from airflow_provider_jmsjca import JmsHook, JmsMessage
from tests.servers.broker import Broker

CONN_ID = "jms_queues"
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
    assert [each["body"] for each in found] == ['{ "id": 1 }', '{ "id": 2 }']
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
    assert rows(capsys, "queues", "browse", queue) == []
    assert [each["body"] for each in rows(capsys, "queues", "browse", f"{queue}.other")] == ['{ "id": 1 }']


def test_a_change_must_be_chosen(queue: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (("delete", queue), ("move", queue, queue, "--all")):
        with pytest.raises(SystemExit):
            run("queues", *arguments)
        assert capsys.readouterr().err.startswith("error: ")


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
    with pytest.raises(SystemExit):
        run("dlq", "replay", f"{queue}.dlq")
    assert "--origin" in capsys.readouterr().err
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
