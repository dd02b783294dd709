"""Azurite, Microsoft's emulator of Azure's blobs; npm brings it. It keeps everything in its memory."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from email.utils import formatdate
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from tests.servers.errors import ServerError, ServerUnavailableError
from tests.servers.folders import cache_folder
from tests.servers.ports import HOST
from tests.servers.server import Server

CONTAINER = "jms"
# The one account it has; everybody knows its key.
ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_VERSION = "2021-08-06"
_CREATED, _EXISTS = 201, 409


class Azurite(Server):
    """A server with one account and one container. What it holds ends with it."""

    name: ClassVar[str] = "azurite"
    port_names: ClassVar[tuple[str, ...]] = ("blob",)

    @property
    def url(self) -> str:
        """The container, as the spool calls it."""
        return f"abfs://{CONTAINER}@{ACCOUNT}.dfs.core.windows.net"

    def options(self) -> dict[str, str]:
        """Return what a client needs, as `ObjectPath.parse` takes it."""
        return {
            "azure_storage_account_name": ACCOUNT,
            "azure_storage_account_key": _KEY,
            "azure_storage_endpoint": f"http://{HOST}:{self.ports['blob']}/{ACCOUNT}",
        }

    def _prepare(self) -> None:
        self._program = _fetch() / "azurite" / "dist" / "src" / "blob" / "main.js"

    def _command(self) -> Sequence[str | Path]:
        address = ["--blobHost", HOST, "--blobPort", str(self.ports["blob"])]
        quiet = ["--inMemoryPersistence", "--silent", "--disableTelemetry", "--skipApiVersionCheck"]
        return ["node", self._program, *address, *quiet]

    def put(self, name: str, content: bytes) -> int:
        """Create a blob of any name, as a stranger may who has the right to write; return the status."""
        headers = {"x-ms-blob-type": "BlockBlob"}
        return self._put(f"{CONTAINER}/{quote(name, safe='')}", content, headers, "")

    def _answers(self) -> bool:
        """Make the container."""
        try:
            return self._put(CONTAINER, b"", {}, "restype=container") in {_CREATED, _EXISTS}
        except OSError:
            return False

    def _put(self, name: str, content: bytes, headers: Mapping[str, str], query: str) -> int:
        path = f"/{ACCOUNT}/{name}"
        headers = {**headers, "x-ms-date": formatdate(usegmt=True), "x-ms-version": _VERSION}
        signed = "\n".join(
            [
                *("PUT", "", "", str(len(content) or ""), *[""] * 8),
                *(f"{name}:{headers[name]}" for name in sorted(headers)),
                f"/{ACCOUNT}{path}",
                *([query.replace("=", ":")] if query else []),
            ]
        )
        signature = hmac.new(base64.b64decode(_KEY), signed.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(signature).decode()}"
        connection = http.client.HTTPConnection(HOST, self.ports["blob"], timeout=30)
        with contextlib.closing(connection):
            connection.request("PUT", f"{path}?{query}" if query else path, body=content, headers=headers)
            return connection.getresponse().status


def _fetch() -> Path:
    """Return the folder with the packages of the lock file, each held to its digest; npm brings them.

    Raises:
        ServerUnavailableError: There is no Node.
        ServerError: npm failed.
    """
    if not (shutil.which("node") and shutil.which("npm")):
        raise ServerUnavailableError(
            "Azurite needs Node: install it (on Debian: apt-get install --no-install-recommends nodejs npm)"
        )
    wanted = Path(__file__).with_name("azurite")
    digest = hashlib.sha256((wanted / "package-lock.json").read_bytes()).hexdigest()[:12]
    target = cache_folder() / f"azurite-{digest}"
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            folder = shutil.copytree(wanted, Path(scratch) / "azurite")
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=600, check=False
            )
            if done.returncode:
                raise ServerError(f"Azurite can't be installed by npm: {done.stderr.strip()[-500:]}")
            try:
                folder.rename(target)
            except OSError:
                if not target.is_dir():  # else another process was quicker
                    raise
    return target / "node_modules"
