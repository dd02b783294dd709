"""The hosts of a connection as members of a distributed destination: each a broker of its own."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.transports.base import ConnectionSettings

_LONGEST_NAME: Final = 250
_PLAIN = str.maketrans(":", "-", "[]")


def member_settings(connection: ConnectionSettings) -> dict[str, ConnectionSettings]:
    """Return how to connect to each host of a connection, by the name of the member.

    A member has a client id of its own, if there is one: brokers that know each other refuse a second client
    with the same.

    Raises:
        ConfigurationError: A host stands there twice.

    Source: W30, W46.
    """
    found = [
        (_name(each), each) for each in (replace(connection, hosts=(host,)) for host in connection.hosts)
    ]
    twice = sorted(name for name, count in Counter(name for name, _ in found).items() if count > 1)
    if twice:
        raise ConfigurationError(
            f"connection URL: got {', '.join(twice)} more than once, expected each host once because "
            "distributed_destination_connection is every_member"
        )
    return {
        name: each
        if each.client_id is None
        else replace(each, client_id=f"{each.client_id}-{name.translate(_PLAIN)}")
        for name, each in found
    }


def settings_of(member: str, connection: ConnectionSettings) -> ConnectionSettings:
    """Return how to connect to one member.

    Raises:
        ConfigurationError: The connection names no such host, or one twice.
    """
    found = member_settings(connection)
    if member not in found:
        raise ConfigurationError(f"connection URL: no host {member}, expected it beside {', '.join(found)}")
    return found[member]


def limbo_name(jms_conn_id: str, member: str) -> str:
    """Return what limbo calls the connection to a member; Airflow allows no `@` in the name of its own.

    Raises:
        ConfigurationError: No store keeps so long a name.
    """
    name = f"{jms_conn_id}@{member}"
    if len(name) > _LONGEST_NAME:
        raise ConfigurationError(
            f"connection URL: limbo calls a member {name}, expected {_LONGEST_NAME} characters at most"
        )
    return name


def in_limbo(name: str) -> tuple[str, str | None]:
    """Return which Airflow connection, and which member of it, limbo calls by a name."""
    jms_conn_id, _, member = name.partition("@")
    return jms_conn_id, member or None


def _name(connection: ConnectionSettings) -> str:
    return connection.url.partition("://")[2]
