"""The Spark provider's `spark-submit`, with the job library on its way to the cluster."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.spark.archive import write_archive


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

    return Hook
