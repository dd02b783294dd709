"""Choosing a transport, and what is said about connections that others can read."""

from __future__ import annotations

import logging
import re
import uuid
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_jmsjca.errors import ConfigurationError, JmsError
from airflow_provider_jmsjca.transports import connect, refuse_unknown_scheme
from airflow_provider_jmsjca.transports.base import ConnectionSettings, TlsSettings

AWAY = ConnectionSettings(
    scheme="stomp",
    hosts=(("198.51.100.1", 9),),  # of a net for documentation: nothing answers there
    username="app",
    password="Tr0ub4dor",
    connect_timeout=timedelta(milliseconds=1),
)
UNCHECKED = replace(AWAY, scheme="stomp+ssl", tls=TlsSettings(verify=False))


def warnings_of(settings: ConnectionSettings, caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING), pytest.raises(JmsError):
        connect(settings)
    return [record.getMessage() for record in caplog.records if record.name.endswith(".transports")]


def at(*hosts: str, settings: ConnectionSettings = AWAY) -> ConnectionSettings:
    return replace(settings, hosts=tuple((host, 9) for host in hosts))


def unused_name() -> str:
    return f"{uuid.uuid4().hex}.invalid"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [(AWAY, "User and password go to {} unencrypted"), (UNCHECKED, "The certificate of stomp+ssl://{}")],
)
def test_what_others_can_read_is_said_once(
    settings: ConnectionSettings, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = unused_name()
    (warning,) = warnings_of(at(name, settings=settings), caplog)
    assert warning.startswith(expected.format(name))
    assert "Tr0ub4dor" not in warning
    assert not warnings_of(at(name, settings=settings), caplog)
    assert warnings_of(at(unused_name(), settings=settings), caplog), "another broker is another matter"


@pytest.mark.parametrize(
    "settings",
    [
        at("localhost"),
        at("127.0.0.9", "::1", "app.localhost"),
        replace(at(unused_name()), password=None),
        replace(at(unused_name()), scheme="stomp+ssl"),
        replace(at("127.0.0.1"), scheme="stomp+ssl", tls=TlsSettings(ca_file="/nowhere.pem")),
    ],
)
def test_nothing_is_said_of_what_nobody_can_read(
    settings: ConnectionSettings, caplog: pytest.LogCaptureFixture
) -> None:
    assert not warnings_of(settings, caplog)


def test_only_hosts_that_are_elsewhere_are_named(caplog: pytest.LogCaptureFixture) -> None:
    name = unused_name()
    (warning,) = warnings_of(at("localhost", name), caplog)
    assert warning.startswith(f"User and password go to {name} unencrypted")


@pytest.mark.parametrize(
    ("scheme", "hint"),
    [
        ("stcms", "the JMS IQ Manager can't be reached; move its messages to ActiveMQ, Artemis or RabbitMQ"),
        ("stcmss", "the JMS IQ Manager can't be reached; move its messages to ActiveMQ, Artemis or RabbitMQ"),
        ("t3", "WebLogic JMS can't be reached; move its messages to ActiveMQ, Artemis or RabbitMQ"),
        ("tcp", "another protocol; use the broker's STOMP port"),
        ("stop", "did you mean 'stomp'?"),
    ],
)
def test_a_refused_scheme_names_the_way_out(scheme: str, hint: str) -> None:
    """J3: brokers that JMSJCA reaches by a scheme and this package doesn't."""
    with pytest.raises(ConfigurationError, match=re.escape(f"no transport for scheme {scheme!r} ({hint}")):
        refuse_unknown_scheme(scheme)


def test_a_scheme_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no transport for scheme 'tcp'"):
        connect(replace(AWAY, scheme="tcp"))


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        (("localhost:61613",), "hosts[0] is no such pair; expected a tuple of pairs of a name and a port"),
        ((("a", 1), ("b", "2")), "hosts[1] is no such pair"),
        ("localhost:61613", "hosts is a str; expected"),
        ([("localhost", 61613)], "hosts is a list; expected"),
    ],
)
def test_hosts_that_are_no_pairs_are_refused_by_name(hosts: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ConnectionSettings(scheme="stomp", hosts=hosts)
    assert said in str(caught.value)
    assert "localhost:61613" not in str(caught.value), "it may hold a password"


def test_a_url_in_place_of_settings_is_refused_with_the_way_out() -> None:
    url: Any = "stomp://app:Tr0ub4dor@localhost:61613"
    with pytest.raises(
        ConfigurationError, match=r"not str; connection_settings\(\) makes them of a URL"
    ) as caught:
        connect(url)
    assert "Tr0ub4dor" not in str(caught.value)
