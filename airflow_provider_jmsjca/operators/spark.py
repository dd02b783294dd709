"""Collects messages and runs a Spark job on them."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from airflow.sdk import BaseOperatorLink, Connection, Context
from airflow.sdk.bases.hook import BaseHook
from airflow.sdk.configuration import conf as airflow_conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowNotFoundException

from airflow_provider_jmsjca.assets.jms import note_output, note_table
from airflow_provider_jmsjca.core.activation import refuse_secrets
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.quantities import count_faults, seconds_faults
from airflow_provider_jmsjca.core.redelivery import MoveTarget
from airflow_provider_jmsjca.engine.session.tracing import current_traceparent
from airflow_provider_jmsjca.errors import ConfigurationError, SpoolError
from airflow_provider_jmsjca.escaping import escaped
from airflow_provider_jmsjca.hooks.destinations import find_destination
from airflow_provider_jmsjca.hooks.jms import JmsHook
from airflow_provider_jmsjca.hooks.metrics import count
from airflow_provider_jmsjca.hooks.spark_submit import (
    RM_ADDRESS,
    Cluster,
    SparkApplication,
    database_environment,
    database_table,
    kubernetes_client,
    note_application,
    read_application,
    spark_submit_hook,
    submitted_application,
)
from airflow_provider_jmsjca.hooks.spool import spark_properties, store_environment
from airflow_provider_jmsjca.hooks.task_failures import context_entry, task_failures
from airflow_provider_jmsjca.operators.collect import JmsCollectOperator
from airflow_provider_jmsjca.operators.web_links import (
    JmsBatchLink,
    JmsDeadLettersLink,
    JmsSparkUiLink,
    console_address,
)
from airflow_provider_jmsjca.spark.dead_letters import send_dead_letters
from airflow_provider_jmsjca.spark.progress import MARKER, TRACE
from airflow_provider_jmsjca.spark.rejects import reject_reasons
from airflow_provider_jmsjca.spool.attempts import Done, current_fence, take_fence
from airflow_provider_jmsjca.spool.manifest import MANIFEST, Manifest
from airflow_provider_jmsjca.spool.splits import DataFailure, parts
from airflow_provider_jmsjca.triggers.spark_application import JmsSparkApplicationTrigger

BISECTING = Path(__file__).parent.parent / "spark" / "jobs" / "bisecting.py"
READY_MADE = Path(__file__).parent.parent / "spark" / "jobs" / "messages_to_table.py"
"""The job that is run when no other is named."""

# If the task is killed while spark-submit is being started: seconds to wait for the new process, to end it.
# Airflow ends the task's own process after about this time.
_LATEST_SECONDS = 5
_TICK_SECONDS = 0.02
# Spark's property prefixes for the environment of executors, and of drivers on YARN and Kubernetes.
_ENVIRONMENTS = ("spark.executorEnv", "spark.yarn.appMasterEnv", "spark.kubernetes.driverEnv")
# Spark's names for the namespace of a driver's pod, and for waiting until it ends.
_NAMESPACE = "spark.kubernetes.namespace"
_WAITS = "spark.kubernetes.submission.waitAppCompletion"
NOTHING_STORED: Mapping[str, Any] = {
    "stored": {},
    "rejected": 0,
    "reasons": {},
    "violations": {},
    "rescued": 0,
    "evolved": [],
    "dead_lettered": 0,
    "splits": 0,
}
"""The part of a task's result that describes its job, for a task without messages."""
_SIGNALLED = 128
"""If a signal ended the process, its exit code is this number plus the signal's, as in shells."""


