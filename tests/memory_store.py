"""A store in memory: the model that the SQL stores are compared with, and a quick one for unit tests."""

from __future__ import annotations

import copy
import os
import socket
import threading
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.query import write_named_destination
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.store.base import (
    EVERYTHING,
    KEPT_ATTEMPTS,
    KEPT_ENDED_FOR,
    KEPT_FOR,
    KEPT_HISTORY,
    KEPT_IDS,
    KEPT_RUNS,
    KEPT_SAMPLES,
    KEPT_SAMPLES_FOR,
    PRIVATE,
    SILENT_FOR,
    ActivationOrder,
    ActivationRun,
    ActivationSample,
    AttemptEntry,
    AttemptSelection,
    LimboEntry,
    LimboMessage,
    LimboSelection,
    LimboState,
    MessageAttempts,
    RunReport,
    RunStatus,
    WantedState,
    from_milliseconds,
    listed_name,
    stored_name,
    stored_text,
    to_milliseconds,
)


def _stored(moment: datetime) -> datetime:
    return from_milliseconds(to_milliseconds(moment))


class MemoryAttempts:
    """`base.Attempts` of one process."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], MessageAttempts] = {}
        self._history: dict[tuple[str, str], dict[int, AttemptEntry]] = {}
        self._doubtful: set[tuple[str, str]] = set()

    def seen_from(self, where: str) -> Self:
        """Return the same attempts as another process sees them."""
        other = copy.copy(self)
        other._where = where  # of the same class
        return other

    def parts(self) -> tuple[Any, Any, Any]:
        """Return all that is known, to restore it."""
        return self._known, self._history, self._doubtful

    def begin(self, activation: str, messages: Collection[str], now: datetime) -> dict[str, int]:
        """Count an attempt at each of these messages."""
        with self._lock:
            return {message: self._begin(activation, message, _stored(now)) for message in set(messages)}

    def _begin(self, activation: str, message: str, now: datetime) -> int:
        key = stored_name(activation), stored_name(message)
        before = self._known.get(key)
        number = 1 if before is None else before.attempts + 1
        self._doubtful.discard(key)
        if before is not None and before.open and before.where != self._where:
            self._doubtful.add(key)
        self._known[key] = MessageAttempts(
            activation=key[0],
            message=key[1],
            attempts=number,
            first_at=now if before is None else before.first_at,
            last_at=now,
            where=self._where,
            open=True,
        )
        history = self._history.setdefault(key, {})
        history[number] = AttemptEntry(attempt=number, at=now, where=self._where)
        for old in range(2, number - KEPT_HISTORY + 1):
            history.pop(old, None)
        return number

    def take_back(self, activation: str, messages: Collection[str]) -> None:
        """Undo the last attempt at each."""
        with self._lock:
            for message in set(messages):
                key = stored_name(activation), stored_name(message)
                before = self._known.pop(key, None)
                if before is None:
                    continue
                self._history[key].pop(before.attempts, None)
                if before.attempts > 1:
                    doubtful = key in self._doubtful  # what was in doubt before is in doubt again
                    self._doubtful.discard(key)
                    where = "" if doubtful else before.where
                    self._known[key] = replace(
                        before, attempts=before.attempts - 1, open=doubtful, where=where
                    )

    def failed(self, activation: str, failures: Mapping[str, Failure]) -> None:
        """Note how the last attempt at each of these messages ended."""
        with self._lock:
            for message, failure in failures.items():
                key = stored_name(activation), stored_name(message)
                if (known := self._known.get(key)) is not None:
                    self._known[key] = replace(known, open=False)
                    entry = AttemptEntry(attempt=known.attempts, at=known.last_at, where=known.where)
                    self._history[key][known.attempts] = replace(
                        self._history[key].get(known.attempts, entry),
                        exception_class=stored_text(failure.class_name),
                        exception_message=stored_text(failure.message),
                    )

    def forget(self, activation: str, messages: Collection[str]) -> None:
        """Drop all about these messages."""
        with self._lock:
            for message in messages:
                self._drop((stored_name(activation), stored_name(message)))

    def _drop(self, key: tuple[str, str]) -> None:
        self._known.pop(key, None)
        self._history.pop(key, None)
        self._doubtful.discard(key)

    def doubtful(self, activation: str, messages: Collection[str]) -> frozenset[str]:
        """Return those of the messages whose attempt before this one has an unknown outcome."""
        owner = stored_name(activation)
        with self._lock:
            return frozenset(each for each in messages if (owner, stored_name(each)) in self._doubtful)

    def ended(self, activation: str) -> None:
        """Note that this process has ended its attempts in good order."""
        self.resolve(AttemptSelection(activation=stored_name(activation), open_at=frozenset({self._where})))

    def page(
        self,
        activation: str | None = None,
        *,
        at_least: int = 1,
        limit: int = 100,
        after: int = 0,
        open_only: bool = False,
    ) -> list[MessageAttempts]:
        """Return the messages with most attempts."""
        owner = None if activation is None else listed_name(activation)
        with self._lock:
            found = self._chosen(AttemptSelection(activation=owner, at_least=at_least))
        found = [each for each in found if each.open or not open_only]
        found.sort(key=lambda each: (-each.attempts, -each.last_at.timestamp(), each.message))
        return found[after : after + limit]

    def _chosen(self, selection: AttemptSelection) -> list[MessageAttempts]:
        return [
            each
            for each in self._known.values()
            if selection.activation in {None, each.activation}
            and selection.message in {None, each.message}
            and each.attempts >= selection.at_least
            and (selection.open_at is None or (each.open and each.where in selection.open_at))
        ]

    def activations(self) -> frozenset[str]:
        """Return the activations with counted attempts."""
        with self._lock:
            return frozenset(activation for activation, _ in self._known)

    def open_at(self) -> frozenset[str]:
        """Return the processes whose attempts have no known end."""
        with self._lock:
            return frozenset(each.where for each in self._known.values() if each.open)

    def reset(self, selection: AttemptSelection) -> int:
        """Drop all about these messages."""
        with self._lock:
            chosen = self._chosen(selection)
            for each in chosen:
                self._drop((each.activation, each.message))
        return len(chosen)

    def resolve(self, selection: AttemptSelection) -> int:
        """Note that the last attempts at these messages have ended."""
        with self._lock:
            chosen = [each for each in self._chosen(selection) if each.open]
            for each in chosen:
                self._known[each.activation, each.message] = replace(each, open=False)
        return len(chosen)

    def history(self, activation: str, message: str) -> list[AttemptEntry]:
        """Return the attempts at a message."""
        key = listed_name(activation), listed_name(message)
        with self._lock:
            return [entry for _, entry in sorted(self._history.get(key, {}).items())]

    def sweep(self, now: datetime, *, keep: int = KEPT_ATTEMPTS, max_age: timedelta = KEPT_FOR) -> int:
        """Drop what is too much or too old."""
        with self._lock:
            seen = {key: known.last_at for key, known in self._known.items()}
            gone = _swept(seen, _stored(now - max_age), keep)
            for key in gone:
                self._drop(key)
        return len(gone)


class MemoryOwners:
    """`base.Owners` of one process."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._seen: dict[str, datetime] = {}

    def seen_from(self, where: str) -> Self:
        """Return the same owners as another process sees them."""
        other = copy.copy(self)
        other._where = where  # of the same class
        return other

    def now(self) -> datetime:
        """Return the time by the clock of this host."""
        return datetime.now(UTC)

    def heartbeat(self, now: datetime) -> None:
        """Say that this process lives."""
        self._seen[self._where] = _stored(now)

    def leave(self) -> None:
        """Say that this process holds nothing any more."""
        self._seen.pop(self._where, None)

    def live(self, owners: Collection[str], now: datetime) -> frozenset[str]:
        """Return those that live."""
        oldest = _stored(now - SILENT_FOR)
        return frozenset(each for each in owners if each in self._seen and self._seen[each] >= oldest)


