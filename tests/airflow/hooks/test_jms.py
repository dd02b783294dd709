from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
import uuid
from collections.abc import Iterator

import pytest
from airflow.sdk import Connection
from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

from airflow_provider_jmsjca import (
    ActivationSpec,
    ConfigurationError,
    Destination,
    JmsHook,
    JmsMessage,
    MemoryBroker,
)
from tests.internals.engine import listener_settings


def connection(monkeypatch: pytest.MonkeyPatch, name: str, **fields: object) -> None:
    document = json.dumps({"conn_type": "jms", **fields})
    monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", document)


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        accepted: list[socket.socket] = []
        threading.Thread(target=lambda: accepted.append(listening.accept()[0]), daemon=True).start()
        yield listening.getsockname()[1]
        for peer in accepted:
            peer.close()


@pytest.fixture
def closed() -> int:
    """A port nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@pytest.mark.usefixtures("server")
def test_get_conn_sends_and_receives() -> None:
    """The names that stay importable."""
    with JmsHook("jms_test").get_conn() as found, found.session(transacted=True) as session:
        session.send(Destination.queue("orders"), JmsMessage.text("hello", properties={"region": "eu"}))
        session.commit()
        message = session.receive(Destination.queue("orders"), timeout=5, selector="region = 'eu'")
        session.commit()
    assert message is not None
    assert message.body == "hello"


def test_a_closed_connection_is_kept_for_the_next_user_until_it_is_idle_for_long(
    server: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J14, J43, J106."""
    connection(monkeypatch, "kept", host=f"vm://{server.name}", extra={"idle_timeout": 0.2})
    for _ in range(2):
        with JmsHook("kept").get_conn():
            assert server.connections == 1
    deadline = time.monotonic() + 5
    while server.connections:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("option", ["no_connection_factory_cache", "bypass_ra"])
