"""Rejected rows of Spark batches that are in the spool, but not yet on a dead-letter queue."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from airflow_provider_jmsjca.core.masking import masked_text
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import ConfigurationError, SpoolError
from airflow_provider_jmsjca.spark.rejects import (
    Reject,
    general_reason,
    numbered_rejects,
    rejected_message,
)
from airflow_provider_jmsjca.spool.files import SpoolPath
from airflow_provider_jmsjca.spool.manifest import MANIFEST, Manifest
from airflow_provider_jmsjca.spool.upkeep.states import BatchState, State, batches

_ROW: Final = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectGroup:
    """Rejected rows of a batch with the same reason.

    Attributes:
        reason: Class and text of the error, without values that differ between rows; passwords are masked.
        source: The destination from which the batch was collected; empty if the batch does not name it.
        batch_id: Name of the batch.
        count: Number of rows.
        changed: Time of the batch's last change, in seconds since the epoch.
        row: The first of the rows, as `SEGMENT/POSITION`.
    """

    reason: str
    source: str
    batch_id: str
    count: int
    changed: float
    row: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectList:
    """Rejected rows in a spool.

    Attributes:
        groups: Groups by batch and reason.
        more: Whether the spool has more rejected rows than those in the groups.
        faults: An error text for each batch whose rejects can't be read.
    """

    groups: tuple[RejectGroup, ...]
    more: bool
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedRow:
    """One rejected row.

    Attributes:
        batch_id: Name of the batch.
        row: Place of the row in the batch, as `SEGMENT/POSITION`.
        message: The message as received.
        exception_class: Class of the error.
        exception_message: The reason; passwords are masked.
        sent: Whether the message was sent to the dead-letter destination.
    """

    batch_id: str
    row: str
    message: JmsMessage
    exception_class: str
    exception_message: str
    sent: bool


def list_rejects(spool: SpoolPath, *, limit: int = 1000) -> RejectList:
    """Return the rejected rows that are not on a dead-letter queue yet, by batch and reason.

    Args:
        spool: The folder of all batches.
        limit: Maximum number of rows to count.

    Raises:
        SpoolError: The spool can't be read.
    """
    groups: dict[tuple[str, str], RejectGroup] = {}
    faults: list[str] = []
    examined = 0
    for batch in _with_rejects(spool):
        try:
            for reject in _unsent(batch):
                if examined == limit:
                    return RejectList(groups=tuple(groups.values()), more=True, faults=tuple(faults))
                examined += 1
                reason = _reason(reject)
                before = groups.get((batch.batch_id, reason))
                groups[batch.batch_id, reason] = RejectGroup(
                    reason=reason,
                    source=batch.source or "",
                    batch_id=batch.batch_id,
                    count=1 if before is None else before.count + 1,
                    changed=batch.changed,
                    row=f"{reject.segment}/{reject.position}" if before is None else before.row,
                )
        except SpoolError as error:
            faults.append(str(error))
    return RejectList(groups=tuple(groups.values()), more=False, faults=tuple(faults))


def show_reject(spool: SpoolPath, batch_id: str, row: str) -> RejectedRow:
    """Return one rejected row with its message.

    Args:
        spool: The folder of all batches.
        batch_id: Name of the batch.
        row: Place of the row in the batch, as `SEGMENT/POSITION`.

    Raises:
        ConfigurationError: `row` has another form, or the row was not rejected.
        SpoolError: The batch doesn't exist, or can't be read.
    """
    found = _ROW.fullmatch(row)
    if found is None:
        raise ConfigurationError(f"row {row!r}: expected SEGMENT/POSITION, for example 0/17")
    (batch,) = batches(spool, [batch_id])
    segment, position = int(found[1]), int(found[2])
    rejected = rejected_message(Manifest.read(batch.folder / MANIFEST), segment, position)
    if rejected is None:
        raise ConfigurationError(
            f"row {row} of batch {batch_id!r} was not rejected; see airflow jms dlq list --rejects"
        )
    return RejectedRow(
        batch_id=batch_id,
        row=f"{segment}/{position}",
        message=rejected.message,
        exception_class=rejected.exception_class,
        exception_message=masked_text(rejected.exception_message),
        sent=rejected.number < batch.dead_lettered,
    )


def _with_rejects(spool: SpoolPath) -> Iterator[BatchState]:
    return (each for each in batches(spool) if each.state is State.REJECTS)


def _unsent(batch: BatchState) -> Iterator[Reject]:
    for number, reject in numbered_rejects(Manifest.read(batch.folder / MANIFEST)):
        if number >= batch.dead_lettered:
            yield reject


def _reason(reject: Reject) -> str:
    name = reject.exception_class.rpartition(".")[2]
    return ": ".join(filter(None, (name, general_reason(reject.exception_message))))
