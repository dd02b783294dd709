"""Explains the effective configuration."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from airflow_provider_jmsjca.core.configuration.precedence import Resolved
from airflow_provider_jmsjca.core.configuration.url import ConnectionUrl
from airflow_provider_jmsjca.core.masking import MASK, masked_text, masked_value
from airflow_provider_jmsjca.core.options import (
    OPTIONS,
    PARAMETER,
    Option,
    OptionType,
    OptionValue,
    duration_text,
    masked_options,
)
from airflow_provider_jmsjca.core.options.choices import ConcurrencyMode

_POOL = ("endpoint_pool_max_size", "endpoint_pool_steady_size")
"""Options about the number of threads that handle messages at once."""
_DESTINATIONS = (
    "destination",
    "redelivery_handling",
    "dead_letter_destination",
    "error_destination",
    "archive_destination",
    "unsubscribed_destination",
    "in_progress_destination",
    "reply_to_destination",
    "source_queue",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """One row: an option, its effective value (secrets masked), its origin, and its default.

    Attributes:
        status: `acts`, or the reason why the option has no effect. `for the broker` for options passed to the
            broker, `for selectors` for selector parameters.
    """

    option: str
    value: str
    origin: str
    default: str
    status: str


def explain(resolved: Resolved, *, only_set: bool = False) -> tuple[Explained, ...]:
    """Return a row for each option, each selector parameter, and each option passed to the broker.

    Options without effect have a row only if they are set.

    Args:
        resolved: The result of `resolve`.
        only_set: Leave out options that have their default.

    Source: J31, J113.
    """
    rows = [
        Explained(
            option=option.name,
            value=display(option, found.value),
            origin=str(found.origin),
            default=default_text(option),
            status=_status(option, resolved),
        )
        for option in _shown(OPTIONS)
        if (found := resolved.value(option.name)).origin.level is not None or (option.acts and not only_set)
    ]
    rows += [
        Explained(
            option=f"{PARAMETER}{name}",
            value=masked_value(name, value),
            origin=str(origin),
            default="",
            status="for selectors",
        )
        for name, (value, origin) in resolved.parameters.items()
    ]
    rows += [
        Explained(
            option=key,
            value=masked_value(key, value),
            origin=str(origin),
            default="",
            status="for the broker",
        )
        for key, (value, origin) in resolved.broker_options.items()
    ]
    return tuple(rows)


def _status(option: Option, resolved: Resolved) -> str:
    """Return the status of an option, which may depend on other options.

    Source: J55.
    """
    if option.name in _DESTINATIONS and _is_refused_over_stomp(resolved, option):
        return "refused: STOMP can't look up names of jndi://"
    if option.name in _POOL and resolved["concurrency_mode"] is ConcurrencyMode.SERIAL:
        return "no effect: concurrency_mode is serial, one by one"
    return option.status


def _is_refused_over_stomp(resolved: Resolved, option: Option) -> bool:
    """Return whether an option names a destination in the provider's own JNDI, inaccessible to STOMP.

    Source: J86, J90.
    """
    value = resolved.value(option.name).value
    names = value if isinstance(value, tuple) else (value,)
    over_stomp = resolved.url is not None and resolved.url.scheme.startswith("stomp")
    return over_stomp and any("jndi://" in str(name).lower() for name in names)


def display(option: Option, value: OptionValue) -> str:
    """Return a value as tables show it, with secrets masked; empty for no value."""
    if value is None:
        return "no limit" if option.unlimited else ""
    if option.secret:
        return MASK
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ", ".join(masked_text(item) for item in value)
    if option.name == "connection_url":
        return ConnectionUrl.parse(str(value)).masked()
    if option.value_type is OptionType.PROPERTIES:
        return masked_options(str(value))
    return masked_text(str(value)) if isinstance(value, str) else _number(value)


def default_text(option: Option) -> str:
    """Return the default as tables show it."""
    return option.shown_default or display(option, option.default)


def _number(value: OptionValue) -> str:
    return str(value) if isinstance(value, int) else duration_text(value)  # type: ignore[arg-type]  # what remains


def _shown(options: Iterable[Option]) -> Iterable[Option]:
    """Return the options, without `options` (an Options text) and the option for that text's separator.

    `resolve` replaces an Options text by the options in it, which are shown instead.
    """
    return (option for option in options if option.name not in {"options", "separator"})
