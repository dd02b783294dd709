"""Which messages have an outcome already, or are about to have one, when the broker repeats them."""

from __future__ import annotations

import enum
from collections import Counter, OrderedDict
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.duplicates import REMEMBERED
from airflow_provider_jmsjca.engine.settled import Key
from airflow_provider_jmsjca.transports.base import Received


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
    known by `SettledLately.key`: id, text and, among several, destination. Where the id is the producer's
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
        self._out: Counter[Key] = Counter()
        self._out_before: Counter[Key] = Counter()
        self._returned: OrderedDict[Key, None] = OrderedDict()
        self._known: OrderedDict[Key, None] = OrderedDict()
        self._left: OrderedDict[Key, None] = OrderedDict()
        self._line: list[tuple[Key, str | None, Received]] = []
        self._freed: set[Received] = set()

    @property
    def left(self) -> int:
        """How many messages stay."""
        return len(self._left)

    @property
    def keeps(self) -> bool:
        """Whether messages stay, or wait for an answer, and so stay unsettled."""
        return bool(self._left or self._line)

    def begin(self, intake: object, unsettled: AbstractSet[Key]) -> None:
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

    def arrived(self, received: Received, message: JmsMessage | None, key: Key, *, stable: bool) -> Verdict:
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

    def hand_out(self, key: Key) -> None:
        """Note that somebody has a message, and will answer."""
        if key is not None:
            self._out[key] += 1

    def answer(self, key: Key, intake: object, *, handled: bool) -> None:
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

    def leave(self, key: Key) -> None:
        """Note that a message stays, and its repetitions too."""
        if key is not None:
            self._remember(self._left, key)

    def _remember(self, where: OrderedDict[Key, None], key: Key) -> None:
        where[key] = None
        if len(where) > self._remembered:
            where.popitem(last=False)

    def _free(self) -> list[Received]:
        stays: list[tuple[Key, str | None, Received]] = []
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
