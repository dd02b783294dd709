"""Records of an activation in the store: attempts at its messages, and ids of handled messages."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final, TypeVar

from airflow_provider_jmsjca.core.copies.dead_letter import without_secrets
from airflow_provider_jmsjca.core.delivery.events import AttemptRecorded, FoundInDoubt
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.failure import Failure
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.message.message import stable_digest
from airflow_provider_jmsjca.core.options.choices import InDoubtEvents
from airflow_provider_jmsjca.engine.delivering.delayed_messages import DelayedMessages
from airflow_provider_jmsjca.engine.delivering.settings import ListenerSettings, activation_name
from airflow_provider_jmsjca.errors import DeliveryStoppedError, TransientStoreError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.store.base import BEAT_EVERY, MessageAttempts, Store, WantedState

_log = safe_logger("airflow_provider_jmsjca.listener")

AHEAD: Final = 63
"""Maximum number of waiting messages whose first attempt is stored together with the current one."""

_TRY_AGAIN_SECONDS = 1.0
_T = TypeVar("_T")
_SWEEP_EVERY = timedelta(minutes=10)
_SWEEP_AFTER = 20_000
_FLUSH_AT = 200
_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class AttemptLookup:
    """The answer of the store about one message.

    Attributes:
        attempt: The number of the attempt that begins, from 1.
        handled: A handler has completed the message, so it must not be delivered.
        doubtful: The previous attempt has an unknown outcome, because its process died or its connection was
            lost.
    """

    attempt: int
    handled: bool = False
    doubtful: bool = False


class AttemptLog:
    """Records the attempts of one run of an activation.

    Each attempt is stored before the message is delivered, so an attempt that ends in a crash counts. To save
    writes, the write for one message also counts a first attempt at the new messages that wait behind it. A
    redelivered message is counted on its own, just before its delivery. So a crash adds at most one attempt
    to a message that was only waiting, as the broker's redelivered flag does.

    Settlements, undone attempts and exceptions of attempts are written with the next attempt, or when the run
    is idle. A crash before that leaves one count too many or one entry too few in the history, and loses no
    message.

    The id of a handled message is written before the message is acknowledged, or after the commit if the unit
    of work sends messages. The ids of a handled batch are written together with the attempts at the next
    batch.

    Safe to use from several threads at once.

    Args:
        store: The store.
        activation: The activation's name in the store; see `activation_name`.
        title: The activation's name in the log.
        whole: Name in the store under which all parts of the activation are stopped and resumed; empty:
            `activation`.
        several: The activation consumes several destinations, so copies of a message in two of them are
            counted separately.
        keeps_ids: The ids of handled messages are stored, too.
        by_id: A handled message is recognised by its id alone; otherwise by a digest of its content.
        clock: Returns the current time, with a time zone.

    Attributes:
        keeps_ids: Whether the ids of handled messages are stored.
        trouble: Why the store can't be used now; empty while it can.

    Source: J129-J132, I15, I17.
    """

    def __init__(
        self,
        store: Store,
        activation: str,
        *,
        title: str,
        whole: str = "",
        several: bool = False,
        keeps_ids: bool = False,
        by_id: bool = True,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store = store
        self._activation = activation
        self._title = title
        self._whole = whole or activation
        self._several = several
        self._clock = clock
        self.keeps_ids = keeps_ids
        self._by_id = by_id
        self.trouble = ""
        # One transaction at a time, so that each thread finds the records of the previous one.
        self._writing = threading.Lock()
        self._lock = threading.Lock()
        self._ahead: dict[str, AttemptLookup] = {}
        self._begun: set[str] = set()
        self._again: set[str] = set()
        self._settled: list[str] = []
        self._unused: list[str] = []
        self._failures: dict[str, Failure] = {}
        self._generation = 0
        self._ended = False
        self._written = 0
        self._next_sweep = clock()
        self._next_beat = clock()

    def name(self, message_id: str, destination: Destination) -> str:
        """Return the name of a message in the store, by its id and origin."""
        return f"{message_id} from {destination}" if self._several else message_id

    # -- whether messages may be delivered at all -----------------------------------------------------------

    def refuse_if_stopped(self) -> None:
        """Raise if the activation was stopped or drained, by a handler or a user, and not resumed since.

        Raises:
            DeliveryStoppedError: The delivery is stopped; the text says why, and how to resume it.
            TransientStoreError: The store can't be used now.

        Source: J172.
        """
        order = self._store.activations.order(self._whole)
        if order is not None and order.ends_runs:
            raise DeliveryStoppedError(str(order))

    def keep_stop(self, reason: str, message_id: str | None, wanted: Callable[[], bool]) -> None:
        """Store a handler's request to stop the activation, before the handler's message is acknowledged.

        While the store is unavailable, this retries every second. If the message can no longer be
        acknowledged, the stop ends this run only, and the log says so.

        Args:
            reason: The handler's reason.
            message_id: Id of the handler's message; `None`: unknown.
            wanted: Called before each wait; returns whether the message can still be acknowledged.
        """
        asked_by = "the handler" if message_id is None else f"the handler of message {message_id}"
        try:
            self.insist(
                lambda: self._store.activations.request_state(
                    self._whole, WantedState.STOPPED, reason=reason, asked_by=asked_by
                ),
                wanted,
            )
        except TransientStoreError as error:
            _log.error(
                "%s: the stop could not be stored; the next run will consume again unless you stop it "
                "(airflow jms activations stop): %s",
                self._title,
                error,
            )

    # -- before the hand-over -----------------------------------------------------------------------------

    def handled_name(self, message: JmsMessage, destination: Destination) -> str:
        """Return the name of a handled message in the store; the message must have an id.

        If duplicates are dropped, the name is derived from the id. Otherwise it is a digest of the message
        and its content, because a producer or a reinstalled broker may reuse ids.

        Args:
            message: The message as the handler gets it.
            destination: The destination from which it was received.
        """
        if self._by_id:
            return self.name(message.message_id or "", destination)
        return stable_digest(message, destination) or ""

    def begin(
        self,
        messages: Collection[str],
        ahead: Callable[[], Iterable[str]] = tuple,
        handled_names: Mapping[str, str] = MappingProxyType({}),
    ) -> dict[str, AttemptLookup]:
        """Store an attempt at each of these messages, and return the store's answers by message name.

        Args:
            messages: Names of the messages; a repeated name is counted once.
            ahead: Returns the names of messages that wait behind these and were not delivered before. An
                attempt at each of them is stored in the same write; `counted_ahead` returns the answers.
            handled_names: Results of `handled_name` by message name, where the two names differ.

        Raises:
            TransientStoreError: The store can't be used; none of these attempts is stored.
        """
        found = self._known_ahead(messages)
        if len(found) == len(set(messages)):
            return found
        with self._writing:
            found |= self._known_ahead([each for each in messages if each not in found])
            wanted = [each for each in messages if each not in found]
            if not wanted:
                return found
            answers = self._write_attempts(wanted, ahead, handled_names)
            return found | {each: answers[each] for each in wanted}

    def counted_ahead(self, message: str) -> AttemptLookup | None:
        """Return the store's answer about a message whose attempt an earlier `begin` stored ahead.

        `None`: no attempt was stored ahead, so call `begin`. This call doesn't block.
        """
        if message not in self._ahead:
            return None
        return self._known_ahead((message,)).get(message)

    def _known_ahead(self, messages: Iterable[str]) -> dict[str, AttemptLookup]:
        with self._lock:
            found = {each: self._ahead.pop(each) for each in messages if each in self._ahead}
            self._begun.update(found)
            return found

    def _write_attempts(
        self,
        wanted: Collection[str],
        ahead: Callable[[], Iterable[str]],
        handled_names: Mapping[str, str] = MappingProxyType({}),
        handled: Collection[str] = (),
    ) -> dict[str, AttemptLookup]:
        """Store attempts at the messages of `wanted` and `ahead`, and the names in `handled`, in one write.

        Args:
            wanted: Names of the messages, as for `begin`.
            ahead: As for `begin`.
            handled_names: As for `begin`.
            handled: Names of handled messages, as `handled_name` returns them.

        Returns:
            The store's answers by message name.
        """
        generation, begun = self._generation, self._begun
        coming = () if self._ended else ahead()
        more = [
            each for each in coming if each not in begun and each not in self._ahead and each not in wanted
        ]
        answers = self._store_attempts(dict.fromkeys((*wanted, *more)), handled_names, handled)
        with self._lock:
            if generation == self._generation:
                self._ahead |= {each: answers[each] for each in more}
            else:  # they have gone back to the broker
                self._unused += more
            self._begun.update(wanted)
        return answers

    def _store_attempts(
        self, names: Collection[str], handled_names: Mapping[str, str], handled_now: Collection[str] = ()
    ) -> dict[str, AttemptLookup]:
        with self._in_order():
            now = self._clock()
            if now >= self._next_beat:  # the first; from then on it goes by itself
                self._store.owners.heartbeat(self._store.owners.now())
                self._next_beat = now + BEAT_EVERY
            handled: frozenset[str] = frozenset()
            with self._pending_written():
                if handled_now:
                    self._store.handled.add(self._activation, handled_now, now)
                numbers = self._store.attempts.begin(self._activation, names, now)
                again = [each for each in names if numbers[each] > 1]
                doubtful = self._store.attempts.doubtful(self._activation, again) if again else frozenset()
                if self.keeps_ids:
                    called = {each: handled_names.get(each, each) for each in names}
                    known = self._store.handled.known(self._activation, tuple(called.values()))
                    handled = frozenset(each for each in names if called[each] in known)
            self._written += len(names)
            self._sweep(now)
        self._again.update(again)
        return {each: AttemptLookup(numbers[each], each in handled, each in doubtful) for each in names}

    def were_attempted_before(self, messages: Iterable[str]) -> bool:
        """Return whether any of these messages had an attempt before the current one."""
        return bool(self._again) and not self._again.isdisjoint(messages)

    # -- after it -----------------------------------------------------------------------------------------

    def failed(self, message: str, failure: Failure, secrets: Iterable[str]) -> None:
        """Note the exception that ended an attempt, without secrets, for the next write to the store."""
        shown = without_secrets(failure, secrets)
        with self._lock:
            self._failures[message] = shown

    def take_back(self, message: str) -> None:
        """Note that an attempt at a message doesn't count; the next write to the store undoes it."""
        with self._lock:
            self._unused.append(message)
            self._begun.discard(message)

    def settled(self, messages: Iterable[str]) -> None:
        """Note that messages are settled; the next write to the store deletes their attempts."""
        messages = tuple(messages)
        with self._lock:
            self._settled += messages
            self._begun.difference_update(messages)
            self._again.difference_update(messages)

    def handled(
        self,
        messages: Collection[str],
        wanted: Callable[[], bool],
        ahead: Callable[[], Iterable[str]] | None = None,
    ) -> None:
        """Store that a handler has completed messages, before they are acknowledged.

        While the store is unavailable, this retries every second.

        Args:
            messages: Names of these messages, as `handled_name` returns them.
            wanted: Called before each wait; returns whether the messages can still be acknowledged.
            ahead: As for `begin`: attempts are stored in the same write. `None`: no attempts.

        Raises:
            TransientStoreError: The names are not stored, and the messages can no longer be acknowledged.
        """
        if not (self.keeps_ids and messages):
            return
        if ahead is None:
            self.insist(lambda: self._store.handled.add(self._activation, messages, self._clock()), wanted)
        else:
            self.insist(lambda: self._write_attempts((), ahead, handled=messages), wanted)

    def insist(self, write: Callable[[], _T], wanted: Callable[[], bool]) -> _T:
        """Call a function that writes to the store; while the store is unavailable, retry every second.

        Args:
            write: Writes to the store.
            wanted: Called before each wait; returns whether the result is still needed.

        Raises:
            TransientStoreError: The write failed, and its result is no longer needed.
        """
        pause = threading.Event()
        while True:
            try:
                with self._writing, self._in_order():
                    return write()
            except TransientStoreError:
                if not wanted():
                    raise
                pause.wait(_TRY_AGAIN_SECONDS)

    def flush(self, *, least: int = 1) -> None:
        """Write pending records; those that can't be written now are kept.

        Args:
            least: Minimum number of pending entries for a write.
        """
        if len(self._settled) + len(self._unused) + len(self._failures) < least:
            return
        try:
            with self._writing, self._in_order(), self._pending_written():
                pass
        except TransientStoreError as error:
            _log.debug("%s: not written yet: %s", self._title, error)

    def flush_much(self) -> None:
        """Flush if many records are pending."""
        self.flush(least=_FLUSH_AT)

    def undo(self) -> None:
        """Write pending records, among them undone attempts, before the messages return to the broker.

        Otherwise another process may receive these messages first, and count one attempt too many. While the
        store is unavailable, the records are kept.
        """
        with self._writing:  # a write under way may have them
            pass
        self.flush()

    def give_back(self) -> None:
        """Let the next write undo the attempts that `begin` stored ahead of their deliveries.

        Their messages return to the broker undelivered.
        """
        with self._lock:
            self._generation += 1
            self._unused += self._ahead
            self._ahead.clear()
            self._begun.clear()
            self._again.clear()

    def end(self) -> None:
        """Write pending records, and note that unsettled messages return to the broker and aren't in doubt.

        An attempt may still be stored after this call, by a `begin` that is under way. The caller of that
        `begin` must undo it with `take_back`.
        """
        self._ended = True
        self.give_back()
        self.flush()
        try:
            with self._writing:
                self._store.attempts.ended(self._activation)
        except TransientStoreError as error:
            _log.warning(
                "%s: the end of the run could not be stored; its unsettled messages will be reported as in "
                "doubt: %s",
                self._title,
                error,
            )

    def left_in_doubt(self) -> list[MessageAttempts]:
        """Return the unsettled messages of processes that have died.

        Raises:
            TransientStoreError: The store can't be used.
        """
        found: list[MessageAttempts] = []
        attempts = self._store.attempts
        living = self._store.owners.live(attempts.open_at(), self._store.owners.now())
        while some := attempts.page(self._activation, open_only=True, after=len(found), limit=_PAGE):
            found += some
        return [each for each in found if each.where not in living]

    @contextmanager
    def _pending_written(self) -> Iterator[None]:
        """Write pending records and the block's own records in one transaction.

        If the transaction fails, the pending records are kept for the next write.
        """
        with self._lock:
            failures, self._failures = self._failures, {}
            unused, self._unused = self._unused, []
            settled, self._settled = self._settled, []
        attempts, name = self._store.attempts, self._activation
        left = unused
        try:
            with self._store.transaction():
                # How an attempt ended, before it is taken back; that, before its message is forgotten.
                if failures:
                    attempts.failed(name, failures)
                while left:  # one that was counted twice is taken back twice
                    once = set(left)
                    attempts.take_back(name, once)
                    left = list((Counter(left) - Counter(once)).elements())
                if settled:
                    attempts.forget(name, settled)
                yield
        except BaseException:
            with self._lock:
                self._failures = failures | self._failures
                self._unused = unused + self._unused
                self._settled = settled + self._settled
            raise

    def _sweep(self, now: datetime) -> None:
        if now >= self._next_sweep or self._written >= _SWEEP_AFTER:
            self._next_sweep, self._written = now + _SWEEP_EVERY, 0
            try:
                self._store.attempts.sweep(now)
                self._store.handled.sweep(now)
            except TransientStoreError as error:
                # The attempts are stored by now; if `begin` raised, they would be counted again.
                _log.warning(
                    "%s: old records could not be deleted from the store; retrying later: %s",
                    self._title,
                    error,
                )

    def _in_order(self) -> _StoreCall:
        return _StoreCall(self)

    def note_trouble(self, error: TransientStoreError | None) -> None:
        """Log once that the store is unavailable, and once that it is available again."""
        trouble = "" if error is None else str(error)
        if trouble and not self.trouble:
            _log.error(
                "%s: %s; no message is handled or acknowledged until the store is available again",
                self._title,
                trouble,
            )
        elif self.trouble and not trouble:
            _log.info("%s: the store is available again", self._title)
        self.trouble = trouble
        if trouble:  # messages counted ahead wait too, and are counted again
            with self._lock:
                self._unused += self._ahead
                self._ahead.clear()


