"""What a store does, whichever it is: the port, its values, and how names are stored.

Every call is one transaction: it is durable when it returns, and has not happened when it raises. Calls may
come from any thread and any process. Times come in as arguments, with a time zone. Leases, due times and
heartbeats are compared between hosts: their times come from the clock that all processes share (`Limbo.now`,
`Owners.now`).

Errors: `TransientStoreError` from every call, and nothing else. Whoever guards a message with a call doesn't
acknowledge the message before the call has returned.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, Protocol

from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import ConfigurationError

KEPT_ATTEMPTS: Final = 5_000
"""Messages of an activation whose attempts are kept. Source: J132."""

KEPT_IDS: Final = 32_768
"""Ids of handled messages that are kept for an activation."""

KEPT_FOR: Final = timedelta(days=7)
"""How long either is kept."""

KEPT_RUNS: Final = 1_000
"""Maximum number of ended and lost runs of activations that are kept."""

KEPT_ENDED_FOR: Final = timedelta(days=1)
"""How long runs of activations are kept after their end."""

KEPT_HISTORY: Final = 50
"""Attempts of one message whose circumstances are kept; the latest."""

LIMBO_TRIES: Final = 5
"""How often it is tried to send a message that its broker refuses. Source: P16, limboDeliveryRetry."""

PRIVATE: Final = "@"
"""First character of the names of connections in limbo that only the process knows which put messages there.

No Airflow connection has such a name, so Airflow's processes leave these messages alone.
"""

BEAT_EVERY: Final = timedelta(seconds=10)
"""How often a process that holds messages says that it lives."""

SILENT_FOR: Final = timedelta(seconds=60)
"""How long nothing is heard of a process before it counts as dead."""

_LONGEST_NAME = 200
_DIGESTED = "sha256:"
_IS_DIGEST = re.compile(_DIGESTED + "[0-9a-f]{64}")
_LONGEST_TEXT = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEntry:
    """The circumstances of one attempt at a message.

    Attributes:
        attempt: The attempt's number, from 1.
        at: When it began.
        where: Host and process.
        exception_class: Class of the exception it ended with; empty if none is known, as after a crash.
        exception_message: The exception's text.
    """

    attempt: int
    at: datetime
    where: str
    exception_class: str = ""
    exception_message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageAttempts:
    """A message that was handed over and isn't settled, as far as is known.

    Attributes:
        activation: Whose it is, as stored (`stored_name`).
        message: The message's id, as stored.
        attempts: How often it was handed over.
        first_at: When it was first.
        last_at: When it was last.
        where: Host and process of the last attempt.
        open: Nobody has said how the last attempt ended.
    """

    activation: str
    message: str
    attempts: int
    first_at: datetime
    last_at: datetime
    where: str
    open: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSelection:
    """Messages whose attempts are counted; what is left out leaves none out.

    Attributes:
        activation: Messages of this activation, as stored.
        message: The message of this id, as stored.
        at_least: Messages with this many attempts or more.
        open_at: Messages whose last attempt has no known end, and was made at one of these (`where`).
    """

    activation: str | None = None
    message: str | None = None
    at_least: int = 1
    open_at: frozenset[str] | None = None


class Attempts(Protocol):
    """How often each message was handed over, shared by all consumers of an activation.

    Source: J129-J132, and past them: the counts outlive the process, and so does a crash.
    """

    def begin(self, activation: str, messages: Collection[str], now: datetime) -> dict[str, int]:
        """Count an attempt at each of these messages.

        Returns:
            The number of the attempt for each, from 1.
        """

    def take_back(self, activation: str, messages: Collection[str]) -> None:
        """Undo the last attempt at each: it led to nothing, because the message was not handed over."""

    def failed(self, activation: str, failures: Mapping[str, Failure]) -> None:
        """Note how the last attempt at each of these messages ended; those that aren't known are left out."""

    def forget(self, activation: str, messages: Collection[str]) -> None:
        """Drop all about these messages: they are settled, or are to be counted anew."""

    def doubtful(self, activation: str, messages: Collection[str]) -> frozenset[str]:
        """Return those of the messages whose attempt before this one has an unknown outcome.

        It was another process's, and that one has neither settled the message nor said how the attempt ended.
        """

    def ended(self, activation: str) -> None:
        """Note that this process has ended its attempts in good order: their outcome isn't in doubt."""

    def page(
        self,
        activation: str | None = None,
        *,
        at_least: int = 1,
        limit: int = 100,
        after: int = 0,
        open_only: bool = False,
    ) -> list[MessageAttempts]:
        """Return the messages with most attempts, those seen last first among equals.

        Args:
            activation: Whose messages, also by its name in a list of what is stored; `None`: everybody's.
            at_least: Fewest attempts of a message that is returned.
            limit: Most messages that are returned.
            after: How many messages at the front are left out.
            open_only: Return only messages whose last attempt has no known end.
        """

    def activations(self) -> frozenset[str]:
        """Return the activations with messages whose attempts are counted."""

    def open_at(self) -> frozenset[str]:
        """Return the processes whose attempts have no known end (`MessageAttempts.where`)."""

    def history(self, activation: str, message: str) -> list[AttemptEntry]:
        """Return the attempts at a message, the first one and the latest `KEPT_HISTORY`, in order."""

    def reset(self, selection: AttemptSelection) -> int:
        """Drop all about these messages, which are counted anew; return how many there were."""

    def resolve(self, selection: AttemptSelection) -> int:
        """Note that the last attempts at these messages have ended; return how many had no known end."""

    def sweep(self, now: datetime, *, keep: int = KEPT_ATTEMPTS, max_age: timedelta = KEPT_FOR) -> int:
        """Drop what is too much, the least recently seen first, and what is too old.

        Args:
            now: The time.
            keep: Messages of each activation that stay; more, if several are as old as the last of them.
            max_age: Messages seen before that are dropped.

        Returns:
            How many messages were dropped.
        """


