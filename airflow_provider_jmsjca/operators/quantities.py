"""Checks the numbers that the author of a DAG gives."""

from __future__ import annotations

from datetime import timedelta

_LONGEST = timedelta(days=36_500).total_seconds()


def seconds_faults(name: str, value: object, *, least: float | None = None, otherwise: str = "") -> list[str]:
    """Return what is wrong with a number of seconds, if anything is.

    Args:
        name: Of the argument.
        value: As given.
        least: The smallest that will do; `None`: any above 0.
        otherwise: What could be given instead, for the text.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        above = value > 0 if least is None else value >= least
        if above and value <= _LONGEST:
            return []
    bound = "above 0" if least is None else f"of at least {least:g}"
    return [f"{name} is {value!r}; expected seconds {bound}{f', or {otherwise}' if otherwise else ''}"]


def count_faults(name: str, value: object) -> list[str]:
    """Return what is wrong with a number of messages, if anything is."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return []
    return [f"{name} is {value!r}; expected a whole number of at least 1"]
