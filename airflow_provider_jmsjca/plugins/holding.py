"""The Airflow plugin, with listeners for stored events, DAG runs, and the start of a triggerer."""

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
from airflow_provider_jmsjca.plugins.page import applications, views
from airflow_provider_jmsjca.plugins.run_requests import (
    lagging_dags,
    lock_asset,
    request_next,
    update_requests,
)
from airflow_provider_jmsjca.plugins.state_messages import StateMessages
from airflow_provider_jmsjca.triggers.payload import (
    FAILURE_KEY,
    HELD_KEY,
    OUTCOME_LIST_KEY,
    STARTED_KEY,
    failure,
    failure_of,
    hold_records,
    hold_token,
    is_jms_event,
    is_still_held,
    outcome_key,
    receipt_of,
    tokens_of,
    with_held_keys,
    with_listed_outcome,
    with_number,
)

if TYPE_CHECKING:
    from airflow.listeners.types import AssetEvent
    from airflow.models.dagrun import DagRun
    from sqlalchemy.orm import Session

_log = safe_logger(__name__)

# Module that only the command `airflow triggerer` imports; shows that this process runs the triggerer.
_TRIGGERER = "airflow.cli.commands.triggerer_command"
_TRIGGERS = "airflow_provider_jmsjca.triggers.activation"
# Module that only the process of a task imports; shows that this process runs a task.
_TASK_RUNNER = "airflow.sdk.execution_time.task_runner"
# Databases in which the events of an asset are stored one after the other.
_ONE_AT_A_TIME = ("postgresql", "sqlite")


class EventStored:
    """Requests a DAG run for each stored event, and records the event and its held messages.

    A run gets the events between the time of the previous run and its own time. An event that is stored later
    but has an earlier time would get no run. So on PostgreSQL a lock serialises the transactions that store
    events of one asset. An event gets its time after its transaction has acquired the lock. SQLite serialises
    transactions anyway.

    Guarantee: this happens in the transaction that stores the event, so a crash leaves all of it or nothing.
    If a message is redelivered after its event was stored, it belongs to the event's run. If the event was
    not stored, the message makes a new event.
    """

    @hookimpl
    def on_asset_event_emitted(self, asset_event: AssetEvent) -> None:
        """Request a run for the event, and record the event and its held messages."""
        _stored(asset_event)


class RunStarted:
    """Adds events to a run that starts, and requests the DAG's next run.

    Airflow also starts runs for assets that a schedule names only by `Asset.ref`, but doesn't give these runs
    the events of such assets. This class adds them.

    Guarantee: this happens in the transaction that starts the run, before its first task. A run that is
    cleared and starts again has the same events.
    """

    @hookimpl
    def on_dag_run_running(self, dag_run: DagRun, msg: str) -> None:
        """Add the events and request the next run."""
        del msg
        # The scheduler's side of Airflow isn't there where only the SDK is.
        from sqlalchemy.orm import object_session  # noqa: PLC0415

        session = object_session(dag_run)
        if session is not None:
            add_events(session, dag_run)
            _started(session, dag_run)


class RunEnded:
    """Stores the outcome of held messages when their DAG runs end.

    A run that succeeds acknowledges the messages of its events; a run that fails rolls them back. If several
    DAGs have runs for one event, all have to succeed. The outcome also waits for a DAG that has no run yet,
    until `hold_timeout`. An outcome that is already stored, for instance by `JmsAcknowledgeOperator`, is
    kept. Nothing is stored if no message waits any more.

    Guarantee: the outcome is stored in the transaction that ends the run. A task that will be retried has not
    failed its run. A run that is cleared after its end changes nothing: its message was settled, or
    redelivered with another event.
    """

    @hookimpl
    def on_dag_run_success(self, dag_run: DagRun, msg: str) -> None:
        """Acknowledge the messages of the run's events, unless another run of the event is to decide."""
        del msg
        _ended(dag_run)

    @hookimpl
    def on_dag_run_failed(self, dag_run: DagRun, msg: str) -> None:
        """Roll back the messages of the run's events."""
        del msg
        _ended(dag_run)


