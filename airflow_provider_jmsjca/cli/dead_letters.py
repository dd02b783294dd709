"""The commands of `airflow jms dlq`."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_jmsjca.cli.commands import echo, one_line_errors, print_rows
from airflow_provider_jmsjca.cli.queues import (
    administration_of,
    broker_connection,
    no_message_note,
    note_without_warning,
    print_message,
    warn_before_browsing,
)
from airflow_provider_jmsjca.core.destination import Destination
from airflow_provider_jmsjca.core.message import JmsMessage
from airflow_provider_jmsjca.errors import ConfigurationError, JmsError, SpoolError
from airflow_provider_jmsjca.escaping import escaped, shell_arguments
from airflow_provider_jmsjca.operating.dead_letters import (
    DeadLetterGroup,
    DeadLetterQueue,
    Replay,
    edit_text,
    editable_message,
    edited_message,
    list_dead_letter_queues,
    list_dead_letters,
    move_details,
    replay_dead_letters,
    require_selection,
    resend_edited,
    times,
)
from airflow_provider_jmsjca.operating.messages import moment
from airflow_provider_jmsjca.operating.queues import (
    QueueChange,
    change_messages,
    count_messages,
    find_message,
    incomplete_count_reason,
    queue_name,
)
from airflow_provider_jmsjca.transports.administration import MessageSelection, QueueOperation

if TYPE_CHECKING:
    from airflow_provider_jmsjca.operating.rejects import RejectGroup, RejectList

_INTERRUPTED = 130
_SOURCES = 2
"""Number of places that `list` examines if no queue is named: the broker and the spool."""
_FIRST = 1000
"""Number of dead letters that `list` reads by default, so that its time doesn't grow with the queue."""


@one_line_errors
def list_command(args: argparse.Namespace) -> None:
    """Print the dead letters of a queue, grouped by reason and original destination.

    With `--rejects`, also print the rejected rows of Spark batches that are still in the spool. With neither
    a queue nor `--rejects`, print these rows and the dead letters of all dead-letter queues of the broker.
    Such queues are recognised by their names. If one of the two can't be listed, standard error gets the
    reason. If neither can be listed, exit with code 1.
    """
    if args.all and args.limit is not None:
        raise ConfigurationError("--all and --limit exclude each other")
    limit = None if args.all else args.limit or _FIRST
    if args.queue is None and not args.rejects:
        _list_everything(args, limit)
        return
    rows: list[dict[str, str]] = []
    notes: list[str] = []
    if args.queue is not None:
        with administration_of(args.conn_id) as administration:
            warn_before_browsing(administration)
            found = list_dead_letters(
                administration, queue_name(args.queue), selector=args.selector, limit=limit
            )
            note = note_without_warning(administration, found.note)
        rows += [_row(each) for each in found.groups]
        if found.more:
            way_on = "; --all reads all, --limit more" if found.examined == limit else ""
            notes.append(found.coverage + way_on)
        notes += filter(None, [note])
        if not found.examined:
            notes.append(no_message_note(args.queue, args.selector))
        elif (example := found.groups[0].example) and example.isprintable() and args.output == "table":
            arguments = f"--conn-id {shlex.quote(args.conn_id)} {shell_arguments(args.queue, example)}"
            notes.append(f"the whole reason and the message: airflow jms dlq show {arguments}")
    if args.rejects:
        rejects = _rejects(args, limit)
        rows = [each | {"batch": "", "row": ""} for each in rows]
        rows += [_reject_row(each) for each in rejects.groups]
        notes += _notes_on(rejects, limit)
    print_rows(rows, args.output)
    for note in notes:
        echo(f"note: {note}")


