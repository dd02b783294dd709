"""Examines an installation for problems that keep messages from being processed.

Each function examines one part and returns findings. An examination changes nothing: it logs in, reads
statistics, and browses queues if browsing has no side effect on this broker.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.errors import (
    AuthenticationError,
    CapabilityError,
    ConfigurationError,
    JmsError,
    SpoolError,
)
from airflow_provider_jmsjca.escaping import shell_arguments
from airflow_provider_jmsjca.operating.activations import list_activations
from airflow_provider_jmsjca.operating.checking import CLOCK_SECONDS, clock_difference
from airflow_provider_jmsjca.operating.dead_letters import DeadLetterGroup, grouped, is_dead_letter_queue
from airflow_provider_jmsjca.operating.findings import (
    Effect,
    Evidence,
    FailedLogin,
    Finding,
    FindingKind,
    FullDisk,
    Part,
    SilentTriggerer,
    StateOfBroker,
)
from airflow_provider_jmsjca.operating.queues import is_same_broker
from airflow_provider_jmsjca.spool.files import SpoolPath
from airflow_provider_jmsjca.spool.upkeep.states import CARE_AFTER, NEEDS_CARE, State, batches, prune
from airflow_provider_jmsjca.store.base import (
    ActivationKind,
    ActivationRun,
    LimboSelection,
    LimboState,
    RunReport,
    RunStatus,
    Store,
)
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.administration import QueueAdministration, QueueOperation
from airflow_provider_jmsjca.transports.base import ConnectionSettings

_MOST_SHOWN: Final = 100
_MOST_NAMED: Final = 3
"""Maximum number of lost activations of one process that a finding names."""
_MOST_LETTERS: Final = 200
_MANY_ATTEMPTS: Final = 5
_FILLING_PERCENT: Final = 80.0
_GIB: Final = 1 << 30
_MIB: Final = 1 << 20
# Below this, writes fail although the failed ones leave some space.
_FULL: Final = 64 * _MIB
_MOST_KNOWN: Final = 10
_NOT_CONSUMING: Final = frozenset({RunStatus.CONNECTING, RunStatus.SUSPENDED, RunStatus.LOST})
_PRUNED_AFTER: Final = timedelta(days=7)
"""Age from which `airflow jms spool prune` removes batches by default."""


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
    """

    asset: str
    jms_conn_id: str
    destination: Destination | None
    dags: tuple[tuple[str, bool], ...]
    stored_events: Mapping[str, int] = field(default_factory=dict)
    fault: str = ""
    failing_since: str = ""


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
                    conn_id=each.jms_conn_id,
                ),
            )


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
        yield _no_login(conn_id, found, error)
        yield from _paused(watched, lambda _: None, _of_broker(runs, found))
        return
    here = _of_broker(runs, found)
    with contextlib.closing(connection), contextlib.closing(connection.administration()) as administration:
        letters = _letters(conn_id, administration, dead_letter_queues, here, browse=browse)
        parts = {
            "memory and disk of the broker": _alarms(conn_id, administration),
            "clock of the broker": _clock(conn_id, administration),
            "dead letters": letters,
        }
        lacking: dict[str, CapabilityError] = {}
        for subject, findings in parts.items():
            for each in _guarded(conn_id, subject, findings, lacking):
                yield _state_of_broker(each, conn_id, found)
        counting = _counting(administration)
        yield from _guarded(conn_id, "waiting messages", _paused(watched, counting, here), lacking)
        if lacking:
            yield from _unreported(conn_id, found, lacking, here)


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
    failed = store.limbo.page(LimboSelection(state=LimboState.FAILED), limit=_MOST_SHOWN)
    if failed:
        first = failed[0]
        error = ": ".join(filter(None, (first.exception_class, first.exception_message)))
        yield Finding(
            symptom=f"{_counted(len(failed), 'message')} in limbo could not be sent, one for "
            f"{first.destination}",
            cause=error or "no reason is known",
            fix="airflow jms limbo revive --state failed",
        )
    overdue = store.limbo.page(LimboSelection(state=LimboState.WAITING), limit=_MOST_SHOWN)
    late = [each for each in overdue if there - each.due_at > timedelta(minutes=1)]
    if late:
        yield Finding(
            symptom=f"{_counted(len(late), 'message')} in limbo should have been sent, the first at "
            f"{min(each.due_at for each in late).isoformat(timespec='seconds')}",
            cause="no process sends them: a triggerer with a JMS trigger, a listener, or store run",
            fix="airflow jms store run --once",
        )
    yield from _doubtful(store, there)
    yield from _activations(store)