class TaskFailed:
    """Records the exception of a failed task, so that the outcome of its run can name it.

    Only tasks of runs with held messages are concerned: the reason gets into the dead letter.

    Guarantee: the exception is recorded before Airflow stores that the task has failed. A process that is
    killed records none.
    """

    @hookimpl
    def on_task_instance_failed(self, previous_state: object, task_instance: object, error: object) -> None:
        """Record the exception, unless the task will be retried."""
        del previous_state
        runner = sys.modules.get(_TASK_RUNNER)
        # Airflow's servers call this too, for a task without a process.
        if runner is None or not isinstance(task_instance, runner.RuntimeTaskInstance):
            return
        if isinstance(error, BaseException) and task_instance.state == "failed":
            try:
                _record_failure(task_instance, error)
            except Exception:  # noqa: BLE001 - whatever Airflow raises: the task has failed in any case
                _log.warning(
                    "The exception could not be recorded, so dead letters of this run won't name it",
                    exc_info=True,
                )


class TriggererStarting:
    """Loads the modules of triggers before a triggerer starts its event loop.

    Airflow loads a trigger's module in that loop, and this package's modules would block it for a quarter of
    a second. The process with the loop is forked from this process, so it has the modules.
    """

    @hookimpl
    def on_starting(self, component: object) -> None:
        """Load the triggers if this is the process of `airflow triggerer`."""
        del component  # doesn't tell yet which kind of process this is
        if _TRIGGERER in sys.modules:
            importlib.import_module(_TRIGGERS)
            # The modules are never unloaded, so garbage collections can skip their many objects.
            gc.freeze()


def _stored(event: AssetEvent) -> None:
    if event.source_task_id is not None or not is_jms_event(event.extra):
        return
    # The triggerer's side of Airflow isn't there where only the SDK is.
    from airflow import settings  # noqa: PLC0415
    from airflow.models.asset import AssetModel  # noqa: PLC0415
    from airflow.state import AssetScope, get_state_backend  # noqa: PLC0415
    from sqlalchemy import select  # noqa: PLC0415

    # The session of this thread, in which the triggerer is storing the event.
    session = settings.get_session()()
    if not session.in_transaction():
        return  # another process has stored the event; no trigger waits for the runs of such an event
    asset_id = session.scalar(
        select(AssetModel.id).where(AssetModel.name == event.asset.name, AssetModel.uri == event.asset.uri)
    )
    lock_asset(session, asset_id)
    _date(session, event)
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
    # On other databases two triggerers could overwrite each other's entries of the list.
    if records and session.get_bind().dialect.name in _ONE_AT_A_TIME:
        held = with_held_keys(kept(HELD_KEY), list(records), lambda key: kept(key) is not None)
        store.set(scope, HELD_KEY, json.dumps(held), session=session)
    update_requests(session, asset_id, held=hold_token(event.extra) is not None)


def _date(session: Session, stored: AssetEvent) -> None:
    """Set the time of the event that is being stored to the current time."""
    from airflow.models.asset import AssetEvent as Event  # noqa: PLC0415

    for each in session:
        if isinstance(each, Event) and each.extra is stored.extra:
            each.timestamp = datetime.now(UTC)


def _started(session: Session, dag_run: DagRun) -> None:
    """Record that held messages have their run, and request the next run of the DAG."""
    # The scheduler's side of Airflow isn't there where only the SDK is.
    from airflow.state import AssetScope, get_state_backend  # noqa: PLC0415

    store, now = get_state_backend(), time.time()
    for event in dag_run.consumed_asset_events:
        if event.source_task_id is not None or (token := hold_token(event.extra)) is None:
            continue
        scope = AssetScope(asset_id=event.asset_id)
        for key in hold_records(event.extra, now):
            found = store.get(scope, key, session=session)
            record = None if found is None else json.loads(found)
            if isinstance(record, dict) and record.get("token") == token:
                store.set(scope, key, json.dumps({**record, "since": now, "started": True}), session=session)
        store.set(scope, STARTED_KEY, json.dumps(now), session=session)
    request_next(session, dag_run)


