"""Objects of a store (S3, Google Cloud Storage, Azure), each created once by a conditional put.

What POSIX does by `link(2)` the store does by the header `If-None-Match: *` (Google: `ifGenerationMatch: 0`).
Of many who create an object one wins, and nothing is ever replaced. A store that ignores the condition is
refused before a message is taken.

There are no locks and no renames. Who goes on with a batch shuts out the writer before by a fence alone, as
`spool.spool` says. A taken name is never given back while somebody may still rely on it.

Each object carries a mark of its writer. So a put whose answer was lost is told from one that came too late.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import mmap
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from io import BufferedIOBase, BytesIO
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, cast
from urllib.parse import urlsplit

from airflow_provider_jmsjca.errors import ConfigurationError, SpoolError
from airflow_provider_jmsjca.spool.files.staged import Staged

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES: Final = {"s3": "s3a", "s3a": "s3a", "gs": "gs", "abfs": "abfss", "abfss": "abfss"}
"""The schemes of stores with conditional puts, and what Hadoop calls each."""
_WRITER: Final = "writer"
_PROBE: Final = ".conditional-put"
_IN_MEMORY: Final = 1024 * 1024
_CHUNK: Final = 8 * 1024 * 1024
_NANOSECONDS: Final = 1_000_000_000
# How long a request is repeated while the store isn't reachable or is busy.
_PATIENCE: Final = timedelta(minutes=2)
_LONGEST_PAUSE: Final = timedelta(seconds=3)
_LONGEST_REQUEST: Final = timedelta(minutes=2)
_LONGEST_CONNECT: Final = timedelta(seconds=5)
_MANY_TRIES: Final = 1_000
_PUTS: Final = 3


class ObjectEntry(NamedTuple):
    """An object, or what a folder is elsewhere; as `posix.Entry`."""

    place: ObjectPath
    size: int
    modified: int
    is_folder: bool


class StoreError(SpoolError, OSError):
    """The store refused, or couldn't be reached."""


class Bucket:
    """A bucket or container, and how it is reached. One connects when it is first used.

    Args:
        root: Such as `s3://bucket`, without a slash at the end.
        options: Credentials, endpoint, region, by the names that the environment's variables have, in lower
            case. What isn't there is taken from the environment.
    """

    def __init__(self, root: str, options: Mapping[str, str] | None = None) -> None:
        self.root = root
        self.options = dict(options or {})
        self._store: ObjectStore | None = None
        self._is_fit = False

    @property
    def store(self) -> ObjectStore:
        """The client.

        Raises:
            ConfigurationError: obstore isn't installed, or the options don't fit.
        """
        if self._store is None:
            try:
                from obstore.exceptions import BaseError  # noqa: PLC0415 - an extra
                from obstore.store import from_url  # noqa: PLC0415 - an extra
            except ImportError as error:
                raise ConfigurationError(
                    f"a spool at {self.root} needs obstore: pip install 'airflow-provider-jmsjca[s3]', on "
                    f"the workers and where Spark's driver runs ({error})"
                ) from error
            endpoint = self.options.get("aws_endpoint_url") or os.environ.get("AWS_ENDPOINT_URL", "")
            try:
                self._store = from_url(
                    self.root,
                    config=cast("Any", self.options),
                    client_options={
                        "allow_http": endpoint.startswith("http://"),
                        "timeout": _LONGEST_REQUEST,
                        "connect_timeout": _LONGEST_CONNECT,
                    },
                    retry_config={
                        "max_retries": _MANY_TRIES,
                        "retry_timeout": _PATIENCE,
                        "backoff": {"max_backoff": _LONGEST_PAUSE},
                    },
                )
            except (BaseError, ValueError) as error:
                raise ConfigurationError(f"a spool at {self.root}: {_said(error)}") from error
        return self._store

    def require_conditional_put(self, spool: ObjectPath) -> None:
        """Refuse a store on which two writers could both create one object.

        Raises:
            ConfigurationError: It is one.
            StoreError: It can't be reached.
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
        """Return what a URI names, such as `s3://bucket/jms-spool`; nothing in it is an escape.

        Raises:
            SpoolError: It has no bucket, or a part that is empty, `.` or `..`.
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
        """What it is in."""
        return ObjectPath(self.bucket, self.key.rpartition("/")[0])

    @property
    def uri_for_spark(self) -> str:
        """What Hadoop calls it."""
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


class ObjectStaged(Staged):
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
    """Create an object unless there is one.

    Guarantee: when it returns, the object is as durable as the store makes it. `True` means that this call
    created it, also if the store's answer was lost and the request was repeated.

    Raises:
        StoreError: The store refused, or wasn't reachable for two minutes. The object may be there, or come
            to be there later, in full.
    """
    import obstore  # noqa: PLC0415 - an extra
    from obstore.exceptions import AlreadyExistsError, GenericError  # noqa: PLC0415 - an extra

    mark = uuid.uuid4().hex
    store = place.bucket.store
    with _answers(place):
        for left in reversed(range(_PUTS)):
            try:
                obstore.put(
                    store,
                    place.key,
                    content,
                    mode="create",
                    use_multipart=False,
                    attributes={_WRITER: mark},
                )
            except AlreadyExistsError:
                return _writer(place) == mark
            except GenericError:
                found = _writer(place)
                if found is not None:
                    return found == mark
                if not left:
                    raise
            else:
                return True
    raise AssertionError(place)  # the loop returns or raises


