"""Notices messages that stay on the queue although its listener has nothing to do.

Two things are known to do that. Artemis may keep a message for a consumer that was killed: nobody gets it
until the broker is restarted. And a paused queue, or another consumer that holds messages and doesn't go on,
looks from here like an empty queue.

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
"""How long nothing has come, when the first look is taken."""
BETWEEN_LOOKS: Final = timedelta(seconds=60)
APART: Final = timedelta(seconds=1)
"""How long lies between the two counts of one look: what moves isn't stuck."""
HELD_LONG: Final = timedelta(minutes=5)
"""How long another consumer may hold a message before that is worth a warning."""
_NAMED: Final = 5


class BacklogWatch:
    """Looks now and then, in a thread and over a connection of its own, and says in the log what stays.

    Args:
        name: The listener's, for the log.
        queue: What it consumes.
        filtered: Whether it has a selector: what waits may then not be for it.
        consumers: How many it has on the queue.
        connect: Opens a connection.
        idle_for: Tells for how many seconds the listener has had nothing to do; 0 while it has.
        keeps: Tells whether the listener keeps messages unsettled then.
        clock: Seconds, monotonic.

    Attributes:
        queue: What the listener consumes.
        looking: Whether a look is under way.
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
        keeps: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self._name = name
        self.queue = queue
        self._filtered = filtered
        self._consumers = consumers
        self._connect = connect
        self._idle_for = idle_for
        self._keeps = keeps
        self._clock = clock
        self._over = threading.Event()
        self.looking = False
        self._held_since: dict[str, float] = {}
        self._said: frozenset[str] = frozenset()

    @property
    def is_time(self) -> bool:
        """Whether there has been nothing to do for long enough to look."""
        return self._idle_for() >= IDLE_BEFORE.total_seconds()

    def start(self) -> None:
        """Begin to look."""
        threading.Thread(target=self._run, name=f"jms-backlog {self._name}", daemon=True).start()

    def stop(self) -> None:
        """Look no more; a look under way is left alone."""
        self._over.set()

    def _run(self) -> None:
        pause = IDLE_BEFORE.total_seconds()
        while not self._over.wait(pause):
            idle = self._idle_for()
            if idle < IDLE_BEFORE.total_seconds():
                pause = max(0.1, IDLE_BEFORE.total_seconds() - idle)
                continue
            self.looking = True
            try:
                self.look()
            except (PermanentBrokerError, ConfigurationError, CapabilityError) as error:
                _log.info("%s: what stays on %s can't be noticed: %s", self._name, self.queue, error)
                return
            except JmsError as error:
                _log.debug("%s: a look at %s failed: %s", self._name, self.queue, error)
            finally:
                self.looking = False
            pause = BETWEEN_LOOKS.total_seconds()

    def look(self) -> None:
        """Count twice over a connection of its own, and say what stays.

        Raises:
            JmsError: The broker can't be asked.
        """
        connection = self._connect()
        try:
            self.probe_queues(connection)
        finally:
            connection.close()

    def probe_queues(self, connection: Connection) -> None:
        """Count twice over a connection that is there, and say what stays.

        Raises:
            JmsError: The broker can't be asked.
        """
        before = connection.backlog(self.queue)
        if before.waiting or before.taken:
            self._over.wait(APART.total_seconds())
            now = connection.backlog(self.queue)
        else:
            now = before
        if not self._over.is_set() and self.is_time:
            self._judge(before, now)

    def _judge(self, before: Backlog, now: Backlog) -> None:
        moment = self._clock()
        # What this listener keeps unsettled is in the log already, and can't be told from the rest.
        held = frozenset[str]() if self._keeps() else before.taken_ids & now.taken_ids
        self._held_since = {each: self._held_since.get(each, moment) for each in held}
        said: dict[str, int] = {}
        # Whatever this listener has in hand is none of it: it has nothing.
        # A consumer that goes meanwhile leaves its messages to this one, and they may be on their way.
        alone = max(before.consumers, now.consumers) <= self._consumers
        if held and alone:
            text = (
                f"the broker keeps {_count(held)} of {self.queue} for a consumer that is gone, and may"
                f" deliver them only after a restart ({_names(held)})"
            )
            said[text] = logging.ERROR
        elif late := frozenset(
            each for each, since in self._held_since.items() if moment - since >= HELD_LONG.total_seconds()
        ):
            text = (
                f"another consumer, or one that is gone, has had {_count(late)} of {self.queue}"
                f" for {HELD_LONG} or longer ({_names(late)})"
            )
            said[text] = logging.WARNING
        if before.waiting and now.waiting and not self._filtered:
            text = (
                f"messages wait on {self.queue} and aren't delivered to this listener, which has nothing to"
                " do: the queue is paused, or they are kept for another consumer"
            )
            said[text] = logging.WARNING
        for text, level in said.items():
            if text not in self._said:
                _log.log(level, "%s: %s", self._name, text)
        self._said = frozenset(said)


def _count(messages: frozenset[str]) -> str:
    return f"{len(messages)} message{'s' if len(messages) > 1 else ''}"


def _names(messages: frozenset[str]) -> str:
    names = sorted(messages)
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")


# The one that waits for messages by receiving, where the broker can't be browsed.
_OWN_CONSUMERS = 1


def watch_while_deferred(connect: ConnectFunction, queue: Destination, *, filtered: bool) -> BacklogWatch:
    """Return what notices messages that stay on a queue while nobody consumes it.

    Args:
        connect: Opens a connection.
        queue: Which.
        filtered: Whether its messages are selected: what waits may then be for others.
    """
    return BacklogWatch(
        name=f"{queue}, deferred",
        queue=queue,
        filtered=filtered,
        consumers=_OWN_CONSUMERS,
        connect=connect,
        idle_for=lambda: math.inf,
        keeps=lambda: False,
        clock=time.monotonic,
    )


async def look_for_what_stays(
    watch: BacklogWatch, run: Callable[[Callable[[], None]], Awaitable[None]] = in_thread
) -> None:
    """Say in the log what stays on a queue; goes on until it is cancelled, or the broker can't be asked.

    It looks every `BETWEEN_LOOKS`, unless there is something to do just then, over a connection
    of its own each time: a broker that refuses to answer closes it.

    Args:
        watch: What looks.
        run: Runs a look, as `AsyncConnection.in_thread` does in one of its few threads; otherwise each look
            has a thread of its own.
    """
    try:
        while True:
            await asyncio.sleep(BETWEEN_LOOKS.total_seconds())
            if not watch.is_time:
                continue
            try:
                await run(watch.look)
            except TransientBrokerError as error:
                _log.debug("A look at %s failed: %s", watch.queue, error)
    except CapabilityError as error:
        _log.debug("What stays on %s can't be noticed: %s", watch.queue, error)
    except (PermanentBrokerError, ConfigurationError) as error:
        _log.info("What stays on %s can't be noticed: %s", watch.queue, error)
    finally:
        watch.stop()
