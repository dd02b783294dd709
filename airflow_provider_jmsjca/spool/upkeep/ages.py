"""Default ages at which upkeep reports or prunes a batch; importing them loads no code that reads batches."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

CARE_AFTER: Final = timedelta(hours=1)
"""A batch in a state of `NEEDS_CARE` that changed within this time may have a running job or a retry."""

PRUNE_AFTER: Final = timedelta(days=7)
"""Default age from which batches are pruned, and from which the doctor finds that they can be."""
