"""Registers the page with Airflow: its application, and its entries in the interface."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from airflow.sdk.configuration import conf

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_PREFIX: Final = "/jms"
_TABS: Final = {
    "dag": "?dag_id={DAG_ID}",
    "task": "?dag_id={DAG_ID}&task_id={TASK_ID}",
    "task_instance": "?dag_id={DAG_ID}&task_id={TASK_ID}&ended=1",
}
"""Queries of the page by the place of its tab; Airflow fills in the ids."""


class JmsPage:
    """The page as an ASGI application, whose modules are loaded at the first request.

    Each of Airflow's processes loads the plugin, and most of them never serve the page.
    """

    def __init__(self) -> None:
        self._application: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if self._application is None:
            self._application = await asyncio.to_thread(_application)
        await self._application(scope, receive, send)


def _application() -> ASGIApp:
    from airflow_provider_jmsjca.page.app import application  # noqa: PLC0415 - see above

    return application()


def applications() -> list[dict[str, Any]]:
    """Return the applications for Airflow's API server to mount."""
    return [{"app": JmsPage(), "url_prefix": _PREFIX, "name": "JMS"}]


def views() -> list[dict[str, Any]]:
    """Return the page's entries in Airflow: in the navigation, and as tabs of DAGs, tasks, task instances.

    Airflow shows the page in a frame. A tab shows only the activations of its DAG or task.
    """
    page = f"{urlsplit(str(conf.get('api', 'base_url', fallback=''))).path.rstrip('/')}{_PREFIX}/"
    return [
        {"name": "JMS", "href": page, "destination": "nav", "category": "browse", "url_route": "jms"},
        *(
            {"name": "JMS", "href": f"{page}{query}", "destination": where, "url_route": f"jms_{where}"}
            for where, query in _TABS.items()
        ),
    ]
