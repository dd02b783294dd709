"""HDFS, over the HTTP interface of its name nodes (WebHDFS).

A file is written under a temporary name in its folder and then renamed. HDFS refuses the rename if the name
is taken. If the response to a rename is lost, the file's number in HDFS shows whether this writer's rename
succeeded. A crash leaves the temporary file, which the next writer of the folder removes.

Source: WebHDFS REST API of Apache Hadoop 3.5.
"""

from __future__ import annotations

import contextlib
import errno
import getpass
import mmap
import os
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from io import BufferedIOBase, BytesIO
from typing import Any, Final, TypeVar, cast
from urllib.parse import quote, urlsplit

import requests

from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.spool.files.client import (
    CHUNK,
    IN_MEMORY,
    LONGEST_CONNECT,
    LONGEST_PAUSE,
    LONGEST_REQUEST,
    RETRIED_FOR,
    FoundFile,
    StoreError,
)
from airflow_provider_jmsjca.spool.files.posix import TEMPORARY_PREFIX

PORT: Final = 9870
"""Default HTTP port of a name node."""
_TIMEOUTS: Final = (LONGEST_CONNECT.total_seconds(), LONGEST_REQUEST.total_seconds())
_WRITES: Final = 3
_FIRST_PAUSE_SECONDS: Final = 0.1
_NANOSECONDS_OF_MILLISECOND: Final = 1_000_000
_FILE_MODE: Final = "600"
_FOLDER_MODE: Final = "700"
_REDIRECTION, _UNAUTHORIZED, _SERVER_ERROR = 300, 401, 500
# Temporary errors: a name node that is starting or not active, data nodes that are missing.
_PASSING: Final = frozenset(
    {"RetriableException", "SafeModeException", "StandbyException", "IOException", "ConnectException"}
)
_DENIED: Final = frozenset({"AccessControlException", "AuthorizationException", "SecurityException"})

T = TypeVar("T")


class _NotEmptyError(OSError):
    """A folder isn't empty."""


class _PassingError(Exception):
    """There was no response, or the node can't serve the request now.

    Attributes:
        data_node: Host of the data node that failed; empty if a name node failed.
    """

    def __init__(self, text: str, data_node: str = "") -> None:
        super().__init__(text)
        self.data_node = data_node


