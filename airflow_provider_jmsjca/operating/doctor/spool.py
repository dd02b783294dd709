"""Examines the spool, and the disks of spool and store."""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from airflow_provider_jmsjca.errors import SpoolError
from airflow_provider_jmsjca.operating.doctor.counts import counted
from airflow_provider_jmsjca.operating.findings import Finding, FindingKind, FullDisk
from airflow_provider_jmsjca.spool.files import SpoolPath
from airflow_provider_jmsjca.spool.upkeep.ages import CARE_AFTER, PRUNE_AFTER
from airflow_provider_jmsjca.spool.upkeep.states import NEEDS_CARE, State, batches, prune

_GIB: Final = 1 << 30
_MIB: Final = 1 << 20
# A disk counts as full below this many bytes: writes fail before the last byte is used.
_FULL: Final = 64 * _MIB


def examine_spool(spool: SpoolPath) -> Iterator[Finding]:
    """Yield a finding for each state in which batches need care, if they haven't changed for `CARE_AFTER`.

    The messages of such batches may be only in the spool, and no job seems to process them.
    """
    try:
        found = [each for each in batches(spool) if each.state in NEEDS_CARE]
    except SpoolError as error:
        if "no such spool" not in str(error):
            yield Finding(
                kind=FindingKind.UNKNOWN,
                symptom=f"the spool {spool} cannot be read",
                cause=str(error),
                fix="airflow jms spool list",
            )
        return
    late = [each for each in found if time.time() - each.changed > CARE_AFTER.total_seconds()]
    for state, (cause, fix) in _CARE.items():
        some = [each for each in late if each.state is state]
        if some:
            yield Finding(
                symptom=f"{counted(len(some), 'batch', 'batches')} {state} in the spool, for example "
                f"{some[0].batch_id}",
                cause=some[0].fault or cause,
                fix=fix.format(shlex.quote(some[0].batch_id)),
            )


_CARE: Final = {
    State.UNFINISHED: ("the run that collected them died and was not retried", "airflow jms spool adopt {}"),
    State.UNDONE: ("the Spark job failed or was not retried", "airflow jms spool show {}"),
    State.REJECTS: (
        "rejected rows were not sent to the dead-letter destination",
        "airflow jms dlq list --rejects",
    ),
    State.DAMAGED: ("a file cannot be read", "airflow jms spool verify {}"),
}


def examine_disk(
    name: str, folder: Path, least_free: float = _GIB, *, spool: SpoolPath | None = None
) -> Iterator[Finding]:
    """Yield a finding if a folder's disk has less free space than a minimum.

    Args:
        name: The use of the folder, for example `spool`.
        folder: The folder; it need not exist yet.
        least_free: Minimum free space in bytes.
        spool: The spool in the folder, if it is one. The finding tells how much could be pruned.
    """
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    try:
        usage = shutil.disk_usage(there)
    except OSError as error:
        yield Finding(
            kind=FindingKind.UNKNOWN,
            symptom=f"the disk of the {name} {folder} cannot be examined",
            cause=str(error),
            fix=f"df -h {shlex.quote(str(there))}",
        )
        return
    if (free := usage.free) >= least_free:
        return
    is_full = free < _FULL
    cause = (
        f"{free / _MIB:,.0f} of {usage.total / _MIB:,.0f} MiB are free, expected at least "
        f"{least_free / _MIB:,.0f} MiB"
    )
    effect = ": messages can't be stored" if is_full else ""
    largest = f"du -xah {shlex.quote(str(_mount(there)))} | sort -h | tail -20"
    fix = f"make room on the disk; what fills it: {largest}"
    if spool is not None and (prunable := _prunable(spool)) is not None:
        cause += f"; pruning the spool would free {prunable / _MIB:,.0f} MiB"
        if prunable >= least_free - free:
            fix = "airflow jms spool prune"
    yield Finding(
        symptom=f"the disk of the {name} {folder} is {'full' if is_full else 'nearly full'}{effect}",
        cause=cause,
        fix=fix,
        names=FullDisk(folder=str(folder)) if is_full else None,
    )


def _mount(folder: Path) -> Path:
    """Return the folder at which the disk of a folder is mounted."""
    while not folder.is_mount() and folder != folder.parent:
        folder = folder.parent
    return folder


def _prunable(spool: SpoolPath) -> int | None:
    """Return the bytes that `airflow jms spool prune` would remove; `None` if the spool cannot be read."""
    try:
        return sum(each.bytes for each in prune(spool, older_than=PRUNE_AFTER, dry_run=True).removed)
    except SpoolError:
        return None
