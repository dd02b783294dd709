"""Messages that events refer to: stored in the spool without blocking the event loop, deleted later."""

from __future__ import annotations

import functools
import math
import time
from typing import Any

from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.engine.connecting.threads import ThreadPool, in_thread
from airflow_provider_jmsjca.errors import JmsError
from airflow_provider_jmsjca.hooks.spool import reference_retention, spool_path
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.spool.files import SpoolPath
from airflow_provider_jmsjca.spool.references import seal_message, sweep_references

_log = safe_logger(__name__)
# Shared by all triggers of the process: a disk isn't faster for more.
_THREADS = ThreadPool(4)
_SWEPT_EVERY_SECONDS = 3600.0
_swept: dict[SpoolPath, float] = {}


async def seal(message: JmsMessage) -> dict[str, Any]:
    """Store a message in the spool without blocking the event loop, and return the reference for its event.

    Guarantee: that of `seal_message`. On cancellation the message may be stored, and is deleted later.

    Raises:
        SpoolError: The spool can't be written.
        ConfigurationError: `[jmsjca] spool_path` can't be used.
    """
    reference = await in_thread(functools.partial(_seal, message), start=_THREADS.submit)
    sweep_sometimes()
    return reference


def _seal(message: JmsMessage) -> dict[str, Any]:
    return seal_message(spool_path(), message)  # which may ask Airflow for a connection


def sweep_sometimes() -> None:
    """Delete messages that are older than the retention, in a thread and at most once an hour."""
    _THREADS.submit_logged(_sweep_sometimes)


def _sweep_sometimes() -> None:
    try:
        spool, retention = spool_path(), reference_retention()
        now = time.monotonic()
        if now - _swept.get(spool, -math.inf) >= _SWEPT_EVERY_SECONDS:
            _swept[spool] = now
            sweep_references(spool, retention)
    except JmsError as error:
        _log.error("Old messages of events can't be deleted from the spool: %s", error)
