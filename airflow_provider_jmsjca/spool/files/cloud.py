"""S3, Google Cloud Storage and Azure: objects, each created once by a conditional put.

Each object carries a mark of its writer. If the response to a put is lost, the mark shows whether this writer
or another one created the object.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import mmap
import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from datetime import datetime
from io import BufferedIOBase, BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

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
from airflow_provider_jmsjca.spool.files.listing import ListingRelay, S3Listing, SkippedNames

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_WRITER: Final = "writer"
# Options that may hold the address of a store other than the provider's own; the last is a JSON document.
_WITH_ADDRESS: Final = (
    "aws_endpoint_url",
    "azure_storage_endpoint",
    "azure_endpoint",
    "google_base_url",
    "google_service_account_key",
)
_GOOGLE: Final = "https://storage.googleapis.com"
_NANOSECONDS: Final = 1_000_000_000
_MANY_TRIES: Final = 1_000
# Attempts of a put or a removal that lost its response; obstore retries reads and replacements only.
_TRIES: Final = 3


class Cloud:
    """A client of one bucket or container.

    Args:
        root: URI such as `s3://bucket`, without a slash at the end.
        options: Credentials, endpoint and region. The names are those of the environment variables in lower
            case. Missing options are taken from the environment.

    Raises:
        ConfigurationError: obstore isn't installed, or the options are invalid.
    """

    def __init__(self, root: str, options: Mapping[str, str]) -> None:
        try:
            from obstore.exceptions import BaseError  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise ConfigurationError(
                f"a spool at {root} needs obstore: install this package with its extra `s3`, on the workers "
                f"and where Spark's driver runs ({error})"
            ) from error
        self._root = root
        self._options = options
        self._skipped = SkippedNames(root)
        try:
            self.store: ObjectStore = self._opened({}, {})
        except (BaseError, ValueError) as error:
            raise ConfigurationError(f"a spool at {root}: {_error_text(error)}") from error

    def _opened(self, address: Mapping[str, str], client_options: Mapping[str, str]) -> ObjectStore:
        """Return obstore's client of the bucket or container.

        Args:
            address: The option for the store's address with its value; empty to take it from the options.
            client_options: Further options of obstore's HTTP client.
        """
        from obstore.store import from_url  # noqa: PLC0415 - an extra

        options = {**self._options, **address}
        addresses = (options.get(name) or os.environ.get(name.upper(), "") for name in _WITH_ADDRESS)
        return from_url(
            self._root,
            config=cast("Any", options),
            client_options=cast(
                "Any",
                {
                    "allow_http": any("http://" in each for each in addresses),
                    "timeout": LONGEST_REQUEST,
                    "connect_timeout": LONGEST_CONNECT,
                    **client_options,
                },
            ),
            retry_config={
                "max_retries": _MANY_TRIES,
                "retry_timeout": RETRIED_FOR,
                "backoff": {"max_backoff": LONGEST_PAUSE},
            },
        )

    def create(self, key: str, content: bytes | mmap.mmap) -> bool:
        """Create an object unless the name exists; see `StoreClient.create`."""
        import obstore  # noqa: PLC0415 - an extra
        from obstore.exceptions import AlreadyExistsError, GenericError  # noqa: PLC0415 - an extra

        mark = uuid.uuid4().hex
        with self._answers(key):
            for left in reversed(range(_TRIES)):
                try:
                    obstore.put(
                        self.store,
                        key,
                        content,
                        mode="create",
                        use_multipart=False,
                        attributes={_WRITER: mark},
                    )
                except AlreadyExistsError:
                    return self._writer(key) == mark
                except GenericError:
                    found = self._writer(key)
                    if found is not None:
                        return found == mark
                    if not left:
                        raise
                else:
                    return True
        raise AssertionError(key)  # the loop returns or raises

    def _writer(self, key: str) -> str | None:
        """Return an object's writer mark, empty if it has none; `None` if the object doesn't exist."""
        import obstore  # noqa: PLC0415 - an extra

        try:
            found = obstore.get(self.store, key, options={"head": True})
        except FileNotFoundError:
            return None
        return found.attributes.get(_WRITER, "")

    def renew(self, key: str, content: bytes) -> None:
        """Write an object again, which sets its modification time to now."""
        import obstore  # noqa: PLC0415 - an extra

        with self._answers(key):
            obstore.put(self.store, key, content, use_multipart=False)

    def fetch(self, key: str) -> BufferedIOBase:
        """Fetch an object and return it open; a large object's content is in an unnamed temporary file."""
        import obstore  # noqa: PLC0415 - an extra

        with self._answers(key):
            found = obstore.get(self.store, key)
            size = found.meta["size"]
            file = BytesIO() if size <= IN_MEMORY else tempfile.TemporaryFile()  # noqa: SIM115 - the caller's
            try:
                for chunk in found.stream(min_chunk_size=CHUNK):
                    file.write(chunk)
                got = file.tell()
                file.seek(0)
            except BaseException:
                file.close()
                raise
        if got != size:
            file.close()
            raise StoreError(errno.EIO, f"expected {size} bytes, got {got}", self._named(key))
        return cast("BufferedIOBase", file)

    def status(self, key: str) -> FoundFile:
        """Return size and modification time of an object."""
        import obstore  # noqa: PLC0415 - an extra

        with self._answers(key):
            return _found_file(obstore.head(self.store, key))

    def is_folder(self, key: str) -> bool:
        """Return whether objects exist below this name."""
        import obstore  # noqa: PLC0415 - an extra
        from obstore.exceptions import InvalidPathError  # noqa: PLC0415 - an extra

        with self._answers(key):
            try:
                return any(obstore.list(self.store, prefix=key or None, chunk_size=1))
            except InvalidPathError:
                return True  # it exists, but obstore refuses the name

    def entries(self, key: str) -> list[FoundFile]:
        """Return the objects and subfolders directly in a folder."""
        return self._listed(key, recursive=False)

    def walk(self, key: str) -> list[FoundFile]:
        """Return all objects below a folder, without entries for subfolders."""
        return self._listed(key, recursive=True)

    def _listed(self, key: str, *, recursive: bool) -> list[FoundFile]:
        """Return the entries of a folder, except those whose names are invalid for files.

        Args:
            key: The folder; empty for the whole bucket.
            recursive: Return all objects below the folder. If `False`, return those directly in it, and its
                subfolders.
        """
        from obstore.exceptions import InvalidPathError  # noqa: PLC0415 - an extra

        list_in = _all_in_folder if recursive else _in_folder
        with self._answers(key):
            try:
                return list_in(self.store, key)
            except InvalidPathError:
                if self._root.startswith("s3"):
                    return self._s3_listing.found(key, recursive=recursive)
            option, address = self._address()
            with ListingRelay(address, self._skipped) as relay:
                return list_in(self._opened({option: relay.url}, relay.client_options), key)

    @functools.cached_property
    def _s3_listing(self) -> S3Listing:
        return S3Listing(self._root, self._options, self._skipped)

    def _address(self) -> tuple[str, str]:
        """Return the name of the option for the store's address, and the address.

        The address is the configured one, else the provider's default.
        """

        def option(*names: str) -> str:
            return next(filter(None, (self._options.get(n) or os.environ.get(n.upper()) for n in names)), "")

        if self._root.startswith("gs"):
            account = option("google_service_account_key")
            if not account and (file := option("google_service_account", "google_service_account_path")):
                account = Path(file).read_text(encoding="utf-8")
            named = json.loads(account or "{}").get("gcs_base_url")
            return "google_base_url", option("google_base_url") or named or _GOOGLE
        container_and_account, _, suffix = urlsplit(self._root).netloc.partition(".dfs.")
        account = container_and_account.rpartition("@")[2] if suffix else option("azure_storage_account_name")
        given = option("azure_storage_endpoint", "azure_endpoint")
        return "azure_storage_endpoint", given or f"https://{account}.blob.{suffix or 'core.windows.net'}"

    def remove(self, key: str) -> None:
        """Remove an object, if it exists."""
        import obstore  # noqa: PLC0415 - an extra
        from obstore.exceptions import GenericError  # noqa: PLC0415 - an extra

        with contextlib.suppress(FileNotFoundError), self._answers(key):
            for left in reversed(range(_TRIES)):
                try:
                    obstore.delete(self.store, key)
                except GenericError:
                    if not left:
                        raise
                else:
                    return

    def make_folder(self, key: str) -> None:
        """Do nothing: a folder exists as soon as an object is in it."""

    def remove_empty(self, key: str) -> None:
        """Do nothing: a folder disappears with the last object in it."""

    def remove_temporary(self, key: str) -> None:
        """Do nothing: a put never leaves an incomplete object."""

    def _named(self, key: str) -> str:
        return f"{self._root}/{key}"

    @contextlib.contextmanager
    def _answers(self, key: str) -> Iterator[None]:
        """Convert obstore's errors within the context to `StoreError` or `FileNotFoundError`.

        Args:
            key: The object, for the error's text.
        """
        from obstore.exceptions import (  # noqa: PLC0415 - an extra
            BaseError,
            PermissionDeniedError,
            UnauthenticatedError,
        )

        try:
            yield
        except FileNotFoundError as error:
            raise FileNotFoundError(errno.ENOENT, "no such object or bucket", self._named(key)) from error
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise StoreError(errno.EACCES, _error_text(error), self._named(key)) from error
        except BaseError as error:
            raise StoreError(errno.EIO, _error_text(error), self._named(key)) from error


def _in_folder(store: ObjectStore, key: str) -> list[FoundFile]:
    """Return the objects and subfolders directly in a folder."""
    import obstore  # noqa: PLC0415 - an extra

    found = obstore.list_with_delimiter(store, prefix=key or None)
    folders = [FoundFile(each.strip("/"), 0, 0, is_folder=True) for each in found["common_prefixes"]]
    return [*folders, *map(_found_file, found["objects"])]


def _all_in_folder(store: ObjectStore, key: str) -> list[FoundFile]:
    """Return all objects below a folder, without entries for subfolders."""
    import obstore  # noqa: PLC0415 - an extra

    return [_found_file(each) for chunk in obstore.list(store, prefix=key or None) for each in chunk]


def _found_file(given: Mapping[str, Any]) -> FoundFile:
    modified: datetime = given["last_modified"]
    nanoseconds = int(modified.timestamp()) * _NANOSECONDS + modified.microsecond * 1_000
    return FoundFile(given["path"], given["size"], nanoseconds, is_folder=False)


def _error_text(error: Exception) -> str:
    first, *_ = str(error).splitlines() or [type(error).__name__]
    return first
