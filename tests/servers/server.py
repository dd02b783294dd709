"""What all servers have in common: a folder, ports that stay, a process, a log."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from tests.servers.errors import ServerError
from tests.servers.logs import cause_in
from tests.servers.ports import accepts, is_free, keep_ports, require_free
from tests.servers.process import ServerProcess

# Ten times what it takes on an idle machine with two cores: nobody waits that long but on a busy one.
START_DEADLINE = 120.0
STOP_DEADLINE = 60.0
_PORTS_DEADLINE = 10.0


class Server(ABC):
    """A server with all its data in one folder. Stopped and started again it keeps ports, password and data.

    Args:
        folder: Made if it isn't there.
        guarded: Whether the server dies with this process, however that ends.
    """

    name: ClassVar[str]
    port_names: ClassVar[tuple[str, ...]]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, folder: Path, *, guarded: bool = True) -> None:
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._guarded = guarded
        self._processes: dict[str, ServerProcess] = {}
        self._log_start = 0
        self.ports = keep_ports(self.port_names, self.folder / "ports.json")

    @property
    def log_file(self) -> Path:
        """What the server printed, over all its starts."""
        return self.folder / "server.log"

    @property
    def running(self) -> bool:
        """Whether its process lives, be it suspended."""
        process = self._processes.get("server")
        return process is not None and process.alive

    @property
    def pid(self) -> int | None:
        """Number of the process we started; a server written as a shell script is its child."""
        return self._processes["server"].pid if self.running else None

    @property
    def password(self) -> str:
        """The user's password, made on first use."""
        return self._kept_secret("password")

    def start(self, deadline: float = START_DEADLINE) -> None:
        """Start, and wait until it is ready.

        Args:
            deadline: Seconds.

        Raises:
            ServerError: It runs already, a port is in use, or it isn't ready in time; it is stopped then.
        """
        self.launch()
        try:
            self.wait_ready(deadline)
        except BaseException:
            self.kill()
            raise

    def launch(self) -> None:
        """Start without waiting."""
        if self.running:
            raise ServerError(f"{self.name} in {self.folder} runs already")
        self._end_companions()
        require_free(self.name, self.ports, self.folder / "ports.json")
        self._prepare()
        self._log_start = self.log_file.stat().st_size if self.log_file.exists() else 0
        self._start_companions()
        self._run("server", self._command())

    def wait_ready(self, deadline: float = START_DEADLINE) -> None:
        """Wait until every port accepts and the server answers.

        Args:
            deadline: Seconds.

        Raises:
            ServerError: Its process ended or time is up; the text names the cause its log tells.
        """
        end = time.monotonic() + deadline
        waiting = dict(self.ports)
        while True:
            if not self.running:
                process = self._processes.get("server")
                code = process.exit_code if process is not None else None
                raise ServerError(f"{self.name} ended while starting (exit code {code})" + self._cause())
            waiting = {name: port for name, port in waiting.items() if not accepts(port)}
            if not waiting and self._answers():
                return
            if time.monotonic() > end:
                missing = ", ".join(f"{port} ({name})" for name, port in waiting.items()) or "login"
                raise ServerError(
                    f"{self.name} was not ready within {deadline:g} s, no answer on port {missing}"
                    + self._cause()
                )
            time.sleep(0.05)

    def stop(self, deadline: float = STOP_DEADLINE) -> None:
        """Stop in good order. Harmless if it doesn't run.

        Args:
            deadline: Seconds until it is killed instead.

        Raises:
            ServerError: It had to be killed.
        """
        process = self._processes.pop("server", None)
        in_time = process is None or process.terminate(how=self.stop_signal, deadline=deadline)
        self._end_companions()
        self._write_processes()
        if process is not None:
            self._wait_for_ports()
        if not in_time:
            raise ServerError(
                f"{self.name} did not stop within {deadline:g} s and was killed; its log: {self.log_file}"
            )

    def kill(self) -> None:
        """Kill -9 all its processes at once."""
        process = self._processes.pop("server", None)
        if process is not None:
            process.kill()
        self._end_companions()
        self._write_processes()
        if process is not None:
            self._wait_for_ports()

    def suspend(self) -> None:
        """SIGSTOP: connections stay open, nothing answers."""
        for process in self._processes.values():
            process.suspend()

    def resume(self) -> None:
        """SIGCONT after `suspend`."""
        for process in self._processes.values():
            process.resume()

    def release(self) -> None:
        """Let it outlive this process, if it was to die with it."""
        self._guarded = False
        for process in self._processes.values():
            process.release()

    def discard(self) -> None:
        """Delete all it wrote; call it when it doesn't run."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def adopt(self) -> bool:
        """Take over the processes an earlier run left in this folder, and return whether the server runs."""
        file = self.folder / "processes.json"
        if file.exists():
            for role, (pid, started) in json.loads(file.read_text(encoding="utf-8")).items():
                process = ServerProcess.adopt(pid, started)
                if process is not None:
                    self._processes[role] = process
        return self.running

    @abstractmethod
    def _prepare(self) -> None:
        """Write what the server reads; called before every start."""

    @abstractmethod
    def _command(self) -> Sequence[str | Path]:
        """Program and arguments."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether a client can log in; called once all ports accept."""

    def _environment(self) -> Mapping[str, str]:
        return {**os.environ}

    def _working_folder(self) -> Path:
        return self.folder

    def _user(self) -> tuple[int, int] | None:
        return None

    def _start_companions(self) -> None:  # noqa: B027 - most servers need none
        """Start processes the server needs beside it."""

    def _run(self, role: str, command: Sequence[str | Path]) -> None:
        self._processes[role] = ServerProcess.start(
            command,
            folder=self._working_folder(),
            environment=self._environment(),
            log=self.log_file,
            guarded=self._guarded,
            user=self._user(),
        )
        self._write_processes()

    def _wait_for_ports(self) -> None:
        # A killed process with many threads and much memory counts as dead while its last threads still hold
        # its sockets.
        end = time.monotonic() + _PORTS_DEADLINE
        while not all(map(is_free, self.ports.values())) and time.monotonic() < end:
            time.sleep(0.01)

    def _end_companions(self) -> None:
        for role in [role for role in self._processes if role != "server"]:
            self._processes.pop(role).kill()

    def _write_processes(self) -> None:
        (self.folder / "processes.json").write_text(
            json.dumps({role: (process.pid, process.started) for role, process in self._processes.items()}),
            encoding="utf-8",
        )

    def _write(self, name: str, content: str, *, secret: bool = False) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if secret:
            path.touch(mode=0o600)
        path.write_text(content, encoding="utf-8")
        return path

    def _kept_secret(self, name: str, make: Callable[[], str] = lambda: secrets.token_urlsafe(18)) -> str:
        path = self.folder / name
        if not path.exists():
            self._write(name, make(), secret=True)
        return path.read_text(encoding="utf-8")

    def _cause(self) -> str:
        if not self.log_file.exists():
            return ""
        with self.log_file.open("rb") as log:
            log.seek(self._log_start)
            text = log.read().decode(errors="replace")
        return f": {cause_in(text)}; more in {self.log_file}, and without {self.folder} it starts afresh"
