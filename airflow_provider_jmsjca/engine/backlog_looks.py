"""Looks for messages that stay at the broker while nobody listens, in an event loop."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import NoReturn

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.engine import backlog_watch
from airflow_provider_jmsjca.engine.async_connection import AsyncConnection
from airflow_provider_jmsjca.engine.backlog_watch import BacklogWatch
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


async def look_for_what_stays(connection: AsyncConnection, queue: Destination, *, filtered: bool) -> None:
    """Say in the log what stays on a queue; goes on until it is cancelled, or the broker can't be asked.

    It looks every `backlog_watch.BETWEEN_LOOKS`, as `BacklogWatch` does.

    Args:
        connection: Lent to nobody else.
        queue: Which.
        filtered: Whether its messages are selected: what waits may then be for others.
    """
    watch = BacklogWatch(
        name=f"{queue}, deferred",
        queue=queue,
        filtered=filtered,
        consumers=_OWN_CONSUMERS,
        connect=_no_connection_of_its_own,
        idle_for=lambda: math.inf,
        keeps=lambda: False,
        clock=time.monotonic,
    )
    try:
        while True:
            await asyncio.sleep(backlog_watch.BETWEEN_LOOKS.total_seconds())
            live = await connection.get()
            if not live.capabilities.backlog:
                return
            try:
                await in_thread(lambda over=live: watch.look_over(over))  # type: ignore[misc]  # no type for over
            except TransientBrokerError as error:
                _log.debug("A look at %s failed: %s", queue, error)
    except (PermanentBrokerError, ConfigurationError, CapabilityError) as error:
        _log.info("What stays on %s can't be noticed: %s", queue, error)
    finally:
        connection.release()


def _no_connection_of_its_own() -> NoReturn:
    raise AssertionError("it looks over a connection that is there")
