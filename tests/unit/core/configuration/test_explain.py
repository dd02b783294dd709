"""What `explain` tells: J31, J113."""

from __future__ import annotations

import re

import pytest

from airflow_provider_jmsjca.core.configuration.explain import Explained, explain
from airflow_provider_jmsjca.core.configuration.precedence import Layer, Level, resolve


def test_tells_value_origin_and_default_with_secrets_masked() -> None:
    resolved = resolve(
        [
            Layer(
                level=Level.CONNECTOR,
                source="[jmsjca]",
                fields={"password": "hunter2", "acc": False, "MBeanServerDomain": "d"},
            ),
            Layer(
                level=Level.CONNECTION_FACTORY,
                source="connection 'prod'",
                fields={
                    "connection_url": "stomp://u:hunter2@h:1?JMSJCA.idletimeout=1500&jms.password=hunter2&a=b"
                },
            ),
        ]
    )
    rows = {row.option: row for row in explain(resolved)}
    assert rows["connection_url"].value == "stomp://***@h:1?JMSJCA.idletimeout=1500&jms.password=***&a=b"
    assert rows["password"] == Explained(
        option="password", value="***", origin="connection 'prod': URL, password", default="", status="acts"
    )
    assert rows["idle_timeout"] == Explained(
        option="idle_timeout",
        value="1.5s",
        origin="connection 'prod': URL, JMSJCA.idletimeout",
        default="30s",
        status="acts",
    )
    assert (rows["ignore_tx"].value, rows["ignore_tx"].origin) == ("true", "default")
    assert rows["pool_timeout"].value == "no limit"
    assert rows["jms.password"].value == "***"
    assert (rows["a"].value, rows["a"].status) == ("b", "for the broker")
    assert rows["mbean_server_domain"].status == "accepted, no effect: there is no MBean server"
    assert "no_xa" not in rows  # without effect, and not set
    assert not any("hunter2" in row.value for row in rows.values())


def test_a_pool_has_no_effect_where_messages_are_handled_one_by_one_j55() -> None:
    def status(**fields: object) -> str:
        resolved = resolve([Layer(level=Level.ACTIVATION, fields={"max-beans-in-free-pool": 16, **fields})])
        (row,) = (row for row in explain(resolved) if row.option == "endpoint_pool_max_size")
        return row.status

    assert status() == "no effect: concurrency_mode is serial, one by one"
    assert status(concurrency_mode="cc") == "acts"


@pytest.mark.parametrize(
    ("url", "status"),
    [
        ("stomp://h:1", "refused: STOMP can't look up names of jndi://"),
        ("stomp+ssl://h:1", "refused: STOMP can't look up names of jndi://"),
        ("vm://h", "acts"),
    ],
)
def test_a_name_in_the_providers_own_jndi_takes_no_effect_over_stomp_j86(url: str, status: str) -> None:
    fields = {
        "connection_url": url,
        "destination": "queue://jndi://queues/q1",
        "error_destination": "JNDI://q",
    }
    rows = explain(resolve([Layer(level=Level.ACTIVATION, fields=fields)]), only_set=True)
    found = {row.option: row.status for row in rows}
    assert (found["destination"], found["error_destination"]) == (status, status)
    (other,) = explain(resolve([Layer(level=Level.ACTIVATION, fields={"destination": "q"})]), only_set=True)
    assert other.status == "acts"


def test_the_defaults_are_told_without_the_numbers_of_a_catalogue() -> None:
    assert not [row for row in explain(resolve([])) if re.search(r"\b[A-Z]\d+\b", row.default)]


def test_only_what_was_set() -> None:
    resolved = resolve([Layer(level=Level.ACTIVATION, fields={"BatchSize": 3})])
    assert [row.option for row in explain(resolved, only_set=True)] == ["batch_size"]
