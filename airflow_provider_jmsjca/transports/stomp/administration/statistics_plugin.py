"""ActiveMQ Classic: figures from its statistics plugin, browsing and changes through consumers.

The broker needs `<statisticsBrokerPlugin/>`, and XStream and Jettison on its class path; its distribution
has both libraries. Without the plugin no answer arrives, and the requests expire after ten seconds.

Source: ActiveMQ Classic documentation, "StatisticsPlugin".
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice, takewhile
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, Final

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.selector import selector_text
from airflow_provider_jmsjca.errors import (
    CapabilityError,
    ConnectionLostError,
    PermanentBrokerError,
    PoisonMessageError,
)
from airflow_provider_jmsjca.transports.administration import (
    BrokerResource,
    MessageSelection,
    QueueAdministration,
    QueueOperation,
    QueueStatistics,
    mebibytes,
    oldest_time,
)
from airflow_provider_jmsjca.transports.base import Connection
from airflow_provider_jmsjca.transports.selecting import (
    IDS_PER_SELECTOR,
    Hides,
    both,
    browse_ids,
    copy_selected,
    delete_selected,
    ids_selector,
    move_selected,
    refuse_patterns,
)
from airflow_provider_jmsjca.transports.stomp.link.link import Link
from airflow_provider_jmsjca.transports.stomp.wire.frames import Frame, encode

_PREFIX: Final = "ActiveMQ.Statistics.Destination."
_OF_BROKER: Final = "ActiveMQ.Statistics.Broker"
_SHOWN_BY: Final = "activemq query -QBroker=* --view MemoryPercentUsage,StorePercentUsage,TempPercentUsage"
_RESOURCES: Final = ("memory", "store", "temp")
_FULL_PERCENT: Final = 100
_INTERNAL: Final = ("ActiveMQ.Statistics.", "ActiveMQ.Advisory.")
_ANSWER_SECONDS: Final = 5.0
_REQUEST_LIVES_MS: Final = 10_000
_LONGEST_NAME: Final = 1000
_DEPTH_SECONDS: Final = 2.0
_PAGE: Final = 200
"""Messages that the broker reads into memory for each browse (`maxPageSize`)."""
_MOST_PAGES: Final = 500
_MOST_BLIND_PAGES: Final = 50
"""Maximum number of pages if the number of messages on the queue is not known."""
_PAGES_PER_CHECK: Final = 5
_MOST_MEMORY_PERCENT: Final = 50
"""Memory use from which this module makes the broker read no further messages."""
_FULL_CURSOR_PERCENT: Final = 70
"""Memory use from which the broker itself reads no more messages (`cursorMemoryHighWaterMark`)."""
_NOTHING: Final = ids_selector(["none"])


class StatisticsPluginAdministration(QueueAdministration):
    """Administration of ActiveMQ Classic queues.

    Args:
        connection: The connection that owns the link.
        link: A link to ActiveMQ Classic.
    """

    blocked_hint: ClassVar[str] = (
        f"{_SHOWN_BY} shows whether memory, store or temporary store is used up; with "
        "<statisticsBrokerPlugin/> in activemq.xml, so does this command"
    )
    selects_ids: ClassVar[bool] = True

    def __init__(self, connection: Connection, link: Link) -> None:
        super().__init__(link.broker)
        self._connection = connection
        self._link = link
        self._has_statistics = True

    @property
    def operations(self) -> frozenset[QueueOperation]:
        """All operations."""
        return frozenset(QueueOperation)

    def queues(self) -> list[QueueStatistics]:
        """Return every queue of the broker, sorted by name."""
        found = [each for each in self._ask(">") if not each.name.startswith(_INTERNAL)]
        return sorted(found, key=lambda each: each.name)

    def statistics(self, queue: str) -> QueueStatistics | None:
        """Return the figures of one queue, `None` if it does not exist."""
        refuse_patterns(self._connection, queue)  # a name of several queues would also send the request there
        return next((each for each in self._ask(queue) if each.name == queue), None)

    def browse(
        self, queue: str, *, selector: str | None = None, skip: int = 0, limit: int = 100
    ) -> Sequence[JmsMessage]:
        """Return a page of messages in queue order.

        If a policy entry applies to the queue, a browse returns at most `maxBrowsePageSize` messages (400 by
        default). If the broker hid messages, `unseen` returns a text.
        """
        return list(islice(self._browsed(queue, selector), skip, skip + limit))

    def browse_all(
        self, queue: str, *, selector: str | None = None, most: int | None = None
    ) -> Iterator[JmsMessage]:
        """Yield messages in queue order; the broker limits their number as in `browse`."""
        return islice(self._browsed(queue, selector), most)

    def find(self, queue: str, selection: MessageSelection) -> Iterator[JmsMessage]:
        """Yield the messages of a selection; messages selected by id are found at any depth.

        Raises:
            CapabilityError: A message with one of the ids was not found, but may be on the queue, because the
                broker has not read the whole queue into memory.
        """
        if not selection.ids:
            yield from self.browse_all(queue, selector=selection.selector)
            return
        missing = dict.fromkeys(selection.ids)
        found: list[JmsMessage] = []

        def look() -> bool:
            wanted = MessageSelection(ids=tuple(missing), selector=selection.selector)
            for message in browse_ids(self._connection, queue, wanted):
                missing.pop(str(message.message_id), None)
                found.append(message)
            return not missing

        out_of_reach = self._look_deeper(queue, look)
        yield from found
        if out_of_reach:
            raise CapabilityError(
                f"message {next(iter(missing))!r} was not found, and may be on queue {queue!r}. "
                f"{out_of_reach}"
            )

    def page_in(self, queue: str) -> str:
        """Make the broker read the queue into memory, because it compares selectors only there."""
        destination = Destination.queue(queue)
        return self._look_deeper(queue, lambda: any(self._connection.browse(destination, _NOTHING)))

    def unseen(self, queue: str, *, selector: str | None = None, shown: int | None = None) -> str:
        """Explain why a browse ended before the end of the queue; return an empty text if it did not."""
        selector = selector_text(selector)
        out_of_reach = "" if selector is None else self.page_in(queue)
        if shown is None:
            shown = sum(1 for _ in self._connection.browse(Destination.queue(queue), selector))
        # For a few messages the depth isn't requested: without the plugin, the request only times out, after
        # two seconds.
        is_short = 0 < shown <= IDS_PER_SELECTOR
        depth = None if is_short else self._depth(queue).messages
        if depth is not None and depth <= shown:
            return ""
        is_hiding = self._hides(queue, selector, shown) if shown else selector is None and bool(depth)
        if not is_hiding:
            return out_of_reach
        if selector is None and (depth := depth or self._depth(queue).messages):
            of = f" of {depth} messages"
        else:
            of = " messages" if selector is None else " messages that match"
        return (
            f"The broker shows the first {shown}{of} to a browse, and has more. To see the others, select "
            "them by id or with a selector, consume those in front, or raise maxBrowsePageSize of the "
            "queue's policyEntry in activemq.xml."
        )

    def move(self, queue: str, target: str, selection: MessageSelection) -> int:
        """Move messages to the end of another queue; return their number.

        Raises:
            CapabilityError: The broker could not read the whole queue. The text has the number of messages
                that were moved.
        """
        return self._changed(
            queue,
            selection,
            lambda hides: move_selected(self._connection, queue, target, selection, hides=hides),
            "moved",
        )

    def copy(self, queue: str, target: str, selection: MessageSelection) -> int:
        """Copy messages to another queue; return their number.

        Raises:
            CapabilityError: The broker shows only some of the messages. The text tells how many were copied.
        """
        return self._changed(
            queue,
            selection,
            lambda hides: copy_selected(self._connection, queue, target, selection, hides=hides),
            "copied",
        )

    def delete(self, queue: str, selection: MessageSelection) -> int:
        """Delete messages for good; return their number.

        Raises:
            CapabilityError: The broker could not read the whole queue. The text has the number of messages
                that were deleted.
        """
        return self._changed(
            queue,
            selection,
            lambda hides: delete_selected(self._connection, queue, selection, hides=hides),
            "deleted",
        )

    def _changed(
        self,
        queue: str,
        selection: MessageSelection,
        change: Callable[[Hides], int],
        done: str,
    ) -> int:
        """Make the broker read the selected messages into memory, then call `change`; return its result.

        Args:
            queue: The queue's name.
            selection: The messages.
            change: Changes the messages, and returns their number.
            done: Participle for the error, such as "moved".

        Raises:
            CapabilityError: The broker could not read the whole queue. The text has the number of messages
                that were changed.
        """
        refuse_patterns(self._connection, queue)
        out_of_reach = ""
        if selection.ids:
            try:
                for _ in self.find(queue, selection):
                    pass
            except CapabilityError as error:
                out_of_reach = str(error)
        elif selection.selector is not None:
            out_of_reach = self.page_in(queue)
        count = change(lambda selector, shown: self._hides(queue, selector, shown))
        if out_of_reach:
            raise CapabilityError(f"{count} messages were {done}. {out_of_reach}")
        return count

    def _browsed(self, queue: str, selector: str | None) -> Iterator[JmsMessage]:
        if selector_text(selector) is not None:
            self.page_in(queue)
        return self._connection.browse(Destination.queue(queue), selector)

    def _hides(self, queue: str, selector: str | None, shown: int) -> bool:
        """Return whether the broker's limit hid messages from a browse that showed `shown` messages.

        A second browse excludes some of the first messages. If there are hidden messages, it shows them
        instead.
        """
        destination = Destination.queue(queue)
        with contextlib.closing(self._browse(destination, selector)) as browsed:
            first = [str(each.message_id) for each in islice(browsed, IDS_PER_SELECTOR)]
        if not first:
            return False
        others = both(selector_text(selector), ids_selector(first, "NOT IN"))
        with contextlib.closing(self._browse(destination, others)) as browsed:
            return next(islice(browsed, max(0, shown - len(first)), None), None) is not None

    def _browse(self, queue: Destination, selector: str | None) -> Generator[JmsMessage]:
        yield from self._connection.browse(queue, selector)

    def _depth(self, queue: str) -> _Depth:
        """Return the number of messages and the memory use of a queue.

        The number is `None` if no answer arrives, or if the name means several queues.
        """
        if not self._has_statistics or self._connection.broker.names.meaning(Destination.queue(queue)):
            return _Depth()
        options = {f"{_PREFIX}List.End.With.Null": "true"}
        try:
            with contextlib.closing(self._request(f"{_PREFIX}{queue}", options, _DEPTH_SECONDS)) as answers:
                for entries in takewhile(bool, map(_entries, answers)):
                    if str(entries.get("destinationName")) == f"queue://{queue}":
                        return _Depth(int(entries["size"]), int(entries["memoryPercentUsage"]))
        except CapabilityError:
            return _Depth()
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise _unreadable(error) from error
        return _Depth(0)

    def _memory_percent(self, queue: str) -> int:
        """Return the memory use of the queue or of the broker, whichever is larger."""
        with contextlib.closing(self._request(_OF_BROKER, {}, _DEPTH_SECONDS)) as answers:
            entries = _entries(next(answers))
        try:
            return max(int(entries["memoryPercentUsage"]), self._depth(queue).memory_percent)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise _unreadable(error) from error

    def _look_deeper(self, queue: str, look: Callable[[], bool]) -> str:
        """Call `look` until it has found everything, or the broker can read no further messages.

        Each browse makes the broker read 200 further messages of the queue into memory.

        Args:
            queue: The queue's name.
            look: Function that browses, and returns whether it has found everything.

        Returns:
            The reason why the broker has not read the whole queue, as sentences. Empty if the broker has read
            the whole queue, or if `look` has found everything.
        """
        if look():
            return ""
        depth = self._depth(queue)
        if depth.messages is None:
            return self._look_blindly(queue, look)
        pages = -(-depth.messages // _PAGE)
        percent, page = 0, 1
        while page < min(pages, _MOST_PAGES):
            # Memory use is checked, because messages stay in the broker's memory until they are consumed, and
            # a full memory blocks other queues.
            if page % _PAGES_PER_CHECK == 0:
                percent = self._memory_percent(queue)
                if percent >= _MOST_MEMORY_PERCENT:
                    break
            if look():
                return ""
            page += 1
        if pages > 1:
            percent = self._memory_percent(queue)
        if page >= pages and percent < _FULL_CURSOR_PERCENT:
            return ""
        return (
            "The broker compares ids and selectors of messages in its memory only. It has read about "
            f"{min(page * _PAGE, depth.messages)} of {depth.messages} messages into it, and {percent} % of "
            "it are in use. Replay or consume the messages in front first."
        )

    def _look_blindly(self, queue: str, look: Callable[[], bool]) -> str:
        """Do the work of `_look_deeper` for a queue of unknown depth: call `look` at most 50 times."""
        few = IDS_PER_SELECTOR
        count = sum(1 for _ in islice(self._connection.browse(Destination.queue(queue)), few + 1))
        if count <= few and not self._hides(queue, None, count):
            return ""
        if any(look() for _ in range(_MOST_BLIND_PAGES)):
            return ""
        return (
            f"The broker has compared the first {_MOST_BLIND_PAGES * _PAGE} messages at most, and does not "
            "tell how many there are; add <statisticsBrokerPlugin/> to the plugins in activemq.xml."
        )

    def resources(self) -> list[BrokerResource]:
        """Return memory, store and temporary store; a full one blocks producers of persistent messages."""
        with contextlib.closing(self._request(_OF_BROKER, {})) as answers:
            entries = _entries(next(answers))
        try:
            used = {name: int(entries[f"{name}PercentUsage"]) for name in _RESOURCES}
            figures = {
                name: " of ".join(mebibytes(int(entries[name + part])) for part in ("Usage", "Limit"))
                for name in _RESOURCES
                if {f"{name}Usage", f"{name}Limit"} <= entries.keys()
            }
        except (ValueError, TypeError, KeyError) as error:
            raise _unreadable(error) from error
        return [
            BrokerResource(
                name=name,
                used_percent=percent,
                blocking=percent >= _FULL_PERCENT,
                figures=figures.get(name, ""),
                remedy=f"consume or purge full queues, or raise <{name}Usage limit=...> below <systemUsage> "
                "in activemq.xml",
                shown_by=_SHOWN_BY,
            )
            for name, percent in used.items()
        ]

    def time(self) -> datetime:
        """Return the timestamp of an answer of the broker."""
        with contextlib.closing(self._request(_OF_BROKER, {})) as answers:
            answer = next(answers)
        try:
            return datetime.fromtimestamp(int(answer.headers()["timestamp"]) / 1000, UTC)
        except (PoisonMessageError, KeyError, ValueError, OverflowError, OSError) as error:
            raise _unreadable(error) from error

    def _ask(self, pattern: str) -> list[QueueStatistics]:
        options = {
            f"{_PREFIX}List.End.With.Null": "true",
            f"{_PREFIX}Include.First.Message.Timestamp": "true",
        }
        with contextlib.closing(self._request(f"{_PREFIX}{pattern}", options)) as answers:
            return [_statistics(each) for each in takewhile(bool, map(_entries, answers))]

    def _request(
        self, name: str, options: Mapping[str, str], within: float = _ANSWER_SECONDS
    ) -> Generator[Frame]:
        """Send a request, and yield its answers.

        The generator has no end: close it after the last answer. Each answer must arrive within `within`
        seconds.
        """
        if not self._has_statistics:
            raise self._without_answer(within)
        link, identifier = self._link, self._link.new_subscription_id()
        answers: SimpleQueue[Frame | None] = SimpleQueue()
        key = link.routes.add(identifier, answers.put)
        take_back = link.on_lost(lambda _: answers.put(None))
        reply_to = f"/temp-queue/{identifier}"
        headers = {"id": identifier, "destination": reply_to, "ack": "auto", "transformation": "jms-map-json"}
        request = {
            "destination": f"/queue/{name}",
            "reply-to": reply_to,
            "persistent": "false",
            "expires": str(int(time.time() * 1000) + _REQUEST_LIVES_MS),
            **options,
        }
        try:
            link.wire.append(encode("SUBSCRIBE", headers.items()))
            link.wire.append(encode("SEND", request.items()))
            link.wire.flush()
            yield from self._answers(answers, within)
        finally:
            take_back()
            link.routes.remove(key)
            if link.is_up:
                link.wire.append(encode("UNSUBSCRIBE", [("id", identifier)]))
                link.wire.nudge()

    def _answers(self, answers: SimpleQueue[Frame | None], within: float) -> Iterator[Frame]:
        while True:
            try:
                frame = answers.get(timeout=within)
            except Empty:
                # Later requests fail at once, because they would not be answered either.
                self._has_statistics = False
                raise self._without_answer(within) from None
            if frame is None:
                raise ConnectionLostError(
                    "the connection was lost while waiting for statistics; a broker without XStream and "
                    "Jettison on its class path closes it"
                )
            yield frame

    def _without_answer(self, within: float) -> CapabilityError:
        return CapabilityError(
            f"{self._link.broker} did not answer a request for statistics within {within:g} s; add "
            "<statisticsBrokerPlugin/> to the plugins in its activemq.xml"
        )


@dataclass(frozen=True, slots=True)
class _Depth:
    """The number of messages on a queue (`None`: not known), and its memory use in percent."""

    messages: int | None = None
    memory_percent: int = 0


def _unreadable(error: Exception) -> PermanentBrokerError:
    return PermanentBrokerError(f"the broker's statistics cannot be read: {type(error).__name__}: {error}")


def _entries(answer: Frame) -> dict[str, Any]:
    """Return the map of an answer; empty for the answer that marks the end.

    The broker writes `{"map": {"entry": [{"string": "size", "long": 3}, {"string": ["brokerName", "b"]}]}}`.
    """
    try:
        entries = json.loads(answer.body)["map"]
        if not entries:
            return {}
        return dict(_pair(each) for each in entries["entry"])
    except (ValueError, TypeError, KeyError, LookupError) as error:
        raise _unreadable(error) from error


def _pair(entry: Mapping[str, Any]) -> tuple[str, Any]:
    name = entry["string"]
    if isinstance(name, list):
        return str(name[0]), name[1]
    return str(name), next((value for kind, value in entry.items() if kind != "string"), None)


def _statistics(entries: Mapping[str, Any]) -> QueueStatistics:
    try:
        return QueueStatistics(
            name=str(entries["destinationName"]).removeprefix("queue://")[:_LONGEST_NAME],
            messages=int(entries["size"]),
            in_flight=int(entries["inflightCount"]),
            consumers=int(entries["consumerCount"]),
            enqueued=int(entries["enqueueCount"]),
            dequeued=int(entries["dequeueCount"]),
            oldest=oldest_time(int(entries.get("firstMessageTimestamp") or 0)),
        )
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise _unreadable(error) from error
