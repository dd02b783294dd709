"""Options of one destination, from `jmsjca://?name=queue://orders&key=value` or an administered object.

This package handles `prefetch` (`JMSJCA.prefetch`). This module refuses the package's other options, other
`JMSJCA.` keys, and secrets: they belong in an activation spec or a connection. All remaining options are
passed to the broker, which checks them itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.masking import is_secret
from airflow_provider_jmsjca.core.options import check_keys, option_by_key, read_value
from airflow_provider_jmsjca.core.query import NAMED, read_named_destination, write_named_destination
from airflow_provider_jmsjca.errors import ConfigurationError

_PREFETCH = "prefetch"


def check_options(options: Mapping[str, str], place: str) -> list[str]:
    """Return a fault for every option that is invalid for a destination.

    Args:
        options: Values by key.
        place: Name of the text that contains the options; each fault begins with it.

    Source: J91.
    """
    faults = check_keys(options, place)
    for key, given in options.items():
        option = option_by_key(key)
        if option is None:
            if is_secret(key):
                faults.append(
                    f"{place}: {key} is a secret, and destinations are shown in logs and pages; "
                    "expected it on the connection"
                )
            continue
        if option.name != _PREFETCH:
            faults.append(
                f"{place}: {key} is not an option of a destination, expected it in the activation spec or "
                f"connection; a destination takes {_PREFETCH} and its broker's options"
            )
            continue
        try:
            read_value(option, given, key)
        except ConfigurationError as error:
            faults.extend(f"{place}: {fault}" for fault in error.faults)
    return faults


def prefetch_of(destination: Destination, default: object = None) -> int | None:
    """Return the destination's own prefetch, else `default`.

    Args:
        destination: The destination to consume.
        default: Prefetch of the activation, session or connection; ignored unless it is a number.

    Source: J91.
    """
    for key, given in destination.options:
        option = option_by_key(key)
        if option is not None and option.name == _PREFETCH:
            value = read_value(option, given, key)
            default = value if isinstance(value, int) else default
    return default if isinstance(default, int) else None


def broker_options(destination: Destination) -> dict[str, str]:
    """Return the options of a destination that are passed to its broker.

    Source: J91.
    """
    return {key: given for key, given in destination.options if option_by_key(key) is None}


def reference_text(destination: Destination) -> str:
    """Return the text form of a destination with its options; `read_text` reads it back.

    Source: J91.
    """
    if not destination.options:
        return str(destination)
    return write_named_destination(str(destination), destination.options)


def sending_text(destination: Destination) -> str:
    """Return the text form of a destination, for `read_text`, with the options that affect sending."""
    return reference_text(with_options(destination, broker_options(destination)))


def read_text(text: str) -> Destination:
    """Return the destination from the output of `reference_text`, `sending_text` or `str`.

    Raises:
        ConfigurationError: The text is not in one of these forms.
    """
    if not text.startswith(NAMED):
        return Destination.parse(text)
    faults: list[str] = []
    name, options = read_named_destination(text, faults)
    if faults:
        raise ConfigurationError(faults)
    return with_options(Destination.parse(name), options)


def with_options(destination: Destination, options: Mapping[str, str]) -> Destination:
    """Return the destination with `options` instead of its own options."""
    return replace(destination, options=tuple(options.items()))
