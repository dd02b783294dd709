"""Triggerers as users run them: `airflow triggerer` on a database with DAGs."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import NullPool, create_engine, text

from tests.servers.ports import free_ports
from tests.servers.process import ServerProcess

ROOT = Path(__file__).parents[2]

DAG_FILE = """
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, AssetWatcher
from airflow_provider_jmsjca import JmsActivationTrigger

trigger = JmsActivationTrigger(**{arguments!r})
arrived = Asset("arrived", watchers=[AssetWatcher(name="watcher", trigger=trigger)])
with DAG("on_arrival", schedule=[arrived], catchup=False):
    EmptyOperator(task_id="nothing")
"""


class TriggererProcess:
    """One Airflow home with one watched asset.

    Args:
        home: Its folder.
        connection: What `jms_test` is.
        arguments: Of the trigger.
        dag_file: The DAGs, with `{arguments!r}` where the trigger's arguments go.
        database_url: Of the metadata database; `None`: a SQLite file in the home.
    """

    def __init__(
        self,
        home: Path,
        connection: dict[str, Any],
        arguments: dict[str, Any],
        dag_file: str = DAG_FILE,
        database_url: str | None = None,
    ) -> None:
        self.home = home
        self._engine = None if database_url is None else create_engine(database_url, poolclass=NullPool)
        self.database = home / "airflow.db"
        (home / "dags").mkdir(parents=True)
        (home / "dags" / "on_arrival.py").write_text(dag_file.format(arguments=arguments))
        self.environment = os.environ | {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            # A paused DAG's watchers don't run.
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            # One that goes on all the time takes no processor from what is tested.
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "5",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database_url or f"sqlite:///{self.database}",
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
            # The heart-beat whose absence tells a new triggerer that it may take over.
            "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "4",
            "AIRFLOW_CONN_JMS_TEST": json.dumps(connection),
            "PYTHONPATH": str(ROOT),
        }
        if database_url is not None:
            # The same driver serves both; by itself Airflow would look for another one.
            self.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC"] = database_url
        # Airflow's servers of logs listen on every interface.
        self.command = [sys.executable, "-m", "airflow", "triggerer", "--skip-serve-logs"]
        self.triggerers: list[ServerProcess] = []
        self._services: list[ServerProcess] = []

    def prepare(self, migrated: Path | None, triggers: int = 1) -> None:
        """Make the database, and read the DAG file, which has so many triggers, into it."""
        if migrated is None:
            self._airflow("db", "migrate")
        else:
            shutil.copy(migrated, self.database)
        self.read_dags()
        assert self.query("select count(*) from trigger") == [(triggers,)], self.log()

    def start_tasks(self) -> None:
        """Start a scheduler that runs tasks, and the API server which they talk to."""
        (port,) = free_ports(1)
        # What earlier processes have read of these doesn't matter: they run no tasks.
        self.environment |= {
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            # After 5 s, the default, a busy machine makes tasks fail.
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "300",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
            "AIRFLOW__API_AUTH__JWT_SECRET": uuid.uuid4().hex * 4,
        }
        self.start_service("api-server", "--host", "127.0.0.1", "--port", str(port), "--apps", "execution")
        self.start_scheduler()

    def clear(self, dag_id: str) -> None:
        """Clear the tasks of a DAG that have failed, as the button of the user interface does."""
        self._airflow("tasks", "clear", "--only-failed", "--yes", dag_id)

    def read_dags(self) -> None:
        """Read the DAG file into the database, as a dag-processor does all the time."""
        self._airflow("dags", "reserialize")

    def pause(self, dag_id: str, *, paused: bool) -> None:
        """Pause or unpause a DAG, as the switch of the user interface does."""
        with closing(sqlite3.connect(self.database, timeout=20)) as connection:
            connection.execute("update dag set is_paused = ? where dag_id = ?", (paused, dag_id))
            connection.commit()

    def _airflow(self, *arguments: str) -> None:
        with (self.home / "setup.log").open("ab") as log:
            subprocess.run(
                [sys.executable, "-m", "airflow", *arguments],
                env=self.environment, check=True, timeout=180, stdout=log, stderr=log,
            )  # fmt: skip

    def start(self) -> None:
        """Start a triggerer, beside those that run."""
        started = ServerProcess.start(
            self.command,
            folder=self.home, environment=self.environment, log=self.home / "triggerer.log", guarded=True,
        )  # fmt: skip
        self.triggerers.append(started)

    def start_scheduler(self) -> None:
        """Start a scheduler: it makes DAG runs of events, and ends empty tasks by itself."""
        self.start_service("scheduler", "--skip-serve-logs")

    def start_service(self, *command: str) -> None:
        """Start another of Airflow's processes, which runs until `stop`."""
        started = ServerProcess.start(
            [sys.executable, "-m", "airflow", *command],
            folder=self.home, environment=self.environment, log=self.home / f"{command[0]}.log", guarded=True,
        )  # fmt: skip
        self._services.append(started)

    def kill(self, which: int = 0) -> None:
        """Kill -9 a triggerer and its children."""
        self.triggerers.pop(which).kill()

    def stop(self) -> None:
        """End whatever runs."""
        while self.triggerers:
            self.kill()
        while self._services:
            self._services.pop().kill()

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Ask the metadata database."""
        if self._engine is not None:
            with self._engine.connect() as server:
                return [tuple(row) for row in server.execute(text(statement))]
        connection = sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=20)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()

    def payloads(self) -> list[dict[str, Any]]:
        """Return what the asset's events carry, in the order they were stored."""
        rows = self.query("select extra from asset_event order by id")
        # PostgreSQL's driver has read the JSON already.
        return [(json.loads(extra) if isinstance(extra, str) else extra)["payload"] for (extra,) in rows]

    def until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait for a condition."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{what} not within {seconds} s\n{self.log()}"
            time.sleep(0.05)

    def log(self) -> str:
        """Return the end of what the processes wrote."""
        texts = [path.read_text(errors="replace")[-4000:] for path in sorted(self.home.glob("*.log"))]
        return "\n".join(texts)
