"""The commands of `airflow jms store`."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import threading

from airflow_provider_jmsjca.cli.commands import echo, one_line_errors
from airflow_provider_jmsjca.engine.limbo import EVERY, StoreUpkeep
from airflow_provider_jmsjca.errors import TransientStoreError
from airflow_provider_jmsjca.hooks.jms import JmsHook
from airflow_provider_jmsjca.hooks.store import installed_store, store_database
from airflow_provider_jmsjca.store.sql.tables import REVISIONS


@one_line_errors
def upgrade_command(args: argparse.Namespace) -> None:
    """Create the tables of the store, or upgrade them."""
    del args
    with contextlib.closing(store_database()) as database:
        before = database.upgrade()
        done = "is up to date" if before == REVISIONS[-1] else f"was {before or 'empty'}, and is upgraded"
        sys.stdout.write(f"The store {database.name} {done}: schema {REVISIONS[-1]}\n")


@one_line_errors
def check_command(args: argparse.Namespace) -> None:
    """Check that the store can be used; exit with code 1 if it can't."""
    del args
    with contextlib.closing(store_database()) as database:
        if database.is_sqlite:
            database.upgrade_if_older()
        database.check()
        with database.write():
            pass  # raises if the database is locked or read-only
        sys.stdout.write(f"The store {database.name} can be used: schema {REVISIONS[-1]}\n")


@one_line_errors
def run_command(args: argparse.Namespace) -> None:
    """Send due messages of limbo every second until SIGTERM or Ctrl-C; with `--once`, send them once."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    with contextlib.closing(installed_store()) as store:
        upkeep = StoreUpkeep(store, JmsHook.connect_for_limbo)
        while not stopped.is_set():
            try:
                done = upkeep.round()
            except TransientStoreError as error:
                if args.once:
                    raise
                echo(f"error: {error}; retrying")
            else:
                if done.sent or done.failed or args.once:
                    sys.stdout.write(f"{done.sent} messages sent, {done.failed} failed\n")
                    sys.stdout.flush()
            if args.once:
                break
            stopped.wait(EVERY.total_seconds())
