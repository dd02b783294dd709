"""The Spark provider's `spark-submit`, with the job library on its way to the cluster."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from airflow.sdk.bases.hook import BaseHook

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.spark.archive import write_archive
from airflow_provider_jmsjca.spark.progress import SPARK_UI

# Ours, of the job library; YARN's, of spark-submit.
_ADDRESS: Final = re.compile(rf"(?:^{SPARK_UI}|\btracking URL: )(https?://\S+)\s*$")


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
            "JmsToSparkSubmitOperator needs the Spark provider: pip install 'airflow-provider-jmsjca[spark]'"
            f" ({error})"
        ) from error

    class Hook(SparkSubmitHook):  # type: ignore[misc,unused-ignore]  # the provider may be missing
        """The provider's hook, with what a job on a batch needs."""

        def ship_library(self, folder: Path) -> None:
            """Send the job library along, unless Spark runs on this machine alone.

            Args:
                folder: Where the archive is made; it must stay until the job has ended.
            """
            if self._connection["master"].startswith("local"):
                return
            others = self._py_files or self._conf.get("spark.submit.pyFiles")
            archive = write_archive(folder / "jms-job.zip")
            self._py_files = ",".join(filter(None, [others, str(archive)]))

        def watch_address(self, heard: Callable[[str], object]) -> None:
            """Have the address of Spark's web page passed on, as soon as Spark's output says it.

            The first one counts: it is said before a message is read, which might claim to be one.
            """
            self._heard = heard

        def _process_spark_submit_log(self, itr: Iterator[Any]) -> None:
            super()._process_spark_submit_log(self._listening(itr))

        def _listening(self, lines: Iterator[Any]) -> Iterator[Any]:
            said = False
            for line in lines:
                if not said and (found := _ADDRESS.search(line)) is not None:
                    said = True
                    self._heard(found[1])
                yield line

    return Hook


def database_environment(conn_id: str) -> dict[str, str]:
    """Return the variables that tell a job of a database: `JMSJCA_JDBC_URL`, `..._USER`, `..._PASSWORD`.

    Args:
        conn_id: An Airflow connection of type `postgres`, or of type `jdbc` with the URL as its host.

    Raises:
        ConfigurationError: The connection is of another type, or says no host or no database.
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
