"""Collects messages into a batch on disk."""

from __future__ import annotations

import enum
import functools
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, BaseOperatorLink, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from airflow_provider_jmsjca.assets.jms import note_input
from airflow_provider_jmsjca.core.activation import refuse_secrets
from airflow_provider_jmsjca.core.configuration.destination_options import prefetch_of
from airflow_provider_jmsjca.core.destination import Destination, DestinationKind
from airflow_provider_jmsjca.core.quantities import count_faults, seconds_faults
from airflow_provider_jmsjca.core.redelivery import MoveTarget
from airflow_provider_jmsjca.engine.activations.metrics import measured_collection
from airflow_provider_jmsjca.engine.activations.registry import Identity, collecting
from airflow_provider_jmsjca.engine.collecting.batch_spec import (
    DEFAULT_SEGMENT_BYTES,
    DEFAULT_SEGMENT_MESSAGES,
    BatchSpec,
    CollectResult,
    EndReason,
)
from airflow_provider_jmsjca.engine.collecting.batcher import collect
from airflow_provider_jmsjca.engine.connecting.connector import RetryPolicy, open_connection
from airflow_provider_jmsjca.engine.delivering.settings import activation_name
from airflow_provider_jmsjca.engine.watching.depths import probed_queues
from airflow_provider_jmsjca.errors import ConfigurationError, DeliveryStoppedError, SpoolError
from airflow_provider_jmsjca.escaping import escaped
from airflow_provider_jmsjca.hooks.destinations import find_destination
from airflow_provider_jmsjca.hooks.jms import JmsHook
from airflow_provider_jmsjca.hooks.metrics import sending
from airflow_provider_jmsjca.hooks.registry import installed_registrar, task_name
from airflow_provider_jmsjca.hooks.secrets import SecretsRefused
from airflow_provider_jmsjca.hooks.selectors import effective_selector
from airflow_provider_jmsjca.hooks.settings import settings_for, with_client_id
from airflow_provider_jmsjca.hooks.spool import known_ids_key, spool_path, task_key
from airflow_provider_jmsjca.hooks.task_failures import context_entry, task_failures
from airflow_provider_jmsjca.operators.web_links import JmsBatchLink
from airflow_provider_jmsjca.spool.batch_id import TaskKey
from airflow_provider_jmsjca.spool.files import SpoolPath
from airflow_provider_jmsjca.spool.manifest import Manifest
from airflow_provider_jmsjca.spool.spool import SpoolBatch, unfinished_batches
from airflow_provider_jmsjca.spool.upkeep.states import adopt, last_sealed
from airflow_provider_jmsjca.store.base import ActivationKind
from airflow_provider_jmsjca.transports.base import Subscription

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors.base import OperatorLineage


