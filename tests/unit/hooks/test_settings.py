from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.hooks.settings import lookup_of, resolve_connection, settings_for
from airflow_provider_jmsjca.transports.base import ConnectionSettings, TlsSettings
from tests.unit.core.texts import ANY_TEXT

EXAMPLES = int(os.environ.get("JMSJCA_EXAMPLES", "300"))


@dataclass
class Connection:
    conn_id: str = "orders"
    conn_type: str | None = "jms"
    host: str | None = "broker"
    port: int | None = None
    login: str | None = None
    password: str | None = None
    schema: str | None = None
    extra: str | None = None


def settings_of(connection: Connection, **more: Any) -> ConnectionSettings:
    return settings_for(connection.conn_id, resolve_connection(connection, **more))


def settings(**fields: Any) -> ConnectionSettings:
    return settings_of(Connection(**fields))


def faults(**fields: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        settings(**fields)
    return caught.value.faults


def test_plain_fields() -> None:
    """J65, J76."""
    found = settings(host="broker", port=61613, login="app", password="secret", schema="/")
    assert (found.scheme, found.hosts) == ("stomp", (("broker", 61613),))
    assert (found.username, found.password, found.virtual_host) == ("app", "secret", "/")
    assert found.tls is None
    assert found.connect_timeout == timedelta(seconds=15)
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("fields", "scheme", "hosts"),
    [
        ({"host": "stomp+ssl://a:1,b:2"}, "stomp+ssl", (("a", 1), ("b", 2))),
        ({"host": "stomp://a,b:2", "port": 7}, "stomp", (("a", 7), ("b", 2))),
        ({"host": "a, b:2", "port": 7}, "stomp", (("a", 7), ("b", 2))),
        ({"host": "failover:(stomp://a:1,stomp://b:2)"}, "stomp", (("a", 1), ("b", 2))),
        ({"host": "::1", "port": 7}, "stomp", (("::1", 7),)),
        ({"host": "[::1]:9", "port": 7}, "stomp", (("::1", 9),)),
        ({"host": "vm://test", "port": 7}, "vm", (("test", None),)),
        ({"host": "a", "conn_type": "stomp+ssl"}, "stomp+ssl", (("a", None),)),
        ({"host": "a, b:2", "port": 7, "extra": '{"tls": true}'}, "stomp+ssl", (("a", 7), ("b", 2))),
        ({"host": "a", "extra": '{"tls": false}'}, "stomp", (("a", None),)),
        ({"host": "stomp+ssl://a", "extra": '{"tls": false}'}, "stomp+ssl", (("a", None),)),
        ({"host": "failover:(stomp+ssl://a)", "extra": '{"tls": "yes"}'}, "stomp+ssl", (("a", None),)),
    ],
)
def test_addresses(fields: dict[str, Any], scheme: str, hosts: tuple[tuple[str, int | None], ...]) -> None:
    """J73, J74."""
    found = settings(**fields)
    assert (found.scheme, found.hosts) == (scheme, hosts)


def test_extra_options_and_those_of_the_broker() -> None:
    """J113: the URL's query beats the field; foreign keys travel on untouched."""
    extra = {"client_id": "airflow", "heart_beat": 2, "verify": False, "ca_file": "/ca.pem", "key_file": None}
    found = settings(host="stomp://broker?heart_beat=3&x.y=z", extra=json.dumps(extra))
    assert found.client_id == "airflow"
    assert found.heart_beat == timedelta(seconds=3)
    assert found.tls == TlsSettings(ca_file="/ca.pem", verify=False)
    assert dict(found.options) == {"x.y": "z"}


def test_the_installation_sets_defaults() -> None:
    """J31, J97: connector below connection; its environment variables count as its entries."""
    found = settings_of(
        Connection(extra='{"reply_timeout": 9}'),
        section={"connect_timeout": "3", "reply_timeout": "4", "spool_path": "/data", "username": "all"},
        environment={"JMSJCA_HEART_BEAT": "7", "HOME": "/root"},
    )
    assert (found.connect_timeout, found.reply_timeout) == (timedelta(seconds=3), timedelta(seconds=9))
    assert (found.heart_beat, found.username) == (timedelta(seconds=7), "all")


def test_a_lookup_takes_the_other_connections_address() -> None:
    """J69, J70."""
    other = Connection(conn_id="central", host="stomp://central:1", login="there", password="p")
    here = Connection(host="lookup://central")
    assert lookup_of(here) == "central"
    assert lookup_of(other) is None
    found = settings_of(here, lookups={"central": other})
    assert (found.hosts, found.username) == ((("central", 1),), "there")


def test_broken_json_names_its_place_and_shows_nothing() -> None:
    (fault,) = faults(extra='{"password": "hush"')
    assert fault.startswith("connection 'orders': extra is not JSON: ")
    assert "at line 1 column 20" in fault
    assert "hush" not in fault


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"extra": '["a"]'}, "extra is a JSON list; expected an object"),
        ({"extra": '{"clint_id": "x"}'}, "did you mean client_id?"),
        ({"extra": '{"heart_beat": "often"}'}, "heart_beat"),
        ({"host": ""}, "host is empty; expected a host name or a URL such as stomp://broker:61613"),
        ({"host": "stmp://broker"}, "no transport for scheme 'stmp' (did you mean 'stomp'?)"),
        ({"port": 70000}, "port is 70000; expected 1 to 65535"),
        (
            {"host": "stomp://a", "extra": '{"tls": true}'},
            "tls is on but the host is a URL without TLS",
        ),
        ({"host": "lookup://a", "extra": '{"tls": true}'}, "tls is on but the host is a URL"),
        ({"extra": '{"tls": "perhaps"}'}, "tls: got 'perhaps', expected true or false"),
        ({"host": "stomp://broker:port"}, "the port of host 'broker' is not a number"),
    ],
)
def test_faults(fields: dict[str, Any], expected: str) -> None:
    found = faults(**fields)
    assert len(found) == 1
    assert found[0].startswith("connection 'orders': ")
    assert expected in found[0]


def test_all_faults_are_named_at_once() -> None:
    found = faults(host="stomp://broker:x", extra='{"clint_id": "x", "heart_beat": "often"}')
    assert len(found) == 3


@hypothesis_settings(max_examples=EXAMPLES, deadline=None)
@given(ANY_TEXT, ANY_TEXT, st.none() | st.integers())
def test_any_fields_are_read_or_refused(host: str, extra: str, port: int | None) -> None:
    with contextlib.suppress(ConfigurationError):
        found = settings(host=host, extra=extra, port=port)
        assert found.hosts
        assert found.scheme in {"stomp", "stomp+ssl", "vm"}
        assert all(port is None or 0 < port < 65536 for _, port in found.hosts)
