"""How fast this machine is now, for promises that are about time."""

from __future__ import annotations

import os
from pathlib import Path

_CORES = os.cpu_count() or 1
_SHARE_OF_A_STEP = 1.25
"""By how much one step of niceness makes a process' share of a processor smaller."""


def at_most(seconds: float) -> float:
    """Return how long something may take now that takes at most so long on an idle machine.

    Others who want a processor too make everything slower: as many as they are for each processor, and more
    where this process is nice to them. A promise of the package is held to what it says where nobody else
    works; elsewhere a test of it doesn't fail because of others.

    Args:
        seconds: What is promised.
    """
    running = Path("/proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[0]
    waiting = max(os.getloadavg()[0], float(running)) / _CORES
    return seconds * (1 + waiting * _SHARE_OF_A_STEP ** max(0, os.nice(0)))
