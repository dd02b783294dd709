"""Azurite, Microsoft's emulator of Azure's blobs; npm brings it. It keeps everything in its memory."""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Sequence
from email.utils import formatdate
from pathlib import Path
from typing import ClassVar

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

    def _answers(self) -> bool:
        """Make the container."""
        date = formatdate(usegmt=True)
        place = f"/{ACCOUNT}/{CONTAINER}"
        signed = "\n".join(
            ["PUT", *[""] * 11, f"x-ms-date:{date}", f"x-ms-version:{_VERSION}", f"/{ACCOUNT}{place}",
             "restype:container"]
        )  # fmt: skip
        signature = hmac.new(base64.b64decode(_KEY), signed.encode(), hashlib.sha256).digest()
        headers = {
            "x-ms-date": date,
            "x-ms-version": _VERSION,
            "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(signature).decode()}",
            "Content-Length": "0",
        }
        request = urllib.request.Request(
            f"http://{HOST}:{self.ports['blob']}{place}?restype=container", method="PUT", headers=headers
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - http
                return bool(answer.status == _CREATED)
        except urllib.error.HTTPError as error:
            with error:
                return error.code == _EXISTS
        except OSError:
            return False


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