class IfEmpty(enum.StrEnum):
    """State of the task if there was no message."""

    SKIP = "skip"
    SUCCEED = "succeed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """A batch, and the result of this attempt at it."""

    batch_id: str
    folder: SpoolPath
    result: CollectResult
    unfinished: tuple[str, ...] = ()
    adopted: tuple[Manifest, ...] = ()

    def report(self) -> dict[str, Any]:
        """Return the XCom of the task."""
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
            "unfinished": list(self.unfinished),
            "adopted": [
                {"batch_id": each.batch_id, "manifest": each.uri, "rows": each.rows} for each in self.adopted
            ],
        }


class JmsCollectOperator(SecretsRefused, BaseOperator):
    """Collects messages into a batch of Parquet files.

    A batch ends at `max_messages`, after `max_time`, or when no message arrived for `idle_time`, whichever is
    first.

    Guarantee: a message is acknowledged only after it is in a sealed file, so no crash loses a message. The
    batch belongs to the task instance, not to the attempt: a retry continues it. A task that is cleared after
    success finds the finished batch and receives nothing. Redelivered messages are dropped as duplicates as
    long as the spool retains their ids. If producers set the ids (RabbitMQ), equal messages that were sent on
    purpose are all stored.

    Args:
        destination: `queue://name`, `topic://name`, `lookup://object`, or the name of a queue. Templated.
        jms_conn_id: The Airflow connection.
        message_selector: Selects the messages to collect; `None` for all. Templated.
        subscription_name: Name of a durable subscription to a topic; also the client id, if the connection
            has no client id.
        max_messages: Maximum number of messages in a batch.
        max_time: Seconds after which the batch ends, even if it has fewer messages.
        idle_time: Seconds without a message after which the batch ends.
        segment_messages: Maximum number of messages in a file, 1 to 10,000. The messages of a file are
            acknowledged together.
        segment_bytes: A file is sealed when its bodies and properties reach this size, in bytes.
        spool_path: Directory of the batches, on storage that later tasks can read. It is a path, a `file:///`
            URI, or a URI of an object store or HDFS such as `s3://aws_default@bucket/prefix`. `None` uses
            `[jmsjca] spool_path`, which defaults to `jms-spool` under AIRFLOW_HOME. Templated.
        if_empty: `"skip"` or `"succeed"` when there was no message; no files are left in that case.
        adopt_after: Seconds without a new file after which this task finishes ("adopts") a batch that the
            task left unfinished in an earlier DAG run. Adopted batches keep their names. The key `adopted` of
            the result has their manifests, for the tasks that read them. `None` adopts no batch: the log
            names the unfinished ones.

    Returns:
        `{"batch_id": ..., "manifest": "file:///.../manifest.json", "rows": 1200, "segments": 1, ...}`; the
        manifest is `None` for an empty batch. For lineage the destination is an input of the task.
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
    operator_extra_links: Collection[BaseOperatorLink] = (JmsBatchLink(),)

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
        segment_messages: int = DEFAULT_SEGMENT_MESSAGES,
        segment_bytes: int = DEFAULT_SEGMENT_BYTES,
        spool_path: str | None = None,
        if_empty: str = IfEmpty.SKIP,
        adopt_after: float | None = None,
        **kwargs: Any,
    ) -> None:
        refuse_secrets(type(self).__name__, {"destination": destination})
        super().__init__(**kwargs)
        self.destination = destination
        self.jms_conn_id = jms_conn_id
        self.message_selector = message_selector
        self.subscription_name = subscription_name
        self.max_messages = max_messages
        self.max_time = max_time
        self.idle_time = idle_time
        self.segment_messages = segment_messages
        self.segment_bytes = segment_bytes
        self.spool_path = spool_path
        self.if_empty = if_empty
        self.adopt_after = adopt_after
        self._stop = threading.Event()
        self._report: dict[str, Any] | None = None
        self._batch_id: str | None = None
        self._moves_to: tuple[MoveTarget, ...] = ()

    @property
    def linked_batch(self) -> tuple[str | None, bool]:
        """The name of the batch, and whether this try of the task has finished the batch.

        Without a batch, the name is `None`.
        """
        return self._batch_id, self._report is not None

    def execute(self, context: Context) -> dict[str, Any]:
        """Collect a batch, or continue the batch of an earlier attempt."""
        with task_failures():
            self._report = self.collected(context).report()
        return self._report

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any] | None:  # noqa: ARG002  # Airflow's signature
        """Return the batch as the run facet `jms_batch`. OpenLineage calls this, after a failure too."""
        if self._report is None:
            return None
        from airflow_provider_jmsjca.assets.batch_facet import batch_lineage  # noqa: PLC0415  # an optional provider

        return batch_lineage(self._report)

    def on_kill(self) -> None:
        """Stop collecting: unsealed messages go back to the broker, and the next attempt continues."""
        # From another thread: this runs in a signal handler, maybe while this thread holds the event's lock.
        threading.Thread(target=self._stop.set).start()

    def collected(self, context: Context) -> Collected:
        """Collect a batch. The caller turns errors of this package into Airflow's, by `task_failures`.

        Raises:
            AirflowSkipException: There was no message, and `if_empty` is `"skip"`.
            AirflowException: The task was requested to stop.
        """
        if_empty = self._if_empty()
        faults = [
            *count_faults("max_messages", self.max_messages),
            *count_faults("segment_messages", self.segment_messages),
            *count_faults("segment_bytes", self.segment_bytes),
            *seconds_faults("max_time", self.max_time),
            *seconds_faults("idle_time", self.idle_time),
            *(() if self.adopt_after is None else seconds_faults("adopt_after", self.adopt_after, minimum=0)),
        ]
        if faults:
            raise ConfigurationError(faults)
        spool = spool_path(self.spool_path)
        destination = find_destination(self.destination)
        hook = JmsHook(self.jms_conn_id)
        options = hook.options()
        settings = with_client_id(settings_for(self.jms_conn_id, options), self.subscription_name)
        policy = RetryPolicy(minimal_logging=options["minimal_reconnect_logging"] is True)
        spec = BatchSpec(
            subscription=Subscription(
                destination=destination,
                selector=effective_selector(
                    options, destination, self.message_selector or None, self.subscription_name or None
                ),
                durable_name=self.subscription_name or None,
                prefetch=prefetch_of(destination, options["prefetch"]),
            ),
            max_messages=self.max_messages,
            max_time=timedelta(seconds=self.max_time),
            idle_time=timedelta(seconds=self.idle_time),
            segment_messages=self.segment_messages,
            segment_bytes=self.segment_bytes,
            moves_to=self._moves_to,
        )
        batch_id = self._batch_id = task_key(context).batch_id()
        activation = self._activation(destination, context)
        note_input(hook, settings, destination)
        identity = Identity(
            activation=activation_name(
                str(destination), settings.url, self.subscription_name or None, settings.client_id
            ),
            kind=ActivationKind.COLLECTOR,
            owner=task_name(context_entry(context, "ti")),
            destination=str(destination),
            broker=settings.url.partition("?")[0],
            probed=probed_queues(settings, [destination]),
        )
        batch = SpoolBatch(spool, batch_id, source=str(destination), activation=activation)
        connect = functools.partial(open_connection, settings, policy=policy)
        try:
            with batch:
                registrar = installed_registrar() if batch.manifest is None else None
                with (
                    collecting(registrar, identity, self._stop.set) as control,
                    sending(lambda: measured_collection(identity, control), identity.probed),
                ):
                    result = collect(connect, batch, spec, stop=self._stop, control=control)
        except DeliveryStoppedError as error:
            # A batch with sealed messages is kept: once the activation is resumed, the next attempt continues
            # it.
            if batch.rows:
                raise AirflowFailException(str(error)) from error
            batch.discard()
            self._batch_id = None
            raise AirflowSkipException(str(error)) from error
        adopted = () if result.reason is EndReason.STOPPED else self._adopt(batch, activation)
        unfinished = unfinished_batches(spool, batch_id, activation)
        for each in unfinished:
            self.log.warning("%s", escaped(each.warning()))
        if result.reason is EndReason.STOPPED:
            raise AirflowException(
                f"stopped on request; batch {batch_id} has {result.rows} messages, and a retry continues it"
            )
        self.log.info("Batch %s: %s", batch_id, result.summary())
        if result.rows == 0:
            if not adopted:
                # The empty batch is discarded, so that the task collects again if it is cleared later.
                batch.discard()
                self._batch_id = None
            result = CollectResult(reason=result.reason, manifest=None, rows=0, segments=0, left=result.left)
            if if_empty is IfEmpty.SKIP and not adopted:
                self.log.info(
                    "Nothing came from %s within %g s: the task is skipped (`if_empty` is 'skip')",
                    destination,
                    self.idle_time if result.reason is EndReason.IDLE else self.max_time,
                )
                raise AirflowSkipException(f"no message on {destination}")
        names = tuple(each.batch_id for each in unfinished)
        return Collected(
            batch_id=batch_id, folder=batch.folder, result=result, unfinished=names, adopted=adopted
        )

    def _adopt(self, batch: SpoolBatch, activation: str) -> tuple[Manifest, ...]:
        """Finish batches that this task left unfinished in earlier DAG runs, and return their manifests.

        A retry returns the same manifests, because the batches are recorded before they are finished.
        """
        spool, named = batch.folder.parent, TaskKey.parse(batch.batch_id)
        if self.adopt_after is None or named is None:
            return ()
        latest = time.time() - self.adopt_after
        left = [
            each.batch_id
            for each in unfinished_batches(spool, batch.batch_id, activation)
            if each.rows is not None
            and (key := TaskKey.parse(each.batch_id)) is not None
            and (key.dag_id, key.task_id) == (named.dag_id, named.task_id)
            and last_sealed(spool, each.batch_id) <= latest
        ]
        adopted = []
        for name in batch.note_adopted(left):
            try:
                manifest = adopt(spool, name)
            except SpoolError as error:
                # The writer of the batch has come back, or the batch was removed.
                self.log.warning("Batch %s of an earlier run can't be adopted: %s", name, error)
            else:
                if manifest is not None:
                    self.log.info("Batch %s of an earlier run is adopted: %d messages", name, manifest.rows)
                    adopted.append(manifest)
        return tuple(adopted)

    def _if_empty(self) -> IfEmpty:
        try:
            return IfEmpty(self.if_empty)
        except ValueError:
            raise ConfigurationError(f"if_empty is {self.if_empty!r}; expected 'skip' or 'succeed'") from None

    def _activation(self, destination: Destination, context: Context) -> str:
        """Return the name under which batches share the ids of the messages that they have stored.

        Batches get the same name if the broker may deliver the same message to either of them.
        """
        shared = known_ids_key(self.jms_conn_id, destination)
        if destination.kind is DestinationKind.QUEUE:
            return shared
        # On a topic each subscription gets its own copy.
        instance = context_entry(context, "ti")
        return f"{shared} {self.subscription_name or f'{instance.dag_id}.{instance.task_id}'}"
