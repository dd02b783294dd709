"""The table of all options; each row defines one option completely."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from airflow_provider_jmsjca.core.options.activation_rows import ACTIVATION
from airflow_provider_jmsjca.core.options.connection_rows import CONNECTION
from airflow_provider_jmsjca.core.options.delivery_rows import EVENTS, REDELIVERY
from airflow_provider_jmsjca.core.options.inert_rows import INERT
from airflow_provider_jmsjca.core.options.option import Option
from airflow_provider_jmsjca.core.options.transport_rows import TRANSPORT
from airflow_provider_jmsjca.core.options.weblogic_rows import WEBLOGIC

GROUPS: Mapping[str, tuple[Option, ...]] = MappingProxyType(
    {
        "Connection": CONNECTION,
        "Transport": TRANSPORT,
        "Activation": ACTIVATION,
        "From WebLogic": WEBLOGIC,
        "Redelivery": REDELIVERY,
        "Events and replies": EVENTS,
        "Without effect": INERT,
    }
)
OPTIONS: tuple[Option, ...] = tuple(option for group in GROUPS.values() for option in group)
OPTIONS_BY_NAME: Mapping[str, Option] = MappingProxyType({option.name: option for option in OPTIONS})
