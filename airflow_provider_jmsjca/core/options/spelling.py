"""Finds the option for a spelling, and refuses unknown spellings."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from functools import cache

from airflow_provider_jmsjca.core.options.option import Family, Level, Option
from airflow_provider_jmsjca.core.options.properties import read_properties
from airflow_provider_jmsjca.core.options.table import OPTIONS
from airflow_provider_jmsjca.errors import ConfigurationError

_NAMESPACE = "jmsjca."
PARAMETER = "parameter."
"""Prefix of a field (or of a key, after `JMSJCA.`) that holds the value of a selector parameter."""


def _field_names() -> dict[str, Option]:
    found: dict[str, Option] = {}
    for option in OPTIONS:
        for family, spelling in option.spellings():
            if family is not Family.JMSJCA_KEY:
                found[spelling] = option
                found.setdefault(spelling.lower(), option)
                found.setdefault(spelling.lower().replace("-", "_"), option)
    return found


def _keys() -> dict[str, Option]:
    found = {key.lower(): option for option in OPTIONS for key in option.key}
    found.update((option.name, option) for option in OPTIONS if option.unprefixed)
    return found


_BY_FIELD = _field_names()
_BY_KEY = _keys()


def option_by_field(spelling: str) -> Option | None:
    """Return the option that a field, descriptor element or keyword argument of this name sets.

    Case doesn't matter, and `-` may be written `_`.
    """
    return _BY_FIELD.get(spelling) or _BY_FIELD.get(spelling.lower())


def option_by_key(key: str) -> Option | None:
    """Return the option that a key of a URL query or Options text sets; `None` for a broker's option."""
    return _BY_KEY.get(key) or _BY_KEY.get(key.lower())


def check_keys(keys: Iterable[str], place: str) -> list[str]:
    """Return a fault for every unknown key in the namespace `JMSJCA.*`.

    Args:
        keys: Keys of options.
        place: Name of the text that contains the keys; each fault begins with it.
    """
    faults = []
    for key in keys:
        lowered = key.lower()
        if lowered.startswith(_NAMESPACE + PARAMETER):
            continue
        if lowered.startswith(_NAMESPACE) and lowered not in _BY_KEY:
            faults.append(
                f"{place}: unknown option {key}{_hint(key, tuple(k for o in OPTIONS for k in o.key))}"
            )
    return faults


def parse_options(text: str) -> dict[str, str]:
    """Return the options in an Options text; `JMSJCA.*` keys are checked, other keys belong to the broker.

    Raises:
        ConfigurationError: Lists every invalid line and every unknown `JMSJCA.*` key.

    Source: J101, J113; the form is that of `read_properties`.
    """
    options = read_properties(text)
    faults = check_keys(options, "options")
    if faults:
        raise ConfigurationError(faults)
    return options


def unknown_field(spelling: str, level: Level) -> str:
    """Return the fault for an unknown field, with the closest name allowed at this level."""
    return f"{spelling}: unknown option{_hint(spelling, _names_at(level))}"


@cache
def _names_at(level: Level) -> tuple[str, ...]:
    return tuple(name for option in OPTIONS if option.allowed_at(level) for _, name in option.spellings())


def _hint(given: str, known: Iterable[str]) -> str:
    by_lower: Mapping[str, str] = {name.lower(): name for name in known}
    close = difflib.get_close_matches(given.lower()[:100], list(by_lower), n=1, cutoff=0.6)
    return f" (did you mean {by_lower[close[0]]}?)" if close else ""
