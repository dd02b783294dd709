"""The watchers, DAGs and triggerers of this installation, read from Airflow's metadata database.

For commands on a host that reaches the database, not for tasks and triggers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.exceptions import AirflowException

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.errors import ConfigurationError, TransientStoreError
from airflow_provider_jmsjca.hooks.jms import JmsHook
from airflow_provider_jmsjca.operating.doctor import BrokenDagFile, Triggerer, WatchedDestination
from airflow_provider_jmsjca.operating.queues import DestinationUse
from airflow_provider_jmsjca.triggers.activation_options import ActivationOptions
from airflow_provider_jmsjca.triggers.producers import FAULT_KEY

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

_PACKAGE: Final = "airflow_provider_jmsjca."
_DEFAULT_CONNECTION: Final = "jms_default"
_ENVIRONMENT: Final = "AIRFLOW_CONN_"
# An event and the request of its run are stored in one transaction; the scheduler takes the request later.
_REQUESTED_WITHIN: Final = timedelta(minutes=1)
_TRIGGER: Final = "airflow_provider_jmsjca.triggers.activation.JmsActivationTrigger"


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowState:
    """The part of Airflow's metadata that decides whether messages are processed.

    Attributes:
        triggerer: The most recent triggerer; `None`: none ever ran.
        watched: Watched destinations, those of paused DAGs included.
        deferred: Number of deferred tasks.
        connections: Ids of the connections of type `jms` in the database.
        dead_letter_queues: Names of the queues to which watchers move dead letters.
        broken_files: DAG files that cannot be imported.
    """

    triggerer: Triggerer | None
    watched: tuple[WatchedDestination, ...]
    deferred: int
    connections: tuple[str, ...]
    dead_letter_queues: frozenset[str]
    broken_files: tuple[BrokenDagFile, ...] = ()


def airflow_state() -> AirflowState:
    """Read the state of Airflow from its database.

    Raises:
        TransientStoreError: The database cannot be read.
    """
    from airflow.jobs.job import Job, most_recent_job  # noqa: PLC0415 - only the command loads Airflow's tables
    from airflow.models.connection import Connection  # noqa: PLC0415 - as above
    from airflow.models.errors import ParseImportError  # noqa: PLC0415 - as above
    from airflow.models.taskinstance import TaskInstance  # noqa: PLC0415 - as above
    from airflow.utils.session import create_session  # noqa: PLC0415 - as above
    from sqlalchemy import func, select  # noqa: PLC0415 - as above
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415 - as above

    try:
        with create_session() as session:
            job: Job | None = most_recent_job("TriggererJob", session=session)
            triggerer = (
                None
                if job is None
                else Triggerer(
                    host=job.hostname or "an unknown host",
                    alive=job.is_alive(),
                    heartbeat=job.latest_heartbeat,
                )
            )
            deferred = session.scalar(
                select(func.count()).select_from(TaskInstance).where(TaskInstance.state == "deferred")
            )
            connections = session.scalars(
                select(Connection.conn_id).where(Connection.conn_type == "jms").order_by(Connection.conn_id)
            ).all()
            watched, queues = _watched(session)
            broken = session.scalars(select(ParseImportError).order_by(ParseImportError.filename)).all()
            return AirflowState(
                triggerer=triggerer,
                watched=tuple(watched),
                deferred=deferred or 0,
                connections=tuple(connections),
                dead_letter_queues=frozenset(queues),
                broken_files=tuple(
                    BrokenDagFile(name=each.filename or "", traceback=each.stacktrace or "")
                    for each in broken
                ),
            )
    except SQLAlchemyError as error:
        raise TransientStoreError(f"Airflow's database cannot be read: {type(error).__name__}") from error


def jms_connections() -> list[str]:
    """Return the ids of the JMS connections of Airflow's database and of the environment, sorted.

    Raises:
        TransientStoreError: Airflow's database cannot be read.
    """
    from airflow.models.connection import Connection  # noqa: PLC0415 - as above
    from airflow.utils.session import create_session  # noqa: PLC0415 - as above
    from sqlalchemy import select  # noqa: PLC0415 - as above
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415 - as above

    try:
        with create_session() as session:
            stored = session.scalars(select(Connection.conn_id).where(Connection.conn_type == "jms")).all()
    except SQLAlchemyError as error:
        raise TransientStoreError(f"Airflow's database cannot be read: {type(error).__name__}") from error
    return sorted({*stored, *environment_connections()})


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
    """Return the destinations that watchers and tasks of this installation's DAGs name, paused ones included.

    Destinations that only a run resolves, such as templates, are left out.

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
                for asset, arguments in _watchers(dag.data):
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
        for destination in _destinations(text):
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


