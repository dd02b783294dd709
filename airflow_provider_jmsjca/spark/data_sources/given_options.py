"""Reads the options of a data source strictly: errors name the mistake and its fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from airflow_provider_jmsjca.core.masking import masked_value
from airflow_provider_jmsjca.errors import ConfigurationError


class GivenOptions:
    """Options by case-insensitive name, as Spark passes them.

    Args:
        source: Name of the format, for errors.
        given: The user's options.
        known: Names of all options.

    Raises:
        ConfigurationError: An option is unknown. The methods raise it if an option is missing, or
            has an invalid value.
    """

    def __init__(self, source: str, given: Mapping[str, str], known: Iterable[str]) -> None:
        self._source = source
        names = {name.lower(): name for name in known}
        self._given = {name.lower(): value for name, value in given.items()}
        faults = []
        for name in sorted(self._given.keys() - names.keys()):
            close = difflib.get_close_matches(name, names, n=1)
            hint = f" (did you mean {names[close[0]]!r}?)" if close else ""
            faults.append(
                f"{source}: unknown option {name!r}{hint}; expected: {', '.join(sorted(names.values()))}"
            )
        if faults:
            raise ConfigurationError(faults)

    def text(self, name: str) -> str | None:
        """Return the value of an option; `None` if it isn't given or is empty."""
        return self._given.get(name.lower()) or None

    def required(self, name: str, example: str) -> str:
        """Return the value of an option that must be given; `example` is a valid value, for the error."""
        found = self.text(name)
        if found is None:
            raise ConfigurationError(
                f"{self._source}: option {name!r} is missing; expected for example {example}"
            )
        return found

    def count(self, name: str) -> int | None:
        """Return the value of an option as a whole number of at least 1; `None` if it isn't given."""
        found = self.text(name)
        if found is None:
            return None
        if not (found.isascii() and found.isdigit() and int(found) > 0):
            raise self._wrong(name, found, "a whole number from 1 up")
        return int(found)

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return the value of an option with a fixed set of choices; the first choice if it isn't given."""
        found = (self.text(name) or choices[0]).lower()
        if found not in choices:
            raise self._wrong(name, found, f"one of {', '.join(choices)}")
        return found

    def _wrong(self, name: str, found: str, expected: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self._source}: option {name!r} is {masked_value(name, found)!r}; expected {expected}"
        )
