"""Dead letters: grouped by reason and origin, and sent back."""

from __future__ import annotations

import contextlib
import json
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import islice
from types import MappingProxyType
from typing import Final

from airflow_provider_jmsjca.core.copies.dead_letter import DeadLetter, dead_letter, restored
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.masking import masked_text
from airflow_provider_jmsjca.core.message import JmsMessage, PropertyValue
from airflow_provider_jmsjca.core.quantities import count_faults
from airflow_provider_jmsjca.core.selector import selector_text
from airflow_provider_jmsjca.errors import (
    CapabilityError,
    ConfigurationError,
    ConnectionLostError,
    PoisonMessageError,
)
from airflow_provider_jmsjca.escaping import escaped_json
from airflow_provider_jmsjca.operating.messages import moment
from airflow_provider_jmsjca.operating.queues import read_messages
from airflow_provider_jmsjca.transports.administration import (
    MessageSelection,
    QueueAdministration,
    QueueOperation,
)
from airflow_provider_jmsjca.transports.base import Connection, Outgoing, Received, Subscription
from airflow_provider_jmsjca.transports.receiving import BufferedConsumer, ReceivedUnit
from airflow_provider_jmsjca.transports.selecting import IDS_PER_SELECTOR, both, ids_selector

REPLAY_RUN: Final = "JMSJCA_ReplayRun"
"""Property of a replayed message: name of the replay that sent it."""
REPLAY_OF: Final = "JMSJCA_ReplayOf"
"""Property of a replayed message: id of the dead letter. Messages with the same value are duplicates."""
REPLAY_COUNT: Final = "JMSJCA_ReplayCount"
"""Property of a replayed message: number of replays that sent it back, including the latest."""
_OWN: Final = frozenset({REPLAY_RUN, REPLAY_OF, REPLAY_COUNT})
_UNIT: Final = 50
_SILENCE_SECONDS: Final = 1.0
_MOST_DIGITS: Final = 9
_MOST_LEFT: Final = 500
"""A replay ends when it has left this number of letters unacknowledged: they use up the prefetch."""
_MOST_COUNTED: Final = 10_000
"""Maximum number of letters that a dry run counts without browsing, because it holds them until the end."""
_GATHER_SECONDS: Final = 0.05
_LONGEST_REASON: Final = 300
_DEAD_LETTERS: Final = re.compile(r"(^|[._/-])(dlq|dead|dead[._-]?letters?)([._/-]|$)", re.IGNORECASE)
# Quoted values, numbers, and whole words with a digit, such as the id of a DAG run or the path of a file.
_VALUES: Final = re.compile(r"'[^']*'|\"[^\"]*\"|[^\s'\"(),;=]*\d[^\s'\"(),;=]*(?<![.:])")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterGroup:
    """Dead letters with the same reason and the same original destination.

    Attributes:
        reason: Class and text of the exception. Quoted values, numbers and words with digits are `…`.
        destination: The destination from which they were moved; `None` if their properties don't have it.
        count: Number of letters.
        first: Earliest time at which a letter was put on the queue, in milliseconds since the epoch.
        last: Latest such time, in milliseconds since the epoch.
        example: Message id of a letter of the group.
        example_reason: Class and first line of the exception of that letter, with its values; secrets are
            masked.
        deaths: The largest number of times that the broker dead-lettered one of the messages. `None` if the
            broker does not report it; only RabbitMQ's HTTP API does.
    """

    reason: str
    destination: Destination | None
    count: int
    first: int | None
    last: int | None
    example: str | None
    example_reason: str = ""
    deaths: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterList:
    """The dead letters of a queue.

    Attributes:
        groups: Groups by reason and original destination, the largest group first.
        examined: Number of dead letters in the groups.
        more: Whether the queue has more dead letters than those examined.
        note: Side effect of browsing on this broker, as a sentence; empty if there is none.
        total: Number of messages on the queue. `None` if the broker doesn't report it, or `more` is false.
        coverage: The share of the queue that the groups cover, as a sentence; empty if they cover all of it.
    """

    groups: tuple[DeadLetterGroup, ...]
    examined: int
    more: bool
    note: str
    total: int | None = None
    coverage: str = ""