def _watched(session: Session) -> tuple[list[WatchedDestination], set[str]]:
    """Return the watched destinations and the dead-letter queues of their watchers.

    They come from the serialized DAGs: Airflow deletes the trigger of a watcher once all its DAGs are paused.
    """
    from airflow.models.asset import AssetModel  # noqa: PLC0415 - as above
    from airflow.models.asset_state_store import AssetStateStoreModel  # noqa: PLC0415 - as above
    from airflow.models.dag import DagModel  # noqa: PLC0415 - as above
    from airflow.models.serialized_dag import SerializedDagModel  # noqa: PLC0415 - as above
    from sqlalchemy import select  # noqa: PLC0415 - as above

    faults: dict[str, Mapping[str, Any]] = {
        name: _object(value)
        for name, value in session.execute(
            select(AssetModel.name, AssetStateStoreModel.value)
            .join(AssetModel, AssetModel.id == AssetStateStoreModel.asset_id)
            .where(AssetStateStoreModel.key == FAULT_KEY)
        )
    }
    rows = session.execute(
        select(DagModel.dag_id, DagModel.is_paused).where(
            DagModel.is_stale.is_(False), DagModel.asset_expression.is_not(None)
        )
    )
    paused = {row.dag_id: row.is_paused for row in rows}
    dags: dict[tuple[str, str, Destination | None], set[tuple[str, bool]]] = {}
    queues: set[str] = set()
    for dag in SerializedDagModel.get_latest_serialized_dags(dag_ids=sorted(paused), session=session):
        for asset, arguments in _watchers(dag.data):
            try:
                options = ActivationOptions.parse(arguments)
            except (ConfigurationError, KeyError):  # reported as the watcher's fault
                continue
            fields = options.activation.fields
            queues |= {each.name for each in _destinations(fields.get("dead_letter_destination"))}
            destinations: list[Destination | None] = [*_destinations(fields.get("destination"))]
            for destination in destinations or [None]:
                key = (asset, options.jms_conn_id, destination)
                dags.setdefault(key, set()).add((dag.dag_id, paused[dag.dag_id]))
    watched = [
        WatchedDestination(
            asset=asset,
            jms_conn_id=conn_id,
            destination=destination,
            dags=tuple(sorted(found)),
            stored_events={
                dag_id: count for dag_id, _ in found if (count := _without_run(session, asset, dag_id))
            },
            fault=str(faults.get(asset, {}).get("error", "")),
            failing_since=str(faults.get(asset, {}).get("since", "")),
        )
        for (asset, conn_id, destination), found in dags.items()
    ]
    return watched, queues


def _without_run(session: Session, asset: str, dag_id: str) -> int:
    """Return how many events of an asset wait for a run of a DAG although Airflow has requested none.

    They were stored while the DAG was paused. Airflow adds them to the run that the next event starts.
    """
    from airflow.models.asset import (  # noqa: PLC0415 - as above
        AssetDagRunQueue,
        AssetEvent,
        AssetModel,
        DagScheduleAssetReference,
    )
    from airflow.models.dagrun import DagRun  # noqa: PLC0415 - as above
    from sqlalchemy import func, select  # noqa: PLC0415 - as above

    reference = session.scalar(
        select(DagScheduleAssetReference)
        .join(AssetModel, AssetModel.id == DagScheduleAssetReference.asset_id)
        .where(AssetModel.name == asset, DagScheduleAssetReference.dag_id == dag_id)
    )
    if reference is None or session.get(AssetDagRunQueue, (reference.asset_id, dag_id)) is not None:
        return 0
    last = session.scalar(
        select(func.max(DagRun.run_after)).where(
            DagRun.dag_id == dag_id, DagRun.run_type == "asset_triggered"
        )
    )
    events = select(func.count()).where(
        AssetEvent.asset_id == reference.asset_id,
        AssetEvent.timestamp > (last or reference.created_at),
        AssetEvent.timestamp < datetime.now(UTC) - _REQUESTED_WITHIN,
    )
    return session.scalar(events) or 0


def _watchers(value: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield asset and arguments of each JMS watcher in a serialized DAG."""
    from airflow.serialization.serialized_objects import BaseSerialization  # noqa: PLC0415 - as above

    if isinstance(value, list):
        for each in value:
            yield from _watchers(each)
    elif isinstance(value, dict):
        for watcher in value.get("watchers") or ():
            if isinstance(watcher, dict) and watcher.get("trigger", {}).get("classpath") == _TRIGGER:
                arguments = watcher["trigger"]["kwargs"]
                yield (
                    str(value.get("name")),
                    {name: BaseSerialization.deserialize(each) for name, each in arguments.items()},
                )
        for each in value.values():
            yield from _watchers(each)


def _destinations(value: object) -> list[Destination]:
    """Return the destinations of an argument; none for those that only the trigger can resolve."""
    texts = value if isinstance(value, list | tuple) else str(value or "").split(";")
    found = []
    for text in texts:
        try:
            found.append(Destination.parse(str(text).strip()))
        except ConfigurationError:
            continue
    return found


def _object(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
