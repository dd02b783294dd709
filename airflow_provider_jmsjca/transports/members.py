"""The hosts of a connection as members of a distributed destination, where each host is a separate broker."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.transports.base import ConnectionSettings

_LONGEST_NAME: Final = 250
_PLAIN = str.maketrans(":", "-", "[]")


def member_settings(connection: ConnectionSettings) -> dict[str, ConnectionSettings]:
    """Return the settings of each host of a connection by member name.

    If the connection has a client id, each member gets its own, because brokers of a cluster refuse a second
    client with the same id.

    Raises:
        ConfigurationError: A host is listed twice.

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


def settings_for_member(member: str, connection: ConnectionSettings) -> ConnectionSettings:
    """Return the settings of one member.

    Raises:
        ConfigurationError: The connection doesn't list the host, or lists a host twice.
    """
    found = member_settings(connection)
    if member not in found:
        raise ConfigurationError(f"connection URL: no host {member}, expected it beside {', '.join(found)}")
    return found[member]


def limbo_name(jms_conn_id: str, member: str) -> str:
    """Return the name under which limbo keeps messages for a member of a connection.

    Limbo keeps messages in the store until they can be sent. The name is unambiguous, because Airflow's
    connection ids can't contain `@`.

    Raises:
        ConfigurationError: The name is too long for the stores.
    """
    name = f"{jms_conn_id}@{member}"
    if len(name) > _LONGEST_NAME:
        raise ConfigurationError(
            f"connection URL: the name of a member in limbo, {name}, has more than {_LONGEST_NAME} "
            "characters; use a shorter connection id"
        )
    return name


def split_limbo_name(name: str) -> tuple[str, str | None]:
    """Split a name in limbo into the Airflow connection id and the member (`None`: no member)."""
    jms_conn_id, _, member = name.partition("@")
    return jms_conn_id, member or None


def _name(connection: ConnectionSettings) -> str:
    return connection.url.partition("://")[2]
