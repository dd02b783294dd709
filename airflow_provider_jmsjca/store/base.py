"""The interface of the store, its values, and the stored form of names.

Every call but `sweep` is one transaction: durable when it returns, without effect when it raises.
`Store.transaction` joins several calls. Any thread and any process may call any method.

Callers pass times as arguments, with a time zone. The times of leases, due messages and heartbeats are
compared between hosts. So callers take them from the database's clock, which all processes share
(`Limbo.now`, `Owners.now`).

Errors: every call may raise `TransientStoreError`. The only other error is `ConfigurationError`, for a value
that the database can't hold. A caller that protects a message with
a call must not acknowledge the message before the call has returned.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, Protocol

from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import ConfigurationError

KEPT_ATTEMPTS: Final = 5_000
"""Maximum number of messages with stored attempts for each activation."""  # J132

KEPT_IDS: Final = 32_768
"""Maximum number of ids of handled messages kept for an activation."""

KEPT_FOR: Final = timedelta(days=7)
"""Retention period of attempts and ids."""

KEPT_RUNS: Final = 1_000
"""Maximum number of ended and lost runs of activations that are kept."""

KEPT_ENDED_FOR: Final = timedelta(days=1)
"""Retention period of activation runs after their end."""

KEPT_SAMPLES_FOR: Final = timedelta(days=1)
"""Retention period of the samples of activations."""

KEPT_SAMPLES: Final = 1_000_000
"""Maximum number of samples kept: one day of 700 activations."""

KEPT_HISTORY: Final = 50
"""Number of latest attempts kept in the history of a message, besides the first attempt."""

LIMBO_TRIES: Final = 5
"""Maximum number of attempts to send a message that the broker refuses."""  # P16, limboDeliveryRetry

PRIVATE: Final = "@"
"""First character of the names of limbo connections known only to the process that stored the messages.

No Airflow connection has such a name, so Airflow's processes do not send these messages.
"""

BEAT_EVERY: Final = timedelta(seconds=10)
"""Interval of the heartbeats of a process that holds messages or runs activations."""

SILENT_FOR: Final = timedelta(seconds=60)
"""Time without a heartbeat after which a process counts as dead."""

_LONGEST_NAME = 200
_DIGESTED = "sha256:"
_IS_DIGEST = re.compile(_DIGESTED + "[0-9a-f]{64}")
_LONGEST_TEXT = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEntry:
    """One attempt to handle a message.

    Attributes:
        attempt: Number of the attempt, from 1.
        at: Start of the attempt.
        where: Host and process that made the attempt.
        exception_class: Class of the exception that ended the attempt; empty if unknown, for example after a
            crash.
        exception_message: Text of the exception.
    """

    attempt: int
    at: datetime
    where: str
    exception_class: str = ""
    exception_message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageAttempts:
    """The attempts at one message that was delivered and is not known to be settled.

    Attributes:
        activation: Name of the activation, as stored (`stored_name`).
        message: Message id, as stored.
        attempts: Number of attempts.
        first_at: Start of the first attempt.
        last_at: Start of the last attempt.
        where: Host and process of the last attempt.
        open: Whether the outcome of the last attempt is unknown.
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
    """Selects messages by their attempts. `None` in a field selects all.

    Attributes:
        activation: Name of the activation, as stored.
        message: Message id, as stored.
        at_least: Minimum number of attempts.
        open_at: Select only messages whose last attempt has an unknown outcome and was made by one of these
            processes (`MessageAttempts.where`).
    """

    activation: str | None = None
    message: str | None = None
    at_least: int = 1
    open_at: frozenset[str] | None = None