class _StoreCall:
    """The context of a call to the store; notes whether the store could be used."""

    def __init__(self, attempt_log: AttemptLog) -> None:
        self._attempt_log = attempt_log

    def __enter__(self) -> None:
        """Do nothing; `__exit__` notes whether the store could be used."""

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        """Note whether the store could be used."""
        if error is None or isinstance(error, TransientStoreError):
            self._attempt_log.note_trouble(error)


def attempt_log_of(settings: ListenerSettings, *, keeps_ids: bool) -> AttemptLog | None:
    """Return the attempt log of a run; `None` if the run has no store.

    Args:
        settings: Settings of the run.
        keeps_ids: The ids of handled messages are stored, too.
    """
    if settings.store is None:
        return None
    return AttemptLog(
        settings.store,
        _name(settings),
        title=settings.name,
        whole=settings.whole,
        several=len(settings.delivery.sources) > 1,
        keeps_ids=keeps_ids,
        by_id=settings.drop_duplicates,
    )


def delayed_messages_of(settings: ListenerSettings) -> DelayedMessages | None:
    """Return an object that puts messages of a run in limbo; `None` if the run has no limbo."""
    if settings.store is None or not settings.has_limbo:
        return None
    return DelayedMessages(
        limbo=settings.store.limbo,
        activation=_name(settings),
        jms_conn_id=settings.jms_conn_id,
        most_tries=settings.limbo_tries,
        says_doubt=settings.in_doubt is not InDoubtEvents.IGNORE,
    )