def examine_spool(spool: SpoolPath) -> Iterator[Finding]:
    """Yield findings about batches whose messages are only in the spool, and that no job is processing."""
    try:
        found = [each for each in batches(spool) if each.state in NEEDS_CARE]
    except SpoolError as error:
        if "no such spool" not in str(error):
            yield Finding(
                kind=FindingKind.UNKNOWN,
                symptom=f"the spool {spool} cannot be read",
                cause=str(error),
                fix="airflow jms spool list",
            )
        return
    late = [each for each in found if time.time() - each.changed > CARE_AFTER.total_seconds()]
    for state, (cause, fix) in _CARE.items():
        some = [each for each in late if each.state is state]
        if some:
            yield Finding(
                symptom=f"{_counted(len(some), 'batch', 'batches')} {state} in the spool, for example "
                f"{some[0].batch_id}",
                cause=some[0].fault or cause,
                fix=fix.format(shlex.quote(some[0].batch_id)),
            )


_CARE: Final = {
    State.UNFINISHED: ("the run that collected them died and was not retried", "airflow jms spool adopt {}"),
    State.UNDONE: ("the Spark job failed or was not retried", "airflow jms spool show {}"),
    State.REJECTS: (
        "rejected rows were not sent to the dead-letter destination",
        "airflow jms dlq list --rejects",
    ),
    State.DAMAGED: ("a file cannot be read", "airflow jms spool verify {}"),
}


def examine_disk(
    name: str, folder: Path, least_free: float = _GIB, *, spool: SpoolPath | None = None
) -> Iterator[Finding]:
    """Yield a finding if a folder's disk has less free space than a minimum.

    Args:
        name: The use of the folder, for example `spool`.
        folder: The folder; it need not exist yet.
        least_free: Minimum free space in bytes.
        spool: The spool in the folder, if it is one. The finding tells how much could be pruned.
    """
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    try:
        usage = shutil.disk_usage(there)
    except OSError as error:
        yield Finding(
            kind=FindingKind.UNKNOWN,
            symptom=f"the disk of the {name} {folder} cannot be examined",
            cause=str(error),
            fix=f"df -h {shlex.quote(str(there))}",
        )
        return
    if (free := usage.free) >= least_free:
        return
    is_full = free < _FULL
    cause = (
        f"{free / _MIB:,.0f} of {usage.total / _MIB:,.0f} MiB are free, expected at least "
        f"{least_free / _MIB:,.0f} MiB"
    )
    effect = ": messages can't be stored" if is_full else ""
    largest = f"du -xah {shlex.quote(str(_mount(there)))} | sort -h | tail -20"
    fix = f"make room on the disk; what fills it: {largest}"
    if spool is not None and (prunable := _prunable(spool)) is not None:
        cause += f"; pruning the spool would free {prunable / _MIB:,.0f} MiB"
        if prunable >= least_free - free:
            fix = "airflow jms spool prune"
    yield Finding(
        symptom=f"the disk of the {name} {folder} is {'full' if is_full else 'nearly full'}{effect}",
        cause=cause,
        fix=fix,
        names=FullDisk(folder=str(folder)) if is_full else None,
    )


def _mount(folder: Path) -> Path:
    """Return the folder at which the disk of a folder is mounted."""
    while not folder.is_mount() and folder != folder.parent:
        folder = folder.parent
    return folder


