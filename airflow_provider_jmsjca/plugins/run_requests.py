"""Requests DAG runs for the events of triggers: one run for each event with held messages.

Airflow requests a run with a row of `AssetDagRunQueue`, one for each asset and DAG. The run gets the events
that are newer than the DAG's previous run and not newer than the row's `created_at`. Airflow adds the row
with the first event of a burst. So Airflow alone would give an arbitrary part of the burst to one run, and
the rest to the next. This module sets `created_at` when an event is stored:

- Event with held messages: the time of the oldest event with held messages that has no run of the DAG. When
  this run starts, the next one is requested. So a message that makes its run fail affects no other message.
- Other event: the current time, so that one run gets all events.

If a DAG needs events of several assets at once, one run gets several events with held messages. An event
whose messages no longer wait, for example because the DAG was paused, joins the run of the next event.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_jmsjca.plugins.asset_references import references
from airflow_provider_jmsjca.triggers.payload import hold_token, is_still_held

if TYPE_CHECKING:
    from airflow.models.asset import AssetEvent
    from airflow.models.dag import DagModel
    from airflow.models.dagrun import DagRun
    from sqlalchemy.orm import Session

_TRIGGERED = "asset_triggered"
# Distinguishes PostgreSQL's advisory locks of this package from others: "JMS".
_LOCKS = 0x4A4D53
# Maximum number of events without waiting messages in one run.
_MOST_IN_A_RUN = 1000


def lock_asset(session: Session, asset_id: int, *, wait: bool = True) -> bool:
    """Lock the requests of an asset until the transaction ends.

    Only PostgreSQL has such a lock; other databases lock nothing. SQLite has one writer at a time anyway.

    Args:
        session: Session of the transaction.
        asset_id: Id of the asset.
        wait: Whether to wait for a transaction that has the lock.

    Returns:
        `False` if another transaction has the lock, and `wait` is `False`.
    """
    from sqlalchemy import func, select  # noqa: PLC0415 - the scheduler's side of Airflow

    if session.get_bind().dialect.name != "postgresql":
        return True
    if wait:
        session.execute(select(func.pg_advisory_xact_lock(_LOCKS, asset_id)))
        return True
    return session.scalar(select(func.pg_try_advisory_xact_lock(_LOCKS, asset_id))) is True


def update_requests(session: Session, asset_id: int, *, held: bool) -> None:
    """Update the requested DAG runs after an event of an asset was stored.

    Sets the time up to which requested runs get events. If the messages of the event are held, it also
    requests a further run of each DAG that has a queued run, because a queued run gets no more events.

    Args:
        session: Session of the transaction that stores the event; it has the lock.
        asset_id: Id of the asset.
        held: Whether the messages of the event are held.
    """
    from airflow.models.asset import AssetDagRunQueue  # noqa: PLC0415 - the scheduler's side of Airflow
    from sqlalchemy import select  # noqa: PLC0415

    requests = (
        select(AssetDagRunQueue)
        .where(AssetDagRunQueue.asset_id == asset_id)
        .order_by(AssetDagRunQueue.target_dag_id)  # the same lock order everywhere
        .with_for_update()  # a scheduler that makes the run deletes the row; Airflow then adds a new one
        .execution_options(populate_existing=True)
    )
    requested = {each.target_dag_id: each for each in session.scalars(requests)}
    for request in requested.values():
        moment = _next_event_time(session, request.target_dag_id, asset_id) if held else None
        request.created_at = moment or datetime.now(UTC)
    if held:
        for dag_id in _with_queued_runs(session, asset_id):
            if dag_id not in requested:
                _request(session, asset_id, dag_id)


def request_next(session: Session, run: DagRun) -> None:
    """Request the next run of a DAG, if an event of an asset of this run waits for a run.

    Except on SQLite, only assets count of which this run has an event with held messages.

    Guarantee: if an event is stored at the same time, this call or the transaction of the event requests the
    run.

    Args:
        session: Session of the scheduler's transaction that starts or ends the run.
        run: A run that has consumed events.
    """
    held = {event.asset_id for event in run.consumed_asset_events if _is_held(event)}
    on_sqlite = session.get_bind().dialect.name == "sqlite"
    for asset_id in sorted({event.asset_id for event in run.consumed_asset_events}):
        # SQLite has no row locks: a scheduler that makes a run may delete a request that was just renewed.
        if (asset_id in held or on_sqlite) and lock_asset(session, asset_id, wait=False):
            _request(session, asset_id, run.dag_id)


def lagging_dags(session: Session, event: AssetEvent) -> list[str]:
    """Return the ids of DAGs that will have a run for a held event and have no such run yet.

    A DAG that is paused, deleted or can't be imported is not among them.
    """
    from airflow.models.asset import AssetDagRunQueue  # noqa: PLC0415 - the scheduler's side of Airflow
    from sqlalchemy import select  # noqa: PLC0415

    requested = select(AssetDagRunQueue.target_dag_id).where(AssetDagRunQueue.asset_id == event.asset_id)
    candidates = {*session.scalars(requested), *_with_queued_runs(session, event.asset_id)}
    return [
        dag_id
        for dag_id in sorted(candidates)
        if _separable_dag(session, dag_id) is not None
        and (since := _consumed_until(session, dag_id, event.asset_id)) is not None
        and event.timestamp > since
    ]


def _request(session: Session, asset_id: int, dag_id: str) -> None:
    """Request a run for the next event of an asset, unless a run is already requested or no event waits."""
    from airflow.models.asset import AssetDagRunQueue  # noqa: PLC0415 - the scheduler's side of Airflow
    from sqlalchemy import insert  # noqa: PLC0415
    from sqlalchemy.dialects import postgresql, sqlite  # noqa: PLC0415

    key = (asset_id, dag_id)
    if session.get(AssetDagRunQueue, key, populate_existing=True) is not None:
        return
    moment = _next_event_time(session, dag_id, asset_id)
    if moment is None:
        return
    row = {"asset_id": asset_id, "target_dag_id": dag_id, "created_at": moment}
    # Another transaction may insert the same row. Conflicts are ignored by SQL, because the scheduler forbids
    # the commits of savepoints.
    match session.get_bind().dialect.name:
        case "postgresql":
            session.execute(postgresql.insert(AssetDagRunQueue).values(row).on_conflict_do_nothing())
        case "sqlite":
            session.execute(sqlite.insert(AssetDagRunQueue).values(row).on_conflict_do_nothing())
        case _:
            session.execute(insert(AssetDagRunQueue).prefix_with("IGNORE").values(row))


def _next_event_time(session: Session, dag_id: str, asset_id: int) -> datetime | None:
    """Return the time up to which the next run of a DAG gets events; `None` if no event waits for a run."""
    from airflow.models.asset import AssetEvent as Event  # noqa: PLC0415 - the scheduler's side of Airflow
    from airflow.models.dag import DagModel  # noqa: PLC0415
    from sqlalchemy import func, select  # noqa: PLC0415

    dag = session.get(DagModel, dag_id)
    since = _consumed_until(session, dag_id, asset_id)
    if dag is None or dag.is_paused or since is None:
        return None  # Airflow requests no run of a DAG that is paused or gone
    newer = (Event.asset_id == asset_id, Event.timestamp > since)
    if not _is_separable(dag.asset_expression):
        newest = session.scalar(select(func.max(Event.timestamp)).where(*newer))
        return None if newest is None else datetime.now(UTC)
    last: datetime | None = None
    events = select(Event).where(*newer).order_by(Event.timestamp, Event.id).limit(_MOST_IN_A_RUN)
    for event in session.scalars(events):
        last = event.timestamp
        if _is_held(event) and is_still_held(event.extra, _reader(session, asset_id)):
            break
    return last


def _consumed_until(session: Session, dag_id: str, asset_id: int) -> datetime | None:
    """Return the time up to which an asset's events are in runs of a DAG.

    Returns:
        The time of the DAG's newest run for assets. Without a run, the time since which the asset schedules
        the DAG; `None` if the asset doesn't schedule the DAG.
    """
    from airflow.models.asset import AssetModel  # noqa: PLC0415 - the scheduler's side of Airflow
    from airflow.models.dagrun import DagRun as Run  # noqa: PLC0415
    from sqlalchemy import func, select  # noqa: PLC0415

    last = session.scalar(
        select(func.max(Run.run_after)).where(Run.dag_id == dag_id, Run.run_type == _TRIGGERED)
    )
    if last is not None:
        return last
    began = [
        session.scalar(
            select(func.min(reference.created_at))
            .join(AssetModel, named)
            .where(AssetModel.id == asset_id, reference.dag_id == dag_id)
        )
        for reference, named in _schedules()
    ]
    return min((each for each in began if each is not None), default=None)


def _with_queued_runs(session: Session, asset_id: int) -> list[str]:
    """Return the ids of DAGs that an asset schedules and that have a run which has not started."""
    from airflow.models.asset import AssetModel  # noqa: PLC0415 - the scheduler's side of Airflow
    from airflow.models.dagrun import DagRun as Run  # noqa: PLC0415
    from sqlalchemy import or_, select  # noqa: PLC0415

    scheduled = [
        Run.dag_id.in_(select(reference.dag_id).join(AssetModel, named).where(AssetModel.id == asset_id))
        for reference, named in _schedules()
    ]
    queued = select(Run.dag_id).where(Run.state == "queued", Run.run_type == _TRIGGERED, or_(*scheduled))
    return sorted(set(session.scalars(queued)))


def _schedules() -> list[tuple[Any, Any]]:
    """Return the tables that relate assets to DAGs they schedule, each with the condition to join assets."""
    from airflow.models.asset import AssetModel, DagScheduleAssetReference  # noqa: PLC0415 - as above

    return [
        (DagScheduleAssetReference, DagScheduleAssetReference.asset_id == AssetModel.id),
        *references(),
    ]


def _separable_dag(session: Session, dag_id: str) -> DagModel | None:
    from airflow.models.dag import DagModel  # noqa: PLC0415 - the scheduler's side of Airflow

    dag = session.get(DagModel, dag_id)
    if dag is None or dag.is_paused or dag.is_stale or dag.has_import_errors:
        return None
    return dag if _is_separable(dag.asset_expression) else None


def _is_separable(expression: object) -> bool:
    """Return whether one event alone starts a run of a DAG with this schedule."""
    if not isinstance(expression, Mapping):
        return False
    if "any" in expression:
        return all(_is_separable(each) for each in expression["any"])
    if "all" in expression:
        return len(expression["all"]) == 1 and _is_separable(expression["all"][0])
    return True


def _is_held(event: AssetEvent) -> bool:
    # Only events from triggers have held messages. A task that passes an event on creates a new event,
    # without held messages.
    return event.source_task_id is None and hold_token(event.extra) is not None


def _reader(session: Session, asset_id: int) -> Any:
    """Return a function that reads a value of the asset's state store."""
    from airflow.state import AssetScope, get_state_backend  # noqa: PLC0415 - the scheduler's side of Airflow

    store, scope = get_state_backend(), AssetScope(asset_id=asset_id)

    def kept(key: str) -> Any:
        found = store.get(scope, key, session=session)
        return None if found is None else json.loads(found)

    return kept
