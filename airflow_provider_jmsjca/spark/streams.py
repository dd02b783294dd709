"""Runs a job on each batch of a stream (`foreachBatch`), with rejects, dead letters and tables of `Batch`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.redelivery import MoveTarget
from airflow_provider_jmsjca.engine.session.connection import JmsConnection
from airflow_provider_jmsjca.errors import ConfigurationError, SpoolError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.spark.data_sources.broker_options import BROKER_OPTIONS, BrokerOptions
from airflow_provider_jmsjca.spark.data_sources.given_options import GivenOptions
from airflow_provider_jmsjca.spark.dead_letters import mark_sent, send_dead_letters
from airflow_provider_jmsjca.spark.job import Batch
from airflow_provider_jmsjca.spool.attempts import Done, take_fence
from airflow_provider_jmsjca.spool.batch_id import check_batch_id
from airflow_provider_jmsjca.spool.files import SpoolPath, read_file, seal
from airflow_provider_jmsjca.spool.manifest import MANIFEST, Manifest, uri_to_path
from airflow_provider_jmsjca.spool.sequence import FOLDER
from airflow_provider_jmsjca.transports import connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Job = Callable[[Batch, "SparkSession"], object]

_OWNER: Final = "job"
_log = safe_logger(__name__)


class ForeachBatch:
    """The function for `foreachBatch` that runs a job on each batch of a stream.

        def orders(batch, spark):
            mapped = batch.json(batch.messages(spark), "id LONG NOT NULL, amount DOUBLE")
            batch.reject(mapped.rejects)
            batch.write(mapped.rows, "/data/orders", format="delta")

        stream.writeStream.foreachBatch(ForeachBatch("/data/jms-spool", orders, name="orders"))

    The stream must have the format `jms-spool` or `jms`, and must be passed as it was loaded. Its
    micro-batches consist of whole batches of the spool. The job processes each of these in turn, like a job
    that was submitted for that batch.

    Guarantee: `Batch.write` stores each batch once, even if the Spark driver dies at any point. A batch that
    is done, by this query or by another job, is skipped. A Spark driver that was superseded by another one
    commits nothing. Dead letters are sent after the batch is done; see `dead_letters.send_dead_letters`.

    Args:
        spool: Folder of the batches: the path of the stream, as an absolute path or URI.
        job: Called with each batch and the session.
        name: Name of the job. Only one job can process a spool, because another job would find all batches
            done and skip them.
        broker: Options of the broker for dead letters: `url`, `username`, `passwordFile`, `passwordEnv` and
            `clientId`, as for the format `jms`. `None`: rejects aren't sent. They stay in the spool, unless
            the job puts them into a table by `Batch.store_rejects`.
        dead_letter_destination: Destination of rejected messages; `$` is replaced by the name of the batch's
            source.

    Raises:
        ConfigurationError: An option is wrong, or holds a secret.
        SpoolError: The spool is no absolute path or URI.
    """

    def __init__(
        self,
        spool: str | SpoolPath,
        job: Job,
        *,
        name: str,
        broker: Mapping[str, str] | None = None,
        dead_letter_destination: str = "queue://$.dlq",
    ) -> None:
        self._spool = uri_to_path(spool) if isinstance(spool, str) else spool
        self._job = job
        self._name = name
        self._target = MoveTarget.of(Destination.parse(dead_letter_destination))
        self._broker: BrokerOptions | None = None
        if broker is not None:
            source = type(self).__name__
            self._broker = BrokerOptions(source, GivenOptions(source, broker, BROKER_OPTIONS))

    def __call__(self, df: DataFrame, number: int) -> None:
        """Process the batches of a micro-batch.

        Args:
            df: The micro-batch.
            number: Number of the micro-batch in the query, for the log.

        Raises:
            ConfigurationError: The rows aren't whole batches of the spool, or the spool belongs to another
                job.
            SpoolError: A file is missing or damaged.
            FencedError: Another Spark driver has taken a batch over.
            JmsError: The dead letters can't be sent.
        """
        self._own_spool()
        manifests = self._manifests(df)
        _log.info("Micro-batch %d: %d batches", number, len(manifests))
        for manifest in manifests:
            done = Done.read(manifest.folder)
            if done is None:
                done = self._process(manifest, df.sparkSession)
            if self._broker is not None:
                if done.rejected:
                    send_dead_letters(self._connected, manifest, self._target)
            elif done.rejects_stored:
                mark_sent(manifest, done.rejected)

    def _own_spool(self) -> None:
        path = self._spool / FOLDER / _OWNER
        try:
            if seal(path, self._name.encode()):
                return
            owner = read_file(path).decode(errors="replace")
        except OSError as error:
            raise SpoolError(f"{path}: {error.strerror or error}") from error
        if owner != self._name:
            raise ConfigurationError(
                f"{self._spool}: its batches are processed by the job {owner!r}; {self._name!r} would find "
                "them done. Use another spool, or an ordinary function for foreachBatch"
            )

    def _manifests(self, df: DataFrame) -> list[Manifest]:
        """Return the batches of a micro-batch, in the order in which they were finished."""
        if "batch_id" not in df.columns:
            raise ConfigurationError(
                f"{type(self).__name__}: the stream has no column batch_id; expected one of the format "
                "jms-spool or jms, as it was loaded"
            )
        counts = {row["batch_id"]: row["count"] for row in df.groupBy("batch_id").count().collect()}
        found = []
        for batch_id, rows in counts.items():
            manifest = Manifest.read(self._spool / check_batch_id(str(batch_id)) / MANIFEST)
            if manifest.rows != rows:
                raise ConfigurationError(
                    f"{type(self).__name__}: the micro-batch has {rows} of the {manifest.rows} messages of "
                    f"batch {batch_id}; expected the stream as it was loaded. Filter the rows in the job"
                )
            found.append(manifest)
        return sorted(found, key=lambda each: (each.created, each.batch_id))

    def _process(self, manifest: Manifest, spark: SparkSession) -> Done:
        batch = Batch(manifest, take_fence(manifest.folder), shows_progress=False)
        try:
            self._job(batch, spark)
            return batch.finish()
        finally:
            batch.close()

    def _connected(self) -> AbstractContextManager[JmsConnection]:
        assert self._broker is not None  # noqa: S101 - only called with one
        return JmsConnection(connect(self._broker.settings()))
