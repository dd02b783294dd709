"""Reads given values into the types of their options, and writes them back."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from functools import cache

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.masking import MASK, masked_text
from airflow_provider_jmsjca.core.options.choices import SYNONYMS
from airflow_provider_jmsjca.core.options.option import Measure, Option, OptionType, OptionValue
from airflow_provider_jmsjca.core.options.properties import format_options
from airflow_provider_jmsjca.errors import ConfigurationError

_BOOLEANS = {
    "true": True,
    "1": True,
    "yes": True,
    "y": True,
    "on": True,
    "false": False,
    "0": False,
    "no": False,
    "n": False,
    "off": False,
}
_DURATION = re.compile(r"([+-]?\d{1,15}(?:\.\d{1,9})?) *(ms|s|m|h|d)?", re.ASCII)
_SUFFIXES = {
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
}
_UNITS = {Measure.SECONDS: Decimal(1), Measure.MILLISECONDS: Decimal("0.001")}
_LONGEST_DURATION = 10**9
_HIGHEST_INTEGER = 2**31 - 1
_LONGEST_SHOWN = 80


class _UnfitError(Exception):
    """The value doesn't have the expected form."""


def read_value(option: Option, given: object, spelling: str) -> OptionValue:
    """Return the given value in the option's type.

    Args:
        option: The option of the value.
        given: Text, or a value parsed from Python, JSON or YAML. Empty text and `None` mean "not set".
        spelling: The name under which the value was given. It determines the unit of a number without a unit,
            and is named in errors.

    Raises:
        ConfigurationError: The value is invalid. The text has the spelling, the value (masked if secret) and
            the expected form.
    """
    if (
        isinstance(given, str)
        and not isinstance(given, enum.Enum)
        and option.value_type is not OptionType.PROPERTIES
    ):
        given = given if option.secret else given.strip()
    if given is None or (given == "" and not option.blank_counts):
        return None
    try:
        value = _READERS[option.value_type](option, given, spelling)
    except _UnfitError:
        raise ConfigurationError(
            f"{spelling}: got {display_value(option, given)}, expected {expected_form(option, spelling)}"
        ) from None
    if isinstance(value, tuple) and spelling.replace("_", "-") in option.lookup_names:
        return tuple(name if "://" in name else f"lookup://{name}" for name in value)
    return value


def expected_form(option: Option, spelling: str | None = None) -> str:
    """Return the form of the option's values in words."""
    match option.value_type:
        case OptionType.INTEGER:
            form = f"a whole number{_bounds(option)}"
        case OptionType.DURATION:
            unit = option.unit_of(spelling or option.name)
            form = f"a number of {unit}{_bounds(option)}, or one with a unit such as 500ms, 30s or 5m"
        case OptionType.BOOLEAN:
            form = "true or false"
        case OptionType.CHOICE:
            form = "one of " + ", ".join(member.value for member in option.choices or ())
        case OptionType.LIST:
            form = "a list of texts"
        case OptionType.PROPERTIES:
            form = "Java properties text (key=value, one a line) or a mapping of texts"
        case OptionType.TEXT:
            form = "text"
        case OptionType.ANY:
            form = "text, a number, or true or false"
    return f"{form} (-1: no limit)" if option.unlimited else form


def display_value(option: Option, value: object) -> str:
    """Return the value as errors and tables show it: secrets masked, long values cut."""
    if value is None:
        return "None"
    if option.secret:
        return MASK
    if isinstance(value, timedelta):
        return duration_text(value)
    if isinstance(value, enum.Enum):
        return repr(str(value))
    if not isinstance(value, str | int | float):
        return type(value).__name__  # its content may be secret
    text = MASK if option.value_type is OptionType.PROPERTIES else masked_text(repr(value))
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def duration_text(value: timedelta) -> str:
    """Return a duration in seconds, for example `0.1s`."""
    microseconds = (value.days * 86400 + value.seconds) * 1_000_000 + value.microseconds
    whole, rest = divmod(abs(microseconds), 1_000_000)
    fraction = f".{rest:06d}".rstrip("0") if rest else ""
    return f"{'-' if microseconds < 0 else ''}{whole}{fraction}s"


def _bounds(option: Option) -> str:
    return "" if option.minimum is None else f", {option.minimum} or more"


def _text(_option: Option, given: object, _spelling: str) -> str:
    if isinstance(given, str | Destination):
        return str(given)
    if isinstance(given, int | float) and not isinstance(given, bool):
        return str(given)
    raise _UnfitError


