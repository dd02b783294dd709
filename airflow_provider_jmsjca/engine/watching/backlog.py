"""Reports messages that stay on a queue although its listener is idle.

Two causes are known. Artemis may keep a message for a consumer that was killed, and deliver it only after a
restart of the broker. And a listener receives nothing if the queue is paused, or if another consumer holds
its messages without progress.

Source: docs/reference/broker-facts.md.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.engine.connecting.threads import in_thread
from airflow_provider_jmsjca.errors import (
    CapabilityError,
    ConfigurationError,
    JmsError,
    PermanentBrokerError,
    TransientBrokerError,
)
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.transports.backlog import Backlog
from airflow_provider_jmsjca.transports.base import ConnectFunction, Connection

_log = safe_logger("airflow_provider_jmsjca.listener")

IDLE_BEFORE: Final = timedelta(seconds=3)
"""Idle time before the first check."""
CHECK_INTERVAL: Final = timedelta(seconds=60)
COUNT_INTERVAL: Final = timedelta(seconds=1)
"""Time between the two counts of a check; messages that move in between aren't stuck."""
HELD_LONG: Final = timedelta(minutes=5)
"""Time for which another consumer may hold a message without a warning."""
_NAMED: Final = 5


class BacklogWatch:
    """Checks a queue periodically, in a thread and over its own connection, and logs messages that stay.

    Args:
        name: Name of the listener, for the log.
        queue: The listener's queue.
        filtered: Whether the listener has a selector. Waiting messages may then not match it.
        consumers: Number of the listener's consumers on the queue.
        connect: Opens a connection.
        idle_for: Returns for how many seconds the listener has been idle; 0 while it is busy.
        has_unsettled: Returns whether the listener keeps messages unsettled while it is idle.
        clock: Monotonic seconds.

    Attributes:
        queue: The listener's queue.
        is_checking: Whether a check is running.
    """

    def __init__(
        self,
        *,
        name: str,
        queue: Destination,
        filtered: bool,
        consumers: int,
        connect: Callable[[], Connection],
        idle_for: Callable[[], float],
        has_unsettled: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self._name = name
        self.queue = queue
        self._filtered = filtered
        self._consumers = consumers
        self._connect = connect
        self._idle_for = idle_for
        self._has_unsettled = has_unsettled
        self._clock = clock
        self._stopped = threading.Event()
        self.is_checking = False
        self._held_since: dict[str, float] = {}
        self._logged: frozenset[str] = frozenset()

    @property
    def is_due(self) -> bool:
        """Whether the listener has been idle for long enough to check."""
        return self._idle_for() >= IDLE_BEFORE.total_seconds()

    def start(self) -> None:
        """Start the checks."""
        threading.Thread(target=self._run, name=f"jms-backlog {self._name}", daemon=True).start()

    def stop(self) -> None:
        """Start no more checks; a running check is not interrupted."""
        self._stopped.set()

    def _run(self) -> None:
        pause = IDLE_BEFORE.total_seconds()
        while not self._stopped.wait(pause):
            idle = self._idle_for()
            if idle < IDLE_BEFORE.total_seconds():
                pause = max(0.1, IDLE_BEFORE.total_seconds() - idle)
                continue
            self.is_checking = True
            try:
                self.check()
            except (PermanentBrokerError, ConfigurationError, CapabilityError) as error:
                _log.info("%s: stuck messages on %s can't be detected: %s", self._name, self.queue, error)
                return
            except JmsError as error:
                _log.debug("%s: probing %s failed: %s", self._name, self.queue, error)
            finally:
                self.is_checking = False
            pause = CHECK_INTERVAL.total_seconds()

    def check(self) -> None:
        """Count the queue's messages twice over a new connection, and log those that stay.

        Raises:
            JmsError: The broker can't be queried.
        """
        connection = self._connect()
        try:
            self.probe_queues(connection)
        finally:
            connection.close()

    def probe_queues(self, connection: Connection) -> None:
        """Count the queue's messages twice over an open connection, and log those that stay.

        Raises:
            JmsError: The broker can't be queried.
        """
        before = connection.backlog(self.queue)
        if before.waiting or before.taken:
            self._stopped.wait(COUNT_INTERVAL.total_seconds())
            now = connection.backlog(self.queue)
        else:
            now = before
        if not self._stopped.is_set() and self.is_due:
            self._judge(before, now)

    def _judge(self, before: Backlog, now: Backlog) -> None:
        moment = self._clock()
        # In-flight messages of the listener itself can't be told from those of other consumers. So if the
        # listener keeps messages unsettled (which is logged elsewhere), none is judged.
        held = frozenset[str]() if self._has_unsettled() else before.taken_ids & now.taken_ids
        self._held_since = {each: self._held_since.get(each, moment) for each in held}
        findings: dict[str, int] = {}
        # The listener is idle, so its own consumers hold none of these messages. If the broker has no other
        # consumer, in both counts, the holder is gone. Both counts matter, because a consumer that ends
        # during the check returns its messages, and the listener may be about to receive them.
        alone = max(before.consumers, now.consumers) <= self._consumers
        if held and alone:
            text = (
                f"the broker keeps {_count(held)} of {self.queue} for a consumer that is gone, and may"
                f" deliver them only after a restart ({_names(held)})"
            )
            findings[text] = logging.ERROR
        elif late := frozenset(
            each for each, since in self._held_since.items() if moment - since >= HELD_LONG.total_seconds()
        ):
            text = (
                f"another consumer, or one that is gone, has had {_count(late)} of {self.queue}"
                f" for {HELD_LONG} or longer ({_names(late)})"
            )
            findings[text] = logging.WARNING
        if before.waiting and now.waiting and not self._filtered:
            text = (
                f"messages wait on {self.queue} and aren't delivered to this listener, which has nothing to"
                " do: the queue is paused, or they are kept for another consumer"
            )
            findings[text] = logging.WARNING
        for text, level in findings.items():
            if text not in self._logged:
                _log.log(level, "%s: %s", self._name, text)
        self._logged = frozenset(findings)


def _count(messages: frozenset[str]) -> str:
    return f"{len(messages)} message{'s' if len(messages) > 1 else ''}"


def _names(messages: frozenset[str]) -> str:
    names = sorted(messages)
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")


# On a broker that can't be browsed, the trigger of a deferred task has one consumer.
_OWN_CONSUMERS = 1


def deferred_watch(connect: ConnectFunction, queue: Destination, *, filtered: bool) -> BacklogWatch:
    """Return a watch for messages that stay on a queue while a deferred task waits for them.

    Args:
        connect: Opens a connection.
        queue: The queue.
        filtered: Whether the task has a selector. Waiting messages may then not match it.
    """
    return BacklogWatch(
        name=f"{queue}, deferred",
        queue=queue,
        filtered=filtered,
        consumers=_OWN_CONSUMERS,
        connect=connect,
        idle_for=lambda: math.inf,
        has_unsettled=lambda: False,
        clock=time.monotonic,
    )


async def watch_for_stuck_messages(
    watch: BacklogWatch, run: Callable[[Callable[[], None]], Awaitable[None]] = in_thread
) -> None:
    """Log messages that stay on a queue, until cancelled or until the broker can't be queried.

    While the listener is idle, a check runs every `CHECK_INTERVAL`. Each check has its own connection,
    because a broker that refuses the request may close the connection.

    Args:
        watch: The watch.
        run: Runs a check in a thread, as `AsyncConnection.in_thread` does. By default each check has its own
            thread.
    """
    try:
        while True:
            await asyncio.sleep(CHECK_INTERVAL.total_seconds())
            if not watch.is_due:
                continue
            try:
                await run(watch.check)
            except TransientBrokerError as error:
                _log.debug("Probing %s failed: %s", watch.queue, error)
    except CapabilityError as error:
        _log.debug("Stuck messages on %s can't be detected: %s", watch.queue, error)
    except (PermanentBrokerError, ConfigurationError) as error:
        _log.info("Stuck messages on %s can't be detected: %s", watch.queue, error)
    finally:
        watch.stop()
