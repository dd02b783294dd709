"""Examines a broker: login, alarms, clock, dead letters, and messages of paused DAGs."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.errors import AuthenticationError, CapabilityError, ConfigurationError, JmsError
from airflow_provider_jmsjca.operating.checking import CLOCK_SECONDS, clock_difference
from airflow_provider_jmsjca.operating.doctor.counts import messages
from airflow_provider_jmsjca.operating.doctor.dags import WatchedDestination, examine_paused_dags
from airflow_provider_jmsjca.operating.doctor.dead_letters import examine_letters
from airflow_provider_jmsjca.operating.findings import (
    Effect,
    Evidence,
    FailedLogin,
    Finding,
    FindingKind,
    Part,
    StateOfBroker,
)
from airflow_provider_jmsjca.operating.queues import is_same_broker
from airflow_provider_jmsjca.store.base import ActivationRun, RunStatus
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.administration import QueueAdministration
from airflow_provider_jmsjca.transports.base import ConnectionSettings

_FILLING_PERCENT: Final = 80.0
_MOST_KNOWN: Final = 10
_NOT_CONSUMING: Final = frozenset({RunStatus.CONNECTING, RunStatus.SUSPENDED, RunStatus.LOST})


def examine_broker(
    conn_id: str,
    settings: Callable[[], ConnectionSettings],
    watched: Sequence[WatchedDestination] = (),
    dead_letter_queues: Collection[str] = (),
    *,
    browse: bool = False,
    runs: Sequence[ActivationRun] = (),
) -> Iterator[Finding]:
    """Log in to a broker; yield findings about alarms, its clock, dead letters, and paused DAGs' messages.

    Args:
        conn_id: The Airflow connection.
        settings: Returns the connection settings. The client id is not used, because a running consumer may
            be using it.
        watched: Watched destinations of this connection.
        dead_letter_queues: Dead-letter queues besides those recognised by their names (`orders.dlq`, `DLQ`).
        browse: Browse dead letters even if that has a side effect, see `QueueAdministration.browse_note`.
        runs: Runs in the registry. Their last errors explain dead letters that are not browsed.
    """
    found: ConnectionSettings | None = None
    try:
        found = settings()
        connection = connect(replace(found, client_id=None))
    except JmsError as error:
        yield _login_failure(conn_id, found, error)
        yield from examine_paused_dags(watched, lambda _: None, _of_broker(runs, found))
        return
    here = _of_broker(runs, found)
    with contextlib.closing(connection), contextlib.closing(connection.administration()) as administration:
        letters = examine_letters(conn_id, administration, dead_letter_queues, here, browse=browse)
        parts = {
            "memory and disk of the broker": _alarms(conn_id, administration),
            "clock of the broker": _clock(conn_id, administration),
            "dead letters": letters,
        }
        unreported: dict[str, CapabilityError] = {}
        for subject, findings in parts.items():
            for each in _guarded(conn_id, subject, findings, unreported):
                yield _state_of_broker(each, conn_id, found)
        counting = _counting(administration)
        yield from _guarded(
            conn_id, "waiting messages", examine_paused_dags(watched, counting, here), unreported
        )
        if unreported:
            yield from _unreported_parts(conn_id, found, unreported, here)


def _login_fix(conn_id: str, error: JmsError) -> str:
    if isinstance(error, AuthenticationError):
        return (
            f"set its login and password in Airflow (Admin > Connections > {conn_id}), then: "
            f"airflow jms check {shlex.quote(conn_id)}"
        )
    if isinstance(error, ConfigurationError):
        return f"airflow jms explain --conn-id {shlex.quote(conn_id)}"
    return f"start the broker, then: airflow jms check {shlex.quote(conn_id)}"


def _login_failure(conn_id: str, settings: ConnectionSettings | None, error: JmsError) -> Finding:
    """Return the finding that a connection cannot log in, which names the cause of other findings."""
    broker, text = "" if settings is None else settings.url, str(error)
    user = None if settings is None else settings.username
    refuses_user = isinstance(error, AuthenticationError)
    return Finding(
        part=Part.BROKERS,
        symptom=f"connection {conn_id!r} cannot log in",
        cause=text,
        fix=_login_fix(conn_id, error),
        conn_id=conn_id,
        evidence=None
        if refuses_user or isinstance(error, ConfigurationError)
        else Evidence(effect=Effect.CONNECTIONS, error=text, broker=broker),
        names=FailedLogin(
            conn_id=conn_id,
            broker=broker,
            error=text,
            by_connection=refuses_user and not (user and user in text),
        ),
    )


def _of_broker(runs: Sequence[ActivationRun], settings: ConnectionSettings | None) -> list[ActivationRun]:
    """Return the runs that consume from the broker of a connection; none if its address is not known."""
    if settings is None:
        return []
    return [each for each in runs if is_same_broker(each.report.broker, settings.url)]


def _guarded(
    conn_id: str, subject: str, findings: Iterator[Finding], unreported: dict[str, CapabilityError]
) -> Iterator[Finding]:
    """Yield findings, and turn an error into a finding, so that other parts are still examined.

    Args:
        conn_id: The Airflow connection.
        subject: The examined part.
        findings: Findings about the part.
        unreported: Errors by part. If the broker does not report this part, the error is added here.
    """
    try:
        yield from findings
    except CapabilityError as error:
        unreported[subject] = error
    except JmsError as error:
        yield Finding(
            kind=FindingKind.UNKNOWN,
            part=Part.BROKERS,
            symptom=f"connection {conn_id!r}: {subject} not examined",
            cause=str(error),
            fix=f"airflow jms check {shlex.quote(conn_id)}",
            conn_id=conn_id,
        )


def _state_of_broker(finding: Finding, conn_id: str, settings: ConnectionSettings) -> Finding:
    """Add evidence and cause to a finding about a broker, so that `by_cause` combines equal findings.

    Several connections may lead to the same broker. Their equal findings become consequences of the first.
    """
    symptom = finding.symptom.removeprefix(f"connection {conn_id!r}: ")
    state = repr((settings.hosts, settings.virtual_host, symptom, finding.cause))
    return replace(
        finding,
        evidence=Evidence(effect=Effect.SEEN_AGAIN, error=state),
        names=StateOfBroker(state=state),
    )


def _unreported_parts(
    conn_id: str,
    settings: ConnectionSettings,
    unreported: Mapping[str, CapabilityError],
    runs: Sequence[ActivationRun],
) -> Iterator[Finding]:
    """Yield a note about the parts that the broker does not report, and findings from the registry instead.

    Args:
        conn_id: The Airflow connection.
        settings: Settings of the connection.
        unreported: The error for each part that the broker does not report.
        runs: Runs at this broker.
    """
    errors = list(dict.fromkeys(map(str, unreported.values())))
    fix = f"airflow jms check {shlex.quote(conn_id)}"
    can_browse = "dead letters" not in unreported
    if settings.management_url is None and "management_url" in errors[0]:
        errors = errors[:1]
        host = next((host for host, _ in settings.hosts), "broker")
        fix = (
            "at the broker: rabbitmq-plugins enable rabbitmq_management, and give user "
            f"{settings.username or 'guest'} the tag monitoring; in Airflow: Admin > Connections > "
            f'{conn_id}, add to its extra {{"management_url": "http://{host}:15672"}}; then: {fix}'
        )
    latest: dict[str, ActivationRun] = {}
    for run in sorted(runs, key=lambda each: each.seen_at):
        latest[run.report.destination] = run
    known = [_run_summary(run) for _, run in sorted(latest.items())]
    if (more := len(known) - _MOST_KNOWN) > 0:
        known[_MOST_KNOWN:] = [f"{more} more: airflow jms activations list"]
    yield Finding(
        kind=FindingKind.NOTE,
        part=Part.BROKERS,
        symptom=f"connection {conn_id!r}: {', '.join(unreported)} not examined"
        + ("" if can_browse else "; the registry has " + ("; ".join(known) or "no activations there")),
        cause="; ".join(errors),
        fix=fix,
        conn_id=conn_id,
    )
    if can_browse:
        return
    for each in latest.values():
        report = each.report
        name = report.title or report.activation
        if waiting := _waiting(each):
            yield Finding(
                part=Part.BROKERS,
                symptom=f"connection {conn_id!r}: {waiting} on {report.destination} for activation {name}, "
                f"which is {_status(each)}",
                cause=report.last_error or "no error is recorded; the broker's queues can't be inspected",
                fix=f"airflow jms activations show {shlex.quote(report.activation)}",
                conn_id=conn_id,
            )
    letters = [each.report for each in runs if each.report.dead_lettered]
    if letters:
        last = max(letters, key=lambda report: report.last_error_at or report.since)
        moved = sum(each.dead_lettered for each in letters)
        yield Finding(
            kind=FindingKind.UNKNOWN,
            part=Part.BROKERS,
            symptom=f"connection {conn_id!r}: {messages(moved)} moved to dead-letter destinations; how many "
            "still wait there is not known",
            cause=f"activation {last.title or last.activation}, last error: "
            f"{last.last_error or 'none is recorded'}",
            fix=fix,
            conn_id=conn_id,
        )


def _waiting(run: ActivationRun) -> str:
    """Return as text how many messages wait for a run; empty if it consumes, or if none is known to wait.

    For a lost run this includes the messages that its dead process returned to the broker.
    """
    report = run.report
    if report.status not in _NOT_CONSUMING:
        return ""
    backlog = f"{messages(report.backlog)} waiting" if report.backlog else ""
    returned = (
        f"{messages(report.in_flight)} returned by its dead process"
        if report.in_flight and report.status is RunStatus.LOST
        else ""
    )
    return " and ".join(filter(None, (backlog, returned)))


def _status(run: ActivationRun) -> str:
    """Return the state of a run with its start; a lost run's values are from its last heartbeat."""
    if run.report.status is RunStatus.LOST:
        return f"lost since {run.seen_at.isoformat(timespec='seconds')} (values of then)"
    return f"{run.report.status} since {run.report.since.isoformat(timespec='seconds')}"


