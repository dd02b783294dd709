"""A request of a logged-in user, in the form that the page's views need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from starlette.responses import HTMLResponse, RedirectResponse, Response

from airflow_provider_jmsjca.page.access import Permission, form_token, is_permitted
from airflow_provider_jmsjca.page.rendering import rendered


class ForbiddenError(Exception):
    """The user lacks a permission."""

    def __init__(self, permission: Permission) -> None:
        super().__init__(f"This needs Airflow's permission “{permission.value}”.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A request of a logged-in user.

    Attributes:
        user: The user.
        base: Path of the page on the server, without a slash at its end.
        path: Path of the view below `base`, without a slash.
        query: Parameters of the URL.
        form: Fields of the form; empty for a `GET`.
        polls: Whether the request comes from an open page that polls for updates.
    """

    user: BaseUser
    base: str
    path: str
    query: Mapping[str, str]
    form: Mapping[str, str]
    polls: bool

    def is_allowed(self, permission: Permission, conn_id: str | None = None) -> bool:
        """Return whether the user has a permission."""
        return is_permitted(self.user, permission, conn_id)

    def require(self, permission: Permission, conn_id: str | None = None) -> None:
        """Raise `ForbiddenError` if the user lacks a permission."""
        if not self.is_allowed(permission, conn_id):
            raise ForbiddenError(permission)

    def link(self, path: str, /, **parameters: object) -> str:
        """Return the URL of a view; parameters without a value are left out."""
        given = {name: str(value) for name, value in parameters.items() if value not in {None, ""}}
        query = urlencode(given, errors="replace")
        return f"{self.base}/{path}" + (f"?{query}" if query else "")

    def current_url(self, /, **changed: object) -> str:
        """Return the URL of this view with other parameters."""
        return self.link(self.path, **{**self.query, **changed})

    def page(self, template: str, *, status: int = 200, **values: object) -> Response:
        """Return a page rendered from a template, with this HTTP status."""
        text = rendered(
            template,
            visit=self,
            link=self.link,
            current_url=self.current_url(),
            may_operate=self.is_allowed(Permission.OPERATE),
            may_read=self.is_allowed(Permission.READ_MESSAGES),
            reading=Permission.READ_MESSAGES.value,
            token=form_token(self.user),
            **values,
        )
        return HTMLResponse(text, status_code=status)

    def redirect(self, path: str, /, **parameters: object) -> Response:
        """Return a redirect to a view, as the response to a form."""
        return RedirectResponse(self.link(path, **parameters), status_code=303)
