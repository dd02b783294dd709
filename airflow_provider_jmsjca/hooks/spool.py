"""Where batches are kept, and whose they are."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from pathlib import Path

from airflow.sdk import Context
from airflow.sdk.configuration import conf

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.errors import ConfigurationError, SpoolError
from airflow_provider_jmsjca.spool.batch_id import TaskKey
from airflow_provider_jmsjca.spool.manifest import uri_to_path

_DEFAULT_RETENTION_DAYS = 30.0
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def spool_path(given: str | None = None) -> Path:
    """Return the directory of all batches.

    Args:
        given: A path or a `file:///` URI. `None` or nothing takes what `[jmsjca] spool_path` names, by
            default `jms-spool` under AIRFLOW_HOME.

    Raises:
        ConfigurationError: A URI of another scheme: batches can be sealed on file systems only.
    """
    text = given or conf.get("jmsjca", "spool_path", fallback="")
    if not text:
        return Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "jms-spool"
    if not _SCHEME.match(text):
        return Path(text)
    try:
        return uri_to_path(text)
    except SpoolError as error:
        raise ConfigurationError(
            f"spool_path is {text!r}; expected a path or file:///... URI ('#', '?' and '%' in it written as "
            "%23, %3F, %25) on a POSIX file system that worker, driver and executors see, such as NFS: "
            "object stores and HDFS are not supported"
        ) from error


def reference_retention() -> timedelta:
    """Return how long messages are kept that events refer to: `[jmsjca] reference_retention_days`, or 30.

    Raises:
        ConfigurationError: It is no number of days above 0.
    """
    text = conf.get("jmsjca", "reference_retention_days", fallback="") or _DEFAULT_RETENTION_DAYS
    try:
        found = timedelta(days=float(text))
    except (ValueError, OverflowError):
        found = timedelta(0)
    if found <= timedelta(0):
        raise ConfigurationError(
            f"[jmsjca] reference_retention_days is {text!r}; expected a number of days above 0"
        )
    return found


def task_key(context: Context) -> TaskKey:
    """Return the identity of the task instance, which all its attempts share."""
    instance = context["ti"]
    return TaskKey(
        dag_id=instance.dag_id,
        run_id=instance.run_id,
        task_id=instance.task_id,
        map_index=-1 if instance.map_index is None else instance.map_index,
    )


def known_with(jms_conn_id: str, queue: Destination) -> str:
    """Return whose batches share the ids they have seen: those that compete for the messages of a queue."""
    return f"{jms_conn_id} {queue}"