class MemoryHandledIds:
    """`base.HandledIds` of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handled: dict[tuple[str, str], datetime] = {}

    def known(self, activation: str, messages: Collection[str]) -> frozenset[str]:
        """Return those of the messages that were handled."""
        owner = stored_name(activation)
        with self._lock:
            return frozenset(each for each in messages if (owner, stored_name(each)) in self._handled)

    def add(self, activation: str, messages: Collection[str], now: datetime) -> None:
        """Note that these messages were handled."""
        with self._lock:
            for each in messages:
                self._handled[stored_name(activation), stored_name(each)] = _stored(now)

    def sweep(self, now: datetime, *, keep: int = KEPT_IDS, max_age: timedelta = KEPT_FOR) -> int:
        """Drop what is too much or too old."""
        with self._lock:
            gone = _swept(self._handled, _stored(now - max_age), keep)
            for key in gone:
                del self._handled[key]
        return len(gone)


def _swept(seen: Mapping[tuple[str, str], datetime], oldest: datetime, keep: int) -> set[tuple[str, str]]:
    gone = {key for key, moment in seen.items() if moment < oldest}
    of_activation: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for key in sorted(seen, key=lambda each: (-seen[each].timestamp(), each[1])):
        of_activation[key[0]].append(key)
    for keys in of_activation.values():
        gone.update(key for key in keys[keep:] if not keep or seen[key] < seen[keys[keep - 1]])
    return gone


def _is_for(message: LimboMessage, destination: str) -> bool:
    return message.destination == destination or message.destination.startswith(
        f"{write_named_destination(destination, ())}&"
    )


class MemoryLimbo:
    """`base.Limbo` of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0
        self._known: dict[int, LimboMessage] = {}
        self._content: dict[int, JmsMessage] = {}
        self._keys: dict[int, tuple[str, str]] = {}
        self._leases: dict[int, tuple[str, datetime]] = {}
        self._marks: set[tuple[str, str]] = set()

    def now(self) -> datetime:
        """Return the time by the clock of this host."""
        return datetime.now(UTC)

    def put(self, entries: Sequence[LimboEntry], now: datetime) -> list[int]:
        """Keep these messages, all or none."""
        numbers: list[int] = []
        with self._lock:
            for entry in entries:
                if entry.key:
                    same = stored_name(entry.activation), stored_name(entry.key)
                    before = [
                        each
                        for each, key in self._keys.items()
                        if key == same and (not entry.once or each not in self._leases)
                    ]
                    if entry.again and before:
                        self._drop(max(before))
                    elif entry.again and entry.once and same in self._marks:
                        continue
                    if entry.once:
                        self._marks.add(same)
                    self._keys[self._last + 1] = same
                self._last += 1
                numbers.append(self._last)
                self._content[self._last] = entry.message
                self._known[self._last] = LimboMessage(
                    number=self._last,
                    state=LimboState.WAITING if entry.failure is None else LimboState.FAILED,
                    jms_conn_id=entry.jms_conn_id,
                    destination=entry.destination,
                    activation=stored_name(entry.activation),
                    put_at=_stored(now),
                    due_at=_stored(entry.due_at),
                    tries=0,
                    most_tries=entry.most_tries,
                    exception_class=stored_text(entry.failure.class_name) if entry.failure else "",
                    exception_message=stored_text(entry.failure.message) if entry.failure else "",
                )
        return numbers

    def settled(self, activation: str, keys: Collection[str]) -> None:
        """Forget the keys of entries that were to be sent once."""
        with self._lock:
            self._marks.difference_update((stored_name(activation), stored_name(key)) for key in keys)

    def lease(
        self,
        now: datetime,
        *,
        owner: str,
        until: datetime,
        limit: int,
        leave: Collection[str] = (),
        connections: Collection[str] | None = None,
    ) -> list[LimboMessage]:
        """Lease messages that are due and that nobody leases."""
        with self._lock:
            due = [each for each in self._due(now, leave, connections) if each.number not in self._leases]
            due.sort(key=lambda each: (each.due_at, each.number))
            for each in due[:limit]:
                self._leases[each.number] = stored_name(owner), _stored(until)
            return due[:limit]

    def take_over(
        self,
        now: datetime,
        *,
        until: datetime,
        leave: Collection[str] = (),
        connections: Collection[str] | None = None,
    ) -> dict[str, list[LimboMessage]]:
        """Return messages whose lease has run out, by the owners that may have sent them."""
        found: defaultdict[str, list[LimboMessage]] = defaultdict(list)
        with self._lock:
            for each in self._due(now, leave, connections):
                if each.number in self._leases and self._free(each, now):
                    owner, _ = self._leases[each.number]
                    self._leases[each.number] = owner, _stored(until)
                    found[owner].append(each)
        return found

    def _due(
        self, now: datetime, leave: Collection[str], connections: Collection[str] | None
    ) -> list[LimboMessage]:
        return [
            each
            for each in self._known.values()
            if each.state is LimboState.WAITING
            and each.due_at <= _stored(now)
            and each.jms_conn_id not in leave
            and (
                not each.jms_conn_id.startswith(PRIVATE)
                if connections is None
                else each.jms_conn_id in connections
            )
        ]

    def _free(self, message: LimboMessage, now: datetime) -> bool:
        lease = self._leases.get(message.number)
        return lease is None or lease[1] <= _stored(now)

    def sent(self, owner: str, numbers: Collection[int]) -> int:
        """Drop messages that the owner has sent and still leases."""
        with self._lock:
            mine = self._of(owner, numbers)
            for number in mine:
                self._drop(number)
        return len(mine)

    def _of(self, owner: str, numbers: Collection[int]) -> list[int]:
        return [each for each in set(numbers) if self._leases.get(each, ("",))[0] == stored_name(owner)]

    def _drop(self, number: int) -> None:
        for kept in (self._known, self._content, self._leases, self._keys):
            kept.pop(number, None)

    def give_back(
        self,
        owner: str,
        numbers: Collection[int],
        *,
        due_at: datetime | None = None,
        failure: Failure | None = None,
    ) -> None:
        """End the owner's lease of messages that were not sent."""
        changes: dict[str, Any] = {} if due_at is None else {"due_at": _stored(due_at)}
        if failure is not None:
            changes["exception_class"] = stored_text(failure.class_name)
            changes["exception_message"] = stored_text(failure.message)
            if due_at is None:
                changes["state"] = LimboState.FAILED
        with self._lock:
            for number in self._of(owner, numbers):
                del self._leases[number]
                known = self._known[number]
                tries = known.tries + (failure is not None)
                self._known[number] = replace(known, tries=tries, **changes)

    def contents(self, numbers: Collection[int]) -> dict[int, JmsMessage | ConfigurationError]:
        """Return messages by their numbers, without those that aren't here."""
        with self._lock:
            return {number: self._content[number] for number in numbers if number in self._content}

    def page(
        self, selection: LimboSelection = EVERYTHING, *, limit: int = 100, after: int = 0
    ) -> list[LimboMessage]:
        """Return messages in the order of their numbers."""
        with self._lock:
            return [each for each in self._chosen(selection) if each.number > after][:limit]

    def _chosen(self, selection: LimboSelection) -> list[LimboMessage]:
        asked = {
            "state": selection.state,
            "activation": None if selection.activation is None else stored_name(selection.activation),
            "jms_conn_id": selection.jms_conn_id,
        }
        return [
            each
            for number, each in sorted(self._known.items())
            if (selection.numbers is None or number in selection.numbers)
            and (selection.destination is None or _is_for(each, selection.destination))
            and all(value is None or getattr(each, name) == value for name, value in asked.items())
        ]

    def activations(self) -> frozenset[str]:
        """Return the activations that messages are here of."""
        with self._lock:
            return frozenset(each.activation for each in self._known.values())

    def revive(self, selection: LimboSelection, now: datetime) -> int:
        """Let failed messages be sent now, with all their tries."""
        return self._let_go(selection, LimboState.FAILED, now, tries=0)

    def release(self, selection: LimboSelection, now: datetime) -> int:
        """Let waiting messages be sent now."""
        return self._let_go(selection, LimboState.WAITING, now)

    def _let_go(
        self, selection: LimboSelection, state: LimboState, now: datetime, tries: int | None = None
    ) -> int:
        with self._lock:
            chosen = [
                each
                for each in self._chosen(selection)
                if each.state is state and (state is LimboState.FAILED or each.due_at > _stored(now))
            ]
            for each in chosen:
                kept = each.tries if tries is None else tries
                self._known[each.number] = replace(
                    each, state=LimboState.WAITING, due_at=_stored(now), tries=kept
                )
        return len(chosen)

    def purge(self, selection: LimboSelection, now: datetime) -> int:
        """Drop messages, but those that somebody is sending now."""
        with self._lock:
            chosen = [each for each in self._chosen(selection) if self._free(each, now)]
            for each in chosen:
                self._marks.discard(self._keys.get(each.number, ("", "")))
                self._drop(each.number)
        return len(chosen)


