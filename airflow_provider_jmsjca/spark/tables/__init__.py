"""Tables that a batch is written to, one module for each format. Doing it twice leaves one copy.

May import `core`, `spool` and `errors`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_provider_jmsjca.spool.files import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BATCH_COLUMN: Final = "jms_batch_id"
"""The column of a table that names the batch of each row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAttempt:
    """Who writes.

    Attributes:
        batch_id: Names the batch in the table.
        folder: The batch's folder, for the fence.
        fence: This attempt's number.
        rejects_rows: Write the batch without the messages that the table refuses, and return those. Otherwise
            a refused row fails the write. The rows must name their messages.
    """

    batch_id: str
    folder: Place
    fence: int
    rejects_rows: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Result of a write.

    Attributes:
        rows: How many rows of the batch the table has.
        refused: Messages whose rows the table refused, each once: columns `_jms`, a struct of `segment` and
            `position`, and `exception_message`. `None` if there are none.
    """

    rows: int
    refused: DataFrame | None = None