class Owners(Protocol):
    """The processes that hold messages now, and whether they live.

    One that was not heard of for `SILENT_FOR` is dead, and so is one of this host whose process has ended.
    """

    def now(self) -> datetime:
        """Return the time by the clock of the database: with SQLite this host's, else the server's."""

    def beat(self, now: datetime) -> None:
        """Say that this process lives."""

    def leave(self) -> None:
        """Say that this process holds nothing any more."""

    def living(self, owners: Collection[str], now: datetime) -> frozenset[str]:
        """Return those that live (`MessageAttempts.where`)."""


class HandledIds(Protocol):
    """The ids that an activation is done with: one window by age and count. Source: I15, I17."""

    def known(self, activation: str, messages: Collection[str]) -> frozenset[str]:
        """Return those of the messages that were handled."""

    def add(self, activation: str, messages: Collection[str], now: datetime) -> None:
        """Note that these messages were handled."""

    def sweep(self, now: datetime, *, keep: int = KEPT_IDS, max_age: timedelta = KEPT_FOR) -> int:
        """Drop what is too much, the oldest first, and what is too old; arguments as of `Attempts.sweep`."""


class LimboState(StrEnum):
    """What becomes of a message in limbo."""

    WAITING = "waiting"
    """The message is sent when it is due."""
    FAILED = "failed"
    """The message could not be sent in all its tries, and stays until somebody revives or purges it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimboEntry:
    """A message to put in limbo.

    Attributes:
        jms_conn_id: The Airflow connection over which it is to be sent; `orders@host:port` is one host of it.
        destination: Where to, as `sending_text` writes it, with the options if there are any.
        message: What.
        due_at: When; never sooner.
        activation: Whose redelivery it is, or whose handler sent it; empty for one that a task published.
        key: Tells it from the activation's other messages; empty: nothing does.
        again: The message was delivered before, and may have been put here then: it takes the place of one
            with the same key, the last that was put there.
        most_tries: How often it is tried to send it before it stays as failed. Source: P16.
        failure: Why it has failed for good already: it stays, and isn't sent before somebody revives it.
        once: From now until `Limbo.settled` its key is remembered, also when it has been sent. With `again`
            it isn't put here if one with the same key has been sent since, or is being sent. Needs a key.
    """

    jms_conn_id: str
    destination: str
    message: JmsMessage = field(repr=False)
    due_at: datetime
    activation: str = ""
    key: str = ""
    again: bool = False
    most_tries: int = LIMBO_TRIES
    failure: Failure | None = field(default=None, repr=False)
    once: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LimboMessage:
    """A message in limbo, without its content; what isn't explained here is as in `LimboEntry`.

    Attributes:
        number: What it is called by; never given twice.
        state: What becomes of it.
        put_at: When it was put there.
        tries: How often sending it failed.
        most_tries: How often it may fail.
        exception_class: Why it failed last; empty if it didn't.
        exception_message: The exception's text.
    """

    number: int
    state: LimboState
    jms_conn_id: str
    destination: str
    activation: str
    put_at: datetime
    due_at: datetime
    tries: int
    most_tries: int = LIMBO_TRIES
    exception_class: str = ""
    exception_message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimboSelection:
    """Which messages in limbo; what is `None` leaves none out.

    Attributes:
        numbers: With one of these numbers.
        state: In this state.
        activation: Of this activation.
        jms_conn_id: To be sent over this connection.
        destination: Sent to this one, whatever its options are; as `Destination` writes it.
    """

    numbers: frozenset[int] | None = None
    state: LimboState | None = None
    activation: str | None = None
    jms_conn_id: str | None = None
    destination: str | None = None


EVERYTHING: Final = LimboSelection()
"""All messages in limbo."""


class Limbo(Protocol):
    """Messages that are due later, and those that could not be sent.

    Guarantee: a message is here from the return of `put` until `sent` has returned, whatever is killed in
    between. It is leased to one process at a time. When the lease of a dead process has run out, another one
    takes the message over. That one finds out whether the message was sent, and drops it or gives it back.

    Source: P12-P19.
    """

    def now(self) -> datetime:
        """Return the time by the clock of the database: with SQLite this host's, else the server's."""

    def put(self, entries: Sequence[LimboEntry], now: datetime) -> list[int]:
        """Keep these messages, all or none.

        Returns:
            Numbers of the entries, in the same order; none of an entry that is to be sent once, and has been.
        """

    def settled(self, activation: str, keys: Collection[str]) -> None:
        """Forget the keys of entries that were to be sent once: nobody puts them here again."""

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
        """Lease messages that are due and that nobody leases, those due first before the others.

        Args:
            now: Messages due until then.
            owner: Who is going to send them; unique to a process.
            until: When others may take them over.
            limit: No more than this.
            leave: Connections whose messages are left where they are.
            connections: Lease only messages of these connections; `None`: of all but private ones
                (`PRIVATE`).
        """

    def take_over(
        self,
        now: datetime,
        *,
        until: datetime,
        leave: Collection[str] = (),
        connections: Collection[str] | None = None,
    ) -> dict[str, list[LimboMessage]]:
        """Return messages whose lease has run out, by the owners that may have sent them.

        They stay leased to these owners, and nobody else gets them before `until`: whoever calls this speaks
        for the owners (`sent`, `give_back`).

        Args:
            now: Leases that have run out by then.
            until: When the next may take them over.
            leave: As of `lease`.
            connections: As of `lease`.
        """

    def sent(self, owner: str, numbers: Collection[int]) -> int:
        """Drop messages that the owner has sent and still leases; return how many those were."""

    def give_back(
        self,
        owner: str,
        numbers: Collection[int],
        *,
        due_at: datetime | None = None,
        failure: Failure | None = None,
    ) -> None:
        """End the owner's lease of messages that were not sent.

        Args:
            owner: Who leased them.
            numbers: Which.
            due_at: When they are tried again; `None` with a failure: never, they have failed for good; `None`
                without: as before.
            failure: Why they could not be sent, which counts as a try; `None`: they weren't tried.
        """

    def contents(self, numbers: Collection[int]) -> dict[int, JmsMessage | ConfigurationError]:
        """Return messages by their numbers, without those that aren't here.

        In place of one that can't be decrypted, or isn't a message, stands the error that says so.
        """

    def page(
        self, selection: LimboSelection = EVERYTHING, *, limit: int = 100, after: int = 0
    ) -> list[LimboMessage]:
        """Return messages in the order of their numbers, from the one behind the number `after`."""

    def activations(self) -> frozenset[str]:
        """Return the activations that messages are here of."""

    def revive(self, selection: LimboSelection, now: datetime) -> int:
        """Let failed messages be sent now, with all their tries; return how many. Source: P17."""

    def release(self, selection: LimboSelection, now: datetime) -> int:
        """Let waiting messages be sent now; return how many."""

    def purge(self, selection: LimboSelection, now: datetime) -> int:
        """Drop messages, but those that somebody is sending now, and forget their keys; return how many."""


class WantedState(StrEnum):
    """A state requested for an activation. It lasts until somebody resumes the activation."""

    SUSPENDED = "suspended"
    """Runs stay, and deliver nothing until they are resumed."""
    DRAINED = "drained"
    """Runs finish the messages in their handlers, take nothing new, and end."""
    STOPPED = "stopped"
    """Runs end at once; handlers get the usual time limit of a stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationOrder:
    """The requested state of an activation.

    Attributes:
        activation: Name of the activation, as stored (`stored_name`).
        wanted: The requested state.
        reason: The reason given with the request.
        asked_by: The user, or the handler and its message.
        where: Host and process of the request.
        since: Time of the request, by the store's clock.
    """

    activation: str
    wanted: WantedState
    reason: str
    asked_by: str
    where: str
    since: datetime

    @property
    def ends_runs(self) -> bool:
        """Whether runs end, and new ones are refused."""
        return self.wanted is not WantedState.SUSPENDED

    def __str__(self) -> str:
        """Return the request as a sentence, with the command that withdraws it."""
        return (
            f"{self.wanted} since {self.since.isoformat(timespec='seconds')} by {self.asked_by} "
            f"({self.where}): {self.reason or 'no reason given'}. Nothing is consumed until somebody resumes "
            f"it: airflow jms activations resume {shlex.quote(self.activation)}"
        )


