"""Files of stores that are reached over the network: cloud stores and HDFS. Each file is created once.

POSIX has `link(2)` to create a name exclusively. A cloud store has a conditional put, with the header
`If-None-Match: *` (Google: `ifGenerationMatch: 0`). HDFS has a rename that replaces nothing. Of several
concurrent writers of a file, only one succeeds. A store that ignores the condition is refused before a
message is received.

These stores have no locks. The writer that continues a batch shuts out the previous one only by a fence file,
see `spool.spool`. A name that writers compete for is not removed while another writer may rely on it.
"""

from __future__ import annotations

import functools
import mmap
import tempfile
from collections.abc import Callable, Mapping
from io import BufferedIOBase
from typing import BinaryIO, Final, NamedTuple, cast
from urllib.parse import urlsplit

from airflow_provider_jmsjca.errors import ConfigurationError, SpoolError
from airflow_provider_jmsjca.spool.files.client import CHUNK, FoundFile, StoreClient
from airflow_provider_jmsjca.spool.files.cloud import Cloud
from airflow_provider_jmsjca.spool.files.staged import StagedFile

SCHEMES: Final = {
    "s3": "s3a", "s3a": "s3a", "gs": "gs", "abfs": "abfss", "abfss": "abfss", "hdfs": "hdfs",
}  # fmt: skip
"""The schemes of stores that create a file exclusively, with their names in Hadoop."""
_PROBE: Final = ".conditional-put"


class ObjectEntry(NamedTuple):
    """An object or a folder, with the fields of `posix.PosixEntry`."""

    path: ObjectPath
    size: int
    modified: int
    is_folder: bool


class Bucket:
    """A bucket, a container or an HDFS, with the options to access it.

    Args:
        root: URI such as `s3://bucket`, without a slash at the end.
        options: Credentials and addresses. The names are those of the environment variables in lower case.
            Missing options are taken from the environment.
    """

    def __init__(self, root: str, options: Mapping[str, str] | None = None) -> None:
        self.root = root
        self.options = dict(options or {})
        self._is_fit = False

    @functools.cached_property
    def client(self) -> StoreClient:
        """The client of the store.

        Raises:
            ConfigurationError: The store's library isn't installed, or the options are invalid.
        """
        if not self.root.startswith("hdfs:"):
            return Cloud(self.root, self.options)
        try:
            from airflow_provider_jmsjca.spool.files.hdfs import WebHdfs  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise ConfigurationError(
                f"a spool at {self.root} needs requests: pip install requests, where Spark's driver runs "
                f"({error})"
            ) from error
        return WebHdfs(self.root, self.options)

    def require_conditional_put(self, spool: ObjectPath) -> None:
        """Refuse a store in which two writers could both create the same object.

        Args:
            spool: Folder in which an object is created to test the store.

        Raises:
            ConfigurationError: The store can't create an object exclusively.
            StoreError: The store can't be reached.
        """
        if self._is_fit:
            return
        probe = spool / _PROBE
        try:
            # If the first put is refused because the object exists, the second isn't needed.
            self._is_fit = not (create_object(probe, b"") and create_object(probe, b""))
        except NotImplementedError:
            self._is_fit = False
        if not self._is_fit:
            raise ConfigurationError(
                f"spool_path {spool}: the store has no conditional put (If-None-Match: *). Without it two "
                "writers could replace each other's messages. Use a store that has it, or a path on a POSIX "
                "file system"
            )


class ObjectPath:
    """Names an object, or all objects below a name, as `pathlib` names files.

    Args:
        bucket: The bucket that contains the object.
        key: Name in the bucket, without a slash at either end; empty for the whole bucket.
    """

    __slots__ = ("bucket", "key")

    def __init__(self, bucket: Bucket, key: str) -> None:
        self.bucket = bucket
        self.key = key

    @classmethod
    def parse(cls, uri: str, options: Mapping[str, str] | None = None) -> ObjectPath:
        """Return the path of a URI such as `s3://bucket/jms-spool`, without unescaping it.

        Raises:
            SpoolError: The URI has another scheme, no bucket, or a part that is empty, `.` or `..`. Or it
                contains `?` or `#`.
        """
        scheme, netloc, path, query, fragment = urlsplit(uri)
        key = path.strip("/")
        if (
            scheme not in SCHEMES
            or not netloc
            or any(part in {"", ".", ".."} for part in key.split("/") if key)
        ):
            raise SpoolError(f"{uri!r}: expected {' or '.join(SCHEMES)}, then ://bucket/path")
        if query or fragment or "?" in uri or "#" in uri:
            raise SpoolError(f"{uri!r}: '?' and '#' can't be in it")
        return cls(_bucket(f"{scheme}://{netloc}", tuple(sorted((options or {}).items()))), key)

    @property
    def name(self) -> str:
        """The last component of the key."""
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        """The folder that holds the object."""
        return ObjectPath(self.bucket, self.key.rpartition("/")[0])

    @property
    def uri_for_spark(self) -> str:
        """The object's URI with the scheme that Hadoop uses."""
        scheme, _, rest = str(self).partition("://")
        return f"{SCHEMES[scheme]}://{rest}"

    def absolute(self) -> ObjectPath:
        """Return this path, which is always absolute."""
        return self

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(self.bucket, f"{self.key}/{name}" if self.key else name)

    def __str__(self) -> str:
        return f"{self.bucket.root}/{self.key}"

    def __repr__(self) -> str:
        return f"ObjectPath({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectPath) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __lt__(self, other: ObjectPath) -> bool:
        return str(self) < str(other)


