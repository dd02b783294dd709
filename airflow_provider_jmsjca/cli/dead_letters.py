"""The commands of `airflow jms dlq`."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import uuid
from datetime import timedelta
from itertools import islice

from airflow.cli.simple_table import AirflowConsole

from airflow_provider_jmsjca.cli.commands import cells, echo, one_line_errors
from airflow_provider_jmsjca.cli.queues import administration_of, all_messages, broker_connection, queue_named
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.operating.dead_letters import DeadLetterGroup, Replay, grouped, replay
from airflow_provider_jmsjca.operating.messages import moment

_INTERRUPTED = 130


@one_line_errors
def list_command(args: argparse.Namespace) -> None:
    """Print the dead letters of a queue, grouped by reason and original destination."""
    with administration_of(args.conn_id) as administration:
        found = all_messages(administration, queue_named(args.queue), args.selector)
        letters = list(islice(found, args.limit + 1))
        note = administration.browse_note
    groups = grouped(letters[: args.limit])
    AirflowConsole().print_as(
        data=[_row(each) for each in groups], output=args.output, mapper=lambda row: cells(row, args.output)
    )
    if len(letters) > args.limit:
        echo(f"note: these are the first {args.limit} dead letters; give a higher --limit")
    if note:
        echo(f"note: {note}")


@one_line_errors
def replay_command(args: argparse.Namespace) -> None:
    """Send dead letters back, and print how many went where and why others stay.

    Ctrl-C ends the replay after the unit of work under way; the exit code is 130 then.
    """
    asked = Replay(
        run=args.run or uuid.uuid4().hex,
        target=None if args.to is None else Destination.parse(args.to),
        origins=frozenset(map(Destination.parse, args.origin or ())),
        selector=args.selector,
        most=args.limit,
        max_age=None if args.max_age is None else timedelta(seconds=args.max_age),
        per_second=args.rate,
        dry_run=args.dry_run,
    )
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    shows_progress = sys.stderr.isatty()

    def progress(sent: int) -> None:
        if shows_progress:
            sys.stderr.write(f"\r{sent} dead letters sent back")
            sys.stderr.flush()

    with broker_connection(args.conn_id) as connection:
        source = Destination.queue(queue_named(args.queue))
        result = replay(connection, source, asked, stopped=stopped, progress=progress)
    if shows_progress:
        sys.stderr.write("\n")
    done = "would be sent back" if args.dry_run else "sent back"
    rows = [{"count": str(count), "what": f"{done} to {where}"} for where, count in result.sent.most_common()]
    rows += [{"count": str(count), "what": f"left: {why}"} for why, count in result.left.most_common()]
    AirflowConsole().print_as(
        data=rows or [{"count": "0", "what": "no dead letters"}],
        output=args.output,
        mapper=lambda row: cells(row, args.output),
    )
    if not result.complete:
        echo(
            "note: there are more dead letters, behind those that were counted; choose letters with "
            "--selector, or send those in front elsewhere with --to and --limit"
        )
    if stopped.is_set():
        echo("note: interrupted; run the command again to send back the rest")
        raise SystemExit(_INTERRUPTED)


def _row(group: DeadLetterGroup) -> dict[str, str]:
    return {
        "count": str(group.count),
        "from": "" if group.destination is None else str(group.destination),
        "reason": group.reason,
        "first": moment(group.first),
        "last": moment(group.last),
        "example": group.example or "",
    }
