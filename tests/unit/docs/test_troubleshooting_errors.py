"""Errors of the troubleshooting page, provoked as a user provokes them: they say what the page quotes."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_jmsjca import (
    Activation,
    ActivationSpec,
    ConnectionSettings,
    Destination,
    JmsConnection,
    JmsMessage,
    Outgoing,
    TlsSettings,
    connect,
    connection_settings,
)
from airflow_provider_jmsjca.errors import JmsError
from tests.unit.docs.test_troubleshooting import QUOTED

SOON = timedelta(milliseconds=500)
CONNECTED = b"CONNECTED\nversion:1.2\nserver:Toy/1\nheart-beat:500,500\n\n\0"


@contextlib.contextmanager
def answering(*answers: bytes) -> Iterator[tuple[tuple[str, int], ...]]:
    """A server that answers each connection with these bytes, and then holds its tongue."""
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while not done.is_set():
                    peer, _ = server.accept()
                    with peer:
                        peer.recv(4096)
                        for answer in answers:
                            peer.sendall(answer)
                        done.wait(10)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield (server.getsockname(),)
        finally:
            done.set()
            with contextlib.suppress(OSError):
                socket.create_connection(server.getsockname()).close()
            thread.join(10)


def connect_to(hosts: Any, scheme: str = "stomp", **more: Any) -> JmsConnection:
    return JmsConnection(connect(ConnectionSettings(scheme=scheme, hosts=hosts, **more)))


def refused(message: str, **more: Any) -> None:
    with answering(f"ERROR\nmessage:{message}\n\n\0".encode()) as hosts:
        connect_to(hosts, **more)


def nothing_listens() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        connect_to((reserved.getsockname(),))


def no_tls() -> None:
    with answering() as hosts:
        connect_to(hosts, "stomp+ssl", tls=TlsSettings(), connect_timeout=4 * SOON, reply_timeout=SOON)


def silence() -> None:
    with (
        answering(CONNECTED) as hosts,
        connect_to(hosts, heart_beat=SOON) as connection,
        connection.session() as session,
    ):
        while True:
            session.receive("queue://orders", timeout=5)


def a_map() -> None:
    with (
        answering(CONNECTED) as hosts,
        connect_to(hosts, reply_timeout=SOON) as connection,  # nobody answers its good-bye
        connection.session() as session,
    ):
        session.send("queue://orders", JmsMessage.map({"id": 1}))


def too_many() -> None:
    settings = ConnectionSettings(scheme="vm", hosts=(("too-many", None),))
    connection = connect(settings)
    connection.send(
        Outgoing(destination=Destination.queue("orders"), message=JmsMessage.text("x")) for _ in range(3)
    )
    connection.close()
    with JmsConnection(connect(settings)) as again, again.session(transacted=True, prefetch=2) as session:
        while session.receive("queue://orders", timeout=0.1) is not None:
            pass


def to_itself() -> None:
    Activation(
        ActivationSpec(
            destination="queue://orders", max_attempts=2, dead_letter_destination="queue://orders"
        ),
        print,
        connection="vm://itself",
    )


PROVOKED: dict[str, Callable[[], object]] = {
    "connection_url: missing at every level, expected for example stomp://broker:61613": lambda: Activation(
        ActivationSpec(destination="queue://orders"), print
    ),
    "connection_url: no transport for scheme …": lambda: connection_settings("tcp://localhost:61616"),
    "no broker could be reached: …; check host and port, and that it takes STOMP there": nothing_listens,
    "the name … can't be resolved: …": lambda: connect_to((("nowhere.invalid", 61613),)),
    "the broker refuses the credentials: …; check user and password": lambda: refused(
        "User name [app] or password is invalid."
    ),
    "the client id is in use: …": lambda: refused(
        "javax.jms.InvalidClientIDException - Client: app already connected", client_id="app"
    ),
    "TLS got no answer in time (does this port speak plain STOMP?)": no_tls,
    "TLS settings need the scheme …": lambda: connect(
        connection_settings("stomp://localhost:61613?ca_file=/a.pem")
    ),
    "no sign of life from the broker for … s": silence,
    "… with a … body can't be sent to …: the body would be lost": a_map,
    "… messages of … are unsettled, as many as the prefetch allows: settle them, or give the session a "
    "larger prefetch": too_many,
    "dead_letter_destination: got …, which is consumed itself, expected another destination": to_itself,
}


def test_they_are_on_the_page() -> None:
    assert {*PROVOKED} <= {*QUOTED}


@pytest.mark.parametrize("quoted", PROVOKED)
def test_the_error_says_what_the_page_quotes(quoted: str) -> None:
    pattern = ".*".join(re.escape(part) for part in quoted.strip("… ").split("…"))
    with pytest.raises(JmsError, match=pattern):
        PROVOKED[quoted]()