@functools.lru_cache(maxsize=16)
def _bucket(root: str, options: tuple[tuple[str, str], ...]) -> Bucket:
    """Return the process's only instance for a bucket and options, so that it connects once."""
    return Bucket(root, dict(options))


class ObjectStaged(StagedFile):
    """A staged object. Its content is in an unnamed temporary file in `TMPDIR` until `seal` puts it.

    Args:
        path: The object's final path.
    """

    def __init__(self, path: ObjectPath) -> None:
        self._place = path
        super().__init__(path.name)

    def _created(self) -> BinaryIO:
        return cast("BinaryIO", tempfile.TemporaryFile(buffering=0))

    def _seal(self) -> bool:
        if not self.size:
            return create_object(self._place, b"")
        with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return create_object(self._place, content)

    def _refusal(self, error: OSError) -> SpoolError:
        return SpoolError(f"{self._place}: can't be written: {error.strerror or error}")


def create_object(path: ObjectPath, content: bytes | mmap.mmap) -> bool:
    """Create an object unless the name exists; see `StoreClient.create`."""
    return path.bucket.client.create(path.key, content)


def renew(path: ObjectPath, content: bytes) -> None:
    """Set an object's modification time to now; `content` is the object's unchanged content."""
    path.bucket.client.renew(path.key, content)


def open_file(path: ObjectPath) -> BufferedIOBase:
    """Fetch an object and return it open and seekable.

    A large object's content is in an unnamed temporary file.
    """
    return path.bucket.client.fetch(path.key)


def exists(path: ObjectPath) -> bool:
    """Return whether an object of this name exists."""
    try:
        entry_of(path)
    except FileNotFoundError:
        return False
    return True


def is_folder(path: ObjectPath) -> bool:
    """Return whether a folder of this name exists, or objects exist below it."""
    return path.bucket.client.is_folder(path.key)


def entry_of(path: ObjectPath) -> ObjectEntry:
    """Return size and modification time of an object."""
    return _entry(path.bucket, path.bucket.client.status(path.key))


def entries(folder: ObjectPath) -> list[ObjectEntry]:
    """Return the entries of a folder, sorted by name; an empty list if the folder doesn't exist."""
    return sorted(_entry(folder.bucket, found) for found in folder.bucket.client.entries(folder.key))


def walk(folder: ObjectPath) -> list[ObjectEntry]:
    """Return the entries of a folder and its subfolders."""
    return [_entry(folder.bucket, found) for found in folder.bucket.client.walk(folder.key)]


def _entry(bucket: Bucket, found: FoundFile) -> ObjectEntry:
    return ObjectEntry(ObjectPath(bucket, found.key), found.size, found.modified, found.is_folder)


def make_folder(folder: ObjectPath) -> None:
    """Create a folder; do nothing if the store has no folders."""
    folder.bucket.client.make_folder(folder.key)


def remove(path: ObjectPath) -> None:
    """Remove an object, if it exists."""
    path.bucket.client.remove(path.key)


def remove_temporary(folder: ObjectPath) -> None:
    """Remove leftovers of crashed writers."""
    folder.bucket.client.remove_temporary(folder.key)


def remove_folder(folder: ObjectPath) -> None:
    """Remove a folder with everything in it."""
    _clear(folder, lambda _: False)


def remove_if_unused(
    folder: ObjectPath, *, may_remove: Callable[[ObjectPath], bool], kept_prefix: str
) -> bool:
    """Remove a folder except for objects with the prefix `kept_prefix`.

    The remaining objects are the only ones that a concurrent writer of the batch relies on.

    Returns:
        `False`, and nothing was removed, if the folder doesn't exist or `may_remove` refuses.
    """
    if not is_folder(folder) or not may_remove(folder):
        return False
    _clear(folder, lambda path: path.name.startswith(kept_prefix))
    return True


def _clear(folder: ObjectPath, keep: Callable[[ObjectPath], bool]) -> None:
    client = folder.bucket.client
    for found in sorted(walk(folder), reverse=True):  # the content of a folder, then the folder
        if found.is_folder:
            client.remove_empty(found.path.key)
        elif not keep(found.path):
            client.remove(found.path.key)
    client.remove_empty(folder.key)


def add_name(source: ObjectPath, path: ObjectPath) -> bool:
    """Copy an object to another name; return `False` without a change if an object has that name."""
    with open_file(source) as file, ObjectStaged(path) as staged:
        while piece := file.read(CHUNK):
            staged.write(piece)
        return staged.seal()