def _any(_option: Option, given: object, _spelling: str) -> str:
    if isinstance(given, bool):
        return str(given).lower()
    if isinstance(given, timedelta):
        return duration_text(given)
    if isinstance(given, str | int | float):
        return str(given)
    raise _UnfitError


def _integer(option: Option, given: object, _spelling: str) -> int | None:
    if isinstance(given, bool):
        raise _UnfitError
    if isinstance(given, str) and re.fullmatch(r"[+-]?[0-9]{1,18}", given):
        given = int(given)
    if not isinstance(given, int):
        raise _UnfitError
    if option.unlimited and given == -1:
        return None
    low = -_HIGHEST_INTEGER if option.minimum is None else option.minimum
    if not low <= given <= _HIGHEST_INTEGER:
        raise _UnfitError
    return given


def _boolean(_option: Option, given: object, _spelling: str) -> bool:
    if isinstance(given, bool):
        return given
    text = str(given).lower() if isinstance(given, str | int) else ""
    if text not in _BOOLEANS:
        raise _UnfitError
    return _BOOLEANS[text]


def _choice(option: Option, given: object, _spelling: str) -> enum.StrEnum:
    if option.choices is None or not isinstance(given, str):
        raise _UnfitError
    member = _members(option.choices).get(_squeezed(given))
    if member is None:
        raise _UnfitError
    return member


@cache
def _members(choices: type[enum.StrEnum]) -> dict[str, enum.StrEnum]:
    """Return the members by every spelling of their values, normalized by `_squeezed`."""
    found = {_squeezed(text): member for member in choices for text in (member.name, member.value)}
    return found | {synonym: found[value] for synonym, value in SYNONYMS.items() if value in found}


def _squeezed(text: str) -> str:
    return re.sub(r"[ ._-]", "", text).lower()


def _duration(option: Option, given: object, spelling: str) -> timedelta | None:
    if isinstance(given, timedelta):
        seconds = Decimal(given.days * 86400 + given.seconds) + Decimal(given.microseconds) / 1_000_000
    else:
        seconds = _seconds(given, option.unit_of(spelling))
    if option.unlimited and seconds < 0:
        return None
    low = option.minimum or 0
    if not low <= seconds <= _LONGEST_DURATION:
        raise _UnfitError
    return timedelta(microseconds=int(seconds * 1_000_000))


def _seconds(given: object, unit: Measure) -> Decimal:
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise _UnfitError
    if isinstance(given, str):
        match = _DURATION.fullmatch(given)
        if match is None:
            raise _UnfitError
        return Decimal(match[1]) * (_SUFFIXES[match[2]] if match[2] else _UNITS[unit])
    try:
        number = Decimal(str(given))
    except InvalidOperation:
        raise _UnfitError from None
    if not number.is_finite():
        raise _UnfitError
    return number * _UNITS[unit]


def _list(option: Option, given: object, _spelling: str) -> tuple[str, ...]:
    if isinstance(given, type | Destination):
        given = (given,)
    items: Sequence[object]
    if isinstance(given, str):
        items = re.split(f"[{re.escape(option.separators)}]", given)
    elif isinstance(given, Sequence) and not isinstance(given, bytes | bytearray | memoryview):
        items = given
    elif isinstance(given, set | frozenset):
        items = sorted(given, key=str)
    else:
        raise _UnfitError
    return tuple(text for text in map(_item, items) if text)


def _item(item: object) -> str:
    if isinstance(item, type):  # the name of an exception class
        return f"{item.__module__}.{item.__qualname__}"
    if isinstance(item, str | Destination):
        return str(item).strip()
    raise _UnfitError


def _properties(_option: Option, given: object, _spelling: str) -> str:
    if isinstance(given, str):
        return given
    if isinstance(given, Mapping):
        pairs: dict[str, str] = {}
        for key, value in given.items():
            if not isinstance(key, str) or not key or not isinstance(value, str | int | float | bool):
                raise _UnfitError
            pairs[key] = str(value).lower() if isinstance(value, bool) else str(value)
        return format_options(pairs)
    raise _UnfitError


_READERS = {
    OptionType.TEXT: _text,
    OptionType.INTEGER: _integer,
    OptionType.BOOLEAN: _boolean,
    OptionType.CHOICE: _choice,
    OptionType.DURATION: _duration,
    OptionType.LIST: _list,
    OptionType.PROPERTIES: _properties,
    OptionType.ANY: _any,
}
