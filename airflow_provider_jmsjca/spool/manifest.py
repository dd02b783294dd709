"""The manifest: the document that lists the content of a batch."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from io import BufferedIOBase
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from airflow_provider_jmsjca.errors import ConfigurationError, SpoolError
from airflow_provider_jmsjca.spool.arrow import layout, pa
from airflow_provider_jmsjca.spool.files import (
    ObjectPath,
    SpoolPath,
    digest_of,
    exists,
    numbered,
    open_file,
    read_document,
)
from airflow_provider_jmsjca.spool.files.objects import SCHEMES
from airflow_provider_jmsjca.spool.schema import FORMAT_VERSION, SCHEMA_VERSION

MANIFEST: Final = "manifest.json"
PRUNED: Final = "pruned"
"""File that exists once a batch's messages have been removed. Its content is the time of the removal."""
_GIVEN_UP: Final = "damaged"
SEGMENT_FILE: Final = re.compile(r"segment-(?P<number>[0-9]{6,9})\.parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A sealed file with messages of a batch.

    Attributes:
        file: The file's name in the batch's folder.
        rows: Number of messages in it.
        bytes: The file's size in bytes.
        sha256: The digest of the whole file, 64 hexadecimal digits.
    """

    file: str
    rows: int
    bytes: int
    sha256: str

    @property
    def number(self) -> int:
        """The number in the segment's name, as in the column `segment` of its rows."""
        match = SEGMENT_FILE.fullmatch(self.file)
        if match is None:
            raise SpoolError(f"{self.file!r} is not the name of a segment")
        return int(match["number"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of a batch: created once and never changed.

    Attributes:
        folder: The batch's folder; not part of the document.
        source: The destination the messages came from, such as `queue://orders`.
        activation: Name of the activation that collected the messages. Its batches share their known message
            ids.
        created: When the batch was completed, ISO 8601 in UTC.
        rows: Number of messages in all segments.
    """

    folder: SpoolPath
    batch_id: str
    source: str
    activation: str
    created: str
    rows: int
    segments: tuple[Segment, ...]
    format_version: int = FORMAT_VERSION
    schema_version: int = SCHEMA_VERSION

    @property
    def path(self) -> SpoolPath:
        """The manifest's own path."""
        return self.folder / MANIFEST

    @property
    def uri(self) -> str:
        """The manifest's URI, the value that tasks pass on by XCom."""
        return path_to_uri(self.path)

    def segment_paths(self) -> list[SpoolPath]:
        """Return the paths of the segments in their order."""
        return [self.folder / segment.file for segment in self.segments]

    def document(self) -> bytes:
        """Return the document as it is stored."""
        content = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "folder"}
        content["segments"] = [asdict(segment) for segment in self.segments]
        return json.dumps(content, indent=2, sort_keys=True).encode() + b"\n"

    @classmethod
    def read(cls, location: str | SpoolPath) -> Manifest:
        """Read a manifest by its path or URI, with an object store's credentials from the environment.

        Raises:
            SpoolError: The manifest is missing, or this version can't read it. The error lists every fault.
            ConfigurationError: The object store can't be used with the settings in the environment.
        """
        path = uri_to_path(location) if isinstance(location, str) else location
        try:
            document = read_document(path)
        except ConfigurationError:
            raise  # from the store's settings; also a ValueError, but the document isn't to blame
        except OSError as error:
            raise SpoolError(f"{path}: the manifest can't be read: {error.strerror or error}") from error
        except ValueError as error:
            raise SpoolError(f"{path}: the manifest is not JSON: {error}") from error
        faults = _faults(document)
        if faults:
            raise SpoolError(f"{path}: {'; '.join(faults)}")
        given = {name: document[name] for name in _FIELDS if name != "segments"}
        segments = tuple(Segment(**segment) for segment in document["segments"])
        return cls(folder=path.parent, segments=segments, **given)

    def verify(self) -> None:
        """Check that every segment exists, with the right size, digest, schema and number of rows.

        Raises:
            SpoolError: A file is missing or damaged; the text names the file, the expected and the found
                value, and the remedy. Or the batch was pruned.
        """
        if exists(self.folder / PRUNED):
            raise SpoolError(f"{self.folder}: the batch was pruned, its messages are gone")
        faults = [fault for segment in self.segments for fault in file_faults(self.folder, segment)]
        if faults:
            raise SpoolError("; ".join([*faults, remedy(self.folder)]))


def given_up(folder: SpoolPath, number: int) -> SpoolPath:
    """Return the path to which `salvage` moves a damaged segment; nothing reads the file there."""
    return folder / f"{_GIVEN_UP}-{number:06d}.parquet"


def given_up_segments(folder: SpoolPath) -> list[int]:
    """Return the numbers of the damaged segments of a batch that `salvage` gave up."""
    return [number for number, _ in numbered(folder, _GIVEN_UP)]


def is_given_up(folder: SpoolPath, number: int) -> bool:
    """Return whether a segment of a batch was given up (see `salvage`)."""
    return exists(given_up(folder, number))


def remedy(folder: SpoolPath) -> str:
    """Return the end of an error text: how to continue with a batch that has a damaged segment."""
    return (
        "restore the file, or go on without the messages in it: "
        f"`airflow jms spool salvage {shlex.quote(folder.name)}`"
    )


def file_faults(folder: SpoolPath, segment: Segment) -> list[str]:
    """Return the fault of a segment's file: missing, or wrong in size, digest, schema or number of rows."""
    path = folder / segment.file
    try:
        with open_file(path) as file:
            size = file.seek(0, os.SEEK_END)
            if size != segment.bytes:
                return [f"{path}: expected {segment.bytes} bytes, found {size}"]
            digest = digest_of(file)
            if digest != segment.sha256:
                return [f"{path}: expected sha256 {segment.sha256}, found {digest}"]
            return segment_faults(path, file, rows=segment.rows)
    except OSError as error:
        return [f"{path}: can't be read: {error.strerror or error}"]


def segment_faults(path: SpoolPath, file: BufferedIOBase, *, rows: int | None = None) -> list[str]:
    """Return the fault of a segment's footer: it can't be read, or has another schema or number of rows.

    Args:
        path: The segment's path, for the text of the fault.
        file: The segment, open for reading.
        rows: Expected number of rows; `None` doesn't check the number.

    Returns:
        A list with the fault; an empty list if the footer is sound.
    """
    try:
        with layout.SegmentReader(file) as parquet:
            schema, found = parquet.schema_arrow, parquet.metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        return [f"{path}: not a Parquet file: {error}"]
    if not schema.equals(layout.MESSAGE_SCHEMA):
        return [f"{path}: expected message schema version {SCHEMA_VERSION}, found {_difference(schema)}"]
    if rows is not None and found != rows:
        return [f"{path}: expected {rows} rows, found {found}"]
    return []


def _difference(schema: pa.Schema) -> str:
    for index, expected in enumerate(layout.MESSAGE_SCHEMA):
        found = schema.field(index) if index < len(schema) else None
        if found is None or not found.equals(expected):
            name = "missing" if found is None else f"{found.name} {found.type}"
            return f"column {index + 1} is {name} instead of {expected.name} {expected.type}"
    return f"{len(schema)} columns instead of {len(layout.MESSAGE_SCHEMA)}"


_FIELDS: Mapping[str, type] = {
    "format_version": int,
    "schema_version": int,
    "batch_id": str,
    "source": str,
    "activation": str,
    "created": str,
    "rows": int,
    "segments": list,
}
_SEGMENT_FIELDS: Mapping[str, type] = {"file": str, "rows": int, "bytes": int, "sha256": str}


def _faults(document: Any) -> list[str]:
    if not isinstance(document, dict):
        return [f"expected a JSON object, found {type(document).__name__}"]
    faults = _field_faults("", document, _FIELDS)
    if faults:
        return faults
    for name, version in (("format_version", FORMAT_VERSION), ("schema_version", SCHEMA_VERSION)):
        if document[name] != version:
            faults.append(f"{name}: expected {version}, found {document[name]}")
    for index, segment in enumerate(document["segments"]):
        place = f"segments[{index}]"
        if not isinstance(segment, dict):
            faults.append(f"{place}: expected a JSON object, found {type(segment).__name__}")
            continue
        faults.extend(_field_faults(f"{place}.", segment, _SEGMENT_FIELDS))
        file = segment.get("file")
        if isinstance(file, str) and not SEGMENT_FILE.fullmatch(file):
            faults.append(f"{place}.file: expected a name such as segment-000000.parquet, found {file!r}")
    if not faults and (total := sum(item["rows"] for item in document["segments"])) != document["rows"]:
        faults.append(f"rows: expected {total}, the sum of the segments, found {document['rows']}")
    return faults


def _field_faults(place: str, found: dict[str, Any], fields: Mapping[str, type]) -> list[str]:
    faults = [
        f"{place}{name}: expected {kind.__name__}, found "
        + (f"{found[name]!r}" if name in found else "nothing")
        for name, kind in fields.items()
        if type(found.get(name)) is not kind
    ]
    faults.extend(f"{place}{name}: unknown field" for name in found if name not in fields)
    return faults


def path_to_uri(path: SpoolPath) -> str:
    """Return the URI of a path. The path of an object is its URI already."""
    if isinstance(path, ObjectPath):
        return str(path)
    return "file://" + quote(str(path.absolute()))


def path_for_spark(path: SpoolPath) -> str:
    """Return a path in the form that Spark's writers take.

    Hadoop doesn't decode the path: in a proper URI, `%20` would be a part of the name.
    """
    return path.uri_for_spark if isinstance(path, ObjectPath) else f"file://{path.absolute()}"


def pattern_for_spark(path: SpoolPath) -> str:
    """Return a path in the form that Spark's readers take, with `*`, `[` and the like escaped."""
    return re.sub(r"[*?\[\]{}\\]", r"\\\g<0>", path_for_spark(path))


def uri_to_path(location: str) -> SpoolPath:
    """Return the path that a URI or a plain absolute path names.

    Raises:
        SpoolError: The location is neither a URI nor an absolute path.
    """
    if location.startswith("/"):
        return _file(location)
    try:
        parts = urlsplit(location)
    except ValueError as error:
        raise SpoolError(f"{location!r}: expected a URI: {error}") from error
    if parts.scheme in SCHEMES:
        return ObjectPath.parse(location)
    if (
        parts.scheme != "file"
        or parts.netloc not in {"", "localhost"}
        or not parts.path.startswith("/")
        or "?" in location
        or "#" in location
    ):
        raise SpoolError(
            f"{location!r}: expected a file:///... URI or an absolute path, on storage every node of the "
            "Spark cluster sees; '#' and '?' in a URI are written %23 and %3F"
        )
    return _file(unquote(parts.path))


def _file(name: str) -> Path:
    try:
        if b"\0" in os.fsencode(name):
            raise SpoolError(f"{name!r} can't name a file: it contains NUL")
    except UnicodeEncodeError as error:
        raise SpoolError(f"{name!r} can't name a file: {error}") from error
    return Path(name)
