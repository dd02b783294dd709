"""Access to the page: logins and permissions of Airflow's auth manager."""

from __future__ import annotations

import enum
import hashlib
import hmac
import json
import time
from typing import Final, assert_never

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import ConnectionDetails
from airflow.api_fastapi.auth.tokens import get_signing_key
from airflow.api_fastapi.core_api.security import bearer_scheme, get_user
from airflow.configuration import conf
from airflow.models.connection import Connection
from starlette.exceptions import HTTPException
from starlette.requests import Request

_VALID_SECONDS: Final = 12 * 3600
_PURPOSE: Final = "jms page form"


class Permission(enum.Enum):
    """A permission of the page. Its value names the permission of Airflow that grants it."""

    VIEW = "assets: read"
    """See activations, depths and other counts; no texts of errors, because they may quote messages."""
    READ_MESSAGES = "connections: read"
    """See messages of a connection: headers, properties, bodies, and errors of their processing."""
    OPERATE = "connections: edit"
    """Request states of activations; change messages; replay and purge dead letters."""


async def logged_in(request: Request) -> BaseUser | None:
    """Return the user of a request, by its bearer token or Airflow's cookie; `None` without a valid login."""
    try:
        # The second argument exists only for Airflow's API documentation; `get_user` reads the credentials.
        return await get_user(request, None, await bearer_scheme(request))
    except HTTPException:
        return None


def is_permitted(user: BaseUser, permission: Permission, conn_id: str | None = None) -> bool:
    """Return whether Airflow's auth manager grants a permission. This may query a database or a server.

    Args:
        user: The user.
        permission: The permission.
        conn_id: The Airflow connection to which the permission refers; `None`: all connections.
    """
    manager = get_auth_manager()
    match permission:
        case Permission.VIEW:
            return bool(manager.is_authorized_asset(method="GET", user=user))
        case Permission.READ_MESSAGES:
            details = _details(conn_id)
            return bool(manager.is_authorized_connection(method="GET", details=details, user=user))
        case Permission.OPERATE:
            details = _details(conn_id)
            return bool(manager.is_authorized_connection(method="PUT", details=details, user=user))
        case _:
            assert_never(permission)


def form_token(user: BaseUser) -> str:
    """Return a token for the forms of a user, which is valid for twelve hours."""
    until = int(time.time()) + _VALID_SECONDS
    return f"{until}.{_signature(user, until)}"


def is_own_token(user: BaseUser, token: str) -> bool:
    """Return whether a token was made for this user and is still valid."""
    until, _, signature = token.partition(".")
    if not (until.isascii() and until.isdecimal() and signature.isascii() and len(until) < len("1" * 12)):
        return False
    is_signed = hmac.compare_digest(signature, _signature(user, int(until)))
    return is_signed and time.time() < int(until)


def _signature(user: BaseUser, until: int) -> str:
    key = get_signing_key("api", "secret_key").encode()
    return hmac.new(
        key, json.dumps([_PURPOSE, str(user.get_id()), until]).encode(), hashlib.sha256
    ).hexdigest()


def _details(conn_id: str | None) -> ConnectionDetails | None:
    if conn_id is None:
        return None
    team = Connection.get_team_name(conn_id) if conf.getboolean("core", "multi_team") else None
    return ConnectionDetails(conn_id=conn_id, team_name=team)
