"""A fresh Airflow for these tests: its home is made before anything imports Airflow."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HOME = Path(tempfile.mkdtemp(prefix="airflow-tests-"))
DATABASE = HOME / "airflow.db"
(HOME / "dags").mkdir()
os.environ.update(
    AIRFLOW_HOME=str(HOME),
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__CORE__DAGS_FOLDER=str(HOME / "dags"),
    AIRFLOW__CORE__TEST_CONNECTION="Enabled",
    AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{DATABASE}",
    AIRFLOW__LOGGING__LOGGING_LEVEL="WARNING",
)

from airflow_provider_jmsjca import (  # noqa: E402  # noqa: E402
    ConnectionSettings,
    Destination,  # after the home is set
    JmsMessage,
    MemoryBroker,
    Outgoing,
    connect,
    memory_broker,
)

Publish = Callable[..., None]


@pytest.fixture(scope="session", autouse=True)
def _home_removed() -> Iterator[None]:
    yield
    shutil.rmtree(HOME, ignore_errors=True)


@pytest.fixture(autouse=True)
def _process_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands and `use_stored_connections` change it for their process; here it must not outlast a test."""
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "client")


@pytest.fixture(scope="session")
def migrated_database(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """An empty, migrated metadata database, to be copied; the processes of a test run share it."""
    mine = tmp_path_factory.getbasetemp()
    path = (mine if worker_id == "master" else mine.parent) / "migrated.db"
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            made = tmp_path_factory.mktemp("metadata") / "airflow.db"
            environment = os.environ | {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{made}"}
            subprocess.run(
                [sys.executable, "-m", "airflow", "db", "migrate"],
                env=environment, check=True, capture_output=True, timeout=600,
            )  # fmt: skip
            made.replace(path)
    return path


@pytest.fixture
def metadata(migrated_database: Path) -> None:
    """A fresh metadata database for the Airflow of this process."""
    from airflow import settings  # noqa: PLC0415  # after the home is set

    settings.dispose_orm(do_log=False)
    shutil.copy(migrated_database, DATABASE)
    settings.configure_orm()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> MemoryBroker:
    """An in-memory broker behind the Airflow connection `jms_test`."""
    server = memory_broker(uuid.uuid4().hex)
    connection = {"conn_type": "jms", "host": f"vm://{server.name}"}
    monkeypatch.setenv("AIRFLOW_CONN_JMS_TEST", json.dumps(connection))
    return server


@pytest.fixture
def publish(server: MemoryBroker) -> Publish:
    """Send text messages to a queue of the broker."""

    def send(*bodies: str, to: str = "orders") -> None:
        connection = connect(ConnectionSettings(scheme="vm", hosts=((server.name, None),)))
        target = Destination.parse(to)
        connection.send(Outgoing(destination=target, message=JmsMessage.text(body)) for body in bodies)
        connection.close()

    return send