class Attempts(Protocol):
    """Counts the attempts at each message, for all consumers of an activation.

    Counts outlive the process: an attempt that ends in a crash also counts.
    """

    # J129-J132, where the counts end with the process.

    def begin(self, activation: str, messages: Collection[str], now: datetime) -> dict[str, int]:
        """Count a new attempt at each message.

        Returns:
            The number of the new attempt by message id, from 1.
        """

    def take_back(self, activation: str, messages: Collection[str]) -> None:
        """Undo the last attempt at each message, because the message was not delivered to a handler."""

    def failed(self, activation: str, failures: Mapping[str, Failure]) -> None:
        """Store the exceptions that ended the last attempts at messages; unknown messages are ignored.

        Args:
            activation: Name of the activation.
            failures: The exceptions, by message id.
        """

    def forget(self, activation: str, messages: Collection[str]) -> None:
        """Delete the attempts at these messages, after they were settled or to restart counting."""

    def doubtful(self, activation: str, messages: Collection[str]) -> frozenset[str]:
        """Return the messages whose attempt before the current one has an unknown outcome.

        Another process made the earlier attempt, and neither settled the message nor reported a failure.
        """

    def ended(self, activation: str) -> None:
        """Record that this process ended in an orderly way, so that none of its attempts is in doubt."""

    def page(
        self,
        activation: str | None = None,
        *,
        at_least: int = 1,
        limit: int = 100,
        after: int = 0,
        open_only: bool = False,
    ) -> list[MessageAttempts]:
        """Return messages, sorted by number of attempts and time of the last attempt, both descending.

        Args:
            activation: Name of an activation, or its stored name; `None`: all activations.
            at_least: Minimum number of attempts.
            limit: Maximum number of messages.
            after: Number of messages to skip.
            open_only: Return only messages whose last attempt has an unknown outcome.
        """

    def activations(self) -> frozenset[str]:
        """Return the names of the activations with stored attempts."""

    def open_at(self) -> frozenset[str]:
        """Return the processes (`MessageAttempts.where`) with attempts of unknown outcome."""

    def history(self, activation: str, message: str) -> list[AttemptEntry]:
        """Return the first attempt at a message and up to `KEPT_HISTORY` latest attempts, in order."""

    def reset(self, selection: AttemptSelection) -> int:
        """Delete the attempts at the selected messages, which restarts counting.

        Returns:
            The number of these messages.
        """

    def resolve(self, selection: AttemptSelection) -> int:
        """Mark last attempts of unknown outcome at the selected messages as ended; return their number."""

    def sweep(self, now: datetime, *, keep: int = KEPT_ATTEMPTS, max_age: timedelta = KEPT_FOR) -> int:
        """Delete the attempts at old messages.

        For each activation, the attempts at the latest `keep` messages are kept. Those at other messages are
        deleted, and those whose last attempt is older than `max_age`.

        Args:
            now: The current time.
            keep: Number of messages with attempts to keep for each activation. Messages as old as the oldest
                of them are kept too.
            max_age: Maximum age of the last attempt at a message.

        Returns:
            The number of messages whose attempts were deleted.
        """


class Owners(Protocol):
    """The live processes that hold messages or run activations.

    A process without a heartbeat for `SILENT_FOR` is dead. A process on this host that has ended is dead at
    once.
    """

    def now(self) -> datetime:
        """Return the time of the database's clock: this host's clock for SQLite, else the server's."""

    def heartbeat(self, now: datetime) -> None:
        """Send a heartbeat of this process."""

    def leave(self) -> None:
        """Remove this process, because it no longer holds messages or runs activations."""

    def live(self, owners: Collection[str], now: datetime) -> frozenset[str]:
        """Return the live processes among `owners`.

        Args:
            owners: Processes, as in `MessageAttempts.where`.
            now: Time by the database's clock.
        """


class HandledIds(Protocol):
    """The ids of handled messages of an activation, bounded by age and count."""

    # I15, I17

    def known(self, activation: str, messages: Collection[str]) -> frozenset[str]:
        """Return the message ids among `messages` that are stored as handled."""

    def add(self, activation: str, messages: Collection[str], now: datetime) -> None:
        """Store that these messages were handled."""

    def sweep(self, now: datetime, *, keep: int = KEPT_IDS, max_age: timedelta = KEPT_FOR) -> int:
        """Delete ids that exceed a maximum number or a maximum age; return the number of deleted ids.

        The arguments are those of `Attempts.sweep`, for ids instead of messages.
        """


