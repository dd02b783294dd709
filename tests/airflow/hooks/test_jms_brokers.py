"""The test button, with real brokers behind it."""

from __future__ import annotations

import json

import pytest

from airflow_provider_jmsjca import JmsHook
from tests.servers.broker import Broker

NAMES = {"activemq": "ActiveMQ", "artemis": "Artemis", "rabbitmq": "RabbitMQ"}


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("kind", sorted(NAMES))
def test_the_test_button_says_which_broker_answered_and_why_one_refused(
    kind: str, tls: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker: Broker = request.getfixturevalue(kind)
    if tls and not broker.has_tls:
        pytest.skip(f"{kind} has no TLS port here")
    host, port = broker.address(tls=tls)
    fields: dict[str, object] = {
        "conn_type": "jms",
        "host": host,
        "port": port,
        "login": broker.username,
        "password": broker.password,
        "extra": {"tls": True, "ca_file": broker.ca_file} if tls else {},
    }
    monkeypatch.setenv("AIRFLOW_CONN_JMS_REAL", json.dumps(fields))
    worked, said = JmsHook("jms_real").test_connection()
    assert worked, said
    assert said.startswith(f"{NAMES[kind]} ")
    assert said.endswith(f" at {host}:{port}{', with TLS' if tls else ''}, as {broker.username!r}")

    monkeypatch.setenv("AIRFLOW_CONN_JMS_REAL", json.dumps(fields | {"password": "not-the-one"}))
    worked, said = JmsHook("jms_real").test_connection()
    assert not worked
    assert "\n" not in said
    assert "not-the-one" not in said
