"""JMS client ids of consumers: here, and nowhere else on Airflow's side, they get the one in force."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_jmsjca.core.activation import ActivationSpec
from airflow_provider_jmsjca.transports.base import ConnectionSettings


def with_client_id(settings: ConnectionSettings, subscription_name: str | None) -> ConnectionSettings:
    """Return the settings of a consumer without a spec; its durable subscription lends a client id its name.

    Source: J41, J49.
    """
    if settings.client_id or not subscription_name:
        return settings
    return replace(settings, client_id=subscription_name)


def with_client_id_of(
    settings: ConnectionSettings, spec: ActivationSpec, instance: str
) -> ConnectionSettings:
    """Return the settings with the client id an activation connects with (`ActivationSpec.client_id_for`).

    Args:
        settings: With the client id of the connection factory, if it has one.
        spec: The spec in force.
        instance: What tells this consumer from others of the activation; may be empty.

    Source: J41, J49, W30, W31.
    """
    chosen = spec.client_id_for(factory_client_id=settings.client_id, instance=instance)
    return replace(settings, client_id=chosen)
