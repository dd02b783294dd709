"""Apache Artemis: statistics, browsing and changes through its management address, over STOMP.

The user needs the permission `manage`. A management answer contains at most 256 characters of a body.
Browsing therefore copies each message to a temporary queue, which exists only during the call, and reads the
copy.

Source: Artemis user manual, "Management"; QueueControl and ActiveMQServerControl of 2.56.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, Final

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.core.selector import selector_text
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
from airflow_provider_jmsjca.transports.base import Received, Subscription
from airflow_provider_jmsjca.transports.selecting import refuse_same_queue
from airflow_provider_jmsjca.transports.stomp.consumer import subscribe
from airflow_provider_jmsjca.transports.stomp.link.link import Link
from airflow_provider_jmsjca.transports.stomp.management import (
    BROKER,
    ManagementControl,
    UnknownQueueError,
    queue_resource,
)

_PAGE: Final = 500
_COPIES: Final = 200
_FULLEST: Final = (
    '{"field":"messageCount","operation":"GREATER_THAN","value":"0","sortField":"messageCount",'
    '"sortOrder":"desc"}'
)
_MOST_ADDRESSES: Final = 200
_FULL_PERCENT: Final = 100
_BLOCKING: Final = ("BLOCK", "FAIL")
_EVERY_QUEUE: Final = '{"field":"","operation":"","value":"","sortField":"name","sortOrder":"asc"}'
_INTERNAL: Final = ("activemq.", "jmsjca.replies.", "jmsjca.browse.")
_FLUSH: Final = 500
"""Number of messages that the broker moves or deletes in one internal transaction."""


class ManagementAddressAdministration(QueueAdministration):
    """Administration of Artemis queues.

    The broker itself moves and deletes the messages, so their properties keep their types.

    Args:
        link: A link to Artemis.
    """

    blocked_hint: ClassVar[str] = (
        "artemis address stat and df -h at the broker show whether an address or the disk is full; a user "
        "with the permission 'manage' sees it with this command"
    )

    def __init__(self, link: Link) -> None:
        super().__init__(link.broker)
        self._link = link
        self._timeout = link.reply_timeout

    @property
    def operations(self) -> frozenset[QueueOperation]:
        """All operations."""
        return frozenset(QueueOperation)

    def queues(self) -> list[QueueStatistics]:
        """Return every queue of the broker, sorted by name."""
        found: list[QueueStatistics] = []
        with self._control(BROKER) as broker:
            page = 1
            while True:
                rows = _read(broker.call("listQueues", _EVERY_QUEUE, page, _PAGE))["data"]
                found += [_statistics(row) for row in rows if not str(row["name"]).startswith(_INTERNAL)]
                if len(rows) < _PAGE:
                    return sorted(found, key=lambda each: each.name)
                page += 1

    def statistics(self, queue: str) -> QueueStatistics | None:
        """Return the figures of one queue, `None` if it does not exist."""
        with self._control(BROKER) as broker:
            wanted = json.dumps(
                {"field": "name", "operation": "EQUALS", "value": queue, "sortField": "", "sortOrder": ""}
            )
            rows = _read(broker.call("listQueues", wanted, 1, 1))["data"]
        if not rows:
            return None
        with self._control(queue_resource(queue)) as control:
            first = _read(control.call("peekFirstMessageAsJSON") or "[]")
        sent = first[0].get("timestamp") if isinstance(first, list) and first and first[0] else None
        return replace(_statistics(rows[0]), oldest=oldest_time(int(sent or 0)))

    def browse(
        self, queue: str, *, selector: str | None = None, skip: int = 0, limit: int = 100
    ) -> Sequence[JmsMessage]:
        """Return a page of messages in queue order.

        Artemis lists only the first messages of a queue: 200, or `management-browse-page-size` of its address
        settings.

        Raises:
            CapabilityError: The page begins after the last message that Artemis lists.
        """
        try:
            with self._control(queue_resource(queue)) as control:
                listed = self._listed(control, selector)
                if skip and skip >= len(listed):
                    self._refuse_beyond(control, queue, selector, len(listed))
                return self._copies(control, queue, listed[skip : skip + limit])
        except UnknownQueueError:
            return []

    def browse_all(
        self, queue: str, *, selector: str | None = None, most: int | None = None
    ) -> Iterator[JmsMessage]:
        """Yield messages in queue order.

        Raises:
            CapabilityError: The queue has more messages than Artemis lists (see `browse`). Raised after the
                last listed message.
        """
        try:
            with self._control(queue_resource(queue)) as control:
                listed = self._listed(control, selector)
                wanted = listed[:most]
                for start in range(0, len(wanted), _COPIES):
                    yield from self._copies(control, queue, wanted[start : start + _COPIES])
                if listed and (most is None or len(listed) < most):
                    self._refuse_beyond(control, queue, selector, len(listed))
        except UnknownQueueError:
            return

    def find(self, queue: str, selection: MessageSelection) -> Iterator[JmsMessage]:
        """Yield the messages of a selection; messages selected by id alone are found at any depth."""
        if not selection.ids or selection.selector:
            yield from super().find(queue, selection)
            return
        numbers = [each for each in map(_number, selection.ids) if each >= 0]
        with contextlib.suppress(UnknownQueueError), self._control(queue_resource(queue)) as control:
            yield from self._copies(control, queue, numbers)

    def count(self, queue: str, selection: MessageSelection) -> int:
        """Return the number of messages of a selection; if it has no ids, the broker counts them."""
        if selection.ids:
            return super().count(queue, selection)
        try:
            with self._control(queue_resource(queue)) as control:
                return int(control.call("countMessages", self._filter(selection.selector)))
        except UnknownQueueError:
            return 0

    def unseen(self, queue: str, *, selector: str | None = None, shown: int | None = None) -> str:
        """Explain why a browse ended before the end of the queue; return an empty text if it did not."""
        del shown
        try:
            with self._control(queue_resource(queue)) as control:
                self._refuse_beyond(control, queue, selector, len(self._listed(control, selector)))
        except UnknownQueueError:
            return ""
        except CapabilityError as error:
            return f"{error}."
        return ""

    def move(self, queue: str, target: str, selection: MessageSelection) -> int:
        """Move messages to the end of another queue; return their number."""
        refuse_same_queue(queue, target)
        self._create(target)
        with self._control(queue_resource(queue)) as control:
            if not selection.ids:
                filtered = self._filter(selection.selector)
                return int(control.call("moveMessages", _FLUSH, filtered, target, False))
            ids = self._numbers(control, selection)
            return sum(bool(control.call("moveMessage", each, target)) for each in ids)

    def copy(self, queue: str, target: str, selection: MessageSelection) -> int:
        """Copy messages to another queue; return their number."""
        refuse_same_queue(queue, target)
        self._create(target)
        with self._control(queue_resource(queue)) as control:
            ids = self._numbers(control, selection)
            if not selection.ids:
                self._refuse_beyond(control, queue, selection.selector, len(ids))
            return sum(bool(control.call("copyMessage", each, target)) for each in ids)

    def delete(self, queue: str, selection: MessageSelection) -> int:
        """Delete messages for good; return their number."""
        with self._control(queue_resource(queue)) as control:
            if not selection.ids:
                return int(control.call("removeMessages", _FLUSH, self._filter(selection.selector)))
            ids = self._numbers(control, selection)
            return sum(bool(control.call("removeMessage", each)) for each in ids)

    def resources(self) -> list[BrokerResource]:
        """Return memory, disk, and addresses that block producers.

        Artemis blocks producers above `max-disk-usage`. An address with the policy `BLOCK` or `FAIL` blocks
        or refuses them above its own limit and above `global-max-size`. This examines the addresses of the
        200 queues with the most messages.
        """
        with self._control(BROKER) as broker:
            memory = broker.attribute("AddressMemoryUsagePercentage")
            used = broker.call("getDiskStoreUsage")
            most = broker.attribute("MaxDiskUsage")
            addresses = self._full_addresses(broker, memory)
        try:
            percent = float(used) * 100
        except (TypeError, ValueError) as error:
            raise _unreadable(error) from error
        return [
            BrokerResource(name="memory", used_percent=memory, shown_by="artemis address stat"),
            BrokerResource(
                name="disk",
                used_percent=percent,
                blocking=0 <= most <= percent,
                figures=f"limit {most} %",
                remedy="free disk space below the broker's data directory, or raise <max-disk-usage> in "
                "broker.xml",
                shown_by="df -h",
            ),
            *addresses,
        ]

    def time(self) -> datetime:
        """Return the time of the broker's clock."""
        with self._control(BROKER) as broker:
            milliseconds = broker.attribute("CurrentTimeMillis")
        try:
            return datetime.fromtimestamp(milliseconds / 1000, UTC)
        except (ValueError, OverflowError, OSError) as error:
            raise _unreadable(error) from error

    def _full_addresses(self, broker: ManagementControl, memory: int) -> list[BrokerResource]:
        """Return the addresses that block or refuse producers."""
        rows = _read(broker.call("listQueues", _FULLEST, 1, _MOST_ADDRESSES))["data"]
        found = []
        for name in dict.fromkeys(str(row["address"]) for row in rows):
            settings = _read(broker.call("getAddressSettingsAsJSON", name))
            policy = settings.get("addressFullMessagePolicy") if isinstance(settings, dict) else None
            if policy not in _BLOCKING:
                continue
            try:
                with self._control(f"address.{name}") as address:
                    percent = address.attribute("AddressLimitPercent")
                    messages = address.attribute("MessageCount")
                    size = address.attribute("AddressSize")
            except UnknownQueueError:
                continue
            if full := _full(settings, percent, messages, size, memory):
                limit, figures = full
                found.append(
                    BrokerResource(
                        name=f"memory of address {name}",
                        used_percent=max(percent, memory),
                        blocking=True,
                        figures=f"{figures}, address-full-policy {policy}",
                        remedy=f"consume or purge its messages, raise <{limit}> in broker.xml, or set "
                        "<address-full-policy>PAGE</address-full-policy> for it",
                        shown_by="artemis address stat",
                    )
                )
        return found

    def _control(self, resource: str) -> ManagementControl:
        return ManagementControl(self._link, resource, self._timeout)

    def _filter(self, selector: str | None) -> str:
        if selector_text(selector) is None:
            return ""
        subscription = Subscription(destination=Destination.queue("any"), selector=selector)
        return self._link.dialect.subscribe(subscription, None).get("selector", "")

    def _listed(self, control: ManagementControl, selector: str | None) -> list[int]:
        """Return the numeric ids of the messages that the broker lists, in queue order."""
        return [
            int(each["messageID"])
            for each in _read(control.call("listMessagesAsJSON", self._filter(selector)))
        ]

    def _refuse_beyond(
        self, control: ManagementControl, queue: str, selector: str | None, listed: int
    ) -> None:
        """Raise `CapabilityError` if the queue has more matching messages than the broker lists."""
        count = int(control.call("countMessages", self._filter(selector)))
        if count > listed:
            raise CapabilityError(
                f"Artemis lists the first {listed} of {count} messages of {queue!r} only; give a selector, "
                "consume those in front, or raise management-browse-page-size in its address settings"
            )

    def _numbers(self, control: ManagementControl, selection: MessageSelection) -> list[int]:
        """Return the numeric ids of the selected messages."""
        wanted = [_number(each) for each in selection.ids]
        if wanted and not selection.selector:
            return wanted
        return [each for each in self._listed(control, selection.selector) if not wanted or each in wanted]

    def _create(self, queue: str) -> None:
        settings = {"name": queue, "address": queue, "routing-type": "ANYCAST", "durable": True}
        with self._control(BROKER) as broker:
            broker.call("createQueue", json.dumps(settings), True)

    @contextmanager
    def _browse_queue(self) -> Iterator[str]:
        """Create a temporary queue for copies; at the end, destroy it with its messages."""
        name = f"jmsjca.browse.{uuid.uuid4().hex}"
        settings = {
            "name": name,
            "address": name,
            "routing-type": "ANYCAST",
            "durable": False,
            "auto-created": True,
            "auto-delete": True,
            "auto-delete-message-count": -1,
        }
        with self._control(BROKER) as broker:
            broker.call("createQueue", json.dumps(settings), True)
            try:
                yield name
            finally:
                if self._link.is_up:
                    broker.call("destroyQueue", name, True, True)

    def _copies(self, control: ManagementControl, queue: str, ids: Sequence[int]) -> list[JmsMessage]:
        if not ids:
            return []
        found: list[JmsMessage] = []
        arrived: SimpleQueue[Received] = SimpleQueue()
        with self._browse_queue() as browse_queue:
            consumer = subscribe(
                self._link, Subscription(destination=Destination.queue(browse_queue)), arrived.put
            )
            try:
                for each in ids:
                    # Copied and received one by one, because the broker sorts waiting copies by priority.
                    if not control.call("copyMessage", each, browse_queue):
                        continue  # the message was consumed after it was listed
                    try:
                        received = arrived.get(timeout=self._timeout)
                    except Empty:
                        raise ConnectionLostError(
                            f"the copy of message {each} of {queue!r} did not arrive within "
                            f"{self._timeout:g} s"
                        ) from None
                    message = received.readable
                    consumer.acknowledge((received,))
                    if message is not None:
                        found.append(
                            replace(message, message_id=str(each), destination=Destination.queue(queue))
                        )
            finally:
                if self._link.is_up:
                    consumer.close()
        return found


