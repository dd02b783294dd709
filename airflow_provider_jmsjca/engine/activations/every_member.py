"""A listener on each member of a distributed destination.

| event | effect |
|---|---|
| a member is lost | its listener reconnects with the usual pauses; the others continue |
| a member refuses permanently (credentials, missing queue) | it is logged and retried; the others continue |
| all members refuse permanently | the activation stops with that fault |
| a handler has a message of a lost member | it keeps its concurrency permit; the message is redelivered |
| a handler stops the activation | every member stops, within one deadline |
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.options.choices import DistributedDestinationConnection
from airflow_provider_jmsjca.engine.activations.run import Connections, RunSettings
from airflow_provider_jmsjca.engine.delivering.settings import BARE, ListenerContext, listener_settings
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.base import Connection, ConnectionSettings
from airflow_provider_jmsjca.transports.members import limbo_name, member_settings


def every_member(
    spec: ActivationSpec,
    connection: ConnectionSettings,
    context: ListenerContext = BARE,
    *,
    connect: Callable[[ConnectionSettings], Connection] = connect,
) -> Connections | None:
    """Return connections of a listener to all members; `None` if the spec uses a single connection.

    Args:
        spec: The spec in force.
        connection: How to connect; each of its hosts is a member.
        context: The environment of the listener. Each member has its own counts in the store, and a message
            in limbo returns to the member from which it was received.
        connect: Opens one connection.

    Raises:
        ConfigurationError: The spec requires something that a listener can't do, or a host is listed twice.
    """
    # W12, W17, W46
    if spec.distributed_destination_connection is not DistributedDestinationConnection.EVERY_MEMBER:
        return None
    local = spec.replace(distributed_destination_connection=DistributedDestinationConnection.LOCAL_ONLY)
    one = listener_settings(local, context.over(connection))
    whole = replace(one, spec=spec)
    members = tuple(
        RunSettings(
            name=name,
            settings=replace(
                whole,
                name=f"{whole.name} on {name}",
                client_id=each.client_id,
                url=each.url,
                jms_conn_id=limbo_name(whole.jms_conn_id, name) if whole.has_limbo else "",
            ),
            connect=functools.partial(connect, each),
        )
        for name, each in member_settings(connection).items()
    )
    return Connections(settings=whole, consumers=members, member_names=tuple(each.name for each in members))
