"""Findings of an examination, and the rules by which one finding follows from another.

A cause has many symptoms: with a rotated password every activation on the broker fails. `by_cause` puts such
findings below the finding that names the cause. Each rule compares recorded facts, never likely ones:

| cause | what follows from it |
|---|---|
| a connection cannot log in | the same error of activations and watchers, at the same broker |
| no triggerer is alive | event triggers that fell silent with it or later, and deferred tasks |
| a state of a broker, such as an alarm | the same state, over another connection with the same addresses |
| the disk of the spool is full | errors that name a file of this spool and this reason |

A finding that no rule explains stays a finding of its own.
"""

from __future__ import annotations

import enum
import errno
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Protocol

from airflow_provider_jmsjca.operating.queues import is_same_broker
from airflow_provider_jmsjca.store.base import SILENT_FOR

_NO_SPACE: Final = os.strerror(errno.ENOSPC)


class FindingKind(enum.StrEnum):
    """Kind of a finding: a problem, a part that could not be examined, or neither."""

    PROBLEM = "problem"
    """Messages are not processed, or soon will not be."""
    UNKNOWN = "unknown"
    """A part could not be examined."""
    NOTE = "note"
    """Nothing is wrong, or the part cannot be examined on this broker."""


class Part(enum.StrEnum):
    """The part of an installation to which a symptom belongs."""

    INSTALLATION = "Installation"
    """Triggerer, DAG files, activations, store, spool and disks."""
    DAGS = "DAGs that wait for messages"
    BROKERS = "Brokers"


class Effect(enum.StrEnum):
    """Kind of symptom, by which the consequences of a cause are counted."""

    DISCONNECTED = "activations that are not connected"
    LOST = "lost activations"
    NO_EVENTS = "assets without events"
    DEFERRED = "deferred listeners"
    CONNECTIONS = "other connections that cannot log in"
    SEEN_AGAIN = "other connections to the same broker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Recorded facts about a symptom, with which `Cause.explains` recognises its cause.

    Attributes:
        effect: Kind of symptom.
        count: Number of activations or tasks with the symptom.
        since: Start of the symptom; `None`: not known.
        error: Text of the recorded error or state; empty: none is recorded.
        error_since: Time at which this error was first reported; `None`: not known.
        conn_id: The Airflow connection over which the error occurred; empty: not known.
        broker: Address or URL of the broker at which the error occurred; empty: not known.
        needs_triggerer: Whether the symptom can only end once a triggerer runs.
        silent_at: Last heartbeat of the dead process that has the symptom; `None` if no process died.
    """

    effect: Effect
    count: int = 1
    since: datetime | None = None
    error: str = ""
    error_since: datetime | None = None
    conn_id: str = ""
    broker: str = ""
    needs_triggerer: bool = False
    silent_at: datetime | None = None

    @property
    def proved_since(self) -> datetime | None:
        """The later of `since` and `error_since`; `None` if one of them is not known.

        The symptom may have begun with another error, and the error may have occurred in an earlier outage.
        Only the later time proves that the symptom has lasted with this error.
        """
        if self.since is None or self.error_since is None:
            return None
        return max(self.since, self.error_since)


class Cause(Protocol):
    """The cause that a finding names."""

    def explains(self, evidence: Evidence) -> bool:
        """Return whether the evidence of a symptom proves that this is the symptom's cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedLogin:
    """A connection cannot log in.

    Attributes:
        conn_id: The Airflow connection.
        broker: URL of the broker; empty if it is not known.
        error: Text of the error.
        by_connection: Whether the error concerns this connection only, such as a wrong password. Then the
            failure does not explain errors of runs for which only the broker's address is recorded: they
            may use another connection with another login.
    """

    conn_id: str
    broker: str
    error: str
    by_connection: bool

    def explains(self, evidence: Evidence) -> bool:
        """Return whether the error is the same, over the same connection or at the same broker."""
        if not evidence.error or evidence.error != self.error:
            return False
        if evidence.conn_id:
            return evidence.conn_id == self.conn_id
        return not self.by_connection and is_same_broker(evidence.broker, self.broker)


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentTriggerer:
    """No triggerer is alive.

    Attributes:
        heartbeat: Last heartbeat of the most recent triggerer; `None`: none is recorded.
    """

    heartbeat: datetime | None

    def explains(self, evidence: Evidence) -> bool:
        """Return whether the symptom needs a triggerer and did not begin before the last one went silent."""
        if not evidence.needs_triggerer:
            return False
        if evidence.silent_at is None:
            return True
        return self.heartbeat is not None and evidence.silent_at >= self.heartbeat - SILENT_FOR


