"""The commands of `airflow jms store`."""

from __future__ import annotations

import argparse
import contextlib
import sys

from airflow_provider_jmsjca.cli.commands import one_line_errors
from airflow_provider_jmsjca.hooks.store import store_database
from airflow_provider_jmsjca.store.sql.tables import REVISIONS


@one_line_errors
def upgrade_command(args: argparse.Namespace) -> None:
    """Make the tables of the store, or bring them up to date."""
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
            pass  # nobody holds it, and it isn't read-only
        sys.stdout.write(f"The store {database.name} can be used: schema {REVISIONS[-1]}\n")
