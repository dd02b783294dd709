"""Lets a plain script read connections from Airflow's database, and explains undefined connections."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final, cast

from airflow.sdk.bases.hook import BaseHook

if TYPE_CHECKING:
    from airflow.sdk import Connection

_CONTEXT: Final = "_AIRFLOW_PROCESS_CONTEXT"
_SERVER: Final = "server"


def use_stored_connections() -> None:
    """Let this process read connections from Airflow's database, as `airflow connections get` does.

    Use it in scripts of your own. Without this call Airflow looks for a connection only in variables of the
    environment (`AIRFLOW_CONN_...`) and in the secrets backend that its configuration names. The process
    needs Airflow's configuration with the database's address and the Fernet key. In tasks and triggers the
    call changes nothing: Airflow hands them their connections.

    Call it before the first connection is looked up.
    """
    os.environ[_CONTEXT] = _SERVER


def airflow_connection(conn_id: str) -> Connection:
    """Return an Airflow connection.

    A process that reads Airflow's database takes it from Airflow's own models. The task SDK would search the
    same places, but first import the supervisor of tasks, which takes longer than most commands.

    Raises:
        AirflowNotFoundException: The connection is not defined in this process.
    """
    if os.environ.get(_CONTEXT) != _SERVER or _runs_in_airflow():
        return BaseHook.get_connection(conn_id)
    from airflow.models.connection import (  # noqa: PLC0415 - not in tasks and triggers
        Connection as StoredConnection,
    )

    found = StoredConnection.get_connection_from_secrets(conn_id)
    found.get_extra_dejson()  # makes Airflow mask the secrets of the extra in logs, as it masks the password
    return cast("Connection", found)  # the task SDK returns this class, too


def undefined_text(conn_id: str) -> str:
    """Return the error text, with the remedy, for a connection that isn't defined in this process."""
    missing = f"connection {conn_id!r} is not defined in Airflow"
    if _runs_in_airflow() or os.environ.get(_CONTEXT):
        return missing
    return (
        f"connection {conn_id!r} is not defined in Airflow, as far as this process sees: it doesn't read "
        "Airflow's database. In a script of your own "
        f"call use_stored_connections() before, or set AIRFLOW_CONN_{conn_id.upper()}"
    )


def _runs_in_airflow() -> bool:
    """Return whether a task, a trigger or DAG parsing runs in this process.

    These read connections from Airflow's API, not from its database.
    """
    runner = sys.modules.get("airflow.sdk.execution_time.task_runner")
    return getattr(runner, "SUPERVISOR_COMMS", None) is not None
