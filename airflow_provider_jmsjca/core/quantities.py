"""Checks numbers in the arguments of DAG authors."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

LONGEST: Final = timedelta(days=36_500)
"""The longest time that can be given."""


def seconds_faults(
    name: str, value: object, *, minimum: float | None = None, otherwise: str = ""
) -> list[str]:
    """Return the faults of a number of seconds; empty if it is valid.

    Args:
        name: Name of the argument.
        value: The given value.
        minimum: Minimum; `None`: any number above 0.
        otherwise: Description of an alternative value, for the error message.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        above = value > 0 if minimum is None else value >= minimum
        if above and value <= LONGEST.total_seconds():
            return []
    bound = "above 0" if minimum is None else f"of at least {minimum:g}"
    return [f"{name} is {value!r}; expected seconds {bound}{f', or {otherwise}' if otherwise else ''}"]


def number_of(value: Any) -> Any:
    """Convert an argument to a number if it is text, because a rendered template is always text.

    Empty text becomes `None`. Text that is not a number is stripped, and other values stay unchanged.
    """
    if not isinstance(value, str):
        return value
    for read in (int, float):
        try:
            return read(value)
        except ValueError:
            continue
    return value.strip() or None


def count_faults(name: str, value: object, *, minimum: int = 1) -> list[str]:
    """Return the faults of a number of messages or bytes; empty if it is valid."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= minimum:
        return []
    return [f"{name} is {value!r}; expected a whole number of at least {minimum}"]
