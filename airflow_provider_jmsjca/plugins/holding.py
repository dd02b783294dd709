"""Tells messages that wait for their DAG run how the run has ended; for the scheduler."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin

from airflow_provider_jmsjca.triggers.payload import hold_token, outcome_key

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun

_log = logging.getLogger(__name__)


class RunEnded:
    """Listens to the ends of DAG runs.

    A run that has consumed an event of a message that is held acknowledges it by succeeding, and rolls it
    back by failing. Where one event has started several runs, all have to succeed. The first word counts:
    what `JmsAcknowledgeOperator` said before stays.

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


def _ended(dag_run: DagRun) -> None:
    # The scheduler's side of Airflow isn't there where only the SDK is.
    from airflow.state import AssetScope, get_state_backend  # noqa: PLC0415
    from sqlalchemy.orm import object_session  # noqa: PLC0415

    session = object_session(dag_run)
    if session is None or not str(dag_run.run_type).startswith("asset"):
        return
    store = get_state_backend()
    for event in dag_run.consumed_asset_events:
        token = hold_token(event.extra)
        outcome = None if token is None else _outcome(event.created_dagruns)
        if token is None or outcome is None:
            continue
        scope, key = AssetScope(asset_id=event.asset_id), outcome_key(token)
        if store.get(scope, key, session=session) is None:
            store.set(scope, key, json.dumps(outcome), session=session)
            _log.info("Event %s of run %s: %s", event.id, dag_run.run_id, outcome)


def _outcome(runs: Any) -> dict[str, Any] | None:
    """Return what the runs of one event say together; `None` while one may still fail."""
    states = {f"{run.dag_id} {run.run_id}": str(run.state) for run in runs}
    if failed := [name for name, state in states.items() if state == "failed"]:
        return {"acknowledged": False, "why": f"failed: {', '.join(failed)}"}
    return {"acknowledged": True} if all(state == "success" for state in states.values()) else None


class JmsPlugin(AirflowPlugin):
    """Registers the listener with Airflow."""

    name = "jms"
    listeners = [RunEnded()]  # noqa: RUF012 - as Airflow declares it
