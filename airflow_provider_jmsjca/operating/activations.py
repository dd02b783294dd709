"""Activations: which run where, and the states requested for them.

Every function takes an open store (`airflow_provider_jmsjca.open_store`). A request is stored, and every
process obeys it within two seconds. It lasts until somebody resumes the activation.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
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
        order: The state requested for it; `None`: it may run.
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
        store: Where they are registered.
        ended: Return runs that have ended too, and lost ones that another run of the same owner has replaced.
            The store keeps the former for a day, the latter for seven.

    Raises:
        TransientStoreError: The store can't be used now.
    """
    runs = store.activations.runs()
    return _grouped(runs if ended else _current(runs), _orders(store))


def activation_status(store: Store, name: str) -> ActivationStatus:
    """Return one activation with all its runs.

    Args:
        store: Where it is registered.
        name: Name as listed, or the part before `at` and the broker.

    Raises:
        ConfigurationError: There is none of that name, or there are several.
        TransientStoreError: The store can't be used now.
    """
    (found,) = _named(store, [name], also_new=False)
    order = store.activations.order(found)
    return ActivationStatus(name=found, runs=tuple(store.activations.runs([found])), order=order)


def request_activation_state(
    store: Store, names: Collection[str], wanted: WantedState, *, reason: str, user: str
) -> list[str]:
    """Request a state for activations, and return their names as stored.

    Runs in all processes obey within two seconds; later runs obey from their start.

    Args:
        store: Where they are registered.
        names: Names as listed, or the parts before `at` and the broker. A full name need not be registered
            yet.
        wanted: `SUSPENDED`: runs stay and deliver nothing. `DRAINED`: they finish the messages in their
            handlers and end. `STOPPED`: they end.
        reason: For the log and for lists.
        user: The requesting user.

    Raises:
        ConfigurationError: There is no activation of a name, or there are several.
        TransientStoreError: The store can't be used now; some requests may be stored.
    """
    found = _named(store, names, also_new=True)
    for name in found:
        store.activations.want(name, wanted, reason=reason, asked_by=user)
    return found


def resume_activations(store: Store, names: Collection[str] | None) -> list[str]:
    """Withdraw the requests for activations, and return their names.

    Suspended runs go on within two seconds. A run that has ended is not started again: the next one consumes.

    Args:
        store: Where they are registered.
        names: Names as listed, or the parts before `at` and the broker; `None`: all with a request.

    Raises:
        ConfigurationError: No state is requested for an activation, or a name fits several.
        TransientStoreError: The store can't be used now.
    """
    ordered = _orders(store)
    if names is None:
        chosen = sorted(ordered)
    else:
        chosen = [as_listed(each, ordered) or "" for each in names]
        for typed, name in zip(names, chosen, strict=True):
            if name not in ordered:
                raise ConfigurationError(
                    f"activation {typed!r} is not suspended, drained or stopped; see airflow jms activations "
                    "list"
                )
    store.activations.resume(chosen)
    return chosen


def as_listed(typed: str | None, known: Collection[str]) -> str | None:
    """Return the stored name of an activation, given as listed, or by the part before `at` and the broker.

    Args:
        typed: The name as typed; `None` returns `None`.
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
        name = as_listed(typed, known) or ""
        if name not in known and not (also_new and _FULL_NAME.search(typed)):
            raise ConfigurationError(
                f"activation {typed!r} is not registered; see airflow jms activations list --ended, or "
                "give a full name such as 'orders at stomp://broker:61613'"
            )
        found.append(name)
    return found


def _current(runs: list[ActivationRun]) -> Iterator[ActivationRun]:
    """Yield runs that have not ended, without lost ones that have a living successor."""
    living = {
        (run.report.activation, run.report.owner)
        for run in runs
        if run.report.status not in {RunStatus.ENDED, RunStatus.LOST}
    }
    for run in runs:
        replaced = (run.report.activation, run.report.owner) in living
        if run.report.status is not RunStatus.ENDED and not (
            run.report.status is RunStatus.LOST and replaced
        ):
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
