"""The commands of `airflow jms spool`."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import sys
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from airflow.sdk.exceptions import AirflowException

from airflow_provider_jmsjca.cli.commands import echo, one_line_errors, print_rows
from airflow_provider_jmsjca.errors import ConfigurationError
from airflow_provider_jmsjca.escaping import escaped
from airflow_provider_jmsjca.hooks.spool import spool_path
from airflow_provider_jmsjca.spark.rejects import reject_reasons
from airflow_provider_jmsjca.spark.replays import selected_batches
from airflow_provider_jmsjca.spool.batch_id import TaskKey, is_replay
from airflow_provider_jmsjca.spool.files import SpoolPath, exists
from airflow_provider_jmsjca.spool.manifest import MANIFEST, Manifest, given_up_segments
from airflow_provider_jmsjca.spool.splits import lineage
from airflow_provider_jmsjca.spool.upkeep.replays import Replay
from airflow_provider_jmsjca.spool.upkeep.salvage import salvage
from airflow_provider_jmsjca.spool.upkeep.states import (
    BatchState,
    PruneResult,
    State,
    adopt,
    batches,
    prune,
    verify,
)


@one_line_errors
def list_command(args: argparse.Namespace) -> None:
    """Print the batches, one on each line; with `--state`, only batches in one of these states."""
    wanted = args.state or ()
    found = batches(spool_path(args.spool_path))
    _print(args, (_row(batch) for batch in found if not wanted or batch.state in wanted))


@one_line_errors
def show_command(args: argparse.Namespace) -> None:
    """Print all details of one batch, including its tables and the reasons of its rejects."""
    [batch] = batches(spool_path(args.spool_path), [args.batch])
    key = TaskKey.parse(batch.batch_id)
    values = {
        **_row(batch),
        "bytes": str(batch.bytes),
        "folder": str(batch.folder),
        "activation": batch.activation or "",
        "segments": str(batch.segments),
        "attempts": str(batch.attempts),
        **{f"stored in {table}": str(rows) for table, rows in batch.stored},
        **{f"segment {number}": "damaged, given up" for number in given_up_segments(batch.folder)},
        **_replayed(batch),
        **({} if key is None else {"dag": key.dag_id, "run": key.run_id, "task": key.task_id}),
        "fault": verify(batch) or "",
    }
    if exists(batch.folder / MANIFEST):
        manifest = Manifest.read(batch.folder / MANIFEST)
        reasons = reject_reasons(manifest) if batch.rejected else {}
        values |= {f"rejected, {reason}": str(count) for reason, count in reasons.items()}
        parts = lineage(manifest)
        values |= {f"part, rows {rows}": became for rows, became in parts}
    _print(args, ({"name": name, "value": value} for name, value in values.items()))


@one_line_errors
def verify_command(args: argparse.Namespace) -> None:
    """Read all files of the batches and print each batch's fault; exit with code 1 if a batch has one."""
    spool = spool_path(args.spool_path)
    checked = [(batch, verify(batch)) for batch in batches(spool, args.batches)]
    _print(
        args,
        (
            {"batch": batch.batch_id, "state": str(batch.state), "fault": fault or "none"}
            for batch, fault in checked
        ),
    )
    if any(fault for _, fault in checked):
        raise SystemExit(1)


@one_line_errors
def prune_command(args: argparse.Namespace) -> None:
    """Remove the messages of batches no longer needed, and print the batches; `--dry-run` only prints.

    Standard error gets the reasons for keeping other batches. If there is nothing to remove, it gets the
    number of batches and the age of the oldest.
    """
    spool = spool_path(args.spool_path)
    outcome = prune(
        spool,
        older_than=timedelta(days=args.older_than),
        collected=args.collected,
        forget=None if args.forget is None else timedelta(days=args.forget),
        dry_run=args.dry_run,
    )
    if outcome.removed or args.output in {"json", "yaml"}:
        _print_removed(args, outcome)
    if not outcome.removed:
        echo(f"note: {_spool_summary(spool, args.older_than)}")
    for line in outcome.kept_summary():
        echo(line)


def _print_removed(args: argparse.Namespace, outcome: PruneResult) -> None:
    _print(
        args,
        (
            {
                "batch": each.batch_id,
                "left": "nothing" if each.whole else "its report",
                "bytes": str(each.bytes),
                "done": "no, a dry run" if args.dry_run else "yes",
            }
            for each in outcome.removed
        ),
    )


