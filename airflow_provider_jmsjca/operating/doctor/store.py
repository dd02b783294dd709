"""Examines a store: its clock, limbo, messages in doubt or failing, and activations."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from airflow_provider_jmsjca.escaping import shell_arguments
from airflow_provider_jmsjca.operating.activations import list_activations
from airflow_provider_jmsjca.operating.checking import CLOCK_SECONDS
from airflow_provider_jmsjca.operating.doctor.counts import MOST_COUNTED, counted
from airflow_provider_jmsjca.operating.findings import Effect, Evidence, Finding, FindingKind
from airflow_provider_jmsjca.store.base import (
    ActivationKind,
    ActivationRun,
    LimboSelection,
    LimboState,
    RunStatus,
    Store,
)

_MOST_NAMED: Final = 3
"""Maximum number of lost activations of one process that a finding names."""
_MANY_ATTEMPTS: Final = 5


def examine_store(store: Store) -> Iterator[Finding]:
    """Yield findings about a store: its clock, limbo, messages in doubt or failing, and activations."""
    here, there = datetime.now(UTC), store.limbo.now()
    apart = (there - here).total_seconds()
    if abs(apart) > CLOCK_SECONDS:
        yield Finding(
            symptom=f"the clock of the store's database differs by {apart:+.0f} s",
            cause="the clock of the database server or of this host is wrong",
            fix="timedatectl status",
        )
    failed = store.limbo.page(LimboSelection(state=LimboState.FAILED), limit=MOST_COUNTED)
    if failed:
        first = failed[0]
        error = ": ".join(filter(None, (first.exception_class, first.exception_message)))
        yield Finding(
            symptom=f"{counted(len(failed), 'message')} in limbo could not be sent, one for "
            f"{first.destination}",
            cause=error or "no reason is known",
            fix="airflow jms limbo revive --state failed",
        )
    overdue = store.limbo.page(LimboSelection(state=LimboState.WAITING), limit=MOST_COUNTED)
    late = [each for each in overdue if there - each.due_at > timedelta(minutes=1)]
    if late:
        yield Finding(
            symptom=f"{counted(len(late), 'message')} in limbo should have been sent, the first at "
            f"{min(each.due_at for each in late).isoformat(timespec='seconds')}",
            cause="no process sends them: a triggerer with a JMS trigger, a listener, or store run",
            fix="airflow jms store run --once",
        )
    yield from _doubtful(store, there)
    yield from _activations(store)


def _doubtful(store: Store, now: datetime) -> Iterator[Finding]:
    open_at = store.attempts.open_at()
    dead = open_at - store.owners.live(open_at, now)
    in_doubt = store.attempts.page(limit=MOST_COUNTED, open_only=True) if dead else []
    in_doubt = [each for each in in_doubt if each.where in dead]
    if in_doubt:
        yield Finding(
            symptom=f"{counted(len(in_doubt), 'message')} in doubt, one of activation "
            f"{in_doubt[0].activation}",
            cause=f"the process {in_doubt[0].where} died while it handled them",
            fix="airflow jms indoubt list",
        )
    failing = store.attempts.page(at_least=_MANY_ATTEMPTS, limit=MOST_COUNTED)
    if failing:
        worst = failing[0]
        history = store.attempts.history(worst.activation, worst.message)
        last = history[-1] if history else None
        error = ""
        if last is not None:
            line = last.exception_message.partition("\n")[0]
            error = ": ".join(filter(None, (last.exception_class, line)))
        # One process may run the activation for several tasks or assets (owners). The store records the
        # process of an attempt, not the owner; so an owner is named only if the process has a single one.
        runs = store.activations.runs([worst.activation])
        owners = {each.report.owner for each in runs if each.process == worst.where}
        where = f"; the last attempt was made by {owners.pop()}" if len(owners) == 1 else ""
        yield Finding(
            symptom=f"{counted(len(failing), 'message')} failed {_MANY_ATTEMPTS} times or more, one of "
            f"activation {worst.activation} {worst.attempts} times",
            cause=(error or "no exception is known: its process died each time") + where,
            fix=f"airflow jms attempts show {shell_arguments(worst.activation, worst.message)}",
        )


def _activations(store: Store) -> Iterator[Finding]:
    for order in store.activations.page(limit=MOST_COUNTED):
        yield Finding(
            symptom=f"activation {order.activation} is {order.wanted} since "
            f"{order.since.isoformat(timespec='seconds')}",
            cause=f"{order.asked_by}: {order.reason}",
            fix=f"airflow jms activations resume {shlex.quote(order.activation)}",
        )
    runs = [run for each in list_activations(store) for run in each.runs]
    if waiting := [run.report for run in runs if run.report.status is RunStatus.WAITING]:
        first = min(waiting, key=lambda report: report.since)
        yield Finding(
            kind=FindingKind.NOTE,
            symptom=f"{counted(len(waiting), 'listener')} deferred, waiting for messages; one on "
            f"{first.destination} since {first.since.isoformat(timespec='seconds')}",
            cause="no messages were on the queues when they were deferred",
            fix="airflow jms activations list",
            evidence=Evidence(
                effect=Effect.DEFERRED, count=len(waiting), since=first.since, needs_triggerer=True
            ),
        )
    lost: dict[str, list[ActivationRun]] = {}
    for run in runs:
        report = run.report
        if report.status is RunStatus.LOST:
            lost.setdefault(run.process, []).append(run)
        elif (
            report.last_error
            and report.status is RunStatus.CONNECTING
            and report.kind is not ActivationKind.TRIGGER
        ):
            yield Finding(
                symptom=f"activation {report.title or report.activation} is not connected since "
                f"{report.since.isoformat(timespec='seconds')}",
                cause=report.last_error,
                fix=f"airflow jms activations show {shlex.quote(report.activation)}",
                evidence=Evidence(
                    effect=Effect.DISCONNECTED,
                    since=report.since,
                    error=report.last_error,
                    error_since=report.last_error_at,
                    broker=report.broker,
                ),
            )
    yield from (_lost(each) for each in lost.values())


def _lost(runs: Sequence[ActivationRun]) -> Finding:
    """Return one finding for the lost runs of one dead process; a triggerer may have had many runs."""
    ordered = sorted(runs, key=lambda run: run.seen_at, reverse=True)
    last, report = ordered[0], ordered[0].report
    names = [each.report.title or each.report.activation for each in ordered[:_MOST_NAMED]]
    if more := len(ordered) - len(names):
        names.append(counted(more, "other"))
    *front, end = names
    who = f"activations {', '.join(front)} and {end} are" if front else f"activation {end} is"
    return Finding(
        symptom=f"{who} lost",
        cause=f"process {last.pid} on {last.host} sent its last heartbeat at "
        f"{last.seen_at.isoformat(timespec='seconds')}",
        fix=(
            "a triggerer starts event triggers again"
            if report.kind is ActivationKind.TRIGGER
            else f"clear or start again: {report.owner}"
        )
        + ("; the others: airflow jms activations list" if len(ordered) > 1 else ""),
        evidence=Evidence(
            effect=Effect.LOST,
            count=len(runs),
            since=last.seen_at,
            needs_triggerer=all(each.report.kind is ActivationKind.TRIGGER for each in runs),
            silent_at=last.seen_at,
        ),
    )
