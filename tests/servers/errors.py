"""What goes wrong with a server; the first line of the text says what, and the way out."""

from __future__ import annotations

from airflow_provider_jmsjca.errors import JmsError


class ServerError(JmsError):
    """A server could not be fetched, started or stopped."""


class ServerUnavailableError(ServerError):
    """This machine can't have that server; whoever needs it does without, and says so."""
