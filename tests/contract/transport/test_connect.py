from __future__ import annotations

import socket
import time
from datetime import timedelta

import pytest

from airflow_provider_jmsjca import (
    AuthenticationError,
    Connection,
    ConnectionLostError,
    ConnectionSettings,
    Destination,
    Subscription,
    TransientBrokerError,
)
from airflow_provider_jmsjca import connect as open_connection
from tests.contract.transport.collector import Collector
from tests.contract.transport.lab import Lab, over_network
from tests.contract.transport.traffic import Connect, commit_something
from tests.internals.transports import ConnectionState
from tests.pace import at_most


def test_tells_which_broker_answered(connection: Connection, lab: Lab) -> None:
    assert connection.broker.product == lab.name
    assert connection.broker.address
    assert connection.state is ConnectionState.UP


def test_wrong_password_is_an_authentication_error_that_hides_it(connect: Connect) -> None:
    with pytest.raises(AuthenticationError) as refused:
        connect(password="Wr0ng-and-secret")
    assert "Wr0ng-and-secret" not in str(refused.value)


@over_network
def test_an_unreachable_broker_is_named_within_the_connect_timeout(lab: Lab) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        began = time.monotonic()
        with pytest.raises(TransientBrokerError, match=f"127.0.0.1:{port}"):
            open_connection(lab.settings(hosts=(("127.0.0.1", port),)))
        assert time.monotonic() - began < 3 + at_most(1)


@over_network
def test_a_server_that_accepts_and_says_nothing_is_given_up(lab: Lab) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        began = time.monotonic()
        with pytest.raises(TransientBrokerError, match=f"{host}:{port}"):
            open_connection(
                lab.settings(hosts=((host, port),), connect_timeout=timedelta(milliseconds=500)),
            )
        assert time.monotonic() - began < 0.5 + at_most(1)


@over_network
def test_the_next_host_is_tried(lab: Lab, connect: Connect) -> None:
    """W41."""
    first = lab.settings().hosts[0]
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        dead = ("127.0.0.1", closed.getsockname()[1])
        opened = connect(hosts=(dead, first))
    assert opened.broker.address == f"{first[0]}:{first[1]}"


def test_closing_twice_is_harmless_and_the_rest_refuses(connect: Connect, queue: Destination) -> None:
    connection: Connection = connect()
    connection.close()
    connection.close()
    assert connection.state is ConnectionState.CLOSED
    for use in (
        connection.synchronize,
        lambda: connection.consume(Subscription(destination=queue), Collector()),
        lambda: commit_something(connection, queue),
    ):
        with pytest.raises(ConnectionLostError):
            use()


def test_the_settings_hide_the_password(lab: Lab) -> None:
    settings: ConnectionSettings = lab.settings(password="Secret-1")
    assert "Secret-1" not in repr(settings)