@dataclass(frozen=True, slots=True, kw_only=True)
class FullDisk:
    """A disk is full.

    Attributes:
        folder: The folder on the disk, as errors name it.
    """

    folder: str

    def explains(self, evidence: Evidence) -> bool:
        """Return whether the error says that no space is left for a file in the folder."""
        names_it = re.search(rf"(?:^|\s){re.escape(self.folder)}[/:]", evidence.error)
        return names_it is not None and _NO_SPACE in evidence.error


@dataclass(frozen=True, slots=True, kw_only=True)
class StateOfBroker:
    """A state of a broker, which every connection to the broker shows.

    Attributes:
        state: Addresses and virtual host of the broker, and the state as text.
    """

    state: str

    def explains(self, evidence: Evidence) -> bool:
        """Return whether another connection with the same addresses shows the same state."""
        return evidence.effect is Effect.SEEN_AGAIN and evidence.error == self.state


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding.

    Attributes:
        kind: Problem, part that could not be examined, or neither.
        part: The part of the installation to which the symptom belongs.
        symptom: The effect, with the name of the queue, asset, batch or connection.
        cause: The cause, often the text of an error.
        fix: One command or action that fixes it, or shows more.
        conn_id: The Airflow connection to the broker that wrote texts of the finding; empty if no broker did.
        evidence: Facts that may show that this finding follows from another one; `None`: it never does.
        names: The cause that this finding reports and that explains other findings; `None`: it explains none.
        consequences: Findings with the same cause, in the order of the examination; see `by_cause`.
    """

    kind: FindingKind = FindingKind.PROBLEM
    part: Part = Part.INSTALLATION
    symptom: str
    cause: str
    fix: str
    conn_id: str = ""
    evidence: Evidence | None = None
    names: Cause | None = None
    consequences: tuple[Finding, ...] = ()

    @property
    def summary(self) -> str:
        """Counts of the consequences, with the start of the first; empty if there are none."""
        return "; ".join(_counts(each.evidence for each in self.consequences if each.evidence is not None))


def by_cause(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings by cause: a finding that follows from another becomes one of its `consequences`.

    A finding becomes a problem if one of its consequences is a problem. If its consequences have a known
    start, the symptom says "at least since" the earliest of them.

    Args:
        findings: The findings, without consequences.
    """
    given = list(dict.fromkeys(findings))
    roots: list[int] = []
    follows: dict[int, int] = {}
    # Findings that name a cause come first. They too may follow from one before them.
    for number in sorted(range(len(given)), key=lambda each: given[each].names is None):
        evidence = given[number].evidence
        root = None if evidence is None else next((r for r in roots if _explains(given[r], evidence)), None)
        if root is not None:
            follows[number] = root
        elif given[number].names is not None:
            roots.append(number)
    return [
        _with_consequences(each, [given[n] for n, root in sorted(follows.items()) if root == number])
        for number, each in enumerate(given)
        if number not in follows
    ]


def by_kind(findings: Iterable[Finding], *, notes: bool = False) -> list[Finding]:
    """Return findings sorted by kind, problems first; within a kind, findings with consequences come first.

    Args:
        findings: The findings.
        notes: Whether notes are returned, too.
    """
    order = list(FindingKind)
    chosen = (each for each in findings if notes or each.kind is not FindingKind.NOTE)
    return sorted(chosen, key=lambda each: (order.index(each.kind), not _is_cause(each)))


def _is_cause(finding: Finding) -> bool:
    return finding.names is not None and not isinstance(finding.names, StateOfBroker)


def _explains(finding: Finding, evidence: Evidence) -> bool:
    return finding.names is not None and finding.names.explains(evidence)


def _with_consequences(finding: Finding, consequences: list[Finding]) -> Finding:
    if not consequences:
        return finding
    kind = min((finding.kind, *(each.kind for each in consequences)), key=list(FindingKind).index)
    starts = [each.evidence.proved_since for each in consequences if each.evidence is not None]
    known = [each for each in starts if each is not None]
    since = f", at least since {min(known).isoformat(timespec='seconds')}" if known else ""
    return replace(finding, kind=kind, symptom=finding.symptom + since, consequences=tuple(consequences))


def _counts(found: Iterable[Evidence]) -> Iterator[str]:
    """Yield, for each effect that occurs, the number of its symptoms and the earliest start."""
    evidence = list(found)
    for effect in Effect:
        some = [each for each in evidence if each.effect is effect]
        if not some:
            continue
        starts = [each.since for each in some if each.since is not None]
        since = f", since {min(starts).isoformat(timespec='seconds')}" if starts else ""
        yield f"{effect}: {sum(each.count for each in some)}{since}"
