from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from airflow_provider_jmsjca.errors import AuthenticationError, TransientBrokerError
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import ConnectionSettings

REFUSAL = b"ERROR\nmessage:User name [me] or password is invalid.\n\n\0"


@contextmanager
def server(*answers: bytes) -> Iterator[tuple[ConnectionSettings, list[bytes]]]:
    """A server that answers each CONNECT with the next of `answers`, and closes; with what it was sent."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answer in answers:
                client, _ = listener.accept()
                with client:
                    data = b""
                    while not data.endswith(b"\0"):
                        data += client.recv(4096)
                    asked.append(data)
                    client.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield (
            ConnectionSettings(
                scheme="stomp", hosts=(listener.getsockname(),), username="me", password="wrong",
                connect_timeout=timedelta(seconds=10),
            ),
            asked,
        )  # fmt: skip
        thread.join(10)
        assert not thread.is_alive()


def test_a_refusal_that_got_lost_is_asked_for_again() -> None:
    """ActiveMQ closes the connection now and then before the ERROR is out."""
    with (
        server(b"", REFUSAL) as (settings, asked),
        pytest.raises(AuthenticationError, match="password is invalid"),
    ):
        connect(settings)
    assert len(asked) == 2


def test_a_server_that_never_answers_is_asked_twice() -> None:
    with (
        server(b"", b"") as (settings, asked),
        pytest.raises(TransientBrokerError, match="closed the connection before it said CONNECTED"),
    ):
        connect(settings)
    assert len(asked) == 2


def test_a_refusal_is_taken_at_once() -> None:
    with server(REFUSAL) as (settings, asked), pytest.raises(AuthenticationError):
        connect(settings)
    assert len(asked) == 1