def is_dead_letter_queue(name: str) -> bool:
    """Return whether a queue has the name of a dead-letter queue, such as `orders.dlq`, `DLQ` or `dead`."""
    return _DEAD_LETTERS.search(name) is not None


def list_dead_letters(
    administration: QueueAdministration, queue: str, *, selector: str | None = None, limit: int | None = 1000
) -> DeadLetterList:
    """Return the first dead letters of a queue in groups, and leave them on the queue.

    The letters themselves are not kept. Memory depends on the number of groups and on the size of the pages
    in which the broker shows a queue.

    Args:
        administration: Administration of the broker.
        queue: Name of the dead-letter queue.
        selector: Examine matching messages only.
        limit: Maximum number of dead letters to examine; `None`: all that the broker shows.

    Raises:
        CapabilityError: The broker does not browse, or ignores selectors.
        JmsError: The user is not allowed to browse, or the connection was lost.
    """
    groups = _Groups()
    found = read_messages(administration, queue, groups.add, selector=selector, limit=limit)
    coverage = ""
    if found.more:
        chosen = "" if selector_text(selector) is None else " that match the selector"
        of = "more" if found.total is None else str(found.total)
        coverage = f"the groups count the first {found.read} dead letters{chosen} of {of} on the queue"
    return DeadLetterList(
        groups=tuple(groups.sorted()),
        examined=found.read,
        more=found.more,
        note=found.note,
        total=found.total,
        coverage=coverage,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterQueue:
    """A queue that holds messages and is named like a dead-letter queue (`is_dead_letter_queue`).

    Attributes:
        name: Name of the queue.
        messages: Number of messages on it, by the broker's count.
        letters: The dead letters in groups; `None` if they were not browsed, because of `may_browse`.
    """

    name: str
    messages: int
    letters: DeadLetterList | None


def list_dead_letter_queues(
    administration: QueueAdministration, *, limit: int | None = 1000
) -> list[DeadLetterQueue]:
    """Return the dead-letter queues of a broker that hold messages; change nothing on the queues.

    Args:
        administration: Administration of the broker.
        limit: Maximum number of dead letters to examine on each queue; `None`: all that the broker shows.

    Raises:
        CapabilityError: The broker does not list its queues.
        JmsError: The user is not allowed to list or browse, or the connection was lost.
    """
    browses = may_browse(administration)
    return [
        DeadLetterQueue(
            name=each.name,
            messages=each.messages,
            letters=list_dead_letters(administration, each.name, limit=limit) if browses else None,
        )
        for each in administration.queues()
        if each.messages and is_dead_letter_queue(each.name)
    ]


def may_browse(administration: QueueAdministration, *, side_effects: bool = False) -> bool:
    """Return whether to browse dead letters of queues that the user has not named.

    Args:
        administration: Administration of the broker.
        side_effects: Whether the user accepts the side effect of browsing, see `browse_note` of
            `QueueAdministration`.
    """
    return QueueOperation.BROWSE in administration.operations and (
        side_effects or not administration.browse_note
    )


def grouped(letters: Iterable[JmsMessage]) -> list[DeadLetterGroup]:
    """Return dead letters grouped by reason and original destination, the largest group first."""
    groups = _Groups()
    for letter in letters:
        groups.add(letter)
    return groups.sorted()


@dataclass(slots=True)
class _Group:
    """Count, earliest and latest time of a group, and id and reason of its first letter."""

    example: str | None
    example_reason: str
    count: int = 0
    first: int | None = None
    last: int | None = None
    deaths: int | None = None


@dataclass(slots=True)
class _Groups:
    """Counts dead letters by reason and original destination, without keeping the letters."""

    _groups: dict[tuple[str, Destination | None], _Group] = field(default_factory=dict)

    def add(self, letter: JmsMessage) -> None:
        """Count a dead letter."""
        known = dead_letter(letter)
        key = _reason(known), known.destination
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(example=letter.message_id, example_reason=_exact_reason(known))
        group.count += 1
        if known.deaths is not None:
            group.deaths = max(known.deaths, group.deaths or 0)
        if at := known.moved or letter.timestamp:
            group.first = at if group.first is None else min(group.first, at)
            group.last = at if group.last is None else max(group.last, at)

    def sorted(self) -> list[DeadLetterGroup]:
        """Return the groups, the largest first."""
        found = [
            DeadLetterGroup(
                reason=text,
                destination=destination,
                count=group.count,
                first=group.first,
                last=group.last,
                example=group.example,
                example_reason=group.example_reason,
                deaths=group.deaths,
            )
            for (text, destination), group in self._groups.items()
        ]
        return sorted(found, key=lambda group: (-group.count, group.reason))


def move_details(letter: JmsMessage) -> dict[str, str]:
    """Return what is known about a dead letter's move, such as reason, origin and time, as texts by name."""
    known = dead_letter(letter)
    found = {
        "reason": ": ".join(filter(None, (known.exception_class, known.exception_message))),
        "came from": "" if known.destination is None else str(known.destination),
        "deliveries": "" if known.deliveries is None else str(known.deliveries),
        "moved by the broker": "" if known.deaths is None else times(known.deaths),
        "moved at": moment(known.moved),
    }
    return {name: text for name, text in found.items() if text}


def times(number: int) -> str:
    """Return a number of times as text, such as `once` or `3 times`."""
    return "once" if number == 1 else f"{number} times"


def reason(letter: JmsMessage) -> str:
    """Return why a message was dead-lettered; quoted values, numbers and words with digits are `…`."""
    return _reason(dead_letter(letter))


def _reason(known: DeadLetter) -> str:
    # Cut before replacing values: the time of the regular expression grows with the square of a word's
    # length.
    line = known.exception_message.partition("\n")[0][:_LONGEST_REASON]
    return _with_class(known, _VALUES.sub("\N{HORIZONTAL ELLIPSIS}", line))


def _exact_reason(known: DeadLetter) -> str:
    # Masked before it is cut, because masking does not recognise a part of a secret.
    line = masked_text(known.exception_message.partition("\n")[0])[:_LONGEST_REASON]
    return _with_class(known, line)


def _with_class(known: DeadLetter, line: str) -> str:
    return ": ".join(filter(None, (known.exception_class, line))) or "no reason is known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A request to send dead letters back: the selected letters, and their destinations.

    Attributes:
        run: Name of this replay. A letter that fails again during the replay is not sent back twice.
        target: Destination for all letters; `None`: each goes to its original destination.
        origins: Original destinations to which letters may be sent back. A producer can forge a letter's
            original destination, so a replay without `target` sends to these only.
        ids: Only send letters with these ids, as browsing shows them; empty: letters with any id.
        selector: Only send matching letters.
        most: Maximum number of letters to send; `None`: no limit.
        max_age: Don't send letters older than this by their JMS timestamp; `None`: no limit.
        per_second: Maximum number of letters sent in a second; `None`: no limit.
        dry_run: Count the letters that would be sent, and send none.

    Raises:
        ConfigurationError: Neither a target nor origins are given, or both. Or `most` is no whole number
            above 0, or `per_second` no number above 0.
    """

    run: str
    target: Destination | None = None
    origins: frozenset[Destination] = frozenset()
    ids: tuple[str, ...] = ()
    selector: str | None = None
    most: int | None = None
    max_age: timedelta | None = None
    per_second: float | None = None
    dry_run: bool = False

    def __post_init__(self) -> None:
        if (self.target is None) == (not self.origins):
            raise ConfigurationError(
                "give either one target for all dead letters (--to), or the original destinations that "
                "they may go back to (--origin)"
            )
        faults = [] if self.most is None else count_faults("most", self.most)
        if self.per_second is not None and not (
            isinstance(self.per_second, int | float) and 0 < self.per_second < math.inf
        ):
            faults.append(f"per_second is {self.per_second!r}; expected a number above 0")
        if faults:
            raise ConfigurationError(faults)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """Result of a replay.

    Attributes:
        sent: Number of letters sent back, by destination; with `dry_run` those that would be sent.
        left: Number of letters left on the queue, by reason.
        complete: Whether all selected letters on the queue were examined. A replay or its dry run ends when
            500 examined letters stay on the queue. ActiveMQ Classic delivers no further letters when 200
            stay. On a broker without browsing, a dry run examines the first 10,000 letters. On ActiveMQ
            Classic a dry run examines only the letters that the broker shows (`maxBrowsePageSize`).
        missing: Requested ids that none of the examined letters has. Unless `complete`, letters with these
            ids may still be on the queue.
    """

    sent: Counter[str]
    left: Counter[str]
    complete: bool = True
    missing: tuple[str, ...] = ()


def replay_dead_letters(
    connection: Connection,
    source: Destination,
    asked: Replay,
    *,
    stopped: threading.Event | None = None,
    progress: Callable[[int], object] = lambda _: None,
) -> ReplayResult:
    """Send dead letters back, in units of work of at most 50 letters.

    A replayed message loses the properties that its move added. Three properties are added:
    `JMSJCA_ReplayRun`, `JMSJCA_ReplayOf` with the id of the letter, and `JMSJCA_ReplayCount`.

    Args:
        connection: A connection that is used for nothing else.
        source: The dead-letter queue.
        asked: The letters to send, and their destinations.
        stopped: Event that ends the replay after the current unit.
        progress: Called after each unit with the number of letters sent so far.

    Raises:
        ConfigurationError: The target is the dead-letter queue itself.
        JmsError: The broker refused a request, or the connection was lost. Letters of committed units are
            sent.

    Guarantee: no letter is lost if the replay is killed at any point and started again. On brokers with
    atomic commit each letter is in exactly one place. On others, a letter may be sent twice, with the same
    `JMSJCA_ReplayOf`; Artemis drops the second copy.
    A dry run changes nothing if the broker can browse. Otherwise it marks the letters as redelivered.
    """
    if source == asked.target or source in asked.origins:
        raise ConfigurationError(
            f"{source} is both the dead-letter queue and a target; expected another target"
        )
    return _Replayer(connection, source, asked, stopped or threading.Event(), progress).run()


def editable_message(letter: JmsMessage) -> JmsMessage:
    """Return a dead letter as a message to edit, without the properties that moves and replays added."""
    message = restored(letter)
    return replace(message, properties=MappingProxyType(_not_own(message)))


def edit_text(message: JmsMessage) -> str:
    """Return the JSON form of a message, for an editor: indented, without control characters."""
    return escaped_json(json.dumps(message.to_json(), indent=2, ensure_ascii=False))


def edited_message(text: str | bytes) -> JmsMessage:
    """Return the message of an edited text; bytes are in UTF-8.

    Raises:
        ConfigurationError: The text isn't the JSON form of a message.
    """
    try:
        return JmsMessage.from_json(json.loads(text))
    except (ConfigurationError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"not a message: {error}") from error


def resend_edited(
    connection: Connection,
    source: Destination,
    letter: JmsMessage,
    edited: JmsMessage,
    target: Destination,
) -> bool:
    """Send an edited copy of a dead letter; delete the letter once the broker has confirmed the copy.

    Args:
        connection: An open connection.
        source: The dead-letter queue.
        letter: The dead letter, as browsed.
        edited: The message to send, made from `editable_message`.
        target: Destination of the copy.

    Returns:
        Whether the letter was deleted. `False`: another consumer or user had removed it from the queue.

    Raises:
        ConfigurationError: The letter has no id, or the target is the dead-letter queue.
        CapabilityError: The broker cannot delete a single message. Nothing was sent.
        JmsError: The broker refused a request, or the connection was lost. The letter is still on the queue,
            unless the response to its deletion was lost.

    Guarantee: no crash loses the letter. A crash before the deletion leaves letter and copy; the copy has the
    id of the letter in `JMSJCA_ReplayOf`.
    """
    if letter.message_id is None or source == target:
        raise ConfigurationError(
            f"{source}: expected a dead letter with a message id, and another queue as target"
        )
    properties = {
        **_not_own(edited),
        REPLAY_OF: letter.message_id,
        REPLAY_COUNT: _replay_count(letter) + 1,
    }
    copy = replace(edited, properties=MappingProxyType(properties))
    with contextlib.closing(connection.administration()) as administration:
        require_selection(connection, administration)
        connection.send([Outgoing(destination=target, message=copy)])
        return administration.delete(source.name, MessageSelection(ids=(letter.message_id,))) > 0


def require_selection(connection: Connection, administration: QueueAdministration) -> None:
    """Raise `CapabilityError` if the broker cannot change a single message of a queue."""
    if QueueOperation.MOVE not in administration.operations:
        raise CapabilityError(
            f"deleting one message is not offered by {connection.broker}; {administration.way_out}"
        )


def _not_own(message: JmsMessage) -> dict[str, PropertyValue]:
    return {name: value for name, value in message.properties.items() if name not in _OWN}


def _replay_count(letter: JmsMessage) -> int:
    before = str(letter.properties.get(REPLAY_COUNT, "0"))
    return int(before) if before.isascii() and before.isdecimal() and len(before) <= _MOST_DIGITS else 0


class _Replayer:
    def __init__(
        self,
        connection: Connection,
        source: Destination,
        asked: Replay,
        stopped: threading.Event,
        progress: Callable[[int], object],
    ) -> None:
        self._connection = connection
        self._source = source
        self._replay = asked
        self._stopped = stopped
        self._progress = progress
        self._sent: Counter[str] = Counter()
        self._left: Counter[str] = Counter()
        self._began = time.monotonic()
        self._complete = True
        self._selector = selector_text(asked.selector)
        self._missing = dict.fromkeys(asked.ids)

    def run(self) -> ReplayResult:
        browses = self._connection.capabilities.browse
        with contextlib.closing(self._connection.administration()) as administration:
            if self._missing and administration.selects_ids and len(self._missing) <= IDS_PER_SELECTOR:
                self._selector = both(self._selector, ids_selector(self._replay.ids))
            if self._selector is not None and administration.page_in(self._source.name):
                self._complete = False
            if self._replay.dry_run and browses:
                self._browse()
            else:
                self._consume()
            if self._replay.ids and not self._missing:
                self._complete = True
            elif browses and self._complete and not self._is_done():
                self._check_for_more(administration)
        return ReplayResult(
            sent=self._sent, left=self._left, complete=self._complete, missing=tuple(self._missing)
        )

    def _browse(self) -> None:
        """Count letters until the end of the queue, or until a replay would end."""
        for number, letter in enumerate(self._connection.browse(self._source, self._selector)):
            if number % _UNIT == 0 and number:
                self._progress(self._sent.total())
                if self._ends_early():
                    return
            if self._is_done():
                return
            if (outgoing := self._chosen(letter)) is not None:
                self._sent[str(outgoing.destination)] += 1

    def _ends_early(self) -> bool:
        """Return whether too many letters are left on the queue; the result is then incomplete."""
        if self._left.total() >= _MOST_LEFT:
            self._complete = False
            return True
        return False

    def _check_for_more(self, administration: QueueAdministration) -> None:
        """Set the result to incomplete if the queue has letters that were not examined."""
        looked_at = self._left.total() + (self._sent.total() if self._replay.dry_run else 0)
        selector, found = self._selector, looked_at
        if not self._replay.dry_run:  # which has browsed to the end
            found = sum(1 for _ in islice(self._connection.browse(self._source, selector), looked_at + 1))
        if found > looked_at or administration.unseen(self._source.name, selector=selector, shown=found):
            self._complete = False

    def _is_done(self) -> bool:
        """Return whether the replay has ended.

        The replay ends when it is stopped, when all requested ids were found, or when the maximum number of
        letters was sent.
        """
        if self._stopped.is_set() or (self._replay.ids and not self._missing):
            return True
        return self._replay.most is not None and self._sent.total() >= self._replay.most

    def _consume(self) -> None:
        """Receive and settle letters unit by unit until none arrives, or too many are left on the queue."""
        most_held = _MOST_COUNTED if self._replay.dry_run else _MOST_LEFT
        consumer = BufferedConsumer(
            self._connection,
            Subscription(destination=self._source, selector=self._selector, prefetch=_UNIT + most_held),
        )
        try:
            while not self._is_done() and (unit := self._next(consumer)) is not None:
                self._settle(unit)
                self._progress(self._sent.total())
                if self._ends_early():
                    break
                if self._replay.dry_run and self._left.total() + self._sent.total() >= _MOST_COUNTED:
                    self._complete = False
                    break
        finally:
            consumer.close()

    def _next(self, consumer: BufferedConsumer) -> ReceivedUnit | None:
        most = _UNIT
        if self._replay.most is not None:
            most = min(most, self._replay.most - self._sent.total())
        if self._replay.per_second is not None:
            most = max(1, min(most, int(self._replay.per_second)))
        try:
            return consumer.next_unit(most, within=_SILENCE_SECONDS, each_within=_GATHER_SECONDS)
        except ConnectionLostError as lost:
            raise ConnectionLostError(
                f"the connection was lost after {self._sent.total()} dead letters were sent back; run the "
                "replay again"
            ) from lost

    def _settle(self, unit: ReceivedUnit) -> None:
        work = unit.work
        sent: Counter[str] = Counter()
        for received in unit.messages:
            outgoing = self._outgoing(received)
            if outgoing is None:
                continue
            sent[str(outgoing.destination)] += 1
            if not self._replay.dry_run:
                work.send(outgoing)
                work.acknowledge(received)
        if sent and not self._replay.dry_run:
            work.commit()
        else:
            work.rollback()
        self._sent += sent
        self._wait()

    def _wait(self) -> None:
        """Sleep until the rate allows the next unit."""
        if self._replay.per_second is not None and not self._replay.dry_run:
            due = self._began + self._sent.total() / self._replay.per_second
            self._stopped.wait(min(max(0.0, due - time.monotonic()), threading.TIMEOUT_MAX))

    def _outgoing(self, received: Received) -> Outgoing | None:
        """Return the message to send for a letter; `None` if the letter stays on the queue.

        A letter that stays is counted by its reason.
        """
        try:
            return self._chosen(received.message)
        except PoisonMessageError:
            self._left["cannot be decoded over this transport"] += 1
            return None

    def _chosen(self, letter: JmsMessage) -> Outgoing | None:
        """Return the message to send for a decoded letter, or count why it stays and return `None`."""
        asked = self._replay
        if asked.ids and letter.message_id not in self._missing:
            self._left["not chosen"] += 1
            return None
        self._missing.pop(str(letter.message_id), None)
        known = dead_letter(letter)
        target = asked.target or known.destination
        if letter.properties.get(REPLAY_RUN) == asked.run:
            self._left["failed again after it was sent back"] += 1
        elif target is None:
            self._left["its original destination is not known"] += 1
        elif asked.target is None and target not in asked.origins:
            self._left[f"comes from {target}"] += 1
        elif asked.max_age is not None and _older(letter, asked.max_age):
            self._left["older than the maximum age"] += 1
        else:
            return self._replayed(letter, target)
        return None

    def _replayed(self, letter: JmsMessage, target: Destination) -> Outgoing:
        message = restored(letter)
        properties = _not_own(message)
        properties |= {REPLAY_RUN: self._replay.run, REPLAY_COUNT: _replay_count(letter) + 1}
        if letter.message_id is not None:
            properties[REPLAY_OF] = letter.message_id
        deduplicates = self._connection.capabilities.deduplicating_send and letter.message_id is not None
        return Outgoing(
            destination=target,
            message=replace(message, properties=MappingProxyType(properties)),
            deduplication_id=f"replay-{letter.message_id}" if deduplicates else None,
        )


def _older(letter: JmsMessage, age: timedelta) -> bool:
    return letter.timestamp is not None and letter.timestamp < (time.time() - age.total_seconds()) * 1000
