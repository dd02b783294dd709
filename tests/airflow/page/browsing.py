"""Browsers of users of the page, and what Airflow's audit log says."""

from __future__ import annotations

import json
from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tests.internals.page import application, form_token

ROUTES = [
    (method, route.path.strip("/"))
    for route in application().routes
    for method in sorted(getattr(route, "methods", None) or ())
]
"""Of the application itself, so that no view is forgotten."""
VIEWS = [path for method, path in ROUTES if method == "GET"]
FORMS = [path for method, path in ROUTES if method == "POST"]


class Browser:
    """A browser of one user, who is logged in. Its forms carry the token of this user."""

    def __init__(self, airflow: FastAPI, user: str | None, role: str | None = None) -> None:
        self.client = TestClient(airflow, base_url="http://testserver", follow_redirects=False)
        self.login = (
            None
            if user is None
            else SimpleAuthManagerUser(username=user, role=user if role is None else role)
        )
        if self.login is not None:
            self.client.cookies.set("_token", get_auth_manager().generate_jwt(self.login))

    def get(self, path: str, /, **parameters: Any) -> Any:
        return self.client.get(f"/jms/{path}", params=parameters)

    def post(self, path: str, form: dict[str, str], /, **parameters: Any) -> Any:
        token = {} if self.login is None else {"token": form_token(self.login)}
        return self.client.post(f"/jms/{path}", params=parameters, data={**token, **form})


def audit() -> list[tuple[str, str | None, dict[str, str]]]:
    """Return the page's entries in Airflow's audit log: event, user, target."""
    from airflow.models.log import Log  # noqa: PLC0415 - after the home is set
    from airflow.utils.session import create_session  # noqa: PLC0415 - as above
    from sqlalchemy import select  # noqa: PLC0415 - as above

    with create_session() as session:
        rows = session.scalars(select(Log).where(Log.event.like("jms%")).order_by(Log.id))
        return [(row.event, row.owner, json.loads(row.extra or "{}")) for row in rows]
