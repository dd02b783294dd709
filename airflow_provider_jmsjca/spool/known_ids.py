"""The identities of messages in sealed segments, and how far back they are remembered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from airflow_provider_jmsjca.core.message.message import Identity, identity
from airflow_provider_jmsjca.errors import SpoolError
from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.spool.arrow import layout, pa
from airflow_provider_jmsjca.spool.files import SpoolPath, open_file, read_document
from airflow_provider_jmsjca.spool.manifest import remedy
from airflow_provider_jmsjca.spool.schema import REASON_PROPERTY

_log = safe_logger(__name__)
BATCH = "batch.json"
SEGMENT_STEM = "segment"
_IDENTIFYING = ["message_id", "destination", "timestamp", "body", "properties"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeduplicationWindow:
    """How far back messages of an activation's earlier batches are recognised.

    The window bounds the ids that a batch reads from other batches. A batch always knows all of its own ids.
    A broker redelivers the messages of an uncommitted unit to the next receiver, so the newest ids suffice.

    Attributes:
        count: Maximum number of ids of earlier batches, from the newest segment on. The segment whose ids
            reach the maximum is remembered in full.
        age: Maximum age of a segment since it was sealed.
    """

    count: int = 200_000
    age: timedelta = timedelta(days=7)


def read_ids(segment: SpoolPath) -> list[str]:
    """Return the keys (see `message_key`) of the messages in a segment, except for messages without id.

    Raises:
        SpoolError: The segment can't be read.
    """
    try:
        with _reading(segment) as file:
            return table_keys(file.read(columns=["message_id", "destination"]))
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(segment, "ids", error) from error


def count_rows(segment: SpoolPath) -> int:
    """Return how many messages a segment holds.

    Raises:
        SpoolError: The segment can't be read.
    """
    try:
        with _reading(segment) as file:
            return int(file.metadata.num_rows)
    except (pa.ArrowException, OSError) as error:
        raise SpoolError(f"{segment}: can't be read: {error}") from error


@contextmanager
def _reading(segment: SpoolPath) -> Iterator[layout.SegmentReader]:
    with (
        open_file(segment) as plain,
        layout.SegmentReader(plain) as file,
    ):
        if not file.schema_arrow.equals(layout.MESSAGE_SCHEMA):
            raise pa.ArrowInvalid("its columns are not those of a segment")
        yield file


def read_identities(segment: SpoolPath) -> Iterator[Identity]:
    """Yield the identities of the messages in a segment; messages without id are left out.

    Raises:
        SpoolError: The segment can't be read, or its columns aren't those of this version.
    """
    try:
        with _reading(segment) as file:
            for number in range(file.num_row_groups):
                yield from table_identities(file.read_row_group(number, columns=_IDENTIFYING))
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(segment, "identities", error) from error


def _unreadable(segment: SpoolPath, what: str, error: Exception) -> SpoolError:
    return SpoolError(
        f"{segment}: the {what} can't be read: {error}; {remedy(segment.parent)}. Messages of it that the "
        "broker redelivers are then stored again"
    )


def table_identities(table: pa.Table) -> Iterator[Identity]:
    """Yield the identities of the messages in a table."""
    instants = table.column("timestamp").cast(pa.int64()).to_pylist()
    columns = (table.column(name).to_pylist() for name in ("message_id", "destination", "body", "properties"))
    for message_id, destination, body, properties, instant in zip(*columns, instants, strict=True):
        said = {name: value for name, value in properties or () if name != REASON_PROPERTY}
        found = identity(message_id, destination, instant, body or b"", said)
        if found is not None:
            yield found


def table_keys(table: pa.Table) -> list[str]:
    """Return the keys of the messages in a table, except for messages without id."""
    ids, places = table.column("message_id").to_pylist(), table.column("destination").to_pylist()
    return [message_key(*pair) for pair in zip(ids, places, strict=True) if pair[0] is not None]


def message_key(message_id: str, destination: str | None) -> str:
    """Return a message's key for the first lookup. Whole identities are compared only if keys are equal.

    The id alone isn't enough: a broker that copies a message to several queues gives all copies the same id.
    """
    return f"{message_id} {destination or ''}"


def activation_in(folder: SpoolPath) -> str | None:
    """Return the name of the activation that collected a batch.

    Returns:
        `None` if the folder isn't a batch's. Also `None`, after a warning, if the batch's header can't be
        read.
    """
    try:
        document = read_document(folder / BATCH)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _log.warning(
            "%s can't be read (%s): ignoring this batch, so messages of it that the broker redelivers are "
            "stored again. Restore the file, or move the folder out of the spool",
            folder / BATCH,
            error,
        )
        return None
    activation = document.get("activation") if isinstance(document, dict) else None
    return activation if isinstance(activation, str) else None
