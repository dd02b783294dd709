"""Isolates messages for which ActiveMQ ends the connection, because it can't transform them.

If maps are requested as XML, the broker also transforms objects. For an object of an untrusted class it ends
the connection, each time that it is about to deliver the message. After such an end, this module browses the
queue with and without the transformation. Messages that end the browsing connection are from then on received
untransformed, through a second subscription. They arrive without their body and are undecodable, as without
the transformation.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import ConnectionLostError, JmsError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.transports.base import Subscription
from airflow_provider_jmsjca.transports.stomp.browsing import browse
from airflow_provider_jmsjca.transports.stomp.dialects.java_bodies import TRANSFORMATION
from airflow_provider_jmsjca.transports.stomp.link.link import Link

_log = safe_logger(__name__)

_MOST_QUEUES: Final = 100
_MOST_MESSAGES: Final = 50
_Key = tuple[str, str]

_lock = threading.Lock()
_suspected: set[_Key] = set()
_known: OrderedDict[_Key, tuple[str, ...]] = OrderedDict()


def set_apart(link: Link, subscription: Subscription) -> tuple[str, ...]:
    """Return the ids of messages that a subscription must receive untransformed.

    Searches the queue if this process has lost a connection with such a subscription. Remembers at most 50
    ids per queue, for 100 queues.

    Args:
        link: The link of the new subscription, before SUBSCRIBE.
        subscription: A subscription to a queue; for a topic, which can't be browsed, the result is empty.

    Raises:
        JmsError: The queue could not be browsed.
    """
    destination = subscription.destination
    asked = any(name == TRANSFORMATION for name, _ in destination.options)
    if not asked or destination.kind is DestinationKind.TOPIC:
        return ()
    key = (link.broker.address, destination.name)
    with _lock:
        suspected, known = key in _suspected, _known.get(key, ())
    if suspected:
        known = tuple(_found(link, destination, list(known)))[-_MOST_MESSAGES:]
        with _lock:
            _suspected.discard(key)
            if known:
                _known[key] = known
                _known.move_to_end(key)
            while len(_known) > _MOST_QUEUES:
                _known.popitem(last=False)

    def lost(_: JmsError) -> None:
        with _lock:
            if len(_suspected) < _MOST_QUEUES:
                _suspected.add(key)

    link.on_lost(lost)
    return known


def split_by_id(subscription: Subscription, ids: tuple[str, ...]) -> tuple[Subscription, Subscription]:
    """Split a subscription: one for messages without these ids, an untransformed one for those with them."""
    selector = subscription.selector
    listed = ", ".join(map(_quoted, ids))
    others = f"NOT (JMSMessageID IN ({listed}))"
    return (
        replace(subscription, selector=f"({selector}) AND {others}" if selector else others),
        replace(
            subscription,
            destination=_plain(subscription.destination),
            selector=f"JMSMessageID IN ({listed})" + (f" AND ({selector})" if selector else ""),
            prefetch=1,
        ),
    )


def _found(link: Link, destination: Destination, known: list[str]) -> list[str]:
    """Return the known ids, and those found by browsing the queue."""
    while len(known) < _MOST_MESSAGES:
        others = f"NOT (JMSMessageID IN ({', '.join(map(_quoted, known))}))" if known else None
        seen: set[str | None] = set()
        with _another(link) as second:
            if second is None:
                return known
            try:
                seen.update(each.message_id for each in _browsed(second, destination, others))
            except ConnectionLostError:
                pass
            else:
                return known
        suspect = next(
            (
                each.message_id
                for each in _browsed(link, _plain(destination), others)
                if each.message_id not in seen and not each.body
            ),
            None,
        )
        if suspect is None or not _ends_connection(link, destination, suspect):
            return known
        _log.error(
            "Message %s on %s can't be decoded: the broker ends the connection when it transforms it, as for "
            "a Java object of an untrusted class",
            suspect,
            destination,
        )
        known.append(suspect)
    return known


def _ends_connection(link: Link, destination: Destination, message_id: str) -> bool:
    with _another(link) as second:
        if second is None:
            return False
        try:
            for _ in _browsed(second, destination, f"JMSMessageID = {_quoted(message_id)}"):
                pass
        except ConnectionLostError:
            return True
        return False


def _browsed(link: Link, destination: Destination, selector: str | None) -> Iterator[JmsMessage]:
    return browse(link, destination, selector, link.reply_timeout)


@contextlib.contextmanager
def _another(link: Link) -> Iterator[Link | None]:
    second = link.another()
    if second is None:
        _log.warning(
            "No second connection to %s, so the message that makes it end connections can't be found",
            link.broker,
        )
    try:
        yield second
    finally:
        if second is not None:
            second.close()


def _plain(destination: Destination) -> Destination:
    options = tuple((name, value) for name, value in destination.options if name != TRANSFORMATION)
    return replace(destination, options=options)


def _quoted(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"
