"""W3C Trace Context in a message: the property `traceparent`, read strictly.

Anyone who can send to a queue can set this property. An invalid value is dropped, so that it brings no text
of a producer into a trace, a log or a Spark job.

Source: W3C Trace Context, https://www.w3.org/TR/trace-context/.
"""

from __future__ import annotations

import re
from typing import Final

TRACEPARENT: Final = "traceparent"
"""Name of the property."""

_LENGTH: Final = 55
_LONGEST: Final = 256
_FORM = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<parent>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})"
)
_KNOWN_FLAGS: Final = 0b11
"""Bits of the known flags: sampled, and random trace id."""


def valid_traceparent(value: object) -> str | None:
    """Return a `traceparent` in the form of version 00; `None` for an invalid value.

    A value of a later version is read as the standard requires: only its first four fields count. Further
    fields, and flags that version 00 doesn't know, are left out.

    Args:
        value: The value of a property.
    """
    if not isinstance(value, str) or not _LENGTH <= len(value) <= _LONGEST:
        return None
    found = _FORM.fullmatch(value[:_LENGTH])
    if (
        found is None
        or found["version"] == "ff"
        or not (found["trace"].strip("0") and found["parent"].strip("0"))
    ):
        return None
    if found["version"] == "00":
        return value if len(value) == _LENGTH else None
    if len(value) > _LENGTH and value[_LENGTH] != "-":
        return None
    flags = int(found["flags"], 16) & _KNOWN_FLAGS
    return f"00-{found['trace']}-{found['parent']}-{flags:02x}"
