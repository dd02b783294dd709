"""Redelivery options that replace one another, across the levels of configuration."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_jmsjca.core.configuration.precedence import Level, Resolved, SourceKind
from airflow_provider_jmsjca.core.options import display_value

ATTEMPTS = ("max_attempts", "redelivery_delay")
CLIENT_PROPERTIES = (
    "redelivery_delays",
    "redelivery_action",
    "redelivery_action_after",
    "redelivery_move_kind",
    "redelivery_move_name",
)


def yielding(resolved: Resolved) -> tuple[str, ...]:
    """Return the redelivery options that have no effect, because another option replaces them.

    The key `JMSJCA.redeliveryhandling` replaces every field. An activation that sets attempts, delays or the
    properties of a Java CAPS client replaces a `redelivery_handling` of a lower level. If it also sets
    `redelivery_handling` itself, `core.activation.rules` reports a fault.

    Source: J143.
    """
    handling = resolved.values.get("redelivery_handling")
    if handling is None:
        return ()
    if handling.origin.place >= SourceKind.OPTIONS:
        return ATTEMPTS + CLIENT_PROPERTIES
    others = any(name in resolved.values for name in ATTEMPTS + CLIENT_PROPERTIES)
    return ("redelivery_handling",) if others and handling.origin.level is not Level.ACTIVATION else ()


def overruled(resolved: Resolved) -> Iterator[str]:
    """Yield a sentence for each value that a lower level replaces; the sentence shows both values.

    Source: J143.
    """
    handling = resolved.values.get("redelivery_handling")
    replaced = [(value, resolved.value(value.option.name)) for value in resolved.replaced]
    if handling is not None and handling.origin.place >= SourceKind.OPTIONS:
        others = (resolved.values.get(name) for name in ATTEMPTS + CLIENT_PROPERTIES)
        replaced += [(value, handling) for value in others if value is not None]
    for value, replacement in replaced:
        above, below = value.origin.level, replacement.origin.level
        if value.value == replacement.value or above is None or below is None or above <= below:
            continue
        yield (
            f"{value.origin} ({display_value(value.option, value.value)}) is not used: {replacement.origin} "
            f"({display_value(replacement.option, replacement.value)}) replaces it, "
            "as this option does at every level"
        )
