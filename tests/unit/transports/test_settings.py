"""From resolved configuration to connection settings: J32, J38, J65, J76."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_provider_jmsjca.core.configuration.precedence import Layer, Level, resolve
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.transports.base import ConnectionSettings, TlsSettings
from airflow_provider_jmsjca.transports.settings import connection_settings, to_connection_settings


def factory(**fields: object) -> Layer:
    return Layer(level=Level.CONNECTION_FACTORY, fields=fields)


def test_everything_a_transport_needs() -> None:
    resolved = resolve(
        [
            factory(
                connection_url="stomp+ssl://a:1,b/?heart_beat=2&x=y&verify=false",
                username="u",
                password="p",
                client_id="c",
                virtual_host="v",
                connect_timeout="3",
                reply_timeout="500ms",
                ca_file="/ca.pem",
            )
        ]
    )
    assert to_connection_settings(resolved) == ConnectionSettings(
        scheme="stomp+ssl",
        hosts=(("a", 1), ("b", None)),
        username="u",
        password="p",
        client_id="c",
        virtual_host="v",
        tls=TlsSettings(ca_file="/ca.pem", verify=False),
        connect_timeout=timedelta(seconds=3),
        heart_beat=timedelta(seconds=2),
        reply_timeout=timedelta(milliseconds=500),
        options={"x": "y"},
    )


def test_defaults() -> None:
    settings = to_connection_settings(resolve([factory(connection_url="vm://test")]))
    assert settings == ConnectionSettings(scheme="vm", hosts=(("test", None),))


def test_no_tls_for_its_defaults() -> None:
    settings = to_connection_settings(resolve([factory(connection_url="stomp://a,b:2", verify=True)]))
    assert settings == ConnectionSettings(scheme="stomp", hosts=(("a", None), ("b", 2)))


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({}, "connection_url: missing at every level"),
        ({"connection_url": "stomp://h/x"}, "the path '/x' is not supported"),
        ({"connection_url": "stmp://h"}, r"no transport for scheme 'stmp' \(did you mean 'stomp'\?\)"),
    ],
)
def test_refuses(fields: dict[str, object], fault: str) -> None:
    """J3."""
    with pytest.raises(ConfigurationError, match=fault):
        to_connection_settings(resolve([factory(**fields)]))


def test_settings_of_a_url() -> None:
    assert connection_settings("stomp://app:s%40cret@localhost:61613?heart_beat=2") == ConnectionSettings(
        scheme="stomp",
        hosts=(("localhost", 61613),),
        username="app",
        password="s@cret",
        heart_beat=timedelta(seconds=2),
    )
    with pytest.raises(ConfigurationError, match="no transport for scheme 'tcp'"):
        connection_settings("tcp://localhost:61616")


@pytest.mark.parametrize(
    ("options", "fields", "said"),
    [
        (
            "JMSJCA.redeliveryhandling=1:delete",
            {"redelivery_handling": "3:move(queue:dlq)"},
            "the DAG: redelivery_handling ('3:move(queue:dlq)')",
        ),
        (
            "JMSJCA.redeliveryhandling=1:delete",
            {"max_attempts": 3, "dead_letter_destination": "dlq"},
            "the DAG: max_attempts (3)",
        ),
        (
            "JMSJCA.concurrencymode=cc",
            {"concurrency_mode": "serial"},
            "the DAG: concurrency_mode ('serial')",
        ),
        ("JMSJCA.redeliveryhandling=1:delete", {"redelivery_handling": "1:delete"}, None),
        ("JMSJCA.redeliveryhandling=1:delete", {}, None),
        ("", {"redelivery_handling": "3:move(queue:dlq)"}, None),
    ],
)
def test_an_option_that_replaces_what_a_dag_says_is_warned_about_once(
    options: str, fields: dict[str, object], said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """J143: both values are shown."""
    below = Layer(
        level=Level.CONNECTION_FACTORY,
        source="here",
        fields={"connection_url": "vm://here", "options": options},
    )
    above = Layer(level=Level.ACTIVATION, source="the DAG", fields={"destination": "queue://q", **fields})
    for _ in range(2):
        to_connection_settings(resolve([below, above]))
    warned = [text for record in caplog.records if "is not used" in (text := record.getMessage())]
    key, _, value = options.partition("=")
    in_force = f"here: Options, {key} ({value!r}) replaces it, as this option does at every level"
    assert warned == ([] if said is None else [f"{said} is not used: {in_force}"])


def test_an_option_and_a_field_of_one_level_are_no_surprise(caplog: pytest.LogCaptureFixture) -> None:
    fields = {"redelivery_handling": "3:5", "options": "JMSJCA.redeliveryhandling=1:delete"}
    resolved = resolve([factory(connection_url="vm://one"), Layer(level=Level.ACTIVATION, fields=fields)])
    to_connection_settings(resolved)
    assert str(resolved["redelivery_handling"]) == "1:delete"
    assert not caplog.records
