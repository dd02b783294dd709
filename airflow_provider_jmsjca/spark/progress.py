"""Writes Spark's progress to standard error: the address of Spark's web page, and the state of its stages.

`spark-submit` in client mode forwards the lines to the task's log. In other modes they are in the driver's
log.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_jmsjca.logs import safe_logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_UI: Final = "Spark UI"
"""Beginning of the line with Spark's address."""
MARKER: Final = "spark.jmsjca.marker"
"""Spark property with a text that the line with Spark's address repeats. No message can forge it."""
TRACE: Final = "spark.jmsjca.traceparent"
"""Spark property with the trace of the task that submitted the job."""
_PERIOD_SECONDS: Final = 10.0
_log = safe_logger(__name__)


class ProgressLines:
    """Writes Spark's address at once, then periodically a line about the stages in progress.

    A job that ends within the first period gets no such line. The thread ends with `stop`, with the session,
    or with the process.

    Args:
        spark: The session.
        period: Seconds between two lines.
    """

    def __init__(self, spark: SparkSession, *, period: float = _PERIOD_SECONDS) -> None:
        self._context: Any = spark.sparkContext
        self._tracker: Any = self._context.statusTracker()
        self._period = period
        self._stopped = threading.Event()
        if self._context.uiWebUrl:
            marker = self._context.getConf().get(MARKER, "")
            _log_line(f"{SPARK_UI}{f' {marker}' if marker else ''}: {self._context.uiWebUrl}")
        threading.Thread(target=self._run, name="progress", daemon=True).start()

    def stop(self) -> None:
        """Stop writing."""
        self._stopped.set()

    def _run(self) -> None:
        from py4j.protocol import Py4JError  # noqa: PLC0415 - comes with pyspark
        from pyspark import SparkContext  # noqa: PLC0415 - only jobs have pyspark

        while not self._stopped.wait(self._period):
            if SparkContext._active_spark_context is not self._context:  # noqa: SLF001 - no public way to ask
                return
            try:
                line = stages_line(self._tracker)
            except (Py4JError, OSError) as error:
                _log.debug("Spark's progress is not available: %s", error)
                return
            if line and not self._stopped.is_set():
                _log_line(line)


def stages_line(tracker: Any) -> str:
    """Return the progress of the running stages on one line; an empty text if none is running.

    Args:
        tracker: The status tracker of a Spark context.
    """
    said = []
    for number in sorted(tracker.getActiveStageIds()):
        stage = tracker.getStageInfo(number)
        if stage is None:  # it has just ended
            continue
        failed = f", {stage.numFailedTasks} failed" if stage.numFailedTasks else ""
        said.append(
            f"stage {number} ({stage.name}): {stage.numCompletedTasks} of {stage.numTasks} tasks done, "
            f"{stage.numActiveTasks} under way{failed}"
        )
    return f"Progress: {'; '.join(said)}" if said else ""


def _log_line(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