def _name(settings: ListenerSettings) -> str:
    return activation_name(
        settings.name if settings.spec is None else settings.spec.title,
        settings.url,
        settings.subscription.durable_name,
        settings.client_id,
    )


def recorded(
    settings: ListenerSettings, delivery: int, found: AttemptLookup
) -> AttemptRecorded | FoundInDoubt:
    """Return the event that tells the machine that an attempt at a message is stored.

    Call it for a message that no handler has completed. A message in doubt has an event of its own, unless
    the settings let it be processed again.

    Args:
        settings: Settings of the run.
        delivery: Delivery number of the message in the machine.
        found: The store's answer about the message.

    Source: I10-I14.
    """
    if found.doubtful and settings.in_doubt is not InDoubtEvents.REPROCESS:
        return FoundInDoubt(delivery=delivery, attempt=found.attempt)
    return AttemptRecorded(delivery=delivery, attempt=found.attempt, in_doubt=found.doubtful)


def undo_attempts_in(
    attempt_log: AttemptLog | None, sources: Sequence[Destination]
) -> Callable[[str, int], object]:
    """Return a function that undoes a stored attempt at a message.

    The function takes the message id and the index of the message's source in `sources`.
    """
    if attempt_log is None:
        return lambda *_: None
    return lambda message_id, source: attempt_log.take_back(attempt_log.name(message_id, sources[source]))