def _writer(place: ObjectPath) -> str | None:
    """Return the mark of who wrote an object; `None` if there is none."""
    import obstore  # noqa: PLC0415 - an extra

    try:
        found = obstore.get(place.bucket.store, place.key, options={"head": True})
    except FileNotFoundError:
        return None
    return found.attributes.get(_WRITER, "")


def put(place: ObjectPath, content: bytes) -> None:
    """Create an object, or replace it."""
    import obstore  # noqa: PLC0415 - an extra

    with _answers(place):
        obstore.put(place.bucket.store, place.key, content, use_multipart=False)


def open_file(place: ObjectPath) -> BufferedIOBase:
    """Fetch an object, to read anywhere in it; a large one into a temporary file without a name."""
    import obstore  # noqa: PLC0415 - an extra

    with _answers(place):
        found = obstore.get(place.bucket.store, place.key)
        size = found.meta["size"]
        file = BytesIO() if size <= _IN_MEMORY else tempfile.TemporaryFile()  # noqa: SIM115 - the caller's
        try:
            for chunk in found.stream(min_chunk_size=_CHUNK):
                file.write(chunk)
            got = file.tell()
            file.seek(0)
        except BaseException:
            file.close()
            raise
    if got != size:
        file.close()
        raise StoreError(errno.EIO, f"expected {size} bytes, got {got}", str(place))
    return cast("BufferedIOBase", file)


def exists(place: ObjectPath) -> bool:
    """Tell whether there is an object of this name."""
    try:
        entry_of(place)
    except FileNotFoundError:
        return False
    return True


def is_folder(place: ObjectPath) -> bool:
    """Tell whether there are objects below this name."""
    import obstore  # noqa: PLC0415 - an extra

    with _answers(place):
        return any(obstore.list(place.bucket.store, prefix=place.key or None, chunk_size=1))


def entry_of(place: ObjectPath) -> ObjectEntry:
    """Return size and age of an object."""
    import obstore  # noqa: PLC0415 - an extra

    with _answers(place):
        return _entry(place.bucket, obstore.head(place.bucket.store, place.key))


def entries(folder: ObjectPath) -> list[ObjectEntry]:
    """Return what is in a folder, by name; a folder that isn't there has nothing in it."""
    import obstore  # noqa: PLC0415 - an extra

    with _answers(folder):
        found = obstore.list_with_delimiter(folder.bucket.store, prefix=folder.key or None)
    folders = [
        ObjectEntry(ObjectPath(folder.bucket, key.strip("/")), 0, 0, is_folder=True)
        for key in found["common_prefixes"]
    ]
    return sorted([*folders, *(_entry(folder.bucket, each) for each in found["objects"])])


def walk(folder: ObjectPath) -> list[ObjectEntry]:
    """Return the objects in a folder and in those below it."""
    import obstore  # noqa: PLC0415 - an extra

    with _answers(folder):
        return [
            _entry(folder.bucket, each)
            for chunk in obstore.list(folder.bucket.store, prefix=folder.key or None)
            for each in chunk
        ]


def _entry(bucket: Bucket, found: Mapping[str, Any]) -> ObjectEntry:
    modified: datetime = found["last_modified"]
    return ObjectEntry(
        ObjectPath(bucket, found["path"]),
        found["size"],
        int(modified.timestamp()) * _NANOSECONDS + modified.microsecond * 1_000,
        is_folder=False,
    )


def remove(place: ObjectPath) -> None:
    """Remove an object, if it is there."""
    import obstore  # noqa: PLC0415 - an extra

    with contextlib.suppress(FileNotFoundError), _answers(place):
        obstore.delete(place.bucket.store, place.key)


def remove_folder(folder: ObjectPath) -> None:
    """Remove all objects of a folder."""
    for found in walk(folder):
        remove(found.place)


def take_away(folder: ObjectPath, *, may_go: Callable[[ObjectPath], bool], taken: str) -> bool:
    """Remove a folder but for the objects whose names begin as `taken`; `False` if it may not go.

    Who works on the batch meanwhile relies on these alone.
    """
    if not is_folder(folder) or not may_go(folder):
        return False
    for found in walk(folder):
        if not found.place.name.startswith(taken):
            remove(found.place)
    return True


def give_name(source: ObjectPath, place: ObjectPath) -> bool:
    """Copy an object to a name that isn't taken; `False` if it is."""
    with open_file(source) as file, ObjectStaged(place) as staged:
        while piece := file.read(_CHUNK):
            staged.write(piece)
        return staged.seal()


@contextlib.contextmanager
def _answers(place: ObjectPath) -> Iterator[None]:
    """Raise what the store says as the error of the operating system that it is like."""
    from obstore.exceptions import (  # noqa: PLC0415 - an extra
        BaseError,
        PermissionDeniedError,
        UnauthenticatedError,
    )

    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, "there is no such object or bucket", str(place)) from error
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise StoreError(errno.EACCES, _said(error), str(place)) from error
    except BaseError as error:
        raise StoreError(errno.EIO, _said(error), str(place)) from error


def _said(error: Exception) -> str:
    first, *_ = str(error).splitlines() or [type(error).__name__]
    return first
