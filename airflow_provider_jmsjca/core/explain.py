"""Tells what is in force and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from airflow_provider_jmsjca.core.masking import MASK, masked_text, masked_value
from airflow_provider_jmsjca.core.options import (
    OPTIONS,
    Option,
    OptionType,
    OptionValue,
    duration_text,
    masked_options,
)
from airflow_provider_jmsjca.core.precedence import Resolved
from airflow_provider_jmsjca.core.url import ConnectionUrl


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """One row: an option, what is in force (secrets masked), where it came from, what it would be otherwise.

    Attributes:
        status: `acts`, or why it has no meaning here; `for the broker` for options that aren't ours.
    """

    option: str
    value: str
    origin: str
    default: str
    status: str


def explain(resolved: Resolved, *, only_set: bool = False) -> tuple[Explained, ...]:
    """Return a row for each option in force, then one for each option that goes to the broker.

    Args:
        resolved: What `resolve` returned.
        only_set: Leave out what nobody set.

    Source: J31, J113.
    """
    rows = [
        Explained(
            option=option.name,
            value=display(option, found.value),
            origin=str(found.origin),
            default=default_text(option),
            status=option.status,
        )
        for option in _shown(OPTIONS)
        if (found := resolved.value(option.name)).origin.level is not None or not only_set
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


def display(option: Option, value: OptionValue) -> str:
    """Return a value as tables show it; empty where there is none."""
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
    """Leave out what resolving takes apart: Options texts and the separator in them."""
    return (option for option in options if option.name not in {"options", "separator"})