class ActivationKind(StrEnum):
    """What consumes: the kind of an activation's run."""

    LISTENER = "listener"
    TRIGGER = "trigger"
    COLLECTOR = "collector"
    STREAM = "stream"


class RunStatus(StrEnum):
    """State of one run of an activation."""

    CONNECTING = "connecting"
    UP = "up"
    SUSPENDED = "suspended"
    DRAINING = "draining"
    STOPPING = "stopping"
    ENDED = "ended"
    """The run has ended and reported it."""
    LOST = "lost"
    """The process died, or sent no heartbeat for `SILENT_FOR`. Never stored, derived when runs are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """The state of one run of an activation, as its process reports it.

    Times are by the store's clock.

    Attributes:
        run: Unique id of the run.
        activation: Name of the activation; on reading as stored (`stored_name`).
        title: Name of the activation for display, cut to 2,000 characters.
        kind: What consumes.
        owner: The task, asset or application that runs it.
        broker: Address of the broker, without secrets.
        destination: The destinations, as text.
        spec_digest: SHA-256 of the activation spec in force; equal specs have equal digests.
        status: State of the run.
        started_at: When the run began.
        since: When it entered its state.
        delivered: Deliveries to the handler; each attempt counts.
        committed: Messages settled after their handler returned.
        rolled_back: Deliveries rolled back.
        moved: Messages moved to another destination, dead letters included.
        deleted: Messages deleted by the redelivery handling.
        dead_lettered: Messages moved because they failed.
        in_flight: Messages received and not settled.
        backlog: Messages waiting at the broker; `None` if the broker does not report it.
        last_message_at: When a message was last delivered; `None`: none was.
        last_error: The latest error; empty if there was none.
        last_error_at: When that error was first reported.
    """

    run: str
    activation: str
    title: str = ""
    kind: ActivationKind
    owner: str
    broker: str
    destination: str
    spec_digest: str = ""
    status: RunStatus
    started_at: datetime
    since: datetime
    delivered: int = 0
    committed: int = 0
    rolled_back: int = 0
    moved: int = 0
    deleted: int = 0
    dead_lettered: int = 0
    in_flight: int = 0
    backlog: int | None = None
    last_message_at: datetime | None = None
    last_error: str = ""
    last_error_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationRun:
    """One run of an activation in the registry.

    Attributes:
        report: The latest report; its `status` is `LOST` if the process died without reporting the end.
        process: Host and process, unique (`Owners`).
        host: Name of the host.
        pid: Process id on that host.
        seen_at: The latest report or heartbeat, by the store's clock.
    """

    report: RunReport
    process: str
    host: str
    pid: int
    seen_at: datetime


class Activations(Protocol):
    """The registry of activations: their runs in all processes, and the states requested for them.

    A requested state belongs to the activation and not to a process: it outlives restarts. Source: J172.
    """

    def want(self, activation: str, wanted: WantedState, *, reason: str, asked_by: str) -> None:
        """Store the state requested from now on. A repeated request for the same state changes nothing."""

    def order(self, activation: str) -> ActivationOrder | None:
        """Return the request for an activation; `None`: it may run."""

    def page(self, *, limit: int = 100, after: int = 0) -> list[ActivationOrder]:
        """Return requests, sorted by the names of their activations.

        Args:
            limit: Maximum number of requests.
            after: Number of requests to skip.
        """

    def resume(self, activations: Collection[str]) -> int:
        """Delete the requests for these activations, by name or as listed; return their number."""

    def report(self, reports: Collection[RunReport]) -> None:
        """Store the state of runs of this process, in one statement for each 500, and keep it alive.

        From the first report on, the process sends heartbeats until `Owners.leave`.
        """

    def orders(self) -> dict[str, ActivationOrder]:
        """Return the requests for activations with runs in this process, by stored name."""

    def runs(self, activations: Collection[str] | None = None) -> list[ActivationRun]:
        """Return the runs, sorted by activation and start.

        Args:
            activations: Only runs of these, by name or as listed; `None`: all.
        """

    def sweep(
        self,
        *,
        keep: int = KEPT_RUNS,
        ended_for: timedelta = KEPT_ENDED_FOR,
        lost_for: timedelta = KEPT_FOR,
    ) -> int:
        """Drop old runs that have ended or are lost, and return how many. Runs of live processes stay.

        Args:
            keep: Maximum number of ended and lost runs to keep, the latest.
            ended_for: How long ended runs are kept.
            lost_for: How long lost runs are kept.
        """


class Store(Protocol):
    """All that must outlive a process. A feature is an attribute."""

    @property
    def attempts(self) -> Attempts:
        """How often messages were handed over."""

    @property
    def owners(self) -> Owners:
        """The processes that hold messages."""

    @property
    def handled(self) -> HandledIds:
        """Ids of messages that were handled."""

    @property
    def activations(self) -> Activations:
        """The registry of activations: their runs, and the states requested for them."""

    @property
    def limbo(self) -> Limbo:
        """Messages that are due later, and those that could not be sent."""

    def close(self) -> None:
        """Let go of connections and files; this process holds nothing any more."""


def stored_name(text: str) -> str:
    """Return what is stored for the name of an activation or the id of a message.

    That is the text itself, if it is printable ASCII of at most 200 characters. Otherwise it is a digest of
    it: ids are a producer's word, of any length and with any character.
    """
    if len(text) <= _LONGEST_NAME and text.isascii() and text.isprintable() and text[:7] != _DIGESTED:
        return text
    return _DIGESTED + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def listed_name(text: str) -> str:
    """Return what is stored for a name that somebody has typed, or copied from a list of what is stored."""
    return text if _IS_DIGEST.fullmatch(text) else stored_name(text)


def stored_text(text: str) -> str:
    """Return a text as every database takes it: no NUL, no half characters, 2,000 characters at most."""
    return text[:_LONGEST_TEXT].replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def to_milliseconds(moment: datetime) -> int:
    """Return a moment as it is stored: milliseconds since the epoch."""
    return round(moment.timestamp() * 1000)


def from_milliseconds(milliseconds: int) -> datetime:
    """Return a stored moment, in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
