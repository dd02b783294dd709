"""The effective message selector: that of the connection or the installation, else the consumer's own."""

from __future__ import annotations

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.core.configuration.precedence import Resolved
from airflow_provider_jmsjca.core.destination import Destination


def effective_selector(
    options: Resolved, destination: Destination, own: str | None, subscription_name: str | None = None
) -> str | None:
    """Return the selector to consume with; `None` selects all messages.

    This is `JMSJCA.selector` of the connection or the installation, if there is one, else the consumer's own.
    `${subscribername}`, `${selector}`, `${andselector}`, `${selectorand}` and configured parameters in the
    selector are replaced by their values.

    Args:
        options: The options in force.
        destination: The destination to consume from.
        own: The consumer's own selector; `None`: it has no selector.
        subscription_name: The value of `${subscribername}`.

    Raises:
        ConfigurationError: The result isn't a valid selector.

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
