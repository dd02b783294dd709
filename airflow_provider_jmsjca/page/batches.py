"""Batches in the spool: those that need attention, or all."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import Final

from starlette.responses import Response

from airflow_provider_jmsjca.errors import SpoolError
from airflow_provider_jmsjca.hooks.spool import spool_path
from airflow_provider_jmsjca.page.visit import Visit
from airflow_provider_jmsjca.spool.upkeep.states import NEEDS_CARE, BatchState, batches

_MOST: Final = 500


def list_view(visit: Visit) -> Response:
    """Show the batches in states that need attention; with the parameter `all`, every batch."""
    every_state = "all" in visit.query
    found: list[BatchState] = []
    note = ""
    try:
        chosen = (each for each in batches(spool_path()) if every_state or each.state in NEEDS_CARE)
        found = list(islice(chosen, _MOST + 1))
    except SpoolError as error:
        note = str(error)
    rows = [(each, datetime.fromtimestamp(each.changed, UTC)) for each in found[:_MOST]]
    return visit.page(
        "batches.html",
        title="Batches",
        rows=rows,
        more=len(found) > _MOST,
        note=note,
        every_state=every_state,
    )
