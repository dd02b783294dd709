"""ActiveMQ Classic: figures from its statistics plugin, browsing and changes through consumers.

The broker needs `<statisticsBrokerPlugin/>`, and XStream and Jettison on its class path; its distribution
has both libraries. Without the plugin no answer arrives, and the requests expire after ten seconds.

Source: ActiveMQ Classic documentation, "StatisticsPlugin".
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, Final

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import CapabilityError, ConnectionLostError, PermanentBrokerError
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
    copy_selected,
    delete_selected,
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


class StatisticsPluginAdministration(QueueAdministration):
    """See `QueueAdministration`.

    Args:
        connection: The connection that owns the link.
        link: A link to ActiveMQ Classic.
    """

    blocked_hint: ClassVar[str] = (
        f"{_SHOWN_BY} shows whether memory, store or temporary store is used up; with "
        "<statisticsBrokerPlugin/> in activemq.xml, so does this command"
    )

    def __init__(self, connection: Connection, link: Link) -> None:
        super().__init__(link.broker)
        self._connection = connection
        self._link = link

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
        refuse_patterns(self._connection, queue)  # of several names, all but the first would get the request
        return next((each for each in self._ask(queue) if each.name == queue), None)

    def browse(
        self, queue: str, *, selector: str | None = None, skip: int = 0, limit: int = 100
    ) -> Sequence[JmsMessage]:
        """Return a page of messages in queue order.

        The broker pages in a limited number of messages for a browser (`maxBrowsePageSize`, 400 by default).
        """
        found = self._connection.browse(Destination.queue(queue), selector)
        return list(islice(found, skip, skip + limit))

    def browse_all(
        self, queue: str, *, selector: str | None = None, most: int | None = None
    ) -> Iterator[JmsMessage]:
        """Yield messages in queue order, from one browser; the limit is that of `browse`."""
        return islice(self._connection.browse(Destination.queue(queue), selector), most)

    def move(self, queue: str, target: str, selection: MessageSelection) -> int:
        """Move messages to the end of another queue; return their number."""
        return move_selected(self._connection, queue, target, selection)

    def copy(self, queue: str, target: str, selection: MessageSelection) -> int:
        """Copy messages to another queue; return their number."""
        return copy_selected(self._connection, queue, target, selection)

    def delete(self, queue: str, selection: MessageSelection) -> int:
        """Delete messages for good; return their number."""
        return delete_selected(self._connection, queue, selection)

    def resources(self) -> list[BrokerResource]:
        """Return memory, store and temporary store; a full one blocks producers of persistent messages."""
        with contextlib.closing(self._request(_OF_BROKER, {})) as answers:
            entries = next(answers)
        try:
            used = {name: int(entries[f"{name}PercentUsage"]) for name in _RESOURCES}
            figures = {
                name: " of ".join(mebibytes(int(entries[name + part])) for part in ("Usage", "Limit"))
                for name in _RESOURCES
                if {f"{name}Usage", f"{name}Limit"} <= entries.keys()
            }
        except (ValueError, TypeError, KeyError) as error:
            raise PermanentBrokerError(
                f"the broker's statistics cannot be read: {type(error).__name__}: {error}"
            ) from error
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

    def _ask(self, pattern: str) -> list[QueueStatistics]:
        options = {
            f"{_PREFIX}List.End.With.Null": "true",
            f"{_PREFIX}Include.First.Message.Timestamp": "true",
        }
        with contextlib.closing(self._request(f"{_PREFIX}{pattern}", options)) as answers:
            return [_statistics(each) for each in takewhile(bool, answers)]

    def _request(self, name: str, options: Mapping[str, str]) -> Generator[dict[str, Any]]:
        """Yield the maps of the answers, without end; close it after the last one."""
        link, identifier = self._link, self._link.new_subscription_id()
        answers: SimpleQueue[Frame | None] = SimpleQueue()
        key = link.routes.add(identifier, lambda frame, _: answers.put(frame))
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
            yield from self._answers(answers)
        finally:
            take_back()
            link.routes.remove(key)
            if link.is_up:
                link.wire.append(encode("UNSUBSCRIBE", [("id", identifier)]))
                link.wire.nudge()

    def _answers(self, answers: SimpleQueue[Frame | None]) -> Iterator[dict[str, Any]]:
        while True:
            try:
                frame = answers.get(timeout=_ANSWER_SECONDS)
            except Empty:
                raise CapabilityError(
                    f"{self._link.broker} did not answer a request for statistics within "
                    f"{_ANSWER_SECONDS:g} s; add <statisticsBrokerPlugin/> to the plugins in its activemq.xml"
                ) from None
            if frame is None:
                raise ConnectionLostError(
                    "the connection was lost while waiting for statistics; a broker without XStream and "
                    "Jettison on its class path closes it"
                )
            yield _entries(frame.body)


def _entries(body: bytes) -> dict[str, Any]:
    """Return the map of an answer, `{}` for the mark of the end.

    The broker writes `{"map": {"entry": [{"string": "size", "long": 3}, {"string": ["brokerName", "b"]}]}}`.
    """
    try:
        entries = json.loads(body)["map"]
        if not entries:
            return {}
        return dict(_pair(each) for each in entries["entry"])
    except (ValueError, TypeError, KeyError, LookupError) as error:
        raise PermanentBrokerError(
            f"the broker's statistics cannot be read: {type(error).__name__}: {error}"
        ) from error


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
        raise PermanentBrokerError(
            f"the broker's statistics cannot be read: {type(error).__name__}: {error}"
        ) from error
