from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from airflow_provider_jmsjca.errors import AuthenticationError, ConfigurationError, TransientBrokerError
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import ConnectionSettings
from tests.pace import at_most

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
        pytest.raises(TransientBrokerError, match="closed the connection before it sent CONNECTED"),
    ):
        connect(settings)
    assert len(asked) == 2


def test_a_refusal_is_taken_at_once() -> None:
    with server(REFUSAL) as (settings, asked), pytest.raises(AuthenticationError):
        connect(settings)
    assert len(asked) == 1


def test_a_process_without_descriptors_hears_that_it_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a listener tries again, and a bulk goes on over the connection it has."""

    def none_left(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings = ConnectionSettings(
            scheme="stomp", hosts=(listener.getsockname(),), username="me", password="wrong"
        )
        monkeypatch.setattr(socket, "socketpair", none_left)
        with pytest.raises(TransientBrokerError, match=r"can't open another connection.*Too many open"):
            connect(settings)


def test_a_process_without_threads_hears_that_it_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings = ConnectionSettings(
            scheme="stomp", hosts=(listener.getsockname(),), username="me", password="wrong"
        )
        monkeypatch.setattr(threading.Thread, "start", none_left)
        with pytest.raises(
            TransientBrokerError,
            match="no thread could be started for the connection: can't start new thread",
        ):
            connect(settings)


@pytest.mark.parametrize("host", ["broker..example.com", f"{'b' * 64}.example.com"])
def test_a_name_that_no_host_can_have_is_refused_at_once(host: str) -> None:
    """A name that is only unknown is asked for again; this one has to be mended."""
    settings = ConnectionSettings(
        scheme="stomp", hosts=((host, 61613),), username="me", connect_timeout=timedelta(seconds=5)
    )
    began = time.monotonic()
    with pytest.raises(ConfigurationError, match="is not a host name: its parts between dots have 1 to 63"):
        connect(settings)
    assert time.monotonic() - began < at_most(2)