def _list_everything(args: argparse.Namespace, limit: int | None) -> None:
    """Print the dead letters of all dead-letter queues of a broker, and the rejected rows in the spool."""
    if args.selector is not None:
        raise ConfigurationError("--selector needs the name of a dead-letter queue")
    rows: list[dict[str, str]] = []
    notes: list[str] = []
    missing: list[str] = []
    try:
        found = _on_queues(args, limit, notes)
    except JmsError as error:
        missing.append(
            f"the dead-letter queues of connection {args.conn_id!r} are not listed: {error}; --conn-id names "
            "another connection"
        )
    else:
        rows += found
    try:
        rejects = _rejects(args, limit)
    except (ConfigurationError, SpoolError) as error:
        missing.append(f"rejected rows of Spark batches are not listed: {error}")
    else:
        rows += [_reject_row(each) | {"queue": ""} for each in rejects.groups]
        notes += _notes_on(rejects, limit) or ([] if rejects.groups else ["no batch has rejected rows"])
    if rows or args.output in {"json", "yaml"}:
        print_rows(rows, args.output, optional=("row", "batch"))
    is_nothing = len(missing) == _SOURCES
    for note in (*notes, *missing):
        echo(f"{'error' if is_nothing else 'note'}: {note}")
    if is_nothing:
        raise SystemExit(1)


def _on_queues(args: argparse.Namespace, limit: int | None, notes: list[str]) -> list[dict[str, str]]:
    """Return the rows of all dead-letter queues of a broker, and add notes on them.

    Raises:
        JmsError: The broker can't be used, or does not list its queues.
    """
    with administration_of(args.conn_id) as administration:
        queues = list_dead_letter_queues(administration, limit=limit)
        offers_browsing = QueueOperation.BROWSE in administration.operations
        note, way_out = administration.browse_note, administration.way_out
    for queue in queues:
        if queue.letters is None and offers_browsing:
            arguments = f"--conn-id {shlex.quote(args.conn_id)} {shell_arguments(queue.name)}"
            notes.append(
                f"{queue.name} was not browsed: {note} To read it anyway: airflow jms dlq list {arguments}"
            )
        elif queue.letters is None:
            notes.append(f"{queue.name} was not browsed: the broker does not offer that; {way_out}")
        elif queue.letters.more:
            notes.append(f"{queue.name}: {queue.letters.coverage}; --all reads all, --limit more")
    if not queues:
        notes.append(
            f"connection {args.conn_id!r}: no queue with the name of a dead-letter queue holds messages; "
            "airflow jms queues list --filled shows all queues with messages"
        )
    return [row for queue in queues for row in _rows_of(queue)]


def _rows_of(queue: DeadLetterQueue) -> list[dict[str, str]]:
    others = {"batch": "", "row": "", "queue": queue.name}
    if queue.letters is not None:
        return [_row(each) | others for each in queue.letters.groups]
    unknown = dict.fromkeys(("from", "reason", "first", "last", "example"), "")
    return [{"count": str(queue.messages)} | unknown | others]


def _notes_on(rejects: RejectList, limit: int | None) -> list[str]:
    more = f"these are the first {limit} rejected rows; --all lists all, --limit more"
    return [*([more] if rejects.more else []), *rejects.faults]


@one_line_errors
def show_command(args: argparse.Namespace) -> None:
    """Print one dead letter, or with `--rejects` one rejected row of a batch."""
    if not args.rejects:
        with administration_of(args.conn_id) as administration:
            warn_before_browsing(administration)
            message = find_message(administration, queue_name(args.queue), args.message)
        print_message(message, args.output, move_details(message))
        if args.output == "table" and args.message.isprintable():
            options = f"--to DESTINATION --conn-id {shlex.quote(args.conn_id)}"
            letter = shell_arguments(args.queue, args.message)
            echo(f"note: correct and send it: airflow jms dlq edit {options} {letter}")
            options += " " + shlex.quote(f"--message={args.message}")
            echo(f"note: send it as it is: airflow jms dlq replay {options} {shell_arguments(args.queue)}")
        return
    from airflow_provider_jmsjca.hooks.spool import spool_path  # noqa: PLC0415 - as below
    from airflow_provider_jmsjca.operating.rejects import show_reject  # noqa: PLC0415 - as below

    found = show_reject(spool_path(args.spool_path), args.queue, args.message)
    why = {
        "batch": found.batch_id,
        "row": found.row,
        "exception class": found.exception_class,
        "exception message": found.exception_message,
        "sent to the dead-letter destination": "yes" if found.sent else "no",
    }
    print_message(found.message, args.output, why)


