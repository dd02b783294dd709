"""The brokers our tests stand on do what the tests rely on."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import stomp
from stomp.utils import Frame

from tests.servers.activemq import ActiveMQClassic
from tests.servers.artemis import Artemis
from tests.servers.broker import Broker, logs_in
from tests.servers.catalogue import BROKERS, make_broker
from tests.servers.errors import ServerError
from tests.servers.ports import HOST


class Inbox(stomp.ConnectionListener):  # type: ignore[misc]  # stomp.py is untyped
    """Keeps what arrives, and wakes who waits for it."""

    def __init__(self) -> None:
        self.frames: list[tuple[str, Frame]] = []
        self._changed = threading.Condition()

    def on_message(self, frame: Frame) -> None:
        self._add("message", frame)

    def on_receipt(self, frame: Frame) -> None:
        self._add("receipt", frame)

    def on_error(self, frame: Frame) -> None:
        self._add("error", frame)

    def _add(self, what: str, frame: Frame) -> None:
        with self._changed:
            self.frames.append((what, frame))
            self._changed.notify_all()

    def first(self, what: str, *, deadline: float = 10) -> Frame:
        def found() -> list[Frame]:
            return [frame for name, frame in self.frames if name == what]

        with self._changed:
            assert self._changed.wait_for(found, deadline), f"no {what} within {deadline} s: {self.frames}"
            return found()[0]


def require(broker: Broker, *, tls: bool) -> None:
    if tls and not broker.has_tls:
        pytest.skip("the broker named by the environment has no TLS address named")


@contextmanager
def connected(
    broker: Broker, *, tls: bool = False, password: str | None = None
) -> Iterator[tuple[Any, Inbox]]:
    connection = stomp.Connection12(
        [broker.address(tls=tls)], vhost="/", reconnect_attempts_max=1, timeout=5, heartbeats=(5000, 5000)
    )
    if tls:
        connection.set_ssl(
            [broker.address(tls=True)], ca_certs=broker.ca_file, ssl_version=ssl.PROTOCOL_TLS_CLIENT
        )
    inbox = Inbox()
    connection.set_listener("", inbox)
    try:
        connection.connect(broker.username, broker.password if password is None else password, wait=True)
        yield connection, inbox
    finally:
        if connection.is_connected():
            connection.disconnect()
        # On a TLS connection that the broker closed, stomp.py's thread would spin for the rest of the run.
        # It has to end by itself: to shut the socket down under it can crash the interpreter.
        connection.transport.running = False


def send(connection: Any, inbox: Inbox, queue: str, body: str) -> None:
    connection.send(
        f"/queue/{queue}",
        body,
        headers={"persistent": "true", "destination-type": "ANYCAST", "receipt": "sent"},
    )
    assert inbox.first("receipt").headers["receipt-id"] == "sent"


def receive(connection: Any, inbox: Inbox, queue: str) -> str:
    connection.subscribe(
        f"/queue/{queue}", id="1", ack="client-individual", headers={"subscription-type": "ANYCAST"}
    )
    frame = inbox.first("message")
    connection.ack(frame.headers["ack"])
    return str(frame.body)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_right_password_sends_and_receives(broker: Broker, queue_name: str, tls: bool) -> None:
    require(broker, tls=tls)
    with connected(broker, tls=tls) as (connection, inbox):
        send(connection, inbox, queue_name, "grüße")
        assert receive(connection, inbox, queue_name) == "grüße"


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_wrong_password_is_refused(broker: Broker, tls: bool) -> None:
    require(broker, tls=tls)
    with (
        pytest.raises(stomp.exception.ConnectFailedException),
        connected(broker, tls=tls, password="wrong"),
    ):
        pass


def test_nobody_gets_in_without_a_name(broker: Broker) -> None:
    assert logs_in(broker.address(), broker.username, broker.password)
    assert not logs_in(broker.address(), "", "")
    assert not logs_in(broker.address(), "guest", "guest")


def test_certificate_is_checked(broker: Broker) -> None:
    require(broker, tls=True)
    host, port = broker.address(tls=True)
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(host, port, ssl.create_default_context())
    context = ssl.create_default_context(cafile=broker.ca_file)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    for name in ("localhost", "127.0.0.1"):
        assert _handshake(host, port, context, name) in {"TLSv1.2", "TLSv1.3"}
    with pytest.raises(ssl.SSLCertVerificationError, match=r"not valid for 'example\.org'"):
        _handshake(host, port, context, "example.org")


def test_persistent_message_outlives_kill_and_restart(any_private_broker: Broker, queue_name: str) -> None:
    ports = dict(any_private_broker.ports)
    any_private_broker.put_on_disk(queue_name)
    with connected(any_private_broker) as (connection, inbox):
        send(connection, inbox, queue_name, "still here")
        any_private_broker.kill()
        assert not any_private_broker.running
    any_private_broker.start()
    assert any_private_broker.ports == ports
    with connected(any_private_broker) as (connection, inbox):
        assert receive(connection, inbox, queue_name) == "still here"


def test_suspended_broker_accepts_and_says_nothing(any_private_broker: Broker) -> None:
    address, user, password = (
        any_private_broker.address(),
        any_private_broker.username,
        any_private_broker.password,
    )
    any_private_broker.suspend()
    assert any_private_broker.running
    assert not logs_in(address, user, password, timeout=1)
    with socket.create_connection(address, timeout=20):
        pass
    any_private_broker.resume()
    assert logs_in(address, user, password, timeout=20)


class MisconfiguredActiveMQ(ActiveMQClassic):
    def _prepare(self) -> None:
        super()._prepare()
        (self.folder / "activemq.xml").write_text("<beans>no broker in here")


class MisconfiguredArtemis(Artemis):
    def _prepare(self) -> None:
        super()._prepare()
        (self.folder / "etc" / "broker.xml").write_text("<configuration>no broker in here")


def test_misconfigured_activemq_is_an_error_though_it_exits_0(servers_folder: Path, queue_name: str) -> None:
    broken = MisconfiguredActiveMQ(servers_folder / queue_name)
    with pytest.raises(ServerError, match=r"^activemq ended while starting \(exit code 0\)") as caught:
        broken.start()
    assert "SAXParseException" in broken.log_file.read_text()
    assert len(str(caught.value).splitlines()) == 1
    assert "SAXParseException" in str(caught.value)
    assert str(broken.log_file) in str(caught.value)
    assert not broken.running


def test_misconfigured_artemis_is_an_error(servers_folder: Path, queue_name: str) -> None:
    broken = MisconfiguredArtemis(servers_folder / queue_name)
    with pytest.raises(ServerError, match=r"^artemis ended while starting \(exit code 1\)") as caught:
        broken.start()
    assert "XML" in str(caught.value)
    assert not broken.running


@pytest.mark.parametrize("kind", sorted(BROKERS))
@pytest.mark.parametrize("name", ["stomp", "stomps"])
def test_port_in_use_is_named(servers_folder: Path, queue_name: str, kind: str, name: str) -> None:
    broker = make_broker(kind, servers_folder / queue_name)
    port = broker.ports[name]
    with (
        socket.create_server((HOST, port)),
        pytest.raises(ServerError, match=rf"^{kind}: port {port} \({name}\)"),
    ):
        broker.start()
    assert not broker.running


def _handshake(host: str, port: int, context: ssl.SSLContext, name: str = "localhost") -> str | None:
    with (
        socket.create_connection((host, port), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname=name) as secured,
    ):
        return secured.version()
