"""Finds, in a server's log, the one line that says why it ended."""

from __future__ import annotations

import re

_LONGEST = 300
# Lines of a Java stack trace that name no cause.
_FRAME = re.compile(r"\s+at |\s*\.\.\. \d+ more")
_FAULT = re.compile(r"^E: |error|exception|failed|failure|refused|denied", re.IGNORECASE)


def cause_in(log: str) -> str:
    """Return the line that most likely names the cause: the innermost one of a stack trace, if there is one.

    Args:
        log: What the server wrote since it was started.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip() and not _FRAME.match(line)]
    if not lines:
        return "it wrote nothing"
    causes = [line for line in lines if line.startswith("Caused by: ")]
    faults = [line for line in lines if _FAULT.search(line)]
    (found,) = (causes or faults or lines)[-1:]
    return found if len(found) <= _LONGEST else f"{found[:_LONGEST]}..."
