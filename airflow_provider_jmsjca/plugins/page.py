"""Where Airflow finds the page: its application, and its entry in the navigation."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from airflow.sdk.configuration import conf

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_PREFIX: Final = "/jms"


class JmsPage:
    """The page as an ASGI application. It is loaded at its first request: every process loads the plugin."""

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
    """Return the entries in Airflow's navigation: each shows the page in a frame."""
    base = urlsplit(str(conf.get("api", "base_url", fallback=""))).path.rstrip("/")
    return [
        {
            "name": "JMS",
            "href": f"{base}{_PREFIX}/",
            "destination": "nav",
            "category": "browse",
            "url_route": "jms",
        }
    ]
