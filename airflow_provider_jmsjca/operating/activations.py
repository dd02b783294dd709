"""Activations: their runs in all processes, and the states requested for them.

Every function takes an open store (`airflow_provider_jmsjca.open_store`). A request is stored, and every
process applies it within two seconds. The request lasts until the activation is resumed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.store.base import (
    ActivationOrder,
    ActivationRun,
    RunStatus,
    Store,
    WantedState,
    listed_name,
)

_FULL_NAME: Final = re.compile(r" at [a-z][a-z0-9+.-]*://")
_PAGE: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationStatus:
    """An activation with its runs.

    Attributes:
        name: Name of the activation, as stored.
        runs: Runs in all processes, the oldest first.
        order: The requested state; `None` means that the activation may run.
    """

    name: str
    runs: tuple[ActivationRun, ...] = ()
    order: ActivationOrder | None = None

    @property
    def title(self) -> str:
        """The name for display."""
        return self.runs[-1].report.title if self.runs else self.name


def list_activations(store: Store, *, ended: bool = False) -> list[ActivationStatus]:
    """Return the activations with runs or requests, sorted by name.

    Args:
        store: The store in which the activations are registered.
        ended: Also return ended runs, and runs with the status `LOST` even if the same task, asset or
            application has a later run. The store keeps ended runs for a day, and lost runs for seven days.

    Raises:
        TransientStoreError: The store can't be used now.
    """
    runs = store.activations.runs()
    return _grouped(runs if ended else _current(runs), _orders(store))


def activation_status(store: Store, name: str) -> ActivationStatus:
    """Return one activation with all its runs.

    Args:
        store: The store in which the activation is registered.
        name: Name as listed, or the part of it before `at` and the broker.

    Raises:
        ConfigurationError: No activation or several have that name.
        TransientStoreError: The store can't be used now.
    """
    (found,) = _named(store, [name], also_new=False)
    order = store.activations.order(found)
    return ActivationStatus(name=found, runs=tuple(store.activations.runs([found])), order=order)


def request_activation_state(
    store: Store, names: Collection[str], wanted: WantedState, *, reason: str, user: str
) -> list[str]:
    """Request a state for activations, and return their names as stored.

    Runs in all processes change to the state within two seconds; later runs have it from their start.

    Args:
        store: The store in which they are registered.
        names: Names as listed, or the parts of them before `at` and the broker. A full name need not be
            registered yet.
        wanted: `SUSPENDED`: runs continue, but deliver no messages. `DRAINED`: runs finish the messages in
            their handlers, then end. `STOPPED`: runs end.
        reason: Reason for the request, shown in logs and lists.
        user: The requesting user.

    Raises:
        ConfigurationError: No activation or several have one of the names.
        TransientStoreError: The store can't be used now; some requests may be stored.
    """
    found = _named(store, names, also_new=True)
    for name in found:
        store.activations.request_state(name, wanted, reason=reason, asked_by=user)
    return found


def resume_activations(store: Store, names: Collection[str] | None) -> list[str]:
    """Withdraw the requests for activations, and return the activations' names.

    Suspended runs resume within two seconds. An ended run is not restarted, but later runs consume again.

    Args:
        store: The store in which they are registered.
        names: Names as listed, or the parts of them before `at` and the broker. `None` means all activations
            with a request.

    Raises:
        ConfigurationError: No state is requested for an activation, or a name fits several activations.
        TransientStoreError: The store can't be used now.
    """
    ordered = _orders(store)
    if names is None:
        chosen = sorted(ordered)
    else:
        chosen = [resolve_name(each, ordered) or "" for each in names]
        for typed, name in zip(names, chosen, strict=True):
            if name not in ordered:
                raise ConfigurationError(
                    f"activation {typed!r} is not suspended, drained or stopped; see airflow jms activations "
                    "list"
                )
    store.activations.resume(chosen)
    return chosen


def resolve_name(typed: str | None, known: Collection[str]) -> str | None:
    """Return the stored name of an activation for a name that a user typed.

    Args:
        typed: Name as listed, or the part of it before `at` and the broker; `None` returns `None`.
        known: Stored names of the activations that exist.

    Raises:
        ConfigurationError: The name fits several activations.
    """
    if typed is None:
        return None
    whole = listed_name(typed)
    named = sorted(each for each in known if each.startswith(f"{typed} at "))
    if whole in known or not named:
        return whole
    if len(named) > 1:
        raise ConfigurationError(f"activation {typed!r}: expected one of {', '.join(map(repr, named))}")
    return named[0]


def _named(store: Store, names: Iterable[str], *, also_new: bool) -> list[str]:
    known = {each.name for each in list_activations(store, ended=True)}
    found = []
    for typed in names:
        name = resolve_name(typed, known) or ""
        if name not in known and not (also_new and _FULL_NAME.search(typed)):
            raise ConfigurationError(
                f"activation {typed!r} is not registered; see airflow jms activations list --ended, or "
                "give a full name such as 'orders at stomp://broker:61613'"
            )
        found.append(name)
    return found


def _current(runs: list[ActivationRun]) -> Iterator[ActivationRun]:
    """Yield the runs that have not ended.

    A run with the status `LOST` is left out if the same task, asset or application has a later run.
    """
    successors: dict[tuple[str, str], datetime] = {}
    for run in runs:
        if run.report.status is not RunStatus.LOST:
            key = run.report.activation, run.report.owner
            successors[key] = max(run.seen_at, successors.get(key, run.seen_at))
    for run in runs:
        if run.report.status is RunStatus.ENDED:
            continue
        later = successors.get((run.report.activation, run.report.owner))
        if run.report.status is RunStatus.LOST and later is not None and later > run.seen_at:
            continue
        yield run


def _orders(store: Store) -> dict[str, ActivationOrder]:
    found: dict[str, ActivationOrder] = {}
    while some := store.activations.page(limit=_PAGE, after=len(found)):
        found |= {each.activation: each for each in some}
    return found


def _grouped(runs: Iterable[ActivationRun], orders: dict[str, ActivationOrder]) -> list[ActivationStatus]:
    by_name: dict[str, list[ActivationRun]] = {name: [] for name in orders}
    for run in runs:
        by_name.setdefault(run.report.activation, []).append(run)
    return [
        ActivationStatus(name=name, runs=tuple(found), order=orders.get(name))
        for name, found in sorted(by_name.items())
    ]
