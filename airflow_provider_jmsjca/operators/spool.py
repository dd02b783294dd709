"""Keeps the spool in order."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowException

from airflow_provider_jmsjca.core.quantities import seconds_faults
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.escaping import escaped
from airflow_provider_jmsjca.hooks.spool import spool_path
from airflow_provider_jmsjca.hooks.task_failures import task_failures
from airflow_provider_jmsjca.spool.files import is_folder
from airflow_provider_jmsjca.spool.upkeep.ages import CARE_AFTER, PRUNE_AFTER
from airflow_provider_jmsjca.spool.upkeep.states import NEEDS_CARE, batches, prune, verify


class JmsSpoolMaintenanceOperator(BaseOperator):
    """Removes batches that are no longer needed, and reports batches that need attention.

    Guarantee: no batch is removed that is still needed, by the rules of `spool.upkeep.states.prune`.

    Args:
        spool_path: Directory of the batches; `None` uses the default of the other operators. Templated.
        older_than: Only batches unchanged for this number of seconds are removed. A `timedelta` is also
            accepted, here and for `forget` and `care_after`. (`airflow jms spool prune` takes days.)
        collected: Also remove batches for which no job was submitted, such as those of `JmsCollectOperator`.
            The tasks that read them must have finished.
        forget: Also remove the reports of batches unchanged for this number of seconds; `None` keeps them. A
            task that is cleared after that collects again under the name of the old batch.
        care_after: A batch needs care if it is unfinished, undone, damaged or has unsent rejects. After this
            number of seconds without a change, a warning in the log names it. Before that it may only be
            waiting for a retry, and is named without a warning.
        verify: Read all files and compare them with their digests.
        dry_run: Remove nothing.

    Returns:
        `batches` is the number of remaining batches, `states` their number by state, such as
        `{"done": 11, "undone": 1}`. `pruned` names the batches that lost their messages, and `bytes` is the
        size removed. `needs_care` names batches that need care and have been unchanged for `care_after`;
        `may_need_care` names batches that need care but changed more recently.

    Raises:
        AirflowException: Files are damaged; the text names each. All other work is done first.
    """

    template_fields: Sequence[str] = ("spool_path",)
    ui_color = "#e0e0d0"

    def __init__(
        self,
        *,
        spool_path: str | None = None,
        older_than: float | timedelta = PRUNE_AFTER,
        collected: bool = False,
        forget: float | timedelta | None = None,
        care_after: float | timedelta = CARE_AFTER,
        verify: bool = True,
        dry_run: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.spool_path = spool_path
        self.older_than = _seconds(older_than)
        self.collected = collected
        self.forget = None if forget is None else _seconds(forget)
        self.care_after = _seconds(care_after)
        self.verify = verify
        self.only_look = dry_run

    def execute(self, context: Context) -> dict[str, Any]:
        """Prune, verify the remaining batches, and name those that need care."""
        del context
        with task_failures():
            faults = [
                *seconds_faults("older_than", self.older_than, minimum=0),
                *seconds_faults("care_after", self.care_after, minimum=0),
                *(() if self.forget is None else seconds_faults("forget", self.forget, minimum=0)),
            ]
            if faults:
                raise ConfigurationError(faults)
            return self._keep_in_order()

    def _keep_in_order(self) -> dict[str, Any]:
        spool = spool_path(self.spool_path)
        if not is_folder(spool):
            return {
                "batches": 0,
                "states": {},
                "pruned": [],
                "bytes": 0,
                "needs_care": [],
                "may_need_care": [],
            }
        outcome = prune(
            spool,
            older_than=timedelta(seconds=self.older_than),
            collected=self.collected,
            forget=None if self.forget is None else timedelta(seconds=self.forget),
            care_after=timedelta(seconds=self.care_after),
            dry_run=self.only_look,
        )
        for gone in outcome.removed:
            self.log.info("%s %s", "Would prune" if self.only_look else "Pruned", escaped(gone))
        for line in outcome.kept_summary():
            self.log.info("%s", escaped(line))
        found = list(batches(spool))
        now = time.time()
        care: list[str] = []
        fresh: list[str] = []
        for each in found:
            if each.state not in NEEDS_CARE:
                continue
            unchanged = now - each.changed
            old = unchanged >= self.care_after
            (care if old else fresh).append(each.batch_id)
            self.log.log(
                logging.WARNING if old else logging.INFO,
                "Batch %s is %s, and hasn't changed for %d s%s: its messages are in %s and nowhere else. "
                "If its task has failed for good, clear the task; see `airflow jms spool show`",
                escaped(each.batch_id),
                each.state,
                unchanged,
                "" if old else f" (`care_after` is {self.care_after:g} s, until then a retry may be coming)",
                escaped(each.folder),
            )
        damaged = [fault for each in found if self.verify and (fault := verify(each)) is not None]
        if damaged:
            raise AirflowException(escaped("; ".join(damaged)))
        return {
            "batches": len(found),
            "states": dict(Counter(str(each.state) for each in found)),
            "pruned": [each.batch_id for each in outcome.removed],
            "bytes": sum(each.bytes for each in outcome.removed),
            "needs_care": care,
            "may_need_care": fresh,
        }


def _seconds(span: float | timedelta) -> float:
    return span.total_seconds() if isinstance(span, timedelta) else span
