"""Examines what starts DAG runs: the triggerer, DAG files, watchers, and paused DAGs."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.operating.doctor.counts import counted, messages
from airflow_provider_jmsjca.operating.findings import (
    Effect,
    Evidence,
    Finding,
    FindingKind,
    Part,
    SilentTriggerer,
)
from airflow_provider_jmsjca.store.base import ActivationRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Triggerer:
    """The most recent triggerer process.

    Attributes:
        host: Host name.
        alive: Whether Airflow regards it as running, because its heartbeat is recent.
        heartbeat: Time of the last heartbeat.
    """

    host: str
    alive: bool
    heartbeat: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedDestination:
    """An asset that is updated by messages of a destination, and the DAGs that it starts.

    Attributes:
        asset: Name of the asset.
        jms_conn_id: The Airflow connection.
        destination: The destination; `None` if it is known only when the trigger runs.
        dags: The DAGs scheduled by the asset, each with a flag that is true if the DAG is paused.
        stored_events: Number of events, by DAG, that Airflow stored without requesting a run of the DAG.
        fault: The error with which the watcher fails; empty if the watcher works.
        failing_since: Time at which the watcher began to fail, as text; empty if unknown or not failing.
        fault_since: Time at which it began to fail with this error, as text; empty if unknown or not failing.
    """

    asset: str
    jms_conn_id: str
    destination: Destination | None
    dags: tuple[tuple[str, bool], ...]
    stored_events: Mapping[str, int] = field(default_factory=dict)
    fault: str = ""
    failing_since: str = ""
    fault_since: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenDagFile:
    """A DAG file that Airflow cannot import.

    Attributes:
        name: Path within the DAG bundle.
        traceback: The traceback, as Airflow recorded it.
    """

    name: str
    traceback: str


def examine_dag_files(broken: Sequence[BrokenDagFile]) -> Iterator[Finding]:
    """Yield a finding for each broken DAG file: a problem if the traceback mentions JMS, otherwise a note."""
    for each in broken:
        lines = each.traceback.split("\n")
        error = next((line.strip() for line in reversed(lines) if line.strip()), "no reason is recorded")
        yield Finding(
            kind=FindingKind.PROBLEM if "jms" in each.traceback.lower() else FindingKind.NOTE,
            symptom=f"the DAGs of file {each.name!r} are missing or old",
            cause=f"the file cannot be imported: {error}",
            fix="airflow dags list-import-errors",
        )


def examine_triggerer(
    triggerer: Triggerer | None, *, is_needed: bool, deferred: int = 0
) -> Iterator[Finding]:
    """Yield a finding if no triggerer is alive.

    Args:
        triggerer: The most recent triggerer; `None` if none has ever run.
        is_needed: Whether assets are watched or tasks are deferred. If not, the finding is a note.
        deferred: Number of deferred tasks.
    """
    if triggerer is not None and triggerer.alive:
        return
    if triggerer is None or triggerer.heartbeat is None:
        cause = "no triggerer has ever run"
    else:
        beat = triggerer.heartbeat.isoformat(timespec="seconds")
        cause = (
            f"the triggerer on {triggerer.host} sent its last heartbeat at {beat}; its log says why it ended"
        )
    yield Finding(
        kind=FindingKind.PROBLEM if is_needed else FindingKind.NOTE,
        symptom="no triggerer is alive: messages start no runs, deferred tasks do not continue",
        cause=cause + (f"; tasks deferred now: {deferred}" if deferred else ""),
        fix="airflow triggerer",
        names=SilentTriggerer(heartbeat=None if triggerer is None else triggerer.heartbeat),
    )


def examine_watchers(watched: Sequence[WatchedDestination]) -> Iterator[Finding]:
    """Yield a finding for each watcher that fails, unless all of its DAGs are paused."""
    for each in watched:
        if each.fault and not _all_paused(each):
            since = f" since {each.failing_since}" if each.failing_since else ""
            yield Finding(
                part=Part.DAGS,
                symptom=f"asset {each.asset!r} gets no events{since}",
                cause=each.fault,
                fix=f"airflow jms check {shlex.quote(each.jms_conn_id)}",
                conn_id=each.jms_conn_id,
                evidence=Evidence(
                    effect=Effect.NO_EVENTS,
                    since=_moment(each.failing_since),
                    error=each.fault,
                    error_since=_moment(each.fault_since),
                    conn_id=each.jms_conn_id,
                ),
            )


def examine_paused_dags(
    watched: Sequence[WatchedDestination],
    count: Callable[[Destination], int | None],
    runs: Sequence[ActivationRun],
) -> Iterator[Finding]:
    """Yield findings about paused DAGs, which start no runs, and events stored while a DAG was paused.

    Args:
        watched: The watched destinations of a connection.
        count: Returns the number of messages on a destination; `None` if it is not known.
        runs: Runs at the broker. For a destination without a count, they have the time of its last message.
    """
    for each in watched:
        if not any(map(_is_paused, each.dags)):
            waiting, some = None, ""
        else:
            waiting = None if each.destination is None else count(each.destination)
            some = _last_known(each.destination, runs)
        if waiting is not None:
            some = f"; {messages(waiting)} waiting on {each.destination}"
        for dag, is_paused in each.dags:
            stored = each.stored_events.get(dag, 0)
            events = f"; {counted(stored, 'event')} without a run" if stored else ""
            if is_paused:
                yield Finding(
                    kind=FindingKind.NOTE if waiting == 0 and not stored else FindingKind.PROBLEM,
                    part=Part.DAGS,
                    symptom=f"asset {each.asset!r} starts no runs of DAG {dag!r}{some}{events}",
                    cause="the DAG is paused",
                    fix=f"airflow dags unpause {shlex.quote(dag)}",
                    conn_id=each.jms_conn_id,
                )
            elif stored:
                yield Finding(
                    part=Part.DAGS,
                    symptom=f"asset {each.asset!r}, DAG {dag!r}{events}",
                    cause="they were stored while the DAG was paused; the next event starts a run with all",
                    fix=f"send a message, or in Airflow: Assets > {each.asset} > Create Asset Event",
                    conn_id=each.jms_conn_id,
                )


def _moment(text: str) -> datetime | None:
    """Return a recorded time; `None` for other text."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def _is_paused(dag: tuple[str, bool]) -> bool:
    return dag[1]


def _all_paused(each: WatchedDestination) -> bool:
    return bool(each.dags) and all(map(_is_paused, each.dags))


def _last_known(destination: Destination | None, runs: Sequence[ActivationRun]) -> str:
    """Return when the last message of a destination was delivered, as text; empty if that is not known."""
    times = [
        each.report.last_message_at
        for each in runs
        if each.report.last_message_at is not None and str(destination) in each.report.destination.split(", ")
    ]
    if not times:
        return ""
    return f"; last message of {destination} at {max(times).isoformat(timespec='seconds')}"
