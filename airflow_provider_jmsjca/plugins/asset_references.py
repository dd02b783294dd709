"""Adds events to DAG runs whose schedule names the asset only by `Asset.ref`.

Airflow 3.3 starts a run for an event of an asset to which a schedule only refers, by name or by URI. But it
gives the run only the events of assets that the schedule contains as objects. So such a run would start
without its messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_jmsjca.triggers.payload import is_jms_event

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from sqlalchemy.orm import Session

_TRIGGERED = "asset_triggered"


def add_events(session: Session, run: DagRun) -> None:
    """Add the trigger events of referenced assets to an asset-triggered run of a DAG.

    The run gets the events that are newer than the DAG's previous run and not newer than the run itself. For
    assets in the schedule, Airflow does the same. Events that the run already has are not added again.
    """
    if str(run.run_type) != _TRIGGERED:
        return
    from airflow.models.asset import AssetEvent, AssetModel  # noqa: PLC0415 - the scheduler's side of Airflow
    from airflow.models.dagrun import DagRun as Run  # noqa: PLC0415
    from sqlalchemy import func, select  # noqa: PLC0415

    assets: set[int] = set()
    since = []
    for reference, named in references():
        rows = session.execute(
            select(AssetModel.id, reference.created_at)
            .join(reference, named)
            .where(reference.dag_id == run.dag_id)
        ).all()
        assets |= {asset_id for asset_id, _ in rows}
        since += [created_at for _, created_at in rows]
    if not assets:
        return
    before = session.scalar(
        select(func.max(Run.run_after)).where(
            Run.dag_id == run.dag_id, Run.run_type == _TRIGGERED, Run.run_after < run.run_after
        )
    )
    wanted = select(AssetEvent).where(AssetEvent.asset_id.in_(assets), AssetEvent.timestamp <= run.run_after)
    if before is None and not (run.dag is not None and run.dag.catchup):
        before = min(since)
    if before is not None:
        wanted = wanted.where(AssetEvent.timestamp > before)
    has = {event.id for event in run.consumed_asset_events}
    found = session.scalars(wanted.order_by(AssetEvent.timestamp, AssetEvent.id)).all()
    run.consumed_asset_events.extend(
        event for event in found if event.id not in has and is_jms_event(event.extra)
    )


def add_events_to_queued_runs(session: Session, asset_id: int) -> None:
    """Add events to the queued runs of DAGs that refer to an asset; these runs have not started yet."""
    from airflow.models.asset import AssetModel  # noqa: PLC0415 - the scheduler's side of Airflow
    from airflow.models.dagrun import DagRun as Run  # noqa: PLC0415
    from sqlalchemy import or_, select  # noqa: PLC0415

    dags = [
        Run.dag_id.in_(select(reference.dag_id).join(AssetModel, named).where(AssetModel.id == asset_id))
        for reference, named in references()
    ]
    for run in session.scalars(
        select(Run).where(Run.state == "queued", Run.run_type == _TRIGGERED, or_(*dags))
    ):
        add_events(session, run)


def references() -> list[tuple[Any, Any]]:
    """Return the tables of references from schedules to assets, each with the condition to join assets."""
    from airflow.models.asset import (  # noqa: PLC0415 - the scheduler's side of Airflow
        AssetModel,
        DagScheduleAssetNameReference,
        DagScheduleAssetUriReference,
    )

    return [
        (DagScheduleAssetNameReference, DagScheduleAssetNameReference.name == AssetModel.name),
        (DagScheduleAssetUriReference, DagScheduleAssetUriReference.uri == AssetModel.uri),
    ]
