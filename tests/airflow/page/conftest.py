"""The page in a real Airflow API server of this process, with users of each role."""

from __future__ import annotations

import contextlib
import functools
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.api_fastapi import app as airflow_app
from airflow.api_fastapi.auth.managers.base_auth_manager import BaseAuthManager
from fastapi import FastAPI

from airflow_provider_jmsjca import open_store
from tests.airflow.page.browsing import Browser

ROLES = ("viewer", "user", "op", "admin")


SETTINGS = {
    "AIRFLOW__API_AUTH__JWT_SECRET": uuid.uuid4().hex * 2,
    "AIRFLOW__API__SECRET_KEY": uuid.uuid4().hex,
    "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{each}:{each}" for each in ROLES),
    "_AIRFLOW_PROCESS_CONTEXT": "server",  # as the API server has it
}


def _forget_keys() -> None:
    """Let Airflow read its keys again: it keeps the signer and validator of logins for the whole process."""
    BaseAuthManager._get_token_signer.cache_clear()
    BaseAuthManager._get_token_validator.cache_clear()


@functools.cache
def _server(passwords: Path) -> tuple[FastAPI, BaseAuthManager[Any]]:
    """Make the API server, once in a process: it takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE", str(passwords))
        patch.setattr(airflow_app._AuthManagerState, "instance", None)
        server = airflow_app.create_app(apps="core")
        return server, server.state.auth_manager


@pytest.fixture(scope="session")
def passwords(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page") / "passwords.json"


@pytest.fixture
def airflow(metadata: None, passwords: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FastAPI]:
    """Airflow's API server. What Airflow keeps for the process is put back: other tests have a server too."""
    del metadata
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    server, manager = _server(passwords)
    monkeypatch.setattr(airflow_app._AuthManagerState, "instance", manager)
    _forget_keys()
    yield server
    _forget_keys()


@pytest.fixture
def browser(airflow: FastAPI) -> Callable[..., Browser]:
    """Return a browser of a user; the name is the role."""
    return lambda user, role=None: Browser(airflow, user, role)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    monkeypatch.setenv("AIRFLOW__JMSJCA__STORE_URL", url)
    with contextlib.closing(open_store(url)) as opened:
        yield opened