@one_line_errors
def replay_command(args: argparse.Namespace) -> None:
    """Send dead letters back.

    Print how many letters were sent to each destination, and how many stay on the queue for each reason.

    Ctrl-C or SIGTERM ends the replay after the current unit of work, with exit code 130. The exit code is 1
    if a requested id is missing.
    """
    asked = Replay(
        run=args.run or uuid.uuid4().hex,
        target=None if args.to is None else Destination.parse(args.to),
        origins=frozenset(map(Destination.parse, args.origin or ())),
        ids=tuple(dict.fromkeys(args.message or ())),
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
    done = "would be sent back" if args.dry_run else "sent back"

    def progress(sent: int) -> None:
        if shows_progress:
            sys.stderr.write(f"\r{sent} dead letters {done}")
            sys.stderr.flush()

    with broker_connection(args.conn_id) as connection:
        source = Destination.queue(queue_name(args.queue))
        result = replay_dead_letters(connection, source, asked, stopped=stopped, progress=progress)
    if shows_progress:
        sys.stderr.write("\n")
    rows = [{"count": str(count), "what": f"{done} to {where}"} for where, count in result.sent.most_common()]
    rows += [{"count": str(count), "what": f"left: {why}"} for why, count in result.left.most_common()]
    print_rows(rows or [{"count": "0", "what": "no dead letters"}], args.output)
    for missing in () if stopped.is_set() else result.missing:
        where = "on the queue" if result.complete else "among the letters that the broker delivered"
        echo(f"error: no message {missing!r} is {where}")
    if not result.complete:
        echo(
            "note: there are more dead letters, behind those that were counted; choose letters with "
            "--selector, or send those in front elsewhere with --to and --limit"
        )
    if stopped.is_set():
        echo("note: interrupted; run the command again to send back the rest")
        raise SystemExit(_INTERRUPTED)
    if result.missing:
        raise SystemExit(1)


@one_line_errors
def edit_command(args: argparse.Namespace) -> None:
    """Open a dead letter in `$EDITOR`, send the edited copy, and delete the letter.

    Without a change, with an empty file, or if the editor fails, nothing is sent and the letter stays.
    """
    queue = queue_name(args.queue)
    target = Destination.parse(args.to)
    with (
        broker_connection(args.conn_id) as connection,
        contextlib.closing(connection.administration()) as administration,
    ):
        require_selection(connection, administration)
        warn_before_browsing(administration)
        letter = find_message(administration, queue, args.message)
    edited = _edited(edit_text(editable_message(letter)))
    if edited is None:
        sys.stdout.write("no change; the letter stays\n")
        return
    message, file = edited
    # Connect again: the broker may have closed a connection that was idle while the editor was open.
    try:
        with broker_connection(args.conn_id) as connection:
            deleted = resend_edited(connection, Destination.queue(queue), letter, message, target)
    except JmsError:
        echo(f"note: your text is in {file}")
        raise
    sys.stdout.write(f"sent to {escaped(target)}\n")
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        echo(f"note: your text stays in {file}: {error.strerror or error}")
    if not deleted:
        echo("note: the letter was no longer on the queue; another consumer took it")


@one_line_errors
def purge_command(args: argparse.Namespace) -> None:
    """Permanently delete the dead letters of a queue, after a confirmation unless `--yes` is given."""
    queue = queue_name(args.queue)
    selection = MessageSelection(selector=args.selector)
    with administration_of(args.conn_id) as administration:
        count = count_messages(administration, queue, selection.selector)
        if not count:
            sys.stdout.write("0 messages deleted\n")
            return
        more = " or more" if incomplete_count_reason(administration, queue, selection, count) else ""
        question = f"Delete {count}{more} messages of {escaped(queue)} for good? [y/N] "
        if not args.yes and _answer(question) not in {"y", "yes"}:
            sys.stdout.write("nothing deleted\n")
            return
        deleted = change_messages(administration, QueueChange.DELETE, queue, selection)
        sys.stdout.write(f"{deleted} messages deleted\n")


def _answer(question: str) -> str:
    """Return the user's answer in lower case.

    Raises:
        ConfigurationError: Standard input has ended, as in a job without a terminal.
    """
    try:
        return input(question).strip().lower()
    except EOFError as error:
        sys.stdout.write("\n")
        raise ConfigurationError(
            "there is no terminal to confirm at, so nothing was deleted; give --yes to delete without asking"
        ) from error


def _edited(before: str) -> tuple[JmsMessage, Path] | None:
    """Return the message that the user has edited, and the file with its text.

    Args:
        before: The text to edit.

    Returns:
        `None` if the user changed nothing, the text is empty, or the editor failed. Then the file is deleted.

    Raises:
        ConfigurationError: `VISUAL` or `EDITOR` is no command, the editor cannot be started, or its file
            cannot be written. Or the editor was killed, or the text cannot be read or is no message; then
            the file is kept.
    """
    editor = _editor()
    file = _written(before + "\n")
    try:
        code = subprocess.run([*editor, file], check=False).returncode
    except OSError as error:
        file.unlink()
        raise ConfigurationError(
            f"the editor {editor[0]!r} cannot be started: {error.strerror or error}; set EDITOR"
        ) from error
    try:
        content = file.read_bytes().strip() if file.exists() else b""
    except OSError as error:
        raise ConfigurationError(
            f"the edited text in {file} cannot be read: {error.strerror or error}; nothing was sent, and the "
            "letter stays"
        ) from error
    is_changed = content not in {b"", before.encode()}
    if code < 0 and is_changed:
        raise ConfigurationError(
            f"the editor was ended by signal {-code}; nothing was sent, and your text is in {file}"
        )
    if code or not is_changed:
        file.unlink(missing_ok=True)
        return None
    try:
        return edited_message(content), file
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}; your text is in {file}") from error