class LimboState(StrEnum):
    """State of a message in limbo."""

    WAITING = "waiting"
    """The message is sent when it is due."""
    FAILED = "failed"
    """Sending the message failed too often, or the message had failed before it was put in limbo.

    It stays until an operator revives or purges it.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class LimboEntry:
    """A message to put in limbo.

    Attributes:
        jms_conn_id: Airflow connection that sends the message; `orders@host:port` is one host of the
            connection.
        destination: Target of the message with its options, as `sending_text` writes it.
        message: The message.
        due_at: Time from which the message is sent.
        activation: Activation that consumes or sent the message; empty if a task published it.
        key: Identifies the message among those of the activation; empty for a message without identity.
        again: The message was delivered before and may already be in limbo. Without `once`, this entry
            replaces the last message with the same key, if there is one.
        most_tries: Maximum number of attempts to send the message; after that its state is `FAILED`.
        failure: Reason of a permanent failure. The message is stored with the state `FAILED`, and is sent
            only after a user revived it.
        once: Remember the key until `Limbo.settled`, even after the message was sent. Requires a key. If
            `again` is set too, there are three cases. If a message with the same key is in limbo and isn't
            being sent, this entry replaces it. If such a message was sent or is being sent, this entry is not
            stored. If the key isn't known, this entry is stored.
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
    """A message in limbo, without its content. `LimboEntry` describes the other attributes.

    Attributes:
        number: Unique number, never reused.
        state: State of the message.
        put_at: Time at which the message was stored.
        tries: Number of failed attempts to send it.
        most_tries: Maximum number of attempts.
        exception_class: Class of the last exception; empty if no attempt failed.
        exception_message: Text of the last exception.
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
    """Selects messages in limbo. `None` in a field selects all.

    Attributes:
        numbers: Numbers of the messages.
        state: State of the messages.
        activation: Activation of the messages.
        jms_conn_id: Connection that sends the messages.
        destination: Target of the messages as text of a `Destination` without options; messages with any
            options match.
    """

    numbers: frozenset[int] | None = None
    state: LimboState | None = None
    activation: str | None = None
    jms_conn_id: str | None = None
    destination: str | None = None


EVERYTHING: Final = LimboSelection()
"""Selects all messages in limbo."""


class Limbo(Protocol):
    """Messages that are due later, and messages that could not be sent.

    A process takes a lease on messages before it sends them: the exclusive right to send them until the lease
    expires. If the process dies, another process takes its messages over when the lease has expired. The
    second process finds out which messages were sent. It deletes these, and ends the lease of the others.

    Guarantee: a message stays stored from the return of `put` until `sent` or `purge` deletes it, even after
    a crash.
    """

    # P12-P19

    def now(self) -> datetime:
        """Return the time of the database's clock: this host's clock for SQLite, else the server's."""

    def put(self, entries: Sequence[LimboEntry], now: datetime) -> list[int]:
        """Store these messages, all or none.

        Returns:
            Numbers of the stored entries in the same order. Entries that `LimboEntry.once` excludes are left
            out.
        """

    def settled(self, activation: str, keys: Collection[str]) -> None:
        """Forget the keys of entries put with `once=True`, because the message that caused them is settled.

        The caller must not put these entries again.

        Args:
            activation: Activation of the entries.
            keys: Keys of the entries.
        """

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
        """Lease due messages that have no lease, the earliest due first, and return them.

        Args:
            now: Time by the database's clock.
            owner: Name of the sender that gets the lease. No other sender in any process has this name.
            until: Expiry of the lease.
            limit: Maximum number of messages.
            leave: Names of connections to skip.
            connections: Names of the connections to send over; `None`: all but private ones (`PRIVATE`).
        """

    def take_over(
        self,
        now: datetime,
        *,
        until: datetime,
        leave: Collection[str] = (),
        connections: Collection[str] | None = None,
    ) -> dict[str, list[LimboMessage]]:
        """Extend expired leases, and return their messages by the owner of the lease.

        The owner may have sent the messages before it died. The messages stay leased to that owner, so the
        caller passes the owner's name to `sent` and `give_back`.

        Args:
            now: Time by the database's clock.
            until: New expiry of the leases.
            leave: As in `lease`.
            connections: As in `lease`.
        """

    def sent(self, owner: str, numbers: Collection[int]) -> int:
        """Delete messages that the owner has sent and still leases; return their number."""

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
            owner: Owner of the lease.
            numbers: Numbers of the messages.
            due_at: Time of the next attempt. `None` with a failure: the state becomes `FAILED`. `None`
                without a failure: the time stays unchanged.
            failure: Reason of a failed attempt, which is counted; `None`: no attempt was made.
        """

    def contents(self, numbers: Collection[int]) -> dict[int, JmsMessage | ConfigurationError]:
        """Return the messages with these numbers in limbo, by number; unknown numbers are left out.

        For content that can't be decrypted or isn't a message, the value is an error.
        """

    def page(
        self, selection: LimboSelection = EVERYTHING, *, limit: int = 100, after: int = 0
    ) -> list[LimboMessage]:
        """Return messages with numbers above `after`, in the order of their numbers."""

    def activations(self) -> frozenset[str]:
        """Return the activations with messages in limbo."""

    def revive(self, selection: LimboSelection, now: datetime) -> int:
        """Make failed messages due now, and set their failed attempts to 0; return their number."""  # P17

    def release(self, selection: LimboSelection, now: datetime) -> int:
        """Make waiting messages due now; return their number."""

    def purge(self, selection: LimboSelection, now: datetime) -> int:
        """Delete messages that are not being sent, and forget their keys; return their number."""


class WantedState(StrEnum):
    """A state requested for an activation; it applies until a user resumes the activation."""

    SUSPENDED = "suspended"
    """Runs continue to exist, but deliver no messages until they are resumed."""
    DRAINED = "drained"
    """Runs finish the messages in their handlers, receive no new messages, and end."""
    STOPPED = "stopped"
    """Runs end at once; handlers have the usual time limit of a stop to finish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationOrder:
    """The requested state of an activation.

    Attributes:
        activation: Name of the activation, as stored (`stored_name`).
        wanted: The requested state.
        reason: The reason given with the request.
        asked_by: The user who made the request, or a text that names the handler and the message it handled.
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
        """Whether the requested state ends the runs of the activation and refuses new runs."""
        return self.wanted is not WantedState.SUSPENDED

    def __str__(self) -> str:
        """Return the request as a sentence, with the command that resumes the activation."""
        return (
            f"{self.wanted} since {self.since.isoformat(timespec='seconds')} by {self.asked_by} "
            f"({self.where}): {self.reason or 'no reason given'}. Nothing is consumed until somebody resumes "
            f"it: airflow jms activations resume {shlex.quote(self.activation)}"
        )


class ActivationKind(StrEnum):
    """Kind of consumer in a run of an activation."""

    LISTENER = "listener"
    TRIGGER = "trigger"
    COLLECTOR = "collector"
    STREAM = "stream"


class RunStatus(StrEnum):
    """State of one run of an activation."""

    CONNECTING = "connecting"
    UP = "up"
    WAITING = "waiting"
    """A deferred task waits in the triggerer until messages arrive."""
    SUSPENDED = "suspended"
    DRAINING = "draining"
    STOPPING = "stopping"
    ENDED = "ended"
    """The run has ended and reported it."""
    LOST = "lost"
    """The process died, or sent no heartbeat for `SILENT_FOR`. Not stored, but derived when runs are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """The state of one run of an activation, as its process reports it.

    Times are by the store's clock.

    Attributes:
        run: Unique id of the run.
        activation: Name of the activation; a report read from the store has its stored form (`stored_name`).
        title: Name of the activation for display, cut to 2,000 characters.
        kind: Kind of consumer.
        owner: The task, asset or application that runs the activation.
        broker: Address of the broker, without secrets.
        destination: The destinations, as text.
        spec_digest: SHA-256 of the activation spec in force; equal specs have equal digests.
        status: State of the run.
        started_at: Start of the run.
        since: Time at which the run entered its state.
        delivered: Deliveries to the handler; each attempt counts.
        committed: Messages settled after their handler returned.
        rolled_back: Deliveries rolled back.
        moved: Messages moved to another destination, dead letters included.
        deleted: Messages deleted by the redelivery handling.
        dead_lettered: Messages moved because they failed.
        in_flight: Messages received and not settled.
        backlog: Messages waiting at the broker; `None` if the broker does not report it.
        oldest_at: Time at which the first message waiting at the broker was sent, by the broker's clock;
            `None`: no message waits, or the broker does not report the time.
        last_message_at: Time of the last delivery; `None` before the first.
        last_error: The latest error; empty if no error occurred.
        last_error_at: Time at which this error was first reported.
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
    oldest_at: datetime | None = None
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

    @property
    def values_at(self) -> datetime | None:
        """Time of the last report of a run that is lost or has ended; `None` while the run still reports."""
        return self.seen_at if self.report.status in {RunStatus.LOST, RunStatus.ENDED} else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationSample:
    """Counts of an activation during one minute, over all its runs.

    Attributes:
        activation: Name of the activation; a sample read from the store has its stored form (`stored_name`).
        at: The minute. `add_samples` accepts any time within it; `samples` returns the start of the minute.
        delivered: Deliveries to the handler.
        committed: Messages settled after their handler returned.
        failed: Deliveries rolled back.
        dead_lettered: Messages moved because they failed.
        backlog: Messages waiting at the broker in the last report of the minute; `None`: not known.
        oldest_at: Time at which the first message waiting at the broker was sent; `None`: not known, or no
            message waits.
    """

    activation: str
    at: datetime
    delivered: int = 0
    committed: int = 0
    failed: int = 0
    dead_lettered: int = 0
    backlog: int | None = None
    oldest_at: datetime | None = None


class Activations(Protocol):
    """The registry of activations: their runs in all processes, and the states requested for them.

    A requested state belongs to the activation and not to a process: it outlives restarts.
    """

    # J172

    def request_state(self, activation: str, wanted: WantedState, *, reason: str, asked_by: str) -> None:
        """Request a state for an activation; repeating the request for the same state changes nothing."""

    def order(self, activation: str) -> ActivationOrder | None:
        """Return the requested state of an activation; `None`: no request, so the activation consumes."""

    def page(self, *, limit: int = 100, after: int = 0) -> list[ActivationOrder]:
        """Return requests, sorted by the names of their activations.

        Args:
            limit: Maximum number of requests.
            after: Number of requests to skip.
        """

    def resume(self, activations: Collection[str]) -> int:
        """Delete the requests for these activations; return their number.

        Args:
            activations: Names of activations, plain or in the stored form.
        """

    def report(self, reports: Collection[RunReport]) -> None:
        """Store the state of runs of this process, in one transaction.

        From the first report on, this process sends heartbeats until `Owners.leave`, so that its runs don't
        count as lost. Each SQL statement stores up to 500 runs.
        """

    def orders(self) -> dict[str, ActivationOrder]:
        """Return the requests for activations with runs in this process, by stored name."""

    def runs(self, activations: Collection[str] | None = None) -> list[ActivationRun]:
        """Return the runs, sorted by activation and start.

        Args:
            activations: Names of activations, plain or in the stored form; `None`: all.
        """

    def add_samples(self, samples: Collection[ActivationSample]) -> None:
        """Add the counts of samples to the stored counts of the same activation and minute.

        A backlog that is not `None` replaces the stored backlog, together with `oldest_at`.
        """

    def samples(self, activation: str, since: datetime) -> list[ActivationSample]:
        """Return the samples of an activation from `since` on, the oldest first.

        Args:
            activation: Name of the activation, plain or in the stored form.
            since: Start of the first minute to return, or a time in it.
        """

    def sweep(
        self,
        *,
        keep: int = KEPT_RUNS,
        max_ended_age: timedelta = KEPT_ENDED_FOR,
        max_lost_age: timedelta = KEPT_FOR,
        max_sample_age: timedelta = KEPT_SAMPLES_FOR,
        keep_samples: int = KEPT_SAMPLES,
    ) -> int:
        """Delete old runs that have ended or are lost; return the number of deleted runs.

        A run is deleted when its retention period is over or when `keep` later runs have ended or are lost.
        Old samples are deleted too, but not counted.

        Args:
            keep: Maximum number of ended and lost runs to keep, the latest.
            max_ended_age: Retention period of ended runs.
            max_lost_age: Retention period of lost runs.
            max_sample_age: Retention period of samples.
            keep_samples: Maximum number of samples to keep, the latest. No minute is kept in part: if the
                limit falls within a minute, all samples of this minute are deleted.
        """


class Store(Protocol):
    """State that outlives a process, with one attribute for each feature."""

    @property
    def attempts(self) -> Attempts:
        """Counts of attempts."""

    @property
    def owners(self) -> Owners:
        """The live processes that hold messages or run activations."""

    @property
    def handled(self) -> HandledIds:
        """Ids of handled messages."""

    @property
    def activations(self) -> Activations:
        """The registry of activations: their runs, and the states requested for them."""

    @property
    def limbo(self) -> Limbo:
        """Messages that are due later, and messages that could not be sent."""

    def transaction(self) -> AbstractContextManager[object]:
        """Commit the writes of a block in this thread together; an exception undoes all of them.

        If two transactions wait for each other's rows, the database rolls one of them back, and the block of
        that transaction raises.

        Raises:
            TransientStoreError: The store can't be used, or the database rolled the transaction back. Nothing
                of the block is stored.
        """

    def close(self) -> None:
        """Close connections and files, and remove this process from the registry of live processes."""


def stored_name(text: str) -> str:
    """Return the stored form of an activation's name or a message id.

    Printable ASCII of at most 200 characters is stored unchanged. Any other text is stored as a digest,
    because producers can choose ids of any length with any characters.
    """
    if len(text) <= _LONGEST_NAME and text.isascii() and text.isprintable() and text[:7] != _DIGESTED:
        return text
    return _DIGESTED + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def listed_name(text: str) -> str:
    """Return the stored form of a name that is given plain or in its stored form."""
    return text if _IS_DIGEST.fullmatch(text) else stored_name(text)


def stored_text(text: str) -> str:
    """Return a text that every database accepts: without NUL and surrogates, at most 2,000 characters."""
    return text[:_LONGEST_TEXT].replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def to_milliseconds(moment: datetime) -> int:
    """Return a time in its stored form: milliseconds since the epoch."""
    return round(moment.timestamp() * 1000)


_EPOCH = datetime.fromtimestamp(0, UTC)
_EARLIEST, _LATEST = (
    (moment - _EPOCH) // timedelta(milliseconds=1)
    for moment in (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))
)


def from_milliseconds(milliseconds: int) -> datetime:
    """Return a stored time, in UTC; a time that `datetime` can't hold becomes the nearest one."""
    nearest = min(max(milliseconds, _EARLIEST), _LATEST)
    return _EPOCH + timedelta(milliseconds=nearest)
