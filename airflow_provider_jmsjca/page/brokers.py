"""Access of the page's views to the brokers of this installation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.hooks.metadata import jms_connections, settings_with_short_timeouts
from airflow_provider_jmsjca.operating.queues import open_connection
from airflow_provider_jmsjca.page.visit import Visit
from airflow_provider_jmsjca.transports.administration import QueueAdministration
from airflow_provider_jmsjca.transports.base import Connection


class AskFirstError(Exception):
    """Browsing has a side effect at this broker, which the user has not confirmed."""


def chosen_connection(visit: Visit) -> tuple[str | None, list[str]]:
    """Return the Airflow connection that a view shows, and all JMS connections.

    The view shows the connection that the URL names, or else the only JMS connection. If the URL names none,
    and there are several JMS connections or none, the first value is `None`.

    Raises:
        ConfigurationError: Airflow has no JMS connection with the id in the URL.
    """
    known = jms_connections()
    conn_id = visit.query.get("conn_id")
    if conn_id is None:
        return (known[0] if len(known) == 1 else None), known
    if conn_id not in known:
        raise ConfigurationError(f"there is no JMS connection {conn_id!r} in Airflow")
    return conn_id, known


def selected_connection(visit: Visit) -> str:
    """Return the Airflow connection that a view shows.

    Raises:
        ConfigurationError: The URL names an unknown connection. Or it names no connection, and Airflow has
            several JMS connections or none.
    """
    conn_id, known = chosen_connection(visit)
    if conn_id is None:
        raise ConfigurationError(
            f"the address of this page lacks conn_id; there are {', '.join(known) or 'none'}"
        )
    return conn_id


def required_parameter(visit: Visit, name: str) -> str:
    """Return a parameter of the URL.

    Raises:
        ConfigurationError: The parameter is missing or empty.
    """
    if not (value := visit.query.get(name, "")):
        raise ConfigurationError(f"the address of this page lacks {name}")
    return value


@contextlib.contextmanager
def open_broker(conn_id: str) -> Iterator[tuple[Connection, QueueAdministration]]:
    """Connect to a broker, and close the connection at the end of the block.

    Raises:
        JmsError: The broker cannot be reached, or refuses the login.
    """
    with (
        open_connection(settings_with_short_timeouts(conn_id)) as connection,
        contextlib.closing(connection.administration()) as administration,
    ):
        yield connection, administration


def require_browse_consent(visit: Visit, administration: QueueAdministration) -> None:
    """Raise `AskFirstError` if browsing this broker has a side effect that the form did not confirm."""
    if administration.browse_note and not visit.form:
        raise AskFirstError(administration.browse_note)
