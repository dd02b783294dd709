"""Commands on a broker that cannot browse: RabbitMQ without its management plugin."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from airflow.cli import cli_parser

from airflow_provider_jmsjca import JmsHook, JmsMessage
from tests.servers.broker import Broker

CONN_ID = "jms_unbrowsable"
HOSTILE = "\x1b[2Jred\x9b31m \u202eevil <b>x</b>"


@pytest.fixture(autouse=True)
def _connection(rabbitmq: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "client")  # the commands set it for their process
    host, port = rabbitmq.address()
    login = {"login": rabbitmq.username, "password": rabbitmq.password}
    uri = json.dumps({"conn_type": "jms", "host": host, "port": port, **login})
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", uri)


def run(*arguments: str) -> None:
    parsed = cli_parser.get_parser().parse_args(["jms", *arguments])
    parsed.func(parsed)


def test_messages_are_shown_by_consuming_if_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    queue = f"unbrowsable.{uuid.uuid4().hex[:8]}"
    with JmsHook(CONN_ID).get_conn() as connection, connection.session() as session:
        for n in range(3):
            session.send(f"queue://{queue}", JmsMessage.text(f"{n}{HOSTILE}"))
    with pytest.raises(SystemExit):
        run("queues", "browse", queue, "--conn-id", CONN_ID)
    assert "give --by-consuming, which receives the messages" in capsys.readouterr().err
    browse = ("queues", "browse", queue, "--conn-id", CONN_ID, "--by-consuming", "--limit", "2")
    run(*browse, "--output", "json")
    shown = capsys.readouterr()
    assert [each["body"][0] for each in json.loads(shown.out)] == ["0", "1"]
    assert "marked as redelivered" in shown.err
    assert "--after 2" in shown.err
    run(*browse)
    assert not set(capsys.readouterr().out) & set("\x1b\x9b\u202e")
    with JmsHook(CONN_ID).get_conn() as connection, connection.session() as session:
        left = [session.receive(f"queue://{queue}", timeout=20) for _ in range(3)]
    assert [each.body[0] for each in left if each is not None and isinstance(each.body, str)] == list("012")


def test_what_in_a_spec_would_not_work_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "orders.yaml"
    spec.write_text("destination: queue://orders\nmessage_selector: region = 'eu'\n")
    with pytest.raises(SystemExit):
        run("check", CONN_ID, "--spec", str(spec), "--output", "json")
    found = {each["check"]: each for each in json.loads(capsys.readouterr().out)}
    failed = found["spec: message_selector"]
    assert (failed["result"], found["spec: targets of moves and copies"]["result"]) == ("failed", "ok")
    assert "needs the capability 'selector', which rabbitmq" in failed["detail"]
    spec.write_text("destination: queue://orders\n")
    run("check", CONN_ID, "--spec", str(spec), "--output", "json")
    assert "spec: message_selector" not in capsys.readouterr().out
    spec.write_text("destinatoin: queue://orders\n")
    with pytest.raises(SystemExit):
        run("check", CONN_ID, "--spec", str(spec))
    assert "destinatoin" in capsys.readouterr().err
