"""Looks for messages that stay at the broker, in an event loop: for streams, and while nobody listens."""

from __future__ import annotations

import asyncio
import logging
import math
import time

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.engine import backlog_watch
from airflow_provider_jmsjca.engine.backlog_watch import BacklogWatch
from airflow_provider_jmsjca.engine.outage import Connect
from airflow_provider_jmsjca.engine.threads import in_thread
from airflow_provider_jmsjca.errors import (
    CapabilityError,
    ConfigurationError,
    PermanentBrokerError,
    TransientBrokerError,
)

_log = logging.getLogger("airflow_provider_jmsjca.listener")
# The one that waits for messages by receiving, where the broker can't be browsed.
_OWN_CONSUMERS = 1


def watch_while_deferred(connect: Connect, queue: Destination, *, filtered: bool) -> BacklogWatch:
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


async def look_for_what_stays(watch: BacklogWatch) -> None:
    """Say in the log what stays on a queue; goes on until it is cancelled, or the broker can't be asked.

    It looks every `backlog_watch.BETWEEN_LOOKS`, unless there is something to do just then, over a connection
    of its own each time: a broker that refuses to answer closes it.
    """
    try:
        while True:
            await asyncio.sleep(backlog_watch.BETWEEN_LOOKS.total_seconds())
            if not watch.is_time:
                continue
            try:
                await in_thread(watch.look)
            except TransientBrokerError as error:
                _log.debug("A look at %s failed: %s", watch.queue, error)
    except CapabilityError as error:
        _log.debug("What stays on %s can't be noticed: %s", watch.queue, error)
    except (PermanentBrokerError, ConfigurationError) as error:
        _log.info("What stays on %s can't be noticed: %s", watch.queue, error)
    finally:
        watch.stop()
