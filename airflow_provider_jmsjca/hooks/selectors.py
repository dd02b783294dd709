"""The effective message selector: that of the connection or the installation, else the consumer's own."""

from __future__ import annotations

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.configuration.precedence import Resolved
from airflow_provider_jmsjca.core.destination import Destination


def selector_in_force(
    options: Resolved, destination: Destination, own: str | None, subscription_name: str | None = None
) -> str | None:
    """Return the selector to consume with; `None` selects everything.

    `JMSJCA.selector` of the connection or the installation, where there is one, else the consumer's own;
    `${subscribername}`, `${selector}`, `${andselector}`, `${selectorand}` and configured parameters are
    filled in.

    Raises:
        ConfigurationError: The result is no selector.

    Source: J57, J104, J178-J182.
    """
    override = options["selector_override"]
    if not override and not own:
        return None
    spec = ActivationSpec(
        destination=str(destination),
        message_selector=own,
        selector_override=override,
        subscription_name=subscription_name,
        **options.parameter_fields,
    )
    return spec.selector_for()
