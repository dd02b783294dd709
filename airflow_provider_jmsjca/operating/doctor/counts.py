"""Counts as texts of findings."""

from __future__ import annotations

from typing import Final

MOST_COUNTED: Final = 100
"""Number from which `counted` gives no exact number; examinations read at most so many entries."""


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number of things as text; from 100 on, `100 or more`.

    Args:
        number: The number.
        one: Name of one thing.
        many: Name of several things; empty: `one` with an `s`.
    """
    shown = f"{MOST_COUNTED} or more" if number >= MOST_COUNTED else str(number)
    return f"{shown} {one if number == 1 else many or one + 's'}"


def messages(number: int) -> str:
    """Return an exact number of messages as text."""
    return f"{number} message{'' if number == 1 else 's'}"
