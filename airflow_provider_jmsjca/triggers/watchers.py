"""The watchers, DAGs and triggerers of this installation, read from Airflow's metadata database.

For commands on a host that reaches the database, not for tasks and triggers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.errors import ConfigurationError, TransientStoreError
from airflow_provider_jmsjca.hooks.metadata import destinations_of, watchers
from airflow_provider_jmsjca.operating.doctor.dags import BrokenDagFile, Triggerer, WatchedDestination
from airflow_provider_jmsjca.triggers.activation_options import ActivationOptions
from airflow_provider_jmsjca.triggers.payload import FAULT_KEY

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# Events older than this without a run are reported. Airflow stores an event and the request for its run in
# one transaction, but the scheduler creates the run later.
_REQUESTED_WITHIN: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowState:
    """The part of Airflow's metadata that decides whether messages are processed.

    Attributes:
        triggerer: The most recent triggerer; `None`: none has ever run.
        watched: Watched destinations, including those of paused DAGs.
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


def _watched(session: Session) -> tuple[list[WatchedDestination], set[str]]:
    """Return the watched destinations, and the dead-letter queues of their watchers.

    Both come from the serialized DAGs, because Airflow deletes a watcher's trigger once all its DAGs are
    paused.
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
        for asset, arguments in watchers(dag.data):
            try:
                options = ActivationOptions.parse(arguments)
            except (ConfigurationError, KeyError):  # reported as the watcher's fault
                continue
            fields = options.activation.fields
            queues |= {each.name for each in destinations_of(fields.get("dead_letter_destination"))}
            destinations: list[Destination | None] = [*destinations_of(fields.get("destination"))]
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
            fault_since=str(faults.get(asset, {}).get("error_since", "")),
        )
        for (asset, conn_id, destination), found in dags.items()
    ]
    return watched, queues


def _without_run(session: Session, asset: str, dag_id: str) -> int:
    """Return how many events of an asset are in no run of a DAG; 0 if Airflow has queued a run for them.

    Such events were stored while the DAG was paused. Airflow adds them to the DAG run that the next event
    starts. Events of the last minute don't count.
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


def _object(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
