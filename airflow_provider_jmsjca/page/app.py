"""The endpoints of the page, with their login checks, form tokens, deadlines, errors and headers.

Airflow protects no endpoint of a plugin, so each request is checked here. Views run in threads of the page.
So a slow broker or store neither blocks Airflow's event loop nor occupies Airflow's threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlencode

from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from airflow_provider_jmsjca.errors import ConfigurationError, JmsError, TransientStoreError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.page import activations, batches, changes, dead_letters, findings, limbo, queues
from airflow_provider_jmsjca.page.access import Permission, is_own_token, logged_in
from airflow_provider_jmsjca.page.rendering import FOLDER, rendered
from airflow_provider_jmsjca.page.visit import ForbiddenError, Visit

_log = safe_logger(__name__)

_LONGEST_FORM: Final = 512 * 1024
_MOST_FIELDS: Final = 20
_FORM: Final = "application/x-www-form-urlencoded"
_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'self'; base-uri 'none'"
    ),
    "x-frame-options": "SAMEORIGIN",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
}

View = Callable[[Visit], Response]


@dataclass(frozen=True, slots=True)
class _Threads:
    """Threads for views of one kind.

    A thread can't be stopped while it waits, so slow brokers may occupy all threads of their kind. Views of
    the store have threads of their own, which stay free then.

    Attributes:
        pool: The threads.
        seconds: How long a view may take, in seconds.
    """

    pool: ThreadPoolExecutor
    seconds: float


def application() -> Starlette:
    """Return the page as an ASGI application, to be mounted at a path of Airflow's API server."""
    store = _Threads(ThreadPoolExecutor(4, "jms-page"), seconds=20.0)
    broker = _Threads(ThreadPoolExecutor(8, "jms-page-broker"), seconds=30.0)
    return Starlette(
        routes=[
            _route("/", store, activations.list_view),
            _route("/activation", store, activations.detail_view, activations.change_view),
            _route("/findings", broker, findings.installation_view),
            _route("/broker-findings", broker, findings.everything_view),
            _route("/queues", broker, queues.list_view),
            _route("/queue", broker, queues.browse_view, queues.browse_view),
            _route("/message", broker, queues.detail_view, queues.detail_view),
            _route("/edit", broker, changes.edit_view, changes.edit_view),
            _route("/dead-letters", broker, dead_letters.list_view, dead_letters.change_view),
            _route("/limbo", store, limbo.list_view),
            _route("/limbo-message", store, limbo.detail_view),
            _route("/batches", broker, batches.list_view),
            Mount("/static", StaticFiles(directory=FOLDER / "static")),
        ],
        middleware=[Middleware(_SecurityHeaders)],
    )


def _route(path: str, threads: _Threads, view: View, change: View | None = None) -> Route:
    """Return the route of a page.

    Args:
        path: Path below the page's root.
        threads: Threads in which the views run.
        view: Answers `GET` requests.
        change: Answers `POST` requests; `None` if the page has no form.
    """

    async def get(request: Request) -> Response:
        user = await logged_in(request)
        if user is None:
            return _login(request)
        return await _answered(_visit(request, user, {}), view, threads)

    async def post(request: Request) -> Response:
        user = await logged_in(request)
        if user is None or change is None:
            return _refused(request, 401, "You are not logged in.")
        try:
            form = await _form(request)
        except ValueError as error:
            return _refused(request, 400, str(error))
        if not is_own_token(user, form.get("token", "")):
            return _refused(
                request,
                403,
                "The form is not from this page, or older than twelve hours. Load the page again.",
            )
        return await _answered(_visit(request, user, form), change, threads)

    async def either(request: Request) -> Response:
        return await (post(request) if request.method == "POST" else get(request))

    methods = ["GET"] if change is None else ["GET", "POST"]
    return Route(path, either, methods=methods)


def _visit(request: Request, user: BaseUser, form: dict[str, str]) -> Visit:
    base = str(request.scope.get("root_path", ""))
    path = request.url.path.removeprefix(base).strip("/")
    return Visit(
        user=user, base=base, path=path, query=dict(request.query_params), form=form, polls=_polls(request)
    )


def _polls(request: Request) -> bool:
    return "hx-request" in request.headers


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form.

    Raises:
        ValueError: The form is too long or incomplete, or the body is no form. The text is shown to the user.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        raise ValueError(f"The request has no form; expected the content type {_FORM}.")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > _LONGEST_FORM:
                raise ValueError(f"The form is longer than {_LONGEST_FORM} bytes.")
    except ClientDisconnect as error:
        raise ValueError("The form is incomplete.") from error
    try:
        fields = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError as error:
        raise ValueError("The form can't be read.") from error
    return dict(fields)


async def _answered(visit: Visit, view: View, threads: _Threads) -> Response:
    """Return the response of a view, or an error page if the view fails or takes too long."""

    def work() -> Response:
        visit.require(Permission.VIEW)
        return view(visit)

    def failed(status: int, text: str) -> Callable[[], Response]:
        return lambda: visit.page("error.html", status=status, problem=text)

    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(threads.seconds):
            return await loop.run_in_executor(threads.pool, work)
    except ForbiddenError as error:
        return HTMLResponse(rendered("plain.html", base=visit.base, problem=str(error)), status_code=403)
    except TimeoutError:
        page = failed(504, f"No answer within {threads.seconds:.0f} seconds; the server or broker is slow.")
    except JmsError as error:
        page = failed(_status(error), str(error))
    except Exception:  # noqa: BLE001 - the outer edge: the page shows that it failed, the log has the error
        _log.exception("The page %s failed", visit.path)
        page = failed(500, "This failed unexpectedly; the log of the API server has the error.")
    return await loop.run_in_executor(threads.pool, page)


def _status(error: JmsError) -> int:
    match error:
        case ConfigurationError():
            return 400
        case TransientStoreError():
            return 503
        case _:
            return 502


def _login(request: Request) -> Response:
    """Redirect to Airflow's login, which then redirects back to the requested page.

    If an open page polls for updates, answer with 401 and let the browser reload the page instead.
    """
    if _polls(request):
        return Response(status_code=401, headers={"hx-refresh": "true"})
    root = request.scope.get("app_root_path", "")
    query = f"?{request.url.query}" if request.url.query else ""
    back = urlencode({"next": f"{request.url.path}{query}"})
    return RedirectResponse(f"{root}/api/v2/auth/login?{back}", status_code=303)


def _refused(request: Request, status: int, text: str) -> Response:
    base = str(request.scope.get("root_path", ""))
    return HTMLResponse(rendered("plain.html", base=base, problem=text), status_code=status)


class _SecurityHeaders:
    """Adds security headers to each response: only Airflow may frame the page, inline scripts don't run."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await self._app(scope, receive, with_headers)
