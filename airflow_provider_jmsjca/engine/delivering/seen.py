"""What was settled lately, to know it if a broker that was killed has forgotten that."""

from __future__ import annotations

import enum
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from airflow_provider_jmsjca.core.delivery.events import MessageArrived
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.message.identity import Identity, identity_of
from airflow_provider_jmsjca.errors import JmsError
from airflow_provider_jmsjca.transports.base import Received

REMEMBERED = 32_768
"""Ids of handled messages that are known; the adapter itself knew one."""


class Duplicates:
    """Knows messages by their ids: those a handler has done with, and those in hand.

    One that was handled is a duplicate. One that comes while another of its id is in hand waits for what
    becomes of that one. What was moved or deleted counts as not handled, so that it may be put back into its
    queue. A message without an id is never a duplicate. Not safe to use from several threads at once.

    Args:
        remembered: How many handled messages are known; the oldest are forgotten first.

    Source: I15, I17.
    """

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        self._handled: OrderedDict[str, None] = OrderedDict()
        self._waiting: dict[str, list[Received]] = {}
        self._intake: object = None

    def is_handled(self, message_id: str | None) -> bool:
        """Say whether a message is the duplicate of one that was handled."""
        return message_id in self._handled

    def has_to_wait(self, intake: object, message_id: str | None, received: Received) -> bool:
        """Say whether another message of this id is in hand; if not, this one is from now on.

        Args:
            intake: What it came with. With the next one, all that was in hand is not, and comes again.
            message_id: Its id.
            received: It.
        """
        if intake is not self._intake:
            self._intake = intake
            self._waiting.clear()
        if message_id is None:
            return False
        waiting = self._waiting.get(message_id)
        if waiting is None:
            self._waiting[message_id] = []
            return False
        waiting.append(received)
        return True

    def out_of_hand(self, intake: object, message_id: str | None, *, handled: bool) -> list[Received]:
        """Note what became of a message; return those of its intake that waited for it."""
        if message_id is None:
            return []
        if handled:
            self._handled[message_id] = None
            if len(self._handled) > self._remembered:
                self._handled.popitem(last=False)
        return self._waiting.pop(message_id, []) if intake is self._intake else []


class Verdict(enum.Enum):
    """What to do with a message that has come.

    Attributes:
        TAKE: It is to be delivered.
        WAIT: An attempt at it is still under way, or one of its group in front of it waits.
        SETTLE: It has its outcome, and is only to be settled.
        STAY: It can neither be delivered nor moved, and is left alone.
    """

    TAKE = enum.auto()
    WAIT = enum.auto()
    SETTLE = enum.auto()
    STAY = enum.auto()


class Once:
    """Knows messages over the loss of the connection on which they were handed out.

    | the message | when it comes over another connection |
    |---|---|
    | was handed out and is not answered | waits for that answer, and those of its group behind it |
    | was returned | is settled instead of delivered |
    | was raised | is delivered |
    | stays | stays |

    Only a later connection repeats a message; what has the same id on the same one is another message. It is
    known by its `message.identity`. Where the id is the producer's
    word it counts only with the redelivered flag, so two messages are taken for one only if they say the same
    under the same id, and were under way together when a connection was lost. Messages without an id are not
    known. One object may serve several streams, one after the other. Not safe to use from several threads at
    once.

    Args:
        remembered: How many returned messages are known, and how many that stay; the oldest are forgotten
            first.

    Attributes:
        again: Called with what has waited and is to be looked at again, in order.
    """

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        self.again: Callable[[list[Received]], None] = lambda _: None
        self._intake: object = None
        self._out: Counter[Identity | None] = Counter()
        self._out_before: Counter[Identity | None] = Counter()
        self._returned: OrderedDict[Identity | None, None] = OrderedDict()
        self._known: OrderedDict[Identity | None, None] = OrderedDict()
        self._left: OrderedDict[Identity | None, None] = OrderedDict()
        self._line: list[tuple[Identity | None, str | None, Received]] = []
        self._freed: set[Received] = set()

    @property
    def left(self) -> int:
        """How many messages stay."""
        return len(self._left)

    @property
    def keeps(self) -> bool:
        """Whether messages stay, or wait for an answer, and so stay unsettled."""
        return bool(self._left or self._line)

    def begin(self, intake: object, unsettled: AbstractSet[Identity | None]) -> None:
        """Take what comes with another intake.

        Args:
            intake: It.
            unsettled: What came with the one before and was not settled: it is no repetition of anything
                that was known before that.
        """
        self._intake = intake
        for key in unsettled:
            self._known.pop(key, None)
            self._returned.pop(key, None)
        for key in self._returned:
            self._remember(self._known, key)
        self._returned.clear()
        self._out_before += self._out
        self._out.clear()
        self._line.clear()
        self._freed.clear()

    def arrived(
        self, received: Received, message: JmsMessage | None, key: Identity | None, *, stable: bool
    ) -> Verdict:
        """Say what to do with a message.

        Args:
            received: It.
            message: What can be read of it.
            key: What tells it from others.
            stable: Its id is the broker's, and no other message has the same.
        """
        freed = received in self._freed
        self._freed.discard(received)
        group = _group_of(message)
        if key is not None and message is not None and (stable or message.redelivered):
            if key in self._left:
                return Verdict.STAY
            if key in self._out_before:
                self._line.append((key, group, received))
                return Verdict.WAIT
            if key in self._known:
                return Verdict.SETTLE
        if group is not None and not freed and any(group == other for _, other, _ in self._line):
            self._line.append((None, group, received))
            return Verdict.WAIT
        return Verdict.TAKE

    def hand_out(self, key: Identity | None) -> None:
        """Note that somebody has a message, and will answer."""
        if key is not None:
            self._out[key] += 1

    def answer(self, key: Identity | None, intake: object, *, handled: bool) -> None:
        """Note the answer.

        Args:
            key: Of the message.
            intake: It came with.
            handled: It was returned.
        """
        if key is None:
            return
        earlier = intake is not self._intake
        out = self._out_before if earlier else self._out
        out[key] -= 1
        if out[key] <= 0:
            del out[key]
        if handled:
            self._remember(self._known if earlier else self._returned, key)
        if earlier and (found := self._free()):
            self.again(found)

    def leave(self, key: Identity | None) -> None:
        """Note that a message stays, and its repetitions too."""
        if key is not None:
            self._remember(self._left, key)

    def _remember(self, where: OrderedDict[Identity | None, None], key: Identity | None) -> None:
        where[key] = None
        if len(where) > self._remembered:
            where.popitem(last=False)

    def _free(self) -> list[Received]:
        stays: list[tuple[Identity | None, str | None, Received]] = []
        goes: list[Received] = []
        groups: set[str] = set()
        for item in self._line:
            key, group, received = item
            if key in self._out_before or group in groups:
                stays.append(item)
                if group is not None:
                    groups.add(group)
            else:
                goes.append(received)
        self._line = stays
        self._freed.update(goes)
        return goes