class MemoryActivations:
    """`base.Activations` of one process."""

    def __init__(self, where: str, owners: MemoryOwners) -> None:
        self._where = where
        self._owners = owners
        self._lock = threading.Lock()
        self._orders: dict[str, ActivationOrder] = {}
        self._runs: dict[str, ActivationRun] = {}
        self._samples: dict[tuple[str, datetime], ActivationSample] = {}

    def seen_from(self, where: str, owners: MemoryOwners) -> Self:
        """Return the same registry as another process sees it."""
        other = copy.copy(self)
        other._where, other._owners = where, owners  # of the same class
        return other

    def request_state(self, activation: str, wanted: WantedState, *, reason: str, asked_by: str) -> None:
        """Store the state requested from now on."""
        order = ActivationOrder(
            activation=listed_name(activation),
            wanted=wanted,
            reason=stored_text(reason),
            asked_by=stored_text(asked_by),
            where=self._where,
            since=_stored(datetime.now(UTC)),
        )
        with self._lock:
            before = self._orders.get(order.activation)
            if before is None or before.wanted is not wanted:
                self._orders[order.activation] = order

    def order(self, activation: str) -> ActivationOrder | None:
        """Return the request for an activation; `None`: it may run."""
        return self._orders.get(listed_name(activation))

    def page(self, *, limit: int = 100, after: int = 0) -> list[ActivationOrder]:
        """Return requests, sorted by the names of their activations."""
        with self._lock:
            return [order for _, order in sorted(self._orders.items())][after : after + limit]

    def resume(self, activations: Collection[str]) -> int:
        """Delete the requests for these activations."""
        with self._lock:
            gone = {listed_name(each) for each in activations} & self._orders.keys()
            for each in gone:
                del self._orders[each]
        return len(gone)

    def report(self, reports: Collection[RunReport]) -> None:
        """Store the state of runs of this process."""
        now = datetime.now(UTC)
        self._owners.heartbeat(now)
        with self._lock:
            for each in reports:
                title = stored_text(each.title or each.activation)
                before = self._runs.get(each.run)
                self._runs[each.run] = ActivationRun(
                    report=replace(
                        each,
                        activation=stored_name(each.activation),
                        title=title if before is None else before.report.title,
                        owner=stored_text(each.owner),
                        broker=stored_text(each.broker),
                        destination=stored_text(each.destination),
                        last_error=stored_text(each.last_error),
                        started_at=_stored(each.started_at),
                        since=_stored(each.since),
                        last_message_at=each.last_message_at and _stored(each.last_message_at),
                        last_error_at=each.last_error_at and _stored(each.last_error_at),
                        oldest_at=each.oldest_at and _stored(each.oldest_at),
                    ),
                    process=self._where,
                    host=socket.gethostname(),
                    pid=os.getpid(),
                    seen_at=_stored(now),
                )

    def orders(self) -> dict[str, ActivationOrder]:
        """Return the requests for activations with runs in this process."""
        with self._lock:
            own = {
                each.report.activation
                for each in self._runs.values()
                if each.process == self._where and each.report.status is not RunStatus.ENDED
            }
            return {name: self._orders[name] for name in own & self._orders.keys()}

    def runs(self, activations: Collection[str] | None = None) -> list[ActivationRun]:
        """Return the runs, sorted by activation and start."""
        names = None if activations is None else {listed_name(each) for each in activations}
        with self._lock:
            found = [each for each in self._runs.values() if names is None or each.report.activation in names]
        live = self._owners.live({each.process for each in found}, datetime.now(UTC))
        found.sort(key=lambda each: (each.report.activation, each.report.started_at, each.report.run))
        return [
            each
            if each.report.status is RunStatus.ENDED or each.process in live
            else replace(each, report=replace(each.report, status=RunStatus.LOST))
            for each in found
        ]

    def add_samples(self, samples: Collection[ActivationSample]) -> None:
        """Add counts to those of their activations and minutes."""
        with self._lock:
            for each in samples:
                minute = each.at.replace(second=0, microsecond=0)
                key = stored_name(each.activation), minute
                before = self._samples.get(key, ActivationSample(activation=key[0], at=minute))
                newest = before if each.backlog is None else each
                self._samples[key] = ActivationSample(
                    activation=key[0],
                    at=minute,
                    delivered=before.delivered + each.delivered,
                    committed=before.committed + each.committed,
                    failed=before.failed + each.failed,
                    dead_lettered=before.dead_lettered + each.dead_lettered,
                    backlog=newest.backlog,
                    oldest_at=newest.oldest_at and _stored(newest.oldest_at),
                )

    def samples(self, activation: str, since: datetime) -> list[ActivationSample]:
        """Return the samples of an activation from a time on."""
        minute, name = since.replace(second=0, microsecond=0), listed_name(activation)
        with self._lock:
            return [
                each for (owner, at), each in sorted(self._samples.items()) if owner == name and at >= minute
            ]

    def sweep(
        self,
        *,
        keep: int = KEPT_RUNS,
        max_ended_age: timedelta = KEPT_ENDED_FOR,
        max_lost_age: timedelta = KEPT_FOR,
        max_sample_age: timedelta = KEPT_SAMPLES_FOR,
        keep_samples: int = KEPT_SAMPLES,
    ) -> int:
        """Drop old runs that have ended or are lost."""
        now = _stored(datetime.now(UTC))
        minutes = sorted((at for _, at in self._samples), reverse=True)
        oldest = now - max_sample_age
        with self._lock:
            for key in list(self._samples):
                if key[1] < oldest or (len(minutes) > keep_samples and key[1] <= minutes[keep_samples]):
                    del self._samples[key]
        dead = [each for each in self.runs() if each.report.status in {RunStatus.ENDED, RunStatus.LOST}]
        dead.sort(key=lambda each: (-each.seen_at.timestamp(), each.report.run))
        old = {RunStatus.ENDED: now - max_ended_age, RunStatus.LOST: now - max_lost_age}
        gone = dead[keep:] + [each for each in dead[:keep] if each.seen_at < old[each.report.status]]
        with self._lock:
            for each in gone:
                del self._runs[each.report.run]
        return len(gone)


class MemoryStore:
    """`base.Store` of one process; what it knows is gone with it.

    Args:
        where: Who uses it, for the history of attempts.
    """

    def __init__(self, where: str = "memory") -> None:
        self.attempts = MemoryAttempts(where)
        self.owners = MemoryOwners(where)
        self.handled = MemoryHandledIds()
        self.limbo = MemoryLimbo()
        self.activations = MemoryActivations(where, self.owners)

    def seen_from(self, where: str) -> Self:
        """Return the same store as another process sees it."""
        other = copy.copy(self)
        other.attempts, other.owners = self.attempts.seen_from(where), self.owners.seen_from(where)
        other.activations = self.activations.seen_from(where, other.owners)
        return other

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Undo the attempts of a block that raises; of one thread at a time."""
        known, history, doubtful = self.attempts.parts()
        before = dict(known), {each: dict(entries) for each, entries in history.items()}, set(doubtful)
        try:
            yield
        except BaseException:
            for part, old in zip((known, history, doubtful), before, strict=True):
                part.clear()
                part.update(old)
            raise

    def close(self) -> None:
        """Say that nothing is held any more."""
        self.owners.leave()
