"""Looks for messages that stay at the broker while nobody listens, in an event loop."""

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


async def look_for_what_stays(connect: Connect, queue: Destination, *, filtered: bool) -> None:
    """Say in the log what stays on a queue; goes on until it is cancelled, or the broker can't be asked.

    It looks every `backlog_watch.BETWEEN_LOOKS`, as `BacklogWatch` does, over a connection of its own each
    time: a broker that refuses to answer closes it.

    Args:
        connect: Opens one.
        queue: Which.
        filtered: Whether its messages are selected: what waits may then be for others.
    """
    watch = BacklogWatch(
        name=f"{queue}, deferred",
        queue=queue,
        filtered=filtered,
        consumers=_OWN_CONSUMERS,
        connect=connect,
        idle_for=lambda: math.inf,
        keeps=lambda: False,
        clock=time.monotonic,
    )
    try:
        while True:
            await asyncio.sleep(backlog_watch.BETWEEN_LOOKS.total_seconds())
            try:
                await in_thread(watch.look)
            except TransientBrokerError as error:
                _log.debug("A look at %s failed: %s", queue, error)
    except CapabilityError as error:
        _log.debug("What stays on %s can't be noticed: %s", queue, error)
    except (PermanentBrokerError, ConfigurationError) as error:
        _log.info("What stays on %s can't be noticed: %s", queue, error)
