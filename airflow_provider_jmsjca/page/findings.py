"""Findings of `airflow jms doctor`.

The first screen loads findings only after it is shown. The page requests findings about brokers separately,
so that a slow broker doesn't delay the other findings.

Every user of the page sees symptoms. Causes and fixes are shown only with the permission to read messages,
because causes often contain texts of exceptions, and fixes contain ids of messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlette.responses import Response

from airflow_provider_jmsjca.operating.doctor import Finding, by_kind
from airflow_provider_jmsjca.page.access import Permission
from airflow_provider_jmsjca.page.brokers import settings_of
from airflow_provider_jmsjca.page.visit import Visit
from airflow_provider_jmsjca.triggers.examination import (
    connections_in_use,
    examine_airflow,
    examine_connections,
    examine_installed_spool,
    examine_installed_store,
    installed_runs,
)

_SECONDS: Final = 20.0
"""Maximum time in seconds for all brokers together, below the view's time limit in `application`."""
_MOST: Final = 100


def of_installation(visit: Visit) -> Response:
    """Show findings about triggerer, DAGs, watchers, store, spool and disks."""
    _, found = examine_airflow()
    found = [*found, *examine_installed_store(), *examine_installed_spool()]
    may_read = visit.may(Permission.READ_MESSAGES)
    return _page(visit, "Installation", ((each, may_read) for each in found))


def of_brokers(visit: Visit) -> Response:
    """Show findings about the brokers of all JMS connections."""
    state, _ = examine_airflow()
    found = examine_connections(
        connections_in_use(state), state, settings_of, runs=installed_runs(), within=_SECONDS
    )
    rows = [
        (each, visit.may(Permission.READ_MESSAGES, conn_id))
        for conn_id, findings in found.items()
        for each in findings
    ]
    return _page(visit, "Brokers", rows)


def _page(visit: Visit, title: str, rows: Iterable[tuple[Finding, bool]]) -> Response:
    permitted: dict[Finding, bool] = {}
    for each, may_read in rows:
        permitted[each] = may_read and permitted.get(each, True)
    found = by_kind(permitted)
    return visit.page(
        "findings.html",
        title=title,
        rows=[(each, permitted[each]) for each in found[:_MOST]],
        more=len(found) - _MOST,
        permission=Permission.READ_MESSAGES.value,
    )
