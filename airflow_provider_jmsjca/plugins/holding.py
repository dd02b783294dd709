"""Listeners: to stored events, to the start and end of DAG runs, and to the start of a triggerer."""

from __future__ import annotations

import gc
import importlib
import json
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin

from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.plugins.asset_references import add_events, add_events_to_queued_runs
from airflow_provider_jmsjca.triggers.payload import (
    HEARD_KEY,
    HELD_KEY,
    hold_records,
    hold_token,
    is_event,
    outcome_key,
    receipt_of,
    still_waits,
    tokens_of,
    with_heard,
    with_held,
    with_number,
)

if TYPE_CHECKING:
    from airflow.listeners.types import AssetEvent
    from airflow.models.dagrun import DagRun
    from sqlalchemy.orm import Session

_log = safe_logger(__name__)

# Only the command imports it.
_TRIGGERER = "airflow.cli.commands.triggerer_command"
_TRIGGERS = "airflow_provider_jmsjca.triggers.activation"
# Tells PostgreSQL's advisory locks of ours from those of others: "JMS".
_TURNS = 0x4A4D53
# Databases in which the events of an asset are stored one after the other.
_ONE_AT_A_TIME = ("postgresql", "sqlite")


class EventStored:
    """Asks for the run that an event starts, and records what was stored and which messages wait.

    A run of Airflow's consumes the events up to the time at which it was asked for, and the first of several
    events asks. So those that follow before the run is made would wait until another event comes, which on a
    quiet queue may be never. Here each event asks anew.

    An event that is dated before such a time and stored after it would have no run at all. So triggerers that
    store events of one asset at the same time take turns on PostgreSQL, as SQLite has them do anyway. An
    event is dated when its turn has come.

    Guarantee: all is done in the transaction that stores the event: after a crash all is there, or nothing.
    So a message that comes again finds its run if there is one, and makes an event if there is none.
    """

    @hookimpl
    def on_asset_event_emitted(self, asset_event: AssetEvent) -> None:
        """Ask for a run, and record what waits."""
        _stored(asset_event)


class RunStarted:
    """Adds to a run the events of assets that its DAG's schedule names by `Asset.ref`.

    Airflow starts runs for such references, and gives a run only the events of assets in the schedule itself.

    Guarantee: the events are there before the first task of the run starts, in the transaction that starts
    the run. A run that is cleared and starts again has the same events.
    """

    @hookimpl
    def on_dag_run_running(self, dag_run: DagRun, msg: str) -> None:
        """Add the events."""
        del msg
        # The scheduler's side of Airflow isn't there where only the SDK is.
        from sqlalchemy.orm import object_session  # noqa: PLC0415

        session = object_session(dag_run)
        if session is not None:
            add_events(session, dag_run)


class RunEnded:
    """Listens to the ends of DAG runs.

    A run that has consumed an event of a message that is held acknowledges it by succeeding, and rolls it
    back by failing. Where one event has started several runs, all have to succeed. The first word counts:
    what `JmsAcknowledgeOperator` said before stays. Nothing is said when no message waits any more.

    Guarantee: the word is stored in the transaction that ends the run: both are there after a crash, or
    neither. A task that will be retried has not failed its run. A run that is cleared after its end changes
    nothing: its message has been settled, or has come again in another event.
    """

    @hookimpl
    def on_dag_run_success(self, dag_run: DagRun, msg: str) -> None:
        """Acknowledge what the run has consumed."""
        del msg
        _ended(dag_run)

    @hookimpl
    def on_dag_run_failed(self, dag_run: DagRun, msg: str) -> None:
        """Roll back what the run has consumed."""
        del msg
        _ended(dag_run)


class TriggererStarting:
    """Loads what triggers need before a triggerer starts its event loop.

    Airflow loads a trigger's module in that loop, which ours would block for a quarter of a second. The
    process that has the loop is forked from the one that is told of the start.
    """

    @hookimpl
    def on_starting(self, component: object) -> None:
        """Load the triggers, where the process is that of `airflow triggerer`."""
        del component  # a job, which doesn't know yet whose it will be
        if _TRIGGERER in sys.modules:
            importlib.import_module(_TRIGGERS)
            # What is loaded stays: a collection in the loop needn't look at hundreds of thousands of objects.
            gc.freeze()


def _stored(event: AssetEvent) -> None:
    if event.source_task_id is not None or not is_event(event.extra):
        return
    # The triggerer's side of Airflow isn't there where only the SDK is.
    from airflow import settings  # noqa: PLC0415
    from airflow.models.asset import AssetModel  # noqa: PLC0415
    from airflow.state import AssetScope, get_state_backend  # noqa: PLC0415
    from sqlalchemy import select  # noqa: PLC0415

    # That of the thread: the one in which the triggerer stores the event just now.
    session = settings.get_session()()
    if not session.in_transaction():
        return  # it was stored by somebody else, and no trigger waits for its runs
    asset_id = session.scalar(
        select(AssetModel.id).where(AssetModel.name == event.asset.name, AssetModel.uri == event.asset.uri)
    )
    _wait_for_the_turn(session, asset_id, event)
    _ask_for_runs(session, asset_id)
    store, scope = get_state_backend(), AssetScope(asset_id=asset_id)

    def kept(key: str) -> Any:
        found = store.get(scope, key, session=session)
        return None if found is None else json.loads(found)

    if (receipt := receipt_of(event.extra)) is not None:
        key, stream, number = receipt
        store.set(scope, key, json.dumps(with_number(kept(key), stream, number)), session=session)
    records = hold_records(event.extra, time.time())
    for key, record in records.items():
        if isinstance(before := kept(key), dict):
            record["also"] = tokens_of(before)
        store.set(scope, key, json.dumps(record), session=session)
    # Elsewhere two triggerers could overwrite each other's entries.
    if records and session.get_bind().dialect.name in _ONE_AT_A_TIME:
        held = with_held(kept(HELD_KEY), list(records), lambda key: kept(key) is not None)
        store.set(scope, HELD_KEY, json.dumps(held), session=session)