def _written(text: str) -> Path:
    """Return a new temporary file with a text, readable by this user only.

    Raises:
        ConfigurationError: The file can't be written, for example because the disk is full. Then no file is
            left.
    """
    file = None
    try:
        number, name = tempfile.mkstemp(prefix="jms-", suffix=".json")
        file = Path(name)
        with os.fdopen(number, "w", encoding="utf-8") as opened:
            opened.write(text)
    except OSError as error:
        if file is not None:
            file.unlink(missing_ok=True)
        where = "" if file is None else f" in {file.parent}"
        raise ConfigurationError(
            f"the file for the editor cannot be written{where}: {error.strerror or error}; nothing was sent. "
            "Set TMPDIR to a folder with free space"
        ) from error
    return file


def _editor() -> list[str]:
    """Return the command of the user's editor, by default `vi`.

    Raises:
        ConfigurationError: A quotation in `VISUAL` or `EDITOR` is not closed.
    """
    given = (os.environ.get(name, "").strip() for name in ("VISUAL", "EDITOR"))
    command = next(filter(None, given), "vi")
    try:
        return shlex.split(command)
    except ValueError as error:
        raise ConfigurationError(
            f"the editor {command!r} is not a valid command: {error}; set EDITOR"
        ) from error


def _rejects(args: argparse.Namespace, limit: int | None) -> RejectList:
    """Return the rejected rows of the spool.

    Raises:
        ConfigurationError: The path of the spool can't be used.
        SpoolError: The spool cannot be read.
    """
    from airflow_provider_jmsjca.hooks.spool import spool_path  # noqa: PLC0415 - only rejects need the spool
    from airflow_provider_jmsjca.operating.rejects import list_rejects  # noqa: PLC0415 - as above

    return list_rejects(spool_path(args.spool_path), limit=limit or sys.maxsize)


def _reject_row(group: RejectGroup) -> dict[str, str]:
    changed = moment(int(group.changed * 1000))
    return {
        "count": str(group.count),
        "from": group.source,
        "reason": group.reason,
        "first": "",
        "last": changed,
        "example": "",
        "batch": group.batch_id,
        "row": group.row,
    }


def _row(group: DeadLetterGroup) -> dict[str, str]:
    deaths = "" if group.deaths is None or group.deaths == 1 else f" (up to {times(group.deaths)})"
    return {
        "count": str(group.count),
        "from": "" if group.destination is None else str(group.destination),
        "reason": group.reason + deaths,
        "first": moment(group.first),
        "last": moment(group.last),
        "example": group.example or "",
    }
