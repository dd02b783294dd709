"""Numbers as Java reads and writes them."""

from __future__ import annotations

import math
import re

from airflow_provider_jmsjca.core.value_types import as_float32, fits

_JAVA_INTEGER = re.compile(r"([+-]?)0*([0-9]{1,19})")
_JAVA_DOUBLE = re.compile(
    r"[\x00-\x20]*([+-]?)(?:(NaN)|(Infinity)|((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?)[\x00-\x20]*"
)


def java_integer(text: str, bits: int) -> int | None:
    """Return what `Integer.valueOf` or `Long.valueOf` reads, `None` where they refuse."""
    match = _JAVA_INTEGER.fullmatch(text)
    if match is None:
        return None
    value = int(match[1] + match[2])
    return value if fits(value, bits) else None


def java_double(text: str) -> float | None:
    """Return what `Double.valueOf` reads, `None` where it refuses; hexadecimal forms are refused here."""
    match = _JAVA_DOUBLE.fullmatch(text)
    if match is None:
        return None
    sign = -1.0 if match[1] == "-" else 1.0
    if match[2]:
        return math.nan
    return math.copysign(math.inf if match[3] else float(match[4]), sign)


def java_float_text(value: float, *, single: bool = False) -> str:
    """Return what `Double.toString`, or `Float.toString` for a single one, writes (Java 19 and newer).

    The shortest digits that read back as the same number; an exponent below 0.001 and from 10,000,000 on.
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0.0" if math.copysign(1, value) < 0 else "0.0"
    sign = "-" if value < 0 else ""
    digits, exponent = _shortest(abs(value), single=single)
    if -3 <= exponent < 7:  # noqa: PLR2004 - the limits the docstring names
        if exponent < 0:
            return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
        whole = digits[: exponent + 1].ljust(exponent + 1, "0")
        return f"{sign}{whole}.{digits[exponent + 1 :] or '0'}"
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent}"


def _shortest(value: float, *, single: bool) -> tuple[str, int]:
    narrow = as_float32 if single else float
    # Java writes two digits at least, the nearest of them; 17 always suffice.
    texts = (f"{value:.{places}e}" for places in range(1, 17))
    text = next(text for text in texts if narrow(float(text)) == value)
    mantissa, _, exponent = text.partition("e")
    return mantissa.replace(".", "").rstrip("0") or "0", int(exponent)