def _run_summary(run: ActivationRun) -> str:
    report, last = run.report, run.report.last_message_at
    return (
        f"{report.destination}: {report.kind} {_status(run)}, {report.delivered} delivered, "
        f"{report.committed} committed, {report.dead_lettered} dead letters, "
        + ("no message yet" if last is None else f"last message at {last.isoformat(timespec='seconds')}")
    )


def _alarms(conn_id: str, administration: QueueAdministration) -> Iterator[Finding]:
    for each in administration.resources():
        if each.blocking:
            yield Finding(
                part=Part.BROKERS,
                conn_id=conn_id,
                symptom=f"connection {conn_id!r}: the broker blocks producers; sends and dead-letter moves "
                "hang",
                cause=f"the broker reports an alarm: {each}",
                fix=f"at the broker: {each.remedy}; for the figures: {each.shown_by}",
            )
        elif each.used_percent is not None and each.used_percent >= _FILLING_PERCENT:
            yield Finding(
                part=Part.BROKERS,
                conn_id=conn_id,
                symptom=f"connection {conn_id!r}: the broker will soon block producers",
                cause=str(each),
                fix=f"airflow jms queues list --filled --conn-id {shlex.quote(conn_id)}",
            )


def _clock(conn_id: str, administration: QueueAdministration) -> Iterator[Finding]:
    difference = clock_difference(administration)
    if abs(difference) > CLOCK_SECONDS:
        yield Finding(
            part=Part.BROKERS,
            conn_id=conn_id,
            symptom=f"connection {conn_id!r}: the broker's clock differs by {difference:+.0f} s",
            cause="the clock of the broker's host or of this host is wrong; times to live, delays and ages "
            "of messages are off by as much",
            fix="on both hosts: timedatectl status",
        )


def _counting(administration: QueueAdministration) -> Callable[[Destination], int | None]:
    def count(destination: Destination) -> int | None:
        if destination.kind is not DestinationKind.QUEUE:
            return None
        try:
            found = administration.statistics(destination.name)
        except (CapabilityError, ConfigurationError):
            return None
        return 0 if found is None else found.messages

    return count
