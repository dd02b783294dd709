"""JMS connections, and destinations that DAGs name, read from Airflow's metadata database.

For commands on a host that reaches the database, not for tasks and triggers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from airflow.sdk.exceptions import AirflowException

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.errors import ConfigurationError, TransientStoreError
from airflow_provider_jmsjca.hooks.jms import JmsHook
from airflow_provider_jmsjca.operating.queues import DestinationUse
from airflow_provider_jmsjca.transports.base import ConnectionSettings

_PACKAGE: Final = "airflow_provider_jmsjca."
_DEFAULT_CONNECTION: Final = "jms_default"
_ENVIRONMENT: Final = "AIRFLOW_CONN_"
_PATIENCE: Final = timedelta(seconds=10)
_TRIGGER: Final = "airflow_provider_jmsjca.triggers.activation.JmsActivationTrigger"


def jms_connections() -> list[str]:
    """Return the ids of the JMS connections of Airflow's database and of the environment, sorted.

    Raises:
        TransientStoreError: Airflow's database cannot be read.
    """
    from airflow.models.connection import Connection  # noqa: PLC0415 - only a query loads Airflow's tables
    from airflow.utils.session import create_session  # noqa: PLC0415 - as above
    from sqlalchemy import select  # noqa: PLC0415 - as above
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415 - as above

    try:
        with create_session() as session:
            stored = session.scalars(select(Connection.conn_id).where(Connection.conn_type == "jms")).all()
    except SQLAlchemyError as error:
        raise TransientStoreError(f"Airflow's database cannot be read: {type(error).__name__}") from error
    return sorted({*stored, *environment_connections()})


def settings_with_short_timeouts(conn_id: str) -> ConnectionSettings:
    """Return a connection's settings, with timeouts of at most ten seconds.

    Raises:
        ConfigurationError: The connection is missing, or its settings can't be used.
    """
    settings = JmsHook(conn_id).settings()
    return replace(
        settings,
        connect_timeout=min(settings.connect_timeout, _PATIENCE),
        reply_timeout=min(settings.reply_timeout, _PATIENCE),
    )


def scheduling_assets(dag_id: str) -> list[str]:
    """Return the names of the assets in the schedule of a DAG, sorted.

    Raises:
        TransientStoreError: Airflow's database cannot be read.
    """
    from airflow.models.asset import AssetModel, DagScheduleAssetReference  # noqa: PLC0415 - as above
    from airflow.utils.session import create_session  # noqa: PLC0415 - as above
    from sqlalchemy import select  # noqa: PLC0415 - as above
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415 - as above

    try:
        with create_session() as session:
            names = session.scalars(
                select(AssetModel.name)
                .join(DagScheduleAssetReference, DagScheduleAssetReference.asset_id == AssetModel.id)
                .where(DagScheduleAssetReference.dag_id == dag_id)
            ).all()
    except SQLAlchemyError as error:
        raise TransientStoreError(f"Airflow's database cannot be read: {type(error).__name__}") from error
    return sorted(set(names))


def environment_connections() -> frozenset[str]:
    """Return the ids of JMS connections of the environment, without connections that cannot be read."""
    named = (name.removeprefix(_ENVIRONMENT).lower() for name in os.environ if name.startswith(_ENVIRONMENT))
    return frozenset(name for name in named if _is_jms(name))


def _is_jms(conn_id: str) -> bool:
    try:
        return JmsHook.get_connection(conn_id).conn_type == "jms"
    except (AirflowException, ValueError):
        return False


def destination_uses() -> list[DestinationUse]:
    """Return the destinations in watchers and tasks of this installation's DAGs, including paused ones.

    Destinations that are known only in a DAG run, such as templates, are left out.

    Raises:
        TransientStoreError: Airflow's database cannot be read.
    """
    from airflow.models.dag import DagModel  # noqa: PLC0415 - as above
    from airflow.models.serialized_dag import SerializedDagModel  # noqa: PLC0415 - as above
    from airflow.utils.session import create_session  # noqa: PLC0415 - as above
    from sqlalchemy import select  # noqa: PLC0415 - as above
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415 - as above

    found: list[DestinationUse] = []
    try:
        with create_session() as session:
            names = session.scalars(select(DagModel.dag_id).where(DagModel.is_stale.is_(False))).all()
            for dag in SerializedDagModel.get_latest_serialized_dags(dag_ids=sorted(names), session=session):
                for asset, arguments in watchers(dag.data):
                    found += _uses_of(f"asset {asset}", arguments)
                for task_id, arguments in _tasks(dag.data):
                    found += _uses_of(f"task {dag.dag_id}.{task_id}", arguments)
    except SQLAlchemyError as error:
        raise TransientStoreError(f"Airflow's database cannot be read: {type(error).__name__}") from error
    return found


def _uses_of(user: str, arguments: Mapping[str, Any]) -> Iterator[DestinationUse]:
    spec = arguments.get("spec") or arguments.get("activation")
    fields = spec if isinstance(spec, dict) else {}
    conn_id = arguments.get("jms_conn_id") or fields.get("jms_conn_id") or _DEFAULT_CONNECTION
    for text in (arguments.get("destination"), fields.get("destination")):
        for destination in destinations_of(text):
            if "{{" not in destination.name:
                yield DestinationUse(destination=destination, user=user, jms_conn_id=str(conn_id))


def _tasks(value: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield id and fields of each task of this package in a serialized DAG."""
    if isinstance(value, list):
        for each in value:
            yield from _tasks(each)
    elif isinstance(value, dict):
        if str(value.get("_task_module", "")).startswith(_PACKAGE):
            partial = value.get("partial_kwargs")
            fields = {**(partial if isinstance(partial, dict) else {}), **value}
            yield str(value.get("task_id")), {name: _plain(each) for name, each in fields.items()}
        for each in value.values():
            yield from _tasks(each)


def _plain(value: object) -> Any:
    """Return a value without the type marks of Airflow's serialization."""
    if isinstance(value, dict):
        if value.keys() == {"__type", "__var"}:
            return _plain(value["__var"])
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def watchers(value: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield asset and arguments of each JMS watcher in a serialized DAG."""
    from airflow.serialization.serialized_objects import BaseSerialization  # noqa: PLC0415 - as above

    if isinstance(value, list):
        for each in value:
            yield from watchers(each)
    elif isinstance(value, dict):
        for watcher in value.get("watchers") or ():
            if isinstance(watcher, dict) and watcher.get("trigger", {}).get("classpath") == _TRIGGER:
                arguments = watcher["trigger"]["kwargs"]
                yield (
                    str(value.get("name")),
                    {name: BaseSerialization.deserialize(each) for name, each in arguments.items()},
                )
        for each in value.values():
            yield from watchers(each)


def destinations_of(value: object) -> list[Destination]:
    """Return the destinations in an argument: a list, or text with semicolons between destinations.

    References to administered objects are left out, because only the trigger looks them up.
    """
    texts = value if isinstance(value, list | tuple) else str(value or "").split(";")
    found = []
    for text in texts:
        try:
            found.append(Destination.parse(str(text).strip()))
        except ConfigurationError:
            continue
    return found
