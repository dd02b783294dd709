"""Lists buckets in which some objects have names that obstore refuses.

obstore fails for a whole page of names if one of them has an empty part, `.`, `..` or a control character.
Every writer of the bucket can create such an object. If a bucket holds such an object, the bucket is listed
in another way, which skips these names:

- S3: PyArrow lists the bucket.
- Google Cloud Storage and Azure: a relay removes these names from the pages before obstore reads the pages.
  PyArrow can't list these two: its Azure client aborts the process for some names, and its Google client
  takes other credentials.
"""

from __future__ import annotations

import errno
import os
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.spool.files.client import LONGEST_REQUEST, FoundFile, StoreError

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo

_log = safe_logger(__name__)
_OPTIONS: Final = {
    "access_key": "aws_access_key_id",
    "secret_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
    "region": "aws_region",
    "endpoint_override": "aws_endpoint_url",
}
_DELETE: Final = "\x7f"
_MOST_REPORTED: Final = 1_000
_HOST: Final = "127.0.0.1"
_LONGEST_PAGE: Final = 64 * 1024 * 1024
# Request headers that concern one connection. `accept-encoding`: only an uncompressed answer can be searched.
_NOT_RELAYED: Final = frozenset(
    {"host", "connection", "accept-encoding", "content-length", "transfer-encoding"}
)
# An entry of a page: `Contents` and `CommonPrefixes` at Google, `Blob` and `BlobPrefix` at Azure.
_ENTRY: Final = re.compile(
    rb"<(Contents|CommonPrefixes|Blob|BlobPrefix)>([^<]*(?:<(?!/?(?:Contents|CommonPrefixes|Blob|BlobPrefix)>)[^<]*)*)</\1>"
)
_NAME: Final = re.compile(rb"<(?:Key|Name|Prefix)(\s[^<>]*)?>([^<]*)<")
_REFERENCE: Final = re.compile(r"&(?:#(\d{1,7})|#x([0-9A-Fa-f]{1,6})|(amp|lt|gt|quot|apos));")
_NAMED: Final = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}


class SkippedNames:
    """Logs one warning for each object that a listing skips because of its name.

    Args:
        root: The bucket, such as `s3://bucket`.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._reported: set[str] = set()

    def add(self, name: str) -> None:
        """Log a warning, once for each name, and for at most 1,000 names."""
        if name in self._reported or len(self._reported) >= _MOST_REPORTED:
            return
        self._reported.add(name)
        _log.warning(
            "%s: skipping %r and everything below it: no file of the spool has a name with an empty part, "
            "'.', '..' or a control character. Find out who writes there, and remove it",
            self._root,
            name,
        )


class S3Listing:
    """Lists the objects of an S3 bucket, except those whose names are invalid for files.

    Args:
        root: URI such as `s3://bucket`, without a slash at the end.
        options: Credentials, endpoint and region, as for `Cloud`.
        skipped: Logs each skipped name.
    """

    def __init__(self, root: str, options: Mapping[str, str], skipped: SkippedNames) -> None:
        from pyarrow.fs import S3FileSystem  # noqa: PLC0415 - seldom needed

        def option(name: str) -> str | None:
            return options.get(name) or os.environ.get(name.upper())

        given = {name: value for name, key in _OPTIONS.items() if (value := option(key))}
        self._root = root
        self._files = S3FileSystem(**given)
        self._bucket = urlsplit(root).netloc
        self._skipped = skipped

    def found(self, key: str, *, recursive: bool) -> list[FoundFile]:
        """Return the objects in a folder, except those whose names are invalid for files.

        Args:
            key: The folder; empty for the whole bucket.
            recursive: Return all objects below the folder. If `False`, return those directly in it, and its
                subfolders.

        Raises:
            StoreError: The store refuses or can't be reached.
        """
        from pyarrow.fs import FileSelector  # noqa: PLC0415 - seldom needed

        folder = f"{self._bucket}/{key}".rstrip("/")
        try:
            listed = self._files.get_file_info(
                FileSelector(folder, recursive=recursive, allow_not_found=True)
            )
        except OSError as error:
            raise StoreError(errno.EIO, str(error).partition("\n")[0], f"{self._root}/{key}") from error
        return list(self._valid(folder, listed, recursive=recursive))

    def _valid(self, folder: str, listed: Iterable[FileInfo], *, recursive: bool) -> Iterable[FoundFile]:
        from pyarrow.fs import FileType  # noqa: PLC0415 - seldom needed

        for each in listed:
            is_folder = each.type == FileType.Directory
            if is_folder and recursive:
                continue
            key = each.path.removeprefix(f"{self._bucket}/")
            if each.path != folder and is_file_name(each.path.removeprefix(f"{folder}/")):
                yield FoundFile(key, each.size or 0, each.mtime_ns or 0, is_folder)
            else:
                self._skipped.add(key)


class ListingRelay:
    """Serves the pages of a store's listings on a loopback port, without names that are invalid for files.

    The client signs its requests, and the relay forwards them unchanged, and only to this store. So the relay
    needs no credentials, and another process that uses the relay gets no access to the store. As a context
    manager, the relay serves until the end of the block.

    Args:
        store: Address of the store, such as `https://account.blob.core.windows.net`.
        skipped: Logs each skipped name.
    """

    def __init__(self, store: str, skipped: SkippedNames) -> None:
        scheme, netloc, path, *_ = urlsplit(store)
        origin = f"{scheme}://{netloc}"
        opener = urllib.request.build_opener(_NoRedirects)

        class Handler(_Handler):
            def answer(self) -> tuple[int, str, bytes]:
                status, content_type, body = _fetch(opener, f"{origin}{self.path}", dict(self.headers))
                return (
                    status,
                    content_type,
                    valid_page(body, skipped.add) if status == HTTPStatus.OK else body,
                )

        self._server = ThreadingHTTPServer((_HOST, 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self.url = f"http://{_HOST}:{self._server.server_port}{path.rstrip('/')}"
        """Address at which the client finds the store."""

    @property
    def client_options(self) -> dict[str, str]:
        """Options with which obstore's client reaches the relay without a proxy.

        They name the proxy of `HTTPS_PROXY` or `HTTP_PROXY`, and exclude the relay's host from it. Empty if
        the environment names no proxy.
        """
        proxies = urllib.request.getproxies()
        if proxy := proxies.get("https") or proxies.get("http"):
            return {"proxy_url": proxy, "proxy_excludes": f"{_HOST},{proxies.get('no', '')}"}
        return {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, because the request's credentials are meant only for the store."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _Handler(BaseHTTPRequestHandler):
    """Answers GET requests; every other method is refused."""

    def answer(self) -> tuple[int, str, bytes]:
        """Return status, content type and body."""
        raise NotImplementedError

    def do_GET(self) -> None:
        """Answer a request for a page."""
        status, content_type, body = self.answer() if self.path.startswith("/") else (400, "text/plain", b"")
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing: the address may hold a signature."""