def _prunable(spool: SpoolPath) -> int | None:
    """Return the bytes that `airflow jms spool prune` would remove; `None` if the spool cannot be read."""
    try:
        return sum(each.bytes for each in prune(spool, older_than=_PRUNED_AFTER, dry_run=True).removed)
    except SpoolError:
        return None


def _moment(text: str) -> datetime | None:
    """Return a recorded time; `None` for other text."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def _counted(number: int, one: str, many: str = "") -> str:
    shown = f"{_MOST_SHOWN} or more" if number >= _MOST_SHOWN else str(number)
    return f"{shown} {one if number == 1 else many or one + 's'}"


def _login_fix(conn_id: str, error: JmsError) -> str:
    if isinstance(error, AuthenticationError):
        return (
            f"set its login and password in Airflow (Admin > Connections > {conn_id}), then: "
            f"airflow jms check {shlex.quote(conn_id)}"
        )
    if isinstance(error, ConfigurationError):
        return f"airflow jms explain --conn-id {shlex.quote(conn_id)}"
    return f"start the broker, then: airflow jms check {shlex.quote(conn_id)}"


def _no_login(conn_id: str, settings: ConnectionSettings | None, error: JmsError) -> Finding:
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
    conn_id: str, subject: str, findings: Iterator[Finding], lacking: dict[str, CapabilityError]
) -> Iterator[Finding]:
    """Yield findings, and turn an error into a finding, so that other parts are still examined.

    Args:
        conn_id: The Airflow connection.
        subject: The examined part.
        findings: Findings about the part.
        lacking: Gets the error if the broker does not report the part.
    """
    try:
        yield from findings
    except CapabilityError as error:
        lacking[subject] = error
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
    """Return a finding about a broker so that the same one of another connection to it follows from it."""
    said = finding.symptom.removeprefix(f"connection {conn_id!r}: ")
    state = repr((settings.hosts, settings.virtual_host, said, finding.cause))
    return replace(
        finding,
        evidence=Evidence(effect=Effect.SEEN_AGAIN, error=state),
        names=StateOfBroker(state=state),
    )


def _unreported(
    conn_id: str,
    settings: ConnectionSettings,
    lacking: Mapping[str, CapabilityError],
    runs: Sequence[ActivationRun],
) -> Iterator[Finding]:
    """Yield a note about the parts that the broker does not report, and findings from the registry instead.

    Args:
        conn_id: The Airflow connection.
        settings: Settings of the connection.
        lacking: The error for each part that the broker does not report.
        runs: Runs at this broker.
    """
    errors = list(dict.fromkeys(map(str, lacking.values())))
    fix = f"airflow jms check {shlex.quote(conn_id)}"
    looks_into_queues = "dead letters" not in lacking
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
    known = [_told(run.report) for _, run in sorted(latest.items())]
    if (more := len(known) - _MOST_KNOWN) > 0:
        known[_MOST_KNOWN:] = [f"{more} more: airflow jms activations list"]
    yield Finding(
        kind=FindingKind.NOTE,
        part=Part.BROKERS,
        symptom=f"connection {conn_id!r}: {', '.join(lacking)} not examined"
        + ("" if looks_into_queues else "; the registry has " + ("; ".join(known) or "no activations there")),
        cause="; ".join(errors),
        fix=fix,
        conn_id=conn_id,
    )
    if looks_into_queues:
        return
    for each in latest.values():
        report = each.report
        name = report.title or report.activation
        if waiting := _waiting(each):
            yield Finding(
                part=Part.BROKERS,
                symptom=f"connection {conn_id!r}: {waiting} on {report.destination} for activation {name}, "
                f"which is {report.status} since {report.since.isoformat(timespec='seconds')}",
                cause=report.last_error or "no error is recorded; the broker's queues can't be looked into",
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
            symptom=f"connection {conn_id!r}: {_number(moved)} moved to dead-letter destinations; how many "
            "still wait there is not known",
            cause=f"activation {last.title or last.activation}, last error: "
            f"{last.last_error or 'none is recorded'}",
            fix=fix,
            conn_id=conn_id,
        )


def _waiting(run: ActivationRun) -> str:
    """Return the number of messages that wait for a run that does not consume; empty if none is known."""
    report = run.report
    if report.status not in _NOT_CONSUMING:
        return ""
    backlog = f"{_number(report.backlog)} waiting" if report.backlog else ""
    returned = (
        f"{_number(report.in_flight)} returned by its dead process"
        if report.in_flight and report.status is RunStatus.LOST
        else ""
    )
    return " and ".join(filter(None, (backlog, returned)))


def _told(report: RunReport) -> str:
    last = report.last_message_at
    return (
        f"{report.destination}: {report.kind} {report.status} since "
        f"{report.since.isoformat(timespec='seconds')}, {report.delivered} delivered, {report.committed} "
        f"committed, {report.dead_lettered} dead letters, "
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
    apart = clock_difference(administration)
    if abs(apart) > CLOCK_SECONDS:
        yield Finding(
            part=Part.BROKERS,
            conn_id=conn_id,
            symptom=f"connection {conn_id!r}: the broker's clock differs by {apart:+.0f} s",
            cause="the clock of the broker's host or of this host is wrong; times to live, delays and ages "
            "of messages are off by as much",
            fix="on both hosts: timedatectl status",
        )


def _letters(
    conn_id: str,
    administration: QueueAdministration,
    known: Collection[str],
    senders: Sequence[ActivationRun],
    *,
    browse: bool,
) -> Iterator[Finding]:
    here = f"--conn-id {shlex.quote(conn_id)}"
    for queue in administration.queues():
        if not queue.messages or not (queue.name in known or is_dead_letter_queue(queue.name)):
            continue
        cause = "messages failed and were moved there"
        groups: list[DeadLetterGroup] = []
        if QueueOperation.BROWSE not in administration.operations:
            pass
        elif administration.browse_note and not browse:
            cause = _last_error(queue.name, senders) or cause
            cause += "; not browsed, which would mark them as redelivered (airflow jms doctor --browse does)"
        elif groups := grouped(administration.browse(queue.name, limit=_MOST_LETTERS)):
            largest = groups[0]
            origin = "" if largest.destination is None else f", from {largest.destination}"
            cause = f"{largest.count} with: {largest.reason}{origin}"
            if (looked_at := sum(each.count for each in groups)) < queue.messages:
                cause = f"of the first {looked_at}, {cause}"
        fix = f"airflow jms dlq list {shlex.quote(queue.name)} {here}"
        if len(groups) == 1 and (letter := groups[0].example) and letter.isprintable():
            # All failed for one reason: a list would add nothing.
            fix = (
                f"airflow jms dlq show {here} {shell_arguments(queue.name, letter)}; then dlq edit corrects "
                "and sends it, dlq replay sends all back"
            )
        yield Finding(
            part=Part.BROKERS,
            symptom=f"connection {conn_id!r}: {_number(queue.messages)} on the dead-letter queue "
            f"{queue.name}",
            cause=cause,
            fix=fix,
            conn_id=conn_id,
        )


def _last_error(queue: str, senders: Sequence[ActivationRun]) -> str:
    """Return the last error of a run that moved dead letters on this broker; empty if none is known.

    The registry doesn't record the names of dead-letter queues. So runs are preferred whose destination's
    name is part of the queue's name.
    """
    senders = [each for each in senders if each.report.dead_lettered]
    named = [
        each
        for each in senders
        if any(text.partition("://")[2] in queue for text in each.report.destination.split(", "))
    ]
    reports = [each.report for each in named or senders if each.report.last_error_at is not None]
    if not reports:
        return ""
    last = max(reports, key=lambda report: report.last_error_at or report.since)
    return (
        f"activation {last.title or last.activation} moved {_number(last.dead_lettered)} to a dead-letter "
        f"destination; its last error: {last.last_error}"
    )


def _number(messages: int) -> str:
    return f"{messages} message{'' if messages == 1 else 's'}"


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


def _is_paused(dag: tuple[str, bool]) -> bool:
    return dag[1]


def _all_paused(each: WatchedDestination) -> bool:
    return bool(each.dags) and all(map(_is_paused, each.dags))


def _paused(
    watched: Sequence[WatchedDestination],
    count: Callable[[Destination], int | None],
    runs: Sequence[ActivationRun],
) -> Iterator[Finding]:
    """Yield findings about paused DAGs, which start no runs, and events stored while a DAG was paused.

    Args:
        watched: The watched destinations of a connection.
        count: Returns the number of messages on a destination; `None` if it is not known.
        runs: Runs at the broker, for what is known of a destination without a count.
    """
    for each in watched:
        if not any(map(_is_paused, each.dags)):
            waiting, some = None, ""
        else:
            waiting = None if each.destination is None else count(each.destination)
            some = _last_known(each.destination, runs)
        if waiting is not None:
            some = f"; {_number(waiting)} waiting on {each.destination}"
        for dag, is_paused in each.dags:
            stored = each.stored_events.get(dag, 0)
            events = f"; {_counted(stored, 'event')} without a run" if stored else ""
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


def _doubtful(store: Store, now: datetime) -> Iterator[Finding]:
    open_at = store.attempts.open_at()
    dead = open_at - store.owners.living(open_at, now)
    in_doubt = store.attempts.page(limit=_MOST_SHOWN, open_only=True) if dead else []
    in_doubt = [each for each in in_doubt if each.where in dead]
    if in_doubt:
        yield Finding(
            symptom=f"{_counted(len(in_doubt), 'message')} in doubt, one of activation "
            f"{in_doubt[0].activation}",
            cause=f"the process {in_doubt[0].where} died while it handled them",
            fix="airflow jms indoubt list",
        )
    failing = store.attempts.page(at_least=_MANY_ATTEMPTS, limit=_MOST_SHOWN)
    if failing:
        worst = failing[0]
        history = store.attempts.history(worst.activation, worst.message)
        last = history[-1] if history else None
        error = (
            "" if last is None else ": ".join(filter(None, (last.exception_class, last.exception_message)))
        )
        yield Finding(
            symptom=f"{_counted(len(failing), 'message')} failed {_MANY_ATTEMPTS} times or more, one of "
            f"activation {worst.activation} {worst.attempts} times",
            cause=error or "no exception is known: its process died each time",
            fix=f"airflow jms attempts show {shell_arguments(worst.activation, worst.message)}",
        )


def _activations(store: Store) -> Iterator[Finding]:
    for order in store.activations.page(limit=_MOST_SHOWN):
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
            symptom=f"{_counted(len(waiting), 'listener')} deferred, waiting for messages; one on "
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
            since = report.last_error_at or report.since
            yield Finding(
                symptom=f"activation {report.title or report.activation} is not connected since "
                f"{since.isoformat(timespec='seconds')}",
                cause=report.last_error,
                fix=f"airflow jms activations show {shlex.quote(report.activation)}",
                evidence=Evidence(
                    effect=Effect.DISCONNECTED, since=since, error=report.last_error, broker=report.broker
                ),
            )
    yield from (_lost(each) for each in lost.values())


def _lost(runs: Sequence[ActivationRun]) -> Finding:
    """Return one finding about all runs with the status `LOST` of a process: a triggerer may have many."""
    ordered = sorted(runs, key=lambda run: run.seen_at, reverse=True)
    last, report = ordered[0], ordered[0].report
    names = [each.report.title or each.report.activation for each in ordered[:_MOST_NAMED]]
    if more := len(ordered) - len(names):
        names.append(_counted(more, "other"))
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
