from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.transports.stomp import dialects
from airflow_provider_jmsjca.transports.stomp.dialects import recognise
from airflow_provider_jmsjca.transports.stomp.dialects.activemq import ActiveMqDialect
from airflow_provider_jmsjca.transports.stomp.dialects.artemis import ArtemisDialect
from airflow_provider_jmsjca.transports.stomp.dialects.dialect import Dialect
from airflow_provider_jmsjca.transports.stomp.dialects.generic import GenericDialect
from airflow_provider_jmsjca.transports.stomp.dialects.rabbitmq import RabbitMqDialect


@pytest.mark.parametrize(
    ("server", "dialect", "product", "version"),
    [
        ("ActiveMQ/6.3.1", ActiveMqDialect, "activemq", "6.3.1"),
        (
            "ActiveMQ-Artemis/2.56.0 ActiveMQ Artemis Messaging Engine",
            ArtemisDialect,
            "artemis",
            "2.56.0",
        ),
        ("RabbitMQ/3.10.8", RabbitMqDialect, "rabbitmq", "3.10.8"),
        ("apache-apollo/1.7.1", GenericDialect, "apache-apollo", "1.7.1"),
        ("SomeServer", GenericDialect, "SomeServer", ""),
        ("", GenericDialect, "unknown", ""),
    ],
)
def test_by_server_header(server: str, dialect: type[Dialect], product: str, version: str) -> None:
    found, name, number = recognise(server)
    assert type(found) is dialect
    assert (name, number) == (product, version)


def test_a_registered_dialect_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialects, "_known", dict(dialects.BY_SERVER))
    monkeypatch.setattr(dialects, "BY_SERVER", dialects._known)
    own = GenericDialect()
    dialects.register("Toy", own)
    assert recognise("Toy/1.0")[0] is own


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ("RabbitMQ", "server 'RabbitMQ' has a dialect of this package, which stays"),
        ("Toy/1.0", "server 'Toy/1.0': expected the name in the server header of CONNECTED, up to the slash"),
        ("", "server '': expected the name in the server header of CONNECTED, up to the slash"),
    ],
)
def test_a_name_that_can_not_be_registered(server: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        dialects.register(server, GenericDialect())
    assert str(caught.value) == said


class Prefixed(GenericDialect):
    """Writes destinations in a form of its own, and doesn't read it."""

    def destination(self, destination: Destination) -> str:
        return f"/toy/{destination.name}"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (GenericDialect, "server 'Toy': expected an object of a dialect, such as GenericDialect()"),
        (
            Prefixed(),
            (
                "server 'Toy': Prefixed writes queue://orders as '/toy/orders', which it reads as "
                "queue:///toy/orders: override destination_from() as the inverse of destination()"
            ),
        ),
    ],
)
def test_a_dialect_that_can_not_be_registered(given: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        dialects.register("Toy", given)
    assert str(caught.value) == said
