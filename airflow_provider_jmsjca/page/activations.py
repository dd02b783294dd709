"""Activations: a list that updates itself, and one activation with its actions."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Final

from starlette.responses import Response

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.hooks.metadata import scheduling_assets
from airflow_provider_jmsjca.hooks.store import release_shared_store, shared_store, store_in_use
from airflow_provider_jmsjca.operating.activations import (
    ActivationStatus,
    activation_status,
    list_activations,
    request_activation_state,
    resume_activations,
)
from airflow_provider_jmsjca.operating.samples import ActivationSample, samples
from airflow_provider_jmsjca.page.access import Permission
from airflow_provider_jmsjca.page.audit import record
from airflow_provider_jmsjca.page.plots import plot
from airflow_provider_jmsjca.page.visit import Visit
from airflow_provider_jmsjca.store.base import Store, WantedState

_RESUME: Final = "resume"
_ACTIONS: Final = {
    "suspend": WantedState.SUSPENDED,
    "drain": WantedState.DRAINED,
    "stop": WantedState.STOPPED,
}
_MOST: Final = 500
_SPAN: Final = timedelta(hours=6)
_PLOTS: Final[dict[str, Callable[[ActivationSample], float | None]]] = {
    "Backlog": lambda each: each.backlog,
    "Messages a minute": lambda each: each.delivered,
    "Failures a minute": lambda each: each.failed,
}


@contextlib.contextmanager
def open_store() -> Iterator[Store]:
    """Open the store of this installation, and close it at the end of the block.

    Raises:
        ConfigurationError: The store doesn't exist yet, or can't be used.
        TransientStoreError: The store can't be used now.
    """
    if not store_in_use():
        raise ConfigurationError(
            "there is no store yet; the first task or trigger creates it, or set [jmsjca] store_url"
        )
    store = shared_store()
    try:
        yield store
    finally:
        release_shared_store(store)


def list_view(visit: Visit) -> Response:
    """Show activations with their runs in all processes."""
    ended, match = "ended" in visit.query, visit.query.get("match", "")
    dag_id, task_id = visit.query.get("dag_id", ""), visit.query.get("task_id", "")
    assets = scheduling_assets(dag_id) if dag_id and not task_id else []
    with open_store() as store:
        found = [
            each
            for each in list_activations(store, ended=ended)
            if _matches(each, match) and (not dag_id or _belongs(each, dag_id, task_id, assets))
        ]
    return visit.page(
        "activations.html",
        title=f"Activations of {'.'.join(filter(None, [dag_id, task_id]))}" if dag_id else "Activations",
        dag_id=dag_id,
        task_id=task_id,
        found=found[:_MOST],
        more=len(found) - _MOST,
        match=match,
        ended=ended,
    )


def detail_view(visit: Visit) -> Response:
    """Show one activation, with its actions."""
    with open_store() as store:
        found = activation_status(store, visit.query.get("name", ""))
        now = store.owners.now()
        points = samples(store, found.name, now - _SPAN)
    plots = [
        plot(title, [(each.at, value(each)) for each in points], now - _SPAN, now)
        for title, value in _PLOTS.items()
    ]
    done = visit.query.get("done", "")
    return visit.page(
        "activation.html",
        title=found.title,
        found=found,
        plots=plots if points else [],
        done=done if done in {_RESUME, *_ACTIONS} else "",
    )


def change_view(visit: Visit) -> Response:
    """Suspend, resume, drain or stop an activation."""
    visit.require(Permission.OPERATE)
    action, reason = visit.form.get("action", ""), visit.form.get("reason", "").strip()
    if action not in {_RESUME, *_ACTIONS}:
        raise ConfigurationError(f"action {action!r}: expected one of {_RESUME}, {', '.join(_ACTIONS)}")
    if not reason and action != _RESUME:
        raise ConfigurationError("the reason is empty; expected a reason, which the log and the list show")
    with open_store() as store:
        name = activation_status(store, visit.query.get("name", "")).name
        record(visit.user, f"{action}_activation", activation=name, reason=reason)
        if action == _RESUME:
            resume_activations(store, [name])
        else:
            user = f"user {visit.user.get_name()}"
            request_activation_state(store, [name], _ACTIONS[action], reason=reason, user=user)
    return visit.redirect("activation", name=name, done=action)


def _belongs(status: ActivationStatus, dag_id: str, task_id: str, assets: Sequence[str]) -> bool:
    """Return whether a run of the activation belongs to a task of a DAG, or to an asset that starts the DAG.

    Args:
        status: The activation with its runs.
        dag_id: Id of the DAG.
        task_id: Id of the task; empty: any task of the DAG.
        assets: Names of the assets in the DAG's schedule.
    """
    own = re.compile(rf"{re.escape(dag_id)}\.{re.escape(task_id) or '.+'}(\[\d+\])?(, run .*)?", re.DOTALL)
    names = {f"asset {each!r}" for each in assets}
    owners = [run.report.owner for run in status.runs]
    return any(own.fullmatch(each) or names.intersection(each.split(", ")) for each in owners)


def _matches(status: ActivationStatus, text: str) -> bool:
    texts = [status.name, status.title, *(run.report.owner for run in status.runs)]
    return any(text.casefold() in each.casefold() for each in texts)
