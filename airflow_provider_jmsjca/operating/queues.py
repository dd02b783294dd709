"""Lists the queues of a broker and those that this installation uses; reads and changes their messages."""

from __future__ import annotations

import contextlib
import enum
import fnmatch
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Final, assert_never

from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.watching.peek import browse_or_receive
from airflow_provider_jmsjca.errors import CapabilityError, ConfigurationError, JmsError
from airflow_provider_jmsjca.transports import connect
from airflow_provider_jmsjca.transports.administration import (
    MessageSelection,
    QueueAdministration,
    QueueOperation,
    QueueStatistics,
)
from airflow_provider_jmsjca.transports.base import Connection, ConnectionSettings
from airflow_provider_jmsjca.transports.selecting import refuse_same_queue

if TYPE_CHECKING:
    from airflow_provider_jmsjca.store.base import Store

_AT_ONCE: Final = 8
_BY_CONSUMING: Final = (
    "the messages were received and returned to the queue. They are marked as redelivered, a quorum queue "
    "counts the delivery against its delivery limit, and other consumers may have received later messages "
    "first"
)


@contextlib.contextmanager
def open_connection(settings: ConnectionSettings) -> Iterator[Connection]:
    """Open a connection, and close it at the end of the block.

    Args:
        settings: How to connect. The client id is not used, because a running consumer may be using it.

    Raises:
        JmsError: The broker cannot be reached, or refuses the login.
    """
    with contextlib.closing(connect(replace(settings, client_id=None))) as connection:
        yield connection


@contextlib.contextmanager
def open_administration(settings: ConnectionSettings) -> Iterator[QueueAdministration]:
    """Open the administration of a broker's queues, and close it at the end of the block.

    Args:
        settings: How to connect. The client id is not used, because a running consumer may be using it.

    Raises:
        JmsError: The broker cannot be reached, or refuses the login.
    """
    with open_connection(settings) as connection, contextlib.closing(connection.administration()) as found:
        yield found


def queue_name(text: str) -> str:
    """Return the name of a queue that was typed as `orders` or `queue://orders`.

    Raises:
        ConfigurationError: The text names a topic.
    """
    destination = Destination.parse(text)
    if destination.kind is not DestinationKind.QUEUE:
        raise ConfigurationError(f"{destination} is a topic; expected a queue, for example queue://orders")
    return destination.name


# -- which queues there are -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationUse:
    """A destination that an activation, an asset or a task of this installation names.

    Attributes:
        destination: The destination.
        user: Name of the activation, asset or task.
        jms_conn_id: The Airflow connection; empty if only the broker's address is known.
        broker: Address or URL of the broker; empty if only the Airflow connection is known.
    """

    destination: Destination
    user: str
    jms_conn_id: str = ""
    broker: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEntry:
    """One queue in a list.

    Attributes:
        name: The queue's name, without a prefix.
        statistics: The broker's counts; `None`: the queue does not exist, or the broker reports no counts.
        used_by: The activations, assets and tasks of this installation that name the queue, sorted.
        enqueued_per_second: Rate of arriving messages; `None` if not measured.
        dequeued_per_second: Rate of acknowledged messages; `None` if not measured.
    """

    name: str
    statistics: QueueStatistics | None = None
    used_by: tuple[str, ...] = ()
    enqueued_per_second: float | None = None
    dequeued_per_second: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueList:
    """The queues of a broker.

    Attributes:
        queues: The queues, sorted by name.
        note: Why the broker's counts are missing, as a sentence; empty if the broker reports them.
    """

    queues: tuple[QueueEntry, ...]
    note: str = ""


def registered_uses(store: Store) -> list[DestinationUse]:
    """Return the destinations of registered activations with runs that have not ended.

    Raises:
        TransientStoreError: The store can't be used now.
    """
    from airflow_provider_jmsjca.operating.activations import (  # noqa: PLC0415 - other functions need no store
        list_activations,
    )
    from airflow_provider_jmsjca.store.base import RunStatus  # noqa: PLC0415 - as above

    found = []
    for activation in list_activations(store):
        for run in activation.runs:
            report = run.report
            for text in report.destination.split(", "):
                with contextlib.suppress(ConfigurationError):  # a name with a comma in it was split
                    found.append(
                        DestinationUse(
                            destination=Destination.parse(text),
                            user=f"{report.owner} ({RunStatus.LOST})"
                            if report.status is RunStatus.LOST
                            else report.owner,
                            broker=report.broker,
                        )
                    )
    return found


