"""The members of a distributed destination: one broker for each host of the connection."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.administered import destination_named
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.options.choices import DistributedDestinationConnection
from airflow_provider_jmsjca.engine.fates import Subscribes
from airflow_provider_jmsjca.engine.listener_settings import ListenerSettings, listener_settings
from airflow_provider_jmsjca.engine.outage import Connect
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Connection, ConnectionSettings

_PLAIN = str.maketrans(":", "-", "[]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One broker of several.

    Attributes:
        name: Its host and port, `broker-a:61613`.
        settings: How its listener consumes.
        connect: Opens a connection to it.
    """

    name: str
    settings: ListenerSettings
    connect: Connect


@dataclass(frozen=True, slots=True, kw_only=True)
class EveryMember:
    """How the members are consumed together.

    Attributes:
        settings: For all of them.
        members: Each of them.
    """

    settings: ListenerSettings
    members: tuple[Member, ...]


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


def _name(connection: ConnectionSettings) -> str:
    return connection.url.partition("://")[2]


def every_member(
    spec: ActivationSpec,
    connection: ConnectionSettings,
    *,
    principal: str | None = None,
    confirm: bool = False,
    park: bool = False,
    retry_permanent: bool = False,
    subscribes: Subscribes | None = None,
    find: Callable[[str], Destination] = destination_named,
    connect: Callable[[ConnectionSettings], Connection] = connect,
) -> EveryMember | None:
    """Return what a listener on each member needs; `None` if the spec wants one connection.

    Args:
        spec: The spec in force.
        connection: How to connect; each of its hosts is a member.
        principal: User name of the connections.
        confirm: As the attribute of `ListenerSettings`.
        park: Delays above 5 seconds are the broker's to keep.
        retry_permanent: As the attribute of `ListenerSettings`.
        subscribes: Which messages are wanted.
        find: As the attribute of `ListenerSettings`.
        connect: Opens one connection.

    Raises:
        ConfigurationError: The spec asks for what a listener doesn't do, or a host stands there twice.

    Source: W12, W17, W46.
    """
    if spec.distributed_destination_connection is not DistributedDestinationConnection.EVERY_MEMBER:
        return None
    one = listener_settings(
        spec.replace(distributed_destination_connection=DistributedDestinationConnection.LOCAL_ONLY),
        client_id=connection.client_id,
        principal=principal,
        url=connection.url,
        confirm=confirm,
        park=park,
        retry_permanent=retry_permanent,
        subscribes=subscribes,
        find=find,
    )
    whole = replace(one, spec=spec)
    members = tuple(
        Member(
            name=name,
            settings=replace(whole, name=f"{whole.name} on {name}", client_id=each.client_id, url=each.url),
            connect=functools.partial(connect, each),
        )
        for name, each in member_settings(connection).items()
    )
    return EveryMember(settings=whole, members=members)
