"""Processes messages of earlier batches again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, ClassVar

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.escaping import escaped
from airflow_provider_jmsjca.hooks.spool import spool_path, task_key
from airflow_provider_jmsjca.hooks.task_failures import context_entry, task_failures
from airflow_provider_jmsjca.operators.spark import JmsToSparkSubmitOperator
from airflow_provider_jmsjca.spark.replays import make_replay
from airflow_provider_jmsjca.spool.batch_id import replay_id
from airflow_provider_jmsjca.spool.upkeep.replays import Replay, Selection

_COLLECTING = frozenset(
    {
        "adopt_after", "destination", "idle_time", "if_empty", "max_messages", "max_time",
        "message_selector", "segment_bytes", "segment_messages", "subscription_name",
    }
)  # fmt: skip


class JmsReplayOperator(JmsToSparkSubmitOperator):
    """Processes messages of earlier batches again, for example with another schema or into another table.

    The messages are copied into a new batch of the spool. A Spark job processes it as any other batch, with
    rejects, dead letters and bisection. In a table written with `append`, its rows replace the rows
    of these messages from earlier batches, in the same commit.

    Rejects are judged again. Those that are rejected again are sent to the dead-letter destination once more,
    with their new reason. Dead letters of the earlier job stay where they are: remove them, and don't
    replay them too.

    Guarantee: the messages are selected once, by the first attempt, and processed exactly once. The replay
    belongs to the task instance: a retry, or the cleared task, continues it, and another run of the DAG is
    another replay. A job of an older attempt that is still running can't commit any more. `jms-spool`
    streams don't read replays.

    Args:
        batches: Names of the batches to replay, as `airflow jms spool list` shows them. Templated.
        since: Instead of `batches`: batches that were finished at this time or later, as ISO 8601 with an
            offset. Templated: `"{{ data_interval_start }}"`. The task fails if a batch in the range was
            pruned, is damaged, or was submitted and isn't done.
        until: Instead of `batches`: batches that were finished before this time. Templated.
        source: With `since` or `until`: only batches of this destination, such as `queue://orders`.
            Templated.
        rejects: Only the messages that the jobs of these batches rejected.
        **kwargs: Arguments of `JmsToSparkSubmitOperator` about the job and its dead letters, `spool_path`,
            and arguments of every operator.

    The task is skipped if no message is selected.

    Returns:
        `batch_id`, `manifest` and `rows` of the replay, `replay_of` (names of the batches), and the values
        that `JmsToSparkSubmitOperator` returns about its job: `stored`, `rejected`, `reasons`, `violations`,
        `dead_lettered` and `splits`.
    """

    destination_fields: ClassVar[Sequence[str]] = ("dead_letter_destination",)
    template_fields: Sequence[str] = (
        "batches",
        "since",
        "until",
        "source",
        "jms_conn_id",
        "spool_path",
        "application",
        "spark_conn_id",
        "application_args",
        "conf",
        "spark_arguments",
        "jdbc_conn_id",
        "dead_letter_destination",
    )
    ui_color = "#e8d0e8"

    def __init__(
        self,
        *,
        batches: Sequence[str] | str = (),
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        source: str | None = None,
        rejects: bool = False,
        **kwargs: Any,
    ) -> None:
        foreign = sorted(_COLLECTING & kwargs.keys())
        if foreign:
            raise ConfigurationError(
                f"{type(self).__name__}: {', '.join(foreign)}: not allowed, because a replay receives "
                "nothing; expected batches, or since and until"
            )
        super().__init__(destination="", **kwargs)
        self.batches = batches
        self.since = since
        self.until = until
        self.source = source
        self.rejects = rejects

    def execute(self, context: Context) -> dict[str, Any]:
        """Create the replay, submit it and send dead letters; completed steps aren't repeated."""
        with task_failures():
            self._push = context_entry(context, "ti").xcom_push
            self._properties = self._spark_properties(context)
            report = self.replay(task_key(context).batch_id())
        if report is None:
            raise AirflowSkipException("no message is selected")
        return report

    def selection(self) -> Selection:
        """Return the messages to replay.

        Raises:
            ConfigurationError: `since` or `until` isn't a valid time.
        """
        names = (self.batches,) if isinstance(self.batches, str) else tuple(self.batches)
        return Selection(
            batches=tuple(dict.fromkeys(name for name in names if name)),
            since=_time("since", self.since),
            until=_time("until", self.until),
            source=self.source or None,
            rejects=self.rejects,
        )

    def replay(self, key: str) -> dict[str, Any] | None:
        """Create the replay and process it; completed steps aren't repeated.

        Args:
            key: Identifies the replay; a call with the same key continues the same replay.

        Returns:
            The result of `execute`; `None` if no message is selected.

        Raises:
            ConfigurationError: An argument is wrong, or the key belongs to a replay of other messages.
            SpoolError: A batch doesn't exist, isn't finished or was pruned; or a file is damaged.
            AirflowException: The job failed; a further call tries again.
        """
        hook_class = self._submit_hook()
        self._batch_id = replay_id(key)
        manifest = make_replay(spool_path(self.spool_path), self._batch_id, self.selection())
        if manifest is None:
            self._batch_id = None
            return None
        of = Replay.read(manifest.folder).of
        self.log.info(
            "Replay %s: %d messages, %s of %s",
            manifest.batch_id,
            manifest.rows,
            "the rejects" if self.rejects else "all",
            escaped(", ".join(of)),
        )
        target = self._dead_letter_target(Destination.from_header(manifest.source))
        report = {
            "batch_id": manifest.batch_id,
            "manifest": manifest.uri,
            "rows": manifest.rows,
            "replay_of": list(of),
        }
        self._report = report | self._store(hook_class, manifest, target)
        return self._report


def _time(name: str, given: str | datetime | None) -> datetime | None:
    if not given:
        return None
    if isinstance(given, datetime):
        return given
    try:
        return datetime.fromisoformat(given)
    except ValueError as error:
        raise ConfigurationError(
            f"{name}: {given!r} is not a time; expected ISO 8601 such as 2026-05-01T00:00:00Z"
        ) from error