def _wait_for_the_turn(session: Session, asset_id: int, stored: AssetEvent) -> None:
    """Wait until no other triggerer stores an event of the asset, and date this one then."""
    from airflow.models.asset import AssetEvent as Event  # noqa: PLC0415
    from sqlalchemy import func, select  # noqa: PLC0415

    if session.get_bind().dialect.name == "postgresql":
        session.execute(select(func.pg_advisory_xact_lock(_TURNS, asset_id)))
    for each in session:
        if isinstance(each, Event) and each.extra is stored.extra:
            each.timestamp = datetime.now(UTC)


def _ask_for_runs(session: Session, asset_id: int) -> None:
    """Ask anew for the runs that earlier events have asked for, and that aren't made yet."""
    from airflow.models.asset import AssetDagRunQueue  # noqa: PLC0415
    from sqlalchemy import select  # noqa: PLC0415

    asked = (
        select(AssetDagRunQueue)
        .where(AssetDagRunQueue.asset_id == asset_id)
        .order_by(AssetDagRunQueue.target_dag_id)  # one order for all who lock
        .with_for_update()  # where a scheduler makes the run just now, Airflow asks for the next one
    )
    for each in session.scalars(asked):
        each.created_at = datetime.now(UTC)


def _ended(dag_run: DagRun) -> None:
    # The scheduler's side of Airflow isn't there where only the SDK is.
    from airflow.state import AssetScope, get_state_backend  # noqa: PLC0415
    from sqlalchemy.orm import object_session  # noqa: PLC0415

    session = object_session(dag_run)
    if session is None or not str(dag_run.run_type).startswith("asset"):
        return
    if session.get_bind().dialect.name == "sqlite":
        _ask_for_what_was_missed(session, dag_run)
    store = get_state_backend()
    for event in dag_run.consumed_asset_events:
        # What a task has passed on is an event of its own: no message waits for its runs.
        token = hold_token(event.extra) if event.source_task_id is None else None
        if token is None:
            continue
        add_events_to_queued_runs(session, event.asset_id)
        outcome = _outcome(event.created_dagruns)
        if outcome is None:
            continue
        scope, key = AssetScope(asset_id=event.asset_id), outcome_key(token)

        def kept(each: str, scope: AssetScope = scope) -> object:
            found = store.get(scope, each, session=session)
            return None if found is None else json.loads(found)

        word = kept(key)
        single = word if isinstance(word, dict) else {}
        if "acknowledged" not in single and still_waits(event.extra, kept):
            # What a task has said of single messages stays.
            word = {**single, **outcome}
            store.set(scope, key, json.dumps(word), session=session)
            store.set(scope, HEARD_KEY, json.dumps(with_heard(kept(HEARD_KEY), token, word)), session=session)
            _log.info("Event %s of run %s: %s", event.id, dag_run.run_id, outcome)


def _ask_for_what_was_missed(session: Session, dag_run: DagRun) -> None:
    """Ask for a run of events that came while a run was made, where nobody asks for it any more.

    SQLite locks no rows: the scheduler, which makes a run, may delete the question that an event has asked
    anew meanwhile. Without this the event would wait until the next one comes.
    """
    from airflow.models.asset import AssetDagRunQueue  # noqa: PLC0415
    from airflow.models.asset import AssetEvent as Event  # noqa: PLC0415
    from airflow.models.dag import DagModel  # noqa: PLC0415
    from airflow.models.dagrun import DagRun as Run  # noqa: PLC0415
    from sqlalchemy import func, select  # noqa: PLC0415

    dag_id = dag_run.dag_id
    if session.scalar(select(DagModel.is_paused).where(DagModel.dag_id == dag_id)) is not False:
        return  # Airflow asks for no run of a DAG that is paused or gone
    asked = select(func.max(Run.run_after)).where(Run.dag_id == dag_id, Run.run_type == dag_run.run_type)
    until = session.scalar(asked)
    for asset_id in {event.asset_id for event in dag_run.consumed_asset_events}:
        newest = session.scalar(select(func.max(Event.timestamp)).where(Event.asset_id == asset_id))
        if (
            until is not None
            and newest is not None
            and newest > until
            and session.get(AssetDagRunQueue, (asset_id, dag_id)) is None
        ):
            session.add(
                AssetDagRunQueue(asset_id=asset_id, target_dag_id=dag_id, created_at=datetime.now(UTC))
            )


def _outcome(runs: Any) -> dict[str, Any] | None:
    """Return what the runs of one event say together; `None` while one may still fail."""
    states = {f"{run.dag_id} {run.run_id}": str(run.state) for run in runs}
    if failed := [name for name, state in states.items() if state == "failed"]:
        return {"acknowledged": False, "why": f"failed: {', '.join(failed)}"}
    return {"acknowledged": True} if all(state == "success" for state in states.values()) else None


class JmsPlugin(AirflowPlugin):
    """Registers the listeners with Airflow."""

    name = "jms"
    listeners = [EventStored(), RunStarted(), RunEnded(), TriggererStarting()]  # noqa: RUF012 - Airflow's form
