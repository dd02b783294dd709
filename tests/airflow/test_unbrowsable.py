"""Commands on RabbitMQ: without its management plugin it cannot browse; with it, letters say why."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from pathlib import Path

import httpx
import pytest
from airflow.cli import cli_parser

from airflow_provider_jmsjca import (
    Activation,
    ActivationSpec,
    Delivery,
    Destination,
    DestinationKind,
    JmsHook,
    JmsMessage,
    open_store,
)
from tests.servers.broker import Broker
from tests.unit.engine.listening import until

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


def name_management(rabbitmq: Broker, monkeypatch: pytest.MonkeyPatch) -> str:
    if "management" not in rabbitmq.ports:
        pytest.skip("only our own broker has a management plugin for certain")
    url = f"http://{rabbitmq.address()[0]}:{rabbitmq.ports['management']}"
    variable = f"AIRFLOW_CONN_{CONN_ID.upper()}"
    monkeypatch.setenv(
        variable, json.dumps(json.loads(os.environ[variable]) | {"extra": {"management_url": url}})
    )
    return url


def doctor_causes(queue: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    with contextlib.suppress(SystemExit):  # the letters are a problem
        run("doctor", "--conn-id", CONN_ID, "--output", "json")
    return [each["cause"] for each in json.loads(capsys.readouterr().out) if queue in each["symptom"]]


@pytest.mark.usefixtures("metadata")
def test_doctor_says_why_a_listener_moved_a_message_without_a_look_at_it(
    rabbitmq: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name_management(rabbitmq, monkeypatch)
    store_url = f"sqlite:///{tmp_path / 'store.db'}"
    monkeypatch.setenv("AIRFLOW__JMSJCA__STORE_URL", store_url)
    queue = f"failing.{uuid.uuid4().hex[:8]}"
    with JmsHook(CONN_ID).get_conn() as connection, connection.session() as session:
        session.send(f"queue://{queue}", JmsMessage.text("7"))

    def refuse(delivery: Delivery) -> None:
        raise ValueError(f"order {delivery.body!s} is refused")

    spec = ActivationSpec(destination=f"queue://{queue}", redelivery_handling="1:move(queue:$.dlq)")
    with contextlib.closing(open_store(store_url)) as store:
        listener = Activation(spec, refuse, connection=rabbitmq.settings(), store=store)
        listener.start()
        until(lambda: listener.counts.moved == 1)
        listener.stop()
    # The plugin updates its counts every five seconds.
    until(lambda: doctor_causes(f"{queue}.dlq", capsys) != [], within=60)
    [cause] = doctor_causes(f"{queue}.dlq", capsys)
    assert cause.startswith(f"activation queue://{queue} at stomp://")
    assert (
        " moved 1 message to a dead-letter destination; its last error: ValueError: order 7 is refused; "
        "not browsed: RabbitMQ marks the messages it shows as redelivered"
    ) in cause


def test_why_the_broker_itself_moved_a_message(
    rabbitmq: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = name_management(rabbitmq, monkeypatch)
    name = f"moved.{uuid.uuid4().hex[:8]}"
    letters = f"{name}.dlq"
    to_letters = (("x-dead-letter-exchange", "amq.direct"), ("x-dead-letter-routing-key", letters))
    full = Destination(DestinationKind.QUEUE, f"{name}.full", (*to_letters, ("x-max-length", "1")))
    short = Destination(DestinationKind.QUEUE, f"{name}.short", (*to_letters, ("x-message-ttl", "1")))
    with JmsHook(CONN_ID).get_conn() as connection, connection.session() as session:
        session.send(f"queue://{letters}", JmsMessage.text("none"))
        assert session.receive(f"queue://{letters}", timeout=20) is not None
        binding = {"routing_key": letters, "arguments": {}}
        login = (rabbitmq.username, rabbitmq.password)
        bind = f"{url}/api/bindings/%2F/e/amq.direct/q/{letters}"
        httpx.post(bind, json=binding, auth=login, timeout=30).raise_for_status()
        for n in range(3):
            session.send(full, JmsMessage.text(f"m{n}"))
        session.send(short, JmsMessage.text("late"))

    def rows(*arguments: str) -> list[dict[str, str]]:
        capsys.readouterr()
        with contextlib.suppress(SystemExit):  # of doctor, for the letters are a problem
            run(*arguments, "--conn-id", CONN_ID, "--output", "json")
        found: list[dict[str, str]] = json.loads(capsys.readouterr().out)
        return found

    until(lambda: sum(int(each["count"]) for each in rows("dlq", "list", letters)) == 3, within=30)
    many, one = rows("dlq", "list", letters)
    assert (many["count"], many["from"]) == ("2", f"queue://{name}.full")
    assert many["reason"] == "the queue was full: x-max-length or x-max-length-bytes"
    assert (one["count"], one["from"]) == ("1", f"queue://{name}.short")
    assert one["reason"].startswith("it expired: ")
    assert one["first"][:2] == one["last"][:2] == "20"
    run("dlq", "show", letters, one["example"], "--conn-id", CONN_ID, "--output", "plain")
    shown = " ".join(capsys.readouterr().out.split())
    for told in ("reason it expired", f"came from queue://{name}.short", "moved by the broker once"):
        assert told in shown

    def causes(*arguments: str) -> list[str]:
        return [each["cause"] for each in rows("doctor", *arguments) if letters in each["symptom"]]

    # The plugin updates its counts every five seconds.
    until(lambda: causes() != [], within=30)
    assert "not browsed" in causes()[0]
    [browsed] = causes("--browse")
    assert browsed.startswith(f"2 with: {many['reason']}, from queue://{name}.full, since 20")
    sent = rows("dlq", "replay", letters, "--origin", f"queue://{name}.full", "--limit", "2", "--dry-run")
    assert {"count": "2", "what": f"would be sent back to queue://{name}.full"} in sent
