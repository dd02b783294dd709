"""Tables that a batch is written to, one module for each format. Doing it twice leaves one copy.

May import `core`, `spool` and `errors`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from airflow_provider_jmsjca.spool.files import Place

BATCH_COLUMN: Final = "jms_batch_id"
"""The column of a table that names the batch of each row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAttempt:
    """Who writes.

    Attributes:
        batch_id: Names the batch in the table.
        folder: The batch's folder, for the fence.
        fence: This attempt's number.
    """

    batch_id: str
    folder: Place
    fence: int
