from __future__ import annotations

from tests.unit.spool.batches import finished, open_batch, rows

__all__ = ["finished", "open_batch", "rows"]
