"""Queue administration over STOMP connections: one module for each way a broker offers it.

This folder may import the rest of `transports/stomp`. A dialect selects its module with `AdministrationKind`.
"""

from __future__ import annotations

from typing import assert_never

from airflow_provider_jmsjca.transports.administration import QueueAdministration
from airflow_provider_jmsjca.transports.base import Connection
from airflow_provider_jmsjca.transports.stomp.administration.http_api import HttpApiAdministration
from airflow_provider_jmsjca.transports.stomp.administration.management_address import (
    ManagementAddressAdministration,
)
from airflow_provider_jmsjca.transports.stomp.administration.statistics_plugin import (
    StatisticsPluginAdministration,
)
from airflow_provider_jmsjca.transports.stomp.dialects.settlement import AdministrationKind
from airflow_provider_jmsjca.transports.stomp.link.link import Link

__all__ = ["administration_over"]


def administration_over(connection: Connection, link: Link) -> QueueAdministration:
    """Return the administration selected by the broker's dialect."""
    match link.dialect.administration:
        case AdministrationKind.STATISTICS_PLUGIN:
            return StatisticsPluginAdministration(connection, link)
        case AdministrationKind.MANAGEMENT_ADDRESS:
            return ManagementAddressAdministration(link)
        case AdministrationKind.HTTP_API:
            return HttpApiAdministration(link)
        case AdministrationKind.NONE:
            return QueueAdministration(link.broker)
        case _ as kind:
            assert_never(kind)
