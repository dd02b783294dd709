"""The Spark provider's `spark-submit`, extended to ship the job library, and states of applications."""

from __future__ import annotations

import enum
import functools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

from airflow.sdk.bases.hook import BaseHook
from airflow.sdk.exceptions import AirflowException

from airflow_provider_jmsjca.errors import ConfigurationError, SpoolError
from airflow_provider_jmsjca.spark.archive import write_archive
from airflow_provider_jmsjca.spark.progress import SPARK_UI
from airflow_provider_jmsjca.spool.files import SpoolPath, exists, read_document, seal

RM_ADDRESS: Final = "yarn_resourcemanager_webapp_address"
"""Field for the address of YARN's resource manager in the extra of a Spark connection."""

_REQUEST_SECONDS: Final = 30
_YARN_LIVING: Final = frozenset({"NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING"})
_POD_LIVING: Final = frozenset({"Pending", "Running", "Unknown"})
_OK, _NOT_FOUND = 200, 404
# Line in which spark-submit on YARN reports the application's page, before the driver reads any message.
_TRACKING: Final = re.compile(r"\s*tracking URL: (https?://\S+)\s*")
# Text in which spark-submit, if it doesn't wait for the end, names the driver's pod and its namespace.
_POD: Final = re.compile(r"\bsubmission ID (?P<namespace>[a-z0-9-]+):(?P<pod>[a-z0-9.-]+)")


@functools.cache
def spark_submit_hook() -> Any:
    """Return a class of hooks derived from the Spark provider's.

    Raises:
        ConfigurationError: The Spark provider isn't installed.
    """
    try:
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook  # noqa: PLC0415  # extra
    except ImportError as error:
        raise ConfigurationError(
            "JmsToSparkSubmitOperator needs the Spark provider: install this package with its extra `spark`"
            f" ({error})"
        ) from error

    class Hook(SparkSubmitHook):  # type: ignore[misc,unused-ignore]  # the provider may be missing
        """The provider's hook, extended for jobs on a batch."""

        def ship_library(self, folder: Path) -> None:
            """Ship the job library with the job, unless Spark runs only on this machine.

            Args:
                folder: Folder in which the archive is created; it must stay until the job has ended.
            """
            if self._connection["master"].startswith("local"):
                return
            others = self._py_files or self._conf.get("spark.submit.pyFiles")
            archive = write_archive(folder / "jms-job.zip")
            self._py_files = ",".join(filter(None, [others, str(archive)]))

        def watch_address(self, heard: Callable[[str], object], marker: str) -> None:
            """Call `heard` with the address of Spark's web page, as soon as the output has the address.

            The job library prints the address in a line with a random text. So a job can't forge the line by
            printing the text of a message. On YARN, the first line with the address may also come from
            spark-submit.

            Args:
                heard: Called with the address, once.
                marker: The random text: the value of the Spark property `MARKER`.
            """
            self._heard = heard
            self._own_line = re.compile(rf"{SPARK_UI} {re.escape(marker)}: (https?://\S+)\s*")

        def _process_spark_submit_log(self, itr: Iterator[Any]) -> None:
            super()._process_spark_submit_log(self._listening(itr))

        def _listening(self, lines: Iterator[Any]) -> Iterator[Any]:
            said = False
            for line in lines:
                # The provider itself recognises the pod only in a namespace called "spark".
                if self._is_kubernetes and not self._kubernetes_driver_pod and (pod := _POD.search(line)):
                    self._kubernetes_driver_pod = pod["pod"]
                found = self._own_line.fullmatch(line) or (self._is_yarn and _TRACKING.fullmatch(line))
                if not said and found:
                    said = True
                    self._heard(found[1])
                yield line

    return Hook


def submitted_application(hook: Any) -> SparkApplication:
    """Return the application that a hook has submitted to YARN or Kubernetes, after `submit`.

    Raises:
        AirflowException: `spark-submit` didn't report the name of the application.
    """
    # The provider's hook has no public access to these values.
    if hook._is_yarn:  # noqa: SLF001
        cluster, name, place = Cluster.YARN, hook._yarn_application_id, hook._get_yarn_rm_base_url()  # noqa: SLF001
    else:
        cluster, name = Cluster.KUBERNETES, hook._kubernetes_driver_pod  # noqa: SLF001
        place = hook._connection["namespace"]  # noqa: SLF001
    if not name:
        raise AirflowException(
            "spark-submit ended and its output doesn't name the application that it submitted. Let log4j log "
            "org.apache.spark.deploy at INFO"
        )
    kerberos = bool(hook._connection["keytab"] and hook._connection["principal"])  # noqa: SLF001
    return SparkApplication(cluster=cluster, name=name, place=place, kerberos=kerberos)


def database_environment(conn_id: str) -> dict[str, str]:
    """Return the environment of a job with a database: `JMSJCA_JDBC_URL`, `..._USER`, `..._PASSWORD`.

    Args:
        conn_id: An Airflow connection of type `postgres`, or of type `jdbc` with the URL as its host.

    Raises:
        ConfigurationError: The connection is of another type, or has no host or no database.
        AirflowNotFoundException: There is no such connection.
    """
    connection = BaseHook.get_connection(conn_id)
    host, database = connection.host or "", connection.schema or ""
    if connection.conn_type == "jdbc" and host.startswith("jdbc:"):
        url = host
    elif connection.conn_type == "postgres" and host and database:
        url = f"jdbc:postgresql://{host}:{connection.port or 5432}/{database}"
    else:
        raise ConfigurationError(
            f"jdbc_conn_id: connection {conn_id!r} is of type {connection.conn_type!r}; expected type "
            "postgres with host and database, or type jdbc with the URL as host"
        )
    found = {"URL": url, "USER": connection.login, "PASSWORD": connection.password}
    return {f"JMSJCA_JDBC_{name}": value for name, value in found.items() if value}