def _fetch(
    opener: urllib.request.OpenerDirector, url: str, headers: Mapping[str, str]
) -> tuple[int, str, bytes]:
    """Request a page from the store, and return status, content type and body of the response.

    If the store doesn't respond, the status is 503, so that the client sends its request again.
    """
    kept = {name: value for name, value in headers.items() if name.lower() not in _NOT_RELAYED}
    request = urllib.request.Request(url, headers=kept)  # noqa: S310 - the store's own address
    try:
        try:
            answer = opener.open(request, timeout=LONGEST_REQUEST.total_seconds())
        except urllib.error.HTTPError as refusal:
            answer = refusal
        with answer:
            body = answer.read(_LONGEST_PAGE + 1)
            content_type = answer.headers.get("Content-Type", "application/xml")
    except OSError as error:
        return HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", str(error).encode()
    if len(body) > _LONGEST_PAGE:
        return HTTPStatus.BAD_REQUEST, "text/plain", f"the page is longer than {_LONGEST_PAGE} bytes".encode()
    return answer.status, content_type, body


def valid_page(page: bytes, skipped: Callable[[str], None]) -> bytes:
    """Return a page of a listing without the entries whose names are invalid for files.

    The page is searched rather than parsed: a control character in a name makes it malformed XML.

    Args:
        page: XML of Google Cloud Storage or of Azure.
        skipped: Called with each name that is left out.
    """

    def kept(entry: re.Match[bytes]) -> bytes:
        found = _NAME.search(entry[2])
        if found is None:
            return entry[0]
        name = _REFERENCE.sub(_referenced, found[2].decode(errors="replace"))
        # Azure encodes names with characters that XML can't hold, and marks them.
        if is_file_name(name.removesuffix("/")) and b"Encoded" not in (found[1] or b""):
            return entry[0]
        skipped(name)
        return b""

    return _ENTRY.sub(kept, page)


def _referenced(reference: re.Match[str]) -> str:
    decimal, hexadecimal, named = reference.groups()
    if named:
        return _NAMED[named]
    number = int(decimal) if decimal else int(hexadecimal, 16)
    return chr(number) if number < 0x110000 else "\0"  # noqa: PLR2004 - the end of Unicode


def is_file_name(path: str) -> bool:
    """Return whether a file of the spool may have this path.

    An empty part, `.`, `..` and control characters aren't allowed.
    """
    return all(
        part not in {"", ".", ".."} and not any(each < " " or each == _DELETE for each in part)
        for part in path.split("/")
    )