def used_queues(
    uses: Iterable[DestinationUse], *, jms_conn_id: str, settings: ConnectionSettings
) -> dict[str, tuple[str, ...]]:
    """Return the users of queues of one broker, by the queue's name.

    Args:
        uses: Used destinations of all brokers.
        jms_conn_id: The Airflow connection of the broker.
        settings: Settings of that connection. A use without an Airflow connection belongs to this broker if
            the two have an address (`host:port`) in common.
    """
    found: defaultdict[str, set[str]] = defaultdict(set)
    for use in uses:
        belongs = (
            use.jms_conn_id == jms_conn_id if use.jms_conn_id else is_same_broker(use.broker, settings.url)
        )
        if belongs and use.destination.kind is DestinationKind.QUEUE:
            found[use.destination.name].add(use.user)
    return {name: tuple(sorted(users)) for name, users in sorted(found.items())}


def list_queues(
    administration: QueueAdministration,
    *,
    used: Mapping[str, Sequence[str]] | None = None,
    only_used: bool = False,
    rate_over: timedelta | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> QueueList:
    """Return the queues of a broker with their counts, and the queues that this installation uses.

    Args:
        administration: Administration of the broker.
        used: Users of queues by the queue's name, from `used_queues`. A used queue that the broker does not
            report is listed without counts.
        only_used: Leave out queues without a user.
        rate_over: Count twice at this interval, and return the rates; `None`: no rates. RabbitMQ updates its
            counts every five seconds.
        sleep: Function that waits between the two counts, for the given number of seconds.

    Raises:
        CapabilityError: The broker does not list its queues, and no queue is in use.
        JmsError: The user is not allowed to list queues, or the connection was lost.
    """
    users = used or {}
    try:
        before = {each.name: each for each in administration.queues()} if rate_over is not None else {}
        began = time.monotonic()
        if rate_over is not None:
            sleep(rate_over.total_seconds())
        counted = administration.queues()
        seconds = time.monotonic() - began
    except CapabilityError as error:
        if not users:
            raise
        entries = [QueueEntry(name=name, used_by=tuple(found)) for name, found in users.items()]
        return QueueList(queues=tuple(sorted(entries, key=lambda each: each.name)), note=str(error))
    entries = [_entry(each, before.get(each.name), seconds, users.get(each.name, ())) for each in counted]
    reported = {each.name for each in counted}
    entries += [
        QueueEntry(name=name, used_by=tuple(found)) for name, found in users.items() if name not in reported
    ]
    chosen = [each for each in entries if each.used_by or not only_used]
    return QueueList(queues=tuple(sorted(chosen, key=lambda each: each.name)))


def list_queues_of_brokers(
    brokers: Mapping[str, ConnectionSettings],
    uses: Iterable[DestinationUse] = (),
    *,
    only_used: bool = False,
    rate_over: timedelta | None = None,
) -> dict[str, QueueList | JmsError]:
    """Return the queues of several brokers, which are queried at the same time.

    Args:
        brokers: Connection settings by Airflow connection.
        uses: Used destinations of all brokers.
        only_used: Leave out queues without a user.
        rate_over: Count twice at this interval, and return the rates; `None`: no rates.

    Returns:
        For each Airflow connection its queues, or the error if they can't be listed.
    """
    users = {
        conn_id: used_queues(uses, jms_conn_id=conn_id, settings=settings)
        for conn_id, settings in brokers.items()
    }

    def listed(conn_id: str) -> QueueList | JmsError:
        try:
            with open_administration(brokers[conn_id]) as administration:
                return list_queues(
                    administration, used=users[conn_id], only_used=only_used, rate_over=rate_over
                )
        except JmsError as error:
            return error

    with ThreadPoolExecutor(_AT_ONCE, "jms-queues") as pool:
        return dict(zip(brokers, pool.map(listed, brokers), strict=True))


def matching(queues: Iterable[QueueEntry], *, pattern: str | None, filled: bool) -> list[QueueEntry]:
    """Return the queues whose names match a pattern.

    Args:
        queues: The queues.
        pattern: Shell-style pattern such as `orders.*`; `None` matches all names.
        filled: Only return queues that have messages.
    """
    return [
        each
        for each in queues
        if (pattern is None or fnmatch.fnmatchcase(each.name, pattern))
        and (not filled or (each.statistics is not None and each.statistics.messages))
    ]


def _entry(
    now: QueueStatistics, before: QueueStatistics | None, seconds: float, users: Sequence[str]
) -> QueueEntry:
    return QueueEntry(
        name=now.name,
        statistics=now,
        used_by=tuple(users),
        enqueued_per_second=None if before is None else _rate(before.enqueued, now.enqueued, seconds),
        dequeued_per_second=None if before is None else _rate(before.dequeued, now.dequeued, seconds),
    )


def _rate(before: int | None, now: int | None, seconds: float) -> float | None:
    """Return a rate in messages per second; `None` without counts, or if a counter was reset by a restart."""
    if before is None or now is None or now < before or seconds <= 0:
        return None
    return (now - before) / seconds


def is_same_broker(one: str, other: str) -> bool:
    """Return whether the URLs or addresses of two brokers have a host and port in common."""
    return bool(_addresses(one) & _addresses(other))


def _addresses(broker: str) -> frozenset[str]:
    """Return `host:port` of each host of a broker's URL or address."""
    hosts = broker.rpartition("://")[2].partition("?")[0]
    return frozenset(each.strip().lower() for each in hosts.split(",") if each.strip())


# -- the messages on a queue ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePage:
    """A page of messages.

    Attributes:
        messages: The messages in queue order.
        more: Whether the queue has more messages after this page.
        note: Sentences on a side effect of browsing, and on messages that the broker doesn't show. Empty if
            browsing has no side effect and the broker shows all messages.
    """

    messages: tuple[JmsMessage, ...]
    more: bool
    note: str


class QueueChange(enum.StrEnum):
    """A change of messages on a queue."""

    MOVE = "move"
    COPY = "copy"
    DELETE = "delete"


def browse_queue(
    administration: QueueAdministration,
    queue: str,
    *,
    selector: str | None = None,
    skip: int = 0,
    limit: int = 100,
) -> MessagePage:
    """Return a page of messages, and leave them on the queue.

    If the broker shows only a part of the queue, the note of the last page describes that.

    Args:
        administration: Administration of the broker.
        queue: Name of the queue.
        selector: Return matching messages only.
        skip: Number of messages before the page.
        limit: Maximum number of messages on the page.

    Raises:
        CapabilityError: The broker does not browse, or ignores selectors.
        JmsError: The user is not allowed to browse, or the connection was lost.
    """
    try:
        found = administration.browse(queue, selector=selector, skip=skip, limit=limit + 1)
    except CapabilityError as error:
        if QueueOperation.BROWSE in administration.operations:
            raise
        raise CapabilityError(
            f"{error}. Or give --by-consuming, which receives the messages and returns them"
        ) from error
    shown = tuple(found[:limit])
    hidden = ""
    if len(found) <= limit:
        is_end = bool(shown) or not skip
        hidden = administration.unseen(queue, selector=selector, shown=skip + len(shown) if is_end else None)
    return MessagePage(
        messages=shown,
        more=len(found) > limit,
        note=" ".join(filter(None, [administration.browse_note, hidden])),
    )


def browse_by_consuming(
    connection: Connection, queue: str, *, selector: str | None = None, skip: int = 0, limit: int = 100
) -> MessagePage:
    """Receive messages of a queue without acknowledging them, for brokers that cannot browse.

    Args:
        connection: A connection that is used for nothing else.
        queue: The queue's name.
        selector: Receive matching messages only.
        skip: Number of messages before the page; they are received too.
        limit: Maximum number of messages on the page.

    Raises:
        ConfigurationError: The broker can browse, which has fewer side effects.
        JmsError: The broker refused a request, or the connection was lost.

    Guarantee: no message is acknowledged, and all return to the queue, also after a crash. Each received
    message may be marked as redelivered, and its delivery may count against a limit. Until it returns, other
    consumers can't receive it.
    """
    with contextlib.closing(connection.administration()) as administration:
        if QueueOperation.BROWSE in administration.operations:
            raise ConfigurationError(
                f"{connection.broker} can browse without consuming; leave out --by-consuming"
            )
    found = list(
        islice(
            browse_or_receive(connection, Destination.queue(queue), selector, skip + limit + 1), skip, None
        )
    )
    return MessagePage(messages=tuple(found[:limit]), more=len(found) > limit, note=_BY_CONSUMING)


def find_message(administration: QueueAdministration, queue: str, message_id: str) -> JmsMessage:
    """Return the message with an id, and leave it on the queue.

    Raises:
        ConfigurationError: No message on the queue has the id.
        CapabilityError: The broker shows only a part of the queue, and the message is not in that part.
        JmsError: The user is not allowed to browse, or the connection was lost.
    """
    for each in administration.find(queue, MessageSelection(ids=(message_id,))):
        return each
    raise ConfigurationError(
        f"no message {message_id!r} is on queue {queue!r}; see airflow jms queues browse"
    )


def change_messages(
    administration: QueueAdministration,
    change: QueueChange,
    queue: str,
    selection: MessageSelection,
    *,
    target: str = "",
    dry_run: bool = False,
) -> int:
    """Move, copy or delete messages, and return their number.

    Args:
        administration: Administration of the broker.
        change: The change.
        queue: Name of the queue.
        selection: The messages to change.
        target: Name of the other queue, for `MOVE` and `COPY`.
        dry_run: Count the messages, and change nothing. The queue may have more matching messages than
            counted, see `incomplete_count_reason`.

    Raises:
        ConfigurationError: Source and target are the same queue.
        CapabilityError: The broker does not offer the change. Or the broker shows only a part of the queue,
            so matching messages may be left after the change. The text has the number of changed messages.
        JmsError: The broker refused a request, or the connection was lost.

    Guarantee: a crash leaves each moved message on exactly one of the two queues.
    """
    if change is not QueueChange.DELETE:
        refuse_same_queue(queue, target)
    if dry_run:
        if not selection.ids and selection.selector is None:
            with contextlib.suppress(CapabilityError):
                return count_messages(administration, queue, None)
        return administration.count(queue, selection)
    match change:
        case QueueChange.MOVE:
            return administration.move(queue, target, selection)
        case QueueChange.COPY:
            return administration.copy(queue, target, selection)
        case QueueChange.DELETE:
            return administration.delete(queue, selection)
        case _:
            assert_never(change)


def incomplete_count_reason(
    administration: QueueAdministration, queue: str, selection: MessageSelection, counted: int
) -> str:
    """Return why the queue may have more messages of a selection than were counted; "" if the count is exact.

    Args:
        administration: Administration of the broker.
        queue: Name of the queue.
        selection: The selection that was counted.
        counted: Number of messages that were counted.
    """
    if selection.ids or selection.selector is None:
        return ""
    return administration.unseen(queue, selector=selection.selector, shown=counted)


def count_messages(administration: QueueAdministration, queue: str, selector: str | None) -> int:
    """Return the number of messages on a queue, or of those that match a selector; 0 for a missing queue.

    With a selector the queue may have more matching messages than counted, see `incomplete_count_reason`.

    Raises:
        CapabilityError: The broker does not count its messages, or can't select them.
        JmsError: The user is not allowed to count them, or the connection was lost.
    """
    if selector is not None:
        return administration.count(queue, MessageSelection(selector=selector))
    found = administration.statistics(queue)
    return 0 if found is None else found.messages


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReading:
    """The part of a queue that was read.

    Attributes:
        read: Number of messages read.
        more: Whether the queue has more messages, or may have more.
        total: Number of all messages on the queue, including those that don't match the selector. `None` if
            `more` is `False`, or the number isn't known.
        note: Sentences on a side effect of browsing, and on messages that the broker doesn't show. Empty if
            browsing has no side effect and the broker shows all messages.
    """

    read: int
    more: bool
    total: int | None
    note: str


def read_messages(
    administration: QueueAdministration,
    queue: str,
    take: Callable[[JmsMessage], object],
    *,
    selector: str | None = None,
    limit: int | None,
) -> QueueReading:
    """Read the first messages of a queue one after another, and leave them on it.

    If the broker shows only a part of the queue, that part is read, and the note describes it.

    Args:
        administration: Administration of the broker.
        queue: The queue's name.
        take: Called with each message, which is not kept elsewhere.
        selector: Read matching messages only.
        limit: Maximum number of messages to read; `None`: all.

    Raises:
        CapabilityError: The broker does not browse, or ignores selectors.
        JmsError: The user is not allowed to browse, or the connection was lost.
    """
    read, more, hidden, total = 0, False, "", None
    most = None if limit is None else limit + 1
    try:
        for each in administration.browse_all(queue, selector=selector, most=most):
            if read == limit:
                more = True
                break
            take(each)
            read += 1
    except CapabilityError as error:
        if not read:
            raise
        hidden = str(error)
    else:
        if not more:
            hidden = administration.unseen(queue, selector=selector, shown=read)
    if more or hidden:
        total = _total(administration, queue)
    return QueueReading(
        read=read,
        more=more or bool(hidden),
        total=None if total is None or total <= read else total,
        note=" ".join(filter(None, [administration.browse_note, hidden])),
    )


def _total(administration: QueueAdministration, queue: str) -> int | None:
    """Return the broker's count of the messages on a queue; `None` if the broker does not count."""
    if QueueOperation.STATISTICS not in administration.operations:
        return None
    try:
        return count_messages(administration, queue, None)
    except CapabilityError:
        return None