def database_table(conn_id: str, table: str) -> str:
    """Return the lineage name of a database table: `postgres://HOST:PORT/DATABASE/SCHEMA/TABLE`.

    Args:
        conn_id: The Airflow connection; see `database_environment`.
        table: `orders`, which belongs to the schema `public`, or `sales.orders`.

    Raises:
        ConfigurationError: The connection can't be used; see `database_environment`.
    """
    address = urlsplit(database_environment(conn_id)["JMSJCA_JDBC_URL"].removeprefix("jdbc:"))
    host, colon, port = address.netloc.partition(",")[0].rpartition("@")[2].partition(":")
    schema, _, name = table.rpartition(".")
    return f"postgres://{host}{colon or ':'}{port or 5432}{address.path}/{schema or 'public'}/{name}"


class ClusterAwayError(AirflowException):
    """The cluster is unreachable; its applications continue to run."""


class Cluster(enum.StrEnum):
    """The cluster manager that runs a Spark driver."""

    YARN = "yarn"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkApplication:
    """A Spark application whose driver runs on a cluster.

    Attributes:
        cluster: The cluster manager that runs the driver.
        name: The application id on YARN; the name of the driver's pod on Kubernetes.
        place: Address of YARN's resource manager; namespace of the pod on Kubernetes.
        kerberos: Whether requests to YARN's resource manager need a Kerberos ticket.
    """

    cluster: Cluster
    name: str
    place: str
    kerberos: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form that `of` reads."""
        return asdict(self) | {"cluster": str(self.cluster)}

    @classmethod
    def of(cls, given: Any) -> Self:
        """Return the application from a result of `as_dict`.

        Raises:
            ValueError: `given` isn't such a result.
        """
        try:
            return cls(**{**given, "cluster": Cluster(given["cluster"])})
        except (TypeError, KeyError) as error:
            raise ValueError(f"expected a Spark application, got {given!r}") from error

    def ending(self) -> str | None:
        """Describe the end of the application; `None` while it is running. Blocks for 30 seconds at most.

        Raises:
            ClusterAwayError: The cluster is unreachable.
        """
        return self._yarn() if self.cluster is Cluster.YARN else self._kubernetes()

    def _yarn(self) -> str | None:
        import requests  # noqa: PLC0415  # Airflow's, and slow to import

        address = f"{self.place}/ws/v1/cluster/apps/{self.name}"
        try:
            answer = requests.get(address, auth=self._ticket(), timeout=_REQUEST_SECONDS)
            if answer.status_code == _NOT_FOUND:
                return "YARN has no record of it any more"
            if answer.status_code != _OK:
                raise ClusterAwayError(f"{address} answers {answer.status_code}: {answer.text[:200]}")
            told = answer.json()["app"]
            state, final, why = str(told["state"]), str(told["finalStatus"]), told.get("diagnostics") or ""
        except (requests.RequestException, ValueError, LookupError, TypeError) as error:
            raise ClusterAwayError(f"{address} can't be reached: {error}") from error
        if state in _YARN_LIVING:
            return None
        return f"{state}, final status {final}{f': {why.strip()}' if why else ''}"

    def _ticket(self) -> Any:
        if not self.kerberos:
            return None
        try:
            from requests_kerberos import HTTPKerberosAuth  # noqa: PLC0415  # optional
        except ImportError as error:
            raise ClusterAwayError(
                "the Spark connection has a keytab, which needs requests-kerberos: install it on workers and "
                "the triggerer"
            ) from error
        return HTTPKerberosAuth()

    def _kubernetes(self) -> str | None:
        kube_client = kubernetes_client()
        try:
            pod = kube_client.get_kube_client().read_namespaced_pod(
                self.name, self.place, _request_timeout=_REQUEST_SECONDS
            )
        except kube_client.ApiException as error:
            if error.status == _NOT_FOUND:
                return "the driver's pod is gone"
            raise ClusterAwayError(f"pod {self.name} can't be read: {error}") from error
        except Exception as error:  # the client raises the errors of its HTTP library
            raise ClusterAwayError(f"pod {self.name} can't be read: {error}") from error
        phase = pod.status.phase or "Pending"
        return None if phase in _POD_LIVING else f"the driver's pod is {phase}"


def kubernetes_client() -> Any:
    """Return the module with the Kubernetes client of Airflow's provider.

    Raises:
        ConfigurationError: The provider isn't installed.
    """
    try:
        from airflow.providers.cncf.kubernetes import kube_client  # noqa: PLC0415  # optional
    except ImportError as error:
        raise ConfigurationError(
            "deferrable=True on Kubernetes watches the driver's pod, which needs "
            f"apache-airflow-providers-cncf-kubernetes: install it on workers and the triggerer ({error})"
        ) from error
    return kube_client


def note_application(folder: SpoolPath, fence: int, application: SparkApplication) -> None:
    """Record the application that an attempt at a batch has submitted.

    Raises:
        SpoolError: The record can't be written.
    """
    seal(_path(folder, fence), json.dumps(application.as_dict()).encode() + b"\n")


def read_application(folder: SpoolPath, fence: int) -> SparkApplication | None:
    """Return the application that an attempt has submitted; `None` if it recorded no submission.

    Raises:
        SpoolError: The record can't be read.
    """
    path = _path(folder, fence)
    if not exists(path):
        return None
    try:
        return SparkApplication.of(read_document(path))
    except (OSError, ValueError) as error:
        raise SpoolError(f"{path}: {error}") from error


def _path(folder: SpoolPath, fence: int) -> SpoolPath:
    return folder / f"driver-{fence:06d}.json"
