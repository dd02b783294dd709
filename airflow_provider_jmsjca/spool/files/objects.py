"""Files of stores that are reached over the network: cloud stores and HDFS. Each is created once.

Where POSIX has `link(2)`, a cloud store has a conditional put, the header `If-None-Match: *` (Google:
`ifGenerationMatch: 0`), and HDFS a rename that replaces nothing. One of several concurrent writers of an
object wins. A store that ignores the condition is refused before a message is received.

There are no locks. The writer that continues a batch shuts out the previous one by a fence alone, see
`spool.spool`. A taken name is never given back while somebody may still rely on it.
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
    """An object or a folder; as `posix.Entry`."""

    place: ObjectPath
    size: int
    modified: int
    is_folder: bool


class Bucket:
    """A bucket, a container or an HDFS, and how it is reached.

    Args:
        root: Such as `s3://bucket`, without a slash at the end.
        options: Credentials and addresses, by the names that the environment's variables have, in lower
            case. Missing options are taken from the environment.
    """

    def __init__(self, root: str, options: Mapping[str, str] | None = None) -> None:
        self.root = root
        self.options = dict(options or {})
        self._is_fit = False

    @functools.cached_property
    def client(self) -> StoreClient:
        """The client of the store.

        Raises:
            ConfigurationError: The store's library isn't installed, or the options don't fit.
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
        """Refuse a store on which two writers could both create one object.

        Raises:
            ConfigurationError: The store can't.
            StoreError: The store can't be reached.
        """
        if self._is_fit:
            return
        probe = spool / _PROBE
        try:
            # One that was there shows it at once.
            self._is_fit = not (put_new(probe, b"") and put_new(probe, b""))
        except NotImplementedError:
            self._is_fit = False
        if not self._is_fit:
            raise ConfigurationError(
                f"spool_path {spool}: the store has no conditional put (If-None-Match: *). Without it two "
                "writers could replace each other's messages. Take a store that has it, or a path on a POSIX "
                "file system"
            )


class ObjectPath:
    """Names an object, or all objects below a name, as `pathlib` names files.

    Args:
        bucket: Where it is.
        key: Without a slash at either end; empty for the whole bucket.
    """

    __slots__ = ("bucket", "key")

    def __init__(self, bucket: Bucket, key: str) -> None:
        self.bucket = bucket
        self.key = key

    @classmethod
    def parse(cls, uri: str, options: Mapping[str, str] | None = None) -> ObjectPath:
        """Return the path of a URI such as `s3://bucket/jms-spool`, without unescaping it.

        Raises:
            SpoolError: The URI has no bucket, or a part that is empty, `.` or `..`.
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
        """The last part."""
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        """The folder that holds the object."""
        return ObjectPath(self.bucket, self.key.rpartition("/")[0])

    @property
    def uri_for_spark(self) -> str:
        """The URI under which Hadoop knows the object."""
        scheme, _, rest = str(self).partition("://")
        return f"{SCHEMES[scheme]}://{rest}"

    def absolute(self) -> ObjectPath:
        """Return itself."""
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
    """Return the one of this process, which connects once."""
    return Bucket(root, dict(options))


class ObjectStaged(StagedFile):
    """One that waits in a temporary file without a name, in `TMPDIR`; `seal` puts it into the store.

    Args:
        place: The name that the object shall have.
    """

    def __init__(self, place: ObjectPath) -> None:
        self._place = place
        super().__init__(place.name)

    def _created(self) -> BinaryIO:
        return cast("BinaryIO", tempfile.TemporaryFile(buffering=0))

    def _seal(self) -> bool:
        if not self.size:
            return put_new(self._place, b"")
        with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return put_new(self._place, content)

    def _refusal(self, error: OSError) -> SpoolError:
        return SpoolError(f"{self._place}: can't be written: {error.strerror or error}")


def put_new(place: ObjectPath, content: bytes | mmap.mmap) -> bool:
    """Create an object unless there is one, as `StoreClient.create`."""
    return place.bucket.client.create(place.key, content)


def renew(place: ObjectPath, content: bytes) -> None:
    """Set the time of an object's last change to now; `content` is the object's content."""
    place.bucket.client.renew(place.key, content)


def open_file(place: ObjectPath) -> BufferedIOBase:
    """Fetch an object, to read anywhere in it; a large one into a temporary file without a name."""
    return place.bucket.client.fetch(place.key)


def exists(place: ObjectPath) -> bool:
    """Return whether there is an object of this name."""
    try:
        entry_of(place)
    except FileNotFoundError:
        return False
    return True


def is_folder(place: ObjectPath) -> bool:
    """Return whether there are objects below this name."""
    return place.bucket.client.is_folder(place.key)


def entry_of(place: ObjectPath) -> ObjectEntry:
    """Return size and age of an object."""
    return _entry(place.bucket, place.bucket.client.status(place.key))


def entries(folder: ObjectPath) -> list[ObjectEntry]:
    """Return the entries of a folder, sorted by name; none if it doesn't exist."""
    return sorted(_entry(folder.bucket, found) for found in folder.bucket.client.entries(folder.key))


def walk(folder: ObjectPath) -> list[ObjectEntry]:
    """Return the entries of a folder and its subfolders."""
    return [_entry(folder.bucket, found) for found in folder.bucket.client.walk(folder.key)]


def _entry(bucket: Bucket, found: FoundFile) -> ObjectEntry:
    return ObjectEntry(ObjectPath(bucket, found.key), found.size, found.modified, found.is_folder)


def make_folder(folder: ObjectPath) -> None:
    """Create a folder, where the store has such a thing."""
    folder.bucket.client.make_folder(folder.key)


def remove(place: ObjectPath) -> None:
    """Remove an object, if it is there."""
    place.bucket.client.remove(place.key)


def remove_temporary(folder: ObjectPath) -> None:
    """Remove leftovers of crashed writers."""
    folder.bucket.client.remove_temporary(folder.key)


def remove_folder(folder: ObjectPath) -> None:
    """Remove a folder with everything in it."""
    _clear(folder, lambda _: False)


def take_away(folder: ObjectPath, *, may_go: Callable[[ObjectPath], bool], taken: str) -> bool:
    """Remove a folder except for objects with the prefix `taken`; return `False` if it must stay.

    A concurrent writer of the batch relies on these objects alone.
    """
    if not is_folder(folder) or not may_go(folder):
        return False
    _clear(folder, lambda place: place.name.startswith(taken))
    return True


def _clear(folder: ObjectPath, stays: Callable[[ObjectPath], bool]) -> None:
    client = folder.bucket.client
    for found in sorted(walk(folder), reverse=True):  # the content of a folder, then the folder
        if found.is_folder:
            client.remove_empty(found.place.key)
        elif not stays(found.place):
            client.remove(found.place.key)
    client.remove_empty(folder.key)


def give_name(source: ObjectPath, place: ObjectPath) -> bool:
    """Copy an object to a name that isn't taken; `False` if it is."""
    with open_file(source) as file, ObjectStaged(place) as staged:
        while piece := file.read(CHUNK):
            staged.write(piece)
        return staged.seal()