class JmsToSparkSubmitOperator(JmsCollectOperator):
    """Collects a batch of messages and processes it with a PySpark job, through `spark-submit`.

    The job uses `airflow_provider_jmsjca.spark.job.Batch`, which verifies the batch and writes it
    idempotently: two writes give one copy. Without an `application` the ready-made `messages_to_table.py`
    runs: `application_args=["--table", "/data/orders", "--schema", "id LONG NOT NULL, amount DOUBLE"]`.

    Guarantee: nothing is lost; a table written by the job library has each batch once. A retry continues
    at the point that the last attempt reached. It continues to collect, submits the finished batch again, or
    only sends the remaining dead letters. A job of an older attempt that still runs can't commit any more.
    Rejected messages go to the dead-letter destination with the reason in properties, and don't fail the
    task.

    The Airflow connection of type `spark` defines the cluster, through the Spark provider's hook: local,
    standalone, YARN or Kubernetes. Driver and executors must be able to read the spool. The job library is
    shipped to every cluster; Python there needs only PySpark and PyArrow.

    Args:
        application: Path of the PySpark script; `None` for the ready-made job. Templated.
        spark_conn_id: The Spark connection.
        application_args: Arguments of the script, after those of this operator (`--manifest`, `--batch-id`,
            `--fence`). Templated.
        conf: Spark configuration properties. Templated.
        spark_arguments: Further arguments of the Spark provider's `SparkSubmitHook`, for example
            `{"driver_memory": "2g", "py_files": "..."}`. Templated.
        jdbc_conn_id: Airflow connection of the database for `--format jdbc`, of type `postgres` or `jdbc`.
            Its address, user and password are passed to the Spark driver in the environment variables
            `JMSJCA_JDBC_URL`, `JMSJCA_JDBC_USER` and `JMSJCA_JDBC_PASSWORD`. Only for a Spark driver that
            runs on the worker. Templated.
        dead_letter_destination: Destination of rejected messages; `$` is replaced by the destination's name.
            Templated.
        bisect: If the job fails because of its data (`spark.data_failure`), run it on halves of the batch
            repeatedly, until the failing messages are isolated. These become dead letters with the exception.
            The job must not have stored anything before it fails. It runs several times in one Spark driver.
        deferrable: Leave the worker while the job runs, and wait in the triggerer. Only if the Spark driver
            runs on the cluster: deploy mode `cluster` on YARN or Kubernetes. On YARN the extra of the Spark
            connection must set `yarn_resourcemanager_webapp_address`.
        poll_interval: Seconds between two status requests of the triggerer to the cluster.
        bisect_splits: Maximum number of splits of one batch. If more were needed, the task fails, and
            isolated messages don't become dead letters.
        openlineage_inject_parent_job_info: Pass the task to Spark's OpenLineage listener as the parent of the
            job, as `SparkSubmitOperator` does; by default `[openlineage] spark_inject_parent_job_info`.
        openlineage_inject_transport_info: Pass the target of events to the listener, as
            `SparkSubmitOperator` does; by default `[openlineage] spark_inject_transport_info`.
        **kwargs: Arguments of `JmsCollectOperator` and of every operator.

    While the job runs, the log of the task has Spark's output, with a line on the progress of its stages
    every ten seconds. The link "Spark UI" and the XCom `spark_ui` lead to Spark's web page, as soon as the
    Spark driver reports its address.

    For lineage the tables are outputs of the task, and so is a dead-letter destination that was used.

    Returns:
        The result of `JmsCollectOperator`, and `stored` (rows by table), `rejected`, `reasons`,
        `violations`, `rescued`, `evolved`, `dead_lettered`, and `splits` (number of splits of the batch).
        `reasons` has the number of rejected messages for each of the ten most frequent reasons. `violations`
        has the number of violating rows for each expectation. `rescued` is the number of rows with fields
        that the schema doesn't name. `evolved` lists the changes of tables' columns.
    """

    destination_fields: ClassVar[Sequence[str]] = ("destination", "dead_letter_destination")
    template_fields: Sequence[str] = (
        *JmsCollectOperator.template_fields,
        "application",
        "spark_conn_id",
        "application_args",
        "conf",
        "spark_arguments",
        "jdbc_conn_id",
        "dead_letter_destination",
    )
    ui_color = "#f5c9a0"
    operator_extra_links: Collection[BaseOperatorLink] = (
        JmsBatchLink(),
        JmsDeadLettersLink(),
        JmsSparkUiLink(),
    )

    def __init__(
        self,
        *,
        application: str | None = None,
        spark_conn_id: str = "spark_default",
        application_args: Sequence[str] = (),
        conf: Mapping[str, str] | None = None,
        spark_arguments: Mapping[str, Any] | None = None,
        jdbc_conn_id: str | None = None,
        dead_letter_destination: str = "queue://$.dlq",
        bisect: bool = False,
        bisect_splits: int = 64,
        deferrable: bool = False,
        poll_interval: float = 30,
        openlineage_inject_parent_job_info: bool = airflow_conf.getboolean(
            "openlineage", "spark_inject_parent_job_info", fallback=False
        ),
        openlineage_inject_transport_info: bool = airflow_conf.getboolean(
            "openlineage", "spark_inject_transport_info", fallback=False
        ),
        **kwargs: Any,
    ) -> None:
        refuse_secrets(type(self).__name__, {"dead_letter_destination": dead_letter_destination})
        super().__init__(**kwargs)
        self.application = application
        self.spark_conn_id = spark_conn_id
        self.application_args = application_args
        self.conf = conf
        self.spark_arguments = spark_arguments
        self.jdbc_conn_id = jdbc_conn_id
        self.dead_letter_destination = dead_letter_destination
        self.bisect = bisect
        self.bisect_splits = bisect_splits
        self.deferrable = deferrable
        self.poll_interval = poll_interval
        self._injects_parent_job = openlineage_inject_parent_job_info
        self._injects_transport = openlineage_inject_transport_info
        self._properties: dict[str, Any] = {}
        self._hook: Any = None
        self._killed = False
        self._dead_letters_link = ""
        self._push: Callable[[str, Any], object] = _discard
        self._spark_ui = ""
        self._submission: dict[str, bool] = {}
        self._resource_manager = ""
        self._ended: dict[str, str] = {}

    @property
    def linked_dead_letters(self) -> str:
        """Address of the console page of the dead-letter queue; empty if unknown or without dead letters."""
        return self._dead_letters_link

    @property
    def linked_spark_ui(self) -> str:
        """Address of Spark's web page; empty until the Spark driver reports it."""
        return self._spark_ui

    def execute(self, context: Context) -> dict[str, Any]:
        """Collect, submit and send dead letters; completed steps aren't repeated."""
        with task_failures():
            target = self._dead_letter_target(find_destination(self.destination))
            hook_class = self._submit_hook()
            self._moves_to = (target,)
            self._push = context_entry(context, "ti").xcom_push
            collected = self.collected(context)
            report = self._report = collected.report()
            self._properties = self._spark_properties(context)
            own = dict(NOTHING_STORED)
            if collected.result.manifest is not None:
                own = self._store(hook_class, Manifest.read(collected.folder / MANIFEST), target)
            for manifest, entry in zip(collected.adopted, report["adopted"], strict=True):
                entry.update(self._store(hook_class, manifest, target))
        self._report = report | own
        return self._report

    def resume(self, context: Context, event: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Continue after the application has ended; see `execute` for the result and further errors.

        Raises:
            AirflowFailException: The trigger can't query the cluster.
        """
        event = event or {}
        if event.get("event") != "ended":
            raise AirflowFailException(event.get("error", "the trigger returned no event"))
        self._ended[event["application"]] = event["how"]
        return self.execute(context)

    def _dead_letter_target(self, source: Destination) -> MoveTarget:
        """Return the destination of dead letters, and check that it isn't their source."""
        target = MoveTarget.of(find_destination(self.dead_letter_destination))
        if target.destination(source) == source:
            raise ConfigurationError(
                f"dead_letter_destination: got {target}, which is consumed itself, "
                "expected another destination"
            )
        return target

    def _submit_hook(self) -> Any:
        """Check the arguments for the job, and return the class of the hook that submits it."""
        faults = count_faults("bisect_splits", self.bisect_splits)
        if faults := [*faults, *seconds_faults("poll_interval", self.poll_interval)]:
            raise ConfigurationError(faults)
        hook_class = spark_submit_hook()
        self._require_spark_connection()
        return hook_class

    def _spark_properties(self, context: Context) -> dict[str, Any]:
        """Return Spark's properties; if enabled, with OpenLineage's links from the job to this task."""
        properties: dict[str, Any] = dict(self.conf or {})
        if not (self._injects_parent_job or self._injects_transport):
            return properties
        from airflow.providers.common.compat.openlineage.utils import spark  # noqa: PLC0415  # comes with Spark's

        if self._injects_parent_job:
            properties = spark.inject_parent_job_information_into_spark_properties(properties, context)
        if self._injects_transport:
            properties = spark.inject_transport_information_into_spark_properties(properties, context)
        return properties

    def _store(self, hook_class: Any, manifest: Manifest, target: MoveTarget) -> dict[str, Any]:
        """Process a batch and send its dead letters; completed steps aren't repeated."""
        done = Done.read(manifest.folder)
        if done is None:
            done = self._submit(hook_class, manifest)
            _count_rows(manifest.source, done)
        for table in done.stored:
            if self.jdbc_conn_id and self.application is None:  # another application may use other databases
                table = database_table(self.jdbc_conn_id, table)  # noqa: PLW2901 - what lineage calls it
            note_table(JmsHook(self.jms_conn_id), table)
        reasons = reject_reasons(manifest) if done.rejected else {}
        self.log.info("%s", escaped(_summary(done, reasons)))
        sent = self._send_dead_letters(manifest, target) if done.rejected else 0
        splits = len(parts(manifest.folder)) // 2
        return {
            "stored": done.stored,
            "rejected": done.rejected,
            "violations": done.violations,
            "rescued": done.rescued,
            "evolved": list(done.evolved),
            "reasons": reasons,
            "dead_lettered": sent,
            "splits": splits,
        }

    def on_kill(self) -> None:
        """Stop collecting, and end spark-submit with everything it started."""
        self._killed = True
        super().on_kill()
        self._end_submission()
        if self._hook is not None and self._process() is None:
            # The signal arrived during the start of the process, before the hook has its handle.
            threading.Thread(target=self._end_late_submission, daemon=True).start()

    def _end_submission(self) -> None:
        process = self._process()
        if process is not None and process.poll() is None:
            # Kill the whole process group, which spark-submit leads. If only the JVM ended, the Python driver
            # would continue.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if self._hook is not None:
            self._hook.on_kill()

    def _end_late_submission(self) -> None:
        deadline = time.monotonic() + _LATEST_SECONDS
        while self._process() is None and time.monotonic() < deadline:
            time.sleep(_TICK_SECONDS)
        self._end_submission()

    def _require_spark_connection(self) -> None:
        try:
            connection = BaseHook.get_connection(self.spark_conn_id)
        except AirflowNotFoundException as error:
            # Without this error, the Spark provider would submit to YARN.
            raise ConfigurationError(
                f"connection {self.spark_conn_id!r} is not defined in Airflow; for Spark on the worker "
                f"set AIRFLOW_CONN_{self.spark_conn_id.upper()}="
                """'{"conn_type": "spark", "host": "local[2]"}'"""
            ) from error
        if self._deploy_mode(connection) == "cluster" and (connection.host or "").startswith("spark:"):
            raise ConfigurationError(
                f"connection {self.spark_conn_id!r}: a standalone cluster takes no Python script in deploy "
                "mode cluster; leave the deploy mode out, and the driver runs on the worker"
            )
        if connection.conn_type == "spark_connect" or (connection.host or "").startswith("sc://"):
            raise ConfigurationError(
                f"connection {self.spark_conn_id!r} is for Spark Connect, which can't run jobs; expected a "
                "connection of type spark with a master, such as spark://host:7077. For Spark Connect use "
                "JmsCollectOperator, and read its batches in the format jms-spool"
            )

        if self.deferrable:
            self._require_cluster(connection)

    def _require_cluster(self, connection: Connection) -> None:
        """Refuse to defer if the triggerer can't observe the application."""
        host, named = connection.host or "", f"connection {self.spark_conn_id!r}"
        if self._deploy_mode(connection) != "cluster" or not host.startswith(("yarn", "k8s")):
            raise ConfigurationError(
                f"{named}: with deferrable=True the driver must run on the cluster; expected deploy mode "
                "cluster on YARN or Kubernetes, or deferrable=False"
            )
        if "yarn_rm_auth" in (self.spark_arguments or {}):
            raise ConfigurationError(
                "spark_arguments: yarn_rm_auth can't be passed to the triggerer; expected keytab and "
                f"principal in {named}, or deferrable=False"
            )
        # These settings make spark-submit end as soon as the cluster has accepted the application.
        if host.startswith("k8s"):
            kubernetes_client()
            properties = self.conf or {}
            if not (properties.get(_NAMESPACE) or connection.extra_dejson.get("namespace")):
                raise ConfigurationError(
                    f"{named}: deferrable=True watches the driver's pod; expected its namespace as "
                    f"`namespace` in the extra, or as {_NAMESPACE} in conf"
                )
            if str(properties.get(_WAITS, "")).lower() == "true":
                raise ConfigurationError(
                    f"conf: {_WAITS}: got true, which deferrable=True doesn't allow; leave it out"
                )
            self._submission = {"track_driver_via_k8s_api": True}
            return
        self._submission = {"yarn_track_via_rm_api": True}
        given = str(connection.extra_dejson.get(RM_ADDRESS) or "").strip().rstrip("/")
        self._resource_manager = given if "://" in given else f"http://{given}"
        if not given:
            raise ConfigurationError(
                f"{named}: deferrable=True queries YARN's resource manager; expected its address as "
                f"{RM_ADDRESS} in the extra, such as http://rm.example.com:8088"
            )

    def _deploy_mode(self, connection: Connection) -> str | None:
        mode: str | None = (self.spark_arguments or {}).get("deploy_mode")
        return mode or connection.extra_dejson.get("deploy-mode")

    def _process(self) -> subprocess.Popen[str] | None:
        if self._hook is None:
            return None
        # The provider's hook offers no other way to the process it started.
        process: subprocess.Popen[str] | None = self._hook._submit_sp  # noqa: SLF001
        return process

    def _close_output(self) -> None:
        process = self._process()
        if process is not None and process.stdout is not None:
            process.stdout.close()

    def _submit(self, hook_class: Any, manifest: Manifest) -> Done:
        if self.deferrable and (finished := self._waited(manifest)) is not None:
            return finished
        fence = take_fence(manifest.folder)
        arguments = ["--manifest", manifest.uri, "--batch-id", manifest.batch_id, "--fence", str(fence)]
        application = self.application or str(READY_MADE)
        # A batch that was split stays split: some of its parts may be stored.
        if self.bisect or parts(manifest.folder):
            limit = str(self.bisect_splits)
            arguments = ["--application", application, "--splits", limit, *arguments]
            application = str(BISECTING)
        marker = secrets.token_hex(16)
        self._hook = hook_class(
            conn_id=self.spark_conn_id,
            application_args=[*arguments, *self.application_args],
            conf=spark_properties(manifest.folder) | _trace() | self._properties | {MARKER: marker},
            **{"name": f"jms {manifest.batch_id}", **self._with_credentials(manifest)},
            **self._submission,
        )
        if self._killed:
            raise AirflowException(f"told to stop; the next attempt submits batch {manifest.batch_id}")
        self.log.info("Submitting %d messages; submission %d of this batch", manifest.rows, fence)
        try:
            with tempfile.TemporaryDirectory(prefix="jms-job-") as folder:
                self._hook.ship_library(Path(folder))
                self._hook.watch_address(self._note_address, marker)
                self._hook.submit(application, start_new_session=True)
        except FileNotFoundError as error:
            raise ConfigurationError(
                f"there is no {error.filename!r} on this worker: install this package with its extra `spark`"
                f", or name another program in the connection {self.spark_conn_id!r}"
            ) from error
        except AirflowException as failure:
            _explain(failure, manifest)
            self._suggest_bisect(manifest, fence, failure)
            # Without a traceback, because Airflow logs the one of the raised error.
            self.log.error(  # noqa: TRY400
                "%s; batch %s stays in the spool: a retry, or the cleared task, submits its %d messages "
                "again",
                _how_it_ended(self._process()),
                manifest.batch_id,
                manifest.rows,
            )
            raise
        finally:
            self._close_output()
        if self.deferrable:
            submitted = submitted_application(self._hook)
            note_application(manifest.folder, fence, submitted)
            self._wait_for(submitted)
        done = Done.read(manifest.folder)
        if done is None:
            raise AirflowException(
                f"the Spark job ended without an error but batch {manifest.batch_id} is not done: the "
                "script must use airflow_provider_jmsjca.Batch in a `with` block"
            )
        return done

    def _suggest_bisect(self, manifest: Manifest, fence: int, failure: AirflowException) -> None:
        """Raise an error that suggests `bisect=True` if the job failed because of its data.

        Do nothing if `bisect` is set, or if the failure has another cause.
        """
        if (because := DataFailure.read(manifest.folder).get(fence)) is not None and not self.bisect:
            raise AirflowException(
                f"the Spark job failed because of its data ({because.exception_class}: "
                f"{escaped(because.exception_message)}); with bisect=True the messages that fail become dead "
                "letters and the others are stored"
            ) from failure

    def _waited(self, manifest: Manifest) -> Done | None:
        """Defer while the application submitted by the newest attempt is running.

        Returns:
            The result of the application; `None` if the batch has to be submitted.

        Raises:
            AirflowException: The application ended and the batch isn't done; or the cluster is unreachable.
        """
        fence = current_fence(manifest.folder)
        application = read_application(manifest.folder, fence)
        if application is None:
            return None
        if application.cluster is Cluster.YARN:
            # The address of the cluster is taken from the connection, not from the recorded application:
            # others may have written that file, and the Kerberos ticket must not go to another server.
            application = replace(application, place=self._resource_manager)
        seen = self._ended.get(application.name)
        how = seen or application.ending()
        if how is None:
            self._wait_for(application)
        if (done := Done.read(manifest.folder)) is not None:
            return done
        if seen is None:
            self.log.info("Spark application %s has ended (%s); trying again", application.name, escaped(how))
            return None
        failure = AirflowException(
            f"Spark application {application.name} ended ({escaped(how)}), and batch {manifest.batch_id} is "
            "not done: see the driver's log on the cluster"
        )
        self._suggest_bisect(manifest, fence, failure)
        raise failure

    def _wait_for(self, application: SparkApplication) -> NoReturn:
        self.log.info("Deferred until Spark application %s has ended", application.name)
        self.defer(
            trigger=JmsSparkApplicationTrigger(application.as_dict(), self.poll_interval),
            method_name="resume",
            timeout=self.execution_timeout,
        )
        raise AssertionError("deferring raises")

    def _note_address(self, address: str) -> None:
        """Publish the address of Spark's web page, for users to follow while the job runs."""
        self._spark_ui = address
        self._push(JmsSparkUiLink().xcom_key, address)

    def _with_credentials(self, manifest: Manifest) -> dict[str, Any]:
        """Return the arguments of the hook; with credentials if the Spark driver is a child process.

        For a Spark driver elsewhere, everyone could see the credentials on a command line.

        Raises:
            ConfigurationError: The Spark driver isn't a child process, and `jdbc_conn_id` is given.
        """
        arguments = dict(self.spark_arguments or {})
        environment = store_environment(manifest.folder)
        if not environment and not self.jdbc_conn_id:
            return arguments
        connection = BaseHook.get_connection(self.spark_conn_id)
        if self._deploy_mode(connection) == "cluster" or not (connection.host or "").startswith(
            ("local", "spark:")
        ):
            if self.jdbc_conn_id:
                raise ConfigurationError(
                    f"jdbc_conn_id {self.jdbc_conn_id!r}: the driver doesn't run on this worker, so the "
                    "password would be on a command line. Give the driver a file with it, and use "
                    "--jdbc-url, --jdbc-user and --jdbc-password-file in application_args"
                )
            self.log.info(
                "The driver runs elsewhere and doesn't get the spool's credentials; set them in its "
                "environment"
            )
            return arguments
        if self.jdbc_conn_id:
            environment |= database_environment(self.jdbc_conn_id)
        return arguments | {"env_vars": {**environment, **(arguments.get("env_vars") or {})}}

    def _send_dead_letters(self, manifest: Manifest, dead_letter: MoveTarget) -> int:
        hook = JmsHook(self.jms_conn_id)
        sent = send_dead_letters(hook.get_conn, manifest, dead_letter)
        target = dead_letter.destination(Destination.from_header(manifest.source))
        note_output(hook, hook.settings(), target)
        self._dead_letters_link = console_address(self.jms_conn_id, hook.options()["console_url"], target)
        self.log.warning("%d messages of batch %s went to %s", sent, manifest.batch_id, target)
        return sent


def _trace() -> dict[str, str]:
    """Return the current span as Spark properties, for the Spark driver and for environments on a cluster."""
    traceparent = current_traceparent()
    if traceparent is None:
        return {}
    return dict.fromkeys((TRACE, *(f"{each}.TRACEPARENT" for each in _ENVIRONMENTS)), traceparent)


def _count_rows(source: str, done: Done) -> None:
    """Add the result of a job to Airflow's statistics."""
    for table, rows in done.stored.items():
        count("stored_rows", rows, {"destination": source, "table": table})
    count("rejected_rows", done.rejected, {"destination": source})


def _discard(_key: str, _value: object) -> None:
    """Do nothing; this replaces the function that sets an XCom if no task is running."""


def _summary(done: Done, reasons: Mapping[str, int]) -> str:
    """Summarize the result of a batch in one line."""
    stored = ", ".join(f"{rows:,} in {table}" for table, rows in done.stored.items()) or "nothing"
    why = "; ".join(f"{count:,}x {reason}" for reason, count in reasons.items())
    rejected = f"rejected {done.rejected:,}{f': {why}' if why else ''}"
    violated = "".join(f"; {rows:,} rows violate {name!r}" for name, rows in done.violations.items() if rows)
    rescued = f"; {done.rescued:,} rows have rescued fields" if done.rescued else ""
    evolved = "".join(f"; {each}" for each in done.evolved)
    return f"Batch {done.batch_id}: stored {stored}; {rejected}{violated}{rescued}{evolved}"


def _how_it_ended(process: subprocess.Popen[str] | None) -> str:
    """Describe the end of `spark-submit`: an exit code over 128 is a signal to the Spark driver."""
    code = None if process is None else process.returncode
    number = 0 if code is None else -code if code < 0 else code - _SIGNALLED
    try:
        name = signal.Signals(number).name
    except ValueError:
        return "The Spark job failed"
    cause = ", usually a lack of memory" if number == signal.SIGKILL else ""
    return f"The Spark driver was ended by signal {name}{cause}"


def _explain(failure: AirflowException, manifest: Manifest) -> None:
    """Raise a one-line error for a cause that would otherwise be buried in Spark's output.

    Raises:
        ConfigurationError: The job reported a configuration error.
        SpoolError: A file of the batch is missing or damaged; the error names the file and the damage.
        AirflowException: The worker has no Java.
    """
    prefix = f"{ConfigurationError.__name__}: "
    for line in str(failure).splitlines():
        if line.startswith(prefix):
            raise ConfigurationError(f"the Spark job: {line.removeprefix(prefix)}") from failure
    try:
        manifest.verify()
    except SpoolError as fault:
        raise fault from failure
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        raise AirflowException(
            "spark-submit failed and there is no Java on this worker: install Java 17 or newer and put it on "
            "the PATH, or set JAVA_HOME"
        ) from failure
