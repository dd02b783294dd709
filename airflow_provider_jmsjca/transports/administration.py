"""The interface for queue administration: statistics, browsing, moving, copying and deleting messages.

`Connection.administration` returns an implementation. Its `operations` lists the operations that the broker
offers.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar, Final

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.selector import selector_text
from airflow_provider_jmsjca.errors import CapabilityError
from airflow_provider_jmsjca.transports.capabilities import BrokerInfo

__all__ = [
    "BrokerResource",
    "MessageSelection",
    "QueueAdministration",
    "QueueOperation",
    "QueueStatistics",
    "mebibytes",
    "oldest_time",
]

_FIRST_PAGE: Final = 200
_LONGEST_FIRST_PAGE: Final = 5_000


class QueueOperation(enum.StrEnum):
    """An operation that a broker may offer; see `QueueAdministration.operations`."""

    LIST = "list"
    STATISTICS = "statistics"
    BROWSE = "browse"
    MOVE = "move"
    COPY = "copy"
    DELETE = "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatistics:
    """Statistics of one queue, as the broker reports them. `None`: the broker does not report the value.

    Attributes:
        name: The queue's name, without a prefix.
        messages: Messages on the queue, in-flight and scheduled ones included.
        in_flight: Messages delivered to a consumer and not acknowledged.
        consumers: Consumers of the queue over all connections.
        enqueued: Messages that arrived since the broker started.
        dequeued: Messages that were acknowledged since the broker started.
        oldest: Time at which the first message on the queue was sent.
    """

    name: str
    messages: int
    in_flight: int | None = None
    consumers: int | None = None
    enqueued: int | None = None
    dequeued: int | None = None
    oldest: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerResource:
    """Memory or disk of a broker.

    Attributes:
        name: Name of the resource, for example `memory`.
        used_percent: Percentage in use; `None`: the broker does not report it.
        blocking: Whether the broker blocks producers because the resource is used up.
        figures: Use and limit as text; empty if the broker does not report them.
        remedy: What frees the resource or raises its limit on this broker.
        shown_by: The broker's own command that shows the figures.
    """

    name: str
    used_percent: float | None = None
    blocking: bool = False
    figures: str = ""
    remedy: str = "free the resource or raise its limit"
    shown_by: str = ""

    def __str__(self) -> str:
        """Return the name, followed by the percentage in use and the figures, if the broker reports them."""
        used = "" if self.used_percent is None else f"{self.used_percent:.0f} % used"
        shown = ", ".join(filter(None, (used, self.figures)))
        return f"{self.name} ({shown})" if shown else self.name


def mebibytes(number: int) -> str:
    """Return a number of bytes as text in MiB."""
    return f"{number / (1 << 20):,.0f} MiB"


def oldest_time(milliseconds: int) -> datetime | None:
    """Convert a timestamp in milliseconds since the epoch.

    Returns:
        The time in UTC; `None` for 0 and for values out of range, which producers can set.
    """
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds else None
    except (ValueError, OverflowError, OSError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSelection:
    """Selects messages of a queue; without ids and selector, all messages.

    Attributes:
        ids: Message ids, as `browse` returns them. If a selector is set too, messages must also match it.
        selector: A JMS message selector.
    """

    ids: tuple[str, ...] = ()
    selector: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "selector", selector_text(self.selector))


class QueueAdministration:
    """Operations on the queues of one broker. Close it after use.

    Every call blocks until the broker answers or a timeout expires. A subclass overrides the operations that
    its broker offers. All others raise `CapabilityError`.

    Args:
        broker: The broker, named in errors.

    Attributes:
        browse_note: The side effect of browsing on this broker, as a sentence; empty if browsing has none.
        way_out: What to do instead of an operation that the broker does not offer, as the end of a sentence.
        blocked_hint: How to find out on the broker whether it blocks producers, as a sentence without a
            period.
        selects_ids: Whether a consumer's selector can compare `JMSMessageID`.
    """

    browse_note: ClassVar[str] = ""
    way_out: ClassVar[str] = "use the broker's own console"
    blocked_hint: ClassVar[str] = "the broker's own console shows whether its memory or disk is used up"
    selects_ids: ClassVar[bool] = False

    def __init__(self, broker: BrokerInfo) -> None:
        self._broker = broker

    @property
    def operations(self) -> frozenset[QueueOperation]:
        """The operations that the broker offers over this connection."""
        return frozenset()

    def queues(self) -> list[QueueStatistics]:
        """Return every queue of the broker that this user may see, sorted by name.

        Raises:
            CapabilityError: The broker can't list queues.
            PermanentBrokerError: The user lacks the permission, or the answer can't be parsed.
            ConnectionLostError: The connection was lost, or the broker did not answer in time.
        """
        raise self._lacks("listing queues")

    def statistics(self, queue: str) -> QueueStatistics | None:
        """Return the statistics of one queue, or `None` if the queue does not exist.

        Raises the errors of `queues`.
        """
        raise self._lacks(f"counting the messages of {queue!r}")

    def browse(
        self, queue: str, *, selector: str | None = None, skip: int = 0, limit: int = 100
    ) -> Sequence[JmsMessage]:
        """Return a page of messages in queue order. The messages stay on the queue.

        Args:
            queue: The queue's name.
            selector: Return matching messages only.
            skip: Number of matching messages to skip at the start of the queue.
            limit: Maximum number of messages to return.

        Raises:
            CapabilityError: The broker can't browse, or does not support selectors.
            PermanentBrokerError: The user lacks the permission, or the answer can't be parsed.
            ConnectionLostError: The connection was lost, or the broker did not answer in time.
        """
        del selector, skip, limit
        raise self._lacks(f"browsing {queue!r}")

    def browse_all(
        self, queue: str, *, selector: str | None = None, most: int | None = None
    ) -> Iterator[JmsMessage]:
        """Yield messages in queue order, and leave them on the queue.

        The page size grows, because some brokers read each page from the start of the queue. With pages of
        equal size, the time would grow with the square of the queue's length.

        Args:
            queue: The queue's name.
            selector: Yield matching messages only.
            most: Maximum number of messages; `None`: all that the broker shows.

        Raises:
            JmsError: As for `browse`.
        """
        skip, size = 0, _FIRST_PAGE if most is None else min(most, _LONGEST_FIRST_PAGE)
        while most is None or skip < most:
            wanted = max(size, skip)
            wanted = wanted if most is None else min(wanted, most - skip)
            page = self.browse(queue, selector=selector, skip=skip, limit=wanted)
            yield from page
            if len(page) < wanted:
                return
            skip += len(page)

    def find(self, queue: str, selection: MessageSelection) -> Iterator[JmsMessage]:
        """Yield the messages of a selection, and leave them on the queue.

        Raises:
            CapabilityError: As for `browse`. Also raised after the last message that was found, if the broker
                does not show the whole queue and may hold further selected messages.
            JmsError: As for `browse`.
        """
        if not selection.ids:
            yield from self.browse_all(queue, selector=selection.selector)
            return
        missing = set(selection.ids)
        for each in self.browse_all(queue, selector=selection.selector):
            if each.message_id in missing:
                missing.discard(each.message_id)
                yield each
                if not missing:
                    return

    def count(self, queue: str, selection: MessageSelection) -> int:
        """Return the number of messages of a selection.

        If `unseen` returns a text, the number is a lower bound. Raises the errors of `find`.
        """
        return sum(1 for _ in self.find(queue, selection))

    def page_in(self, queue: str) -> str:
        """Make the broker load a queue into memory, so that selectors match all of its messages.

        Does nothing unless the broker compares selectors only with messages in memory.

        Returns:
            The reason why selectors still miss some messages, as a sentence; empty if they match all.
        """
        del queue
        return ""

    def unseen(self, queue: str, *, selector: str | None = None, shown: int | None = None) -> str:
        """Explain why a browse ended before the end of the queue.

        Args:
            queue: The queue's name.
            selector: The selector of the browse.
            shown: Number of messages that a browse from the start of the queue returned; `None`: not known.

        Returns:
            The reason as a sentence; empty if the browse reached the end.
        """
        del queue, selector, shown
        return ""

    def move(self, queue: str, target: str, selection: MessageSelection) -> int:
        """Move messages to the end of another queue; return their number.

        Guarantee: a crash leaves each message on exactly one of the two queues.

        Raises:
            ConfigurationError: Source and target are the same queue.
            JmsError: As for `browse`.
        """
        del target, selection
        raise self._lacks(f"moving messages of {queue!r}")

    def copy(self, queue: str, target: str, selection: MessageSelection) -> int:
        """Copy messages to another queue; return their number.

        After a crash, the target has the copies made so far. Raises the errors of `move`.
        """
        del target, selection
        raise self._lacks(f"copying messages of {queue!r}")

    def delete(self, queue: str, selection: MessageSelection) -> int:
        """Delete messages permanently; return their number.

        Raises the errors of `browse`.
        """
        del selection
        raise self._lacks(f"deleting messages of {queue!r}")

    def resources(self) -> list[BrokerResource]:
        """Return the broker's memory and disk use, and whether each of them blocks producers.

        Raises:
            CapabilityError: The broker does not report them.
            PermanentBrokerError: The user lacks the permission, or the answer can't be parsed.
            ConnectionLostError: The connection was lost, or the broker did not answer in time.
        """
        raise self._lacks("reporting memory and disk use")

    def time(self) -> datetime:
        """Return the time of the broker's clock, exact to a second.

        Raises the errors of `resources`.
        """
        raise self._lacks("telling the time of the broker's clock")

    def close(self) -> None:
        """Release the resources of this object. The connection stays open."""

    def _lacks(self, purpose: str) -> CapabilityError:
        return CapabilityError(f"{purpose} is not offered by {self._broker}; {self.way_out}")
