"""A real `airflow standalone` of our own: fresh home, free port, SQLite."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from airflow_provider_jmsjca import TransientBrokerError

READY_SECONDS = 300.0
STOP_SECONDS = 20.0


class Standalone:
    """`airflow standalone`, from start to ready to stopped.

    Args:
        home: Becomes AIRFLOW_HOME; wiped first.
        dags: The folder with the DAGs.
        settings: Further environment variables, such as `AIRFLOW_CONN_JMS_DEFAULT`.
    """

    def __init__(self, home: Path, dags: Path, settings: Mapping[str, str]) -> None:
        self.home = home
        self.log_file = home / "standalone.log"
        self.port, worker_log_port, trigger_log_port = _free_ports(3)
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self._token = ""
        binaries = Path(sys.executable).parent
        self.environment = {
            **os.environ,
            "PATH": f"{binaries}{os.pathsep}{os.environ.get('PATH', '')}",
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            # The watchers of a DAG are taken up when its file is read after it was let run.
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "10",
            # On a busy machine its API server takes longer than the usual 5 s to answer a task.
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
            "AIRFLOW__CORE__PARALLELISM": "2",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            # Beside an Airflow that runs already the usual ports are taken.
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(worker_log_port),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(trigger_log_port),
            **settings,
        }

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and wait until scheduler, triggerer and DAG processor are healthy.

        Raises:
            TransientBrokerError: It ended, or wasn't healthy in time; the end of its log is in the text.
        """
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir(parents=True)
        with self.log_file.open("wb") as log:
            self._process = process = subprocess.Popen(
                ["airflow", "standalone"],
                env=self.environment,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + READY_SECONDS
        while not self._healthy():
            if self._stopped or process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                tail = "\n".join(self.log_file.read_text(errors="replace").splitlines()[-15:])
                raise TransientBrokerError(
                    f"airflow standalone did not become healthy; its last words:\n{tail}"
                )
            time.sleep(0.5)
        self._token = self._request("GET", "/auth/token")["access_token"]

    def stop(self) -> None:
        """Stop it and everything it started, also while another thread starts it."""
        self._stopped = True
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            # What doesn't end in time is killed with its group below.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        process.wait()

    def runs(self, dag_id: str) -> list[dict[str, Any]] | None:
        """Return the DAG's runs, oldest first, from the REST API; `None` if it doesn't answer now."""
        try:
            answer = self._request("GET", f"/api/v2/dags/{dag_id}/dagRuns?limit=100&order_by=run_after")
        except urllib.error.HTTPError:
            raise
        except (TimeoutError, urllib.error.URLError):
            return None
        found: list[dict[str, Any]] = answer["dag_runs"]
        return found

    def known(self, dag_id: str) -> bool:
        """Tell whether the DAG has been parsed."""
        try:
            self._request("GET", f"/api/v2/dags/{dag_id}")
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.NOT_FOUND:
                return False
            raise
        return True

    def unpause(self, dag_id: str) -> None:
        """Let the DAG run."""
        self._request("PATCH", f"/api/v2/dags/{dag_id}", {"is_paused": False})

    def _healthy(self) -> bool:
        try:
            health = self._request("GET", "/api/v2/monitor/health")
        except (urllib.error.URLError, OSError):
            return False
        return all(
            health[part]["status"] == "healthy"
            for part in ("metadatabase", "scheduler", "triggerer", "dag_processor")
        )

    def _request(self, method: str, path: str, body: object = None) -> Any:
        request = urllib.request.Request(  # noqa: S310 - our own server on loopback
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
            return json.load(answer)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
