"""The brokers of this installation, as views of the page reach them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Final

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.hooks.jms import JmsHook
from airflow_provider_jmsjca.hooks.metadata import jms_connections
from airflow_provider_jmsjca.operating.queues import open_connection
from airflow_provider_jmsjca.page.visit import Visit
from airflow_provider_jmsjca.transports.administration import QueueAdministration
from airflow_provider_jmsjca.transports.base import Connection, ConnectionSettings

_PATIENCE: Final = timedelta(seconds=10)
"""How long a view waits for one answer of a broker, at most."""


class AskFirstError(Exception):
    """Looking at messages changes something at this broker, and the user has not agreed to that."""


def chosen_connection(visit: Visit) -> tuple[str | None, list[str]]:
    """Return the connection that a view is about, and all JMS connections.

    Raises:
        ConfigurationError: There is no JMS connection with the id of the URL.
    """
    known = jms_connections()
    conn_id = visit.query.get("conn_id")
    if conn_id is None:
        return (known[0] if len(known) == 1 else None), known
    if conn_id not in known:
        raise ConfigurationError(f"there is no JMS connection {conn_id!r} in Airflow")
    return conn_id, known


def asked_connection(visit: Visit) -> str:
    """Return the connection that a view is about.

    Raises:
        ConfigurationError: The URL names none, and there are several or none, or it names an unknown one.
    """
    conn_id, known = chosen_connection(visit)
    if conn_id is None:
        raise ConfigurationError(
            f"the address of this page lacks conn_id; there are {', '.join(known) or 'none'}"
        )
    return conn_id


def required(visit: Visit, name: str) -> str:
    """Return a parameter of the URL.

    Raises:
        ConfigurationError: The URL does not have it.
    """
    if not (value := visit.query.get(name, "")):
        raise ConfigurationError(f"the address of this page lacks {name}")
    return value


def settings_of(conn_id: str) -> ConnectionSettings:
    """Return how to connect, with timeouts that suit a page."""
    settings = JmsHook(conn_id).settings()
    return replace(
        settings,
        connect_timeout=min(settings.connect_timeout, _PATIENCE),
        reply_timeout=min(settings.reply_timeout, _PATIENCE),
    )


@contextlib.contextmanager
def opened(conn_id: str) -> Iterator[tuple[Connection, QueueAdministration]]:
    """Connect to a broker for the time of the block; errors as `open_connection`."""
    with (
        open_connection(settings_of(conn_id)) as connection,
        contextlib.closing(connection.administration()) as administration,
    ):
        yield connection, administration


def ask_before_browsing(visit: Visit, administration: QueueAdministration) -> None:
    """Raise `AskFirstError` if browsing this broker has a side effect that the form did not confirm."""
    if administration.browse_note and not visit.form:
        raise AskFirstError(administration.browse_note)