def _ended(dag_run: DagRun) -> None:
    # The scheduler's side of Airflow isn't there where only the SDK is.
    from airflow.state import AssetScope, get_state_backend  # noqa: PLC0415
    from sqlalchemy.orm import object_session  # noqa: PLC0415

    session = object_session(dag_run)
    if session is None or not str(dag_run.run_type).startswith("asset"):
        return
    request_next(session, dag_run)
    store = get_state_backend()
    for event in dag_run.consumed_asset_events:
        # Only events from triggers have held messages. A task that passes an event on creates a new event,
        # without held messages.
        token = hold_token(event.extra) if event.source_task_id is None else None
        if token is None:
            continue
        add_events_to_queued_runs(session, event.asset_id)
        outcome = _outcome(session, event.created_dagruns)
        if outcome is None:
            continue
        if outcome["acknowledged"] and (lagging := lagging_dags(session, event)):
            outcome = {**outcome, "awaits": lagging}
        scope, key = AssetScope(asset_id=event.asset_id), outcome_key(token)

        def kept(each: str, scope: AssetScope = scope) -> object:
            found = store.get(scope, each, session=session)
            return None if found is None else json.loads(found)

        stored_outcome = kept(key)
        single = stored_outcome if isinstance(stored_outcome, dict) else {}
        if ("acknowledged" not in single or "awaits" in single) and is_still_held(event.extra, kept):
            # Keeps outcomes of single messages, which a task may have stored.
            stored_outcome = {
                **{name: value for name, value in single.items() if name != "awaits"},
                **outcome,
            }
            store.set(scope, key, json.dumps(stored_outcome), session=session)
            store.set(
                scope,
                OUTCOME_LIST_KEY,
                json.dumps(with_listed_outcome(kept(OUTCOME_LIST_KEY), token, stored_outcome)),
                session=session,
            )
            _log.info("Event %s of run %s: %s", event.id, dag_run.run_id, outcome)


def _record_failure(task_instance: Any, error: BaseException) -> None:
    # Imported here, because only a failed task needs these modules.
    from airflow.sdk.log import redact  # type: ignore[attr-defined]  # noqa: PLC0415 - masks Airflow's logs

    from airflow_provider_jmsjca.core.masking import masked_text  # noqa: PLC0415

    context = task_instance.get_template_context()
    if any(hold_token(event.extra) is not None for event in context["dag_run"].consumed_asset_events):
        record = failure(error, task_instance.try_number, lambda text: masked_text(str(redact(text))))
        context["task_state_store"].set(FAILURE_KEY, record)


def _outcome(session: Session, runs: Any) -> dict[str, Any] | None:
    """Return the outcome for the messages of an event from the runs of the event.

    The messages are rolled back if a run has failed, and acknowledged if all runs have succeeded. `None`: the
    outcome isn't known before another run ends.
    """
    states = [str(run.state) for run in runs]
    if "failed" in states:
        why = "; ".join(_failure(session, run) for run in runs if str(run.state) == "failed")
        return {"acknowledged": False, "why": why}
    return {"acknowledged": True} if all(state == "success" for state in states) else None


def _failure(session: Session, run: DagRun) -> str:
    """Return which task of a run has failed and why, as far as Airflow has that."""
    # The scheduler's side of Airflow isn't there where only the SDK is.
    from airflow.models.taskinstance import TaskInstance  # noqa: PLC0415
    from airflow.state import TaskScope, get_state_backend  # noqa: PLC0415
    from sqlalchemy import select  # noqa: PLC0415

    where = f"DAG {run.dag_id} failed in run {run.run_id}"
    failed = session.scalars(
        select(TaskInstance)
        .where(
            TaskInstance.dag_id == run.dag_id,
            TaskInstance.run_id == run.run_id,
            TaskInstance.state == "failed",
        )
        .order_by(TaskInstance.end_date)
    ).all()
    if not failed:  # the run exceeded its time limit, or a user marked it as failed
        return where
    first, more = failed[0], len(failed) - 1
    scope = TaskScope(first.dag_id, first.run_id, first.task_id, first.map_index)
    try:
        error = failure_of(get_state_backend().get(scope, FAILURE_KEY, session=session), first.try_number)
    except Exception:  # noqa: BLE001 - a backend of the installation: the messages go back in any case
        _log.warning(
            "The exception of a failed task of run %s can't be read, so dead letters won't name it",
            run.run_id,
            exc_info=True,
        )
        error = ""
    name = first.task_id if first.map_index < 0 else f"{first.task_id}[{first.map_index}]"
    others = f" and {more} more" if more else ""
    return f"task {name}{others} of {where}" + (f": {error}" if error else "")


class JmsPlugin(AirflowPlugin):
    """Registers the listeners and the page with Airflow."""

    name = "jms"
    fastapi_apps = applications()
    external_views = views()
    listeners = [EventStored(), RunStarted(), RunEnded(), TaskFailed(), TriggererStarting(), StateMessages()]  # noqa: RUF012 - Airflow's form
