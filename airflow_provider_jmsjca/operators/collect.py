"""Collects messages into a batch on disk."""

from __future__ import annotations

import enum
import functools
import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowException, AirflowSkipException

from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.destination_options import prefetch_of
from airflow_provider_jmsjca.engine.batch_spec import BatchSpec, CollectResult, EndReason
from airflow_provider_jmsjca.engine.batcher import collect
from airflow_provider_jmsjca.engine.connector import RetryPolicy, open_connection
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.hooks.clients import with_client_id
from airflow_provider_jmsjca.hooks.destinations import find_destination
from airflow_provider_jmsjca.hooks.failures import task_failures
from airflow_provider_jmsjca.hooks.jms import JmsHook
from airflow_provider_jmsjca.hooks.selectors import selector_in_force
from airflow_provider_jmsjca.hooks.settings import settings_for
from airflow_provider_jmsjca.hooks.spool import spool_path
from airflow_provider_jmsjca.operators.quantities import count_faults, seconds_faults
from airflow_provider_jmsjca.spark.batch_id import TaskKey
from airflow_provider_jmsjca.spark.spool import SpoolBatch
from airflow_provider_jmsjca.transports.base import Subscription


class IfEmpty(enum.StrEnum):
    """What becomes of the task when there was no message."""

    SKIP = "skip"
    SUCCEED = "succeed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """A batch, and what this attempt did for it."""

    batch_id: str
    result: CollectResult

    def report(self) -> dict[str, Any]:
        """Return what travels through XCom."""
        result = self.result
        return {
            "batch_id": self.batch_id,
            "manifest": result.manifest,
            "rows": result.rows,
            "segments": result.segments,
            "received": result.received,
            "duplicates": result.duplicates,
            "undecodable": result.undecodable,
            "left": result.left,
            "reconnects": result.reconnects,
            "ended_by": str(result.reason),
        }


class JmsCollectOperator(BaseOperator):
    """Receives messages until there are enough, into a batch of Parquet files on disk.

    A batch ends at `max_messages`, after `max_time`, or when nothing came for `idle_time`, whichever is
    first.

    Guarantee: a message is acknowledged only after it is in a sealed file, so nothing is lost whatever dies.
    The batch belongs to the task instance and not to its attempt: a retry goes on with it, and a task that
    is cleared after success finds it finished and receives nothing. What comes twice is dropped by its
    message id, as far back as the spool's retained ids.

    Args:
        destination: `queue://name`, `topic://name`, `lookup://object`, or the name of a queue. Templated.
        jms_conn_id: The Airflow connection.
        message_selector: Only messages that match; `None` for all. Templated.
        subscription_name: Name of a durable subscription to a topic; also the client id, if the connection
            says none.
        max_messages: How many messages make a batch.
        max_time: Seconds after which the batch ends with what is there.
        idle_time: Seconds without a message after which the batch ends.
        segment_messages: Most messages in one file, 1 to 10,000.
        spool_path: Directory of the batches, on storage that later tasks see. `None` takes `[jmsjca]
            spool_path`, which defaults to `jms-spool` under AIRFLOW_HOME. Templated.
        if_empty: `"skip"` or `"succeed"` when there was no message; nothing is left on disk then.

    Returns:
        `{"batch_id": ..., "manifest": "file:///.../manifest.json", "rows": 1200, "segments": 1, ...}`; the
        manifest is `None` for an empty batch.
    """

    template_fields: Sequence[str] = (
        "destination",
        "jms_conn_id",
        "message_selector",
        "subscription_name",
        "spool_path",
    )
    shallow_copy_attrs: Sequence[str] = ("_stop",)  # it holds a lock
    ui_color = "#c8e0d0"

    def __init__(
        self,
        *,
        destination: str,
        jms_conn_id: str = JmsHook.default_conn_name,
        message_selector: str | None = None,
        subscription_name: str | None = None,
        max_messages: int = 50_000,
        max_time: float = 300,
        idle_time: float = 3,
        segment_messages: int = 5_000,
        spool_path: str | None = None,
        if_empty: str = IfEmpty.SKIP,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.destination = destination
        self.jms_conn_id = jms_conn_id
        self.message_selector = message_selector
        self.subscription_name = subscription_name
        self.max_messages = max_messages
        self.max_time = max_time
        self.idle_time = idle_time
        self.segment_messages = segment_messages
        self.spool_path = spool_path
        self.if_empty = if_empty
        self._stop = threading.Event()

    def execute(self, context: Context) -> dict[str, Any]:
        """Collect a batch, or go on with the one an earlier attempt began."""
        with task_failures():
            return self.collected(context).report()

    def on_kill(self) -> None:
        """Stop collecting: what isn't sealed goes back to the broker, the next attempt goes on."""
        # From another thread: this runs in a signal handler, maybe while this thread holds the event's lock.
        threading.Thread(target=self._stop.set).start()

    def collected(self, context: Context) -> Collected:
        """Collect; the errors are ours and not yet Airflow's.

        Raises:
            AirflowSkipException: There was no message, and `if_empty` is `"skip"`.
            AirflowException: The task was told to stop.
        """
        if_empty = self._if_empty()
        faults = [
            *count_faults("max_messages", self.max_messages),
            *count_faults("segment_messages", self.segment_messages),
            *seconds_faults("max_time", self.max_time),
            *seconds_faults("idle_time", self.idle_time),
        ]
        if faults:
            raise ConfigurationError(faults)
        destination = find_destination(self.destination)
        hook = JmsHook(self.jms_conn_id)
        options = hook.options()
        settings = with_client_id(settings_for(self.jms_conn_id, options), self.subscription_name)
        patience = RetryPolicy(minimal_logging=options["minimal_reconnect_logging"] is True)
        usual = options["prefetch"]
        spec = BatchSpec(
            subscription=Subscription(
                destination=destination,
                selector=selector_in_force(
                    options, destination, self.message_selector or None, self.subscription_name or None
                ),
                durable_name=self.subscription_name or None,
                prefetch=prefetch_of(destination) or (usual if isinstance(usual, int) else None),
            ),
            max_messages=self.max_messages,
            max_time=timedelta(seconds=self.max_time),
            idle_time=timedelta(seconds=self.idle_time),
            segment_messages=self.segment_messages,
        )
        batch_id = task_key(context).batch_id()
        with SpoolBatch(
            Path(self.spool_path) if self.spool_path else spool_path(),
            batch_id,
            source=str(destination),
            activation=self._activation(destination, context),
        ) as batch:
            result = collect(
                functools.partial(open_connection, settings, policy=patience), batch, spec, stop=self._stop
            )
            folder = batch.folder
        if result.reason is EndReason.STOPPED:
            raise AirflowException(f"told to stop; batch {batch_id} has {result.rows} messages and goes on")
        self.log.info("Batch %s: %s", batch_id, result)
        if result.rows == 0:
            # Nothing is in it; cleared later, the task shall look again.
            shutil.rmtree(folder)
            result = CollectResult(reason=result.reason, manifest=None, rows=0, segments=0, left=result.left)
            if if_empty is IfEmpty.SKIP:
                raise AirflowSkipException(f"no message on {destination}")
        return Collected(batch_id=batch_id, result=result)

    def _if_empty(self) -> IfEmpty:
        try:
            return IfEmpty(self.if_empty)
        except ValueError:
            raise ConfigurationError(f"if_empty is {self.if_empty!r}; expected 'skip' or 'succeed'") from None

    def _activation(self, destination: Destination, context: Context) -> str:
        """Return whose batches share the ids they have seen: those that compete for the same messages."""
        shared = f"{self.jms_conn_id} {destination}"
        if destination.kind is DestinationKind.QUEUE:
            return shared
        # On a topic each subscription gets its own copy.
        instance = context["ti"]
        return f"{shared} {self.subscription_name or f'{instance.dag_id}.{instance.task_id}'}"


def task_key(context: Context) -> TaskKey:
    """Return the identity of the task instance, which all its attempts share."""
    instance = context["ti"]
    return TaskKey(
        dag_id=instance.dag_id,
        run_id=instance.run_id,
        task_id=instance.task_id,
        map_index=-1 if instance.map_index is None else instance.map_index,
    )