def _spool_summary(spool: SpoolPath, days: float) -> str:
    """Return the number of batches with messages in the spool and the age of the oldest, as a sentence."""
    found = [each for each in batches(spool) if each.state is not State.PRUNED]
    if not found:
        return f"nothing to remove: the spool {spool} has no batches with messages"
    oldest = min(found, key=lambda each: each.changed)
    age = (time.time() - oldest.changed) / timedelta(days=1).total_seconds()
    many = "1 batch" if len(found) == 1 else f"{len(found)} batches"
    return (
        f"nothing to remove: {many} looked at in the spool {spool}; the oldest, {oldest.batch_id}, last "
        f"changed {age:.1f} days ago, and batches go after {days:g} days (--older-than)"
    )


@one_line_errors
def adopt_command(args: argparse.Namespace) -> None:
    """Finish batches that their tasks left unfinished, and print the URI of each manifest."""
    spool = spool_path(args.spool_path)
    for name in args.batches:
        manifest = adopt(spool, name)
        if manifest is None:
            echo(f"note: {name}: no message was acknowledged for it; it is removed")
        else:
            sys.stdout.write(f"{escaped(manifest.uri)}\n")


@one_line_errors
def salvage_command(args: argparse.Namespace) -> None:
    """Give up the damaged segments of batches, and print them; the rest of each batch remains usable.

    Standard error gets the names of batches without damaged segments.
    """
    spool = spool_path(args.spool_path)
    lost = {name: salvage(spool, name) for name in args.batches}
    _print(
        args,
        (
            {
                "batch": name,
                "segment": each.file,
                "messages": "" if each.rows is None else str(each.rows),
                "fault": each.fault,
                "kept": each.kept.name,
            }
            for name, found in lost.items()
            for each in found
        ),
    )
    for name in (name for name, found in lost.items() if not found):
        echo(f"note: {name}: no segment is damaged")


@one_line_errors
def replay_command(args: argparse.Namespace) -> None:
    """Process messages of earlier batches again, and print the result; `--dry-run` only prints batches."""
    from airflow_provider_jmsjca.operators.replay import JmsReplayOperator  # noqa: PLC0415 - needs Spark's provider

    try:
        job_args = shlex.split(args.job_args)
    except ValueError as error:
        raise ConfigurationError(f"--job-args: {error}; expected arguments as in a shell") from error
    operator = JmsReplayOperator(
        task_id="replay",
        batches=args.batches,
        since=args.since,
        until=args.until,
        source=args.source,
        rejects=args.rejects,
        jms_conn_id=args.conn_id,
        spool_path=args.spool_path,
        application=args.application,
        application_args=job_args,
        spark_conn_id=args.spark_conn_id,
        jdbc_conn_id=args.jdbc_conn_id,
        dead_letter_destination=args.dead_letter_destination,
        bisect=args.bisect,
    )
    selection = operator.selection()
    if args.dry_run:
        found = selected_batches(spool_path(args.spool_path), selection)
        _print(
            args,
            (
                {
                    "batch": each.batch_id,
                    "source": each.source,
                    "messages": str(each.of),
                    "to_replay": str(each.rows),
                }
                for each in found
            ),
        )
        return
    key = args.name or json.dumps(
        [
            *sorted(selection.batches),
            args.since,
            args.until,
            args.source,
            args.rejects,
            args.application,
            job_args,
        ]
    )
    try:
        # Airflow logs to standard output, which must contain only the result.
        with contextlib.redirect_stdout(sys.stderr):
            report = operator.replay(key)
    except AirflowException as error:
        echo(f"error: {error}")
        raise SystemExit(1) from error
    if report is None:
        echo("note: no message is selected")
        return
    fields = ("batch_id", "rows", "rejected", "dead_lettered")
    values = {name: str(report[name]) for name in fields} | {
        "replay_of": ", ".join(report["replay_of"]),
        **{f"stored in {table}": str(rows) for table, rows in report["stored"].items()},
        **{f"rejected, {reason}": str(count) for reason, count in report["reasons"].items()},
    }
    _print(args, ({"name": name, "value": value} for name, value in values.items()))


def _row(batch: BatchState) -> dict[str, str]:
    changed = datetime.fromtimestamp(batch.changed, UTC).isoformat(timespec="seconds")
    return {
        "batch": batch.batch_id,
        "state": str(batch.state),
        "messages": "" if batch.rows is None else str(batch.rows),
        "rejected": str(batch.rejected),
        "dead_lettered": str(batch.dead_lettered),
        "source": batch.source or "",
        "changed": changed,
    }


def _replayed(batch: BatchState) -> dict[str, str]:
    if not is_replay(batch.batch_id) or not exists(batch.folder / MANIFEST):
        return {}
    replay = Replay.read(batch.folder)
    return {"replay of" if not replay.rejects else "replay of rejects of": ", ".join(replay.of)}


def _print(args: argparse.Namespace, rows: Iterable[Mapping[str, str]]) -> None:
    print_rows(list(rows), args.output)