class WebHdfs:
    """A client of one HDFS.

    Args:
        root: URI such as `hdfs://namenode:8020`, without a slash at the end.
        options: Options by name; missing ones are taken from environment variables, whose names are in upper
            case. `webhdfs_url`: addresses of the name nodes, separated by commas; by default the host of
            `root`, port 9870. `hadoop_user_name`: the user; by default Spark's or the system's.
            `webhdfs_delegation_token`: used instead of the user.

    Raises:
        ConfigurationError: An address is invalid. Or the environment has a delegation token without the
            addresses of the name nodes.
    """

    def __init__(self, root: str, options: Mapping[str, str]) -> None:
        def option(name: str) -> str:
            return options.get(name) or os.environ.get(name.upper(), "")

        self._root = root
        given = option("webhdfs_url") or f"http://{urlsplit(root).hostname}:{PORT}"
        self._addresses = [address.strip().rstrip("/") for address in given.split(",")]
        if not all(address.startswith(("http://", "https://")) for address in self._addresses):
            raise ConfigurationError(
                f"a spool at {root}: webhdfs_url is {given!r}; expected addresses of name nodes, such as "
                f"http://namenode:{PORT}, with commas between them"
            )
        self._session = requests.Session()
        self._session.trust_env = False  # a .netrc isn't meant for HDFS
        self._session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or True
        if (
            "webhdfs_delegation_token" not in options
            and not option("webhdfs_url")
            and (os.environ.get("WEBHDFS_DELEGATION_TOKEN"))
        ):
            # The URI may come from an XCom or a command line: its host must not receive the token.
            raise ConfigurationError(
                f"{root}: WEBHDFS_DELEGATION_TOKEN is set without WEBHDFS_URL; expected the addresses of the "
                f"name nodes that issued the token, such as WEBHDFS_URL=http://namenode:{PORT}. The token is "
                "sent nowhere else"
            )
        if token := option("webhdfs_delegation_token"):
            self._identity = {"delegation": token}
        else:
            user = option("hadoop_user_name") or os.environ.get("SPARK_USER") or getpass.getuser()
            self._identity = {"user.name": user}

    def create(self, key: str, content: bytes | mmap.mmap) -> bool:
        """Create a file unless the name exists; see `StoreClient.create`."""
        folder = key.rpartition("/")[0]
        for left in reversed(range(_WRITES)):
            temporary = f"{folder}/{TEMPORARY_PREFIX}{uuid.uuid4().hex}".lstrip("/")
            number = None
            try:
                number = self._write(temporary, content)
                self._request("PUT", "RENAME", temporary, destination=f"/{key}", renameoptions="NONE")
            except FileNotFoundError:
                # The temporary file is missing: an earlier request, whose response was lost, has renamed it,
                # or the folder's next writer has removed it.
                if number is not None and self._number(key) == number:
                    return True
                if not left:
                    raise
            except FileExistsError:
                with contextlib.suppress(StoreError):
                    self.remove(temporary)
                return False
            else:
                return True
        raise AssertionError(key)  # the loop returns or raises

    def _write(self, key: str, content: bytes | mmap.mmap) -> int:
        """Write a file under a name that no other writer uses.

        Returns:
            The number by which HDFS identifies the file (`fileId`); a rename doesn't change it.
        """

        def attempt(address: str, excluded_node: str) -> None:
            url = self._data_node(
                address, "PUT", "CREATE", key, excluded_node, overwrite="true", permission=_FILE_MODE
            )
            if isinstance(content, mmap.mmap):
                content.seek(0)
            self._transfer("PUT", url, key, _host(url), data=content).close()

        self._retried(key, attempt)
        status = self._status(key)
        if status["length"] != len(content):
            raise StoreError(
                errno.EIO, f"expected {len(content)} bytes, got {status['length']}", self._named(key)
            )
        return int(status["fileId"])

    def _number(self, key: str) -> int | None:
        with contextlib.suppress(FileNotFoundError):
            return int(self._status(key)["fileId"])
        return None

    def renew(self, key: str, content: bytes) -> None:  # noqa: ARG002 - the content stays
        """Set a file's modification time to now, by this machine's clock."""
        self._request("PUT", "SETTIMES", key, modificationtime=str(int(time.time() * 1_000)))

    def fetch(self, key: str) -> BufferedIOBase:
        """Fetch a file and return it open; a large file's content is in an unnamed temporary file."""

        def attempt(address: str, excluded_node: str) -> BufferedIOBase:
            url = self._data_node(address, "GET", "OPEN", key, excluded_node)
            data_node = _host(url)
            with self._transfer("GET", url, key, data_node, stream=True) as response:
                size = int(response.headers.get("Content-Length", -1))
                file = BytesIO() if 0 <= size <= IN_MEMORY else tempfile.TemporaryFile()  # noqa: SIM115 - the caller's
                try:
                    for chunk in response.iter_content(CHUNK):
                        file.write(chunk)
                    got = file.tell()
                    file.seek(0)
                except requests.RequestException:
                    file.close()
                    raise _PassingError(f"{data_node} broke off", data_node) from None
                except BaseException:
                    file.close()
                    raise
            if got != size:
                file.close()
                raise _PassingError(f"{data_node} broke off", data_node)
            return cast("BufferedIOBase", file)

        return self._retried(key, attempt)

    def status(self, key: str) -> FoundFile:
        """Return size and modification time of a file."""
        found = self._found_file(key, self._status(key))
        if found.is_folder:
            raise FileNotFoundError(errno.ENOENT, "is a folder", self._named(key))
        return found

    def is_folder(self, key: str) -> bool:
        """Return whether a folder of this name exists."""
        with contextlib.suppress(FileNotFoundError):
            return self._found_file(key, self._status(key)).is_folder
        return False

    def entries(self, key: str) -> list[FoundFile]:
        """Return the entries of a folder; an empty list if the folder doesn't exist."""
        try:
            content = self._json_part(
                key, self._request("GET", "LISTSTATUS", key), "FileStatuses", "FileStatus"
            )
        except FileNotFoundError:
            return []
        return [
            self._found_file(f"{key}/{each['pathSuffix']}".lstrip("/"), each)
            for each in content
            if each["pathSuffix"]  # the suffix is empty if `key` is a file; then the entry is the file itself
        ]

    def walk(self, key: str) -> list[FoundFile]:
        """Return the entries of a folder and its subfolders; an empty list if the folder doesn't exist."""
        found = []
        for each in self.entries(key):
            found += [each, *(self.walk(each.key) if each.is_folder else ())]
        return found

    def remove(self, key: str) -> None:
        """Remove a file, if it exists."""
        self._request("DELETE", "DELETE", key, recursive="false")

    def make_folder(self, key: str) -> None:
        """Create a folder that only its owner can access; restrict access to an existing one."""
        with contextlib.suppress(FileNotFoundError):
            status = self._status(key)
            if (status["type"], status["permission"]) == ("DIRECTORY", _FOLDER_MODE):
                return
        self._request("PUT", "MKDIRS", key, permission=_FOLDER_MODE)
        self._request("PUT", "SETPERMISSION", key, permission=_FOLDER_MODE)

    def remove_empty(self, key: str) -> None:
        """Remove a folder, if it exists and is empty."""
        with contextlib.suppress(_NotEmptyError):
            self._request("DELETE", "DELETE", key, recursive="false")

    def remove_temporary(self, key: str) -> None:
        """Remove leftovers of crashed writers.

        This may remove the temporary file of an active writer too, which then writes the file again.
        """
        for each in self.entries(key):
            if each.key.rpartition("/")[2].startswith(TEMPORARY_PREFIX):
                self.remove(each.key)

    def _status(self, key: str) -> dict[str, Any]:
        return cast(
            "dict[str, Any]", self._json_part(key, self._request("GET", "GETFILESTATUS", key), "FileStatus")
        )

    def _json_part(self, key: str, response: requests.Response, *names: str) -> Any:
        try:
            content = response.json()
            for name in names:
                content = content[name]
        except (ValueError, LookupError, TypeError) as error:
            raise self._not_webhdfs_error(key, response) from error
        return content

    def _found_file(self, key: str, status: Mapping[str, Any]) -> FoundFile:
        modified = int(status["modificationTime"]) * _NANOSECONDS_OF_MILLISECOND
        return FoundFile(key, int(status["length"]), modified, is_folder=status["type"] == "DIRECTORY")

    def _request(self, method: str, op: str, key: str, **parameters: str) -> requests.Response:
        """Send a request to a name node, and return the response.

        While no name node can serve the request, it is sent to each of them in turn.
        """
        return self._retried(key, lambda address, _: self._name_node(address, method, op, key, **parameters))

    def _retried(self, key: str, attempt: Callable[[str, str], T]) -> T:
        """Call `attempt` until it succeeds or the time for retries is over, and return its result.

        Args:
            key: The file, for errors.
            attempt: Called with the address of a name node, and with the data node that failed last or "".

        Raises:
            StoreError: The nodes can't serve the request in time.
        """
        deadline = time.monotonic() + RETRIED_FOR.total_seconds()
        pause, excluded_node = _FIRST_PAUSE_SECONDS, ""
        while True:
            address, *others = self._addresses
            try:
                return attempt(address, excluded_node)
            except _PassingError as error:
                excluded_node = error.data_node
                if not excluded_node:
                    self._addresses = [*others, address]
                if time.monotonic() + pause > deadline:
                    raise StoreError(errno.EIO, str(error), self._named(key)) from error
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE.total_seconds())

    def _data_node(
        self, address: str, method: str, op: str, key: str, excluded_node: str, **parameters: str
    ) -> str:
        """Return the URL at a data node to write or read a file, as a name node assigns it."""
        if excluded_node:
            with contextlib.suppress(OSError):  # a data node whose name can't be resolved isn't excluded
                parameters["excludedatanodes"] = socket.gethostbyname(excluded_node)
        response = self._name_node(address, method, op, key, noredirect="true", **parameters)
        return str(self._json_part(key, response, "Location"))

    def _name_node(
        self, address: str, method: str, op: str, key: str, **parameters: str
    ) -> requests.Response:
        url = f"{address}/webhdfs/v1/{quote(key)}"
        return self._transfer(method, url, key, "", params={"op": op, **parameters, **self._identity})

    def _transfer(
        self, method: str, url: str, key: str, data_node: str, **arguments: Any
    ) -> requests.Response:
        """Send a request and return the response; raise an error for a status of 300 or higher.

        Args:
            method: HTTP method.
            url: URL at a name node or data node.
            key: The file, for errors.
            data_node: Host of the data node; empty for a name node.
            **arguments: Further arguments of the request.

        Raises:
            _PassingError: The node doesn't answer, or can't serve the request now.
            OSError: The node refuses the request.
        """
        try:
            response = self._session.request(
                method, url, timeout=_TIMEOUTS, allow_redirects=False, **arguments
            )
        except (requests.ConnectionError, requests.Timeout):
            raise _PassingError(f"{urlsplit(url).netloc} doesn't answer", data_node) from None
        except requests.RequestException as error:  # not shown, because its text contains the token
            raise StoreError(errno.EIO, type(error).__name__, self._named(key)) from None
        if response.status_code < _REDIRECTION:
            return response
        with response:
            raise self._refusal(key, response, data_node)

    def _refusal(self, key: str, response: requests.Response, data_node: str) -> Exception:
        """Return a node's error as the corresponding operating system error."""
        try:
            remote_error = response.json()["RemoteException"]
            name, text = str(remote_error["exception"]), str(remote_error["message"]).partition("\n")[0]
        except (ValueError, LookupError, TypeError):
            name, text = "", f"answers {response.status_code}"
        if name in _PASSING or response.status_code >= _SERVER_ERROR:
            return _PassingError(f"{urlsplit(response.url).netloc}: {text}", data_node)
        match name:
            case "FileNotFoundException":
                return FileNotFoundError(errno.ENOENT, "no such file", self._named(key))
            case "FileAlreadyExistsException":
                return FileExistsError(errno.EEXIST, "is there already", self._named(key))
            case "PathIsNotEmptyDirectoryException":
                return _NotEmptyError(errno.ENOTEMPTY, "isn't empty", self._named(key))
            case "":
                return self._not_webhdfs_error(key, response)
        denied = name in _DENIED or response.status_code == _UNAUTHORIZED
        return StoreError(errno.EACCES if denied else errno.EIO, text, self._named(key))

    def _not_webhdfs_error(self, key: str, response: requests.Response) -> StoreError:
        parts = urlsplit(response.url)
        text = f"{parts.scheme}://{parts.netloc} answers {response.status_code}, and not as WebHDFS does"
        return StoreError(errno.EIO, text, self._named(key))

    def _named(self, key: str) -> str:
        return f"{self._root}/{key}"


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""
