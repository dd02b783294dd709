"""Consumers with a connection of their own, for brokers whose ACK can cover a whole connection."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import replace

from airflow_provider_jmsjca.errors import JmsError
from airflow_provider_jmsjca.transports.base import OnReceived, Subscription, UnitOfWork
from airflow_provider_jmsjca.transports.stomp.consumer import StompConsumer, subscribe
from airflow_provider_jmsjca.transports.stomp.link.link import Link


class Sessions:
    """The further links of a connection, one for each consumer with a session of its own.

    To the user they are one connection: if one link is lost, all are.

    Args:
        link: The first link.
        units_on: Returns a function that begins units of work on a link.
    """

    def __init__(self, link: Link, units_on: Callable[[Link], Callable[[], UnitOfWork]]) -> None:
        self._link = link
        self._units_on = units_on
        self._lock = threading.Lock()
        self._links: set[Link] = set()
        self._watches = False

    def consume(self, subscription: Subscription, on_received: OnReceived) -> StompConsumer:
        """Start receiving over another link; errors as for `Connection.consume`."""
        self._watch()
        link = self._link.session()
        with self._lock:
            self._links.add(link)
        try:
            consumer = subscribe(
                link,
                replace(subscription, alone=True),
                on_received,
                self._units_on(link),
                lambda: self._end(link),
            )
        except BaseException:
            self._end(link)
            raise
        link.on_lost(functools.partial(self._link.give_up, logged=True))
        if not self._link.is_up:  # the first link was lost or closed during this call
            self._end(link)
        return consumer

    def _watch(self) -> None:
        with self._lock:
            if self._watches:
                return
            self._watches = True
        self._link.on_lost(self._give_up)

    def _give_up(self, reason: JmsError) -> None:
        with self._lock:
            links = list(self._links)
        for link in links:
            link.give_up(reason, logged=True)

    def _end(self, link: Link) -> None:
        link.close()
        with self._lock:
            self._links.discard(link)

    def synchronize(self) -> None:
        """Wait until the broker has processed all earlier frames."""
        with self._lock:
            links = list(self._links)
        for link, receipts in [(link, link.ask()) for link in links]:
            link.wait(receipts)

    def close(self) -> None:
        """Close all links concurrently, within one reply timeout."""
        with self._lock:
            links = list(self._links)
        threads = [threading.Thread(target=self._end, args=(link,), name="stomp close") for link in links]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
