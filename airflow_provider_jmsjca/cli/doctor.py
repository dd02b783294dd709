"""The command `airflow jms doctor`."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from airflow.cli.simple_table import AirflowConsole

from airflow_provider_jmsjca.cli.commands import cells, one_line_errors
from airflow_provider_jmsjca.errors import ConfigurationError, JmsError, StoreSchemaError
from airflow_provider_jmsjca.hooks.jms import JmsHook
from airflow_provider_jmsjca.hooks.spool import spool_path
from airflow_provider_jmsjca.hooks.store import (
    installed_store,
    store_database,
    store_in_use,
)
from airflow_provider_jmsjca.operating.doctor import (
    Finding,
    FindingKind,
    examine_broker,
    examine_dag_files,
    examine_disk,
    examine_spool,
    examine_store,
    examine_triggerer,
    examine_watchers,
)
from airflow_provider_jmsjca.triggers.watchers import AirflowState, airflow_state, environment_connections

_GIB: Final = 1 << 30
_NOTHING_RECORDED: Final = AirflowState(
    triggerer=None, watched=(), deferred=0, connections=(), dead_letter_queues=frozenset()
)


@one_line_errors
def doctor_command(args: argparse.Namespace) -> None:
    """Print findings, and leave with exit code 1 if there are problems, 2 if a part could not be examined."""
    found = [each for each in _examined(args) if args.notes or each.kind is not FindingKind.NOTE]
    order = list(FindingKind)
    found.sort(key=lambda each: order.index(each.kind))
    if found or args.output != "table":
        AirflowConsole().print_as(
            data=[
                {"finding": str(each.kind), "symptom": each.symptom, "cause": each.cause, "fix": each.fix}
                for each in found
            ],
            output=args.output,
            mapper=lambda row: cells(row, args.output),
        )
    kinds = {each.kind for each in found}
    if FindingKind.PROBLEM in kinds:
        raise SystemExit(1)
    if FindingKind.UNKNOWN in kinds:
        raise SystemExit(2)
    if args.output == "table":
        sys.stdout.write("no problems found\n")


def _examined(args: argparse.Namespace) -> Iterator[Finding]:
    state = _NOTHING_RECORDED
    try:
        state = airflow_state()
    except JmsError as error:
        yield Finding(
            kind=FindingKind.UNKNOWN,
            symptom="triggerer, DAGs and watchers not examined",
            cause=str(error),
            fix="airflow db check",
        )
    else:
        yield from examine_triggerer(state.triggerer, is_needed=bool(state.watched or state.deferred))
        yield from examine_dag_files(state.broken_files)
        yield from examine_watchers(state.watched)
    for conn_id in args.conn_id or _connections(state):
        watched = [each for each in state.watched if each.jms_conn_id == conn_id]
        queues = state.dead_letter_queues | frozenset(args.dead_letter_queue or ())
        yield from examine_broker(conn_id, JmsHook(conn_id).settings, watched, queues)
    yield from _store(args)
    yield from _spool(args)


def _connections(state: AirflowState) -> list[str]:
    """Return the JMS connections of the database, of the environment, and those that watchers name."""
    watched = {each.jms_conn_id for each in state.watched}
    return sorted({*state.connections, *environment_connections(), *watched})


def _store(args: argparse.Namespace) -> Iterator[Finding]:
    if not store_in_use():
        return
    file: Path | None = None
    is_new = False
    try:
        with contextlib.closing(store_database()) as database:
            file = database.file
            # The first use of a file creates it with its tables.
            is_new = file is not None and database.revision() is None and _can_create(file)
            database.check()
        with contextlib.closing(installed_store()) as store:
            yield from examine_store(store)
    except StoreSchemaError as error:
        yield Finding(
            kind=FindingKind.NOTE if is_new else FindingKind.PROBLEM,
            symptom="the store has no tables yet"
            if is_new
            else "the store cannot be used: its tables are missing or of another version",
            cause=str(error),
            fix="airflow jms store upgrade",
        )
    except JmsError as error:
        yield Finding(
            kind=FindingKind.UNKNOWN,
            symptom="the store cannot be examined",
            cause=str(error),
            fix="airflow jms store check",
        )
    if file is not None:
        yield from examine_disk("store", file.parent, args.min_free * _GIB)


def _can_create(file: Path) -> bool:
    folder = next(each for each in file.absolute().parents if each.exists())
    return folder.is_dir() and os.access(folder, os.W_OK)


def _spool(args: argparse.Namespace) -> Iterator[Finding]:
    try:
        spool = spool_path()
    except ConfigurationError as error:
        yield Finding(
            symptom="the spool cannot be used",
            cause=str(error),
            fix=f"airflow config get-value jmsjca {shlex.quote('spool_path')}",
        )
        return
    if isinstance(spool, Path):
        yield from examine_disk("spool", spool, args.min_free * _GIB)
    yield from examine_spool(spool)
