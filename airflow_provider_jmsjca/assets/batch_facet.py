"""OpenLineage facet of a batch. Imported only where the provider `openlineage` is installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from airflow.providers.openlineage.extractors.base import OperatorLineage
from openlineage.client.facet_v2 import RunFacet

BATCH_FACET = "jms_batch"


@attrs.define
class JmsBatchRunFacet(RunFacet):
    """The batch that a run collected, with its results.

    Attributes:
        batchId: Value of the column `jms_batch_id` in tables.
        manifest: URI of the batch's manifest; `None` for an empty batch.
        rows: Messages in the batch.
        stored: Rows by table.
        rejected: Messages that the job rejected.
        violations: Number of violating rows, by expectation.
        rescued: Number of rows with fields that the schema doesn't name, if the job keeps such fields.
        evolved: Changes of tables' columns for the batch's rows.
        adopted: Ids of unfinished batches that the run took over.
    """

    batchId: str  # noqa: N815  # OpenLineage's spelling
    manifest: str | None = None
    rows: int = 0
    stored: dict[str, int] = attrs.field(factory=dict)
    rejected: int = 0
    violations: dict[str, int] = attrs.field(factory=dict)
    rescued: int = 0
    evolved: list[str] = attrs.field(factory=list)
    adopted: list[str] = attrs.field(factory=list)


def batch_lineage(report: Mapping[str, Any]) -> OperatorLineage[Any, Any]:
    """Return the facet for a task's report; the task's inputs and outputs come from hook lineage."""
    facet = JmsBatchRunFacet(
        batchId=report["batch_id"],
        manifest=report["manifest"],
        rows=report["rows"],
        stored=dict(report.get("stored", {})),
        rejected=report.get("rejected", 0),
        violations=dict(report.get("violations", {})),
        rescued=report.get("rescued", 0),
        evolved=list(report.get("evolved", ())),
        adopted=[each["batch_id"] for each in report.get("adopted", ())],
    )
    return OperatorLineage(run_facets={BATCH_FACET: facet})