def _group_of(message: JmsMessage | None) -> str | None:
    group = None if message is None else message.properties.get("JMSXGroupID")
    return None if group is None or group == "" else str(group)


_log = logging.getLogger("airflow_provider_jmsjca.listener")
_REMEMBERED = 32_768
"""As many acknowledgements as a busy queue of RabbitMQ keeps from the disk (its
`queue_index_max_journal_entries`)."""


class SettledLately:
    """Settled messages by their `message.identity`, and messages that came again although they were settled.

    Where the broker makes the ids, a message is known by what it is there, also without the redelivered flag:
    a broker that was killed may call what it repeats new. Where the id is the producer's word, or comes from
    what was published elsewhere, it counts only with that flag.

    Noting, connecting and asking are serialised by the caller; settling is not.

    Args:
        sources: How many destinations there are. Copies of a message in several queues may have the same id,
            and each of them is settled by itself.

    Attributes:
        stable: Whether the broker makes the ids.
    """

    def __init__(self, sources: int = 1) -> None:
        self._sources = sources
        self._ids: deque[Identity | None] = deque(maxlen=_REMEMBERED)
        self._known: frozenset[Identity | None] = frozenset()
        self._repeated: deque[Received] = deque()
        self.stable = False

    @property
    def has_repeated(self) -> bool:
        """Whether there is something to settle once more."""
        return bool(self._repeated)

    @property
    def known(self) -> frozenset[Identity | None]:
        """What was settled over earlier connections."""
        return self._known

    def note(self, received: Received, message: JmsMessage | None, destination: Destination) -> None:
        """Note that a message was settled.

        Args:
            received: It.
            message: What it is to the listener, under the id it was published with.
            destination: Which of the sources it came from.
        """
        if self.stable:
            here = received.readable
            one = self._sources == 1
            self._ids.append(identity_of(here, None if one else received.consumer.subscription.destination))
            if message is here:
                return
        self._ids.append(self.key(destination, message))

    def key(self, destination: Destination, message: JmsMessage | None) -> Identity | None:
        """Return what tells a published message from others; `None` if nothing does."""
        return identity_of(message, None if self._sources == 1 else destination)

    def identity(self, received: Received) -> Identity | None:
        """Return what tells a message at the broker from others; `None` if nothing does."""
        return self.key(received.consumer.subscription.destination, received.readable)

    def connected(self, *, stable: bool) -> None:
        """Know from now on what was settled over the connections before.

        Args:
            stable: Whether the broker makes the ids.
        """
        self.stable = stable
        self._known = frozenset(self._ids) - {None}

    def forget(self, keys: AbstractSet[Identity | None]) -> None:
        """Know nothing of messages that came anew under the id of a settled one, and were not settled."""
        if not keys.isdisjoint(self._ids):
            self._ids = deque((each for each in self._ids if each not in keys), maxlen=_REMEMBERED)
        self._known -= keys

    def knows(self, event: MessageArrived, received: Received, key: Identity | None) -> bool:
        """Say whether a message was settled before and came again."""
        if not self._known:
            return False
        if self.comes_again(received):
            return True
        counts = event.parked is None or event.in_progress
        return event.redelivered and counts and key in self._known

    def comes_again(self, received: Received) -> bool:
        """Say whether the broker, which makes the ids, has given out this very message before."""
        return self.stable and bool(self._known) and self.identity(received) in self._known

    def keep(self, received: Received) -> None:
        """Keep a message that is to be settled once more."""
        self._repeated.append(received)

    def settle_again(self, name: str) -> None:
        """Settle duplicates, and what this listener settled before the way to the broker broke down."""
        while self._repeated:
            try:
                received = self._repeated.popleft()
            except IndexError:  # another thread was quicker
                return
            try:
                received.consumer.acknowledge((received,))
            except JmsError as error:
                _log.debug("%s: it comes once more: %s", name, error)
