"""JMS client ids of consumers that have no activation spec."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_jmsjca.transports.base import ConnectionSettings


def with_client_id(settings: ConnectionSettings, subscription_name: str | None) -> ConnectionSettings:
    """Return the settings with a client id where a durable subscription needs one: else that of its name.

    Source: J41, J49.
    """
    if settings.client_id or not subscription_name:
        return settings
    return replace(settings, client_id=subscription_name)