def test_without_the_cache_each_user_has_a_connection_that_ends_when_closed(
    server: MemoryBroker, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """J99, J102."""
    connection(monkeypatch, "own", host=f"vm://{server.name}", extra={option: True})
    with JmsHook("own").get_conn(), JmsHook("own").get_conn():
        assert server.connections == 2
    assert server.connections == 0


def test_the_test_button_says_which_broker_answered(server: MemoryBroker) -> None:
    worked, said = JmsHook("jms_test").test_connection()
    assert worked
    assert said.startswith("In-memory broker ")
    assert said.endswith(f"{server.name}, without a user")
    assert server.connections == 0


def test_airflows_own_test_of_a_connection_comes_here(server: MemoryBroker) -> None:
    if "jms" not in _known_types():
        pytest.skip("needs the distribution installed, for its entry point")
    tested = Connection(conn_id="unsaved", conn_type="jms", host=f"vm://{server.name}")
    worked, said = tested.test_connection()
    assert worked, said


def _known_types() -> set[str]:
    return set(ProvidersManagerTaskRuntime().hooks)


def test_a_wrong_password_is_said_in_one_line_and_not_shown(
    server: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W40: user and password of the connection log in."""
    server.require_login("app", "right")
    connection(monkeypatch, "open", host=f"vm://{server.name}", login="app", password="right")
    assert JmsHook("open").test_connection()[0]
    connection(monkeypatch, "locked", host=f"vm://{server.name}", login="app", password="Tr0ub4dor")
    worked, said = JmsHook("locked").test_connection()
    assert not worked
    assert "'app'" in said
    assert "\n" not in said
    assert "Tr0ub4dor" not in said


def test_nobody_listens(closed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    connection(monkeypatch, "closed", host="127.0.0.1", port=closed)
    worked, said = JmsHook("closed").test_connection()
    assert not worked
    assert f"127.0.0.1:{closed}" in said
    assert "\n" not in said


def test_a_port_that_never_answers(silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    connection(monkeypatch, "silent", host="127.0.0.1", port=silent, extra={"connect_timeout": 0.3})
    worked, said = JmsHook("silent").test_connection()
    assert not worked
    assert f"127.0.0.1:{silent}" in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"extra": '{"a": '}, "extra is not JSON: Expecting value at line 1 column 7"),
        ({"extra": {"clint_id": "x"}}, "did you mean client_id?"),
        ({"host": ""}, "host is empty"),
    ],
)
def test_faults_of_the_connection_are_said(
    fields: dict[str, object], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection(monkeypatch, "faulty", **({"host": "broker"} | fields))
    worked, said = JmsHook("faulty").test_connection()
    assert not worked
    assert expected in said
    assert said.startswith("this connection: ")  # Airflow tests a copy under a random name
    assert "faulty" not in said


def test_a_connection_that_is_not_there() -> None:
    with pytest.raises(ConfigurationError, match="connection 'nowhere' is not defined in Airflow"):
        JmsHook("nowhere").settings()


def test_the_event_loops_way_gives_the_same(server: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    connection(monkeypatch, "again", host="lookup://jms_test")
    hook = JmsHook("again")
    settings = asyncio.run(hook.asettings())
    assert settings == hook.settings()
    assert settings.hosts == ((server.name, None),)


def test_a_circle_of_lookups_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    connection(monkeypatch, "first", host="lookup://second")
    connection(monkeypatch, "second", host="lookup://first")
    with pytest.raises(ConfigurationError, match="circle"):
        JmsHook("first").settings()


def test_a_spec_with_its_own_url_needs_no_connection(server: MemoryBroker) -> None:
    url = f"vm://{server.name}"
    spec = ActivationSpec(destination="queue://orders", connection_url=url)
    assert JmsHook().activation(spec)[1].url == url
    lookup = ActivationSpec(destination="queue://orders", connection_url="lookup://jms_test")
    assert JmsHook().activation(lookup)[1].url == url
    with pytest.raises(ConfigurationError, match="connection 'nowhere' is not defined"):
        JmsHook("nowhere").activation(spec)  # named by somebody: a slip of the pen
    with pytest.raises(ConfigurationError, match="connection 'jms_default' is not defined"):
        JmsHook().activation(ActivationSpec(destination="queue://orders"))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"options": "JMSJCA.verify=false"}, "verify"),
        ({"options": "JMSJCA.ca_file=/mine.pem"}, "ca_file"),
        ({"connection_url": "stomp+ssl://broker:61614?server_name=mine"}, "server_name"),
        ({"connection_url": "stomp+ssl://broker:7"}, "another port"),
    ],
)
def test_a_spec_gets_the_login_only_for_the_connections_broker_as_the_connection_checks_it(
    fields: dict[str, object], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection(monkeypatch, "prod", host="stomp+ssl://broker", login="app", password="hunter2")
    spec = ActivationSpec(destination="queue://orders", **fields)
    with pytest.raises(ConfigurationError, match=why) as caught:
        JmsHook("prod").activation(spec)
    assert "send_login_to_other_hosts" in str(caught.value)
    with pytest.raises(ConfigurationError, match=why):
        asyncio.run(JmsHook("prod").aresolved(spec.layer()))
    asked = ActivationSpec(destination="queue://orders", send_login_to_other_hosts=True, **fields)
    assert JmsHook("prod").activation(asked)[1].password == "hunter2"


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("fields", "instance", "expected"),
    [
        ({}, "", None),
        ({"client_id": "mine"}, "", "mine"),
        ({"subscription_durability": "durable", "subscription_name": "sub"}, "", "sub"),
        ({"jms_client_id": "shop", "generate_unique_client_id": True}, "d.t", "shop-d.t"),
    ],
)
def test_the_settings_of_an_activation_have_its_client_id_j49_w30_w31(
    fields: dict[str, object], instance: str, expected: str | None
) -> None:
    spec = ActivationSpec(destination="topic://prices", **fields)
    assert JmsHook("jms_test").activation(spec, instance=instance)[1].client_id == expected


def test_what_has_no_effect_is_said_once(
    server: MemoryBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"idle_{uuid.uuid4().hex}"
    connection(monkeypatch, name, host=f"vm://{server.name}", extra={"producer_pooling": True})
    for _ in range(2):
        JmsHook(name).settings()
        spec, _settings = JmsHook(name).activation(ActivationSpec(destination="queue://orders"))
        listener_settings(spec)
    (said,) = [text for text in caplog.messages if "producer_pooling" in text]
    assert said.startswith(f"connection '{name}': producer_pooling: accepted, no effect: a session sends")