def _number(message_id: str) -> int:
    """Return a message id as a number; `-1`, which no message has, if it is not a number."""
    return int(message_id) if message_id.isascii() and message_id.isdecimal() and len(message_id) < 20 else -1  # noqa: PLR2004 - digits of a Java long


def _full(
    settings: Mapping[str, Any], percent: int, messages: int, size: int, memory: int
) -> tuple[str, str] | None:
    """Return the name of the limit that an address exceeds, and figures; `None` if it exceeds no limit.

    Args:
        settings: The settings of the address.
        percent: Use of the memory limit of the address in percent, as the broker reports it.
        messages: Number of messages of the address.
        size: Size of the address in bytes.
        memory: Use of the memory limit of all addresses in percent.
    """
    try:
        most_bytes = int(settings.get("maxSizeBytes", -1))
        most_messages = int(settings.get("maxSizeMessages", -1))
    except (TypeError, ValueError) as error:
        raise _unreadable(error) from error
    if 0 < most_messages <= messages:
        return "max-size-messages", f"{messages} messages of {most_messages}"
    if percent >= _FULL_PERCENT and most_bytes > 0:
        return "max-size-bytes", f"{mebibytes(size)} of {mebibytes(most_bytes)}"
    if max(percent, memory) >= _FULL_PERCENT:
        return "global-max-size", f"{mebibytes(size)} of the memory of all addresses"
    return None


def _unreadable(error: Exception) -> PermanentBrokerError:
    return PermanentBrokerError(
        f"the broker's management answer cannot be read: {type(error).__name__}: {error}"
    )


def _read(text: Any) -> Any:
    try:
        return json.loads(text)
    except (ValueError, TypeError) as error:
        raise _unreadable(error) from error


def _statistics(row: Mapping[str, Any]) -> QueueStatistics:
    try:
        return QueueStatistics(
            name=str(row["name"]),
            messages=int(row["messageCount"]),
            in_flight=int(row["deliveringCount"]),
            consumers=int(row["consumerCount"]),
            enqueued=int(row["messagesAdded"]),
            dequeued=int(row["messagesAcked"]),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise _unreadable(error) from error
